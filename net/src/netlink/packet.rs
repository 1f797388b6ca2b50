//! Sockets of single links: frames of one ethertype (packet(7)), and neighbour discovery (icmp6); and the links that have some.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use ipnet::IpNet;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SetSockOpt;
use nix::sys::socket::{
    ControlMessageOwned, LinkAddr, MsgFlags, SockaddrIn6, bind, recv, recvmsg, send, sendto, sockopt,
};
use rustix::net::sockopt as options;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, ipproto, socket_with};

use crate::{Error, Result};

/// More than a socket's queue has room for: what is in it from before it was bound to its link.
const STALE: usize = 4096;
/// No frame that is expected is longer.
pub const LONGEST: usize = 512;

/// A link with a hardware address, by which other machines are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    pub name: String,
    pub index: u32,
    pub mac: [u8; 6],
    /// Whether it has addresses of IPv4, and of IPv6.
    pub v4: bool,
    pub v6: bool,
    at: LinkAddr,
}

/// The Ethernet links with addresses in the calling thread's network namespace that are up and lead to other machines: neither
/// containers' ([`leads_to_containers`]) nor those whose addresses are all in `pods`, which network plugins have made.
///
/// # Errors
///
/// The kernel does not list them (getifaddrs(3)).
pub fn uplinks(pods: &[IpNet]) -> Result<Vec<Uplink>> {
    let failed = |e: Errno| Error::call("getifaddrs", e.into());
    let usable = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING | InterfaceFlags::IFF_BROADCAST;
    let unusable = InterfaceFlags::IFF_LOOPBACK | InterfaceFlags::IFF_NOARP | InterfaceFlags::IFF_POINTOPOINT;
    let (mut links, mut addresses) = (Vec::<Uplink>::new(), BTreeMap::<String, Vec<IpAddr>>::new());
    for found in getifaddrs().map_err(failed)? {
        let is_usable = found.flags.contains(usable) && !found.flags.intersects(unusable);
        if leads_to_containers(&found.interface_name) || !is_usable {
            continue;
        }
        let Some(address) = found.address else { continue };
        if let Some(at) = address.as_link_addr() {
            let is_ethernet = at.hatype() == libc::ARPHRD_ETHER && at.halen() == 6;
            if let (true, Some(mac), Ok(index)) = (is_ethernet, at.addr(), u32::try_from(at.ifindex())) {
                links.push(Uplink { name: found.interface_name, index, mac, v4: false, v6: false, at: *at });
            }
            continue;
        }
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        let ip = v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()));
        addresses.entry(found.interface_name).or_default().extend(ip);
    }
    for link in &mut links {
        let own = addresses.remove(&link.name).unwrap_or_default();
        if !are_of_pods(&own, pods) {
            (link.v4, link.v6) = (own.iter().any(IpAddr::is_ipv4), own.iter().any(IpAddr::is_ipv6));
        }
    }
    links.retain(|link| link.v4 || link.v6);
    Ok(links)
}

/// Whether a link has addresses of Pods, and no others but those that every link has.
fn are_of_pods(own: &[IpAddr], pods: &[IpNet]) -> bool {
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let mut chosen = own.iter().filter(|ip| !is_link_local(ip)).peekable();
    chosen.peek().is_some() && chosen.all(|ip| pods.iter().any(|range| range.contains(ip)))
}

/// What links of containers are called by those who make them: this node, network plugins and their meshes, Docker, podman.
/// Bridges of virtual machines are not among them: other nodes may be there.
const OF_CONTAINERS: [&str; 9] = ["pw", "podwright-", "cni", "cali", "cilium", "flannel", "kube-", "docker", "podman"];
/// The same, where hexadecimal digits follow, at least so many: `br-1f2e3d4c5b6a` is a network of Docker's, and `br-lan` is not.
const WITH_DIGITS: [(&str, usize); 2] = [("br-", 12), ("veth", 7)];

/// Whether a link leads to containers of this machine, by its name.
pub fn leads_to_containers(name: &str) -> bool {
    let has_digits = |(prefix, least): &(&str, usize)| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| rest.len() >= *least && rest.chars().all(|digit| digit.is_ascii_hexdigit()))
    };
    OF_CONTAINERS.iter().any(|prefix| name.starts_with(prefix)) || WITH_DIGITS.iter().any(has_digits)
}

fn failed(what: &'static str, link: &Uplink) -> impl Fn(std::io::Error) -> Error {
    let call = format!("{what} on {}", link.name);
    move |error| Error::call(call.clone(), error)
}

/// Sends and receives frames of one ethertype on one link.
pub struct Frames(OwnedFd);

impl Frames {
    /// Opens it in the calling thread's network namespace, non-blocking.
    ///
    /// # Errors
    ///
    /// The kernel refuses it (packet(7)): without CAP_NET_RAW, or for a link that has gone.
    pub fn open(link: &Uplink, ethertype: u16) -> Result<Frames> {
        let failed = failed("socket(AF_PACKET)", link);
        // In network byte order, as packet(7) has it.
        let protocol = NonZeroU32::new(u32::from(ethertype.to_be())).map(Protocol::from_raw);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, protocol).map_err(|e| failed(e.into()))?;
        bind(fd.as_raw_fd(), &link.at).map_err(|e| failed(e.into()))?;
        let frames = Frames(fd);
        // Until it was bound it has heard all links, also those of Pods.
        let mut buffer = [0; 1];
        for _ in 0..STALE {
            if recv(frames.0.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT).is_err() {
                break;
            }
        }
        Ok(frames)
    }

    /// The next frame, cut to [`LONGEST`]; `None`: there is none now.
    pub fn receive(&self, buffer: &mut [u8; LONGEST]) -> std::io::Result<Option<usize>> {
        match recv(self.0.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(length) => Ok(Some(length)),
            Err(Errno::EAGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a whole frame. One that finds no room is lost, as on the wire.
    pub fn send(&self, frame: &[u8]) -> std::io::Result<()> {
        match send(self.0.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT) {
            Ok(_) | Err(Errno::EAGAIN | Errno::ENOBUFS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Frames {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Frames {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// Sends and receives ICMPv6 on one link; the kernel makes and verifies the checksums.
pub struct Discovery {
    fd: OwnedFd,
    index: u32,
}

/// A message of neighbour discovery, with its sender and its remaining hops.
pub struct Received {
    pub length: usize,
    pub from: Ipv6Addr,
    pub hops: i32,
}

impl Discovery {
    /// Opens it in the calling thread's network namespace, non-blocking.
    ///
    /// # Errors
    ///
    /// The kernel refuses it: without CAP_NET_RAW, without IPv6, or for a link that has gone.
    pub fn open(link: &Uplink) -> Result<Discovery> {
        let failed = failed("socket(AF_INET6, ICMPv6)", link);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let make = || -> std::io::Result<OwnedFd> {
            let fd = socket_with(AddressFamily::INET6, SocketType::RAW, flags, Some(ipproto::ICMPV6))?;
            sockopt::BindToDevice.set(&fd, &link.name.clone().into())?;
            sockopt::Ipv6RecvHopLimit.set(&fd, &true)?;
            options::set_ipv6_unicast_hops(&fd, Some(255))?;
            options::set_ipv6_multicast_hops(&fd, 255)?;
            options::set_ipv6_multicast_loop(&fd, false)?;
            Ok(fd)
        };
        let discovery = Discovery { fd: make().map_err(failed)?, index: link.index };
        let mut buffer = [0; LONGEST];
        for _ in 0..STALE {
            if !matches!(discovery.receive(&mut buffer), Ok(Some(_))) {
                break;
            }
        }
        Ok(discovery)
    }

    /// Joins a group, or leaves it: only what is sent to joined ones is received.
    pub fn join(&self, group: Ipv6Addr, joined: bool) -> std::io::Result<()> {
        match joined {
            true => options::set_ipv6_add_membership(&self.fd, &group, self.index)?,
            false => options::set_ipv6_drop_membership(&self.fd, &group, self.index)?,
        }
        Ok(())
    }

    /// The next message, cut to [`LONGEST`]; `None`: there is none now.
    pub fn receive(&self, buffer: &mut [u8; LONGEST]) -> std::io::Result<Option<Received>> {
        let mut space = nix::cmsg_space!(libc::c_int);
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let message = match recvmsg::<SockaddrIn6>(self.fd.as_raw_fd(), &mut parts, Some(&mut space), flags) {
            Ok(message) => message,
            Err(Errno::EAGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let hops = message.cmsgs().ok().into_iter().flatten().find_map(|part| match part {
            ControlMessageOwned::Ipv6HopLimit(hops) => Some(hops),
            _ => None,
        });
        let from = message.address.map_or(Ipv6Addr::UNSPECIFIED, |from| from.ip());
        Ok(Some(Received { length: message.bytes, from, hops: hops.unwrap_or(0) }))
    }

    /// Sends a message to somebody on the link, or to a group of it.
    pub fn send(&self, message: &[u8], to: Ipv6Addr) -> std::io::Result<()> {
        let to = SockaddrIn6::from(SocketAddrV6::new(to, 0, 0, self.index));
        match sendto(self.fd.as_raw_fd(), message, &to, MsgFlags::MSG_DONTWAIT) {
            Ok(_) | Err(Errno::EAGAIN | Errno::ENOBUFS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Discovery {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Discovery {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_containers_are_known_by_their_names() {
        for name in ["pw1f2e3d4c5b6a", "cni0", "cni-podman0", "docker0", "br-1f2e3d4c5b6a", "podman1", "veth1a2b3c4d"] {
            assert!(leads_to_containers(name), "{name}");
        }
        for name in ["eth0", "enp3s0", "br0", "br-lan", "veth0", "wlan0", "bond0", "vlan7", "wire", "virbr0"] {
            assert!(!leads_to_containers(name), "{name}");
        }
    }
}

//! Forged frames: a node learns no neighbours from them, and accepts only the Pod's own source addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use podwright_journal::JournalWriter;
use podwright_net::{links, netlink};

use super::net_links::eth0_index;
use super::net_world::*;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

/// The hardware address of the node's end of each link.
const NODE: [u8; 6] = [0xee; 6];

/// Sends packets over a Pod's link bypassing its kernel's routes, using CAP_NET_RAW.
fn send(pod: &Pod, protocol: u16, packets: &[Vec<u8>]) {
    let index = eth0_index(pod);
    let send = || {
        // SAFETY: a plain call; we own the descriptor.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: the structure consists of integers.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_protocol = protocol.to_be();
        to.sll_ifindex = index as i32;
        to.sll_halen = 6;
        to.sll_addr[..6].copy_from_slice(&NODE);
        for packet in packets {
            // SAFETY: both pointers are valid until the call returns, with their lengths.
            let sent = unsafe {
                let (at, length) = ((&raw const to).cast(), size_of_val(&to) as u32);
                libc::sendto(socket.as_raw_fd(), packet.as_ptr().cast(), packet.len(), 0, at, length)
            };
            assert_eq!(sent, packet.len() as isize, "{}", std::io::Error::last_os_error());
        }
    };
    netlink::in_netns(pod.netns.as_fd(), send).unwrap();
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
    let sum: u32 = bytes.chunks(2).map(word).sum();
    let sum = (sum >> 16) + (sum & 0xffff);
    (!((sum >> 16) + sum) as u16).to_be_bytes()
}

/// An unsolicited ARP reply for `sender`.
fn arp_reply(sender: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, 2];
    [&head[..], &[2, 0, 0, 0, 0, 9], &sender.octets(), &NODE, &to.octets()].concat()
}

/// A datagram without a checksum, as from a host without an address.
fn datagram(from: Ipv4Addr, to: Ipv4Addr, source_port: u16) -> Vec<u8> {
    let head = [0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0];
    let mut packet = [&head[..], &from.octets(), &to.octets()].concat();
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum);
    packet.extend([source_port.to_be_bytes(), 9u16.to_be_bytes(), [0, 9], [0, 0]].concat());
    packet.push(b'x');
    packet
}

/// An ICMPv6 message with a valid checksum.
fn icmp6(from: Ipv6Addr, to: Ipv6Addr, mut message: Vec<u8>) -> Vec<u8> {
    let length = message.len() as u16;
    let pseudo =
        [&from.octets()[..], &to.octets(), &u32::from(length).to_be_bytes(), &[0, 0, 0, 58], &message].concat();
    let sum = checksum(&pseudo);
    message[2..4].copy_from_slice(&sum);
    let [high, low] = length.to_be_bytes();
    [&[0x60, 0, 0, 0, high, low, 58, 255][..], &from.octets(), &to.octets(), &message].concat()
}

const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
const NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

#[test]
fn a_node_learns_no_neighbours_from_a_pod() {
    let node = Node::dual();
    let pod = node.server("pod");
    let _outside = outsider(&node, "uplink", "198.18.0.1/16", "198.18.0.2/16");
    // A machine may be configured to accept unsolicited ARP, for addresses that move.
    let link = links::link_name(&pod.uid);
    let set = |name: &str| netlink::sysctl(&JournalWriter::none(), name, "1");
    for name in ["net/ipv4/conf/all/arp_accept", &format!("net/ipv6/conf/{link}/accept_untracked_na")] {
        netlink::in_netns(node.netns(), || set(name)).unwrap().unwrap();
    }
    let IpAddr::V4(own) = node.network.addresses()[0] else { panic!("the node's first address") };
    let replies: Vec<_> = (0..500u16).map(|n| arp_reply(Ipv4Addr::from(0xc612_0100 + u32::from(n)), own)).collect();
    send(&pod, ARP, &replies);
    // Announcements about other addresses from the Pod's own one, and router solicitations from others.
    let IpAddr::V6(from) = pod.ips[1] else { panic!("the Pod's second address") };
    let other = |n| Ipv6Addr::new(0xfd00, 0x244, 1, 0, 0, 0, 1, n);
    let tell = |n| {
        let message = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &other(n).octets(), &[2, 1, 2, 0, 0, 0, 0, 9]].concat();
        icmp6(from, NODES, message)
    };
    let solicit = |n| icmp6(other(n), ROUTERS, [&[133, 0, 0, 0, 0, 0, 0, 0, 1, 1][..], &[2, 0, 0, 0, 0, 9]].concat());
    let said: Vec<_> = (0..500).flat_map(|n| [tell(n), solicit(1000 + n)]).collect();
    send(&pod, IPV6, &said);
    // All of it has arrived by now.
    assert!(ask(node.netns(), pod.endpoint()).is_ok() && ask(node.netns(), pod.endpoint6()).is_ok());
    for family in ["-4", "-6"] {
        let known = run_in(node.netns(), "ip", &[family, "neighbour", "show", "dev", &link]);
        let learned = known.lines().filter(|line| !line.contains("PERMANENT")).count();
        assert_eq!(learned, 0, "{known}");
    }
}

/// Packets from the unspecified address have no owner: they would count for no Pod's share of conntrack. The kernel's own source
/// check lets them pass to multicast.
#[test]
fn a_pod_has_an_address_whomever_it_sends_to() {
    let node = Node::dual();
    let pod = node.server("pod");
    assert!(ask(node.netns(), pod.endpoint()).is_ok());
    let tracked = || {
        let read = || netlink::read_sysctl("net/netfilter/nf_conntrack_count");
        netlink::in_netns(node.netns(), read).unwrap().unwrap().parse::<usize>().unwrap()
    };
    let before = tracked();
    let all = [Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)];
    let nobody = [Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(0, 0, 0, 7)];
    let lies: Vec<_> =
        (1000..1200).flat_map(|port| all.map(|to| nobody.map(|from| datagram(from, to, port))).concat()).collect();
    send(&pod, IPV4, &lies);
    let pings: Vec<_> =
        (0..200u8).map(|n| icmp6(Ipv6Addr::UNSPECIFIED, NODES, vec![128, 0, 0, 0, 7, n, 0, 1])).collect();
    send(&pod, IPV6, &pings);
    assert!(ask(pod.netns.as_fd(), pod.endpoint()).is_ok());
    let after = tracked();
    assert!(after < before + 20, "{before} became {after}");
}

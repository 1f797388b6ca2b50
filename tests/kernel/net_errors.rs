//! ICMP errors from a Pod about others' packets: about connections that it is not an end of, and about packets that were never
//! sent.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use podwright_net::dataplane::Protocol;
use podwright_net::message::Writer;
use podwright_net::netlink::{self, Socket};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto};

use super::net_world::*;

/// A UDP socket in a namespace, connected to another one's.
fn connected(netns: BorrowedFd<'_>, from: SocketAddr, to: SocketAddr) -> UdpSocket {
    let open = || {
        let socket = UdpSocket::bind(from)?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok::<_, std::io::Error>(socket)
    };
    netlink::in_netns(netns, open).unwrap().unwrap()
}

/// The kind of error.
#[derive(Clone, Copy)]
enum Trouble {
    /// The datagram's port is closed.
    Port,
    /// The datagram was too large.
    Large,
    /// The reply to a ping was too large. Conntrack only recognizes it by the request.
    LargeAnswer,
}

/// The smallest accepted MTU: our choice for IPv4, the protocol's minimum for IPv6.
const SMALL: [&str; 2] = ["mtu 600", "mtu 1280"];

/// Sends, from a namespace, an error about a packet from `from` to `to`, to its sender.
fn tell(netns: BorrowedFd<'_>, trouble: Trouble, from: SocketAddr, to: SocketAddr) {
    // The embedded header, as far as conntrack reads it: UDP's, or ICMP's, 8 bytes.
    let udp = || [from.port().to_be_bytes(), to.port().to_be_bytes(), [0, 9], [0, 0]].concat();
    let answer = |kind: u8| vec![kind, 0, 0, 0, 0, 7, 0, 1];
    let send = || match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let (protocol, inner, code, mtu) = match trouble {
                Trouble::Port => (17, udp(), 3, 0),
                Trouble::Large => (17, udp(), 4, 600u16),
                Trouble::LargeAnswer => (1, answer(0), 4, 600),
            };
            let head = [0x45, 0, 0, 29, 0, 0, 0, 0, 64, protocol, 0, 0];
            let mut header = [&head[..], &source.octets(), &destination.octets()].concat();
            let sum = checksum(&header).to_be_bytes();
            header[10..12].copy_from_slice(&sum);
            let [high, low] = mtu.to_be_bytes();
            let mut packet = [&[3, code, 0, 0, 0, 0, high, low][..], &header, &inner, b"?"].concat();
            let sum = checksum(&packet).to_be_bytes();
            packet[2..4].copy_from_slice(&sum);
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).unwrap();
            rustix::net::sendto(&socket, &packet, SendFlags::empty(), &SocketAddrV4::new(source, 0))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let (protocol, inner, kind, code, mtu) = match trouble {
                Trouble::Port => (17, udp(), 1, 4, 0u16),
                Trouble::Large => (17, udp(), 2, 0, 1280),
                Trouble::LargeAnswer => (58, answer(129), 2, 0, 1280),
            };
            let head = [0x60, 0, 0, 0, 0, 9, protocol, 64];
            let header = [&head[..], &source.octets(), &destination.octets()].concat();
            let [high, low] = mtu.to_be_bytes();
            // The kernel adds the checksum.
            let packet = [&[kind, code, 0, 0, 0, 0, high, low][..], &header, &inner, b"?"].concat();
            let socket = rustix::net::socket(AddressFamily::INET6, SocketType::RAW, Some(ipproto::ICMPV6)).unwrap();
            rustix::net::sendto(&socket, &packet, SendFlags::empty(), &SocketAddrV6::new(source, 0, 0, 0))
        }
        _ => panic!("two families"),
    };
    netlink::in_netns(netns, send).unwrap().unwrap();
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
    let sum: u32 = bytes.chunks(2).map(word).sum();
    let sum = (sum >> 16) + (sum & 0xffff);
    !((sum >> 16) + sum) as u16
}

/// Waits until a Pod's later packet has arrived: so would the errors have.
fn passed(pod: &Pod, netns: BorrowedFd<'_>, address: IpAddr, family: usize) {
    let last = SocketAddr::new(address, 6001);
    let listener = netlink::in_netns(netns, || UdpSocket::bind(last)).unwrap().unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let barrier = connected(pod.netns.as_fd(), SocketAddr::new(pod.ips[family], 8000), last);
    barrier.send(b"x").unwrap();
    listener.recv(&mut [0; 9]).unwrap();
}

/// A namespace's route to an address.
fn way(netns: BorrowedFd<'_>, to: IpAddr) -> String {
    run_in(netns, "ip", &["route", "get", &to.to_string()])
}

#[test]
fn errors_about_a_connection_come_from_its_ends_alone() {
    let node = Node::dual();
    let (one, two, third) = (node.pod("one"), node.pod("two"), node.pod("third"));
    for family in 0..2 {
        let ends = [SocketAddr::new(one.ips[family], 6000), SocketAddr::new(two.ips[family], 7000)];
        let sockets = [connected(one.netns.as_fd(), ends[0], ends[1]), connected(two.netns.as_fd(), ends[1], ends[0])];
        let talk = || {
            sockets[0].send(b"?").and_then(|_| sockets[1].recv(&mut [0; 9]))?;
            sockets[1].send(b"!").and_then(|_| sockets[0].recv(&mut [0; 9]))
        };
        talk().unwrap();
        tell(third.netns.as_fd(), Trouble::Port, ends[0], ends[1]);
        tell(third.netns.as_fd(), Trouble::Port, ends[1], ends[0]);
        passed(&third, one.netns.as_fd(), one.ips[family], family);
        for socket in &sockets {
            assert!(socket.take_error().unwrap().is_none(), "a third Pod's error about {ends:?} has come");
        }
        talk().unwrap();
        // The same from the real ends arrives: from the called one, and from the caller.
        let by = [&two, &one];
        for (at, socket) in sockets.iter().enumerate() {
            tell(by[at].netns.as_fd(), Trouble::Port, ends[at], ends[1 - at]);
            let told = eventually(|| socket.take_error().unwrap().map(|e| e.kind()), Option::is_some);
            assert_eq!(told, Some(ErrorKind::ConnectionRefused));
        }
        talk().unwrap();
    }
}

/// Conntrack knows no connection for such an error, so it is not related but invalid. A Pod could shrink the node's own packets to
/// any address: the server, a registry, other nodes.
#[test]
fn errors_about_what_nobody_has_sent_are_nothing_to_the_node() {
    let node = Node::dual();
    let pod = node.pod("liar");
    let outside = outsider(&node, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    run_in(node.netns(), "ip", &["address", "add", "2001:db8:113::1/64", "dev", "uplink", "nodad"]);
    run_in(outside.as_fd(), "ip", &["address", "add", "2001:db8:113::9/64", "dev", "eth0", "nodad"]);
    let addresses =
        [["203.0.113.1", "203.0.113.7", "203.0.113.8"], ["2001:db8:113::1", "2001:db8:113::7", "2001:db8:113::8"]];
    for (family, [own, one, other]) in addresses.into_iter().enumerate() {
        // A router on the node's own link is trusted: this verifies that such errors are well-formed.
        tell(outside.as_fd(), Trouble::LargeAnswer, at(own, 0), at(one, 0));
        eventually(|| way(node.netns(), at(one, 0).ip()), |way| way.contains(SMALL[family]));
        tell(pod.netns.as_fd(), Trouble::LargeAnswer, at(own, 0), at(other, 0));
        passed(&pod, node.netns(), at(own, 0).ip(), family);
        let seen = way(node.netns(), at(other, 0).ip());
        assert!(!seen.contains("mtu"), "{seen}");
    }
}

/// For the node's own socket a call goes to the Service's address, which no tracked connection has as its other end.
#[test]
fn errors_about_a_nodes_call_to_a_service_do_not_reach_it() {
    let node = Node::dual();
    let (pod, third) = (node.server("served"), node.pod("third"));
    let mut web = service_of("10.96.1.1", Protocol::Udp, &[pod.endpoint()]);
    web.ports.push(port("fd00:96::5", Protocol::Udp, &[pod.endpoint6()]));
    node.load(&[("default/web", web)]);
    for (family, (own, service)) in [("192.0.2.1", "10.96.1.1"), ("2001:db8::1", "fd00:96::5")].into_iter().enumerate()
    {
        let ends = [at(own, 6000), at(service, 80)];
        let socket = connected(node.netns(), ends[0], ends[1]);
        let talk = || socket.send(b"?").and_then(|_| socket.recv(&mut [0; 90]));
        talk().unwrap();
        for trouble in [Trouble::Port, Trouble::Large] {
            tell(third.netns.as_fd(), trouble, ends[0], ends[1]);
            passed(&third, node.netns(), ends[0].ip(), family);
            let seen = (socket.take_error().unwrap(), way(node.netns(), ends[1].ip()));
            assert!(seen.0.is_none() && !seen.1.contains("mtu"), "{seen:?}");
        }
        talk().unwrap();
    }
}

/// Deletes all tracked connections, like `conntrack -F`.
fn forget_all(netns: BorrowedFd<'_>) {
    const IPCTNL_MSG_CT_DELETE: u16 = (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8 | 2;
    let mut flush = Writer::new();
    flush.message(IPCTNL_MSG_CT_DELETE, (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16, &[0; 4]);
    Socket::open_in(netns).unwrap().request("flush conntrack", flush).unwrap();
}

/// What is not invalid although it has no connection. The node's own connection continues; a Pod's is reset at once, as it would be
/// charged to the next sender instead of its initiator.
#[test]
fn what_conntrack_has_lost_is_told_and_what_comes_in_pieces_passes() {
    let node = Node::dual();
    let (one, two) = (node.pod("one"), node.server("two"));
    node.serve(node.netns(), "node", 9000);
    for family in 0..2 {
        let own = at(["192.0.2.1", "2001:db8::1"][family], 9000);
        let served = SocketAddr::new(two.ips[family], POD_PORT);
        let held = [(one.netns.as_fd(), own), (one.netns.as_fd(), served), (node.netns(), served)];
        let mut held = held.map(|(from, to)| hold(from, to).unwrap().1);
        forget_all(node.netns());
        let [to_node, to_pod, of_node] = &mut held;
        for connection in [to_node, to_pod] {
            assert_eq!(echo(connection, "still there").unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
        }
        echo(of_node, "still there").unwrap();
        // A fragmented datagram.
        let to = SocketAddr::new(own.ip(), 6002);
        let listener = netlink::in_netns(node.netns(), || UdpSocket::bind(to)).unwrap().unwrap();
        listener.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        connected(one.netns.as_fd(), SocketAddr::new(one.ips[family], 0), to).send(&[7; 9000]).unwrap();
        assert_eq!(listener.recv(&mut [0; 10_000]).unwrap(), 9000);
    }
}

//! What a tenant's objects and packets could do to a node's tables and to others' connections, and do not.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use podwright_journal::Scribe;
use podwright_net::dataplane::{NodeFacts, Protocol, Service};
use podwright_net::{IpNet, netlink};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto};

use super::net_world::*;

const OUTSIDE: [&str; 2] = ["203.0.113.9", "2001:db8:113::9"];
const BALANCED: [&str; 2] = ["198.51.100.7", "2001:db8:51::7"];

/// A node with an outsider that has a way to load balancers' addresses, in both families.
fn with_outsider() -> (Node, std::os::fd::OwnedFd) {
    let node = Node::dual();
    let outside = outsider(&node, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    run_in(node.netns(), "ip", &["address", "add", "2001:db8:113::1/64", "dev", "uplink", "nodad"]);
    run_in(outside.as_fd(), "ip", &["address", "add", "2001:db8:113::9/64", "dev", "eth0", "nodad"]);
    run_in(outside.as_fd(), "ip", &["route", "add", "198.51.100.0/24", "via", "203.0.113.1"]);
    run_in(outside.as_fd(), "ip", &["route", "add", "2001:db8:51::/64", "via", "2001:db8:113::1"]);
    (node, outside)
}

/// A Service at a load balancer's addresses for these sources alone.
fn restricted(pod: &Pod, ranges: &[IpNet]) -> Service {
    let mut web = service("10.96.1.1", &[pod.endpoint()]);
    web.ports.push(port("fd00:96::5", Protocol::Tcp, &[pod.endpoint6()]));
    for (port, balanced) in web.ports.iter_mut().zip(BALANCED) {
        port.external_ips = vec![balanced.parse().unwrap()];
        port.source_ranges = ranges.to_vec();
    }
    web
}

#[test]
fn ranges_of_sources_are_what_they_say() {
    let (node, outside) = with_outsider();
    let pod = node.server("a");
    // By their ranges the one or the other of these addresses may come, both or none.
    let cases: [(&[&str], [bool; 2]); 8] = [
        (&["203.0.113.9/32", "2001:db8:113::9/128"], [true, true]),
        (&["203.0.113.8/31", "2001:db8:113::/64"], [true, true]),
        (&["128.0.0.0/1", "2000::/3"], [true, true]),
        (&["203.0.113.0/28"], [true, false]),
        (&["2001:db8:113::8/125"], [false, true]),
        // An address is not the network that begins with it.
        (&["203.0.113.0/32", "203.0.113.10/31", "2001:db8:113::/128", "2001:db8:112::/48"], [false, false]),
        (&["0.0.0.0/0"], [true, false]),
        (&["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"], [true, true]),
    ];
    for (ranges, expected) in cases {
        let ranges: Vec<IpNet> = ranges.iter().map(|range| range.parse().unwrap()).collect();
        let change = node.apply("default/web", Some(restricted(&pod, &ranges)));
        assert!(!change.full, "{ranges:?} was refused");
        let came = BALANCED.map(|to| ask(outside.as_fd(), at(to, 80)).is_ok());
        assert_eq!(came, expected, "{OUTSIDE:?} by {ranges:?}");
    }
    // Another one's ranges open nothing.
    let mut other = restricted(&pod, &["203.0.113.0/24".parse().unwrap()]);
    other.ports.truncate(1);
    other.ports[0].external_ips = vec!["198.51.100.8".parse().unwrap()];
    node.apply("default/web", Some(restricted(&pod, &["192.0.2.0/24".parse().unwrap()])));
    node.apply("default/other", Some(other));
    assert!(ask(outside.as_fd(), at("198.51.100.8", 80)).is_ok());
    assert!(ask(outside.as_fd(), at(BALANCED[0], 80)).is_err());
}

/// The kernel copies a set of intervals with several fields for each transaction, and walks over it for each element that goes: with
/// tens of thousands of elements, tables stand still for minutes.
#[test]
fn many_ranges_of_sources_come_and_go_quickly() {
    let (node, _outside) = with_outsider();
    let pod = node.pod("a");
    let other = node.server("other");
    for family in ["ip", "ip6"] {
        let listed = run_in(node.netns(), "nft", &["-t", "list", "table", family, "podwright"]);
        for set in listed.split("\n\tset ").skip(1).chain(listed.split("\n\tmap ").skip(1)) {
            let set = set.split("\n\t}").next().unwrap();
            let key = set.lines().find(|line| line.contains("type")).unwrap_or_default();
            let key = key.split(':').next().unwrap();
            assert!(!(key.contains(" . ") && set.contains("interval")), "{family} {set}");
        }
    }
    let ranges = |n: u32| (0..4000u32).map(move |at| ((20 + n) << 24) | (at * 64 + 7));
    let of_service = |n: u32| {
        let v4 = ranges(n).map(|bits| IpNet::from(IpAddr::from(bits.to_be_bytes())));
        restricted(&pod, &v4.collect::<Vec<_>>())
    };
    let (mut added, mut slowest) = (Duration::ZERO, Duration::ZERO);
    let mut timed = |change: &mut dyn FnMut()| {
        let begun = Instant::now();
        change();
        slowest = slowest.max(begun.elapsed());
        begun.elapsed()
    };
    for n in 0..12 {
        added += timed(&mut || assert!(!node.apply(&format!("evil/{n}"), Some(of_service(n))).full));
    }
    let begun = Instant::now();
    assert!(!node.apply("default/web", Some(service("10.96.1.9", &[other.endpoint()]))).full);
    let others = begun.elapsed();
    assert_eq!(ask(pod.netns.as_fd(), at("10.96.1.9", 80)).unwrap().0, "other");
    let begun = Instant::now();
    for n in 0..12 {
        timed(&mut || assert!(!node.apply(&format!("evil/{n}"), None).full));
    }
    let removed = begun.elapsed();
    println!(
        "48,000: added in {added:?}, removed in {removed:?}, one in {slowest:?} at most; another's change {others:?}"
    );
    assert!(added + removed < Duration::from_secs(20), "{added:?} {removed:?}");
    let left = run_in(node.netns(), "nft", &["list", "set", "ip", "podwright", "sources"]);
    assert!(!left.contains("elements"), "{left}");
}

#[test]
fn no_external_address_covers_a_server() {
    let node = Node::single();
    let client = node.pod("client");
    let outside = outsider(&node, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    node.serve(outside.as_fd(), "server", 6443);
    let mut thief = service("10.96.1.1", &[]);
    thief.ports[0].port = 6443;
    thief.ports[0].external_ips = vec!["203.0.113.9".parse().unwrap()];
    node.load(&[("evil/thief", thief)]);
    let server = at("203.0.113.9", 6443);
    let why = ask(node.netns(), server).unwrap_err();
    assert_eq!(why.kind(), std::io::ErrorKind::ConnectionRefused, "of what is no server it is as upstream: {why}");
    let facts = NodeFacts { servers: vec![IpNet::from(server.ip())], ..node.facts() };
    node.wait(node.network.set_facts(facts)).unwrap();
    for from in [node.netns(), client.netns.as_fd()] {
        assert_eq!(ask(from, server).unwrap().0, "server");
    }
}

/// A datagram socket of a Pod, connected to another Pod's.
fn connected(pod: &Pod, from: SocketAddr, to: SocketAddr) -> UdpSocket {
    let open = || {
        let socket = UdpSocket::bind(from)?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok::<_, std::io::Error>(socket)
    };
    netlink::in_netns(pod.netns.as_fd(), open).unwrap().unwrap()
}

/// Sends, from a namespace, that `to` is a port where nobody is, to who has sent there from `from`.
fn port_unreachable(netns: BorrowedFd<'_>, from: SocketAddr, to: SocketAddr) {
    // The header that is told of, as far as conntrack looks: UDP's, 8 bytes.
    let ports = [from.port().to_be_bytes(), to.port().to_be_bytes(), [0, 9], [0, 0]].concat();
    let send = || match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header =
                [&[0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0][..], &source.octets(), &destination.octets()].concat();
            let sum = checksum(&header).to_be_bytes();
            header[10..12].copy_from_slice(&sum);
            let mut packet = [&[3, 3, 0, 0, 0, 0, 0, 0][..], &header, &ports, b"?"].concat();
            let sum = checksum(&packet).to_be_bytes();
            packet[2..4].copy_from_slice(&sum);
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).unwrap();
            rustix::net::sendto(&socket, &packet, SendFlags::empty(), &SocketAddrV4::new(source, 0))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = [&[0x60, 0, 0, 0, 0, 9, 17, 64][..], &source.octets(), &destination.octets()].concat();
            // The kernel adds the checksum.
            let packet = [&[1, 4, 0, 0, 0, 0, 0, 0][..], &header, &ports, b"?"].concat();
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

#[test]
fn errors_about_a_connection_come_from_its_ends_alone() {
    let node = Node::dual();
    let (one, two, third) = (node.pod("one"), node.pod("two"), node.pod("third"));
    for family in 0..2 {
        let ends = [SocketAddr::new(one.ips[family], 6000), SocketAddr::new(two.ips[family], 7000)];
        let sockets = [connected(&one, ends[0], ends[1]), connected(&two, ends[1], ends[0])];
        let talk = || {
            sockets[0].send(b"?").and_then(|_| sockets[1].recv(&mut [0; 9]))?;
            sockets[1].send(b"!").and_then(|_| sockets[0].recv(&mut [0; 9]))
        };
        talk().unwrap();
        port_unreachable(third.netns.as_fd(), ends[0], ends[1]);
        port_unreachable(third.netns.as_fd(), ends[1], ends[0]);
        // What the third one sends after that has come: so would the errors have.
        let last = SocketAddr::new(one.ips[family], 6001);
        let listener = netlink::in_netns(one.netns.as_fd(), || UdpSocket::bind(last)).unwrap().unwrap();
        let barrier = connected(&third, SocketAddr::new(third.ips[family], 8000), last);
        barrier.send(b"x").unwrap();
        listener.recv(&mut [0; 9]).unwrap();
        for socket in &sockets {
            assert!(socket.take_error().unwrap().is_none(), "a third Pod's error about {ends:?} has come");
        }
        talk().unwrap();
        // The same of the ends themselves comes: of the one that was called, and of the caller.
        let by = [&two, &one];
        for (at, socket) in sockets.iter().enumerate() {
            port_unreachable(by[at].netns.as_fd(), ends[at], ends[1 - at]);
            let told = eventually(|| socket.take_error().unwrap().map(|e| e.kind()), Option::is_some);
            assert_eq!(told, Some(std::io::ErrorKind::ConnectionRefused));
        }
        talk().unwrap();
    }
}

/// What has no link has no addresses either: else it would count as connected, and others' Services lead to who gets them next.
#[test]
fn a_pod_that_cannot_be_attached_keeps_no_addresses() {
    let node = Node::dual();
    let pod = netlink::new_netns().unwrap();
    // The place of its link is taken, by something that is none.
    run_in(pod.as_fd(), "ip", &["link", "add", "eth0", "type", "veth", "peer", "name", "q0"]);
    let attach = || node.wait(node.network.attach("unlucky", pod.try_clone().unwrap(), &Scribe::none()));
    assert!(attach().is_err());
    assert_eq!(node.network.addresses_of("unlucky"), None);
    assert_eq!(node.wait(node.network.list()).unwrap().len(), 0, "half of a link is left");
    // Who has been connected before keeps what it has: it may be mended.
    let connected = node.pod("connected");
    let again = netlink::new_netns().unwrap();
    run_in(again.as_fd(), "ip", &["link", "add", "eth0", "type", "veth", "peer", "name", "q0"]);
    assert!(node.wait(node.network.attach("connected", again, &Scribe::none())).is_err());
    assert_eq!(node.network.addresses_of("connected"), Some(connected.ips));
    run_in(pod.as_fd(), "ip", &["link", "del", "eth0"]);
    attach().unwrap();
}

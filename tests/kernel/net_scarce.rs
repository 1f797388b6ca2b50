//! What Pods of a node share that is scarcer than tracked connections: ports to one outside address, neighbours to ask for, room
//! to put fragments together.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use podwright_net::netlink;
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto};

use super::net_world::*;

/// How many connections the node tracks.
fn tracked(node: &Node) -> usize {
    let read = || netlink::read_sysctl("net/netfilter/nf_conntrack_count");
    netlink::in_netns(node.netns(), read).unwrap().unwrap().parse().unwrap()
}

#[test]
fn a_pod_leaves_ports_to_an_outside_address_for_others() {
    let node = Node::single();
    let (greedy, other) = (node.pod("greedy"), node.pod("other"));
    let outside = outsider(&node, "uplink", "198.51.100.1/24", "198.51.100.2/24");
    node.serve(outside.as_fd(), "internet", 443);
    // The greedy one's datagrams of two bytes get no answer.
    let silent = "add table ip sink; add chain ip sink input { type filter hook input priority 0; }; \
                  add rule ip sink input udp length 10 drop";
    run_in(outside.as_fd(), "nft", &[silent]);
    let to = at("198.51.100.2", 443);
    let (over, mut relieved, mut most) = (AtomicBool::new(false), 0, 0);
    let started = Instant::now();
    let goes_on = || !over.load(Relaxed) && started.elapsed() < Duration::from_secs(60);
    let one_of_each_port = || {
        for port in (1..=u16::MAX).cycle().take_while(|_| goes_on()) {
            let _ = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).and_then(|socket| socket.send_to(b"xx", to));
        }
    };
    let mut failures = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| netlink::in_netns(greedy.netns.as_fd(), one_of_each_port).unwrap());
        while started.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(500));
            most = most.max(tracked(&node));
            if let Ok(Some(relief)) = node.wait(node.network.keep_shares()) {
                assert_eq!(relief.lost.keys().copied().collect::<Vec<_>>(), greedy.ips, "{relief:?}");
                assert_eq!(relief.crowded.iter().copied().collect::<Vec<_>>(), [to], "{relief:?}");
                relieved += 1;
            }
            if (0..3).all(|_| ask_udp(other.netns.as_fd(), to).is_err()) {
                failures.push((started.elapsed(), tracked(&node)));
            }
        }
        over.store(true, Relaxed);
    });
    println!("relieved {relieved} times, at most {most} tracked");
    assert!(most > 32_256, "only {most} were tracked");
    assert!(failures.is_empty(), "the other one had no answer: {failures:?}; {most} were tracked");
    assert!(relieved > 0);
}

/// A port below 1024 is the node's own to use, of which there are few.
#[test]
fn pods_leave_the_node_from_no_port_that_needs_a_privilege() {
    let node = Node::single();
    let pod = node.pod("low");
    let outside = outsider(&node, "uplink", "198.51.100.1/24", "198.51.100.2/24");
    let server = netlink::in_netns(outside.as_fd(), || UdpSocket::bind("0.0.0.0:2049")).unwrap().unwrap();
    server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    for port in [111, 700, 1023] {
        let client = netlink::in_netns(pod.netns.as_fd(), || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)));
        client.unwrap().unwrap().send_to(b"x", at("198.51.100.2", 2049)).unwrap();
        let (_, from) = server.recv_from(&mut [0; 16]).unwrap();
        assert_eq!(from.ip(), at("198.51.100.1", 0).ip());
        assert!(from.port() >= 1024, "{port} became {from}");
    }
}

/// Sends one datagram to each of these.
fn scan(from: BorrowedFd<'_>, to: impl Fn(u16) -> IpAddr + Sync, count: u16) {
    let send = || {
        let socket = UdpSocket::bind(if to(0).is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
        for number in 0..count {
            let _ = socket.send_to(b"x", SocketAddr::new(to(number), 9));
        }
    };
    netlink::in_netns(from, send).unwrap();
}

#[test]
fn a_pod_has_its_node_ask_for_few_neighbours_at_once() {
    let node = Node::dual();
    let pod = node.pod("scanner");
    let outside = outsider(&node, "uplink", "198.18.0.1/16", "198.18.0.2/16");
    run_in(node.netns(), "ip", &["address", "add", "2001:db8:1::1/64", "dev", "uplink", "nodad"]);
    run_in(outside.as_fd(), "ip", &["address", "add", "2001:db8:1::2/64", "dev", "eth0", "nodad"]);
    let [a, b] = [|n: u16| n.to_be_bytes()[0], |n: u16| n.to_be_bytes()[1]];
    let asked = |family: &str| {
        let all = run_in(node.netns(), "ip", &[family, "neighbour", "show", "dev", "uplink"]);
        all.lines().filter(|line| line.contains("INCOMPLETE") || line.contains("FAILED")).count()
    };
    // Nobody has these addresses.
    scan(pod.netns.as_fd(), |n| Ipv4Addr::new(198, 18, 4 + a(n), b(n)).into(), 700);
    scan(pod.netns.as_fd(), |n| Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 1, n).into(), 700);
    for family in ["-4", "-6"] {
        let asked = asked(family);
        assert!((200..450).contains(&asked), "{family}: {asked}");
    }
    // As many as one likes are behind one gateway, which takes one more.
    std::thread::sleep(Duration::from_millis(200));
    run_in(node.netns(), "ip", &["route", "add", "100.64.0.0/16", "via", "198.18.0.2"]);
    run_in(node.netns(), "ip", &["route", "add", "2001:db8:2::/64", "via", "2001:db8:1::2"]);
    let before = tracked(&node);
    scan(pod.netns.as_fd(), |n| Ipv4Addr::new(100, 64, a(n), b(n)).into(), 2000);
    scan(pod.netns.as_fd(), |n| Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 1, n).into(), 2000);
    assert!(tracked(&node) - before > 3900, "{} of 4000", tracked(&node) - before);
}

/// Whom it has had its node ask for is not free for it from then on: it would come to ask for more and more at once.
#[test]
fn a_pod_pays_again_for_neighbours_that_do_not_answer() {
    let node = Node::single();
    let pod = node.pod("scanner");
    let outside = outsider(&node, "uplink", "198.18.0.1/16", "198.18.0.2/16");
    node.serve(outside.as_fd(), "neighbour", 80);
    assert_eq!(ask(pod.netns.as_fd(), at("198.18.0.2", 80)).unwrap().0, "neighbour");
    let (started, mut most) = (Instant::now(), 0);
    while started.elapsed() < Duration::from_secs(11) {
        scan(pod.netns.as_fd(), |n| Ipv4Addr::from(0xc612_0400 + u32::from(n)).into(), 1500);
        let all = run_in(node.netns(), "ip", &["neighbour", "show", "nud", "incomplete", "dev", "uplink"]);
        most = most.max(all.lines().count());
        // Those that have answered it has as before.
        assert_eq!(ask(pod.netns.as_fd(), at("198.18.0.2", 80)).unwrap().0, "neighbour");
    }
    assert!((200..=512).contains(&most), "{most}");
}

/// The first half of a datagram whose other half never comes.
fn first_half(number: u32, from: IpAddr, to: IpAddr) -> Vec<u8> {
    const LENGTH: u16 = 1400;
    let mut packet = Vec::new();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            // Version and length, all of it, number, "more fragments", TTL, UDP, checksum (the kernel's).
            packet.extend([0x45, 0]);
            packet.extend(LENGTH.to_be_bytes());
            packet.extend((number as u16 + 1).to_be_bytes());
            packet.extend([0x20, 0, 64, 17, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            // The fragment header: UDP follows, offset 0, "more fragments", number.
            packet.extend([0x60, 0, 0, 0]);
            packet.extend((LENGTH - 40).to_be_bytes());
            packet.extend([44, 64]);
            packet.extend(from.octets());
            packet.extend(to.octets());
            packet.extend([17, 0, 0, 1]);
            packet.extend(number.to_be_bytes());
        }
        _ => unreachable!("a Pod has one address of each family"),
    }
    packet.resize(LENGTH.into(), 0);
    packet
}

#[test]
fn a_pod_leaves_room_for_the_fragments_of_others() {
    let node = Node::dual();
    let (greedy, client, server) = (node.pod("greedy"), node.pod("client"), node.server("server"));
    let answers = |to: SocketAddr| {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = netlink::in_netns(client.netns.as_fd(), || UdpSocket::bind(any)).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        socket.connect(to).unwrap();
        (0..3).any(|_| socket.send(&[b'?'; 4000]).is_ok() && socket.recv(&mut [0; 512]).is_ok())
    };
    for (number, to) in [server.endpoint(), server.endpoint6()].into_iter().enumerate() {
        assert!(answers(to), "{to}: before");
        let (from, family) =
            (greedy.ips[number], if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 });
        let send = || {
            let socket = rustix::net::socket(family, SocketType::RAW, Some(ipproto::RAW)).unwrap();
            let sent = |number: &u32| {
                let packet = first_half(*number, from, to.ip());
                match to.ip() {
                    IpAddr::V4(ip) => {
                        rustix::net::sendto(&socket, &packet, SendFlags::empty(), &SocketAddrV4::new(ip, 0))
                    }
                    IpAddr::V6(ip) => {
                        rustix::net::sendto(&socket, &packet, SendFlags::empty(), &SocketAddrV6::new(ip, 0, 0, 0))
                    }
                }
                .is_ok()
            };
            (0..20_000).filter(sent).count()
        };
        let sent = netlink::in_netns(greedy.netns.as_fd(), send).unwrap();
        assert!(sent > 10_000, "{to}: {sent} were sent");
        if to.is_ipv4() {
            let sockstat = || std::fs::read_to_string("/proc/thread-self/net/sockstat").unwrap();
            let sockstat = netlink::in_netns(node.netns(), sockstat).unwrap();
            let memory: usize = sockstat.split("memory ").nth(1).unwrap().trim().parse().unwrap();
            assert!((1 << 20..32 << 20).contains(&memory), "{sockstat}");
        }
        assert!(answers(to), "{to}: the room is full");
    }
}

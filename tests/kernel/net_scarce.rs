//! Shared resources scarcer than conntrack entries: ports to one outside address, neighbour resolutions, fragment memory.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use podwright_net::dataplane::{NodeFacts, Protocol};
use podwright_net::netlink;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto};

use super::net_world::*;

/// The number of connections tracked by the node.
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
    // The greedy Pod's two-byte datagrams get no response.
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
    assert!(most > 16_384, "only {most} were tracked");
    assert!(failures.is_empty(), "the other one had no answer: {failures:?}; {most} were tracked");
    assert!(relieved > 0);
}

/// Lower ports belong to the node: servers and node ports use them, and those below 1024 imply a privilege.
#[test]
fn pods_leave_the_node_from_no_port_that_servers_have() {
    let (node, two) = Node::two();
    let (pod, remote) = (node.pod("low"), two.pod("remote"));
    let outside = outsider(&node, "uplink", "198.51.100.1/24", "198.51.100.2/24");
    let bound = |netns: BorrowedFd<'_>, at: SocketAddr| {
        let socket = netlink::in_netns(netns, || UdpSocket::bind(at)).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket
    };
    let any = |port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    let servers = [2049, 2050, 2051, 2052].map(|port| (bound(outside.as_fd(), any(port)), at("198.51.100.2", port)));
    for port in [111, 700, 1023, 6443, 30080] {
        // Bound once: concurrent forks may keep a closed socket, and its port, for a moment.
        let client = bound(pod.netns.as_fd(), any(port));
        // Each kind several times: ports are random per flow.
        for (server, to) in &servers {
            client.send_to(b"x", to).unwrap();
            let (_, from) = server.recv_from(&mut [0; 16]).unwrap();
            assert_eq!(from.ip(), at("198.51.100.1", 0).ip());
            assert!(from.port() >= 32_768, "{port} became {from}");
        }
    }
    // A client's low port is not kept when the node forwards it to a remote endpoint.
    let endpoint = bound(remote.netns.as_fd(), SocketAddr::new(remote.ip(), POD_PORT));
    let mut web = service_of("10.96.1.1", Protocol::Udp, &[remote.endpoint()]);
    web.ports[0].node_port = Some(30080);
    node.apply("default/web", Some(web));
    bound(outside.as_fd(), any(111)).send_to(b"x", at("198.51.100.1", 30080)).unwrap();
    let (_, from) = endpoint.recv_from(&mut [0; 16]).unwrap();
    assert!(from.ip() == at("192.168.50.1", 0).ip() && from.port() >= 32_768, "{from}");
}

/// The first sender of ESP or GRE to a host would receive its responses to the node itself.
#[test]
fn what_has_no_ports_does_not_leave_as_the_nodes() {
    let node = Node::single();
    let (pod, other) = (node.pod("tunnel"), node.pod("other"));
    let outside = outsider(&node, "uplink", "198.51.100.1/24", "198.51.100.2/24");
    let raw = |netns: BorrowedFd<'_>, protocol: u8| {
        let protocol =
            rustix::net::Protocol::from_raw(std::num::NonZeroU32::from(std::num::NonZeroU8::new(protocol).unwrap()));
        netlink::in_netns(netns, || {
            rustix::net::socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::NONBLOCK, Some(protocol))
        })
        .unwrap()
        .unwrap()
    };
    let sends = |to: IpAddr, protocol: u8, bytes: &[u8]| {
        let IpAddr::V4(to) = to else { unreachable!("the node has IPv4 alone") };
        let socket = raw(pod.netns.as_fd(), protocol);
        rustix::net::connect(&socket, &SocketAddrV4::new(to, 0)).unwrap();
        rustix::net::send(&socket, bytes, SendFlags::empty()).unwrap();
        socket
    };
    let comes = |socket: &std::os::fd::OwnedFd| {
        rustix::net::recv(socket, &mut [0u8; 64], rustix::net::RecvFlags::empty()).is_ok()
    };
    // GRE without a key, ESP, and an experimental number.
    for protocol in [47, 50, 253] {
        let (there, here) = (raw(outside.as_fd(), protocol), raw(other.netns.as_fd(), protocol));
        // The kernel sends no error about less than eight bytes.
        let refused = sends(at("198.51.100.2", 0).ip(), protocol, &[0; 8]);
        // The Pod gets an ICMP error: otherwise it would wait for responses.
        let told = || rustix::net::recv(&refused, &mut [0u8; 64], rustix::net::RecvFlags::empty()).map(drop);
        eventually(told, |told| *told == Err(rustix::io::Errno::HOSTUNREACH)).unwrap_err();
        sends(other.ip(), protocol, b"x");
        // The one to a Pod arrives, with its own source, and later.
        eventually(|| comes(&here), |comes| *comes);
        assert!(!comes(&there), "protocol {protocol}");
    }
    // A ping has an id that identifies the reply.
    let there = raw(outside.as_fd(), 1);
    sends(at("198.51.100.2", 0).ip(), 1, &[8, 0, 0xf7, 0xf7, 0, 7, 0, 1]);
    eventually(|| comes(&there), |comes| *comes);
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
    // These addresses are unassigned.
    scan(pod.netns.as_fd(), |n| Ipv4Addr::new(198, 18, 4 + a(n), b(n)).into(), 700);
    scan(pod.netns.as_fd(), |n| Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 1, n).into(), 700);
    for family in ["-4", "-6"] {
        let asked = asked(family);
        assert!((200..450).contains(&asked), "{family}: {asked}");
    }
    // Any number of destinations behind one gateway needs a single entry.
    std::thread::sleep(Duration::from_millis(200));
    run_in(node.netns(), "ip", &["route", "add", "100.64.0.0/16", "via", "198.18.0.2"]);
    run_in(node.netns(), "ip", &["route", "add", "2001:db8:2::/64", "via", "2001:db8:1::2"]);
    let before = tracked(&node);
    scan(pod.netns.as_fd(), |n| Ipv4Addr::new(100, 64, a(n), b(n)).into(), 2000);
    scan(pod.netns.as_fd(), |n| Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 1, n).into(), 2000);
    assert!(tracked(&node) - before > 3900, "{} of 4000", tracked(&node) - before);
}

/// An unresponsive neighbour is charged again each time: otherwise the number being resolved would grow.
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
        // Responsive ones are still reachable.
        assert_eq!(ask(pod.netns.as_fd(), at("198.18.0.2", 80)).unwrap().0, "neighbour");
    }
    assert!((200..=512).contains(&most), "{most}");
}

/// An outside client uses many source addresses, to a Service whose owner chooses its endpoints.
#[test]
fn clients_outside_have_the_node_ask_for_few_neighbours_at_once() {
    let node = Node::single();
    let pod = node.pod("scanner");
    let outside = outsider(&node, "uplink", "198.18.0.1/16", "198.18.0.2/16");
    run_in(node.netns(), "ip", &["route", "add", "198.19.0.0/16", "via", "198.18.0.2"]);
    run_in(outside.as_fd(), "ip", &["route", "add", "local", "198.19.0.0/16", "dev", "lo"]);
    // These endpoints are unassigned.
    let endpoints: Vec<_> = (0..1000).map(|n| SocketAddr::new(Ipv4Addr::from(0xc612_0400 + n).into(), 9)).collect();
    let mut web = service_of("10.96.1.1", Protocol::Udp, &endpoints);
    web.ports[0].node_port = Some(30080);
    node.apply("default/web", Some(web));
    let send = || {
        for number in 0..1500u32 {
            let from = SocketAddr::new(Ipv4Addr::from(0xc613_0001 + number).into(), 0);
            let _ = UdpSocket::bind(from).unwrap().send_to(b"x", at("198.18.0.1", 30080));
        }
    };
    let asked = || {
        let all = run_in(node.netns(), "ip", &["-4", "neighbour", "show", "dev", "uplink"]);
        all.lines().filter(|line| line.contains("INCOMPLETE") || line.contains("FAILED")).count()
    };
    let started = Instant::now();
    netlink::in_netns(outside.as_fd(), send).unwrap();
    let most = 257 + 60 * (started.elapsed().as_secs() as usize + 1);
    assert!((200..=most).contains(&asked()), "{}, at most {most}", asked());
    // A Pod has its own rate, and clients cannot fill its set.
    let before = asked();
    scan(pod.netns.as_fd(), |n| Ipv4Addr::from(0xc612_4000 + u32::from(n)).into(), 100);
    assert!(asked() >= before + 90, "{before}, then {}", asked());
    let strangers = run_in(node.netns(), "nft", &["list", "set", "ip", "podwright", "strangers"]);
    assert!(strangers.contains(&pod.ip().to_string()) && !strangers.contains("198.19."), "{strangers}");
}

/// An outside network only gets its part of the common rate.
#[test]
fn clients_of_one_network_outside_leave_neighbours_for_others() {
    let node = Node::dual();
    let outside = outsider(&node, "uplink", "198.18.0.1/16", "198.18.0.2/16");
    for (place, address) in [(node.netns(), "2001:db8:1::1/64"), (outside.as_fd(), "2001:db8:1::2/64")] {
        let link = if address.contains("::1/") { "uplink" } else { "eth0" };
        run_in(place, "ip", &["address", "add", address, "dev", link, "nodad"]);
    }
    for (network, via) in [("198.19.0.0/16", "198.18.0.2"), ("2001:db8:2::/47", "2001:db8:1::2")] {
        run_in(node.netns(), "ip", &["route", "add", network, "via", via]);
        run_in(outside.as_fd(), "ip", &["route", "add", "local", network, "dev", "lo"]);
    }
    run_in(outside.as_fd(), "sysctl", &["-qw", "net.ipv6.ip_nonlocal_bind=1"]);
    // The address from which it resolves the node: its own one is used up first.
    run_in(outside.as_fd(), "ip", &["address", "add", "fe80::2/64", "dev", "eth0", "nodad"]);
    let nobody4 = |n: u32| SocketAddr::new(Ipv4Addr::from(0xc612_0400 + n).into(), 9);
    let nobody6 = |n: u32| SocketAddr::new(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 1, n as u16).into(), 9);
    let mut web = service_of("10.96.1.1", Protocol::Udp, &(0..1000).map(nobody4).collect::<Vec<_>>());
    web.ports[0].node_port = Some(30080);
    let mut web6 = service_of("fd00:96::1", Protocol::Udp, &(0..1000).map(nobody6).collect::<Vec<_>>());
    web6.ports[0].node_port = Some(30081);
    node.apply("default/web", Some(web));
    node.apply("default/web6", Some(web6));
    let from4 = |network: u8, n: u8| IpAddr::from([198, 19, network, n]);
    // In IPv6 a site has any number of subnets.
    let from6 = |network: u8, n: u8| Ipv6Addr::new(0x2001, 0xdb8, 1 + u16::from(network), n.into(), 0, 0, 0, 1).into();
    let families: [(&str, SocketAddr, &(dyn Fn(u8, u8) -> IpAddr + Sync)); 2] =
        [("-4", at("198.18.0.1", 30080), &from4), ("-6", at("2001:db8:1::1", 30081), &from6)];
    for (family, to, from) in families {
        let asked = || {
            let all = run_in(node.netns(), "ip", &[family, "neighbour", "show", "dev", "uplink"]);
            all.lines().filter(|line| line.contains("INCOMPLETE") || line.contains("FAILED")).count()
        };
        let call = |network: u8, count: u32| {
            let send = || {
                for number in 0..count {
                    let from = SocketAddr::new(from(network, 1 + (number % 200) as u8), 0);
                    let _ = UdpSocket::bind(from).unwrap().send_to(b"x", to);
                }
            };
            netlink::in_netns(outside.as_fd(), send).unwrap();
        };
        let started = Instant::now();
        call(1, 600);
        let greedy = asked();
        let most = 66 + 15 * (started.elapsed().as_secs() as usize + 1);
        assert!((40..=most).contains(&greedy), "{family}: {greedy}, at most {most}");
        call(2, 50);
        assert!(asked() >= greedy + 35, "{family}: {greedy}, then {}", asked());
    }
}

/// All callers may come through one load balancer, and the first node may be new to each of them.
#[test]
fn other_nodes_are_asked_for_whoever_calls() {
    let node = Node::single();
    let outside = outsider(&node, "uplink", "198.18.0.1/16", "198.18.0.2/16");
    node.load(&[]);
    let facts = NodeFacts { other_nodes: vec!["198.18.4.0/24".parse().unwrap()], ..node.facts() };
    node.wait(node.network.set_facts(facts)).unwrap();
    // Each node has its own Pods.
    for n in 2..=201 {
        let (range, via) = (format!("10.244.{n}.128/25"), format!("198.18.4.{n}"));
        run_in(node.netns(), "ip", &["route", "add", &range, "via", &via]);
    }
    let endpoints: Vec<_> = (2..=201).map(|n| at(&format!("10.244.{n}.130"), 9)).collect();
    let mut web = service_of("10.96.1.1", Protocol::Udp, &endpoints);
    web.ports[0].node_port = Some(30080);
    node.apply("default/web", Some(web));
    let send = || {
        for _ in 0..1500 {
            let _ = UdpSocket::bind("198.18.0.2:0").unwrap().send_to(b"x", at("198.18.0.1", 30080));
        }
    };
    netlink::in_netns(outside.as_fd(), send).unwrap();
    let all = run_in(node.netns(), "ip", &["-4", "neighbour", "show", "dev", "uplink"]);
    let asked = all.lines().filter(|line| line.contains("INCOMPLETE") || line.contains("FAILED")).count();
    assert!(asked >= 190, "{asked}");
}

/// A sender without a place in the set gets no unlimited rate.
#[test]
fn a_full_set_of_paces_lets_nobody_ask() {
    let node = Node::single();
    let (early, late) = (node.pod("early"), node.pod("late"));
    let _outside = outsider(&node, "uplink", "198.18.0.1/16", "198.18.0.2/16");
    let declaration = run_in(node.netns(), "nft", &["list", "set", "ip", "podwright", "strangers"]);
    assert!(declaration.contains("size 65535"), "{declaration}");
    // 65,535 already have a place.
    let others: Vec<String> = (0..65_535u32).map(|n| Ipv4Addr::from(0xac10_0000 + n).to_string()).collect();
    let script = node.folder.path().join("full.nft");
    let elements = others.join(" timeout 1h, ");
    std::fs::write(&script, format!("add element ip podwright strangers {{ {elements} timeout 1h }}\n")).unwrap();
    run_in(node.netns(), "nft", &["-f", script.to_str().unwrap()]);
    let asked = || {
        let all = run_in(node.netns(), "ip", &["-4", "neighbour", "show", "dev", "uplink"]);
        all.lines().filter(|line| line.contains("INCOMPLETE") || line.contains("FAILED")).count()
    };
    scan(late.netns.as_fd(), |n| Ipv4Addr::from(0xc612_0400 + u32::from(n)).into(), 50);
    assert_eq!(asked(), 0);
    run_in(node.netns(), "nft", &["flush", "set", "ip", "podwright", "strangers"]);
    scan(early.netns.as_fd(), |n| Ipv4Addr::from(0xc612_0400 + u32::from(n)).into(), 50);
    assert!(asked() >= 50, "{}", asked());
}

/// The first half of a datagram whose second half never comes.
fn first_half(number: u32, from: IpAddr, to: IpAddr) -> Vec<u8> {
    const LENGTH: u16 = 1400;
    let mut packet = Vec::new();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            // Version and length, total length, id, "more fragments", TTL, UDP, checksum (the kernel's).
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

//! One Pod's share of the node's conntrack table, and its rate limit.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use podwright_journal::JournalWriter;
use podwright_net::dataplane::QUIET;
use podwright_net::netlink;

use super::net_world::*;

/// Opens `count` UDP flows to different ports of `to`, a thousand per socket; returns how many were sent.
fn flows(from: BorrowedFd<'_>, to: IpAddr, count: usize) -> usize {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let mut sent = 0;
    while sent < count {
        let socket = netlink::in_netns(from, || UdpSocket::bind(any)).unwrap().unwrap();
        for port in 0..1000.min(count - sent) as u16 {
            // A port-unreachable error is returned by the next call.
            while socket.send_to(b"x", SocketAddr::new(to, 20_000 + port)).is_err() {}
            sent += 1;
        }
    }
    sent
}

/// The number of connections tracked by the node.
fn tracked(node: &Node) -> usize {
    let read = || netlink::read_sysctl("net/netfilter/nf_conntrack_count");
    netlink::in_netns(node.netns(), read).unwrap().unwrap().parse().unwrap()
}

/// A Pod that drops every datagram silently, so that flows stay unreplied.
fn sink(node: &Node, uid: &str) -> Pod {
    let pod = node.pod(uid);
    for family in ["ip", "ip6"] {
        let rule =
            format!("add table {family} sink; add chain {family} sink input {{ type filter hook input priority 0; }}");
        let drop = format!("{rule}; add rule {family} sink input udp dport 20000-30000 drop");
        run_in(pod.netns.as_fd(), "nft", &[&drop]);
    }
    pod
}

#[test]
fn a_pod_that_fills_the_table_loses_what_exceeds_its_share() {
    let mut node = Node::dual();
    node.set_conntrack_max(8192);
    let (greedy, other, target, server) =
        (node.pod("greedy"), node.pod("other"), sink(&node, "target"), node.server("server"));
    let (_, mut held) = hold(greedy.netns.as_fd(), server.endpoint()).unwrap();
    flows(other.netns.as_fd(), target.ip(), 1000);
    flows(greedy.netns.as_fd(), target.ip(), 2000);
    assert_eq!(node.wait(node.network.keep_shares()).unwrap(), None, "half of the table is free");
    // IPv6 counts as well as IPv4: each address has a share.
    flows(greedy.netns.as_fd(), target.ip(), 2000);
    flows(greedy.netns.as_fd(), target.ips[1], 4000);
    let before = tracked(&node);
    let asking = [server.endpoint(), server.endpoint6()].map(|to| (udp_socket(greedy.netns.as_fd()), to));
    let begun = Instant::now();
    let relief = node.wait(node.network.keep_shares()).unwrap().expect("nothing was done");
    // The greedy Pod opens nothing for a while; that is over soon, so that it is asked first, and only what was sent in time counts.
    let sent = asking.each_ref().map(|(socket, to)| (send_to(socket, *to).is_ok(), begun.elapsed()));
    for ((socket, to), (is_sent, after)) in asking.iter().zip(sent) {
        let answer = answer_on(socket);
        assert!(is_sent && (answer.is_err() || after >= QUIET), "{to} answers {answer:?}, asked after {after:?}");
    }
    assert_eq!(relief.lost.keys().copied().collect::<Vec<_>>(), greedy.ips, "{relief:?}");
    // Of the Pods' 4096 an eighth is kept free: 3584, of which the other one's 1000 and equal parts.
    let after = tracked(&node);
    assert!((3000..=3600).contains(&after), "{before} then {after}: {relief:?}");
    assert_eq!(node.wait(node.network.keep_shares()).unwrap(), None, "all is well again");
    // It keeps established connections; others are served.
    assert_eq!(echo(&mut held, "still here").unwrap(), "server still here");
    assert_eq!(ask_udp(other.netns.as_fd(), server.endpoint()).unwrap().0, "server");
    assert_eq!(ask(other.netns.as_fd(), server.endpoint6()).unwrap().0, "server");
    let deadline = Instant::now() + Duration::from_secs(10);
    while ask_udp(greedy.netns.as_fd(), server.endpoint()).is_err() {
        assert!(Instant::now() < deadline, "shut out for ever");
    }
}

#[test]
fn clients_from_outside_and_the_node_have_no_share_to_exceed() {
    let mut node = Node::single();
    node.set_conntrack_max(4096);
    let (target, small) = (sink(&node, "target"), node.pod("small"));
    let outside = outsider(&node, "uplink", "198.51.100.1/24", "198.51.100.2/24");
    run_in(outside.as_fd(), "ip", &["route", "add", "10.244.0.0/16", "via", "198.51.100.1"]);
    flows(outside.as_fd(), target.ip(), 2000);
    flows(node.netns(), target.ip(), 1000);
    flows(small.netns.as_fd(), target.ip(), 500);
    assert_eq!(node.wait(node.network.keep_shares()).unwrap(), None);
    assert!(tracked(&node) >= 3500, "{}", tracked(&node));
    // Others' entries reduce the Pods' budget: of such a full table they may use a quarter.
    flows(small.netns.as_fd(), target.ip(), 1000);
    let relief = node.wait(node.network.keep_shares()).unwrap().expect("nothing was done");
    assert_eq!(relief.lost.keys().copied().collect::<Vec<_>>(), small.ips, "{relief:?}");
    assert!(tracked(&node) >= 3000 + 850, "{}", tracked(&node));
}

#[test]
fn a_pod_opens_connections_no_faster_than_its_pace() {
    let node = Node::dual();
    let (hasty, other, target, server) =
        (node.pod("hasty"), node.pod("other"), sink(&node, "target"), node.server("server"));
    for (to, ip) in [(target.ip(), 4), (target.ips[1], 6)] {
        let (before, started) = (tracked(&node), Instant::now());
        let sent: usize = std::thread::scope(|scope| {
            let senders = [(); 2].map(|()| scope.spawn(|| flows(hasty.netns.as_fd(), to, 60_000)));
            senders.into_iter().map(|sender| sender.join().unwrap()).sum()
        });
        let (opened, seconds) = (tracked(&node) - before, started.elapsed().as_secs_f64());
        println!("IPv{ip}: {opened} of {sent} in {seconds:.1} s");
        // 16384 at once, and as many per second.
        let allowed = 16_384.0 * (1.0 + seconds) + 500.0;
        assert!((opened as f64) < allowed, "IPv{ip}: {opened} of {sent} in {seconds:.1} s");
        assert!(opened >= 16_000, "IPv{ip}: {opened} of {sent} in {seconds:.1} s");
        let slow = (sent as f64) < allowed;
        assert!(slow || opened < sent, "nothing was held back: {opened} of {sent} in {seconds:.1} s");
    }
    assert_eq!(ask(other.netns.as_fd(), server.endpoint()).unwrap().0, "server");
}

/// Unanswered datagrams of one flow are new forever: they are not new flows.
#[test]
fn a_long_stream_of_datagrams_is_one_flow() {
    let node = Node::single();
    let (pod, target) = (node.pod("logs"), sink(&node, "target"));
    let socket = netlink::in_netns(pod.netns.as_fd(), || UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    let to = SocketAddr::new(target.ip(), 20_000);
    for _ in 0..40_000 {
        socket.send_to(b"x", to).unwrap();
    }
    let received = run_in(target.netns.as_fd(), "ip", &["-s", "-j", "link", "show", "eth0"]);
    let packets = received
        .split("\"packets\":")
        .nth(1)
        .and_then(|rest| rest.split(',').next())
        .unwrap()
        .parse::<usize>()
        .unwrap();
    assert!(packets >= 40_000, "{packets}");
}

/// Otherwise a server would be charged: for its next segment, including zero-window probes.
#[test]
fn a_connection_that_is_tracked_no_more_ends() {
    let node = Node::single();
    let (client, server) = (node.pod("client"), node.server("server"));
    let brief = || netlink::sysctl(&JournalWriter::none(), "net/netfilter/nf_conntrack_tcp_timeout_established", "1");
    netlink::in_netns(node.netns(), brief).unwrap().unwrap();
    let (_, mut held) = hold(client.netns.as_fd(), server.endpoint()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    let why = loop {
        // Idle for more than a second, it is forgotten.
        std::thread::sleep(Duration::from_millis(1500));
        match echo(&mut held, "still here") {
            Ok(_) => assert!(Instant::now() < deadline, "it goes on"),
            Err(why) => break why,
        }
    };
    assert_eq!(why.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(ask(client.netns.as_fd(), server.endpoint()).is_ok(), "another one is welcome");
}

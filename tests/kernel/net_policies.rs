//! Policies as packets see them: who reaches whom, by what, from the first packet to the last.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright_net::dataplane::{Change, Isolated, Member, Peers, Policy, PolicyChanges, Ports, Protocol, Rule};
use podwright_net::netlink;

use super::net_world::*;

/// Long enough for what passes, and short for what does not.
const PATIENCE: Duration = Duration::from_millis(400);

/// The node has the first of itself.
const DNS: [&str; 2] = ["10.96.0.10", "fd00:96::a"];

fn rule(peers: Peers, ports: Ports) -> Rule {
    Rule { peers, ports }
}

fn group(name: &str) -> Peers {
    Peers::Group(name.into())
}

fn tcp(ports: &[(u16, u16)]) -> Ports {
    Ports::Numbers(Protocol::Tcp, ports.to_vec())
}

/// One policy with these rules; none: nothing is let through.
fn policies(rules: Vec<Rule>) -> Option<BTreeSet<Arc<Policy>>> {
    Some(BTreeSet::from([Arc::new(Policy { rules })]))
}

fn isolate(node: &Node, pod: &Pod, ingress: Option<Vec<Rule>>, egress: Option<Vec<Rule>>) -> Change {
    let all = |rules: Option<Vec<Rule>>| rules.and_then(policies);
    let isolated =
        Isolated { addresses: pod.ips.clone(), ingress: all(ingress), egress: all(egress), named: Vec::new() };
    let isolated = BTreeMap::from([(pod.uid.clone(), isolated)]);
    node.wait(node.network.apply_policies(PolicyChanges { isolated, ..PolicyChanges::default() })).unwrap()
}

/// From now on the Pod is of these groups alone.
fn join(node: &Node, pod: &Pod, groups: &[&str]) {
    let of = |group: &&str| pod.ips.iter().map(|ip| (Arc::from(*group), *ip)).collect::<Vec<_>>();
    let member = Member { addresses: groups.iter().flat_map(of).collect(), ..Member::default() };
    let members = BTreeMap::from([(pod.uid.clone(), member)]);
    node.wait(node.network.apply_policies(PolicyChanges { members, ..PolicyChanges::default() })).unwrap();
}

fn reaches(from: &Pod, to: SocketAddr) -> bool {
    netlink::in_netns(from.netns.as_fd(), || std::net::TcpStream::connect_timeout(&to, PATIENCE)).unwrap().is_ok()
}

fn reaches_by_udp(from: &Pod, to: SocketAddr) -> bool {
    ask_udp(from.netns.as_fd(), to).is_ok()
}

fn pings(from: &Pod, to: IpAddr) -> bool {
    let arguments = ["ping", "-c", "1", "-W", "1", &to.to_string()].map(str::to_owned);
    let run = || std::process::Command::new("busybox").args(&arguments).output().unwrap();
    netlink::in_netns(from.netns.as_fd(), run).unwrap().status.success()
}

#[test]
fn who_is_isolated_is_reached_by_whom_its_policies_name_alone() {
    let node = Node::dual();
    let (server, friend, stranger) = (node.server("server"), node.pod("friend"), node.server("stranger"));
    let both = [server.endpoint(), server.endpoint6()];
    join(&node, &friend, &["friends"]);
    isolate(&node, &server, Some(vec![rule(group("friends"), Ports::Any)]), None);
    for to in both {
        assert!(reaches(&friend, to) && reaches_by_udp(&friend, to), "{to}");
        assert!(!reaches(&stranger, to) && !reaches_by_udp(&stranger, to), "{to}");
        assert!(pings(&friend, to.ip()) && !pings(&stranger, to.ip()), "{to}");
        // The node itself, and itself.
        assert!(ask(node.netns(), to).is_ok(), "{to}");
        assert!(reaches(&server, to), "{to}");
    }
    // Answers to what it asks come back: it is isolated in one direction.
    assert!(reaches(&server, stranger.endpoint()) && reaches_by_udp(&server, stranger.endpoint6()));
    // Membership is an element, which comes and goes.
    join(&node, &friend, &[]);
    join(&node, &stranger, &["friends"]);
    assert!(!reaches(&friend, both[0]) && reaches(&stranger, both[0]) && reaches(&stranger, both[1]));
    isolate(&node, &server, None, None);
    assert!(reaches(&friend, both[0]) && reaches_by_udp(&friend, both[1]));
    join(&node, &stranger, &[]);
    let left = run_in(node.netns(), "nft", &["list", "ruleset"]);
    assert!(!["policy-", "policies-", "group-"].iter().any(|name| left.contains(name)), "{left}");
}

#[test]
fn who_is_isolated_reaches_whom_its_policies_name_alone() {
    let node = Node::dual();
    let (client, friend, stranger) = (node.server("client"), node.server("friend"), node.server("stranger"));
    join(&node, &friend, &["friends"]);
    isolate(&node, &client, None, Some(vec![rule(group("friends"), tcp(&[(POD_PORT, POD_PORT)]))]));
    for (friend, stranger) in [(friend.endpoint(), stranger.endpoint()), (friend.endpoint6(), stranger.endpoint6())] {
        assert!(reaches(&client, friend) && !reaches(&client, stranger));
        assert!(!reaches_by_udp(&client, friend) && !reaches_by_udp(&client, stranger));
        assert!(!pings(&client, friend.ip()));
    }
    // A Pod always reaches its node, whatever the addresses.
    node.serve(node.netns(), "node", 9000);
    for address in node.network.addresses() {
        assert!(reaches(&client, SocketAddr::new(*address, 9000)), "{address}");
        assert!(reaches_by_udp(&client, SocketAddr::new(*address, 9000)), "{address}");
    }
    // Others reach it, and are answered.
    assert!(reaches(&stranger, client.endpoint()) && reaches_by_udp(&stranger, client.endpoint6()));
    // Both ends have a say.
    isolate(&node, &friend, Some(vec![]), None);
    assert!(!reaches(&client, friend.endpoint()));
    join(&node, &client, &["clients"]);
    isolate(&node, &friend, Some(vec![rule(group("clients"), tcp(&[(8000, 9000)]))]), None);
    assert!(reaches(&client, friend.endpoint()) && reaches(&client, friend.endpoint6()));
    isolate(&node, &client, None, Some(vec![]));
    assert!(!reaches(&client, friend.endpoint()) && !reaches(&client, friend.endpoint6()));
}

/// DNS, which each node answers itself, is a Pod to policies: it is to be allowed. From an address of its link, which is judged by no
/// policy, a Pod comes to nothing of it.
#[test]
fn the_nodes_dns_is_to_be_allowed() {
    let node = Node::dual();
    node.load(&[]);
    let (client, other) = (node.pod("client"), node.pod("other"));
    node.serve(node.netns(), "dns", 53);
    run_in(node.netns(), "ip", &["address", "add", DNS[1], "dev", "lo", "nodad"]);
    let dns: Vec<IpAddr> = DNS.iter().map(|ip| ip.parse().unwrap()).collect();
    let asks = |from: &Pod| dns.iter().map(|ip| reaches(from, SocketAddr::new(*ip, 53))).collect::<Vec<_>>();
    assert_eq!((asks(&client), asks(&other)), (vec![true; dns.len()], vec![true; dns.len()]));
    isolate(&node, &client, None, Some(vec![]));
    assert_eq!((asks(&client), asks(&other)), (vec![false; dns.len()], vec![true; dns.len()]));
    run_in(client.netns.as_fd(), "ip", &["address", "add", "fe80::7/64", "dev", "eth0", "nodad"]);
    run_in(
        client.netns.as_fd(),
        "ip",
        &["-6", "route", "add", DNS[1], "via", "fe80::1", "dev", "eth0", "src", "fe80::7"],
    );
    assert_eq!(asks(&client), vec![false; dns.len()]);
    let addresses = dns.iter().map(|ip| (Arc::from("dns"), *ip)).collect();
    let members = BTreeMap::from([("dns".to_owned(), Member { addresses, ..Member::default() })]);
    node.wait(node.network.apply_policies(PolicyChanges { members, ..PolicyChanges::default() })).unwrap();
    isolate(&node, &client, None, Some(vec![rule(group("dns"), tcp(&[(53, 53)]))]));
    assert_eq!(asks(&client), [true, false], "by its own address alone");
    run_in(client.netns.as_fd(), "ip", &["-6", "route", "del", DNS[1]]);
    assert_eq!(asks(&client), [true, true]);
}

/// A policy that the kernel does not take lets nothing through, and holds up nobody else: no Service, and no other policy.
#[test]
fn what_the_kernel_refuses_of_one_policy_is_that_policys_alone() {
    let mut node = Node::dual();
    let (refused, server, client) = (node.server("refused"), node.server("server"), node.pod("client"));
    // `nft` takes no range that ends before it begins; what compiles policies makes none.
    let [first, last] = ["10.255.255.255", "10.0.0.0"].map(|ip| ip.parse().unwrap());
    let no_range = || vec![rule(Peers::Any, Ports::Any), rule(Peers::Ranges(vec![(first, last)]), Ports::Any)];
    let open = || vec![rule(Peers::Any, tcp(&[(POD_PORT, POD_PORT)]))];
    let isolated = |pod: &Pod, rules: Vec<Rule>| {
        (
            pod.uid.clone(),
            Isolated { addresses: pod.ips.clone(), ingress: policies(rules), egress: None, named: Vec::new() },
        )
    };
    let isolate_both = |node: &Node| {
        let isolated = BTreeMap::from([isolated(&refused, no_range()), isolated(&server, open())]);
        node.wait(node.network.apply_policies(PolicyChanges { isolated, ..PolicyChanges::default() })).unwrap();
    };
    let as_it_should_be = |node: &Node, when: &str| {
        assert!(!reaches(&client, refused.endpoint()), "{when}");
        assert!(reaches(&client, server.endpoint()) && !reaches_by_udp(&client, server.endpoint()), "{when}");
        assert!(reaches(&client, at("10.96.1.1", 80)), "{when}");
        let closed = node.wait(node.network.closed_owners()).unwrap();
        assert_eq!(closed.keys().collect::<Vec<_>>(), ["refused"], "{when}");
        assert!(closed["refused"].contains("Range"), "{closed:?}");
    };
    let web = || service("10.96.1.1", &[server.endpoint()]);
    node.load(&[]);
    isolate_both(&node);
    node.apply("default/web", Some(web()));
    as_it_should_be(&node, "one change after the other");
    node.wait(node.network.try_policies_again()).unwrap();
    as_it_should_be(&node, "tried again");
    // An agent that starts again, and one that finds no tables.
    for when in ["again", "anew"] {
        node.restart();
        if when == "anew" {
            run_in(node.netns(), "nft", &["delete table ip podwright; delete table ip6 podwright"]);
        }
        isolate_both(&node);
        node.load(&[("default/web", web())]);
        as_it_should_be(&node, when);
    }
    isolate(&node, &refused, Some(open()), None);
    assert!(reaches(&client, refused.endpoint()));
    assert!(node.wait(node.network.closed_owners()).unwrap().is_empty());
}

#[test]
fn ports_are_numbers_ranges_and_those_that_members_have() {
    let node = Node::dual();
    let (server, client) = (node.server("server"), node.pod("client"));
    for port in [9000, 9001, 9100] {
        node.serve(server.netns.as_fd(), "server", port);
    }
    let reached = |pod: &Pod| -> Vec<u16> {
        let both =
            |port: &u16| pod.ips.iter().map(|ip| reaches(&client, SocketAddr::new(*ip, *port))).collect::<Vec<_>>();
        let ports = [POD_PORT, 9000, 9001, 9100].into_iter();
        ports
            .filter(|port| {
                let seen = both(port);
                assert_eq!(seen[0], seen[1]);
                seen[0]
            })
            .collect()
    };
    for (ports, expected) in [
        (tcp(&[(9000, 9000)]), vec![9000]),
        (tcp(&[(POD_PORT, POD_PORT), (9001, 9100)]), vec![POD_PORT, 9001, 9100]),
        (tcp(&[(0, u16::MAX)]), vec![POD_PORT, 9000, 9001, 9100]),
        (tcp(&[(1, 8000), (10_000, u16::MAX)]), vec![]),
        (Ports::Numbers(Protocol::Udp, vec![(0, u16::MAX)]), vec![]),
    ] {
        isolate(&node, &server, Some(vec![rule(Peers::Any, ports.clone())]), None);
        assert_eq!(reached(&server), expected, "{ports:?}");
    }
    isolate(&node, &server, None, None);
    // What a port's name stands for is each member's own.
    let endpoints = server.ips.iter().map(|ip| (Arc::from("web"), *ip, 9001)).collect();
    let members = BTreeMap::from([("server".to_owned(), Member { endpoints, ..Member::default() })]);
    node.wait(node.network.apply_policies(PolicyChanges { members, ..PolicyChanges::default() })).unwrap();
    isolate(&node, &client, None, Some(vec![rule(Peers::Any, Ports::Endpoints(Protocol::Tcp, "web".into()))]));
    assert_eq!(reached(&server), [9001]);
}

#[test]
fn ranges_of_addresses_and_what_is_behind_services() {
    let node = Node::dual();
    let outside = outsider(&node, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    let (server, client) = (node.server("server"), node.pod("client"));
    let mut web = service("10.96.1.1", &[server.endpoint()]);
    web.ports[0].node_port = Some(30080);
    node.load(&[("default/web", web)]);
    let ranges = |all: &[(&str, &str)]| {
        Peers::Ranges(all.iter().map(|(first, last)| (first.parse().unwrap(), last.parse().unwrap())).collect())
    };
    let from_outside = || {
        let connect = || std::net::TcpStream::connect_timeout(&at("203.0.113.1", 30080), PATIENCE);
        netlink::in_netns(outside.as_fd(), connect).unwrap().is_ok()
    };
    assert!(from_outside());
    for (peers, expected) in [
        (ranges(&[("203.0.113.0", "203.0.113.8"), ("203.0.113.10", "203.0.113.255")]), false),
        (ranges(&[("203.0.113.9", "203.0.113.9")]), true),
        (ranges(&[("0.0.0.0", "255.255.255.255")]), true),
        (ranges(&[("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")]), false),
    ] {
        // The port is the Pod's, not the Service's.
        isolate(&node, &server, Some(vec![rule(peers.clone(), tcp(&[(POD_PORT, POD_PORT)]))]), None);
        assert_eq!(from_outside(), expected, "{peers:?}");
    }
    isolate(&node, &server, None, None);
    let own = server.ip().to_string();
    for (peers, ports, expected) in [
        (ranges(&[("10.96.0.0", "10.96.255.255")]), Ports::Any, false),
        (ranges(&[(&own, &own)]), tcp(&[(80, 80)]), false),
        (ranges(&[(&own, &own)]), tcp(&[(POD_PORT, POD_PORT)]), true),
    ] {
        isolate(&node, &client, None, Some(vec![rule(peers.clone(), ports)]));
        assert_eq!(reaches(&client, at("10.96.1.1", 80)), expected, "{peers:?}");
    }
}

#[test]
fn connections_that_a_new_policy_forbids_end() {
    let node = Node::dual();
    let (server, client) = (node.server("server"), node.pod("client"));
    for to in [server.endpoint(), server.endpoint6()] {
        for (judged, ingress, egress) in [(&server, Some(vec![]), None), (&client, None, Some(vec![]))] {
            let (_, mut held) = hold(client.netns.as_fd(), to).unwrap();
            let datagrams = udp_socket(client.netns.as_fd());
            ask_on(&datagrams, to).unwrap();
            let allowed = vec![rule(Peers::Any, tcp(&[(POD_PORT, POD_PORT)]))];
            let both = |rules: &Option<Vec<Rule>>| rules.as_ref().map(|_| allowed.clone());
            isolate(&node, judged, both(&ingress), both(&egress));
            assert_eq!(echo(&mut held, "still").unwrap(), "server still", "what is allowed goes on");
            assert!(ask_on(&datagrams, to).is_err(), "UDP to {to}");
            isolate(&node, judged, ingress, egress);
            let why = echo(&mut held, "over");
            assert!(why.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset), "{to}: {why:?}");
            isolate(&node, judged, None, None);
            assert!(ask_on(&datagrams, to).is_ok(), "and what is allowed again begins anew");
        }
    }
}

#[test]
fn sctp_is_a_protocol_of_its_own() {
    let node = Node::dual();
    let (server, client) = (node.server("server"), node.pod("client"));
    let socket = || {
        // SAFETY: no pointers; what comes back is this test's own, or an error.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, libc::IPPROTO_SCTP) };
        // SAFETY: as above.
        (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    };
    if netlink::in_netns(server.netns.as_fd(), socket).unwrap().is_none() {
        crate::missing::here("this kernel has no SCTP: only that its rules load is looked at");
    }
    let sctp = |port| Ports::Numbers(Protocol::Sctp, vec![(port, port)]);
    isolate(&node, &server, Some(vec![rule(Peers::Any, sctp(9000))]), None);
    assert!(!reaches(&client, server.endpoint()));
    let listed = run_in(node.netns(), "nft", &["list", "table", "ip", "podwright"]);
    assert!(listed.contains("ct protocol sctp"), "{listed}");
}

#[test]
fn an_agent_that_starts_again_leaves_no_gap() {
    let mut node = Node::dual();
    let (server, client) = (node.server("server"), node.pod("client"));
    isolate(&node, &server, Some(vec![]), None);
    let to = server.endpoint();
    assert!(!reaches(&client, to));
    node.restart();
    assert!(!reaches(&client, to), "what a predecessor has loaded stays");
    // What is known before the Services are is loaded together with them.
    isolate(&node, &server, Some(vec![rule(group("friends"), Ports::Any)]), None);
    assert!(!reaches(&client, to));
    node.load(&[]);
    assert!(!reaches(&client, to));
    join(&node, &client, &["friends"]);
    assert!(reaches(&client, to));
    // A successor that knows of no policies leaves nothing of them.
    node.restart();
    node.load(&[]);
    let left = run_in(node.netns(), "nft", &["list", "ruleset"]);
    assert!(!["policy-", "policies-", "group-"].iter().any(|name| left.contains(name)), "{left}");
}

#[test]
fn what_somebody_changes_of_policies_is_mended() {
    let node = Node::dual();
    let (server, client, friend) = (node.server("server"), node.pod("client"), node.pod("friend"));
    join(&node, &friend, &["friends"]);
    isolate(&node, &server, Some(vec![rule(group("friends"), Ports::Any)]), None);
    let _healing = node.network.heal(|repair| println!("{repair:?}")).unwrap();
    let (ip, other) = (server.ip(), client.ip());
    let listed = run_in(node.netns(), "nft", &["list", "table", "ip", "podwright"]);
    let named = |start: &str| {
        let line = listed.lines().find_map(|line| line.trim().split(' ').find(|word| word.starts_with(start)));
        line.unwrap_or_else(|| panic!("{start}: {listed}")).to_owned()
    };
    let (chain, set) = (named("policies-"), named("group-"));
    for damage in [
        format!("delete element ip podwright ingress {{ {ip} }}"),
        format!("add element ip podwright {set} {{ {other} }}"),
        format!("insert rule ip podwright {chain} accept"),
        "flush chain ip podwright ingress-forward".to_owned(),
        "delete table ip podwright".to_owned(),
    ] {
        assert!(!reaches(&client, server.endpoint()), "before {damage}");
        run_in(node.netns(), "nft", &[&damage]);
        eventually(|| reaches(&client, server.endpoint()), |reached| !reached);
        assert!(reaches(&friend, server.endpoint()), "after {damage}");
        std::thread::sleep(Duration::from_millis(1200));
    }
}

/// One policy's change is a chain or two and an element, whoever else there is.
#[test]
fn a_change_costs_the_same_with_few_pods_as_with_many() {
    let mut slowest = Vec::new();
    for count in [10u32, 5000] {
        let node = Node::dual();
        let (server, client) = (node.server("server"), node.pod("client"));
        let members = (0..count).map(|n| {
            let address = IpAddr::from((0x0af4_4000 + n).to_be_bytes());
            let member = Member { addresses: BTreeSet::from([("all".into(), address)]), ..Member::default() };
            (format!("pod-{n}"), member)
        });
        let begun = Instant::now();
        let changes = PolicyChanges { members: members.collect(), ..PolicyChanges::default() };
        node.wait(node.network.apply_policies(changes)).unwrap();
        let loaded = begun.elapsed();
        let mut times = Vec::new();
        for round in 0..10u16 {
            let allowed = vec![rule(group("all"), tcp(&[(9000 + round, 9000 + round)]))];
            let begun = Instant::now();
            let change = isolate(&node, &server, Some(allowed), None);
            times.push(begun.elapsed());
            assert!(!change.full && change.added <= 4, "{change:?}");
            let begun = Instant::now();
            join(&node, &client, if round.is_multiple_of(2) { &["all"] } else { &[] });
            times.push(begun.elapsed());
        }
        times.sort();
        println!("{count} members: loaded in {loaded:?}, a change p50 {:?}, most {:?}", times[10], times[19]);
        slowest.push(times[10]);
    }
    assert!(slowest[1] < slowest[0] * 3 + Duration::from_millis(20), "{slowest:?}");
}

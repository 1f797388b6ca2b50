//! Services as seen by packets: balancing, frontends, policies, refusal, change and restart.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use podwright_net::dataplane::{Backends, Empty, Protocol, Seniority};
use podwright_net::netlink;

use super::net_world::*;

const VIP: &str = "10.96.1.1";

fn names(answers: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    answers.into_iter().collect()
}

fn local_only(endpoints: &[SocketAddr]) -> Option<Backends> {
    Some(Backends { endpoints: endpoints.to_vec(), empty: Empty::Drop })
}

#[test]
fn three_endpoints_share_the_connections() {
    let (one, two) = Node::two();
    let servers = [one.server("a"), one.server("b"), two.server("c")];
    let client = one.pod("client");
    one.load(&[("default/web", service(VIP, &servers.each_ref().map(Pod::endpoint)))]);
    for from in [client.netns.as_fd(), one.netns()] {
        let counts = tally(from, at(VIP, 80), 300);
        assert_eq!(counts.len(), 3, "{counts:?}");
        assert!(counts.values().all(|n| (60..=140).contains(n)), "{counts:?}");
    }
    let (_, seen) = ask(client.netns.as_fd(), at(VIP, 80)).unwrap();
    assert_eq!(seen, client.ip(), "a Pod's own address is kept");
}

#[test]
fn udp_and_ipv6() {
    let node = Node::dual();
    let (a, b, client) = (node.server("a"), node.server("b"), node.pod("client"));
    let mut both = service_of(VIP, Protocol::Udp, &[a.endpoint(), b.endpoint()]);
    both.ports.push(port("fd00:96::5", Protocol::Tcp, &[a.endpoint6(), b.endpoint6()]));
    both.ports.push(port("fd00:96::5", Protocol::Udp, &[a.endpoint6(), b.endpoint6()]));
    node.load(&[("default/web", both)]);
    let expected = names(["a".to_owned(), "b".to_owned()]);
    for from in [client.netns.as_fd(), node.netns()] {
        let udp = |ip| names((0..24).map(|_| ask_udp(from, at(ip, 80)).unwrap().0));
        assert_eq!(udp(VIP), expected);
        assert_eq!(udp("fd00:96::5"), expected);
        assert_eq!(names((0..24).map(|_| ask(from, at("fd00:96::5", 80)).unwrap().0)), expected);
    }
}

#[test]
fn a_pod_reaches_itself_through_its_service() {
    let node = Node::dual();
    let pod = node.server("a");
    let mut both = service(VIP, &[pod.endpoint()]);
    both.ports.push(port("fd00:96::5", Protocol::Tcp, &[pod.endpoint6()]));
    node.load(&[("default/web", both)]);
    let node_ips = node.network.addresses();
    assert_eq!(ask(pod.netns.as_fd(), at(VIP, 80)).unwrap(), ("a".to_owned(), node_ips[0]));
    assert_eq!(ask(pod.netns.as_fd(), at("fd00:96::5", 80)).unwrap(), ("a".to_owned(), node_ips[1]));
    assert_eq!(ask_udp(pod.netns.as_fd(), pod.endpoint()).unwrap().1, pod.ip());
}

#[test]
fn no_endpoints_and_unknown_ports_are_refused_at_once() {
    let node = Node::dual();
    let client = node.pod("client");
    let mut empty = service(VIP, &[]);
    empty.ports[0].node_port = Some(30080);
    empty.ports.push(port("fd00:96::5", Protocol::Tcp, &[]));
    node.load(&[("default/empty", empty)]);
    let node_ip = node.network.addresses()[0];
    for from in [client.netns.as_fd(), node.netns()] {
        let targets =
            [at(VIP, 80), at(VIP, 81), at("10.96.7.7", 80), SocketAddr::new(node_ip, 30080), at("fd00:96::5", 80)];
        for target in targets {
            refused_at_once(|| ask(from, target).map(drop), target);
        }
    }
    let target = at("10.96.7.7", 80);
    refused_at_once(|| ask_udp(client.netns.as_fd(), target).map(drop), target);
}

/// Dropped packets are retransmitted after a second at the earliest (TCP), or never answered (UDP); this machine may sometimes be
/// as slow, but not five times.
#[track_caller]
fn refused_at_once(mut ask: impl FnMut() -> std::io::Result<()>, target: SocketAddr) {
    let mut took = Vec::new();
    while took.iter().all(|took| *took > Duration::from_millis(500)) {
        assert!(took.len() < 5, "{target}: {took:?}");
        let started = Instant::now();
        let why = ask().unwrap_err();
        assert_eq!(why.kind(), std::io::ErrorKind::ConnectionRefused, "{target}: {why}");
        took.push(started.elapsed());
    }
}

#[test]
fn node_ports_answer_outsiders_pods_and_the_node() {
    let (one, two) = Node::two();
    let (a, b) = (one.server("a"), two.server("b"));
    let client = one.pod("client");
    let outside = outsider(&one, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    let mut web = service(VIP, &[a.endpoint(), b.endpoint()]);
    web.ports[0].node_port = Some(30080);
    web.ports.push(port(VIP, Protocol::Udp, &[a.endpoint(), b.endpoint()]));
    web.ports[1].node_port = Some(30080);
    one.load(&[("default/web", web)]);
    let both = names(["a".to_owned(), "b".to_owned()]);
    for from in [outside.as_fd(), client.netns.as_fd(), one.netns()] {
        assert_eq!(names((0..24).map(|_| ask(from, at("203.0.113.1", 30080)).unwrap().0)), both);
    }
    assert_eq!(names((0..24).map(|_| ask_udp(outside.as_fd(), at("203.0.113.1", 30080)).unwrap().0)), both);
    // Not on loopback: its source address cannot be routed back.
    assert!(ask(one.netns(), at("127.0.0.1", 30080)).is_err());
}

#[test]
fn local_policies_keep_the_source_and_the_node() {
    let (one, two) = Node::two();
    let (a, b) = (one.server("a"), two.server("b"));
    let client = one.pod("client");
    let outside = outsider(&one, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    let all = [a.endpoint(), b.endpoint()];
    let mut web = service(VIP, &all);
    web.ports[0].node_port = Some(30080);
    web.ports[0].outside = local_only(&[a.endpoint()]);
    let mut nobody = service("10.96.1.2", &all);
    nobody.ports[0].node_port = Some(30081);
    nobody.ports[0].outside = local_only(&[]);
    let mut inner = service("10.96.1.3", &[]);
    inner.ports[0].internal = local_only(&[a.endpoint()]).unwrap();
    one.load(&[("default/web", web), ("default/nobody", nobody), ("default/inner", inner)]);
    let outsider_ip: IpAddr = "203.0.113.9".parse().unwrap();
    for _ in 0..12 {
        assert_eq!(ask(outside.as_fd(), at("203.0.113.1", 30080)).unwrap(), ("a".to_owned(), outsider_ip));
        assert_eq!(ask(client.netns.as_fd(), at("10.96.1.3", 80)).unwrap().0, "a");
    }
    let inside = names((0..24).map(|_| ask(client.netns.as_fd(), at("203.0.113.1", 30080)).unwrap().0));
    assert_eq!(inside.len(), 2, "callers inside the cluster reach all endpoints");
    let silence = ask(outside.as_fd(), at("203.0.113.1", 30081)).unwrap_err();
    assert_eq!(silence.kind(), std::io::ErrorKind::TimedOut);
}

#[test]
fn external_addresses_and_their_source_ranges() {
    let (one, _two) = Node::two();
    let a = one.server("a");
    let outside = outsider(&one, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    run_in(outside.as_fd(), "ip", &["route", "add", "198.51.100.0/24", "via", "203.0.113.1"]);
    let external = |ranges: &[&str]| {
        let mut web = service(VIP, &[a.endpoint()]);
        web.ports[0].external_ips = vec!["198.51.100.7".parse().unwrap()];
        web.ports[0].source_ranges = ranges.iter().map(|r| r.parse().unwrap()).collect();
        Some(web)
    };
    one.apply("default/web", external(&[]));
    assert!(ask(outside.as_fd(), at("198.51.100.7", 80)).is_ok());
    one.apply("default/web", external(&["203.0.113.0/28", "203.0.113.0/25"]));
    assert!(ask(outside.as_fd(), at("198.51.100.7", 80)).is_ok());
    let change = one.apply("default/web", external(&["192.0.2.0/24"]));
    assert!(!change.full);
    assert!(ask(outside.as_fd(), at("198.51.100.7", 80)).is_err());
}

#[test]
fn affinity_holds_and_moves_only_the_clients_of_a_vanished_endpoint() {
    let node = Node::dual();
    let servers = [node.server("a"), node.server("b"), node.server("c")];
    let client = node.pod("client");
    let sticky = |servers: &[&Pod]| {
        let mut web = service(VIP, &servers.iter().map(|p| p.endpoint()).collect::<Vec<_>>());
        web.ports.push(port("fd00:96::5", Protocol::Tcp, &servers.iter().map(|p| p.endpoint6()).collect::<Vec<_>>()));
        web.ports.iter_mut().for_each(|p| p.affinity = Some(Duration::from_secs(30)));
        Some(web)
    };
    let all: Vec<&Pod> = servers.iter().collect();
    node.apply("default/web", sticky(&all));
    for vip in [VIP, "fd00:96::5"] {
        node.apply("default/web", sticky(&all));
        let first = ask(client.netns.as_fd(), at(vip, 80)).unwrap().0;
        assert_eq!(tally(client.netns.as_fd(), at(vip, 80), 20).len(), 1);
        // Another endpoint is removed: this client stays.
        let other = all.iter().find(|p| p.uid != first).unwrap();
        let without_other: Vec<&Pod> = all.iter().copied().filter(|p| p.uid != other.uid).collect();
        let change = node.apply("default/web", sticky(&without_other));
        assert!(!change.full);
        assert_eq!(ask(client.netns.as_fd(), at(vip, 80)).unwrap().0, first);
        // Its own is removed: it moves, and stays there.
        let without_first: Vec<&Pod> = all.iter().copied().filter(|p| p.uid != first).collect();
        node.apply("default/web", sticky(&without_first));
        let counts = tally(client.netns.as_fd(), at(vip, 80), 20);
        assert!(counts.len() == 1 && !counts.contains_key(&first), "{counts:?}");
    }
}

/// More clients than one tenant's Services can remember, each with its own address.
#[test]
fn one_tenants_clients_take_no_room_from_anothers() {
    let (node, _other) = Node::two();
    let servers = [node.server("a"), node.server("b"), node.server("c")];
    let client = node.pod("client");
    let endpoints: Vec<_> = servers.iter().map(Pod::endpoint).collect();
    let outside = outsider(&node, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    // All of these addresses belong to the outside host (198.18.0.0/15 is reserved for tests).
    run_in(outside.as_fd(), "ip", &["route", "add", "local", "198.18.0.0/15", "dev", "lo"]);
    run_in(node.netns(), "ip", &["route", "add", "198.18.0.0/15", "via", "203.0.113.9"]);
    let sticky = |ip: &str, tenant: &str| {
        let mut web = service(ip, &endpoints);
        web.tenant = tenant.to_owned();
        web.ports.push(port(ip, Protocol::Udp, &endpoints));
        web.ports[1].node_port = (tenant == "theirs").then_some(30053);
        web.ports.iter_mut().for_each(|port| port.affinity = Some(Duration::from_secs(600)));
        web
    };
    node.load(&[("ours/web", sticky(VIP, "ours")), ("theirs/web", sticky("10.96.1.2", "theirs"))]);
    let flood = || {
        for n in 0..66_000u32 {
            let source = std::net::Ipv4Addr::from(0xc612_0000 + n);
            let socket = std::net::UdpSocket::bind((source, 5000)).unwrap();
            socket.send_to(b"?", at("203.0.113.1", 30053)).unwrap();
        }
    };
    podwright_net::netlink::in_netns(outside.as_fd(), flood).unwrap();
    let new = tally(client.netns.as_fd(), at("10.96.1.2", 80), 20);
    assert!(new.len() > 1, "their clients do not fill what remembers them: {new:?}");
    let ours = tally(client.netns.as_fd(), at(VIP, 80), 20);
    assert_eq!(ours.len(), 1, "{ours:?}");
}

#[test]
fn what_remembered_the_clients_of_who_is_gone_goes_with_an_agent() {
    let mut node = Node::single();
    let pod = node.server("a");
    let sticky = |ip: &str, tenant: &str, seconds: u64| {
        let mut web = service(ip, &[pod.endpoint()]);
        web.tenant = tenant.to_owned();
        web.ports[0].affinity = Some(Duration::from_secs(seconds));
        web
    };
    let all = [("a/web", sticky(VIP, "a", 60)), ("b/web", sticky("10.96.1.2", "b", 70))];
    let maps = |node: &Node| {
        let listed = run_in(node.netns(), "nft", &["list", "maps", "ip"]);
        listed.matches("map affinity-").count()
    };
    node.load(&all);
    assert_eq!(maps(&node), 2);
    node.restart();
    node.load(&all[1..]);
    assert_eq!(maps(&node), 1, "a predecessor's map stays");
    assert!(!run_in(node.netns(), "nft", &["list", "table", "ip", "podwright"]).contains("timeout 1m meta"));
    // The state is correct, except for this damage.
    run_in(node.netns(), "nft", &["flush", "map", "ip", "podwright", "sticky"]);
    let (sender, repairs) = std::sync::mpsc::channel();
    let _healing = node.network.heal(move |repair| drop(sender.send(repair))).unwrap();
    let repair = format!("{:?}", repairs.recv_timeout(Duration::from_secs(10)).unwrap());
    assert!(repair.contains("sticky") && !repair.contains("affinity"), "{repair}");
}

#[test]
fn a_change_touches_no_other_endpoints_connections() {
    let node = Node::single();
    let servers = [node.server("a"), node.server("b"), node.server("c")];
    let client = node.pod("client");
    let [a, b, c] = servers.each_ref().map(Pod::endpoint);
    let web = |endpoints: &[SocketAddr]| Some(service(VIP, endpoints));
    node.apply("default/web", web(&[a, b, c]));
    let mut held: Vec<_> = (0..12).map(|_| hold(client.netns.as_fd(), at(VIP, 80)).unwrap()).collect();
    for round in 0..40 {
        let change = node.apply("default/web", if round % 2 == 0 { web(&[a, c]) } else { web(&[a, b, c]) });
        assert!(!change.full);
        assert!(change.added + change.deleted <= 8, "{change:?}");
        ask(client.netns.as_fd(), at(VIP, 80)).unwrap();
    }
    node.apply("default/web", web(&[a, c]));
    assert!(!tally(client.netns.as_fd(), at(VIP, 80), 30).contains_key("b"));
    for (hello, connection) in &mut held {
        let name = hello.split(' ').next().unwrap();
        assert_eq!(echo(connection, "on").unwrap(), format!("{name} on"));
    }
}

#[test]
fn a_udp_client_leaves_a_vanished_endpoint() {
    let node = Node::single();
    let (a, b, client) = (node.server("a"), node.server("b"), node.pod("client"));
    let udp = |pods: &[&Pod]| {
        let endpoints: Vec<_> = pods.iter().map(|p| p.endpoint()).collect();
        Some(service_of(VIP, Protocol::Udp, &endpoints))
    };
    node.apply("default/dns", udp(&[&a]));
    let socket = udp_socket(client.netns.as_fd());
    assert_eq!(ask_on(&socket, at(VIP, 80)).unwrap().0, "a");
    node.apply("default/dns", udp(&[&a, &b]));
    assert_eq!(ask_on(&socket, at(VIP, 80)).unwrap().0, "a", "the flow keeps its endpoint");
    node.apply("default/dns", udp(&[&b]));
    assert_eq!(ask_on(&socket, at(VIP, 80)).unwrap().0, "b");
}

#[test]
fn a_new_udp_node_port_takes_over_flows_from_before() {
    let (one, _two) = Node::two();
    let a = one.server("a");
    let outside = outsider(&one, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    one.serve(one.netns(), "node", 30053);
    let socket = udp_socket(outside.as_fd());
    // Each question is answered, possibly late on a busy machine.
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(ask_on(&socket, at("203.0.113.1", 30053)).unwrap().0, "node");
    let mut dns = service_of(VIP, Protocol::Udp, &[a.endpoint()]);
    dns.ports[0].node_port = Some(30053);
    one.apply("default/dns", Some(dns));
    assert_eq!(ask_on(&socket, at("203.0.113.1", 30053)).unwrap().0, "a");
}

/// A Service author's node port number may equal that of others' servers: a flow to an address other than the node's is unaffected.
#[test]
fn a_new_udp_node_port_leaves_others_flows_to_such_a_port_alone() {
    let (one, _two) = Node::two();
    let a = one.server("a");
    let outside = outsider(&one, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    let to = at("203.0.113.9", 30053);
    let server = netlink::in_netns(outside.as_fd(), || std::net::UdpSocket::bind(to)).unwrap().unwrap();
    server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let pod = one.pod("client");
    let client = netlink::in_netns(pod.netns.as_fd(), || std::net::UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    // Each flow uses a random source port.
    let seen_as = || {
        client.send_to(b"?", to).unwrap();
        server.recv_from(&mut [0; 9]).unwrap().1
    };
    let before = seen_as();
    let mut dns = service_of(VIP, Protocol::Udp, &[a.endpoint()]);
    dns.ports[0].node_port = Some(30053);
    one.apply("default/dns", Some(dns));
    assert_eq!(seen_as(), before);
}

#[test]
fn more_endpoints_than_prepared_chains() {
    let node = Node::single();
    let a = node.server("a");
    let ports: Vec<u16> = (9000..9040).collect();
    ports.iter().for_each(|port| node.serve(a.netns.as_fd(), &port.to_string(), *port));
    let endpoints: Vec<_> = ports.iter().map(|port| SocketAddr::new(a.ip(), *port)).collect();
    let mut change = node.apply("default/web", Some(service(VIP, &endpoints[..15])));
    for count in [17, 40, 16, 33] {
        change = node.apply("default/web", Some(service(VIP, &endpoints[..count])));
        assert!(!change.full);
        let seen = tally(node.netns(), at(VIP, 80), count * 12).len();
        assert!(seen > count * 9 / 10 && seen <= count, "{seen} of {count}");
    }
    assert!(change.deleted > 0);
    let mut sticky = service("10.96.1.2", &endpoints);
    sticky.ports[0].affinity = Some(Duration::from_secs(60));
    assert!(!node.apply("default/sticky", Some(sticky)).full);
    assert_eq!(tally(node.netns(), at("10.96.1.2", 80), 10).len(), 1);
}

#[test]
fn a_restart_keeps_connections_and_affinity() {
    let mut node = Node::single();
    let servers = [node.server("a"), node.server("b"), node.server("c")];
    let client = node.pod("client");
    let endpoints: Vec<_> = servers.iter().map(Pod::endpoint).collect();
    let mut sticky = service("10.96.1.2", &endpoints);
    sticky.ports[0].affinity = Some(Duration::from_secs(60));
    let all = [
        ("default/web", service(VIP, &endpoints)),
        ("default/sticky", sticky),
        ("default/old", service("10.96.1.9", &endpoints)),
    ];
    node.load(&all);
    let (hello, mut held) = hold(client.netns.as_fd(), at(VIP, 80)).unwrap();
    let favourite = ask(client.netns.as_fd(), at("10.96.1.2", 80)).unwrap().0;
    let table = |node: &Node| run_in(node.netns(), "nft", &["-a", "list", "chain", "ip", "podwright", "service"]);
    let before = table(&node);
    node.restart();
    node.load(&all[..2]);
    assert_eq!(table(&node), before, "the chains are the same ones, handles and all");
    assert_eq!(echo(&mut held, "on").unwrap(), format!("{} on", hello.split(' ').next().unwrap()));
    let counts = tally(client.netns.as_fd(), at("10.96.1.2", 80), 10);
    assert_eq!(counts.keys().collect::<Vec<_>>(), [&favourite]);
    assert_eq!(tally(client.netns.as_fd(), at(VIP, 80), 40).len(), 3);
    assert!(ask(client.netns.as_fd(), at("10.96.1.9", 80)).is_err(), "a Service deleted meanwhile is gone");
    // A later change is incremental again.
    assert!(!node.apply("default/web", Some(service(VIP, &endpoints[..2]))).full);
}

#[test]
fn what_others_did_to_the_table_is_mended() {
    let node = Node::single();
    let (a, b) = (node.server("a"), node.server("b"));
    node.load(&[("default/web", service(VIP, &[a.endpoint(), b.endpoint()]))]);
    run_in(node.netns(), "nft", &["flush", "map", "ip", "podwright", "endpoints"]);
    assert!(node.apply("default/web", Some(service(VIP, &[b.endpoint()]))).full);
    assert_eq!(ask(node.netns(), at(VIP, 80)).unwrap().0, "b");
    run_in(node.netns(), "nft", &["delete", "table", "ip", "podwright"]);
    assert!(node.apply("default/web", Some(service(VIP, &[a.endpoint()]))).full);
    assert_eq!(ask(node.netns(), at(VIP, 80)).unwrap().0, "a");
}

#[test]
fn two_services_that_want_one_address() {
    let node = Node::single();
    let (a, b) = (node.server("a"), node.server("b"));
    node.apply("default/first", Some(service(VIP, &[a.endpoint()])));
    assert!(!node.apply("default/second", Some(service(VIP, &[b.endpoint()]))).full);
    assert_eq!(tally(node.netns(), at(VIP, 80), 10).keys().collect::<Vec<_>>(), ["a"]);
    node.apply("default/first", None);
    assert_eq!(tally(node.netns(), at(VIP, 80), 10).keys().collect::<Vec<_>>(), ["b"]);
    node.apply("default/second", None);
    assert!(ask(node.netns(), at(VIP, 80)).is_err());
    let sets = run_in(node.netns(), "nft", &["list", "table", "ip", "podwright"]);
    let own_facts = ["local-pods", "cluster-net", "other-nodes", "servers", "service-net"];
    let mut set = String::new();
    for line in sets.lines() {
        if let Some(name) = line.trim().strip_suffix(" {") {
            set = name.split(' ').next_back().unwrap_or("").to_owned();
        }
        let left = line.contains("elements = {") && !own_facts.contains(&set.as_str());
        assert!(!left, "element left in {set}: {line}");
    }
}

#[test]
fn ten_thousand_services_change_as_fast_as_ten() {
    let small = podwright_net::dataplane::speed::measure(10, 50).unwrap();
    let large = podwright_net::dataplane::speed::measure(10_000, 50).unwrap();
    println!("10: {small:?}\n10,000: load {:?} p50 {:?} p99 {:?}", large.load, large.p50(), large.p99());
    // Not a timing test: the cost must not grow with the number of Services. The fastest of fifty is the cost; the others reflect
    // the machine's load.
    assert!(large.changes[0] < small.changes[0] * 10 + Duration::from_millis(5), "{small:?} {large:?}");
}

#[test]
fn what_the_facts_say_can_change() {
    let node = Node::single();
    let mut facts = node.facts();
    facts.service_ranges = vec!["10.96.0.0/17".parse().unwrap()];
    node.wait(node.network.set_facts(facts)).unwrap();
    let text = run_in(node.netns(), "nft", &["list", "set", "ip", "podwright", "service-net"]);
    assert!(text.contains("10.96.0.0/17"), "{text}");
}

#[test]
fn an_external_address_is_whose_it_was_first() {
    let node = Node::single();
    let (old, new, client) = (node.server("old"), node.server("new"), node.pod("client"));
    let named = |vip: &str, since: i64, server: &Pod| {
        let mut service = service(vip, &[server.endpoint()]);
        service.seniority = Seniority { since, id: String::new() };
        service.ports[0].external_ips = vec!["198.51.100.7".parse().unwrap()];
        service.ports[0].node_port = Some(30080);
        service
    };
    let there = at("198.51.100.7", 80);
    let on_node = SocketAddr::new(node.network.addresses()[0], 30080);
    let answers = || [there, on_node].map(|to| ask(client.netns.as_fd(), to).unwrap().0);
    node.load(&[("shop/web", named("10.96.1.1", 100, &old))]);
    assert_eq!(answers(), ["old", "old"]);
    // The name that sorts first.
    let change = node.apply("aaa/aaa", Some(named("10.96.1.2", 200, &new)));
    assert_eq!(answers(), ["old", "old"]);
    let lost: Vec<_> = change.lost.iter().map(|lost| (lost.key.as_str(), lost.address, lost.port)).collect();
    assert_eq!(lost, [("aaa/aaa", Some(there.ip()), 80), ("aaa/aaa", None, 30080)]);
    // A later agent decides the same way; and once the first one is gone, the other gets it.
    node.load(&[("aaa/aaa", named("10.96.1.2", 200, &new)), ("shop/web", named("10.96.1.1", 100, &old))]);
    assert_eq!(answers(), ["old", "old"]);
    node.apply("shop/web", None);
    assert_eq!(answers(), ["new", "new"]);
}

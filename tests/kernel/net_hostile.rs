//! What a tenant's objects could do to a node's tables and to others' addresses, and cannot.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use podwright_journal::JournalWriter;
use podwright_net::dataplane::{NodeFacts, Protocol, Service};
use podwright_net::{IpNet, netlink};

use super::net_world::*;

const OUTSIDE: [&str; 2] = ["203.0.113.9", "2001:db8:113::9"];
const BALANCED: [&str; 2] = ["198.51.100.7", "2001:db8:51::7"];

/// A node with an outside host that has a route to load balancers' addresses, in both families.
fn with_outsider() -> (Node, std::os::fd::OwnedFd) {
    let node = Node::dual();
    let outside = outsider(&node, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    run_in(node.netns(), "ip", &["address", "add", "2001:db8:113::1/64", "dev", "uplink", "nodad"]);
    run_in(outside.as_fd(), "ip", &["address", "add", "2001:db8:113::9/64", "dev", "eth0", "nodad"]);
    run_in(outside.as_fd(), "ip", &["route", "add", "198.51.100.0/24", "via", "203.0.113.1"]);
    run_in(outside.as_fd(), "ip", &["route", "add", "2001:db8:51::/64", "via", "2001:db8:113::1"]);
    (node, outside)
}

/// A Service at a load balancer's addresses, restricted to these sources.
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
    // Their ranges permit one of these addresses, both or none.
    let cases: [(&[&str], [bool; 2]); 8] = [
        (&["203.0.113.9/32", "2001:db8:113::9/128"], [true, true]),
        (&["203.0.113.8/31", "2001:db8:113::/64"], [true, true]),
        (&["128.0.0.0/1", "2000::/3"], [true, true]),
        (&["203.0.113.0/28"], [true, false]),
        (&["2001:db8:113::8/125"], [false, true]),
        // An address is not the network that starts with it.
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
    // Another Service's ranges have no effect.
    let mut other = restricted(&pod, &["203.0.113.0/24".parse().unwrap()]);
    other.ports.truncate(1);
    other.ports[0].external_ips = vec!["198.51.100.8".parse().unwrap()];
    node.apply("default/web", Some(restricted(&pod, &["192.0.2.0/24".parse().unwrap()])));
    node.apply("default/other", Some(other));
    assert!(ask(outside.as_fd(), at("198.51.100.8", 80)).is_ok());
    assert!(ask(outside.as_fd(), at(BALANCED[0], 80)).is_err());
}

/// The kernel copies a set of multi-field intervals for each transaction, and walks it for each removed element: with tens of
/// thousands of elements, tables are blocked for minutes.
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

/// Without a link a Pod has no addresses: otherwise it would count as connected, and others' Services would lead to their next
/// owner.
#[test]
fn a_pod_that_cannot_be_attached_keeps_no_addresses() {
    let node = Node::dual();
    let pod = netlink::new_netns().unwrap();
    // Another interface occupies its link's name.
    run_in(pod.as_fd(), "ip", &["link", "add", "eth0", "type", "veth", "peer", "name", "q0"]);
    let attach = || node.wait(node.network.attach("unlucky", pod.try_clone().unwrap(), &JournalWriter::none()));
    assert!(attach().is_err());
    assert_eq!(node.network.addresses_of("unlucky"), None);
    assert_eq!(node.wait(node.network.list()).unwrap().len(), 0, "half of a link is left");
    // A previously connected Pod keeps its addresses: it may be repaired.
    let connected = node.pod("connected");
    let again = netlink::new_netns().unwrap();
    run_in(again.as_fd(), "ip", &["link", "add", "eth0", "type", "veth", "peer", "name", "q0"]);
    assert!(node.wait(node.network.attach("connected", again, &JournalWriter::none())).is_err());
    assert_eq!(node.network.addresses_of("connected"), Some(connected.ips));
    run_in(pod.as_fd(), "ip", &["link", "del", "eth0"]);
    attach().unwrap();
}

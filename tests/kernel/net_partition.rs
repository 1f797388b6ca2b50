//! A node whose link loses its address: its own Pods reach each other and the node, and all is as before once the address is back.

use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use podwright_net::{NodeNetns, Repair};

use super::net_world::*;

const VIP: &str = "10.96.1.1";
/// Within what everything is as it should be.
const PROMISED: Duration = Duration::from_secs(1);

/// Waits until `holds`; how long that took.
fn until(what: &str, holds: impl Fn() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < 10 * PROMISED, "not seen: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = begun.elapsed();
    println!("{what} after {} ms", took.as_millis());
    took
}

#[test]
fn pods_of_a_node_that_has_lost_its_address_reach_each_other_and_their_node() {
    let (one, two) = Node::two();
    let (server, client, far) = (one.server("server"), one.pod("client"), two.server("far"));
    one.load(&[("default/web", service(VIP, &[server.endpoint()]))]);
    // What answers at the node's own address, as a Pod on its network would.
    one.serve(one.netns(), "node", 9000);
    let (sender, repairs) = channel();
    let _healing = one.network.heal(move |repair| drop(sender.send(repair))).unwrap();
    let all = || {
        ask(client.netns.as_fd(), server.endpoint()).is_ok()
            && ask(client.netns.as_fd(), at(VIP, 80)).is_ok()
            && ask(client.netns.as_fd(), at("192.168.50.1", 9000)).is_ok()
            && ask(one.netns(), at(VIP, 80)).is_ok()
            // As probes do; the Pod sees the node as who it was.
            && ask(one.netns(), server.endpoint()).is_ok_and(|(_, seen)| seen.to_string() == "192.168.50.1")
    };
    let ip = |words: &str| run_in(one.netns(), "ip", &words.split(' ').collect::<Vec<_>>());
    let lo = || ip("-br address show lo");
    until("all reach each other", all);
    assert!(ask(client.netns.as_fd(), far.endpoint()).is_ok() && !lo().contains("192.168.50.1"), "{}", lo());
    // 1. The address alone goes, as an administrator would have it; then with the carrier, as a network manager has it.
    for (away, back) in [
        (vec!["address del 192.168.50.1/24 dev wire"], vec![]),
        (vec!["link set wire down", "address flush dev wire"], vec!["link set wire up"]),
    ] {
        away.iter().for_each(|words| drop(ip(words)));
        // Not by connections: the first packet of one that comes too early is sent again after a second.
        let took = until(&format!("{away:?}: lo has it"), || lo().contains("192.168.50.1/32"));
        let routes = until("there are routes to all Pods again", || ip("route").matches(" dev pw").count() == 2);
        assert!(took + routes < PROMISED, "{took:?} {routes:?}");
        until("all reach each other", all);
        assert!(ask(client.netns.as_fd(), far.endpoint()).is_err());
        // 2. It comes back.
        back.iter().for_each(|words| drop(ip(words)));
        ip("address add 192.168.50.1/24 dev wire");
        ip("route replace 10.244.2.0/24 via 192.168.50.2");
        let took = until("lo has it no longer", || !lo().contains("192.168.50.1"));
        assert!(took < PROMISED, "{took:?}");
        assert!(all(), "nothing is interrupted by that");
        until("the other node is reached", || ask(client.netns.as_fd(), far.endpoint()).is_ok());
    }
    // 3. Nobody's Pod was given up.
    let told: Vec<Repair> = repairs.try_iter().collect();
    assert!(told.iter().all(|repair| matches!(repair, Repair::Mended(_))), "{told:?}");
}

/// An agent that starts again meanwhile goes on, and so does one that was not told the node's address.
#[test]
fn an_agent_that_starts_while_the_address_is_away_has_it_still() {
    let folder = tempfile::tempdir().unwrap();
    let netns = NodeNetns::create_or_open(&folder.path().join("netns")).unwrap();
    run_in(netns.fd(), "ip", &["link", "add", "wire", "type", "veth", "peer", "name", "other"]);
    for words in ["link set other up", "link set wire up", "address add 192.168.50.1/24 dev wire"] {
        run_in(netns.fd(), "ip", &words.split(' ').collect::<Vec<_>>());
    }
    let own = ["192.168.50.1"];
    let mut node = Node::without_facts(folder, 1, &["10.244.1.0/24"], &["10.96.0.0/16"], &own, Default::default());
    node.load(&[]);
    let (server, client) = (node.server("server"), node.pod("client"));
    let reached = |node: &Node| {
        ask(node.netns(), server.endpoint()).is_ok() && ask(client.netns.as_fd(), server.endpoint()).is_ok()
    };
    let healing = node.network.heal(|_| {}).unwrap();
    run_in(node.netns(), "ip", &["address", "flush", "dev", "wire"]);
    until("all reach each other", || reached(&node));
    drop(healing);
    node.restart();
    node.load(&[]);
    assert_eq!(node.network.addresses(), ["192.168.50.1".parse::<std::net::IpAddr>().unwrap()]);
    for pod in [&server, &client] {
        node.network
            .adopt(&pod.uid, pod.netns.try_clone().unwrap(), &podwright_journal::JournalWriter::none())
            .unwrap();
    }
    let _healing = node.network.heal(|_| {}).unwrap();
    assert!(reached(&node));
    run_in(node.netns(), "ip", &["address", "add", "192.168.50.1/24", "dev", "wire"]);
    until("lo has it no longer", || {
        !run_in(node.netns(), "ip", &["-br", "address", "show", "lo"]).contains("192.168.50.1")
    });
    assert!(reached(&node));
}

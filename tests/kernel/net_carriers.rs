//! The Services' part of `inspect`: the elements that carry a Pod's traffic, as in the kernel.

use std::os::fd::AsFd;
use std::time::Instant;

use podwright_net::dataplane::{Protocol, Service};

use super::net_world::*;

#[test]
fn elements_that_carry_a_pods_traffic() {
    let node = Node::single();
    let (a, b) = (node.server("a"), node.server("b"));
    let mut web = service("10.96.1.1", &[a.endpoint(), b.endpoint()]);
    web.ports[0].node_port = Some(30080);
    node.load(&[("default/web", web), ("default/other", service("10.96.1.2", &[b.endpoint()]))]);
    let (elements, all) = node.wait(node.network.carriers(a.ips.clone(), 100)).unwrap();
    let seen: Vec<String> = elements.iter().map(|e| format!("{} {} {:?}", e.set, e.element, e.service)).collect();
    let web = "Some(\"default/web:web\")";
    let [ip, id] = [a.ip().to_string(), elements[0].element[0]["concat"][0].to_string()];
    let expected = [
        format!("endpoints [{{\"concat\":[{id},0]}},{{\"concat\":[\"{ip}\",8080]}}] {web}"),
        format!("services [{id},{{\"goto\":{{\"target\":\"lb-2\"}}}}] {web}"),
        format!("cluster-ips [{{\"concat\":[\"10.96.1.1\",\"tcp\",80]}},{id}] {web}"),
        format!("node-ports [{{\"concat\":[\"tcp\",30080]}},{id}] {web}"),
        format!("own {{\"concat\":[\"{ip}\",\"{ip}\"]}} None"),
    ];
    assert_eq!(seen, expected);
    // Eight more are asked for: sets in which senders are noted, and the maps of who is isolated. It has sent nothing yet.
    assert_eq!(all, expected.len() + 8);
    ask(a.netns.as_fd(), b.endpoint()).unwrap();
    let (elements, _) = node.wait(node.network.carriers(a.ips.clone(), 100)).unwrap();
    assert_eq!((elements[0].set.as_ref(), &elements[0].element), ("pace", &serde_json::json!(a.ip())));
}

/// The result is the kernel's state, limited to the requested number, whatever tenants write.
#[test]
fn of_many_elements_that_carry_a_pods_traffic_few_are_asked_for() {
    let node = Node::single();
    let (a, b) = (node.pod("a"), node.pod("b"));
    let of_many = |ip: &str, pod: &Pod| {
        let mut many = service(ip, &[]);
        many.ports = (1..=4000u16)
            .map(|number| {
                let mut one = port(ip, Protocol::Tcp, &[pod.endpoint()]);
                (one.name, one.port) = (format!("p{number}"), number);
                one
            })
            .collect();
        many
    };
    let names: Vec<String> = (1..=5).map(|n| format!("evil/{n}")).collect();
    let mut services: Vec<(&str, Service)> =
        names.iter().enumerate().map(|(n, name)| (&**name, of_many(&format!("10.96.1.{n}"), &a))).collect();
    services.push(("default/web", service("10.96.2.1", &[b.endpoint()])));
    node.load(&services);
    let begun = Instant::now();
    let (elements, all) = node.wait(node.network.carriers(a.ips.clone(), 1000)).unwrap();
    println!("{} of {all} in {:?}", elements.len(), begun.elapsed());
    // Each port is three: an endpoint, a list, a way in. None of the senders' sets has it, nor who is isolated.
    assert_eq!((elements.len(), all), (992, 8 + 5 * 4000 * 3 + 1));
    assert!(elements.iter().all(|e| e.service.as_deref().is_some_and(|name| name.starts_with("evil/1:p"))));
    let of_b = |node: &Node| {
        let (elements, _) = node.wait(node.network.carriers(b.ips.clone(), 1000)).unwrap();
        elements.iter().map(|e| e.set.clone()).collect::<Vec<_>>()
    };
    assert_eq!(of_b(&node), ["endpoints", "services", "cluster-ips", "own"]);
    // The kernel's state counts.
    run_in(node.netns(), "nft", &["delete element ip podwright cluster-ips { 10.96.2.1 . tcp . 80 }"]);
    assert_eq!(of_b(&node), ["endpoints", "services", "own"]);
}

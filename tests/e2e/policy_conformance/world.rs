//! Who there is: namespaces `x`, `y` and `z` with Pods `a`, `b` and `c` each, as cyclonus and upstream's own tests have them.

use std::{collections::BTreeMap, net::IpAddr};

use super::{
    model::{End, NamedPort, Place, Pod, World},
    policy::{Labels, Protocol},
};

pub const NAMESPACES: [&str; 3] = ["x", "y", "z"];
pub const PODS: [&str; 3] = ["a", "b", "c"];
/// What all of them listen on, by every protocol.
pub const PORTS: [u16; 2] = [80, 81];
/// The Pod on its node's network. Selectors that are about Pod `x/a` would be about it as well.
pub const HOST: &str = "host";
/// Who is on a link of the node's, and no part of the cluster.
pub const OUTSIDE: &str = "outside";

/// The ports' names: the same ones stand for others from Pod to Pod.
const NAMED: [(&str, &[(&str, Protocol, u16)]); 3] = [
    (
        "a",
        &[
            ("web", Protocol::Tcp, 80),
            ("other", Protocol::Tcp, 81),
            ("dns", Protocol::Udp, 80),
            ("signal", Protocol::Sctp, 81),
        ],
    ),
    (
        "b",
        &[
            ("web", Protocol::Tcp, 81),
            ("other", Protocol::Tcp, 80),
            ("dns", Protocol::Udp, 81),
            ("signal", Protocol::Sctp, 80),
        ],
    ),
    ("c", &[("web", Protocol::Udp, 80)]),
];

pub fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// With the label that the API gives to each.
pub fn namespaces() -> BTreeMap<String, Labels> {
    let of = |name: &str| labels(&[("ns", name), ("kubernetes.io/metadata.name", name)]);
    NAMESPACES.iter().map(|name| ((*name).to_owned(), of(name))).collect()
}

/// All Pods by their names, without addresses; the last is on its node's network, which is the first one's. Neither those of a namespace
/// nor those of a name are all on one node, where there are several.
pub fn pods(nodes: &[String]) -> Vec<(String, Pod)> {
    let pod = |namespace: &str, name: &str, node: usize, host_network: bool| Pod {
        namespace: namespace.to_owned(),
        labels: labels(&[("pod", name)]),
        node: nodes[node % nodes.len()].clone(),
        host_network,
        ports: if host_network { Vec::new() } else { named(name) },
    };
    let namespaces = NAMESPACES.iter().enumerate();
    let names =
        namespaces.flat_map(|(n, namespace)| PODS.iter().enumerate().map(move |(m, name)| (n + m, *namespace, *name)));
    let all = names.map(|(node, namespace, name)| (format!("{namespace}/{name}"), pod(namespace, name, node, false)));
    all.chain([(HOST.to_owned(), pod("x", "a", 0, true))]).collect()
}

fn named(pod: &str) -> Vec<NamedPort> {
    let ports = NAMED.iter().filter(|(of, _)| *of == pod).flat_map(|(_, ports)| *ports);
    ports
        .map(|(name, protocol, number)| NamedPort { name: (*name).to_owned(), protocol: *protocol, number: *number })
        .collect()
}

/// The world on paper, for what needs no node; it has a second node, which is not that of the Pods.
pub fn on_paper() -> World {
    let address = |text: &str| text.parse::<IpAddr>().unwrap_or_else(|e| panic!("{text}: {e}"));
    let both = |four: &str, six: &str| vec![address(four), address(six)];
    let mut ends: Vec<End> = Vec::new();
    for (at, (name, pod)) in pods(&["here".to_owned()]).into_iter().enumerate() {
        let addresses = match pod.host_network {
            true => both("192.0.2.1", "2001:db8::1"),
            false => both(&format!("10.244.0.{}", at + 3), &format!("fd00:244::{}", at + 3)),
        };
        ends.push(End { name, addresses, place: Place::Pod(pod) });
    }
    let node = |name: &str| Place::Node(name.to_owned());
    ends.push(End { name: "node".to_owned(), addresses: both("192.0.2.1", "2001:db8::1"), place: node("here") });
    ends.push(End { name: "other".to_owned(), addresses: both("192.0.2.2", "2001:db8::2"), place: node("there") });
    ends.push(End { name: OUTSIDE.to_owned(), addresses: both("192.168.77.2", "fd00:77::2"), place: Place::Outside });
    World { namespaces: namespaces(), ends }
}

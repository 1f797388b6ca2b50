//! NetworkPolicies as upstream means them: who reaches whom by what, said of what the dataplane is told.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use podwright::api::pod_identity::PodIdentity;
use podwright::client::Key;
use podwright::proxy::{Local, Outcome, PodView, Policies};
use podwright_net::dataplane::{Allowed, Isolated, Member, Peers, Ports, Protocol, Rule};
use serde_json::{Value, json};

/// A cluster as one node sees it, and what its dataplane has been told.
struct World {
    policies: Policies,
    locals: BTreeMap<String, Local>,
    isolated: BTreeMap<String, Isolated>,
    members: BTreeMap<String, Member>,
    troubled: Vec<(String, String)>,
}

/// Here `n1` is; Pods of `n2` are elsewhere.
const NODES: [(&str, &str); 2] = [("n1", "10.1.0.0/16"), ("n2", "10.2.0.0/16")];
const DNS: &str = "10.96.0.10";

fn pod(namespace: &str, name: &str, ip: &str, labels: Value) -> Value {
    let node = if ip.starts_with("10.2.") { "n2" } else { "n1" };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "uid": format!("{namespace}-{name}"), "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "c", "ports": [
            {"name": "web", "containerPort": 8080}, {"name": "dns", "containerPort": 5353, "protocol": "UDP"}]}]},
        "status": {"phase": "Running", "podIPs": [{"ip": ip}]},
    })
}

/// Decides and settles all.
fn update(policies: &mut Policies) -> Outcome {
    let mut outcome = Outcome::default();
    loop {
        let dirty: Vec<String> = policies.dirty().map(str::to_owned).collect();
        dirty.iter().for_each(|namespace| policies.decide(namespace));
        outcome.extend(policies.settle());
        if policies.dirty().next().is_none() {
            return outcome;
        }
    }
}

impl World {
    fn new() -> World {
        let mut world = World {
            policies: Policies::new("n1", &[DNS.parse().unwrap()]),
            locals: BTreeMap::new(),
            isolated: BTreeMap::new(),
            members: BTreeMap::new(),
            troubled: Vec::new(),
        };
        let ranges = NODES.map(|(node, range)| (node.to_owned(), vec![range.parse().unwrap()]));
        world.policies.set_nodes(HashMap::from(ranges));
        for (name, team) in [("a", "red"), ("b", "blue"), ("c", "red"), ("kube-system", "none")] {
            world.label(name, json!({"team": team, "kubernetes.io/metadata.name": name}));
        }
        world
    }

    /// `a/web` and `a/db`, `b/web`, `c/web` here; `a/far` elsewhere.
    fn with_pods() -> World {
        let mut world = World::new();
        for (namespace, name, ip) in
            [("a", "web", "10.1.0.1"), ("a", "db", "10.1.0.2"), ("b", "web", "10.1.0.3"), ("c", "web", "10.1.0.4")]
        {
            world.put(pod(namespace, name, ip, json!({"app": name})));
        }
        world.put(pod("a", "far", "10.2.0.1", json!({"app": "web"})));
        world
    }

    fn label(&mut self, namespace: &str, labels: Value) {
        self.policies.set_namespace(namespace, Some(serde_json::from_value(labels).unwrap()));
    }

    fn put(&mut self, pod: Value) {
        let view = PodView::of(&serde_json::from_value::<Pod>(pod.clone()).unwrap());
        if view.node == "n1" && pod["spec"]["hostNetwork"] != true {
            let ips = pod["status"]["podIPs"].as_array().unwrap().iter();
            let addresses = ips.map(|ip| ip["ip"].as_str().unwrap().parse().unwrap()).collect();
            self.locals.insert(view.uid().to_owned(), Local { pod: Some(Arc::new(view)), addresses });
        }
        self.tell(&pod);
        self.policies.set_locals(self.locals.clone());
        self.settle();
    }

    /// As the API tells of a Pod.
    fn tell(&mut self, pod: &Value) {
        let word = |path: &str| pod.pointer(path).and_then(Value::as_str).unwrap();
        let identity = PodIdentity::of_stored(pod.to_string().as_bytes()).map(|identity| Arc::new(identity.into()));
        self.policies.set_peer(&Key::new(word("/metadata/namespace"), word("/metadata/name")), identity);
    }

    fn policy(&mut self, namespace: &str, name: &str, spec: Value) {
        let mut policy = json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec});
        policy["metadata"]["uid"] = json!(format!("{namespace}-{name}"));
        let policy: NetworkPolicy = serde_json::from_value(policy).unwrap();
        self.policies.set_policy(&Key::new(namespace, name), Some(&policy));
        self.settle();
    }

    fn settle(&mut self) {
        let outcome = update(&mut self.policies);
        self.members.extend(outcome.changes.members);
        self.isolated.extend(outcome.changes.isolated);
        self.troubled.extend(outcome.troubled);
    }

    fn allows(&self, allowed: &Option<Allowed>, peer: IpAddr, to: IpAddr, by: Option<(Protocol, u16)>) -> bool {
        let Some(allowed) = allowed else { return true };
        allowed.iter().flat_map(|policy| &policy.rules).any(|rule| self.lets(rule, peer, to, by))
    }

    fn lets(&self, Rule { peers, ports }: &Rule, peer: IpAddr, to: IpAddr, by: Option<(Protocol, u16)>) -> bool {
        let is_peer = match peers {
            Peers::Any => true,
            Peers::Group(group) => self.members.values().any(|m| m.addresses.contains(&(group.clone(), peer))),
            Peers::Ranges(ranges) => {
                ranges.iter().any(|(a, b)| a.is_ipv4() == peer.is_ipv4() && *a <= peer && peer <= *b)
            }
        };
        is_peer
            && match (ports, by) {
                (Ports::Any, _) => true,
                (Ports::Numbers(protocol, ranges), Some((by, port))) => {
                    by == *protocol && ranges.iter().any(|(first, last)| (*first..=*last).contains(&port))
                }
                (Ports::Endpoints(protocol, group), Some((by, port))) => {
                    let has = |m: &Member| m.endpoints.contains(&(group.clone(), to, port));
                    by == *protocol && self.members.values().any(has)
                }
                (_, None) => false,
            }
    }

    /// Whether a new connection is let through; `by` none: a ping.
    fn reaches(&self, from: &str, to: &str, by: Option<(Protocol, u16)>) -> bool {
        let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let of = |ip: IpAddr| self.isolated.values().find(|isolated| isolated.addresses.contains(&ip));
        from == to
            || of(from).is_none_or(|sender| self.allows(&sender.egress, to, to, by))
                && of(to).is_none_or(|receiver| self.allows(&receiver.ingress, from, to, by))
    }
}

const A_WEB: &str = "10.1.0.1";
const A_DB: &str = "10.1.0.2";
const B_WEB: &str = "10.1.0.3";
const C_WEB: &str = "10.1.0.4";
const A_FAR: &str = "10.2.0.1";
const OUTSIDE: &str = "203.0.113.9";
const ALL: [&str; 6] = [A_WEB, A_DB, B_WEB, C_WEB, A_FAR, OUTSIDE];

fn tcp(port: u16) -> Option<(Protocol, u16)> {
    Some((Protocol::Tcp, port))
}

/// Who of all reaches `a/web` when this one policy isolates it.
fn who_reaches_a_web(spec: Value, by: Option<(Protocol, u16)>) -> Vec<&'static str> {
    let mut world = World::with_pods();
    world.policy("a", "p", spec);
    ALL.into_iter().filter(|from| *from != A_WEB && world.reaches(from, A_WEB, by)).collect()
}

#[test]
fn peers_of_ingress() {
    let web = json!({"matchLabels": {"app": "web"}});
    let cases = [
        ("no rules at all", json!([]), vec![]),
        ("a rule without peers", json!([{}]), vec![A_DB, B_WEB, C_WEB, A_FAR, OUTSIDE]),
        ("an empty list of peers", json!([{"from": []}]), vec![A_DB, B_WEB, C_WEB, A_FAR, OUTSIDE]),
        ("all Pods of the namespace", json!([{"from": [{"podSelector": {}}]}]), vec![A_DB, A_FAR]),
        ("Pods of the namespace", json!([{"from": [{"podSelector": web}]}]), vec![A_FAR]),
        ("all namespaces", json!([{"from": [{"namespaceSelector": {}}]}]), vec![A_DB, B_WEB, C_WEB, A_FAR]),
        (
            "namespaces by a label",
            json!([{"from": [{"namespaceSelector": {"matchLabels": {"team": "red"}}}]}]),
            vec![A_DB, C_WEB, A_FAR],
        ),
        (
            "Pods of namespaces",
            json!([{"from": [{"namespaceSelector": {"matchLabels": {"team": "red"}}, "podSelector": web}]}]),
            vec![C_WEB, A_FAR],
        ),
        (
            "two peers are either",
            json!([{"from": [{"namespaceSelector": {"matchLabels": {"team": "blue"}}}, {"podSelector": web}]}]),
            vec![B_WEB, A_FAR],
        ),
        (
            "expressions",
            json!([{"from": [{"namespaceSelector": {"matchExpressions": [
                {"key": "team", "operator": "NotIn", "values": ["blue"]}, {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["b", "c"]}]}}]}]),
            vec![C_WEB],
        ),
        (
            "what is not there",
            json!([{"from": [{"podSelector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}}]}]),
            vec![],
        ),
        ("a block", json!([{"from": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}]), vec![OUTSIDE]),
        (
            "a block of Pods, with an exception",
            json!([{"from": [{"ipBlock": {"cidr": "10.1.0.0/16", "except": ["10.1.0.2/31"]}}]}]),
            vec![C_WEB],
        ),
        (
            "another block has what one excepts",
            json!([{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}, {"ipBlock": {"cidr": "10.1.0.3/32"}}]}]),
            vec![B_WEB, OUTSIDE],
        ),
    ];
    for (what, ingress, expected) in cases {
        let spec =
            json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"], "ingress": ingress});
        assert_eq!(who_reaches_a_web(spec.clone(), tcp(80)), expected, "{what}");
        assert_eq!(who_reaches_a_web(spec, None), expected, "{what}: all traffic, whatever its protocol");
    }
}

#[test]
fn ports() {
    let of = |ports: Value| {
        let mut world = World::with_pods();
        world.policy("a", "p", json!({"podSelector": {}, "ingress": [{"ports": ports}]}));
        let asked = [
            ("tcp 80", tcp(80)),
            ("tcp 8080", tcp(8080)),
            ("udp 80", Some((Protocol::Udp, 80))),
            ("udp 5353", Some((Protocol::Udp, 5353))),
            ("sctp 80", Some((Protocol::Sctp, 80))),
            ("ping", None),
        ];
        asked.into_iter().filter(|(_, by)| world.reaches(OUTSIDE, A_WEB, *by)).map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(of(json!([])), ["tcp 80", "tcp 8080", "udp 80", "udp 5353", "sctp 80", "ping"]);
    assert_eq!(of(json!([{"port": 80}])), ["tcp 80"], "TCP is the default");
    assert_eq!(of(json!([{"protocol": "UDP"}])), ["udp 80", "udp 5353"], "all ports of a protocol");
    assert_eq!(of(json!([{"protocol": "SCTP", "port": 80}, {"port": 8080}])), ["tcp 8080", "sctp 80"]);
    assert_eq!(of(json!([{"port": 80, "endPort": 9000}])), ["tcp 80", "tcp 8080"]);
    assert_eq!(of(json!([{"port": 81, "endPort": 8079}])), [""; 0]);
    assert_eq!(of(json!([{"port": "web"}])), ["tcp 8080"], "the Pod's own");
    assert_eq!(of(json!([{"port": "dns", "protocol": "UDP"}])), ["udp 5353"]);
    assert_eq!(of(json!([{"port": "dns"}])), [""; 0], "a name is of a protocol");
    assert_eq!(of(json!([{"port": "nobody"}])), [""; 0]);
}

#[test]
fn a_ports_name_is_each_receivers_own() {
    let mut world = World::with_pods();
    let mut other = pod("b", "api", "10.1.0.9", json!({"app": "api"}));
    other["spec"]["containers"][0]["ports"] = json!([{"name": "web", "containerPort": 9090}]);
    world.put(other);
    let to = json!([{"namespaceSelector": {"matchLabels": {"team": "blue"}}}]);
    world.policy(
        "a",
        "p",
        json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": to, "ports": [{"port": "web"}]}]}),
    );
    let reached = |world: &World| {
        let pairs = [(B_WEB, 8080), (B_WEB, 9090), ("10.1.0.9", 9090), ("10.1.0.9", 8080), (C_WEB, 8080)];
        pairs.map(|(to, port)| world.reaches(A_WEB, to, tcp(port)))
    };
    assert_eq!(reached(&world), [true, false, true, false, false]);
    world.policy(
        "a",
        "p",
        json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": [{"port": "web"}]}]}),
    );
    assert_eq!(reached(&world), [true, false, true, false, true]);
    let block = json!([{"ipBlock": {"cidr": "10.1.0.3/32"}}]);
    world.policy(
        "a",
        "p",
        json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": block, "ports": [{"port": "web"}]}]}),
    );
    assert_eq!(reached(&world), [true, false, false, false, false]);
}

#[test]
fn whom_a_policy_isolates_and_in_which_direction() {
    let both = |spec: Value| {
        let mut world = World::with_pods();
        world.policy("a", "p", spec);
        let of = |uid: &str| world.isolated.get(uid).cloned().unwrap_or_default();
        ["a-web", "a-db", "b-web", "a-far"].map(|uid| (of(uid).ingress.is_some(), of(uid).egress.is_some()))
    };
    let (none, ingress, egress) = ((false, false), (true, false), (false, true));
    assert_eq!(both(json!({"podSelector": {}})), [ingress, ingress, none, none]);
    assert_eq!(both(json!({"podSelector": {}, "policyTypes": []})), [ingress, ingress, none, none]);
    assert_eq!(both(json!({"podSelector": {}, "egress": [{}]})), [(true, true), (true, true), none, none]);
    assert_eq!(both(json!({"podSelector": {}, "policyTypes": ["Egress"]})), [egress, egress, none, none]);
    assert_eq!(
        both(json!({"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Egress", "Ingress"]})),
        [none, (true, true), none, none]
    );
    assert_eq!(both(json!({"podSelector": {"matchLabels": {"app": "x"}}})), [none; 4]);
}

#[test]
fn policies_add_up_and_both_ends_have_a_say() {
    let mut world = World::with_pods();
    world.policy("a", "deny", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
    assert!(!world.reaches(B_WEB, A_WEB, tcp(80)) && !world.reaches(A_WEB, A_DB, tcp(80)));
    assert!(world.reaches(A_WEB, A_WEB, tcp(80)), "itself");
    world.policy("a", "in", json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}));
    assert!(!world.reaches(A_WEB, A_DB, tcp(80)), "it may come in, and not go out");
    world.policy(
        "a",
        "out",
        json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [{"podSelector": {}}]}]}),
    );
    assert!(world.reaches(A_WEB, A_DB, tcp(80)));
    world.policies.set_policy(&Key::new("a", "in"), None);
    world.settle();
    assert!(!world.reaches(A_WEB, A_DB, tcp(80)));
}

#[test]
fn what_changes_of_pods_and_namespaces_changes_who_is_of_a_group() {
    let mut world = World::with_pods();
    let from = json!([{"namespaceSelector": {"matchLabels": {"team": "blue"}}, "podSelector": {"matchLabels": {"app": "web"}}}]);
    world.policy("a", "p", json!({"podSelector": {}, "ingress": [{"from": from}]}));
    assert!(world.reaches(B_WEB, A_WEB, tcp(80)) && !world.reaches(C_WEB, A_WEB, tcp(80)));
    world.label("c", json!({"team": "blue"}));
    world.settle();
    assert!(world.reaches(C_WEB, A_WEB, tcp(80)));
    world.put(pod("b", "web", B_WEB, json!({"app": "other"})));
    assert!(!world.reaches(B_WEB, A_WEB, tcp(80)));
    // Who has ended has an address no more.
    let mut done = pod("c", "web", C_WEB, json!({"app": "web"}));
    done["status"]["phase"] = json!("Succeeded");
    world.tell(&done);
    world.locals.remove("c-web");
    world.policies.set_locals(world.locals.clone());
    world.settle();
    assert!(!world.reaches(C_WEB, A_WEB, tcp(80)));
    // A Pod that gets another label is isolated by others.
    world.put(pod("b", "web", B_WEB, json!({"app": "web"})));
    world.policy("a", "p", json!({"podSelector": {"matchLabels": {"app": "web"}}}));
    assert!(!world.reaches(B_WEB, A_WEB, tcp(80)));
    world.put(pod("a", "web", A_WEB, json!({"app": "free"})));
    assert!(world.reaches(B_WEB, A_WEB, tcp(80)));
}

#[test]
fn a_node_is_believed_of_its_own_addresses_alone() {
    let mut world = World::with_pods();
    world.policy("a", "p", json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}));
    // Another node says that its Pod has the address of one here, and of somebody outside.
    for (ip, is_its) in [(B_WEB, false), (OUTSIDE, false), ("10.2.0.7", true)] {
        let mut said = pod("a", "said", "10.2.0.7", json!({}));
        said["status"]["podIPs"] = json!([{"ip": ip}]);
        world.put(said);
        assert_eq!(world.reaches(ip, A_WEB, tcp(80)), is_its, "{ip}");
    }
    // And that it has a static Pod in somebody's namespace.
    let mut mirror = pod("a", "mirror", "10.2.0.8", json!({}));
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    world.put(mirror);
    assert!(!world.reaches("10.2.0.8", A_WEB, tcp(80)));
    // Whoever is on the host's network is no Pod to policies.
    let mut host = pod("a", "host", "10.2.0.9", json!({}));
    host["spec"]["hostNetwork"] = json!(true);
    world.put(host);
    assert!(!world.reaches("10.2.0.9", A_WEB, tcp(80)));
}

/// Where this node's Pods are it knows itself, whatever the API says; another one may have a name that one of them still has.
#[test]
fn own_pods_are_where_their_node_has_put_them() {
    let mut world = World::with_pods();
    world.policy("a", "p", json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}));
    let mut moved = pod("a", "db", "10.1.0.99", json!({"app": "db"}));
    world.tell(&moved);
    world.settle();
    assert!(!world.reaches("10.1.0.99", A_WEB, tcp(80)) && world.reaches(A_DB, A_WEB, tcp(80)));
    moved["spec"]["nodeName"] = json!("n2");
    moved["status"]["podIPs"] = json!([{"ip": "10.2.0.99"}]);
    world.tell(&moved);
    world.settle();
    assert!(world.reaches("10.2.0.99", A_WEB, tcp(80)) && world.reaches(A_DB, A_WEB, tcp(80)), "each until it goes");
    world.locals.remove("a-db");
    world.policies.set_locals(world.locals.clone());
    world.settle();
    assert!(world.reaches("10.2.0.99", A_WEB, tcp(80)) && !world.reaches(A_DB, A_WEB, tcp(80)));
    world.policies.set_peer(&Key::new("a", "db"), None);
    world.settle();
    assert!(!world.reaches("10.2.0.99", A_WEB, tcp(80)));
}

/// A policy that there is no room for is in force once there is, though nobody has written it anew.
#[test]
fn what_was_left_out_is_let_in_when_there_is_room() {
    let mut world = World::with_pods();
    let named = |n: u32| json!({"from": [{"podSelector": {"matchLabels": {"n": n.to_string()}}}]});
    let rules = |from: u32| (from..from + 200).map(named).collect::<Vec<_>>();
    world.policy("a", "older", json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": rules(0)}));
    world.policy("a", "younger", json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": rules(200)}));
    assert!(world.policies.trouble("a-web").is_some_and(|why| why.contains("256 groups")));
    world.put(pod("a", "far", A_FAR, json!({"n": "300"})));
    assert!(!world.reaches(A_FAR, A_WEB, tcp(80)) && world.policies.has_left_out());
    // The Pod goes that the older one took groups for.
    world.locals.remove("a-db");
    world.policies.set_locals(world.locals.clone());
    world.policies.reconsider();
    world.settle();
    assert!(world.policies.trouble("a-web").is_none() && !world.policies.has_left_out());
    assert!(world.reaches(A_FAR, A_WEB, tcp(80)) && !world.reaches(B_WEB, A_WEB, tcp(80)));
    world.policies.reconsider();
    assert!(update(&mut world.policies).changes.is_empty(), "and then nothing is looked at again");
}

#[test]
fn the_nodes_own_dns_is_the_pod_that_others_run_for_it() {
    let mut world = World::with_pods();
    let egress = |to: Value, port: Value| json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": to, "ports": [port]}]});
    let asks = |world: &World| world.reaches(A_WEB, DNS, Some((Protocol::Udp, 53)));
    world.policy("a", "p", egress(json!([{"podSelector": {}}]), json!({"port": 53, "protocol": "UDP"})));
    assert!(!asks(&world));
    let system = json!({"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}});
    let dns = json!({"matchLabels": {"k8s-app": "kube-dns"}});
    for to in
        [json!([{"namespaceSelector": system, "podSelector": dns}]), json!([{"namespaceSelector": {}}]), json!([])]
    {
        for port in [json!({"port": 53, "protocol": "UDP"}), json!({"port": "dns", "protocol": "UDP"})] {
            world.policy("a", "p", egress(to.clone(), port.clone()));
            assert!(asks(&world), "{to} {port}");
        }
    }
}

#[test]
fn what_is_not_understood_or_has_no_room_lets_nothing_through() {
    let mut world = World::with_pods();
    world.policies.set_undecodable(&Key::new("a", "p"), "spec.ingress: not a list");
    world.settle();
    assert_eq!(world.troubled.iter().map(|(uid, _)| uid.as_str()).collect::<Vec<_>>(), ["a-db", "a-web"]);
    assert!(world.policies.trouble("a-web").is_some_and(|why| why.contains("not a list")), "its Pods do not start");
    assert!(!world.reaches(OUTSIDE, A_WEB, tcp(80)) && !world.reaches(A_DB, OUTSIDE, tcp(80)));
    assert!(world.reaches(OUTSIDE, B_WEB, tcp(80)), "others' go on");
    world.policies.set_policy(&Key::new("a", "p"), None);
    world.settle();
    assert!(world.policies.trouble("a-web").is_none() && world.reaches(OUTSIDE, A_WEB, tcp(80)));
    // More rules than a packet is to be compared with.
    let rules = |count: u32| {
        (0..count).map(
            |n| json!({"from": [{"podSelector": {"matchLabels": {"n": n.to_string()}}}], "ports": [{"port": 1 + n}]}),
        )
    };
    world.policy("a", "many", json!({"podSelector": {}, "ingress": rules(200).chain([json!({})]).collect::<Vec<_>>()}));
    assert!(world.reaches(OUTSIDE, A_WEB, tcp(80)), "{:?}", world.troubled);
    world.policy("a", "more", json!({"podSelector": {}, "ingress": rules(300).collect::<Vec<_>>()}));
    assert!(
        world.policies.trouble("a-web").is_some_and(|why| why.contains("256 groups")),
        "{:?}",
        world.policies.trouble("a-web")
    );
    assert!(world.reaches(OUTSIDE, A_WEB, tcp(80)), "what is older goes on");
    let ports = (0..600u32).map(|n| json!({"from": [{"ipBlock": {"cidr": format!("10.{}.{}.0/24", n / 256, n % 256)}}], "ports": [{"port": 1 + n}]}));
    world.policy("a", "more", json!({"podSelector": {}, "ingress": ports.collect::<Vec<_>>()}));
    assert!(
        world.policies.trouble("a-web").is_some_and(|why| why.contains("801 rules")),
        "{:?}",
        world.policies.trouble("a-web")
    );
    assert!(!world.reaches(OUTSIDE, A_WEB, tcp(80)));
    // What one rule says of ten thousand blocks is one rule.
    let blocks = (0..10_000u32).map(|n| json!({"ipBlock": {"cidr": format!("20.{}.{}.0/25", n / 256, n % 256)}}));
    world.policy("a", "more", json!({"podSelector": {}, "ingress": [{"from": blocks.collect::<Vec<_>>()}]}));
    assert!(world.policies.trouble("a-web").is_none());
    assert!(world.reaches("20.0.0.1", A_WEB, tcp(80)));
}

/// What would take a node long to compile, or to find Pods by, is not understood.
#[test]
fn a_policy_that_is_too_large_lets_nothing_through() {
    let mut world = World::with_pods();
    let trouble = |world: &World| world.policies.trouble("a-web").unwrap_or_default().to_owned();
    let ports = |count: u32| (1..=count).map(|n| json!({"port": n})).collect::<Vec<_>>();
    let same = |count: usize| vec![json!({"podSelector": {}}); count];
    let rule =
        |peers: usize, of: u32| json!({"podSelector": {}, "ingress": [{"from": same(peers), "ports": ports(of)}]});
    world.policy("a", "p", rule(500, 500));
    assert!(
        trouble(&world).is_empty() && world.reaches(A_FAR, A_WEB, tcp(500)) && !world.reaches(A_FAR, A_WEB, tcp(501))
    );
    world.policy("a", "p", rule(20_000, 20_000));
    assert!(trouble(&world).contains("262144 pairs"), "{}", trouble(&world));
    assert!(!world.reaches(A_FAR, A_WEB, tcp(1)) && world.reaches(A_FAR, B_WEB, tcp(1)));
    let selector = |count: u32| json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": (0..count).map(|n| n.to_string()).collect::<Vec<_>>()}]});
    world.policy("a", "p", json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": selector(1000)}]}]}));
    assert!(trouble(&world).is_empty() && world.reaches(A_FAR, A_WEB, tcp(1)));
    world.policy("a", "p", json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": selector(2000)}]}]}));
    assert!(trouble(&world).contains("1024 labels and values"), "{}", trouble(&world));
    // Whom it selects nobody knows then: all of its namespace.
    world.policy("a", "p", json!({"podSelector": selector(2000), "ingress": [{}]}));
    assert!(!world.reaches(A_FAR, A_WEB, tcp(1)) && !world.reaches(A_WEB, A_DB, tcp(1)));
    // Blocks that overlap, with exceptions that do, are as many ranges as they leave.
    let except: Vec<String> = (0..200).map(|n| format!("10.{n}.0.0/16")).collect();
    let blocks = vec![json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": except}}); 500];
    world.policy("a", "p", json!({"podSelector": {}, "ingress": [{"from": blocks}]}));
    assert!(
        trouble(&world).is_empty()
            && !world.reaches(A_FAR, A_WEB, tcp(1))
            && world.reaches("10.200.0.1", A_WEB, tcp(1))
    );
}

/// So many peers are not even read: what they come to for each Pod is never made.
#[test]
fn more_groups_than_a_namespace_may_have_are_not_read() {
    let mut world = World::with_pods();
    let peers = |count: u32| {
        (0..count).map(|n| json!({"podSelector": {"matchLabels": {"n": n.to_string()}}})).collect::<Vec<_>>()
    };
    let spec = |count| json!({"podSelector": {}, "ingress": [{"from": peers(count), "ports": [{"port": "web"}]}]});
    world.policy("a", "p", spec(256));
    assert!(world.policies.trouble("a-web").is_none());
    world.policy("a", "p", spec(257));
    let why = world.policies.trouble("a-web").unwrap();
    assert_eq!(why, "NetworkPolicy p: its rules name more than 256 groups of Pods");
    assert!(!world.reaches(C_WEB, A_WEB, tcp(8080)) && world.reaches(C_WEB, B_WEB, tcp(8080)));
}

/// Whose Pod nobody knows does nothing, where there are policies.
#[test]
fn addresses_of_nobody_are_cut_off() {
    let mut world = World::with_pods();
    let addresses = vec!["10.1.0.77".parse().unwrap()];
    world.locals.insert("gone".to_owned(), Local { pod: None, addresses });
    world.policies.set_locals(world.locals.clone());
    world.settle();
    assert!(world.reaches("10.1.0.77", B_WEB, tcp(80)));
    world.policy("c", "p", json!({"podSelector": {}}));
    assert!(!world.reaches("10.1.0.77", B_WEB, tcp(80)) && !world.reaches(B_WEB, "10.1.0.77", tcp(80)));
}

/// A Pod's change is that Pod's alone, whoever else there is.
#[test]
fn a_change_touches_what_it_concerns() {
    let mut world = World::with_pods();
    world.policy("a", "p", json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}]}]}));
    for n in 0..1000u32 {
        let ip = format!("10.2.{}.{}", 1 + n / 250, 1 + n % 250);
        world.tell(&pod("b", &format!("p{n}"), &ip, json!({})));
    }
    assert_eq!(update(&mut world.policies).changes.members.len(), 1000);
    world.tell(&pod("b", "p7", "10.2.9.9", json!({})));
    let changes = update(&mut world.policies).changes;
    assert_eq!((changes.members.len(), changes.isolated.len()), (1, 0));
    // Another policy with the same peers has no more groups; a port more is its chain alone.
    world.policy("a", "q", json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{"from": [{"namespaceSelector": {}}], "ports": [{"port": 1}]}]}));
    world.policies.set_policy(&Key::new("a", "q"), None);
    let changes = update(&mut world.policies).changes;
    assert_eq!((changes.members.len(), changes.isolated.len()), (0, 1));
    assert!(update(&mut world.policies).changes.is_empty());
}

/// What a policy comes to for each Pod that calls its ports otherwise counts, and is kept no longer than there is such a Pod.
#[test]
fn pods_that_call_ports_otherwise_take_of_their_namespaces_room() {
    let mut world = World::new();
    let number_of = |n: u64, port: u64| {
        let mut pod = pod("a", &format!("p{n}"), &format!("10.1.1.{n}"), json!({}));
        pod["spec"]["containers"][0]["ports"] =
            json!([{"name": "web", "containerPort": port}, {"name": "x", "containerPort": n}]);
        pod
    };
    for n in 1..=20 {
        world.put(number_of(n, 8000 + n));
    }
    let blocks =
        |count: u64| (0..count).map(|n| json!({"ipBlock": {"cidr": format!("20.{}.{}.0/25", n / 256, n % 256)}}));
    let spec = |count| json!({"podSelector": {}, "ingress": [{"from": blocks(count).collect::<Vec<_>>(), "ports": [{"port": "web"}]}]});
    world.policy("a", "p", spec(10_000));
    assert!(!world.policies.has_left_out() && world.reaches("20.0.0.1", "10.1.1.7", tcp(8007)));
    world.policy("a", "p", spec(20_000));
    assert!(world.policies.trouble("a-p7").is_some_and(|why| why.contains("262144 addresses, ranges and ports")));
    assert!(!world.reaches("20.0.0.1", "10.1.1.7", tcp(8007)));
    // Alike, they take the room of one, whatever their other ports are called.
    for n in 1..=20 {
        world.put(number_of(n, 8000));
    }
    world.policies.reconsider();
    world.settle();
    assert!(!world.policies.has_left_out() && world.reaches("20.0.0.1", "10.1.1.7", tcp(8000)));
    assert!(!world.reaches("20.0.0.1", "10.1.1.7", tcp(8007)));
}

/// What says nothing new is nothing to anybody, and what is new in one namespace is nothing to another.
#[test]
fn a_policy_that_says_the_same_changes_nothing() {
    let mut world = World::with_pods();
    let spec = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "db"}}}]}]});
    world.policy("a", "p", spec.clone());
    let mut policy = json!({"metadata": {"namespace": "a", "name": "p", "uid": "a-p"}, "spec": spec});
    policy["metadata"]["annotations"] = json!({"touched": "again"});
    policy["metadata"]["resourceVersion"] = json!("99");
    world.policies.set_policy(&Key::new("a", "p"), Some(&serde_json::from_value(policy.clone()).unwrap()));
    assert_eq!(world.policies.dirty().count(), 0);
    policy["spec"]["podSelector"] = json!({"matchLabels": {"app": "web"}});
    world.policies.set_policy(&Key::new("a", "p"), Some(&serde_json::from_value(policy).unwrap()));
    assert!(world.policies.is_undecided("a-web") && !world.policies.is_undecided("b-web"));
    world.settle();
    assert!(!world.policies.is_undecided("a-web") && world.reaches(OUTSIDE, A_DB, tcp(80)));
}

/// Policies that select nobody cost their namespace what it takes to find that out, and no more than so much.
#[test]
fn more_than_a_node_looks_up_to_select_pods_selects_all() {
    let mut world = World::with_pods();
    let values: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    let nobody = json!({"matchExpressions": [{"key": "n", "operator": "In", "values": values}]});
    for n in 0..65 {
        world.policy("a", &format!("p{n:02}"), json!({"podSelector": nobody}));
    }
    assert!(world.policies.trouble("a-web").is_none() && world.reaches(OUTSIDE, A_WEB, tcp(80)));
    world.policy("a", "p65", json!({"podSelector": nobody}));
    assert!(world.policies.trouble("a-web").is_some_and(|why| why.contains("65536 labels and values to select Pods")));
    assert!(!world.reaches(OUTSIDE, A_WEB, tcp(80)) && world.reaches(OUTSIDE, B_WEB, tcp(80)));
    world.policies.set_policy(&Key::new("a", "p65"), None);
    world.settle();
    assert!(world.policies.trouble("a-web").is_none() && world.reaches(OUTSIDE, A_WEB, tcp(80)));
}

//! Which node a Pod gets, and what it is told when there is none.

use podwright::{
    api::{Env, pod_resources},
    scheduler::{
        decide::{Decision, check, decide, scores},
        profile::Profile,
    },
};
use serde_json::{Value, json};

use super::{cluster, node, pod, requesting};

const AFFINITY: &str = "node(s) didn't match Pod's node affinity/selector";
const PORTS: &str = "node(s) didn't have free ports for the requested pod ports";
const TAINT: &str = "node(s) had untolerated taint(s)";

fn taint(key: &str, value: &str, effect: &str) -> Value {
    json!({ "spec": { "taints": [{ "key": key, "value": value, "effect": effect }] } })
}

fn required(key: &str, operator: &str, values: Value) -> Value {
    let term = json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] });
    affinity(json!([term]))
}

fn affinity(terms: Value) -> Value {
    json!({ "affinity": { "nodeAffinity":
        { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } } })
}

fn port(port: i32, ip: &str, protocol: &str) -> Value {
    json!({ "containers": [{ "name": "c", "image": "i",
        "ports": [{ "containerPort": 80, "hostPort": port, "hostIP": ip, "protocol": protocol }] }] })
}

fn labels(labels: Value) -> Value {
    json!({ "metadata": { "labels": labels } })
}

/// What a Pod is told of one node; empty: it fits.
fn verdict(spec: Value, changes: Value, others: Vec<Value>) -> String {
    let mut cluster = cluster([node("n1", changes)]);
    for (n, other) in others.into_iter().enumerate() {
        cluster.assume(pod(&format!("other-{n}"), other), "n1");
    }
    let pod = pod("p", spec);
    match decide(&pod, &mut cluster, &Profile::default(), &Env::system()) {
        Decision::Bind(choice) => {
            assert_eq!((choice.node.as_str(), choice.fit, choice.visited, choice.nodes), ("n1", 1, 1, 1));
            String::new()
        }
        Decision::Unschedulable { message, .. } => {
            let message = message.split(" preemption: ").next().expect("a part");
            let why = message.strip_prefix("0/1 nodes are available: ").and_then(|m| m.strip_suffix('.'));
            let why = why.unwrap_or_else(|| panic!("{message:?}"));
            why.split(", ").map(|one| one.strip_prefix("1 ").expect("counted")).collect::<Vec<_>>().join(", ")
        }
    }
}

/// A Pod is counted with the most of what it requests, was promised and has; not with what it cannot ever get.
#[test]
fn a_pod_that_is_resized_is_counted_with_all_that_it_may_hold() {
    let cpu = |wish: &str, promised: &str, has: &str, reason: &str| {
        let quantities = |cpu: &str| json!({ "cpu": cpu });
        let status = |name: &str| {
            json!({ "name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "allocatedResources": quantities(promised), "resources": { "requests": quantities(has) } })
        };
        let container = json!({ "name": "c", "resources": { "requests": quantities(wish) } });
        let mut sidecar = container.clone();
        (sidecar["name"], sidecar["restartPolicy"]) = (json!("s"), json!("Always"));
        let (reason, judged) = reason.split_once(" of ").unwrap_or((reason, "2"));
        let condition = json!({ "type": "PodResizePending", "status": "True", "reason": reason,
            "observedGeneration": judged.parse::<i64>().unwrap() });
        let pod = json!({
            "metadata": { "generation": 2 },
            "spec": { "containers": [container], "initContainers": [sidecar] },
            "status": { "containerStatuses": [status("c")], "initContainerStatuses": [status("s")],
                "conditions": [condition] },
        });
        let pod = serde_json::from_value(pod).unwrap();
        assert_eq!(pod_resources::requests(&pod).cpu, 2 * wish.parse::<i64>().unwrap() * 1000);
        assert_eq!(pod_resources::held(&pod).cpu, pod_resources::assumed_requests(&pod).cpu);
        pod_resources::held(&pod).cpu / 2000
    };
    assert_eq!(cpu("1", "1", "1", ""), 1);
    assert_eq!(cpu("3", "1", "1", "Deferred"), 3);
    assert_eq!(cpu("1", "3", "1", ""), 3);
    assert_eq!(cpu("1", "1", "3", ""), 3);
    assert_eq!(cpu("9", "1", "2", "Infeasible"), 2);
    assert_eq!(cpu("9", "1", "2", "Infeasible of 1"), 9, "of an older wish");
}

#[test]
fn what_each_rule_says() {
    let none = || json!({});
    let tolerating = |t: Value| json!({ "tolerations": [t] });
    let hard = || taint("a", "b", "NoSchedule");
    let cordoned = || json!({ "spec": { "unschedulable": true } });
    let huge = "9223372036854775807";
    let table: Vec<(&str, Value, Value, &str)> = vec![
        ("nothing asked", none(), none(), ""),
        // Resources.
        ("all of it", requesting(json!({ "cpu": "4", "memory": "8Gi" })), none(), ""),
        ("a bit more CPU", requesting(json!({ "cpu": "4001m" })), none(), "Insufficient cpu"),
        ("a byte more", requesting(json!({ "memory": "8589934593" })), none(), "Insufficient memory"),
        (
            "too much of everything",
            requesting(json!({ "cpu": "5", "memory": "9Gi", "ephemeral-storage": "101Gi" })),
            none(),
            "Insufficient cpu, Insufficient ephemeral-storage, Insufficient memory",
        ),
        ("what no node has", requesting(json!({ "example.com/gpu": "1" })), none(), "Insufficient example.com/gpu"),
        ("none of what no node has", requesting(json!({ "example.com/gpu": "0" })), none(), ""),
        (
            "an extended resource",
            requesting(json!({ "example.com/gpu": "2" })),
            json!({ "status": { "allocatable": { "example.com/gpu": "2" } } }),
            "",
        ),
        (
            "a huge request",
            requesting(json!({ "cpu": huge, "memory": "8Ei" })),
            none(),
            "Insufficient cpu, Insufficient memory",
        ),
        ("a huge node", none(), json!({ "status": { "allocatable": { "cpu": huge, "memory": huge } } }), ""),
        ("no room for Pods", none(), json!({ "status": { "allocatable": { "pods": "0" } } }), "Too many pods"),
        ("a node without status", none(), json!({ "status": null }), "Too many pods"),
        ("as a whole", json!({ "resources": { "requests": { "cpu": "5" } } }), none(), "Insufficient cpu"),
        ("overhead counts", json!({ "overhead": { "cpu": "5" } }), none(), "Insufficient cpu"),
        // Cordoned.
        ("cordoned", none(), cordoned(), "node(s) were unschedulable"),
        (
            "cordoned, tolerated",
            tolerating(json!({ "key": "node.kubernetes.io/unschedulable", "operator": "Exists" })),
            cordoned(),
            "",
        ),
        // Taints.
        ("tainted", none(), hard(), TAINT),
        ("tainted for running ones too", none(), taint("a", "b", "NoExecute"), TAINT),
        ("tainted softly", none(), taint("a", "b", "PreferNoSchedule"), ""),
        ("tolerated", tolerating(json!({ "key": "a", "value": "b", "effect": "NoSchedule" })), hard(), ""),
        ("tolerated for any effect", tolerating(json!({ "key": "a", "operator": "Equal", "value": "b" })), hard(), ""),
        ("another value", tolerating(json!({ "key": "a", "value": "c" })), hard(), TAINT),
        ("another key", tolerating(json!({ "key": "b", "operator": "Exists" })), hard(), TAINT),
        (
            "another effect",
            tolerating(json!({ "key": "a", "operator": "Exists", "effect": "NoExecute" })),
            hard(),
            TAINT,
        ),
        ("everything tolerated", tolerating(json!({ "operator": "Exists" })), hard(), ""),
        // Selector and affinity.
        ("selected", json!({ "nodeSelector": { "disk": "ssd" } }), labels(json!({ "disk": "ssd" })), ""),
        ("not selected", json!({ "nodeSelector": { "disk": "ssd" } }), labels(json!({ "disk": "hdd" })), AFFINITY),
        ("In", required("z", "In", json!(["a", "b"])), labels(json!({ "z": "b" })), ""),
        ("not In", required("z", "In", json!(["a"])), none(), AFFINITY),
        ("NotIn", required("z", "NotIn", json!(["a"])), none(), ""),
        ("not NotIn", required("z", "NotIn", json!(["a"])), labels(json!({ "z": "a" })), AFFINITY),
        ("Exists", required("z", "Exists", json!(null)), labels(json!({ "z": "" })), ""),
        ("not DoesNotExist", required("z", "DoesNotExist", json!(null)), labels(json!({ "z": "" })), AFFINITY),
        ("Gt", required("z", "Gt", json!(["4"])), labels(json!({ "z": "5" })), ""),
        ("not Gt", required("z", "Gt", json!(["5"])), labels(json!({ "z": "5" })), AFFINITY),
        ("Lt", required("z", "Lt", json!(["4"])), labels(json!({ "z": "-5" })), ""),
        ("Lt of no number", required("z", "Lt", json!(["4"])), labels(json!({ "z": "x" })), AFFINITY),
        ("an empty term", affinity(json!([{}])), none(), AFFINITY),
        (
            "by name, or by another term",
            affinity(json!([
                { "matchExpressions": [{ "key": "z", "operator": "Exists" }] },
                { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }] },
            ])),
            none(),
            "",
        ),
        // The first rule that says no is the one that is told.
        ("cordoned and full", requesting(json!({ "cpu": "5" })), cordoned(), "node(s) were unschedulable"),
    ];
    for (what, spec, changes, expected) in table {
        assert_eq!(verdict(spec, changes, vec![]), expected, "{what}");
    }
}

#[test]
fn what_is_there_already_counts() {
    let cpu = |cpu: &str| requesting(json!({ "cpu": cpu }));
    let table: Vec<(&str, Value, Vec<Value>, &str)> = vec![
        ("room beside", cpu("1"), vec![cpu("3")], ""),
        ("no room beside", cpu("1001m"), vec![cpu("3")], "Insufficient cpu"),
        ("overcommitted, nothing asked", json!({}), vec![cpu("3"), cpu("3")], ""),
        ("overcommitted hugely", cpu("1"), vec![cpu("9223372036854775807"); 2], "Insufficient cpu"),
        ("too many", json!({}), vec![json!({}); 10], "Too many pods"),
        ("the same port", port(80, "", "TCP"), vec![port(80, "", "TCP")], PORTS),
        ("another port", port(81, "", "TCP"), vec![port(80, "", "TCP")], ""),
        ("another protocol", port(80, "", "UDP"), vec![port(80, "", "TCP")], ""),
        ("another address", port(80, "10.0.0.1", "TCP"), vec![port(80, "10.0.0.2", "TCP")], ""),
        ("every address", port(80, "10.0.0.1", "TCP"), vec![port(80, "0.0.0.0", "TCP")], PORTS),
        ("a container's port only", json!({}), vec![port(80, "", "TCP")], ""),
    ];
    for (what, spec, others, expected) in table {
        assert_eq!(verdict(spec, json!({}), others), expected, "{what}");
    }
}

/// Each is a text, for each node.
#[test]
fn of_many_lacking_resources_the_first_are_told() {
    let requests: Value = (0..200).map(|n| (format!("example.com/r{n:03}"), json!("1"))).collect();
    let (asks, mut cluster) = (pod("p", requesting(requests)), cluster([node("n1", json!({}))]));
    let told = super::verdicts(&asks, &mut cluster, &Profile::default()).join("");
    assert_eq!(told.matches("Insufficient").count(), 10, "{told}");
    assert!(told.ends_with("Insufficient example.com/r009"), "{told}");
}

#[test]
fn reasons_are_counted_and_sorted_as_upstream_does() {
    let nodes = [
        node("n1", taint("a", "1", "NoSchedule")),
        node("n2", taint("a", "2", "NoSchedule")),
        node("n3", json!({ "spec": { "unschedulable": true } })),
        node("n4", json!({ "status": { "allocatable": { "pods": "0" } } })),
    ];
    let mut cluster = cluster(nodes);
    let asks = pod("p", requesting(json!({ "cpu": "5" })));
    let profile = Profile::default();
    let decision = decide(&asks, &mut cluster, &profile, &Env::system());
    let Decision::Unschedulable { message, plugins, .. } = decision else { panic!() };
    assert_eq!(
        message,
        "0/4 nodes are available: 1 Insufficient cpu, 1 Too many pods, 1 node(s) were unschedulable, \
         2 node(s) had untolerated taint(s). \
         preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."
    );
    assert_eq!(plugins.into_iter().collect::<Vec<_>>(), ["NodeResourcesFit", "NodeUnschedulable", "TaintToleration"]);
    let none = decide(&asks, &mut super::cluster([]), &profile, &Env::system());
    let Decision::Unschedulable { message, .. } = none else { panic!() };
    assert_eq!(message, "no nodes available to schedule pods");
}

/// The names of nodes that fit, from the highest score down; those of equal score in one group.
fn ranking(spec: Value, nodes: Vec<Value>, loads: &[(&str, Value)]) -> String {
    let nodes = nodes.into_iter().enumerate().map(|(n, changes)| node(&format!("n{}", n + 1), changes));
    let mut cluster = cluster(nodes);
    for (n, (node, load)) in loads.iter().enumerate() {
        cluster.assume(pod(&format!("other-{n}"), load.clone()), node);
    }
    let (pod, profile) = (pod("p", spec), Profile::default());
    let fit: Vec<_> = cluster.in_turn().filter(|node| check(&pod, &cluster, &profile, node.slot).is_none()).collect();
    let mut ranked: Vec<_> =
        scores(&pod, &cluster, &profile, &fit).into_iter().zip(fit.iter().map(|node| node.name.clone())).collect();
    ranked.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut text = String::new();
    for (n, (score, name)) in ranked.iter().enumerate() {
        let sign = if n == 0 {
            ""
        } else if ranked[n - 1].0 == *score {
            "="
        } else {
            ">"
        };
        text.push_str(&format!("{sign}{name}"));
    }
    text
}

#[test]
fn which_node_is_the_best() {
    let cpu = |cpu: &str| requesting(json!({ "cpu": cpu }));
    let small = || requesting(json!({ "cpu": "1", "memory": "2Gi" }));
    let prefers = |weights: &[(i32, &str)]| {
        let term = |(weight, zone): &(i32, &str)| json!({ "weight": weight, "preference": { "matchExpressions": [{ "key": "z", "operator": "In", "values": [zone] }] } });
        let terms: Vec<Value> = weights.iter().map(term).collect();
        json!({ "affinity": { "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": terms } } })
    };
    let zone = |zone: &str| labels(json!({ "z": zone }));
    let huge =
        || json!({ "status": { "allocatable": { "cpu": "9223372036854775807", "memory": "9223372036854775807" } } });
    let none = || json!({});
    assert_eq!(ranking(small(), vec![none(), none()], &[]), "n1=n2");
    assert_eq!(ranking(small(), vec![none(), none()], &[("n1", small())]), "n2>n1", "the emptier");
    let nothing = json!({});
    assert_eq!(
        ranking(nothing.clone(), vec![none(), none()], &[("n1", nothing.clone())]),
        "n2>n1",
        "some use is assumed"
    );
    // CPU half used on both, but n2's memory is as well. n1 has more left: 48 to 25; n2 is balanced: 100 to 75.
    let both = requesting(json!({ "cpu": "2", "memory": "4Gi" }));
    assert_eq!(ranking(small(), vec![none(), none()], &[("n1", cpu("2")), ("n2", both)]), "n2>n1");
    assert_eq!(ranking(small(), vec![taint("a", "b", "PreferNoSchedule"), none()], &[]), "n2>n1", "soft taints repel");
    assert_eq!(ranking(prefers(&[(1, "b")]), vec![zone("a"), zone("b")], &[]), "n2>n1");
    let several = prefers(&[(1, "a"), (50, "b"), (100, "c")]);
    assert_eq!(ranking(several, vec![zone("a"), zone("b"), zone("c"), none()], &[]), "n3>n2>n1>n4");
    assert_eq!(ranking(small(), vec![huge(), none()], &[("n1", cpu("9223372036854775806"))]), "n2", "sums do not wrap");
    assert_eq!(ranking(small(), vec![huge(), none()], &[("n1", small())]), "n1>n2");
}

#[test]
fn the_best_of_a_few_is_taken_and_equals_share() {
    let mut cluster = cluster((1..=3).map(|n| node(&format!("n{n}"), json!({}))));
    let env = Env::system();
    for n in 0..30 {
        let pod = pod(&format!("p{n}"), requesting(json!({ "cpu": "100m", "memory": "200Mi" })));
        let Decision::Bind(choice) = decide(&pod, &mut cluster, &Profile::default(), &env) else { panic!("{n}") };
        assert!(choice.to_string().starts_with("looked at 3 of 3 nodes, "), "{choice}");
        cluster.assume(pod, &choice.node);
    }
    let counts: Vec<_> = cluster.in_turn().map(|node| node.load.pod_count()).collect();
    assert_eq!(counts, [10, 10, 10]);
}

#[test]
fn of_many_nodes_a_part_is_looked_at_each_in_turn() {
    let mut cluster = cluster((0..1000).map(|n| node(&format!("n{n:04}"), json!({}))));
    let env = Env::system();
    let mut chosen = std::collections::BTreeSet::new();
    for n in 0..1000 {
        let pod = pod(&format!("p{n}"), requesting(json!({ "cpu": "1" })));
        let Decision::Bind(choice) = decide(&pod, &mut cluster, &Profile::default(), &env) else { panic!("{n}") };
        assert_eq!((choice.fit, choice.visited), (420, 420), "50 less 1000/125 percent");
        chosen.insert(choice.node.clone());
        cluster.assume(pod, &choice.node);
    }
    assert!(chosen.len() > 900, "only {} nodes were used", chosen.len());
}

#[test]
fn a_pods_requests_are_counted_as_upstream_does() {
    let c = |cpu: &str| json!({ "name": "c", "image": "i", "resources": { "requests": { "cpu": cpu } } });
    let sidecar = |cpu: &str| {
        let mut container = c(cpu);
        container["restartPolicy"] = "Always".into();
        container
    };
    let table = vec![
        (json!({ "containers": [c("1"), c("2")] }), 3000),
        (json!({ "containers": [c("1")], "initContainers": [c("3"), c("2")] }), 3000),
        (json!({ "containers": [c("1")], "initContainers": [sidecar("1"), c("3")] }), 4000),
        (json!({ "containers": [c("1")], "initContainers": [c("3"), sidecar("1")] }), 3000),
        (json!({ "containers": [c("3")], "initContainers": [sidecar("1"), c("1")] }), 4000),
        (json!({ "containers": [c("1")], "overhead": { "cpu": "250m" } }), 1250),
        (
            json!({ "containers": [c("1")], "resources": { "requests": { "cpu": "5" } }, "overhead": { "cpu": "1" } }),
            6000,
        ),
        (json!({ "containers": [{ "name": "c", "resources": { "limits": { "cpu": "2" } } }] }), 2000),
        (json!({ "containers": [c("-1")] }), 0),
        (json!({ "containers": [c("nonsense")] }), 0),
    ];
    for (spec, expected) in table {
        let told = spec.to_string();
        assert_eq!(pod_resources::requests(&pod("p", spec).pod).cpu, expected, "{told}");
    }
    let assumed = pod_resources::assumed_requests(&pod("p", json!({})).pod);
    assert_eq!((assumed.cpu, assumed.memory), (100, 200 << 20));
}

#[test]
fn what_leaves_makes_room_and_nothing_else_does() {
    let mut cluster = cluster([node("n1", json!({}))]);
    let huge = |name: &str| pod(name, requesting(json!({ "cpu": "9223372036854775807" })));
    let two = |name: &str| pod(name, port(80, "", "TCP"));
    // Two that hold one port, two whose sum does not fit: bound by others, so all are counted.
    for pod in [huge("a"), huge("b"), two("c"), two("d")] {
        cluster.set_pod(pod, "n1");
    }
    let load = |cluster: &podwright::scheduler::cluster::Cluster| {
        let load = &cluster.node("n1").expect("there").load;
        (load.requested.cpu, load.ports.len(), load.pod_count())
    };
    assert_eq!(cluster.remove_pod("uid-a").as_deref(), Some("n1"));
    assert_eq!(load(&cluster), (i64::MAX, 1, 3));
    cluster.remove_pod("uid-c");
    assert_eq!(load(&cluster), (i64::MAX, 1, 2));
    cluster.remove_pod("uid-b");
    cluster.remove_pod("uid-d");
    assert_eq!(load(&cluster), (0, 0, 0));
    assert_eq!(cluster.remove_pod("uid-d"), None);
}

#[test]
fn pods_are_counted_before_and_after_their_node_is_known() {
    let mut cluster = cluster([]);
    let cpu = |name: &str, cpu: &str| pod(name, requesting(json!({ "cpu": cpu })));
    cluster.set_pod(cpu("a", "3"), "n1");
    assert!(cluster.is_empty() && cluster.node("n1").is_none());
    cluster.set_node(node("n1", json!({})));
    cluster.set_node(node("n2", json!({})));
    assert_eq!(cluster.node("n1").expect("known").load.requested.cpu, 3000);
    cluster.remove_node("n1");
    assert_eq!((cluster.len(), cluster.in_turn().count()), (1, 1));
    cluster.set_pod(cpu("b", "1"), "n1");
    cluster.set_node(node("n1", json!({})));
    assert_eq!(cluster.node("n1").expect("again").load.requested.cpu, 4000);
    assert_eq!(cluster.node("n2").expect("still").load.requested.cpu, 0);
    // An assumption ends with what is seen: here, there, or nowhere.
    cluster.assume(cpu("c", "1"), "n2");
    assert_eq!(cluster.set_pod(cpu("c", "1"), "n1").as_deref(), Some("n2"), "room is free where it was expected");
    assert_eq!(cluster.forget("uid-c"), None, "it is real by now");
    assert_eq!(cluster.set_pod(cpu("c", "1"), "n1"), None);
    assert_eq!(cluster.set_pod(cpu("c", "500m"), "n1").as_deref(), Some("n1"), "it asks for less");
    cluster.assume(cpu("d", "1"), "n2");
    assert_eq!(cluster.forget("uid-d").as_deref(), Some("n2"));
    assert_eq!(cluster.node("n2").expect("still").load.requested.cpu, 0);
}

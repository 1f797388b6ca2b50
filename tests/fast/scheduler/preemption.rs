//! DefaultPreemption: for whom Pods have to go, which ones, and from where.

use std::sync::Arc;

use podwright::{
    api::Env,
    client::Key,
    scheduler::{
        cluster::Cluster,
        decide::{Decision, decide},
        framework::Nomination,
        pod::PodInfo,
        profile::Profile,
    },
};
use serde_json::{Value, json};

use super::{cluster, labelled, node};

/// A Pod of such a priority and so much CPU, with `changes` merged in.
fn pod(name: &str, priority: i32, cpu: &str, changes: Value) -> Arc<PodInfo> {
    let container = json!({ "name": "c", "image": "i", "resources": { "requests": { "cpu": cpu } } });
    let base = json!({ "spec": { "priority": priority, "containers": [container] } });
    labelled(
        name,
        json!({ "app": name.trim_end_matches(char::is_numeric) }),
        podwright::api::patch::merge(&base, &changes),
    )
}

/// Who has to go from where, the most important one first: `n1: a b`. Or why nobody has to.
fn outcome(pod: &PodInfo, cluster: &mut Cluster) -> String {
    match decide(pod, cluster, &Profile::default(), &Env::system()) {
        Decision::Bind(choice) => format!("bound to {}", choice.node),
        Decision::Unschedulable { message, nomination, .. } => match nomination {
            Nomination::Preempt { node, victims } => {
                let names: Vec<&str> = victims.iter().map(|(key, _)| key.name.as_str()).collect();
                format!("{node}: {}", names.join(" "))
            }
            _ => message.split(" preemption: ").nth(1).unwrap_or("nothing said").to_owned(),
        },
    }
}

/// Nodes of 4 CPUs with these Pods: name, priority, CPU.
fn with(nodes: &[&[(&str, i32, &str)]]) -> Cluster {
    let names = (1..=nodes.len()).map(|n| node(&format!("n{n}"), json!({})));
    let mut cluster = cluster(names);
    for (n, pods) in nodes.iter().enumerate() {
        for (name, priority, cpu) in *pods {
            cluster.set_pod(pod(name, *priority, cpu, json!({})), &format!("n{}", n + 1));
        }
    }
    cluster
}

#[test]
fn who_has_to_go() {
    let none = "No preemption victims found for incoming pod.";
    let one = |why: &str| format!("0/1 nodes are available: 1 {why}");
    let table: Vec<(&str, &[&[(&str, i32, &str)]], &str, String)> = vec![
        ("the less important one", &[&[("a", 5, "4")]], "1", "n1: a".into()),
        ("not an equal", &[&[("a", 10, "4")]], "1", one(none)),
        ("not a more important one", &[&[("a", 11, "4")]], "1", one(none)),
        ("as few as will do", &[&[("a", 5, "2"), ("b", 5, "1"), ("c", 5, "1")]], "1", "n1: c".into()),
        ("the least important first", &[&[("a", 1, "2"), ("b", 2, "2")]], "2", "n1: a".into()),
        (
            "a less important one that is of no use stays",
            &[&[("a", 1, "500m"), ("b", 2, "3500m")]],
            "3",
            "n1: b".into(),
        ),
        ("all of them", &[&[("a", 1, "2"), ("b", 2, "2")]], "4", "n1: b a".into()),
        ("nobody if that is not enough", &[&[("a", 1, "2"), ("b", 20, "2")]], "4", one("Insufficient cpu.")),
        ("nobody if it never fits", &[&[("a", 1, "4")]], "5", one("Preemption is not helpful for scheduling.")),
        ("where the victims are less important", &[&[("a", 5, "4")], &[("b", 4, "4")]], "4", "n2: b".into()),
        (
            "where the sum of priorities is less",
            &[&[("a", 5, "2"), ("b", 5, "2")], &[("c", 5, "2"), ("d", 4, "2")]],
            "4",
            "n2: c d".into(),
        ),
        ("where fewer go", &[&[("a", 5, "2"), ("b", -2147483648, "2")], &[("c", 5, "4")]], "4", "n2: c".into()),
        ("where it fits already", &[&[("a", 1, "4")], &[]], "4", "bound to n2".into()),
    ];
    for (what, nodes, cpu, expected) in table {
        let mut cluster = with(nodes);
        assert_eq!(outcome(&pod("p", 10, cpu, json!({})), &mut cluster), expected, "{what}");
        // Everybody is back in place: it is asked again with the same answer.
        assert_eq!(outcome(&pod("p", 10, cpu, json!({})), &mut cluster), expected, "{what}, again");
    }
}

#[test]
fn who_runs_for_the_longest_stays() {
    let since = |time: &str| json!({ "status": { "startTime": time } });
    let mut cluster = with(&[&[]]);
    cluster.set_pod(pod("old", 5, "2", since("2026-01-01T00:00:00Z")), "n1");
    cluster.set_pod(pod("new", 5, "2", since("2026-01-02T00:00:00Z")), "n1");
    assert_eq!(outcome(&pod("p", 10, "2", json!({})), &mut cluster), "n1: new");
    // And of nodes the one whose most important victim started last.
    let mut cluster = with(&[&[], &[]]);
    cluster.set_pod(pod("old", 5, "4", since("2026-01-01T00:00:00Z")), "n1");
    cluster.set_pod(pod("new", 5, "4", since("2026-01-02T00:00:00Z")), "n2");
    assert_eq!(outcome(&pod("p", 10, "2", json!({})), &mut cluster), "n2: new");
}

fn budget(cluster: &mut Cluster, app: &str, allowed: i32, disrupted: Value) {
    let budget = json!({ "metadata": { "name": app }, "spec": { "selector": { "matchLabels": { "app": app } } },
        "status": { "disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1,
            "disruptedPods": disrupted } });
    let budget = serde_json::from_value(budget).expect("a budget");
    cluster.workloads.set_budget(&Key::new("default", app), Some(&budget));
}

#[test]
fn budgets_are_kept_where_that_is_possible() {
    let two = || with(&[&[("a1", 1, "2"), ("b1", 5, "2")]]);
    let asks = pod("p", 10, "2", json!({}));
    let mut cluster = two();
    assert_eq!(outcome(&asks, &mut cluster), "n1: a1");
    budget(&mut cluster, "a", 0, json!({}));
    assert_eq!(outcome(&asks, &mut cluster), "n1: b1", "a is protected");
    budget(&mut cluster, "a", 1, json!({}));
    assert_eq!(outcome(&asks, &mut cluster), "n1: a1", "one may go");
    budget(&mut cluster, "a", 0, json!({ "a1": "2026-01-01T00:00:00Z" }));
    assert_eq!(outcome(&asks, &mut cluster), "n1: a1", "it is on its way anyway");
    budget(&mut cluster, "a", 0, json!({}));
    budget(&mut cluster, "b", 0, json!({}));
    assert_eq!(outcome(&asks, &mut cluster), "n1: a1", "if not, they do not protect");
    // The node on which fewer budgets are broken, whatever the priorities.
    let mut cluster = with(&[&[("a1", 1, "4")], &[("b1", 9, "4")]]);
    budget(&mut cluster, "a", 0, json!({}));
    assert_eq!(outcome(&asks, &mut cluster), "n2: b1");
    cluster.workloads.set_budget(&Key::new("default", "a"), None);
    assert_eq!(outcome(&asks, &mut cluster), "n1: a1");
}

#[test]
fn who_may_not_cost_others_their_place() {
    let never = json!({ "spec": { "preemptionPolicy": "Never" } });
    let mut cluster = with(&[&[("a", 1, "4")]]);
    let told = outcome(&pod("p", 10, "1", never), &mut cluster);
    assert_eq!(told, "not eligible due to preemptionPolicy=Never.");
    // Its victims are on their way: it waits for them and takes no more.
    let leaving = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" }, "status": { "conditions":
        [{ "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler" }] } });
    let mut cluster = with(&[&[], &[("b", 1, "4")]]);
    cluster.set_pod(pod("a", 1, "4", leaving), "n1");
    let asks = pod("p", 10, "1", json!({}));
    cluster.nominations.set(asks.clone(), "n1");
    assert_eq!(outcome(&asks, &mut cluster), "not eligible due to a terminating pod on the nominated node.");
    // Unless they would leave for nothing.
    cluster.set_node(node("n1", json!({ "spec": { "unschedulable": true } })));
    assert_eq!(outcome(&asks, &mut cluster), "n2: b");
}

#[test]
fn room_that_is_being_made_is_kept_for_whom_it_is_made() {
    let mut cluster = with(&[&[("a", 1, "2")]]);
    cluster.nominations.set(pod("first", 10, "2", json!({})), "n1");
    let kept = "0/1 nodes are available: 1 No preemption victims found for incoming pod.";
    assert_eq!(outcome(&pod("equal", 10, "1", json!({})), &mut cluster), "n1: a", "beside it there is none");
    assert_eq!(outcome(&pod("lesser", 1, "1", json!({})), &mut cluster), kept);
    assert_eq!(outcome(&pod("greater", 11, "2", json!({})), &mut cluster), "bound to n1", "the more important one");
    assert_eq!(outcome(&pod("first", 10, "2", json!({})), &mut cluster), "bound to n1", "itself");
    cluster.nominations.remove("uid-first");
    assert_eq!(outcome(&pod("lesser", 1, "1", json!({})), &mut cluster), "bound to n1");
    // Of two nodes that fit the one comes first on which room was made.
    let mut cluster = with(&[&[], &[], &[]]);
    for _ in 0..10 {
        cluster.nominations.set(pod("p", 10, "1", json!({})), "n2");
        assert_eq!(outcome(&pod("p", 10, "1", json!({})), &mut cluster), "bound to n2");
    }
}

#[test]
fn whoever_is_unwelcome_or_takes_a_port_has_to_go_too() {
    let far = json!({ "spec": { "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution":
        [{ "labelSelector": { "matchLabels": { "app": "a" } }, "topologyKey": "kubernetes.io/hostname" }] } } } });
    let mut cluster = with(&[&[("a", 1, "1"), ("b", 1, "1")]]);
    assert_eq!(outcome(&pod("p", 10, "1", far.clone()), &mut cluster), "n1: a");
    let mut cluster = with(&[&[("b", 1, "1")]]);
    cluster.set_pod(pod("c", 1, "1", far), "n1");
    assert_eq!(outcome(&pod("a", 10, "1", json!({})), &mut cluster), "n1: c");
    let port = json!({ "spec": { "containers":
        [{ "name": "c", "image": "i", "ports": [{ "containerPort": 80, "hostPort": 80 }] }] } });
    let mut cluster = with(&[&[("b", 1, "1")]]);
    cluster.set_pod(pod("d", 1, "0", port.clone()), "n1");
    assert_eq!(outcome(&pod("p", 10, "0", port), &mut cluster), "n1: d");
    // Where a Pod wants to be near others, nobody's leaving helps.
    let near = json!({ "spec": { "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution":
        [{ "labelSelector": { "matchLabels": { "app": "z" } }, "topologyKey": "kubernetes.io/hostname" }] } } } });
    let told = outcome(&pod("p", 10, "1", near), &mut with(&[&[("a", 1, "1")]]));
    assert_eq!(told, "0/1 nodes are available: 1 Preemption is not helpful for scheduling.");
}

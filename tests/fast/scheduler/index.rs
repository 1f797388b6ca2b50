//! What is kept by increments equals what is counted anew.

use std::{collections::btree_map::Entry, sync::Arc};

use podwright::scheduler::{cluster::Cluster, decide::check, framework::Handle, pod::PodInfo, profile::Profile};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{labelled, node, points, verdicts};

#[derive(Clone, Debug)]
enum Op {
    Node(u8, u8),
    NodeGone(u8),
    Pod(u8, u8, u8, u8),
    Assume(u8, u8),
    Forget(u8),
    PodGone(u8),
    /// Its status changes.
    Status(u8),
    Namespace(bool),
    Ask(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0u8..5, 0u8..4).prop_map(|(n, zone)| Op::Node(n, zone)),
        1 => (0u8..5).prop_map(Op::NodeGone),
        6 => (0u8..10, 0u8..5, 0u8..3, 0u8..4).prop_map(|(pod, node, app, kind)| Op::Pod(pod, node, app, kind)),
        2 => (0u8..10, 0u8..5).prop_map(|(pod, node)| Op::Assume(pod, node)),
        1 => (0u8..10).prop_map(Op::Forget),
        2 => (0u8..10).prop_map(Op::PodGone),
        2 => (0u8..10).prop_map(Op::Status),
        1 => any::<bool>().prop_map(Op::Namespace),
        3 => (0u8..4).prop_map(Op::Ask),
    ]
}

/// Four kinds of Pods: with all that others are counted for, or a part of it.
fn kind(name: &str, app: u8, kind: u8) -> Arc<PodInfo> {
    let term = |app: u8| {
        json!({ "labelSelector": { "matchLabels": { "app": app.to_string() } }, "topologyKey": "zone",
        "namespaceSelector": if kind == 3 { json!({ "matchLabels": { "team": "x" } }) } else { Value::Null } })
    };
    let weighted = |app: u8| json!([{ "weight": 5, "podAffinityTerm": term(app) }]);
    let constraint = |when: &str| {
        json!({ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when,
        "labelSelector": { "matchLabels": { "app": "1" } } })
    };
    let spec = match kind {
        0 => json!({}),
        1 => {
            json!({ "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term(app)] },
            "podAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": weighted(2) } } })
        }
        2 => json!({ "topologySpreadConstraints": [constraint("DoNotSchedule"), constraint("ScheduleAnyway")] }),
        _ => json!({ "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term(1)] },
            "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": weighted(0) } } }),
    };
    labelled(name, json!({ "app": app.to_string() }), json!({ "spec": spec }))
}

#[derive(Default)]
struct Model {
    nodes: std::collections::BTreeMap<u8, u8>,
    pods: std::collections::BTreeMap<u8, (Arc<PodInfo>, u8)>,
    assumed: std::collections::BTreeSet<u8>,
    team: bool,
}

fn zoned(n: u8, zone: u8) -> Arc<k8s_openapi::api::core::v1::Node> {
    // The last zone is none.
    let labels = if zone == 3 { json!({}) } else { json!({ "zone": zone.to_string() }) };
    node(&format!("n{n}"), json!({ "metadata": { "labels": labels } }))
}

fn name_namespace(cluster: &mut Cluster, team: bool) {
    let labels = if team { json!({ "team": "x" }) } else { json!({}) };
    let namespace = serde_json::from_value(json!({ "metadata": { "name": "default", "labels": labels } }));
    cluster.set_namespace("default", Some(&namespace.expect("a Namespace")));
}

impl Model {
    /// The same cluster, made at once.
    fn anew(&self) -> Cluster {
        let mut cluster = Cluster::default();
        name_namespace(&mut cluster, self.team);
        self.nodes.iter().for_each(|(n, zone)| cluster.set_node(zoned(*n, *zone)));
        self.pods.values().for_each(|(pod, node)| drop(cluster.set_pod(pod.clone(), &format!("n{node}"))));
        cluster
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn increments_equal_a_fresh_count(ops in proptest::collection::vec(op(), 1..60)) {
        let (mut cluster, mut model, profile) = (Cluster::default(), Model::default(), Profile::default());
        for op in ops {
            match op {
                Op::Node(n, zone) => {
                    model.nodes.insert(n, zone);
                    cluster.set_node(zoned(n, zone));
                }
                Op::NodeGone(n) => {
                    model.nodes.remove(&n);
                    cluster.remove_node(&format!("n{n}"));
                }
                Op::Pod(pod, node, app, kind_) => {
                    let info = kind(&format!("p{pod}"), app, kind_);
                    model.pods.insert(pod, (info.clone(), node));
                    model.assumed.remove(&pod);
                    cluster.set_pod(info, &format!("n{node}"));
                }
                Op::Assume(pod, node) => {
                    if let Entry::Vacant(place) = model.pods.entry(pod) {
                        let info = kind(&format!("p{pod}"), pod % 3, 1);
                        place.insert((info.clone(), node));
                        model.assumed.insert(pod);
                        cluster.assume(info, &format!("n{node}"));
                    }
                }
                Op::Forget(pod) => {
                    let forgotten = cluster.forget(&format!("uid-p{pod}")).is_some();
                    prop_assert_eq!(forgotten, model.assumed.remove(&pod));
                    if forgotten {
                        model.pods.remove(&pod);
                    }
                }
                Op::PodGone(pod) => {
                    model.pods.remove(&pod);
                    model.assumed.remove(&pod);
                    cluster.remove_pod(&format!("uid-p{pod}"));
                }
                Op::Status(pod) => if let Some((info, node)) = model.pods.get_mut(&pod) {
                    let mut changed = (*info.pod).clone();
                    changed.status.get_or_insert_default().message = Some("news".into());
                    *info = PodInfo::of(Arc::new(changed));
                    model.assumed.remove(&pod);
                    cluster.set_pod(info.clone(), &format!("n{node}"));
                    prop_assert!(cluster.pod(&info.uid).is_some_and(|known| Arc::ptr_eq(known, info)));
                    prop_assert!(!cluster.is_assumed(&info.uid));
                },
                Op::Namespace(team) => {
                    model.team = team;
                    name_namespace(&mut cluster, team);
                }
                // From now on its counts are kept.
                Op::Ask(n) => profile.prepare(&kind("asks", n, n), &mut cluster),
            }
        }
        name_namespace(&mut cluster, model.team);
        for n in 0..4u8 {
            for app in 0..3u8 {
                let asks = kind("asks", app, n);
                let mut anew = model.anew();
                prop_assert_eq!(verdicts(&asks, &mut cluster, &profile), verdicts(&asks, &mut anew, &profile));
                prop_assert_eq!(points(&asks, &mut cluster, &profile), points(&asks, &mut anew, &profile));
                for node in model.nodes.keys() {
                    suppositions_hold(&asks, &mut cluster, &model, *node)?;
                }
            }
        }
    }
}

/// A node is judged the same if Pods are supposed to have come to it, or to have left it, as if they really had.
fn suppositions_hold(asks: &PodInfo, cluster: &mut Cluster, model: &Model, n: u8) -> Result<(), TestCaseError> {
    let profile = Profile::default();
    let name = format!("n{n}");
    // Room is being made for somebody.
    let new = kind("new", 1, 1);
    cluster.nominations.set(new.clone(), &name);
    let filters = profile.filters(asks, cluster).map_err(|_| TestCaseError::fail("refused"))?;
    let mut supposed = cluster.node(&name).ok_or_else(|| TestCaseError::fail("a node is missing"))?.clone();
    let mut really = model.anew();
    let agree = |supposed: &_, really: &Cluster| {
        let really = really.node(&name).and_then(|node| check(asks, really, &profile, node.slot));
        prop_assert_eq!(filters.check(supposed), really);
        Ok(())
    };
    let there: Vec<_> = model.pods.values().filter(|(_, node)| *node == n).map(|(pod, _)| pod.clone()).collect();
    for pod in &there {
        supposed.suppose_gone(&pod.uid);
        really.remove_pod(&pod.uid);
        agree(&supposed, &really)?;
    }
    supposed.suppose(&new);
    really.set_pod(new.clone(), &name);
    agree(&supposed, &really)?;
    for pod in &there {
        supposed.suppose(pod);
        really.set_pod(pod.clone(), &name);
        agree(&supposed, &really)?;
    }
    supposed.suppose_gone(&new.uid);
    prop_assert!(supposed.supposed.is_empty());
    drop(filters);
    cluster.nominations.remove(&new.uid);
    Ok(())
}

#[test]
fn news_of_a_status_alone_is_not_counted_again() {
    let mut cluster = super::cluster([zoned(1, 1)]);
    let first = kind("p", 1, 1);
    cluster.set_pod(first.clone(), "n1");
    let mut changed = (*first.pod).clone();
    changed.status.get_or_insert_default().message = Some("news".into());
    cluster.set_pod(PodInfo::of(Arc::new(changed.clone())), "n1");
    // Counted anew it would be by the terms of the newer form.
    let counted = |cluster: &Cluster, pod: &PodInfo| {
        let mut terms = cluster.index().repelled().all().map(|(carried, _)| carried);
        terms.all(|carried| std::ptr::eq(carried, &*pod.affinity.carried[0]))
    };
    assert!(counted(&cluster, &first));
    changed.metadata.labels.get_or_insert_default().insert("app".into(), "2".into());
    let third = PodInfo::of(Arc::new(changed));
    cluster.set_pod(third.clone(), "n1");
    assert!(counted(&cluster, &third));
}

/// A Pod that keeps others of its kind from where a label `key-N` is the same.
fn named(n: usize) -> Arc<PodInfo> {
    let term = json!({ "labelSelector": { "matchLabels": { "app": "a" } }, "topologyKey": format!("key-{n}") });
    let spec =
        json!({ "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } } });
    labelled(&format!("p{n}"), json!({ "app": "a" }), json!({ "spec": spec }))
}

/// Nobody's decision looks at terms about labels that no node has, nor are Pods counted for them; once a node has one, they are terms
/// as any other.
#[test]
fn labels_that_no_node_has_cost_nothing() {
    let labels =
        |labels: Value| json!({ "metadata": { "labels": labels }, "status": { "allocatable": { "pods": "2000" } } });
    let mut cluster = super::cluster([node("n1", labels(json!({}))), node("n2", labels(json!({})))]);
    let profile = Profile::default();
    for n in 0..100 {
        cluster.set_pod(named(n), "n1");
        profile.prepare(&named(n), &mut cluster);
    }
    assert_eq!((cluster.index().topologies(), cluster.index().classes().0), (0, 0));
    assert_eq!(cluster.index().repelled().all().count(), 0, "nobody asks them");
    let asks = labelled("asks", json!({ "app": "a" }), json!({}));
    let told = |cluster: &mut Cluster| verdicts(&asks, cluster, &Profile::default());
    let before = told(&mut cluster);
    // The label comes, goes and comes again; and the Pods leave while it is gone.
    for round in 0..2 {
        cluster.set_node(node("n1", labels(json!({ "key-7": "x" }))));
        assert_eq!(cluster.index().repelled().all().count(), 1, "{round}");
        assert_eq!(told(&mut cluster)[0], "n1: node(s) didn't satisfy existing pods anti-affinity rules", "{round}");
        cluster.set_node(node("n1", labels(json!({}))));
        assert_eq!(told(&mut cluster), before, "{round}");
    }
    for n in 0..100 {
        cluster.remove_pod(&named(n).uid);
    }
    cluster.set_node(node("n1", labels(json!({ "key-7": "x", "key-8": "x" }))));
    assert_eq!((cluster.index().repelled().all().count(), told(&mut cluster)), (0, before));
}

#[test]
fn labels_that_pods_name_do_not_pile_up() {
    let big = |name: &str, labels: Value| {
        node(name, json!({ "metadata": { "labels": labels }, "status": { "allocatable": { "pods": "2000" } } }))
    };
    let all: serde_json::Map<String, Value> = (0..1_000).map(|n| (format!("key-{n}"), json!("x"))).collect();
    let mut cluster = super::cluster([big("n0", all.into()), big("n1", json!({})), big("n2", json!({}))]);
    let profile = Profile::default();
    for n in 0..1_000 {
        cluster.set_pod(named(n), "n1");
        profile.prepare(&named(n), &mut cluster);
    }
    assert!(cluster.index().topologies() <= 128, "{}", cluster.index().topologies());
    // What is no longer kept is still known.
    cluster.set_node(big("n1", json!({ "key-0": "x", "key-999": "x" })));
    cluster.set_node(big("n2", json!({ "key-0": "x", "key-999": "y" })));
    cluster.remove_node("n0");
    let unwelcome = |name: &str| format!("{name}: node(s) didn't match pod anti-affinity rules");
    assert_eq!(verdicts(&named(0), &mut cluster, &profile), [unwelcome("n1"), unwelcome("n2")]);
    let told = verdicts(&named(999), &mut cluster, &profile);
    assert_eq!(told, [unwelcome("n1"), "n2: node(s) didn't satisfy existing pods anti-affinity rules".to_owned()]);
}

#[test]
fn values_of_nodes_that_are_gone_are_forgotten() {
    let mut cluster = super::cluster([node("stays", json!({}))]);
    cluster.prepare_topology("kubernetes.io/hostname");
    for n in 0..10_000 {
        cluster.set_node(node(&format!("n{n}"), json!({})));
        if n > 10 {
            cluster.remove_node(&format!("n{}", n - 10));
        }
    }
    let topology = cluster.topology("kubernetes.io/hostname");
    assert!(topology.len() < 200, "{}", topology.len());
    let ids: std::collections::BTreeSet<_> = cluster.nodes().map(|node| topology.of(node.slot)).collect();
    assert_eq!(ids.len(), cluster.len(), "each has its own");
    assert!(ids.iter().all(|id| id.is_some_and(|id| id < topology.len())));
}

//! What is kept by increments equals what is counted anew.

use std::sync::Arc;

use podwright::scheduler::{cluster::Cluster, pod::PodInfo, profile::Profile};
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
                Op::Assume(pod, node) => if !model.pods.contains_key(&pod) {
                    let info = kind(&format!("p{pod}"), pod % 3, 1);
                    model.pods.insert(pod, (info.clone(), node));
                    model.assumed.insert(pod);
                    cluster.assume(info, &format!("n{node}"));
                },
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
            }
        }
    }
}

//! PodTopologySpread: how evenly Pods are spread, and over what.

use podwright::scheduler::{cluster::Cluster, profile::Profile, workloads::Workloads};
use serde_json::{Value, json};

use super::{cluster, labelled, node, points, scoring, verdicts, zoned};

const SKEWED: &str = "node(s) didn't match pod topology spread constraints";
const MISSING: &str = "node(s) didn't match pod topology spread constraints (missing required label)";

fn constraint(changes: Value) -> Value {
    let base = json!({ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": "web" } } });
    podwright::api::patch::merge(&base, &changes)
}

fn spread(constraints: Value) -> Value {
    json!({ "spec": { "topologySpreadConstraints": constraints } })
}

/// n1 and n2 in zone a, n3 in b, n4 in none; with so many Pods of the app `web`.
fn zones(counts: [usize; 4]) -> Cluster {
    let mut cluster = cluster([zoned("n1", "a"), zoned("n2", "a"), zoned("n3", "b"), node("n4", json!({}))]);
    for (n, count) in counts.into_iter().enumerate() {
        for m in 0..count {
            let pod = labelled(&format!("web-{n}-{m}"), json!({ "app": "web", "v": "1" }), json!({}));
            cluster.set_pod(pod, &format!("n{}", n + 1));
        }
    }
    cluster
}

fn told(n1: &str, n2: &str, n3: &str, n4: &str) -> Vec<String> {
    let one = |(name, why): (&str, &str)| if why.is_empty() { name.to_owned() } else { format!("{name}: {why}") };
    [("n1", n1), ("n2", n2), ("n3", n3), ("n4", n4)].map(one).into()
}

#[test]
fn where_a_pod_may_go_to_keep_the_balance() {
    let web = json!({ "app": "web", "v": "2" });
    let in_zone = |zones: Value| {
        json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms":
            [{ "matchExpressions": [{ "key": "zone", "operator": "In", "values": zones }] }] } } })
    };
    let one = |changes: Value| json!([constraint(changes)]);
    let picky = |changes: Value, zones: Value| json!({ "spec": { "topologySpreadConstraints": one(changes), "affinity": in_zone(zones) } });
    let table: Vec<(&str, [usize; 4], Value, Vec<String>)> = vec![
        ("nobody there", [0, 0, 0, 0], spread(one(json!({}))), told("", "", "", MISSING)),
        ("one ahead", [1, 0, 0, 0], spread(one(json!({}))), told(SKEWED, SKEWED, "", MISSING)),
        ("even", [1, 0, 1, 0], spread(one(json!({}))), told("", "", "", MISSING)),
        ("a skew of two", [1, 0, 0, 0], spread(one(json!({ "maxSkew": 2 }))), told("", "", "", MISSING)),
        ("a whole zone counts", [1, 1, 1, 0], spread(one(json!({}))), told(SKEWED, SKEWED, "", MISSING)),
        ("those without the label count nowhere", [0, 0, 0, 9], spread(one(json!({}))), told("", "", "", MISSING)),
        (
            "over nodes",
            [1, 0, 1, 1],
            spread(one(json!({ "topologyKey": "kubernetes.io/hostname" }))),
            told(SKEWED, "", SKEWED, SKEWED),
        ),
        (
            "over zones and nodes",
            [1, 0, 1, 0],
            spread(json!([constraint(json!({})), constraint(json!({ "topologyKey": "kubernetes.io/hostname" }))])),
            told(SKEWED, "", SKEWED, MISSING),
        ),
        (
            "too few domains",
            [1, 0, 1, 0],
            spread(one(json!({ "minDomains": 3 }))),
            told(SKEWED, SKEWED, SKEWED, MISSING),
        ),
        ("domains enough", [1, 0, 1, 0], spread(one(json!({ "minDomains": 2 }))), told("", "", "", MISSING)),
        ("anyway", [3, 0, 0, 0], spread(one(json!({ "whenUnsatisfiable": "ScheduleAnyway" }))), told("", "", "", "")),
        (
            "of its own version alone",
            [3, 0, 0, 0],
            spread(one(json!({ "matchLabelKeys": ["v"] }))),
            told("", "", "", MISSING),
        ),
        (
            "no selector counts nobody",
            [3, 0, 0, 0],
            spread(one(json!({ "labelSelector": null }))),
            told("", "", "", MISSING),
        ),
        // The empty zone that it does not want is no reason to keep out of the other one.
        (
            "among the nodes it wants",
            [3, 0, 0, 0],
            picky(json!({}), json!(["a"])),
            told(
                "",
                "",
                "node(s) didn't match Pod's node affinity/selector",
                "node(s) didn't match Pod's node affinity/selector",
            ),
        ),
        (
            "among all nodes",
            [3, 0, 0, 0],
            picky(json!({ "nodeAffinityPolicy": "Ignore" }), json!(["a"])),
            told(
                SKEWED,
                SKEWED,
                "node(s) didn't match Pod's node affinity/selector",
                "node(s) didn't match Pod's node affinity/selector",
            ),
        ),
    ];
    for (what, counts, spec, expected) in table {
        let pod = labelled("p", web.clone(), spec);
        assert_eq!(verdicts(&pod, &mut zones(counts), &Profile::default()), expected, "{what}");
    }
    // A Pod that its own constraint does not mean makes nothing uneven by coming.
    let other = labelled("p", json!({ "app": "db" }), spread(one(json!({}))));
    assert_eq!(verdicts(&other, &mut zones([1, 0, 0, 0]), &Profile::default()), told("", "", "", MISSING));
}

#[test]
fn tainted_nodes_count_unless_told_otherwise() {
    let barred = json!({ "metadata": { "labels": { "zone": "b" } },
        "spec": { "taints": [{ "key": "a", "effect": "NoSchedule" }] } });
    let mut cluster = cluster([zoned("n1", "a"), node("n2", barred)]);
    cluster.set_pod(labelled("w", json!({ "app": "web" }), json!({})), "n1");
    let verdict = |policy: &str, cluster: &mut Cluster| {
        let spec = spread(json!([constraint(json!({ "nodeTaintsPolicy": policy }))]));
        verdicts(&labelled("p", json!({ "app": "web" }), spec), cluster, &Profile::default())
    };
    let taint = "n2: node(s) had untolerated taint(s)";
    assert_eq!(verdict("Ignore", &mut cluster), [format!("n1: {SKEWED}").as_str(), taint]);
    assert_eq!(verdict("Honor", &mut cluster), ["n1", taint]);
}

#[test]
fn those_on_their_way_out_do_not_count() {
    let mut cluster = zones([1, 0, 0, 0]);
    let pod = labelled("p", json!({ "app": "web" }), spread(json!([constraint(json!({}))])));
    let profile = Profile::default();
    assert_eq!(verdicts(&pod, &mut cluster, &profile), told(SKEWED, SKEWED, "", MISSING));
    let ending = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    cluster.set_pod(labelled("web-0-0", json!({ "app": "web" }), ending), "n1");
    assert_eq!(verdicts(&pod, &mut cluster, &profile), told("", "", "", MISSING));
}

#[test]
fn where_a_pod_goes_anyway() {
    let points_of = |constraints: Value, counts: [usize; 4], profile: &Profile| {
        let pod = labelled("p", json!({ "app": "web" }), spread(constraints));
        points(&pod, &mut zones(counts), profile).into_iter().map(|(_, points)| points).collect::<Vec<_>>()
    };
    let anyway = |changes: Value| {
        let mut constraint = constraint(changes);
        constraint["whenUnsatisfiable"] = "ScheduleAnyway".into();
        constraint
    };
    let profile = scoring("PodTopologySpread", json!({}));
    assert_eq!(points_of(json!([anyway(json!({}))]), [0; 4], &profile), [100, 100, 100, 0], "no label, no points");
    // Raw points: a has 3 Pods, weighing ln(2 + 2): round(4.16) = 4; b has none: 0.
    assert_eq!(points_of(json!([anyway(json!({}))]), [2, 1, 0, 0], &profile), [0, 0, 100, 0]);
    // a: 3, b: 1, weighing 1.39: 4 and 1, so 100 * (4 + 1 - 4) / 4 and 100 * (4 + 1 - 1) / 4.
    assert_eq!(points_of(json!([anyway(json!({}))]), [2, 1, 1, 0], &profile), [25, 25, 100, 0]);
    // By node, four of them: ln 6 = 1.79 each. 2, 1, 1, 0 Pods: 4, 2, 2, 0.
    let by_node = json!([anyway(json!({ "topologyKey": "kubernetes.io/hostname" }))]);
    assert_eq!(points_of(by_node, [2, 1, 1, 0], &profile), [0, 50, 50, 100]);
}

/// A Service that selects the app `web`.
fn serve(workloads: &mut Workloads) {
    let service = json!({ "metadata": { "name": "web" }, "spec": { "selector": { "app": "web" } } });
    let service = serde_json::from_value(service).expect("a Service");
    workloads.set_service(&podwright::client::Key::new("default", "web"), Some(&service));
}

#[test]
fn pods_of_one_service_are_spread_by_default() {
    let pod = labelled("p", json!({ "app": "web" }), json!({}));
    let points_of = |cluster: &mut Cluster, profile: &Profile| {
        points(&pod, cluster, profile).into_iter().map(|(_, points)| points).collect::<Vec<_>>()
    };
    let system = scoring("PodTopologySpread", json!({}));
    let mut some = zones([2, 1, 1, 0]);
    assert_eq!(points_of(&mut some, &system), [0; 4], "nobody knows that they belong together");
    serve(&mut some.workloads);
    // By node: 2, 1, 1, 0 Pods weighing ln 6, and 2 for each: 5.58, 3.79, 3.79, 2. No node has the label of zones.
    assert_eq!(points_of(&mut some, &system), [33, 66, 66, 100]);
    let list = json!({ "defaultingType": "List", "defaultConstraints":
        [{ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule" }] });
    let listed = scoring("PodTopologySpread", list);
    assert_eq!(verdicts(&pod, &mut some, &listed), told(SKEWED, SKEWED, "", MISSING));
    let own = labelled("p", json!({ "app": "web" }), spread(json!([constraint(json!({ "maxSkew": 9 }))])));
    assert_eq!(verdicts(&own, &mut some, &listed), told("", "", "", MISSING), "its own are all there is");
    // A controller's Pods belong together, too.
    let owner =
        json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": true }]);
    let owned = labelled("p", json!({ "app": "web" }), json!({ "metadata": { "ownerReferences": owner } }));
    let mut others = zones([2, 1, 1, 0]);
    assert_eq!(points(&owned, &mut others, &system).iter().map(|(_, p)| *p).max(), Some(0));
    let selector = podwright::api::selector::LabelSelector::parse("app=web").expect("a selector");
    others.workloads.set_owner("rs", Some(selector));
    assert_eq!(points(&owned, &mut others, &system).iter().map(|(_, p)| *p).max(), Some(100));
}

//! Nodes: heartbeats, taints, eviction, address ranges, and the Pods that no other controller deletes.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use podwright::{
    client::Key,
    controllers::{Config, node_ipam, node_lifecycle, node_zones, pod_garbage, taint_eviction, write::Guard},
};
use serde_json::{Value, json};

use super::{at, lines, merge, object, pod, starved};

fn node(name: &str, ready: &str, spec: Value) -> Arc<Node> {
    let conditions = match ready {
        "" => json!([]),
        ready => json!([{ "type": "Ready", "status": ready, "lastTransitionTime": at(0).to_string() }]),
    };
    object(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "uid": name, "resourceVersion": "1" },
        "spec": spec, "status": { "conditions": conditions },
    }))
}

#[test]
fn a_silent_node_is_unknown_after_its_grace() {
    let config = Config::default();
    let node = node("n", "True", json!({}));
    let soon = node_lifecycle::plan(&node, &[], at(0), at(30), &config);
    assert!(soon.is_empty());
    assert_eq!(soon.requeue_after.map(|wait| wait.as_secs()), Some(20));
    let late = node_lifecycle::plan(&node, &[], at(0), at(50), &config);
    assert_eq!(lines(&late), ["patch nodes/n/status: Node n status is now: NodeNotReady"]);
    let body = late.writes().next().unwrap().request.body.clone().unwrap();
    let told: Vec<(&str, &str, &str)> = body["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (c["type"].as_str().unwrap(), c["status"].as_str().unwrap(), c["reason"].as_str().unwrap()))
        .collect();
    assert_eq!(told[0], ("Ready", "Unknown", "NodeStatusUnknown"));
    assert_eq!(told[1], ("MemoryPressure", "Unknown", "NodeStatusNeverUpdated"));
    assert_eq!(body["metadata"]["resourceVersion"], "1", "the agent writes it as well");
}

#[test]
fn a_node_that_never_reports_gets_longer() {
    let node = node("n", "", json!({ "taints": [{ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" }] }));
    assert!(node_lifecycle::plan(&node, &[], at(0), at(59), &Config::default()).is_empty());
    assert_eq!(node_lifecycle::plan(&node, &[], at(0), at(60), &Config::default()).writes().count(), 1);
}

#[test]
fn taints_follow_the_conditions() {
    let old = |keys: &[(&str, &str)]| -> Vec<Taint> {
        let taint = |(key, effect): &(&str, &str)| Taint {
            key: key.to_string(),
            effect: effect.to_string(),
            ..Taint::default()
        };
        keys.iter().map(taint).collect()
    };
    const MINE: (&str, &str) = ("mine", "NoExecute");
    const NOT_READY: [(&str, &str); 2] =
        [("node.kubernetes.io/not-ready", "NoSchedule"), ("node.kubernetes.io/not-ready", "NoExecute")];
    const LOST: [(&str, &str); 2] =
        [("node.kubernetes.io/unreachable", "NoSchedule"), ("node.kubernetes.io/unreachable", "NoExecute")];
    const CORDONED: (&str, &str) = ("node.kubernetes.io/unschedulable", "NoSchedule");
    for (ready, spec, before, expected) in [
        ("True", json!({}), vec![], vec![]),
        ("True", json!({}), vec![MINE, NOT_READY[0], NOT_READY[1], LOST[0], LOST[1]], vec![MINE]),
        // Whether its Pods are evicted depends on its zone; the reason is updated.
        ("False", json!({}), vec![MINE], vec![MINE, NOT_READY[0]]),
        ("Unknown", json!({}), vec![NOT_READY[0]], vec![LOST[0]]),
        ("Unknown", json!({}), vec![NOT_READY[0], NOT_READY[1]], vec![LOST[0], LOST[1]]),
        ("Unknown", json!({}), vec![LOST[1]], vec![LOST[1], LOST[0]]),
        ("True", json!({ "unschedulable": true }), vec![], vec![CORDONED]),
        ("True", json!({}), vec![CORDONED], vec![]),
        ("", json!({}), vec![NOT_READY[0]], vec![NOT_READY[0]]),
    ] {
        let taints = node_lifecycle::taints(&node("n", ready, spec), &old(&before), at(0));
        let found: Vec<(&str, &str)> = taints.iter().map(|t| (t.key.as_str(), t.effect.as_str())).collect();
        assert_eq!(found, expected, "ready {ready}, before {before:?}");
        let timed = taints.iter().filter(|t| !before.contains(&(&t.key, &t.effect))).all(|t| t.time_added.is_some());
        assert!(timed, "eviction counts from when a taint was added");
    }
}

#[test]
fn every_pressure_has_a_taint() {
    for (kind, status, expected) in [
        ("MemoryPressure", "True", "memory-pressure"),
        ("DiskPressure", "True", "disk-pressure"),
        ("PIDPressure", "True", "pid-pressure"),
        ("NetworkUnavailable", "True", "network-unavailable"),
        ("MemoryPressure", "False", ""),
        ("DiskPressure", "Unknown", ""),
    ] {
        let mut node = Node::clone(&node("n", "True", json!({})));
        let condition = json!({ "type": kind, "status": status });
        let conditions = node.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions.push(serde_json::from_value(condition).unwrap());
        let taints = node_lifecycle::taints(&node, &[], at(0));
        let found: Vec<String> = taints.iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect();
        let expected: Vec<String> = { Some(expected) }
            .filter(|key| !key.is_empty())
            .map(|key| format!("node.kubernetes.io/{key}:NoSchedule"))
            .into_iter()
            .collect();
        assert_eq!(found, expected, "{kind} {status}");
    }
}

/// Nodes of a zone: a number that are ready, a number lost (each since a different time), and those already tainted, with the
/// times.
fn zone_of(zone: &str, ready: usize, lost: usize, tainted: &[i64]) -> Vec<Arc<Node>> {
    let one = |name: String, ready: &str, spec: Value, since: i64| {
        object(json!({
            "apiVersion": "v1", "kind": "Node", "spec": spec,
            "metadata": { "name": name, "uid": name, "resourceVersion": "1", "labels": { "topology.kubernetes.io/zone": zone } },
            "status": { "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": at(since).to_string() }] },
        }))
    };
    let taint = |at: Timestamp| {
        json!({ "taints": [
        { "key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": at.to_string() }] })
    };
    let ready = (0..ready).map(|n| one(format!("{zone}-r{n}"), "True", json!({}), 0));
    // The first by name was lost last.
    let lost = (0..lost).map(|n| one(format!("{zone}-l{n:02}"), "Unknown", json!({}), -(n as i64)));
    let tainted = tainted.iter().enumerate();
    let tainted = tainted.map(|(n, since)| one(format!("{zone}-t{n}"), "Unknown", taint(at(*since)), -100));
    ready.chain(lost).chain(tainted).collect()
}

#[test]
fn zones_lose_nodes_at_the_rate_that_suits_their_state() {
    let config = Config::default();
    let other = zone_of("y", 1, 0, &[]);
    // The action on each node, and the time of the next look.
    for (why, zone, done, again) in [
        ("nothing is wrong", zone_of("x", 3, 0, &[]), "", None),
        ("the first at once, longest lost first", zone_of("x", 3, 2, &[]), "x-l01", Some(10)),
        ("the next after ten seconds", zone_of("x", 5, 1, &[-4]), "", Some(6)),
        ("it is time", zone_of("x", 5, 1, &[-10]), "x-l00", Some(10)),
        ("two of three are few", zone_of("x", 1, 2, &[]), "x-l01", Some(10)),
        ("three of six are less than the threshold", zone_of("x", 3, 3, &[]), "x-l02", Some(10)),
        ("three of five are too many of a small zone", zone_of("x", 2, 3, &[]), "", None),
        ("so are fifty together", zone_of("x", 20, 30, &[]), "", None),
        ("slower in a large zone", zone_of("x", 21, 30, &[-20]), "", Some(80)),
        ("slower in a large zone", zone_of("x", 21, 30, &[-100]), "x-l29", Some(100)),
        ("a zone that is gone as a whole", zone_of("x", 0, 4, &[-3]), "", Some(7)),
        ("a zone that is gone as a whole", zone_of("x", 0, 4, &[]), "x-l03", Some(10)),
    ] {
        let nodes = [zone, other.clone()].concat();
        let plan = node_zones::plan(&nodes, at(0), &config);
        let names: Vec<String> = plan.writes().filter_map(|write| write.request.name.clone()).collect();
        assert_eq!(names.join(" "), done, "{why}");
        assert_eq!(plan.requeue_after.map(|wait| wait.as_secs()), again, "{why}");
        for write in plan.writes() {
            let taints = &write.request.body.as_ref().unwrap()["spec"]["taints"];
            assert_eq!(taints[0]["key"], "node.kubernetes.io/unreachable");
            assert_eq!(
                (&taints[0]["effect"], taints[0]["timeAdded"].as_str()),
                (&json!("NoExecute"), Some("2027-01-15T08:00:00Z"))
            );
        }
    }
}

#[test]
fn zones_do_not_wait_for_each_other() {
    let nodes = [zone_of("x", 5, 2, &[-4]), zone_of("y", 5, 2, &[-7]), zone_of("z", 5, 2, &[])].concat();
    let plan = node_zones::plan(&nodes, at(0), &Config::default());
    assert_eq!(lines(&plan), ["patch nodes/z-l01"]);
    assert_eq!(plan.requeue_after.map(|wait| wait.as_secs()), Some(3), "y is next");
    let plan = node_zones::plan(&nodes, at(10), &Config::default());
    assert_eq!(lines(&plan), ["patch nodes/x-l01", "patch nodes/y-l01", "patch nodes/z-l01"]);
}

#[test]
fn while_no_node_at_all_is_ready_nobody_is_evicted() {
    let config = Config::default();
    let nodes = [zone_of("x", 0, 2, &[-50, -40]), zone_of("y", 0, 1, &[])].concat();
    let plan = node_zones::plan(&nodes, at(0), &config);
    assert_eq!(lines(&plan), ["patch nodes/x-t0", "patch nodes/x-t1"]);
    assert!(plan.writes().all(|write| write.request.body.as_ref().unwrap()["spec"]["taints"].is_null()));
    // A node excluded from this does not count.
    let mut excluded = Node::clone(&zone_of("x", 1, 0, &[])[0]);
    excluded.metadata.labels.get_or_insert_default().insert("node.kubernetes.io/exclude-disruption".into(), "".into());
    let nodes = [nodes, vec![Arc::new(excluded)]].concat();
    assert_eq!(node_zones::plan(&nodes, at(0), &config).writes().count(), 2);
    // The rates are configurable.
    let fast = Config { node_eviction_rate: 2.0, unhealthy_zone_threshold: 1.1, ..config };
    let plan = node_zones::plan(&zone_of("x", 1, 5, &[-1]), at(0), &fast);
    assert_eq!((plan.writes().count(), plan.requeue_after.map(|wait| wait.as_millis())), (1, Some(500)));
}

#[test]
fn pods_of_a_silent_node_are_not_ready() {
    let taints = json!({ "taints": [
        { "key": "node.kubernetes.io/unreachable", "effect": "NoSchedule" },
        { "key": "node.kubernetes.io/unreachable", "effect": "NoExecute" },
    ] });
    let pods: Vec<Arc<Pod>> = vec![object(pod("p", "n", Some(0))), object(pod("q", "n", None))];
    let plan = node_lifecycle::plan(&node("n", "Unknown", taints), &pods, at(0), at(100), &Config::default());
    // Its other conditions are unknown too; that is written first.
    assert_eq!(lines(&plan), ["patch nodes/n/status"]);
    let mut known = Node::clone(&node("n", "Unknown", json!({})));
    let patch = plan.writes().next().unwrap().request.body.clone().unwrap();
    known.status = serde_json::from_value(patch["status"].clone()).unwrap();
    let plan = node_lifecycle::plan(&known, &pods, at(0), at(100), &Config::default());
    assert_eq!(lines(&plan), ["patch pods/p/status: Node is not ready", "patch nodes/n"]);
}

#[test]
fn an_agent_that_says_that_its_node_is_not_ready_speaks_for_its_pods() {
    let taints = json!({ "taints": [{ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" }] });
    let pods: Vec<Arc<Pod>> = vec![object(pod("p", "n", Some(0)))];
    let plan = node_lifecycle::plan(&node("n", "False", taints), &pods, at(0), at(1), &Config::default());
    assert_eq!(lines(&plan), [""; 0]);
}

fn toleration(value: Value) -> Toleration {
    serde_json::from_value(value).unwrap()
}

#[test]
fn a_pod_leaves_when_its_tolerance_ends() {
    let taint = |key: &str| Taint {
        key: key.into(),
        effect: "NoExecute".into(),
        value: Some("v".into()),
        time_added: Some(at(0).into()),
    };
    let exists = |key: &str, seconds: Value| {
        toleration(json!({ "key": key, "operator": "Exists", "tolerationSeconds": seconds }))
    };
    let now = at(100);
    for (why, tolerations, taints, expected) in [
        ("no taints", vec![], vec![], None),
        ("no toleration", vec![], vec![taint("a")], Some(now)),
        ("for ever", vec![exists("a", Value::Null)], vec![taint("a")], None),
        ("for a while", vec![exists("a", 300.into())], vec![taint("a")], Some(at(300))),
        ("the first of two", vec![exists("a", 300.into()), exists("a", 20.into())], vec![taint("a")], Some(at(300))),
        ("the first of two", vec![exists("a", Value::Null), exists("a", 20.into())], vec![taint("a")], None),
        ("the first of two", vec![exists("a", 20.into()), exists("a", Value::Null)], vec![taint("a")], Some(at(20))),
        ("one of two taints", vec![exists("a", Value::Null)], vec![taint("a"), taint("b")], Some(now)),
        ("both taints", vec![exists("a", 9.into()), exists("b", 5.into())], vec![taint("a"), taint("b")], Some(at(5))),
        ("everything", vec![toleration(json!({ "operator": "Exists" }))], vec![taint("a")], None),
        (
            "another effect",
            vec![toleration(json!({ "key": "a", "operator": "Exists", "effect": "NoSchedule" }))],
            vec![taint("a")],
            Some(now),
        ),
        ("the value", vec![toleration(json!({ "key": "a", "value": "v" }))], vec![taint("a")], None),
        ("another value", vec![toleration(json!({ "key": "a", "value": "w" }))], vec![taint("a")], Some(now)),
    ] {
        assert_eq!(taint_eviction::leaves_at(&tolerations, &taints, at(0), now), expected, "{why}");
    }
    // A toleration added after the node was lost is counted from then on.
    let later = taint_eviction::leaves_at(&[exists("a", 300.into())], &[taint("a")], at(1000), at(1001));
    assert_eq!(later, Some(at(1300)));
    let plan = taint_eviction::plan(&Pod::clone(&object(pod("p", "n", Some(0)))), &[taint("a")], now);
    assert_eq!(lines(&plan), ["patch pods/p/status", "delete pods/p: Marking for deletion Pod a/p"]);
}

fn given(nodes: &[Arc<Node>], config: &Config) -> Vec<String> {
    let plan = node_ipam::plan(nodes, config);
    plan.writes().map(|write| write.request.body.as_ref().unwrap()["spec"]["podCIDRs"].to_string()).collect()
}

#[test]
fn every_node_gets_the_lowest_free_range() {
    let with = |name: &str, cidr: &str| node(name, "True", json!({ "podCIDR": cidr, "podCIDRs": [cidr] }));
    let without = |name: &str| node(name, "True", json!({}));
    let config = Config::default();
    let nodes = [without("a"), with("b", "10.244.0.0/24"), without("c"), with("d", "10.244.2.0/24"), without("e")];
    assert_eq!(given(&nodes, &config), [r#"["10.244.1.0/24"]"#, r#"["10.244.3.0/24"]"#, r#"["10.244.4.0/24"]"#]);
    let nobody = Config { allocate_node_cidrs: false, ..config.clone() };
    assert_eq!(node_ipam::plan(&nodes, &nobody).writes().count(), 0, "--allocate-node-cidrs=false");
    let write = node_ipam::plan(&nodes, &config).writes().next().unwrap().request.body.clone().unwrap();
    assert_eq!(
        (write["spec"]["podCIDR"].as_str(), write["metadata"]["resourceVersion"].as_str()),
        (Some("10.244.1.0/24"), Some("1"))
    );
    // A larger range that was set manually.
    assert_eq!(given(&[with("a", "10.244.0.0/17"), without("b")], &config), [r#"["10.244.128.0/24"]"#]);
}

#[test]
fn dual_stack_nodes_get_one_of_each_and_services_are_kept_free() {
    let config = Config {
        cluster_cidrs: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/48".parse().unwrap()],
        service_cidrs: vec!["10.0.0.0/16".parse().unwrap(), "fd00::/112".parse().unwrap()],
        ..Config::default()
    };
    let nodes = [node("a", "True", json!({})), node("b", "True", json!({}))];
    assert_eq!(
        given(&nodes, &config),
        [r#"["10.1.0.0/24","fd00:0:0:1::/64"]"#, r#"["10.1.1.0/24","fd00:0:0:2::/64"]"#]
    );
}

#[test]
fn a_full_cluster_is_told() {
    let config = Config { cluster_cidrs: vec!["10.9.0.0/23".parse().unwrap()], ..Config::default() };
    let nodes: Vec<Arc<Node>> = ["a", "b", "c"].iter().map(|name| node(name, "True", json!({}))).collect();
    let plan = node_ipam::plan(&nodes, &config);
    assert_eq!(plan.writes().count(), 2);
    assert_eq!(plan.notes[0].message, "Node c status is now: CIDRNotAvailable");
}

#[test]
fn thousands_of_nodes_get_distinct_ranges() {
    let config = Config { cluster_cidrs: vec!["10.128.0.0/9".parse().unwrap()], ..Config::default() };
    let nodes: Vec<Arc<Node>> = (0..5000).map(|n| node(&n.to_string(), "True", json!({}))).collect();
    let all: std::collections::HashSet<String> = given(&nodes, &config).into_iter().collect();
    assert_eq!(all.len(), 5000);
}

#[test]
fn pods_of_a_node_that_is_gone_are_removed_by_force() {
    let pods: Vec<Arc<Pod>> = vec![object(pod("p", "n", Some(0)))];
    let key = Key::new("", "n");
    let plan = pod_garbage::orphaned(&key, None, &pods, at(0));
    assert_eq!(lines(&plan), ["patch pods/p/status", "delete pods/p"]);
    let guard = Guard::Absent { resource: "nodes".into(), key: key.clone(), uid: None };
    assert!(plan.writes().all(|write| write.guards == [guard.clone()]), "it may have come back");
    assert_eq!(plan.writes().last().unwrap().request.options.grace_period_seconds, Some(0));
    let status = &plan.writes().next().unwrap().request.body.as_ref().unwrap()["status"];
    assert_eq!(
        (&status["phase"], status["conditions"][1]["type"].as_str()),
        (&json!("Failed"), Some("DisruptionTarget"))
    );
    assert!(pod_garbage::orphaned(&key, Some(&node("n", "Unknown", json!({}))), &pods, at(0)).is_empty());
}

#[test]
fn who_is_deleted_on_a_node_that_is_out_of_service_was_not_disrupted() {
    let mut leaving = pod("p", "n", Some(0));
    leaving["metadata"]["deletionTimestamp"] = at(0).to_string().into();
    let pods: Vec<Arc<Pod>> = vec![object(leaving), object(pod("q", "n", Some(0)))];
    let taints = json!({ "taints": [{ "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute" }] });
    for (ready, expected) in [("Unknown", &["patch pods/p/status", "delete pods/p"][..]), ("True", &[])] {
        let node = node("n", ready, taints.clone());
        let plan = pod_garbage::orphaned(&Key::new("", "n"), Some(&node), &pods, at(0));
        assert_eq!(lines(&plan), expected, "ready: {ready}");
        for write in plan.writes().filter(|write| write.request.body.is_some()) {
            assert_eq!(write.request.body.as_ref().unwrap()["status"], json!({ "phase": "Failed" }));
        }
    }
}

#[test]
fn a_pod_that_never_came_to_a_node_ends_before_it_goes() {
    let leftover = |node: &str, phase: &str, deleted: bool| -> Arc<Pod> {
        let mut pod = pod("p", node, None);
        pod["status"]["phase"] = phase.into();
        pod["metadata"]["deletionTimestamp"] = if deleted { at(0).to_string().into() } else { Value::Null };
        object(pod)
    };
    for (node, phase, deleted, expected) in [
        // Its Job counts it as failed before releasing it.
        ("", "Pending", true, vec!["patch pods/p/status", "delete pods/p"]),
        ("", "Failed", true, vec!["delete pods/p"]),
        ("", "Pending", false, vec![]),
        ("n", "Pending", true, vec![]),
    ] {
        let plan = pod_garbage::unscheduled(&leftover(node, phase, deleted));
        assert_eq!(lines(&plan), expected, "on {node:?}, {phase}, deleted: {deleted}");
        if expected.len() == 2 {
            assert_eq!(plan.writes().next().unwrap().request.body.as_ref().unwrap()["status"]["phase"], "Failed");
            assert_eq!(starved(&plan, expected[0]), expected[1..]);
        }
    }
}

#[test]
fn the_oldest_terminated_pods_beyond_the_threshold_go() {
    let finished = |name: &str, created: i64| -> Arc<Pod> {
        let mut pod = pod(name, "n", None);
        pod["status"]["phase"] = "Succeeded".into();
        pod["metadata"]["creationTimestamp"] = at(created).to_string().into();
        object(pod)
    };
    let pods = [finished("c", 3), finished("a", 1), object(pod("r", "n", Some(0))), finished("b", 2)];
    assert_eq!(lines(&pod_garbage::terminated(&pods, 1)), ["delete pods/a", "delete pods/b"]);
    assert!(pod_garbage::terminated(&pods, 3).is_empty());
    let with = |pod: &Arc<Pod>, patch: Value| {
        let mut pod = Pod::clone(pod);
        merge(&mut pod, &patch);
        Arc::new(pod)
    };
    let evicted = with(&finished("e", 9), json!({ "status": { "phase": "Failed", "reason": "Evicted" } }));
    let leaving = with(&finished("l", 8), json!({ "metadata": { "deletionTimestamp": at(9).to_string() } }));
    let pods = [&pods[..], &[leaving, evicted]].concat();
    assert_eq!(lines(&pod_garbage::terminated(&pods, 4)), ["delete pods/e"], "before all that are older");
    assert_eq!(lines(&pod_garbage::terminated(&pods, 3)), ["delete pods/e", "delete pods/a"]);
}

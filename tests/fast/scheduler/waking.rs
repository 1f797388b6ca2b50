//! Which changes a Pod without a node is tried again for, and what it costs to find that out.

use std::{cell::Cell, collections::BTreeSet, time::Duration};

use podwright::{
    api::patch,
    client::Key,
    scheduler::{
        decide::may_fit,
        framework::{ClusterEvent, QueueingHint},
        pod::PodInfo,
        profile::Profile,
        queue::Queue,
    },
};
use serde_json::{Value, json};
use tokio::time::advance;

use super::{
    cluster, node, pod as other,
    queue::{changed, paused, pod},
    requesting,
};

#[test]
fn a_parked_pod_wakes_when_it_is_helped() {
    let all = [
        ClusterEvent::NodeAdded,
        ClusterEvent::NodeRemoved,
        ClusterEvent::NodeAllocatable,
        ClusterEvent::NodeLabels,
        ClusterEvent::NodeTaints,
        ClusterEvent::NodeUnschedulable,
        ClusterEvent::PodAdded(pod(9, 0, 0)),
        ClusterEvent::PodRemoved(pod(9, 0, 0)),
        ClusterEvent::PodChanged(pod(9, 0, 0), pod(9, 0, 1)),
        ClusterEvent::Namespace,
        ClusterEvent::Claim(Key::new("default", "c")),
    ];
    // By their names, which is what tells them apart here.
    let name = |change: &ClusterEvent| format!("{change:?}").split('(').next().unwrap_or_default().to_owned();
    let table: &[(&str, &[&str])] = &[
        ("NodeUnschedulable", &["NodeAdded", "NodeUnschedulable"]),
        ("NodeName", &["NodeAdded"]),
        ("TaintToleration", &["NodeAdded", "NodeTaints"]),
        ("NodeAffinity", &["NodeAdded", "NodeLabels"]),
        ("NodePorts", &["NodeAdded"]),
        ("NodeResourcesFit", &["NodeAdded", "NodeAllocatable", "PodRemoved"]),
    ];
    paused(async move {
        for (plugin, helpers) in table {
            for change in &all {
                for fits in [true, false] {
                    let mut queue = Queue::default();
                    queue.add(pod(1, 0, 0));
                    let pod = queue.pop().expect("active");
                    queue.park(&pod, [*plugin].into(), "no");
                    advance(Duration::from_secs(2)).await;
                    changed(&mut queue, change.clone(), fits);
                    let helps = fits && helpers.contains(&name(change).as_str());
                    assert_eq!(queue.has_next(), helps, "{plugin} {change:?} {fits}");
                }
            }
        }
    });
}

#[test]
fn nobody_is_asked_about_a_change_that_cannot_help() {
    paused(async {
        let mut queue = Queue::default();
        for n in 0..200 {
            queue.add(pod(n, 0, 0));
            let out = queue.pop().expect("active");
            let plugin = if n % 50 == 0 { "NodeResourcesFit" } else { "TaintToleration" };
            queue.park(&out, [plugin, "NodeName"].into(), "no");
        }
        let profile = Profile::default();
        let mut asked = |change: ClusterEvent| {
            let (plugins, mut places) = (Cell::new(0), 0);
            let queueing_hint = |pod: &PodInfo, plugin: &str, change: &ClusterEvent| {
                plugins.set(plugins.get() + 1);
                profile.queueing_hint(plugin, pod, change)
            };
            let fits = |_: &PodInfo| {
                places += 1;
                Err(None)
            };
            queue.on_changes(&[change], queueing_hint, fits);
            (plugins.get(), places)
        };
        // Both plugins of each Pod that one of them concerns, and the node for those that it may help there.
        assert_eq!(asked(ClusterEvent::PodRemoved(pod(9, 0, 0))), (2 * 4, 4));
        assert_eq!(asked(ClusterEvent::NodeTaints), (2 * 196, 196));
        assert_eq!(asked(ClusterEvent::NodeAdded), (2 * 200, 200));
        assert_eq!(asked(ClusterEvent::PodAdded(pod(9, 0, 0))), (0, 0), "a binding frees nothing");
        assert_eq!(asked(ClusterEvent::Namespace), (0, 0));
    });
}

#[test]
fn a_pod_that_found_no_node_waits_for_one() {
    paused(async {
        let mut queue = Queue::default();
        queue.add(pod(1, 0, 0));
        let out = queue.pop().expect("active");
        queue.park(&out, BTreeSet::new(), "no nodes available to schedule pods");
        changed(&mut queue, ClusterEvent::PodRemoved(pod(9, 0, 0)), true);
        assert!(!queue.has_next());
        // The first one turns it away, but that it may do something about.
        changed(&mut queue, ClusterEvent::NodeAdded, false);
        assert!(!queue.has_next());
        changed(&mut queue, ClusterEvent::NodeTaints, true);
        assert!(queue.has_next());
    });
}

#[test]
fn what_happens_elsewhere_may_help_pods_that_look_at_others() {
    let spec = json!({ "containers": [], "affinity": { "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution":
            [{ "labelSelector": { "matchLabels": { "v": "1" } }, "topologyKey": "zone" }] } },
        "topologySpreadConstraints": [{ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": { "v": "2" } } }] });
    let waiting = other("waits", spec);
    let profile = Profile::default();
    let table: Vec<(&str, ClusterEvent, QueueingHint)> = vec![
        ("InterPodAffinity", ClusterEvent::PodRemoved(pod(1, 0, 1)), QueueingHint::Anywhere),
        ("InterPodAffinity", ClusterEvent::PodRemoved(pod(1, 0, 2)), QueueingHint::No),
        ("InterPodAffinity", ClusterEvent::PodAdded(pod(1, 0, 1)), QueueingHint::No),
        ("InterPodAffinity", ClusterEvent::PodChanged(pod(1, 0, 1), pod(1, 0, 2)), QueueingHint::Anywhere),
        ("InterPodAffinity", ClusterEvent::NodeLabels, QueueingHint::Anywhere),
        ("InterPodAffinity", ClusterEvent::NodeAllocatable, QueueingHint::No),
        ("PodTopologySpread", ClusterEvent::PodAdded(pod(1, 0, 2)), QueueingHint::Anywhere),
        ("PodTopologySpread", ClusterEvent::PodAdded(pod(1, 0, 1)), QueueingHint::No),
        ("PodTopologySpread", ClusterEvent::NodeRemoved, QueueingHint::Anywhere),
        ("PodTopologySpread", ClusterEvent::NodeUnschedulable, QueueingHint::No),
    ];
    for (plugin, change, expected) in table {
        assert_eq!(profile.queueing_hint(plugin, &waiting, &change), expected, "{plugin} {change:?}");
    }
    paused(async move {
        let mut queue = Queue::default();
        queue.add(waiting);
        let out = queue.pop().expect("active");
        queue.park(&out, ["InterPodAffinity"].into(), "no");
        advance(Duration::from_secs(2)).await;
        changed(&mut queue, ClusterEvent::PodRemoved(pod(1, 0, 1)), false);
        assert!(queue.has_next(), "where it happened does not matter");
    });
}

#[test]
fn a_pod_that_one_plugin_after_the_other_turns_away_is_not_forgotten() {
    paused(async {
        let mut queue = Queue::default();
        queue.add(pod(1, 0, 0));
        let first = queue.pop().expect("active");
        queue.park(&first, ["NodeUnschedulable"].into(), "cordoned");
        advance(Duration::from_secs(2)).await;
        // The node is uncordoned, but its taint is still there; then that goes, too.
        changed(&mut queue, ClusterEvent::NodeUnschedulable, false);
        assert!(!queue.has_next());
        changed(&mut queue, ClusterEvent::NodeTaints, true);
        assert!(queue.has_next());
    });
}

#[test]
fn whether_a_node_may_do_is_found_out_without_counting_all_over_the_cluster() {
    let spread = |cpu: &str| {
        let rack = json!({ "maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": { "app": "a" } } });
        patch::merge(&requesting(json!({ "cpu": cpu })), &json!({ "topologySpreadConstraints": [rack] }))
    };
    let profile = Profile::default();
    let mut nodes = cluster([node("n1", json!({ "metadata": { "labels": { "rack": "r1" } } }))]);
    let slot = nodes.node("n1").expect("it is there").slot;
    assert_eq!(may_fit(&other("big", spread("5")), &mut nodes, &profile, slot), Err("NodeResourcesFit"));
    assert_eq!(nodes.index().topologies(), 0, "nobody looked at racks");
    assert_eq!(may_fit(&other("small", spread("1")), &mut nodes, &profile, slot), Ok(()));
    assert_eq!(nodes.index().topologies(), 1, "they are not read again for the next one");
}

#[test]
fn a_node_may_do_once_others_have_left_it_if_nothing_else_is_against_it() {
    let near = json!({ "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution":
        [{ "labelSelector": { "matchLabels": { "app": "db" } }, "topologyKey": "kubernetes.io/hostname" }] } } });
    let asks = |changes: &Value| {
        let spec = patch::merge(&requesting(json!({ "cpu": "3" })), &json!({ "priority": 10 }));
        other("p", patch::merge(&spec, changes))
    };
    let profile = Profile::default();
    let mut nodes = cluster([node("n1", json!({}))]);
    let slot = nodes.node("n1").expect("it is there").slot;
    nodes.set_pod(other("lesser", requesting(json!({ "cpu": "3" }))), "n1");
    assert_eq!(may_fit(&asks(&json!({})), &mut nodes, &profile, slot), Ok(()));
    let never = json!({ "preemptionPolicy": "Never" });
    assert_eq!(may_fit(&asks(&never), &mut nodes, &profile, slot), Err("NodeResourcesFit"));
    assert_eq!(may_fit(&asks(&near), &mut nodes, &profile, slot), Err("InterPodAffinity"));
}

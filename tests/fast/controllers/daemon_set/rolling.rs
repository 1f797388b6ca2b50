//! Template changes: which nodes get them when, and rollback.

use k8s_openapi::api::core::v1::Pod;
use podwright::controllers::daemon_set::rolling;
use serde_json::{Value, json};

use super::{SmallWorld, World, at, meta, node, nodes, set};

fn strategy(surge: Value, unavailable: Value) -> Value {
    json!({ "updateStrategy": { "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } } })
}

#[test]
fn percentages_are_of_the_nodes_and_rounded_up() {
    for (surge, unavailable, nodes, expected) in [
        (json!(0), json!(1), 10, (0, 1)),
        (json!(0), json!("25%"), 10, (0, 3)),
        (json!("10%"), json!(0), 11, (2, 0)),
        (json!(0), json!("100%"), 7, (0, 7)),
        (json!(0), json!("0%"), 7, (0, 1)),
        (json!(2), json!(0), 1, (2, 0)),
    ] {
        let set = set(strategy(surge.clone(), unavailable.clone()));
        assert_eq!(rolling::limits(&set, nodes), Some(expected), "{surge} {unavailable} of {nodes}");
    }
    assert_eq!(rolling::limits(&set(json!({ "updateStrategy": { "type": "OnDelete" } })), 9), None);
}

#[test]
fn a_rolling_update_takes_these_steps() {
    for (surge, unavailable, expected) in [
        (json!(0), json!(1), "-n1 +n1 -n2 +n2 -n3 +n3"),
        (json!(0), json!(2), "-n1 -n2 +n1 +n2 -n3 +n3"),
        (json!(0), json!("100%"), "-n1 -n2 -n3 +n1 +n2 +n3"),
        (json!(1), json!(0), "+n1 -n1 +n2 -n2 +n3 -n3"),
        (json!("50%"), json!(0), "+n1 +n2 -n1 -n2 +n3 -n3"),
    ] {
        let mut world = World::ready(set(strategy(surge.clone(), unavailable.clone())), 3);
        world.set_image("v2");
        assert_eq!(world.reach_rest().join(" "), expected, "surge {surge}, unavailable {unavailable}");
        assert_eq!(world.images(), "n1=v2 n2=v2 n3=v2");
        assert_eq!(world.counts(), [3, 3, 3, 3, 3, 0, 0]);
        assert_eq!(world.set.status.as_ref().unwrap().observed_generation, world.set.metadata.generation);
    }
}

#[test]
fn a_rolling_update_keeps_its_limits_while_pods_become_ready_one_by_one() {
    for (surge, unavailable) in [(json!(0), json!(1)), (json!(0), json!(3)), (json!(1), json!(0)), (json!(3), json!(0))]
    {
        let mut world = World::ready(set(strategy(surge.clone(), unavailable.clone())), 7);
        let (most_beside, most_down) = rolling::limits(&world.set, 7).unwrap();
        world.set_image("v2");
        for turn in 0..200 {
            world.step();
            let up = |pod: &&Pod| !meta::is_terminating(&pod.metadata) && meta::is_ready(pod);
            let nodes_up: std::collections::BTreeSet<_> = world.pods.iter().filter(up).map(nodes::target).collect();
            let down = 7 - nodes_up.len();
            let beside = world.pods.iter().filter(|pod| !meta::is_terminating(&pod.metadata)).count().saturating_sub(7);
            assert!(down <= most_down && beside <= most_beside, "{down} down, {beside} beside: {surge} {unavailable}");
            match turn % 3 {
                0 => world.settle(),
                1 => world.pods.retain(|pod| pod.metadata.deletion_timestamp.is_none()),
                _ => {}
            }
        }
        assert!(!world.images().contains("v1"), "{surge} {unavailable}: it ends");
    }
}

#[test]
fn a_broken_template_stops_at_the_limit_and_can_be_taken_back() {
    for (settings, images) in [
        (strategy(json!(0), json!(1)), "n1=broken n2=v1 n3=v1"),
        (strategy(json!(1), json!(0)), "n1=broken n1=v1 n2=v1 n3=v1"),
    ] {
        let mut world = World::ready(set(settings), 3);
        world.set_image("broken");
        world.reach_rest();
        assert_eq!(world.images(), images);
        world.set_image("v1");
        world.reach_rest();
        assert_eq!(world.images(), "n1=v1 n2=v1 n3=v1");
    }
}

#[test]
fn old_pods_that_are_not_available_are_replaced_at_once() {
    let mut world = World::ready(set(json!({})), 3);
    let now = world.now;
    World::be(world.pod("n2"), "Running", false, now);
    World::be(world.pod("n3"), "Running", false, now);
    world.set_image("v2");
    assert_eq!(world.step(), ["-n2", "-n3"], "they are down already, and all that may be");
    world.settle();
    assert_eq!(world.reach_rest(), ["+n2", "+n3", "-n1", "+n1"]);
}

/// Upstream's issue 123232: each bad template took down one more node.
#[test]
fn one_broken_template_after_another_takes_no_more_nodes_than_the_first() {
    let mut world = World::ready(set(strategy(json!(0), json!(1))), 3);
    world.set_image("broken");
    world.reach_rest();
    for attempt in 2..5 {
        world.change(json!({ "template": { "metadata": { "annotations": { "attempt": attempt.to_string() } } } }));
        assert_eq!(world.reach_rest(), ["-n1", "+n1"], "attempt {attempt}");
        assert_eq!(world.images(), "n1=broken n2=v1 n3=v1");
    }
}

#[test]
fn on_a_node_that_would_get_no_pod_the_old_one_goes_too() {
    let dedicated = json!({ "taints": [{ "key": "dedicated", "effect": "NoSchedule" }] });
    for (surge, unavailable) in [(json!(0), json!(1)), (json!(1), json!(0))] {
        let mut world = World::ready(set(strategy(surge.clone(), unavailable.clone())), 3);
        world.nodes[0] = node("n1", dedicated.clone());
        assert_eq!(world.reach_rest(), [""; 0], "it stays");
        world.set_image("v2");
        let steps = world.reach_rest();
        assert_eq!(world.images(), "n2=v2 n3=v2", "surge {surge}: {steps:?}");
        assert_eq!(world.counts(), [2, 2, 2, 2, 2, 0, 0]);
    }
    // With surge it goes last, when enough others are available.
    let mut world = World::ready(set(strategy(json!(2), json!(0))), 3);
    let now = world.now;
    ["n2", "n3"].iter().for_each(|node| World::be(world.pod(node), "Running", false, now));
    world.nodes[0] = node("n1", dedicated);
    world.set_image("v2");
    assert_eq!(world.step(), ["+n2", "+n3"]);
    world.settle();
    assert_eq!(world.step(), ["-n2", "-n3"]);
    world.settle();
    assert_eq!(world.step(), ["-n1"]);
}

#[test]
fn a_new_pod_is_available_after_min_ready_seconds() {
    let mut world = World::ready(set(json!({ "minReadySeconds": 30 })), 2);
    world.now += 60;
    world.reach_rest();
    assert_eq!(world.counts()[4], 2);
    world.set_image("v2");
    assert_eq!(world.step(), ["-n1"]);
    world.settle();
    assert_eq!(world.step(), ["+n1"]);
    world.settle();
    assert_eq!(world.step(), [""; 0]);
    assert_eq!(world.counts(), [2, 2, 2, 1, 1, 1, 0]);
    let wait = world.plan().requeue_after.expect("it comes back").as_secs();
    assert!((28..=30).contains(&wait), "{wait}");
    world.now += 30;
    assert_eq!(world.step(), ["-n2"]);
}

#[test]
fn on_delete_leaves_it_to_the_user() {
    let mut world = World::ready(set(json!({ "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } })), 2);
    world.set_image("v2");
    assert_eq!(world.reach_rest(), [""; 0]);
    assert_eq!(world.counts(), [2, 2, 2, 0, 2, 0, 0]);
    world.pod("n2").metadata.deletion_timestamp = Some(at(0).into());
    assert_eq!(world.reach_rest(), ["+n2"]);
    assert_eq!(world.images(), "n1=v1 n2=v2");
}

#[test]
fn history_has_a_limit_and_going_back_makes_the_old_revision_the_newest() {
    let mut world = World::ready(set(json!({ "revisionHistoryLimit": 1 })), 1);
    let numbers = |world: &World| world.revisions.iter().map(|known| known.revision).collect::<Vec<_>>();
    for image in ["v2", "v3"] {
        world.set_image(image);
        world.reach_rest();
    }
    assert_eq!(numbers(&world), [2, 3]);
    world.set_image("v2");
    world.reach_rest();
    assert_eq!(numbers(&world), [4, 3]);
    assert_eq!(world.images(), "n1=v2");
    // With OnDelete the Pod keeps its revision alive, and that counts.
    world.change(json!({ "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } }));
    for image in ["v4", "v5"] {
        world.set_image(image);
        world.reach_rest();
    }
    assert_eq!(numbers(&world), [4, 6]);
}

//! Template changes: which Pod is replaced when.

use k8s_openapi::api::core::v1::Pod;
use podwright::controllers::{meta, stateful_set::max_unavailable};
use serde_json::{Value, json};

use super::{SmallWorld, World, at, set};

#[test]
fn a_rolling_update_takes_these_steps() {
    let rolling = |settings: Value| json!({ "type": "RollingUpdate", "rollingUpdate": settings });
    for (policy, settings, expected) in [
        ("OrderedReady", json!({ "partition": 0 }), "-2 +2 -1 +1 -0 +0"),
        ("OrderedReady", json!({ "partition": 2 }), "-2 +2"),
        ("OrderedReady", json!({ "partition": 7 }), ""),
        ("Parallel", json!({ "partition": 0 }), "-2 +2 -1 +1 -0 +0"),
        ("OrderedReady", json!({ "partition": 0, "maxUnavailable": 2 }), "-2 -1 +1 +2 -0 +0"),
        ("Parallel", json!({ "partition": 0, "maxUnavailable": 2 }), "-2 -1 +1 +2 -0 +0"),
        ("Parallel", json!({ "partition": 1, "maxUnavailable": "100%" }), "-2 -1 +1 +2"),
    ] {
        let mut world =
            World::ready(set(json!({ "podManagementPolicy": policy, "updateStrategy": rolling(settings.clone()) })));
        world.set_image("v2");
        let steps: Vec<String> = { world.reach_rest().into_iter() }
            .map(|step| step.replace("delete web-", "-").replace("create web-", "+"))
            .collect();
        assert_eq!(steps.join(" "), expected, "{policy} {settings}");
    }
}

#[test]
fn at_most_max_unavailable_are_down_at_any_time() {
    for (value, replicas, expected) in
        [(json!(null), 10, 1), (json!(3), 10, 3), (json!("25%"), 10, 2), (json!("5%"), 10, 1), (json!("100%"), 4, 4)]
    {
        for policy in ["OrderedReady", "Parallel"] {
            let strategy = json!({ "rollingUpdate": { "maxUnavailable": value } });
            let patch = json!({ "replicas": replicas, "podManagementPolicy": policy, "updateStrategy": strategy });
            let mut world = World::ready(set(patch));
            assert_eq!(max_unavailable(&world.set), expected, "{value} of {replicas}");
            world.set_image("v2");
            let mut most = 0;
            for turn in 0..400 {
                world.step();
                let up = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none() && meta::is_ready(pod);
                most = most.max(replicas - world.pods.iter().filter(up).count() as i32);
                if turn % 3 == 0 {
                    world.settle();
                }
            }
            assert_eq!(most, expected, "{policy}: {value} of {replicas}");
            assert!(!world.images().contains("v1"));
        }
    }
}

#[test]
fn a_partition_keeps_the_lower_ordinals_as_they_are() {
    let mut world = World::ready(set(json!({ "updateStrategy": { "rollingUpdate": { "partition": 2 } } })));
    let first = world.set.status.clone().unwrap().current_revision.unwrap();
    world.set_image("v2");
    world.reach_rest();
    assert_eq!(world.images(), "web-0=v1 web-1=v1 web-2=v2");
    let status = world.set.status.clone().unwrap();
    assert_eq!((status.current_replicas, status.updated_replicas), (Some(2), Some(1)));
    assert_eq!(status.current_revision, Some(first.clone()));
    assert_ne!(status.update_revision, Some(first));
    // Upstream's documentation: below the partition a deleted Pod comes back at the version before.
    world.pods.retain(|pod| pod.metadata.name.as_deref() == Some("web-1"));
    world.reach_rest();
    assert_eq!(world.images(), "web-0=v1 web-1=v1 web-2=v2");
    world.change(json!({ "updateStrategy": { "rollingUpdate": { "partition": 0 } } }));
    assert_eq!(world.reach_rest(), ["delete web-1", "create web-1", "delete web-0", "create web-0"]);
    let status = world.set.status.clone().unwrap();
    assert_eq!(status.current_revision, status.update_revision);
    assert_eq!((status.current_replicas, status.updated_replicas), (Some(3), Some(3)));
    assert_eq!(status.observed_generation, world.set.metadata.generation);
}

#[test]
fn on_delete_leaves_it_to_the_user() {
    let mut world = World::ready(set(json!({ "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } })));
    world.set_image("v2");
    assert_eq!(world.reach_rest(), [""; 0]);
    world.pods.retain(|pod| pod.metadata.name.as_deref() != Some("web-1"));
    assert_eq!(world.reach_rest(), ["create web-1"]);
    assert_eq!(world.images(), "web-0=v1 web-1=v2 web-2=v1");
}

#[test]
fn in_order_a_broken_pod_stays_broken_until_it_is_deleted_by_hand() {
    let mut world = World::ready(set(json!({})));
    world.set_image("broken");
    for _ in 0..9 {
        world.step();
        world.settle();
    }
    assert_eq!(world.images(), "web-0=v1 web-1=v1 web-2=broken");
    // Upstream's documentation, "Forced rollback": it is not enough to go back to a good template.
    world.set_image("v1");
    assert_eq!(world.reach_rest(), [""; 0]);
    world.pod("web-2").metadata.deletion_timestamp = Some(at(0).into());
    assert_eq!(world.reach_rest(), ["create web-2"]);
    assert_eq!(world.images(), "web-0=v1 web-1=v1 web-2=v1");
}

#[test]
fn in_parallel_broken_old_pods_go_first_and_use_up_what_may_be_down() {
    let rolling = json!({ "rollingUpdate": { "maxUnavailable": 3 } });
    let mut world =
        World::ready(set(json!({ "podManagementPolicy": "Parallel", "replicas": 6, "updateStrategy": rolling })));
    for name in ["web-0", "web-1"] {
        world.set_ready(name, false);
    }
    world.set_image("v2");
    assert_eq!(world.step(), ["delete web-1", "delete web-0", "delete web-5"], "three are down: not one more");
    assert_eq!(world.step(), [""; 0]);
    world.settle();
    assert_eq!(world.step(), ["create web-0", "create web-1", "create web-5"]);
    assert_eq!(world.step(), [""; 0], "they are not back yet");
    world.settle();
    assert_eq!(world.step(), ["delete web-4", "delete web-3", "delete web-2"]);
    // More may be broken than may be unavailable.
    let mut world = World::ready(world.set);
    (0..5).for_each(|n| world.set_ready(&format!("web-{n}"), false));
    world.set_image("v3");
    assert_eq!(world.step().len(), 5);
    assert!(world.pod("web-5").metadata.deletion_timestamp.is_none());
}

#[test]
fn in_parallel_broken_old_pods_do_not_count_against_an_update() {
    let mut world = World::new(set(json!({ "podManagementPolicy": "Parallel" })));
    world.set_image("broken");
    world.reach_rest();
    world.set_image("v2");
    world.reach_rest();
    assert_eq!(world.images(), "web-0=v2 web-1=v2 web-2=v2");
}

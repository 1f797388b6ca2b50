//! Revisions of the template: rollback, pruning, names that are taken.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use podwright::controllers::{
    history,
    stateful_set::{Inputs, plan},
};
use serde_json::{Value, json};

use super::{SmallWorld, World, at, lines, merge, set};
use crate::controllers::object;

#[test]
fn going_back_makes_the_old_revision_the_newest() {
    let mut world = World::ready(set(json!({})));
    world.set_image("v2");
    world.reach_rest();
    assert_eq!(world.revisions.iter().map(|known| known.revision).collect::<Vec<_>>(), [1, 2]);
    let data = &world.revisions[0].data.as_ref().unwrap().0;
    assert_eq!(data["spec"]["template"]["$patch"], "replace");
    assert_eq!(data["spec"]["template"]["spec"]["containers"][0]["image"], "v1");
    let labels = world.revisions[0].metadata.labels.clone().unwrap();
    let hash = world.revisions[0].metadata.name.clone().unwrap().replace("web-", "");
    assert_eq!((labels["app"].as_str(), &labels["controller.kubernetes.io/hash"]), ("web", &hash));
    world.set_image("v1");
    world.reach_rest();
    assert_eq!(world.revisions.iter().map(|known| known.revision).collect::<Vec<_>>(), [3, 2]);
    assert_eq!(world.images(), "web-0=v1 web-1=v1 web-2=v1");
}

#[test]
fn the_oldest_revisions_beyond_the_limit_are_forgotten_unless_a_pod_is_of_them() {
    let mut world = World::ready(set(json!({ "revisionHistoryLimit": 2, "replicas": 1 })));
    for image in ["v2", "v3", "v4", "v5"] {
        world.set_image(image);
        world.reach_rest();
    }
    assert_eq!(world.revisions.iter().map(|known| known.revision).collect::<Vec<_>>(), [3, 4, 5]);
    world.change(json!({ "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } }));
    for image in ["v6", "v7", "v8", "v9"] {
        world.set_image(image);
        world.reach_rest();
    }
    assert_eq!(world.revisions.iter().map(|known| known.revision).collect::<Vec<_>>(), [5, 7, 8, 9]);
}

#[test]
fn a_taken_name_is_a_collision() {
    let mut world = World::new(set(json!({})));
    world.step();
    let taken = world.revisions[0].metadata.name.clone();
    let mut world = World::new(set(json!({})));
    let scene = |world: &World| {
        let taken = |name: &str| Some(name) == taken.as_deref();
        let scene = Inputs { set: &world.set, revisions: &[], taken: &taken, pods: &[], claim: &|_| None, now: at(0) };
        plan(&scene)
    };
    let first = scene(&world);
    assert_eq!(lines(&first), ["patch statefulsets.apps/web/status"]);
    merge(&mut world.set, first.writes().next().unwrap().request.body.as_ref().unwrap());
    assert_eq!(world.set.status.as_ref().unwrap().collision_count, Some(1));
    let second = scene(&world);
    let create = second.work.writes().next().unwrap();
    assert_eq!(create.request.resource, "controllerrevisions.apps");
    assert_ne!(create.request.name, taken);
}

#[test]
fn revisions_are_equal_by_what_they_say() {
    let set = set(json!({}));
    let revision = |template: Value| -> Arc<ControllerRevision> {
        object(json!({ "metadata": { "name": "r" }, "revision": 1, "data": { "spec": { "template": template } } }))
    };
    let container = json!({ "image": "v1", "name": "c" });
    let wanted = &set.spec.as_ref().unwrap().template;
    for (template, same) in [
        (
            json!({ "$patch": "replace", "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [container] } }),
            true,
        ),
        (
            json!({ "metadata": { "creationTimestamp": null, "labels": { "app": "web" } }, "spec": { "containers": [container] } }),
            true,
        ),
        (json!({ "metadata": { "labels": { "app": "db" } }, "spec": { "containers": [container] } }), false),
        (json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [] } }), false),
        (json!("nonsense"), false),
    ] {
        assert_eq!(history::has(&revision(template.clone()), wanted), same, "{template}");
    }
}

//! Pods that end soon after their creation: what is delayed by it, and what is not.

use std::time::Duration;

use podwright::api::Verb;
use serde_json::{Value, json};

use super::{refused::pods, running::World};

const NAMESPACE: &str = "default";

fn template(spec: Value) -> Value {
    let mut template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json_patch::merge(&mut template["spec"], &spec);
    template
}

async fn owner(world: &World, resource: &str, kind: &str, mut spec: Value) {
    spec["selector"] = json!({"matchLabels": {"a": "b"}});
    let object = json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec});
    world.create(resource, NAMESPACE, object).await;
}

async fn node(world: &World, name: &str) {
    world.create("nodes", "", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})).await;
}

async fn fail(world: &World, pod: &Value) {
    let key = (NAMESPACE, pod["metadata"]["name"].as_str().unwrap());
    world.ask_of(Verb::Patch, "pods", key, "status", json!({"status": {"phase": "Failed"}})).await;
}

/// The node that a DaemonSet's Pod is intended for.
fn meant_for(pod: &Value) -> &str {
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0].as_str().unwrap_or_default()
}

/// Each node has a back-off of its own.
#[tokio::test(start_paused = true)]
async fn nodes_that_refuse_a_daemon_sets_pods_hold_no_others_back() {
    const PAUSE: Duration = Duration::from_millis(250);
    let world = World::new().await;
    let stop = world.start();
    owner(&world, "daemonsets.apps", "DaemonSet", json!({"template": template(json!({}))})).await;
    let mut refused = 0;
    for n in 0..240 {
        // One after another, so that they do not reject at the same time.
        if n < 20 {
            node(&world, &format!("bad{n}")).await;
        }
        for pod in pods(&world, NAMESPACE).await {
            if pod["status"]["phase"] != "Failed" && meant_for(&pod).starts_with("bad") {
                fail(&world, &pod).await;
                refused += 1;
            }
        }
        tokio::time::sleep(PAUSE).await;
        // Each new node gets its Pod at once.
        if n % 40 == 39 {
            let good = format!("good{n}");
            node(&world, &good).await;
            tokio::time::sleep(2 * PAUSE).await;
            let pods = pods(&world, NAMESPACE).await;
            assert!(pods.iter().any(|pod| meant_for(pod) == good), "after {refused} that were refused");
        }
    }
    assert!(refused >= 20, "{refused}");
    stop.cancel();
}

/// A user, a node autoscaler or a tenant's own controller deletes them soon after their creation.
#[tokio::test(start_paused = true)]
async fn pods_that_somebody_deletes_are_made_anew_at_once() {
    let world = World::new().await;
    let stop = world.start();
    node(&world, "n").await;
    let template = template(json!({"nodeName": "n"}));
    owner(&world, "replicasets.apps", "ReplicaSet", json!({"replicas": 1, "template": template})).await;
    for n in 0..20 {
        let since = world.seconds();
        let living = loop {
            let lives = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_null();
            match pods(&world, NAMESPACE).await.into_iter().find(lives) {
                Some(living) => break living,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
            assert!(world.seconds() - since < 2.0, "after {n} that were deleted");
        };
        let name = living["metadata"]["name"].as_str().unwrap();
        world.delete("pods", (NAMESPACE, name), "Background").await;
        // Its container was killed.
        fail(&world, &living).await;
    }
    stop.cancel();
}

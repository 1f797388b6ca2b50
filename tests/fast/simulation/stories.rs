//! Stories with an end that is known beforehand.

use std::time::Duration;

use podwright::{
    client::{Informers, Key},
    controllers::meta,
};
use serde_json::json;

use super::{REST, cluster::Cluster, run, wishes::Wish};

#[test]
fn a_deployment_comes_up_rolls_over_and_goes() {
    run(async {
        let mut cluster = Cluster::new(1).await;
        cluster.add_node("n1").await;
        cluster.add_namespace("a").await;
        let key = Key::new("a", "web");
        cluster.deploy(&key, Wish::new(5, "v1")).await;
        cluster.rest(REST).await;
        cluster.change(&key, |wish| wish.image = "v2".into()).await;
        cluster.rest(REST).await;
        let events = cluster.events("a").await;
        for expected in [
            "ScalingReplicaSet: Scaled up replica set web-",
            "SuccessfulCreate: Created pod: web-",
            "SuccessfulDelete: Deleted pod: web-",
        ] {
            assert!(events.iter().any(|event| event.starts_with(expected)), "no event {expected:?} in {events:#?}");
        }
        cluster.undeploy(&key, "Foreground").await;
        cluster.rest(REST).await;
    });
}

#[test]
fn nothing_is_written_at_rest() {
    run(async {
        let mut cluster = Cluster::new(2).await;
        cluster.add_node("n1").await;
        cluster.add_namespace("a").await;
        cluster.deploy(&Key::new("a", "web"), Wish::new(3, "v1")).await;
        cluster.rest(REST).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        cluster.stop_heartbeats();
        let before = cluster.revision().await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(cluster.revision().await, before);
    });
}

#[test]
fn pods_come_up_at_once() {
    run(async {
        let mut cluster = Cluster::new(3).await;
        cluster.add_node("n1").await;
        cluster.add_namespace("a").await;
        cluster.rest(REST).await;
        let start = tokio::time::Instant::now();
        cluster.deploy(&Key::new("a", "web"), Wish::new(30, "v1")).await;
        cluster.until("30 Pods exist", |cluster| cluster.seen.pods.len() == 30).await;
        // The clock moves only when everybody waits: nobody on this way waits for time to pass.
        assert_eq!(start.elapsed(), Duration::ZERO);
    });
}

#[test]
fn a_full_namespace_is_emptied() {
    run(async {
        let mut cluster = Cluster::new(4).await;
        cluster.add_node("n1").await;
        cluster.add_namespace("a").await;
        for name in ["x", "y", "z"] {
            cluster.deploy(&Key::new("a", name), Wish::new(4, "v1")).await;
        }
        cluster.rest(REST).await;
        cluster.delete_namespace("a").await;
        cluster.rest(REST).await;
    });
}

#[test]
fn a_lost_node_is_tainted_and_its_pods_move() {
    run(async {
        let mut cluster = Cluster::new(5).await;
        cluster.add_node("n1").await;
        cluster.add_node("n2").await;
        cluster.add_namespace("a").await;
        cluster.deploy(&Key::new("a", "web"), Wish::new(6, "v1")).await;
        cluster.rest(REST).await;
        let start = tokio::time::Instant::now();
        cluster.lose_node("n2");
        cluster.until("n2 is tainted", |cluster| cluster.taints("n2").len() == 2).await;
        let passed = start.elapsed().as_secs();
        assert!((40..=55).contains(&passed), "tainted after {passed} s");
        cluster.rest(REST).await;
        assert!(start.elapsed().as_secs() > 300, "Pods tolerate that for 300 s");
        let events = cluster.events("a").await;
        assert!(events.iter().any(|e| e.starts_with("TaintManagerEviction: Marking for deletion Pod a/web-")));
        cluster.find_node("n2").await;
        cluster.rest(REST).await;
        assert_eq!(cluster.taints("n2"), [""; 0]);
    });
}

#[test]
fn an_orphaned_replica_set_is_adopted() {
    run(async {
        let mut cluster = Cluster::new(6).await;
        cluster.add_node("n1").await;
        cluster.add_namespace("a").await;
        let key = Key::new("a", "web");
        cluster.deploy(&key, Wish::new(3, "v1")).await;
        cluster.rest(REST).await;
        let before: Vec<_> = cluster.seen.pods.list().iter().map(|pod| pod.metadata.uid.clone()).collect();
        cluster.undeploy(&key, "Orphan").await;
        cluster.until("the Deployment is gone", |cluster| cluster.seen.deployments.is_empty()).await;
        let orphan = cluster.seen.replica_sets.list();
        assert_eq!(orphan[0].metadata.owner_references.as_deref().unwrap_or_default(), []);
        cluster.deploy(&key, Wish::new(3, "v1")).await;
        cluster.rest(REST).await;
        let after: Vec<_> = cluster.seen.pods.list().iter().map(|pod| pod.metadata.uid.clone()).collect();
        assert_eq!(before, after, "the Pods have not noticed");
    });
}

#[test]
fn nodes_that_are_lost_together_lose_their_pods_one_by_one_and_all_lost_keep_them() {
    run(async {
        let mut cluster = Cluster::new(9).await;
        for name in ["n1", "n2", "n3", "n4", "n5"] {
            cluster.add_node(name).await;
        }
        cluster.lose_node("n1");
        cluster.lose_node("n2");
        let evicts = |cluster: &Cluster, name: &str| {
            cluster.taints(name).iter().any(|taint| taint == "node.kubernetes.io/unreachable:NoExecute")
        };
        let closed = |cluster: &Cluster, name: &str| !cluster.taints(name).is_empty();
        cluster.until("both are closed", |cluster| closed(cluster, "n1") && closed(cluster, "n2")).await;
        cluster.until("one loses its Pods", |cluster| evicts(cluster, "n1") || evicts(cluster, "n2")).await;
        assert!(!(evicts(&cluster, "n1") && evicts(&cluster, "n2")), "one at a time");
        let start = tokio::time::Instant::now();
        cluster.until("both lose them", |cluster| evicts(cluster, "n1") && evicts(cluster, "n2")).await;
        assert!((8..=11).contains(&start.elapsed().as_secs()), "after {:?}", start.elapsed());
        for name in ["n3", "n4", "n5"] {
            cluster.lose_node(name);
        }
        cluster.until("nobody is left to go to", |cluster| ["n1", "n2"].iter().all(|n| !evicts(cluster, n))).await;
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(["n1", "n2", "n3", "n4", "n5"].iter().all(|name| closed(&cluster, name) && !evicts(&cluster, name)));
        cluster.find_node("n5").await;
        // Four of five are lost: more than a small zone is trusted with.
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(["n1", "n2", "n3", "n4"].iter().all(|name| !evicts(&cluster, name)));
        cluster.find_node("n4").await;
        cluster.find_node("n3").await;
        cluster.until("it goes on", |cluster| evicts(cluster, "n1") && evicts(cluster, "n2")).await;
        assert_eq!(cluster.taints("n5"), [""; 0]);
    });
}

#[test]
fn a_replication_controller_keeps_its_pods() {
    run(async {
        let mut cluster = Cluster::new(10).await;
        cluster.add_node("n1").await;
        cluster.add_namespace("a").await;
        let template = json!({ "metadata": { "labels": { "app": "old" } }, "spec": { "containers": [{ "name": "c", "image": "c:1" }] } });
        let controller = json!({ "metadata": { "name": "old" }, "spec": { "replicas": 3, "template": template } });
        cluster.create("replicationcontrollers", "a", controller).await;
        let ready = |number: i32| {
            move |cluster: &Cluster| {
                let known = cluster.seen.replication_controllers.get(&Key::new("a", "old"));
                let status = known.and_then(|known| known.status.clone()).unwrap_or_default();
                (status.replicas, status.ready_replicas) == (number, Some(number))
                    && cluster.seen.pods.list().iter().filter(|pod| meta::is_active(pod)).count() == number as usize
            }
        };
        cluster.until("three are ready", ready(3)).await;
        let victim = Key::of(&*cluster.seen.pods.list()[0]);
        cluster.evict(&victim).await.expect("no budget forbids it");
        cluster.until("it is going", |cluster| !ready(3)(cluster)).await;
        cluster.until("another one takes its place", ready(3)).await;
        let patch = json!({ "spec": { "replicas": 1 } });
        cluster.patch("replicationcontrollers", &Key::new("a", "old"), patch).await;
        cluster.until("one is left", ready(1)).await;
        let events = cluster.events("a").await;
        assert!(events.iter().any(|event| event.starts_with("SuccessfulDelete: Deleted pod: old-")), "{events:#?}");
    });
}

#[test]
fn the_endpoints_of_a_service_come_and_go_with_it_and_a_users_are_mirrored() {
    run(async {
        let mut cluster = Cluster::new(11).await;
        cluster.add_namespace("a").await;
        let ports = json!([{ "name": "web", "port": 80 }]);
        let service = |name: &str, selector: serde_json::Value| json!({ "metadata": { "name": name }, "spec": { "selector": selector, "ports": ports } });
        cluster.create("services", "a", service("own", json!({ "app": "x" }))).await;
        cluster.create("services", "a", service("foreign", serde_json::Value::Null)).await;
        let subsets = json!([{ "addresses": [{ "ip": "192.0.2.1" }], "ports": [{ "name": "web", "port": 8080 }] }]);
        cluster.create("endpoints", "a", json!({ "metadata": { "name": "foreign" }, "subsets": subsets })).await;
        let mirrored = |cluster: &Cluster| {
            let slices = cluster.seen.endpoint_slices.indexed(Informers::BY_SERVICE, "a/foreign");
            slices.iter().flat_map(|slice| &slice.endpoints).flat_map(|e| e.addresses.clone()).collect::<Vec<_>>()
        };
        cluster.until("it is mirrored", |cluster| mirrored(cluster) == ["192.0.2.1"]).await;
        let own = Key::new("a", "own");
        cluster.until("the Service has Endpoints", |cluster| cluster.seen.endpoints.get(&own).is_some()).await;
        let changed = json!({ "subsets": [{ "addresses": [{ "ip": "192.0.2.2" }] }] });
        cluster.patch("endpoints", &Key::new("a", "foreign"), changed).await;
        cluster.until("so is a change", |cluster| mirrored(cluster) == ["192.0.2.2"]).await;
        cluster.delete("endpoints", &own).await;
        cluster.until("they are made anew", |cluster| cluster.seen.endpoints.get(&own).is_some()).await;
        cluster.delete("services", &own).await;
        cluster.until("they go with it", |cluster| cluster.seen.endpoints.get(&own).is_none()).await;
        cluster.delete("services", &Key::new("a", "foreign")).await;
        cluster.until("the mirror is empty", |cluster| mirrored(cluster).is_empty()).await;
        let users = cluster.seen.endpoints.get(&Key::new("a", "foreign"));
        assert!(users.is_some(), "what a user has written stays");
    });
}

#[test]
fn a_clock_that_is_set_loses_no_node() {
    run(async {
        let mut cluster = Cluster::new(12).await;
        cluster.add_node("n1").await;
        cluster.rest(REST).await;
        cluster.env.set_clock(jiff::SignedDuration::from_hours(2));
        // Somebody looks at it before it is heard again.
        cluster.patch("nodes", &Key::new("", "n1"), json!({ "metadata": { "labels": { "looked": "at" } } })).await;
        for _ in 0..150 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert_eq!(cluster.taints("n1"), [""; 0]);
        }
    });
}

#[test]
fn a_schedule_without_a_zone_is_of_the_controllers_own() {
    run(async {
        let mut cluster = Cluster::new(11).await;
        cluster.add_node("n1").await;
        cluster.add_namespace("a").await;
        // Nineteen minutes and a bit east of Greenwich.
        cluster.set_zone(1172).await;
        let template =
            json!({ "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "brief" }] } });
        let job = json!({ "spec": { "template": template } });
        for (name, zone) in [("here", json!(null)), ("there", json!("UTC"))] {
            let spec = json!({ "schedule": "0 * * * *", "timeZone": zone, "jobTemplate": job });
            cluster.create("cronjobs.batch", "a", json!({ "metadata": { "name": name }, "spec": spec })).await;
        }
        tokio::time::sleep(Duration::from_secs(3660)).await;
        let due = |job: &k8s_openapi::api::batch::v1::Job| {
            let at = meta::annotation(&job.metadata, "batch.kubernetes.io/cronjob-scheduled-timestamp");
            let name = meta::controller(&job.metadata).map(|owner| owner.name.clone());
            (name.unwrap_or_default(), at.unwrap_or_default().to_owned())
        };
        let mut all: Vec<_> = cluster.seen.jobs.list().iter().map(|job| due(job)).collect();
        all.sort();
        let told = |name: &str, at: &str| (name.to_owned(), at.to_owned());
        assert_eq!(all, [told("here", "2026-01-01T00:40:28Z"), told("there", "2026-01-01T01:00:00Z")]);
    });
}

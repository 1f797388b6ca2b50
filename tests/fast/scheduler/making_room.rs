//! Preemption, profiles and wake-ups, by the whole loop against an API server on a paused clock.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{Node, Pod},
    scheduling::v1::PriorityClass,
};
use podwright::{
    api::{Env, Options, patch},
    scheduler,
};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::run::{World, cpu, run};

/// Classes of Pods that are more important than others: `p1` to `p10`.
async fn classes(world: &World) {
    for value in 1..=10 {
        let class = json!({ "metadata": { "name": format!("p{value}") }, "value": value });
        let class: PriorityClass = serde_json::from_value(class).expect("a class");
        world.client.create(&class).await.expect("created");
    }
}

fn important(cpu: &str, priority: i32) -> serde_json::Value {
    patch::merge(&self::cpu(cpu), &json!({ "priorityClassName": format!("p{priority}") }))
}

#[test]
fn a_more_important_pod_gets_its_room_once_its_victims_are_gone() {
    run(|| async {
        let world = World::new().await;
        world.node("n1", json!({})).await;
        classes(&world).await;
        world.pod("low", important("3", 1)).await;
        world.pod("mid", important("1", 5)).await;
        world.until("both are bound", || world.place("low").is_some() && world.place("mid").is_some()).await;
        world.pod("high", important("2", 10)).await;
        let nominated = |pod: &str| world.get(pod)?.status.clone()?.nominated_node_name;
        world.until("room is being made", || nominated("high").is_some()).await;
        assert_eq!(nominated("high").as_deref(), Some("n1"));
        let message = "0/1 nodes are available: 1 Insufficient cpu.".to_owned();
        assert_eq!(world.told("high"), Some(("Unschedulable".to_owned(), message)));
        world
            .until("low is being deleted", || world.get("low").is_some_and(|p| p.metadata.deletion_timestamp.is_some()))
            .await;
        let low = world.get("low").expect("there");
        let conditions = low.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
        let target = conditions.iter().find(|c| c.type_ == "DisruptionTarget").expect("it is told why");
        assert_eq!((target.status.as_str(), target.reason.as_deref()), ("True", Some("PreemptionByScheduler")));
        let why = "default-scheduler: preempting to accommodate a higher priority pod";
        assert_eq!(target.message.as_deref(), Some(why));
        let uid = world.get("high").and_then(|p| p.metadata.uid.clone()).unwrap_or_default();
        let told = format!("Preempted Preempted by pod {uid} on node n1");
        assert_eq!(world.events("low").await.get(&told), Some(&1));
        // Its victim takes its time, and somebody else would like the room.
        world.pod("late", important("1", 9)).await;
        tokio::time::sleep(Duration::from_secs(400)).await;
        assert_eq!((world.place("high"), world.place("late")), (None, None));
        assert!(world.get("mid").is_some_and(|p| p.metadata.deletion_timestamp.is_none()), "it need not go");
        world.delete("low").await;
        world.until("high is bound", || world.place("high").is_some()).await;
        world.until("late is bound beside it", || world.place("late").is_some()).await;
        assert_eq!(world.place("mid").as_deref(), Some("n1"));
        assert_eq!(nominated("high"), None, "it is where it was to come");
        world.stop().await;
    });
}

#[test]
fn a_pod_wakes_when_it_could_make_room_for_itself() {
    run(|| async {
        let world = World::new().await;
        world.node("n1", json!({})).await;
        classes(&world).await;
        world.pod("low", important("4", 1)).await;
        world.until("it is bound", || world.place("low").is_some()).await;
        let merge = |change| world.client.merge::<Node>(None, "n1", None, change);
        merge(json!({ "spec": { "unschedulable": true } })).await.expect("n1");
        world.pod("high", important("4", 10)).await;
        world.until("it is told", || world.told("high").is_some()).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        merge(json!({ "spec": { "unschedulable": null } })).await.expect("n1");
        world.settle().await;
        let leaves = world.get("low").is_some_and(|p| p.metadata.deletion_timestamp.is_some());
        assert!(leaves, "the node is full, but not of its equals");
        world.stop().await;
    });
}

#[test]
fn a_restarted_scheduler_keeps_the_room_that_was_being_made() {
    run(|| async {
        let mut world = World::new().await;
        world.node("n1", json!({})).await;
        classes(&world).await;
        world.pod("low", important("4", 1)).await;
        world.until("it is bound", || world.place("low").is_some()).await;
        world.pod("high", important("4", 10)).await;
        let nominated = || world.get("high")?.status.clone()?.nominated_node_name;
        world.until("room is being made", || nominated().is_some()).await;
        world.shutdown.cancel();
        (&mut world.scheduler).await.expect("it ends");
        // It comes first in every list, but is not as important.
        world.pod("a", important("4", 9)).await;
        world.delete("low").await;
        world.settle().await;
        let again = CancellationToken::new();
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().expect("a time"), 8);
        let (client, seen) = (world.client.clone(), world.seen.clone());
        let second = tokio::spawn(scheduler::run(client, env, seen, Arc::default(), again.clone()));
        world.until("high is bound", || world.place("high").is_some()).await;
        assert_eq!(world.place("a"), None);
        again.cancel();
        second.await.expect("it ends");
    });
}

#[test]
fn each_profile_decides_about_its_own_pods() {
    run(|| async {
        let config = scheduler::config::parse(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
             podInitialBackoffSeconds: 3\n\
             profiles: [{schedulerName: default-scheduler}, {schedulerName: brave, plugins: {filter: {disabled: \
             [{name: NodeUnschedulable}]}}}]\n",
        );
        let world = World::with(config.expect("valid")).await;
        world.node("n1", json!({ "spec": { "unschedulable": true } })).await;
        world.pod("shy", json!({})).await;
        world.pod("bold", json!({ "schedulerName": "brave" })).await;
        world.pod("other", json!({ "schedulerName": "nobody" })).await;
        world.until("one is bound, one is told", || world.place("bold").is_some() && world.told("shy").is_some()).await;
        world.road.lock().expect("no panic").refuse = 1;
        let start = Instant::now();
        world.pod("again", json!({ "schedulerName": "brave" })).await;
        world.until("bound", || world.place("again").is_some()).await;
        assert_eq!(start.elapsed().as_secs(), 3);
        assert_eq!((world.place("shy"), world.place("other"), world.told("other")), (None, None, None));
        let by = async |pod: &str| world.reporters(pod).await.into_iter().collect::<Vec<_>>();
        let told = |reason: &str, by: &str| (reason.to_owned(), by.to_owned());
        assert_eq!(by("bold").await, [told("Scheduled", "brave")]);
        assert_eq!(by("again").await, [told("FailedScheduling", "brave"), told("Scheduled", "brave")]);
        assert_eq!(by("shy").await, [told("FailedScheduling", "default-scheduler")]);
        world.stop().await;
    });
}

#[test]
fn what_others_are_and_do_wakes_those_that_look_at_them() {
    run(|| async {
        let world = World::new().await;
        world.node("n1", json!({})).await;
        world.node("n2", json!({})).await;
        let near = json!({ "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution":
            [{ "labelSelector": { "matchLabels": { "app": "db" } }, "topologyKey": "kubernetes.io/hostname" }] } } });
        world.pod("web", near).await;
        world.until("it is told", || world.told("web").is_some()).await;
        world.pod("db", json!({})).await;
        world.until("db is bound", || world.place("db").is_some()).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(world.place("web"), None, "it is not known as a db yet");
        let label = json!({ "metadata": { "labels": { "app": "db" } } });
        world.client.merge::<Pod>(Some("default"), "db", None, label).await.expect("labelled");
        world.settle().await;
        assert_eq!(world.place("web"), world.place("db"));
        world.stop().await;
    });
}

fn is_ending(world: &World, pod: &str) -> bool {
    world.get(pod).is_some_and(|pod| pod.metadata.deletion_timestamp.is_some())
}

fn nominated(world: &World, pod: &str) -> Option<String> {
    world.get(pod)?.status.clone()?.nominated_node_name
}

/// Nodes that are full of one Pod each: nodes, Pods, priorities.
async fn full(nodes: &[(&str, &str, i32)]) -> World {
    let world = World::new().await;
    classes(&world).await;
    for &(node, pod, priority) in nodes {
        world.node(node, json!({})).await;
        world.pod(pod, important("4", priority)).await;
        world.until("it is bound", || world.place(pod).is_some()).await;
    }
    world
}

#[test]
fn nobody_else_has_to_go_while_a_victim_is_being_deleted() {
    run(|| async {
        let world = full(&[("n1", "dear", 2), ("n2", "cheap", 1)]).await;
        let cordon = |yes: Option<bool>| {
            world.client.merge::<Node>(None, "n2", None, json!({ "spec": { "unschedulable": yes } }))
        };
        cordon(Some(true)).await.expect("n2");
        world.settle().await;
        world.road.lock().expect("no panic").delay_deletion = Some(Duration::from_secs(3));
        world.pod("high", important("4", 10)).await;
        world.until("room is being made", || nominated(&world, "high").is_some()).await;
        assert_eq!(nominated(&world, "high").as_deref(), Some("n1"));
        // Now there is a better node, but somebody is to go already.
        cordon(None).await.expect("n2");
        world.until("dear is being deleted", || is_ending(&world, "dear")).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!((is_ending(&world, "cheap"), nominated(&world, "high").as_deref()), (false, Some("n1")));
        let start = Instant::now();
        world.delete("dear").await;
        world.until("high is bound", || world.place("high").is_some()).await;
        assert_eq!(world.place("high").as_deref(), Some("n1"));
        assert!(start.elapsed() < Duration::from_millis(50), "{:?}", start.elapsed());
        world.stop().await;
    });
}

#[test]
fn a_victim_that_is_not_deleted_is_tried_again_soon() {
    run(|| async {
        let world = World::new().await;
        world.node("n1", json!({})).await;
        classes(&world).await;
        world.pod("low", important("4", 1)).await;
        world.until("it is bound", || world.place("low").is_some()).await;
        world.road.lock().expect("no panic").refuse_deletions = 3;
        let start = Instant::now();
        world.pod("high", important("4", 10)).await;
        world.until("low is being deleted", || is_ending(&world, "low")).await;
        assert_eq!(start.elapsed().as_secs(), 1 + 2 + 4, "after each backoff, not after five minutes");
        assert_eq!(nominated(&world, "high").as_deref(), Some("n1"));
        world.stop().await;
    });
}

#[test]
fn room_that_is_no_longer_kept_for_a_pod_is_for_those_that_left_it_to_it() {
    run(|| async {
        let world = World::new().await;
        world.node("n1", json!({})).await;
        classes(&world).await;
        world.pod("low", important("3", 1)).await;
        world.until("it is bound", || world.place("low").is_some()).await;
        world.pod("high", important("2", 10)).await;
        world.until("room is being made", || nominated(&world, "high").is_some()).await;
        // There is room for this one while low ends, but not once high comes.
        world.pod("late", important("1", 5)).await;
        world.until("it is told", || world.told("late").is_some()).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(world.place("late"), None);
        world.delete("high").await;
        world.settle().await;
        assert_eq!(world.place("late").as_deref(), Some("n1"), "nobody is expected any more");
        world.stop().await;
    });
}

#[test]
fn whoever_is_pushed_aside_looks_elsewhere_at_once_and_is_told_nothing_empty() {
    run(|| async {
        let world = World::new().await;
        world.node("n1", json!({})).await;
        classes(&world).await;
        world.pod("low", important("3", 1)).await;
        world.until("it is bound", || world.place("low").is_some()).await;
        let mut seen = world.seen.pods.subscribe();
        world.pod("mid", important("2", 5)).await;
        world.until("room is being made", || nominated(&world, "mid").is_some()).await;
        // It is tried again, for nothing.
        let label = json!({ "metadata": { "labels": { "a": "b" } } });
        world.client.merge::<Pod>(Some("default"), "mid", None, label).await.expect("labelled");
        world.settle().await;
        let start = Instant::now();
        world.pod("high", important("4", 10)).await;
        world.until("it is pushed aside", || nominated(&world, "mid").is_none()).await;
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
        assert_eq!(nominated(&world, "high").as_deref(), Some("n1"));
        while let Ok(change) = seen.try_recv() {
            let status = change.new.and_then(|pod| pod.status.clone()).unwrap_or_default();
            let empty = status.conditions.into_iter().flatten().find(|c| c.message.as_deref() == Some(""));
            assert_eq!(empty, None, "{}", change.key);
        }
        // Once parked, it is pushed aside by nobody, but tried when others are.
        let tries = async || world.events("mid").await.values().sum::<i32>();
        world.until("tried again", || world.told("mid").is_some_and(|(_, told)| told.contains("preemption"))).await;
        let before = tries().await;
        assert!(before >= 2, "{before}");
        world.stop().await;
    });
}

#[test]
fn a_parked_pod_that_is_pushed_aside_is_tried_again_at_once() {
    run(|| async {
        let world = World::new().await;
        world.node("n1", json!({})).await;
        classes(&world).await;
        world.pod("low", important("3", 1)).await;
        world.until("it is bound", || world.place("low").is_some()).await;
        world.pod("mid", important("2", 5)).await;
        world.until("room is being made", || nominated(&world, "mid").is_some()).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        let before: i32 = world.events("mid").await.values().sum();
        world.pod("high", important("4", 10)).await;
        world.until("room is being made", || nominated(&world, "high").is_some()).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let after: i32 = world.events("mid").await.values().sum();
        assert!(after > before, "{before} and {after}");
        assert_eq!(nominated(&world, "mid"), None);
        world.stop().await;
    });
}

#[test]
fn a_node_that_goes_takes_no_hope_with_it() {
    run(|| async {
        let world = World::new().await;
        world.node("n1", json!({})).await;
        classes(&world).await;
        world.pod("low", important("4", 1)).await;
        world.until("it is bound", || world.place("low").is_some()).await;
        world.node("n2", json!({})).await;
        world.pod("mid", important("4", 5)).await;
        world.until("it is bound", || world.place("mid").is_some()).await;
        world.pod("high", important("4", 10)).await;
        world.until("room is being made", || nominated(&world, "high").is_some()).await;
        assert_eq!(nominated(&world, "high").as_deref(), Some("n1"));
        tokio::time::sleep(Duration::from_secs(20)).await;
        world.client.delete::<Node>(None, "n1", None, Options::default()).await.expect("deleted");
        world.settle().await;
        assert_eq!(nominated(&world, "high").as_deref(), Some("n2"));
        assert!(is_ending(&world, "mid"));
        world.stop().await;
    });
}

#[test]
fn a_pod_whose_node_will_not_do_any_more_gets_room_on_another_one() {
    let taint = json!([{ "key": "a", "effect": "NoSchedule" }]);
    let table = [
        json!({ "spec": { "unschedulable": true } }),
        json!({ "spec": { "taints": taint } }),
        json!({ "status": { "allocatable": { "cpu": "3" } } }),
    ];
    for change in table {
        run(|| async move {
            let world = World::new().await;
            classes(&world).await;
            for (node, pod, priority) in [("n1", "cheap", 1), ("n2", "dear", 2)] {
                world.node(node, json!({})).await;
                world.pod(pod, important("4", priority)).await;
                world.until("it is bound", || world.place(pod).is_some()).await;
            }
            world.pod("high", important("4", 10)).await;
            world.until("cheap is being deleted", || is_ending(&world, "cheap")).await;
            tokio::time::sleep(Duration::from_secs(20)).await;
            assert_eq!((nominated(&world, "high").as_deref(), is_ending(&world, "dear")), (Some("n1"), false));
            let subresource = change.get("status").map(|_| "status");
            world.client.merge::<Node>(None, "n1", subresource, change.clone()).await.expect("changed");
            world.settle().await;
            assert!(is_ending(&world, "dear"), "{change}");
            assert_eq!(nominated(&world, "high").as_deref(), Some("n2"), "{change}");
            world.stop().await;
        });
    }
}

#[test]
fn a_pod_whose_room_is_taken_by_another_one_gets_it_elsewhere() {
    run(|| async {
        let world = full(&[("n1", "cheap", 1), ("n2", "dear", 2)]).await;
        world.pod("high", important("4", 10)).await;
        world.until("cheap is being deleted", || is_ending(&world, "cheap")).await;
        // Somebody who asks no scheduler, as a static Pod's mirror.
        world.pod("static", patch::merge(&important("4", 10), &json!({ "nodeName": "n1" }))).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(!is_ending(&world, "dear"));
        world.delete("cheap").await;
        world.settle().await;
        assert!(is_ending(&world, "dear"));
        assert_eq!(nominated(&world, "high").as_deref(), Some("n2"));
        world.stop().await;
    });
}

#[test]
fn room_is_kept_for_a_pod_as_it_is_now() {
    run(|| async {
        let world = World::new().await;
        world.node("n1", json!({})).await;
        classes(&world).await;
        let port = json!({ "containers":
            [{ "name": "c", "image": "i", "ports": [{ "containerPort": 80, "hostPort": 80 }] }] });
        let on_port = |class: &str| patch::merge(&port, &json!({ "priorityClassName": class }));
        world.pod("low", on_port("p1")).await;
        world.until("it is bound", || world.place("low").is_some()).await;
        world.pod("high", on_port("p10")).await;
        world.until("room is being made", || nominated(&world, "high").is_some()).await;
        let label = json!({ "metadata": { "labels": { "app": "loud" } } });
        world.client.merge::<Pod>(Some("default"), "high", None, label).await.expect("labelled");
        world.settle().await;
        let far = json!({ "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution":
            [{ "labelSelector": { "matchLabels": { "app": "loud" } }, "topologyKey": "kubernetes.io/hostname" }] } } });
        world.pod("shy", patch::merge(&far, &json!({ "priorityClassName": "p10" }))).await;
        world.until("it is told", || world.told("shy").is_some()).await;
        let (_, told) = world.told("shy").unwrap_or_default();
        assert!(told.starts_with("0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."), "{told}");
        world.stop().await;
    });
}

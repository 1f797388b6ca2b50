//! Rounds of short-lived Pods, with a paused clock.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::ReplicaSet;
use podwright_client::Key;
use serde_json::{Value, json};

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).expect("a time")
}

/// The owner `u` in `ns`, of this generation.
fn maker(kind: &str, generation: i64) -> Maker {
    let object = json!({"metadata": {"name": "x", "namespace": "ns", "uid": "u", "generation": generation}});
    let mut maker = Maker::of(&serde_json::from_value::<ReplicaSet>(object).expect("a ReplicaSet"));
    maker.about.kind = Some(kind.into());
    maker
}

/// A Pod created at 0 with `u` as its controller.
fn pod(namespace: &str, kind: &str, name: &str, status: Value) -> Arc<Pod> {
    let owner = json!([{"apiVersion": "v1", "kind": kind, "name": "x", "uid": "u", "controller": true}]);
    let meta = json!({"name": name, "namespace": namespace, "uid": name, "ownerReferences": owner,
        "creationTimestamp": "1970-01-01T00:00:00Z"});
    Arc::new(serde_json::from_value(json!({"metadata": meta, "status": status})).expect("a Pod"))
}

/// The owner creates a Pod of this name.
fn make(lives: &ShortLives, maker: &Maker, name: &str) {
    lives.make(maker);
    let kind = maker.about.kind.as_deref().expect("a kind");
    lives.made(&pod("ns", kind, name, json!({})).metadata);
}

/// A Pod gets this status at this time.
fn ends(lives: &ShortLives, namespace: &str, kind: &str, name: &str, status: &Value, seconds: i64) {
    let pod = |status| Some(pod(namespace, kind, name, status));
    let key = Key::new(namespace, name);
    let delta = Delta { key, old: pod(json!({})), new: pod(status.clone()), undecodable: None };
    lives.observe(&delta, kind, at(seconds));
}

fn fails(lives: &ShortLives, name: &str) {
    ends(lives, "ns", "ReplicaSet", name, &json!({"phase": "Failed"}), 1);
}

/// One Pod is created and fails, this many times in a row.
async fn rounds(lives: &ShortLives, maker: &Maker, count: usize) {
    for n in 0..count {
        make(lives, maker, &format!("p{n}"));
        fails(lives, &format!("p{n}"));
        if n + 1 < count {
            tokio::time::advance(left(lives, maker).expect("a wait")).await;
        }
    }
}

fn left(lives: &ShortLives, maker: &Maker) -> Option<Duration> {
    lives.wait(maker).map(|wait| wait.left)
}

#[tokio::test(start_paused = true)]
async fn each_round_doubles_the_wait_however_many_pods_it_has() {
    let (lives, maker) = (ShortLives::default(), maker("ReplicaSet", 1));
    assert_eq!(left(&lives, &maker), None);
    let mut waits = Vec::new();
    for round in 0..20 {
        let names = || (0..100).map(|n| format!("p{round}-{n}"));
        names().for_each(|name| make(&lives, &maker, &name));
        names().for_each(|name| fails(&lives, &name));
        waits.push(left(&lives, &maker).expect("a wait").as_millis());
        tokio::time::advance(left(&lives, &maker).expect("a wait")).await;
        assert_eq!(left(&lives, &maker), None);
    }
    assert_eq!((&waits[..4], waits[19]), (&[20, 40, 80, 160][..], 60_000));
    make(&lives, &maker, "p");
    tokio::time::advance(FORGOTTEN).await;
    fails(&lives, "p");
    assert_eq!(left(&lives, &maker), Some(Duration::from_millis(20)), "they have lived meanwhile");
}

#[tokio::test(start_paused = true)]
async fn what_counts_has_failed_soon_or_has_never_run() {
    let ran = json!([{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 1}}}]);
    let failed = json!({"phase": "Failed"});
    let failed_by_itself = json!({"phase": "Failed", "containerStatuses": ran});
    let target =
        |reason: &str| json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]});
    for (kind, status, seconds, expected) in [
        ("ReplicaSet", &failed, 1, true),
        ("ReplicaSet", &failed, 1000, true),
        ("ReplicaSet", &failed_by_itself, 1, true),
        ("ReplicaSet", &failed_by_itself, 1000, false),
        ("ReplicaSet", &json!({"phase": "Running"}), 1, false),
        ("ReplicaSet", &target("DeletionByTaintManager"), 1, true),
        ("ReplicaSet", &target("EvictionByEvictionAPI"), 1, false),
        ("Job", &failed, 1, true),
        ("Job", &failed_by_itself, 1, false),
    ] {
        let (lives, maker) = (ShortLives::default(), maker(kind, 1));
        make(&lives, &maker, "p");
        ends(&lives, "ns", kind, "p", status, seconds);
        assert_eq!(left(&lives, &maker).is_some(), expected, "{kind} {status} after {seconds} s");
    }
}

/// Any user who may create Pods chooses their owner references, and nodes and users can make them fail.
#[tokio::test(start_paused = true)]
async fn what_a_maker_has_not_made_itself_counts_for_nobody() {
    let (lives, maker) = (ShortLives::default(), maker("ReplicaSet", 1));
    make(&lives, &maker, "p");
    let failed = json!({"phase": "Failed"});
    ends(&lives, "ns", "ReplicaSet", "forged", &failed, 1);
    ends(&lives, "elsewhere", "ReplicaSet", "p", &failed, 1);
    ends(&lives, "ns", "Job", "p", &failed, 1);
    assert_eq!(left(&lives, &maker), None);
    fails(&lives, "p");
    assert!(left(&lives, &maker).is_some());
    // Nor does one count twice, whoever writes its status.
    tokio::time::advance(Duration::from_millis(20)).await;
    lives.make(&maker);
    fails(&lives, "p");
    assert_eq!(left(&lives, &maker), None);
}

#[tokio::test(start_paused = true)]
async fn what_is_changed_of_a_maker_ends_its_wait() {
    let (lives, before) = (ShortLives::default(), maker("ReplicaSet", 1));
    rounds(&lives, &before, 10).await;
    assert!(left(&lives, &before).is_some() && lives.trouble(&before).is_some());
    let after = maker("ReplicaSet", 2);
    assert!(left(&lives, &after).is_none() && lives.trouble(&after).is_none());
    rounds(&lives, &after, 1).await;
    assert_eq!(left(&lives, &after), Some(Duration::from_millis(20)));
}

#[tokio::test(start_paused = true)]
async fn each_wait_is_told_of_once_and_long_ones_in_the_status() {
    let (lives, maker) = (ShortLives::default(), maker("ReplicaSet", 1));
    let news = || lives.wait(&maker).and_then(|wait| wait.news).map(|note| (note.about.name, note.reason));
    rounds(&lives, &maker, 1).await;
    assert_eq!(news(), None, "once may be chance");
    tokio::time::advance(Duration::from_secs(1)).await;
    make(&lives, &maker, "p");
    fails(&lives, "p");
    assert_eq!((news(), news()), (Some((Some("x".into()), CREATION_BACK_OFF)), None));
    assert_eq!(lives.trouble(&maker), None);
    tokio::time::advance(Duration::from_secs(1)).await;
    rounds(&lives, &maker, 8).await;
    let (failure, left) = lives.trouble(&maker).expect("it waits for long");
    assert_eq!(failure.reason, CREATION_BACK_OFF);
    tokio::time::advance(left).await;
    assert_eq!(lives.trouble(&maker), None);
}

#[tokio::test(start_paused = true)]
async fn makers_at_rest_are_forgotten() {
    let lives = ShortLives::default();
    let mut other = maker("ReplicaSet", 1);
    for n in 0..10 * MAKERS {
        other.about.uid = Some(n.to_string());
        make(&lives, &other, "p");
        if n % MAKERS == 0 {
            tokio::time::advance(2 * FORGOTTEN).await;
        }
    }
    let known = lives.makers().known.len();
    assert!(known <= 2 * MAKERS, "{known}");
}

//! The queue loses no Pod, hands none out twice, and keeps the order of priorities.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use podwright::scheduler::{
    framework::ClusterEvent,
    pod::PodInfo,
    profile::Profile,
    queue::{Queue, node_changes},
};
use proptest::prelude::*;
use serde_json::json;
use tokio::time::{Instant, advance};

use super::node;

pub(super) fn pod(n: u8, life: u32, label: u32) -> Arc<PodInfo> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "name": format!("p{n}"), "namespace": "default", "uid": format!("{n}-{life}"),
            "labels": { "v": label.to_string() },
        },
        "spec": { "containers": [], "priority": n % 3 },
    }))
    .expect("a Pod");
    PodInfo::of(Arc::new(pod))
}

fn plugins() -> BTreeSet<&'static str> {
    ["NodeResourcesFit"].into()
}

/// Something happened where all Pods fit now, or none does.
pub(super) fn changed(queue: &mut Queue, change: ClusterEvent, fits: bool) {
    let profile = Profile::default();
    let turned_away = || if fits { Ok(()) } else { Err(Some("TaintToleration")) };
    queue.on_changes(&[change], |pod, plugin, change| profile.queueing_hint(plugin, pod, change), |_| turned_away());
}

pub(super) fn paused(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(test);
}

#[derive(Clone, Debug)]
enum Op {
    Add(u8),
    Recreate(u8),
    Remove(u8),
    Pop,
    /// What becomes of the one that was handed out so many before the last one.
    Park(usize),
    Retry(usize),
    Done(usize),
    Change(bool),
    Pass(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0u8..8).prop_map(Op::Add),
        1 => (0u8..8).prop_map(Op::Recreate),
        1 => (0u8..8).prop_map(Op::Remove),
        4 => Just(Op::Pop),
        2 => (0usize..4).prop_map(Op::Park),
        2 => (0usize..4).prop_map(Op::Retry),
        1 => (0usize..4).prop_map(Op::Done),
        1 => any::<bool>().prop_map(Op::Change),
        2 => (0u64..12_000).prop_map(Op::Pass),
    ]
}

/// What must be in the queue, and who is handed out.
#[derive(Default)]
struct Model {
    waiting: BTreeMap<String, String>,
    out: Vec<Arc<PodInfo>>,
    lives: u32,
    labels: u32,
}

impl Model {
    fn is_out(&self, uid: &str) -> bool {
        self.out.iter().any(|pod| pod.uid == uid)
    }

    /// Somebody that was handed out comes back; whether the queue still waits for it.
    fn back(&mut self, nth: usize) -> Option<Arc<PodInfo>> {
        (nth < self.out.len()).then(|| self.out.remove(self.out.len() - 1 - nth))
    }

    fn pop(&mut self, queue: &mut Queue) -> Option<Arc<PodInfo>> {
        queue.wake(Instant::now());
        let pod = queue.pop()?;
        assert!(!self.is_out(&pod.uid), "{} was handed out twice", pod.uid);
        assert_eq!(self.waiting.get(&pod.key.name), Some(&pod.uid), "the queue knows who is meant");
        self.out.push(pod.clone());
        Some(pod)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    #[test]
    fn no_pod_is_lost_or_handed_out_twice(ops in proptest::collection::vec(op(), 1..80)) {
        paused(async move {
            let (mut queue, mut model) = (Queue::default(), Model::default());
            for op in ops {
                match op {
                    Op::Add(n) => {
                        model.labels += 1;
                        let name = format!("p{n}");
                        let known = model.waiting.get(&name).and_then(|uid| uid.split('-').nth(1)?.parse().ok());
                        let life = known.unwrap_or_else(|| { model.lives += 1; model.lives });
                        let pod = pod(n, life, model.labels % 3);
                        model.waiting.insert(name, pod.uid.clone());
                        queue.add(pod);
                    }
                    Op::Recreate(n) => {
                        model.lives += 1;
                        let pod = pod(n, model.lives, 0);
                        model.waiting.insert(format!("p{n}"), pod.uid.clone());
                        queue.add(pod);
                    }
                    Op::Remove(n) => {
                        let pod = pod(n, 0, 0);
                        model.waiting.remove(&pod.key.name);
                        queue.remove(&pod.key);
                    }
                    Op::Pop => drop(model.pop(&mut queue)),
                    Op::Park(nth) => if let Some(pod) = model.back(nth) { queue.park(&pod, plugins(), "no") },
                    Op::Retry(nth) => if let Some(pod) = model.back(nth) { queue.retry(&pod, "no") },
                    Op::Done(nth) => if let Some(pod) = model.back(nth) {
                        if model.waiting.get(&pod.key.name) == Some(&pod.uid) {
                            model.waiting.remove(&pod.key.name);
                        }
                        queue.done(&pod);
                    },
                    Op::Change(helps) => changed(&mut queue, ClusterEvent::PodRemoved(pod(9, 0, 0)), helps),
                    Op::Pass(ms) => advance(Duration::from_millis(ms)).await,
                }
                assert_eq!(queue.len(), model.waiting.len());
            }
            // After five minutes everybody has been handed out, the more important ones first.
            advance(Duration::from_secs(301)).await;
            let mut last = i32::MAX;
            while let Some(pod) = model.pop(&mut queue) {
                assert!(pod.priority <= last);
                last = pod.priority;
            }
            for uid in model.waiting.values() {
                assert!(model.is_out(uid), "{uid} was lost");
            }
        });
    }
}

#[test]
fn equals_are_served_in_order_and_the_important_first() {
    paused(async {
        let mut queue = Queue::default();
        for n in [0, 3, 6, 1, 2, 9, 5] {
            queue.add(pod(n, 0, 0));
        }
        let order: Vec<String> = std::iter::from_fn(|| queue.pop()).map(|pod| pod.key.name.clone()).collect();
        assert_eq!(order, ["p2", "p5", "p1", "p0", "p3", "p6", "p9"]);
    });
}

fn pod_of(namespace: &str, name: &str, priority: i32) -> Arc<PodInfo> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": namespace, "uid": format!("{namespace}-{name}") },
        "spec": { "containers": [], "priority": priority },
    }))
    .expect("a Pod");
    PodInfo::of(Arc::new(pod))
}

fn drained(queue: &mut Queue) -> Vec<String> {
    std::iter::from_fn(|| queue.pop()).map(|pod| pod.key.to_string()).collect()
}

/// Whoever has thousands of Pods keeps nobody else's waiting for more than one of them.
#[test]
fn of_one_priority_each_namespace_has_its_turn() {
    paused(async {
        let mut queue = Queue::default();
        for n in 0..3_000 {
            queue.add(pod_of("crowd", &format!("p{n}"), 0));
        }
        queue.add(pod_of("single", "web", 0));
        for n in 0..2 {
            queue.add(pod_of("pair", &format!("p{n}"), 0));
        }
        // One that comes while others have been served already is behind each of them once.
        let mut order: Vec<String> = (0..3).filter_map(|_| queue.pop()).map(|pod| pod.key.to_string()).collect();
        queue.add(pod_of("late", "web", 0));
        order.extend(drained(&mut queue));
        let first = ["crowd/p0", "single/web", "pair/p0", "crowd/p1", "pair/p1", "late/web", "crowd/p2", "crowd/p3"];
        assert_eq!(order[..first.len()], first);
        let crowd: Vec<&String> = order.iter().filter(|name| name.starts_with("crowd/")).collect();
        assert!(crowd.iter().enumerate().all(|(n, name)| **name == format!("crowd/p{n}")), "first come, first served");
        assert_eq!(order.len(), 3_004);
    });
}

#[test]
fn the_important_go_first_whosever_turn_it_is() {
    paused(async {
        let mut queue = Queue::default();
        for (namespace, name, priority) in [
            ("a", "low-1", 0),
            ("a", "low-2", 0),
            ("b", "low-1", 0),
            ("a", "high-1", 10),
            ("a", "high-2", 10),
            ("b", "high-1", 10),
        ] {
            queue.add(pod_of(namespace, name, priority));
        }
        let order = drained(&mut queue);
        assert_eq!(order, ["a/high-1", "b/high-1", "a/high-2", "a/low-1", "b/low-1", "a/low-2"]);
    });
}

/// Who is gone takes no turn, nor does a namespace that has nothing any more.
#[test]
fn a_turn_is_only_taken_by_who_is_handed_out() {
    paused(async {
        let mut queue = Queue::default();
        for (namespace, name) in [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("c", "1"), ("c", "2")] {
            queue.add(pod_of(namespace, name, 0));
        }
        queue.remove(&pod_of("a", "1", 0).key);
        queue.remove(&pod_of("b", "1", 0).key);
        assert_eq!(queue.pop().expect("active").key.to_string(), "a/2");
        queue.add(pod_of("b", "1", 0));
        assert_eq!(drained(&mut queue), ["c/1", "a/3", "b/1", "c/2"]);
        assert!(!queue.has_next() && queue.pop().is_none());
    });
}

#[test]
fn backoff_doubles_up_to_ten_seconds() {
    paused(async {
        let mut queue = Queue::default();
        queue.add(pod(1, 0, 0));
        for expected in [1, 2, 4, 8, 10, 10] {
            let pod = queue.pop().expect("due");
            queue.retry(&pod, "no");
            let due = queue.next_wake().expect("in backoff");
            assert_eq!(due - Instant::now(), Duration::from_secs(expected));
            queue.wake(due - Duration::from_millis(1));
            assert!(!queue.has_next());
            advance(Duration::from_secs(expected)).await;
            queue.wake(Instant::now());
        }
    });
}

#[test]
fn a_pod_in_backoff_is_tried_when_nobody_else_is_there() {
    paused(async {
        let mut queue = Queue::default();
        let fails = |queue: &mut Queue, n: u8| {
            let pod = queue.pop().expect("its turn");
            assert_eq!(pod.key.name, format!("p{n}"));
            queue.park(&pod, plugins(), "no");
        };
        // The first one fails twice, the others once.
        queue.add(pod(2, 0, 0));
        fails(&mut queue, 2);
        changed(&mut queue, ClusterEvent::NodeAdded, true);
        fails(&mut queue, 2);
        for n in [0, 1] {
            queue.add(pod(n, 0, 0));
            fails(&mut queue, n);
        }
        changed(&mut queue, ClusterEvent::NodeAdded, true);
        queue.add(pod(3, 0, 0));
        let order: Vec<String> = std::iter::from_fn(|| queue.pop()).map(|pod| pod.key.name.clone()).collect();
        assert_eq!(order, ["p3", "p1", "p0", "p2"], "the active one, the more important of equals, who failed more");
        assert_eq!(queue.next_wake(), None, "nobody is in backoff any more");
        let out = pod(1, 0, 0);
        queue.retry(&out, "no");
        assert!(!queue.has_next(), "after an error it is sat out");
        assert_eq!(queue.next_wake(), Some(Instant::now() + Duration::from_secs(2)));
    });
}

#[test]
fn a_pod_that_is_held_is_tried_once_it_is_let_go() {
    // Whether a change helps it meanwhile, whether what it is held for fails; then whether it is tried, and when it is due.
    let table = [(false, false, false, 300), (true, false, true, 1), (false, true, false, 1), (true, true, false, 1)];
    paused(async move {
        for (helped, failed, tried, due) in table {
            let mut queue = Queue::default();
            queue.add(pod(1, 0, 0));
            let out = queue.pop().expect("active");
            queue.hold(&out);
            queue.park(&out, plugins(), "no");
            if helped {
                changed(&mut queue, ClusterEvent::NodeAdded, true);
                queue.reconsider(&out);
                queue.add(pod(1, 0, 1));
            }
            assert!(!queue.has_next(), "it is held");
            queue.let_go(&out, failed);
            assert_eq!(queue.has_next(), tried, "{helped} {failed}");
            assert_eq!(queue.next_wake(), Some(Instant::now() + Duration::from_secs(due)), "{helped} {failed}");
        }
    });
}

#[test]
fn a_parked_pod_that_is_changed_is_tried_again() {
    paused(async {
        let mut queue = Queue::default();
        queue.add(pod(1, 0, 0));
        let first = queue.pop().expect("active");
        queue.park(&first, plugins(), "0/1 nodes");
        let (_, reason, message) = queue.why(&first.key).expect("it is told why");
        assert_eq!((reason, &*message), ("Unschedulable", "0/1 nodes"));
        queue.add(pod(1, 0, 0));
        assert_eq!(queue.next_wake(), Some(Instant::now() + Duration::from_secs(300)), "nothing has changed");
        queue.add(pod(1, 0, 1));
        assert_eq!(queue.next_wake(), Some(Instant::now() + Duration::from_secs(1)));
        assert!(queue.pop().is_some());
        queue.add(pod(1, 1, 1));
        assert!(queue.has_next(), "another Pod of that name does not wait for the first one's failures");
    });
}

#[test]
fn what_changed_of_a_node() {
    let plain = || node("n", json!({}));
    let named = |changes: Vec<ClusterEvent>| changes.iter().map(|change| format!("{change:?}")).collect::<Vec<_>>();
    let changed = |patch| named(node_changes(&plain(), &node("n", patch)));
    assert_eq!(named(node_changes(&plain(), &plain())), [""; 0]);
    assert_eq!(changed(json!({ "metadata": { "annotations": { "a": "b" } } })), [""; 0]);
    assert_eq!(changed(json!({ "status": { "conditions": [] } })), [""; 0]);
    assert_eq!(changed(json!({ "metadata": { "labels": { "a": "b" } } })), ["NodeLabels"]);
    assert_eq!(changed(json!({ "spec": { "unschedulable": true } })), ["NodeUnschedulable"]);
    assert_eq!(changed(json!({ "spec": { "taints": [{ "key": "a", "effect": "NoSchedule" }] } })), ["NodeTaints"]);
    assert_eq!(changed(json!({ "status": { "allocatable": { "cpu": "5" } } })), ["NodeAllocatable"]);
}

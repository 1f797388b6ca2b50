//! The work queue's semantics, on a paused clock.

use std::{sync::Mutex, time::Duration};

use podwright::{client::Key, controllers::queue::Queue};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

fn key(name: &str) -> Key {
    Key::new("", name)
}

/// No key arrives within a millisecond.
async fn is_idle(queue: &Queue) -> bool {
    timeout(Duration::from_millis(1), queue.get()).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn a_key_is_in_it_once_and_worked_on_by_one() {
    let queue = Queue::new("test", 100);
    queue.add(key("a"));
    queue.add(key("a"));
    queue.add(key("b"));
    assert_eq!(queue.get().await, key("a"));
    queue.add(key("a"));
    assert_eq!(queue.get().await, key("b"));
    assert!(is_idle(&queue).await, "a is being worked on");
    queue.done(&key("a"));
    assert_eq!(queue.get().await, key("a"), "it was added meanwhile");
    queue.done(&key("a"));
    queue.done(&key("b"));
    assert!(is_idle(&queue).await);
}

#[tokio::test(start_paused = true)]
async fn of_several_delays_the_earliest_counts() {
    let queue = Queue::new("test", 100);
    let start = Instant::now();
    queue.add_after(key("a"), Duration::from_secs(5));
    queue.add_after(key("a"), Duration::from_secs(2));
    queue.add_after(key("a"), Duration::from_secs(9));
    assert_eq!(queue.get().await, key("a"));
    assert_eq!(start.elapsed().as_secs(), 2);
    queue.done(&key("a"));
    assert!(timeout(Duration::from_secs(60), queue.get()).await.is_err(), "the others are void");
}

#[tokio::test(start_paused = true)]
async fn a_failing_key_waits_ever_longer_until_it_is_forgotten() {
    let queue = Queue::new("test", 100);
    let mut waits = Vec::new();
    for _ in 0..20 {
        let start = Instant::now();
        queue.add_rate_limited(key("a"));
        queue.get().await;
        queue.done(&key("a"));
        waits.push(start.elapsed().as_millis());
    }
    assert_eq!(waits[..5], [5, 10, 20, 40, 80]);
    assert_eq!(waits[19], 1_000_000, "at most 1000 s");
    queue.forget(&key("a"));
    let start = Instant::now();
    queue.add_rate_limited(key("a"));
    queue.get().await;
    assert_eq!(start.elapsed().as_millis(), 5);
}

#[tokio::test(start_paused = true)]
async fn all_failing_keys_share_a_bucket() {
    let queue = Queue::new("test", 100);
    let start = Instant::now();
    for n in 0..150 {
        queue.add_rate_limited(key(&n.to_string()));
    }
    for _ in 0..150 {
        let key = queue.get().await;
        queue.done(&key);
    }
    // A hundred at once, then ten a second.
    assert_eq!(start.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn several_workers_share_the_keys() {
    let queue = Queue::new("test", 100);
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.get().await })
        })
        .collect();
    tokio::task::yield_now().await;
    for n in 0..4 {
        queue.add(key(&n.to_string()));
    }
    let mut taken = Vec::new();
    for worker in workers {
        taken.push(timeout(Duration::from_secs(1), worker).await.expect("every worker gets one").unwrap().name);
    }
    taken.sort();
    assert_eq!(taken, ["0", "1", "2", "3"]);
}

#[tokio::test(start_paused = true)]
async fn work_that_panics_is_tried_again_and_stops_nobody() {
    let (queue, shutdown, done) = (Queue::new("test", 100), CancellationToken::new(), Mutex::new(Vec::new()));
    queue.add(key("bad"));
    queue.add(key("good"));
    let work = |key: Key| {
        let (done, shutdown) = (&done, &shutdown);
        async move {
            let times = {
                let mut done = done.lock().unwrap();
                done.push(key.name.to_string());
                done.iter().filter(|name| **name == *key.name).count()
            };
            match times {
                1..3 if *key.name == *"bad" => panic!("the invariant does not hold"),
                3.. => shutdown.cancel(),
                _ => {}
            }
        }
    };
    queue.work("test", &shutdown, work).await;
    assert_eq!(*done.lock().unwrap(), ["bad", "good", "bad", "bad"]);
    assert_eq!(queue.failures(&key("bad")), 2, "ever later");
}

/// A namespace with thousands of keys delays no other namespace's.
#[tokio::test(start_paused = true)]
async fn each_namespace_has_its_turn() {
    let queue = Queue::new("test", 100);
    for n in 0..1000 {
        queue.add(Key::new("a", n.to_string()));
    }
    queue.add(Key::new("b", "0"));
    queue.add(Key::new("c", "0"));
    let mut taken = Vec::new();
    for _ in 0..5 {
        taken.push(queue.get().await.to_string());
    }
    assert_eq!(taken, ["a/0", "b/0", "c/0", "a/1", "a/2"]);
}

#[tokio::test(start_paused = true)]
async fn failing_keys_of_one_namespace_leave_others_their_bucket() {
    let queue = Queue::new("test", 100);
    let start = Instant::now();
    for n in 0..2000 {
        queue.add_rate_limited(Key::new("a", n.to_string()));
    }
    queue.add_rate_limited(Key::new("b", "0"));
    while queue.get().await.namespace != "b" {}
    assert_eq!(start.elapsed().as_millis(), 5, "as if there were no others");
}

#[tokio::test(start_paused = true)]
async fn what_is_added_patiently_cuts_no_wait_for_a_retry() {
    let queue = Queue::new("test", 100);
    queue.add_patiently(key("a"));
    let start = Instant::now();
    for _ in 0..10 {
        assert_eq!(queue.get().await, key("a"));
        queue.add_patiently(key("a"));
        queue.add_rate_limited(key("a"));
        queue.done(&key("a"));
        queue.add_patiently(key("a"));
    }
    assert_eq!(queue.get().await, key("a"));
    assert_eq!(start.elapsed().as_millis(), 5 * ((1 << 10) - 1), "it waits as if nobody had added it");
    // Added while a successful reconcile is running: it is processed again.
    queue.add_patiently(key("a"));
    queue.forget(&key("a"));
    queue.done(&key("a"));
    assert_eq!(queue.get().await, key("a"));
    queue.done(&key("a"));
    assert!(is_idle(&queue).await, "and once alone");
    // An add from elsewhere ends the back-off.
    queue.add_rate_limited(key("a"));
    queue.add(key("a"));
    assert!(!is_idle(&queue).await);
}

#[tokio::test(start_paused = true)]
async fn slow_work_of_one_namespace_leaves_workers_for_others() {
    let queue = Queue::new("test", 5);
    let add = |namespace: &str, count: usize| {
        (0..count).for_each(|n| queue.add(Key::new(namespace, n.to_string())));
    };
    let taken = async |most: usize| {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Ok(key) = timeout(Duration::from_millis(1), queue.get()).await
        {
            taken.push(key.to_string());
        }
        taken
    };
    add("a", 9);
    assert_eq!(taken(5).await, ["a/0", "a/1", "a/2", "a/3"], "a quarter of them stays free");
    add("b", 9);
    add("c", 9);
    assert_eq!(taken(1).await, ["b/0"]);
    queue.done(&Key::new("a", "0"));
    assert_eq!(taken(1).await, ["c/0"], "for who holds none");
    queue.done(&Key::new("a", "1"));
    assert!(taken(1).await.is_empty(), "all of them hold as many as are free");
    add("d", 9);
    assert_eq!(taken(1).await, ["d/0"]);
    // A worker that finishes wakes one that waited for the key's namespace.
    let next = timeout(Duration::from_secs(5), queue.get());
    let (next, ()) = tokio::join!(next, async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        for name in ["2", "3"] {
            queue.done(&Key::new("a", name));
        }
    });
    assert_eq!(next.map(|key| key.to_string()).unwrap(), "a/4");
    // Cluster-scoped keys are accounted one by one.
    let queue = Queue::new("test", 5);
    (0..9).for_each(|n| queue.add(key(&n.to_string())));
    for _ in 0..5 {
        assert!(timeout(Duration::from_millis(1), queue.get()).await.is_ok());
    }
}

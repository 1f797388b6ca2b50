//! The rate at which controllers create Pods for a namespace.
//!
//! A manifest requests two billion Pods as easily as two. As long as there are nodes for them, they are created as fast as
//! possible; but if thousands already wait for a node, more are useless, and fill the memory of every component that watches Pods.
//! The same applies to existing Pods that have failed or are terminating: a node may be lost for long, and failed Pods may never be
//! removed. Then further ones are created at a limited rate, as upstream does for all (`--kube-api-qps` of
//! kube-controller-manager), until there are fewer.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

/// How many Pods per second, and at once, are created for a namespace without room.
const PER_SECOND: f64 = 5.0;
const AT_ONCE: f64 = 20.0;

/// When to check again whether more may be created.
pub const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// How many more Pods a namespace has room for if `waiting` wait for a node, with a limit of `crowd`, and `leaving` have failed or
/// are terminating: the limit for these is twice as high, as a rollout of thousands has as many old ones that end.
pub fn room(waiting: usize, leaving: usize, crowd: usize) -> usize {
    crowd.saturating_sub(waiting).min(crowd.saturating_mul(2).saturating_sub(leaving))
}

impl Bucket {
    /// Including the tokens earned by now.
    fn holds(&self) -> f64 {
        (self.tokens + self.at.elapsed().as_secs_f64() * PER_SECOND).min(AT_ONCE)
    }
}

/// The rates of all namespaces with many waiting or leaving Pods.
#[derive(Default)]
pub struct Paces(Mutex<HashMap<String, Bucket>>);

struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Paces {
    /// How many Pods may be created now at most in a namespace with this much room.
    pub fn most(&self, namespace: &str, room: usize) -> usize {
        if room > 0 {
            return room;
        }
        // The invariant: it is between 0 and `AT_ONCE`.
        self.buckets().get(namespace).map_or(AT_ONCE, Bucket::holds) as usize
    }

    /// How many of `wanted` Pods may be created now in a namespace with this much room.
    pub fn grant(&self, namespace: &str, wanted: usize, room: usize) -> usize {
        let mut buckets = self.buckets();
        if room > 0 {
            buckets.remove(namespace);
            return wanted.min(room);
        }
        let now = Instant::now();
        let new = || Bucket { tokens: AT_ONCE, at: now };
        let bucket = buckets.entry(namespace.to_owned()).or_insert_with(new);
        (bucket.tokens, bucket.at) = (bucket.holds(), now);
        // The invariant: it is between 0 and `AT_ONCE`.
        let granted = wanted.min(bucket.tokens as usize);
        bucket.tokens -= granted as f64;
        // A full bucket need not be kept.
        buckets.retain(|_, bucket| bucket.holds() < AT_ONCE);
        granted
    }

    fn buckets(&self) -> MutexGuard<'_, HashMap<String, Bucket>> {
        // No panic can occur between its changes.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn where_many_wait_more_come_one_by_one() {
        let paces = Paces::default();
        assert_eq!(paces.grant("a", 500, room(0, 0, 5_000)), 500);
        assert_eq!(paces.grant("a", 500, room(4_900, 0, 5_000)), 100);
        assert_eq!((paces.most("a", 100), paces.most("a", 0)), (100, 20));
        assert_eq!(paces.grant("a", 500, room(5_000, 0, 5_000)), 20);
        assert_eq!(paces.most("a", 0), 0);
        assert_eq!(paces.grant("a", 500, room(5_020, 0, 5_000)), 0);
        assert_eq!(paces.grant("b", 500, room(10, 0, 5_000)), 500, "another namespace is not concerned");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(paces.grant("a", 3, room(5_020, 0, 5_000)), 3);
        assert_eq!(paces.grant("a", 500, room(5_023, 0, 5_000)), 7);
        assert_eq!(paces.grant("a", 500, room(4_999, 0, 5_000)), 1, "some have got their nodes");
        assert!(paces.buckets().is_empty());
        assert_eq!(room(0, 9_999, 5_000), 1);
        assert_eq!(room(0, 10_000, 5_000), 0);
        assert_eq!(room(4_000, 5_000, 5_000), 1_000, "who rolls out thousands is not slowed down");
    }
}

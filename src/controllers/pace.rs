//! How fast controllers make Pods for a namespace.
//!
//! A manifest asks for two thousand million as easily as for two. As long as there are nodes for them they are made as fast as
//! that goes; but where thousands wait for a node already, more of them help nobody, and fill the memory of all that know of
//! Pods. So it is with those that have failed, or are being deleted, and are still there: a node may be lost for long, and nobody
//! may remove what has failed. There they come one by one, as at upstream all do (`--kube-api-qps` of kube-controller-manager),
//! until there are fewer.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

/// So many Pods of a namespace that has no room are made each second, at most so many at once.
const PER_SECOND: f64 = 5.0;
const AT_ONCE: f64 = 20.0;

/// When to look again whether more may be made.
pub const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// How many more Pods a namespace has room for where `waiting` wait for a node, of which `crowd` are many, and `leaving` have failed
/// or are being deleted: twice as many, for whoever rolls out thousands has as many of the old that end.
pub fn room(waiting: usize, leaving: usize, crowd: usize) -> usize {
    crowd.saturating_sub(waiting).min(crowd.saturating_mul(2).saturating_sub(leaving))
}

impl Bucket {
    /// With what has been earned by now.
    fn holds(&self) -> f64 {
        (self.tokens + self.at.elapsed().as_secs_f64() * PER_SECOND).min(AT_ONCE)
    }
}

/// The paces of all namespaces in which many Pods wait, or are left.
#[derive(Default)]
pub struct Paces(Mutex<HashMap<String, Bucket>>);

struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Paces {
    /// How many Pods may be made now at most in a namespace that has `room` for so many.
    pub fn most(&self, namespace: &str, room: usize) -> usize {
        if room > 0 {
            return room;
        }
        // The invariant: it is between 0 and `AT_ONCE`.
        self.buckets().get(namespace).map_or(AT_ONCE, Bucket::holds) as usize
    }

    /// How many of `wanted` Pods may be made now in a namespace that has `room` for so many.
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
        // Whose bucket is full again makes nothing any more.
        buckets.retain(|_, bucket| bucket.holds() < AT_ONCE);
        granted
    }

    fn buckets(&self) -> MutexGuard<'_, HashMap<String, Bucket>> {
        // Nothing between its changes panics.
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

//! How much history to keep: a pure policy that whoever drives a store's compaction asks.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::Revision;

/// Keeps the last `age` of history, and at least the last `revisions`; but never more than `most` revisions.
#[derive(Clone, Debug)]
pub struct Retention {
    pub age: Duration,
    pub revisions: u64,
    pub most: u64,
    /// What the store's revision was when: one sample a call of `keep_from`.
    seen: VecDeque<(Instant, Revision)>,
}

impl Default for Retention {
    /// Upstream compacts etcd every five minutes.
    fn default() -> Retention {
        Retention::new(Duration::from_secs(300), 1_000, 1_000_000)
    }
}

impl Retention {
    pub fn new(age: Duration, revisions: u64, most: u64) -> Retention {
        Retention { age, revisions, most, seen: VecDeque::new() }
    }

    /// Call it now and then (say every 30 s) with the store's revision; hand the answer to `Store::compact`.
    pub fn keep_from(&mut self, now: Instant, revision: Revision) -> Option<Revision> {
        self.seen.push_back((now, revision));
        let mut old_enough = None;
        while let Some(&(at, sample)) = self.seen.front()
            && now.duration_since(at) >= self.age
        {
            old_enough = Some(sample);
            self.seen.pop_front();
        }
        let by_age = old_enough.map(|sample| sample.min(revision.saturating_sub(self.revisions)));
        let by_number = revision.checked_sub(self.most);
        by_age.max(by_number).filter(|&keep_from| keep_from > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_goes_by_age_but_a_floor_and_a_ceiling_hold() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut retention = Retention::new(Duration::from_secs(300), 10, 1000);
        assert_eq!(retention.keep_from(at(0), 100), None);
        assert_eq!(retention.keep_from(at(60), 200), None);
        assert_eq!(retention.keep_from(at(300), 205), Some(100), "what was newest five minutes ago");
        assert_eq!(retention.keep_from(at(360), 205), Some(195), "but the last ten stay");
        assert_eq!(retention.keep_from(at(361), 5000), Some(4000), "and never more than a thousand");
    }
}

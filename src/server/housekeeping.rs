//! Periodic work of the server: compacting history, expiring Events, and sending bookmarks to idle watchers.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use podwright_api::{Object, kinds};
use podwright_store::{Compare, Durability, Revision, Txn, Write};

use super::Server;

/// How often the size of history is checked.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often old history is compacted, and how much is kept. Upstream compacts etcd every five minutes.
const COMPACT_EVERY: SignedDuration = SignedDuration::from_mins(1);
const KEEP: SignedDuration = SignedDuration::from_mins(5);
/// The most bytes of history, plus what is written until the next check: an object of a megabyte can be written a hundred times a
/// second, and no quota counts that.
const KEEP_BYTES: u64 = 1 << 30;
/// How long an Event is kept after it was last seen, and how often that is checked.
const EVENT_TTL: SignedDuration = SignedDuration::from_hours(1);
const EXPIRE_EVERY: Duration = Duration::from_secs(300);
/// How often a watcher that allows bookmarks gets one.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// Runs `step` periodically, for as long as the server lives.
pub(super) async fn every<F>(server: Weak<Server>, period: Duration, mut step: impl FnMut(Arc<Server>) -> F)
where
    F: Future<Output = ()>,
{
    loop {
        tokio::time::sleep(period).await;
        let Some(server) = server.upgrade() else { return };
        step(server).await;
    }
}

impl Server {
    /// Starts the server's loops.
    pub(super) fn start_housekeeping(self: &Arc<Server>) {
        let weak = Arc::downgrade(self);
        let mut history = History::default();
        let compact = every(weak.clone(), LOOK_EVERY, move |server| {
            let now = Mark { at: server.env.now(), revision: server.cache.revision(), written: server.cache.written() };
            let keep_from = history.keep_from(now);
            async move { server.compact(keep_from).await }
        });
        let expire = every(weak.clone(), EXPIRE_EVERY, |server| async move { server.expire_events().await });
        let bookmark = every(weak, BOOKMARK_EVERY, |server| async move { server.send_bookmarks() });
        for task in [tokio::spawn(compact), tokio::spawn(expire), tokio::spawn(bookmark)] {
            self.tasks.add(task);
        }
    }

    async fn compact(&self, keep_from: Option<Revision>) {
        let Some(keep_from) = keep_from else { return };
        self.cache.forget(keep_from);
        if let Err(why) = self.store.compact(keep_from).await {
            tracing::warn!("failed to compact the store's history: {why}");
        }
    }

    /// Removes Events whose last occurrence is too old.
    pub async fn expire_events(&self) {
        let Some(kind) = kinds::lookup("events") else { return };
        let now = self.env.now();
        let all: Vec<_> = self.cache.resource(kind).read().items.values().cloned().collect();
        let old: Vec<_> = all.into_iter().filter(|item| is_old(&item.bytes, now)).collect();
        for item in old {
            // One transaction each: an Event that occurred again meanwhile stays.
            let txn = Txn {
                compares: vec![Compare::Unchanged(item.key.to_string(), item.revision)],
                writes: vec![Write::Delete(item.key.to_string())],
                durability: Durability::Relaxed,
            };
            if let Err(why) = self.store.commit(txn).await {
                tracing::warn!("failed to delete an expired Event: {why}");
                return;
            }
        }
    }
}

/// A point in history: the newest revision, and how many bytes had been written.
#[derive(Clone, Copy)]
struct Mark {
    at: Timestamp,
    revision: Revision,
    written: u64,
}

/// Decides how much history is kept.
#[derive(Default)]
struct History {
    marks: VecDeque<Mark>,
    /// The time of the last compaction.
    forgotten: Option<Timestamp>,
}

impl History {
    /// Records the current point in history; returns the revision to compact to, if it is time.
    fn keep_from(&mut self, now: Mark) -> Option<Revision> {
        let since = |at: Timestamp| now.at.duration_since(at);
        let is_due = self.forgotten.is_none_or(|at| since(at) >= COMPACT_EVERY);
        if is_due {
            self.forgotten = Some(now.at);
        }
        self.marks.push_back(now);
        let is_over = |mark: &Mark| is_due && since(mark.at) >= KEEP || now.written - mark.written > KEEP_BYTES;
        let over = self.marks.iter().take_while(|mark| is_over(mark)).count();
        let newest = self.marks.drain(..over).next_back();
        newest.map(|mark| mark.revision).filter(|revision| *revision > 0)
    }
}

fn is_old(event: &[u8], now: Timestamp) -> bool {
    let Ok(event) = Object::from_slice(event) else { return false };
    let paths = ["lastTimestamp", "series.lastObservedTime", "eventTime", "metadata.creationTimestamp"];
    let times = paths.iter().filter_map(|path| event.at(path)?.as_str()?.parse::<Timestamp>().ok());
    times.max().is_some_and(|seen| now.duration_since(seen) > EVENT_TTL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_goes_by_age_each_minute_and_by_bytes_at_once() {
        let mut history = History::default();
        let mut look = |seconds, revision, written| {
            history.keep_from(Mark {
                at: Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds),
                revision,
                written,
            })
        };
        assert_eq!(look(0, 10, 0), None);
        assert_eq!(look(5, 20, 100), None);
        assert_eq!(look(298, 30, 200), None);
        assert_eq!(look(302, 40, 300), None, "it was looked at for age a moment ago");
        assert_eq!(look(358, 50, 400), Some(20), "what was the newest five minutes ago");
        assert_eq!(look(363, 60, KEEP_BYTES + 200), None);
        assert_eq!(look(368, 70, KEEP_BYTES + 350), Some(40), "more than that is kept of nothing, however young");
        // A clock that is set back expires nothing.
        assert_eq!(look(-3600, 80, KEEP_BYTES + 350), None);
    }
}

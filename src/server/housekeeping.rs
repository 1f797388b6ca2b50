//! What the server does by the clock: history is forgotten, Events expire, idle watchers are told the revision.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use podwright_api::{Object, kinds};
use podwright_store::{Compare, Durability, Revision, Txn, Write};

use super::Server;

/// How often old history is forgotten, and how much is kept.
const COMPACT_EVERY: Duration = Duration::from_secs(60);
const KEEP: SignedDuration = SignedDuration::from_mins(5);
/// How long an Event is kept after it was last seen, and how often that is looked at.
const EVENT_TTL: SignedDuration = SignedDuration::from_hours(1);
const EXPIRE_EVERY: Duration = Duration::from_secs(300);
/// How often a watcher that wants bookmarks gets one.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// Runs `step` every so often, for as long as the server lives.
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
    /// The server's loops.
    pub(super) fn start_housekeeping(self: &Arc<Server>) {
        let weak = Arc::downgrade(self);
        let mut marks = VecDeque::new();
        let compact = every(weak.clone(), COMPACT_EVERY, move |server| {
            let keep_from = mark(&mut marks, server.env.now(), server.cache.revision());
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
            tracing::warn!("old history cannot be forgotten: {why}");
        }
    }

    /// Removes the Events that were last seen longer ago than they are kept.
    pub async fn expire_events(&self) {
        let Some(kind) = kinds::lookup("events") else { return };
        let now = self.env.now();
        let all: Vec<_> = self.cache.resource(kind).read().items.values().cloned().collect();
        let old: Vec<_> = all.into_iter().filter(|item| is_old(&item.bytes, now)).collect();
        for item in old {
            // One transaction each: an Event that was seen again meanwhile stays.
            let txn = Txn {
                compares: vec![Compare::Unchanged(item.key.to_string(), item.revision)],
                writes: vec![Write::Delete(item.key.to_string())],
                durability: Durability::Relaxed,
            };
            if let Err(why) = self.store.commit(txn).await {
                tracing::warn!("an old Event cannot be removed: {why}");
                return;
            }
        }
    }
}

/// Notes where history is now, and finds the revision that was the newest when what is kept began.
fn mark(marks: &mut VecDeque<(Timestamp, Revision)>, now: Timestamp, revision: Revision) -> Option<Revision> {
    marks.push_back((now, revision));
    let mut keep_from = None;
    while let Some((at, revision)) = marks.front().copied() {
        if now.duration_since(at) < KEEP {
            break;
        }
        keep_from = Some(revision);
        marks.pop_front();
    }
    keep_from.filter(|revision| *revision > 0)
}

fn is_old(event: &[u8], now: Timestamp) -> bool {
    let Ok(event) = Object::from_slice(event) else { return false };
    let paths = ["lastTimestamp", "series.lastObservedTime", "eventTime", "metadata.creationTimestamp"];
    let times = paths.iter().filter_map(|path| event.at(path)?.as_str()?.parse::<Timestamp>().ok());
    times.max().is_some_and(|seen| now.duration_since(seen) > EVENT_TTL)
}

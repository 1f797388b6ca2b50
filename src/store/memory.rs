//! An in-memory store for simulation: the whole contract, without threads, waiting or durability.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard},
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    Asked, Batch, Change, Compare, Entry, Error, Outcome, PAGE_BYTES, Page, Range, Revision, Store, Txn, Watch, Write,
    closed,
    hub::{Hub, Watcher},
    known,
};

/// See the module. Share it with `Arc`.
#[derive(Default)]
pub struct Memory(Mutex<State>);

#[derive(Default)]
struct State {
    revision: Revision,
    oldest: Revision,
    /// Each key's retained versions, oldest first; never empty.
    keys: BTreeMap<Arc<str>, Vec<Version>>,
    /// The retained changes, in order.
    log: VecDeque<Change>,
    hub: Hub,
    closed: bool,
}

/// A key's value from a revision on; `None`: absent.
struct Version {
    since: Revision,
    entry: Option<Entry>,
}

impl Memory {
    pub fn new() -> Memory {
        Memory::default()
    }

    /// No method of `State` leaves it half-changed, so it is consistent after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn state(&self) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.lock();
        if state.closed { Err(closed()) } else { Ok(state) }
    }
}

impl State {
    fn current(&self, key: &str) -> Option<&Entry> {
        self.keys.get(key)?.last()?.entry.as_ref()
    }

    fn readable(&self, at: Revision) -> Result<(), Error> {
        if at > self.revision {
            return Err(Error::Future { asked: at, now: self.revision });
        }
        if at < self.oldest { Err(Error::Compacted { asked: at, oldest: self.oldest }) } else { Ok(()) }
    }

    fn holds(&self, compare: &Compare) -> bool {
        let (key, wanted) = compare.parts();
        self.current(key).map_or(0, |e| e.mod_revision) == wanted
    }

    fn list(&self, range: &Range) -> Result<Page, Error> {
        let at = range.at.unwrap_or(self.revision);
        self.readable(at)?;
        let start = match &range.after {
            Some(after) if after.as_str() >= range.prefix.as_str() => Bound::Excluded(after.as_str()),
            _ => Bound::Included(range.prefix.as_str()),
        };
        let mut found = self
            .keys
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(&range.prefix))
            .filter_map(|(_, versions)| versions.iter().rev().find(|v| v.since <= at)?.entry.as_ref());
        let limit = if range.limit == 0 { usize::MAX } else { range.limit };
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while entries.len() < limit && (range.limit == 0 || bytes < PAGE_BYTES) {
            let Some(entry) = found.next() else { break };
            bytes += entry.value.len();
            entries.push(entry.clone());
        }
        Ok(Page { entries, revision: at, remaining: found.count() as u64 })
    }

    fn commit(&mut self, txn: Txn) -> Outcome {
        if !txn.compares.iter().all(|c| self.holds(c)) {
            return Outcome::Refused(txn.compares.iter().map(|c| self.current(c.parts().0).cloned()).collect());
        }
        let revision = self.revision + 1;
        let mut changes = Vec::new();
        for (key, value) in txn.net_writes() {
            let before = self.current(&key).cloned();
            if before.is_none() && value.is_none() {
                continue;
            }
            let key: Arc<str> = before.as_ref().map_or_else(|| key.into(), |e| e.key.clone());
            let create_revision = before.as_ref().map_or(revision, |e| e.create_revision);
            let now = value.map(|value| Entry { key: key.clone(), value, create_revision, mod_revision: revision });
            self.keys.entry(key.clone()).or_default().push(Version { since: revision, entry: now.clone() });
            changes.push(Change { key, revision, now, before });
        }
        if !changes.is_empty() {
            self.revision = revision;
            self.hub.publish(&changes, revision);
            self.log.extend(changes);
        }
        Outcome::Committed(self.revision)
    }

    fn history(&self, prefix: &str, after: Revision) -> Result<Vec<Change>, Error> {
        if after > self.revision {
            return Err(Error::Future { asked: after, now: self.revision });
        }
        if after + 1 < self.oldest {
            return Err(Error::Compacted { asked: after, oldest: self.oldest });
        }
        let from = self.log.partition_point(|c| c.revision <= after);
        Ok(self.log.range(from..).filter(|c| c.key.starts_with(prefix)).cloned().collect())
    }

    fn watch(&mut self, prefix: &str, after: Revision) -> Result<Watch, Error> {
        let missed = self.history(prefix, after)?;
        let (watcher, watch) = Watcher::new(prefix, after);
        // A single batch fits, and its receiver exists.
        if let Some(watcher) = watcher.offer(&missed, self.revision) {
            self.hub.add(watcher);
        }
        Ok(watch)
    }

    fn compact(&mut self, keep_from: Revision) -> Result<(), Error> {
        if keep_from > self.revision {
            return Err(Error::Future { asked: keep_from, now: self.revision });
        }
        self.oldest = self.oldest.max(keep_from);
        let forgotten = self.log.partition_point(|c| c.revision < keep_from);
        for change in self.log.drain(..forgotten) {
            let Some(versions) = self.keys.get_mut(&change.key) else { continue };
            // The version in effect at `keep_from`, and, for a change at `keep_from`, the one before it.
            let kept = versions.partition_point(|v| v.since < keep_from).saturating_sub(1);
            versions.drain(..kept);
            if let [Version { since, entry: None }] = versions[..]
                && since < keep_from
            {
                self.keys.remove(&change.key);
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Memory {
    fn revision(&self) -> Asked<'_, Revision> {
        known(self.lock().revision)
    }

    async fn oldest(&self) -> Result<Revision, Error> {
        Ok(self.lock().oldest)
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, Error> {
        Ok(self.state()?.current(key).cloned())
    }

    async fn list(&self, range: Range) -> Result<Page, Error> {
        self.state()?.list(&range)
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, Error> {
        Ok(self.state()?.commit(txn))
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, Error> {
        self.state()?.watch(prefix, after)
    }

    async fn history(&self, prefix: &str, after: Revision) -> Result<Batch, Error> {
        let state = self.state()?;
        Ok(Batch { changes: state.history(prefix, after)?, reached: state.revision })
    }

    async fn compact(&self, keep_from: Revision) -> Result<(), Error> {
        self.state()?.compact(keep_from)
    }

    /// There is no file to copy.
    async fn backup(&self) -> Result<File, Error> {
        Err(Error::Io("a store in memory has no backup".to_owned()))
    }

    async fn prove(&self) -> Result<(), Error> {
        self.state().map(drop)
    }

    async fn close(&self) -> Result<(), Error> {
        let mut state = self.state()?;
        state.closed = true;
        state.hub.clear();
        Ok(())
    }
}

impl Txn {
    /// The last write to each key, in key order; `None`: delete.
    pub(super) fn net_writes(self) -> BTreeMap<String, Option<Bytes>> {
        let by_key = |write| match write {
            Write::Put(key, value) => (key, Some(value)),
            Write::Delete(key) => (key, None),
        };
        self.writes.into_iter().map(by_key).collect()
    }
}

impl Compare {
    /// The key, and its required mod_revision; 0: absent.
    pub(super) fn parts(&self) -> (&str, Revision) {
        match self {
            Compare::Absent(key) => (key, 0),
            Compare::Unchanged(key, revision) => (key, *revision),
        }
    }
}

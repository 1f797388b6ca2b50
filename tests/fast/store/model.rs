//! Random operations on a store, with crashes between, compared with a plain history of maps.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use podwright::store::{Change, Compare, Durability, Entry, Error, Outcome, Range, Revision, Store, Txn, Watch, Write};
use proptest::prelude::*;

const KEYS: &[&str] = &["/a/1", "/a/2", "/a/20", "/a/3", "/ab/1", "/b/1", "/b/ä", "/b/😀", "/c"];
const PREFIXES: &[&str] = &["", "/", "/a/", "/a/2", "/b/", "/none"];

/// A point in history, as a share of it (256: now, more: the future).
type Share = u16;

#[derive(Clone, Debug)]
pub enum Op {
    Commit { compares: Vec<(usize, bool, Share)>, writes: Vec<(usize, Option<u16>)>, relaxed: bool },
    Get(usize),
    List { prefix: usize, after: Option<usize>, limit: usize, at: Option<Share> },
    Watch { prefix: usize, after: Share },
    Compact(Share),
    Reopen,
    Kill,
    PowerLoss(u8),
}

pub fn op() -> impl Strategy<Value = Op> {
    let key = 0..KEYS.len();
    let prefix = 0..PREFIXES.len();
    let share = 0u16..262;
    let compares = prop::collection::vec((key.clone(), prop::bool::weighted(0.8), share.clone()), 0..2);
    let writes = prop::collection::vec((key.clone(), prop::option::weighted(0.7, 0u16..3000)), 0..4);
    let list = (prefix.clone(), prop::option::of(key.clone()), 0usize..4, prop::option::of(share.clone()));
    prop_oneof![
        20 => (compares, writes, prop::bool::weighted(0.3)).prop_map(|(compares, writes, relaxed)| Op::Commit { compares, writes, relaxed }),
        2 => key.prop_map(Op::Get),
        6 => list.prop_map(|(prefix, after, limit, at)| Op::List { prefix, after, limit, at }),
        6 => (prefix, share.clone()).prop_map(|(prefix, after)| Op::Watch { prefix, after }),
        2 => share.prop_map(Op::Compact),
        1 => Just(Op::Reopen),
        1 => Just(Op::Kill),
        1 => any::<u8>().prop_map(Op::PowerLoss),
    ]
}

/// The state after each revision, from 0 on; lost revisions have none.
pub struct Model {
    states: BTreeMap<Revision, BTreeMap<String, Entry>>,
    /// Where it began.
    begun: Revision,
    pub revision: Revision,
    oldest: Revision,
    holes: Vec<(Revision, Revision)>,
    /// Everything up to here was acknowledged as durable.
    pub durable: Revision,
}

impl Model {
    async fn of(store: &dyn Store) -> Model {
        let (begun, oldest) = (store.revision().await.unwrap(), store.oldest().await.unwrap());
        let states = BTreeMap::from([(begun, BTreeMap::new())]);
        Model { states, begun, revision: begun, oldest, holes: Vec::new(), durable: begun }
    }

    fn now(&self) -> &BTreeMap<String, Entry> {
        self.at(self.revision)
    }

    fn at(&self, revision: Revision) -> &BTreeMap<String, Entry> {
        self.states.range(..=revision).next_back().unwrap().1
    }

    fn point(&self, share: Share) -> Revision {
        self.begun + ((self.revision - self.begun) * u64::from(share)).div_ceil(256)
    }

    fn in_hole(&self, at: Revision) -> Option<Revision> {
        self.holes.iter().find(|h| h.0 <= at && at < h.1).map(|h| h.1)
    }

    fn readable(&self, at: Revision) -> Result<(), &'static str> {
        match at {
            _ if at > self.revision => Err("future"),
            _ if at < self.oldest || self.in_hole(at).is_some() => Err("compacted"),
            _ => Ok(()),
        }
    }

    fn watchable(&self, after: Revision) -> Result<(), &'static str> {
        if after + 1 == self.oldest && self.in_hole(after).is_none() { Ok(()) } else { self.readable(after) }
    }

    fn commit(&mut self, txn: &Txn) -> Outcome {
        let mod_revision = |key: &str| self.now().get(key).map_or(0, |e| e.mod_revision);
        let holds = |c: &Compare| match c {
            Compare::Absent(key) => mod_revision(key) == 0,
            Compare::Unchanged(key, revision) => mod_revision(key) == *revision,
        };
        if !txn.compares.iter().all(holds) {
            let key = |c: &Compare| match c {
                Compare::Absent(key) | Compare::Unchanged(key, _) => self.now().get(key).cloned(),
            };
            return Outcome::Refused(txn.compares.iter().map(key).collect());
        }
        let (before, revision) = (self.now(), self.revision + 1);
        let mut after = before.clone();
        for write in &txn.writes {
            match write {
                Write::Delete(key) => drop(after.remove(key)),
                Write::Put(key, value) => {
                    let create_revision = before.get(key).map_or(revision, |e| e.create_revision);
                    let entry = Entry {
                        key: key.as_str().into(),
                        value: value.clone(),
                        create_revision,
                        mod_revision: revision,
                    };
                    after.insert(key.clone(), entry);
                }
            }
        }
        if after != *before {
            self.states.insert(revision, after);
            self.revision = revision;
        }
        if txn.durability == Durability::Full {
            self.durable = self.revision;
        }
        Outcome::Committed(self.revision)
    }

    fn changes(&self, prefix: &str, after: Revision) -> Vec<Change> {
        let mut changes = Vec::new();
        for (&revision, now) in self.states.range(after + 1..) {
            let before = self.at(revision - 1);
            let mut keys: Vec<&String> = now.keys().chain(before.keys()).filter(|k| k.starts_with(prefix)).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let (before, now) = (before.get(key).cloned(), now.get(key).cloned());
                if before != now {
                    changes.push(Change { key: key.as_str().into(), revision, now, before });
                }
            }
        }
        changes
    }

    fn list(&self, range: &Range) -> (Vec<Entry>, u64) {
        let state = self.at(range.at.unwrap_or(self.revision));
        let behind = |key: &str| range.after.as_deref().is_none_or(|after| key > after);
        let all: Vec<Entry> =
            state.values().filter(|e| e.key.starts_with(&range.prefix) && behind(&e.key)).cloned().collect();
        let shown = if range.limit == 0 { all.len() } else { range.limit.min(all.len()) };
        (all[..shown].to_vec(), (all.len() - shown) as u64)
    }
}

fn complaint<T>(result: Result<T, Error>) -> Result<T, &'static str> {
    result.map_err(|error| match error {
        Error::Compacted { .. } => "compacted",
        Error::Future { .. } => "future",
        other => panic!("{other}"),
    })
}

/// What a restart has left of a store.
pub enum Left {
    /// Nothing has happened, or nobody has noticed.
    All,
    /// What was there up to this revision; watches are gone.
    UpTo(Revision),
}

/// The store under test.
#[async_trait(?Send)]
pub trait Subject {
    fn store(&self) -> &dyn Store;

    /// A transaction was committed; whether it `is_durable`. Whether everything is durable with it all the same.
    fn committed(&mut self, _relaxed: bool, _is_durable: bool) -> bool {
        false
    }

    /// Waits until its watches have seen what it has written: what is compacted before would have some stores start over, at a
    /// later revision.
    async fn caught_up(&mut self, _revision: Revision) {}

    /// Ends in some way and comes back.
    async fn restart(&mut self, _end: &Op, _model: &Model) -> Left {
        Left::All
    }
}

struct Run<S> {
    subject: S,
    model: Model,
    /// Watches that are open: prefix, and the changes still to come start behind this revision.
    watches: Vec<(String, Revision, Watch)>,
}

impl<S: Subject> Run<S> {
    async fn step(&mut self, op: &Op) {
        match op {
            Op::Commit { compares, writes, relaxed } => {
                let compare = |&(key, right, share): &(usize, bool, Share)| {
                    let now = self.model.now().get(KEYS[key]).map(|e| e.mod_revision);
                    match now {
                        None if right => Compare::Absent(KEYS[key].to_owned()),
                        Some(revision) if right => Compare::Unchanged(KEYS[key].to_owned(), revision),
                        _ => Compare::Unchanged(KEYS[key].to_owned(), self.model.point(share)),
                    }
                };
                let write = |&(key, value): &(usize, Option<u16>)| match value {
                    Some(n) => Write::Put(KEYS[key].to_owned(), Bytes::from(vec![n as u8; n as usize])),
                    None => Write::Delete(KEYS[key].to_owned()),
                };
                let durability = if *relaxed { Durability::Relaxed } else { Durability::Full };
                let compares = compares.iter().map(compare).collect();
                let txn = Txn { compares, writes: writes.iter().map(write).collect(), durability };
                let durable = self.model.durable;
                let expected = self.model.commit(&txn);
                assert_eq!(self.subject.store().commit(txn).await.unwrap(), expected);
                if self.subject.committed(*relaxed, self.model.durable != durable) {
                    self.model.durable = self.model.revision;
                }
            }
            Op::Get(key) => {
                let found = self.subject.store().get(KEYS[*key]).await.unwrap();
                assert_eq!(found.as_ref(), self.model.now().get(KEYS[*key]));
            }
            Op::List { prefix, after, limit, at } => {
                let at = at.map(|share| self.model.point(share));
                let after = after.map(|key| KEYS[key].to_owned());
                let range = Range { prefix: PREFIXES[*prefix].to_owned(), after, limit: *limit, at };
                let page = complaint(self.subject.store().list(range.clone()).await);
                let expected = self.model.readable(at.unwrap_or(self.model.revision)).map(|()| self.model.list(&range));
                let shown = page.map(|page| {
                    assert_eq!(page.revision, at.unwrap_or(self.model.revision));
                    (page.entries, page.remaining)
                });
                assert_eq!(shown, expected, "{range:?}");
            }
            Op::Watch { prefix, after } => {
                let after = self.model.point(*after);
                let watch = complaint(self.subject.store().watch(PREFIXES[*prefix], after).await);
                assert_eq!(watch.as_ref().err(), self.model.watchable(after).as_ref().err(), "watch after {after}");
                self.watches.extend(watch.map(|watch| (PREFIXES[*prefix].to_owned(), after, watch)));
            }
            Op::Compact(share) => {
                // A watch that is still catching up may rightly be cut off.
                self.drain_watches().await;
                self.subject.caught_up(self.model.revision).await;
                let keep_from = self.model.point(*share);
                let expected = if keep_from > self.model.revision { Err("future") } else { Ok(()) };
                assert_eq!(complaint(self.subject.store().compact(keep_from).await), expected);
                if expected.is_ok() {
                    let keep_from = self.model.in_hole(keep_from).unwrap_or(keep_from);
                    self.model.oldest = self.model.oldest.max(keep_from);
                }
                assert_eq!(self.subject.store().oldest().await.unwrap(), self.model.oldest);
            }
            Op::Reopen | Op::Kill | Op::PowerLoss(_) => {
                self.drain_watches().await;
                if let Left::UpTo(survived) = self.subject.restart(op, &self.model).await {
                    self.after_restart(survived).await;
                }
            }
        }
        assert_eq!(self.subject.store().revision().await.unwrap(), self.model.revision);
    }

    /// Finds out which revision the store came back with, and has the model follow.
    async fn after_restart(&mut self, survived: Revision) {
        self.watches.clear();
        let store = self.subject.store();
        let page = store.list(Range::default()).await.unwrap();
        let now: BTreeMap<String, Entry> = page.entries.into_iter().map(|e| (e.key.to_string(), e)).collect();
        // A compaction may have been lost with the log's end; no more than that.
        let oldest = store.oldest().await.unwrap();
        assert!(oldest <= self.model.oldest, "oldest is {oldest}, not {}", self.model.oldest);
        self.model.oldest = oldest;
        assert_eq!(now, *self.model.at(survived), "revision {survived} is another one now");
        let lost = self.model.states.split_off(&(survived + 1));
        let revision = store.revision().await.unwrap();
        if revision > survived || !lost.is_empty() {
            assert!(revision > self.model.revision, "a revision is used twice");
            self.model.holes.push((survived + 1, revision));
        }
        self.model.revision = revision;
        self.model.durable = revision;
    }

    /// Every open watch shows exactly what has happened since, and nothing more; or it was still catching up when what
    /// it was about to read was compacted, and says so.
    async fn drain_watches(&mut self) {
        let mut kept = Vec::new();
        for (prefix, after, mut watch) in self.watches.drain(..) {
            let expected = self.model.changes(&prefix, after);
            let (mut seen, mut cut_off) = (Vec::new(), false);
            while seen.len() < expected.len() && !cut_off {
                match tokio::time::timeout(Duration::from_secs(10), watch.recv()).await {
                    Ok(Some(Ok(batch))) => seen.extend(batch.changes),
                    Ok(Some(Err(Error::Compacted { .. }))) => cut_off = true,
                    other => panic!("{other:?} behind {seen:?}, {expected:?} expected"),
                }
            }
            match watch.try_recv() {
                Ok(Err(Error::Compacted { .. })) => cut_off = true,
                Ok(Ok(batch)) if batch.changes.is_empty() => {}
                Ok(more) => panic!("the watch shows more than has happened: {more:?}"),
                Err(_) => {}
            }
            if cut_off {
                assert!(self.model.oldest > 0 && seen.is_empty(), "cut off behind {seen:?}");
                continue;
            }
            assert_eq!(seen, expected, "watch of {prefix:?} after {after}");
            kept.push((prefix, self.model.revision, watch));
        }
        self.watches = kept;
    }
}

/// Runs operations on a store that is new.
pub fn run<S: Subject>(subject: impl AsyncFnOnce() -> S, ops: &[Op]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let subject = subject().await;
        let model = Model::of(subject.store()).await;
        let mut run = Run { subject, model, watches: Vec::new() };
        for op in ops {
            run.step(op).await;
        }
        run.drain_watches().await;
    });
}

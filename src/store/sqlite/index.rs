//! The in-memory part of the store: the position of each key's newest version, the most recent changes, the watchers.
//!
//! With the index a key is known to be absent (a corrupted B-tree page cannot hide one), compares need no I/O, and `remaining` is
//! computed in memory. It costs about 130 bytes per key; values stay in the file.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use rusqlite::Connection;

use super::log::{self, Hole, Position, StoreState, revision_of};
use crate::{Change, Error, Range, Revision, hub::Hub};

/// How many recent changes stay in memory, for resuming watchers.
const TAIL_CHANGES: usize = 1024;
const TAIL_BYTES: usize = 1 << 20;

#[derive(Default)]
pub struct Index {
    pub revision: Revision,
    pub oldest: Revision,
    /// Existing keys, and deleted ones within retained history.
    pub keys: BTreeMap<Arc<str>, Position>,
    pub holes: Vec<Hole>,
    pub hub: Hub,
    pub closed: bool,
    tail: VecDeque<Change>,
    tail_bytes: usize,
    /// All changes after this revision are in `tail`.
    pub tail_from: Revision,
}

/// The keys of one page, before their rows are read.
#[derive(Debug, Default)]
pub struct Selection {
    pub at: Revision,
    /// In order; those newer than `at` may turn out not to have existed.
    pub page: Vec<(Arc<str>, Position)>,
    /// How many of the following keys certainly existed, and those that have changed since.
    pub following: u64,
    pub unsure: Vec<(Arc<str>, Position)>,
}

impl Index {
    /// Reads and verifies the whole file.
    pub fn load(db: &Connection, state: &StoreState) -> Result<Index, Error> {
        let holes = log::holes(db)?;
        let mut seen = StoreState::default();
        holes.iter().for_each(|&(first, last)| seen.add(log::hole_weight(first, last)));
        let mut keys: BTreeMap<Arc<str>, Position> = BTreeMap::new();
        log::scan(db, 0, |row| {
            seen.add(log::weight(row.place, row.checksum()));
            seen.revision = row.revision();
            match keys.get_mut(&*row.key) {
                Some(newest) => *newest = row.signed_place(),
                None => drop(keys.insert(row.key.clone(), row.signed_place())),
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if (seen.rows, seen.digest) != (state.rows, state.digest) || seen.revision > state.revision {
            let (found, wanted) = (seen.rows, state.rows);
            return Err(Error::Damaged(format!("{found} rows are not the {wanted} that were written")));
        }
        let (revision, oldest) = (state.revision, state.oldest);
        Ok(Index { revision, oldest, keys, holes, tail_from: revision, ..Index::default() })
    }

    /// The position of the key's newest version, if it exists.
    pub fn place(&self, key: &str) -> Option<Position> {
        self.keys.get(key).copied().filter(|&place| place > 0)
    }

    /// Whether the state at this revision is available.
    pub fn readable(&self, at: Revision) -> Result<(), Error> {
        if at > self.revision {
            return Err(Error::Future { asked: at, now: self.revision });
        }
        let hole = self.holes.iter().find(|&&(first, last)| first <= at && at < last);
        let oldest = hole.map_or(self.oldest, |&(_, last)| last);
        if at < oldest { Err(Error::Compacted { asked: at, oldest }) } else { Ok(()) }
    }

    /// Whether a watch may start after this revision.
    pub fn known(&self, after: Revision) -> Result<(), Error> {
        if after > self.revision {
            return Err(Error::Future { asked: after, now: self.revision });
        }
        self.watchable(after)
    }

    /// Whether all changes after this revision are available.
    pub fn watchable(&self, after: Revision) -> Result<(), Error> {
        match self.readable(after) {
            // The change at the oldest revision itself is still retained.
            Err(Error::Compacted { oldest, .. })
                if after + 1 == oldest && oldest == self.oldest && !self.lost(after) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    /// Whether a state seen at this revision may have been lost.
    fn lost(&self, revision: Revision) -> bool {
        self.holes.iter().any(|&(first, last)| first <= revision && revision < last)
    }

    pub fn select(&self, range: &Range) -> Result<Selection, Error> {
        let at = range.at.unwrap_or(self.revision);
        self.readable(at)?;
        let mut selection = Selection { at, ..Selection::default() };
        let limit = if range.limit == 0 { usize::MAX } else { range.limit };
        let mut sure = 0;
        let start = match &range.after {
            Some(after) if after.as_str() >= range.prefix.as_str() => Bound::Excluded(after.as_str()),
            _ => Bound::Included(range.prefix.as_str()),
        };
        let end = successor(&range.prefix);
        let end = match &end {
            // An inverted range would panic.
            Some(end) if range.after.as_ref() >= Some(end) => return Ok(selection),
            Some(end) => Bound::Excluded(end.as_str()),
            None => Bound::Unbounded,
        };
        for (key, &place) in self.keys.range::<str, _>((start, end)) {
            let changed_since = revision_of(place) > at;
            if !changed_since && place < 0 {
                continue;
            }
            match sure < limit {
                true => selection.page.push((key.clone(), place)),
                false if changed_since => selection.unsure.push((key.clone(), place)),
                false => selection.following += 1,
            }
            sure += usize::from(!changed_since);
        }
        Ok(selection)
    }

    /// Applies transactions that have just become durable (or as durable as they requested).
    pub fn publish(
        &mut self,
        revision: Revision,
        places: impl Iterator<Item = (Arc<str>, Position)>,
        changes: Vec<Change>,
    ) {
        for (key, place) in places {
            self.keys.insert(key, place);
        }
        self.revision = revision;
        self.hub.publish(&changes, revision);
        self.tail_bytes += changes.iter().map(size).sum::<usize>();
        self.tail.extend(changes);
        while self.tail.len() > TAIL_CHANGES || self.tail_bytes > TAIL_BYTES {
            let Some(change) = self.tail.pop_front() else { break };
            self.tail_bytes -= size(&change);
            self.tail_from = change.revision;
        }
        while self.tail.front().is_some_and(|change| change.revision <= self.tail_from) {
            self.tail_bytes -= self.tail.pop_front().as_ref().map_or(0, size);
        }
    }

    /// The changes after a revision, which must not be before `tail_from`.
    pub fn tail(&self, after: Revision) -> impl Iterator<Item = &Change> {
        self.tail.range(self.tail.partition_point(|change| change.revision <= after)..)
    }
}

fn size(change: &Change) -> usize {
    let value = |entry: &Option<crate::Entry>| entry.as_ref().map_or(0, |e| e.value.len());
    change.key.len() + value(&change.now) + value(&change.before)
}

/// The smallest string after everything with this prefix; `None`: there is none.
fn successor(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        // UTF-8 bytes sort like code points; the step may have to skip the surrogates.
        if let Some(next) = (last as u32 + 1..=char::MAX as u32).find_map(char::from_u32) {
            end.push(next);
            return Some(end);
        }
    }
    None
}

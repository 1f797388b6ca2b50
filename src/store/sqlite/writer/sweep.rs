//! Compaction: removes unreadable versions in small steps when idle.

use std::sync::Arc;

use rusqlite::Connection;

use super::{Answer, Sync, Writer};
use crate::{
    Error, Revision,
    sqlite::log::{self, Position, StoreState},
};

/// How much history one step sweeps, in rows.
const SWEEP_ROWS: usize = 128;

impl Writer {
    pub(super) fn compact(&mut self, keep_from: Revision, answer: Answer<()>) {
        if keep_from > self.state.revision {
            let _ = answer.send(Err(Error::Future { asked: keep_from, now: self.state.revision }));
            return;
        }
        let keep_from = {
            let mut index = self.shared.index_mut();
            let inside = index.holes.iter().find(|&&(first, last)| first <= keep_from && keep_from < last);
            let keep_from = inside.map_or(keep_from, |&(_, last)| last);
            index.oldest = index.oldest.max(keep_from);
            keep_from
        };
        self.sweep_failed = false;
        self.sweeping.push(answer);
        let noted = self.in_transaction(Sync::Later, |_, state| {
            state.oldest = state.oldest.max(keep_from);
            Ok(())
        });
        match noted {
            Ok(()) if self.sweep_due() => {}
            done => self.swept(done),
        }
    }

    pub(super) fn sweep_due(&self) -> bool {
        self.state.swept < log::position(self.state.oldest, 0) && !self.sweep_failed && self.trouble.is_none()
    }

    pub(super) fn swept(&mut self, done: Result<(), Error>) {
        for answer in self.sweeping.drain(..) {
            let _ = answer.send(done.clone());
        }
    }

    /// Removes some of the rows that were overwritten before the oldest revision.
    pub(super) fn sweep(&mut self) {
        // A crash only repeats it, so it need not be durable.
        let done = self.in_transaction(Sync::Later, sweep_some);
        match done {
            Ok(deleted) => {
                self.wal_pages += 2 + SWEEP_ROWS as u64 / 4;
                let mut index = self.shared.index_mut();
                for (key, place) in deleted {
                    if index.keys.get(&key) == Some(&-place) {
                        index.keys.remove(&key);
                    }
                }
                let oldest = index.oldest;
                index.holes.retain(|&(_, last)| last >= oldest);
                drop(index);
                if !self.sweep_due() {
                    self.swept(Ok(()));
                }
            }
            Err(error) => {
                tracing::error!("failed to sweep compacted history: {error}");
                self.sweep_failed = true;
                self.swept(Err(error));
            }
        }
    }
}

/// Processes the next rows before `oldest`: removes the rows that they replaced, and themselves if they are deletions. Returns
/// those deletions.
fn sweep_some(db: &Connection, state: &mut StoreState) -> Result<Vec<(Arc<str>, Position)>, Error> {
    let until = log::position(state.oldest, 0);
    let rows = log::outline(db, state.swept, until, SWEEP_ROWS)?;
    state.swept = match rows.last() {
        Some(last) if rows.len() == SWEEP_ROWS => last.place + 1,
        _ => until,
    };
    let mut deletions = Vec::new();
    for row in rows {
        if row.prior > 0 {
            remove(db, state, row.prior)?;
        }
        if row.deletion {
            remove(db, state, row.place)?;
            deletions.push((row.key, row.place));
        }
    }
    if state.swept == until {
        log::forget_holes(db, state)?;
    }
    Ok(deletions)
}

fn remove(db: &Connection, state: &mut StoreState, place: Position) -> Result<(), Error> {
    let Some(weight) = log::delete(db, place)? else {
        return Err(Error::Damaged(format!("row {place} is missing")));
    };
    state.subtract(weight);
    Ok(())
}

//! The one thread that writes: commits what has queued up in one SQLite transaction and one fsync, then publishes it.
//!
//! In idle moments it sweeps out compacted rows, makes relaxed writes durable, and takes the write-ahead log back into
//! the file. Of a long log the bulk is copied by a helper thread while writing goes on.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    time::{Duration, Instant},
};

use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

use super::{
    Shared,
    lock::Lock,
    log::{self, Place, Row, State, revision_of},
};
use crate::store::{Change, Compare, Durability, Entry, Error, Outcome, Revision, Txn};

pub const CACHE_KIB: u32 = 2048;

/// Limits of one group commit.
const GROUP_TXNS: usize = 256;
const GROUP_BYTES: usize = 4 << 20;
/// Relaxed writes are durable after this long, whatever happens. An idle cluster's Leases make one fsync of it.
const LAZY: Duration = Duration::from_secs(20);
/// So many revisions are reserved for relaxed writes with one fsync.
const RESERVE: u64 = 10_000;
/// A write-ahead log of this many pages is taken back into the file, after a second without a write; or at once.
const WAL_PAGES_IDLE: u64 = 1_000;
const WAL_PAGES_MAX: u64 = 4_000;
const IDLE: Duration = Duration::from_secs(1);
/// What of a long log the writer may take back by itself, in the way of commits.
const WAL_PAGES_QUICK: u64 = 500;
/// History swept out in one go, in rows read.
const SWEEP_ROWS: usize = 128;

type Answer<T> = oneshot::Sender<Result<T, Error>>;

pub enum Job {
    Commit(Txn, Answer<Outcome>),
    Compact(Revision, Answer<()>),
    /// The helper has copied what it could; so many pages of the log are left.
    Copied(u64),
    Close(Answer<()>),
}

pub struct Writer {
    db: Connection,
    lock: Lock,
    shared: Arc<Shared>,
    queue: Receiver<Job>,
    /// For the helper's report.
    jobs: Sender<Job>,
    /// As in the file.
    state: State,
    /// SQLite's `synchronous` as set: whether a commit waits for an fsync.
    full: bool,
    /// Since when there has been an acknowledged write that may not be durable.
    unsynced: Option<Instant>,
    /// A sweep that failed is tried again at the next compaction.
    sweep_failed: bool,
    /// Callers that wait for the sweep's end.
    sweeping: Vec<Answer<()>>,
    /// Pages in the write-ahead log, more or less.
    wal_pages: u64,
    copying: bool,
    /// After a failed fsync nobody knows what is durable: no more writes.
    failed: Option<Error>,
}

/// When a transaction is to be on the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sync {
    Later,
    /// Now, unless it changes nothing.
    Now,
    /// Now, with all that was to be there later.
    All,
}

/// A group commit under way.
struct Group {
    state: State,
    /// Keys changed in the group: where their newest version will stand, and what it is.
    newest: HashMap<Arc<str>, (Place, Option<Entry>)>,
    changes: Vec<Change>,
    bytes: usize,
}

impl Writer {
    pub fn new(
        db: Connection,
        lock: Lock,
        shared: Arc<Shared>,
        queue: Receiver<Job>,
        jobs: Sender<Job>,
        state: State,
    ) -> Writer {
        let (unsynced, sweeping, sweep_failed, failed) = (None, Vec::new(), false, None);
        Writer {
            db,
            lock,
            shared,
            queue,
            jobs,
            state,
            full: true,
            unsynced,
            sweep_failed,
            sweeping,
            wal_pages: 0,
            copying: false,
            failed,
        }
    }

    pub fn run(mut self) {
        if let Err(e) = self.lock.note_holder() {
            tracing::warn!("note the store's holder in its lock file: {e}");
        }
        let mut held_back = None;
        let mut last_write = Instant::now();
        loop {
            let job = match held_back.take() {
                Some(job) => Ok(job),
                None => self.queue.recv_timeout(self.patience(last_write)),
            };
            match job {
                Ok(Job::Commit(txn, answer)) => {
                    held_back = self.commit_group(txn, answer);
                    last_write = Instant::now();
                }
                Ok(Job::Compact(keep_from, answer)) => self.compact(keep_from, answer),
                Ok(Job::Copied(left)) => self.finish_copying(left),
                Ok(Job::Close(answer)) => {
                    let _ = answer.send(self.close());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.chores(last_write);
        }
    }

    /// How long to wait for a job before something else is due.
    fn patience(&self, last_write: Instant) -> Duration {
        if self.sweep_due() {
            return Duration::ZERO;
        }
        let lazy = self.unsynced.map(|since| since + LAZY);
        let checkpoint = (self.wal_pages >= WAL_PAGES_IDLE && !self.copying).then(|| last_write + IDLE);
        let due = lazy.into_iter().chain(checkpoint).min();
        due.map_or(Duration::from_secs(3600), |due| due.saturating_duration_since(Instant::now()))
    }

    fn chores(&mut self, last_write: Instant) {
        if self.failed.is_some() {
            return;
        }
        if self.sweep_due() {
            self.sweep();
        }
        if self.unsynced.is_some_and(|since| since.elapsed() >= LAZY)
            && let Err(error) = self.in_transaction(Sync::All, |_, _| Ok(()))
        {
            tracing::error!("make relaxed writes durable: {error}");
        }
        let idle = self.wal_pages >= WAL_PAGES_IDLE && last_write.elapsed() >= IDLE;
        if !self.copying && (idle || self.wal_pages >= WAL_PAGES_MAX) {
            self.copy_in_background();
        }
    }

    /// Runs `change` on the file and the state, and commits; or neither file nor state has changed.
    fn in_transaction<T>(
        &mut self,
        sync: Sync,
        change: impl FnOnce(&Connection, &mut State) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let full = sync != Sync::Later;
        if self.full != full {
            self.db
                .execute_batch(if full { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" })
                .map_err(log::sql)?;
            self.full = full;
        }
        let run = |sql| self.db.prepare_cached(sql).and_then(|mut s| s.execute([])).map_err(|e| (log::sql(e), false));
        let attempt = || {
            run("BEGIN IMMEDIATE")?;
            let mut state = self.state;
            let done = change(&self.db, &mut state).map_err(|e| (e, false))?;
            if state == self.state && sync != Sync::All {
                run("ROLLBACK")?;
                return Ok((done, state, false));
            }
            state.save(&self.db).map_err(|e| (e, false))?;
            let mut commit = self.db.prepare_cached("COMMIT").map_err(|e| (log::sql(e), false))?;
            commit.execute([]).map_err(|e| (log::sql_ref(&e), is_io(&e)))?;
            Ok((done, state, full))
        };
        match attempt() {
            Ok((done, state, synced)) => {
                self.state = state;
                if synced {
                    self.unsynced = None;
                }
                Ok(done)
            }
            Err((error, unknown)) => {
                if !self.db.is_autocommit() {
                    let _ = self.db.execute_batch("ROLLBACK");
                }
                if unknown {
                    tracing::error!("the store takes no more writes: {error}");
                    self.failed = Some(error.clone());
                }
                Err(error)
            }
        }
    }

    /// Commits the transaction with all those queued behind it. Gives back the first job that is something else.
    fn commit_group(&mut self, txn: Txn, answer: Answer<Outcome>) -> Option<Job> {
        let mut bytes = size(&txn);
        let (mut txns, mut answers, mut other) = (vec![txn], vec![answer], None);
        while other.is_none() && txns.len() < GROUP_TXNS && bytes < GROUP_BYTES {
            match self.queue.try_recv() {
                Ok(Job::Commit(txn, answer)) => {
                    bytes += size(&txn);
                    txns.push(txn);
                    answers.push(answer);
                }
                Ok(job) => other = Some(job),
                Err(_) => break,
            }
        }
        match self.commit_all(txns) {
            Ok(outcomes) => {
                for (answer, outcome) in answers.into_iter().zip(outcomes) {
                    // Nobody may be waiting any more.
                    let _ = answer.send(outcome);
                }
            }
            Err(error) => {
                for answer in answers {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
        other
    }

    fn commit_all(&mut self, txns: Vec<Txn>) -> Result<Vec<Result<Outcome, Error>>, Error> {
        let relaxed = txns.iter().any(|txn| txn.durability == Durability::Relaxed);
        let reserved = self.state.ceiling.saturating_sub(self.state.revision);
        let full = txns.len() as u64 >= reserved || txns.iter().any(|txn| txn.durability == Durability::Full);
        let shared = self.shared.clone();
        let sync = match full {
            false => Sync::Later,
            true if self.unsynced.is_none() => Sync::Now,
            // Even an outcome without effect rests on what it has seen.
            true => Sync::All,
        };
        let (outcomes, group) = self.in_transaction(sync, |db, state| {
            let (newest, changes) = (HashMap::new(), Vec::new());
            let mut group = Group { state: *state, newest, changes, bytes: 0 };
            let mut outcomes = Vec::with_capacity(txns.len());
            for txn in txns {
                outcomes.push(group.apply(&shared, db, txn)?);
            }
            *state = group.state;
            if full && relaxed && reserved < RESERVE / 2 {
                state.ceiling = state.revision + RESERVE;
            }
            Ok((outcomes, group))
        })?;
        if !group.changes.is_empty() {
            self.wal_pages += 3 + group.bytes as u64 / 3000;
            if !full {
                self.unsynced.get_or_insert_with(Instant::now);
            }
            let places = group.newest.into_iter().map(|(key, (place, _))| (key, place));
            self.shared.index_mut().publish(self.state.revision, places, group.changes);
        }
        Ok(outcomes)
    }

    fn compact(&mut self, keep_from: Revision, answer: Answer<()>) {
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

    fn sweep_due(&self) -> bool {
        self.state.swept < log::place(self.state.oldest, 0) && !self.sweep_failed && self.failed.is_none()
    }

    fn swept(&mut self, done: Result<(), Error>) {
        for answer in self.sweeping.drain(..) {
            let _ = answer.send(done.clone());
        }
    }

    /// Removes some of the rows that were overwritten before the oldest revision.
    fn sweep(&mut self) {
        // A crash repeats it, so it need not be durable.
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
                tracing::error!("sweep compacted history: {error}");
                self.sweep_failed = true;
                self.swept(Err(error));
            }
        }
    }

    /// Has a helper thread copy the log into the file; it reports with a job.
    fn copy_in_background(&mut self) {
        let (path, jobs) = (self.shared.path.clone(), self.jobs.clone());
        let copy = move || {
            let copied = log::connect(&path, false, super::READER_CACHE_KIB).and_then(|db| checkpoint(&db, "PASSIVE"));
            let _ = jobs.send(Job::Copied(copied.unwrap_or_else(|error| {
                tracing::error!("copy the write-ahead log: {error}");
                u64::MAX
            })));
        };
        self.copying = std::thread::Builder::new().name("store-copy".to_owned()).spawn(copy).is_ok();
    }

    /// Once little of the log is left, copies that as well: then the next commit starts the log over.
    fn finish_copying(&mut self, left: u64) {
        self.copying = false;
        self.wal_pages = match left {
            // Failed: try again, but not at once.
            u64::MAX => 0,
            left if left <= WAL_PAGES_QUICK => checkpoint(&self.db, "PASSIVE").unwrap_or(left),
            left => left + WAL_PAGES_MAX,
        };
    }

    fn close(&mut self) -> Result<(), Error> {
        let done = self.in_transaction(Sync::All, |_, state| {
            state.ceiling = 0;
            Ok(())
        });
        self.swept(Err(crate::store::closed()));
        {
            let mut index = self.shared.index_mut();
            index.closed = true;
            index.hub.clear();
        }
        self.shared.readers().clear();
        done?;
        // A reader may still hold on to the log; it stays then, and is taken in at the next start.
        checkpoint(&self.db, "PASSIVE").map(drop)
    }
}

impl Group {
    /// Does one transaction's writes. The outer error spoils the whole group, the inner one is the transaction's own.
    fn apply(&mut self, shared: &Shared, db: &Connection, txn: Txn) -> Result<Result<Outcome, Error>, Error> {
        let holds = txn.compares.iter().all(|compare| {
            let (key, wanted) = compare.parts();
            self.place(shared, key).map_or(0, revision_of) == wanted
        });
        if !holds {
            let entry = |compare: &Compare| self.entry(shared, db, compare.parts().0);
            return Ok(txn.compares.iter().map(entry).collect::<Result<_, _>>().map(Outcome::Refused));
        }
        let writes = txn.net_writes();
        if writes.len() > log::MAX_WRITES {
            return Ok(Err(Error::Io(format!("{} writes in one transaction", writes.len()))));
        }
        // All that can fail for this transaction alone comes before the first write.
        let mut planned = Vec::with_capacity(writes.len());
        for (key, value) in writes {
            let before = match self.entry(shared, db, &key) {
                Ok(before) => before,
                Err(error) => return Ok(Err(error)),
            };
            if before.is_some() || value.is_some() {
                planned.push((key, value, before));
            }
        }
        if planned.is_empty() {
            return Ok(Ok(Outcome::Committed(self.state.revision)));
        }
        self.state.revision += 1;
        let count = planned.len();
        for (change, (key, value, before)) in planned.into_iter().enumerate() {
            let key: Arc<str> = before.as_ref().map_or_else(|| key.into(), |e| e.key.clone());
            let row = Row {
                place: log::place(self.state.revision, change),
                prior: self.newest_place(shared, &key),
                created: before.as_ref().map_or(self.state.revision, |e| e.create_revision),
                last: change + 1 == count,
                key,
                value,
            };
            self.append(db, row, before)?;
        }
        Ok(Ok(Outcome::Committed(self.state.revision)))
    }

    fn append(&mut self, db: &Connection, row: Row, before: Option<Entry>) -> Result<(), Error> {
        let checksum = row.checksum();
        row.insert(db, checksum)?;
        self.state.add(log::weight(row.place, checksum));
        self.bytes += row.key.len() + row.value.as_ref().map_or(0, |v| v.len());
        let now = row.entry();
        self.newest.insert(row.key.clone(), (row.signed_place(), now.clone()));
        self.changes.push(Change { key: row.key, revision: self.state.revision, now, before });
        Ok(())
    }

    /// Where the newest version stands, or the newest deletion (negative); 0: unknown key.
    fn newest_place(&self, shared: &Shared, key: &str) -> Place {
        match self.newest.get(key) {
            Some(&(place, _)) => place,
            None => shared.index().keys.get(key).copied().unwrap_or(0),
        }
    }

    fn place(&self, shared: &Shared, key: &str) -> Option<Place> {
        Some(self.newest_place(shared, key)).filter(|&place| place > 0)
    }

    fn entry(&self, shared: &Shared, db: &Connection, key: &str) -> Result<Option<Entry>, Error> {
        if let Some((_, entry)) = self.newest.get(key) {
            return Ok(entry.clone());
        }
        let place = shared.index().place(key);
        place.map_or(Ok(None), |place| Ok(log::resolve(db, place, key)?.entry()))
    }
}

/// Looks at the next rows before `oldest`: what they replaced goes, and they themselves if they are deletions. Returns
/// those deletions.
fn sweep_some(db: &Connection, state: &mut State) -> Result<Vec<(Arc<str>, Place)>, Error> {
    let until = log::place(state.oldest, 0);
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

fn remove(db: &Connection, state: &mut State, place: Place) -> Result<(), Error> {
    let Some(weight) = log::delete(db, place)? else {
        return Err(Error::Damaged(format!("row {place} is missing")));
    };
    state.subtract(weight);
    Ok(())
}

/// Copies the log into the file as far as readers let it. Returns how many pages are left.
fn checkpoint(db: &Connection, mode: &str) -> Result<u64, Error> {
    let (pages, copied): (i64, i64) = db
        .query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| Ok((row.get(1)?, row.get(2)?)))
        .map_err(log::sql)?;
    Ok((pages - copied).max(0) as u64)
}

/// Whether a failed commit may still turn out to be durable, or earlier ones not to be.
fn is_io(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure)
}

fn size(txn: &Txn) -> usize {
    let write = |write: &crate::store::Write| match write {
        crate::store::Write::Put(key, value) => key.len() + value.len(),
        crate::store::Write::Delete(key) => key.len(),
    };
    txn.writes.iter().map(write).sum()
}

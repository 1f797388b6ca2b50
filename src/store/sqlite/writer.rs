//! The writer thread: commits the queue in one SQLite transaction with one fsync, then publishes it.
//!
//! When idle, it sweeps compacted rows, makes relaxed writes durable, and checkpoints the write-ahead log. Most of a long log is
//! copied by a helper thread while writing continues.

mod group;
mod recovery;
mod sweep;

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    time::{Duration, Instant},
};

use rusqlite::{Connection, ErrorCode, config::DbConfig};
use tokio::sync::oneshot;

use super::{
    Shared,
    lock::Lock,
    log::{self, StoreState},
};
use crate::{Durability, Error, Outcome, Revision, Txn};
use group::Group;
use recovery::{Found, Outage};

pub const CACHE_KIB: u32 = 2048;

/// Limits of one group commit.
const GROUP_TXNS: usize = 256;
const GROUP_BYTES: usize = 4 << 20;
/// Relaxed writes are durable after this long in any case. An idle cluster's Leases cause one fsync per this time.
const LAZY: Duration = Duration::from_secs(20);
/// How many revisions one fsync reserves for relaxed writes.
const RESERVE: u64 = 10_000;
/// A write-ahead log of this many pages is checkpointed, after a second without a write; or at once.
const WAL_PAGES_IDLE: u64 = 1_000;
const WAL_PAGES_MAX: u64 = 4_000;
const IDLE: Duration = Duration::from_secs(1);
/// A durable write this recent proves that others are possible: frequent checks do not cost an fsync each.
const PROVEN: Duration = Duration::from_secs(15);
/// How much of a long log the writer itself may checkpoint, delaying commits.
const WAL_PAGES_QUICK: u64 = 500;
type Answer<T> = oneshot::Sender<Result<T, Error>>;

pub enum Job {
    Commit(Txn, Answer<Outcome>),
    Compact(Revision, Answer<()>),
    /// The helper has copied what it could; this many pages of the log are left.
    Copied(Result<u64, Failure>),
    /// Proves that writes can be made durable.
    Prove(Answer<()>),
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
    state: StoreState,
    /// SQLite's current `synchronous` setting: whether a commit waits for an fsync.
    full: bool,
    /// Since when there has been an acknowledged write that may not be durable.
    unsynced: Option<Instant>,
    /// A failed sweep is retried at the next compaction.
    sweep_failed: bool,
    /// Callers that wait for the end of the sweep.
    sweeping: Vec<Answer<()>>,
    /// The approximate number of pages in the write-ahead log.
    wal_pages: u64,
    copying: bool,
    /// The time of the last durable write.
    proven: Option<Instant>,
    /// After a failed fsync it is unknown what is durable: no more writes until the file is recovered.
    trouble: Option<Outage>,
}

/// Why a transaction failed.
pub struct Failure {
    error: Error,
    /// It may still turn out to be durable, or earlier ones not to be.
    is_unknown: bool,
}

impl Failure {
    fn known(error: Error) -> Failure {
        Failure { error, is_unknown: false }
    }

    fn of_sql(error: &rusqlite::Error) -> Failure {
        Failure { error: log::sql_ref(error), is_unknown: is_io(error) }
    }
}

/// When a transaction must be durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sync {
    Later,
    /// Now, unless it changes nothing.
    Now,
    /// Now, with all deferred ones.
    All,
}

impl Writer {
    pub fn new(
        db: Connection,
        lock: Lock,
        shared: Arc<Shared>,
        queue: Receiver<Job>,
        jobs: Sender<Job>,
        state: StoreState,
    ) -> Writer {
        let (unsynced, sweeping, sweep_failed, trouble) = (None, Vec::new(), false, None);
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
            // Opening may not have written anything.
            proven: None,
            trouble,
        }
    }

    pub fn run(mut self) {
        self.note_holder();
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
                Ok(Job::Prove(answer)) => {
                    let _ = answer.send(self.prove());
                }
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

    fn note_holder(&mut self) {
        if let Err(e) = self.lock.note_holder() {
            tracing::warn!("failed to record the store's holder in its lock file: {e}");
        }
    }

    /// How long to wait for a job before something else is due.
    fn patience(&self, last_write: Instant) -> Duration {
        if self.sweep_due() {
            return Duration::ZERO;
        }
        if let Some(trouble) = &self.trouble {
            return trouble.patience();
        }
        let lazy = self.unsynced.map(|since| since + LAZY);
        let checkpoint = (self.wal_pages >= WAL_PAGES_IDLE && !self.copying).then(|| last_write + IDLE);
        let due = lazy.into_iter().chain(checkpoint).min();
        due.map_or(Duration::from_secs(3600), |due| due.saturating_duration_since(Instant::now()))
    }

    fn chores(&mut self, last_write: Instant) {
        if self.trouble.as_ref().is_some_and(Outage::is_due) {
            self.recover();
        }
        if self.trouble.is_some() {
            return;
        }
        if self.sweep_due() {
            self.sweep();
        }
        if self.unsynced.is_some_and(|since| since.elapsed() >= LAZY)
            && let Err(error) = self.in_transaction(Sync::All, |_, _| Ok(()))
        {
            tracing::error!("failed to make relaxed writes durable: {error}");
        }
        let idle = self.wal_pages >= WAL_PAGES_IDLE && last_write.elapsed() >= IDLE;
        if !self.copying && (idle || self.wal_pages >= WAL_PAGES_MAX) {
            self.copy_in_background();
        }
    }

    /// Runs `change` on the file and the state, and commits; on failure neither has changed. If the result is unknown, the file is
    /// recovered at once to find out.
    fn in_transaction<T>(
        &mut self,
        sync: Sync,
        change: impl FnOnce(&Connection, &mut StoreState) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(trouble) = &self.trouble {
            return Err(trouble.why.clone());
        }
        let mut attempted = None;
        let ended = self.attempt(sync, change, &mut attempted);
        match (ended, attempted) {
            (Ok(()), Some((done, _))) => Ok(done),
            (Ok(()), None) => Err(Error::Io("a transaction without an outcome".to_owned())),
            (Err(Failure { error, is_unknown: false }), _) => Err(error),
            (Err(Failure { error, .. }), attempted) => {
                let (done, state) = attempted.unzip();
                match (self.in_trouble(error.clone(), state), done) {
                    (Some(Found::Attempted), Some(done)) => Ok(done),
                    _ => Err(error),
                }
            }
        }
    }

    /// One attempt of a transaction. `attempted` receives its result, and the resulting state, as soon as they are known.
    fn attempt<T>(
        &mut self,
        sync: Sync,
        change: impl FnOnce(&Connection, &mut StoreState) -> Result<T, Error>,
        attempted: &mut Option<(T, StoreState)>,
    ) -> Result<(), Failure> {
        let full = sync != Sync::Later;
        if self.full != full {
            self.db
                .execute_batch(if full { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" })
                .map_err(|e| Failure::known(log::sql(e)))?;
            self.full = full;
        }
        let run = |sql| {
            let done = self.db.prepare_cached(sql).and_then(|mut s| s.execute([]));
            done.map_err(|e| Failure::known(log::sql(e)))
        };
        let commit = || -> Result<(StoreState, bool), Failure> {
            run("BEGIN IMMEDIATE")?;
            let mut state = self.state;
            let done = change(&self.db, &mut state).map_err(Failure::known)?;
            let is_changed = state != self.state;
            *attempted = Some((done, state));
            if !is_changed && sync != Sync::All {
                run("ROLLBACK")?;
                return Ok((state, false));
            }
            state.save(&self.db).map_err(Failure::known)?;
            let mut commit = self.db.prepare_cached("COMMIT").map_err(|e| Failure::known(log::sql(e)))?;
            commit.execute([]).map_err(|e| Failure::of_sql(&e))?;
            Ok((state, full))
        };
        match commit() {
            Ok((state, synced)) => {
                self.state = state;
                if synced {
                    self.unsynced = None;
                    self.proven = Some(Instant::now());
                }
                Ok(())
            }
            Err(mut failure) => {
                self.proven = None;
                if !self.db.is_autocommit() && self.db.execute_batch("ROLLBACK").is_err() {
                    // If even the rollback fails, the file must be recovered.
                    failure.is_unknown = true;
                }
                Err(failure)
            }
        }
    }

    /// Proves that writes can be made durable: by a recent one, or by one without effect.
    fn prove(&mut self) -> Result<(), Error> {
        if let Some(trouble) = &self.trouble {
            return Err(trouble.why.clone());
        }
        recovery::check_room(&self.shared.path)?;
        match self.proven {
            Some(at) if at.elapsed() < PROVEN => Ok(()),
            _ => self.in_transaction(Sync::All, |_, _| Ok(())),
        }
    }

    /// Commits the transaction with all those queued after it. Returns the first other job.
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
                    // The caller may have given up.
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
            // Even a result without effect depends on what it has read.
            true => Sync::All,
        };
        let (outcomes, group) = self.in_transaction(sync, |db, state| {
            let mut group = Group::new(*state);
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
            if full {
                self.note_holder();
            }
            self.wal_pages += 3 + group.bytes as u64 / 3000;
            if !full {
                self.unsynced.get_or_insert_with(Instant::now);
            }
            let places = group.newest.into_iter().map(|(key, (place, _))| (key, place));
            let mut index = self.shared.index_mut();
            // After a recovery, changes found in the file have been published already.
            if index.revision < self.state.revision {
                index.publish(self.state.revision, places, group.changes);
            }
        }
        Ok(outcomes)
    }

    /// Starts a helper thread to copy the log into the file; it reports with a job.
    fn copy_in_background(&mut self) {
        let (shared, jobs) = (self.shared.clone(), self.jobs.clone());
        let copy = move || {
            let copied = match shared.reader() {
                Ok(db) => checkpoint(&db, "PASSIVE"),
                Err(error) => Err(Failure::known(error)),
            };
            let _ = jobs.send(Job::Copied(copied));
        };
        self.copying = std::thread::Builder::new().name("store-copy".to_owned()).spawn(copy).is_ok();
    }

    /// Once little of the log is left, copies that as well: then the next commit restarts the log.
    fn finish_copying(&mut self, copied: Result<u64, Failure>) {
        self.copying = false;
        let copied = match copied {
            Ok(left) if left <= WAL_PAGES_QUICK && self.trouble.is_none() => checkpoint(&self.db, "PASSIVE"),
            Ok(left) => Ok(left + WAL_PAGES_MAX),
            Err(failure) => Err(failure),
        };
        match copied {
            Ok(left) => self.wal_pages = left,
            Err(Failure { error, is_unknown }) => {
                tracing::error!("failed to checkpoint the write-ahead log: {error}");
                // It is retried, but not at once.
                self.wal_pages = 0;
                if is_unknown && self.trouble.is_none() {
                    // Copied pages may not be on the disk, though SQLite assumes so.
                    self.in_trouble(error, None);
                }
            }
        }
    }

    fn close(&mut self) -> Result<(), Error> {
        if self.trouble.as_ref().is_some_and(|trouble| !trouble.is_lost) {
            self.recover();
        }
        let done = self.in_transaction(Sync::All, |_, state| {
            state.ceiling = 0;
            Ok(())
        });
        self.swept(Err(crate::closed()));
        {
            let mut index = self.shared.index_mut();
            index.closed = true;
            index.hub.clear();
        }
        self.shared.readers.close();
        done?;
        // A reader may still use the log; then it stays, and is recovered at the next start.
        if checkpoint(&self.db, "PASSIVE").map_err(|failure| failure.error)? == 0 && self.lock.note_complete().is_ok() {
            self.db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(log::sql)?;
        }
        Ok(())
    }
}

/// Checkpoints the log as far as readers allow. Returns how many pages are left.
fn checkpoint(db: &Connection, mode: &str) -> Result<u64, Failure> {
    let (pages, copied): (i64, i64) = db
        .query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| Ok((row.get(1)?, row.get(2)?)))
        .map_err(|e| Failure::of_sql(&e))?;
    Ok((pages - copied).max(0) as u64)
}

/// Whether a failed commit may still turn out to be durable, or earlier ones not to be.
fn is_io(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure)
}

fn size(txn: &Txn) -> usize {
    let write = |write: &crate::Write| match write {
        crate::Write::Put(key, value) => key.len() + value.len(),
        crate::Write::Delete(key) => key.len(),
    };
    txn.writes.iter().map(write).sum()
}

//! Recovery from an I/O error with an unknown result on disk: the file is reopened and verified, and writing continues.
//!
//! Linux reports a failed write once, and then serves the bytes from the page cache though they are not on the disk. So nothing in
//! memory is trusted, and everything that may be missing is written again:
//!
//! 1. every connection is closed, so that SQLite forgets the state of the log;
//! 2. the write-ahead log's bytes are written over themselves, and fsynced;
//! 3. the file is opened; SQLite checks the log, frame by frame;
//! 4. every row is verified, and that the file is in an expected state: before or after the attempted transaction;
//! 5. all of the log is copied into the file, and fsynced;
//! 6. a write proves that it works.
//!
//! Further I/O errors lead to retries with growing delay; until then the store is read-only. A file that is damaged, or lacks
//! acknowledged writes, is `Health::Lost`: the process must exit and report it.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use rusqlite::Connection;

use super::{CACHE_KIB, Failure, Sync, Writer, checkpoint};
use crate::{
    Error,
    health::Health,
    sqlite::{
        index::Index,
        layout,
        log::{self, StoreState},
        read_history, sync_folder,
    },
};

/// How long to wait for readers, each time: new ones wait meanwhile.
const READERS_LEAVE: Duration = Duration::from_secs(2);
/// The delay between two attempts, which doubles.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// With less free space on the disk writes are refused.
const ROOM: u64 = 1 << 20;

/// Why nothing is written.
pub struct Outage {
    pub why: Error,
    /// The state after the last transaction, if it was committed, which is unknown.
    attempted: Option<StoreState>,
    retry: Duration,
    next: Instant,
    /// It is not retried.
    pub is_lost: bool,
}

impl Outage {
    pub fn is_due(&self) -> bool {
        !self.is_lost && Instant::now() >= self.next
    }

    pub fn patience(&self) -> Duration {
        match self.is_lost {
            true => Duration::from_secs(3600),
            false => self.next.saturating_duration_since(Instant::now()),
        }
    }
}

/// The state in which the file was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Before the last attempt.
    Before,
    /// After it: it was committed.
    Attempted,
}

impl Writer {
    /// Handles an error with an unknown result on disk, and tries to recover the file at once. Returns the state in which it was
    /// found, if it is good again.
    pub(super) fn in_trouble(&mut self, why: Error, attempted: Option<StoreState>) -> Option<Found> {
        tracing::error!("reopening the store's file, because its state on disk is unknown: {why}");
        self.shared.health.send_replace(Health::Trouble(why.clone()));
        self.trouble = Some(Outage { why, attempted, retry: RETRY.0, next: Instant::now(), is_lost: false });
        self.recover()
    }

    /// Tries to recover the file; see the module.
    pub(super) fn recover(&mut self) -> Option<Found> {
        let mut trouble = self.trouble.take()?;
        let why = match self.reopen(trouble.attempted) {
            Ok(found) => {
                tracing::warn!("the store accepts writes again: no acknowledged write was lost");
                self.shared.health.send_replace(Health::Good);
                return Some(found);
            }
            Err(why) => why,
        };
        trouble.is_lost = matches!(why, Error::Damaged(_));
        if trouble.is_lost {
            tracing::error!("the store has failed for good: {why}");
            self.shared.health.send_replace(Health::Lost(why.clone()));
        } else {
            tracing::error!("the store accepts no writes; retrying in {:?}: {why}", trouble.retry);
            self.shared.health.send_replace(Health::Trouble(why.clone()));
        }
        trouble.why = why;
        trouble.next = Instant::now() + trouble.retry;
        trouble.retry = (trouble.retry * 2).min(RETRY.1);
        self.trouble = Some(trouble);
        None
    }

    fn reopen(&mut self, attempted: Option<StoreState>) -> Result<Found, Error> {
        let shared = self.shared.clone();
        let pause = shared.readers.pause(READERS_LEAVE);
        let pause = pause.ok_or_else(|| Error::Io("somebody still reads".to_owned()))?;
        // A placeholder until there is a good connection.
        self.db = Connection::open_in_memory().map_err(log::sql)?;
        write_again(&shared.path).map_err(|e| Error::Io(format!("write the log again: {e}")))?;
        sync_folder(&shared.path)?;
        let db = log::keep_log(log::connect(&shared.path, false, CACHE_KIB)?)?;
        layout::prepare_again(&db)?;
        let state = StoreState::load(&db)?;
        drop(pause);
        let found = match state {
            state if state == self.state => Found::Before,
            state if Some(state) == attempted => Found::Attempted,
            state => {
                let (has, wanted) = (state.revision, self.state.revision);
                return Err(Error::Damaged(format!(
                    "the disk lost writes that were acknowledged: the file is at revision {has}, not at {wanted}"
                )));
            }
        };
        let index = Index::load(&db, &state)?;
        match checkpoint(&db, "PASSIVE").map_err(|failure| failure.error)? {
            0 => {}
            left => return Err(Error::Io(format!("{left} pages of the log could not be copied"))),
        }
        self.db = db;
        (self.full, self.state, self.wal_pages) = (true, state, 0);
        self.attempt(Sync::All, |_, _| Ok(()), &mut None).map_err(|Failure { error, .. }| error)?;
        self.publish(index)?;
        Ok(found)
    }

    /// Publishes what readers have not seen of the file.
    fn publish(&mut self, found: Index) -> Result<(), Error> {
        let mut index = self.shared.index_mut();
        while index.revision < self.state.revision {
            let piece = read_history(&self.db, "", index.revision, self.state.revision, &found.holes)?;
            index.publish(piece.reached, std::iter::empty(), piece.changes);
        }
        (index.keys, index.holes) = (found.keys, found.holes);
        Ok(())
    }
}

/// Makes the kernel write the log's bytes to the disk again, whatever it believes to be there. No connection may be open: closing a
/// file drops the process' locks on it.
fn write_again(path: &Path) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    let log = match File::options().read(true).write(true).open(Path::new(&name)) {
        // Everything is in the file.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        log => log?,
    };
    let (mut piece, mut at) = (vec![0; 1 << 18], 0);
    loop {
        match log.read_at(&mut piece, at)? {
            0 => return log.sync_all(),
            read => {
                log.write_all_at(&piece[..read], at)?;
                at += read as u64;
            }
        }
    }
}

/// Refuses a full disk: unlike the proving write, the next real one would need space.
pub(super) fn check_room(path: &Path) -> Result<(), Error> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |e: rustix::io::Errno| Error::Io(format!("statvfs {}: {e}", folder.display()));
    let disk = rustix::fs::statvfs(folder).map_err(failed)?;
    // Root may use the reserved blocks.
    let blocks = if rustix::process::geteuid().is_root() { disk.f_bfree } else { disk.f_bavail };
    let free = blocks.saturating_mul(disk.f_frsize);
    match free < ROOM {
        true => Err(Error::Io(format!("the disk of {} is full: {free} bytes are left", folder.display()))),
        false => Ok(()),
    }
}

//! Connections for reading: a few are kept, all are counted, so that the file can be closed as a whole.

use std::{
    ops::Deref,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rusqlite::Connection;

use crate::Error;

/// How many are kept open.
const KEPT: usize = 4;
/// How long a read waits while the file is reopened, which usually takes far less.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Readers {
    state: Mutex<Pool>,
    changed: Condvar,
}

#[derive(Default)]
struct Pool {
    idle: Vec<Connection>,
    /// How many are in use.
    out: usize,
    /// No reads are possible, because the file is being reopened.
    paused: bool,
    closed: bool,
}

/// A connection in use.
pub struct Reading<'a> {
    readers: &'a Readers,
    /// Present until dropped.
    db: Option<Connection>,
}

/// No connection is open while this exists.
pub struct Pause<'a>(&'a Readers);

impl Readers {
    /// The pool is changed in steps that cannot panic halfway, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A kept connection, or a new one. Waits during a pause.
    pub fn take(&self, connect: impl FnOnce() -> Result<Connection, Error>) -> Result<Reading<'_>, Error> {
        let (mut pool, waited) = self
            .changed
            .wait_timeout_while(self.lock(), TIMEOUT, |pool| pool.paused)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(Error::Io("the file is being opened again".to_owned()));
        }
        pool.out += 1;
        // From here on it counts, and is returned in any case.
        let mut reading = Reading { readers: self, db: pool.idle.pop() };
        drop(pool);
        if reading.db.is_none() {
            reading.db = Some(connect()?);
        }
        Ok(reading)
    }

    /// Closes all connections and prevents new ones. Waits this long for those in use; `None`: it was not enough.
    pub fn pause(&self, patience: Duration) -> Option<Pause<'_>> {
        let mut pool = self.lock();
        pool.paused = true;
        pool.idle.clear();
        let pause = Pause(self);
        let (pool, waited) = self
            .changed
            .wait_timeout_while(pool, patience, |pool| pool.out > 0)
            .unwrap_or_else(PoisonError::into_inner);
        drop(pool);
        if waited.timed_out() { None } else { Some(pause) }
    }

    /// From now on none is kept.
    pub fn close(&self) {
        let mut pool = self.lock();
        pool.closed = true;
        pool.idle.clear();
    }
}

impl Deref for Reading<'_> {
    type Target = Connection;
    fn deref(&self) -> &Connection {
        // `take` always sets it.
        self.db.as_ref().expect("there until it is dropped")
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut pool = self.readers.lock();
        let db = self.db.take().filter(|_| !pool.closed && !pool.paused && pool.idle.len() < KEPT);
        // One that panicked during a transaction is not reused.
        pool.idle.extend(db.filter(|db| db.is_autocommit()));
        pool.out -= 1;
        drop(pool);
        self.readers.changed.notify_all();
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.lock().paused = false;
        self.0.changed.notify_all();
    }
}

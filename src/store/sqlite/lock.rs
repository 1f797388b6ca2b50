//! The lock that excludes a second process (or a second `open`) from a store.

use std::{
    fs::{File, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::Error;

/// Held while it lives. Its file, beside the store's, is kept: it also records that there is a store, and whether part of it is
/// only in the write-ahead log, in case one of those files vanishes.
pub struct Lock {
    file: File,
    /// The path of the write-ahead log.
    log: PathBuf,
    noted: bool,
}

/// How long a killed process may still hold it: a child between fork and exec has the file open as well.
const TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// In the lock file while the write-ahead log has data that the store's file lacks.
const LOG: &str = "log";

impl Lock {
    /// Fails if the store is in use, or existed and is gone.
    pub fn take(path: &Path) -> Result<Lock, Error> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let failed = |e: io::Error| Error::Io(format!("{}: {e}", Path::new(&name).display()));
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&name)
            .map_err(failed)?;
        let begun = Instant::now();
        let is_held = loop {
            match file.try_lock() {
                Ok(()) => break false,
                Err(TryLockError::WouldBlock) if begun.elapsed() < TIMEOUT => std::thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => break true,
                Err(TryLockError::Error(e)) => return Err(failed(e)),
            }
        };
        let mut holder = String::new();
        file.read_to_string(&mut holder).map_err(failed)?;
        if is_held {
            let holder = holder.trim();
            return Err(Error::Io(format!("{} is in use by another process ({holder})", path.display())));
        }
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let lock = Lock { file, log: log.into(), noted: false };
        let there = path.metadata().is_ok_and(|file| file.len() > 0);
        if !there && !holder.is_empty() {
            return Err(Error::Damaged(format!(
                "{} is missing or empty, though there has been a store",
                path.display()
            )));
        }
        if holder.contains(LOG) && !lock.has_log() {
            return Err(Error::Damaged(format!(
                "{} is missing or empty, and the last writes are in it alone. Put it back, or restore a backup; to go on without \
                 those writes, remove {}",
                lock.log.display(),
                Path::new(&name).display()
            )));
        }
        Ok(lock)
    }

    fn has_log(&self) -> bool {
        self.log.metadata().is_ok_and(|file| file.len() > 0)
    }

    /// Records, durably, who holds it, and that the write-ahead log is needed, once there is one. Must be called after writes.
    pub fn note_holder(&mut self) -> io::Result<()> {
        if !self.noted {
            self.noted = self.has_log();
            self.note(if self.noted { LOG } else { "" })?;
        }
        Ok(())
    }

    /// Records, durably, that the store's file is complete.
    pub fn note_complete(&mut self) -> io::Result<()> {
        self.noted = false;
        self.note("")
    }

    fn note(&mut self, log: &str) -> io::Result<()> {
        self.file.rewind()?;
        writeln!(self.file, "pid {:<10} {log:<3}", std::process::id())?;
        self.file.sync_data()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing alone is not enough: a child between fork and exec has the file open as well.
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_though_a_child_has_its_file_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("store.db");
        let lock = Lock::take(&path).expect("free");
        let _inherited = lock.file.try_clone().expect("a second descriptor");
        assert!(Lock::take(&path).is_err());
        drop(lock);
        assert!(Lock::take(&path).is_ok());
    }

    #[test]
    fn who_was_killed_may_hold_it_a_moment_longer() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("store.db");
        let lock = Lock::take(&path).expect("free");
        std::thread::scope(|scope| {
            let next = scope.spawn(|| Lock::take(&path).map(drop));
            std::thread::sleep(10 * PAUSE);
            assert!(!next.is_finished(), "it is held");
            drop(lock);
            next.join().expect("no panic").expect("it is free now");
        });
    }
}

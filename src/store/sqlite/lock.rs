//! The lock that keeps a second process (or a second `open`) out of a store.

use std::{
    fs::{File, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use crate::store::Error;

/// Held as long as it lives. Its file, beside the store's, stays behind: it also remembers that there has been a store, should
/// that file vanish.
pub struct Lock(File);

impl Lock {
    /// Errors: the store is in use, or it was there and is no more.
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
        let mut holder = String::new();
        file.read_to_string(&mut holder).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = holder.trim();
                return Err(Error::Io(format!("{} is in use by another process ({holder})", path.display())));
            }
            Err(TryLockError::Error(e)) => return Err(failed(e)),
        }
        let lock = Lock(file);
        let there = path.metadata().is_ok_and(|file| file.len() > 0);
        if !there && !holder.is_empty() {
            return Err(Error::Damaged(format!(
                "{} is missing or empty, though there has been a store",
                path.display()
            )));
        }
        Ok(lock)
    }

    /// Writes down who holds it.
    pub fn note_holder(&mut self) -> io::Result<()> {
        self.0.rewind()?;
        writeln!(self.0, "pid {:<10}", std::process::id())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing alone would not do: a child between its fork and its exec has the file open as well.
        let _ = self.0.unlock();
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
        let _inherited = lock.0.try_clone().expect("a second descriptor");
        assert!(Lock::take(&path).is_err());
        drop(lock);
        assert!(Lock::take(&path).is_ok());
    }
}

//! What the volumes of each namespace have of the one tmpfs that all Pods' Secrets and tokens are in. The agent writes it, so it
//! counts for no Pod's memory limit.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::atomic::PAGE;

/// A namespace may have that part of the tmpfs.
const PART: u64 = 4;

pub struct Shares {
    most: usize,
    /// What each volume has, and whose it is.
    held: Mutex<HashMap<PathBuf, (String, usize)>>,
}

impl Shares {
    /// The shares of this tmpfs.
    pub fn of(tmpfs: &Path) -> io::Result<Shares> {
        let size = rustix::fs::statvfs(tmpfs)?;
        // 0: it has no limit. Every inode counts as a page at least.
        let limits = [size.f_blocks * size.f_frsize, size.f_files * PAGE as u64];
        let most = limits.into_iter().filter(|limit| *limit > 0).min().unwrap_or(u64::MAX);
        Ok(Shares::new((most / PART) as usize))
    }

    fn new(most: usize) -> Shares {
        Shares { most, held: Mutex::default() }
    }

    /// The volume at this path takes so many bytes from now on. Errors: that would be too much for its namespace; it has what it
    /// had.
    pub fn hold(&self, path: &Path, namespace: &str, bytes: usize) -> Result<(), String> {
        let mut held = self.held();
        let others = held.iter().filter(|(of, (whose, _))| *whose == namespace && of.as_path() != path);
        let all = others.map(|(_, (_, bytes))| bytes).sum::<usize>() + bytes;
        if all > self.most {
            let most = self.most;
            return Err(format!(
                "the volumes of namespace {namespace} would have {all} bytes of this node's memory, and may have {most}"
            ));
        }
        held.insert(path.to_owned(), (namespace.to_owned(), bytes));
        Ok(())
    }

    /// The volumes below this folder are gone.
    pub fn forget(&self, folder: &Path) {
        self.held().retain(|path, _| !path.starts_with(folder));
    }

    fn held(&self) -> MutexGuard<'_, HashMap<PathBuf, (String, usize)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_its_share_and_no_more() {
        let shares = Shares::new(10 * PAGE);
        let hold = |path: &str, namespace: &str, pages: usize| shares.hold(Path::new(path), namespace, pages * PAGE);
        hold("/pod-1/a", "red", 5).unwrap();
        hold("/pod-1/b", "red", 5).unwrap();
        let refused = hold("/pod-2/a", "red", 1).unwrap_err();
        assert!(refused.contains("namespace red") && refused.contains("45056 bytes"), "{refused}");
        hold("/pod-3/a", "blue", 10).unwrap();
        // What shows something else has that alone.
        hold("/pod-1/b", "red", 1).unwrap();
        hold("/pod-2/a", "red", 4).unwrap();
        shares.forget(Path::new("/pod-1"));
        hold("/pod-4/a", "red", 6).unwrap();
    }
}

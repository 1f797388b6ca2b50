//! Deletes data of removed owners from disk. There may be millions of files, or other processes may block them: so a folder is
//! moved aside in one step, which frees its name without waiting, and its content is deleted in turns by owner.
//!
//! ```text
//!   <folder>  ->  .aside-<number>.<users>.<owner>, beside it
//! ```
//!
//! The name contains all that a later agent needs: whose turn it is, and the ids that the files may have, which are not reused
//! while any exist. If they were unknown, they are determined from the files that cannot be deleted. Nothing is synced: after a
//! power loss a folder has one name or the other, and is deleted under either.
//!
//! If the disk has no room for the new name, the folder is emptied in place, and the record of its owner goes last ([`OWNER`], a
//! sandbox's record). Without such a record, the files' ids are used: [`Owner::found_in`].

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::fair_pool::{FairPool, Job, Outcome};
use crate::owner::{SANDBOX, users_in};
use crate::spec::IdRange;
use podwright_sys::tree;

pub use crate::owner::{ALL, OWNER, Owner, Owners};

/// Deleted last from a folder that is emptied in place.
const LAST: [&str; 2] = [OWNER, SANDBOX];
/// Total time at startup for determining the ids of folders that do not record them.
pub const LOOK: Duration = Duration::from_secs(5);
const ASIDE: &str = ".aside-";
/// The duration of a turn.
const TURN: Duration = Duration::from_secs(1);
/// The initial delay before retrying what cannot be deleted; increases each time.
const SOON: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(60);
/// Owners with more folders left must wait.
const MOST: usize = 128;

/// Whether a name is that of something moved aside.
pub fn is_aside(name: &str) -> bool {
    name.starts_with(ASIDE)
}

/// What was moved aside in a folder.
pub fn asides(of: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(of).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_aside)).map(|entry| entry.path()).collect()
}

/// Whether the disk, or the owner's quota, is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

fn owner_of(name: &str) -> Option<Owner> {
    name.strip_prefix(ASIDE)?.split_once('.')?.1.parse().ok()
}

/// Names for moving a folder aside. They contain the time: an old name never refers to its successor.
fn names(owner: &Owner) -> impl Iterator<Item = String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    (now..).map(move |number| format!("{ASIDE}{number}.{owner}"))
}

/// Cheap to clone.
#[derive(Clone, Default)]
pub struct Removals(Arc<Shared>);

#[derive(Default)]
struct Shared {
    pool: FairPool,
    /// Some kernels lock a folder while renaming it, which others may block.
    renames: FairPool,
    aside: Mutex<BTreeMap<PathBuf, Left>>,
}

struct Left {
    /// Its original name.
    was: PathBuf,
    owner: Owner,
    /// Why it could not be deleted at the last attempt.
    error: Option<String>,
}

impl fmt::Debug for Removals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.aside().keys()).finish()
    }
}

impl Removals {
    fn aside(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Left>> {
        // The state is consistent even after a panic: an entry is recorded atomically.
        self.0.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool in which everything is deleted.
    pub fn pool(&self) -> &FairPool {
        &self.0.pool
    }

    /// Runs something in a turn of the owner that moves folders aside, which may block. It waits for no other slow work. `None`: it
    /// panicked.
    pub async fn in_turn<T: Send + 'static>(&self, owner: &str, act: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.0.renames.run(owner, act).await
    }

    /// Moves a folder aside for deletion; succeeds if it does not exist. It must contain no mounts.
    ///
    /// Fails as rename(2) does. On a full disk its content is deleted under its own name, so that it can be moved later.
    pub fn put_aside(&self, folder: &Path, owner: &Owner) -> io::Result<()> {
        self.or_empty(folder, owner, self.put_elsewhere(folder, owner))
    }

    fn or_empty(&self, folder: &Path, owner: &Owner, moved: io::Result<()>) -> io::Result<()> {
        if moved.as_ref().is_err_and(is_full) {
            self.empty(folder, owner)?;
        }
        moved
    }

    /// Deletes the contents of a folder, and keeps the folder. Later replacements are not touched.
    pub fn empty(&self, folder: &Path, owner: &Owner) -> io::Result<()> {
        let held = tree::hold(folder)?;
        self.add(folder.to_owned(), folder, owner.clone(), move || tree::empty_for(&held, &LAST, TURN));
        Ok(())
    }

    /// Starts deleting everything moved aside earlier in a folder.
    pub fn find(&self, of: &Path) {
        for aside in asides(of) {
            let owner = aside.file_name().and_then(|name| owner_of(name.to_str()?));
            self.remove(aside.clone(), &aside, owner.unwrap_or_default());
        }
    }

    /// The ids that files may still have.
    pub fn users(&self) -> Vec<IdRange> {
        self.aside().values().filter_map(|left| left.owner.users).collect()
    }

    /// The owners of everything left.
    pub fn owners(&self) -> Vec<Owner> {
        self.aside().values().map(|left| left.owner.clone()).collect()
    }

    /// The ids of what is left below a folder.
    pub fn users_below(&self, folder: &Path) -> Vec<IdRange> {
        let all = self.aside();
        let left = all.range(folder.to_owned()..).take_while(|(path, _)| path.starts_with(folder));
        left.filter_map(|(_, left)| left.owner.users()).collect()
    }

    /// Whether the ids of everything left below a folder are recorded.
    pub fn say_users(&self, below: &Path) -> bool {
        let all = self.aside();
        let mut left = all.range(below.to_owned()..).take_while(|(path, _)| path.starts_with(below));
        left.all(|(_, left)| left.owner.users.is_some())
    }

    /// The folders, by original name, being deleted; without those with undeletable parts.
    pub fn underway(&self) -> Vec<PathBuf> {
        self.aside().values().filter(|left| left.error.is_none()).map(|left| left.was.clone()).collect()
    }

    /// Whether this owner may leave more.
    pub fn has_room(&self, owner: &str) -> bool {
        self.0.pool.of(&Owner::new(owner, None).name) < MOST
    }

    /// Waits until this owner may leave more.
    pub async fn room(&self, owner: &str) {
        if !self.has_room(owner) {
            tracing::info!(owner, "waiting for earlier removals of this owner");
        }
        self.0.pool.until(|| self.has_room(owner)).await;
    }

    /// Waits until everything moved aside below a folder is deleted.
    pub async fn gone(&self, below: &Path) {
        // Paths below a path sort right after it.
        let is_next = |(path, _): (&PathBuf, &Left)| path.starts_with(below);
        self.0.pool.until(|| !self.aside().range(below.to_owned()..).next().is_some_and(is_next)).await;
    }

    /// Waits until only undeletable things are left; returns the reasons.
    pub async fn drained(&self) -> Vec<String> {
        self.0.pool.until(|| self.aside().values().all(|left| left.error.is_some())).await;
        // It may have been removed externally.
        let is_there = |path: &Path| path.symlink_metadata().is_ok();
        self.aside().iter().filter(|(path, _)| is_there(path)).filter_map(|(_, left)| left.error.clone()).collect()
    }

    /// Renames a folder, or leaves it unchanged.
    pub(crate) fn put_elsewhere(&self, folder: &Path, owner: &Owner) -> io::Result<()> {
        if let Some(aside) = tree::put_aside(folder, names(owner))? {
            self.remove(aside, folder, owner.clone());
        }
        Ok(())
    }

    fn remove(&self, aside: PathBuf, was: &Path, owner: Owner) {
        let path = aside.clone();
        self.add(aside, was, owner, move || tree::remove_for(&path, TURN));
    }

    fn add(&self, aside: PathBuf, was: &Path, owner: Owner, act: impl FnMut() -> io::Result<bool> + Send + 'static) {
        let name = owner.name.clone();
        {
            let mut all = self.aside();
            if all.contains_key(&aside) {
                return;
            }
            all.insert(aside.clone(), Left { was: was.to_owned(), owner, error: None });
        }
        self.0.pool.push(&name, self.job(aside, act));
    }

    /// For something undeletable with unknown ids: few files may be left by now, which may tell. A folder under its original name
    /// may already be another's.
    fn narrow(&self, aside: &Path) {
        let is_named = aside.file_name().and_then(|name| name.to_str()).is_some_and(is_aside);
        if !is_named || self.aside().get(aside).is_none_or(|left| left.owner.users != Some(ALL)) {
            return;
        }
        let Ok(users) = users_in(aside, TURN) else { return };
        if let Some(left) = self.aside().get_mut(aside) {
            left.owner.users = users;
        }
    }

    fn job(&self, aside: PathBuf, mut act: impl FnMut() -> io::Result<bool> + Send + 'static) -> Job {
        let (own, mut pause) = (self.clone(), None);
        Box::new(move || match act() {
            Ok(true) => {
                own.aside().remove(&aside);
                Outcome::Done
            }
            Ok(false) => {
                if let Some(left) = own.aside().get_mut(&aside) {
                    left.error = None;
                }
                pause = None;
                Outcome::More
            }
            Err(error) => {
                own.narrow(&aside);
                let why = format!("remove {}: {error}", aside.display());
                if pause.is_none() {
                    tracing::warn!("{why}: retrying");
                }
                let next = pause.map_or(SOON, |pause: Duration| SELDOM.min(pause * 2));
                pause = Some(next);
                if let Some(left) = own.aside().get_mut(&aside) {
                    left.error = Some(why);
                }
                Outcome::Later(next)
            }
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;

//! What somebody who is gone has left on disk. There may be millions of files, or someone else may hold them up: so a folder is put
//! aside in one step, whereupon its name is free and nobody waits for it any more, and its content is removed in turns by owner.
//!
//! ```text
//!   <folder>  ->  .aside-<number>.<users>.<owner>, beside it
//! ```
//!
//! The name says all that a later agent has to know: whose turn it is, and whose ids the files may have, which nobody else gets while
//! there are any. Where nobody knew those, the files that cannot be removed say it at last. Nothing is synced: after a power loss a folder has one name or the other, and is removed by either.
//!
//! Where the disk has no room for the name, the folder is emptied where it is, and what says in it whose it is goes last
//! ([`OWNER`], a sandbox's record). Where nothing says it any more, the files do: [`Owner::found_in`].

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

/// What goes last of a folder that is emptied where it is.
const LAST: [&str; 2] = [OWNER, SANDBOX];
/// As long is looked at a start, in all, for whose ids the files of folders have that do not say it.
pub const LOOK: Duration = Duration::from_secs(5);
const ASIDE: &str = ".aside-";
/// As long a turn takes.
const TURN: Duration = Duration::from_secs(1);
/// What cannot be removed is tried again after so long, and ever more seldom.
const SOON: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(60);
/// An owner who has left more has to wait.
const MOST: usize = 128;

/// Whether something of this name was put aside.
pub fn is_aside(name: &str) -> bool {
    name.starts_with(ASIDE)
}

/// What was put aside in a folder.
pub fn asides(of: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(of).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_aside)).map(|entry| entry.path()).collect()
}

/// Whether there is no room on the disk, or none for its owner.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

fn owner_of(name: &str) -> Option<Owner> {
    name.strip_prefix(ASIDE)?.split_once('.')?.1.parse().ok()
}

/// Names for a folder that is put aside. They are of now: what is found by an earlier name is never what has come in its place.
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
    /// Some kernels lock a folder that gets another name, which somebody may hold.
    renames: FairPool,
    aside: Mutex<BTreeMap<PathBuf, Left>>,
}

struct Left {
    /// Its name before it was put aside.
    was: PathBuf,
    owner: Owner,
    /// Why it could not be removed when that was last tried.
    error: Option<String>,
}

impl fmt::Debug for Removals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.aside().keys()).finish()
    }
}

impl Removals {
    fn aside(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Left>> {
        // What a panic left behind is sound: an entry is noted at once or not at all.
        self.0.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turns in which all is removed.
    pub fn pool(&self) -> &FairPool {
        &self.0.pool
    }

    /// Does something in a turn of an owner's that puts folders aside which somebody may hold. It waits for nothing else that takes
    /// long. `None`: it has panicked.
    pub async fn in_turn<T: Send + 'static>(&self, owner: &str, act: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.0.renames.run(owner, act).await
    }

    /// Puts a folder aside, to be removed from now on; a missing one is fine. Nothing is to be mounted in it.
    ///
    /// Errors: of rename(2). Where the disk is full, its content is removed under its own name, so that it goes later.
    pub fn put_aside(&self, folder: &Path, owner: &Owner) -> io::Result<()> {
        self.or_empty(folder, owner, self.put_elsewhere(folder, owner))
    }

    fn or_empty(&self, folder: &Path, owner: &Owner, moved: io::Result<()>) -> io::Result<()> {
        if moved.as_ref().is_err_and(is_full) {
            self.empty(folder, owner)?;
        }
        moved
    }

    /// Has all that is in a folder be removed, and leaves the folder. What comes in its place is not touched.
    pub fn empty(&self, folder: &Path, owner: &Owner) -> io::Result<()> {
        let held = tree::hold(folder)?;
        self.add(folder.to_owned(), folder, owner.clone(), move || tree::empty_for(&held, &LAST, TURN));
        Ok(())
    }

    /// Has all be removed that somebody earlier has put aside in a folder.
    pub fn find(&self, of: &Path) {
        for aside in asides(of) {
            let owner = aside.file_name().and_then(|name| owner_of(name.to_str()?));
            self.remove(aside.clone(), &aside, owner.unwrap_or_default());
        }
    }

    /// The ids that somebody's files may still have.
    pub fn users(&self) -> Vec<IdRange> {
        self.aside().values().filter_map(|left| left.owner.users).collect()
    }

    /// Whose all is that is still there.
    pub fn owners(&self) -> Vec<Owner> {
        self.aside().values().map(|left| left.owner.clone()).collect()
    }

    /// Whose ids what is left below a folder has.
    pub fn users_below(&self, folder: &Path) -> Vec<IdRange> {
        let all = self.aside();
        let left = all.range(folder.to_owned()..).take_while(|(path, _)| path.starts_with(folder));
        left.filter_map(|(_, left)| left.owner.users()).collect()
    }

    /// Whether all that is left below a folder says whose ids it has.
    pub fn say_users(&self, below: &Path) -> bool {
        let all = self.aside();
        let mut left = all.range(below.to_owned()..).take_while(|(path, _)| path.starts_with(below));
        left.all(|(_, left)| left.owner.users.is_some())
    }

    /// The folders, by their former names, whose content is still being removed; not those of which something cannot be.
    pub fn underway(&self) -> Vec<PathBuf> {
        self.aside().values().filter(|left| left.error.is_none()).map(|left| left.was.clone()).collect()
    }

    /// Whether this owner may leave more.
    pub fn has_room(&self, owner: &str) -> bool {
        self.0.pool.of(&Owner::new(owner, None).name) < MOST
    }

    /// Waits until this owner has room to leave more.
    pub async fn room(&self, owner: &str) {
        if !self.has_room(owner) {
            tracing::info!(owner, "waiting for earlier removals of this owner");
        }
        self.0.pool.until(|| self.has_room(owner)).await;
    }

    /// Waits until nothing is left that was put aside below a folder.
    pub async fn gone(&self, below: &Path) {
        // Whatever is below a path comes next after it.
        let is_next = |(path, _): (&PathBuf, &Left)| path.starts_with(below);
        self.0.pool.until(|| !self.aside().range(below.to_owned()..).next().is_some_and(is_next)).await;
    }

    /// Waits until nothing is left but what cannot be removed: why not.
    pub async fn drained(&self) -> Vec<String> {
        self.0.pool.until(|| self.aside().values().all(|left| left.error.is_some())).await;
        // Somebody else may have removed it.
        let is_there = |path: &Path| path.symlink_metadata().is_ok();
        self.aside().iter().filter(|(path, _)| is_there(path)).filter_map(|(_, left)| left.error.clone()).collect()
    }

    /// Puts a folder aside, or leaves it as it is.
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

    /// Of what cannot be removed, and of which nobody could tell whose ids it has: little of it may be left by now, and that may tell.
    /// A folder under its own name may be another's already.
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

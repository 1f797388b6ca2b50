//! Memory left by ended Pods: their unlinked files may still be open in processes that got them from a container. A Pod's tmpfs
//! counts for its namespace until the last of them is closed, across agent restarts.

use std::{
    fs, io,
    os::{fd::AsFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use podwright_runtime::{
    JournalWriter,
    sys::{
        Kernel,
        tree::{remove_all, wipe},
    },
};

use super::{
    error::{Result, file},
    held::HeldVolumes,
    shares::Shares,
};
use crate::mounts;

/// Time limit for deleting one Pod's files while others wait: memory is fast, and the rest counts until the next check.
const A_LOOK: Duration = Duration::from_secs(5);
/// Not a uid: Pods' own folders are beside it.
pub const FOLDER: &str = ".ended";

/// Cheap to clone.
#[derive(Clone)]
pub struct Ended {
    folder: PathBuf,
    shares: Arc<Shares>,
    held: HeldVolumes,
    /// For Pods that are gone, and have no journal any more.
    kernel: Kernel,
    /// Held while entries of the folder are added or removed.
    turn: Arc<Mutex<()>>,
}

impl Ended {
    /// Below the node's tmpfs. What an earlier agent left there counts, including that of living Pods, until their state is known.
    pub fn open(memory: &Path, shares: Arc<Shares>, held: HeldVolumes) -> Ended {
        let kernel = Kernel::new(&JournalWriter::none());
        let ended = Ended { folder: memory.join(FOLDER), shares, held, kernel, turn: Arc::default() };
        for own in entries(memory).into_iter().filter(|own| *own != ended.folder) {
            if let Some(namespace) = mounts::namespace_of(&own) {
                ended.shares.found(&own, &namespace, mounts::room_of(&own));
            }
        }
        for place in entries(&ended.folder) {
            match mounts::namespace_of(&place) {
                Some(namespace) => ended.hold(&place, &place, &namespace),
                // The agent was killed before mounting there, or before removing it.
                None => drop(fs::remove_dir(&place)),
            }
        }
        // The agent was killed before removing it: fails while it is not empty.
        fs::remove_dir(&ended.folder).ok();
        ended
    }

    /// Releases a Pod's tmpfs in this folder. It is gone afterwards, and another one of the same name may be created.
    ///
    /// # Errors
    ///
    /// It is still there, and counts.
    pub fn end(&self, kernel: &Kernel, own: &Path) -> Result<()> {
        // If it was unmounted externally, it still holds its memory.
        if let Err(error) = self.held.mend_at(own) {
            tracing::warn!("{}: {error}", own.display());
        }
        // It is not restored from here on.
        self.held.forget(own);
        self.leave(kernel, own).map_err(file(own))?;
        self.shares.forget(own);
        Ok(())
    }

    fn leave(&self, kernel: &Kernel, own: &Path) -> io::Result<()> {
        if fs::symlink_metadata(own).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            return Ok(());
        }
        if let Some(namespace) = uncovered(kernel, own)? {
            empty(own);
            if !mounts::seal(kernel, own)? {
                self.keep(kernel, own, &namespace)?;
            }
        }
        give_up(kernel, own)
    }

    /// Mounts it at a separate place, too.
    fn keep(&self, kernel: &Kernel, own: &Path, namespace: &str) -> io::Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let place = self.place(own)?;
        // A shared mount cannot be moved, but cloned.
        let copy = kernel.clone_tree(own, false)?;
        kernel.attach_at(copy.as_fd(), &place)?;
        tracing::info!(namespace, path = %place.display(), "files of an ended Pod's volumes are still open");
        self.hold(own, &place, namespace);
        Ok(())
    }

    fn hold(&self, own: &Path, place: &Path, namespace: &str) {
        self.shares.ended(own, place, namespace, mounts::room_of(place));
        if let Err(error) = self.held.mount(&self.kernel, place, None, || mounts::namespace_of(place).is_some()) {
            tracing::warn!("{}: {error}", place.display());
        }
    }

    /// Creates a folder for it.
    fn place(&self, own: &Path) -> io::Result<PathBuf> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let uid = own.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
        // A static Pod has the same uid each time.
        for n in 0u32.. {
            let place = self.folder.join(format!("{uid}.{n}"));
            match fs::create_dir(&place) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made.map(|()| place),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Releases those without open files.
    pub fn look(&self) {
        let places = self.shares.below(&self.folder);
        if places.is_empty() {
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        for place in places {
            match self.is_given_up(&place) {
                Ok(true) => self.shares.forget(&place),
                Ok(false) => {}
                Err(error) => tracing::warn!("{}: {error}", place.display()),
            }
        }
        // Fails while it is not empty.
        fs::remove_dir(&self.folder).ok();
    }

    fn is_given_up(&self, place: &Path) -> io::Result<bool> {
        // Nothing is there when the node's whole tmpfs is gone.
        if mounts::room_of(place) > 0 {
            // Could not be removed before: a mount of it was in use.
            let has_names = fs::read_dir(place)?.next().is_some();
            if mounts::is_used(place)? && !has_names {
                return Ok(false);
            }
            if uncovered(&self.kernel, place)?.is_some() {
                if has_names {
                    empty(place);
                }
                if !mounts::seal(&self.kernel, place)? {
                    return Ok(false);
                }
            }
        }
        self.held.forget(place);
        give_up(&self.kernel, place).map(|()| true)
    }
}

/// Unmounts external mounts in and over a Pod's folder; returns the namespace of the Pod's own tmpfs, which stays. `None`: it has
/// none.
fn uncovered(kernel: &Kernel, own: &Path) -> io::Result<Option<String>> {
    let all = mounts::below(own);
    let canonical = fs::canonicalize(own)?;
    let (at, within): (Vec<PathBuf>, Vec<PathBuf>) = all.into_iter().partition(|path| *path == canonical);
    within.iter().rev().try_for_each(|path| kernel.unmount_all(path))?;
    for _ in 0..at.len() {
        let namespace = mounts::namespace_of(own);
        if namespace.is_some() {
            return Ok(namespace);
        }
        if !kernel.unmount(own)? {
            return Err(io::Error::other("what was mounted there has moved"));
        }
    }
    Ok(None)
}

/// Deletes the files of a tmpfs, truncating them so that their memory is freed even if they are open.
fn empty(own: &Path) {
    // The rest counts.
    if let Err(error) = wipe(own, A_LOOK) {
        tracing::warn!("failed to empty {}: {error}", own.display());
    }
}

/// Unmounts it, and removes the folder.
fn give_up(kernel: &Kernel, own: &Path) -> io::Result<()> {
    kernel.unmount_all(own)?;
    remove_all(own)
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

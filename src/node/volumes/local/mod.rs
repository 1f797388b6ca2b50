//! Volumes of the built-in provisioner: each a folder on this node, created for its first Pod, limited in size if the file system
//! supports it, and removed when its PersistentVolume is deleted.
//!
//! ```text
//!   <state>/local-volumes/<name>/volume.json   which PersistentVolume it is: proves that this node created the folder
//!   <state>/local-volumes/<name>/data          what Pods mount, and can access
//!   <state>/local-volumes/.new-<name>          being created: not in use yet
//!   <state>/local-volumes/.gone-<name>         being removed: not available any more
//! ```
//!
//! Each step is one rename; the next agent finishes or removes what one leaves half done. Only root may access the folder around
//! `data`: no process in a container can replace `data` by a link, or forge a volume.

mod error;
mod follow;

use std::{
    collections::VecDeque,
    fs::{self, DirBuilder, Permissions},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
};

use k8s_openapi::api::core::v1::PersistentVolume;
use podwright_journal::kept;
use podwright_runtime::{
    JournalWriter, projects,
    sys::{
        Kernel,
        fs::{move_durably, sync_folder},
        shared,
        tree::remove_all,
    },
};
use serde::{Deserialize, Serialize};

use crate::mounts;
use podwright_api::persistent_volume::{local, matching};

pub use error::LocalError;
use error::{Result, call};
pub use follow::{Deed, deed, follow};

const DATA: &str = "data";
const MARK: &str = "volume.json";
const NEW: &str = ".new-";
const GONE: &str = ".gone-";
/// Maximum size of `volume.json`.
const LONGEST_MARK: usize = 4096;
/// How many removed volumes are remembered, so that no pending Pod recreates them.
const REMEMBERED: usize = 4096;

/// A PersistentVolume's identity, in its folder and its object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub name: String,
    pub uid: String,
}

impl Identity {
    /// Of a volume of the built-in provisioner.
    pub fn of(volume: &PersistentVolume) -> Option<Identity> {
        let (name, uid) = (volume.metadata.name.clone()?, volume.metadata.uid.clone()?);
        local::is_ours(volume).then_some(Identity { name, uid })
    }
}

/// The capacity of a volume, in bytes.
pub fn capacity(volume: &PersistentVolume) -> Option<u64> {
    u64::try_from(matching::capacity(volume).value()).ok().filter(|bytes| *bytes > 0)
}

/// The result of making a volume.
#[derive(Debug)]
pub struct Made {
    /// Created just now.
    pub fresh: bool,
    /// Whether its size is limited; error: why not.
    pub limited: Result<()>,
}

/// The folders of this node's volumes.
#[derive(Debug)]
pub struct Folders {
    root: PathBuf,
    /// Held while a volume is created, or its removal begins. The names of the latest removed ones.
    removed: Mutex<VecDeque<String>>,
}

impl Folders {
    /// # Errors
    ///
    /// The common folder cannot be created or made accessible to root only.
    pub fn open(root: PathBuf) -> io::Result<Folders> {
        DirBuilder::new().recursive(true).mode(0o700).create(&root)?;
        fs::set_permissions(&root, Permissions::from_mode(0o700))?;
        Ok(Folders { root, removed: Mutex::default() })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of a volume's data. The provisioner's names are single path components.
    pub fn data(&self, name: &str) -> PathBuf {
        self.root.join(name).join(DATA)
    }

    fn turn(&self) -> MutexGuard<'_, VecDeque<String>> {
        // The state is consistent even after a panic: a name is present or not.
        self.removed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Creates the folder of a volume, unless it exists and belongs to this very volume.
    ///
    /// # Errors
    ///
    /// The volume was deleted, another volume's data is there, its own is lost, or it cannot be created.
    pub fn make(&self, volume: &Identity, capacity: Option<u64>) -> Result<Made> {
        let at = self.place(&volume.name)?;
        let turn = self.turn();
        if turn.contains(&volume.name) {
            return Err(LocalError::Deleted);
        }
        let fresh = match self.mark(&at)? {
            Some(known) if known != *volume => return Err(self.others(known, volume)),
            Some(_) => false,
            None => {
                self.make_new(volume, capacity).map_err(call("make", &at))?;
                true
            }
        };
        drop(turn);
        let data = at.join(DATA);
        if !fs::symlink_metadata(&data).is_ok_and(|found| found.is_dir()) {
            return Err(LocalError::NoSuchPath(data));
        }
        Ok(Made { fresh, limited: limit(&data, capacity) })
    }

    /// 1. create hidden, 2. an empty data folder in its own project, 3. the identity file, 4. rename into place.
    fn make_new(&self, volume: &Identity, capacity: Option<u64>) -> io::Result<()> {
        let new = self.root.join(format!("{NEW}{}", volume.name));
        remove_all(&new)?;
        DirBuilder::new().mode(0o700).create(&new)?;
        let data = new.join(DATA);
        fs::create_dir(&data)?;
        // As open as an emptyDir, for any user a Pod may have.
        fs::set_permissions(&data, Permissions::from_mode(0o777))?;
        let given = projects::give(&Kernel::new(&JournalWriter::none()), &[&data], None);
        if let Err(error) = given.map_err(LocalError::from).and(limit(&data, capacity)) {
            tracing::debug!(%error, volume = volume.name, "a volume is not held to its size");
        }
        kept::replace_durably(&new.join(MARK), &serde_json::to_vec(volume)?)?;
        move_durably(&self.root, &format!("{NEW}{}", volume.name), &volume.name)
    }

    /// Limits a volume's size, if it is here.
    ///
    /// # Errors
    ///
    /// Its file system cannot, or the folder was not created by this node.
    pub fn limit(&self, volume: &Identity, capacity: Option<u64>) -> Result<()> {
        let at = self.place(&volume.name)?;
        match self.mark(&at)? {
            Some(known) if known == *volume => limit(&at.join(DATA), capacity),
            // Another volume's; its Pods get an error.
            _ => Ok(()),
        }
    }

    /// Removes a volume with all its data; succeeds if it is not here. `user`: the Pod using it, if any.
    ///
    /// 1. check its identity, 2. check that it is unused, 3. and has no mounts, 4. rename out of reach, 5. remove its limit,
    /// 6. delete its contents by descriptors: links are removed, not followed.
    ///
    /// # Errors
    ///
    /// It is in use, another volume's data is there, or part of it could not be removed: calling again continues from there.
    pub fn remove(&self, volume: &Identity, user: impl FnOnce() -> Option<String>) -> Result<()> {
        let (at, gone) = (self.place(&volume.name)?, self.root.join(format!("{GONE}{}", volume.name)));
        {
            let mut turn = self.turn();
            if let Some(known) = self.mark(&at)? {
                if known != *volume {
                    return Err(self.others(known, volume));
                }
                if let Some(pod) = user() {
                    return Err(LocalError::InUse(pod));
                }
                nothing_mounted(&at)?;
                let hidden = format!("{GONE}{}", volume.name);
                let moved = move_durably(&self.root, &volume.name, &hidden);
                moved.map_err(call("rename", &at))?;
            }
            if !turn.contains(&volume.name) {
                turn.push_back(volume.name.clone());
                let excess = turn.len().saturating_sub(REMEMBERED);
                turn.drain(..excess);
            }
        }
        self.finish(&gone)
    }

    /// Removes what an earlier agent has partially created or removed.
    ///
    /// # Errors
    ///
    /// Part of it remains. The rest is gone.
    pub fn tidy(&self) -> Result<()> {
        let entries = fs::read_dir(&self.root).map_err(call("read", &self.root))?;
        let mut errors = Vec::new();
        for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            let path = self.root.join(&name);
            if name.strip_prefix(GONE).is_some_and(local::is_name) {
                errors.extend(self.finish(&path).err());
            } else if let Some(own) = name.strip_prefix(NEW).filter(|own| local::is_name(own)) {
                let _turn = self.turn();
                // It was never announced.
                tracing::info!(volume = own, "removing a partially created volume");
                errors.extend(remove_all(&path).map_err(call("remove", &path)).err());
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(LocalError::Several(errors)) }
    }

    /// Deletes what is out of reach.
    fn finish(&self, gone: &Path) -> Result<()> {
        if !gone.exists() {
            return Ok(());
        }
        nothing_mounted(gone)?;
        // A project with a limit would count as in use forever.
        if let Err(error) = projects::limit(&Kernel::new(&JournalWriter::none()), &gone.join(DATA), None) {
            tracing::warn!(%error, "failed to remove the quota of a removed volume");
        }
        remove_all(gone).map_err(call("remove", gone))?;
        self.sync()
    }

    fn sync(&self) -> Result<()> {
        sync_folder(&self.root).map_err(call("fsync", &self.root))
    }

    fn place(&self, name: &str) -> Result<PathBuf> {
        match local::is_name(name) {
            true => Ok(self.root.join(name)),
            false => Err(LocalError::NotAName(name.to_owned())),
        }
    }

    /// The identity of a volume folder; none: it does not exist. Error: it was not created by this node.
    fn mark(&self, at: &Path) -> Result<Option<Identity>> {
        match fs::symlink_metadata(at) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(call("stat", at)(e)),
            Ok(found) if !found.is_dir() => return Err(LocalError::NotADirectory(at.to_owned())),
            Ok(_) => {}
        }
        let foreign = |why: String| LocalError::Foreign { path: at.to_owned(), why };
        let text = shared::read(&at.join(MARK), LONGEST_MARK).map_err(|e| foreign(format!("{MARK}: {e}")))?;
        serde_json::from_slice(&text).map(Some).map_err(|e| foreign(format!("{MARK}: {e}")))
    }

    fn others(&self, known: Identity, volume: &Identity) -> LocalError {
        LocalError::Anothers { path: self.root.join(&volume.name), known, uid: volume.uid.clone() }
    }
}

/// Removes the limits of all volumes below a folder that is about to be removed as a whole: a project with a limit counts as in use
/// forever.
pub fn release_projects(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        if let Err(error) = projects::limit(&Kernel::new(&JournalWriter::none()), &entry.path().join(DATA), None) {
            tracing::warn!(%error, "failed to remove the quota of a removed volume");
        }
    }
}

fn nothing_mounted(folder: &Path) -> Result<()> {
    match mounts::below(folder).first() {
        None => Ok(()),
        Some(mount) => Err(LocalError::MountedIn(mount.clone())),
    }
}

/// Limits a folder's size. Fails if it cannot be limited.
fn limit(data: &Path, capacity: Option<u64>) -> Result<()> {
    projects::enforced(data.parent().unwrap_or(data)).map_err(LocalError::NotEnforced)?;
    match projects::limit(&Kernel::new(&JournalWriter::none()), data, capacity)? {
        true => Ok(()),
        false => Err(LocalError::NoProject(data.to_owned())),
    }
}

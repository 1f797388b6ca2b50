//! Volumes of the built-in provisioner: a folder of this node each, made when its first Pod is there, held to its size where the
//! file system can, and removed when its PersistentVolume is deleted.
//!
//! ```text
//!   <state>/local-volumes/<name>/volume.json   which PersistentVolume it is: the folder is of this node's making
//!   <state>/local-volumes/<name>/data          what Pods mount, and all that they reach
//!   <state>/local-volumes/.new-<name>          being made: nobody has it yet
//!   <state>/local-volumes/.gone-<name>         being removed: nobody gets it any more
//! ```
//!
//! Each step is one rename; what an agent leaves half done the next one finishes or removes. The folder around `data` is root's
//! alone: nobody in a container puts a link in the place of `data`, or makes a folder look like a volume.

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

pub use follow::{Deed, deed, follow};

const DATA: &str = "data";
const MARK: &str = "volume.json";
const NEW: &str = ".new-";
const GONE: &str = ".gone-";
/// No mark is longer.
const LONGEST_MARK: usize = 4096;
/// So many volumes that have been removed are remembered: no Pod that was on its way to one of them makes it again.
const REMEMBERED: usize = 4096;

/// A PersistentVolume, as its folder and its object have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub name: String,
    pub uid: String,
}

impl Identity {
    /// Of a volume of the provisioner's.
    pub fn of(volume: &PersistentVolume) -> Option<Identity> {
        let (name, uid) = (volume.metadata.name.clone()?, volume.metadata.uid.clone()?);
        local::is_ours(volume).then_some(Identity { name, uid })
    }
}

/// How large a volume is to be, in bytes.
pub fn capacity(volume: &PersistentVolume) -> Option<u64> {
    u64::try_from(matching::capacity(volume).value()).ok().filter(|bytes| *bytes > 0)
}

/// What was made of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Just now.
    pub fresh: bool,
    /// Whether it is held to its size; error: why not.
    pub limited: Result<(), String>,
}

/// All folders of this node's volumes.
#[derive(Debug)]
pub struct Folders {
    root: PathBuf,
    /// Held while a volume is made, or begins to be removed. The names of the latest that were removed.
    removed: Mutex<VecDeque<String>>,
}

impl Folders {
    pub fn open(root: PathBuf) -> io::Result<Folders> {
        DirBuilder::new().recursive(true).mode(0o700).create(&root)?;
        fs::set_permissions(&root, Permissions::from_mode(0o700))?;
        Ok(Folders { root, removed: Mutex::default() })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the data of a volume is. The name is one of the provisioner's: it is one component.
    pub fn data(&self, name: &str) -> PathBuf {
        self.root.join(name).join(DATA)
    }

    fn turn(&self) -> MutexGuard<'_, VecDeque<String>> {
        // What a panic left behind is sound: a name is there or not.
        self.removed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes the folder of a volume, unless it is there; one that is there is this very volume's.
    pub fn make(&self, volume: &Identity, capacity: Option<u64>) -> Result<Made, String> {
        let at = self.place(&volume.name)?;
        let turn = self.turn();
        if turn.contains(&volume.name) {
            return Err("the volume has been deleted".to_owned());
        }
        let fresh = match self.mark(&at)? {
            Some(known) if known != *volume => return Err(self.others(&known, volume)),
            Some(_) => false,
            None => {
                self.make_new(volume, capacity).map_err(|e| format!("make {}: {e}", at.display()))?;
                true
            }
        };
        drop(turn);
        let data = at.join(DATA);
        if !fs::symlink_metadata(&data).is_ok_and(|found| found.is_dir()) {
            return Err(format!("path \"{}\" does not exist", data.display()));
        }
        Ok(Made { fresh, limited: limit(&data, capacity) })
    }

    /// 1. out of everybody's sight, 2. the folder for data, empty, in a project of its own, 3. what it is, 4. into sight.
    fn make_new(&self, volume: &Identity, capacity: Option<u64>) -> io::Result<()> {
        let new = self.root.join(format!("{NEW}{}", volume.name));
        remove_all(&new)?;
        DirBuilder::new().mode(0o700).create(&new)?;
        let data = new.join(DATA);
        fs::create_dir(&data)?;
        // As open as an emptyDir: whichever user a Pod has, it is his.
        fs::set_permissions(&data, Permissions::from_mode(0o777))?;
        let given = projects::give(&Kernel::new(&JournalWriter::none()), &[&data], None);
        if let Err(error) = given.map(|_| ()).map_err(|e| e.to_string()).and(limit(&data, capacity)) {
            tracing::debug!(error, volume = volume.name, "a volume is not held to its size");
        }
        kept::replace_durably(&new.join(MARK), &serde_json::to_vec(volume)?)?;
        move_durably(&self.root, &format!("{NEW}{}", volume.name), &volume.name)
    }

    /// Holds a volume to its size, if it is here. Error: why not.
    pub fn limit(&self, volume: &Identity, capacity: Option<u64>) -> Result<(), String> {
        let at = self.place(&volume.name)?;
        match self.mark(&at)? {
            Some(known) if known == *volume => limit(&at.join(DATA), capacity),
            // Another's, of which its Pods are told.
            _ => Ok(()),
        }
    }

    /// Removes a volume with all its data; one that is not here is fine. `user`: which Pod uses it, if one does.
    ///
    /// 1. it is this very volume, 2. nobody uses it, 3. nothing is mounted in it, 4. out of everybody's reach, 5. no limit any more,
    /// 6. all that is in it, by descriptors: links are removed, not followed.
    pub fn remove(&self, volume: &Identity, user: impl FnOnce() -> Option<String>) -> Result<(), String> {
        let (at, gone) = (self.place(&volume.name)?, self.root.join(format!("{GONE}{}", volume.name)));
        {
            let mut turn = self.turn();
            if let Some(known) = self.mark(&at)? {
                if known != *volume {
                    return Err(self.others(&known, volume));
                }
                if let Some(pod) = user() {
                    return Err(format!("it is in use by Pod {pod}"));
                }
                nothing_mounted(&at)?;
                let hidden = format!("{GONE}{}", volume.name);
                let moved = move_durably(&self.root, &volume.name, &hidden);
                moved.map_err(|e| format!("rename {}: {e}", at.display()))?;
            }
            if !turn.contains(&volume.name) {
                turn.push_back(volume.name.clone());
                let excess = turn.len().saturating_sub(REMEMBERED);
                turn.drain(..excess);
            }
        }
        self.finish(&gone)
    }

    /// Removes what an earlier agent has begun to make, or to remove.
    pub fn tidy(&self) -> Result<(), String> {
        let entries = fs::read_dir(&self.root).map_err(|e| format!("{}: {e}", self.root.display()))?;
        let mut errors = Vec::new();
        for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            let path = self.root.join(&name);
            if name.strip_prefix(GONE).is_some_and(local::is_name) {
                errors.extend(self.finish(&path).err());
            } else if let Some(own) = name.strip_prefix(NEW).filter(|own| local::is_name(own)) {
                let _turn = self.turn();
                // Nobody has been told of it.
                tracing::info!(volume = own, "a volume that was half made is removed");
                errors.extend(remove_all(&path).err().map(|e| format!("remove {}: {e}", path.display())));
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
    }

    /// Removes what nobody reaches any more.
    fn finish(&self, gone: &Path) -> Result<(), String> {
        if !gone.exists() {
            return Ok(());
        }
        nothing_mounted(gone)?;
        // A project with a limit would count as somebody's for ever.
        if let Err(error) = projects::limit(&Kernel::new(&JournalWriter::none()), &gone.join(DATA), None) {
            tracing::warn!(%error, "the limit of a volume that is removed stays");
        }
        remove_all(gone).map_err(|e| format!("remove {}: {e}", gone.display()))?;
        self.sync()
    }

    fn sync(&self) -> Result<(), String> {
        sync_folder(&self.root).map_err(|e| format!("fsync {}: {e}", self.root.display()))
    }

    fn place(&self, name: &str) -> Result<PathBuf, String> {
        match local::is_name(name) {
            true => Ok(self.root.join(name)),
            false => Err(format!("{name:?} is no name of a volume of {}", local::PROVISIONER)),
        }
    }

    /// Which volume a folder is; none: it is not there. Error: it is not of this node's making.
    fn mark(&self, at: &Path) -> Result<Option<Identity>, String> {
        match fs::symlink_metadata(at) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(format!("{}: {e}", at.display())),
            Ok(found) if !found.is_dir() => return Err(format!("{} is not a directory", at.display())),
            Ok(_) => {}
        }
        let foreign = |why: String| format!("{} is not of this node's making: {why}", at.display());
        let text = shared::read(&at.join(MARK), LONGEST_MARK).map_err(|e| foreign(format!("{MARK}: {e}")))?;
        serde_json::from_slice(&text).map(Some).map_err(|e| foreign(format!("{MARK}: {e}")))
    }

    fn others(&self, known: &Identity, volume: &Identity) -> String {
        let at = self.root.join(&volume.name);
        format!(
            "{} is the data of the volume {} with the uid {}, not {}",
            at.display(),
            known.name,
            known.uid,
            volume.uid
        )
    }
}

/// Takes the limits of all volumes below a folder away, which is about to be removed as a whole: a project that has one counts as
/// somebody's for ever.
pub fn release_projects(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        if let Err(error) = projects::limit(&Kernel::new(&JournalWriter::none()), &entry.path().join(DATA), None) {
            tracing::warn!(%error, "the limit of a volume that is removed stays");
        }
    }
}

fn nothing_mounted(folder: &Path) -> Result<(), String> {
    match mounts::below(folder).first() {
        None => Ok(()),
        Some(mount) => Err(format!("{} is mounted in it", mount.display())),
    }
}

/// Holds a folder to a size. Error: why it is not.
fn limit(data: &Path, capacity: Option<u64>) -> Result<(), String> {
    projects::enforced(data.parent().unwrap_or(data))?;
    match projects::limit(&Kernel::new(&JournalWriter::none()), data, capacity) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{}: it was given to no project", data.display())),
        Err(e) => Err(e.to_string()),
    }
}

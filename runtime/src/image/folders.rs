//! Folders of the store: reading, clearing, syncing; and temporary items in them.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{ImageError, Result};
use podwright_sys::tree::remove_all;

pub(super) fn read_dir(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).map_err(|e| ImageError::io("read", dir, e))?;
    entries.map(|entry| entry.map(|e| e.path()).map_err(|e| ImageError::io("read", dir, e))).collect()
}

pub(super) fn remove_any(path: &Path) -> Result<()> {
    let is_dir = fs::symlink_metadata(path).is_ok_and(|m| m.is_dir());
    let removed = if is_dir { remove_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(ImageError::io("remove", path, e)),
        _ => Ok(()),
    }
}

pub(super) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| ImageError::io("fsync", dir, e))
}

/// A temporary item below `tmp/`; removed when dropped, unless moved into place.
pub(super) struct Temp(PathBuf);

impl Temp {
    /// An item to be created at this unused path.
    pub(super) fn at(path: PathBuf) -> Temp {
        Temp(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn create(&self) -> Result<File> {
        // Only the agent reads these files, some of which are private.
        let file = File::options().write(true).create_new(true).mode(0o600).open(&self.0);
        file.map_err(|e| ImageError::io("create", &self.0, e))
    }

    pub(super) fn move_to(&self, path: &Path) -> Result<()> {
        fs::rename(&self.0, path).map_err(|e| ImageError::io("rename", path, e))
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next `open`.
        let _ = remove_any(&self.0);
    }
}

//! Files that change all at once: kubelet's layout of a timestamped folder behind the symlink `..data`.
//!
//! ```text
//!   key         -> ..data/key             what a container opens
//!   ..data      -> ..2026_11_20_17_00_00.123456789
//!   ..2026_11_20_17_00_00.123456789/key   the bytes
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink},
    path::{Component, Path, PathBuf},
};

use jiff::Timestamp;
use podwright_runtime::sys::shared;

/// One file of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub data: Vec<u8>,
    pub mode: u32,
    /// The owner, where it is not root.
    pub uid: Option<u32>,
}

/// Relative path -> file.
pub type Payload = BTreeMap<PathBuf, File>;

const DATA: &str = "..data";
const DATA_NEW: &str = "..data_tmp";

/// Brings the folder `target` to show `payload` and nothing else. Whether anything changed.
pub fn write(target: &Path, payload: &Payload, fs_group: Option<u32>, now: Timestamp) -> io::Result<bool> {
    for path in payload.keys() {
        check(path)?;
    }
    fs::create_dir_all(target)?;
    let old = fs::read_link(target.join(DATA)).ok();
    if let Some(old) = &old
        && shows(&target.join(old), payload)
    {
        return Ok(false);
    }
    let name = now.strftime("..%Y_%m_%d_%H_%M_%S.%N").to_string();
    let folder = target.join(&name);
    fs::DirBuilder::new().mode(0o755).create(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    let written = fill(&folder, payload, fs_group);
    if let Err(e) = written {
        fs::remove_dir_all(&folder).ok();
        return Err(e);
    }
    fs::remove_file(target.join(DATA_NEW)).ok();
    symlink(&name, target.join(DATA_NEW))?;
    fs::rename(target.join(DATA_NEW), target.join(DATA))?;
    let visible: BTreeSet<PathBuf> = payload.keys().filter_map(|p| p.iter().next()).map(PathBuf::from).collect();
    for first in &visible {
        let link = target.join(first);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(first), link)?;
        }
    }
    for entry in fs::read_dir(target)?.flatten() {
        let entry_name = entry.file_name();
        let text = entry_name.to_string_lossy();
        if text == DATA || *text == *name {
            continue;
        }
        if text.starts_with("..") {
            fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()))?;
        } else if !visible.contains(Path::new(&entry_name)) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(true)
}

/// A path of a payload stays below its target and does not pretend to be ours.
fn check(path: &Path) -> io::Result<()> {
    let plain = path.components().all(|c| matches!(c, Component::Normal(_)));
    let ours = path.to_string_lossy().starts_with("..");
    if plain && !ours && path.components().next().is_some() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("invalid path: {}", path.display())))
}

fn fill(folder: &Path, payload: &Payload, fs_group: Option<u32>) -> io::Result<()> {
    for (path, file) in payload {
        let full = folder.join(path);
        if let Some(parent) = full.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut handle = shared::create(&full, 0o600)?;
        io::Write::write_all(&mut handle, &file.data)?;
        if file.uid.is_some() || fs_group.is_some() {
            chown(&full, file.uid, fs_group)?;
        }
        // The group reads what it was given.
        let mode = if fs_group.is_some() { file.mode | 0o440 } else { file.mode };
        handle.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    if let Some(group) = fs_group {
        chown_folders(folder, group)?;
    }
    Ok(())
}

fn chown_folders(folder: &Path, group: u32) -> io::Result<()> {
    chown(folder, None, Some(group))?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o2755))?;
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.file_type()?.is_dir() {
            chown_folders(&entry.path(), group)?;
        }
    }
    Ok(())
}

/// Whether a folder holds exactly `payload`. A file that cannot be read does not: containers that own it may keep everybody from
/// reading it, and get another in its place.
fn shows(folder: &Path, payload: &Payload) -> bool {
    let mut found = BTreeSet::new();
    collect(folder, Path::new(""), &mut found);
    found.len() == payload.len()
        && payload.iter().all(|(path, file)| {
            let data = || shared::read(&folder.join(path), file.data.len() + 1);
            found.contains(path) && data().is_ok_and(|data| data == file.data)
        })
}

fn collect(folder: &Path, below: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder.join(below)).into_iter().flatten().flatten() {
        let path = below.join(entry.file_name());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => collect(folder, &path, found),
            _ => {
                found.insert(path);
            }
        }
    }
}

//! Atomically updated files: kubelet's layout of a timestamped folder behind the symlink `..data`.
//!
//! ```text
//!   key         -> ..data/key             what a container opens
//!   ..data      -> ..2026_11_20_17_00_00.123456789
//!   ..2026_11_20_17_00_00.123456789/key   the bytes
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    hash::{Hash, Hasher},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink},
    path::{Component, Path, PathBuf},
};

use jiff::Timestamp;
use podwright_runtime::sys::shared;

/// One file of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub data: Vec<u8>,
    pub mode: u32,
    /// The owner, if not root.
    pub uid: Option<u32>,
}

/// Relative path -> file.
pub type Payload = BTreeMap<PathBuf, File>;

/// Files on a tmpfs use whole pages. Entries without content use less kernel memory, but count as one.
pub const PAGE: usize = 4096;

/// The tmpfs space of a payload: the pages of its files, and one for each folder and link needed to show them.
pub fn takes(payload: &Payload) -> usize {
    /// The volume's own folder, that of the files, and the link to it.
    const OWN: usize = 3;
    let (mut pages, mut before): (usize, Option<&Path>) = (OWN, None);
    for (path, file) in payload {
        let shared = before.map_or(0, |before| before.iter().zip(path).take_while(|(a, b)| a == b).count());
        // In sorted order, paths of one folder are adjacent: each folder is new once. The first of them has a link, too.
        pages += path.iter().count().saturating_sub(shared + 1) + usize::from(shared == 0);
        pages += file.data.len().div_ceil(PAGE).max(1);
        before = Some(path);
    }
    pages * PAGE
}

const DATA: &str = "..data";
const DATA_NEW: &str = "..data_tmp";

/// Makes the folder `target` show exactly `payload`, whatever its current state: the last writer may have been killed midway, and
/// others may have changed it. Returns whether anything changed.
///
/// # Errors
///
/// A path escapes the folder, or something cannot be written: the old content remains, unless others have changed it.
pub fn write(target: &Path, payload: &Payload, fs_group: Option<u32>, now: Timestamp) -> io::Result<bool> {
    for path in payload.keys() {
        check(path)?;
    }
    fs::create_dir_all(target)?;
    let present = fs::read_link(target.join(DATA)).ok().filter(|name| shows(&target.join(name), payload, fs_group));
    let (name, mut changed) = match present {
        Some(name) => (name, false),
        None => (replace(target, payload, fs_group, now)?, true),
    };
    let visible: BTreeSet<PathBuf> = payload.keys().filter_map(|p| p.iter().next()).map(PathBuf::from).collect();
    for first in &visible {
        changed |= link(&target.join(first), &Path::new(DATA).join(first))?;
    }
    for entry in fs::read_dir(target)?.flatten() {
        let found = PathBuf::from(entry.file_name());
        if found != Path::new(DATA) && found != name && !visible.contains(&found) {
            remove(&entry.path())?;
            changed = true;
        }
    }
    Ok(changed)
}

/// Fills a new folder and points `..data` to it; returns its name.
fn replace(target: &Path, payload: &Payload, fs_group: Option<u32>, now: Timestamp) -> io::Result<PathBuf> {
    let name = PathBuf::from(now.strftime("..%Y_%m_%d_%H_%M_%S.%N").to_string());
    let folder = target.join(&name);
    fs::DirBuilder::new().mode(0o755).create(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    let written = fill(&folder, payload, fs_group);
    if let Err(e) = written {
        fs::remove_dir_all(&folder).ok();
        return Err(e);
    }
    link(&target.join(DATA_NEW), &name)?;
    if fs::symlink_metadata(target.join(DATA)).is_ok_and(|data| data.is_dir()) {
        remove(&target.join(DATA))?;
    }
    fs::rename(target.join(DATA_NEW), target.join(DATA))?;
    Ok(name)
}

/// Makes `path` a link to `to`. Returns whether it changed.
fn link(path: &Path, to: &Path) -> io::Result<bool> {
    if fs::read_link(path).is_ok_and(|leads| leads == to) {
        return Ok(false);
    }
    remove(path)?;
    symlink(to, path)?;
    Ok(true)
}

/// Removes whatever is at `path`.
fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    }
}

/// A hash of everything in a folder: names, kinds, sizes, modes, and change times. A different hash reveals changes, and costs less
/// than reading the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    all: u64,
    /// Number of files, folders and links visited.
    pub looks: usize,
}

impl Fingerprint {
    /// Matches no folder: forces a check.
    pub const NONE: Fingerprint = Fingerprint { all: 0, looks: 0 };
}

pub fn fingerprint(target: &Path) -> Fingerprint {
    let (mut hasher, mut looks) = (std::hash::DefaultHasher::new(), 0);
    tread(target, &mut hasher, &mut looks);
    Fingerprint { all: hasher.finish(), looks }
}

fn tread(path: &Path, hasher: &mut impl Hasher, looks: &mut usize) {
    *looks += 1;
    let Ok(found) = fs::symlink_metadata(path) else { return };
    path.hash(hasher);
    (found.ino(), found.mode(), found.uid(), found.gid(), found.size()).hash(hasher);
    (found.ctime(), found.ctime_nsec()).hash(hasher);
    if found.is_dir() {
        let mut entries: Vec<PathBuf> = fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path()).collect();
        entries.sort();
        entries.iter().for_each(|entry| tread(entry, hasher, looks));
    }
}

/// A path of a payload must stay below its target and not collide with our own names.
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
        handle.set_permissions(fs::Permissions::from_mode(mode(file, fs_group)))?;
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

/// The mode of a file: readable for its fsGroup.
fn mode(file: &File, fs_group: Option<u32>) -> u32 {
    if fs_group.is_some() { file.mode | 0o440 } else { file.mode }
}

/// Whether a folder contains exactly `payload`. A file that cannot be read does not count: containers that own it may block
/// reading, and it is replaced.
fn shows(folder: &Path, payload: &Payload, fs_group: Option<u32>) -> bool {
    let mut found = BTreeSet::new();
    collect(folder, Path::new(""), &mut found);
    found.len() == payload.len()
        && payload.iter().all(|(path, file)| {
            let data = || shared::read(&folder.join(path), file.data.len() + 1);
            let has_mode = |found: fs::Metadata| found.is_file() && found.mode() & 0o7777 == mode(file, fs_group);
            found.contains(path)
                && fs::symlink_metadata(folder.join(path)).is_ok_and(has_mode)
                && data().is_ok_and(|data| data == file.data)
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

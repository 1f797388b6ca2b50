//! The files of a container's log: their folder, their order, and where their last lines begin.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use podwright_runtime::sys::shared;
use rustix::fs::{Mode, OFlags, ResolveFlags};

/// Read size.
pub(super) const CHUNK: usize = 64 << 10;

/// A container's log folder, held open: [`Folder::path`] keeps referring to it even if it is renamed.
pub struct Folder(OwnedFd);

impl Folder {
    /// Opens `below`: `<namespace>_<name>_<uid>/<container>`; neither may be a symlink.
    ///
    /// # Errors
    ///
    /// It does not exist, is not a folder, or a symlink is on the way.
    pub fn open(logs: &Path, below: &Path) -> io::Result<Folder> {
        const FLAGS: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);
        let root = rustix::fs::open(logs, FLAGS, Mode::empty())?;
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(Folder(rustix::fs::openat2(root, below, FLAGS, Mode::empty(), inside)?))
    }

    /// Valid while the folder is held.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// The files of one attempt's log, oldest first: `0.log.4` .. `0.log.1`, `0.log`.
pub fn of_attempt(log: &Path) -> Vec<PathBuf> {
    let name = log.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let mut rotated: Vec<(u32, PathBuf)> = siblings(log)
        .filter_map(|path| {
            let number = path.file_name()?.to_str()?.strip_prefix(&name)?.strip_prefix('.')?.parse().ok()?;
            Some((number, path))
        })
        .collect();
    rotated.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    rotated.into_iter().map(|(_, path)| path).chain(is_file(log).then(|| log.to_owned())).collect()
}

/// The regular files beside a path.
fn siblings(path: &Path) -> impl Iterator<Item = PathBuf> {
    let folder = path.parent().and_then(|p| fs::read_dir(p).ok());
    folder.into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| is_file(path))
}

pub(super) fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// Opens a log for reading. Only the shim should write there, but a Pod with the host's log folder mounted can replace files.
pub(super) fn open(path: &Path) -> io::Result<File> {
    shared::open(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

/// The newest attempt in a container's log folder.
pub fn newest_attempt(folder: &Path) -> Option<u32> {
    let number = |path: PathBuf| path.file_name()?.to_str()?.strip_suffix(".log")?.parse::<u32>().ok();
    siblings(&folder.join("x")).filter_map(number).max()
}

/// Where the last `lines` lines begin: the index of a file and an offset in it.
///
/// # Errors
///
/// A file cannot be read.
pub fn tail(files: &[PathBuf], lines: u64) -> io::Result<(usize, u64)> {
    if lines == 0 {
        let last = files.len().saturating_sub(1);
        return Ok((last, files.get(last).map_or(Ok(0), |f| fs::symlink_metadata(f).map(|m| m.len()))?));
    }
    let mut wanted = lines;
    for (index, path) in files.iter().enumerate().rev() {
        let mut file = open(path)?;
        let mut end = file.metadata()?.len();
        // The newline at the very end terminates the last line, none before it.
        let mut first = true;
        let mut buffer = vec![0; CHUNK];
        while end > 0 {
            let start = end.saturating_sub(CHUNK as u64);
            let piece = &mut buffer[..(end - start) as usize];
            file.seek(SeekFrom::Start(start))?;
            file.read_exact(piece)?;
            for (at, byte) in piece.iter().enumerate().rev() {
                if *byte != b'\n' || std::mem::take(&mut first) {
                    continue;
                }
                wanted -= 1;
                if wanted == 0 {
                    return Ok((index, start + at as u64 + 1));
                }
            }
            end = start;
        }
        if !first {
            wanted -= 1;
        }
        if wanted == 0 {
            return Ok((index, 0));
        }
    }
    Ok((0, 0))
}

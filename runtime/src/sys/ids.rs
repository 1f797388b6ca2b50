//! The owners of files in a folder, by the host's user and group ids.

use std::ffi::OsStr;
use std::io::{Error as IoError, ErrorKind, Result as IoResult};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags, openat, openat2, statx,
};
use rustix::io::Errno;

const LIST: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Mounts in a folder are excluded.
const HERE: ResolveFlags = ResolveFlags::NO_XDEV.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::BENEATH);
/// The file itself, even if it is a symlink or an automount point; avoids contacting a server, which may hang forever.
const OWN: AtFlags = AtFlags::SYMLINK_NOFOLLOW.union(AtFlags::NO_AUTOMOUNT).union(AtFlags::STATX_DONT_SYNC);
const WANTED: StatxFlags = StatxFlags::TYPE.union(StatxFlags::UID).union(StatxFlags::GID);
/// The first ids are the host's own; never mapped into user namespaces.
pub const HOSTS: u32 = 1 << 16;
/// Maximum number of pending folders.
const MOST: usize = 100_000;

/// The result.
#[derive(Debug)]
pub enum Ids {
    /// No such id.
    None,
    /// The first one found.
    Has(u32),
    /// Not everything was seen: why.
    Unknown(IoError),
}

/// Searches for an id from `least` on that owns a file in a folder, or the folder itself. A missing folder has none; symlinks are
/// not followed, and mounts in it are excluded. A mount over the whole folder hides its files. Blocks, for about `within`.
pub fn find(folder: &Path, least: u32, within: Duration) -> Ids {
    match look(folder, least, Instant::now() + within) {
        Ok(None) => Ids::None,
        Ok(Some(id)) => Ids::Has(id),
        Err(why) => Ids::Unknown(why),
    }
}

fn look(folder: &Path, least: u32, end: Instant) -> IoResult<Option<u32>> {
    let root = match openat(CWD, folder, LIST, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    let has = |file: &Statx| [file.stx_uid, file.stx_gid].into_iter().find(|id| *id >= least && *id != u32::MAX);
    let is_mounted = |file: &Statx| file.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    let own = statx(&root, "", OWN | AtFlags::EMPTY_PATH, WANTED)?;
    if is_mounted(&own) {
        return Err(IoError::new(ErrorKind::ResourceBusy, "something is mounted over it"));
    }
    if let Some(id) = has(&own) {
        return Ok(Some(id));
    }
    let late = || IoError::new(ErrorKind::TimedOut, "there is too much to see whose ids all of it has");
    let mut left = vec![PathBuf::from(".")];
    while let Some(folder) = left.pop() {
        if Instant::now() > end {
            return Err(late());
        }
        // By its full path: one that is too long is an error.
        let opened = match openat2(&root, &folder, LIST, Mode::empty(), HERE) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => continue,
            opened => opened?,
        };
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let file = match statx(&opened, name, OWN, WANTED) {
                Err(Errno::NOENT) => continue,
                file => file?,
            };
            // It shows the owner of the mount on it.
            if is_mounted(&file) {
                continue;
            }
            if let Some(id) = has(&file) {
                return Ok(Some(id));
            }
            if FileType::from_raw_mode(file.stx_mode.into()) == FileType::Directory {
                left.push(folder.join(OsStr::from_bytes(name.to_bytes())));
            }
            if Instant::now() > end || left.len() > MOST {
                return Err(late());
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_however_deep_it_is_and_what_cannot_be_seen_is_unknown() {
        let root = tempfile::tempdir().unwrap();
        // An unprivileged user can only create files with its own id.
        let own = rustix::process::getuid().as_raw().max(rustix::process::getgid().as_raw());
        let long = Duration::from_secs(60);
        std::fs::create_dir_all(root.path().join("a/b/c")).unwrap();
        std::os::unix::fs::symlink("/", root.path().join("a/b/link")).unwrap();
        assert!(matches!(find(&root.path().join("missing"), 0, long), Ids::None));
        assert!(matches!(find(root.path(), own + 1, long), Ids::None));
        assert!(matches!(find(root.path(), own, long), Ids::Has(id) if id == own));
        assert!(matches!(find(root.path(), own + 1, Duration::ZERO), Ids::Unknown(_)));
    }
}

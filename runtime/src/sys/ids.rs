//! Whose the files in a folder are, as the host has users and groups.

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
/// What is mounted in a folder is not of it.
const HERE: ResolveFlags = ResolveFlags::NO_XDEV.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::BENEATH);
/// Of a file itself, be it a link or a place where something is to be mounted; no server is asked that something there is mounted from,
/// which may be silent for ever.
const OWN: AtFlags = AtFlags::SYMLINK_NOFOLLOW.union(AtFlags::NO_AUTOMOUNT).union(AtFlags::STATX_DONT_SYNC);
const WANTED: StatxFlags = StatxFlags::TYPE.union(StatxFlags::UID).union(StatxFlags::GID);
/// So many ids are the host's own; nobody's who has others mapped.
pub const HOSTS: u32 = 1 << 16;
/// So many folders may wait for a look at them.
const MOST: usize = 100_000;

/// What is found.
#[derive(Debug)]
pub enum Ids {
    /// No such id.
    None,
    /// The first that was found.
    Has(u32),
    /// Not all was seen: why.
    Unknown(IoError),
}

/// Looks for an id from `least` on that a file in a folder has, or the folder itself. A missing folder has none; links are not
/// followed, and what is mounted in it is not of it. Where something is mounted over all of it, that hides what it has. It blocks, for
/// about as long as `within`.
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
        // By its whole way: one that is too long is an error.
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
            // It has the owner of what is mounted there.
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
        // Whoever runs this has one, and may give his files no other.
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

//! Whose the files in a folder are, as the host has users and groups.

use std::ffi::OsStr;
use std::io::{Error as IoError, ErrorKind, Result as IoResult};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat, openat2, statat};
use rustix::io::Errno;

const LIST: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// What is mounted in a folder is not of it.
const HERE: ResolveFlags = ResolveFlags::NO_XDEV.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::BENEATH);
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
/// followed. It blocks, for about as long as `within`.
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
    let has = |stat: &Stat| [stat.st_uid, stat.st_gid].into_iter().find(|id| *id >= least && *id != u32::MAX);
    if let Some(id) = has(&rustix::fs::fstat(&root)?) {
        return Ok(Some(id));
    }
    let mut left = vec![PathBuf::from(".")];
    while let Some(folder) = left.pop() {
        // By its whole way: one that is too long is an error.
        let opened = match openat2(&root, &folder, LIST, Mode::empty(), HERE) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            opened => opened?,
        };
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = match statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                stat => stat?,
            };
            if let Some(id) = has(&stat) {
                return Ok(Some(id));
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                left.push(folder.join(OsStr::from_bytes(name.to_bytes())));
            }
            if Instant::now() > end || left.len() > MOST {
                return Err(IoError::new(ErrorKind::TimedOut, "there is too much to see whose ids all of it has"));
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
        if own == 0 {
            std::fs::write(root.path().join("a/b/c/file"), "").unwrap();
            std::os::unix::fs::lchown(root.path().join("a/b/c/file"), Some(0), Some(HOSTS + 7)).unwrap();
            assert!(matches!(find(root.path(), HOSTS, long), Ids::Has(id) if id == HOSTS + 7));
        }
    }
}

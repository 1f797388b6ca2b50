//! `fsGroup`: changes a volume's group, file by file, each through a descriptor: Pods control its contents, and may replace them by
//! symlinks at any moment.
//!
//! Upstream: `SetVolumeOwnership` in `pkg/volume/volume_linux.go`.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, chmod, chownat, fstat, openat};

const HOLD: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const LIST: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const SETGID: u32 = 0o2000;
/// Each level needs two descriptors, of which this process may have a thousand; a container may nest folders arbitrarily.
const DEEPEST: usize = 256;

/// Gives everything in the folder `root` to a group, for reading and writing, and makes new files inherit it. With `on_mismatch`
/// only if the folder itself is not so already.
///
/// # Errors
///
/// Those of the calls, or a timeout after `within`: a Pod may keep creating files.
pub fn give(root: &Path, group: u32, on_mismatch: bool, within: Duration) -> io::Result<()> {
    // The path of the volume may be a link; its contents may not.
    let root = openat(CWD, root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&root)?;
    let right = stat.st_gid == group && stat.st_mode & wanted(&stat) == wanted(&stat);
    if on_mismatch && right {
        return Ok(());
    }
    give_all(root, stat, group, within)
}

/// The mode bits that a file or folder needs.
fn wanted(stat: &Stat) -> u32 {
    if FileType::from_raw_mode(stat.st_mode).is_dir() { 0o660 | SETGID | 0o110 } else { 0o660 }
}

/// A folder in progress.
struct Level {
    held: OwnedFd,
    stat: Stat,
    left: Dir,
}

/// Contents before their folder: the root is changed last and marks completion.
fn give_all(root: OwnedFd, stat: Stat, group: u32, within: Duration) -> io::Result<()> {
    let begun = Instant::now();
    let mut levels: Vec<Level> = Vec::new();
    let mut next = Some((root, stat));
    loop {
        if begun.elapsed() > within {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("giving it to a group takes more than {within:?}"),
            ));
        }
        if let Some((held, stat)) = next.take() {
            if !FileType::from_raw_mode(stat.st_mode).is_dir() {
                give_one(&held, &stat, group)?;
            } else if levels.len() == DEEPEST {
                return Err(io::Error::other(format!("folders are nested deeper than {DEEPEST}")));
            } else {
                let left = Dir::new(openat(&held, ".", LIST, Mode::empty())?)?;
                levels.push(Level { held, stat, left });
            }
        }
        let Some(level) = levels.last_mut() else { return Ok(()) };
        match level.left.next().transpose()? {
            Some(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
            Some(entry) => match openat(&level.held, entry.file_name(), HOLD, Mode::empty()) {
                // Removed concurrently.
                Err(rustix::io::Errno::NOENT) => {}
                child => {
                    let child = child?;
                    let stat = fstat(&child)?;
                    next = Some((child, stat));
                }
            },
            None => {
                give_one(&level.held, &level.stat, group)?;
                levels.pop();
            }
        }
    }
}

fn give_one(held: &OwnedFd, stat: &Stat, group: u32) -> io::Result<()> {
    chownat(held, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    if FileType::from_raw_mode(stat.st_mode).is_symlink() {
        return Ok(());
    }
    let mode = (stat.st_mode & 0o7777) | wanted(stat);
    chmod(format!("/proc/self/fd/{}", held.as_raw_fd()), Mode::from_raw_mode(mode))?;
    Ok(())
}

//! `fsGroup`: gives a volume to a group, file by file, each held by a descriptor: what is in it belongs to its Pods, and may
//! be made a link to elsewhere at any moment.
//!
//! Upstream: `SetVolumeOwnership` in `pkg/volume/volume_linux.go`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, chmod, chownat, fstat, openat};

const HOLD: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const LIST: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const SETGID: u32 = 0o2000;

/// Gives all of the folder `root` to a group, for reading and, unless `read_only`, writing; new files in its folders will be
/// the group's as well. With `on_mismatch` only where the folder itself is not so already.
pub fn give(root: &Path, group: u32, read_only: bool, on_mismatch: bool) -> io::Result<()> {
    // The way to the volume may be a link; what is in it may not.
    let root = openat(CWD, root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&root)?;
    let right = stat.st_gid == group && stat.st_mode & wanted(&stat, read_only) == wanted(&stat, read_only);
    if on_mismatch && right {
        return Ok(());
    }
    give_all(root.as_fd(), &stat, group, read_only)
}

/// The bits of its mode that a file or folder needs.
fn wanted(stat: &Stat, read_only: bool) -> u32 {
    let files = if read_only { 0o440 } else { 0o660 };
    if FileType::from_raw_mode(stat.st_mode).is_dir() { files | SETGID | 0o110 } else { files }
}

fn give_all(held: BorrowedFd<'_>, stat: &Stat, group: u32, read_only: bool) -> io::Result<()> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    // The content first: the folder itself tells that all is done.
    if kind.is_dir() {
        let listed = openat(held, ".", LIST, Mode::empty())?;
        for entry in Dir::read_from(&listed)? {
            let entry = entry?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            let child: OwnedFd = match openat(held, entry.file_name(), HOLD, Mode::empty()) {
                // Somebody has removed it.
                Err(rustix::io::Errno::NOENT) => continue,
                other => other?,
            };
            let stat = fstat(&child)?;
            give_all(child.as_fd(), &stat, group, read_only)?;
        }
    }
    chownat(held, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    if kind.is_symlink() {
        return Ok(());
    }
    let mode = (stat.st_mode & 0o7777) | wanted(stat, read_only);
    chmod(format!("/proc/self/fd/{}", held.as_raw_fd()), Mode::from_raw_mode(mode))?;
    Ok(())
}

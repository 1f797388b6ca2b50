//! What is mounted on this machine, and the node's folders that are kept in memory.

use std::{
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use podwright_runtime::kept::unescaped;
use rustix::mount::{MountFlags, UnmountFlags};

const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Makes a folder a tmpfs of its own, unless it is one already.
pub fn keep_in_memory(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    if rustix::fs::statfs(folder)?.f_type as i64 != TMPFS_MAGIC || !is_mount(folder) {
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("tmpfs", folder, "tmpfs", flags, Some(c"mode=0755"))?;
    }
    Ok(())
}

/// Takes away everything that is mounted on `target`; nothing mounted is no error.
pub fn unmount(target: &Path) -> io::Result<()> {
    loop {
        match rustix::mount::unmount(target, UnmountFlags::DETACH) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Binds what is held, with all that is mounted below it, onto `target`.
pub fn bind(held: &OwnedFd, target: &Path) -> io::Result<()> {
    let source = format!("/proc/self/fd/{}", held.as_raw_fd());
    Ok(rustix::mount::mount_bind_recursive(source.as_str(), target)?)
}

pub fn is_mount(path: &Path) -> bool {
    below(path).iter().any(|m| m == path)
}

/// What is mounted at or below `path`, in order of mounting.
pub fn below(path: &Path) -> Vec<PathBuf> {
    let Ok(text) = fs::read_to_string("/proc/self/mountinfo") else { return Vec::new() };
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let points = text.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(unescaped).filter(|p| p.starts_with(&path)).collect()
}

//! What is mounted on this machine, and the node's folders that are kept in memory.

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

use podwright_runtime::kept::unescaped;
use rustix::mount::{MountFlags, UnmountFlags};

/// What a file of a tmpfs has at least.
const PAGE: usize = 4096;
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

/// Gives a folder below one that is [kept in memory](keep_in_memory) a tmpfs of its own that has room for so many bytes, or this
/// one's new size. A folder that is there and is none stays: an earlier version has filled it, and containers have it.
pub fn in_memory_of(folder: &Path, bytes: usize) -> io::Result<()> {
    /// Beside what is counted: the root of the tmpfs.
    const OWN: usize = 1;
    let is_new = match fs::create_dir(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        made => made.is_ok(),
    };
    let above = folder.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let is_own = || Ok::<_, io::Error>(fs::metadata(folder)?.dev() != fs::metadata(above)?.dev());
    let empty = || Ok::<_, io::Error>(fs::read_dir(folder)?.next().is_none());
    let inodes = bytes / PAGE + OWN;
    // The invariant: digits hold no NUL.
    let size = CString::new(format!("mode=0755,size={bytes},nr_inodes={inodes}")).expect("digits");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    if !is_new && is_own()? {
        Ok(rustix::mount::mount_remount(folder, flags, size.as_c_str())?)
    } else if is_new || empty()? {
        Ok(rustix::mount::mount("tmpfs", folder, "tmpfs", flags, Some(size.as_c_str()))?)
    } else {
        Ok(())
    }
}

/// What a folder's [own tmpfs](in_memory_of) has room for; 0 where it has none.
pub fn room_of(folder: &Path) -> usize {
    let device = |path: &Path| fs::symlink_metadata(path).ok().map(|found| found.dev());
    let is_own = device(folder).is_some() && device(folder) != folder.parent().and_then(device);
    let size = rustix::fs::statvfs(folder).ok().filter(|_| is_own);
    size.map_or(0, |size| size.f_blocks.saturating_mul(size.f_frsize) as usize)
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

//! Mounts on this machine, and the node's folders that are kept in memory.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use podwright_runtime::{
    kept::{source_at, unescaped},
    sys::{Kernel, mount::Holds},
};
use rustix::{
    fs::{AtFlags, CWD, StatxAttributes, StatxFlags},
    io::Errno,
};

/// The minimum size of a file on tmpfs.
const PAGE: usize = 4096;
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// A tmpfs says of what namespace and Pod it is by what is mounted: so an agent that finds it knows.
const SOURCE: &str = "podwright/";
/// Inodes of a tmpfs that are not counted: its root.
const OWN: usize = 1;

/// Mounts a tmpfs on a folder, unless it has one.
///
/// # Errors
///
/// The folder cannot be created or mounted on.
pub fn keep_in_memory(kernel: &Kernel, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    if rustix::fs::statfs(folder)?.f_type as i64 != TMPFS_MAGIC || !is_mount(folder) {
        kernel.mount_tmpfs("tmpfs", folder, Holds::Data, "mode=0755")?;
    }
    Ok(())
}

/// Bind-mounts a folder of a [shared](Kernel::share) mount at `twin` too. Later mounts in either propagate to the other, as do
/// unmounts.
fn twin_of(kernel: &Kernel, folder: &Path, twin: &Path) -> io::Result<()> {
    fs::create_dir_all(twin)?;
    kernel.unmount_all(twin)?;
    Ok(kernel.bind(folder, twin)?)
}

/// Gives a Pod's folder, which has its uid for a name, below one that is [kept in memory](keep_in_memory) and [shared](Kernel::share) a tmpfs of its own, of a namespace, that
/// has room for so many bytes, or this one's new size. A folder that is there and is none stays: an earlier version has filled it,
/// and containers have it. Unmounting `twin` unmounts it.
///
/// # Errors
///
/// Folder or tmpfs cannot be created, or its contents exceed the new size.
pub fn in_memory_of(kernel: &Kernel, folder: &Path, twin: &Path, namespace: &str, bytes: usize) -> io::Result<()> {
    let is_new = match fs::create_dir(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        made => made.is_ok(),
    };
    let above = folder.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let is_own = || Ok::<_, io::Error>(fs::metadata(folder)?.dev() != fs::metadata(above)?.dev());
    let empty = || Ok::<_, io::Error>(fs::read_dir(folder)?.next().is_none());
    let inodes = bytes / PAGE + OWN;
    let size = format!("mode=0755,size={bytes},nr_inodes={inodes}");
    if !is_new && is_own()? {
        Ok(kernel.remount_tmpfs(folder, &size)?)
    } else if is_new || empty()? {
        twin_of(kernel, folder, twin)?;
        let pod = folder.file_name().unwrap_or_default().to_string_lossy();
        Ok(kernel.mount_tmpfs(&format!("{SOURCE}{namespace}/{pod}"), folder, Holds::Data, &size).map(drop)?)
    } else {
        Ok(())
    }
}

/// The size of a folder's [own tmpfs](in_memory_of); 0 without one.
pub fn room_of(folder: &Path) -> usize {
    let device = |path: &Path| fs::symlink_metadata(path).ok().map(|found| found.dev());
    let is_own = device(folder).is_some() && device(folder) != folder.parent().and_then(device);
    let size = rustix::fs::statvfs(folder).ok().filter(|_| is_own);
    size.map_or(0, |size| size.f_blocks.saturating_mul(size.f_frsize) as usize)
}

/// The namespace of a folder's [own tmpfs](in_memory_of); `None` where it has none, or something else lies over it, such as another
/// Pod's. The folder has the Pod's uid for a name, and may have a number behind it.
pub fn namespace_of(folder: &Path) -> Option<String> {
    let name = folder.file_name()?.to_string_lossy();
    let source = source_at(folder)?;
    let said = source.strip_prefix(SOURCE)?;
    // Those of an earlier version say no Pod.
    let (namespace, pod) = said.split_once('/').unwrap_or((said, &name));
    let is_the_pods = name.strip_prefix(pod).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    is_the_pods.then(|| namespace.to_owned())
}

/// What a volume's own mount in memory says of itself: nobody else's says the same.
pub fn source_of_volume(namespace: &str, pod: &str, volume: &str) -> String {
    format!("{SOURCE}{namespace}/{pod}/{volume}")
}

/// Whether a folder's [own tmpfs](in_memory_of) contains files, linked or only open.
///
/// # Errors
///
/// The folder does not exist or cannot be read.
pub fn is_used(folder: &Path) -> io::Result<bool> {
    let size = rustix::fs::statvfs(folder)?;
    Ok(size.f_bfree < size.f_blocks || size.f_ffree + (OWN as u64) < size.f_files)
}

/// Makes a folder's [own tmpfs](in_memory_of) reject new files, unless it [is used](is_used). Returns whether it does.
///
/// # Errors
///
/// It cannot be read, or the kernel refuses.
pub fn seal(kernel: &Kernel, folder: &Path) -> io::Result<bool> {
    if is_used(folder)? {
        return Ok(false);
    }
    // The one inode is the root: limits cannot be below usage, and 0 means no limit.
    match kernel.remount_tmpfs(folder, "size=4096,nr_inodes=1") {
        Err(error) if error.errno() == Errno::INVAL.raw_os_error() => Ok(false),
        sealed => Ok(sealed.map(|()| true)?),
    }
}

/// Whether something is mounted there. Asks the kernel for this path only: the mount table may have thousands of entries.
pub fn is_mount(path: &Path) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let root = StatxAttributes::MOUNT_ROOT;
    match rustix::fs::statx(CWD, path, flags, StatxFlags::empty()) {
        Ok(found) if found.stx_attributes_mask.contains(root) => found.stx_attributes.contains(root),
        Err(Errno::NOENT | Errno::NOTDIR) => false,
        // Linux before 5.8 does not report this, nor do broken mounts.
        _ => below(path).iter().any(|mount| mount == path),
    }
}

/// Mount points at or below `path`, in mount order.
pub fn below(path: &Path) -> Vec<PathBuf> {
    let Some(text) = table() else { return Vec::new() };
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let points = text.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(unescaped).filter(|p| p.starts_with(&path)).collect()
}

/// The mount table of this thread's namespace.
fn table() -> Option<String> {
    fs::read_to_string("/proc/thread-self/mountinfo").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_told_by_whatever_path_and_links_to_them_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("root");
        std::os::unix::fs::symlink("/", &link).unwrap();
        for (path, expected) in [
            (Path::new("/proc"), true),
            (&link.join("proc"), true),
            (&link, false),
            (folder.path(), false),
            (&folder.path().join("missing"), false),
        ] {
            assert_eq!(is_mount(path), expected, "{}", path.display());
        }
    }
}

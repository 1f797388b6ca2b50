//! Mounts that can be restored after they were unmounted externally, with their contents.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use crate::mount::{ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID};
use crate::{Kernel, SysResult, tree};

/// A mount, and a second detached one of the same file system, which keeps it alive and restores it if the first is unmounted.
/// Dropping this releases the file system.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    /// The file system's device.
    device: u64,
    spare: OwnedFd,
}

impl Kept {
    /// Keeps the mount at a path; `None`: there is none.
    pub fn of(kernel: &Kernel, path: &Path) -> SysResult<Option<Kept>> {
        let above = path.parent().and_then(device_of);
        match device_of(path) {
            Some(device) if Some(device) != above => {
                let spare = kernel.clone_tree(path, false)?;
                Ok(Some(Kept { path: path.to_owned(), device, spare }))
            }
            _ => Ok(None),
        }
    }

    /// Keeps a mount that the caller has just made at a path, whatever somebody has mounted over it since.
    pub fn of_mount(kernel: &Kernel, path: &Path, mount: BorrowedFd<'_>) -> SysResult<Kept> {
        let spare = kernel.clone_tree_of(mount, path, false)?;
        let device = kernel.op("fstat", |a| a.path(path), || Ok(rustix::fs::fstat(&spare)?.st_dev))?;
        Ok(Kept { path: path.to_owned(), device, spare })
    }

    /// Brings it back where it is gone, or something else lies over it. Returns whether it was.
    pub fn mend(&mut self, kernel: &Kernel) -> SysResult<bool> {
        if device_of(&self.path) == Some(self.device) {
            return Ok(false);
        }
        if !self.path.exists() {
            kernel.mkdir(&self.path)?;
        }
        kernel.attach_at(self.spare.as_fd(), &self.path)?;
        self.spare = kernel.clone_tree(&self.path, false)?;
        Ok(true)
    }

    /// Restores it if it is gone, as far as detectable. Mounts over it stay.
    pub fn mend_gone(&mut self, kernel: &Kernel) -> SysResult<bool> {
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let is_there = || fs::read_to_string("/proc/self/mountinfo").map_or(true, |all| has(&all, self.device, &path));
        match device_of(&self.path) == Some(self.device) || is_there() {
            true => Ok(false),
            false => self.mend(kernel),
        }
    }

    /// Deletes its files, truncating them even if they are open, and whatever is mounted over it; for at most `within`. It is not
    /// restored afterwards.
    pub fn wipe(self, kernel: &Kernel, within: Duration) -> io::Result<()> {
        // A container may have created devices there, which we must not open.
        kernel.set_attrs(self.spare.as_fd(), false, ATTR_NODEV, 0, 0)?;
        // Through the last component: the one before is a magic link.
        tree::wipe(Path::new(&format!("/proc/self/fd/{}/.", self.spare.as_raw_fd())), within)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn device_of(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().map(|found| found.dev())
}

/// Whether a `mountinfo` has this device there, even if covered.
fn has(mountinfo: &str, device: u64, path: &Path) -> bool {
    let device = format!("{}:{}", libc::major(device), libc::minor(device));
    mountinfo.lines().any(|line| {
        let mut fields = line.split(' ').skip(2);
        let (of, at) = (fields.next(), fields.nth(1));
        of == Some(&*device) && at.is_some_and(|at| unescaped(at) == path)
    })
}

/// What the tmpfs that is in sight at a path says of itself, by the source that it was mounted with; `None`: there is none, or something
/// else lies over it.
pub fn source_at(path: &Path) -> Option<String> {
    let device = device_of(path)?;
    let path = fs::canonicalize(path).ok()?;
    let all = fs::read_to_string("/proc/thread-self/mountinfo").ok()?;
    all.lines().filter(|line| has(line, device, &path)).find_map(|line| {
        let source = line.split_once(" - tmpfs ")?.1.split(' ').next()?;
        Some(unescaped(source).display().to_string())
    })
}

/// Whether there is exactly one mount at a path: nothing lies over it, and it over nothing.
pub fn is_sole_mount(path: &Path) -> bool {
    let Ok(path) = fs::canonicalize(path) else { return false };
    let all = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    all.lines().filter(|line| line.split(' ').nth(4).is_some_and(|at| unescaped(at) == path)).count() == 1
}

/// Unescapes a path of `mountinfo` or `mounts`: spaces, tabs, newlines and backslashes are three octal digits
/// (proc_pid_mountinfo(5)).
pub fn unescaped(text: &str) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// A sandbox's `/dev/shm`, mounted where a later agent can find it, and knows it by what it says. `owner` is its root's host id.
pub fn mount_shm(kernel: &Kernel, at: &Path, owner: u32) -> SysResult<()> {
    kernel.mkdir(at)?;
    kernel.detach(at)?;
    let (id, source) = (owner.to_string(), shm_source(at));
    let options = [
        ("source", Some(&*source)),
        ("mode", Some("1777")),
        ("size", Some("65536k")),
        ("uid", Some(&*id)),
        ("gid", Some(&*id)),
    ];
    let shm = kernel.new_fs("tmpfs", &options, ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC)?;
    kernel.attach_at(shm.as_fd(), at)
}

/// Takes away what somebody has mounted over a sandbox's `/dev/shm`; whether that is in sight then.
pub fn uncover_shm(kernel: &Kernel, at: &Path) -> SysResult<bool> {
    for _ in 0..MOST_COVERS {
        if device_of(at) == at.parent().and_then(device_of) {
            return Ok(false);
        }
        if source_at(at).is_some_and(|source| source == shm_source(at) || source == OF_EARLIER_VERSIONS) {
            return Ok(true);
        }
        kernel.detach(at)?;
    }
    Ok(false)
}

/// Whoever mounts more over one path than this has what is below made anew.
const MOST_COVERS: usize = 16;
/// The source of a mount that was given none.
const OF_EARLIER_VERSIONS: &str = "none";

/// It is in the folder of its sandbox.
fn shm_source(at: &Path) -> String {
    let sandbox = at.parent().and_then(Path::file_name).unwrap_or_default();
    format!("podwright/{}/shm", sandbox.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_below_what_lies_over_it() {
        let ours = r"300 29 0:77 / /var/pods/a\040b rw,nosuid shared:5 - tmpfs tmpfs rw";
        let over = r"301 300 0:78 / /var/pods/a\040b rw - tmpfs other rw";
        let (at, device) = (Path::new("/var/pods/a b"), libc::makedev(0, 77));
        assert!(has(&[ours, over].join("\n"), device, at));
        assert!(!has(over, device, at), "another one is there");
        assert!(!has(ours, device, Path::new("/var/pods/a")) && !has(ours, device, Path::new("/var/pods")));
        assert!(!has("", device, at) && !has("300 29 0:77", device, at));
        assert_eq!(unescaped(r"\134\04é\"), Path::new(r"\\04é\"));
    }
}

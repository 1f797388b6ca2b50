//! Mounts that are kept: should somebody take one away, the same one comes back, with what is in it.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::sys::mount::{ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID};
use crate::sys::{Kernel, SysResult};

/// A mount, and a second one of the same file system that is nowhere: with it the file system lives on when the first is taken
/// away, and comes back in its place. Dropped, it lets go of the file system.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    /// Of the file system.
    device: u64,
    spare: OwnedFd,
}

impl Kept {
    /// Keeps what is mounted at a path; `None`: nothing is.
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

    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn device_of(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().map(|found| found.dev())
}

/// A sandbox's `/dev/shm`, mounted where the agent can find it again. `owner` is its root on the host.
pub fn mount_shm(kernel: &Kernel, at: &Path, owner: u32) -> SysResult<()> {
    kernel.mkdir(at)?;
    kernel.detach(at)?;
    let id = owner.to_string();
    let options = [("mode", Some("1777")), ("size", Some("65536k")), ("uid", Some(&*id)), ("gid", Some(&*id))];
    let shm = kernel.new_fs("tmpfs", &options, ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC)?;
    kernel.attach_at(shm.as_fd(), at)
}

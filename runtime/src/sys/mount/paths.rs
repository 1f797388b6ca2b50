//! Mounts at paths of the caller's own mount namespace that no one else can write: mount(2) and umount2(2).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{self, FsOpenFlags, MountFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags};

use super::{ATTR_NODEV, ATTR_NOSUID, configured};
use crate::fs::{c_string, proc_fd};
use crate::{Kernel, SysResult};

/// Restrictions on the node's own tmpfs.
const SAFE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// The contents of a tmpfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Files written by the node: no devices, nothing set-user-ID.
    Data,
    /// Anything that a container creates.
    Anything,
}

impl Holds {
    fn attrs(self) -> u64 {
        match self {
            Holds::Data => ATTR_NOSUID | ATTR_NODEV,
            Holds::Anything => 0,
        }
    }
}

impl Kernel {
    /// Mounts a tmpfs with these options (tmpfs(5)), and gives that very mount, whatever lies over it by now. `source`: what tables of
    /// mounts say of it.
    pub fn mount_tmpfs(&self, source: &str, at: &Path, holds: Holds, options: &str) -> SysResult<OwnedFd> {
        let given = options.split(',').map(|option| match option.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (option, None),
        });
        let all: Vec<_> = std::iter::once(("source", Some(source))).chain(given).collect();
        self.op(
            "mount",
            |a| a.text("tmpfs on ").path(at).text(", ").text(options),
            || {
                let fs = mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
                let made = configured(fs.as_fd(), &all, holds.attrs())?;
                mount::move_mount(made.as_fd(), "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
                Ok(made)
            },
        )
    }

    /// Changes the options of a tmpfs of [`Holds::Data`].
    pub fn remount_tmpfs(&self, at: &Path, options: &str) -> SysResult<()> {
        self.op(
            "mount",
            |a| a.text("remount ").path(at).text(", ").text(options),
            || Ok(mount::mount_remount(at, SAFE, c_string(options)?.as_c_str())?),
        )
    }

    /// Makes later mounts below a mount propagate to its copies: mount_namespaces(7), shared mounts.
    pub fn share(&self, at: &Path) -> SysResult<()> {
        self.op("mount", |a| a.text("shared ").path(at), || Ok(mount::mount_change(at, MountPropagationFlags::SHARED)?))
    }

    /// Bind-mounts a folder at another path.
    pub fn bind(&self, source: &Path, at: &Path) -> SysResult<()> {
        self.op("mount", |a| a.text("bind ").path(source).text(" on ").path(at), || Ok(mount::mount_bind(source, at)?))
    }

    /// Bind-mounts an open file or folder at a path, with all mounts below it. `source`: its name.
    pub fn bind_held(&self, held: BorrowedFd<'_>, source: &Path, at: &Path) -> SysResult<()> {
        self.op(
            "mount",
            |a| a.text("bind ").path(source).text(" on ").path(at).text(", recursive"),
            || Ok(mount::mount_bind_recursive(proc_fd(held), at)?),
        )
    }

    /// Lazily removes the topmost mount at a path; returns whether there was one.
    pub fn unmount(&self, at: &Path) -> SysResult<bool> {
        let unmounted = self.op_if(
            "umount2",
            |a| a.path(at).text(", MNT_DETACH"),
            || match mount::unmount(at, UnmountFlags::DETACH) {
                Ok(()) => Ok(Some(())),
                Err(Errno::INVAL | Errno::NOENT) => Ok(None),
                Err(e) => Err(e.into()),
            },
        )?;
        Ok(unmounted.is_some())
    }

    /// Removes all mounts at a path.
    pub fn unmount_all(&self, at: &Path) -> SysResult<()> {
        while self.unmount(at)? {}
        Ok(())
    }
}

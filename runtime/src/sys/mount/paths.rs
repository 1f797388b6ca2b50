//! Mounts at paths of the caller's own mount namespace that no one else can write: mount(2) and umount2(2).

use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{self, MountFlags, MountPropagationFlags, UnmountFlags};

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
    fn flags(self) -> MountFlags {
        match self {
            Holds::Data => SAFE,
            Holds::Anything => MountFlags::empty(),
        }
    }
}

impl Kernel {
    /// Mounts a tmpfs with these options (tmpfs(5)). `source`: as shown in mount tables.
    pub fn mount_tmpfs(&self, source: &str, at: &Path, holds: Holds, options: &str) -> SysResult<()> {
        self.op(
            "mount",
            |a| a.text("tmpfs on ").path(at).text(", ").text(options),
            || Ok(mount::mount(source, at, "tmpfs", holds.flags(), Some(c_string(options)?.as_c_str()))?),
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

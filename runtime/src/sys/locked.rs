//! Copies of mounts in which every mount is locked, because another user namespace owns them: mount_namespaces(7).
//!
//! Mounts that cover others (a mask, a read-only `/proc/sys`) are removed when the mount namespace ends, and a process with a
//! descriptor in there then sees what was covered: all of procfs, writable. Locked mounts stay in place, whatever ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::process::{NEWNS, await_end};
use super::{Kernel, SysResult};

impl Kernel {
    /// Copies the caller's mount namespace, with every mount locked. The caller is unchanged, as root of the machine's user
    /// namespace and at the root of its mounts; `proc` is the machine's procfs, as O_PATH. Errors: EUSERS or ENOSPC if user
    /// namespaces are exhausted or forbidden (`user.max_user_namespaces`).
    pub fn lock_mounts(&self, proc: BorrowedFd<'_>) -> SysResult<OwnedFd> {
        let (pid, pidfd) = self.hold_namespaces_of_nobody(NEWNS, "holder of locked mounts")?;
        let name = format!("{pid}/ns/mnt");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let open = || Ok(rustix::fs::openat(proc, name.as_str(), flags, Mode::empty())?);
        let opened = self.op("open", |a| a.text("/proc/").text(&name), open);
        self.kill(pidfd.as_fd(), libc::SIGKILL, "holder of locked mounts")?;
        self.op("waitid", |a| a.text("holder of locked mounts"), || await_end(pidfd.as_fd()))?;
        opened
    }
}

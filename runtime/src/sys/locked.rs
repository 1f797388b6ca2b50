//! Copies of mounts in which every mount is locked, because another user namespace owns them: mount_namespaces(7).
//!
//! What covers a mount (a mask, a read-only `/proc/sys`) falls off it when the mount namespace ends, and who has a descriptor in
//! there still sees what was covered: procfs in whole, for writing. Locked mounts stay where they are, whatever ends.

use std::hash::{BuildHasher, RandomState};
use std::io::Error as IoError;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::process::{NEWNS, NEWUSER, await_end, hold_namespaces};
use super::{Kernel, SysResult, checked};

/// The owners of these user namespaces are above the ids that Pods may name: a process of its owner's outside has every capability
/// over a user namespace. Which one it is nobody can tell; and who takes that id finds none: whoever enters such a copy makes one of
/// its own of that.
const FIRST_OWNER: u32 = 0xF000_0000;
const OWNERS: u32 = 0x0FFF_FFFE;

/// setresuid(2) leaves that id as it is.
const SAME: u32 = u32::MAX;

impl Kernel {
    /// Copies the caller's mount namespace, with every mount locked. The caller stays where it is, as root of the machine's user
    /// namespace and at the root of its mounts; `proc` is the machine's procfs, as a place. Errors: EUSERS or ENOSPC where user
    /// namespaces are used up or forbidden (`user.max_user_namespaces`).
    pub fn lock_mounts(&self, proc: BorrowedFd<'_>) -> SysResult<OwnedFd> {
        let us = std::process::id();
        let owner = FIRST_OWNER + (RandomState::new().hash_one(us) % u64::from(OWNERS)) as u32;
        self.act_as(owner)?;
        let holder = self.clone3(NEWUSER | NEWNS, None, "holder of locked mounts", || hold_namespaces(us));
        self.act_as(0)?;
        let (pid, pidfd) = holder?;
        let name = format!("{pid}/ns/mnt");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let open = || Ok(rustix::fs::openat(proc, name.as_str(), flags, Mode::empty())?);
        let opened = self.op("open", |a| a.text("/proc/").text(&name), open);
        self.kill(pidfd.as_fd(), libc::SIGKILL, "holder of locked mounts")?;
        self.op("waitid", |a| a.text("holder of locked mounts"), || await_end(pidfd.as_fd()))?;
        opened
    }

    /// Is another effective user, with the capabilities that it has.
    fn act_as(&self, uid: u32) -> SysResult<()> {
        self.op(
            "setresuid",
            |a| a.text("effective ").number(uid),
            || {
                let failed = |why: caps::errors::CapsError| IoError::other(why.to_string());
                let effective = caps::read(None, caps::CapSet::Effective).map_err(failed)?;
                // SAFETY: plain values. A raw call: glibc's would signal other threads.
                checked(unsafe { libc::syscall(libc::SYS_setresuid, SAME, uid, SAME) })?;
                // The kernel takes them from who is not root any more, in effect; permitted they stay, as the real user is root.
                caps::set(None, caps::CapSet::Effective, &effective).map_err(failed)
            },
        )
    }
}

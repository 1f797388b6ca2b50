//! Namespaces without a real owner: user namespaces whose owner no process outside has (user_namespaces(7)), and others charged to
//! no real user.
//!
//! A process of the owner's uid in the parent namespace has every capability over a user namespace: those owned by root are
//! accessible to every other root, including the processes, networks and mounts in them.

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::io::{Error as IoError, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};

use super::process::{NAMESPACES, NEWUSER, hold_namespaces};
use super::{Kernel, SysResult, checked};

/// Owners are above the ids that Pods may name. The exact one is random; a process with CAP_SETUID that tries them all cannot tell
/// whether it matches (`seccomp::floor` of the runtime): it can name nothing in the namespace.
const FIRST_OWNER: u32 = 0xF000_0000;
const OWNERS: u32 = 0x0FFF_FFFE;

/// setresuid(2) leaves that id unchanged.
const SAME: u32 = u32::MAX;

impl Kernel {
    /// [`Kernel::clone3`] into a new user namespace and others according to `flags`, by root of the machine's user namespace, whose credentials are restored afterwards. The child's ids are unmapped until a mapping is written.
    ///
    /// # Safety
    ///
    /// That of [`Kernel::clone3`].
    pub unsafe fn clone3_of_nobody(
        &self,
        flags: u64,
        cgroup: Option<BorrowedFd<'_>>,
        shown: &str,
        child: impl FnOnce() -> Infallible,
    ) -> SysResult<(u32, OwnedFd)> {
        // SAFETY: the caller promises it.
        self.as_nobody(|| unsafe { self.clone3(flags, cgroup, shown, child) })?
    }

    /// A process that holds these new namespaces, including a user namespace without a real owner, and nothing else. It ends when
    /// killed, or with the calling thread.
    pub fn hold_namespaces_of_nobody(&self, namespaces: u64, shown: &str) -> SysResult<(u32, OwnedFd)> {
        let us = std::process::id();
        // SAFETY: a fork, and nothing but system calls in it.
        unsafe { self.clone3_of_nobody(NEWUSER | namespaces & NAMESPACES, None, shown, || hold_namespaces(us)) }
    }

    /// Runs something as an unused effective user, with all of root's capabilities; the caller is root before and afterwards. Fails
    /// if it is not root, or not where such a user exists.
    pub(super) fn as_nobody<T>(&self, act: impl FnOnce() -> T) -> SysResult<T> {
        if !rustix::process::geteuid().is_root() {
            return self.op("setresuid", |a| a.text("effective nobody"), || Err(ErrorKind::PermissionDenied.into()));
        }
        let any = RandomState::new().hash_one(std::process::id());
        let _back = Back(self);
        self.act_as(FIRST_OWNER + (any % u64::from(OWNERS)) as u32)?;
        Ok(act())
    }

    /// Changes the effective user, keeping capabilities.
    pub(super) fn act_as(&self, uid: u32) -> SysResult<()> {
        self.op(
            "setresuid",
            // An owner's number must not appear in a Pod's journal.
            |a| if uid < FIRST_OWNER { a.text("effective ").number(uid) } else { a.text("effective nobody") },
            || {
                let failed = |why: caps::errors::CapsError| IoError::other(why.to_string());
                let effective = caps::read(None, caps::CapSet::Effective).map_err(failed)?;
                // SAFETY: plain values. A raw call: glibc's would signal other threads.
                checked(unsafe { libc::syscall(libc::SYS_setresuid, SAME, uid, SAME) })?;
                // The kernel clears the effective set when the effective user is no longer root; the permitted set stays, as the
                // real user is root.
                caps::set(None, caps::CapSet::Effective, &effective).map_err(failed)
            },
        )
    }
}

/// Becomes root again when dropped.
struct Back<'a>(&'a Kernel);

impl Drop for Back<'_> {
    fn drop(&mut self) {
        // If that fails, the process must not go on: it would act as another user.
        if self.0.act_as(0).is_err() {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::{CString, c_char};
    use std::os::fd::{AsFd, AsRawFd};

    use super::*;
    use crate::JournalWriter;
    use crate::process::{NEWNET, NEWUTS, await_end, exit, namespace_of};

    fn credentials() -> Vec<String> {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let told = |line: &&str| ["Uid:", "Gid:", "Cap"].iter().any(|field| line.starts_with(field));
        status.lines().filter(told).map(str::to_owned).collect()
    }

    #[test]
    fn who_makes_a_user_namespace_of_nobodys_is_as_before_and_does_not_own_it() {
        const NS_GET_OWNER_UID: u64 = 0xb704;
        let kernel = Kernel::new(&JournalWriter::none());
        let before = credentials();
        let (pid, pidfd) = kernel.hold_namespaces_of_nobody(NEWNET, "a holder").unwrap();
        assert_eq!(credentials(), before);
        let namespace = namespace_of(pid, "user").unwrap();
        let mut owner = 0u32;
        // SAFETY: the kernel writes a uid there.
        let asked = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID as _, &raw mut owner) };
        assert_eq!(asked, 0, "{}", IoError::last_os_error());
        assert!((FIRST_OWNER..u32::MAX).contains(&owner), "{owner:#x}");
        kernel.kill(pidfd.as_fd(), libc::SIGKILL, "a holder").unwrap();
        await_end(pidfd.as_fd()).unwrap();
    }

    /// In a new user namespace with its own limits.
    const CROWDED: &str = "PODWRIGHT_TEST_CROWDED";

    #[test]
    fn what_one_user_has_used_up_keeps_no_namespace_from_being_made() {
        if std::env::var_os(CROWDED).is_some() {
            return in_a_crowd();
        }
        let c = |text: String| CString::new(text).unwrap();
        let test = "owner::tests::what_one_user_has_used_up_keeps_no_namespace_from_being_made";
        let exe = c(std::env::current_exe().unwrap().to_str().unwrap().to_owned());
        let args = [exe.clone(), c("--exact".into()), c("--nocapture".into()), c(test.into())];
        let env = [c(format!("{CROWDED}=1"))];
        let pointers = |all: &[CString]| -> Vec<*const c_char> {
            all.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let (argv, envp) = (pointers(&args), pointers(&env));
        let (told, tell) = rustix::pipe::pipe().unwrap();
        let life = || -> Infallible {
            let mut byte = 0u8;
            // SAFETY: raw calls; they read a copy of the parent's data.
            unsafe {
                libc::read(told.as_raw_fd(), (&raw mut byte).cast(), 1);
                libc::execve(exe.as_ptr(), argv.as_ptr(), envp.as_ptr());
            }
            exit(127)
        };
        let kernel = Kernel::new(&JournalWriter::none());
        // SAFETY: a fork, and only system calls in it.
        let (pid, pidfd) = unsafe { kernel.clone3(NEWUSER, None, "a crowded place", life) }.unwrap();
        for file in ["uid_map", "gid_map"] {
            std::fs::write(format!("/proc/{pid}/{file}"), "0 0 4294967295").unwrap();
        }
        rustix::io::write(&tell, b"g").unwrap();
        assert_eq!(await_end(pidfd.as_fd()).unwrap(), 0);
    }

    fn in_a_crowd() {
        let kernel = Kernel::new(&JournalWriter::none());
        std::fs::write("/proc/sys/user/max_uts_namespaces", "1").unwrap();
        let before = credentials();
        for _ in 0..3 {
            kernel.unshare(NEWUTS).unwrap();
            assert_eq!(credentials(), before);
        }
        // It is root again too: otherwise it could not set limits.
        let life = || -> Infallible { exit(if rustix::process::geteuid().is_root() { 0 } else { 1 }) };
        // SAFETY: a fork; other threads of this process wait.
        let (_, pidfd) = unsafe { kernel.clone3(NEWUTS, None, "one more", life) }.unwrap();
        assert_eq!(await_end(pidfd.as_fd()).unwrap(), 0);
        assert_eq!(credentials(), before);
        std::fs::write("/proc/sys/user/max_uts_namespaces", "0").unwrap();
        assert_eq!(kernel.unshare(NEWUTS).unwrap_err().errno(), libc::ENOSPC, "nobody has any");
    }
}

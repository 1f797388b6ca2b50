//! What a process of ours does to itself: signals, session, descriptors, heap. Not recorded.

use std::io::Error as IoError;
use std::os::fd::{FromRawFd, OwnedFd};

use super::checked;

/// What the shim does to itself at its start: own session, reaper of orphans, closed to inspection, signals blocked.
pub fn become_shim(name: &str) -> Result<OwnedFd, IoError> {
    let name = super::fs::c_string(&name.chars().take(15).collect::<String>())?;
    // SAFETY: plain values, a NUL-terminated name, and signal sets that outlive the calls.
    unsafe {
        libc::setsid();
        checked(libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0).into())?;
        checked(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0).into())?;
        libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0);
        libc::umask(0o022);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        checked(libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()).into())?;
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE, libc::SIGQUIT] {
            libc::signal(signal, libc::SIG_IGN);
        }
        let fd = checked(libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC).into())?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

/// Gives a child back what the shim changed for itself: all signals unblocked and default; a session of its own.
pub fn become_child() {
    // SAFETY: plain values and a signal set that outlives the call.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
        libc::setsid();
    }
}

pub fn umask(mask: u32) {
    // SAFETY: a plain value.
    unsafe { libc::umask(mask as libc::mode_t) };
}

/// Marks every descriptor from `first` on close-on-exec: what we forgot cannot leak into a container.
pub fn close_on_exec_from(first: u32) -> Result<(), IoError> {
    // SAFETY: plain values.
    checked(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) }).map(drop)
}

/// Gives freed heap pages back to the kernel.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no arguments that could be wrong.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Keeps the allocator small: one arena, small top pad.
pub fn small_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: plain values.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TOP_PAD, 16 << 10);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 32 << 10);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 10);
    }
}

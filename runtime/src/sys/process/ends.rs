//! How processes end, and who waits for that: wait(2), waitid(2).

use std::io::Error as IoError;
#[cfg(feature = "tokio")]
use std::os::fd::OwnedFd;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::checked;

/// How a process ended, as wait(2) tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// 128 + signal after a signal.
    pub code: i32,
    pub signal: i32,
}

/// Reaps any one child that has ended.
pub fn reap_any() -> Option<(u32, Ended)> {
    // SAFETY: `status` outlives the call.
    let (pid, status) = unsafe {
        let mut status = 0;
        (libc::waitpid(-1, &mut status, libc::WNOHANG), status)
    };
    (pid > 0).then(|| (pid as u32, ended(status)))
}

/// A pidfd to be awaited: it becomes readable when its process has ended.
#[cfg(feature = "tokio")]
pub fn watch(pidfd: OwnedFd) -> Result<tokio::io::unix::AsyncFd<OwnedFd>, IoError> {
    // SAFETY: the AsyncFd owns the descriptor, whose number therefore stays ours as long as it is registered.
    unsafe { tokio::io::unix::AsyncFd::register_with_interest(pidfd, tokio::io::Interest::READABLE) }
        .map_err(|e| IoError::other(e.to_string()))
}

/// Waits until a child of ours has ended, and gives its exit code.
pub fn await_end(pidfd: BorrowedFd<'_>) -> Result<i32, IoError> {
    loop {
        // SAFETY: waitid fills `info`, which outlives the call; after a success its status is set.
        let (done, code) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let id = pidfd.as_raw_fd() as libc::id_t;
            let done = libc::waitid(libc::P_PIDFD, id, &mut info, libc::WEXITED | libc::__WALL);
            (checked(done.into()), info.si_status())
        };
        match done {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            done => return done.map(|_| code),
        }
    }
}

/// Reaps the child behind a pidfd if it has ended.
pub fn reap_pidfd(pidfd: BorrowedFd<'_>) {
    // SAFETY: waitid fills `info`, which outlives the call.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_PIDFD, pidfd.as_raw_fd() as libc::id_t, &mut info, libc::WEXITED | libc::WNOHANG);
    }
}

fn ended(status: i32) -> Ended {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        return Ended { code: 128 + signal, signal };
    }
    Ended { code: libc::WEXITSTATUS(status), signal: 0 }
}

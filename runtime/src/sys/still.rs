//! Freezes the processes of a cgroup briefly; they are thawed whatever happens to the caller.

use std::fs::File;
use std::io::{Error as IoError, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};

use super::{Kernel, SysResult, checked};

/// How long to wait until all are frozen. A process that is not by then is in the kernel, and freezes on return.
const FREEZING: Duration = Duration::from_millis(200);

/// Processes are frozen until this is dropped, or our process ends.
#[derive(Debug)]
pub struct Still {
    file: File,
    guardian: Option<(libc::pid_t, OwnedFd)>,
}

impl Kernel {
    /// Freezes the processes of a cgroup and below.
    pub fn keep_still(&self, cgroup: &Path) -> SysResult<Still> {
        let path = cgroup.join("cgroup.freeze");
        let begin = || {
            let file = File::options().write(true).open(&path)?;
            let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
            let guardian = fork_guardian(&read, &write, &file)?;
            Ok(Still { file, guardian: Some((guardian, write)) })
        };
        let still = self.op("fork", |a| a.path(&path), begin)?;
        self.write(&path, "1")?;
        let end = Instant::now() + FREEZING;
        let events = || std::fs::read_to_string(cgroup.join("cgroup.events")).unwrap_or_default();
        while Instant::now() < end && events().contains("frozen 0") {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(still)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        let _ = self.file.write_all(b"0");
        if let Some((guardian, pipe)) = self.guardian.take() {
            // An explicit byte, as another child may have a copy of this end.
            let _ = rustix::io::write(&pipe, b".");
            // SAFETY: our own child, which no one else waits for.
            while unsafe { libc::waitpid(guardian, std::ptr::null_mut(), 0) } == -1
                && IoError::last_os_error().raw_os_error() == Some(libc::EINTR)
            {}
        }
    }
}

/// A child that thaws the processes when told to, or when this process has ended.
fn fork_guardian(read: &OwnedFd, write: &OwnedFd, file: &File) -> Result<libc::pid_t, IoError> {
    let [read, write, file] = [read.as_raw_fd(), write.as_raw_fd(), file.as_raw_fd()];
    // SAFETY: the child of a multi-threaded process only makes system calls, allocates nothing and never returns.
    unsafe {
        let pid = checked(libc::fork().into())? as libc::pid_t;
        if pid != 0 {
            return Ok(pid);
        }
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        libc::close(write);
        let mut word = 0u8;
        libc::read(read, std::ptr::from_mut(&mut word).cast(), 1);
        libc::write(file, c"0".as_ptr().cast(), 1);
        libc::_exit(0)
    }
}

//! Terminals.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::fs::{DEVPTS, is_of, is_ptmx, is_pty};
use super::{Kernel, SysResult, checked};

impl Kernel {
    /// A pty pair of the devpts instance mounted at `/dev/pts` of this root, verified: (master, slave). The master is non-blocking.
    pub fn open_pty(&self, root: BorrowedFd<'_>) -> SysResult<(OwnedFd, OwnedFd)> {
        let pts = self.find_plain(root, Path::new("/dev/pts"))?;
        self.op(
            "openpty",
            |a| a.text("/dev/pts/ptmx"),
            || {
                let other = || std::io::Error::other("no devpts is mounted at /dev/pts");
                // Files of a devpts cannot be created or renamed: its ptmx is genuine.
                let pts = pts.as_ref().filter(|pts| is_of(pts.as_fd(), DEVPTS)).ok_or_else(other)?;
                let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let master = rustix::fs::openat(pts, "ptmx", flags, Mode::empty())?;
                if !is_ptmx(master.as_fd()) {
                    return Err(std::io::Error::from_raw_os_error(libc::ENOTTY));
                }
                rustix::pty::unlockpt(&master)?;
                // SAFETY: TIOCGPTPEER takes open flags by value and returns a new descriptor of ours.
                let slave = unsafe {
                    let fd = libc::ioctl(
                        master.as_raw_fd(),
                        libc::TIOCGPTPEER as _,
                        libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC,
                    );
                    OwnedFd::from_raw_fd(checked(fd.into())? as i32)
                };
                if !is_pty(slave.as_fd()) {
                    return Err(std::io::Error::from_raw_os_error(libc::ENOTTY));
                }
                Ok((master, slave))
            },
        )
    }

    /// Makes `tty` the controlling terminal of the caller's (new) session.
    pub fn control_tty(&self, tty: BorrowedFd<'_>) -> SysResult<()> {
        self.op("ioctl", |a| a.text("TIOCSCTTY"), || Ok(rustix::process::ioctl_tiocsctty(tty)?))
    }
}

/// Sets the size of a terminal: columns, rows.
pub fn resize(tty: BorrowedFd<'_>, (columns, rows): (u16, u16)) -> Result<(), std::io::Error> {
    let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(tty, size)?)
}

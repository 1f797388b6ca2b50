//! A process's streams: pipes and null devices from outside, or a terminal of the container's own devpts.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, makedev};

use super::{ChildContext, refused};
use crate::protocol::{Failure, ProcessPlan};
use podwright_sys::fs::{Node, is_device, is_pty};
use podwright_sys::{self as sys, Kernel, SysResult, io};

/// 1:3, by mem(4).
pub const NULL: (u32, u32) = (1, 3);

impl ChildContext<'_> {
    /// Moves stdin, stdout and stderr into place, owned by this user. Other descriptors may change their numbers.
    pub(super) fn place_streams(&self, user: Option<(u32, u32)>) -> Result<(), std::io::Error> {
        for (number, stream) in (0..).zip(&self.stdio) {
            let stream = stream.as_ref().map_or(self.null, |fd| fd.as_fd());
            // /dev/stdout is reopened by programs that run as another user.
            if let Some((uid, gid)) = user {
                own(stream, uid, Some(gid));
            }
            io::dup_to(stream, number)?;
        }
        Ok(())
    }
}

/// A private null device: a process that changes its stream's mode does not affect the machine's `/dev/null`.
pub fn private_null(kernel: &Kernel) -> Result<OwnedFd, std::io::Error> {
    let made = || -> Result<OwnedFd, std::io::Error> {
        let tmpfs = null_tmpfs(kernel).map_err(|e| e.source)?;
        Ok(rustix::fs::openat(&tmpfs, "null", OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
    };
    // A shim in a container may lack permission to create devices: then it is the machine's.
    let null = match made() {
        Ok(null) => null,
        Err(_) => std::fs::File::options().read(true).write(true).open("/dev/null")?.into(),
    };
    match is_device(null.as_fd(), NULL.0, NULL.1) {
        true => Ok(null),
        false => Err(std::io::Error::other("/dev/null is not the null device")),
    }
}

/// A detached tmpfs containing only a null device.
pub fn null_tmpfs(kernel: &Kernel) -> SysResult<OwnedFd> {
    let tmpfs = kernel.new_fs("tmpfs", &[("mode", Some("755")), ("size", Some("4k"))], 0)?;
    let (kind, dev) = (FileType::CharacterDevice, makedev(NULL.0, NULL.1));
    kernel.mknod_in(tmpfs.as_fd(), &[Node { name: "null", kind, mode: 0o666, dev, owner: (0, 0) }])?;
    Ok(tmpfs)
}

/// Allocates a terminal from this root's devpts, uses its slave for all streams, and returns (master, slave).
pub fn terminal(
    kernel: &Kernel,
    root: BorrowedFd<'_>,
    plan: &ProcessPlan,
    user: u32,
) -> Result<(OwnedFd, OwnedFd), Failure> {
    let (master, slave) = kernel.open_pty(root)?;
    if let Some(size) = plan.size {
        let _ = sys::tty::resize(slave.as_fd(), size);
    }
    own(slave.as_fd(), user, None);
    let put = || (0..3).try_for_each(|n| io::dup_to(slave.as_fd(), n));
    kernel.op("dup2", |a| a.text("the pty to 0, 1, 2"), put)?;
    Ok((master, slave))
}

/// Reopens the terminal that is the caller's stdin through its current mounts, so that `/proc/self/fd/0` and ttyname(3) resolve. If
/// it is not found, the streams stay unchanged.
pub fn find_terminal_again(kernel: &Kernel) {
    let find = || -> Result<(), std::io::Error> {
        let stdin = rustix::fs::fstat(std::io::stdin())?;
        let path = format!("/dev/pts/{}", rustix::fs::minor(stdin.st_rdev));
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let found = rustix::fs::open(path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&found)?;
        if (stat.st_dev, stat.st_ino, stat.st_rdev) != (stdin.st_dev, stdin.st_ino, stdin.st_rdev) {
            return Err(std::io::Error::from_raw_os_error(libc::ENOTTY));
        }
        io::set_blocking(found.as_fd())?;
        (0..3).try_for_each(|n| io::dup_to(found.as_fd(), n))
    };
    let _ = kernel.op("dup2", |a| a.text("the pty to 0, 1, 2, by the name that it has now"), find);
}

/// Mounts a terminal as a container's console: onto a regular file, following no symlink.
pub fn console(kernel: &Kernel, root: BorrowedFd<'_>, slave: BorrowedFd<'_>) -> Result<(), Failure> {
    let console = Path::new("/dev/console");
    let target = match kernel.find_plain(root, console)? {
        Some(target) => target,
        None => kernel.make_inside(root, console, false)?,
    };
    let kind = rustix::fs::fstat(&target).map(|s| FileType::from_raw_mode(s.st_mode)).ok();
    if !matches!(kind, Some(FileType::RegularFile | FileType::CharacterDevice)) {
        return Err(refused("/dev/console is neither a file nor a terminal"));
    }
    let tree = kernel.clone_tree_of(slave, Path::new("the pty"), false)?;
    if !is_pty(tree.as_fd()) {
        return Err(refused("the console is no pty"));
    }
    Ok(kernel.attach(tree.as_fd(), target.as_fd(), console)?)
}

/// Gives a pipe or terminal to the container's user. A null device keeps its owner.
fn own(fd: BorrowedFd<'_>, uid: u32, gid: Option<u32>) {
    use rustix::fs::{Gid, Uid, fchown, fstat};
    let pipe_or_pty = fstat(fd).is_ok_and(|s| match FileType::from_raw_mode(s.st_mode) {
        FileType::Fifo | FileType::Socket => true,
        FileType::CharacterDevice => (136..=143).contains(&rustix::fs::major(s.st_rdev)),
        _ => false,
    });
    if pipe_or_pty && uid != 0 {
        let _ = fchown(fd, Some(Uid::from_raw(uid)), gid.map(Gid::from_raw));
    }
}

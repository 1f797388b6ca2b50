//! Mounts in containers, using the file descriptor API (Linux 5.2 and later; `mount_setattr` 5.12). For those of the host see
//! `paths`.
//!
//! A mount is created or cloned detached, given its attributes, and only then attached to a target that was opened inside the
//! container's root with `openat2(RESOLVE_IN_ROOT)`: no path of an image is ever resolved against the host.

mod paths;

use std::ffi::CString;
use std::io::Error as IoError;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{self, FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags};

use podwright_journal::Args;

use super::{Kernel, SysResult, checked};
pub use paths::Holds;

pub const ATTR_RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub const ATTR_NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub const ATTR_NODEV: u64 = libc::MOUNT_ATTR_NODEV;
pub const ATTR_NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;
pub const ATTR_ATIME: u64 = libc::MOUNT_ATTR__ATIME;
pub const ATTR_NOATIME: u64 = libc::MOUNT_ATTR_NOATIME;
pub const ATTR_STRICTATIME: u64 = libc::MOUNT_ATTR_STRICTATIME;
pub const ATTR_NODIRATIME: u64 = libc::MOUNT_ATTR_NODIRATIME;
pub const ATTR_NOSYMFOLLOW: u64 = libc::MOUNT_ATTR_NOSYMFOLLOW;

pub const PRIVATE: u64 = libc::MS_PRIVATE;
pub const SLAVE: u64 = libc::MS_SLAVE;
pub const SHARED: u64 = libc::MS_SHARED;
pub const UNBINDABLE: u64 = libc::MS_UNBINDABLE;

/// The length limit of fsconfig(2) strings, exclusive.
const FSCONFIG_MAX: usize = 256;

/// A filesystem's option: `Some(value)` or a flag.
pub type FsOption<'a> = (&'a str, Option<&'a str>);

impl Kernel {
    /// A new detached instance of a filesystem.
    pub fn new_fs(&self, fstype: &str, options: &[FsOption<'_>], attrs: u64) -> SysResult<OwnedFd> {
        self.op(
            "fsmount",
            |a| listed(a.text(fstype), options),
            || {
                let fs = mount::fsopen(fstype, FsOpenFlags::FSOPEN_CLOEXEC)?;
                configured(fs.as_fd(), options, attrs)
            },
        )
    }

    /// Mounts a filesystem opened with [`open_proc`], detached.
    pub fn mount_opened(&self, fs: BorrowedFd<'_>, options: &[FsOption<'_>], attrs: u64) -> SysResult<OwnedFd> {
        self.op("fsmount", |a| listed(a.text("proc"), options), || configured(fs, options, attrs))
    }

    /// A procfs of another PID namespace than the caller's. Errors: EINVAL before Linux 6.17.
    pub fn new_proc(&self, options: &[FsOption<'_>], attrs: u64, pids: BorrowedFd<'_>) -> SysResult<OwnedFd> {
        self.op(
            "fsmount",
            |a| listed(a.text("proc"), options).text(" pidns"),
            || {
                let fs = mount::fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
                mount::fsconfig_set_fd(fs.as_fd(), "pidns", pids)?;
                configured(fs.as_fd(), options, attrs)
            },
        )
    }

    /// A detached overlay of `layers` (lowest first) below `upper`. `scratch` is an empty folder for the fallback.
    pub fn overlay(
        &self,
        layers: &[impl AsRef<Path>],
        upper: &Path,
        work: &Path,
        scratch: &Path,
    ) -> SysResult<OwnedFd> {
        let lower: Vec<&str> = layers.iter().rev().filter_map(|l| l.as_ref().to_str()).collect();
        let text = |p: &Path| p.to_str().unwrap_or_default().to_owned();
        let (upper, work) = (text(upper), text(work));
        if lower.iter().chain([&&*upper, &&*work]).all(|p| p.len() < FSCONFIG_MAX) {
            let mut options: Vec<FsOption<'_>> = lower.iter().map(|l| ("lowerdir+", Some(*l))).collect();
            options.extend([("upperdir", Some(&*upper)), ("workdir", Some(&*work))]);
            match self.new_fs("overlay", &options, 0) {
                Err(e) if e.errno() == libc::EINVAL => {}
                done => return done,
            }
        }
        self.overlay_by_mount(&lower, &upper, &work, scratch)
    }

    /// Before Linux 6.5 there is no `lowerdir+`: mount(2) accepts one page of options, and attaches at once.
    fn overlay_by_mount(&self, lower: &[&str], upper: &str, work: &str, scratch: &Path) -> SysResult<OwnedFd> {
        let escape = |p: &str| p.replace('\\', "\\\\").replace(':', "\\:").replace(',', "\\,");
        let lower = lower.iter().map(|l| escape(l)).collect::<Vec<_>>().join(":");
        let data = format!("lowerdir={lower},upperdir={},workdir={}", escape(upper), escape(work));
        self.op(
            "mount",
            |a| a.text("overlay on ").path(scratch).text(", ").text(&data),
            || {
                let data = CString::new(data.as_str()).map_err(|_| IoError::from_raw_os_error(libc::EINVAL))?;
                Ok(mount::mount("overlay", scratch, "overlay", mount::MountFlags::empty(), Some(data.as_c_str()))?)
            },
        )?;
        let tree = self.clone_tree(scratch, false)?;
        self.detach(scratch)?;
        Ok(tree)
    }

    /// A detached copy of the mount at (or of the file) `source`.
    pub fn clone_tree(&self, source: &Path, recursive: bool) -> SysResult<OwnedFd> {
        let how = if recursive { ", recursive" } else { "" };
        self.op(
            "open_tree",
            |a| a.path(source).text(how),
            || {
                let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
                if recursive {
                    flags |= OpenTreeFlags::AT_RECURSIVE;
                }
                Ok(mount::open_tree(CWD, source, flags)?)
            },
        )
    }

    /// [`Kernel::clone_tree`] of an open file.
    pub fn clone_tree_of(&self, source: BorrowedFd<'_>, what: &Path, recursive: bool) -> SysResult<OwnedFd> {
        self.op(
            "open_tree",
            |a| a.path(what),
            || {
                let mut flags =
                    OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
                if recursive {
                    flags |= OpenTreeFlags::AT_RECURSIVE;
                }
                Ok(mount::open_tree(source, "", flags)?)
            },
        )
    }

    /// This many detached binds of one file, to be attached somewhere.
    pub fn clones_of(&self, source: BorrowedFd<'_>, what: &Path, count: usize) -> SysResult<Vec<OwnedFd>> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        self.op(
            "open_tree",
            |a| a.path(what).text(", ").number(count as u64).text(" times"),
            || (0..count).map(|_| Ok(mount::open_tree(source, "", flags)?)).collect(),
        )
    }

    /// Sets and clears attributes of a mount, and its propagation (0: keep).
    pub fn set_attrs(
        &self,
        mount: BorrowedFd<'_>,
        recursive: bool,
        set: u64,
        clear: u64,
        propagation: u64,
    ) -> SysResult<()> {
        if set == 0 && clear == 0 && propagation == 0 {
            return Ok(());
        }
        let how = if recursive { ", recursive true" } else { ", recursive false" };
        let parts = [("set 0x", set), (", clear 0x", clear), (", propagation 0x", propagation)];
        self.op(
            "mount_setattr",
            |a| parts.iter().fold(a, |a, (what, bits)| a.text(what).hex(*bits)).text(how),
            || {
                let attr = libc::mount_attr { attr_set: set, attr_clr: clear, propagation, userns_fd: 0 };
                setattr(mount, recursive, &attr)
            },
        )
    }

    /// Idmaps a detached mount's files with a user namespace (Linux 5.12; tmpfs 6.3).
    pub fn idmap(&self, mount: BorrowedFd<'_>, recursive: bool, users: BorrowedFd<'_>, shown: &Path) -> SysResult<()> {
        self.op(
            "mount_setattr",
            |a| a.text("MOUNT_ATTR_IDMAP ").path(shown),
            || {
                let (attr_set, userns_fd) = (libc::MOUNT_ATTR_IDMAP, users.as_raw_fd() as u64);
                setattr(mount, recursive, &libc::mount_attr { attr_set, attr_clr: 0, propagation: 0, userns_fd })
            },
        )
    }

    /// Attaches a detached mount to an opened target.
    pub fn attach(&self, mount: BorrowedFd<'_>, target: BorrowedFd<'_>, shown: &Path) -> SysResult<()> {
        self.op(
            "move_mount",
            |a| a.path(shown),
            || {
                let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
                Ok(mount::move_mount(mount, "", target, "", flags)?)
            },
        )
    }

    /// Attaches a detached mount at a path of the caller's own mount namespace.
    pub fn attach_at(&self, mount: BorrowedFd<'_>, target: &Path) -> SysResult<()> {
        self.op(
            "move_mount",
            |a| a.path(target),
            || Ok(mount::move_mount(mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?),
        )
    }

    /// Changes the propagation of everything mounted below `/`.
    pub fn propagate_root(&self, propagation: u64) -> SysResult<()> {
        self.op(
            "mount",
            |a| a.text("/, propagation 0x").hex(propagation).text(", recursive"),
            || {
                // SAFETY: only constant strings and flags.
                let done = unsafe {
                    libc::mount(
                        std::ptr::null(),
                        c"/".as_ptr(),
                        std::ptr::null(),
                        libc::MS_REC | propagation,
                        std::ptr::null(),
                    )
                };
                checked(done.into()).map(drop)
            },
        )
    }

    /// Unmounts lazily; does nothing if nothing is mounted there.
    pub fn detach(&self, target: &Path) -> SysResult<()> {
        self.op(
            "umount2",
            |a| a.path(target).text(", MNT_DETACH"),
            || match mount::unmount(target, mount::UnmountFlags::DETACH | mount::UnmountFlags::NOFOLLOW) {
                Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
                Err(e) => Err(e.into()),
            },
        )
    }

    /// Makes the mount `root` the caller's `/` and detaches the old one.
    pub fn pivot_root(&self, root: BorrowedFd<'_>) -> SysResult<()> {
        self.op(
            "pivot_root",
            |a| a,
            || {
                rustix::process::fchdir(root)?;
                rustix::process::pivot_root(".", ".")?;
                // The old root is now stacked below us, at `.`.
                mount::unmount(".", mount::UnmountFlags::DETACH)?;
                Ok(rustix::process::chdir("/")?)
            },
        )
    }
}

fn setattr(mount: BorrowedFd<'_>, recursive: bool, attr: &libc::mount_attr) -> Result<(), IoError> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    let size = size_of::<libc::mount_attr>();
    // SAFETY: the path is a NUL-terminated empty string, `attr` outlives the call and its size is passed.
    let done = unsafe {
        libc::syscall(libc::SYS_mount_setattr, mount.as_raw_fd(), c"".as_ptr(), flags, &raw const *attr, size)
    };
    checked(done).map(drop)
}

/// Opens procfs of the caller's own PID namespace. It is not configured yet: another process may continue.
pub fn open_proc() -> Result<OwnedFd, IoError> {
    Ok(mount::fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?)
}

fn configured(fs: BorrowedFd<'_>, options: &[FsOption<'_>], attrs: u64) -> Result<OwnedFd, IoError> {
    for (key, value) in options {
        match value {
            Some(value) => mount::fsconfig_set_string(fs, *key, *value)?,
            None => mount::fsconfig_set_flag(fs, *key)?,
        }
    }
    mount::fsconfig_create(fs)?;
    let attrs = MountAttrFlags::from_bits_retain(attrs as u32);
    Ok(mount::fsmount(fs, FsMountFlags::FSMOUNT_CLOEXEC, attrs)?)
}

fn listed<'a>(args: Args<'a>, options: &[FsOption<'_>]) -> Args<'a> {
    options.iter().fold(args, |args, (key, value)| match value {
        Some(value) => args.text(" ").text(key).text("=").text(value),
        None => args.text(" ").text(key),
    })
}

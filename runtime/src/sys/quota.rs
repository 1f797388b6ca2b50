//! Project quotas: the project of a folder, and its usage as counted by the file system (quotactl(2), KEP-1029).

use std::io::{Error as IoError, Result as IoResult};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{Kernel, SysResult, checked};

/// The quota type (linux/quota.h) that libc lacks.
const PRJQUOTA: libc::c_int = 2;

/// A folder's project settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Project {
    /// 0: none.
    pub id: u32,
    /// Whether new files in the folder inherit it (`FS_XFLAG_PROJINHERIT`).
    pub inherited: bool,
}

/// A project's usage: each of its inodes, linked or not, including reserved space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub bytes: u64,
    pub inodes: u64,
    /// A limit is set for the project.
    pub limited: bool,
    /// The limit of bytes; 0: none.
    pub limit: u64,
}

impl Tally {
    /// Whether the project is unused.
    pub fn is_unused(&self) -> bool {
        *self == Tally::default()
    }
}

/// Opens a folder for these calls. Errors: of openat(2), also if `path` is a symlink.
pub fn open(path: &Path) -> IoResult<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// Checks that the file system of `folder` counts projects. Errors: ESRCH if it is disabled, ENOSYS or EINVAL if not supported,
/// ENOSYS before Linux 5.14 too.
pub fn counts_projects(folder: BorrowedFd<'_>) -> IoResult<()> {
    /// `struct if_dqinfo` (linux/quota.h).
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        grace: [u64; 2],
        flags: u32,
        valid: u32,
    }
    let mut info = Info::default();
    // SAFETY: the structure that Q_GETINFO fills.
    checked(unsafe { quotactl(folder, libc::Q_GETINFO, 0, (&raw mut info).cast()) }).map(drop)
}

/// A project's usage on the file system of `folder`.
pub fn tally(folder: BorrowedFd<'_>, project: u32) -> IoResult<Tally> {
    // SAFETY: integers, for which zeros are valid.
    let mut quota: libc::dqblk = unsafe { std::mem::zeroed() };
    // SAFETY: the structure that Q_GETQUOTA fills.
    match checked(unsafe { quotactl(folder, libc::Q_GETQUOTA, project, (&raw mut quota).cast()) }) {
        // XFS has no entry for a project that was never used.
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(Tally::default()),
        Err(e) => Err(e),
        Ok(_) => {
            let limits = [quota.dqb_bhardlimit, quota.dqb_bsoftlimit, quota.dqb_ihardlimit, quota.dqb_isoftlimit];
            let limited = limits.iter().any(|limit| *limit != 0);
            Ok(Tally {
                bytes: quota.dqb_curspace,
                inodes: quota.dqb_curinodes,
                limited,
                limit: quota.dqb_bhardlimit.saturating_mul(1024),
            })
        }
    }
}

/// Whether the file system of `folder` also enforces projects' limits. Errors: as [`counts_projects`].
pub fn limits_projects(folder: BorrowedFd<'_>) -> IoResult<bool> {
    /// `Q_XGETQSTATV` (linux/dqblk_xfs.h), also supported by other file systems than XFS.
    const GET_STATE: i32 = ((b'X' as i32) << 8) + 8;
    /// `FS_QUOTA_PDQ_ENFD`
    const ENFORCED: u16 = 1 << 5;
    /// The beginning of `struct fs_quota_statv`, and space for the rest.
    #[repr(C)]
    #[derive(Default)]
    struct State {
        version: i8,
        pad: u8,
        flags: u16,
        count: u32,
        rest: [u64; 31],
    }
    let mut state = State { version: 1, ..State::default() };
    // SAFETY: the structure that Q_XGETQSTATV fills, in its first version.
    checked(unsafe { quotactl(folder, GET_STATE, 0, (&raw mut state).cast()) })?;
    Ok(state.flags & ENFORCED != 0)
}

/// The project of an open folder. Errors: ENOTTY, EOPNOTSUPP if its file system has no projects.
pub fn project(folder: BorrowedFd<'_>) -> IoResult<Project> {
    let attributes = attributes(folder)?;
    Ok(Project { id: attributes.projid, inherited: attributes.xflags & PROJINHERIT != 0 })
}

impl Kernel {
    /// Sets the project of an open folder; existing contents are unchanged.
    ///
    /// The owner of a folder may do that too, but not in a user namespace: EINVAL (Linux, `fileattr_set_prepare`).
    pub fn set_project(&self, folder: BorrowedFd<'_>, path: &Path, project: Project) -> SysResult<()> {
        self.op(
            "ioctl",
            |a| a.text("FS_IOC_FSSETXATTR ").path(path).text(" project ").number(project.id),
            || {
                let old = attributes(folder)?;
                let others = old.xflags & !PROJINHERIT;
                let xflags = if project.inherited { others | PROJINHERIT } else { others };
                let new = Attributes { projid: project.id, xflags, ..old };
                // SAFETY: the structure read by the ioctl.
                checked(unsafe { libc::ioctl(folder.as_raw_fd(), SET as _, &raw const new) }.into()).map(drop)
            },
        )
    }
}

impl Kernel {
    /// Limits a project's usage on the file system of an open folder; `None`: removes the limit.
    pub fn set_limit(&self, folder: BorrowedFd<'_>, path: &Path, project: u32, bytes: Option<u64>) -> SysResult<()> {
        /// Limits are counted in KiB (`QIF_DQBLKSIZE`).
        const BLOCK: u64 = 1024;
        let limit = bytes.map_or(0, |bytes| bytes.div_ceil(BLOCK).max(1));
        self.op(
            "quotactl_fd",
            |a| a.text("Q_SETQUOTA ").path(path).text(" project ").number(project).text(" KiB ").number(limit),
            || {
                // SAFETY: integers, for which zeros are valid.
                let mut quota: libc::dqblk = unsafe { std::mem::zeroed() };
                quota.dqb_bhardlimit = limit;
                quota.dqb_valid = libc::QIF_BLIMITS;
                // SAFETY: the structure read by Q_SETQUOTA.
                checked(unsafe { quotactl(folder, libc::Q_SETQUOTA, project, (&raw mut quota).cast()) }).map(drop)
            },
        )
    }
}

/// `FS_XFLAG_PROJINHERIT`
const PROJINHERIT: u32 = 0x200;
const GET: libc::c_ulong = libc::_IOR::<Attributes>(b'X' as u32, 31);
const SET: libc::c_ulong = libc::_IOW::<Attributes>(b'X' as u32, 32);

/// `struct fsxattr` (linux/fs.h).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attributes {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

fn attributes(folder: BorrowedFd<'_>) -> IoResult<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the structure filled by the ioctl.
    checked(unsafe { libc::ioctl(folder.as_raw_fd(), GET as _, &raw mut attributes) }.into())?;
    Ok(attributes)
}

/// # Safety
///
/// `argument` points to the operation's structure.
unsafe fn quotactl(folder: BorrowedFd<'_>, operation: i32, id: u32, argument: *mut libc::c_void) -> libc::c_long {
    let command = libc::QCMD(operation, PRJQUOTA);
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_quotactl_fd, folder.as_raw_fd(), command, id, argument) }
}

/// Why a file system has no project quotas, in words.
pub fn why_not(error: &IoError) -> String {
    match error.raw_os_error() {
        Some(libc::ESRCH) => "its file system does not count what projects hold".to_owned(),
        Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOTTY) => {
            "its file system has no project quotas".to_owned()
        }
        _ => error.to_string(),
    }
}

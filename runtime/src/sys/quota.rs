//! Project quotas: which project a folder belongs to, and what its file system has counted for that (quotactl(2), KEP-1029).

use std::io::{Error as IoError, Result as IoResult};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{Kernel, SysResult, checked};

/// The type of quotas (linux/quota.h) that libc has no name for.
const PRJQUOTA: libc::c_int = 2;

/// What a folder says of the project of what is made in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Project {
    /// 0: none.
    pub id: u32,
    /// Whether what is made in the folder belongs to it from the beginning (`FS_XFLAG_PROJINHERIT`).
    pub inherited: bool,
}

/// What a project holds: each inode of it, wherever its names are, if it has any, with what is reserved and not yet written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub bytes: u64,
    pub inodes: u64,
    /// Somebody has set a limit for the project.
    pub limited: bool,
    /// That of its bytes, 0: none.
    pub limit: u64,
}

impl Tally {
    /// Whether nobody has such a project.
    pub fn is_unused(&self) -> bool {
        *self == Tally::default()
    }
}

/// Opens a folder for what is asked here. Errors: of openat(2), also where `path` is a symlink.
pub fn open(path: &Path) -> IoResult<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// Whether the file system of `folder` counts what its projects hold. Errors: ESRCH where it could and does not, ENOSYS or
/// EINVAL where it cannot, ENOSYS before Linux 5.14 too.
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

/// What the file system of `folder` has counted for a project.
pub fn tally(folder: BorrowedFd<'_>, project: u32) -> IoResult<Tally> {
    // SAFETY: integers, for which zeros are values.
    let mut quota: libc::dqblk = unsafe { std::mem::zeroed() };
    // SAFETY: the structure that Q_GETQUOTA fills.
    match checked(unsafe { quotactl(folder, libc::Q_GETQUOTA, project, (&raw mut quota).cast()) }) {
        // XFS knows nothing of a project that has never had anything.
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

/// Whether the file system of `folder` also refuses what exceeds a project's limit. Errors: as [`counts_projects`].
pub fn limits_projects(folder: BorrowedFd<'_>) -> IoResult<bool> {
    /// `Q_XGETQSTATV` (linux/dqblk_xfs.h), which other file systems than XFS answer too.
    const GET_STATE: i32 = ((b'X' as i32) << 8) + 8;
    /// `FS_QUOTA_PDQ_ENFD`
    const ENFORCED: u16 = 1 << 5;
    /// The beginning of `struct fs_quota_statv`, and room for all of it.
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

/// The project of an open folder. Errors: ENOTTY, EOPNOTSUPP where its file system knows no projects.
pub fn project(folder: BorrowedFd<'_>) -> IoResult<Project> {
    let attributes = attributes(folder)?;
    Ok(Project { id: attributes.projid, inherited: attributes.xflags & PROJINHERIT != 0 })
}

impl Kernel {
    /// Gives an open folder to a project; what is in it already stays where it is.
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
                // SAFETY: the structure that the ioctl reads.
                checked(unsafe { libc::ioctl(folder.as_raw_fd(), SET as _, &raw const new) }.into()).map(drop)
            },
        )
    }
}

impl Kernel {
    /// Limits what a project holds on the file system of an open folder; `None`: no longer.
    pub fn set_limit(&self, folder: BorrowedFd<'_>, path: &Path, project: u32, bytes: Option<u64>) -> SysResult<()> {
        /// Limits are counted in KiB (`QIF_DQBLKSIZE`).
        const BLOCK: u64 = 1024;
        let limit = bytes.map_or(0, |bytes| bytes.div_ceil(BLOCK).max(1));
        self.op(
            "quotactl_fd",
            |a| a.text("Q_SETQUOTA ").path(path).text(" project ").number(project).text(" KiB ").number(limit),
            || {
                // SAFETY: integers, for which zeros are values.
                let mut quota: libc::dqblk = unsafe { std::mem::zeroed() };
                quota.dqb_bhardlimit = limit;
                quota.dqb_valid = libc::QIF_BLIMITS;
                // SAFETY: the structure that Q_SETQUOTA reads.
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
    // SAFETY: the structure that the ioctl fills.
    checked(unsafe { libc::ioctl(folder.as_raw_fd(), GET as _, &raw mut attributes) }.into())?;
    Ok(attributes)
}

/// # Safety
///
/// `argument` points to what the operation takes.
unsafe fn quotactl(folder: BorrowedFd<'_>, operation: i32, id: u32, argument: *mut libc::c_void) -> libc::c_long {
    let command = libc::QCMD(operation, PRJQUOTA);
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_quotactl_fd, folder.as_raw_fd(), command, id, argument) }
}

/// Why a file system does not count projects, in words.
pub fn why_not(error: &IoError) -> String {
    match error.raw_os_error() {
        Some(libc::ESRCH) => "its file system does not count what projects hold".to_owned(),
        Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOTTY) => {
            "its file system has no project quotas".to_owned()
        }
        _ => error.to_string(),
    }
}

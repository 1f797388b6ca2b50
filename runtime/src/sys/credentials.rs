//! What a process may: limits, user, capabilities, no_new_privs, seccomp filters.

use std::io::Error as IoError;
use std::os::fd::BorrowedFd;

use super::{Kernel, SysResult, checked};

/// The five capability sets as bit masks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CapSets {
    pub bounding: u64,
    pub effective: u64,
    pub permitted: u64,
    pub inheritable: u64,
    pub ambient: u64,
}

impl Kernel {
    pub fn set_rlimit(&self, resource: u32, soft: u64, hard: u64) -> SysResult<()> {
        self.op(
            "setrlimit",
            |a| a.number(resource).text(", ").number(soft).text(", ").number(hard),
            || {
                let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
                // SAFETY: `limit` outlives the call.
                checked(unsafe { libc::setrlimit64(resource as _, &limit) }.into()).map(drop)
            },
        )
    }

    /// Becomes another user, keeping capabilities until [`Kernel::set_capabilities`].
    pub fn set_user(&self, uid: u32, gid: u32, groups: &[u32]) -> SysResult<()> {
        self.op(
            "setresuid",
            |a| {
                let a = a.text("uid ").number(uid).text(", gid ").number(gid).text(", groups [");
                a.list(groups, |a, group| a.number(*group)).text("]")
            },
            || {
                // SAFETY: plain values; `groups` is as long as said. Raw calls: glibc's would signal other threads.
                unsafe {
                    checked(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0).into())?;
                    checked(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
                    checked(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
                    checked(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
                }
                Ok(())
            },
        )
    }

    /// Drops what is not in `bounding` from the bounding set. Needs CAP_SETPCAP, so: before the other sets.
    pub fn bound_capabilities(&self, bounding: u64) -> SysResult<()> {
        self.op(
            "prctl",
            |a| a.text("PR_CAPBSET_DROP all but 0x").hex(bounding),
            || {
                for cap in 0..64 {
                    // SAFETY: plain values.
                    let present = unsafe { libc::prctl(libc::PR_CAPBSET_READ, cap, 0, 0, 0) };
                    if present < 0 {
                        break;
                    }
                    if present == 1 && bounding & (1 << cap) == 0 {
                        // SAFETY: plain values.
                        checked(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, cap, 0, 0, 0) }.into())?;
                    }
                }
                Ok(())
            },
        )
    }

    /// Sets effective, permitted, inheritable and ambient at once.
    pub fn set_capabilities(&self, sets: &CapSets) -> SysResult<()> {
        self.op(
            "capset",
            |a| {
                let all = [
                    ("CapSets { bounding: ", sets.bounding),
                    (", effective: ", sets.effective),
                    (", permitted: ", sets.permitted),
                    (", inheritable: ", sets.inheritable),
                    (", ambient: ", sets.ambient),
                ];
                all.iter().fold(a, |a, (name, set)| a.text(name).hex(*set)).text(" }")
            },
            || {
                #[repr(C)]
                struct Header {
                    version: u32,
                    pid: i32,
                }
                let header = Header { version: 0x2008_0522, pid: 0 };
                let half = |shift: u32| [sets.effective, sets.permitted, sets.inheritable].map(|s| (s >> shift) as u32);
                let data = [half(0), half(32)];
                // SAFETY: version 3 of the header takes two triples of u32; both outlive the call.
                unsafe {
                    checked(libc::syscall(libc::SYS_capset, &header, &data))?;
                    checked(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0).into())?;
                    for cap in (0..64).filter(|c| sets.ambient & (1u64 << c) != 0) {
                        checked(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, cap, 0, 0).into())?;
                    }
                }
                Ok(())
            },
        )
    }

    pub fn no_new_privs(&self) -> SysResult<()> {
        self.op(
            "prctl",
            |a| a.text("PR_SET_NO_NEW_PRIVS"),
            || {
                // SAFETY: plain values.
                checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into()).map(drop)
            },
        )
    }

    /// Loads one compiled filter: a file that holds an array of `struct sock_filter`.
    pub fn seccomp(&self, program: BorrowedFd<'_>, flags: u32) -> SysResult<()> {
        let size = rustix::fs::fstat(program).map_or(0, |s| s.st_size as usize);
        self.op(
            "seccomp",
            |a| {
                let length = size / size_of::<libc::sock_filter>();
                a.text("SECCOMP_SET_MODE_FILTER, ").number(length as u64).text(" instructions")
            },
            || {
                let mut filters = vec![[0u8; size_of::<libc::sock_filter>()]; size / size_of::<libc::sock_filter>()];
                let got = rustix::io::pread(program, filters.as_flattened_mut(), 0)?;
                if got != size {
                    return Err(IoError::from_raw_os_error(libc::EIO));
                }
                let len = u16::try_from(filters.len()).map_err(|_| IoError::from_raw_os_error(libc::E2BIG))?;
                let filter = libc::sock_fprog { len, filter: filters.as_mut_ptr().cast() };
                // SAFETY: the kernel copies `len` filters of the same size, wherever they lie, and checks them.
                checked(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &filter) })
                    .map(drop)
            },
        )
    }
}

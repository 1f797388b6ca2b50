//! A process's privileges: limits, user, capabilities, no_new_privs, seccomp filters.

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

    /// Changes the user, keeping capabilities until [`Kernel::set_capabilities`].
    pub fn set_user(&self, uid: u32, gid: u32, groups: &[u32]) -> SysResult<()> {
        self.op(
            "setresuid",
            |a| {
                let a = a.text("uid ").number(uid).text(", gid ").number(gid).text(", groups [");
                a.list(groups, |a, group| a.number(*group)).text("]")
            },
            || {
                // SAFETY: plain values; `groups` has the given length. Raw calls: glibc's would signal other threads.
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

    /// New files of the caller belong to this user; its own privileges are unchanged (setfsuid(2)).
    pub fn make_files_as(&self, uid: u32, gid: u32) -> SysResult<()> {
        self.op(
            "setfsuid",
            |a| a.number(uid).text(", gid ").number(gid),
            || {
                let failed = |why: caps::errors::CapsError| IoError::other(why.to_string());
                let effective = caps::read(None, caps::CapSet::Effective).map_err(failed)?;
                // SAFETY: plain values. Neither call reports failure: so they are queried with an invalid id, which changes
                // nothing.
                let now = unsafe {
                    libc::syscall(libc::SYS_setfsgid, gid);
                    libc::syscall(libc::SYS_setfsuid, uid);
                    (libc::syscall(libc::SYS_setfsuid, u32::MAX), libc::syscall(libc::SYS_setfsgid, u32::MAX))
                };
                if now != (uid.into(), gid.into()) {
                    return Err(IoError::from_raw_os_error(libc::EPERM));
                }
                // The kernel drops the file-related capabilities when the fsuid is no longer root.
                caps::set(None, caps::CapSet::Effective, &effective).map_err(failed)
            },
        )
    }

    /// Removes what is not in `bounding` from the bounding set. Requires CAP_SETPCAP: call it before setting the other sets.
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

    /// Loads one compiled filter: an array of `struct sock_filter`.
    pub fn seccomp(&self, program: &[u8], flags: u32) -> SysResult<()> {
        const SIZE: usize = size_of::<libc::sock_filter>();
        self.op(
            "seccomp",
            |a| a.text("SECCOMP_SET_MODE_FILTER, ").number((program.len() / SIZE) as u64).text(" instructions"),
            || {
                let (filters, []) = program.as_chunks::<SIZE>() else {
                    return Err(IoError::from_raw_os_error(libc::EINVAL));
                };
                let len = u16::try_from(filters.len()).map_err(|_| IoError::from_raw_os_error(libc::E2BIG))?;
                let filter = libc::sock_fprog { len, filter: filters.as_ptr().cast_mut().cast() };
                // SAFETY: the kernel copies `len` filters of the same size, with any alignment, verifies them and writes nothing.
                checked(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &filter) })
                    .map(drop)
            },
        )
    }
}

/// Reads a compiled filter from its memfd.
pub fn read_program(program: BorrowedFd<'_>) -> Result<Vec<u8>, IoError> {
    let mut bytes = vec![0u8; rustix::fs::fstat(program)?.st_size as usize];
    match rustix::io::pread(program, &mut bytes, 0)? == bytes.len() {
        true => Ok(bytes),
        false => Err(IoError::from_raw_os_error(libc::EIO)),
    }
}

/// A filter for a process of our own: allows these calls, and one more with exactly this first argument; all others kill it.
pub fn allow_only(calls: &[libc::c_long], (call, argument): (libc::c_long, u64)) -> Vec<u8> {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    #[cfg(target_arch = "x86_64")]
    const ARCHITECTURE: u32 = 0xc000_003e;
    #[cfg(target_arch = "aarch64")]
    const ARCHITECTURE: u32 = 0xc000_00b7;
    // Offsets of `struct seccomp_data`.
    const NUMBER: u32 = 0;
    const ARCH: u32 = 4;
    const ARGUMENT: u32 = 16;
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| {
        let mut bytes = [0u8; 8];
        bytes[..2].copy_from_slice(&(code as u16).to_ne_bytes());
        (bytes[2], bytes[3]) = (jt, jf);
        bytes[4..].copy_from_slice(&k.to_ne_bytes());
        bytes
    };
    let load = |offset| instruction(BPF_LD | BPF_W | BPF_ABS, 0, 0, offset);
    let skip_unless = |value, skipped| instruction(BPF_JMP | BPF_JEQ | BPF_K, 0, skipped, value);
    let end = |action| instruction(BPF_RET | BPF_K, 0, 0, action);
    let kill = end(libc::SECCOMP_RET_KILL_PROCESS);
    let allow = end(libc::SECCOMP_RET_ALLOW);
    let mut program = vec![load(ARCH), instruction(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, ARCHITECTURE), kill, load(NUMBER)];
    for call in calls {
        program.extend([skip_unless(*call as u32, 1), allow]);
    }
    let (low, high) = (argument as u32, (argument >> 32) as u32);
    program.extend([skip_unless(call as u32, 5), load(ARGUMENT), skip_unless(low, 3), load(ARGUMENT + 4)]);
    program.extend([skip_unless(high, 1), allow, kill]);
    program.concat()
}

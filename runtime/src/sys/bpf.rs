//! eBPF device filter programs, and their attachment to cgroups.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use super::{Kernel, SysResult, checked};

// Commands, a program type, an attach type and a flag of linux/bpf.h that libc lacks.
const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const PROG_QUERY: libc::c_int = 16;
const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const CGROUP_DEVICE: u32 = 6;
/// In addition to those of parent cgroups (systemd's, an outer runtime's): all of them must allow.
const ALLOW_MULTI: u32 = 2;

/// `struct bpf_insn` on little-endian machines.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instruction {
    pub code: u8,
    /// Destination in the lower half, source in the upper half.
    pub registers: u8,
    pub offset: i16,
    pub immediate: i32,
}

/// The part of `union bpf_attr` that loads a program; the kernel treats the rest as zeros.
#[repr(C)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

/// The part of `union bpf_attr` that attaches one.
#[repr(C)]
struct Attach {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
}

/// The part of `union bpf_attr` that queries a cgroup's programs.
#[repr(C)]
struct Query {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    padding: u32,
}

/// The part of `union bpf_attr` that queries a program's properties.
#[repr(C)]
struct Info {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The ids of the device filters of a cgroup itself. More than a few are not legitimate: ENOSPC.
pub fn device_programs(cgroup: &Path) -> std::io::Result<Vec<u32>> {
    let folder = std::fs::File::open(cgroup)?;
    let mut ids = [0u32; 64];
    let mut query = Query {
        target_fd: folder.as_raw_fd() as u32,
        attach_type: CGROUP_DEVICE,
        query_flags: 0,
        attach_flags: 0,
        prog_ids: ids.as_mut_ptr() as u64,
        prog_cnt: ids.len() as u32,
        padding: 0,
    };
    // SAFETY: `query` is complete; the kernel writes at most `prog_cnt` ids to the given address, which outlives the call.
    checked(unsafe { libc::syscall(libc::SYS_bpf, PROG_QUERY, &raw mut query, size_of::<Query>()) })?;
    Ok(ids[..(query.prog_cnt as usize).min(ids.len())].to_vec())
}

/// A program by its id.
pub fn program_of(id: u32) -> std::io::Result<OwnedFd> {
    let attr = [id, 0, 0];
    // SAFETY: `attr` is the part of `union bpf_attr` that the command reads: an id, and no flags.
    let fd = checked(unsafe { libc::syscall(libc::SYS_bpf, PROG_GET_FD_BY_ID, attr.as_ptr(), size_of_val(&attr)) })?;
    // SAFETY: the kernel has just created this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The id of a program.
pub fn id_of(program: BorrowedFd<'_>) -> std::io::Result<u32> {
    // `struct bpf_prog_info` begins with a type and an id; the kernel writes at most the requested length.
    let mut info = [0u32; 2];
    let attr = Info {
        bpf_fd: program.as_raw_fd() as u32,
        info_len: size_of_val(&info) as u32,
        info: info.as_mut_ptr() as u64,
    };
    // SAFETY: `attr` is complete and has no padding; the kernel writes at most `info_len` bytes to the given address.
    checked(unsafe { libc::syscall(libc::SYS_bpf, OBJ_GET_INFO_BY_FD, &raw const attr, size_of::<Info>()) })?;
    Ok(info[1])
}

impl Kernel {
    /// Has the kernel verify and load a program; it exists as long as the descriptor or a cgroup that uses it.
    pub fn load_device_program(&self, program: &[Instruction]) -> SysResult<OwnedFd> {
        self.op(
            "bpf",
            |a| a.text("BPF_PROG_LOAD, CGROUP_DEVICE, ").number(program.len() as u64).text(" instructions"),
            || {
                let attr = Load {
                    prog_type: PROG_TYPE_CGROUP_DEVICE,
                    insn_cnt: program.len() as u32,
                    insns: program.as_ptr() as u64,
                    license: c"Apache-2.0".as_ptr() as u64,
                    log_level: 0,
                    log_size: 0,
                    log_buf: 0,
                    kern_version: 0,
                    prog_flags: 0,
                };
                // SAFETY: `attr` is complete and has no padding; the program, an array of `struct bpf_insn`, and the license,
                // which ends with a NUL, outlive the call. The kernel checks the program.
                let fd =
                    checked(unsafe { libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const attr, size_of::<Load>()) })?;
                // SAFETY: the kernel has just created this descriptor for us (close-on-exec, like all of bpf's).
                Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
            },
        )
    }

    /// Attaches a device filter to a cgroup and all below it, until the cgroup is removed.
    pub fn attach_device_program(&self, cgroup: &Path, program: BorrowedFd<'_>) -> SysResult<()> {
        self.op(
            "bpf",
            |a| a.text("BPF_PROG_ATTACH, CGROUP_DEVICE, ").path(cgroup),
            || {
                let folder = std::fs::File::open(cgroup)?;
                let attr = Attach {
                    target_fd: folder.as_raw_fd() as u32,
                    attach_bpf_fd: program.as_raw_fd() as u32,
                    attach_type: CGROUP_DEVICE,
                    attach_flags: ALLOW_MULTI,
                };
                // SAFETY: `attr` is complete and has no padding; both descriptors are open during the call.
                checked(unsafe { libc::syscall(libc::SYS_bpf, PROG_ATTACH, &raw const attr, size_of::<Attach>()) })
                    .map(drop)
            },
        )
    }
}

//! eBPF: programs that decide about devices, and the cgroups that they decide for.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use super::{Kernel, SysResult, checked};
use crate::devices::Instruction;

// Commands, a program type, an attach type and a flag of linux/bpf.h, which libc does not have.
const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const CGROUP_DEVICE: u32 = 6;
/// Beside those that our parents may have (systemd's, an outer runtime's): all of them must allow.
const ALLOW_MULTI: u32 = 2;

/// The part of `union bpf_attr` that loads a program; the kernel takes what follows for zeros.
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

impl Kernel {
    /// Has the kernel check and keep a program; it stays as long as the descriptor or a cgroup that has it.
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
                // SAFETY: the kernel has just made this descriptor for us (close-on-exec, as all of bpf's).
                Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
            },
        )
    }

    /// Lets a program decide about devices for a cgroup and all below it, until the cgroup is removed.
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

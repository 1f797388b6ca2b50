//! The device filters of a cgroup: inspected and detached without the node, like an external change.

use std::{
    fs::File,
    io::Error,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    path::Path,
};

// Commands and an attach type of linux/bpf.h.
const PROG_DETACH: libc::c_int = 9;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const PROG_QUERY: libc::c_int = 16;
const CGROUP_DEVICE: u32 = 6;

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

fn bpf<T>(command: libc::c_int, attr: &mut T) -> i32 {
    // SAFETY: `attr` is the part of `union bpf_attr` that the command reads and writes; what it points to outlives the call.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    assert!(answer >= 0, "bpf command {command}: {}", Error::last_os_error());
    answer as i32
}

/// The ids of the programs attached to a cgroup itself.
pub fn programs(cgroup: &Path) -> Vec<u32> {
    let folder = File::open(cgroup).unwrap_or_else(|e| panic!("{}: {e}", cgroup.display()));
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
    bpf(PROG_QUERY, &mut query);
    ids[..query.prog_cnt as usize].to_vec()
}

/// Detaches all of them.
pub fn detach(cgroup: &Path) {
    let folder = File::open(cgroup).unwrap();
    for id in programs(cgroup) {
        let fd = bpf(PROG_GET_FD_BY_ID, &mut [id, 0, 0]);
        // SAFETY: the kernel has just created this descriptor for us.
        let program = unsafe { OwnedFd::from_raw_fd(fd) };
        bpf(PROG_DETACH, &mut [folder.as_raw_fd() as u32, program.as_raw_fd() as u32, CGROUP_DEVICE, 0]);
    }
}

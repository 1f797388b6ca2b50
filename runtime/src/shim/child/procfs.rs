//! Procfs of another PID namespace: through `pidns` of Linux 6.17, or by a helper that lives in there for two system calls.

use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use podwright_journal::JournalWriter;

use super::sandbox::empty_root;
use crate::fork::{self, Child, Forker};
use podwright_sys::birth::CLONE_SIBLING;
use podwright_sys::credentials::{CapSets, allow_only};
use podwright_sys::mount::{FsOption, open_proc};
use podwright_sys::{Kernel, SysResult, io, own, process};

/// CAP_SYS_ADMIN, which fsopen(2) requires.
const SYS_ADMIN: u64 = 1 << 21;

/// Mounts procfs, detached, as the PID namespace of `process` has it.
pub fn of(
    kernel: &Kernel,
    forker: Forker,
    options: &[FsOption<'_>],
    attrs: u64,
    process: BorrowedFd<'_>,
) -> SysResult<OwnedFd> {
    if let Ok(pids) = process::pid_namespace_of(process)
        && let Ok(proc) = kernel.new_proc(options, attrs, pids.as_fd())
    {
        return Ok(proc);
    }
    // Older kernels take the PID namespace of whoever opens it; the rest is done here.
    let opened = opened_inside(kernel, forker, process)?;
    kernel.mount_opened(opened.as_fd(), options, attrs)
}

/// The helper is in sight of all that may be in the namespace. One who traces it gets no more by it than what its filter
/// allows: fsopen(2) gives what is useless without CAP_SYS_ADMIN, sendmsg(2) reaches us alone, clone(2) bears another like it,
/// and exit_group(2) ends it.
fn opened_inside(kernel: &Kernel, forker: Forker, process: BorrowedFd<'_>) -> SysResult<OwnedFd> {
    let (ours, theirs) = kernel.op("socketpair", |a| a, io::message_pair)?;
    kernel.journal.flush();
    let helper = |child| become_helper(child, theirs.as_fd(), process);
    fork::clone3(forker, kernel, process::PARENT, None, "helper that opens procfs", helper)?;
    drop(theirs);
    let receive = || {
        let (mut byte, mut fds) = ([0u8; 4], Vec::new());
        io::set_blocking(ours.as_fd())?;
        let got = io::receive(ours.as_fd(), &mut byte, &mut fds)?;
        match (fds.pop(), got) {
            (Some(fs), 4) => Ok(fs),
            (None, 4) => Err(std::io::Error::from_raw_os_error(i32::from_le_bytes(byte))),
            _ => Err(std::io::Error::other("the helper ended")),
        }
    };
    kernel.op("fsopen", |a| a.text("proc, by a helper in the PID namespace"), receive)
}

/// Outside still: gives up everything but what the helper needs, then has it borne inside.
fn become_helper(child: Child, report: BorrowedFd<'_>, process: BorrowedFd<'_>) -> Infallible {
    let quiet = Kernel::new(&JournalWriter::none());
    let confine = || -> Result<(), std::io::Error> {
        fork::keep_only(child, &[report, process])?;
        // Its /proc/PID/root is within reach of the containers: the builder's, where nothing is covered yet, is not for them.
        empty_root(&quiet).map_err(|e| e.source)?;
        quiet.setns(process, process::NEWPID, "for the helper").map_err(|e| e.source)?;
        fork::keep_only(child, &[report])?;
        let sets = CapSets { effective: SYS_ADMIN, permitted: SYS_ADMIN, ..CapSets::default() };
        quiet.set_capabilities(&sets).map_err(|e| e.source)?;
        quiet.no_new_privs().map_err(|e| e.source)?;
        own::close_to_inspection()?;
        let calls = [libc::SYS_fsopen, libc::SYS_sendmsg, libc::SYS_exit_group];
        quiet.seccomp(&allow_only(&calls, (libc::SYS_clone, CLONE_SIBLING)), 0).map_err(|e| e.source)
    };
    let fail = |e: std::io::Error| -> Infallible {
        let _ = io::send(report, &e.raw_os_error().unwrap_or(libc::EIO).to_le_bytes(), &[]);
        process::exit(1)
    };
    match confine().and_then(|()| fork::clone_sibling(child)) {
        Ok(Some(_)) => process::exit(0),
        Err(e) => match fail(e) {},
        Ok(None) => {}
    }
    match open_proc() {
        Ok(fs) => {
            let _ = io::send(report, &[0; 4], &[fs.as_fd()]);
            // The exit closes what is open: its filter lacks close(2).
            process::exit(0)
        }
        Err(e) => fail(e),
    }
}

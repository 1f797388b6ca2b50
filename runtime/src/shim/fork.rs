//! The shim's forks, and what only a fork may do. A child is a copy of the thread that makes it: so all hangs on what the other threads
//! are doing meanwhile, and on what the child leaves alone of its parent's.
//!
//! Both are promises, and whoever holds one of the two types here has it: a [`Forker`] of the process, a [`Child`] of itself.

use std::convert::Infallible;
use std::io::Error as IoError;
use std::os::fd::{BorrowedFd, OwnedFd};

use podwright_journal::JournalWriter;
use podwright_sys::birth::{self, Born};
use podwright_sys::{Kernel, SysResult, own, process};

/// Whoever has it may fork: beside this thread there is none but those of `writer`, which make nothing but system calls: they
/// neither allocate nor lock. `tests/fast/architecture.rs` sees that nobody else starts one.
#[derive(Clone, Copy, Debug)]
pub struct Forker(());

/// Whoever has it is a child, which never returns to a frame of its parent's: it executes another program, or exits. What its parent
/// has open is of no use to it but what it names. A child forks as its parent does.
#[derive(Clone, Copy, Debug)]
pub struct Child(());

impl Forker {
    /// That of a process that has no thread but this one so far. Errors: it has others, or there is no `/proc` to tell.
    pub fn of_only_thread() -> Result<Forker, IoError> {
        match std::fs::read_dir("/proc/self/task")?.count() {
            1 => Ok(Forker(())),
            more => Err(IoError::other(format!("there are {more} threads"))),
        }
    }
}

impl Child {
    pub fn forker(self) -> Forker {
        Forker(())
    }
}

/// [`Kernel::clone3`]; `flags` are namespaces and `process::PARENT`.
pub fn clone3(
    _: Forker,
    kernel: &Kernel,
    flags: u64,
    cgroup: Option<BorrowedFd<'_>>,
    shown: &str,
    child: impl FnOnce(Child) -> Infallible,
) -> SysResult<(u32, OwnedFd)> {
    // SAFETY: no other thread allocates or locks: the forker's promise.
    unsafe { kernel.clone3(flags, cgroup, shown, || child(Child(()))) }
}

/// [`Kernel::clone3_of_nobody`], likewise.
pub fn clone3_of_nobody(
    _: Forker,
    kernel: &Kernel,
    flags: u64,
    cgroup: Option<BorrowedFd<'_>>,
    shown: &str,
    child: impl FnOnce(Child) -> Infallible,
) -> SysResult<(u32, OwnedFd)> {
    // SAFETY: as above.
    unsafe { kernel.clone3_of_nobody(flags, cgroup, shown, || child(Child(()))) }
}

/// [`birth::bear_by_another`], by a child. What `confine` closes is to be what the caller goes on without.
pub fn bear_by_another<T>(
    _: Child,
    confine: impl FnOnce() -> Option<T>,
    child: impl FnOnce(T),
) -> Result<Born, IoError> {
    // SAFETY: no other thread allocates or locks. What is closed of the caller's own is as when it closes that itself.
    unsafe { birth::bear_by_another(confine, child) }
}

/// [`birth::clone_sibling`], by a child: in the child's own, which is `None`, and in itself.
pub fn clone_sibling(_: Child) -> Result<Option<(u32, i32)>, IoError> {
    // SAFETY: no other thread allocates or locks; neither of the two returns to a frame of who has made them.
    unsafe { birth::clone_sibling() }
}

/// [`own::keep_only`], by a child.
pub fn keep_only(_: Child, kept: &[BorrowedFd<'_>]) -> Result<(), IoError> {
    // SAFETY: what else there is is of the parent's frames, to which a child does not return.
    unsafe { own::keep_only(kept) }
}

/// A process of a session of its own, which exits at once and is nobody: whatever threads there are.
pub fn nobody() -> SysResult<(u32, OwnedFd)> {
    let kernel = Kernel::new(&JournalWriter::none());
    let life = || {
        own::new_session();
        process::exit(0)
    };
    // SAFETY: the child makes nothing but system calls.
    unsafe { kernel.clone3(0, None, "nobody", life) }
}

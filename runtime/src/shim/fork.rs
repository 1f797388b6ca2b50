//! The shim's forks, and operations allowed only in a fork. A child is a copy of the forking thread: so its safety depends on what
//! the other threads are doing.
//!
//! The shim's other threads (`writer`) only make system calls: they neither allocate nor lock. A child never returns to a frame of
//! its parent: it executes another program, or exits.

use std::convert::Infallible;
use std::io::Error as IoError;
use std::os::fd::{BorrowedFd, OwnedFd};

use podwright_sys::birth::{self, Born};
use podwright_sys::{Kernel, SysResult, own};

/// [`Kernel::clone3`]; `flags` are namespaces and `process::PARENT`.
pub fn clone3(
    kernel: &Kernel,
    flags: u64,
    cgroup: Option<BorrowedFd<'_>>,
    shown: &str,
    child: impl FnOnce() -> Infallible,
) -> SysResult<(u32, OwnedFd)> {
    // SAFETY: no other thread allocates or locks.
    unsafe { kernel.clone3(flags, cgroup, shown, child) }
}

/// [`Kernel::clone3_of_nobody`], likewise.
pub fn clone3_of_nobody(
    kernel: &Kernel,
    flags: u64,
    cgroup: Option<BorrowedFd<'_>>,
    shown: &str,
    child: impl FnOnce() -> Infallible,
) -> SysResult<(u32, OwnedFd)> {
    // SAFETY: no other thread allocates or locks.
    unsafe { kernel.clone3_of_nobody(flags, cgroup, shown, child) }
}

/// [`birth::bear_by_another`]. The caller must not use what `confine` closes.
pub fn bear_by_another<T>(confine: impl FnOnce() -> Option<T>, child: impl FnOnce(T)) -> Result<Born, IoError> {
    // SAFETY: no other thread allocates or locks. The caller names what it needs, and reopens its journal.
    unsafe { birth::bear_by_another(confine, child) }
}

/// [`birth::clone_sibling`]: returns in the child (`None`), and in its parent.
pub fn clone_sibling() -> Result<Option<(u32, i32)>, IoError> {
    // SAFETY: no other thread allocates or locks.
    unsafe { birth::clone_sibling() }
}

/// [`own::keep_only`], for a child.
pub fn keep_only(kept: &[BorrowedFd<'_>]) -> Result<(), IoError> {
    // SAFETY: all other descriptors belong to frames of the parent, to which a child does not return.
    unsafe { own::keep_only(kept) }
}

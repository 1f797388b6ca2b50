//! Creates processes through an intermediate process, which drops everything that the child must not have even initially.

use std::io::Error as IoError;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use super::checked;
use super::io::{self, PollFd};
use super::process::{ExitOnDrop, PARENT, exit};

// States of a birth; initially none of these.
/// It could not set up its state, and has reported why.
const SAID: u32 = 1;
/// It called clone(2), which failed.
const REFUSED: u32 = 2;
const BORN: u32 = 3;

/// The intermediate process's result, in memory shared with it but not with the child.
#[repr(C)]
struct Told {
    state: AtomicU32,
    pid: AtomicU32,
    pidfd: AtomicI32,
    errno: AtomicI32,
}

/// The result of a birth through another process.
pub enum Born {
    /// The child's pid and pidfd.
    Process(u32, OwnedFd),
    /// `confine` failed, and has reported why.
    Failed,
    /// clone(2) failed, after `confine`.
    Refused(IoError),
    /// The intermediate process was killed.
    Lost,
}

/// Has an intermediate process run `confine` and then create `child` by clone(2), the variant that common filters allow. Both are
/// siblings of the caller, which waits until the first has exited. That shares the caller's descriptor table: it opens and closes
/// descriptors for both. It need not be able to report anything after confining itself.
///
/// Not recorded: the journal's descriptor is closed meanwhile.
///
/// # Safety
///
/// That of [`super::Kernel::clone3`], for both of them. The caller must not use what `confine` closes.
pub unsafe fn bear_by_another<T>(confine: impl FnOnce() -> Option<T>, child: impl FnOnce(T)) -> Result<Born, IoError> {
    let page = SharedPage::new()?;
    let told = page.told();
    let args = libc::clone_args {
        flags: (libc::CLONE_FILES | libc::CLONE_VFORK) as u64 | PARENT,
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: 0,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: 0,
    };
    // SAFETY: a fork (no CLONE_VM): the child gets its own copy of this stack and memory. `args` is complete.
    let between = unsafe { libc::syscall(libc::SYS_clone3, &args, size_of::<libc::clone_args>()) };
    if between == 0 {
        let _no_unwinding_into_the_parents_frames = ExitOnDrop;
        // No process that can access the child's memory can write here.
        if !page.keep_from_children() {
            exit(1);
        }
        let Some(taken) = confine() else {
            told.state.store(SAID, Ordering::Release);
            exit(1);
        };
        // SAFETY: the caller promises it.
        let borne = unsafe { clone_sibling() };
        if let Ok(None) = borne {
            child(taken);
            exit(1);
        }
        match borne {
            Ok(None) => exit(1),
            Ok(Some((pid, pidfd))) => {
                told.pid.store(pid, Ordering::Relaxed);
                told.pidfd.store(pidfd, Ordering::Relaxed);
                told.state.store(BORN, Ordering::Release);
                exit(0);
            }
            Err(e) => {
                told.errno.store(e.raw_os_error().unwrap_or(0), Ordering::Relaxed);
                told.state.store(REFUSED, Ordering::Release);
                exit(1);
            }
        }
    }
    checked(between)?;
    await_exit(between)?;
    Ok(match told.state.load(Ordering::Acquire) {
        BORN => {
            // SAFETY: the kernel created this descriptor in our shared table, and its creator has exited.
            let pidfd = unsafe { OwnedFd::from_raw_fd(told.pidfd.load(Ordering::Relaxed)) };
            Born::Process(told.pid.load(Ordering::Relaxed), pidfd)
        }
        REFUSED => Born::Refused(IoError::from_raw_os_error(told.errno.load(Ordering::Relaxed))),
        SAID => Born::Failed,
        _ => Born::Lost,
    })
}

/// Waits until an exiting sibling has closed its descriptors: CLONE_VFORK only waited for the release of its memory, which is
/// earlier.
fn await_exit(pid: libc::c_long) -> Result<(), IoError> {
    // SAFETY: plain values; returns a new descriptor of ours.
    let pidfd = match checked(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) }) {
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
        // SAFETY: as above.
        opened => unsafe { OwnedFd::from_raw_fd(opened? as i32) },
    };
    let mut set = [PollFd::new(pidfd.as_fd(), libc::POLLIN)];
    while !set[0].readable() {
        io::poll(&mut set, -1)?;
    }
    Ok(())
}

/// clone(2): a sibling, with the caller's namespaces. `None` in the child; otherwise its pid and the number of its pidfd.
///
/// # Safety
///
/// The child, which also returns from here, is a copy of the calling thread alone: no other thread of this process ever allocates,
/// frees or locks, or the child only makes system calls. It does not return to frames that its parent uses as well.
pub unsafe fn clone_sibling() -> Result<Option<(u32, i32)>, IoError> {
    let mut pidfd: i32 = -1;
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: a fork (no CLONE_VM, no separate stack); `pidfd` outlives the call. On all our targets it is the third argument; the
    // last two are unused.
    let pid = unsafe { libc::syscall(libc::SYS_clone, CLONE_SIBLING, none, &raw mut pidfd, none, none) };
    match checked(pid)? {
        0 => Ok(None),
        pid => Ok(Some((pid as u32, pidfd))),
    }
}

/// The flags of [`clone_sibling`].
pub const CLONE_SIBLING: u64 = PARENT | libc::CLONE_PIDFD as u64;

/// A page of memory shared across forks.
struct SharedPage(*mut libc::c_void);

const PAGE: usize = 4096;

impl SharedPage {
    fn new() -> Result<SharedPage, IoError> {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, wherever the kernel likes.
        match unsafe { libc::mmap(std::ptr::null_mut(), PAGE, rights, flags, -1, 0) } {
            libc::MAP_FAILED => Err(IoError::last_os_error()),
            page => Ok(SharedPage(page)),
        }
    }

    fn told(&self) -> &Told {
        // SAFETY: the mapping is aligned, large enough, initially zeroed, and lives as long as `self`; atomics may be shared.
        unsafe { &*self.0.cast::<Told>() }
    }

    /// Keeps the page out of the caller's children.
    fn keep_from_children(&self) -> bool {
        // SAFETY: our own mapping; processes without it do not use it.
        unsafe { libc::madvise(self.0, PAGE, libc::MADV_DONTFORK) == 0 }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which is no longer borrowed.
        unsafe { libc::munmap(self.0, PAGE) };
    }
}

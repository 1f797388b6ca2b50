//! Processes: clone3, namespaces, execve, and exits.

use crate::users::IdRange;
use std::convert::Infallible;
use std::ffi::{CString, c_char};
use std::io::{Error as IoError, ErrorKind, Result as IoResult};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use podwright_journal::{Args, JournalWriter};

use super::{Kernel, SysResult, checked, own};

mod ends;

pub use ends::*;

pub const NEWNS: u64 = libc::CLONE_NEWNS as u64;
pub const NEWNET: u64 = libc::CLONE_NEWNET as u64;
pub const NEWIPC: u64 = libc::CLONE_NEWIPC as u64;
pub const NEWUTS: u64 = libc::CLONE_NEWUTS as u64;
pub const NEWPID: u64 = libc::CLONE_NEWPID as u64;
pub const NEWCGROUP: u64 = libc::CLONE_NEWCGROUP as u64;
pub const NEWUSER: u64 = libc::CLONE_NEWUSER as u64;
/// All kinds of namespaces.
pub const NAMESPACES: u64 = NEWNS | NEWNET | NEWIPC | NEWUTS | NEWPID | NEWCGROUP | NEWUSER;
/// The child becomes a child of the caller's parent, which reaps it.
pub const PARENT: u64 = libc::CLONE_PARENT as u64;

/// clone3's cgroup flag; libc's type is too narrow on some targets.
const INTO_CGROUP: u64 = 0x2_0000_0000;
/// The child has no signal handlers.
const CLEAR_SIGHAND: u64 = 0x1_0000_0000;
/// PIDFD_SIGNAL_PROCESS_GROUP
const SIGNAL_PROCESS_GROUP: u32 = 1 << 2;
/// For the few calls between clone and exec.
const CHILD_STACK: usize = 16 << 10;

impl Kernel {
    /// Forks: the child starts in the cgroup and in new namespaces according to `flags`, runs `child` and never returns.
    ///
    /// If the namespaces that the kernel allows per user are exhausted, they are created as an unused user.
    ///
    /// # Safety
    ///
    /// The child is a copy of the calling thread alone: no other thread of this process ever allocates, frees or locks, or `child`
    /// only makes system calls (signal-safety(7)). `flags` are namespaces and [`PARENT`].
    pub unsafe fn clone3(
        &self,
        flags: u64,
        cgroup: Option<BorrowedFd<'_>>,
        shown: &str,
        child: impl FnOnce() -> Infallible,
    ) -> SysResult<(u32, OwnedFd)> {
        let (mut pidfd, mut child): (i32, _) = (-1, Some(child));
        let mut bear = |as_nobody: bool| {
            let args = libc::clone_args {
                flags: flags | libc::CLONE_PIDFD as u64 | if cgroup.is_some() { INTO_CGROUP } else { 0 },
                pidfd: &raw mut pidfd as u64,
                child_tid: 0,
                parent_tid: 0,
                exit_signal: if flags & PARENT == 0 { libc::SIGCHLD as u64 } else { 0 },
                stack: 0,
                stack_size: 0,
                tls: 0,
                set_tid: 0,
                set_tid_size: 0,
                cgroup: cgroup.map_or(0, |c| c.as_raw_fd() as u64),
            };
            let clone = || {
                // SAFETY: a fork (no CLONE_VM, as the caller promises): the child gets its own copy of this stack and memory, in
                // which no lock is held by another thread, as also promised. `args` is complete and `pidfd` outlives the call.
                let pid = unsafe { libc::syscall(libc::SYS_clone3, &args, size_of::<libc::clone_args>()) };
                if pid == 0 {
                    let _no_unwinding_into_the_parents_frames = ExitOnDrop;
                    let is_itself = !as_nobody || self.act_as(0).is_ok();
                    if let Some(child) = child.take().filter(|_| is_itself) {
                        match child() {}
                    }
                    exit(125);
                }
                checked(pid)
            };
            self.op("clone3", |a| namespaces(a, flags).text(shown), clone)
        };
        let pid = match bear(false) {
            Err(e) if is_used_up(&e, flags) => self.as_nobody(|| bear(true)).unwrap_or(Err(e)),
            borne => borne,
        }?;
        // SAFETY: the kernel has just put a new descriptor there.
        Ok((pid as u32, unsafe { OwnedFd::from_raw_fd(pidfd) }))
    }

    /// Starts the shim from a process with many threads and much memory: the child shares that memory, instead of copying its page
    /// tables as a fork does, and only makes raw system calls until it executes `exe`, with the given `stdin` and `stderr` and no
    /// other descriptor of ours. The calling thread waits until then.
    pub fn spawn(
        &self,
        exe: BorrowedFd<'_>,
        args: &[String],
        cgroup: BorrowedFd<'_>,
        stdin: BorrowedFd<'_>,
        stderr: BorrowedFd<'_>,
    ) -> SysResult<(u32, OwnedFd)> {
        let strings: Vec<CString> = args.iter().filter_map(|a| CString::new(a.as_str()).ok()).collect();
        let mut argv: Vec<*const c_char> = strings.iter().map(|a| a.as_ptr()).collect();
        argv.push(std::ptr::null());
        let fds = [exe, stdin, stderr].map(|fd| fd.as_raw_fd());
        let mut pidfd: i32 = -1;
        let pid = self.op(
            "clone3",
            |a| args.iter().fold(a.text("shim"), |a, arg| a.text(" ").text(arg)),
            || {
                let mut stack = vec![0u128; CHILD_STACK / size_of::<u128>()];
                let clone = libc::clone_args {
                    flags: (libc::CLONE_PIDFD | libc::CLONE_VM | libc::CLONE_VFORK) as u64
                        | CLEAR_SIGHAND
                        | INTO_CGROUP,
                    pidfd: &raw mut pidfd as u64,
                    child_tid: 0,
                    parent_tid: 0,
                    exit_signal: libc::SIGCHLD as u64,
                    stack: stack.as_mut_ptr() as u64,
                    stack_size: CHILD_STACK as u64,
                    tls: 0,
                    set_tid: 0,
                    set_tid_size: 0,
                    cgroup: cgroup.as_raw_fd() as u64,
                };
                // SAFETY: `execute` is made for this, and what it reads outlives the call, as does its stack: this thread sleeps
                // until the child has executed or exited. No signal handler of ours runs in the child.
                let pid = unsafe {
                    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
                    libc::sigfillset(&mut all);
                    libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
                    let image =
                        Image { fds, argv: argv.as_ptr(), mask: &before, files: own::inherited_descriptor_limit() };
                    let pid = clone_onto_stack(&clone, execute, &image);
                    libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
                    pid
                };
                match pid {
                    1.. => Ok(pid as u32),
                    _ => Err(IoError::from_raw_os_error(-pid as i32)),
                }
            },
        )?;
        // SAFETY: the kernel has just put a new descriptor there.
        Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
    }

    /// Joins namespaces: those of the process behind a pidfd, or the one behind a namespace file.
    pub fn setns(&self, fd: BorrowedFd<'_>, flags: u64, shown: &str) -> SysResult<()> {
        self.op(
            "setns",
            |a| namespaces(a, flags).text(shown),
            || {
                // SAFETY: changes only namespaces of the calling thread.
                checked(unsafe { libc::setns(fd.as_raw_fd(), flags as i32) }.into()).map(drop)
            },
        )
    }

    /// Moves the caller into new namespaces, like the child of [`Kernel::clone3`].
    pub fn unshare(&self, flags: u64) -> SysResult<()> {
        let unshare = || {
            self.op(
                "unshare",
                |a| namespaces(a, flags),
                || {
                    // SAFETY: changes only namespaces of the calling thread.
                    checked(unsafe { libc::unshare(flags as i32) }.into()).map(drop)
                },
            )
        };
        match unshare() {
            Err(e) if is_used_up(&e, flags) => self.as_nobody(unshare).unwrap_or(Err(e)),
            done => done,
        }
    }

    pub fn sethostname(&self, name: &str) -> SysResult<()> {
        self.op("sethostname", |a| a.text(name), || Ok(rustix::system::sethostname(name.as_bytes())?))
    }

    /// Sets `lo` up in the caller's network namespace.
    pub fn loopback_up(&self) -> SysResult<()> {
        self.op(
            "ioctl",
            |a| a.text("SIOCSIFFLAGS lo up"),
            || {
                let socket =
                    rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
                // SAFETY: an all-zero ifreq is valid; the name fits with its NUL.
                let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
                request.ifr_name[..2].copy_from_slice(&[b'l' as c_char, b'o' as c_char]);
                request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
                // SAFETY: the request is complete and outlives the call.
                checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request) }.into()).map(drop)
            },
        )
    }

    /// Replaces the process. Returns only on failure.
    pub fn execve(&self, path: &Path, args: &[String], env: &[String]) -> IoError {
        let c = |all: &[String]| all.iter().map(|s| super::fs::c_string(s)).collect::<Result<Vec<_>, _>>();
        let (path_c, args, env) = match (super::fs::c_string(&path.to_string_lossy()), c(args), c(env)) {
            (Ok(p), Ok(a), Ok(e)) => (p, a, e),
            _ => return IoError::from_raw_os_error(libc::EINVAL),
        };
        let pointers =
            |all: &[CString]| all.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect::<Vec<*const c_char>>();
        let (argv, envp) = (pointers(&args), pointers(&env));
        // A success cannot be recorded afterwards.
        self.journal.note("execve", |a| a.path(path));
        self.journal.flush();
        // SAFETY: both arrays end in a null pointer and outlive the call.
        unsafe { libc::execve(path_c.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
        IoError::last_os_error()
    }

    /// Executes an open file (a memfd) under a seccomp filter, which only needs to allow that and the program's own calls:
    /// everything else is done before. Returns only on failure.
    pub fn execve_fd(&self, exe: BorrowedFd<'_>, name: &str, filter: &[u8]) -> IoError {
        self.journal.note("execveat", |a| a.text(name));
        self.journal.flush();
        let Ok(name) = super::fs::c_string(name) else { return IoError::from_raw_os_error(libc::EINVAL) };
        let argv = [name.as_ptr(), std::ptr::null()];
        let envp: [*const c_char; 1] = [std::ptr::null()];
        if let Err(e) = Kernel::new(&JournalWriter::none()).seccomp(filter, 0) {
            return e.source;
        }
        // SAFETY: both arrays end in a null pointer and outlive the call.
        unsafe {
            let (argv, envp) = (argv.as_ptr(), envp.as_ptr());
            libc::syscall(libc::SYS_execveat, exe.as_raw_fd(), c"".as_ptr(), argv, envp, libc::AT_EMPTY_PATH)
        };
        IoError::last_os_error()
    }

    /// Sends a signal; succeeds if the process has exited.
    pub fn kill(&self, pidfd: BorrowedFd<'_>, signal: i32, shown: &str) -> SysResult<()> {
        self.signal(pidfd, signal, 0, shown)
    }

    /// Sends a signal to the group that a process leads; only to the process if it leads none, or if the kernel lacks this (before
    /// 6.9).
    pub fn kill_group(&self, leader: BorrowedFd<'_>, signal: i32, shown: &str) -> SysResult<()> {
        let sent = self.signal(leader, signal, SIGNAL_PROCESS_GROUP, shown);
        sent.or_else(|_| self.signal(leader, signal, 0, shown))
    }

    fn signal(&self, pidfd: BorrowedFd<'_>, signal: i32, flags: u32, shown: &str) -> SysResult<()> {
        self.op(
            "pidfd_send_signal",
            |a| a.text(shown).text(", ").number(signal as u64),
            || {
                // SAFETY: plain values and no siginfo.
                let sent = unsafe {
                    let none = std::ptr::null::<libc::siginfo_t>();
                    libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, none, flags)
                };
                match checked(sent) {
                    // Without a group, try the process.
                    Err(e) if e.raw_os_error() == Some(libc::ESRCH) && flags == 0 => Ok(()),
                    done => done.map(drop),
                }
            },
        )
    }
}

/// The new image of a child on shared memory.
struct Image {
    /// The program, stdin, and the common stdout and stderr.
    fds: [i32; 3],
    argv: *const *const c_char,
    /// Its signal mask.
    mask: *const libc::sigset_t,
    /// Its RLIMIT_NOFILE, if it differs from ours.
    files: Option<libc::rlimit64>,
}

/// The child's side of [`Kernel::spawn`].
///
/// # Safety
/// It runs in its parent's memory while other threads run too: only system calls, no locks or allocations.
unsafe extern "C" fn execute(image: *const Image) -> ! {
    // SAFETY: the parent keeps `image` until this has executed or exited; all calls are async-signal-safe.
    unsafe {
        let Image { fds: [exe, stdin, stderr], argv, mask, files } = *image;
        let envp: [*const c_char; 1] = [std::ptr::null()];
        // dup2 clears close-on-exec; all our other descriptors have it set or are closed here.
        if libc::dup2(stdin, 0) == 0 && libc::dup2(stderr, 1) == 1 && libc::dup2(stderr, 2) == 2 {
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            libc::sigprocmask(libc::SIG_SETMASK, mask, std::ptr::null_mut());
            if let Some(files) = &files {
                libc::setrlimit64(libc::RLIMIT_NOFILE, files);
            }
            libc::syscall(libc::SYS_execveat, exe, c"".as_ptr(), argv, envp.as_ptr(), libc::AT_EMPTY_PATH);
        }
        libc::_exit(127);
    }
}

/// clone3 with a new stack, on which the child calls `child`. Returns the child's pid, or a negative errno.
///
/// # Safety
/// `args` names a stack, aligned to 16 bytes; it and all of this memory that `child` uses outlive the child's stay in it.
unsafe fn clone_onto_stack(
    args: &libc::clone_args,
    child: unsafe extern "C" fn(*const Image) -> !,
    image: &Image,
) -> i64 {
    let result: i64;
    // SAFETY: in the parent only the named registers change; the child never returns from its call.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, {image}",
            "call {child}",
            "ud2",
            "2:",
            image = in(reg) image,
            child = in(reg) child,
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") args,
            in("rsi") size_of::<libc::clone_args>(),
            out("rcx") _,
            out("r11") _,
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, {image}",
            "blr {child}",
            "brk 1",
            "2:",
            image = in(reg) image,
            child = in(reg) child,
            inlateout("x0") args => result,
            in("x1") size_of::<libc::clone_args>(),
            in("x8") libc::SYS_clone3,
        );
    }
    result
}

/// Ends a panicking child before it unwinds into its parent's frames.
pub(super) struct ExitOnDrop;

impl Drop for ExitOnDrop {
    fn drop(&mut self) {
        exit(125);
    }
}

/// Exits at once: no destructors, no exit handlers (they belong to the parent).
pub fn exit(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// A child of `parent` that only holds namespaces, until it is killed: it has no descriptors (which would keep a lock or a
/// listening socket alive), and ends at the latest with the thread that created it. It only makes system calls.
///
/// # Safety
///
/// All descriptors of the process are closed, whoever owns them: it is a fork, and continues with nothing else.
pub(super) unsafe fn hold_namespaces(parent: u32) -> Infallible {
    // SAFETY: only raw system calls, with plain values; the descriptors are the child's own copies.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
        // The parent may have exited before its death signal was set.
        while libc::getppid() as u32 == parent {
            libc::syscall(libc::SYS_ppoll, 0, 0, 0, 0, 0);
        }
    }
    exit(0)
}

/// Whether the caller's user has no more namespaces of these kinds: they count for who makes them, and for the owners of all user
/// namespaces around them, as is root of the machine of those that root of a container makes. New users have an owner already who is
/// nobody.
fn is_used_up(error: &super::SysError, flags: u64) -> bool {
    error.errno() == libc::ENOSPC && flags & NAMESPACES != 0 && flags & NEWUSER == 0
}

fn namespaces(args: Args<'_>, flags: u64) -> Args<'_> {
    const NAMES: [(u64, &str); 7] = [
        (NEWUSER, "user "),
        (NEWNS, "mnt "),
        (NEWPID, "pid "),
        (NEWNET, "net "),
        (NEWIPC, "ipc "),
        (NEWUTS, "uts "),
        (NEWCGROUP, "cgroup "),
    ];
    NAMES.iter().filter(|(bit, _)| flags & bit != 0).fold(args, |args, (_, name)| args.text(name))
}

/// The PID namespace of the process behind a pidfd. Errors: not supported before Linux 6.11.
pub fn pid_namespace_of(pidfd: BorrowedFd<'_>) -> Result<OwnedFd, IoError> {
    /// `_IO(PIDFS_IOCTL_MAGIC, 5)` of linux/pidfd.h.
    const PIDFD_GET_PID_NAMESPACE: u32 = 0xff05;
    // SAFETY: takes no argument and returns a new descriptor of ours.
    let fd = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_PID_NAMESPACE as _, 0) };
    // SAFETY: as above.
    checked(fd.into()).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Opens a namespace of a process (a child of ours, so that its pid cannot be reused).
pub fn namespace_of(pid: u32, kind: &str) -> Result<OwnedFd, IoError> {
    Ok(std::fs::File::open(format!("/proc/{pid}/ns/{kind}"))?.into())
}

/// The mapping of a process's user namespace to our own, if it has its own. Fails if it cannot be read.
pub fn users_of(pid: u32) -> IoResult<Option<IdRange>> {
    let map = std::fs::read_to_string(format!("/proc/{pid}/uid_map"))?;
    let mut numbers = map.split_whitespace().map_while(|word| word.parse::<u32>().ok());
    // The map is empty until it is written.
    let (Some(_), Some(host), Some(size)) = (numbers.next(), numbers.next(), numbers.next()) else {
        return Err(ErrorKind::InvalidData.into());
    };
    Ok((size != u32::MAX).then_some(IdRange { host, size }))
}

/// The current parent of a process.
pub fn parent_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::JournalWriter;

    fn namespaces_held() -> (u32, OwnedFd) {
        let us = std::process::id();
        let kernel = Kernel::new(&JournalWriter::none());
        // SAFETY: a fork, and only system calls in it.
        unsafe { kernel.clone3(NEWUSER, None, "a user namespace", || hold_namespaces(us)) }.unwrap()
    }

    #[test]
    fn who_holds_namespaces_holds_nothing_else_and_ends_with_its_thread() {
        let (pid, pidfd) = thread::spawn(|| {
            let (pid, pidfd) = namespaces_held();
            let open = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
            let begun = Instant::now();
            while open() > 0 {
                assert!(begun.elapsed() < Duration::from_secs(10), "it holds {} descriptors", open());
                thread::yield_now();
            }
            (pid, pidfd)
        })
        .join()
        .unwrap();
        assert_eq!(await_end(pidfd.as_fd()).unwrap(), libc::SIGKILL, "process {pid}");
    }
}

//! A process's operations on itself: signals, session, descriptors, heap. Not recorded.

use std::fs::Metadata;
use std::io::Error as IoError;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use super::checked;

/// The shim's setup at startup: own session, reaper of orphans, non-dumpable, signals blocked.
pub fn become_shim(name: &str) -> Result<OwnedFd, IoError> {
    let name = super::fs::c_string(&name.chars().take(15).collect::<String>())?;
    // SAFETY: plain values, a NUL-terminated name, and signal sets that outlive the calls.
    unsafe {
        libc::setsid();
        checked(libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0).into())?;
        checked(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0).into())?;
        libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0);
        libc::umask(0o022);
        lift_limits_of_users();
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        checked(libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()).into())?;
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE, libc::SIGQUIT] {
            libc::signal(signal, libc::SIG_IGN);
        }
        let fd = checked(libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC).into())?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

/// Removes limits that the kernel counts per host user, which processes of any Pod may share: processes, pending signals, bytes of
/// message queues. Otherwise one tenant's Pod could exhaust those of another's with the same user. Containers are bounded by their
/// cgroup (memory, pids) and their IPC namespace (fs.mqueue). Upstream's runtimes have no limit of processes either
/// (`LimitNPROC=infinity` of containerd). Without the privilege the limits stay.
fn lift_limits_of_users() {
    let none = libc::rlimit64 { rlim_cur: libc::RLIM64_INFINITY, rlim_max: libc::RLIM64_INFINITY };
    for resource in [libc::RLIMIT_NPROC, libc::RLIMIT_SIGPENDING, libc::RLIMIT_MSGQUEUE] {
        // SAFETY: the kernel reads a plain struct.
        unsafe { libc::setrlimit64(resource, &none) };
    }
}

/// The identity of the caller's program: device and inode.
static PROGRAM: OnceLock<(u64, u64)> = OnceLock::new();

/// For [`is_program`], here and in all children: it cannot be determined in a container.
pub fn remember_program() {
    if let Ok(file) = std::fs::metadata("/proc/self/exe") {
        let _ = PROGRAM.set((file.dev(), file.ino()));
    }
}

/// Whether this file is our own program.
pub fn is_program(file: &Metadata) -> bool {
    PROGRAM.get() == Some(&(file.dev(), file.ino()))
}

/// Makes the caller the leader of a new session, without a terminal.
pub fn new_session() {
    // SAFETY: no arguments; fails only if it is already one.
    unsafe { libc::setsid() };
}

/// Resets in a child what the shim changed for itself: all signals unblocked and default.
pub fn become_child() {
    // SAFETY: plain values and a signal set that outlives the call.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
}

/// The original RLIMIT_NOFILE of this process, before it raised its own.
static INHERITED_DESCRIPTOR_LIMIT: OnceLock<libc::rlimit64> = OnceLock::new();

/// Raises the soft limit of open descriptors to the hard one, for this process only: each session, probe and connection needs some.
/// Shims, and so containers, keep this process's original limit (systemd's `LimitNOFILE`), as with upstream's runtimes. Fails as
/// getrlimit(2) and setrlimit(2).
pub fn raise_descriptor_limit() -> Result<(), IoError> {
    // SAFETY: the kernel fills a plain struct, and reads it.
    unsafe {
        let mut limit: libc::rlimit64 = std::mem::zeroed();
        checked(libc::getrlimit64(libc::RLIMIT_NOFILE, &mut limit).into())?;
        let raised = libc::rlimit64 { rlim_cur: limit.rlim_max, ..limit };
        INHERITED_DESCRIPTOR_LIMIT.get_or_init(|| limit);
        checked(libc::setrlimit64(libc::RLIMIT_NOFILE, &raised).into()).map(drop)
    }
}

/// Maximum number of open descriptors of this process. Errors: of getrlimit(2).
pub fn descriptor_limit() -> Result<u64, IoError> {
    // SAFETY: the kernel fills a plain struct.
    unsafe {
        let mut limit: libc::rlimit64 = std::mem::zeroed();
        checked(libc::getrlimit64(libc::RLIMIT_NOFILE, &mut limit).into())?;
        Ok(limit.rlim_cur)
    }
}

/// The limit restored for a shim; `None`: the current one.
pub(super) fn inherited_descriptor_limit() -> Option<libc::rlimit64> {
    INHERITED_DESCRIPTOR_LIMIT.get().copied()
}

pub fn umask(mask: u32) {
    // SAFETY: a plain value.
    unsafe { libc::umask(mask as libc::mode_t) };
}

/// Marks every descriptor from `first` on close-on-exec: a forgotten one cannot leak into a container.
pub fn close_on_exec_from(first: u32) -> Result<(), IoError> {
    // SAFETY: plain values.
    checked(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) }).map(drop)
}

/// Closes every descriptor except 0, 1, 2 and these.
///
/// # Safety
///
/// This process never uses or closes another descriptor from now on: it is a fork, which does not return to its parent's frames.
pub unsafe fn keep_only(kept: &[BorrowedFd<'_>]) -> Result<(), IoError> {
    let mut numbers: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd() as u32).filter(|fd| *fd > 2).collect();
    numbers.sort_unstable();
    let close = |first: u32, last: u32| match first <= last {
        // SAFETY: plain values. No handle of this process closes these numbers again, as the caller promises.
        true => checked(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop),
        false => Ok(()),
    };
    let mut first = 3;
    for number in numbers {
        close(first, number.saturating_sub(1))?;
        first = first.max(number + 1);
    }
    close(first, u32::MAX)
}

/// Makes this process non-dumpable until it executes: only processes with CAP_SYS_PTRACE over the machine's own user namespace may
/// inspect it. Changing the user may undo it.
pub fn close_to_inspection() -> Result<(), IoError> {
    // SAFETY: plain values.
    checked(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }.into()).map(drop)
}

/// The working directory as reported by the kernel: absolute only if it is below our root.
pub fn working_directory() -> Result<Vec<u8>, IoError> {
    let mut path = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: the buffer has the given length. The raw call: a C library's would fail if it is unreachable.
    let length = checked(unsafe { libc::syscall(libc::SYS_getcwd, path.as_mut_ptr(), path.len()) })? as usize;
    path.truncate(length.saturating_sub(1));
    Ok(path)
}

/// Overwrites data before its memory is freed.
pub fn wipe(mut bytes: Vec<u8>) {
    bytes.fill(0);
    // Makes the writes observable, so that the compiler cannot remove them.
    std::hint::black_box(&bytes);
}

/// Returns freed heap pages to the kernel.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no invalid arguments possible.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Unmaps the pages of this program's code: code still in use is faulted in again from the page cache, and code only needed at
/// startup may leave memory. Only code without relocations: its pages equal those of the file. Returns the number of bytes covered.
/// Errors: of reading `/proc/self/maps`, of madvise(2).
pub fn unmap_code() -> Result<usize, IoError> {
    let program = std::fs::read_link("/proc/self/exe")?;
    let mut unmapped = 0;
    for line in std::fs::read_to_string("/proc/self/maps")?.lines() {
        let Some((start, end)) = code_of(&program, line) else { continue };
        // SAFETY: a private mapping of a file that is being executed and so cannot be written: each dropped page is read again
        // unchanged on its next use.
        checked(unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) }.into())?;
        unmapped += end - start;
    }
    Ok(unmapped)
}

/// The addresses of a line of `/proc/PID/maps`, if it is this program's code (proc_pid_maps(5)).
fn code_of(program: &std::path::Path, line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let code = fields.next()? == "r-xp" && fields.nth(3).is_some_and(|path| program == path);
    let address = |text| usize::from_str_radix(text, 16).ok();
    code.then_some((address(start)?, address(end)?))
}

/// Keeps the allocator small: one arena, small top pad.
pub fn small_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: plain values.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TOP_PAD, 16 << 10);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 32 << 10);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 10);
    }
}

/// The CPU time used by this thread: waiting for a slow disk does not count.
pub fn thread_time() -> std::time::Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call, which writes one timespec; this clock exists on every Linux, so it cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::{code_of, unmap_code};

    #[test]
    fn only_the_programs_own_code_is_unmapped() {
        let line =
            |rights, path| format!("55d0a000-55d0c000 {rights} 00ae1000 fe:00 5448165                    {path}");
        let of = |rights, path| code_of("/bin/p".as_ref(), &line(rights, path));
        assert_eq!(of("r-xp", "/bin/p"), Some((0x55d0_a000, 0x55d0_c000)));
        for other in
            [of("r--p", "/bin/p"), of("rw-p", "/bin/p"), of("rwxp", "/bin/p"), of("r-xp", "/lib/p"), of("r-xp", "")]
        {
            assert_eq!(other, None);
        }
        assert_eq!(code_of("/bin/p".as_ref(), "no mapping"), None);
    }

    #[test]
    fn code_runs_on_after_it_was_unmapped() {
        assert!(unmap_code().unwrap() > 0);
        assert!(unmap_code().unwrap() > 0);
    }
}

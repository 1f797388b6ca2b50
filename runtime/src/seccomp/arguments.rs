//! How many bits of each argument the kernel uses: the bits above them must not mislead a filter.
//!
//! A register has 64 bits, `socket(int family, ..)` takes 32 of them: to the kernel `40 | 1 << 32` is family 40. A rule that
//! compares all 64, as libseccomp's do, does not match it, and lets AF_VSOCK pass (flatpak's CVE-2019-10063 is the same with
//! `ioctl`). So a rule compares exactly the bits that the kernel uses.

/// The width of an argument in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// `unsigned long`, `size_t`, `loff_t`, a pointer.
    Register,
    /// `int`, `unsigned int`, `pid_t`, `uid_t`, `key_t`, ..
    Int,
    /// `umode_t`.
    Mode,
}

/// The arguments narrower than a register, by system call, sorted. As declared by Linux 6.18 (see tracefs's `sys_enter_*` formats);
/// of `clone` only the lower half of the flags is used.
#[rustfmt::skip]
const NARROW: &[(&str, &[usize])] = &[
    ("accept", &[0]), ("accept4", &[0, 3]), ("access", &[1]), ("add_key", &[4]), ("alarm", &[0]),
    ("arch_prctl", &[0]), ("bind", &[0, 2]), ("bpf", &[0, 2]), ("cachestat", &[0, 3]), ("chmod", &[1]),
    ("chown", &[1, 2]), ("clock_adjtime", &[0]), ("clock_getres", &[0]), ("clock_gettime", &[0]),
    ("clock_nanosleep", &[0, 1]), ("clock_settime", &[0]), ("clone", &[0]), ("close", &[0]),
    ("close_range", &[0, 1, 2]), ("connect", &[0, 2]), ("copy_file_range", &[0, 2, 5]), ("creat", &[1]),
    ("delete_module", &[1]), ("dup", &[0]), ("dup2", &[0, 1]), ("dup3", &[0, 1, 2]), ("epoll_create", &[0]),
    ("epoll_create1", &[0]), ("epoll_ctl", &[0, 1, 2]), ("epoll_pwait", &[0, 2, 3]), ("epoll_pwait2", &[0, 2]),
    ("epoll_wait", &[0, 2, 3]), ("eventfd", &[0]), ("eventfd2", &[0, 1]), ("execveat", &[0, 4]), ("exit", &[0]),
    ("exit_group", &[0]), ("faccessat", &[0, 2]), ("faccessat2", &[0, 2, 3]), ("fadvise64", &[0, 3]),
    ("fallocate", &[0, 1]), ("fanotify_init", &[0, 1]), ("fanotify_mark", &[0, 1, 3]), ("fchdir", &[0]),
    ("fchmod", &[0, 1]), ("fchmodat", &[0, 2]), ("fchmodat2", &[0, 2, 3]), ("fchown", &[0, 1, 2]),
    ("fchownat", &[0, 2, 3, 4]), ("fcntl", &[0, 1]), ("fdatasync", &[0]), ("fgetxattr", &[0]),
    ("file_getattr", &[0, 4]), ("file_setattr", &[0, 4]), ("finit_module", &[0, 2]), ("flistxattr", &[0]),
    ("flock", &[0, 1]), ("fremovexattr", &[0]), ("fsconfig", &[0, 1, 4]), ("fsetxattr", &[0, 4]),
    ("fsmount", &[0, 1, 2]), ("fsopen", &[1]), ("fspick", &[0, 2]), ("fstat", &[0]), ("fstatfs", &[0]),
    ("fsync", &[0]), ("ftruncate", &[0]), ("futex", &[1, 2, 5]), ("futex_requeue", &[1, 2, 3]),
    ("futex_wait", &[3, 5]), ("futex_waitv", &[1, 2, 4]), ("futex_wake", &[2, 3]), ("futimesat", &[0]),
    ("get_robust_list", &[0]), ("getdents", &[0, 2]), ("getdents64", &[0, 2]), ("getgroups", &[0]),
    ("getitimer", &[0]), ("getpeername", &[0]), ("getpgid", &[0]), ("getpriority", &[0, 1]), ("getrandom", &[2]),
    ("getrlimit", &[0]), ("getrusage", &[0]), ("getsid", &[0]), ("getsockname", &[0]), ("getsockopt", &[0, 1, 2]),
    ("getxattrat", &[0, 2]), ("inotify_add_watch", &[0, 2]), ("inotify_init1", &[0]), ("inotify_rm_watch", &[0, 1]),
    ("io_setup", &[0]), ("io_uring_enter", &[0, 1, 2, 3]), ("io_uring_register", &[0, 1, 3]),
    ("io_uring_setup", &[0]), ("ioctl", &[0, 1]), ("ioperm", &[2]), ("iopl", &[0]), ("ioprio_get", &[0, 1]),
    ("ioprio_set", &[0, 1, 2]), ("kcmp", &[0, 1, 2]), ("kexec_file_load", &[0, 1]), ("keyctl", &[0]),
    ("kill", &[0, 1]), ("landlock_add_rule", &[0, 1, 3]), ("landlock_create_ruleset", &[2]),
    ("landlock_restrict_self", &[0, 1]), ("lchown", &[1, 2]), ("linkat", &[0, 2, 4]), ("listen", &[0, 1]),
    ("listmount", &[3]), ("listxattrat", &[0, 2]), ("lseek", &[0, 2]), ("lsetxattr", &[4]),
    ("lsm_get_self_attr", &[0, 3]), ("lsm_list_modules", &[2]), ("lsm_set_self_attr", &[0, 2, 3]), ("madvise", &[2]),
    ("mbind", &[5]), ("membarrier", &[0, 1, 2]), ("memfd_create", &[1]), ("memfd_secret", &[0]),
    ("migrate_pages", &[0]), ("mkdir", &[1]), ("mkdirat", &[0, 2]), ("mknod", &[1, 2]), ("mknodat", &[0, 2, 3]),
    ("mlock2", &[2]), ("mlockall", &[0]), ("modify_ldt", &[0]), ("mount_setattr", &[0, 2]),
    ("move_mount", &[0, 2, 4]), ("move_pages", &[0, 5]), ("mq_getsetattr", &[0]), ("mq_notify", &[0]),
    ("mq_open", &[1, 2]), ("mq_timedreceive", &[0]), ("mq_timedsend", &[0, 3]), ("msgctl", &[0, 1]),
    ("msgget", &[0, 1]), ("msgrcv", &[0, 4]), ("msgsnd", &[0, 3]), ("msync", &[2]), ("name_to_handle_at", &[0, 4]),
    ("newfstatat", &[0, 3]), ("open", &[1, 2]), ("open_by_handle_at", &[0, 2]), ("open_tree", &[0, 2]),
    ("open_tree_attr", &[0, 2]), ("openat", &[0, 2, 3]), ("openat2", &[0]), ("perf_event_open", &[1, 2, 3]),
    ("personality", &[0]), ("pidfd_getfd", &[0, 1, 2]), ("pidfd_open", &[0, 1]), ("pidfd_send_signal", &[0, 1, 3]),
    ("pipe2", &[1]), ("pkey_free", &[0]), ("pkey_mprotect", &[3]), ("poll", &[1, 2]), ("ppoll", &[1]),
    ("prctl", &[0]), ("pread64", &[0]), ("preadv2", &[5]), ("prlimit64", &[0, 1]), ("process_madvise", &[0, 3, 4]),
    ("process_mrelease", &[0, 1]), ("process_vm_readv", &[0]), ("process_vm_writev", &[0]), ("pselect6", &[0]),
    ("pwrite64", &[0]), ("pwritev2", &[5]), ("quotactl", &[0, 2]), ("quotactl_fd", &[0, 1, 2]), ("read", &[0]),
    ("readahead", &[0]), ("readlink", &[2]), ("readlinkat", &[0, 3]), ("reboot", &[0, 1, 2]), ("recvfrom", &[0, 3]),
    ("recvmmsg", &[0, 2, 3]), ("recvmsg", &[0, 2]), ("removexattrat", &[0, 2]), ("renameat", &[0, 2]),
    ("renameat2", &[0, 2, 4]), ("request_key", &[3]), ("rseq", &[1, 2, 3]), ("rt_sigaction", &[0]),
    ("rt_sigprocmask", &[0]), ("rt_sigqueueinfo", &[0, 1]), ("rt_tgsigqueueinfo", &[0, 1, 2]),
    ("sched_get_priority_max", &[0]), ("sched_get_priority_min", &[0]), ("sched_getaffinity", &[0, 1]),
    ("sched_getattr", &[0, 2, 3]), ("sched_getparam", &[0]), ("sched_getscheduler", &[0]),
    ("sched_rr_get_interval", &[0]), ("sched_setaffinity", &[0, 1]), ("sched_setattr", &[0, 2]),
    ("sched_setparam", &[0]), ("sched_setscheduler", &[0, 1]), ("seccomp", &[0, 1]), ("select", &[0]),
    ("semctl", &[0, 1, 2]), ("semget", &[0, 1, 2]), ("semop", &[0, 2]), ("semtimedop", &[0, 2]),
    ("sendfile", &[0, 1]), ("sendmmsg", &[0, 2, 3]), ("sendmsg", &[0, 2]), ("sendto", &[0, 3, 5]),
    ("set_mempolicy", &[0]), ("setdomainname", &[1]), ("setfsgid", &[0]), ("setfsuid", &[0]), ("setgid", &[0]),
    ("setgroups", &[0]), ("sethostname", &[1]), ("setitimer", &[0]), ("setns", &[0, 1]), ("setpgid", &[0, 1]),
    ("setpriority", &[0, 1, 2]), ("setregid", &[0, 1]), ("setresgid", &[0, 1, 2]), ("setresuid", &[0, 1, 2]),
    ("setreuid", &[0, 1]), ("setrlimit", &[0]), ("setsockopt", &[0, 1, 2, 4]), ("setuid", &[0]), ("setxattr", &[4]),
    ("setxattrat", &[0, 2]), ("shmat", &[0, 2]), ("shmctl", &[0, 1]), ("shmget", &[0, 2]), ("shutdown", &[0, 1]),
    ("signalfd", &[0]), ("signalfd4", &[0, 3]), ("socket", &[0, 1, 2]), ("socketpair", &[0, 1, 2]),
    ("splice", &[0, 2, 5]), ("statmount", &[3]), ("statx", &[0, 2, 3]), ("swapon", &[1]), ("symlinkat", &[1]),
    ("sync_file_range", &[0, 3]), ("syncfs", &[0]), ("sysfs", &[0]), ("syslog", &[0, 2]), ("tee", &[0, 1, 3]),
    ("tgkill", &[0, 1, 2]), ("timer_create", &[0]), ("timer_delete", &[0]), ("timer_getoverrun", &[0]),
    ("timer_gettime", &[0]), ("timer_settime", &[0, 1]), ("timerfd_create", &[0, 1]), ("timerfd_gettime", &[0]),
    ("timerfd_settime", &[0, 1]), ("tkill", &[0, 1]), ("umask", &[0]), ("umount2", &[1]), ("unlinkat", &[0, 2]),
    ("userfaultfd", &[0]), ("ustat", &[0]), ("utimensat", &[0, 3]), ("vmsplice", &[0, 3]), ("wait4", &[0, 2]),
    ("waitid", &[0, 1, 3]), ("write", &[0]),
];

/// Those that are a file mode, of 16 bits.
#[rustfmt::skip]
const MODES: &[(&str, usize)] = &[
    ("chmod", 1), ("creat", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("mkdir", 1), ("mkdirat", 2),
    ("mknod", 1), ("mknodat", 2), ("mq_open", 2), ("open", 2), ("openat", 3),
];

/// The width of an argument (counted from 0) of a system call.
pub fn width(call: &str, index: usize) -> Width {
    if MODES.contains(&(call, index)) {
        return Width::Mode;
    }
    let narrow = NARROW.binary_search_by_key(&call, |(name, _)| name).ok().map(|at| NARROW[at].1);
    if narrow.is_some_and(|n| n.contains(&index)) { Width::Int } else { Width::Register }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_and_agree() {
        assert!(NARROW.is_sorted_by_key(|(name, _)| name));
        assert!(MODES.is_sorted());
        for (call, index) in MODES {
            let at = NARROW.binary_search_by_key(call, |(name, _)| name).unwrap();
            assert!(NARROW[at].1.contains(index), "{call}");
        }
    }

    #[test]
    fn widths_are_the_kernels() {
        for (call, index, expected) in [
            ("socket", 0, Width::Int),
            ("ioctl", 1, Width::Int),
            ("ioctl", 2, Width::Register),
            ("personality", 0, Width::Int),
            ("clone", 0, Width::Int),
            ("unshare", 0, Width::Register),
            ("prctl", 0, Width::Int),
            ("prctl", 1, Width::Register),
            ("fchmodat", 2, Width::Mode),
            ("no_such_call", 0, Width::Register),
        ] {
            assert_eq!(width(call, index), expected, "{call} {index}");
        }
    }
}

//! The default profile: equal in effect to containerd's `RuntimeDefault`.
//!
//! Unlisted calls fail with EPERM. `clone3` fails with ENOSYS, so that libc falls back to `clone`, whose flags a filter can see:
//! without CAP_SYS_ADMIN no namespace may be created. Also denied: io_uring, AF_VSOCK, AF_ALG, delegations, changing file flags and
//! projects, namespaces through a pidfd.

use std::collections::HashSet;

use oci_spec::runtime::{
    Capability, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder, LinuxSeccompBuilder,
    LinuxSeccompOperator, LinuxSyscall, LinuxSyscallBuilder,
};

use super::floor;

/// Every `CLONE_NEW*` flag of `clone`.
const NAMESPACE_FLAGS: u64 = 0x7E02_0000;
/// The kernel's crypto API: unnecessary attack surface, which allowed writing to page cache shared by containers (CVE-2026-31431).
const AF_ALG: u64 = 38;
/// Sockets to the hypervisor ignore container boundaries.
const AF_VSOCK: u64 = 40;

/// A delegation of a file or directory (Linux 6.19): renaming or removing it, changing its mode, or creating something in it blocks
/// on the holder, repeatedly, also for the agent in a volume, and cannot be made non-blocking, unlike with a lease (`sys::shared`).
const F_SETDELEG: u64 = 1024 + 16;

/// `FS_IOC_SETFLAGS` and `FS_IOC_FSSETXATTR` (`chattr -P`, `chattr -p`) remove a file from its project, and so from the Pod's disk
/// usage. Only the requests' lower halves, type and number: the upper halves contain the argument's size and direction, which
/// differ between 32-bit and 64-bit programs. Sorted.
const SET_ATTRIBUTES: &[u64] = &[(b'X' as u64) << 8 | 32, (b'f' as u64) << 8 | 2];
/// The bits of a request with its type and number.
const REQUEST_BITS: u32 = 16;

/// Allowed to everyone, by subject.
#[rustfmt::skip]
const ALLOWED: &[&str] = &[
    // Files
    "access", "chdir", "chmod", "chown", "close", "close_range", "copy_file_range", "creat", "dup", "dup2", "dup3",
    "faccessat", "faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown",
    "fchownat", "fdatasync", "fgetxattr", "flistxattr", "flock", "fremovexattr", "fsetxattr", "fstat",
    "fstatfs", "fsync", "ftruncate", "futimesat", "getcwd", "getdents", "getdents64", "getxattr", "getxattrat",
    "inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch", "lchown", "lgetxattr", "link",
    "linkat", "listxattr", "listxattrat", "llistxattr", "lremovexattr", "lseek", "lsetxattr", "lstat",
    "mkdir", "mkdirat", "mknod", "mknodat", "name_to_handle_at", "newfstatat", "open", "openat", "openat2", "pread64",
    "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2", "read", "readahead", "readlink", "readlinkat", "readv",
    "removexattr", "removexattrat", "rename", "renameat", "renameat2", "rmdir", "sendfile", "setxattr", "setxattrat",
    "splice", "stat", "statfs", "statx", "symlink", "symlinkat", "sync", "sync_file_range", "syncfs",
    "tee", "truncate", "umask", "unlink", "unlinkat", "utime", "utimensat", "utimes", "vmsplice", "write", "writev",
    "cachestat", "memfd_create",
    // Memory
    "brk", "madvise", "map_shadow_stack", "membarrier", "mincore", "mlock", "mlock2", "mlockall", "mmap", "mprotect",
    "mremap", "mseal", "msync", "munlock", "munlockall", "munmap", "memfd_secret", "pkey_alloc", "pkey_free",
    "pkey_mprotect", "process_mrelease", "process_vm_readv", "process_vm_writev", "remap_file_pages",
    // Processes, users, limits
    "alarm", "arch_prctl", "capget", "capset", "execve", "execveat", "exit", "exit_group", "fork", "getegid",
    "geteuid", "getgid", "getgroups", "getpgid", "getpgrp", "getpid", "getppid", "getpriority", "getresgid",
    "getresuid", "getrlimit", "getrusage", "getsid", "gettid", "getuid", "ioprio_get", "ioprio_set", "kill",
    "landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self", "modify_ldt", "pause", "pidfd_open",
    "pidfd_send_signal", "prctl", "prlimit64", "ptrace", "restart_syscall", "rseq", "seccomp", "set_robust_list",
    "set_tid_address", "set_thread_area", "setfsgid", "setfsuid", "setgid", "setgroups", "setpgid", "setpriority",
    "setregid", "setresgid", "setresuid", "setreuid", "setrlimit", "setsid", "setuid", "get_robust_list",
    "get_thread_area", "tgkill", "tkill", "vfork", "wait4", "waitid",
    // Scheduling
    "getcpu", "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getattr",
    "sched_getparam", "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity", "sched_setattr",
    "sched_setparam", "sched_setscheduler", "sched_yield",
    // Signals, time, waiting
    "adjtimex", "clock_adjtime", "clock_getres", "clock_gettime", "clock_nanosleep", "epoll_create", "epoll_create1",
    "epoll_ctl", "epoll_ctl_old", "epoll_pwait", "epoll_pwait2", "epoll_wait", "epoll_wait_old", "eventfd", "eventfd2",
    "futex", "futex_requeue", "futex_wait", "futex_waitv", "futex_wake", "getitimer", "gettimeofday", "nanosleep",
    "poll", "ppoll", "pselect6", "rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigqueueinfo",
    "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo", "select", "setitimer", "sigaltstack",
    "signalfd", "signalfd4", "time", "timer_create", "timer_delete", "timer_getoverrun", "timer_gettime",
    "timer_settime", "timerfd_create", "timerfd_gettime", "timerfd_settime", "times", "uretprobe",
    // Communication
    "accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "io_cancel", "io_destroy",
    "io_getevents", "io_pgetevents", "io_setup", "io_submit", "listen", "mq_getsetattr", "mq_notify", "mq_open",
    "mq_timedreceive", "mq_timedsend", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "pipe", "pipe2",
    "recvfrom", "recvmmsg", "recvmsg", "semctl", "semget", "semop", "semtimedop", "sendmmsg", "sendmsg", "sendto",
    "setsockopt", "shmat", "shmctl", "shmdt", "shmget", "shutdown", "socketpair",
    // The system
    "getrandom", "sysinfo", "uname",
];

/// Allowed with a capability.
const ALLOWED_WITH: &[(Capability, &[&str])] = &[
    (Capability::DacReadSearch, &["open_by_handle_at"]),
    (
        Capability::SysAdmin,
        &[
            "bpf",
            "clone",
            "clone3",
            "fanotify_init",
            "fanotify_mark",
            "fsconfig",
            "fsmount",
            "fsopen",
            "fspick",
            "lookup_dcookie",
            "lsm_get_self_attr",
            "lsm_list_modules",
            "lsm_set_self_attr",
            "mount",
            "mount_setattr",
            "move_mount",
            "open_tree",
            "perf_event_open",
            "quotactl",
            "quotactl_fd",
            "setdomainname",
            "sethostname",
            "setns",
            "syslog",
            "umount",
            "umount2",
            "unshare",
        ],
    ),
    // Allows setting file flags.
    (Capability::LinuxImmutable, &["ioctl"]),
    (Capability::SysBoot, &["reboot"]),
    (Capability::SysChroot, &["chroot"]),
    (Capability::SysModule, &["delete_module", "finit_module", "init_module"]),
    (Capability::SysPacct, &["acct"]),
    (Capability::SysPtrace, &["kcmp", "pidfd_getfd", "process_madvise"]),
    (Capability::SysRawio, &["ioperm", "iopl"]),
    (Capability::SysTime, &["clock_settime", "settimeofday", "stime"]),
    (Capability::SysTtyConfig, &["vhangup"]),
    (Capability::SysNice, &["get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node"]),
    (Capability::Syslog, &["syslog"]),
    (Capability::Bpf, &["bpf"]),
    (Capability::Perfmon, &["perf_event_open"]),
];

/// The profile for a process with these (bounding) capabilities.
pub fn default_seccomp(capabilities: &HashSet<Capability>) -> LinuxSeccomp {
    let mut rules = vec![allow(ALLOWED, None)];
    for persona in [0x0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff] {
        rules.push(allow(&["personality"], Some(argument(0, LinuxSeccompOperator::ScmpCmpEq, persona, None))));
    }
    // Conditions of one rule are combined by AND, rules by OR: so ranges express "neither of the two".
    let (below, between, above) =
        (LinuxSeccompOperator::ScmpCmpLt, LinuxSeccompOperator::ScmpCmpEq, LinuxSeccompOperator::ScmpCmpGt);
    for (op, family) in [(below, AF_ALG), (between, AF_ALG + 1), (above, AF_VSOCK)] {
        rules.push(allow(&["socket"], Some(argument(0, op, family, None))));
    }
    for op in [below, above] {
        rules.push(allow(&["fcntl"], Some(argument(1, op, F_SETDELEG, None))));
    }
    for (mask, rest) in all_but(SET_ATTRIBUTES, REQUEST_BITS) {
        let other = argument(1, LinuxSeccompOperator::ScmpCmpMaskedEq, mask, Some(rest));
        rules.push(allow(&["ioctl"], Some(other)));
    }
    for (_, calls) in ALLOWED_WITH.iter().filter(|(capability, _)| capabilities.contains(capability)) {
        rules.push(allow(calls, None));
    }
    if !capabilities.contains(&Capability::SysAdmin) {
        let no_namespaces = argument(0, LinuxSeccompOperator::ScmpCmpMaskedEq, NAMESPACE_FLAGS, Some(0));
        rules.push(allow(&["clone"], Some(no_namespaces)));
        rules.push(unknown("clone3", None));
        if !capabilities.contains(&Capability::SysPtrace) {
            let requests = floor::NAMESPACES.iter();
            let is_one = |request| argument(1, LinuxSeccompOperator::ScmpCmpMaskedEq, floor::REQUEST, Some(request));
            rules.extend(requests.map(|request| unknown("ioctl", Some(is_one(*request)))));
        }
    }
    LinuxSeccompBuilder::default()
        .default_action(LinuxSeccompAction::ScmpActErrno)
        .default_errno_ret(libc::EPERM as u32)
        .syscalls(rules)
        .build()
        .expect("all required fields are set")
}

/// Masks and values that match the numbers of this many bits that are not among `values` (sorted): a rule cannot have two
/// conditions for one argument, so a range with holes cannot be expressed directly.
fn all_but(values: &[u64], bits: u32) -> Vec<(u64, u64)> {
    let (mut masks, mut left) = (Vec::new(), vec![(values, bits)]);
    while let Some((values, bits)) = left.pop() {
        let (Some(&any), Some(bit)) = (values.first(), bits.checked_sub(1)) else { continue };
        // Their common bits above this one.
        let above = any >> bits << bits;
        let (without, with) = values.split_at(values.partition_point(|value| value >> bit & 1 == 0));
        for (half, own) in [(with, 1 << bit), (without, 0)] {
            match half.is_empty() {
                true => masks.push((!0 >> bit << bit, above | own)),
                false => left.push((half, bit)),
            }
        }
    }
    // The register's other bits do not matter.
    masks.into_iter().map(|(mask, rest)| (mask & ((1 << bits) - 1), rest)).collect()
}

fn allow(names: &[&str], arg: Option<LinuxSeccompArg>) -> LinuxSyscall {
    syscall(names, LinuxSeccompAction::ScmpActAllow, arg)
}

/// As on a kernel without it.
fn unknown(name: &str, arg: Option<LinuxSeccompArg>) -> LinuxSyscall {
    let mut refused = syscall(&[name], LinuxSeccompAction::ScmpActErrno, arg);
    refused.set_errno_ret(Some(libc::ENOSYS as u32));
    refused
}

fn syscall(names: &[&str], action: LinuxSeccompAction, arg: Option<LinuxSeccompArg>) -> LinuxSyscall {
    let names = names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
    let builder = LinuxSyscallBuilder::default().names(names).action(action);
    let builder = match arg {
        Some(arg) => builder.args(vec![arg]),
        None => builder,
    };
    builder.build().expect("all required fields are set")
}

fn argument(index: usize, op: LinuxSeccompOperator, value: u64, two: Option<u64>) -> LinuxSeccompArg {
    let builder = LinuxSeccompArgBuilder::default().index(index).value(value).op(op);
    let builder = match two {
        Some(two) => builder.value_two(two),
        None => builder,
    };
    builder.build().expect("all required fields are set")
}

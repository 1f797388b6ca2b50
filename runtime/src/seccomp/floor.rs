//! System calls that no profile can allow: those by which a process without capabilities could access or inspect what belongs to
//! others.
//!
//! A user namespace belongs to its creator, and a process with that uid outside has every capability in it (user_namespaces(7)):
//! root's namespaces are accessible to root in every Pod in the host's user namespace. Pods cannot access each other's, and those
//! of the host's users, only because they cannot name them. So a profile chosen by a Pod must not make that possible.
//!
//! The floor covers all system calls that name something of the host or another Pod without a path in the container, and that the
//! kernel then permits by uid alone:
//! - namespaces: by number, by handle, by a pidfd, or by enumeration;
//! - processes of other PID namespaces, by a pidfd received through a socket (SO_PEERPIDFD, SCM_PIDFD): their descriptors and their
//!   memory. Other calls that take a pidfd check its PID namespace (pidfd_send_signal(2)), are for children (waitid(2)) or for
//!   dying processes (process_mrelease(2)); those that take a pid (ptrace(2), process_vm_readv(2), kcmp(2)) find no others;
//! - keyrings: they belong to a uid in a user namespace;
//! - unowned machine-wide things: the kernel log, file systems by the number of their device.
//!
//! Not covered: calls that always require a capability over the machine (modules, kexec, swap, clocks, ports, others' quotas);
//! bpf(2), perf_event_open(2) and fanotify_init(2), which without one only see the caller's own, subject to the host's sysctls;
//! userfaultfd(2) and io_uring, which concern the caller's own memory and files (io_uring's requests bypass filters, but no row
//! here is one of them); a container's own user namespaces and mounts, for which such profiles are written: masks over its mounts
//! are locked, and its cgroups are bounded (`cgroup`). They expose kernel bugs, not other Pods.

use caps::Capability::{self, CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYSLOG};
use oci_spec::runtime::{LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSyscall};
use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

use super::{FIRST_FOREIGN, Program, Rules, action, comparison, program, table};
use crate::{Error, Result};

/// A call, its number, who may use it, and the error for others.
struct Row {
    name: &'static str,
    number: i64,
    /// Any one of these suffices.
    needs: &'static [Capability],
    /// The effect of those capabilities in a user namespace.
    own_users: OwnUsers,
    /// For ioctl(2), the affected requests: types and numbers.
    requests: &'static [u64],
    errno: i32,
}

/// A capability in a user namespace only covers its own namespaces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnUsers {
    /// No difference.
    AsOthers,
    /// It only accesses their own things: allowed.
    Given,
    /// It accesses the host's things: refused.
    Refused,
}

impl Row {
    const fn new(name: &'static str, number: i64, needs: &'static [Capability], errno: i32) -> Row {
        Row { name, number, needs, own_users: OwnUsers::AsOthers, requests: &[], errno }
    }

    const fn with(self, own_users: OwnUsers) -> Row {
        Row { own_users, ..self }
    }

    fn is_given(&self, bounding: u64, own_users: bool) -> bool {
        let has_one = || self.needs.iter().any(|needed| bounding & needed.bitmask() != 0);
        match self.own_users {
            OwnUsers::Given if own_users => true,
            OwnUsers::Refused if own_users => false,
            _ => has_one(),
        }
    }
}

/// `PIDFD_GET_*_NAMESPACE` (linux/pidfd.h) return the namespaces of a pidfd's process, `NS_MNT_GET_NEXT` and `NS_MNT_GET_PREV`
/// (linux/nsfs.h) enumerate mount namespaces. The lower halves of the requests.
pub(super) const NAMESPACES: &[u64] =
    &[0xb70b, 0xb70c, 0xff01, 0xff02, 0xff03, 0xff04, 0xff05, 0xff06, 0xff07, 0xff08, 0xff09, 0xff0a];
/// The half that identifies a request.
pub(super) const REQUEST: u64 = 0xffff;

const FLOOR: &[Row] = &[
    // Namespaces have file handles (Linux 6.18), and their numbers are small. Older kernels require this capability.
    Row::new("open_by_handle_at", libc::SYS_open_by_handle_at, &[CAP_DAC_READ_SEARCH], libc::EPERM),
    Row::new("setns", libc::SYS_setns, &[CAP_SYS_ADMIN], libc::EPERM),
    // They accept the number of any mount namespace; libc and util-linux fall back on kernels without them.
    Row::new("statmount", 457, &[CAP_SYS_ADMIN], libc::ENOSYS),
    Row::new("listmount", 458, &[CAP_SYS_ADMIN], libc::ENOSYS),
    // Lists the namespaces of the caller's uid (Linux 6.19).
    Row::new("listns", 470, &[CAP_SYS_ADMIN], libc::ENOSYS),
    // Programs that handle older kernels' refusal of such a request have a fallback.
    Row { requests: NAMESPACES, ..Row::new("ioctl", libc::SYS_ioctl, &[CAP_SYS_ADMIN, CAP_SYS_PTRACE], libc::ENOSYS) },
    Row::new("pidfd_getfd", libc::SYS_pidfd_getfd, &[CAP_SYS_PTRACE], libc::EPERM),
    Row::new("process_madvise", libc::SYS_process_madvise, &[CAP_SYS_PTRACE], libc::EPERM),
    // As on a kernel without keyrings, which programs handle.
    Row::new("add_key", libc::SYS_add_key, &[CAP_SYS_ADMIN], libc::ENOSYS).with(OwnUsers::Given),
    Row::new("keyctl", libc::SYS_keyctl, &[CAP_SYS_ADMIN], libc::ENOSYS).with(OwnUsers::Given),
    // Makes the kernel run a host program as root, with arguments of the caller.
    Row::new("request_key", libc::SYS_request_key, &[CAP_SYS_ADMIN], libc::ENOSYS).with(OwnUsers::Refused),
    // Not every host sets `kernel.dmesg_restrict`.
    Row::new("syslog", libc::SYS_syslog, &[CAP_SYSLOG, CAP_SYS_ADMIN], libc::EPERM).with(OwnUsers::Refused),
    #[cfg(target_arch = "x86_64")]
    Row::new("ustat", libc::SYS_ustat, &[CAP_SYS_ADMIN], libc::ENOSYS).with(OwnUsers::Refused),
];

/// The filters to load in addition to `profile`, for a process with this bounding set, with or without a user namespace: none if
/// the profile refuses everything by itself.
pub(super) fn floor(profile: &LinuxSeccomp, bounding: u64, own_users: bool, flags: u32) -> Result<Vec<Program>> {
    let lacking = || FLOOR.iter().filter(|row| !row.is_given(bounding, own_users));
    if !lacking().any(|row| lets_pass(profile, row)) {
        return Ok(Vec::new());
    }
    let mut programs = Vec::new();
    for errno in [libc::EPERM, libc::ENOSYS] {
        let rules =
            lacking().filter(|row| row.errno == errno).map(|row| requests(row).map(|requests| (row.number, requests)));
        let rules: Rules = rules.collect::<Result<_>>()?;
        if !rules.is_empty() {
            let refused = SeccompAction::Errno(errno as u32);
            programs.push(program(rules, SeccompAction::Allow, refused, flags, FIRST_FOREIGN)?);
        }
    }
    Ok(programs)
}

/// The rules that match a row's requests; without any, the call with all arguments.
fn requests(row: &Row) -> Result<Vec<SeccompRule>> {
    let invalid = |e: seccompiler::BackendError| Error::Invalid(format!("seccomp rule: {e}"));
    let known = |request: &u64| {
        let is_it = SeccompCmpOp::MaskedEq(REQUEST);
        let condition = SeccompCondition::new(1, SeccompCmpArgLen::Dword, is_it, *request).map_err(invalid)?;
        SeccompRule::new(vec![condition]).map_err(invalid)
    };
    row.requests.iter().map(known).collect()
}

/// Whether a profile allows a call, at least with some arguments.
fn lets_pass(profile: &LinuxSeccomp, row: &Row) -> bool {
    let passes = |action| {
        use LinuxSeccompAction::*;
        matches!(action, ScmpActAllow | ScmpActLog | ScmpActTrace | ScmpActNotify)
    };
    let rules = || profile.syscalls().iter().flatten().filter(|rule| rule.names().iter().any(|n| n == row.name));
    // Rules that are not compiled have no effect: those equal to the default, and those of unknown calls.
    let default = action(profile.default_action(), profile.default_errno_ret()).ok();
    let is_known = table::number(row.name) == Some(row.number);
    let refuses = |rule: &LinuxSyscall| {
        is_known && !passes(rule.action()) && action(rule.action(), rule.errno_ret()).ok() != default
    };
    let passed = |request: Option<u64>| {
        let refused = rules().any(|rule| refuses(rule) && is_about(rule, request, true));
        let allowed = || rules().any(|rule| passes(rule.action()) && is_about(rule, request, false));
        !refused && (passes(profile.default_action()) || allowed())
    };
    match row.requests {
        [] => passed(None),
        requests => requests.iter().any(|request| passed(Some(*request))),
    }
}

/// Whether a rule matches a call with this request: `surely`, or otherwise possibly, depending on other arguments.
fn is_about(rule: &LinuxSyscall, request: Option<u64>, surely: bool) -> bool {
    let is_met = |arg: &LinuxSeccompArg| match request.filter(|_| arg.index() == 1) {
        Some(request) => is_met(comparison(arg), request, surely),
        None => !surely,
    };
    let mut conditions = rule.args().iter().flatten();
    match surely {
        true => conditions.all(is_met),
        // Two conditions on one argument are alternatives.
        false => rule.args().iter().flatten().next().is_none() || conditions.any(is_met),
    }
}

/// The upper half of a request contains the argument's size, which may be any.
fn is_met((op, value): (SeccompCmpOp, u64), request: u64, surely: bool) -> bool {
    let may_be = |mask: u64| request & mask & REQUEST == value & REQUEST;
    match op {
        SeccompCmpOp::MaskedEq(mask) if surely => mask & !REQUEST == 0 && request & mask == value,
        SeccompCmpOp::MaskedEq(mask) => may_be(mask),
        SeccompCmpOp::Eq => !surely && may_be(REQUEST),
        _ => !surely,
    }
}

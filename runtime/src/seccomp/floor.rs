//! What no profile gives away: calls by which who has no capability gets at what is another's, or looks into it.
//!
//! A user namespace belongs to the user that has made it, and whoever is that user outside of it has every capability in it
//! (user_namespaces(7)): root's are root's in every Pod that has the host's users. What keeps Pods out of each other's, and out of
//! those of the host's users, is that none can be named. So a profile that a Pod chooses does not get it there either.
//!
//! On the floor is, of all system calls, what names something of the host's or of another Pod's without a path that the container
//! has, and what the kernel then gives by uid alone:
//! - namespaces: by number, by handle, by a pidfd, or one after the other;
//! - processes of other PID namespaces, by a pidfd that came through a socket (SO_PEERPIDFD, SCM_PIDFD): their descriptors and
//!   their memory. Other calls that take a pidfd ask where it is from (pidfd_send_signal(2)), are for children (waitid(2)) or for
//!   who dies anyway (process_mrelease(2)); those that take a number (ptrace(2), process_vm_readv(2), kcmp(2)) find no others;
//! - keyrings: they are a uid's, in a user namespace;
//! - what is the machine's and has no owner: the kernel's log, file systems by the number of their device.
//!
//! Not on the floor: what asks for a capability over the machine whoever calls (modules, kexec, swap, clocks, ports, quotas of
//! others); bpf(2), perf_event_open(2) and fanotify_init(2), which without one see the caller's own, as far as the host's sysctls
//! say; userfaultfd(2) and io_uring, which are of the caller's own memory and files (io_uring's requests pass filters by, but no row
//! here is one of them); user namespaces and mounts of a container's own, for which such profiles are written: what is mounted over
//! for it is locked, and its cgroups are bounded (`cgroup`). They are ways to bugs of the kernel, not to other Pods.

use caps::Capability::{self, CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYSLOG};
use oci_spec::runtime::{LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSyscall};
use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

use super::{FIRST_FOREIGN, Program, Rules, action, comparison, program, table};
use crate::{Error, Result};

/// A call, its number, who is given it, and what it fails with for others.
struct Row {
    name: &'static str,
    number: i64,
    /// One of these is enough.
    needs: &'static [Capability],
    /// What those have to do with it who have users of their own.
    own_users: OwnUsers,
    /// The requests that it is about, if it is ioctl(2): types and numbers.
    requests: &'static [u64],
    errno: i32,
}

/// A capability of theirs is one over their own namespaces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnUsers {
    /// It is no other for them.
    AsOthers,
    /// What it gives is their own.
    Given,
    /// What it gives is the host's.
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

/// `PIDFD_GET_*_NAMESPACE` (linux/pidfd.h) give namespaces of whoever a pidfd is of, `NS_MNT_GET_NEXT` and `NS_MNT_GET_PREV`
/// (linux/nsfs.h) the mount namespaces that there are, one after the other. The lower halves of the requests.
pub(super) const NAMESPACES: &[u64] =
    &[0xb70b, 0xb70c, 0xff01, 0xff02, 0xff03, 0xff04, 0xff05, 0xff06, 0xff07, 0xff08, 0xff09, 0xff0a];
/// The half that a request is known by.
pub(super) const REQUEST: u64 = 0xffff;

const FLOOR: &[Row] = &[
    // Namespaces have file handles (Linux 6.18), and their numbers are small. Older kernels ask for this capability.
    Row::new("open_by_handle_at", libc::SYS_open_by_handle_at, &[CAP_DAC_READ_SEARCH], libc::EPERM),
    Row::new("setns", libc::SYS_setns, &[CAP_SYS_ADMIN], libc::EPERM),
    // They take the number of any mount namespace; libc and util-linux do without where a kernel does not have them.
    Row::new("statmount", 457, &[CAP_SYS_ADMIN], libc::ENOSYS),
    Row::new("listmount", 458, &[CAP_SYS_ADMIN], libc::ENOSYS),
    // Lists namespaces of whomever the caller is (Linux 6.19).
    Row::new("listns", 470, &[CAP_SYS_ADMIN], libc::ENOSYS),
    // Whoever has met such a request's refusal on an older kernel does without.
    Row { requests: NAMESPACES, ..Row::new("ioctl", libc::SYS_ioctl, &[CAP_SYS_ADMIN, CAP_SYS_PTRACE], libc::ENOSYS) },
    Row::new("pidfd_getfd", libc::SYS_pidfd_getfd, &[CAP_SYS_PTRACE], libc::EPERM),
    Row::new("process_madvise", libc::SYS_process_madvise, &[CAP_SYS_PTRACE], libc::EPERM),
    // As of a kernel without keyrings, which programs are used to.
    Row::new("add_key", libc::SYS_add_key, &[CAP_SYS_ADMIN], libc::ENOSYS).with(OwnUsers::Given),
    Row::new("keyctl", libc::SYS_keyctl, &[CAP_SYS_ADMIN], libc::ENOSYS).with(OwnUsers::Given),
    // It has the kernel run a program of the host's, as root, with words of the caller's.
    Row::new("request_key", libc::SYS_request_key, &[CAP_SYS_ADMIN], libc::ENOSYS).with(OwnUsers::Refused),
    // Not every host has `kernel.dmesg_restrict`.
    Row::new("syslog", libc::SYS_syslog, &[CAP_SYSLOG, CAP_SYS_ADMIN], libc::EPERM).with(OwnUsers::Refused),
    #[cfg(target_arch = "x86_64")]
    Row::new("ustat", libc::SYS_ustat, &[CAP_SYS_ADMIN], libc::ENOSYS).with(OwnUsers::Refused),
];

/// The filters to load beside those of `profile`, for a process with this bounding set, and users of its own or not: none where the
/// profile refuses all of it by itself.
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

/// The rules by which a row's requests are known; without any it is the call whatever its arguments.
fn requests(row: &Row) -> Result<Vec<SeccompRule>> {
    let invalid = |e: seccompiler::BackendError| Error::Invalid(format!("seccomp rule: {e}"));
    let known = |request: &u64| {
        let is_it = SeccompCmpOp::MaskedEq(REQUEST);
        let condition = SeccompCondition::new(1, SeccompCmpArgLen::Dword, is_it, *request).map_err(invalid)?;
        SeccompRule::new(vec![condition]).map_err(invalid)
    };
    row.requests.iter().map(known).collect()
}

/// Whether a profile lets a call through, be it with some arguments alone.
fn lets_pass(profile: &LinuxSeccomp, row: &Row) -> bool {
    let passes = |action| {
        use LinuxSeccompAction::*;
        matches!(action, ScmpActAllow | ScmpActLog | ScmpActTrace | ScmpActNotify)
    };
    let rules = || profile.syscalls().iter().flatten().filter(|rule| rule.names().iter().any(|n| n == row.name));
    // What is not compiled refuses nothing: rules that do what is done anyway, and those of calls that no table has.
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

/// Whether a rule is about a call with this request: `surely`, or else perhaps, as with other arguments it may not be.
fn is_about(rule: &LinuxSyscall, request: Option<u64>, surely: bool) -> bool {
    let is_met = |arg: &LinuxSeccompArg| match request.filter(|_| arg.index() == 1) {
        Some(request) => is_met(comparison(arg), request, surely),
        None => !surely,
    };
    let mut conditions = rule.args().iter().flatten();
    match surely {
        true => conditions.all(is_met),
        // Two of one argument mean either.
        false => rule.args().iter().flatten().next().is_none() || conditions.any(is_met),
    }
}

/// Above a request's lower half is an argument's size, which may be any.
fn is_met((op, value): (SeccompCmpOp, u64), request: u64, surely: bool) -> bool {
    let may_be = |mask: u64| request & mask & REQUEST == value & REQUEST;
    match op {
        SeccompCmpOp::MaskedEq(mask) if surely => mask & !REQUEST == 0 && request & mask == value,
        SeccompCmpOp::MaskedEq(mask) => may_be(mask),
        SeccompCmpOp::Eq => !surely && may_be(REQUEST),
        _ => !surely,
    }
}

//! Seccomp: OCI profiles compiled to BPF, and the default profile.
//!
//! Profiles mean the same as in runc, with one exception: arguments are compared in the width that the kernel uses (see
//! [`arguments`]), where libseccomp compares the whole register and does not recognize `socket(40 | 1 << 32)` as AF_VSOCK. The
//! machine's other ABIs are blocked: i386 calls kill the process, x32 calls fail with ENOSYS as on a kernel without x32.

mod arguments;
mod default;
mod floor;
mod table;

use std::collections::BTreeMap;
use std::mem;

use oci_spec::runtime::{
    LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompFilterFlag, LinuxSeccompOperator, LinuxSyscall,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};

use crate::{Error, Result};
use arguments::Width;
pub use default::default_seccomp;

/// One filter: `struct sock_filter`s as bytes, and its load flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub bytes: Vec<u8>,
    pub flags: u32,
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Compiles a profile to filters, in loading order.
///
/// A filter has only two actions. So each action other than the default and ALLOW gets its own filter, which allows everything
/// else; the last filter has the default action and allows everything mentioned by any rule. The kernel applies the strictest
/// result. Unknown system calls are skipped, as in libseccomp. Calls newer than all those in the profile fail with ENOSYS instead
/// of its errno, as in runc: libc then falls back to older ones. Errors: notify, a profile that is too large, an impossible
/// argument value.
///
/// `bounding`: the maximum capabilities of the process, as a mask; `own_users`: whether it has a user namespace. Some calls are
/// restricted whatever the profile says: see [`floor`].
pub fn compile(profile: &LinuxSeccomp, bounding: u64, own_users: bool) -> Result<Vec<Program>> {
    let default = action(profile.default_action(), profile.default_errno_ret())?;
    let mut groups: Vec<(SeccompAction, Rules)> = Vec::new();
    let mut mentioned = Rules::new();
    for syscall in profile.syscalls().iter().flatten() {
        let wanted = action(syscall.action(), syscall.errno_ret())?;
        if wanted == default {
            continue;
        }
        add_rules(&mut mentioned, syscall)?;
        if wanted != SeccompAction::Allow {
            let at = groups.iter().position(|(a, _)| *a == wanted).unwrap_or_else(|| {
                groups.push((wanted.clone(), Rules::new()));
                groups.len() - 1
            });
            add_rules(&mut groups[at].1, syscall)?;
        }
    }
    let flags = flags(profile);
    let mut programs = Vec::new();
    for (wanted, rules) in groups {
        programs.push(program(rules, SeccompAction::Allow, wanted, flags, FIRST_FOREIGN)?);
    }
    if default != SeccompAction::Allow {
        let named = profile.syscalls().iter().flatten().flat_map(|s| s.names()).filter_map(|name| table::number(name));
        let newest = named.filter_map(|n| u32::try_from(n).ok()).max();
        let unknown = match (&default, newest) {
            (SeccompAction::Errno(_), Some(newest)) => newest + 1,
            _ => FIRST_FOREIGN,
        };
        programs.push(program(mentioned, default, SeccompAction::Allow, flags, unknown)?);
    }
    let mut all = floor::floor(profile, bounding, own_users, flags)?;
    all.extend(programs);
    Ok(all)
}

/// The first number of x32's calls, above all supported ABIs (-1 is a call skipped by a tracer).
const FIRST_FOREIGN: u32 = 0x4000_0000;

/// `unknown`: from this number on the result is ENOSYS.
fn program(
    mut rules: Rules,
    otherwise: SeccompAction,
    matched: SeccompAction,
    flags: u32,
    unknown: u32,
) -> Result<Program> {
    let whatever: Vec<u32> =
        rules.iter().filter(|(_, r)| r.is_empty()).filter_map(|(n, _)| u32::try_from(*n).ok()).collect();
    let mut program = shortcut(&whatever, u32::from(matched.clone()), unknown);
    rules.retain(|_, conditions| !conditions.is_empty());
    let rest = conditional(rules, otherwise, matched)?;
    program.extend(rest);
    let bytes = program.iter().flat_map(|i| {
        let [code_low, code_high] = i.code.to_ne_bytes();
        let k = i.k.to_ne_bytes();
        [code_low, code_high, i.jt, i.jf, k[0], k[1], k[2], k[3]]
    });
    Ok(Program { bytes: bytes.collect(), flags })
}

/// seccompiler's translation of rules: one after the other.
fn conditional(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Result<BpfProgram> {
    let invalid = |e: seccompiler::BackendError| Error::Invalid(format!("seccomp profile: {e}"));
    SeccompFilter::new(rules, otherwise, matched, ARCH).map_err(invalid)?.try_into().map_err(invalid)
}

/// The result for system calls that match with any arguments, as ranges of their numbers (sorted), and ENOSYS from `unknown` on;
/// others fall through to what follows. When a filter is loaded, the kernel evaluates it for every number: rule by rule that takes
/// most of a millisecond of a container's start.
fn shortcut(numbers: &[u32], answer: u32, unknown: u32) -> BpfProgram {
    // Offsets in `struct seccomp_data`.
    const NUMBER: u32 = 0;
    const ARCHITECTURE: u32 = 4;
    let does = |code: u32, k: u32, jt: u8, jf: u8| sock_filter { code: code as u16, jt, jf, k };
    let load = |offset: u32| does(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0);
    let jump = |test: u32, k: u32, jt: u8, jf: u8| does(libc::BPF_JMP | libc::BPF_K | test, k, jt, jf);
    let give = does(libc::BPF_RET | libc::BPF_K, answer, 0, 0);

    let no_such_call = u32::from(SeccompAction::Errno(libc::ENOSYS as u32));
    let mut checks = vec![jump(libc::BPF_JGE, unknown, 0, 1), does(libc::BPF_RET | libc::BPF_K, no_such_call, 0, 0)];
    for range in numbers.chunk_by(|a, b| a + 1 == *b) {
        let (Some(&first), Some(&last)) = (range.first(), range.last()) else { continue };
        if first == last {
            checks.extend([jump(libc::BPF_JEQ, first, 0, 1), give.clone()]);
        } else {
            checks.extend([jump(libc::BPF_JGE, first, 0, 2), jump(libc::BPF_JGT, last, 1, 0), give.clone()]);
        }
    }
    // Numbers of another architecture mean other calls: the next part refuses it.
    let past = jump(libc::BPF_JA, checks.len() as u32 + 1, 0, 0);
    let mut program = vec![load(ARCHITECTURE), jump(libc::BPF_JEQ, AUDIT_ARCH, 1, 0), past, load(NUMBER)];
    program.extend(checks);
    program
}

#[cfg(target_arch = "x86_64")]
const ARCH: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: TargetArch = TargetArch::aarch64;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

fn action(action: LinuxSeccompAction, errno: Option<u32>) -> Result<SeccompAction> {
    use LinuxSeccompAction::*;
    Ok(match action {
        ScmpActAllow => SeccompAction::Allow,
        ScmpActErrno => SeccompAction::Errno(errno.unwrap_or(libc::EPERM as u32)),
        ScmpActKill | ScmpActKillThread => SeccompAction::KillThread,
        ScmpActKillProcess => SeccompAction::KillProcess,
        ScmpActTrap => SeccompAction::Trap,
        ScmpActLog => SeccompAction::Log,
        ScmpActTrace => SeccompAction::Trace(errno.unwrap_or(0)),
        ScmpActNotify => return Err(Error::Invalid("seccomp: SCMP_ACT_NOTIFY is not supported".into())),
    })
}

fn add_rules(rules: &mut Rules, syscall: &LinuxSyscall) -> Result<()> {
    let numbers = syscall.names().iter().filter_map(|name| table::number(name).map(|number| (name, number)));
    for (name, number) in numbers {
        let conditions = syscall.args().iter().flatten().map(|arg| condition(name, arg)).collect::<Result<Vec<_>>>()?;
        let same = rules.get(&number);
        // An empty list of rules means any arguments; further conditions then have no effect.
        if same.is_some_and(|r| r.is_empty()) {
            continue;
        }
        let entry = rules.entry(number).or_default();
        if conditions.is_empty() {
            entry.clear();
        }
        // As in runc: several conditions on one argument are alternatives.
        let mut seen = [false; ARGUMENTS];
        let twice =
            syscall.args().iter().flatten().any(|a| seen.get_mut(a.index()).is_some_and(|s| mem::replace(s, true)));
        let alternatives = if twice { conditions.into_iter().map(|c| vec![c]).collect() } else { vec![conditions] };
        for all in alternatives.into_iter().filter(|all| !all.is_empty()) {
            entry.push(SeccompRule::new(all).map_err(|e| Error::Invalid(format!("seccomp rule: {e}")))?);
        }
    }
    Ok(())
}

/// The maximum for a system call.
const ARGUMENTS: usize = 6;

/// One comparison, of exactly the bits that the kernel uses.
fn condition(call: &str, arg: &LinuxSeccompArg) -> Result<SeccompCondition> {
    let invalid = |why: String| Error::Invalid(format!("seccomp profile: {call}: argument {}: {why}", arg.index()));
    let index = u8::try_from(arg.index()).map_err(|_| invalid("no such argument".into()))?;
    let (op, value) = comparison(arg);
    let make = |length, op, value| SeccompCondition::new(index, length, op, value).map_err(|e| invalid(e.to_string()));
    let fits = |value: u64| match value {
        // A sign-extended number.
        v if u32::try_from(v).is_ok() || i32::try_from(v as i64).is_ok() => Ok(v & u64::from(u32::MAX)),
        v => Err(invalid(format!("{v:#x} never matches: the kernel takes 32 bits"))),
    };
    const MODE: u64 = 0xffff;
    match (arguments::width(call, arg.index()), op) {
        (Width::Register, op) => make(SeccompCmpArgLen::Qword, op, value),
        (Width::Int, op) => make(SeccompCmpArgLen::Dword, op, fits(value)?),
        (Width::Mode, SeccompCmpOp::Eq) if value <= MODE => {
            make(SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(MODE), value)
        }
        (Width::Mode, SeccompCmpOp::MaskedEq(mask)) if value <= MODE => {
            make(SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask & MODE), value)
        }
        (Width::Mode, _) => {
            Err(invalid("a mode has 16 bits, and can be compared by SCMP_CMP_EQ and SCMP_CMP_MASKED_EQ only".into()))
        }
    }
}

fn comparison(arg: &LinuxSeccompArg) -> (SeccompCmpOp, u64) {
    use LinuxSeccompOperator::*;
    match arg.op() {
        ScmpCmpNe => (SeccompCmpOp::Ne, arg.value()),
        ScmpCmpLt => (SeccompCmpOp::Lt, arg.value()),
        ScmpCmpLe => (SeccompCmpOp::Le, arg.value()),
        ScmpCmpEq => (SeccompCmpOp::Eq, arg.value()),
        ScmpCmpGe => (SeccompCmpOp::Ge, arg.value()),
        ScmpCmpGt => (SeccompCmpOp::Gt, arg.value()),
        // OCI: `value` is the mask, `valueTwo` the expected result.
        ScmpCmpMaskedEq => (SeccompCmpOp::MaskedEq(arg.value()), arg.value_two().unwrap_or(0)),
    }
}

fn flags(profile: &LinuxSeccomp) -> u32 {
    profile.flags().iter().flatten().fold(0, |flags, flag| {
        flags
            | match flag {
                LinuxSeccompFilterFlag::SeccompFilterFlagLog => libc::SECCOMP_FILTER_FLAG_LOG as u32,
                LinuxSeccompFilterFlag::SeccompFilterFlagSpecAllow => libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW as u32,
                // There are no other threads to synchronize yet; the rest concerns notification.
                _ => 0,
            }
    })
}

#[cfg(test)]
mod tests;

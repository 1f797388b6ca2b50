//! Seccomp: OCI profiles compiled to BPF, and the default profile.

mod default;
mod table;

use std::collections::BTreeMap;

use oci_spec::runtime::{LinuxSeccomp, LinuxSeccompAction, LinuxSeccompFilterFlag, LinuxSeccompOperator, LinuxSyscall};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};

use crate::{Error, Result};
pub use default::default_seccomp;

/// One filter: `struct sock_filter`s as bytes, and the flags to load it with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub bytes: Vec<u8>,
    pub flags: u32,
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Compiles a profile to filters, in the order in which they are to be loaded.
///
/// A filter knows two actions only. So each action other than the default and ALLOW gets a filter of its own, in which
/// everything else is allowed; the last filter has the default action and allows what any rule mentions. The kernel obeys
/// the strictest. Unknown system calls are skipped, as libseccomp does. Errors: notify, or a profile that does not fit.
pub fn compile(profile: &LinuxSeccomp) -> Result<Vec<Program>> {
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
        programs.push(program(rules, SeccompAction::Allow, wanted, flags)?);
    }
    if default != SeccompAction::Allow {
        programs.push(program(mentioned, default, SeccompAction::Allow, flags)?);
    }
    Ok(programs)
}

fn program(mut rules: Rules, otherwise: SeccompAction, matched: SeccompAction, flags: u32) -> Result<Program> {
    let whatever: Vec<u32> =
        rules.iter().filter(|(_, r)| r.is_empty()).filter_map(|(n, _)| u32::try_from(*n).ok()).collect();
    let mut program = shortcut(&whatever, u32::from(matched.clone()));
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

/// What seccompiler makes of rules: one after the other.
fn conditional(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Result<BpfProgram> {
    let invalid = |e: seccompiler::BackendError| Error::Invalid(format!("seccomp profile: {e}"));
    SeccompFilter::new(rules, otherwise, matched, ARCH).map_err(invalid)?.try_into().map_err(invalid)
}

/// The answer to system calls that match whatever their arguments, as ranges of their numbers (sorted); all others fall
/// through to what follows. Whenever a filter is loaded, the kernel tries it on every number there is: rule by rule that
/// takes most of a millisecond of a container's start.
fn shortcut(numbers: &[u32], answer: u32) -> BpfProgram {
    // Offsets in `struct seccomp_data`.
    const NUMBER: u32 = 0;
    const ARCHITECTURE: u32 = 4;
    let does = |code: u32, k: u32, jt: u8, jf: u8| sock_filter { code: code as u16, jt, jf, k };
    let load = |offset: u32| does(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0);
    let jump = |test: u32, k: u32, jt: u8, jf: u8| does(libc::BPF_JMP | libc::BPF_K | test, k, jt, jf);
    let give = does(libc::BPF_RET | libc::BPF_K, answer, 0, 0);

    let mut checks = BpfProgram::new();
    for range in numbers.chunk_by(|a, b| a + 1 == *b) {
        let (Some(&first), Some(&last)) = (range.first(), range.last()) else { continue };
        if first == last {
            checks.extend([jump(libc::BPF_JEQ, first, 0, 1), give.clone()]);
        } else {
            checks.extend([jump(libc::BPF_JGE, first, 0, 2), jump(libc::BPF_JGT, last, 1, 0), give.clone()]);
        }
    }
    // Another architecture's numbers mean something else: what follows refuses it.
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
    let conditions = syscall.args().iter().flatten().map(condition).collect::<Result<Vec<_>>>()?;
    for number in syscall.names().iter().filter_map(|name| table::number(name)) {
        let same = rules.get(&number);
        // No rule at all means: whatever the arguments. Once that is said, conditions add nothing.
        if same.is_some_and(|r| r.is_empty()) {
            continue;
        }
        let entry = rules.entry(number).or_default();
        if conditions.is_empty() {
            entry.clear();
        } else {
            let rule =
                SeccompRule::new(conditions.clone()).map_err(|e| Error::Invalid(format!("seccomp rule: {e}")))?;
            entry.push(rule);
        }
    }
    Ok(())
}

fn condition(arg: &oci_spec::runtime::LinuxSeccompArg) -> Result<SeccompCondition> {
    use LinuxSeccompOperator::*;
    let (op, value) = match arg.op() {
        ScmpCmpNe => (SeccompCmpOp::Ne, arg.value()),
        ScmpCmpLt => (SeccompCmpOp::Lt, arg.value()),
        ScmpCmpLe => (SeccompCmpOp::Le, arg.value()),
        ScmpCmpEq => (SeccompCmpOp::Eq, arg.value()),
        ScmpCmpGe => (SeccompCmpOp::Ge, arg.value()),
        ScmpCmpGt => (SeccompCmpOp::Gt, arg.value()),
        // OCI: `value` is the mask, `valueTwo` what must remain.
        ScmpCmpMaskedEq => (SeccompCmpOp::MaskedEq(arg.value()), arg.value_two().unwrap_or(0)),
    };
    let index = u8::try_from(arg.index()).map_err(|_| Error::Invalid("seccomp: argument index".into()))?;
    SeccompCondition::new(index, SeccompCmpArgLen::Qword, op, value)
        .map_err(|e| Error::Invalid(format!("seccomp condition: {e}")))
}

fn flags(profile: &LinuxSeccomp) -> u32 {
    profile.flags().iter().flatten().fold(0, |flags, flag| {
        flags
            | match flag {
                LinuxSeccompFilterFlag::SeccompFilterFlagLog => libc::SECCOMP_FILTER_FLAG_LOG as u32,
                LinuxSeccompFilterFlag::SeccompFilterFlagSpecAllow => libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW as u32,
                // Threads are synchronized by having none yet; the rest is about notification.
                _ => 0,
            }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::default_capabilities;

    #[test]
    fn the_default_profile_compiles_to_two_filters() {
        let programs = compile(&default_seccomp(&default_capabilities())).unwrap();
        assert_eq!(programs.len(), 2);
        // Each rule by itself would make it 1527.
        assert!(programs[1].bytes.len() / 8 > 50 && programs[1].bytes.len() / 8 < 400);
    }

    /// What a filter answers to a system call, as the kernel's interpreter would find it.
    fn run(program: &[sock_filter], arch: u32, number: u32, args: [u64; 6]) -> u32 {
        let mut data: Vec<u32> = vec![number, arch, 0, 0];
        data.extend(args.iter().flat_map(|a| [*a as u32, (*a >> 32) as u32]));
        let (mut at, mut a) = (0, 0);
        loop {
            let i = &program[at];
            at += 1;
            let jump = |holds: bool| usize::from(if holds { i.jt } else { i.jf });
            match u32::from(i.code) {
                0x20 => a = data[i.k as usize / 4],
                0x05 => at += i.k as usize,
                0x15 => at += jump(a == i.k),
                0x25 => at += jump(a > i.k),
                0x35 => at += jump(a >= i.k),
                0x54 => a &= i.k,
                0x06 => return i.k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn ranges_of_numbers_answer_as_the_rules_do() {
        let profile = default_seccomp(&default_capabilities());
        let mut rules = Rules::new();
        for syscall in profile.syscalls().iter().flatten().filter(|s| s.action() == LinuxSeccompAction::ScmpActAllow) {
            add_rules(&mut rules, syscall).unwrap();
        }
        let (no, yes) = (SeccompAction::Errno(1), SeccompAction::Allow);
        let plain = conditional(rules.clone(), no.clone(), yes.clone()).unwrap();
        let bytes = program(rules, no, yes, 0).unwrap().bytes;
        let quick: BpfProgram = bytes
            .chunks_exact(8)
            .map(|b| sock_filter {
                code: u16::from_ne_bytes([b[0], b[1]]),
                jt: b[2],
                jf: b[3],
                k: u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
            })
            .collect();
        let answers = |arch, number, args| (run(&quick, arch, number, args), run(&plain, arch, number, args));
        let mut allowed = 0;
        for number in (0..600).chain([0x4000_0000, 0x4000_0001, u32::MAX]) {
            for args in [[0; 6], [0x7e02_0000; 6], [8; 6], [u64::MAX; 6]] {
                let (quick, plain) = answers(AUDIT_ARCH, number, args);
                assert_eq!(quick, plain, "number {number}, arguments {args:x?}");
                allowed += usize::from(quick == libc::SECCOMP_RET_ALLOW);
            }
            let (quick, plain) = answers(0x4000_0003, number, [0; 6]);
            assert_eq!(quick, plain, "number {number} of i386");
            assert_ne!(quick, libc::SECCOMP_RET_ALLOW);
        }
        assert!(allowed > 1000, "{allowed}");
    }

    #[test]
    fn a_deny_list_needs_one_filter() {
        let profile: LinuxSeccomp = serde_json::from_str(
            r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","no_such_call"],"action":"SCMP_ACT_ERRNO","errnoRet":99}]}"#,
        )
        .unwrap();
        assert_eq!(compile(&profile).unwrap().len(), 1);
        assert_eq!(table::number("mkdirat"), Some(libc::SYS_mkdirat));
        assert_eq!(table::number("no_such_call"), None);
    }
}

//! Seccomp: OCI profiles compiled to BPF, and the default profile.

mod default;
mod table;

use std::collections::BTreeMap;

use oci_spec::runtime::{LinuxSeccomp, LinuxSeccompAction, LinuxSeccompFilterFlag, LinuxSeccompOperator, LinuxSyscall};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
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

fn program(rules: Rules, otherwise: SeccompAction, matched: SeccompAction, flags: u32) -> Result<Program> {
    let invalid = |e: seccompiler::BackendError| Error::Invalid(format!("seccomp profile: {e}"));
    let filter = SeccompFilter::new(rules, otherwise, matched, ARCH).map_err(invalid)?;
    let program: BpfProgram = filter.try_into().map_err(invalid)?;
    let bytes = program.iter().flat_map(|i| {
        let [code_low, code_high] = i.code.to_ne_bytes();
        let k = i.k.to_ne_bytes();
        [code_low, code_high, i.jt, i.jf, k[0], k[1], k[2], k[3]]
    });
    Ok(Program { bytes: bytes.collect(), flags })
}

#[cfg(target_arch = "x86_64")]
const ARCH: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCH: TargetArch = TargetArch::aarch64;

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
        assert!(programs[1].bytes.len() / 8 > 400 && programs[1].bytes.len() / 8 < 4096);
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

//! Irrevocably drops what a process of ours does not need: user, capabilities, files, system calls, its parent's keys. Not
//! recorded: nothing of a Pod is created here.
//!
//! Each applies to threads started later, so it is done before there are any.

use std::collections::BTreeMap;
use std::io::Error as IoError;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
    path_beneath_rules,
};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
#[cfg(target_arch = "x86_64")]
use seccompiler::sock_filter;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use super::checked;

/// The x32 ABI calls use x86-64's numbers with this bit, and some of its own. No other call has a number as high.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;

const KEYCTL_GET_KEYRING_ID: libc::c_long = 0;
const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
const KEY_SPEC_SESSION_KEYRING: libc::c_long = -3;
/// Above the host's users: from here on there is one per process, without any earlier keys.
const NOBODYS: u32 = 0xf000_0000;

const PR_SET_MDWE: i32 = 65;
const MDWE_REFUSE_EXEC_GAIN: libc::c_ulong = 1;
const MDWE_NO_INHERIT: libc::c_ulong = 2;

/// Changes the user, and drops the old one's groups. Requires root (setresuid(2)).
pub fn become_user(uid: u32, gid: u32) -> Result<(), IoError> {
    setgroups(&[])?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    Ok(())
}

/// Drops the capabilities that an executed program could gain (capabilities(7)). Requires a capability itself, so call it before
/// [`become_user`]; a process without that one keeps the set, and relies on no_new_privs instead.
pub fn drop_bounding_set() -> Result<(), IoError> {
    let failed = |why: caps::errors::CapsError| IoError::other(why.to_string());
    if caps::has_cap(None, caps::CapSet::Effective, caps::Capability::CAP_SETPCAP).map_err(failed)? {
        caps::clear(None, caps::CapSet::Bounding).map_err(failed)?;
    }
    Ok(())
}

/// Gives up all capabilities of this thread.
pub fn drop_capabilities() -> Result<(), IoError> {
    let failed = |why: caps::errors::CapsError| IoError::other(why.to_string());
    let ambient = caps::clear(None, caps::CapSet::Ambient).map_err(failed);
    let inheritable = caps::clear(None, caps::CapSet::Inheritable).map_err(failed);
    caps::clear(None, caps::CapSet::Effective).map_err(failed)?;
    caps::clear(None, caps::CapSet::Permitted).map_err(failed)?;
    ambient.and(inheritable)
}

/// Executed programs gain no privileges, and processes of the same user cannot inspect this one (prctl(2)).
pub fn close_to_others() -> Result<(), IoError> {
    // SAFETY: plain values.
    unsafe {
        checked(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into())?;
        checked(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0).into())?;
    }
    Ok(())
}

/// Restricts the process to these files and folders, for reading or for everything; missing paths are skipped. Returns whether the
/// kernel enforces it: not without Landlock (landlock(7)).
pub fn confine_files(read: &[PathBuf], write: &[PathBuf]) -> Result<bool, IoError> {
    let failed = |why: RulesetError| IoError::other(why.to_string());
    let abi = ABI::V5;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(abi))
        .and_then(|ruleset| ruleset.create())
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(read, AccessFs::from_read(abi))))
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(write, AccessFs::from_all(abi))))
        .and_then(|ruleset| ruleset.restrict_self())
        .map_err(failed)?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// Keeps the process from signalling others in any way, and with `sockets` from connecting to others' abstract sockets. Returns
/// whether the kernel enforces it: not before Linux 6.12 (landlock(7), ABI 6).
pub fn confine_reach(sockets: bool) -> Result<bool, IoError> {
    let failed = |why: RulesetError| IoError::other(why.to_string());
    let scopes = if sockets { Scope::AbstractUnixSocket | Scope::Signal } else { Scope::Signal.into() };
    let status = Ruleset::default()
        .scope(scopes)
        .and_then(|ruleset| ruleset.create())
        .and_then(|ruleset| ruleset.restrict_self())
        .map_err(failed)?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// Denies `calls` with EPERM, and new namespaces; also `on_others`, whose first argument names a process, unless that is the
/// caller. clone3, whose flags a filter cannot see, fails with ENOSYS: the C library then creates threads by clone.
pub fn deny(calls: &[i64], on_others: &[i64]) -> Result<(), IoError> {
    let failed = |why: &dyn std::fmt::Display| IoError::other(why.to_string());
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in calls {
        rules.insert(*call, Vec::new());
    }
    for call in on_others {
        // Only for prlimit(2) 0 is the caller: for kill(2) it is a whole process group.
        let own = [Some(std::process::id()), (*call == libc::SYS_prlimit64).then_some(0)];
        let differs = |own: u32| SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, own.into());
        let others = own.into_iter().flatten().map(differs).collect::<Result<_, _>>().map_err(|why| failed(&why))?;
        rules.insert(*call, vec![SeccompRule::new(others).map_err(|why| failed(&why))?]);
    }
    let namespaces = [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
    ];
    let mut clones = Vec::new();
    for flag in namespaces {
        let bit = flag as u64;
        let set = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(bit), bit);
        clones.push(SeccompRule::new(vec![set.map_err(|why| failed(&why))?]).map_err(|why| failed(&why))?);
    }
    rules.insert(libc::SYS_clone, clones);
    #[cfg(target_arch = "x86_64")]
    apply(&no_x32())?;
    install(rules, libc::EPERM).and_then(|()| install([(libc::SYS_clone3, Vec::new())].into(), libc::ENOSYS))
}

/// Denies every call of the x32 ABI, whose variants of denied ones would pass; other architectures are denied by the rules.
#[cfg(target_arch = "x86_64")]
fn no_x32() -> BpfProgram {
    // The offset of the number in `struct seccomp_data`.
    const NUMBER: u32 = 0;
    let does = |code: u32, k: u32, jt: u8, jf: u8| sock_filter { code: code as u16, jt, jf, k };
    let give = |action: SeccompAction| does(libc::BPF_RET | libc::BPF_K, action.into(), 0, 0);
    vec![
        does(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NUMBER, 0, 0),
        does(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, X32, 0, 1),
        give(SeccompAction::Errno(libc::EPERM as u32)),
        give(SeccompAction::Allow),
    ]
}

fn install(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> Result<(), IoError> {
    let failed = |why: &dyn std::fmt::Display| IoError::other(format!("seccomp: {why}"));
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|why| failed(&why))?;
    let refuse = SeccompAction::Errno(errno.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).map_err(|why| failed(&why))?;
    apply(&BpfProgram::try_from(filter).map_err(|why| failed(&why))?)
}

fn apply(program: &BpfProgram) -> Result<(), IoError> {
    seccompiler::apply_filter_all_threads(program).map_err(|why| IoError::other(format!("seccomp: {why}")))
}

/// A new, empty session keyring for the calling thread and its children (keyctl(2)). If keys are not available at all (a kernel
/// without them, a container whose filter denies all of keyctl(2)) there is nothing to protect either.
///
/// A key counts for the real user of its creator, and a container in the host's user namespace may have exhausted root's quota:
/// then this one counts for an unused user. For a single-threaded process.
pub fn own_keyring() -> Result<(), IoError> {
    match join_keyring() {
        Err(_) if keyring().is_err() => Ok(()),
        Err(why) if why.raw_os_error() == Some(libc::EDQUOT) => charged_to_nobody(join_keyring).map_err(|_| why),
        joined => joined,
    }
}

fn join_keyring() -> Result<(), IoError> {
    // SAFETY: plain values; a null name makes the keyring anonymous.
    checked(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<u8>()) }).map(drop)
}

/// Runs something as an unused real user. The effective one, and with it the caller's privileges, stays.
fn charged_to_nobody(act: impl FnOnce() -> Result<(), IoError>) -> Result<(), IoError> {
    let before = Uid::current().as_raw();
    become_really(NOBODYS + std::process::id())?;
    let done = act();
    become_really(before)?;
    done
}

/// Changes only the real user of the calling thread.
fn become_really(uid: u32) -> Result<(), IoError> {
    const SAME: u32 = u32::MAX;
    // SAFETY: plain values. The raw call: glibc's would change the other threads too.
    checked(unsafe { libc::syscall(libc::SYS_setresuid, uid, SAME, SAME) }).map(drop)
}

/// The id of the session keyring.
pub fn keyring() -> Result<i64, IoError> {
    // SAFETY: plain values.
    checked(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0) })
}

/// Once writable memory never becomes executable in this process; children do not inherit this (prctl(2), `PR_SET_MDWE`, Linux
/// 6.6).
pub fn no_new_code() -> Result<(), IoError> {
    // SAFETY: plain values.
    let done = unsafe { libc::prctl(PR_SET_MDWE, MDWE_REFUSE_EXEC_GAIN | MDWE_NO_INHERIT, 0, 0, 0) };
    checked(done.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in its own thread: keyrings and filters are per thread.
    fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(work).join()).unwrap()
    }

    /// Denies keyctl(2), all of it or one operation, to the calling thread.
    fn refuse_keyctl(operation: Option<libc::c_long>) {
        let equal = |operation: libc::c_long| {
            let is = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, operation as u64).unwrap();
            SeccompRule::new(vec![is]).unwrap()
        };
        let rules = [(libc::SYS_keyctl, operation.map(equal).into_iter().collect())].into();
        let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let refuse = SeccompAction::Errno(libc::EDQUOT as u32);
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
        seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
    }

    #[test]
    fn a_session_keyring_of_ones_own() {
        let own = || (own_keyring().is_ok(), keyring());
        match (keyring(), apart(own)) {
            (Ok(before), (true, Ok(own))) => assert_ne!(own, before),
            // Containers that tests run in may lack keyctl(2).
            (Err(_), (true, Err(_))) => {}
            other => panic!("{other:?}"),
        }
    }

    /// Like root's quota exhausted by a container with root's keys: here of a user used only by this process, so that no other test
    /// is affected.
    #[test]
    fn whose_users_quota_of_keys_is_used_up_has_a_keyring_all_the_same() {
        const THREADS: libc::c_long = -1;
        let user = 0xf800_0000 + std::process::id();
        let add = |name: u32| {
            let name = std::ffi::CString::new(name.to_string()).unwrap();
            let (kind, none) = (c"keyring".as_ptr(), std::ptr::null::<u8>());
            // SAFETY: two strings that outlive the call, and no payload.
            checked(unsafe { libc::syscall(libc::SYS_add_key, kind, name.as_ptr(), none, 0, THREADS) })
        };
        let own = || {
            // Adding a key counts for the fsuid, joining a keyring for the real user. SAFETY: plain values.
            unsafe { libc::syscall(libc::SYS_setfsuid, user) };
            let full = (0..10_000).find_map(|name| add(name).err()).and_then(|why| why.raw_os_error());
            become_really(user).unwrap();
            (full, join_keyring().is_err(), own_keyring().is_ok(), keyring().ok(), Uid::current().as_raw())
        };
        // Containers that tests run in may lack keys, and without root the user cannot be changed.
        if let (Ok(before), true) = (keyring(), Uid::effective().is_root() && apart(|| add(0).is_ok())) {
            let (full, is_refused, has_one, keyring, real) = apart(own);
            assert_eq!((full, is_refused, has_one, real), (Some(libc::EDQUOT), true, true, user));
            assert_ne!(keyring, Some(before));
        }
    }

    /// It must not be ignored that others could read the previous user's keys.
    #[test]
    fn who_cannot_have_a_keyring_of_his_own_is_told_so_where_there_is_one() {
        let with = |refused: Option<libc::c_long>| {
            apart(move || {
                refuse_keyctl(refused);
                own_keyring().map_err(|why| why.raw_os_error())
            })
        };
        if keyring().is_ok() {
            assert_eq!(with(Some(KEYCTL_JOIN_SESSION_KEYRING)), Err(Some(libc::EDQUOT)));
        }
        assert_eq!(with(None), Ok(()));
    }
}

//! A process's identity and privileges: limits, user, capabilities, filters; the mount namespace it is born in; and its working
//! directory.

use std::io::Error as IoError;
use std::path::Path;

use super::refused;
use crate::protocol::{Failure, ProcessPlan};
use podwright_sys::credentials::CapSets;
use podwright_sys::{Kernel, SysError, own};

/// CAP_SYS_ADMIN, which loading a filter (without no_new_privs) and creating a mount namespace require.
const SYS_ADMIN: u64 = 1 << 21;
/// CAP_SYS_CHROOT, which entering a mount namespace requires too, and CAP_DAC_READ_SEARCH, as root enters working directories.
const ENTERS: u64 = SYS_ADMIN | 1 << 18 | 1 << 2;

/// The mount namespace that a process is born in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// Its final one.
    Entered,
    /// Still the host's, because its own PID namespace had to exist before its root was complete. It first creates its own, owned
    /// by its user namespace: by then all mounts are locked.
    Own,
    /// Still the builder's, for the same reason. It is given a copy with all mounts locked, and enters that first.
    Given,
}

/// Which capabilities are kept in addition to the process's own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// For the process that creates it, and reports it. The kernel counts processes, and descriptors in flight, per host user and
    /// against limits: another Pod may have any number with the same user. CAP_SYS_ADMIN over the machine is exempt; a process born
    /// in a user namespace is reported by one outside.
    Birth(Mounts),
    /// For the process itself, until its filters are loaded.
    Itself(Mounts),
}

/// Sets a process's limits: with the host's privileges, which raising one requires.
pub fn limit(kernel: &Kernel, plan: &ProcessPlan) -> Result<(), Failure> {
    for &(resource, soft, hard) in &plan.rlimits {
        kernel.set_rlimit(resource, soft, hard)?;
    }
    Ok(())
}

/// Sets the AppArmor profile for the next execve; children inherit it. Done outside, where `/proc` is the host's. A new process is
/// unconfined for a moment, during which no container's profile permits tracing it.
pub fn choose_profile(kernel: &Kernel, plan: &ProcessPlan) -> Result<(), Failure> {
    Ok(plan.app_armor.iter().try_for_each(|profile| kernel.set_profile_on_exec(profile))?)
}

/// Switches to a process's user, and drops every capability that it should not have, except those still needed.
pub fn take(kernel: &Kernel, plan: &ProcessPlan, what: For) -> Result<(), Failure> {
    own::umask(plan.umask.unwrap_or(0o022));
    kernel.bound_capabilities(plan.caps.bounding)?;
    kernel.set_user(plan.uid, plan.gid, &plan.groups)?;
    keep(kernel, plan, what)
}

/// Drops every capability that the process should not have, except those still needed.
pub fn keep(kernel: &Kernel, plan: &ProcessPlan, what: For) -> Result<(), Failure> {
    let loads = !plan.no_new_privs && !plan.seccomp.is_empty();
    let kept = match what {
        For::Birth(Mounts::Given) | For::Itself(Mounts::Given) => ENTERS,
        For::Itself(Mounts::Entered) if !loads => 0,
        For::Birth(_) | For::Itself(_) => SYS_ADMIN,
    };
    let (effective, permitted) = (plan.caps.effective | kept, plan.caps.permitted | kept);
    kernel.set_capabilities(&CapSets { effective, permitted, ambient: 0, ..plan.caps })?;
    own::close_to_inspection().map_err(|e| refused(format!("prctl(PR_SET_DUMPABLE): {e}")))
}

/// The last step before execve, or before a birth among others: loads the filters, and sets exactly the capabilities of the plan.
pub fn confine(kernel: &Kernel, plan: &ProcessPlan, programs: &[Vec<u8>]) -> Result<(), Failure> {
    let load = || {
        let mut all = programs.iter().zip(&plan.seccomp);
        all.try_for_each(|(program, flags)| kernel.seccomp(program, *flags))
    };
    // Without no_new_privs loading a filter requires CAP_SYS_ADMIN: so it comes first, and must allow what follows.
    if !plan.no_new_privs {
        load()?;
        return Ok(kernel.set_capabilities(&plan.caps)?);
    }
    kernel.set_capabilities(&plan.caps)?;
    kernel.no_new_privs()?;
    Ok(load()?)
}

/// Changes to the working directory, and checks that it is inside the container.
pub fn enter_folder(kernel: &Kernel, folder: &Path) -> Result<(), NotEntered> {
    let entered = kernel.op("chdir", |a| a.path(folder), || std::env::set_current_dir(folder));
    entered.map_err(|error| NotEntered::Failed(worded(folder, &error), error.errno()))?;
    match own::working_directory() {
        Ok(path) if path.first() == Some(&b'/') => Ok(()),
        // Like runc since CVE-2024-21626.
        _ => Err(NotEntered::Outside),
    }
}

/// Why a working directory cannot be entered.
#[derive(Debug)]
pub enum NotEntered {
    /// The message and the errno.
    Failed(String, i32),
    /// It is outside the container's root.
    Outside,
}

impl NotEntered {
    /// Whether only this process is denied access.
    pub fn is_denied(&self) -> bool {
        matches!(self, NotEntered::Failed(_, libc::EACCES | libc::EPERM))
    }
}

impl From<NotEntered> for Failure {
    fn from(e: NotEntered) -> Failure {
        match e {
            NotEntered::Failed(why, _) => refused(why),
            NotEntered::Outside => refused(
                "current working directory is outside of container mount namespace root -- possible container breakout detected",
            ),
        }
    }
}

/// runc's words.
fn worded(folder: &Path, error: &SysError) -> String {
    let why = match error.errno() {
        libc::ENOENT => "no such file or directory".to_owned(),
        libc::ENOTDIR => "not a directory".to_owned(),
        libc::EACCES => "permission denied".to_owned(),
        libc::ELOOP => "too many levels of symbolic links".to_owned(),
        other => IoError::from_raw_os_error(other).to_string(),
    };
    format!("chdir to cwd ({folder:?}) set in config.json failed: {why}")
}

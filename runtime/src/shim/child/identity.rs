//! Who a process is and what it may: limits, user, capabilities, filters; whose mounts it is born in; and the folder that it works in.

use std::io::Error as IoError;
use std::path::Path;

use super::refused;
use crate::protocol::{Failure, ProcessPlan};
use podwright_sys::credentials::CapSets;
use podwright_sys::{Kernel, SysError, own};

/// CAP_SYS_ADMIN, without which (or no_new_privs) no filter can be loaded, and no mount namespace made.
const SYS_ADMIN: u64 = 1 << 21;
/// CAP_SYS_CHROOT, which entering a mount namespace takes too, and CAP_DAC_READ_SEARCH, as root enters working directories.
const ENTERS: u64 = SYS_ADMIN | 1 << 18 | 1 << 2;

/// Whose the mount namespace is that a process is born in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// That which it shall have.
    Entered,
    /// The host's still, because its own PID namespace had to be there before its root was complete. It makes one of its own,
    /// which its user namespace owns, before anything else: by then all that is mounted is locked.
    Own,
    /// The builder's still, for the same reason. It is given a copy with all mounts locked, and enters that before anything else.
    Given,
}

/// What a birth goes on with for whom this is: the capabilities that it keeps beside the process's own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// Who bears the process, and tells of it. The kernel counts processes, and descriptors on their way, by the user of the host
    /// and against limits: another Pod may have as many of the same user's as it likes. Nothing of that holds for CAP_SYS_ADMIN over
    /// the machine; who is born in a user namespace is told of by somebody outside.
    Birth(Mounts),
    /// The process itself, until its filters are loaded.
    Itself(Mounts),
}

/// Takes a process's limits: with the host's rights, which raising one needs.
pub fn limit(kernel: &Kernel, plan: &ProcessPlan) -> Result<(), Failure> {
    for &(resource, soft, hard) in &plan.rlimits {
        kernel.set_rlimit(resource, soft, hard)?;
    }
    Ok(())
}

/// Has the process be under its AppArmor profile from its execve on: whoever is born of the caller inherits that. Done out here,
/// where `/proc` is the host's. What is born goes on unconfined for a moment, and no container's profile lets trace it then.
pub fn choose_profile(kernel: &Kernel, plan: &ProcessPlan) -> Result<(), Failure> {
    Ok(plan.app_armor.iter().try_for_each(|profile| kernel.set_profile_on_exec(profile))?)
}

/// Takes a process's user, and gives up every capability that it is not to have, but for what must still be done.
pub fn take(kernel: &Kernel, plan: &ProcessPlan, what: For) -> Result<(), Failure> {
    own::umask(plan.umask.unwrap_or(0o022));
    kernel.bound_capabilities(plan.caps.bounding)?;
    kernel.set_user(plan.uid, plan.gid, &plan.groups)?;
    keep(kernel, plan, what)
}

/// Gives up every capability that the process is not to have, but for what must still be done.
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

/// The last step before execve, or before a birth among others: the filters, and exactly the capabilities of the plan.
pub fn confine(kernel: &Kernel, plan: &ProcessPlan, programs: &[Vec<u8>]) -> Result<(), Failure> {
    let load = || {
        let mut all = programs.iter().zip(&plan.seccomp);
        all.try_for_each(|(program, flags)| kernel.seccomp(program, *flags))
    };
    // Without no_new_privs a filter takes CAP_SYS_ADMIN to load: so it comes first, and must allow what follows.
    if !plan.no_new_privs {
        load()?;
        return Ok(kernel.set_capabilities(&plan.caps)?);
    }
    kernel.set_capabilities(&plan.caps)?;
    kernel.no_new_privs()?;
    Ok(load()?)
}

/// Goes to the working directory, and proves that it is one of the container's.
pub fn enter_folder(kernel: &Kernel, folder: &Path) -> Result<(), NotEntered> {
    let entered = kernel.op("chdir", |a| a.path(folder), || std::env::set_current_dir(folder));
    entered.map_err(|error| NotEntered::Failed(worded(folder, &error), error.errno()))?;
    match own::working_directory() {
        Ok(path) if path.first() == Some(&b'/') => Ok(()),
        // Like runc since CVE-2024-21626.
        _ => Err(NotEntered::Outside),
    }
}

/// Why a working directory cannot be had.
#[derive(Debug)]
pub enum NotEntered {
    /// Why, and the errno.
    Failed(String, i32),
    /// It is not below the container's root.
    Outside,
}

impl NotEntered {
    /// Is it this process alone that may not?
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

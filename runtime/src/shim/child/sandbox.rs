//! The steps of `pause` until it is executed: its namespaces are new already.

use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::{ChildContext, newborn, refused};
use crate::fork;
use crate::protocol::{Failure, FailureKind, SandboxPlan};
use podwright_sys::credentials::{CapSets, allow_only};
use podwright_sys::{Kernel, SysResult, io, mount, own, process};

/// The pause program, built by build.rs.
pub const PAUSE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));
/// The user of `pause`, as in upstream's pause image. A container can be the same user, but cannot inspect `pause`, as its file is
/// unreadable.
const PAUSE_USER: u32 = 65535;

/// `pause` of a sandbox in the host's user namespace.
pub fn sandbox(context: ChildContext<'_>, plan: &SandboxPlan, net: Option<OwnedFd>, pause: &OwnedFd) -> Infallible {
    let begun = context.begin(None, &kept(pause, [&net]));
    match begun {
        Ok(kernel) => live(&context, &kernel, plan, (net, None), pause),
        Err(failure) => context.fail(None, &failure),
    }
}

/// Creates `pause` with its own user namespace in these `namespaces`, and reports it. Outside, it creates the empty root that
/// `pause` is born in: a mount namespace owned by the host, where those users have no privileges, and without any mount of the
/// host.
pub fn bearer(
    context: ChildContext<'_>,
    plan: &SandboxPlan,
    namespaces: u64,
    net: Option<OwnedFd>,
    pause: &OwnedFd,
) -> Infallible {
    let kernel = match context.begin(None, &kept(pause, [&net])) {
        Ok(kernel) => kernel,
        Err(failure) => context.fail(None, &failure),
    };
    match bear(&context, &kernel, plan, namespaces, net, pause) {
        Ok(()) => process::exit(0),
        Err(failure) => context.fail(Some(&kernel), &failure),
    }
}

fn bear(
    context: &ChildContext<'_>,
    kernel: &Kernel,
    plan: &SandboxPlan,
    namespaces: u64,
    net: Option<OwnedFd>,
    pause: &OwnedFd,
) -> Result<(), Failure> {
    let proc = (!plan.sysctls.is_empty()).then(|| kernel.open_path(Path::new("/proc"))).transpose()?;
    empty_root(kernel)?;
    // Buffered records must not be written by both.
    kernel.journal.flush();
    let life = |_| {
        let begun = context.keep(&kept(pause, [&net, &proc]));
        match begun {
            Ok(kernel) => live(context, &kernel, plan, (net, proc), pause),
            Err(failure) => context.fail(None, &failure),
        }
    };
    let (pid, pidfd) =
        fork::clone3_of_nobody(context.child.forker(), kernel, process::PARENT | namespaces, None, "pause", life)?;
    kernel.journal.flush();
    let told = io::send(context.sync.as_fd(), &newborn(pid), &[pidfd.as_fd()]);
    told.map(drop).map_err(|e| refused(format!("sendmsg: {e}")))
}

fn kept<'a, const N: usize>(pause: &'a OwnedFd, more: [&'a Option<OwnedFd>; N]) -> Vec<BorrowedFd<'a>> {
    std::iter::once(pause).chain(more.into_iter().flatten()).map(|fd| fd.as_fd()).collect()
}

/// `net` is the node's network namespace, `proc` the machine's procfs if it is not at `/proc`.
fn live(
    context: &ChildContext<'_>,
    kernel: &Kernel,
    plan: &SandboxPlan,
    (net, proc): (Option<OwnedFd>, Option<OwnedFd>),
    pause: &OwnedFd,
) -> Infallible {
    // A privileged process maps our ids.
    if plan.users.is_some() && !io::await_byte(context.sync.as_fd()) {
        process::exit(1);
    }
    own::new_session();
    let failure = match prepare(kernel, plan, net, proc) {
        Ok(()) => {
            let error = kernel.execve_fd(
                pause.as_fd(),
                "pause",
                &allow_only(&CALLS, (libc::SYS_prctl, libc::PR_SET_NAME as u64)),
            );
            Failure::new(FailureKind::Kernel, format!("execveat(pause): {error}"))
        }
        Err(e) => e.into(),
    };
    context.fail(Some(kernel), &failure)
}

fn prepare(kernel: &Kernel, plan: &SandboxPlan, net: Option<OwnedFd>, proc: Option<OwnedFd>) -> SysResult<()> {
    if plan.users.is_some() {
        kernel.set_user(0, 0, &[])?;
    }
    if let Some(net) = net {
        kernel.setns(net.as_fd(), process::NEWNET, "of the node")?;
    }
    if plan.new_net {
        kernel.loopback_up()?;
    }
    if !plan.hostname.is_empty() {
        kernel.sethostname(&plan.hostname)?;
    }
    for (file, value) in &plan.sysctls {
        match &proc {
            Some(proc) => kernel.write_proc_of(proc.as_fd(), Path::new(file), value)?,
            None => kernel.write_proc(Path::new(file), value)?,
        }
    }
    // Its /proc/PID/root is accessible to the containers if they share its PID namespace or are in the host's: leave nothing there.
    // With a user namespace it was born like this.
    if plan.users.is_none() {
        empty_root(kernel)?;
    }
    kernel.bound_capabilities(0)?;
    // The last id, if there are fewer.
    let user = plan.users.map_or(PAUSE_USER, |users| PAUSE_USER.min(users.size.saturating_sub(1)));
    kernel.set_user(user, user, &[])?;
    kernel.set_capabilities(&CapSets::default())?;
    kernel.no_new_privs()
}

/// The remaining calls: executing `pause`, everything that `pause` does, and reporting a failure. Taking it over gains nothing that
/// a container is refused.
const CALLS: [libc::c_long; 8] = [
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_restart_syscall,
    libc::SYS_wait4,
    libc::SYS_execveat,
    libc::SYS_exit_group,
    // If it cannot be executed.
    libc::SYS_clock_gettime,
    libc::SYS_sendmsg,
];

/// Makes `/` an empty read-only tmpfs, in a new mount namespace.
pub(super) fn empty_root(kernel: &Kernel) -> SysResult<()> {
    kernel.unshare(process::NEWNS)?;
    kernel.propagate_root(mount::PRIVATE)?;
    let attrs = mount::ATTR_RDONLY | mount::ATTR_NODEV | mount::ATTR_NOSUID | mount::ATTR_NOEXEC;
    let root = kernel.new_fs("tmpfs", &[("size", Some("4k"))], attrs)?;
    kernel.attach_at(root.as_fd(), Path::new("/proc"))?;
    kernel.pivot_root(root.as_fd())
}

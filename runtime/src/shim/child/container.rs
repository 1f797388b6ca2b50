//! The start of a container's first process: its root is built outside, then it is born inside, and waits to be started.

use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::identity::{For, Mounts};
use super::process::{Entry, enter_given, enter_new_pids};
use super::root::Root;
use super::users::{Users, host_id};
use super::{BORN, ChildContext, adjust_oom_score, identity, newborn, refused, setup, stdio};
use crate::fork;
use crate::protocol::{ContainerPlan, Failure};
use podwright_sys::fs::clean;
use podwright_sys::{Kernel, io, mount, process};

/// What a container uses beside its own namespaces.
pub struct Home<'a> {
    /// `pause`, and which of its namespaces are shared.
    pub pause: BorrowedFd<'a>,
    pub shared: u64,
    pub pids: Pids<'a>,
    /// Its user namespace, if it has one.
    pub users: Option<Users<'a>>,
}

impl Home<'_> {
    /// The process in whose PID namespace the container runs, if it is not a new one.
    fn companion(&self) -> Option<BorrowedFd<'_>> {
        match self.pids {
            Pids::Of(target) => Some(target),
            Pids::New | Pids::Shims => None,
        }
    }
}

/// The PID namespace of a container.
#[derive(Clone, Copy)]
pub enum Pids<'a> {
    /// A new one.
    New,
    /// The one of this process.
    Of(BorrowedFd<'a>),
    /// The shim's: the machine's.
    Shims,
}

/// The builder: joins the sandbox's namespaces, builds the root and enters it, has the process born, completes what needs the
/// process's PID namespace, and reports it.
pub fn container(context: ChildContext<'_>, plan: &ContainerPlan, home: &Home<'_>) -> Infallible {
    let mut also = vec![home.pause];
    also.extend(home.companion());
    also.extend(home.users.map(|users| users.namespace));
    let range = home.users.map(|users| users.range);
    let user = (host_id(range, plan.process.uid), host_id(range, plan.process.gid));
    let kernel = match context.begin(Some(user), &also) {
        Ok(kernel) => kernel,
        Err(failure) => context.fail(None, &setup(failure)),
    };
    if let Err(failure) = build(&context, &kernel, plan, home) {
        context.fail(Some(&kernel), &setup(failure));
    }
    process::exit(0)
}

fn build(context: &ChildContext<'_>, kernel: &Kernel, plan: &ContainerPlan, home: &Home<'_>) -> Result<(), Failure> {
    if home.shared != 0 {
        kernel.setns(home.pause, home.shared, "of pause")?;
    }
    kernel.unshare(process::NEWCGROUP)?;
    adjust_oom_score(kernel, &plan.process);
    identity::choose_profile(kernel, &plan.process)?;
    let copy = LockedCopy::wanted(kernel, plan, home)?;
    let given = copy.as_ref().map(|copy| copy.theirs.as_fd());
    let mut root = Root::build(kernel, context.child, plan, home.users)?;
    root.make_folder(kernel, &clean(&plan.process.cwd))?;
    let master = match plan.process.terminal {
        true => {
            let user = host_id(home.users.map(|users| users.range), plan.process.uid);
            let (master, slave) = stdio::terminal(kernel, root.fd(), &plan.process, user)?;
            stdio::console(kernel, root.fd(), slave.as_fd())?;
            Some(master)
        }
        false => None,
    };
    kernel.pivot_root(root.fd())?;
    // A process that copies this mount namespace, or is about to lose its privileges, must find it complete.
    let (pid, pidfd) = match home.pids {
        Pids::New => {
            let (pid, pidfd) = have_borne(context, kernel, plan, home, given)?;
            finish(kernel, plan, &mut root, Some(pidfd.as_fd()))?;
            copy.iter().try_for_each(|copy| copy.give(kernel))?;
            (pid, pidfd)
        }
        Pids::Of(_) | Pids::Shims => {
            finish(kernel, plan, &mut root, home.companion())?;
            copy.iter().try_for_each(|copy| copy.give(kernel))?;
            have_borne(context, kernel, plan, home, given)?
        }
    };
    kernel.journal.flush();
    let given: Vec<BorrowedFd<'_>> = std::iter::once(pidfd.as_fd()).chain(master.as_ref().map(|m| m.as_fd())).collect();
    let told = io::send(context.sync.as_fd(), &newborn(pid), &given);
    told.map(drop).map_err(|e| refused(format!("sendmsg: {e}")))
}

/// CAP_SYS_ADMIN, which allows a container to mount and unmount.
const SYS_ADMIN: u64 = 1 << 21;

/// A copy of the complete mounts in which all are locked. Used by containers in the host's user namespace that may not mount: those
/// in their own user namespace create a copy owned by it.
struct LockedCopy {
    /// The machine's procfs as a descriptor: `/proc` will be the container's.
    proc: OwnedFd,
    ours: OwnedFd,
    theirs: OwnedFd,
}

impl LockedCopy {
    fn wanted(kernel: &Kernel, plan: &ContainerPlan, home: &Home<'_>) -> Result<Option<LockedCopy>, Failure> {
        let caps = &plan.process.caps;
        if home.users.is_some() || (caps.bounding | caps.permitted) & SYS_ADMIN != 0 {
            return Ok(None);
        }
        let proc = kernel.open_path(Path::new("/proc"))?;
        let (ours, theirs) = kernel.op("socketpair", |a| a, io::message_pair)?;
        Ok(Some(LockedCopy { proc, ours, theirs }))
    }

    /// Creates it, for the process that will enter it.
    fn give(&self, kernel: &Kernel) -> Result<(), Failure> {
        let mounts = kernel.lock_mounts(self.proc.as_fd()).map_err(|e| match e.errno() {
            libc::ENOSPC | libc::EUSERS => {
                refused(format!("the container's mounts cannot be locked: {e} (user.max_user_namespaces)"))
            }
            _ => refused(format!("the container's mounts cannot be locked: {e}")),
        })?;
        let sent = io::send(self.ours.as_fd(), b"m", &[mounts.as_fd()]);
        sent.map(drop).map_err(|e| refused(format!("sendmsg: {e}")))
    }
}

/// Completes the root with the PID namespace of `process`, or else of the shim.
fn finish(
    kernel: &Kernel,
    plan: &ContainerPlan,
    root: &mut Root<'_>,
    process: Option<BorrowedFd<'_>>,
) -> Result<(), Failure> {
    root.complete(kernel, process)?;
    let attrs = [(plan.root.readonly, mount::ATTR_RDONLY), (plan.root.nodev, mount::ATTR_NODEV)];
    let attrs: u64 = attrs.iter().filter(|(wanted, _)| *wanted).map(|(_, attr)| attr).sum();
    Ok(kernel.set_attrs(root.fd(), false, attrs, 0, 0)?)
}

/// Has the entrant create the process, and receives its report.
fn have_borne(
    context: &ChildContext<'_>,
    kernel: &Kernel,
    plan: &ContainerPlan,
    home: &Home<'_>,
    given: Option<BorrowedFd<'_>>,
) -> Result<(u32, OwnedFd), Failure> {
    let pair = || -> Result<(OwnedFd, OwnedFd), std::io::Error> {
        let (ours, theirs) = io::message_pair()?;
        io::tell_senders(ours.as_fd())?;
        Ok((ours, theirs))
    };
    let (ours, theirs) = kernel.op("socketpair", |a| a, pair)?;
    kernel.journal.flush();
    let life = |_| entrant(context, plan, home, theirs.as_fd(), given);
    let (entrant, _pidfd) = fork::clone3(context.child.forker(), kernel, process::PARENT, None, "entrant", life)?;
    drop(theirs);
    hear(ours.as_fd(), entrant).map_err(|e| refused(format!("the container's first process was not born: {e}")))
}

/// Waits for a message of the entrant only.
fn hear(socket: BorrowedFd<'_>, entrant: u32) -> Result<(u32, OwnedFd), std::io::Error> {
    loop {
        io::poll(&mut [io::PollFd::new(socket, libc::POLLIN)], -1)?;
        let (mut bytes, mut fds) = ([0u8; 8], Vec::new());
        match io::receive_from(socket, &mut bytes, &mut fds) {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            // It failed, and has reported to the shim; or it was killed.
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => process::exit(1),
            Err(e) => return Err(e),
            Ok((5, sender)) if sender == entrant && bytes[0] == BORN && fds.len() == 1 => {
                let pid = u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
                return Ok((pid, fds.remove(0)));
            }
            Ok(_) => {}
        }
    }
}

/// The entrant: has the process born, directly if it is alone in its PID namespace.
fn entrant(
    context: &ChildContext<'_>,
    plan: &ContainerPlan,
    home: &Home<'_>,
    report: BorrowedFd<'_>,
    given: Option<BorrowedFd<'_>>,
) -> Infallible {
    let mut also = vec![report];
    also.extend(given);
    also.extend(home.companion());
    also.extend(home.users.map(|users| users.namespace));
    let mut kernel = match context.keep(&also) {
        Ok(kernel) => kernel,
        Err(failure) => context.fail(None, &setup(failure)),
    };
    if let Err(failure) = enter(context, &mut kernel, plan, home, (report, given)) {
        context.fail(Some(&kernel), &setup(failure));
    }
    process::exit(0)
}

fn enter(
    context: &ChildContext<'_>,
    kernel: &mut Kernel,
    plan: &ContainerPlan,
    home: &Home<'_>,
    (report, given): (BorrowedFd<'_>, Option<BorrowedFd<'_>>),
) -> Result<(), Failure> {
    let plan = &plan.process;
    identity::limit(kernel, plan)?;
    let (pid, pidfd) = match (home.pids, home.users) {
        (Pids::New, Some(users)) => context.bear_alone_among(kernel, plan, users, report)?,
        (Pids::New, None) => {
            let mounts = if given.is_some() { Mounts::Given } else { Mounts::Entered };
            let entered = enter_new_pids(kernel, plan)?;
            identity::take(kernel, plan, For::Birth(mounts))?;
            context.hush(kernel);
            *kernel = context.keep(&std::iter::once(report).chain(given).collect::<Vec<_>>())?;
            context.bear_alone(kernel, plan, entered, mounts, given)?
        }
        (Pids::Of(_) | Pids::Shims, users) => {
            given.map_or(Ok(()), |given| enter_given(kernel, given))?;
            let enter = |kernel: &Kernel| match users {
                // The user namespace first, so that it owns what is created then.
                Some(users) => {
                    users.enter(kernel)?;
                    Ok(kernel.unshare(process::NEWNS | process::NEWCGROUP)?)
                }
                None => Ok(()),
            };
            let entry = Entry { enter, needs: users.map(|users| users.namespace).into_iter().collect() };
            context.bear_among_others(kernel, plan, home.companion(), entry, &[report])?
        }
    };
    kernel.journal.flush();
    let told = io::send(report, &newborn(pid), &[pidfd.as_fd()]);
    told.map(drop).map_err(|e| refused(format!("sendmsg: {e}")))
}

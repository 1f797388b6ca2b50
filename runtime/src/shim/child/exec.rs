//! The start of an exec'd process: the entrant stays outside, and its bearer joins the container's namespaces and drops its
//! privileges.

use std::convert::Infallible;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::process::Entry;
use super::users::{Users, host_id};
use super::{ChildContext, adjust_oom_score, identity, newborn, own_root, refused, setup, stdio};
use crate::protocol::{ExecPlan, Failure};
use podwright_sys::{Kernel, io, process};

/// `target` is the container's first process, `namespaces` those that it does not share with the shim; its user namespace is
/// `users`.
pub fn exec(
    context: ChildContext<'_>,
    plan: &ExecPlan,
    target: BorrowedFd<'_>,
    namespaces: u64,
    users: Option<Users<'_>>,
) -> Infallible {
    let range = users.map(|users| users.range);
    let namespaces = namespaces | users.map_or(0, |_| process::NEWUSER);
    let user = (host_id(range, plan.process.uid), host_id(range, plan.process.gid));
    let mut kernel = match context.begin(Some(user), &[target]) {
        Ok(kernel) => kernel,
        Err(failure) => context.fail(None, &setup(failure)),
    };
    if let Err(failure) = enter(&context, &mut kernel, plan, target, namespaces) {
        context.fail(Some(&kernel), &setup(failure));
    }
    process::exit(0)
}

fn enter(
    context: &ChildContext<'_>,
    kernel: &mut Kernel,
    plan: &ExecPlan,
    target: BorrowedFd<'_>,
    namespaces: u64,
) -> Result<(), Failure> {
    let plan = &plan.process;
    adjust_oom_score(kernel, plan);
    identity::choose_profile(kernel, plan)?;
    identity::limit(kernel, plan)?;
    // In the descriptor table shared with the bearer, which places there what it opens in the container.
    let place = || std::io::stdin().as_fd().try_clone_to_owned();
    let master = plan.terminal.then(place).transpose().map_err(|e| refused(format!("dup: {e}")))?;
    let enter = |kernel: &Kernel| -> Result<(), Failure> {
        kernel.setns(target, namespaces & !process::NEWPID, "of the container")?;
        if namespaces & process::NEWUSER != 0 {
            kernel.set_user(0, 0, &[])?;
        }
        let Some(place) = &master else { return Ok(()) };
        let (opened, _) = stdio::terminal(kernel, own_root(kernel)?.as_fd(), plan, plan.uid)?;
        io::dup_to(opened.as_fd(), place.as_raw_fd()).map_err(|e| refused(format!("dup2: {e}")))
    };
    let pids = (namespaces & process::NEWPID != 0).then_some(target);
    // The master belongs to the container's own terminal.
    let kept: Vec<BorrowedFd<'_>> = master.iter().map(|m| m.as_fd()).collect();
    let entry = Entry { enter, needs: vec![target] };
    let (pid, pidfd) = context.bear_among_others(kernel, plan, pids, entry, &kept)?;
    kernel.journal.flush();
    let given: Vec<BorrowedFd<'_>> = std::iter::once(pidfd.as_fd()).chain(master.as_ref().map(|m| m.as_fd())).collect();
    let told = io::send(context.sync.as_fd(), &newborn(pid), &given);
    told.map(drop).map_err(|e| refused(format!("sendmsg: {e}")))
}

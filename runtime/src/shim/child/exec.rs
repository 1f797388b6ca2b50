//! The life of an exec'd process: out here join the container's namespaces, become what it may be, and be born inside.

use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd};

use super::users::{Users, host_id};
use super::{ChildContext, adjust_oom_score, identity, newborn, own_root, setup, stdio};
use crate::protocol::{ExecPlan, Failure};
use podwright_sys::{Kernel, io, process};

/// `target` is the container's first process, `namespaces` which of its own it does not share with the shim; its user namespace
/// is that of `users`.
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
    kernel.setns(target, namespaces & !process::NEWPID, "of the container")?;
    if namespaces & process::NEWUSER != 0 {
        kernel.set_user(0, 0, &[])?;
    }
    let master = match plan.terminal {
        true => Some(stdio::terminal(kernel, own_root(kernel)?.as_fd(), plan, plan.uid)?.0),
        false => None,
    };
    let pids = (namespaces & process::NEWPID != 0).then_some(target);
    // The master is the container's own terminal.
    let kept: Vec<BorrowedFd<'_>> = master.iter().map(|m| m.as_fd()).collect();
    let (pid, pidfd) = context.bear_among_others(kernel, plan, pids, &kept)?;
    kernel.journal.flush();
    let given: Vec<BorrowedFd<'_>> = std::iter::once(pidfd.as_fd()).chain(master.as_ref().map(|m| m.as_fd())).collect();
    let told = io::send(context.sync.as_fd(), &newborn(pid), &given);
    told.map(drop).map_err(|e| super::refused(format!("sendmsg: {e}")))
}

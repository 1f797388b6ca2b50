//! Creates a sandbox: its namespaces, and `pause`, which holds them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use podwright_journal::{Cause, Clock, JournalWriter};

use super::child::{self, ChildContext, GO, users};
use super::container::{Newborn, Requester, Said, Sync};
use super::fork;
use super::requests::{Outcome, open_cgroup, pair};
use super::{Sandbox, Shim};
use crate::protocol::{Failure, FailureKind, SandboxPlan};
use podwright_sys::io::{self, PollFd};
use podwright_sys::process::{self, NEWIPC, NEWNET, NEWPID, NEWUSER, NEWUTS};
use podwright_sys::users::IdRange;
use podwright_sys::{Kernel, kept};

/// Time limit for the birth of `pause`: no one else is answered meanwhile.
const BORNE: Duration = Duration::from_secs(8);

impl Shim {
    pub(super) fn make_sandbox(
        &mut self,
        requester: Requester,
        cause: &Cause,
        plan: SandboxPlan,
        mut fds: Vec<OwnedFd>,
    ) -> Outcome {
        if let Some(sandbox) = &mut self.sandbox {
            if sandbox.sync.is_some() {
                sandbox.requester = Some(requester);
            } else {
                self.reply_state(requester);
            }
            return Ok(None);
        }
        self.write_to(plan.journal.as_deref());
        self.name.begin(plan.run.as_deref());
        let journal = self.journal.because(cause.clone());
        let kernel = Kernel::new(&journal);
        if let Some(shm) = &plan.shm {
            kept::mount_shm(&kernel, shm, users::host_id(plan.users, 0))?;
        }
        let net = fds.pop().filter(|_| plan.join_net);
        let cgroup = open_cgroup(&kernel, &plan.cgroup)?;
        let (ours, theirs) = pair(&kernel)?;
        let forker = self.forker()?;
        let context = |child| ChildContext {
            child,
            journal: journal.clone(),
            sync: theirs,
            stdio: [None, None, None],
            null: self.null.as_fd(),
            seccomp: &[],
        };
        let (pause, namespaces) = (&self.pause, born_with(&plan));
        let mut sync = Sync::new(ours);
        let (pid, pidfd, users) = match plan.users {
            None => {
                let life = |child| child::sandbox::sandbox(context(child), &plan, net, pause);
                let (pid, pidfd) = fork::clone3(forker, &kernel, namespaces, Some(cgroup.as_fd()), "pause", life)?;
                (pid, pidfd, None)
            }
            Some(range) => {
                // Inspecting `pause` requires privileges over the owner of its program. Its containers' bearers are in its user
                // namespace, and have them.
                kernel.chown_in(pause.as_fd(), "", range.host, range.host)?;
                let life = |child| child::sandbox::bearer(context(child), &plan, namespaces, net, pause);
                let bearer = fork::clone3(forker, &kernel, 0, Some(cgroup.as_fd()), "bearer of pause", life)?;
                let Newborn { pid, pidfd, .. } = await_pause(&kernel, bearer, &mut sync, &journal)?;
                let users = map_users(&kernel, pid, range, sync.socket.as_fd()).inspect_err(|_| {
                    let _ = kernel.kill(pidfd.as_fd(), libc::SIGKILL, "pause");
                })?;
                (pid, pidfd, Some(users))
            }
        };
        let (sync, requester) = (Some(sync), Some(requester));
        self.sandbox = Some(Sandbox { plan, journal, pid, pidfd, users, sync, requester, alive: true });
        Ok(None)
    }
}

/// The namespaces created together with `pause`.
fn born_with(plan: &SandboxPlan) -> u64 {
    let flags = [
        (plan.new_net, NEWNET),
        (plan.new_ipc, NEWIPC),
        (plan.new_pid, NEWPID),
        (!plan.hostname.is_empty(), NEWUTS),
        (plan.users.is_some(), NEWUSER),
    ];
    flags.iter().filter(|(wanted, _)| *wanted).map(|(_, flag)| flag).sum()
}

/// Waits until `pause` is born: this takes a few system calls of the bearer, which no container can influence.
fn await_pause(
    kernel: &Kernel,
    (bearer, pidfd): (u32, OwnedFd),
    sync: &mut Sync,
    journal: &JournalWriter,
) -> Result<Newborn, Failure> {
    let now_ms = || Clock::read().monotonic_ns / 1_000_000;
    let deadline = now_ms().saturating_add(BORNE.as_millis() as u64);
    let failed = |why: &str| Err(Failure::new(FailureKind::Kernel, why));
    loop {
        match sync.listen(journal) {
            Said::Born(newborn) if newborn.sender == bearer => return Ok(newborn),
            Said::Born(_) | Said::Recorded => {}
            Said::Failed(failure) => return Err(failure),
            Said::Closed => return failed("pause was not born: who was to bear it died"),
            Said::Nothing => {
                let left = deadline.saturating_sub(now_ms());
                if left == 0 {
                    // A late child exits by itself: it will never be told to go on.
                    let _ = kernel.kill(pidfd.as_fd(), libc::SIGKILL, "bearer of pause");
                    return failed("pause was not born in time");
                }
                let polled = io::poll(&mut [PollFd::new(sync.socket.as_fd(), libc::POLLIN)], left as i32);
                polled.map_err(|e| Failure::new(FailureKind::Kernel, format!("poll: {e}")))?;
            }
        }
    }
}

/// Maps the ids of `pause`, lets it go on, and returns its user namespace.
fn map_users(kernel: &Kernel, pause: u32, range: IdRange, sync: BorrowedFd<'_>) -> Result<OwnedFd, Failure> {
    users::map(kernel, pause, range)?;
    let namespace =
        kernel.op("open", |a| a.text("the user namespace of pause"), || process::namespace_of(pause, "user"))?;
    kernel.op("sendmsg", |a| a.text("the users of pause are mapped"), || io::send(sync, GO, &[]))?;
    Ok(namespace)
}

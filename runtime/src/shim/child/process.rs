//! The process itself, from its birth inside a container to its execve.

use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use podwright_journal::Clock;

use super::executable::{self, Program};
use super::identity::{self, For, Mounts, NotEntered};
use super::users::Users;
use super::{ChildContext, refused, setup, stdio};
use crate::fork;
use crate::protocol::{Failure, ProcessPlan};
use podwright_sys::birth::Born;
use podwright_sys::credentials::read_program;
use podwright_sys::{Kernel, io, own, process};

/// Waits for the builder's locked copy of the mounts, and enters it at its root.
pub(super) fn enter_given(kernel: &Kernel, from: BorrowedFd<'_>) -> Result<(), Failure> {
    let receive = || {
        let (mut byte, mut fds) = ([0u8; 1], Vec::new());
        io::receive(from, &mut byte, &mut fds)?;
        fds.pop().ok_or_else(|| std::io::Error::other("no descriptor came"))
    };
    let mounts = kernel.op("recvmsg", |a| a.text("the locked mounts"), receive)?;
    kernel.setns(mounts.as_fd(), process::NEWNS, "with locked mounts")?;
    // A copy of it, also locked, but owned by the host: a process with the id of the other copy's owner has all privileges over
    // that one, including mounting.
    Ok(kernel.unshare(process::NEWNS)?)
}

/// The bearer's first step, with the caller's privileges, and the descriptors that it needs.
pub(super) struct Entry<'a, F> {
    pub enter: F,
    pub needs: Vec<BorrowedFd<'a>>,
}

impl ChildContext<'_> {
    /// Creates the process beside the caller, which has prepared its credentials for this ([`For::Birth`]), in a new PID namespace:
    /// no other process can see it yet, so it drops its last privileges when told to go on. Returns its pid and pidfd. `entered`:
    /// whether the caller is in its working directory already.
    pub(super) fn bear_alone(
        &self,
        kernel: &Kernel,
        plan: &ProcessPlan,
        entered: bool,
        mounts: Mounts,
        given: Option<BorrowedFd<'_>>,
    ) -> Result<(u32, OwnedFd), Failure> {
        // Buffered records must not be written by both.
        kernel.journal.flush();
        let life = |_| self.live_alone(plan, entered, mounts, given);
        Ok(fork::clone3(self.child.forker(), kernel, process::PARENT, None, &plan.args[0], life)?)
    }

    /// [`ChildContext::bear_alone`] for a process with a user namespace, which an intermediate process enters and creates it in. The caller keeps `report`, and stays outside with its privileges: the kernel counts descriptors in flight per host user, and inside a user namespace refuses to send one when others of that user have sent many.
    pub(super) fn bear_alone_among(
        &self,
        kernel: &mut Kernel,
        plan: &ProcessPlan,
        users: Users<'_>,
        report: BorrowedFd<'_>,
    ) -> Result<(u32, OwnedFd), Failure> {
        let become_it = |kernel: &mut Kernel| -> Result<bool, Failure> {
            // First, so that the user namespace owns what is created now.
            users.enter(kernel)?;
            let entered = enter_new_pids(kernel, plan)?;
            identity::take(kernel, plan, For::Birth(Mounts::Own))?;
            self.hush(kernel);
            *kernel = self.keep(&[report])?;
            kernel.journal.flush();
            Ok(entered)
        };
        let between = || self.between(&[report, users.namespace], become_it);
        self.bear_by_another(kernel, plan, &[report], between, |entered| {
            match self.live_alone(plan, entered, Mounts::Own, None) {}
        })
    }

    /// The steps of a process that is alone in its PID namespace.
    fn live_alone(
        &self,
        plan: &ProcessPlan,
        entered: bool,
        mounts: Mounts,
        given: Option<BorrowedFd<'_>>,
    ) -> Infallible {
        let kernel = match self.keep(given.as_slice()) {
            Ok(kernel) => kernel,
            Err(failure) => self.fail(None, &setup(failure)),
        };
        if let Err(failure) = identity::keep(&kernel, plan, For::Itself(mounts)) {
            self.fail(Some(&kernel), &setup(failure));
        }
        self.await_start();
        let failure = match prepare(&kernel, plan, entered, (mounts, given), self.seccomp) {
            Ok(program) => execute(&kernel, plan, program),
            Err(failure) => failure,
        };
        self.fail(Some(&kernel), &setup(failure))
    }

    /// Creates the process beside the caller in the PID namespace of `pids` (the shim's, if none), where others may trace it: so it
    /// has only its final privileges from the start. Joining that namespace cannot be undone, loaded filters may forbid reporting,
    /// and inside a user namespace sending a descriptor may be refused: so an intermediate process does this. The caller keeps
    /// `kept`.
    pub(super) fn bear_among_others<'a>(
        &self,
        kernel: &mut Kernel,
        plan: &ProcessPlan,
        pids: Option<BorrowedFd<'a>>,
        entry: Entry<'a, impl FnOnce(&Kernel) -> Result<(), Failure>>,
        kept: &[BorrowedFd<'a>],
    ) -> Result<(u32, OwnedFd), Failure> {
        let become_it = |kernel: &mut Kernel| -> Result<Program, Failure> {
            (entry.enter)(kernel)?;
            if let Some(pids) = pids {
                kernel.setns(pids, process::NEWPID, "for the process")?;
            }
            let entered = match identity::enter_folder(kernel, &plan.cwd) {
                Err(e) if e.is_denied() => false,
                entered => entered.map(|()| true)?,
            };
            identity::take(kernel, plan, For::Itself(Mounts::Entered))?;
            enter_folder(kernel, plan, entered)?;
            let filters = read_programs(self.seccomp)?;
            self.hush(kernel);
            *kernel = self.keep_without_filters(kept)?;
            own::close_on_exec_from(3).map_err(|e| refused(format!("close_range: {e}")))?;
            let program = executable::program(plan);
            identity::confine(kernel, plan, &filters)?;
            kernel.journal.flush();
            Ok(program)
        };
        let also: Vec<BorrowedFd<'_>> = kept.iter().copied().chain(pids).chain(entry.needs).collect();
        let between = || self.between(&also, become_it);
        self.bear_by_another(kernel, plan, kept, between, |program| {
            // What a filter prevents from being closed is closed by execve.
            let kernel = self
                .keep_without_filters(&[])
                .unwrap_or_else(|_| Kernel::new(&podwright_journal::JournalWriter::none()));
            self.await_start();
            let failure = match enter_session(&kernel, plan).and(program) {
                Ok(program) => execute(&kernel, plan, program),
                Err(failure) => failure,
            };
            self.fail(Some(&kernel), &setup(failure))
        })
    }

    /// Has an intermediate process create the process: [`fork::bear_by_another`]. The caller keeps `kept`.
    fn bear_by_another<T>(
        &self,
        kernel: &mut Kernel,
        plan: &ProcessPlan,
        kept: &[BorrowedFd<'_>],
        between: impl FnOnce() -> Option<T>,
        life: impl FnOnce(T),
    ) -> Result<(u32, OwnedFd), Failure> {
        let begun = Clock::read();
        self.hush(kernel);
        let born = fork::bear_by_another(self.child, between, life).map_err(|e| refused(format!("clone3: {e}")))?;
        let mut kept = kept.to_vec();
        if let Born::Process(_, pidfd) = &born {
            kept.push(pidfd.as_fd());
        }
        *kernel = self.keep_without_filters(&kept)?;
        let profile = if self.seccomp.is_empty() { "" } else { NEEDED };
        match born {
            Born::Process(pid, pidfd) => {
                kernel.journal.record(begun, "clone", &plan.args[0], None);
                Ok((pid, pidfd))
            }
            Born::Refused(e) => Err(refused(format!("clone: {e}{profile}"))),
            Born::Lost => Err(refused(format!("killed before it was born{profile}"))),
            Born::Failed => process::exit(1),
        }
    }

    /// The intermediate process: takes on the process's final state, except for its PID namespace, which only its child is in.
    /// `None`: it failed, and has reported why.
    fn between<T>(
        &self,
        also: &[BorrowedFd<'_>],
        become_it: impl FnOnce(&mut Kernel) -> Result<T, Failure>,
    ) -> Option<T> {
        let mut kernel = match self.keep(also) {
            Ok(kernel) => kernel,
            Err(failure) => {
                self.report(None, &setup(failure));
                return None;
            }
        };
        match become_it(&mut kernel) {
            Ok(taken) => Some(taken),
            Err(failure) => {
                self.report(Some(&kernel), &setup(failure));
                None
            }
        }
    }

    fn await_start(&self) {
        // The shim died, or gave up: we will never be started.
        if !io::await_byte(self.sync.as_fd()) {
            process::exit(1);
        }
    }
}

/// Creates a PID namespace for the caller's next child, and enters the process's working directory; returns whether that succeeded.
pub(super) fn enter_new_pids(kernel: &Kernel, plan: &ProcessPlan) -> Result<bool, Failure> {
    // Now: the required capabilities are dropped before the birth.
    kernel.unshare(process::NEWPID)?;
    match identity::enter_folder(kernel, &plan.cwd) {
        Err(e @ NotEntered::Outside) => Err(e.into()),
        // It may be on a later mount: the process tries again, and reports a failure.
        entered => Ok(entered.is_ok()),
    }
}

/// A hint for administrators whose profile is too strict.
const NEEDED: &str = ": a seccomp profile must allow clone(2), read(2) and execve(2), and without no_new_privs capset(2) and prctl(2) too";

/// Everything between the start of a process that was born alone and its execve.
fn prepare(
    kernel: &Kernel,
    plan: &ProcessPlan,
    entered: bool,
    (mounts, given): (Mounts, Option<BorrowedFd<'_>>),
    filters: &[OwnedFd],
) -> Program {
    let mut entered = entered;
    match (mounts, given) {
        (Mounts::Own, _) => kernel.unshare(process::NEWNS | process::NEWCGROUP)?,
        (Mounts::Given, Some(given)) => {
            enter_given(kernel, given)?;
            // Enters their root: a folder that root was in already requires a privilege of root.
            entered = match entered.then(|| identity::enter_folder(kernel, &plan.cwd)) {
                Some(Err(e @ NotEntered::Outside)) => return Err(e.into()),
                there => matches!(there, Some(Ok(()))),
            };
            identity::keep(kernel, plan, For::Itself(Mounts::Entered))?;
            if plan.terminal {
                stdio::find_terminal_again(kernel);
            }
        }
        (Mounts::Given, None) | (Mounts::Entered, _) => {}
    }
    enter_session(kernel, plan)?;
    enter_folder(kernel, plan, entered)?;
    own::close_on_exec_from(3).map_err(|e| refused(format!("close_range: {e}")))?;
    // Before the filters: they need not allow these calls.
    let program = executable::program(plan);
    identity::confine(kernel, plan, &read_programs(filters)?)?;
    program
}

/// Returns only with the failure.
fn execute(kernel: &Kernel, plan: &ProcessPlan, (path, env): (std::path::PathBuf, Vec<String>)) -> Failure {
    let error = kernel.execve(&path, &plan.args, &env);
    executable::failure(&plan.args[0], &error)
}

/// Makes stdin the controlling terminal of a new session.
fn enter_session(kernel: &Kernel, plan: &ProcessPlan) -> Result<(), Failure> {
    own::new_session();
    if plan.terminal {
        kernel.control_tty(std::io::stdin().as_fd())?;
    }
    Ok(())
}

/// Enters the working directory with the process's own privileges. `entered`: root is there already.
fn enter_folder(kernel: &Kernel, plan: &ProcessPlan, entered: bool) -> Result<(), Failure> {
    match identity::enter_folder(kernel, &plan.cwd) {
        // A folder accessible only to root may be any user's working directory.
        Err(e) if e.is_denied() && entered => prove_inside(),
        entered => Ok(entered?),
    }
}

fn prove_inside() -> Result<(), Failure> {
    match own::working_directory() {
        Ok(path) if path.first() == Some(&b'/') => Ok(()),
        _ => Err(NotEntered::Outside.into()),
    }
}

fn read_programs(filters: &[OwnedFd]) -> Result<Vec<Vec<u8>>, Failure> {
    let programs = filters.iter().map(|filter| read_program(filter.as_fd()));
    programs.collect::<Result<_, _>>().map_err(|e| refused(format!("a seccomp filter: {e}")))
}

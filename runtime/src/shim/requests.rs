//! The shim's request handlers, one method per request. Long operations are answered later, by the loop.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use podwright_journal::{Clock, JournalWriter};

use super::child::container::{Home, Pids};
use super::child::{self, ChildContext};
use super::container::{Container, Exec, Phase, Requester, Sync, birth_deadline};
use super::fork::{self, Forker};
use super::log::Log;
use super::stdio::Stdio;
use super::{Sandbox, Shim};
use crate::protocol::PidMode;
use crate::protocol::{Answer, Call, ContainerPlan, ExecPlan, Failure, FailureKind, Request, SandboxPlan};
use podwright_sys::process::{self, NEWCGROUP, NEWIPC, NEWNET, NEWNS, NEWPID, NEWUTS};
use podwright_sys::{self as sys, Kernel, SysResult, io, own};

pub(super) type Outcome = Result<Option<Answer>, Failure>;

impl Shim {
    /// Handles one request. `None` means that the loop answers when it is done.
    pub(super) fn handle(&mut self, peer: u64, request: Request, fds: Vec<OwnedFd>) {
        let requester = Requester { peer, id: request.id };
        let journal = self.journal.because(request.cause.clone());
        let done = match request.call {
            Call::State => {
                self.keep_name();
                return self.reply_state(requester);
            }
            Call::Sandbox(plan) => self.make_sandbox(requester, &request.cause, *plan, fds),
            Call::Create(plan) => self.create(requester, journal, *plan, fds),
            Call::Start { key } => self.start(requester, journal, &key),
            Call::Signal { key, signal } => self.signal(&journal, &key, signal),
            Call::Kill { key } => self.kill(&journal, &key),
            Call::Remove { key } => self.remove(requester, &key),
            Call::Exec(plan) => self.exec(requester, journal, *plan, fds),
            Call::ExecSignal { exec, signal } => self.signal_exec(exec, signal),
            Call::Attach { key, stdin } => self.attach(&key, stdin, fds),
            Call::Resize { key, columns, rows } => self.resize(&key, (columns, rows)),
            Call::Shutdown => self.shut_down(requester, &journal),
        };
        match done {
            Ok(Some(answer)) => self.reply(requester, Ok(answer), &[]),
            Ok(None) => {}
            Err(failure) => self.reply(requester, Err(failure), &[]),
        }
    }

    /// The complete state, and the sandbox's network namespace.
    pub(super) fn reply_state(&mut self, requester: Requester) {
        let state = self.state();
        let net = (state.sandbox != 0).then(|| process::namespace_of(state.sandbox, "net").ok()).flatten();
        self.reply(requester, Ok(Answer::State(state)), net.as_slice());
    }

    fn create(
        &mut self,
        requester: Requester,
        journal: JournalWriter,
        plan: ContainerPlan,
        programs: Vec<OwnedFd>,
    ) -> Outcome {
        let sandbox = self.ready_sandbox()?;
        if self.slot(|c| c.plan.key == plan.key).is_some() {
            return Err(Failure::new(FailureKind::Conflict, format!("container {} exists", plan.key)));
        }
        let target = plan.pid_of.as_deref().map(|key| self.running(key)).transpose()?.map(|c| &c.pidfd);
        let kernel = Kernel::new(&journal);
        let cgroup = open_cgroup(&kernel, &plan.cgroup)?;
        let (ours, theirs) = pair(&kernel)?;
        let (mut stdio, child_stdio) = pipes(&plan)?;
        if let Some(log) = &plan.log {
            stdio.log = Some(kernel.op("open", |a| a.path(&log.path), || Log::open(log.clone()))?);
        }
        let forker = self.forker()?;
        let context = |child| ChildContext {
            child,
            journal: journal.clone(),
            sync: theirs,
            stdio: child_stdio,
            null: self.null.as_fd(),
            seccomp: &programs,
        };
        let pids = match (plan.pid, target) {
            (PidMode::Container, None) => Pids::New,
            (PidMode::Container, Some(target)) => Pids::Of(target.as_fd()),
            (PidMode::Sandbox, _) => Pids::Of(sandbox.pidfd.as_fd()),
            (PidMode::Host, _) => Pids::Shims,
        };
        let shared = namespaces_of(&sandbox.plan);
        let home = Home { pause: sandbox.pidfd.as_fd(), shared, pids, users: sandbox.users() };
        let life = |child| child::container::container(context(child), &plan, &home);
        let (pid, pidfd) = fork::clone3(forker, &kernel, NEWNS, Some(cgroup.as_fd()), &plan.key, life)?;
        let birth_deadline = birth_deadline(&plan.process);
        let container = Container {
            plan,
            journal,
            pid,
            pidfd,
            born: false,
            sync: Some(Sync::new(ours)),
            phase: Phase::Creating(requester.peer, requester.id),
            stdio,
            started_ns: None,
            failure: None,
            ended: None,
            drain_until: 0,
            committing: false,
            exit: None,
            pending_exit: None,
            starter: None,
            remover: None,
            birth_deadline,
        };
        match self.containers.iter().position(|c| c.is_none()) {
            Some(free) => self.containers[free] = Some(container),
            None => self.containers.push(Some(container)),
        }
        own::trim_heap();
        Ok(None)
    }

    fn start(&mut self, requester: Requester, journal: JournalWriter, key: &str) -> Outcome {
        let container = self.container(key)?;
        match container.phase {
            Phase::Running => return Ok(Some(Answer::Done)),
            Phase::Created if container.ended.is_none() && container.failure.is_none() => {
                container.start(requester, &journal)?
            }
            // Starts once it is born.
            Phase::Creating(..) if container.failure.is_none() && container.starter.is_none() => {
                container.starter = Some(requester);
            }
            _ => return Err(container.no_start()),
        }
        Ok(None)
    }

    fn signal(&mut self, journal: &JournalWriter, key: &str, signal: i32) -> Outcome {
        let container = self.container(key)?;
        if container.ended.is_none() {
            Kernel::new(journal).kill(container.pidfd.as_fd(), signal, key)?;
        }
        Ok(Some(Answer::Done))
    }

    fn kill(&mut self, journal: &JournalWriter, key: &str) -> Outcome {
        let container = self.container(key)?;
        if container.exit.is_none() {
            kill_container(&Kernel::new(journal), container)?;
        }
        Ok(Some(Answer::Done))
    }

    fn remove(&mut self, requester: Requester, key: &str) -> Outcome {
        let Some(slot) = self.slot(|c| c.plan.key == key) else { return Ok(Some(Answer::Done)) };
        if let Some(container) = self.containers[slot].as_mut().filter(|c| c.exit.is_none()) {
            if container.failure.is_none() {
                return Err(Failure::new(FailureKind::Conflict, format!("container {key} has not ended")));
            }
            // One that could not be created exits by itself: then its name is free.
            container.remover = Some(requester);
            return Ok(None);
        }
        self.containers[slot] = None;
        own::trim_heap();
        Ok(Some(Answer::Done))
    }

    fn exec(&mut self, requester: Requester, journal: JournalWriter, plan: ExecPlan, mut fds: Vec<OwnedFd>) -> Outcome {
        self.container(&plan.key)?;
        let container = self.running(&plan.key)?;
        let kernel = Kernel::new(&journal);
        let cgroup = open_cgroup(&kernel, &container.plan.cgroup)?;
        let (ours, theirs) = pair(&kernel)?;
        let programs =
            fds.split_off([plan.stdin, plan.stdout, plan.stderr].iter().filter(|w| **w).count().min(fds.len()));
        let mut given = fds.into_iter();
        let stdio = [plan.stdin, plan.stdout, plan.stderr].map(|wanted| wanted.then(|| given.next()).flatten());
        let (target, pids) = (container.pidfd.as_fd(), container.plan.pid);
        let namespaces = NEWNS | NEWNET | NEWIPC | NEWUTS | NEWCGROUP | if pids == PidMode::Host { 0 } else { NEWPID };
        let own = self.sandbox.as_ref().and_then(|s| s.users());
        let forker = self.forker()?;
        let (records, null) = (journal.clone(), self.null.as_fd());
        let context = |child| ChildContext { child, journal: records, sync: theirs, stdio, null, seccomp: &programs };
        let life = |child| child::exec::exec(context(child), &plan, target, namespaces, own);
        let shown = format!("exec in {}", plan.key);
        let (pid, pidfd) = fork::clone3(forker, &kernel, 0, Some(cgroup.as_fd()), &shown, life)?;
        let deadline_ms = plan.timeout_ms.map(|ms| (Clock::read().monotonic_ns / 1_000_000).saturating_add(ms));
        let exec = plan.exec;
        self.execs.push(Exec {
            exec,
            journal,
            pid,
            pidfd,
            born: false,
            bearer: None,
            ended: None,
            terminal: plan.process.terminal,
            sync: Some(Sync::new(ours)),
            requester,
            master: None,
            failure: None,
            deadline_ms,
            abandoned: false,
            withdrawn: false,
            birth_deadline: birth_deadline(&plan.process),
            birth_ms: plan.process.birth_ms,
        });
        Ok(None)
    }

    pub(super) fn signal_exec(&mut self, exec: u64, signal: i32) -> Outcome {
        if let Some(exec) = self.execs.iter_mut().find(|e| e.exec == exec) {
            exec.withdrawn |= signal == libc::SIGKILL && !exec.born;
            Kernel::new(&exec.journal).kill_group(exec.pidfd.as_fd(), signal, "exec")?;
        }
        Ok(Some(Answer::Done))
    }

    fn attach(&mut self, key: &str, stdin: bool, fds: Vec<OwnedFd>) -> Outcome {
        let container = self.container(key)?;
        if container.ended.is_some() {
            return Err(Failure::new(FailureKind::Conflict, format!("container {key} has ended")));
        }
        let mut fds = fds.into_iter();
        let input = stdin.then(|| fds.next()).flatten();
        container.stdio.attach(input, [fds.next(), fds.next()]);
        Ok(Some(Answer::Done))
    }

    fn resize(&mut self, key: &str, size: (u16, u16)) -> Outcome {
        let container = self.container(key)?;
        if let Some(tty) = container.stdio.outputs[0].as_ref().filter(|_| container.stdio.terminal) {
            sys::tty::resize(tty.as_fd(), size).map_err(|e| Failure::new(FailureKind::Kernel, e))?;
        }
        Ok(Some(Answer::Done))
    }

    fn shut_down(&mut self, requester: Requester, journal: &JournalWriter) -> Outcome {
        let kernel = Kernel::new(journal);
        self.stopping = true;
        self.shutdown.push(requester);
        for container in self.containers.iter().flatten().filter(|c| c.ended.is_none()) {
            let _ = kill_container(&kernel, container);
        }
        if let Some(sandbox) = self.sandbox.as_ref().filter(|s| s.alive) {
            let _ = kernel.kill(sandbox.pidfd.as_fd(), libc::SIGKILL, "pause");
        }
        Ok(None)
    }

    fn container(&mut self, key: &str) -> Result<&mut Container, Failure> {
        let found = self.containers.iter_mut().flatten().find(|c| c.plan.key == key);
        found.ok_or_else(|| Failure::new(FailureKind::NotFound, format!("container {key}")))
    }

    fn running(&self, key: &str) -> Result<&Container, Failure> {
        let found = self.containers.iter().flatten().find(|c| c.plan.key == key);
        let running = found.filter(|c| c.phase == Phase::Running && c.ended.is_none());
        running.ok_or_else(|| Failure::new(FailureKind::Conflict, format!("container {key} is not running")))
    }

    pub(super) fn forker(&self) -> Result<Forker, Failure> {
        let refused = || Failure::new(FailureKind::Kernel, "this process may not fork".to_owned());
        self.forker.ok_or_else(refused)
    }

    fn ready_sandbox(&self) -> Result<&Sandbox, Failure> {
        let ready = self.sandbox.as_ref().filter(|s| s.alive && !self.stopping);
        ready.ok_or_else(|| Failure::new(FailureKind::Conflict, "the sandbox is not ready"))
    }
}

/// Kills a whole container: through its cgroup, and its first process even if that fails.
pub(super) fn kill_container(kernel: &Kernel, container: &Container) -> SysResult<()> {
    let killed = kernel.write(&container.plan.cgroup.join("cgroup.kill"), "1");
    kernel.kill(container.pidfd.as_fd(), libc::SIGKILL, &container.plan.key).and(killed)
}

/// The namespaces that containers share with `pause`; all others are already the shim's.
fn namespaces_of(plan: &SandboxPlan) -> u64 {
    let net = plan.new_net || plan.join_net;
    [(net, NEWNET), (plan.new_ipc, NEWIPC), (!plan.hostname.is_empty(), NEWUTS)]
        .iter()
        .filter(|(shared, _)| *shared)
        .map(|(_, flag)| flag)
        .sum()
}

pub(super) fn open_cgroup(kernel: &Kernel, path: &std::path::Path) -> SysResult<OwnedFd> {
    kernel.op("open", |a| a.path(path), || File::open(path)).map(OwnedFd::from)
}

pub(super) fn pair(kernel: &Kernel) -> SysResult<(OwnedFd, OwnedFd)> {
    kernel.op(
        "socketpair",
        |a| a,
        || {
            let (ours, theirs) = io::message_pair()?;
            io::set_nonblocking(ours.as_fd())?;
            io::tell_senders(ours.as_fd())?;
            Ok((ours, theirs))
        },
    )
}

/// A container's streams: our ends, and the child's.
fn pipes(plan: &ContainerPlan) -> Result<(Stdio, [Option<OwnedFd>; 3]), Failure> {
    let mut stdio = Stdio::default();
    (stdio.terminal, stdio.stdin_once) = (plan.process.terminal, plan.stdin_once);
    if plan.process.terminal {
        return Ok((stdio, [None, None, None]));
    }
    let mut make = || -> Result<[Option<OwnedFd>; 3], std::io::Error> {
        let mut theirs = [None, None, None];
        for stream in 0..2 {
            let (out, into) = io::pipe()?;
            io::set_nonblocking(out.as_fd())?;
            stdio.outputs[stream] = Some(out);
            theirs[stream + 1] = Some(into);
        }
        if plan.stdin {
            let (out, into) = io::pipe()?;
            io::set_nonblocking(into.as_fd())?;
            stdio.input = Some(into);
            theirs[0] = Some(out);
        }
        Ok(theirs)
    };
    let theirs = make().map_err(|e| Failure::new(FailureKind::Kernel, format!("pipe: {e}")))?;
    Ok((stdio, theirs))
}

//! How the shim learns of the creation, execution and exit of containers and execs: through sockets that a container may
//! manipulate, and through wait(2).

use std::os::fd::{AsFd, OwnedFd};

use super::Shim;
use super::child::GO;
use super::container::{Newborn, Phase, Requester, Said, TURN};
use super::requests::kill_container;
use crate::protocol::StartFailure;
use crate::protocol::{Answer, Failure, FailureKind, Message};
use podwright_sys::fs::is_ptmx;
use podwright_sys::process::Ended;
use podwright_sys::{Kernel, io};

/// No more children than this exit between two births.
const STRAYS: usize = 4096;

/// How long a process whose agent is gone may take to exit on SIGHUP; the same as for one whose session has ended.
const HANG_UP_MS: u64 = 2000;

impl Shim {
    pub(super) fn container_said(&mut self, slot: usize) {
        for _ in 0..TURN {
            let Some(container) = self.containers.get_mut(slot).and_then(|c| c.as_mut()) else { return };
            let Some(sync) = &mut container.sync else { return };
            match sync.listen(&container.journal) {
                Said::Nothing => return,
                Said::Recorded => {}
                Said::Born(newborn) => self.container_born(slot, newborn),
                Said::Failed(failure) => {
                    container.failure = Some(failure.clone());
                    container.birth_deadline = None;
                    if let Phase::Creating(peer, id) | Phase::Starting(peer, id) = container.phase {
                        container.phase = Phase::Created;
                        self.reply(Requester { peer, id }, Err(failure), &[]);
                        self.refuse_start(slot);
                    }
                }
                Said::Closed => {
                    container.sync = None;
                    container.birth_deadline = None;
                    match container.phase {
                        Phase::Starting(peer, id) => {
                            container.phase = Phase::Running;
                            container.forget_secrets();
                            self.reply(Requester { peer, id }, Ok(Answer::Done), &[]);
                        }
                        Phase::Creating(..) => self.container_lost(slot),
                        Phase::Created | Phase::Running => {}
                    }
                    return;
                }
            }
        }
    }

    /// Its root is built, and its first process waits. Accepted only from the builder that we cloned, and once.
    fn container_born(&mut self, slot: usize, newborn: Newborn) {
        let Some(container) = self.containers.get_mut(slot).and_then(|c| c.as_mut()) else { return };
        let Phase::Creating(peer, id) = container.phase else { return };
        if container.born || newborn.sender != container.pid {
            return;
        }
        (container.born, container.pid, container.pidfd) = (true, newborn.pid, newborn.pidfd);
        if container.plan.process.terminal {
            let Some(master) = terminal(newborn.master) else { return self.container_lost(slot) };
            container.stdio.input = master.try_clone().ok();
            container.stdio.outputs[0] = Some(master);
        }
        container.phase = Phase::Created;
        container.birth_deadline = None;
        let pid = container.pid;
        // The requester is gone, and may never learn that it runs: another agent will create it anew.
        let starter = container.starter.take().filter(|starter| self.peers.contains_key(&starter.peer));
        let started = starter.map(|starter| {
            let journal = container.journal.clone();
            (starter, container.start(starter, &journal))
        });
        self.reply(Requester { peer, id }, Ok(Answer::Pid(pid)), &[]);
        if let Some((starter, Err(failure))) = started {
            self.reply(starter, Err(failure), &[]);
        }
        if let Some(ended) = self.stray(pid) {
            self.container_ended(slot, ended);
        }
        self.forget_strays();
    }

    /// No process is left that could report readiness.
    fn container_lost(&mut self, slot: usize) {
        let Some(container) = self.containers.get_mut(slot).and_then(|c| c.as_mut()) else { return };
        // A pending start fails through this.
        container.sync = None;
        let Phase::Creating(peer, id) = container.phase else { return };
        let failure = Failure::new(FailureKind::Kernel, "the container's first process died");
        container.phase = Phase::Created;
        container.failure = Some(failure.clone());
        self.reply(Requester { peer, id }, Err(failure), &[]);
        self.refuse_start(slot);
    }

    /// It was not created, but its start was requested.
    fn refuse_start(&mut self, slot: usize) {
        let Some(container) = self.containers.get_mut(slot).and_then(|c| c.as_mut()) else { return };
        let (starter, failure) = (container.starter.take(), container.no_start());
        if let Some(starter) = starter {
            self.reply(starter, Err(failure), &[]);
        }
    }

    pub(super) fn exec_said(&mut self, exec: u64) {
        let Some(at) = self.execs.iter().position(|e| e.exec == exec) else { return };
        for _ in 0..TURN {
            let session = &mut self.execs[at];
            let Some(sync) = &mut session.sync else { return };
            match sync.listen(&session.journal) {
                Said::Nothing => return,
                Said::Recorded => {}
                Said::Born(newborn) => {
                    if session.born || newborn.sender != session.pid {
                        continue;
                    }
                    session.bearer = Some(session.pid);
                    (session.born, session.pid, session.pidfd) = (true, newborn.pid, newborn.pidfd);
                    session.master = terminal(newborn.master).filter(|_| session.terminal);
                    if session.withdrawn {
                        let _ = Kernel::new(&session.journal).kill(
                            session.pidfd.as_fd(),
                            libc::SIGKILL,
                            "exec that was withdrawn",
                        );
                    } else {
                        let _ = io::send(sync.socket.as_fd(), GO, &[]);
                    }
                    let pid = session.pid;
                    self.execs[at].ended = self.stray(pid);
                }
                Said::Failed(failure) => {
                    let requester = session.requester;
                    if session.failure.is_none() {
                        session.failure = Some(failure.clone());
                        self.reply(requester, Err(failure), &[]);
                    }
                }
                Said::Closed => {
                    session.sync = None;
                    session.birth_deadline = None;
                    let (requester, pid, master) = (session.requester, session.pid, session.master.take());
                    if session.failure.is_none() && session.born {
                        let fds: Vec<_> = master.into_iter().collect();
                        self.reply(requester, Ok(Answer::Pid(pid)), &fds);
                    } else if session.failure.is_none() {
                        self.exec_lost(at);
                    }
                    if self.execs[at].ended.is_some() {
                        self.exec_ended(at);
                    }
                    return;
                }
            }
        }
    }

    /// It exited before it executed, without reporting why.
    fn exec_lost(&mut self, at: usize) {
        let session = &mut self.execs[at];
        session.sync = None;
        let (requester, failure) =
            (session.requester, Failure::new(FailureKind::Kernel, "the process died before it executed"));
        session.failure = Some(failure.clone());
        self.reply(requester, Err(failure), &[]);
    }

    /// A child has exited: a container's process, or a helper of its creation.
    pub(super) fn ended(&mut self, pid: u32, ended: Ended) {
        if let Some(slot) = self.slot(|c| c.pid == pid && c.ended.is_none()) {
            // It may have sent a message before.
            self.container_said(slot);
            let still = self.containers[slot].as_ref().is_some_and(|c| c.pid == pid && c.ended.is_none());
            if still {
                if self.containers[slot].as_ref().is_some_and(|c| !c.born) {
                    self.container_lost(slot);
                }
                self.container_ended(slot, ended);
            }
        } else if let Some(exec) = self.execs.iter().find(|e| e.pid == pid || e.bearer == Some(pid)).map(|e| e.exec) {
            self.exec_said(exec);
            self.exec_child_ended(exec, pid, ended);
        } else if self.births_pending() && self.strays.len() < STRAYS {
            self.strays.push((pid, ended));
        }
        self.forget_strays();
    }

    /// While its creator lives, the socket may be open although it has executed.
    fn exec_child_ended(&mut self, exec: u64, pid: u32, ended: Ended) {
        let Some(at) = self.execs.iter().position(|e| e.exec == exec) else { return };
        let session = &mut self.execs[at];
        match session.pid == pid {
            true => session.ended = Some(ended),
            false => session.bearer = None,
        }
        if session.ended.is_none() || session.sync.is_some() && session.bearer.is_some() {
            return;
        }
        if session.sync.is_some() && session.failure.is_none() {
            self.exec_lost(at);
        }
        self.exec_ended(at);
    }

    fn exec_ended(&mut self, at: usize) {
        let session = self.execs.swap_remove(at);
        let code = session.ended.map_or(0, |ended| ended.code);
        session.journal.note("exit", |a| a.format(format_args!("exec {}: code {code}", session.pid)));
        if session.failure.is_none() {
            self.broadcast(&Message::ExecExited { exec: session.exec, code });
        }
    }

    /// The exit of a child that was unknown until now.
    fn stray(&mut self, pid: u32) -> Option<Ended> {
        let at = self.strays.iter().position(|(stray, _)| *stray == pid)?;
        Some(self.strays.swap_remove(at).1)
    }

    fn forget_strays(&mut self) {
        if !self.births_pending() {
            self.strays = Vec::new();
        }
    }

    fn births_pending(&self) -> bool {
        self.containers.iter().flatten().any(|c| !c.born && c.ended.is_none()) || self.execs.iter().any(|e| !e.born)
    }

    /// Kills an overdue exec, and overdue births: a container may have stopped or traced the process, or made it wait for a
    /// filesystem of its own.
    pub(super) fn kill_overdue(&mut self, now_ms: u64) {
        let overdue = |deadline: &mut Option<u64>| deadline.take_if(|d| *d <= now_ms).is_some();
        let mut late = Vec::new();
        for container in
            self.containers.iter_mut().flatten().filter_map(|c| overdue(&mut c.birth_deadline).then_some(c))
        {
            let failure = too_late(container.plan.process.birth_ms);
            container.failure = Some(failure.clone());
            if let Phase::Creating(peer, id) | Phase::Starting(peer, id) = container.phase {
                container.phase = Phase::Created;
                late.push((Requester { peer, id }, failure));
            }
            late.extend(container.starter.take().map(|starter| (starter, container.no_start())));
            let _ = kill_container(&Kernel::new(&container.journal), container);
        }
        for exec in self.execs.iter_mut().filter_map(|e| overdue(&mut e.birth_deadline).then_some(e)) {
            let failure = too_late(exec.birth_ms);
            if exec.failure.is_none() {
                exec.failure = Some(failure.clone());
                late.push((exec.requester, failure));
            }
            exec.withdrawn |= !exec.born;
            let _ = Kernel::new(&exec.journal).kill(exec.pidfd.as_fd(), libc::SIGKILL, "exec that is not executed");
        }
        for (requester, failure) in late {
            self.reply(requester, Err(failure), &[]);
        }
        // The requesting agent is gone, and with it the process's streams: as when a session ends.
        let peers = &self.peers;
        for exec in self.execs.iter_mut().filter(|e| e.born && !e.abandoned && !peers.contains_key(&e.requester.peer)) {
            exec.abandoned = true;
            let _ = Kernel::new(&exec.journal).kill_group(exec.pidfd.as_fd(), libc::SIGHUP, "exec without its agent");
            let latest = now_ms.saturating_add(HANG_UP_MS);
            exec.deadline_ms = Some(exec.deadline_ms.map_or(latest, |deadline| deadline.min(latest)));
        }
        for exec in self.execs.iter_mut().filter(|e| e.deadline_ms.is_some_and(|d| d <= now_ms)) {
            exec.deadline_ms = None;
            let _ = Kernel::new(&exec.journal).kill_group(exec.pidfd.as_fd(), libc::SIGKILL, "exec timeout");
        }
    }
}

/// The failure of a birth that took too long.
fn too_late(birth_ms: u64) -> Failure {
    let message = format!("unable to start container process: not executed within {} s", birth_ms.div_ceil(1000));
    Failure::new(FailureKind::Start(StartFailure::Setup), message)
}

/// The received terminal master, if it is one.
fn terminal(master: Option<OwnedFd>) -> Option<OwnedFd> {
    master.filter(|fd| is_ptmx(fd.as_fd()))
}

#[cfg(test)]
mod tests;

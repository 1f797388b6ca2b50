//! How containers and execs are born, executed and ended, as the shim hears of it: from sockets that a container may have its
//! hand on, and from wait(2).

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

/// More children than this do not end between two births.
const STRAYS: usize = 4096;

/// How long a process whose agent is gone may take to end on SIGHUP; as long as one whose session has ended.
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

    /// Its root is built, and its first process waits. Only the builder, whom we have cloned, is believed, and once.
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
        // Who asked is gone, and may never know that it runs: another agent makes it anew.
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

    /// Nobody is left who could say that it is ready.
    fn container_lost(&mut self, slot: usize) {
        let Some(container) = self.containers.get_mut(slot).and_then(|c| c.as_mut()) else { return };
        // One that waits for its start learns by this that there will be none.
        container.sync = None;
        let Phase::Creating(peer, id) = container.phase else { return };
        let failure = Failure::new(FailureKind::Kernel, "the container's first process died");
        container.phase = Phase::Created;
        container.failure = Some(failure.clone());
        self.reply(Requester { peer, id }, Err(failure), &[]);
        self.refuse_start(slot);
    }

    /// It was not born, and somebody waits for it to be executed.
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

    /// It ended before it executed, and nobody said why.
    fn exec_lost(&mut self, at: usize) {
        let session = &mut self.execs[at];
        session.sync = None;
        let (requester, failure) =
            (session.requester, Failure::new(FailureKind::Kernel, "the process died before it executed"));
        session.failure = Some(failure.clone());
        self.reply(requester, Err(failure), &[]);
    }

    /// A child has ended: a process of a container, or somebody who helped it into the world.
    pub(super) fn ended(&mut self, pid: u32, ended: Ended) {
        if let Some(slot) = self.slot(|c| c.pid == pid && c.ended.is_none()) {
            // It may have said something before.
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

    /// While who bore it lives, the socket may be open though it has executed.
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

    /// How a child ended that we have not known until now.
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

    /// Kills what an exec has become, and what has not been executed, if it is overdue: a container may have stopped it, or trace
    /// it, or have it wait for a filesystem of its own.
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
        // The agent that asked is gone, and with it all that the process says and hears: as when a session ends.
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

/// Why a birth has failed that took too long.
fn too_late(birth_ms: u64) -> Failure {
    let message = format!("unable to start container process: not executed within {} s", birth_ms.div_ceil(1000));
    Failure::new(FailureKind::Start(StartFailure::Setup), message)
}

/// What came as a terminal's master, if it is one.
fn terminal(master: Option<OwnedFd>) -> Option<OwnedFd> {
    master.filter(|fd| is_ptmx(fd.as_fd()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::File;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command};

    use podwright_journal::JournalWriter;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::super::child::BORN;
    use super::super::container::{Container, Exec, Sync};
    use super::super::peer::Peer;
    use super::super::writer::Writer;
    use super::*;
    use crate::protocol::{Call, Request};

    /// A process to be killed, or not.
    struct Victim(Child);

    impl Victim {
        fn new() -> Victim {
            Victim(Command::new("sleep").arg("1000").process_group(0).spawn().unwrap())
        }
        fn pidfd(&self) -> OwnedFd {
            pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty()).unwrap()
        }
        fn is_killed(&mut self) -> bool {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(1);
            while std::time::Instant::now() < deadline {
                if let Some(status) = self.0.try_wait().unwrap() {
                    return status.signal() == Some(libc::SIGKILL);
                }
                std::thread::yield_now();
            }
            false
        }
    }

    impl Drop for Victim {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn shim() -> Shim {
        let none = || OwnedFd::from(File::open("/dev/null").unwrap());
        Shim {
            journal: JournalWriter::none(),
            listener: none(),
            name: Default::default(),
            signals: none(),
            peers: BTreeMap::new(),
            next_peer: 0,
            secret: None,
            sandbox: None,
            pause: none(),
            null: none(),
            containers: Vec::new(),
            execs: Vec::new(),
            strays: Vec::new(),
            logs: Writer::new(),
            exits: Writer::new(),
            buffer: Box::default(),
            shutdown: Vec::new(),
            stopping: false,
        }
    }

    const EXEC: u64 = 7;

    /// An exec whose entrant has this number; and the entrant's end of the socket.
    fn exec(pid: u32, entrant: &Victim) -> (Shim, OwnedFd) {
        let (ours, theirs) = io::message_pair().unwrap();
        io::tell_senders(ours.as_fd()).unwrap();
        io::set_nonblocking(theirs.as_fd()).unwrap();
        let mut shim = shim();
        shim.execs.push(Exec {
            exec: EXEC,
            journal: JournalWriter::none(),
            pid,
            pidfd: entrant.pidfd(),
            born: false,
            bearer: None,
            ended: None,
            terminal: true,
            sync: Some(Sync::new(ours)),
            requester: Requester { peer: 1, id: 1 },
            master: None,
            failure: None,
            deadline_ms: None,
            abandoned: false,
            withdrawn: false,
            birth_deadline: Some(1000),
            birth_ms: 1000,
        });
        (shim, theirs)
    }

    fn tell_of(newborn: &Victim, socket: &OwnedFd, master: Option<&OwnedFd>) {
        let mut message = vec![BORN];
        message.extend(newborn.0.id().to_le_bytes());
        let pidfd = newborn.pidfd();
        let given: Vec<_> = std::iter::once(pidfd.as_fd()).chain(master.map(|fd| fd.as_fd())).collect();
        io::send(socket.as_fd(), &message, &given).unwrap();
    }

    /// Whether the one that waits was told to go on.
    fn goes_on(socket: &OwnedFd) -> bool {
        io::receive(socket.as_fd(), &mut [0; 4], &mut Vec::new()).is_ok_and(|got| got == GO.len())
    }

    /// The news of the birth may lie in the socket already when nobody waits for the process any more.
    #[test]
    fn who_is_born_of_a_withdrawn_exec_is_killed_and_never_goes_on() {
        type Withdraw = fn(&mut Shim);
        let ways: [(&str, Withdraw, bool); 4] = [
            ("not at all", |_| (), false),
            ("a signal that does not kill", |shim| drop(shim.signal_exec(EXEC, libc::SIGCONT)), false),
            ("its session has ended", |shim| drop(shim.signal_exec(EXEC, libc::SIGKILL)), true),
            ("it took too long", |shim| shim.kill_overdue(1001), true),
        ];
        for (how, withdraw, is_withdrawn) in ways {
            let (mut entrant, mut newborn) = (Victim::new(), Victim::new());
            let (mut shim, theirs) = exec(std::process::id(), &entrant);
            tell_of(&newborn, &theirs, None);
            withdraw(&mut shim);
            shim.exec_said(EXEC);
            assert_eq!(goes_on(&theirs), !is_withdrawn, "{how}");
            assert_eq!((newborn.is_killed(), entrant.is_killed()), (is_withdrawn, is_withdrawn), "{how}");
        }
    }

    /// A container may have its hand on the socket: what it says of births is nothing.
    #[test]
    fn a_birth_is_believed_of_who_was_cloned_for_it_and_once() {
        let (entrant, first, second) = (Victim::new(), Victim::new(), Victim::new());
        let (mut shim, theirs) = exec(entrant.0.id(), &entrant);
        tell_of(&first, &theirs, None);
        shim.exec_said(EXEC);
        assert!(!shim.execs[0].born && !goes_on(&theirs), "it was somebody else who said so");

        let (mut shim, theirs) = exec(std::process::id(), &entrant);
        let no_terminal = OwnedFd::from(File::open("/dev/null").unwrap());
        tell_of(&first, &theirs, Some(&no_terminal));
        shim.exec_said(EXEC);
        assert!(shim.execs[0].master.is_none(), "not everything is a terminal's master");
        // The process that was born is the one that speaks now; as long as it has not executed it can.
        shim.execs[0].pid = std::process::id();
        tell_of(&second, &theirs, None);
        shim.exec_said(EXEC);
        assert_eq!(shim.execs[0].pid, std::process::id(), "nobody is born twice");
        assert!(goes_on(&theirs) && !goes_on(&theirs));
    }

    /// A container whose builder has this number, and is `child`; and that one's end of the socket.
    fn container(pid: u32, child: &Victim, terminal: bool) -> (Shim, OwnedFd) {
        let (ours, theirs) = io::message_pair().unwrap();
        io::tell_senders(ours.as_fd()).unwrap();
        let plan = serde_json::json!({
            "key": "k", "cgroup": "/none", "exit_file": "/none", "log": null, "stdin": false, "stdin_once": false,
            "pid": "container", "mounts": [], "devices": [], "standard_devices": true, "masked_paths": [],
            "readonly_paths": [], "process": {"terminal": terminal},
            "root": {"layers": [], "upper": "/none", "work": "/none", "dir": "/none", "readonly": false},
        });
        let mut shim = shim();
        shim.containers.push(Some(Container {
            plan: serde_json::from_value(plan).unwrap(),
            journal: JournalWriter::none(),
            pid,
            pidfd: child.pidfd(),
            born: false,
            sync: Some(Sync::new(ours)),
            phase: Phase::Creating(1, 1),
            stdio: Default::default(),
            started_ns: None,
            failure: None,
            ended: None,
            drain_until: 0,
            committing: false,
            exit: None,
            pending_exit: None,
            starter: None,
            remover: None,
            birth_deadline: Some(1000),
        }));
        (shim, theirs)
    }

    /// The same of a container's first process, which waits until it is started.
    #[test]
    fn a_container_is_born_of_its_builder_and_once() {
        let (builder, first, second) = (Victim::new(), Victim::new(), Victim::new());
        let of = |shim: &Shim| {
            let container = shim.containers[0].as_ref().unwrap();
            (container.phase, container.born, container.pid)
        };
        let (mut shim, theirs) = container(builder.0.id(), &builder, false);
        tell_of(&first, &theirs, None);
        shim.container_said(0);
        assert_eq!(of(&shim), (Phase::Creating(1, 1), false, builder.0.id()), "it was somebody else who said so");

        let own = std::process::id();
        let (mut shim, theirs) = container(own, &builder, false);
        tell_of(&first, &theirs, None);
        shim.container_said(0);
        assert_eq!(of(&shim), (Phase::Created, true, first.0.id()));
        // Whoever speaks now is the process, or has its socket.
        let slot = shim.containers[0].as_mut().unwrap();
        (slot.phase, slot.pid) = (Phase::Creating(1, 1), own);
        tell_of(&second, &theirs, None);
        shim.container_said(0);
        assert_eq!(of(&shim), (Phase::Creating(1, 1), true, own), "nobody is born twice");

        // Without a terminal's master there is none, whatever else was sent.
        let (mut shim, theirs) = container(own, &builder, true);
        let no_terminal = OwnedFd::from(File::open("/dev/null").unwrap());
        tell_of(&first, &theirs, Some(&no_terminal));
        shim.container_said(0);
        let lost = shim.containers[0].as_ref().unwrap();
        assert!(lost.failure.is_some() && lost.stdio.input.is_none() && lost.stdio.outputs[0].is_none());
    }

    /// An agent need not wait for the birth before it asks for the start.
    #[test]
    fn a_start_that_is_asked_for_before_the_birth_comes_with_it() {
        let (builder, first) = (Victim::new(), Victim::new());
        let ask = |shim: &mut Shim, id| {
            let call = Call::Start { key: "k".to_owned() };
            shim.handle(1, Request { id, cause: Default::default(), call }, Vec::new());
        };
        let of = |shim: &Shim| shim.containers[0].as_ref().map(|c| (c.phase, c.starter.map(|starter| starter.id)));
        let connected = |shim: &mut Shim| {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            shim.peers.insert(1, Peer::new(ours.into()));
            theirs
        };
        let (mut shim, theirs) = container(std::process::id(), &builder, false);
        let _agent = connected(&mut shim);
        io::set_nonblocking(theirs.as_fd()).unwrap();
        ask(&mut shim, 2);
        ask(&mut shim, 3);
        assert!(!goes_on(&theirs), "nobody is there to execute");
        assert_eq!(of(&shim), Some((Phase::Creating(1, 1), Some(2))), "one start is enough");
        tell_of(&first, &theirs, None);
        shim.container_said(0);
        assert_eq!(of(&shim), Some((Phase::Starting(1, 2), None)));
        assert!(goes_on(&theirs) && !goes_on(&theirs));

        // Nor is it let go for an agent that is gone.
        let (mut shim, theirs) = container(std::process::id(), &builder, false);
        io::set_nonblocking(theirs.as_fd()).unwrap();
        ask(&mut shim, 2);
        tell_of(&first, &theirs, None);
        shim.container_said(0);
        assert_eq!((of(&shim), goes_on(&theirs)), (Some((Phase::Created, None)), false));

        // Who is not born in time is not started either, and who asked need not wait.
        let (mut shim, theirs) = container(std::process::id(), &Victim::new(), false);
        io::set_nonblocking(theirs.as_fd()).unwrap();
        ask(&mut shim, 2);
        shim.kill_overdue(1001);
        assert_eq!(of(&shim), Some((Phase::Created, None)));
        ask(&mut shim, 3);
        assert_eq!((of(&shim), goes_on(&theirs)), (Some((Phase::Created, None)), false));
    }

    /// Nobody waits for ever for who is to be born, or to execute.
    #[test]
    fn a_container_whose_birth_takes_too_long_is_killed() {
        let mut builder = Victim::new();
        let (mut shim, _theirs) = container(builder.0.id(), &builder, false);
        shim.kill_overdue(999);
        assert!(builder.0.try_wait().unwrap().is_none(), "it has a moment left");
        shim.kill_overdue(1001);
        let container = shim.containers[0].as_ref().unwrap();
        assert!(container.failure.as_ref().is_some_and(|why| why.message.contains("not executed within")));
        assert!(builder.is_killed());
    }

    /// Whoever asked is gone without a word: first as when a session ends, then by force.
    #[test]
    fn an_exec_without_its_agent_is_hung_up_on_and_then_killed() {
        let mut entrant = Victim::new();
        let (mut shim, _theirs) = exec(entrant.0.id(), &entrant);
        shim.execs[0].birth_deadline = None;
        shim.kill_overdue(5000);
        assert!(!shim.execs[0].abandoned, "what is not born yet is the birth's to end");
        shim.execs[0].born = true;
        shim.kill_overdue(5000);
        assert!(shim.execs[0].abandoned && shim.execs[0].deadline_ms == Some(5000 + HANG_UP_MS));
        // It ended of the SIGHUP: `sleep` is not deaf.
        assert_eq!(entrant.0.wait().unwrap().signal(), Some(libc::SIGHUP));

        let mut deaf = Victim(
            Command::new("sh")
                .args(["-c", "trap '' HUP; echo; exec sleep 1000"])
                .stdout(std::process::Stdio::piped())
                .process_group(0)
                .spawn()
                .unwrap(),
        );
        std::io::Read::read_exact(deaf.0.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let (mut shim, _theirs) = exec(deaf.0.id(), &deaf);
        (shim.execs[0].birth_deadline, shim.execs[0].born) = (None, true);
        shim.kill_overdue(5000);
        shim.kill_overdue(5000 + HANG_UP_MS - 1);
        assert!(deaf.0.try_wait().unwrap().is_none());
        shim.kill_overdue(5000 + HANG_UP_MS);
        assert!(deaf.is_killed());
    }
}

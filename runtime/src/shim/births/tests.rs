//! Tests births and exits without a container: a plain process stands for each.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};

use podwright_journal::JournalWriter;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::*;
use crate::child::BORN;
use crate::container::{Container, Exec, Sync};
use crate::peer::Peer;
use crate::protocol::{Call, Request};
use crate::writer::Writer;

/// A process that may get killed.
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
        forker: None,
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

/// An exec whose entrant has this pid; and the entrant's end of the socket.
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

/// Whether the waiting process was told to go on.
fn goes_on(socket: &OwnedFd) -> bool {
    io::receive(socket.as_fd(), &mut [0; 4], &mut Vec::new()).is_ok_and(|got| got == GO.len())
}

/// The birth message may already be in the socket when the process is no longer wanted.
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

/// A container may control the socket: its messages about births are ignored.
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
    // The born process sends now; it can until it has executed.
    shim.execs[0].pid = std::process::id();
    tell_of(&second, &theirs, None);
    shim.exec_said(EXEC);
    assert_eq!(shim.execs[0].pid, std::process::id(), "nobody is born twice");
    assert!(goes_on(&theirs) && !goes_on(&theirs));
}

/// A container whose builder has this pid, and is `child`; and that one's end of the socket.
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

/// The same for a container's first process, which waits until it is started.
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
    // The sender is now the process, or has its socket.
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

/// An agent need not wait for the birth before requesting the start.
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

    // Nor is it started for an agent that is gone.
    let (mut shim, theirs) = container(std::process::id(), &builder, false);
    io::set_nonblocking(theirs.as_fd()).unwrap();
    ask(&mut shim, 2);
    tell_of(&first, &theirs, None);
    shim.container_said(0);
    assert_eq!((of(&shim), goes_on(&theirs)), (Some((Phase::Created, None)), false));

    // A process not born in time is not started either, and the requester is not kept waiting.
    let (mut shim, theirs) = container(std::process::id(), &Victim::new(), false);
    io::set_nonblocking(theirs.as_fd()).unwrap();
    ask(&mut shim, 2);
    shim.kill_overdue(1001);
    assert_eq!(of(&shim), Some((Phase::Created, None)));
    ask(&mut shim, 3);
    assert_eq!((of(&shim), goes_on(&theirs)), (Some((Phase::Created, None)), false));
}

/// Births and executions have a time limit.
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

/// The requester vanished: first a hangup as when a session ends, then a kill.
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
    // It exited on SIGHUP: `sleep` does not ignore it.
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

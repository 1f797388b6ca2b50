//! The shim: parent of a sandbox's processes throughout their lifetime, independent of the agent.
//!
//! One loop waits for everything: connections from agents, exits of children, messages of children being born, container streams,
//! finished disk jobs. It starts with its listening socket as descriptor 0 and one argument, the sandbox's id; everything else
//! arrives over the socket, see [`crate::protocol`]. For its children see [`child`].

mod births;
pub mod child;
mod confine;
mod container;
mod fork;
pub mod fuzz;
pub mod handshake;
mod log;
mod name;
mod peer;
pub mod protocol;
mod requests;
mod sandbox;
pub mod socket;
mod stdio;
mod writer;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use podwright_journal::{Clock, JournalWriter, Role};

use crate::protocol::{Answer, Message, SandboxPlan, ShimState};
use child::users::Users;
use container::{Container, Exec, Phase, Requester, Said, Sync, TURN};
use fork::Forker;
use peer::Peer;
use podwright_sys::io::{self, PollFd};
use podwright_sys::process::{self, Ended};
use podwright_sys::{Kernel, own};
use stdio::StdioPart;
use writer::{Job, Work, Writer};

/// How long output is accepted after a container's exit, if another process keeps its pipe open.
const DRAIN_NS: u64 = 2_000_000_000;

pub struct Shim {
    journal: JournalWriter,
    /// `None` where threads do what they like: it forks nobody.
    forker: Option<Forker>,
    listener: OwnedFd,
    name: name::Name,
    signals: OwnedFd,
    peers: BTreeMap<u64, Peer>,
    next_peer: u64,
    secret: Option<crate::handshake::Secret>,
    sandbox: Option<Sandbox>,
    pause: OwnedFd,
    /// Used for missing streams.
    null: OwnedFd,
    containers: Vec<Option<Container>>,
    execs: Vec<Exec>,
    /// Children that exited before they were known, during a birth.
    strays: Vec<(u32, Ended)>,
    /// Logs and exit records may be on different disks, one of which may hang.
    logs: Writer,
    exits: Writer,
    buffer: Box<[u8]>,
    shutdown: Vec<Requester>,
    stopping: bool,
}

struct Sandbox {
    plan: SandboxPlan,
    pid: u32,
    pidfd: OwnedFd,
    /// The user namespace of `pause`, if it has its own.
    users: Option<OwnedFd>,
    journal: JournalWriter,
    /// Until `pause` has executed.
    sync: Option<Sync>,
    requester: Option<Requester>,
    alive: bool,
}

impl Sandbox {
    /// The user namespace of its containers, if they have one.
    fn users(&self) -> Option<Users<'_>> {
        let (namespace, range) = (self.users.as_ref()?.as_fd(), self.plan.users?);
        Some(Users { namespace, range })
    }
}

/// The meaning of an entry of the poll set.
#[derive(Clone, Copy)]
enum Token {
    Listener,
    Signals,
    Written,
    Peer(u64),
    SandboxSync,
    Sync(usize),
    ExecSync(u64),
    Stdio(usize, StdioPart),
}

/// The shim's `main`.
pub fn main() -> ExitCode {
    let id = std::env::args().nth(1).unwrap_or_default();
    // A container can have it executed (`#!/proc/self/exe`), with the container's privileges: that has no effect.
    let listener = match io::take_stdin() {
        Ok(listener) => listener,
        Err(e) => {
            eprintln!("shim {id}: not started by an agent: stdin is no listening socket: {e}");
            return ExitCode::FAILURE;
        }
    };
    own::small_heap();
    if let Err(e) = confine::confine() {
        eprintln!("shim {id}: it can have no session keyring of its own: {e}");
        return ExitCode::FAILURE;
    }
    let start = || -> Result<Shim, std::io::Error> {
        own::remember_program();
        let null = child::private_null(&Kernel::new(&JournalWriter::none()))?;
        // 2 is for what it cannot report otherwise.
        (0..2).try_for_each(|number| io::dup_to(null.as_fd(), number))?;
        let signals = own::become_shim(&format!("shim:{id}"))?;
        io::set_nonblocking(listener.as_fd())?;
        // Lowering it requires CAP_SYS_RESOURCE; without it the shim is as likely an OOM victim as any other.
        let _ = std::fs::write("/proc/self/oom_score_adj", "-998");
        let pause = Kernel::new(&JournalWriter::none()).sealed_program("pause", child::PAUSE);
        let pause = pause.map_err(|e| e.source)?;
        Ok(Shim {
            journal: JournalWriter::none(),
            forker: Some(Forker::of_only_thread()?),
            listener,
            name: name::Name::default(),
            signals,
            peers: BTreeMap::new(),
            next_peer: 0,
            secret: None,
            sandbox: None,
            pause,
            null,
            containers: Vec::new(),
            execs: Vec::new(),
            strays: Vec::new(),
            logs: Writer::new(),
            exits: Writer::new(),
            buffer: vec![0; 16 << 10].into(),
            shutdown: Vec::new(),
            stopping: false,
        })
    };
    match start().and_then(|mut shim| shim.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("shim {id}: {e}");
            ExitCode::FAILURE
        }
    }
}

impl Shim {
    fn run(&mut self) -> Result<(), std::io::Error> {
        let (mut tokens, mut set) = (Vec::new(), Vec::new());
        while !self.over() {
            tokens.clear();
            set.clear();
            self.interests(|token, fd| {
                tokens.push(token);
                set.push(fd);
            });
            io::poll(&mut set, self.timeout_ms())?;
            for (token, fd) in tokens.iter().zip(&set) {
                if fd.readable() || fd.writable() {
                    self.ready(*token, fd);
                }
            }
            self.settle();
            // The answer has been sent: nothing is delayed.
            self.journal.flush();
        }
        Ok(())
    }

    /// Shutdown was requested, everything is dead, and the requester has the answer (or is gone).
    fn over(&mut self) -> bool {
        if !self.stopping || self.sandbox.as_ref().is_some_and(|s| s.alive) || !self.execs.is_empty() {
            return false;
        }
        if self.containers.iter().flatten().any(|c| c.exit.is_none()) {
            return false;
        }
        for requester in std::mem::take(&mut self.shutdown) {
            self.reply(requester, Ok(Answer::Done), &[]);
        }
        self.peers.values().all(|p| p.idle())
    }

    fn interests(&self, mut add: impl FnMut(Token, PollFd)) {
        add(Token::Signals, PollFd::new(self.signals.as_fd(), libc::POLLIN));
        add(Token::Listener, PollFd::new(self.listener.as_fd(), libc::POLLIN));
        for done in [self.logs.done(), self.exits.done()].into_iter().flatten() {
            add(Token::Written, PollFd::new(done, libc::POLLIN));
        }
        for (id, peer) in &self.peers {
            add(Token::Peer(*id), peer.interest());
        }
        if let Some(sync) = self.sandbox.as_ref().and_then(|s| s.sync.as_ref()) {
            add(Token::SandboxSync, PollFd::new(sync.socket.as_fd(), libc::POLLIN));
        }
        for exec in &self.execs {
            if let Some(sync) = &exec.sync {
                add(Token::ExecSync(exec.exec), PollFd::new(sync.socket.as_fd(), libc::POLLIN));
            }
        }
        for (slot, container) in self.containers.iter().enumerate() {
            let Some(container) = container else { continue };
            if let Some(sync) = &container.sync {
                add(Token::Sync(slot), PollFd::new(sync.socket.as_fd(), libc::POLLIN));
            }
            container.stdio.interests(|part, fd| add(Token::Stdio(slot, part), fd));
        }
    }

    fn ready(&mut self, token: Token, fd: &PollFd) {
        match token {
            Token::Signals => self.reap(),
            Token::Listener => {
                while let Some(socket) = io::accept(&self.listener) {
                    self.welcome(socket);
                }
            }
            Token::Written => {
                while let Some(job) = self.logs.take().or_else(|| self.exits.take()) {
                    self.written(*job);
                }
            }
            Token::Peer(id) => self.serve(id, fd),
            Token::SandboxSync => self.sandbox_said(),
            Token::Sync(slot) => self.container_said(slot),
            Token::ExecSync(exec) => self.exec_said(exec),
            Token::Stdio(slot, part) => {
                if let Some(container) = self.containers.get_mut(slot).and_then(|c| c.as_mut()) {
                    container.stdio.ready(part, &mut self.buffer, Clock::read().wall_ns);
                }
            }
        }
    }

    /// After each round: flushes logs, completes exits, kills overdue execs.
    fn settle(&mut self) {
        let now = Clock::read();
        for slot in 0..self.containers.len() {
            let Some(container) = &mut self.containers[slot] else { continue };
            container.stdio.settle(slot, &mut self.logs);
            self.finish(slot, now.wall_ns);
        }
        let now_ms = now.monotonic_ns / 1_000_000;
        self.kill_overdue(now_ms);
        self.look_for_name(now_ms);
    }

    /// The time until the next deadline, if any.
    fn timeout_ms(&self) -> i32 {
        let now = Clock::read();
        let births = self.containers.iter().flatten().filter_map(|c| c.birth_deadline);
        let execs = self.execs.iter().flat_map(|e| [e.deadline_ms, e.birth_deadline]).flatten().chain(births);
        let execs = execs.map(|d| d.saturating_sub(now.monotonic_ns / 1_000_000));
        let drains = self.containers.iter().flatten().filter(|c| !c.committing && !c.stdio.ended());
        let drains = drains.filter(|c| c.ended.is_some());
        let drains = drains.map(|c| c.drain_until.saturating_sub(now.wall_ns) / 1_000_000);
        let look = self.next_look().map(|at| at.saturating_sub(now.monotonic_ns / 1_000_000));
        execs.chain(drains).chain(look).min().map_or(-1, |ms| ms.min(i32::MAX as u64 - 1) as i32 + 1)
    }

    /// Reaps exited children, including orphans reparented to us.
    fn reap(&mut self) {
        let mut drained = [0u8; 128 * 8];
        let _ = io::read_some(self.signals.as_fd(), &mut drained);
        while let Some((pid, ended)) = process::reap_any() {
            if self.sandbox.as_ref().is_some_and(|s| s.pid == pid && s.alive) {
                self.sandbox_ended(ended);
            } else {
                self.ended(pid, ended);
            }
        }
    }

    fn slot(&self, is: impl Fn(&Container) -> bool) -> Option<usize> {
        self.containers.iter().position(|c| c.as_ref().is_some_and(&is))
    }

    fn sandbox_said(&mut self) {
        let Some(sandbox) = &mut self.sandbox else { return };
        for _ in 0..TURN {
            let Some(sync) = &mut sandbox.sync else { return };
            let answer = match sync.listen(&sandbox.journal) {
                Said::Nothing => return,
                Said::Born(_) | Said::Recorded => continue,
                Said::Failed(failure) => Err(failure),
                Said::Closed => Ok(()),
            };
            sandbox.sync = None;
            let Some(requester) = sandbox.requester.take() else { return };
            match answer {
                Ok(()) => self.reply_state(requester),
                Err(failure) => self.reply(requester, Err(failure), &[]),
            }
            return;
        }
    }

    fn sandbox_ended(&mut self, _: Ended) {
        self.sandbox_said();
        if let Some(sandbox) = &mut self.sandbox {
            sandbox.alive = false;
        }
        if !self.stopping {
            self.broadcast(&Message::SandboxGone);
        }
    }

    /// The first process has exited: all others in its cgroup must, too.
    fn container_ended(&mut self, slot: usize, ended: Ended) {
        let Some(container) = &mut self.containers[slot] else { return };
        let now = Clock::read().wall_ns;
        container.ended = Some((ended, now));
        container.drain_until = now + DRAIN_NS;
        let _ = Kernel::new(&container.journal).write(&container.plan.cgroup.join("cgroup.kill"), "1");
        let (key, ended) = (&container.plan.key, (ended.code, ended.signal));
        container.journal.note("exit", |a| a.format(format_args!("{key}: code {}, signal {}", ended.0, ended.1)));
    }

    /// Completes a container's exit: all output read and written, then its exit record.
    fn finish(&mut self, slot: usize, now: u64) {
        let Some(container) = &mut self.containers[slot] else { return };
        let Some((ended, at)) = container.ended else { return };
        if container.committing {
            return;
        }
        if !container.stdio.ended() {
            if now < container.drain_until {
                return;
            }
            if container.stdio.blocked() {
                // A slow disk must not lose output; a sleeping attached client has had its time.
                container.stdio.drop_stalled();
                container.drain_until = now + DRAIN_NS;
                return;
            }
            container.stdio.close(now);
            container.stdio.settle(slot, &mut self.logs);
        }
        if container.stdio.log.as_ref().is_some_and(|log| !log.idle()) {
            return;
        }
        container.committing = true;
        let exit = container.describe_exit(ended, at);
        container.pending_exit = Some(exit.clone());
        let job = commit_job(slot, &container.plan.exit_file, &exit);
        if job.and_then(|job| self.exits.submit(job)).is_err() {
            // Then only we know it: report it all the same.
            self.exit_recorded(slot);
        }
    }

    fn written(&mut self, job: Job) {
        match job.work {
            Work::Append { .. } => {
                let container = self.containers.get_mut(job.slot).and_then(|c| c.as_mut());
                if let Some(log) = container.and_then(|c| c.stdio.log.as_mut()) {
                    log.flushed();
                }
            }
            Work::Commit { .. } => self.exit_recorded(job.slot),
        }
    }

    fn exit_recorded(&mut self, slot: usize) {
        let Some(container) = self.containers.get_mut(slot).and_then(|c| c.as_mut()) else { return };
        let Some(exit) = container.pending_exit.take() else { return };
        container.exit = Some(exit.clone());
        let key = container.plan.key.clone();
        let remover = container.remover.take();
        // Another process holds its socket open.
        if let Phase::Starting(peer, id) = container.phase {
            container.phase = Phase::Running;
            self.reply(Requester { peer, id }, Ok(Answer::Done), &[]);
        }
        self.broadcast(&Message::Exited { key, exit });
        if let Some(requester) = remover {
            self.containers[slot] = None;
            self.reply(requester, Ok(Answer::Done), &[]);
        }
        own::trim_heap();
    }

    fn state(&self) -> ShimState {
        let sandbox = self.sandbox.as_ref().filter(|s| s.alive).map_or(0, |s| s.pid);
        let containers = self.containers.iter().flatten().map(|c| c.snapshot()).collect();
        ShimState { sandbox, containers, app_armor: true }.bounded()
    }

    /// Switches to this journal for later records.
    fn write_to(&mut self, journal: Option<&std::path::Path>) {
        if let Some(Ok(journal)) = journal.map(|path| JournalWriter::open_until_told(path, Role::Shim)) {
            self.journal = journal;
        }
    }
}

/// The job that writes an exit record durably.
fn commit_job(slot: usize, file: &std::path::Path, exit: &protocol::Exit) -> Result<Job, std::io::Error> {
    let invalid = || std::io::Error::from_raw_os_error(libc::EINVAL);
    let name = file.file_name().and_then(|n| n.to_str()).ok_or_else(invalid)?;
    let folder = std::fs::File::open(file.parent().ok_or_else(invalid)?)?.into();
    let c = |text: String| CString::new(text).map_err(|_| invalid());
    let work = Work::Commit {
        folder,
        aside: c(format!("{name}.tmp"))?,
        name: c(name.to_owned())?,
        bytes: serde_json::to_vec(exit)?,
    };
    Ok(Job { slot, work, errno: 0 })
}

//! The shim's state of one container (or exec): a child, a socket to it until it has executed, its streams, its exit.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use podwright_journal::{Clock, JournalWriter, Role};

use super::child::{BORN, FAILED, GO, RECORDS};
use super::stdio::Stdio;
use crate::protocol::{ContainerPlan, ContainerSnapshot, Failure, FailureKind, ProcessPlan};
use crate::protocol::{Exit, ExitReason};
use podwright_sys::process::Ended;
use podwright_sys::{Kernel, io, own};

/// The connection and the request awaiting an answer.
#[derive(Clone, Copy, Debug)]
pub struct Requester {
    pub peer: u64,
    pub id: u64,
}

/// The lifecycle state of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Building its root.
    Creating(u64, u64),
    Created,
    /// Told to execute.
    Starting(u64, u64),
    Running,
}

pub struct Container {
    pub plan: ContainerPlan,
    pub journal: JournalWriter,
    /// The pid of its first process; until that is born, of the child that builds it.
    pub pid: u32,
    pub pidfd: OwnedFd,
    pub born: bool,
    pub sync: Option<Sync>,
    pub phase: Phase,
    pub stdio: Stdio,
    pub started_ns: Option<u64>,
    /// Why it could not be created or started.
    pub failure: Option<Failure>,
    pub ended: Option<(Ended, u64)>,
    /// Until when more output is accepted, in nanoseconds since 1970.
    pub drain_until: u64,
    /// Its exit was passed to the writer.
    pub committing: bool,
    /// Its exit, once it is on disk.
    pub exit: Option<Exit>,
    pub pending_exit: Option<Exit>,
    /// The requester of its start, if that was requested before it was born.
    pub starter: Option<Requester>,
    /// The requester of its removal, waiting for its exit.
    pub remover: Option<Requester>,
    /// The deadline of its current step: being born, or being executed. Milliseconds of the monotonic clock.
    pub birth_deadline: Option<u64>,
}

impl Container {
    pub fn snapshot(&self) -> ContainerSnapshot {
        let pid = if self.ended.is_some() { 0 } else { self.pid };
        ContainerSnapshot {
            key: self.plan.key.clone(),
            pid,
            started_ns: self.started_ns,
            exit: self.exit.clone(),
            log: self.plan.log.clone(),
            stdin: self.plan.stdin,
            terminal: self.plan.process.terminal,
        }
    }

    /// Lets its waiting first process execute. The loop answers.
    pub fn start(&mut self, requester: Requester, journal: &JournalWriter) -> Result<(), Failure> {
        let (key, sync) = (&self.plan.key, self.sync.as_ref());
        let sync = sync.ok_or_else(|| Failure::new(FailureKind::Conflict, format!("container {key} has ended")))?;
        let send = || io::send(sync.socket.as_fd(), GO, &[]);
        Kernel::new(journal).op("sendmsg", |a| a.text("start ").text(key), send)?;
        self.phase = Phase::Starting(requester.peer, requester.id);
        self.started_ns = Some(Clock::read().wall_ns);
        self.birth_deadline = birth_deadline(&self.plan.process);
        Ok(())
    }

    /// The error for a start that is impossible.
    pub fn no_start(&self) -> Failure {
        Failure::new(FailureKind::Conflict, format!("container {} cannot be started any more", self.plan.key))
    }

    /// It runs: a copy of our memory (a later child) no longer needs its arguments and environment.
    pub fn forget_secrets(&mut self) {
        let process = &mut self.plan.process;
        process.args.drain(..).chain(process.env.drain(..)).for_each(|text| own::wipe(text.into_bytes()));
    }

    /// The exit in upstream's terms.
    pub fn describe_exit(&self, ended: Ended, at: u64) -> Exit {
        let finished = jiff::Timestamp::from_nanosecond(at as i128).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        if let Some(failure) = &self.failure {
            let message = failure.message.clone();
            return Exit { code: 128, signal: 0, reason: ExitReason::StartError, message, finished };
        }
        let reason = match ended.code {
            _ if oom_killed(&self.plan.cgroup) => ExitReason::OOMKilled,
            0 => ExitReason::Completed,
            _ => ExitReason::Error,
        };
        Exit { code: ended.code, signal: ended.signal, reason, message: String::new(), finished }
    }
}

/// Whether the kernel's OOM killer acted in this cgroup.
fn oom_killed(cgroup: &Path) -> bool {
    let events = std::fs::read_to_string(cgroup.join("memory.events")).unwrap_or_default();
    events.lines().filter_map(|l| l.strip_prefix("oom_kill ")).any(|n| n.trim() != "0")
}

pub struct Exec {
    pub exec: u64,
    pub journal: JournalWriter,
    /// The pid of the process; until that is born, of the child that creates it.
    pub pid: u32,
    pub pidfd: OwnedFd,
    pub born: bool,
    /// The process that created it, until that has exited.
    pub bearer: Option<u32>,
    /// Its exit status, if it arrives before everything else is known.
    pub ended: Option<Ended>,
    pub terminal: bool,
    pub sync: Option<Sync>,
    pub requester: Requester,
    pub master: Option<OwnedFd>,
    pub failure: Option<Failure>,
    /// Milliseconds of the monotonic clock.
    pub deadline_ms: Option<u64>,
    /// Its agent is gone, and it got SIGHUP.
    pub abandoned: bool,
    /// It was killed before it was born; its messages may still arrive.
    pub withdrawn: bool,
    /// The deadline for its execution, and the time it was given.
    pub birth_deadline: Option<u64>,
    pub birth_ms: u64,
}

/// The deadline of a birth that begins now.
pub fn birth_deadline(plan: &ProcessPlan) -> Option<u64> {
    Some((Clock::read().monotonic_ns / 1_000_000).saturating_add(plan.birth_ms))
}

/// Our end of the socket to a child. A container may be able to trace the process with the other end: so messages are bounded, and
/// nothing in them is trusted except what the kernel vouches for.
pub struct Sync {
    pub socket: OwnedFd,
    /// How many bytes of records it may still send.
    records: usize,
}

/// A child's message.
pub enum Said {
    Nothing,
    Born(Newborn),
    Failed(Failure),
    /// Journal records.
    Recorded,
    /// The socket was closed: it has executed, or it is dead.
    Closed,
}

/// A new process, as reported by its creator.
pub struct Newborn {
    /// The sender's pid, vouched for by the kernel.
    pub sender: u32,
    pub pid: u32,
    pub pidfd: OwnedFd,
    pub master: Option<OwnedFd>,
}

/// Maximum message size: a batch of records is 8 KiB.
const MESSAGE: usize = 12 << 10;
/// Maximum records of one child; a container's start is about 8 KiB.
const RECORDED: usize = 128 << 10;
/// Maximum messages of one child handled in a row.
pub const TURN: usize = 32;

impl Sync {
    pub fn new(socket: OwnedFd) -> Sync {
        Sync { socket, records: RECORDED }
    }

    /// The next message. Records are forwarded to `journal`; unexpected descriptors are closed.
    pub fn listen(&mut self, journal: &JournalWriter) -> Said {
        let (mut bytes, mut fds) = ([0u8; MESSAGE], Vec::new());
        let (got, sender) = match io::receive_from(self.socket.as_fd(), &mut bytes, &mut fds) {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Said::Nothing,
            Err(_) => return Said::Closed,
            Ok(got) => got,
        };
        match (&bytes[..got], fds.len()) {
            ([BORN, a, b, c, d], 1 | 2) => {
                let master = if fds.len() == 2 { fds.pop() } else { None };
                let pid = u32::from_le_bytes([*a, *b, *c, *d]);
                Said::Born(Newborn { sender, pid, pidfd: fds.remove(0), master })
            }
            ([FAILED, failure @ ..], _) => Said::Failed(serde_json::from_slice(failure).unwrap_or_else(|e| {
                Failure::new(FailureKind::Kernel, format!("the child failed, and its report is unreadable: {e}"))
            })),
            (batch @ [RECORDS, ..], _) if got <= self.records => {
                self.records -= got;
                journal.forward(batch, Role::Init);
                Said::Recorded
            }
            _ => Said::Recorded,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// A tracer of a child has its socket, and must not be able to fake the end of a birth in progress.
    #[test]
    fn an_empty_message_is_no_end() {
        let (ours, theirs) = io::message_pair().unwrap();
        io::set_nonblocking(ours.as_fd()).unwrap();
        io::tell_senders(ours.as_fd()).unwrap();
        let mut sync = Sync::new(ours);
        assert!(matches!(sync.listen(&JournalWriter::none()), Said::Nothing));
        io::send(theirs.as_fd(), b"", &[]).unwrap();
        assert!(matches!(sync.listen(&JournalWriter::none()), Said::Recorded));
        assert!(matches!(sync.listen(&JournalWriter::none()), Said::Nothing));
        drop(theirs);
        assert!(matches!(sync.listen(&JournalWriter::none()), Said::Closed));
    }
}

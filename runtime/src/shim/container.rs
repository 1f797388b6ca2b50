//! One container (or exec) as its shim sees it: a child, a socket to it until it has executed, its streams, its end.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use podwright_journal::Scribe;

use super::init::{FAILED, READY};
use super::stdio::Stdio;
use crate::plan::{ContainerPlan, ContainerSnapshot, Failure, FailureKind};
use crate::spec::{Exit, ExitReason};
use crate::sys::io;
use crate::sys::process::Ended;

/// Who waits for an answer: the connection and its request.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    pub peer: u64,
    pub id: u64,
}

/// How far a container has come.
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
    pub scribe: Scribe,
    pub pid: u32,
    pub pidfd: OwnedFd,
    pub sync: Option<OwnedFd>,
    pub phase: Phase,
    pub stdio: Stdio,
    pub started_ns: Option<u64>,
    /// Why it could not be created or started.
    pub failure: Option<Failure>,
    pub ended: Option<(Ended, u64)>,
    /// Until when output may still come, nanoseconds since 1970.
    pub drain_until: u64,
    /// Its exit was handed to the writer.
    pub committing: bool,
    /// How it ended, once that is on the disk.
    pub exit: Option<Exit>,
    pub pending_exit: Option<Exit>,
}

impl Container {
    pub fn snapshot(&self) -> ContainerSnapshot {
        let pid = if self.ended.is_some() { 0 } else { self.pid };
        ContainerSnapshot { key: self.plan.key.clone(), pid, started_ns: self.started_ns, exit: self.exit.clone() }
    }

    /// How it ended, in upstream's terms.
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

/// Has the kernel killed anything in this cgroup for want of memory?
fn oom_killed(cgroup: &Path) -> bool {
    let events = std::fs::read_to_string(cgroup.join("memory.events")).unwrap_or_default();
    events.lines().filter_map(|l| l.strip_prefix("oom_kill ")).any(|n| n.trim() != "0")
}

pub struct Exec {
    pub exec: u64,
    pub scribe: Scribe,
    pub pid: u32,
    pub pidfd: OwnedFd,
    pub sync: Option<OwnedFd>,
    pub asker: Asker,
    pub master: Option<OwnedFd>,
    pub failure: Option<Failure>,
    /// Milliseconds of the monotonic clock.
    pub deadline_ms: Option<u64>,
}

/// What a child said over its socket.
pub enum Said {
    Nothing,
    Ready(Option<OwnedFd>),
    Failed(Failure),
    /// The socket closed: it has executed, or it is dead.
    Closed,
}

pub fn listen(sync: &OwnedFd) -> Said {
    let (mut bytes, mut fds) = ([0u8; 4096], Vec::new());
    match io::receive(sync.as_fd(), &mut bytes, &mut fds) {
        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Said::Nothing,
        Err(_) | Ok(0) => Said::Closed,
        Ok(n) => match bytes[0] {
            READY => Said::Ready(fds.pop()),
            FAILED => Said::Failed(serde_json::from_slice(&bytes[1..n]).unwrap_or_else(|e| {
                Failure::new(FailureKind::Kernel, format!("the child failed, and its report is unreadable: {e}"))
            })),
            _ => Said::Nothing,
        },
    }
}

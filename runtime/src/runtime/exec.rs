//! Exec and attach: streams are pipes (or a pty) whose other ends the shim passes to the process.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::Shared;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;

use super::Runtime;
use crate::compile;
use crate::records::Devices;
use crate::shim_client::ShimClient;
use crate::spec::{ContainerId, ExecOutput, ExecSpec, Streams};
use crate::{Cause, Error, JournalWriter, Result};
use podwright_shim::protocol::{Answer, Call, ExecPlan};
use podwright_sys::{io, tty};

/// Maximum output of a probe.
const MAX_OUTPUT: usize = 16 << 10;

/// How long a process may take to exit on SIGHUP after its session has ended.
const HANG_UP: Duration = Duration::from_secs(2);

/// A process started by [`Runtime::exec`].
///
/// It ends with its session. If dropped while the process runs (or is being created), its streams are closed, and the process and
/// its group get SIGHUP, like a hangup of a terminal, and SIGKILL after two seconds. Upstream leaves it running in the container,
/// waiting for a client that does not return (<https://github.com/kubernetes/kubernetes/issues/89031>), and calls the behaviour
/// undefined (<https://github.com/containerd/cri/pull/1256>). Processes with their own session (`setsid`) keep running here too,
/// and so do background processes of a command that has exited.
#[derive(Debug)]
pub struct ExecSession {
    /// Take what you need; the rest is closed on drop.
    pub streams: Streams,
    /// In the agent's PID namespace.
    pub pid: u32,
    exec: u64,
    end: Shared<oneshot::Receiver<i32>>,
    /// It was not started, or has exited.
    over: bool,
    /// The delay from SIGHUP to SIGKILL; zero: no SIGHUP.
    grace: Duration,
    tty: Option<OwnedFd>,
    client: Arc<ShimClient>,
}

impl ExecSession {
    /// Waits for its exit code (128 + signal after a signal). Errors: [`Error::ShimGone`].
    pub async fn wait(&self) -> Result<i32> {
        self.end.clone().await.map_err(|_| self.client.gone())
    }

    /// Sets the size of its terminal (columns, rows).
    pub fn resize(&self, size: (u16, u16)) -> Result<()> {
        match &self.tty {
            Some(tty) => tty::resize(tty.as_fd(), size).map_err(|e| Error::Kernel(format!("TIOCSWINSZ: {e}"))),
            None => Ok(()),
        }
    }

    /// Sends a signal to it and its process group; does nothing if it has exited.
    pub async fn signal(&self, signal: i32) -> Result<()> {
        let call = Call::ExecSignal { exec: self.exec, signal };
        self.client.ask(&Cause::default(), call, &[]).await.map(drop)
    }
}

impl Drop for ExecSession {
    fn drop(&mut self) {
        let (client, exec, end) = (self.client.clone(), self.exec, self.end.clone());
        let over = self.over || end.clone().now_or_never().is_some();
        // A process that was not created yet needs no cleanup.
        let grace = if self.pid == 0 { Duration::ZERO } else { self.grace };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if !over => drop(runtime.spawn(hang_up(client, exec, end, grace))),
            _ => client.forget_exec(exec),
        }
    }
}

/// Ends a process without a client.
async fn hang_up(client: Arc<ShimClient>, exec: u64, end: Shared<oneshot::Receiver<i32>>, grace: Duration) {
    let cause = Cause::default();
    let signal = |signal| client.ask(&cause, Call::ExecSignal { exec, signal }, &[]);
    let mut ended = false;
    if !grace.is_zero() {
        let _ = signal(libc::SIGHUP).await;
        ended = tokio::time::timeout(grace, end).await.is_ok();
    }
    if !ended {
        // It may have exited just now, or the shim may be gone: then it is dead as well.
        let _ = signal(libc::SIGKILL).await;
    }
    client.forget_exec(exec);
}

impl Runtime {
    /// Runs a process in a running container. It ends with its session, see [`ExecSession`]; dropping this future while it waits
    /// for the creation of the process cleans up everything at once.
    pub async fn exec(&self, id: &ContainerId, spec: ExecSpec, journal: &JournalWriter) -> Result<ExecSession> {
        self.start_exec(id, spec, None, journal).await
    }

    async fn start_exec(
        &self,
        id: &ContainerId,
        spec: ExecSpec,
        timeout: Option<Duration>,
        journal: &JournalWriter,
    ) -> Result<ExecSession> {
        let sandbox = self.get(&id.sandbox)?;
        let unguarded = sandbox.with_container(id, |c| c.record.devices == Some(Devices::Refused))?;
        let client = sandbox.client()?;
        let sandbox_spec = sandbox.state().record.spec.clone();
        let bounding = compile::bounding(self.0.bounding, unguarded);
        let mut process = compile::process(&spec.process, &sandbox_spec, bounding)?;
        let filters = self.filters(spec.seccomp, process.caps.bounding, sandbox_spec.users.is_some()).await?;
        process.size = spec.size.or(process.size);
        process.birth_ms = self.0.birth_ms;
        process.seccomp = filters.iter().map(|(_, flags)| *flags).collect();
        let terminal = process.terminal;
        let (mut streams, theirs) =
            if terminal { Default::default() } else { ends(spec.stdin, true).map_err(pipe_error)? };
        // Unique among all agents that this shim will ever have.
        let exec = RandomState::new().hash_one(std::process::id());
        let plan = ExecPlan {
            exec,
            key: id.key(),
            process,
            stdin: theirs[0].is_some(),
            stdout: theirs[1].is_some(),
            stderr: theirs[2].is_some(),
            // Only in case we die before we kill it ourselves.
            timeout_ms: timeout.map(|t| t.as_millis() as u64 + 1000),
        };
        let mut session = ExecSession {
            streams: Streams { stdin: None, stdout: None, stderr: None },
            pid: 0,
            exec,
            end: client.expect_exec(exec).shared(),
            over: false,
            grace: if timeout.is_some() { Duration::ZERO } else { HANG_UP },
            tty: None,
            client: client.clone(),
        };
        let fds: Vec<BorrowedFd<'_>> =
            theirs.iter().flatten().map(|fd| fd.as_fd()).chain(filters.iter().map(|(fd, _)| fd.as_fd())).collect();
        let asked = client.ask(journal.cause(), Call::Exec(Box::new(plan)), &fds).await;
        drop(theirs);
        // One that the shim may still be about to start is not over.
        let refused = |e: &Error| !matches!(e, Error::Timeout(..));
        let (answer, mut fds) = asked.inspect_err(|e| session.over = refused(e))?;
        session.pid = if let Answer::Pid(pid) = answer { pid } else { 0 };
        session.tty = fds.pop().filter(|_| terminal);
        if let Some(master) = &session.tty {
            let dup = || master.try_clone().map_err(pipe_error);
            streams = Streams { stdin: spec.stdin.then(dup).transpose()?, stdout: Some(dup()?), stderr: None };
        }
        session.streams = streams;
        Ok(session)
    }

    /// Runs a process until it exits and collects its output; killed after `timeout` ([`Error::Timeout`]).
    pub async fn exec_sync(
        &self,
        id: &ContainerId,
        spec: ExecSpec,
        timeout: Duration,
        journal: &JournalWriter,
    ) -> Result<ExecOutput> {
        let mut session = self.start_exec(id, ExecSpec { stdin: false, ..spec }, Some(timeout), journal).await?;
        let (stdout, stderr) = (session.streams.stdout.take(), session.streams.stderr.take());
        // A grandchild may keep the pipes open after the process has exited: its code and output so far are enough.
        let collect = async {
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let code = {
                let both = async { tokio::join!(collect(stdout, &mut out), collect(stderr, &mut err)) };
                tokio::pin!(both);
                tokio::select! {
                    code = session.wait() => {
                        let _ = tokio::time::timeout(Duration::from_millis(100), both).await;
                        code
                    }
                    _ = &mut both => session.wait().await,
                }?
            };
            Ok(ExecOutput { code, stdout: out, stderr: err })
        };
        match tokio::time::timeout(timeout, collect).await {
            Ok(done) => done,
            Err(_) => {
                let _ = session.signal(libc::SIGKILL).await;
                Err(Error::Timeout(format!("exec in container {id}"), timeout))
            }
        }
    }

    /// Attaches to the streams of a running container's first process: its output from now on, and its stdin if it has one. The
    /// streams end with the container; dropping them detaches.
    pub async fn attach(&self, id: &ContainerId, stdin: bool) -> Result<Streams> {
        let sandbox = self.get(&id.sandbox)?;
        let (terminal, has_stdin) = sandbox.with_container(id, |c| (c.record.terminal, c.record.stdin))?;
        let client = sandbox.client()?;
        let (streams, theirs) = ends(stdin && (has_stdin || terminal), !terminal).map_err(pipe_error)?;
        let fds: Vec<BorrowedFd<'_>> = theirs.iter().flatten().map(|fd| fd.as_fd()).collect();
        let call = Call::Attach { key: id.key(), stdin: theirs[0].is_some() };
        client.ask(JournalWriter::none().cause(), call, &fds).await?;
        Ok(streams)
    }
}

/// Our ends, and the other side's.
type Ends = (Streams, [Option<OwnedFd>; 3]);

fn ends(stdin: bool, stderr: bool) -> std::io::Result<Ends> {
    let mut theirs = [None, None, None];
    let mut output = |wanted: bool, number: usize| -> std::io::Result<Option<OwnedFd>> {
        if !wanted {
            return Ok(None);
        }
        let (ours, other) = io::pipe()?;
        io::set_nonblocking(ours.as_fd())?;
        theirs[number] = Some(other);
        Ok(Some(ours))
    };
    let (stdout, stderr) = (output(true, 1)?, output(stderr, 2)?);
    let stdin = match stdin {
        true => {
            let (other, ours) = io::pipe()?;
            io::set_nonblocking(ours.as_fd())?;
            theirs[0] = Some(other);
            Some(ours)
        }
        false => None,
    };
    Ok((Streams { stdin, stdout, stderr }, theirs))
}

fn pipe_error(e: std::io::Error) -> Error {
    Error::Kernel(format!("pipe: {e}"))
}

/// Keeps the beginning of a stream and discards the rest until its end.
async fn collect(fd: Option<OwnedFd>, into: &mut Vec<u8>) {
    let Some(mut pipe) = fd.and_then(|fd| Receiver::from_owned_fd(fd).ok()) else { return };
    let mut chunk = [0u8; 4096];
    while let Ok(n) = pipe.read(&mut chunk).await {
        if n == 0 {
            return;
        }
        let room = MAX_OUTPUT - into.len();
        into.extend_from_slice(&chunk[..n.min(room)]);
    }
}

//! The agent's side: what CRI calls the RuntimeService, as async methods.

use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::sync::broadcast;

use crate::{
    Config, ContainerId, ContainerSpec, ContainerStatus, Error, Event, ExecOutput, ExecSpec, Exit, ProcessInfo, Result,
    SandboxSpec, SandboxStatus, Scribe, Stats, Streams,
};

/// All sandboxes and containers of one node. Cheap to clone. Every method may be repeated after a failure or a crash.
#[derive(Clone, Debug)]
pub struct Runtime {
    events: broadcast::Sender<Event>,
}

const LATER: &str = "the runtime is being built";

impl Runtime {
    /// Opens the folders, finds every shim of an earlier agent and reconnects; containers whose shim died are killed and
    /// reported as [`ContainerStatusUnknown`](crate::ExitReason); what was half made is removed.
    pub async fn open(_config: Config) -> Result<Runtime> {
        Err(Error::Kernel(LATER.into()))
    }

    /// Exits, as they happen. A receiver that lags must look at [`Runtime::list`].
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Makes a sandbox ready: cgroup, shim, `pause` in its namespaces. A sandbox that is ready already is left alone.
    pub async fn run_sandbox(&self, _spec: SandboxSpec, _scribe: &Scribe) -> Result<SandboxStatus> {
        Err(Error::Kernel(LATER.into()))
    }

    /// The network namespace of a ready sandbox.
    pub async fn netns(&self, _sandbox: &str) -> Result<OwnedFd> {
        Err(Error::Kernel(LATER.into()))
    }

    /// Kills what still runs and ends `pause` and its namespaces. Records and logs stay.
    pub async fn stop_sandbox(&self, _sandbox: &str, _scribe: &Scribe) -> Result<()> {
        Err(Error::Kernel(LATER.into()))
    }

    /// Stops it and removes all that is left of it, its containers included. Logs are the caller's.
    pub async fn remove_sandbox(&self, _sandbox: &str, _scribe: &Scribe) -> Result<()> {
        Err(Error::Kernel(LATER.into()))
    }

    /// Prepares a container up to, but not including, its `execve`.
    pub async fn create_container(&self, _spec: ContainerSpec, _scribe: &Scribe) -> Result<ContainerStatus> {
        Err(Error::Kernel(LATER.into()))
    }

    /// Lets a created container execute its process. Errors: [`Error::Start`], after which it is `Exited` with code 128.
    pub async fn start_container(&self, _id: &ContainerId, _scribe: &Scribe) -> Result<()> {
        Err(Error::Kernel(LATER.into()))
    }

    /// Sends a signal to the first process of a container; nothing happens if it has ended.
    pub async fn signal_container(&self, _id: &ContainerId, _signal: i32, _scribe: &Scribe) -> Result<()> {
        Err(Error::Kernel(LATER.into()))
    }

    /// Sends `signal`, waits for at most `grace`, kills what is left, and returns when it has ended.
    pub async fn stop_container(
        &self,
        _id: &ContainerId,
        _signal: i32,
        _grace: Duration,
        _scribe: &Scribe,
    ) -> Result<Option<Exit>> {
        Err(Error::Kernel(LATER.into()))
    }

    /// Removes a container (killing it if need be), its writable layer and its record.
    pub async fn remove_container(&self, _id: &ContainerId, _scribe: &Scribe) -> Result<()> {
        Err(Error::Kernel(LATER.into()))
    }

    /// Runs a process in a running container. Dropping the session does not end the process.
    pub async fn exec(&self, _id: &ContainerId, _spec: ExecSpec, _scribe: &Scribe) -> Result<ExecSession> {
        Err(Error::Kernel(LATER.into()))
    }

    /// Runs a process to its end and collects its output; killed after `timeout` ([`Error::Timeout`]).
    pub async fn exec_sync(
        &self,
        _id: &ContainerId,
        _spec: ExecSpec,
        _timeout: Duration,
        _scribe: &Scribe,
    ) -> Result<ExecOutput> {
        Err(Error::Kernel(LATER.into()))
    }

    /// Joins the streams of a running container's first process: what it writes from now on, and its stdin if it has one.
    /// The streams end when the container does; dropping them detaches.
    pub async fn attach(&self, _id: &ContainerId, _stdin: bool) -> Result<Streams> {
        Err(Error::Kernel(LATER.into()))
    }

    /// Sets the terminal size of a container (columns, rows).
    pub async fn resize(&self, _id: &ContainerId, _size: (u16, u16)) -> Result<()> {
        Err(Error::Kernel(LATER.into()))
    }

    /// All sandboxes with their containers.
    pub async fn list(&self) -> Vec<SandboxStatus> {
        Vec::new()
    }

    /// One sandbox with its containers.
    pub async fn sandbox(&self, _id: &str) -> Option<SandboxStatus> {
        None
    }

    /// Usage of one container.
    pub async fn stats(&self, _id: &ContainerId) -> Result<Stats> {
        Err(Error::Kernel(LATER.into()))
    }

    /// Usage of a sandbox and all in it.
    pub async fn sandbox_stats(&self, _sandbox: &str) -> Result<Stats> {
        Err(Error::Kernel(LATER.into()))
    }

    /// The processes of a container, its first one first.
    pub async fn processes(&self, _id: &ContainerId) -> Result<Vec<ProcessInfo>> {
        Err(Error::Kernel(LATER.into()))
    }
}

/// A process started by [`Runtime::exec`].
#[derive(Debug)]
pub struct ExecSession {
    /// Take what you need; the rest is closed on drop.
    pub streams: Streams,
    /// In the agent's PID namespace.
    pub pid: u32,
}

impl ExecSession {
    /// Its exit code (128 + signal after a signal). Errors: [`Error::ShimGone`].
    pub async fn wait(&mut self) -> Result<i32> {
        Err(Error::Kernel(LATER.into()))
    }

    /// Sets the size of its terminal (columns, rows).
    pub fn resize(&self, _size: (u16, u16)) -> Result<()> {
        Err(Error::Kernel(LATER.into()))
    }

    /// Sends it a signal; nothing happens if it has ended.
    pub async fn signal(&self, _signal: i32) -> Result<()> {
        Err(Error::Kernel(LATER.into()))
    }
}

//! What a Pod worker needs from the machine: a narrow trait, so that a hollow node can run without a kernel below it.

use std::{collections::HashSet, fmt, net::IpAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use tokio::{net::TcpStream, sync::mpsc};

use super::{
    backoff::Backoff,
    pod::{
        intent::Failure,
        observed::{Attempt, Exit, Observed},
        progress::Progress,
    },
    spec::ContainerRef,
    storage::{Disks, Thresholds, Usage},
    usage::meter::Sample,
};

/// Upstream's reasons for failed operations on a Pod, as events and statuses name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    FailedMount,
    FailedMapVolume,
    FailedCreatePodSandBox,
    InvalidImageName,
    ErrImageNeverPull,
    ErrImagePull,
    CreateContainerConfigError,
    CreateContainerError,
    /// The container was created, but its process could not be executed.
    StartError,
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::FailedMount => "FailedMount",
            Reason::FailedMapVolume => "FailedMapVolume",
            Reason::FailedCreatePodSandBox => "FailedCreatePodSandBox",
            Reason::InvalidImageName => "InvalidImageName",
            Reason::ErrImageNeverPull => "ErrImageNeverPull",
            Reason::ErrImagePull => "ErrImagePull",
            Reason::CreateContainerConfigError => "CreateContainerConfigError",
            Reason::CreateContainerError => "CreateContainerError",
            Reason::StartError => "StartError",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failed operation, with upstream's reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct ActionError {
    pub reason: Reason,
    pub message: String,
}

impl ActionError {
    pub fn new(reason: Reason, message: impl fmt::Display) -> ActionError {
        ActionError { reason, message: message.to_string() }
    }
    pub fn failure(&self) -> Failure {
        Failure { reason: self.reason.to_string(), message: self.message.clone() }
    }
}

/// A failure without an upstream reason: it is logged, put into a message, or retried.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// A command exceeded its time limit and was killed.
    #[error("command timed out after {0:?}")]
    TimedOut(Duration),
    /// A memory limit would fall below current usage: it can succeed once usage drops. In upstream's words.
    #[error("{0}")]
    MemoryInUse(String),
    /// A lower layer failed, or several did.
    #[error(transparent)]
    Failed(#[from] Box<dyn std::error::Error + Send + Sync>),
}

/// A running container.
#[derive(Clone, Debug)]
pub struct Started {
    pub id: String,
    pub at: Timestamp,
}

/// A container whose cgroup should get its allocated resources.
#[derive(Clone, Debug)]
pub struct Running {
    pub container: String,
    pub id: String,
    /// What its cgroup was set to last.
    pub has: ResourceRequirements,
}

/// The result of a resize.
#[derive(Debug)]
pub struct Resized {
    /// The resources containers got, by their ids; also if only part was done.
    pub has: Vec<(String, ResourceRequirements)>,
    pub result: Result<(), ExecutorError>,
}

/// How to start a container.
#[derive(Clone, Debug)]
pub struct StartOrder {
    /// The attempt number of the Pod's sandbox.
    pub sandbox: u32,
    /// The attempt number of the container.
    pub restart: u32,
    /// Stored with the container for a later agent.
    pub backoff: Backoff,
    pub image_id: String,
    pub ips: Vec<IpAddr>,
    /// The container whose processes this one should see, and its `restartCount`.
    pub target: Option<(String, u32)>,
}

/// The result of a command run inside a container.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    pub code: i32,
    /// Standard output and error, the first few KiB.
    pub output: String,
}

/// Progress of a pull.
#[derive(Clone, Debug)]
pub enum PullProgress {
    /// A registry is being contacted.
    Pulling,
    /// These image pull secrets of the Pod are skipped: their names, and the reason if there is more to say.
    LeftOut(Vec<String>),
}

/// An image that is ready for a container.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// For `imageID`.
    pub id: String,
    /// How long the pull took, if there was one: alone, and including waiting for others.
    pub pulled: Option<(Duration, Duration)>,
    /// Bytes.
    pub size: u64,
}

/// An event that no caller caused.
#[derive(Clone, Debug)]
pub enum RuntimeEvent {
    Exited {
        uid: String,
        container: String,
        id: String,
        exit: Exit,
    },
    SandboxGone {
        uid: String,
        attempt: u32,
    },
    /// Something external changed what the node maintains: reported as an event of the Node.
    Damage {
        reason: &'static str,
        message: String,
    },
    /// Events were lost: check everything again.
    Lagged,
}

/// A Pod of an earlier agent found on the machine.
#[derive(Clone, Debug)]
pub struct RecoveredPod {
    pub pod: Pod,
    pub seen: Observed,
    pub progress: Progress,
}

/// The machine, real or hollow. All methods are idempotent.
#[async_trait]
pub trait Executor: Send + Sync + 'static {
    /// Removes what an earlier agent left half created or replaced. Called once, before `runtime_events`: the exits of such
    /// containers must not be reported, and their names will be reused.
    async fn tidy(&self) {}
    /// Every Pod of which anything exists on this node.
    async fn find(&self) -> Vec<RecoveredPod>;
    /// The same for one Pod whose worker has ended; removes what is half created.
    async fn find_one(&self, uid: &str) -> Option<RecoveredPod> {
        self.find().await.into_iter().find(|found| found.pod.metadata.uid.as_deref() == Some(uid))
    }
    /// Events from this call on. Called once, before `find`.
    fn runtime_events(&self) -> mpsc::UnboundedReceiver<RuntimeEvent>;
    /// Removes what belongs to none of the Pods `living` (uids): links, addresses, folders, mounts. Returns all errors as text.
    async fn sweep(&self, living: Vec<String>) -> Vec<String>;

    /// Sets up the Pod's volume of that name. Other volumes may be set up at the same time.
    ///
    /// # Errors
    ///
    /// Upstream's `FailedMount` or `FailedMapVolume`: it cannot be set up, or is not available yet.
    async fn mount_volume(&self, pod: &Arc<Pod>, volume: &str) -> Result<(), ActionError>;
    /// Updates those of these mounted volumes that are ConfigMaps, Secrets, tokens and downward API files. Returns the failures; a
    /// failed volume keeps its old content.
    async fn refresh_volumes(&self, pod: &Arc<Pod>, volumes: &[String]) -> Vec<ActionError>;
    /// Unmounts the volumes of a Pod that has ended, removes its data on disk, and releases its user ids. May be retried.
    ///
    /// # Errors
    ///
    /// Part of it remains. The rest is gone.
    async fn release_volumes(&self, pod: &Pod) -> Result<(), ExecutorError>;

    /// Creates the sandbox and connects it; returns the Pod's addresses. The containers' `history` is stored for a later agent.
    ///
    /// # Errors
    ///
    /// The sandbox was not created or not connected: calling again continues from there.
    async fn start_sandbox(&self, pod: &Arc<Pod>, attempt: u32, history: &str) -> Result<Vec<IpAddr>, ActionError>;
    /// Stops the sandbox with everything in it, and disconnects it; its containers remain for inspection.
    ///
    /// # Errors
    ///
    /// Part of that failed; the rest was done.
    async fn stop_sandbox(&self, pod: &Pod, attempt: u32) -> Result<(), ExecutorError>;
    /// Removes the sandbox with all its containers.
    ///
    /// # Errors
    ///
    /// Part of it remains. The rest is gone.
    async fn remove_sandbox(&self, pod: &Pod, attempt: u32) -> Result<(), ExecutorError>;
    /// Removes everything the Pod has on this node.
    ///
    /// # Errors
    ///
    /// Part of it remains. The rest is gone.
    async fn remove(&self, pod: &Pod, attempt: u32) -> Result<(), ExecutorError>;

    /// Ensures that the container's image is present and that the Pod may use it, following its pull policy.
    ///
    /// # Errors
    ///
    /// Upstream's: `InvalidImageName`, `ErrImageNeverPull`, `ErrImagePull`.
    async fn pull(
        &self,
        pod: &Arc<Pod>,
        part: &ContainerRef<'_>,
        progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Pulled, ActionError>;
    /// Creates a container and starts it.
    ///
    /// # Errors
    ///
    /// Upstream's: `CreateContainerConfigError` for an invalid manifest, `StartError` for what cannot be executed,
    /// `CreateContainerError` for the rest. Nothing of it remains.
    async fn start(&self, pod: &Arc<Pod>, part: &ContainerRef<'_>, order: StartOrder) -> Result<Started, ActionError>;
    /// Applies the resources of `pod` to its cgroup and to those of `containers`, in place; stored for a later agent.
    async fn resize(&self, pod: &Arc<Pod>, sandbox: u32, containers: Vec<Running>) -> Resized;
    /// Stores for a later agent whether a container is being stopped in order to be restarted regardless of its restart policy.
    ///
    /// # Errors
    ///
    /// The container exists, but its record could not be written.
    async fn renews(&self, _pod: &Pod, _id: &str, _yes: bool) -> Result<(), ExecutorError> {
        Ok(())
    }
    /// Sends the stop signal, waits for `grace`, then kills. `None`: it no longer existed.
    ///
    /// # Errors
    ///
    /// It may still be running.
    async fn stop(
        &self,
        pod: &Pod,
        id: &str,
        signal: Option<&str>,
        grace: Duration,
    ) -> Result<Option<Exit>, ExecutorError>;
    /// Removes an earlier attempt of a container.
    async fn forget(&self, pod: &Pod, attempt: &Attempt);
    /// Runs a command inside a container and waits for it.
    ///
    /// # Errors
    ///
    /// It could not be run, or did not end in time: [`ExecutorError::TimedOut`].
    async fn run(&self, pod: &Pod, id: &str, command: &[String], timeout: Duration) -> Result<Ran, ExecutorError>;
    /// Connects from inside the node's network.
    ///
    /// # Errors
    ///
    /// The address is unreachable or refuses the connection.
    async fn connect(&self, address: std::net::SocketAddr) -> std::io::Result<TcpStream>;

    /// The counters of the node and of all running containers. `pods`: those bound to the node, as the server shows them.
    async fn usage(&self, pods: &[Arc<Pod>]) -> Sample;

    /// The Pod's disk usage, as far as it can be measured within this much CPU time; `None`: it cannot be measured.
    async fn storage(&self, _pod: &Pod, _most: Duration) -> Option<Usage> {
        None
    }
    /// The free space of the disks.
    async fn disks(&self) -> Disks {
        Disks::default()
    }
    /// The uids of removed Pods whose files are still being deleted.
    async fn leaving(&self) -> HashSet<String> {
        HashSet::new()
    }
    /// Deletes unneeded data from the disks, then unused images until no threshold is crossed.
    async fn reclaim(&self, _thresholds: &Thresholds) {}

    /// What the Pod requests and this machine cannot fulfil; reported once per Pod.
    fn shortcomings(&self, pod: &Pod) -> Vec<String>;
}

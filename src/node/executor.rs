//! What a Pod worker asks of the machine: a narrow trait, so that a hollow node is a node without a kernel below it.

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
    },
    spec::ContainerRef,
    storage::{Disks, Thresholds, Usage},
    usage::meter::Sample,
};

/// Upstream's reasons for what could not be done for a Pod, as events and statuses name them.
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
    /// There is a container, whose process could not be executed.
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

/// Why something did not work, with upstream's reason for it.
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

/// Why the machine has not done what upstream has no reason for: it goes to the log, into a message, or is tried again.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// A command still ran when its time was over, and was ended.
    #[error("command timed out after {0:?}")]
    TimedOut(Duration),
    /// A limit of memory would fall below what is in use: it may when less is. In upstream's words.
    #[error("{0}")]
    MemoryInUse(String),
    /// Something below has failed, or several things have.
    #[error(transparent)]
    Failed(#[from] Box<dyn std::error::Error + Send + Sync>),
}

/// A container that runs.
#[derive(Clone, Debug)]
pub struct Started {
    pub id: String,
    pub at: Timestamp,
}

/// A container whose cgroup shall get what is allocated to it.
#[derive(Clone, Debug)]
pub struct Running {
    pub container: String,
    pub id: String,
    /// What its cgroup was told last.
    pub has: ResourceRequirements,
}

/// What came of a resize.
#[derive(Debug)]
pub struct Resized {
    /// What containers have got by it, by their ids; also where not all was done.
    pub has: Vec<(String, ResourceRequirements)>,
    pub result: Result<(), ExecutorError>,
}

/// How to start a container.
#[derive(Clone, Debug)]
pub struct StartOrder {
    /// Which sandbox of the Pod.
    pub sandbox: u32,
    /// Which start of the container.
    pub restart: u32,
    /// Remembered with the container, for a later agent.
    pub backoff: Backoff,
    pub image_id: String,
    pub ips: Vec<IpAddr>,
    /// The container whose processes this one shall see, and its `restartCount`.
    pub target: Option<(String, u32)>,
}

/// What a command that was run inside a container said.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    pub code: i32,
    /// Standard output and error, the first few KiB.
    pub output: String,
}

/// What goes on in the middle of a pull.
#[derive(Clone, Debug)]
pub enum PullProgress {
    /// A registry is being asked.
    Pulling,
    /// These of the Pod's image pull secrets are left out: their names, and why where there is more to say.
    LeftOut(Vec<String>),
}

/// An image that is ready for a container.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// For `imageID`.
    pub id: String,
    /// How long it took, when it was pulled: the pull itself, and with waiting for others.
    pub pulled: Option<(Duration, Duration)>,
    /// Bytes.
    pub size: u64,
}

/// Something happened by itself.
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
    /// Something outside has changed what the node looks after: an event of the Node.
    Damage {
        reason: &'static str,
        message: String,
    },
    /// Events were lost: look at everything again.
    Lagged,
}

/// A Pod of an earlier agent, as found on the machine.
#[derive(Clone, Debug)]
pub struct RecoveredPod {
    pub pod: Pod,
    pub seen: Observed,
}

/// The machine, or the absence of one. All methods may be repeated.
#[async_trait]
pub trait Executor: Send + Sync + 'static {
    /// Removes what an earlier agent left half made or had replaced. Called once, before `runtime_events`: the ends of such
    /// containers concern nobody, and others will have their names.
    async fn tidy(&self) {}
    /// Every Pod that this node has anything of.
    async fn find(&self) -> Vec<RecoveredPod>;
    /// The same of one Pod, whose worker has ended; what is half made of it is removed.
    async fn find_one(&self, uid: &str) -> Option<RecoveredPod> {
        self.find().await.into_iter().find(|found| found.pod.metadata.uid.as_deref() == Some(uid))
    }
    /// Events since the call of this method. Called once, before `find`.
    fn runtime_events(&self) -> mpsc::UnboundedReceiver<RuntimeEvent>;
    /// Removes what belongs to no Pod among `living` (uids): links, addresses, folders, mounts. All errors, in words.
    async fn sweep(&self, living: Vec<String>) -> Vec<String>;

    /// Sets up the volume of that name of the Pod. Others of it may be set up at the same time.
    ///
    /// # Errors
    ///
    /// Upstream's: `FailedMount`, `FailedMapVolume`. It cannot be made, or is not to be had yet.
    async fn mount_volume(&self, pod: &Arc<Pod>, volume: &str) -> Result<(), ActionError>;
    /// Brings those of these mounted volumes up to date that are ConfigMaps, Secrets, tokens and downward API files. Returns what
    /// failed with any of them: what that showed before stays.
    async fn refresh_volumes(&self, pod: &Arc<Pod>, volumes: &[String]) -> Vec<ActionError>;
    /// Takes away what is mounted for a Pod that has ended, what of it is on the disk, and the ids of its users. It may be tried again.
    ///
    /// # Errors
    ///
    /// Something of it is still there. The rest is gone.
    async fn release_volumes(&self, pod: &Pod) -> Result<(), ExecutorError>;

    /// Makes the sandbox and connects it; the Pod's addresses. `seen` is remembered for a later agent.
    ///
    /// # Errors
    ///
    /// There is no sandbox, or it is not connected: the same call goes on from there.
    async fn start_sandbox(&self, pod: &Arc<Pod>, attempt: u32, seen: &Observed) -> Result<Vec<IpAddr>, ActionError>;
    /// Ends the sandbox and all in it, and disconnects it; its containers stay to be looked at.
    ///
    /// # Errors
    ///
    /// Some of that was not done; all the rest was.
    async fn stop_sandbox(&self, pod: &Pod, attempt: u32) -> Result<(), ExecutorError>;
    /// Removes the sandbox with all its containers.
    ///
    /// # Errors
    ///
    /// Something of it is still there. The rest is gone.
    async fn remove_sandbox(&self, pod: &Pod, attempt: u32) -> Result<(), ExecutorError>;
    /// Removes everything that the Pod has on this node.
    ///
    /// # Errors
    ///
    /// Something of it is still there. The rest is gone.
    async fn remove(&self, pod: &Pod, attempt: u32) -> Result<(), ExecutorError>;

    /// Makes sure that the container's image is present and that the Pod may use it, as its pull policy says.
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
    /// Makes a container and starts it.
    ///
    /// # Errors
    ///
    /// Upstream's: `CreateContainerConfigError` for what its manifest asks for, `StartError` for what cannot be executed,
    /// `CreateContainerError` for the rest. Nothing of it is left.
    async fn start(&self, pod: &Arc<Pod>, part: &ContainerRef<'_>, order: StartOrder) -> Result<Started, ActionError>;
    /// Brings the resources of `pod` to its own cgroup and to those of `containers`, in place; remembered for a later agent.
    async fn resize(&self, pod: &Arc<Pod>, sandbox: u32, containers: Vec<Running>) -> Resized;
    /// Remembers for a later agent whether a container is stopped to be started anew, whatever its restart policy.
    ///
    /// # Errors
    ///
    /// It is there, and that could not be noted with it.
    async fn renews(&self, _pod: &Pod, _id: &str, _yes: bool) -> Result<(), ExecutorError> {
        Ok(())
    }
    /// Signals, waits for `grace`, kills. `None`: it was not there any more.
    ///
    /// # Errors
    ///
    /// It may still run.
    async fn stop(
        &self,
        pod: &Pod,
        id: &str,
        signal: Option<&str>,
        grace: Duration,
    ) -> Result<Option<Exit>, ExecutorError>;
    /// Forgets an earlier attempt of a container.
    async fn forget(&self, pod: &Pod, attempt: &Attempt);
    /// Runs a command inside a container, until it ends.
    ///
    /// # Errors
    ///
    /// It could not be run, or has not ended in time: [`ExecutorError::TimedOut`].
    async fn run(&self, pod: &Pod, id: &str, command: &[String], timeout: Duration) -> Result<Ran, ExecutorError>;
    /// A connection from inside the node's network.
    ///
    /// # Errors
    ///
    /// Nobody answers there, or it cannot be reached.
    async fn connect(&self, address: std::net::SocketAddr) -> std::io::Result<TcpStream>;

    /// The counters of the node and of all containers that run now. `pods`: those that are bound to the node, as the server
    /// shows them.
    async fn usage(&self, pods: &[Arc<Pod>]) -> Sample;

    /// What the Pod has on disk, as far as that is found in so much CPU time; `None`: it cannot be told.
    async fn storage(&self, _pod: &Pod, _most: Duration) -> Option<Usage> {
        None
    }
    /// The room on the disks.
    async fn disks(&self) -> Disks {
        Disks::default()
    }
    /// The uids of Pods that are gone and whose files are still being removed.
    async fn leaving(&self) -> HashSet<String> {
        HashSet::new()
    }
    /// Removes from the disks what nobody needs any more, and images that nobody uses until nothing falls below these.
    async fn reclaim(&self, _thresholds: &Thresholds) {}

    /// What of the Pod's wishes this machine cannot fulfil; said once per Pod.
    fn shortcomings(&self, pod: &Pod) -> Vec<String>;
}

//! What must be done for a Pod, as data: the worker executes it without decisions of its own.

use std::{net::IpAddr, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use serde_json::Value;

use super::observed::Attempt;
use crate::{
    executor::{Running, StartOrder},
    startup::Took,
};

#[derive(Debug)]
pub enum Effect {
    /// Starts work for the Pod in its current desired state; ends in one [`ActionResult`](super::ActionResult).
    Begin(Arc<Pod>, Work),
    /// The image of this container is no longer needed.
    CancelPull(String),
    /// Shortens the deadline of this container's stop.
    Shorten {
        container: String,
        deadline: Timestamp,
    },
    Probes(ProbeChange),
    Record(Record),
    /// Warns about limits that this machine does not enforce, but for those that `unless_of` has, too.
    WarnOfShortcomings {
        pod: Arc<Pod>,
        unless_of: Option<Arc<Pod>>,
    },
    /// Removes an earlier attempt of a container.
    Forget(Arc<Pod>, Attempt),
    /// Starts the trace of the Pod's startup; its steps are part of it.
    TraceStart(Arc<Pod>),
    TraceEnd,
    /// The Pod runs: its startup durations, for the metrics.
    Started(Took),
    /// When to send [`Sync`](super::PodEvent::Sync) without an event; `None`: never.
    Wake(Option<Timestamp>),
    /// Ends the worker; a new one starts from what is found on the machine.
    GiveUp(String),
}

/// A longer operation, on the machine or at the server.
#[derive(Clone, Debug)]
pub enum Work {
    MountVolume {
        volume: String,
    },
    /// Updates these mounted volumes.
    RefreshVolumes {
        volumes: Vec<String>,
    },
    ReleaseVolumes,
    /// The containers' [history](super::history) is stored for a later agent.
    StartSandbox {
        attempt: u32,
        history: String,
    },
    StopSandbox {
        attempt: u32,
    },
    RemoveSandbox {
        attempt: u32,
    },
    Pull {
        container: String,
        image: String,
    },
    Start {
        container: String,
        order: StartOrder,
    },
    PostStart {
        container: String,
        id: String,
        ips: Vec<IpAddr>,
    },
    Stop {
        container: String,
        id: String,
        ips: Vec<IpAddr>,
        deadline: Timestamp,
        /// Whether to record a restart first.
        note: Option<bool>,
    },
    /// Records with a container whether it is being stopped for a restart.
    Note {
        id: String,
        renew: bool,
    },
    Resize {
        sandbox: u32,
        containers: Vec<Running>,
    },
    Remove {
        attempt: u32,
    },
    /// The API object that represents the Pod.
    WriteStatus {
        target: Arc<Pod>,
        status: Value,
    },
    ReadStatus {
        target: Arc<Pod>,
    },
    DeleteObject {
        target: Arc<Pod>,
    },
}

/// A change to a Pod's probes.
#[derive(Clone, Debug, PartialEq)]
pub enum ProbeChange {
    Start(ProbedContainer),
    /// This container's startup probe has succeeded: start the others.
    StartupSucceeded(String),
    Stop {
        container: String,
        keep_readiness: bool,
    },
    /// A terminating Pod is no longer killed by probes, but still reports readiness.
    KeepReadinessOnly,
    Clear,
}

/// A running container, to be probed.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbedContainer {
    pub pod: Arc<Pod>,
    pub container: String,
    pub id: String,
    pub ips: Vec<IpAddr>,
    pub started_at: Timestamp,
    /// There is no startup probe, or it has succeeded.
    pub started: bool,
}

/// An Event of the API.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub about: ObjectReference,
    pub warning: bool,
    pub reason: String,
    pub message: String,
}

//! What is to be done about a Pod, as data: the worker does it and decides nothing.

use std::{net::IpAddr, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use serde_json::Value;

use super::observed::{Attempt, Observed};
use crate::{
    executor::{Running, StartOrder},
    startup::Took,
};

#[derive(Debug)]
pub enum Effect {
    /// Begins something for the Pod as it is wanted now; it ends in one [`ActionResult`](super::ActionResult).
    Begin(Arc<Pod>, Work),
    /// Nobody waits any more for the image of this container.
    CancelPull(String),
    /// The stop of this container that is under way gets less time.
    Shorten {
        container: String,
        deadline: Timestamp,
    },
    Probes(ProbeChange),
    Record(Record),
    /// Warns of what this machine cannot do for the Pod, unless it could do all of it for `before`.
    WarnOfShortcomings {
        pod: Arc<Pod>,
        unless_of: Option<Arc<Pod>>,
    },
    /// Forgets an earlier attempt of a container.
    Forget(Arc<Pod>, Attempt),
    /// The Pod's start begins: its steps are parts of a trace until it is over.
    TraceStart(Arc<Pod>),
    TraceEnd,
    /// The Pod runs: what its start took, for the metrics.
    Started(Took),
    /// When to send [`Sync`](super::PodEvent::Sync) although nothing has happened; `None`: never.
    Wake(Option<Timestamp>),
    /// The worker ends, and another one begins with what is found on the machine.
    GiveUp(String),
}

/// Something that takes its time, on the machine or at the server.
#[derive(Clone, Debug)]
pub enum Work {
    MountVolume {
        volume: String,
    },
    /// Brings these up to date, which are mounted.
    RefreshVolumes {
        volumes: Vec<String>,
    },
    ReleaseVolumes,
    /// `seen` is remembered for a later agent.
    StartSandbox {
        attempt: u32,
        seen: Box<Observed>,
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
        /// To be noted with it first: whether it is started anew.
        note: Option<bool>,
    },
    /// Notes with a container whether it is stopped to be started anew.
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
    /// Of the object that shows the Pod.
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

/// What becomes of a Pod's probes.
#[derive(Clone, Debug, PartialEq)]
pub enum ProbeChange {
    Start(ProbedContainer),
    /// The startup probe of this container has succeeded: the others begin.
    StartupSucceeded(String),
    Stop {
        container: String,
        keep_readiness: bool,
    },
    /// A Pod that ends is no longer killed for failing, but still says whether it is ready.
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

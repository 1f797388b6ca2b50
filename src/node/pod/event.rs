//! What happens to a Pod, as events for its worker.

use std::{net::IpAddr, sync::Arc};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use podwright_api::Status;

use super::{intent::Eviction, observed::Exit};
use crate::{
    executor::{ActionError, ExecutorError, Pulled, Resized, Started},
    hooks::HookError,
    probes::verdict::{Kind, Verdict},
    resize::allocation::Allotment,
};

#[derive(Debug)]
pub enum PodEvent {
    /// The worker starts.
    Start,
    /// No more events for now, or the time requested by [`Effect::Wake`](super::Effect::Wake) has come.
    Sync,
    /// The machine's clock was set, by this much.
    ClockSet(SignedDuration),
    /// The Pod's desired state, and its resource allotment.
    Wanted(Arc<Pod>, Allotment),
    /// The Pod is gone from its source.
    Gone,
    /// The mirror object of a static Pod.
    Mirror(Arc<Pod>),
    Exited {
        container: String,
        id: String,
        exit: Exit,
    },
    SandboxGone {
        attempt: u32,
    },
    /// A ConfigMap, Secret or anything else that the Pod may wait for has changed.
    Resync,
    Evict(Eviction),
    Probe {
        container: String,
        id: String,
        kind: Kind,
        verdict: Verdict,
    },
    Done(ActionResult),
    /// An operation panicked: the known state is no longer reliable.
    Broken(String),
}

/// The result of a [`Work`](super::Work).
#[derive(Debug)]
pub enum ActionResult {
    VolumeMounted {
        volume: String,
        result: Result<(), ActionError>,
    },
    /// The failures.
    VolumesRefreshed(Vec<ActionError>),
    VolumesReleased(Result<(), ExecutorError>),
    Sandbox(Result<Vec<IpAddr>, ActionError>),
    /// It counts as stopped, whatever came of it; what has failed is tried again.
    SandboxStopped(Result<(), ExecutorError>),
    /// To make way for another one, which waits until that has succeeded.
    SandboxRemoved(Result<(), ExecutorError>),
    /// Progress, not a result: a registry is being contacted.
    Pulling {
        container: String,
    },
    Pulled {
        container: String,
        /// The requested image; the manifest may have changed since.
        image: String,
        result: Result<Pulled, ActionError>,
    },
    Started {
        container: String,
        restart: u32,
        resources: Option<ResourceRequirements>,
        result: Result<Started, ActionError>,
    },
    Resized(Resized),
    /// The postStart hook's result.
    PostStart {
        container: String,
        id: String,
        result: Result<(), HookError>,
    },
    /// `Ok(None)`: it no longer existed.
    Stopped {
        container: String,
        id: String,
        result: Result<Option<Exit>, ExecutorError>,
    },
    /// The restart of a container was recorded.
    Noted,
    Removed(Result<(), ExecutorError>),
    /// The result of a status write.
    Written(Box<Result<Pod, Status>>),
    /// The Pod as the server has it.
    Read(Box<Result<Pod, Status>>),
    Deleted(Result<(), Status>),
}

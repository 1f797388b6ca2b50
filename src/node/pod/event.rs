//! What happens to a Pod, as its worker receives it.

use std::{net::IpAddr, sync::Arc};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use podwright_api::Status;

use super::observed::Exit;
use crate::{
    executor::{ActionError, ExecutorError, Pulled, Resized, Started},
    hooks::HookError,
    probes::verdict::{Kind, Verdict},
    resize::allocation::Allotment,
    storage::Eviction,
};

#[derive(Debug)]
pub enum PodEvent {
    /// Its worker begins.
    Start,
    /// No more has happened for now, or the time has come that [`Effect::Wake`](super::Effect::Wake) has asked for.
    Sync,
    /// Somebody has set the machine's clock, by so much.
    ClockSet(SignedDuration),
    /// The Pod as it is wanted now, and what of its resources it may have.
    Wanted(Arc<Pod>, Allotment),
    /// Its source does not know the Pod any more.
    Gone,
    /// The object by which the server shows a static Pod.
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
    /// What was begun has panicked: what is known of the Pod can no longer be trusted.
    Broken(String),
}

/// A [`Work`](super::Work) has come to its end.
#[derive(Debug)]
pub enum ActionResult {
    VolumeMounted {
        volume: String,
        result: Result<(), ActionError>,
    },
    /// What failed with any of them.
    VolumesRefreshed(Vec<ActionError>),
    VolumesReleased(Result<(), ExecutorError>),
    Sandbox(Result<Vec<IpAddr>, ActionError>),
    /// It counts as stopped, whatever came of it; what has failed is tried again.
    SandboxStopped(Result<(), ExecutorError>),
    SandboxRemoved,
    /// No end yet: a registry is being asked.
    Pulling {
        container: String,
    },
    Pulled {
        container: String,
        /// What was asked for; the manifest may name another one by now.
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
    /// The postStart hook has returned.
    PostStart {
        container: String,
        id: String,
        result: Result<(), HookError>,
    },
    /// `Ok(None)`: it was not there any more.
    Stopped {
        container: String,
        id: String,
        result: Result<Option<Exit>, ExecutorError>,
    },
    /// Whether a container is started anew.
    Noted,
    Removed(Result<(), ExecutorError>),
    /// What the server has made of a status.
    Written(Box<Result<Pod, Status>>),
    /// The Pod as the server has it.
    Read(Box<Result<Pod, Status>>),
    Deleted(Result<(), Status>),
}

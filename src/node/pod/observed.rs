//! What was observed of one Pod on this node: what is there, and how far each step with it has come.

use std::{collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ResourceRequirements;

use super::{intent::Failure, step::Step, volumes::PodVolumes};
use crate::{
    backoff::{self, Backoff, LONGEST_STEP, pause},
    resize::progress::Resize,
};

/// Everything that was observed of a Pod.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub sandbox: Sandbox,
    pub volumes: PodVolumes,
    pub containers: BTreeMap<String, Container>,
    /// When the agent first saw the Pod: `status.startTime`.
    pub start_time: Option<Timestamp>,
    /// From when it counts as active, by the clock as it is set now: `activeDeadlineSeconds` goes by time that passes.
    pub active_since: Option<Timestamp>,
    /// Taking away everything that the Pod had on this node.
    pub removal: Step,
    /// Giving back what a Pod has that has ended and stays: its volumes, what it has written, the ids of its users.
    pub release: Step,
    pub refresh: Refresh,
    pub resize: Resize,
}

/// Bringing mounted ConfigMaps and the like up to date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refresh {
    #[default]
    Idle,
    Underway,
    /// Under way, and something has changed since it began.
    Again,
}

/// The Pod's sandbox.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sandbox {
    pub state: SandboxState,
    /// How many sandboxes the Pod had before this one.
    pub attempt: u32,
    pub ips: Vec<IpAddr>,
    /// Failures to start it since the last success, and when to try again.
    pub trouble: Option<(u32, Timestamp)>,
    /// Stopping it, once it counts as stopped: what has failed of that.
    pub stop: Step,
}

impl Sandbox {
    /// Until when the next try to start it waits.
    pub fn waits(&self, now: Timestamp) -> Option<Timestamp> {
        pause(self.trouble.map(|(_, at)| at), LONGEST_STEP, now)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SandboxState {
    #[default]
    None,
    Starting,
    Ready,
    Stopping,
    /// Stopped by us, or found dead; its containers are dead too.
    Stopped,
}

/// One container, over all its attempts in the present sandbox.
#[derive(Clone, Debug, Default)]
pub struct Container {
    /// The newest attempt.
    pub attempt: Option<Attempt>,
    /// How the attempt before it ended.
    pub last: Option<Attempt>,
    pub busy: Busy,
    pub image: Image,
    /// Why it is not running, where upstream has a word for it.
    pub waiting: Option<Failure>,
    /// When to try again what failed.
    pub retry_at: Option<Timestamp>,
    pub backoff: Backoff,
    /// Its startup probe (if any) has succeeded and its postStart hook has returned.
    pub started: bool,
    /// Its readiness probe (if any) succeeds.
    pub ready: bool,
    /// It must be restarted.
    pub unhealthy: Option<Unhealthy>,
    /// It is stopped to be started anew, whatever its restart policy; noted with it, for a later agent.
    pub renewing: bool,
    /// A stop of it has failed: when the next one may be tried.
    pub stop_at: Option<Timestamp>,
}

/// What is being done to a container just now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Busy {
    #[default]
    Idle,
    Pulling,
    Starting,
    /// SIGKILL comes at `deadline` at the latest.
    Stopping {
        deadline: Timestamp,
    },
}

/// The container's image on this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Image {
    #[default]
    Unknown,
    /// Present: what the spec named, and the identity of what was found.
    Ready { name: String, id: String },
}

/// One start of a container.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// The runtime's name of it.
    pub id: String,
    /// `restartCount`: 0 for the first.
    pub restart: u32,
    /// The image as the spec named it, and its identity.
    pub image: String,
    pub image_id: String,
    pub started_at: Option<Timestamp>,
    pub exit: Option<Exit>,
    /// Whether it belongs to the present sandbox: an attempt of an earlier one counts for `restart` and status alone.
    pub current: bool,
    /// What its cgroup was told; `None`: not known, so what its Pod says.
    pub resources: Option<ResourceRequirements>,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    pub code: i32,
    /// `Completed`, `Error`, `OOMKilled`, `StartError`, `ContainerStatusUnknown`.
    pub reason: String,
    pub message: Option<String>,
    pub finished_at: Timestamp,
}

/// Why a running container must be restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unhealthy {
    /// For the Killing event: "failed liveness probe".
    pub why: String,
    /// The probe's own `terminationGracePeriodSeconds`.
    pub grace: Option<i64>,
}

impl Container {
    /// Until when what has failed waits before it is tried again.
    pub fn waits(&self, now: Timestamp) -> Option<Timestamp> {
        pause(self.retry_at, backoff::LONGEST, now)
    }
    pub fn is_running(&self) -> bool {
        self.attempt.as_ref().is_some_and(|a| a.current && a.started_at.is_some() && a.exit.is_none())
    }
    /// The end of the newest attempt, if it belongs to the present sandbox.
    pub fn exit(&self) -> Option<&Exit> {
        self.attempt.as_ref().filter(|a| a.current).and_then(|a| a.exit.as_ref())
    }
    /// Nothing of it runs and nothing is about to.
    pub fn is_still(&self) -> bool {
        !self.is_running() && self.busy == Busy::Idle
    }
    pub fn succeeded(&self) -> bool {
        self.exit().is_some_and(|exit| exit.code == 0)
    }
    /// The restart count of the next attempt.
    pub fn next_restart(&self) -> u32 {
        self.attempt.as_ref().map_or(0, |a| a.restart + 1)
    }
}

impl Observed {
    /// What is known of a container; nothing, if it was never touched.
    pub fn container(&self, name: &str) -> &Container {
        static NOTHING: std::sync::LazyLock<Container> = std::sync::LazyLock::new(Container::default);
        self.containers.get(name).unwrap_or(&NOTHING)
    }
    pub fn container_mut(&mut self, name: &str) -> &mut Container {
        self.containers.entry(name.to_owned()).or_default()
    }
    /// The sandbox is lost: its containers ended with it.
    pub fn lose_sandbox(&mut self, now: Timestamp) {
        self.sandbox.state = SandboxState::Stopped;
        self.sandbox.ips.clear();
        for container in self.containers.values_mut() {
            // It runs, so it is its hook that takes its time: nobody waits for that any more.
            if container.is_running() && container.busy == Busy::Starting {
                container.busy = Busy::Idle;
            }
            let Some(attempt) = &mut container.attempt else { continue };
            if attempt.exit.is_none() && attempt.current {
                attempt.exit = Some(Exit::unknown(now));
            }
        }
    }
    /// A new sandbox is about to be made: earlier attempts no longer count for the plan.
    pub fn renew_sandbox(&mut self) {
        self.sandbox = Sandbox { attempt: self.sandbox.attempt + 1, ..Sandbox::default() };
        for container in self.containers.values_mut() {
            container.started = false;
            container.ready = false;
            container.unhealthy = None;
            if let Some(attempt) = &mut container.attempt {
                attempt.current = false;
            }
        }
    }
}

impl Exit {
    /// Upstream's word for an end that nobody saw.
    pub fn unknown(now: Timestamp) -> Exit {
        Exit {
            code: 137,
            reason: "ContainerStatusUnknown".into(),
            message: Some("The container could not be located when the pod was terminated".into()),
            finished_at: now,
        }
    }
}

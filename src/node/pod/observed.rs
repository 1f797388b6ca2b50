//! The observed state of one Pod on this node: what exists, and how it fares. What the node is doing about it is its
//! [`Progress`](super::progress::Progress).

use std::{collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ResourceRequirements;

/// Everything observed of a Pod.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub sandbox: Sandbox,
    pub containers: BTreeMap<String, Container>,
    /// When the agent first saw the Pod: `status.startTime`.
    pub start_time: Option<Timestamp>,
    /// Start of the active time, by the current clock: `activeDeadlineSeconds` counts elapsed time.
    pub active_since: Option<Timestamp>,
}

/// The Pod's sandbox.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sandbox {
    pub state: SandboxState,
    /// How many sandboxes the Pod had before.
    pub attempt: u32,
    pub ips: Vec<IpAddr>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SandboxState {
    #[default]
    None,
    Ready,
    /// Stopped by the agent, or found dead; its containers are dead too.
    Stopped,
}

/// One container, across its attempts in the current sandbox.
#[derive(Clone, Debug, Default)]
pub struct Container {
    /// The newest attempt.
    pub attempt: Option<Attempt>,
    /// How the previous attempt ended.
    pub last: Option<Attempt>,
    pub image: Image,
    /// Its startup probe (if any) has succeeded and its postStart hook has finished.
    pub started: bool,
    /// Its readiness probe (if any) succeeds.
    pub ready: bool,
    /// It must be restarted.
    pub unhealthy: Option<Unhealthy>,
}

/// The container's image on this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Image {
    #[default]
    Unknown,
    /// Present: the name from the spec, and the id found.
    Ready { name: String, id: String },
}

/// One start of a container.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// The runtime's id of it.
    pub id: String,
    /// `restartCount`: 0 for the first.
    pub restart: u32,
    /// The image name from the spec, and its id.
    pub image: String,
    pub image_id: String,
    pub started_at: Option<Timestamp>,
    pub exit: Option<Exit>,
    /// Whether it belongs to the current sandbox: an attempt of an earlier one counts only for `restart` and status.
    pub current: bool,
    /// What its cgroup was set to; `None`: unknown, use the Pod's spec.
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
    pub fn is_running(&self) -> bool {
        self.attempt.as_ref().is_some_and(|a| a.current && a.started_at.is_some() && a.exit.is_none())
    }
    /// The exit of the newest attempt, if it belongs to the current sandbox.
    pub fn exit(&self) -> Option<&Exit> {
        self.attempt.as_ref().filter(|a| a.current).and_then(|a| a.exit.as_ref())
    }
    /// The exit of the newest attempt, in whatever sandbox.
    pub fn last_exit(&self) -> Option<&Exit> {
        self.attempt.as_ref().and_then(|a| a.exit.as_ref())
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
    /// The state of a container; empty if it was never touched.
    pub fn container(&self, name: &str) -> &Container {
        static NOTHING: std::sync::LazyLock<Container> = std::sync::LazyLock::new(Container::default);
        self.containers.get(name).unwrap_or(&NOTHING)
    }
    pub fn container_mut(&mut self, name: &str) -> &mut Container {
        self.containers.entry(name.to_owned()).or_default()
    }
    /// The sandbox is lost, and its containers with it.
    pub fn lose_sandbox(&mut self, now: Timestamp) {
        self.sandbox.state = SandboxState::Stopped;
        self.sandbox.ips.clear();
        for container in self.containers.values_mut() {
            let Some(attempt) = &mut container.attempt else { continue };
            if attempt.exit.is_none() && attempt.current {
                attempt.exit = Some(Exit::unknown(now));
            }
        }
    }
    /// A new sandbox is about to be created: earlier attempts no longer count for the plan.
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
    /// Upstream's reason for an unobserved exit.
    pub fn unknown(now: Timestamp) -> Exit {
        Exit {
            code: 137,
            reason: "ContainerStatusUnknown".into(),
            message: Some("The container could not be located when the pod was terminated".into()),
            finished_at: now,
        }
    }
}

//! The node agent without a node: plans, statuses, translations, files, and a hollow node on a real control plane.

mod action_errors;
mod admission;
mod endpoints;
mod hollow;
mod lifecycle;
mod local_volumes;
mod logs;
mod objects;
mod plan;
mod probes;
mod report;
mod residents;
mod resize;
mod resizing;
mod restore_status;
mod static_pods;
mod status;
mod storage;
mod tokens;
mod translate;
mod usage;
mod users;
mod verification;
mod volume_kinds;
mod volumes;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use podwright::node::pod::{
    Attempt, Busy, Container, ContainerProgress, Exit, Failure, Image, Inputs, Intent, Observed, PodVolumes, Progress,
    Sandbox, SandboxState,
};
use serde_json::{Value, json};

/// A Pod `default/web` with uid `u1` and this spec.
pub fn pod(spec: Value) -> Pod {
    let object = json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "u1", "labels": { "app": "web" } },
        "spec": spec,
    });
    serde_json::from_value(object).unwrap()
}

/// A timestamp, in seconds.
pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

/// What a plan and a status are computed from.
#[derive(Clone, Debug, Default)]
pub struct Known {
    pub intent: Intent,
    pub seen: Observed,
    pub progress: Progress,
}

impl Known {
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs { intent: &self.intent, seen: &self.seen, progress: &self.progress }
    }

    /// As [`ready`], with these containers.
    pub fn with<C: Clone + Into<Part>>(containers: &[(&str, C)]) -> Known {
        let mut known = ready();
        containers.iter().for_each(|(name, part)| known.put(name, part.clone()));
        known
    }

    pub fn put(&mut self, name: &str, part: impl Into<Part>) {
        let Part { seen, progress } = part.into();
        self.seen.containers.insert(name.to_owned(), seen);
        self.progress.containers.insert(name.to_owned(), progress);
    }

    pub fn seen(&mut self, name: &str) -> &mut Container {
        self.seen.container_mut(name)
    }

    pub fn progress(&mut self, name: &str) -> &mut ContainerProgress {
        self.progress.container_mut(name)
    }

    /// Both halves, as what follows a start takes them.
    pub fn halves(&mut self) -> (&mut Observed, &mut Progress) {
        (&mut self.seen, &mut self.progress)
    }
}

/// A container as observed, and the operations on it.
#[derive(Clone, Debug, Default)]
pub struct Part {
    pub seen: Container,
    pub progress: ContainerProgress,
}

impl From<Container> for Part {
    fn from(seen: Container) -> Part {
        Part { seen, progress: ContainerProgress::default() }
    }
}

impl Part {
    pub fn busy(self, busy: Busy) -> Part {
        Part { progress: ContainerProgress { busy, ..self.progress }, ..self }
    }

    pub fn waiting(self, reason: &str, message: &str) -> Part {
        let waiting = Some(Failure { reason: reason.into(), message: message.into() });
        Part { progress: ContainerProgress { waiting, ..self.progress }, ..self }
    }

    pub fn renewing(self) -> Part {
        Part { progress: ContainerProgress { renewing: true, ..self.progress }, ..self }
    }

    /// After one failure at this second.
    pub fn backed_off(mut self, second: i64) -> Part {
        self.progress.backoff.raise(at(second), at(second));
        self
    }
}

/// A Pod whose sandbox and volumes are ready, and nothing else.
pub fn ready() -> Known {
    let seen = Observed {
        sandbox: Sandbox { state: SandboxState::Ready, ips: vec!["10.0.0.7".parse().unwrap()], ..Sandbox::default() },
        start_time: Some(at(0)),
        active_since: Some(at(0)),
        ..Observed::default()
    };
    let progress = Progress { volumes: PodVolumes::Present(Default::default()), ..Progress::default() };
    Known { intent: Intent::Run, seen, progress }
}

pub fn image() -> Image {
    Image::Ready { name: "i:1".into(), id: "sha256:1".into() }
}

pub fn running() -> Container {
    let attempt = Attempt {
        id: "u1_0/c.0".into(),
        restart: 0,
        image: "i:1".into(),
        image_id: "sha256:1".into(),
        started_at: Some(at(1)),
        exit: None,
        current: true,
        resources: None,
    };
    Container { attempt: Some(attempt), image: image(), started: true, ready: true, ..Container::default() }
}

pub fn ended(code: i32) -> Container {
    let mut container = running();
    let reason = if code == 0 { "Completed" } else { "Error" };
    let exit = Exit { code, reason: reason.into(), message: None, finished_at: at(5) };
    container.attempt.as_mut().unwrap().exit = Some(exit);
    container.started = false;
    container.ready = false;
    container
}

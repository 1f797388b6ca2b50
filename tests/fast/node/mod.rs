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
use podwright::node::pod::{Attempt, Container, Exit, Image, Observed, PodVolumes, Sandbox, SandboxState};
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

/// A Pod whose sandbox and volumes are ready, and nothing else.
pub fn ready() -> Observed {
    Observed {
        sandbox: Sandbox { state: SandboxState::Ready, ips: vec!["10.0.0.7".parse().unwrap()], ..Sandbox::default() },
        volumes: PodVolumes::Present(Default::default()),
        start_time: Some(at(0)),
        active_since: Some(at(0)),
        ..Observed::default()
    }
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

//! A Pod's columns: the STATUS, READY and RESTARTS logic of upstream's printer.

use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::Value;

use super::{AGE, Column, NAME, age, column, text_or, wide};
use crate::Object;

pub const COLUMNS: &[Column] = &[
    NAME,
    column("READY", |o, now| summary(o, now).ready),
    column("STATUS", |o, now| summary(o, now).status),
    column("RESTARTS", |o, now| summary(o, now).restarts),
    AGE,
    wide("IP", |o, _| text_or(o, "status.podIP", "<none>")),
    wide("NODE", |o, _| text_or(o, "spec.nodeName", "<none>")),
    wide("NOMINATED NODE", |o, _| text_or(o, "status.nominatedNodeName", "<none>")),
    wide("READINESS GATES", readiness_gates),
];

/// The text of the three computed columns.
pub struct Summary {
    /// `1/2`
    pub ready: String,
    /// `Running`, `Init:0/1`, `CrashLoopBackOff`, `Terminating`, ...
    pub status: String,
    /// `3 (5m ago)`
    pub restarts: String,
}

pub fn summary(pod: &Object, now: Timestamp) -> Summary {
    let (spec, status) = (&pod.0["spec"], &pod.0["status"]);
    let mut counts = Counts::default();
    let mut reason = plain_reason(status);

    let init = list(&spec["initContainers"]);
    let sidecars: HashSet<&str> = init.iter().filter(|c| is_sidecar(c)).filter_map(|c| c["name"].as_str()).collect();
    let mut total = list(&spec["containers"]).len() + sidecars.len();

    let initializing = init_reason(init, status, &sidecars, &mut counts);
    if let Some(init_reason) = &initializing {
        reason.clone_from(init_reason);
    }
    if initializing.is_none() || is_initialized(status) {
        let init_counts = std::mem::take(&mut counts);
        counts.ready = init_counts.ready;
        // A sidecar's restarts always count, those of init containers only while they run.
        counts.restarts = init_counts.sidecar_restarts;
        counts.last_restart = init_counts.sidecar_last_restart;
        if let Some(running) = container_reason(status, &mut counts, &reason) {
            reason = running;
        }
    }
    if pod.is_terminating() {
        if status["reason"] == "NodeLost" {
            reason = "Unknown".to_owned();
        } else if !matches!(status["phase"].as_str(), Some("Succeeded" | "Failed")) {
            reason = "Terminating".to_owned();
        }
    }
    total = total.max(counts.ready);
    let restarts = match counts.last_restart {
        Some(at) if counts.restarts > 0 => {
            format!("{} ({} ago)", counts.restarts, age(&Value::String(at.to_string()), now))
        }
        _ => counts.restarts.to_string(),
    };
    Summary { ready: format!("{}/{total}", counts.ready), status: reason, restarts }
}

#[derive(Default)]
struct Counts {
    ready: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
    sidecar_restarts: i64,
    sidecar_last_restart: Option<Timestamp>,
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

/// The phase, its reason, or scheduling gates.
fn plain_reason(status: &Value) -> String {
    let phase = status["phase"].as_str().unwrap_or("");
    let mut reason = status["reason"].as_str().filter(|r| !r.is_empty()).unwrap_or(phase).to_owned();
    let gated = |c: &&Value| c["type"] == "PodScheduled" && c["reason"] == "SchedulingGated";
    if list(&status["conditions"]).iter().any(|c| gated(&c)) {
        reason = "SchedulingGated".to_owned();
    }
    reason
}

fn is_initialized(status: &Value) -> bool {
    list(&status["conditions"]).iter().any(|c| c["type"] == "Initialized" && c["status"] == "True")
}

fn last_finished(container: &Value) -> Option<Timestamp> {
    container["lastState"]["terminated"]["finishedAt"].as_str()?.parse().ok()
}

/// `Init:...` until all init containers are done.
fn init_reason(init: &[Value], status: &Value, sidecars: &HashSet<&str>, counts: &mut Counts) -> Option<String> {
    for (i, container) in list(&status["initContainerStatuses"]).iter().enumerate() {
        let restarts = container["restartCount"].as_i64().unwrap_or(0);
        let finished = last_finished(container);
        counts.restarts += restarts;
        counts.last_restart = counts.last_restart.max(finished);
        let is_sidecar = container["name"].as_str().is_some_and(|n| sidecars.contains(n));
        if is_sidecar {
            counts.sidecar_restarts += restarts;
            counts.sidecar_last_restart = counts.sidecar_last_restart.max(finished);
        }
        let state = &container["state"];
        let terminated = &state["terminated"];
        if terminated.is_object() && terminated["exitCode"].as_i64().unwrap_or(0) == 0 {
            continue;
        }
        if is_sidecar && container["started"] == true {
            counts.ready += usize::from(container["ready"] == true);
            continue;
        }
        if terminated.is_object() {
            return Some(format!("Init:{}", exit_reason(terminated)));
        }
        let waiting = state["waiting"]["reason"].as_str().unwrap_or("");
        if !waiting.is_empty() && waiting != "PodInitializing" {
            return Some(format!("Init:{waiting}"));
        }
        return Some(format!("Init:{i}/{}", init.len()));
    }
    None
}

/// The reason, or `ExitCode:1`, or `Signal:9`.
fn exit_reason(terminated: &Value) -> String {
    match terminated["reason"].as_str().unwrap_or("") {
        "" => match terminated["signal"].as_i64().unwrap_or(0) {
            0 => format!("ExitCode:{}", terminated["exitCode"].as_i64().unwrap_or(0)),
            signal => format!("Signal:{signal}"),
        },
        reason => reason.to_owned(),
    }
}

/// The reason of the first failing container, if any.
fn container_reason(status: &Value, counts: &mut Counts, before: &str) -> Option<String> {
    let mut reason = None;
    let mut has_running = false;
    for container in list(&status["containerStatuses"]).iter().rev() {
        counts.restarts += container["restartCount"].as_i64().unwrap_or(0);
        counts.last_restart = counts.last_restart.max(last_finished(container));
        let state = &container["state"];
        let waiting = state["waiting"]["reason"].as_str().unwrap_or("");
        if !waiting.is_empty() {
            reason = Some(waiting.to_owned());
        } else if state["terminated"].is_object() {
            reason = Some(exit_reason(&state["terminated"]));
        } else if container["ready"] == true && state["running"].is_object() {
            has_running = true;
            counts.ready += 1;
        }
    }
    // One container has ended, another is still running: the Pod is running.
    if reason.as_deref().unwrap_or(before) == "Completed" && has_running {
        let ready = list(&status["conditions"]).iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
        reason = Some(if ready { "Running" } else { "NotReady" }.to_owned());
    }
    reason
}

fn readiness_gates(pod: &Object, _now: Timestamp) -> String {
    let gates = list(&pod.0["spec"]["readinessGates"]);
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let conditions = list(&pod.0["status"]["conditions"]).iter();
    let holds: HashSet<&Value> = conditions.filter(|c| c["status"] == "True").map(|c| &c["type"]).collect();
    let is_true = |gate: &&Value| holds.contains(&gate["conditionType"]);
    format!("{}/{}", gates.iter().filter(is_true).count(), gates.len())
}

//! The conditions of a Pod's status, in upstream's words. Conditions of other owners are kept.

use std::collections::HashSet;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Pod, PodCondition, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{
    pod::{
        inputs::Inputs,
        observed::{Observed, SandboxState},
    },
    resize::{IN_PROGRESS, allocation::PENDING, progress::Resize},
    spec::{ContainerRef, PodExt, Role},
};

/// A condition's content, before it is compared with the old one.
struct Said {
    kind: &'static str,
    holds: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

fn said(kind: &'static str, holds: bool) -> Said {
    Said { kind, holds, reason: None, message: None }
}

/// All conditions: the agent's own, then those of others in `old`.
pub fn conditions(
    pod: &Pod,
    parts: &[ContainerRef<'_>],
    known: Inputs<'_>,
    status: &PodStatus,
    old: Option<&[PodCondition]>,
    now: Timestamp,
) -> Vec<PodCondition> {
    let seen = known.seen;
    let old = old.unwrap_or_default();
    let phase = status.phase.as_deref().unwrap_or_default();
    let containers_ready = containers_ready(parts, seen, status, phase);
    let ready = ready(pod, &containers_ready, old);
    let sandbox = known.sandbox_is(SandboxState::Ready) && (!seen.sandbox.ips.is_empty() || pod.host_network());
    let own = [said("PodReadyToStartContainers", sandbox), initialized(parts, seen, phase), ready, containers_ready];

    let mut all: Vec<PodCondition> = own.into_iter().map(|s| condition(pod, s, old, now)).collect();
    all.extend(resize(&known.progress.resize, old, now));
    if known.intent.stop().is_some_and(|stop| stop.disruption) {
        let why = Said {
            reason: Some("TerminationByKubelet"),
            message: status.message.clone(),
            ..said("DisruptionTarget", true)
        };
        all.push(condition(pod, why, old, now));
    }
    adopt(&mut all, old);
    if !all.iter().any(|c| c.type_ == "PodScheduled") {
        all.push(condition(pod, said("PodScheduled", true), old, now));
    }
    all
}

/// Adds the conditions that others own.
pub fn adopt(all: &mut Vec<PodCondition>, there: &[PodCondition]) {
    let own = |kind: &str| [PENDING, IN_PROGRESS].contains(&kind) || all.iter().any(|own| own.type_ == kind);
    let foreign: Vec<PodCondition> = there.iter().filter(|c| !own(&c.type_)).cloned().collect();
    all.extend(foreign);
}

/// The condition with its transition time: the old one unless the status changed.
fn condition(pod: &Pod, said: Said, old: &[PodCondition], now: Timestamp) -> PodCondition {
    let status = if said.holds { "True" } else { "False" };
    let before = old.iter().find(|c| c.type_ == said.kind);
    let since = before.filter(|c| c.status == status).and_then(|c| c.last_transition_time.clone());
    PodCondition {
        type_: said.kind.to_owned(),
        status: status.to_owned(),
        reason: said.reason.map(str::to_owned),
        message: said.message,
        last_probe_time: None,
        last_transition_time: Some(since.unwrap_or(Time(now))),
        observed_generation: pod.metadata.generation,
    }
}

/// Conditions of a pending or ongoing resize; none otherwise.
fn resize(resize: &Resize, old: &[PodCondition], now: Timestamp) -> Vec<PodCondition> {
    let told = |kind: &str, reason: Option<&str>, message: Option<&String>, generation| {
        let since = old.iter().find(|c| c.type_ == kind).and_then(|c| c.last_transition_time.clone());
        PodCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            reason: reason.map(str::to_owned),
            message: message.cloned(),
            last_probe_time: None,
            last_transition_time: Some(since.unwrap_or(Time(now))),
            observed_generation: generation,
        }
    };
    let pending = resize.pending.as_ref().map(|p| told(PENDING, Some(&p.reason), Some(&p.message), p.generation));
    let progress = resize.progress.as_ref();
    let progress =
        progress.map(|p| told(IN_PROGRESS, p.error.as_ref().map(|_| "Error"), p.error.as_ref(), p.generation));
    pending.into_iter().chain(progress).collect()
}

fn initialized(parts: &[ContainerRef<'_>], seen: &Observed, phase: &str) -> Said {
    let begun = parts.iter().filter(|p| p.role == Role::Main).any(|p| seen.container(p.name()).attempt.is_some());
    if phase == "Succeeded" {
        return Said { reason: Some("PodCompleted"), ..said("Initialized", true) };
    }
    let incomplete = parts.iter().filter(|p| match p.role {
        Role::Init => !begun && !seen.container(p.name()).succeeded(),
        Role::Sidecar => !begun && !seen.container(p.name()).started,
        _ => false,
    });
    let names: Vec<&str> = incomplete.map(ContainerRef::name).collect();
    if names.is_empty() {
        return said("Initialized", true);
    }
    Said {
        reason: Some("ContainersNotInitialized"),
        message: Some(format!("containers with incomplete status: [{}]", names.join(" "))),
        ..said("Initialized", false)
    }
}

fn containers_ready(parts: &[ContainerRef<'_>], seen: &Observed, status: &PodStatus, phase: &str) -> Said {
    match phase {
        "Succeeded" => return Said { reason: Some("PodCompleted"), ..said("ContainersReady", false) },
        "Failed" => return Said { reason: Some("PodFailed"), ..said("ContainersReady", false) },
        _ => {}
    }
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let told = lists.into_iter().flatten().flatten();
    let ready: HashSet<&str> = told.filter(|c| c.ready).map(|c| c.name.as_str()).collect();
    let counts =
        |p: &&ContainerRef<'_>| p.role == Role::Main || (p.role == Role::Sidecar && seen.container(p.name()).started);
    let unready: Vec<&str> =
        parts.iter().filter(counts).map(ContainerRef::name).filter(|n| !ready.contains(n)).collect();
    if unready.is_empty() {
        return said("ContainersReady", true);
    }
    Said {
        reason: Some("ContainersNotReady"),
        message: Some(format!("containers with unready status: [{}]", unready.join(" "))),
        ..said("ContainersReady", false)
    }
}

fn ready(pod: &Pod, containers: &Said, old: &[PodCondition]) -> Said {
    if !containers.holds {
        return Said { reason: containers.reason, message: containers.message.clone(), ..said("Ready", false) };
    }
    let gates = pod.spec().readiness_gates.iter().flatten();
    let missing: Vec<String> = gates
        .filter_map(|gate| {
            let kind = &gate.condition_type;
            match old.iter().find(|c| c.type_ == *kind) {
                None => Some(format!("corresponding condition of pod readiness gate \"{kind}\" does not exist.")),
                Some(c) if c.status == "True" => None,
                Some(c) => {
                    Some(format!("the status of pod readiness gate \"{kind}\" is not \"True\", but {}", c.status))
                }
            }
        })
        .collect();
    if missing.is_empty() {
        return said("Ready", true);
    }
    Said { reason: Some("ReadinessGatesNotReady"), message: Some(missing.join(", ")), ..said("Ready", false) }
}

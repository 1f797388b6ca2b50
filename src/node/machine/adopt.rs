//! After a restart: finds the Pods that an earlier agent left on this machine, and removes what belongs to none.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::api::core::v1::Pod;
use podwright_runtime::{
    ContainerStatus, JournalWriter, Resources, SandboxState as RuntimeState, SandboxStatus, removals::Owner,
};

use super::{Machine, error::Error, places, termination};
use crate::{
    backoff::Backoff,
    disk,
    executor::RecoveredPod,
    labels,
    pod::{
        history,
        observed::{Attempt, Image, Observed, Sandbox, SandboxState},
        progress::Progress,
        volumes::{PodVolumes, VolumeStates},
    },
    resize::progress::{Resize, ResizeProgress},
    spec::PodExt,
    translate::{self, split_sandbox_id},
    volumes::error::VolumeError,
};

/// Removes, for all Pods or only one, older and unreadable sandboxes, and containers that were never started because an earlier
/// agent died in between.
pub async fn tidy(machine: &Machine, only: Option<&str>) {
    let (newest, mut old) = sandboxes(machine, only).await;
    for (uid, sandbox) in newest {
        match readable(&sandbox) {
            Ok(pod) => {
                for container in sandbox.containers.iter().filter(|c| half_made(c)) {
                    let removed = machine.runtime.remove_container(&container.id, &machine.journal(&pod)).await;
                    if let Err(error) = removed {
                        tracing::warn!(%error, id = %container.id, "failed to remove a partially created container");
                    }
                }
            }
            Err(error) => {
                tracing::warn!(uid, %error, "removing a sandbox whose Pod cannot be read");
                old.push(sandbox);
            }
        }
    }
    for sandbox in old {
        if let Err(error) = machine.runtime.remove_sandbox(&sandbox.spec.id, &JournalWriter::none()).await {
            tracing::warn!(%error, sandbox = sandbox.spec.id, "failed to remove an old sandbox");
        }
    }
}

/// All Pods (or only one) with a sandbox here, with the newest sandbox of each.
pub async fn find(machine: &Machine, only: Option<&str>) -> Vec<RecoveredPod> {
    let (newest, _) = sandboxes(machine, only).await;
    let mut found = Vec::new();
    for sandbox in newest.into_values() {
        let Ok(pod) = readable(&sandbox) else { continue };
        let sandbox = end_without_network(machine, &pod, sandbox).await;
        hold_devices(machine, &pod, &sandbox).await;
        note_owner(machine, &pod, &sandbox).await;
        look_after_link(machine, &pod, &sandbox.spec.id).await;
        found.push(adopt(machine, pod, sandbox));
    }
    found
}

/// The Pod as last admitted.
fn readable(sandbox: &SandboxStatus) -> serde_json::Result<Pod> {
    serde_json::from_slice(sandbox.spec.annotation.as_bytes())
}

/// Stops a sandbox whose containers have run but whose addresses are lost. It cannot be connected again: what remains of its
/// network may have been altered by the Pod. The Pod gets a new sandbox.
async fn end_without_network(machine: &Machine, pod: &Pod, sandbox: SandboxStatus) -> SandboxStatus {
    let known = pod.host_network() || machine.network.addresses_of(pod.uid()).is_some();
    let has_run = sandbox.containers.iter().any(|container| !half_made(container));
    if known || !has_run || sandbox.state != RuntimeState::Ready {
        return sandbox;
    }
    let id = sandbox.spec.id.clone();
    tracing::warn!(sandbox = id, "the addresses of a Pod are lost: replacing its sandbox");
    if let Err(error) = machine.runtime.stop_sandbox(&id, &machine.journal(pod)).await {
        tracing::warn!(%error, sandbox = id, "failed to stop a sandbox without a network");
    }
    machine.runtime.list().await.into_iter().find(|found| found.spec.id == id).unwrap_or(sandbox)
}

/// Keeps the link of a Pod connected by an earlier agent in its intended state.
async fn look_after_link(machine: &Machine, pod: &Pod, sandbox: &str) {
    if pod.host_network() {
        return;
    }
    // Without a ready sandbox there is no namespace with a link.
    let Ok(netns) = machine.runtime.netns(sandbox).await else { return };
    if machine.network.is_attached_by_plugins(pod.uid()) {
        // Beside all else: plugins may take their time.
        let (network, journal) = (machine.network.clone(), machine.journal(pod));
        let (uid, sandbox) = (pod.uid().to_owned(), sandbox.to_owned());
        tokio::spawn(async move {
            if let Err(error) = network.check_attachment(&uid, &journal).await {
                tracing::warn!(%error, sandbox, "a Pod's attachment to its network is not as it should be");
            }
        });
        return;
    }
    if let Err(error) = machine.network.adopt(pod.uid(), netns, &machine.journal(pod).at("spec.hostNetwork")) {
        tracing::warn!(%error, sandbox, "failed to watch the link of a Pod");
    }
}

/// Records the owner of a Pod's folder if an earlier agent started it without.
async fn note_owner(machine: &Machine, pod: &Pod, sandbox: &SandboxStatus) {
    let (volumes, of, found) = (machine.volumes.clone(), pod.clone(), machine.users.found(pod.uid()));
    // A Pod that has ended may have released the ids its sandbox was created with.
    let users = sandbox.spec.users.filter(|_| machine.users.of(pod.uid()).is_some());
    let noted = disk::work(move || volumes.adopt_owner(&of, users, found)).await;
    if let Err(error) = noted.map_err(VolumeError::Panicked).flatten() {
        tracing::warn!(pod = %pod.full_name(), %error, "failed to record the owner of a Pod's directory");
    }
}

/// Adds device rules to containers created by agents that did not set any.
async fn hold_devices(machine: &Machine, pod: &Pod, sandbox: &SandboxStatus) {
    for container in sandbox.containers.iter().filter(|c| c.exit.is_none() && !half_made(c)) {
        let part = pod.part(&container.id.name);
        let rules = part.as_ref().map(|part| translate::devices(&part.container)).unwrap_or_default();
        let path = part.map(|part| part.path()).unwrap_or_default();
        let journal = machine.journal(pod).at(&path);
        if let Err(error) = machine.runtime.hold_devices(&container.id, &rules, &journal).await {
            tracing::warn!(%error, id = %container.id, "failed to enforce the device rules of a container");
        }
    }
}

/// Never started: an earlier agent died between creating and starting it, perhaps another one while removing it.
fn half_made(container: &ContainerStatus) -> bool {
    container.started.is_none() && container.exit.as_ref().is_none_or(|exit| exit.signal == libc::SIGKILL)
}

/// The newest sandbox of each Pod by uid, and the older ones.
async fn sandboxes(machine: &Machine, only: Option<&str>) -> (BTreeMap<String, SandboxStatus>, Vec<SandboxStatus>) {
    let mut newest: BTreeMap<String, SandboxStatus> = BTreeMap::new();
    let mut old = Vec::new();
    for sandbox in machine.runtime.list().await {
        let (uid, attempt) = split_sandbox_id(&sandbox.spec.id);
        match newest.get(&uid) {
            _ if only.is_some_and(|only| only != uid) => {}
            Some(known) if split_sandbox_id(&known.spec.id).1 > attempt => old.push(sandbox),
            _ => old.extend(newest.insert(uid, sandbox)),
        }
    }
    (newest, old)
}

fn adopt(machine: &Machine, pod: Pod, sandbox: SandboxStatus) -> RecoveredPod {
    let (uid, attempt) = split_sandbox_id(&sandbox.spec.id);
    machine.weigh(&pod, true);
    machine.follow(&pod);
    if !pod.has_own_users() {
        machine.users.are_hosts(&uid);
    }
    let ready = sandbox.state == RuntimeState::Ready;
    let ips = match pod.host_network() {
        true => machine.facts.host_ips.clone(),
        false => machine.network.addresses_of(&uid).unwrap_or_default(),
    };
    // A sandbox that was never connected is completed by starting it again.
    let connected = ready && !ips.is_empty();
    // An earlier agent may have died while changing the limits of the Pod's cgroup.
    let limits = |r: &Resources| (r.cpu_weight, r.cpu_quota_us, r.memory_max);
    let resized = limits(&sandbox.spec.resources) == limits(&translate::pod_limits(&pod, machine.pids_max));
    let mut seen = Observed {
        sandbox: Sandbox {
            state: match (ready, connected) {
                (true, true) => SandboxState::Ready,
                (true, false) => SandboxState::None,
                (false, _) => SandboxState::Stopped,
            },
            attempt,
            ips: if connected { ips } else { Vec::new() },
        },
        start_time: Some(sandbox.created),
        ..Observed::default()
    };
    let mut progress = Progress {
        // Setting up existing volumes again is cheap and completes half-made ones. A Pod that has ended releases them.
        volumes: PodVolumes::Present(VolumeStates::default()),
        resize: Resize { progress: (!resized).then(ResizeProgress::default), ..Resize::default() },
        ..Progress::default()
    };
    if let Some(told) = sandbox.spec.labels.get(labels::HISTORY) {
        history::recall(told, &mut seen, &mut progress);
    }
    let mut by_name: HashMap<String, Vec<ContainerStatus>> = HashMap::new();
    for container in sandbox.containers.into_iter().filter(|c| !half_made(c)) {
        by_name.entry(container.id.name.clone()).or_default().push(container);
    }
    for (name, mut attempts) in by_name {
        attempts.sort_by_key(|c| c.id.attempt);
        let mut newest = attempts.into_iter().rev();
        let container = seen.container_mut(&name);
        let Some(now) = newest.next() else { continue };
        let known = progress.container_mut(&name);
        known.backoff = now.labels.get(labels::BACKOFF).map(|l| Backoff::from_label(l)).unwrap_or_default();
        let older = newest.next().map(|c| attempt_of(machine, &pod, &c)).or(container.attempt.take());
        let mut attempt = attempt_of(machine, &pod, &now);
        if attempt.exit.is_none() && attempt.resources.is_none() {
            // It was started by an agent that could not resize, with the resources the Pod was admitted with.
            let part = pod.part(&name);
            attempt.resources = Some(part.and_then(|p| p.container.resources.clone()).unwrap_or_default());
        }
        known.renewing = now.labels.get(labels::RENEWS).is_some_and(|yes| yes == "true");
        container.image = match attempt.exit {
            None => Image::Ready { name: attempt.image.clone(), id: attempt.image_id.clone() },
            Some(_) => Image::Unknown,
        };
        container.attempt = Some(attempt);
        container.last = older;
    }
    RecoveredPod { pod, seen, progress }
}

fn attempt_of(machine: &Machine, pod: &Pod, status: &ContainerStatus) -> Attempt {
    let label = |name: &str| status.labels.get(name).cloned();
    // A container whose record was lost has no labels: it runs the image that its Pod was last admitted with.
    let admitted = || pod.part(&status.id.name).and_then(|part| part.container.image.clone());
    let image = label(labels::IMAGE).or_else(admitted).unwrap_or_default();
    let reported = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref()).into_iter().flatten();
    let reported = || reported.into_iter().find(|s| s.name == status.id.name).map(|s| s.image_id.clone());
    let fallback = status.labels.contains_key(labels::FALLBACK);
    let log = status.log.as_ref().map(|l| l.path.clone());
    let exit =
        status.exit.as_ref().map(|e| termination::convert(&machine.volumes_root(), &status.id, e, fallback, log));
    Attempt {
        id: status.id.to_string(),
        restart: status.id.attempt,
        image_id: label(labels::IMAGE_ID).or_else(reported).unwrap_or_else(|| image.clone()),
        image,
        started_at: status.started.or(Some(status.created)),
        exit,
        current: true,
        resources: status.labels.get(labels::RESOURCES).and_then(|label| serde_json::from_str(label).ok()),
    }
}

/// Removes links, addresses and journals of Pods that are not among the living; moves folders and logs aside, to be deleted in the
/// background.
pub async fn sweep(machine: &Machine, living: Vec<String>) -> Vec<String> {
    let living: BTreeSet<String> = living.into_iter().collect();
    let mut errors = Vec::new();
    // First: what still runs has its network and its volumes in use.
    for id in machine.runtime.lost().into_keys().filter(|id| !living.contains(&split_sandbox_id(id).0)) {
        tracing::warn!(sandbox = id, "removing a sandbox that cannot be adopted and whose Pod is gone");
        let removed = machine.runtime.remove_sandbox(&id, &JournalWriter::none()).await;
        errors.extend(removed.err().map(|error| format!("sandbox {id}: {error}")));
    }
    let lost = machine.runtime.lost().into_keys().map(|id| split_sandbox_id(&id).0);
    let in_use: BTreeSet<String> = living.iter().cloned().chain(lost).collect();
    if let Err(error) = machine.network.retain(in_use.clone()).await {
        errors.push(format!("links and addresses: {error}"));
    }
    for uid in machine.volumes.owners().difference(&in_use) {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.clone());
        let removed = machine.volumes.remove(&pod, machine.users.of(uid), &JournalWriter::none()).await;
        errors.extend(removed.err().map(|error| error.to_string()));
    }
    let listed = machine.runtime.list().await.into_iter().map(|sandbox| split_sandbox_id(&sandbox.spec.id).0);
    let listed: BTreeSet<String> = listed.collect();
    // Folders moved aside record their own ids.
    let left = machine.volumes.owners();
    machine.users.retain(|uid| [&in_use, &listed, &left].iter().any(|uids| uids.contains(uid)));
    let logs = entries(&machine.places.logs);
    for name in logs.iter().filter(|n| n.rsplit_once('_').is_some_and(|(_, uid)| !living.contains(uid))) {
        let (folder, removals) = (machine.places.logs.join(name), machine.runtime.removals().clone());
        let owner = Owner::new(name.split('_').next().unwrap_or_default(), None);
        let removed = disk::work(move || places::remove_logs(&folder, &removals, &owner)).await;
        errors.extend(removed.map_err(Error::Panicked).flatten().err().map(|error| error.to_string()));
    }
    for uid in entries(&machine.places.journals).iter().filter(|uid| !living.contains(*uid)) {
        let removed = std::fs::remove_file(machine.places.journals.join(uid));
        errors.extend(removed.err().map(|e| format!("journal {uid}: {e}")));
    }
    errors
}

fn entries(folder: &std::path::Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    names.filter_map(|e| e.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use podwright_runtime::{ContainerId, ContainerState, ExitReason};

    use super::*;

    fn status(started: bool, exit: Option<(i32, i32, ExitReason)>) -> ContainerStatus {
        let now = Timestamp::UNIX_EPOCH;
        let exit = exit.map(|(code, signal, reason)| podwright_runtime::Exit {
            code,
            signal,
            reason,
            message: String::new(),
            finished: now,
        });
        ContainerStatus {
            id: ContainerId::new("s", "c", 0),
            state: ContainerState::Exited,
            pid: 0,
            created: now,
            started: started.then_some(now),
            exit,
            labels: Default::default(),
            log: None,
            unenforced: Vec::new(),
        }
    }

    #[test]
    fn what_was_never_let_go_has_not_ended() {
        let killed = Some((137, libc::SIGKILL, ExitReason::Error));
        assert!(half_made(&status(false, None)));
        assert!(half_made(&status(false, killed)));
        assert!(!half_made(&status(true, killed)));
        assert!(!half_made(&status(true, None)));
        assert!(!half_made(&status(false, Some((128, 0, ExitReason::StartError)))));
    }
}

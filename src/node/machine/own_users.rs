//! When a Pod that has ended gives back the ids that its users were on the host: its object may stay for as long as somebody likes, and
//! there are only so many ranges.
//!
//! Upstream: `SyncTerminatedPod` in `pkg/kubelet/kubelet.go` releases the user namespace.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use podwright_runtime::{ContainerState, SandboxState, SandboxStatus};

use super::{
    Machine,
    error::{Error, Result},
    storage,
};
use crate::{disk, spec::PodExt, volumes::error::VolumeError};

/// Gives them back once nothing runs as one of them, and what is left of their files says itself whose ids it has. What the Pod keeps
/// (its logs, its containers' last words, its volumes of API objects) is the host's, or has ids as the Pod sees them.
///
/// # Errors
///
/// Not all of the Pod is gone, or what came of it cannot be noted: the Pod keeps them until that is tried again.
pub async fn give_back(machine: &Machine, pod: &Pod) -> Result<()> {
    if machine.users.of(pod.uid()).is_none() {
        return Ok(());
    }
    let sandboxes = storage::of(machine, pod).await;
    let is_told = machine.runtime.removals().say_users(&machine.volumes.folder(pod));
    if !is_told || machine.lost(pod).next().is_some() || !sandboxes.iter().all(|sandbox| is_over(machine, sandbox)) {
        return Err(Error::UsersKept);
    }
    let (volumes, of) = (machine.volumes.clone(), pod.clone());
    // First: an agent that starts again believes this, and not the sandbox's record.
    let noted = disk::work(move || volumes.note_owner(&of, None, None)).await.map_err(VolumeError::Panicked)?;
    noted?;
    machine.users.free(pod.uid());
    Ok(())
}

/// Whether nothing of a sandbox runs, and nothing that its containers have written is in its place.
fn is_over(machine: &Machine, sandbox: &SandboxStatus) -> bool {
    let is_empty = |folder: &Path| match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    let is_over = |container: &podwright_runtime::ContainerStatus| {
        container.state == ContainerState::Exited
            && machine.runtime.pids(&container.id).is_ok_and(|pids| pids.is_empty())
            && machine.runtime.layer(&container.id).iter().all(|folder| is_empty(folder))
    };
    sandbox.state != SandboxState::Ready
        && sandbox.containers.iter().all(is_over)
        && machine.runtime.removals().say_users(&machine.runtime.root().join(&sandbox.spec.id))
}

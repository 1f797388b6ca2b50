//! Releases the host ids of a Pod that has ended: its API object may stay indefinitely, and the number of ranges is limited.
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

/// Releases the ids once no process uses them; remaining files moved aside record their own ids. What the Pod keeps (logs,
/// termination messages, volumes of API objects) belongs to the host, or has ids as seen inside the Pod.
///
/// # Errors
///
/// Part of the Pod remains, or the release cannot be recorded: the Pod keeps its ids until a retry.
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
    // First: a restarted agent trusts this, not the sandbox's record.
    let noted = disk::work(move || volumes.note_owner(&of, None, None)).await.map_err(VolumeError::Panicked)?;
    noted?;
    machine.users.free(pod.uid());
    Ok(())
}

/// Whether no process of a sandbox runs, and no files written by its containers remain in place.
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

//! Limits how many mounts Pods may cause. Pure.
//!
//! The kernel limits the mounts of a mount namespace (`fs.mount-max`, 100,000), and the host's namespace holds those of all Pods:
//! each `subPath` and each in-memory emptyDir is one, and every container's namespace starts as a copy of it. Upstream has no
//! limit, so a few Pods with many mounts keep the whole host from mounting anything.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::{pod::Failure, spec::PodExt};

/// Limit for a Pod's volumes and its containers' mounts together: far more than a legitimate manifest has.
const MAX_POD: usize = 512;
/// Limit for all Pods of a node: half of the kernel's limit. The rest is for the host.
const MAX_NODE: usize = 50_000;
/// A namespace may use one part in this many of what the others leave, so there is always something for a later one.
const PART: usize = 2;

fn mounts(pod: &Pod) -> usize {
    let of_parts = pod.parts().iter().map(|part| part.container.volume_mounts.iter().flatten().count()).sum::<usize>();
    pod.spec().volumes.iter().flatten().count() + of_parts
}

/// Checks one Pod's mounts.
///
/// # Errors
///
/// The Pod has too many: `TooManyMounts`.
pub fn check(pod: &Pod) -> Result<(), Failure> {
    match mounts(pod) {
        wanted if wanted > MAX_POD => {
            let message =
                format!("spec.volumes and volumeMounts of all containers: {wanted}, more than {MAX_POD} in one Pod");
            Err(Failure { reason: "TooManyMounts".to_owned(), message })
        }
        _ => Ok(()),
    }
}

/// Checks one Pod's mounts, alone and beside others.
///
/// # Errors
///
/// `TooManyMounts` if it has too many; `OutOfmounts` if the others leave too few, or its namespace has used up its share.
pub fn admit(pod: &Pod, others: &[Arc<Pod>]) -> Result<(), Failure> {
    check(pod)?;
    let sum = |own: bool| -> usize {
        let some = others.iter().filter(|other| (other.namespace() == pod.namespace()) == own);
        some.map(|other| mounts(other)).sum()
    };
    let (wanted, own, of_others) = (mounts(pod), sum(true), sum(false));
    let most = MAX_NODE.saturating_sub(of_others) / PART;
    if wanted + own <= most {
        return Ok(());
    }
    let numbers = format!("requested: {wanted}, used by the namespace: {own}, capacity for it: {most}");
    let message = format!("Node didn't have enough resource: mounts, {numbers}");
    Err(Failure { reason: "OutOfmounts".to_owned(), message })
}

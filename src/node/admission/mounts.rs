//! How many mounts Pods may cause. Pure.
//!
//! The kernel bounds a mount namespace (`fs.mount-max`, 100,000), and the host's holds those of all Pods: each `subPath` and each
//! emptyDir in memory is one, and every container's namespace begins as a copy of it. Upstream bounds nothing, so that a few Pods
//! of many mounts keep the whole host from mounting anything.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::{pod::intent::Failure, spec::PodExt};

/// Volumes of a Pod and mounts of its containers, together: far more than a manifest that was meant has.
const MAX_POD: usize = 512;
/// Those of all Pods of a node: half of what the kernel lets there be. The rest is the host's own.
const MAX_NODE: usize = 50_000;
/// A namespace may have that part of what the others leave: so there is always something for one that comes later.
const PART: usize = 2;

fn mounts(pod: &Pod) -> usize {
    let of_parts = pod.parts().iter().map(|part| part.container.volume_mounts.iter().flatten().count()).sum::<usize>();
    pod.spec().volumes.iter().flatten().count() + of_parts
}

/// Whether a Pod alone has too many.
///
/// # Errors
///
/// It has: `TooManyMounts`.
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

/// Whether a Pod has too many, alone or beside others.
///
/// # Errors
///
/// It has: `TooManyMounts`, or `OutOfmounts` where others leave too few, or its namespace has its part.
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

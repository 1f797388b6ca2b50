//! Limits how many mounts Pods may cause. Pure.
//!
//! The kernel limits the mounts of a mount namespace (`fs.mount-max`, 100,000), and the host's namespace holds those of all Pods:
//! each `subPath` and each in-memory emptyDir is one, and every container's namespace starts as a copy of it. Upstream has no
//! limit, so a few Pods with many mounts keep the whole host from mounting anything.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::{pod::intent::Failure, spec::PodExt, volumes::kinds::empty_dir};

/// Limit for a Pod's volumes and its containers' mounts together: far more than a legitimate manifest has.
const MAX_POD: usize = 512;
/// Limit for all Pods of a node: half of the kernel's limit. The rest is for the host.
const MAX_NODE: usize = 50_000;
/// The agent has a descriptor of each volume in memory, by which it brings that back: so many of its descriptors are for these.
const PART_OF_DESCRIPTORS: usize = 4;
/// A namespace may have that part of what the others leave: so there is always something for one that comes later.
const PART: usize = 2;

fn mounts(pod: &Pod) -> usize {
    let of_parts = pod.parts().iter().map(|part| part.container.volume_mounts.iter().flatten().count()).sum::<usize>();
    pod.spec().volumes.iter().flatten().count() + of_parts
}

/// Volumes in memory, whether any container uses them yet or not.
fn in_memory(pod: &Pod) -> usize {
    pod.spec().volumes.iter().flatten().filter(|volume| empty_dir::is_in_memory(volume)).count()
}

/// Whether a Pod alone has too many.
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

/// Whether a Pod has too many, alone or beside others, on a node whose agent may have so many descriptors open.
///
/// # Errors
///
/// It has: `TooManyMounts`, or `OutOfmounts` or `OutOfdescriptors` where others leave too few, or its namespace has its part.
pub fn admit(pod: &Pod, others: &[Arc<Pod>], descriptors: usize) -> Result<(), Failure> {
    check(pod)?;
    share(pod, others, "mounts", mounts, MAX_NODE)?;
    share(pod, others, "descriptors", in_memory, descriptors / PART_OF_DESCRIPTORS)
}

/// Whether a Pod's namespace has no more than its part of what all Pods may have.
fn share(pod: &Pod, others: &[Arc<Pod>], what: &str, of: fn(&Pod) -> usize, all: usize) -> Result<(), Failure> {
    let wanted = of(pod);
    if wanted == 0 {
        return Ok(());
    }
    let (own, foreign) =
        others.iter().fold((0, 0), |(own, foreign), other| match other.namespace() == pod.namespace() {
            true => (own + of(other), foreign),
            false => (own, foreign + of(other)),
        });
    let most = all.saturating_sub(foreign) / PART;
    if wanted + own <= most {
        return Ok(());
    }
    let numbers = format!("requested: {wanted}, used by the namespace: {own}, capacity for it: {most}");
    let message = format!("Node didn't have enough resource: {what}, {numbers}");
    Err(Failure { reason: format!("OutOf{what}"), message })
}

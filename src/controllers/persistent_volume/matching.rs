//! Which volume suits a claim, and which of several suits it best.
//!
//! Upstream: `FindMatchingVolume` in `k8s.io/component-helpers/storage/volume`, and `checkVolumeSatisfyClaim`.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim},
    apimachinery::pkg::api::resource::Quantity as Written,
};

use super::{claim_class, claim_ref, meta, refers_to, volume_class, volume_phase};
use crate::api::{Quantity, selector};

fn size(amounts: Option<&std::collections::BTreeMap<String, Written>>) -> Quantity {
    amounts.and_then(|all| all.get("storage")?.0.parse().ok()).unwrap_or_default()
}

fn capacity(volume: &PersistentVolume) -> Quantity {
    size(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()))
}

fn request(claim: &PersistentVolumeClaim) -> Quantity {
    size(claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref()))
}

fn modes(volume: &PersistentVolume) -> &[String] {
    volume.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default()
}

/// Why a volume does not satisfy a claim that may name it.
pub fn refusal(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'static str> {
    let wanted = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    match () {
        () if capacity(volume) < request(claim) => Some("requested PV is too small"),
        () if volume_class(volume) != claim_class(claim) => Some("storageClassName does not match"),
        () if !same_attributes(volume, claim) => Some("volumeAttributesClassName does not match"),
        () if !same_mode(volume, claim) => Some("incompatible volumeMode"),
        () if !wanted.iter().all(|mode| modes(volume).contains(mode)) => Some("incompatible accessMode"),
        () => None,
    }
}

fn same_mode(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let volume = volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
    let claim = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
    volume.unwrap_or("Filesystem") == claim.unwrap_or("Filesystem")
}

fn same_attributes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let volume = volume.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let claim = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    volume.unwrap_or_default() == claim.unwrap_or_default()
}

/// The volume that a claim gets: one that waits for it, or the one with the fewest other access modes and then the smallest
/// of those that are free. With `delayed` a free one is not chosen yet: the scheduler knows better where it has to be.
pub fn best<'a>(
    claim: &PersistentVolumeClaim,
    volumes: &'a [Arc<PersistentVolume>],
    delayed: bool,
) -> Option<&'a Arc<PersistentVolume>> {
    let there = volumes.iter().filter(|volume| !meta::is_terminating(&volume.metadata));
    let waits = |volume: &&'a Arc<PersistentVolume>| {
        // Whoever reserved it has chosen its class.
        refers_to(volume, claim) && matches!(refusal(volume, claim), None | Some("storageClassName does not match"))
    };
    if let Some(reserved) = there.clone().find(waits) {
        return Some(reserved);
    }
    let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref()).map(|selector| {
        let json = serde_json::to_value(selector).unwrap_or_default();
        selector::LabelSelector::from_json(&json).ok()
    });
    let selected = |volume: &PersistentVolume| match &selector {
        None => true,
        Some(selector) => selector.as_ref().is_some_and(|selector| meta::matches(selector, &volume.metadata)),
    };
    let free = there.filter(|volume| {
        claim_ref(volume).is_none()
            && volume_phase(volume) == "Available"
            && refusal(volume, claim).is_none()
            && selected(volume)
    });
    let rank = |volume: &&'a Arc<PersistentVolume>| {
        (modes(volume).len(), capacity(volume), meta::name(&volume.metadata).to_owned())
    };
    if delayed { None } else { free.min_by_key(rank) }
}

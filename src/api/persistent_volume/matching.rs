//! Which volumes fit a claim, and which fits best.
//!
//! Upstream: `FindMatchingVolume` in `k8s.io/component-helpers/storage/volume`, and `checkVolumeSatisfyClaim`.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim},
    apimachinery::pkg::api::resource::Quantity as Written,
};

use super::{claim_class, claim_ref, refers_to, volume_class, volume_phase};
use crate::{Quantity, selector::LabelSelector};

fn size(amounts: Option<&std::collections::BTreeMap<String, Written>>) -> Quantity {
    amounts.and_then(|all| all.get("storage")?.0.parse().ok()).unwrap_or_default()
}

pub fn capacity(volume: &PersistentVolume) -> Quantity {
    size(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()))
}

pub fn request(claim: &PersistentVolumeClaim) -> Quantity {
    size(claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref()))
}

pub fn modes(volume: &PersistentVolume) -> &[String] {
    volume.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default()
}

/// Why a volume does not satisfy a claim that names it.
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

fn is_ending(volume: &PersistentVolume) -> bool {
    volume.metadata.deletion_timestamp.is_some()
}

/// The volume that is reserved for a claim.
pub fn reserved<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a Arc<PersistentVolume>>,
) -> Option<&'a Arc<PersistentVolume>> {
    volumes.into_iter().find(|volume| {
        // A user who reserved it has chosen its class.
        !is_ending(volume)
            && refers_to(volume, claim)
            && matches!(refusal(volume, claim), None | Some("storageClassName does not match"))
    })
}

/// Those of `volumes` that are free and fit the claim.
pub fn free<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a Arc<PersistentVolume>>,
) -> impl Iterator<Item = &'a Arc<PersistentVolume>> {
    let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref()).map(LabelSelector::of);
    let selected = move |volume: &PersistentVolume| match &selector {
        None => true,
        Some(selector) => selector.as_ref().is_some_and(|selector| {
            selector.matches(|key| volume.metadata.labels.as_ref()?.get(key).map(String::as_str))
        }),
    };
    volumes.into_iter().filter(move |volume| {
        claim_ref(volume).is_none()
            && volume_phase(volume) == "Available"
            && !is_ending(volume)
            && refusal(volume, claim).is_none()
            && selected(volume)
    })
}

/// The order of preference: the smallest first, among equals the first by name.
pub fn waste(volume: &PersistentVolume) -> (Quantity, String) {
    (capacity(volume), volume.metadata.name.clone().unwrap_or_default())
}

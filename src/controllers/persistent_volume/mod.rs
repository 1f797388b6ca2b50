//! PersistentVolumes and the claims on them: each claim gets the volume that suits it best, and each volume one claim.
//!
//! Upstream: `pkg/controller/volume/persistentvolume`. The reference of a volume to its claim is what counts: whoever got it
//! written has the volume. [`claim`] binds, [`volume`] tells how volumes are and what becomes of those that are released,
//! [`matching`] chooses, [`protection`] keeps what is in use.

pub mod claim;
pub mod matching;
pub mod protection;
pub mod volume;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};

use super::meta;
use crate::client::Key;

/// On a claim: its binding is complete. On either: the binder, not a user, has chosen the other.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// On a volume: who has made it, and will remove it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// The claim that a volume refers to.
fn claim_key(reference: &ObjectReference) -> Key {
    Key::new(reference.namespace.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default())
}

/// The uid in a reference; none as long as nobody has bound it.
fn uid(reference: &ObjectReference) -> Option<&str> {
    reference.uid.as_deref().filter(|uid| !uid.is_empty())
}

/// Whether a volume is, or may become, this claim's alone.
fn refers_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_ref(volume).is_some_and(|reference| {
        claim_key(reference) == Key::of(claim)
            && uid(reference).is_none_or(|uid| Some(uid) == claim.metadata.uid.as_deref())
    })
}

/// The volume that a claim names.
fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

fn volume_phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The class of a claim; "" is none.
fn claim_class(claim: &PersistentVolumeClaim) -> &str {
    let spec = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    meta::annotation(&claim.metadata, CLASS).or(spec).unwrap_or_default()
}

fn volume_class(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    meta::annotation(&volume.metadata, CLASS).or(spec).unwrap_or_default()
}

/// How a class was named before there was a field.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

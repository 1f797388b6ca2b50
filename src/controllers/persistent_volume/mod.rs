//! PersistentVolumes and PersistentVolumeClaims: each claim gets the best fitting volume, and each volume a single claim.
//!
//! Upstream: `pkg/controller/volume/{persistentvolume,ephemeral}`. A volume's reference to its claim is authoritative: the claim
//! that is written there has the volume. [`claim`] binds, [`volume`] sets the phase of volumes and handles released ones, [`local`]
//! provisions directories on nodes, [`ephemeral`] creates the claims of ephemeral volumes, [`protection`] keeps what is in use.

pub mod claim;
pub mod ephemeral;
pub mod local;
pub mod protection;
pub mod volume;

use k8s_openapi::api::core::v1::ObjectReference;

use podwright_client::Key;

/// The claim that a volume refers to.
fn claim_key(reference: &ObjectReference) -> Key {
    Key::new(reference.namespace.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default())
}

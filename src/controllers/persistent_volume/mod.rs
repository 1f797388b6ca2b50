//! PersistentVolumes and the claims on them: each claim gets the volume that suits it best, and each volume one claim.
//!
//! Upstream: `pkg/controller/volume/{persistentvolume,ephemeral}`. The reference of a volume to its claim is what counts:
//! whoever got it written has the volume. [`claim`] binds, [`volume`] tells how volumes are and what becomes of those that are
//! released, [`local`] provisions folders of nodes, [`ephemeral`] makes the claims of Pods' own volumes, [`protection`] keeps
//! what is in use.

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

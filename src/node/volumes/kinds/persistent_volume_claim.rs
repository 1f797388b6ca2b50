//! persistentVolumeClaim volumes: the PersistentVolume that a claim of the Pod's namespace is bound to.

use k8s_openapi::api::core::v1::{Pod, Volume};

use super::{Location, Measured, Reference, Row, SetUp, never};
use crate::objects::What;
use podwright_api::persistent_volume;

pub const ROW: Row = Row {
    field: "persistentVolumeClaim",
    is: |volume| volume.persistent_volume_claim.is_some(),
    location: Location::Link,
    set_up: SetUp::Claim,
    measured: |_| Measured::FileSystem,
    refers_to: claim,
    shows_pod: never,
    read_only: |volume| volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.read_only == Some(true)),
    scratch: false,
    unsupported: &[],
};

/// The claim that a volume refers to.
pub fn claim(pod: &Pod, volume: &Volume) -> Vec<Reference> {
    persistent_volume::used(pod, volume).into_iter().map(|used| (What::Claim, used.name)).collect()
}

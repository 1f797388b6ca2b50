//! Relations between claims and volumes, for the binder, the scheduler and the node.
//!
//! Upstream: `k8s.io/component-helpers/storage/{volume,ephemeral}`. A volume's reference to its claim is authoritative: the claim
//! that is written there has the volume.

pub mod local;
pub mod matching;

use k8s_openapi::{
    api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod, Volume},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::node_selector;

/// On a claim: its binding is complete. On either: the binder, not a user, has chosen the other.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// On a claim: the node that the scheduler selected for its first Pod, where a volume must be provisioned.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On a claim: the requested provisioner; the older name first.
pub const ASKED: [&str; 2] =
    ["volume.beta.kubernetes.io/storage-provisioner", "volume.kubernetes.io/storage-provisioner"];
/// On a volume: the provisioner that created and will delete it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// The provisioner of classes without dynamic provisioning.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// The annotation for the class before there was a field.
pub const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

pub fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// The uid in a reference; `None` until it is bound.
pub fn uid(reference: &ObjectReference) -> Option<&str> {
    reference.uid.as_deref().filter(|uid| !uid.is_empty())
}

/// Whether a volume is, or may become, exclusively this claim's.
pub fn refers_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_ref(volume).is_some_and(|to| {
        to.namespace == claim.metadata.namespace
            && to.name == claim.metadata.name
            && uid(to).is_none_or(|uid| Some(uid) == claim.metadata.uid.as_deref())
    })
}

/// The volume with a reference to the claim `to`, marked if the binder chose it just now.
pub fn taken(volume: &PersistentVolume, mut to: ObjectReference) -> PersistentVolume {
    let mut taken = volume.clone();
    if claim_ref(volume).and_then(uid).is_none() {
        to.field_path = None;
        if claim_ref(volume).is_none() {
            taken.metadata.annotations.get_or_insert_default().insert(BOUND_BY_CONTROLLER.into(), "yes".into());
        }
        taken.spec.get_or_insert_default().claim_ref = Some(to);
    }
    taken
}

/// The volume that a claim names.
pub fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

/// Whether a claim and its volume refer to each other, and both are marked.
pub fn is_fully_bound(claim: &PersistentVolumeClaim) -> bool {
    volume_name(claim).is_some() && annotation(&claim.metadata, BIND_COMPLETED).is_some()
}

pub fn volume_phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The class of a claim; "" for none.
pub fn claim_class(claim: &PersistentVolumeClaim) -> &str {
    let spec = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    annotation(&claim.metadata, CLASS).or(spec).unwrap_or_default()
}

pub fn volume_class(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    annotation(&volume.metadata, CLASS).or(spec).unwrap_or_default()
}

/// Whether a node reaches a volume, given the node's name and a lookup of its labels.
pub fn is_reachable<'a>(volume: &PersistentVolume, node: &str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.is_none_or(|required| node_selector::any(&required.node_selector_terms, node, label))
}

/// A claim that a Pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    pub name: String,
    /// Created for this Pod, which must own it.
    pub ephemeral: bool,
}

/// The claim of a Pod's volume, if it has one.
pub fn used(pod: &Pod, volume: &Volume) -> Option<Used> {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(Used { name: claim.claim_name.clone(), ephemeral: false });
    }
    volume.ephemeral.as_ref()?;
    let name = format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name);
    Some(Used { name, ephemeral: true })
}

/// All claims that a Pod uses, in the order of its volumes.
pub fn all_used(pod: &Pod) -> Vec<Used> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| used(pod, volume)).collect()
}

/// The claim with an ephemeral volume's name was created for something else. Both as `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
pub struct NotOwner {
    pub claim: String,
    pub pod: String,
}

/// Fails if the claim of an ephemeral volume is not owned by the Pod.
pub fn is_own(pod: &Pod, claim: &PersistentVolumeClaim) -> Result<(), NotOwner> {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let mine = owners.any(|owner| owner.controller == Some(true) && Some(&owner.uid) == pod.metadata.uid.as_ref());
    if mine {
        return Ok(());
    }
    let full = |meta: &ObjectMeta| {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        format!("{}/{}", part(&meta.namespace), part(&meta.name))
    };
    Err(NotOwner { claim: full(&claim.metadata), pod: full(&pod.metadata) })
}

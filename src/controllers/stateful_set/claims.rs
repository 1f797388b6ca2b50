//! The PersistentVolumeClaims of a StatefulSet's Pods: created before them, kept or deleted by the retention policy.
//!
//! The policy is implemented with owner references only: claims are deleted with their owner.

use std::sync::Arc;

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, Pod},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};

use super::{Inputs, identity, meta};
use crate::write::{Note, Write};
use podwright_client::{Typed, reference};

pub fn templates(set: &StatefulSet) -> impl Iterator<Item = &PersistentVolumeClaim> {
    set.spec.iter().flat_map(|spec| spec.volume_claim_templates.iter().flatten())
}

pub fn name(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i32) -> String {
    format!("{}-{}", meta::name(&template.metadata), identity::name(set, ordinal))
}

/// Whether a claim of this name could belong to the StatefulSet.
pub fn may_be_of(set: &StatefulSet, claim: &str) -> bool {
    let Some((of_pods, _ordinal)) = claim.rsplit_once('-') else { return false };
    let template = of_pods.strip_suffix(meta::name(&set.metadata)).and_then(|rest| rest.strip_suffix('-'));
    template.is_some_and(|name| templates(set).any(|template| meta::name(&template.metadata) == name))
}

/// The existing claims of an ordinal.
fn existing(scene: &Inputs<'_>, ordinal: i32) -> impl Iterator<Item = Arc<PersistentVolumeClaim>> {
    templates(scene.set).filter_map(move |template| (scene.claim)(&name(scene.set, template, ordinal)))
}

/// Whether a claim of an ordinal without a Pod is about to be deleted with an earlier Pod of that name.
pub fn is_stale(scene: &Inputs<'_>, ordinal: i32) -> bool {
    let pod = identity::name(scene.set, ordinal);
    let of_pod = |owner: &OwnerReference| is_of::<Pod>(owner, &pod);
    existing(scene, ordinal).any(|claim| {
        let mut owners = claim.metadata.owner_references.iter().flatten();
        meta::is_terminating(&claim.metadata) || owners.any(of_pod)
    })
}

/// Why an ordinal without a Pod gets none, if it waits for a claim that somebody has deleted. A deletion due to scaling down is not
/// reported.
pub fn deleted(scene: &Inputs<'_>, ordinal: i32) -> Option<Note> {
    if Policy::of(scene.set).when_scaled {
        return None;
    }
    let claim = existing(scene, ordinal).find(|claim| meta::is_terminating(&claim.metadata))?;
    let (pod, of) = (identity::name(scene.set, ordinal), meta::name(&scene.set.metadata));
    let why = format!("pvc {} is being deleted", meta::name(&claim.metadata));
    let message = format!("create Pod {pod} in StatefulSet {of} failed error: {why}");
    Some(Note::warning(reference(scene.set), "FailedCreate", message))
}

/// Creates the missing claims of an ordinal, lazily: a set may have many, each with all labels of its selector.
pub fn missing(scene: &Inputs<'_>, ordinal: i32) -> impl Iterator<Item = Write> {
    let set = scene.set;
    let selected = set.spec.as_ref().and_then(|spec| spec.selector.match_labels.clone()).unwrap_or_default();
    let lacking = templates(set).filter(move |template| (scene.claim)(&name(set, template, ordinal)).is_none());
    lacking.map(move |template| {
        let mut claim = template.clone();
        let name = name(set, template, ordinal);
        claim.metadata.name = Some(name.clone());
        claim.metadata.namespace = set.metadata.namespace.clone();
        claim.metadata.labels.get_or_insert_default().extend(selected.clone());
        claim.metadata.owner_references = Policy::of(set).when_deleted.then(|| vec![meta::owner_reference(set)]);
        claim.status = None;
        let (pod, of) = (identity::name(set, ordinal), meta::name(&set.metadata));
        let done = format!("create Claim {name} Pod {pod} in StatefulSet {of} success");
        let failed = format!("create Claim {name} for Pod {pod} in StatefulSet {of} failed error: {{}}");
        Write::create(&claim).done(Note::normal(reference(set), "SuccessfulCreate", done)).failed(Note::warning(
            reference(set),
            "FailedCreate",
            failed,
        ))
    })
}

/// When claims are deleted.
struct Policy {
    when_deleted: bool,
    when_scaled: bool,
}

impl Policy {
    fn of(set: &StatefulSet) -> Policy {
        let policy = set.spec.as_ref().and_then(|spec| spec.persistent_volume_claim_retention_policy.clone());
        let policy = policy.unwrap_or_default();
        let deletes = |text: Option<String>| text.as_deref() == Some("Delete");
        Policy { when_deleted: deletes(policy.when_deleted), when_scaled: deletes(policy.when_scaled) }
    }

    /// Whether claims are never deleted.
    fn keeps(&self) -> bool {
        !self.when_deleted && !self.when_scaled
    }
}

/// Gives a Pod's claims the owners that the policy requires; `stays` tells whether its ordinal is a desired one.
pub fn settle(scene: &Inputs<'_>, ordinal: i32, pod: &Pod, stays: bool) -> Vec<Write> {
    let settled = |claim: Arc<PersistentVolumeClaim>| {
        let owners = owners(scene.set, &claim, pod, stays)?;
        let mut write = meta::owners(&*claim, |all| *all = owners);
        write.done.extend(conflict(scene.set, &claim, meta::name(&pod.metadata)));
        Some(write)
    };
    existing(scene, ordinal).filter_map(settled).collect()
}

/// Events about claims of an ordinal that the policy cannot be applied to.
pub fn conflicts(scene: &Inputs<'_>, ordinal: i32) -> Vec<Note> {
    let pod = identity::name(scene.set, ordinal);
    existing(scene, ordinal).filter_map(|claim| conflict(scene.set, &claim, &pod)).collect()
}

fn conflict(set: &StatefulSet, claim: &PersistentVolumeClaim, pod: &str) -> Option<Note> {
    let policy = Policy::of(set);
    let mut owners = claim.metadata.owner_references.iter().flatten();
    if policy.keeps() || !owners.any(|owner| is_foreign(owner, set, pod)) {
        return None;
    }
    let message = format!(
        "PersistentVolumeClaim {} has a conflicting OwnerReference that acts as a managing controller, the retention \
         policy is ignored for this claim",
        meta::name(&claim.metadata),
    );
    Some(Note::warning(reference(set), "ConflictingController", message))
}

/// Whether it is a controller other than the StatefulSet or a Pod of that name, with any uid.
fn is_foreign(owner: &OwnerReference, set: &StatefulSet, pod: &str) -> bool {
    let own = is_of::<StatefulSet>(owner, meta::name(&set.metadata)) || is_of::<Pod>(owner, pod);
    owner.controller == Some(true) && !own
}

/// The owners that a claim should have, if they differ.
pub fn owners(set: &StatefulSet, claim: &PersistentVolumeClaim, pod: &Pod, stays: bool) -> Option<Vec<OwnerReference>> {
    let policy = Policy::of(set);
    let old = claim.metadata.owner_references.clone().unwrap_or_default();
    let of_set = |owner: &OwnerReference| is_of::<StatefulSet>(owner, meta::name(&set.metadata));
    let of_pod = |owner: &OwnerReference| is_of::<Pod>(owner, meta::name(&pod.metadata));
    let stale = |owner: &OwnerReference| {
        (of_set(owner) && Some(&owner.uid) != set.metadata.uid.as_ref())
            || (of_pod(owner) && Some(&owner.uid) != pod.metadata.uid.as_ref())
    };
    if old.iter().any(stale) {
        // It belongs to a deleted object of the same name, and so to the garbage collector.
        return None;
    }
    let mut new: Vec<OwnerReference> = old.iter().filter(|owner| !of_set(owner) && !of_pod(owner)).cloned().collect();
    let foreign = new.iter().any(|owner| is_foreign(owner, set, meta::name(&pod.metadata)));
    if !policy.keeps() && !foreign {
        if policy.when_scaled && !stays {
            new.push(meta::owner_reference(pod));
        } else if policy.when_deleted {
            new.push(meta::owner_reference(set));
        }
    }
    (new != old).then_some(new)
}

/// Whether a reference names a `K` of this name, with any uid.
fn is_of<K: Typed>(owner: &OwnerReference, name: &str) -> bool {
    owner.api_version == K::API_VERSION && owner.kind == K::KIND && owner.name == name
}

//! Claims: each is bound to the volume that it names, that waits for it, or that suits it best.
//!
//! Upstream: `syncClaim` in `pkg/controller/volume/persistentvolume/pv_controller.go`. Volumes are made by provisioners that
//! run as Pods; they find in a claim's annotations which of them is asked.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};

use super::{
    super::{Context, Plan, Row, meta, plan::Note, plan::Write},
    BIND_COMPLETED, BOUND_BY_CONTROLLER, claim_class, claim_phase, claim_ref, matching, refers_to, uid, volume,
    volume_name,
};
use crate::{
    api::kinds::storage_class::IS_DEFAULT,
    client::{Key, reference},
};

/// Where the scheduler has found a place for the claim's first Pod.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Which provisioner is asked for a volume; the older name first.
const PROVISIONER: [&str; 2] =
    ["volume.beta.kubernetes.io/storage-provisioner", "volume.kubernetes.io/storage-provisioner"];

pub const ROW: Row = Row {
    name: "persistentvolume-binder",
    workers: 1,
    wire: |wires| {
        let informers = &wires.world.informers.clone();
        wires.own(&informers.persistent_volume_claims);
        wires.on(&informers.persistent_volumes, |world, queue, change| {
            let claimed = { change.old.iter().chain(&change.new) }.filter_map(|volume| claim_ref(volume));
            claimed.for_each(|claim| queue.add(super::claim_key(claim)));
            let free = change.new.as_ref().is_some_and(|volume| claim_ref(volume).is_none());
            for claim in world.informers.persistent_volume_claims.list() {
                let named = volume_name(&claim) == Some(&*change.key.name);
                if named || (free && volume_name(&claim).is_none()) {
                    queue.add(Key::of(&*claim));
                }
            }
        });
        wires.on(&informers.storage_classes, |world, queue, change| {
            let is_default = change.new.as_ref().is_some_and(|class| is_default(class));
            for claim in world.informers.persistent_volume_claims.list() {
                let class = claim_class(&claim);
                let unbound = volume_name(&claim).is_none();
                if unbound && (class == change.key.name || (class.is_empty() && is_default)) {
                    queue.add(Key::of(&*claim));
                }
            }
        });
    },
    reconcile: |context: &Context<'_>, key: &Key| {
        let informers = &context.world.informers;
        let Some(claim) = informers.persistent_volume_claims.get(key) else { return Plan::default() };
        plan(&claim, &informers.persistent_volumes.list(), &informers.storage_classes.list(), context.now)
    },
};

fn is_default(class: &StorageClass) -> bool {
    meta::annotation(&class.metadata, IS_DEFAULT) == Some("true")
}

/// What a claim needs.
pub fn plan(
    claim: &PersistentVolumeClaim,
    volumes: &[Arc<PersistentVolume>],
    classes: &[Arc<StorageClass>],
    now: Timestamp,
) -> Plan {
    let found = |name: &str| volumes.iter().find(|volume| meta::name(&volume.metadata) == name);
    if meta::annotation(&claim.metadata, BIND_COMPLETED).is_some() {
        return match volume_name(claim) {
            None => lost(
                claim,
                "ClaimLost",
                "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
            ),
            Some(name) => bound(claim, found(name).map(|volume| &**volume), now),
        };
    }
    if meta::is_terminating(&claim.metadata) {
        return Plan::default();
    }
    match volume_name(claim) {
        None => unbound(claim, volumes, classes, now),
        Some(name) => named(claim, found(name).map(|volume| &**volume), now),
    }
}

/// A claim that was bound already.
fn bound(claim: &PersistentVolumeClaim, volume: Option<&PersistentVolume>, now: Timestamp) -> Plan {
    let Some(volume) = volume else {
        return lost(claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!");
    };
    match claim_ref(volume) {
        None => bind(claim, volume, now),
        Some(other) if uid(other) == claim.metadata.uid.as_deref() => bind(claim, volume, now),
        Some(_) => {
            let why = "Two claims are bound to the same volume, this one is bound incorrectly";
            lost(claim, "ClaimMisbound", why)
        }
    }
}

/// A claim for a volume that a user has chosen, or whose binding was not completed.
fn named(claim: &PersistentVolumeClaim, volume: Option<&PersistentVolume>, now: Timestamp) -> Plan {
    let Some(volume) = volume else { return pending(claim, None) };
    let name = meta::name(&volume.metadata);
    match claim_ref(volume) {
        None => match matching::refusal(volume, claim) {
            None => bind(claim, volume, now),
            Some(why) => {
                let message = format!("Cannot bind to requested volume \"{name}\": {why}");
                pending(claim, Some(Note::warning(reference(claim), "VolumeMismatch", message)))
            }
        },
        Some(_) if refers_to(volume, claim) => bind(claim, volume, now),
        Some(_) => {
            let message = format!("volume \"{name}\" already bound to a different claim.");
            pending(claim, Some(Note::warning(reference(claim), "FailedBinding", message)))
        }
    }
}

/// A claim that takes what there is.
fn unbound(
    claim: &PersistentVolumeClaim,
    volumes: &[Arc<PersistentVolume>],
    classes: &[Arc<StorageClass>],
    now: Timestamp,
) -> Plan {
    let name = claim_class(claim);
    let class = classes.iter().find(|class| meta::name(&class.metadata) == name);
    let waits = class.is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
    let delayed = waits && meta::annotation(&claim.metadata, SELECTED_NODE).is_none();
    if let Some(volume) = matching::best(claim, volumes, waits) {
        return bind(claim, volume, now);
    }
    let note = |warning: bool, reason: &'static str, message: String| {
        let note = Note::normal(reference(claim), reason, message);
        Some(Note { warning, ..note })
    };
    if delayed {
        let why = "waiting for first consumer to be created before binding";
        return pending(claim, note(false, "WaitForFirstConsumer", why.into()));
    }
    let provisioner = class.map(|class| class.provisioner.as_str());
    match provisioner {
        _ if name.is_empty() => match adopted(claim, classes) {
            Some(plan) => plan,
            None => {
                let why = "no persistent volumes available for this claim and no storage class is set";
                pending(claim, note(false, "FailedBinding", why.into()))
            }
        },
        None => {
            let why = format!("storageclass.storage.k8s.io \"{name}\" not found");
            pending(claim, note(true, "ProvisioningFailed", why))
        }
        Some(own) if own.starts_with("kubernetes.io/") => {
            pending(claim, note(true, "ProvisioningFailed", format!("no volume plugin matched name: {own}")))
        }
        Some(external) => {
            let why = format!(
                "Waiting for a volume to be created either by the external provisioner '{external}' or manually by the \
                 system administrator. If volume creation is delayed, please verify that the provisioner is running and \
                 correctly registered."
            );
            let mut asked = claim.clone();
            let annotations = asked.metadata.annotations.get_or_insert_default();
            annotations.extend(PROVISIONER.map(|name| (name.to_owned(), external.to_owned())));
            let mut plan = pending(claim, note(false, "ExternalProvisioning", why));
            plan.then(Write::change(claim, &asked).into_iter().collect());
            plan
        }
    }
}

/// A claim from before there was a default class is of that class now; one that wants none says "".
fn adopted(claim: &PersistentVolumeClaim, classes: &[Arc<StorageClass>]) -> Option<Plan> {
    if claim.spec.as_ref()?.storage_class_name.is_some() || meta::annotation(&claim.metadata, super::CLASS).is_some() {
        return None;
    }
    let newest = |class: &&Arc<StorageClass>| {
        (meta::created(&class.metadata), std::cmp::Reverse(meta::name(&class.metadata).to_owned()))
    };
    let class = classes.iter().filter(|class| is_default(class)).max_by_key(newest)?;
    let mut new = claim.clone();
    new.spec.get_or_insert_default().storage_class_name = class.metadata.name.clone();
    let mut plan = Plan::default();
    plan.then(Write::change(claim, &new).into_iter().collect());
    Some(plan)
}

fn pending(claim: &PersistentVolumeClaim, note: Option<Note>) -> Plan {
    let mut plan = Plan::default();
    if claim_phase(claim) != "Pending" {
        let mut new = claim.clone();
        new.status.get_or_insert_default().phase = Some("Pending".into());
        plan.then(Write::status(claim, &new).into_iter().collect());
    }
    plan.notes.extend(note);
    plan
}

fn lost(claim: &PersistentVolumeClaim, reason: &'static str, message: &str) -> Plan {
    let mut plan = Plan::default();
    if claim_phase(claim) != "Lost" {
        let mut new = claim.clone();
        let status = new.status.get_or_insert_default();
        status.phase = Some("Lost".into());
        (status.capacity, status.access_modes) = (None, None);
        let note = Note::warning(reference(claim), reason, message);
        plan.then(Write::status(claim, &new).into_iter().map(|write| write.done(note.clone())).collect());
    }
    plan
}

/// The volume refers to the claim; when that is written nobody else gets it. Then the claim names the volume.
fn bind(claim: &PersistentVolumeClaim, old: &PersistentVolume, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let mut taken = old.clone();
    let chosen = claim_ref(old).is_none();
    if claim_ref(old).and_then(uid).is_none() {
        let mut to: ObjectReference = reference(claim);
        to.field_path = None;
        taken.spec.get_or_insert_default().claim_ref = Some(to);
        if chosen {
            taken.metadata.annotations.get_or_insert_default().insert(BOUND_BY_CONTROLLER.into(), "yes".into());
        }
    }
    plan.then(Write::change(old, &taken).into_iter().collect());
    plan.then(volume::phase(old, "Bound", None, now).into_iter().collect());

    let mut complete = claim.clone();
    let annotations = complete.metadata.annotations.get_or_insert_default();
    if volume_name(claim).is_none() {
        annotations.insert(BOUND_BY_CONTROLLER.into(), "yes".into());
    }
    annotations.insert(BIND_COMPLETED.into(), "yes".into());
    complete.spec.get_or_insert_default().volume_name = old.metadata.name.clone();
    plan.then(Write::change(claim, &complete).into_iter().collect());

    let mut told = claim.clone();
    let status = told.status.get_or_insert_default();
    status.phase = Some("Bound".into());
    status.access_modes = old.spec.as_ref().and_then(|spec| spec.access_modes.clone());
    // What the volume has now; later it changes with the claim's own size.
    if claim_phase(claim) != "Bound" {
        status.capacity = old.spec.as_ref().and_then(|spec| spec.capacity.clone());
    }
    plan.then(Write::status(claim, &told).into_iter().collect());
    plan
}

//! Claims: each is bound to the volume that it names, that is reserved for it, or that fits best.
//!
//! Upstream: `syncClaim` in `pkg/controller/volume/persistentvolume/pv_controller.go`. Provisioners create volumes:
//! [`super::local`] is built in and others run as Pods; an annotation on the claim names the responsible one.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};

use super::{
    super::{Context, Plan, Row, Writes, meta, write::Note, write::Write},
    volume,
};
use podwright_api::{
    kinds::storage_class::IS_DEFAULT,
    persistent_volume::{
        ASKED, BIND_COMPLETED, BOUND_BY_CONTROLLER, CLASS, SELECTED_NODE, claim_class, claim_phase, claim_ref,
        matching, refers_to, taken, uid, volume_class, volume_name,
    },
};
use podwright_client::{Informers, Key, reference};

pub const ROW: Row = Row {
    name: "persistentvolume-binder",
    workers: 1,
    writes: Writes::Of(&["persistentvolumeclaims", "persistentvolumes"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.own(&informers.persistent_volume_claims);
        watches.on(&informers.persistent_volumes, |world, queue, change| {
            let claims = &world.informers.persistent_volume_claims;
            let claimed = { change.old.iter().chain(&change.new) }.filter_map(|volume| claim_ref(volume));
            claimed.for_each(|claim| queue.add(super::claim_key(claim)));
            let mut concerned = claims.indexed(Informers::BY_VOLUME, &change.key.name);
            if let Some(free) = change.new.as_ref().filter(|volume| claim_ref(volume).is_none()) {
                concerned.extend(claims.indexed(Informers::BY_CLASS, volume_class(free)));
            }
            concerned.iter().for_each(|claim| queue.add(Key::of(&**claim)));
        });
        watches.on(&informers.storage_classes, |world, queue, change| {
            let claims = &world.informers.persistent_volume_claims;
            let mut concerned = claims.indexed(Informers::BY_CLASS, &change.key.name);
            if change.new.as_ref().is_some_and(|class| is_default(class)) {
                concerned.extend(claims.indexed(Informers::BY_CLASS, ""));
            }
            concerned.iter().for_each(|claim| queue.add(Key::of(&**claim)));
        });
    },
    reconcile: |context: &Context<'_>, key: &Key| {
        let informers = &context.world.informers;
        let Some(claim) = informers.persistent_volume_claims.get(key) else { return Plan::default() };
        plan(&claim, &candidates(informers, key, &claim), &informers.storage_classes.list(), context.now)
    },
};

/// The candidate volumes of a claim: the one that it names, or else those that refer to it and the free ones of its class.
fn candidates(informers: &Informers, key: &Key, claim: &PersistentVolumeClaim) -> Vec<Arc<PersistentVolume>> {
    let volumes = &informers.persistent_volumes;
    if let Some(name) = volume_name(claim) {
        return volumes.get(&Key::new("", name)).into_iter().collect();
    }
    let mut all = volumes.indexed(Informers::BY_CLAIM, &key.to_string());
    all.extend(volumes.indexed(Informers::BY_CLASS, claim_class(claim)));
    all
}

fn is_default(class: &StorageClass) -> bool {
    meta::annotation(&class.metadata, IS_DEFAULT) == Some("true")
}

/// Plans a claim; `volumes` are its candidates.
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

/// A claim for a volume that a user has chosen, or whose binding was interrupted.
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

/// A claim without a given volume.
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
    if let Some(volume) = best(claim, volumes, waits) {
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
            annotations.extend(ASKED.map(|name| (name.to_owned(), external.to_owned())));
            let mut plan = pending(claim, note(false, "ExternalProvisioning", why));
            plan.then(Write::change(claim, &asked).into_iter().collect());
            plan
        }
    }
}

/// A claim from before there was a default class gets that class now; one that wants none has "".
fn adopted(claim: &PersistentVolumeClaim, classes: &[Arc<StorageClass>]) -> Option<Plan> {
    if claim.spec.as_ref()?.storage_class_name.is_some() || meta::annotation(&claim.metadata, CLASS).is_some() {
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

/// The volume for a claim: one reserved for it, or the free one with the fewest other access modes and then the smallest size. With
/// `delayed` no free one is chosen: the scheduler decides on topology.
pub fn best<'a>(
    claim: &PersistentVolumeClaim,
    volumes: &'a [Arc<PersistentVolume>],
    delayed: bool,
) -> Option<&'a Arc<PersistentVolume>> {
    let rank = |volume: &&Arc<PersistentVolume>| (matching::modes(volume).len(), matching::waste(volume));
    let free = || if delayed { None } else { matching::free(claim, volumes).min_by_key(rank) };
    matching::reserved(claim, volumes).or_else(free)
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

/// First the volume refers to the claim, which makes it exclusive. Then the claim names the volume.
fn bind(claim: &PersistentVolumeClaim, old: &PersistentVolume, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    plan.then(Write::change(old, &taken(old, reference(claim))).into_iter().collect());
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
    // The volume's current capacity; later it follows the claim's own resize.
    if claim_phase(claim) != "Bound" {
        status.capacity = old.spec.as_ref().and_then(|spec| spec.capacity.clone());
    }
    plan.then(Write::status(claim, &told).into_iter().collect());
    plan
}

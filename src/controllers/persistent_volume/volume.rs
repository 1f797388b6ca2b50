//! Volumes: available, bound, released when their claim is gone, and reclaimed then.
//!
//! Upstream: `syncVolume` in `pkg/controller/volume/persistentvolume/pv_controller.go`. Nothing here deletes data: that is up to
//! the volume's provisioner.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use super::{
    super::{
        Context, Plan, Row, Writes, meta,
        write::{Guard, Note, Write},
    },
    claim_key,
};
use podwright_api::persistent_volume::{
    BOUND_BY_CONTROLLER, PROVISIONED_BY, claim_ref, uid, volume_name, volume_phase,
};
use podwright_client::{Informers, Key, Typed, reference};

pub const ROW: Row = Row {
    name: "persistentvolume-binder",
    workers: 2,
    writes: Writes::Of(&["persistentvolumes"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.own(&informers.persistent_volumes);
        watches.on(&informers.persistent_volume_claims, |world, queue, change| {
            let volumes = world.informers.persistent_volumes.indexed(Informers::BY_CLAIM, &change.key.to_string());
            volumes.iter().for_each(|volume| queue.add(Key::of(&**volume)));
            let named = change.old.iter().chain(&change.new).filter_map(|claim| volume_name(claim));
            named.for_each(|name| queue.add(Key::new("", name)));
        });
    },
    reconcile: |context: &Context<'_>, key: &Key| {
        let informers = &context.world.informers;
        let Some(volume) = informers.persistent_volumes.get(key) else { return Plan::default() };
        let claim = claim_ref(&volume).and_then(|to| informers.persistent_volume_claims.get(&claim_key(to)));
        plan(&volume, claim.as_deref(), context.now)
    },
};

/// Plans a volume; `claim` is the object with the name that it refers to.
pub fn plan(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let Some(to) = claim_ref(volume) else {
        plan.then(phase(volume, "Available", None, now).into_iter().collect());
        return plan;
    };
    let Some(wanted) = uid(to) else {
        // Reserved for a claim that does not exist yet.
        plan.then(phase(volume, "Available", None, now).into_iter().collect());
        return plan;
    };
    let Some(claim) = claim.filter(|claim| claim.metadata.uid.as_deref() == Some(wanted)) else {
        let absent = Guard::Absent {
            resource: PersistentVolumeClaim::resource(),
            key: claim_key(to),
            uid: Some(wanted.to_owned()),
        };
        released(volume, &absent, now, &mut plan);
        return plan;
    };
    match volume_name(claim) {
        Some(name) if name == meta::name(&volume.metadata) => {
            plan.then(phase(volume, "Bound", None, now).into_iter().collect());
        }
        // Binding the claim is in progress.
        None => {}
        Some(_) if meta::annotation(&volume.metadata, PROVISIONED_BY).is_some() && policy(volume) == "Delete" => {
            // Provisioned for a claim that was bound to another one meanwhile.
            plan.then(phase(volume, "Released", None, now).into_iter().collect());
        }
        Some(_) => plan.then(free(volume).into_iter().collect()),
    }
    plan
}

pub(super) fn policy(volume: &PersistentVolume) -> &str {
    let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    policy.unwrap_or("Retain")
}

/// The claim has another volume: a reference set by the binder is removed, a user's only loses its uid.
fn free(volume: &PersistentVolume) -> Option<Write> {
    let mut new = volume.clone();
    let spec = new.spec.get_or_insert_default();
    match meta::annotation(&volume.metadata, BOUND_BY_CONTROLLER) {
        Some(_) => {
            spec.claim_ref = None;
            new.metadata.annotations.get_or_insert_default().remove(BOUND_BY_CONTROLLER);
        }
        None => {
            if let Some(to) = &mut spec.claim_ref {
                (to.uid, to.resource_version) = (None, None);
            }
        }
    }
    Write::change(volume, &new)
}

/// The claim is gone.
fn released(volume: &PersistentVolume, absent: &Guard, now: Timestamp, plan: &mut Plan) {
    if volume_phase(volume) == "Failed" {
        return;
    }
    let failed = |reason: &'static str, why: String| {
        let note = Note::warning(reference(volume), reason, why.clone());
        phase(volume, "Failed", Some((reason, why)), now).map(|write| write.done(note))
    };
    let write = match (volume_phase(volume), policy(volume)) {
        ("Released", "Delete") if meta::annotation(&volume.metadata, PROVISIONED_BY).is_none() => {
            failed("VolumeFailedDelete", undeletable(volume))
        }
        ("Released", "Recycle") => failed("VolumeFailedRecycle", "No recycler plugin found for the volume!".into()),
        ("Released", "Retain" | "Delete") => None,
        ("Released", _) => {
            failed("VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy".into())
        }
        _ => phase(volume, "Released", None, now),
    };
    plan.then(write.into_iter().map(|write| write.guarded(absent.clone())).collect());
}

/// Why a volume without a provisioner stays, though its policy is Delete.
fn undeletable(volume: &PersistentVolume) -> String {
    match volume.spec.as_ref().and_then(|spec| spec.host_path.as_ref()) {
        // Upstream deletes these on the controller's machine. It is unknown which node's directory this is.
        Some(host) if host.path.starts_with("/tmp/") && host.path.len() > "/tmp/".len() => {
            format!(
                "host_path deleter cannot delete {} on the nodes: remove it there, then delete the volume",
                host.path
            )
        }
        Some(host) => format!("host_path deleter only supports /tmp/.+ but received provided {}", host.path),
        None => {
            let name = meta::name(&volume.metadata);
            format!("error getting deleter volume plugin for volume \"{name}\": no deletable volume plugin matched")
        }
    }
}

/// Sets a volume's phase with a reason.
pub(super) fn phase(
    volume: &PersistentVolume,
    phase: &str,
    why: Option<(&str, String)>,
    now: Timestamp,
) -> Option<Write> {
    if volume_phase(volume) == phase {
        return None;
    }
    let mut new = volume.clone();
    let status = new.status.get_or_insert_default();
    status.phase = Some(phase.to_owned());
    status.last_phase_transition_time = Some(meta::time(now));
    (status.reason, status.message) = why.map(|(reason, message)| (reason.to_owned(), message)).unzip();
    Write::status(volume, &new)
}

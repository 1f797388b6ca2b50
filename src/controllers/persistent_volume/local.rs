//! The built-in provisioner, `podwright.dev/local`: creates volumes for its classes' claims, each a directory on the node that the
//! scheduler selected, expands them, and deletes released ones.
//!
//! ```text
//!   claim, selected-node --CLAIMS--> PersistentVolume pvc-<uid of the claim>, with a finalizer
//!   ... its node creates the directory when the first Pod arrives (node::volumes::local)
//!   claim gone: Released --VOLUMES--> deleted, if that is its policy
//!   ... its node removes the directory, then the finalizer; an absent node does so when it returns
//! ```
//!
//! Only the uid of a claim, which the server generated, becomes part of a path. Interrupted work is resumed after a restart: a
//! volume without a bound claim waits for its claim, and is released if that is gone.
//!
//! Upstream: `sig-storage-lib-external-provisioner`, whose annotations, names and events these are; and `external-resizer`.

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use serde_json::json;

use super::{
    super::{
        Context, Plan, Row, Writes, meta,
        write::{Guard, Note, Write},
    },
    claim_key, protection, volume,
};
use podwright_api::persistent_volume::{
    ASKED, PROVISIONED_BY, SELECTED_NODE, claim_class, claim_phase, claim_ref,
    local::{self, FINALIZER, FOLDER, NODE, PROVISIONER},
    matching, refers_to, uid, volume_name, volume_phase,
};
use podwright_client::{Informers, Key, Typed, reference};

const NAME: &str = "local-volume-provisioner";
const FAILED: &str = "ProvisioningFailed";

pub const CLAIMS: Row = Row {
    name: NAME,
    workers: 2,
    writes: Writes::Of(&["persistentvolumeclaims", "persistentvolumes"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.own(&informers.persistent_volume_claims);
        watches.on(&informers.persistent_volumes, |_, queue, change| {
            let ours = change.old.iter().chain(&change.new).filter(|volume| local::is_ours(volume));
            ours.filter_map(|volume| claim_ref(volume)).for_each(|claim| queue.add(claim_key(claim)));
        });
    },
    reconcile: |context: &Context<'_>, key: &Key| {
        let informers = &context.world.informers;
        let Some(claim) = informers.persistent_volume_claims.get(key) else { return Plan::default() };
        if let Some(name) = volume_name(&claim) {
            let volume = informers.persistent_volumes.get(&Key::new("", name));
            return volume.map(|volume| growth(&claim, &volume)).unwrap_or_default();
        }
        let waits = informers.persistent_volumes.indexed(Informers::BY_CLAIM, &key.to_string());
        if waits.iter().any(|volume| refers_to(volume, &claim)) {
            // It is the binder's turn.
            return Plan::default();
        }
        let class = informers.storage_classes.get(&Key::new("", claim_class(&claim)));
        let selected = meta::annotation(&claim.metadata, SELECTED_NODE).unwrap_or_default();
        let node = informers.nodes.get(&Key::new("", selected));
        class.map(|class| provision(&claim, &class, node.as_deref())).unwrap_or_default()
    },
};

pub const VOLUMES: Row = Row {
    name: NAME,
    workers: 2,
    writes: Writes::Of(&["persistentvolumes"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.own(&informers.persistent_volumes);
    },
    reconcile: |context: &Context<'_>, key: &Key| {
        let informers = &context.world.informers;
        let Some(volume) = informers.persistent_volumes.get(key) else { return Plan::default() };
        let exists = |node: &str| informers.nodes.get(&Key::new("", node)).is_some();
        deletion(&volume, exists)
    },
};

/// Plans a claim without a volume; `node` is the selected one.
pub fn provision(claim: &PersistentVolumeClaim, class: &StorageClass, node: Option<&Node>) -> Plan {
    let mut plan = Plan::default();
    let is_asked = ASKED.iter().any(|name| meta::annotation(&claim.metadata, name) == Some(PROVISIONER));
    if meta::is_terminating(&claim.metadata) || class.provisioner != PROVISIONER || !is_asked {
        return plan;
    }
    let class_name = meta::name(&class.metadata);
    let failed = |why: &str| {
        let message = format!("failed to provision volume with StorageClass \"{class_name}\": {why}");
        Note::warning(reference(claim), FAILED, message)
    };
    let selected = meta::annotation(&claim.metadata, SELECTED_NODE);
    if let Some(why) = refusal(claim, class, selected) {
        plan.notes.push(failed(&why));
        return plan;
    }
    let Some(selected) = selected else { return plan };
    let name = claim.metadata.uid.as_deref().and_then(local::name);
    let folder =
        node.and_then(|node| meta::annotation(&node.metadata, FOLDER)).filter(|folder| local::is_folder(folder));
    let (Some(name), Some(folder)) = (name, folder) else {
        let why = match node {
            None => format!("node \"{selected}\" not found"),
            Some(_) => format!("node \"{selected}\" keeps no volumes"),
        };
        plan.notes.push(failed(&why));
        // As upstream's provisioners do: the scheduler selects another one.
        let mut again = claim.clone();
        again.metadata.annotations.get_or_insert_default().remove(SELECTED_NODE);
        plan.then(Write::change(claim, &again).into_iter().collect());
        return plan;
    };
    let about = format!("{}/{}", claim.metadata.namespace.as_deref().unwrap_or_default(), meta::name(&claim.metadata));
    let begun = format!("External provisioner is provisioning volume for claim \"{about}\"");
    plan.notes.push(Note::normal(reference(claim), "Provisioning", begun));
    let Some(made) = made(claim, class, selected, &name, folder) else { return plan };
    let done = format!("Successfully provisioned volume {name}");
    let write = Write::create(&made)
        .guarded(Guard::Alive {
            resource: PersistentVolumeClaim::resource(),
            key: Key::of(claim),
            uid: claim.metadata.uid.clone().unwrap_or_default(),
        })
        .done(Note::normal(reference(claim), "ProvisioningSucceeded", done))
        .failed(failed("{}"));
    plan.then(vec![write]);
    plan
}

/// What a directory on a node cannot provide of a claim or its class; in upstream's words where it has any.
fn refusal(claim: &PersistentVolumeClaim, class: &StorageClass, selected: Option<&str>) -> Option<String> {
    let spec = claim.spec.clone().unwrap_or_default();
    let class_name = meta::name(&class.metadata);
    let modes = spec.access_modes.unwrap_or_default();
    let other = modes.iter().find(|mode| !matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod"));
    if let Some(mode) = other {
        return Some(format!(
            "access mode {mode} is not supported: a folder of one node is ReadWriteOnce or ReadWriteOncePod"
        ));
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Some(format!("{PROVISIONER} does not support block volume provisioning"));
    }
    if spec.selector.is_some() {
        return Some("claim.Spec.Selector is not supported".into());
    }
    if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        return Some("claim.Spec.DataSource is not supported: the volume would be empty".into());
    }
    if spec.volume_attributes_class_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return Some("claim.Spec.VolumeAttributesClassName is not supported".into());
    }
    if let Some(key) = class.parameters.iter().flatten().map(|(key, _)| key).next() {
        return Some(format!("invalid option {key:?} of StorageClass {class_name:?}: there are no parameters"));
    }
    if let Some(options) = class.mount_options.as_ref().filter(|options| !options.is_empty()) {
        let why = "Mount options are not supported by the provisioner but StorageClass";
        return Some(format!("{why} {class_name:?} has mount options {options:?}"));
    }
    if selected.is_none() && class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer") {
        return Some(format!(
            "a volume is on one node, and nothing says on which: the volumeBindingMode of StorageClass {class_name:?} has \
             to be WaitForFirstConsumer"
        ));
    }
    None
}

/// The volume for a claim. `None`: it cannot be represented as an object, which cannot happen with an accepted claim.
fn made(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &str,
    name: &str,
    folder: &str,
) -> Option<PersistentVolume> {
    let spec = claim.spec.as_ref()?;
    let size = spec.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    let own = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
    serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "labels": { NODE: node },
            "annotations": { PROVISIONED_BY: PROVISIONER },
            "finalizers": [protection::VOLUME, FINALIZER],
        },
        "spec": {
            "capacity": { "storage": size },
            "accessModes": spec.access_modes,
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": class.metadata.name,
            "volumeMode": "Filesystem",
            "local": { "path": local::path(folder, name) },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchFields": [own] }] } },
            "claimRef": { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.metadata.namespace,
                "name": claim.metadata.name, "uid": claim.metadata.uid },
        },
    }))
    .ok()
}

/// Plans the growth of a claim with this volume: the volume gets the requested size, and the claim reports it. (Whether it may grow
/// was checked on write. The limit on the node follows the volume.)
pub fn growth(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Plan {
    let mut plan = Plan::default();
    let is_its = claim_ref(volume).and_then(uid) == claim.metadata.uid.as_deref();
    let over = meta::is_terminating(&claim.metadata) || meta::is_terminating(&volume.metadata);
    if !local::is_ours(volume) || !is_its || over || claim_phase(claim) != "Bound" {
        return plan;
    }
    let mut grown = volume.clone();
    let asked = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
    if let Some(asked) = asked.filter(|_| matching::capacity(volume) < matching::request(claim)) {
        let capacity = grown.spec.get_or_insert_default().capacity.get_or_insert_default();
        capacity.insert("storage".to_owned(), asked.clone());
        plan.then(Write::change(volume, &grown).into_iter().collect());
    }
    let mut told = claim.clone();
    let status = told.status.get_or_insert_default();
    let size = grown.spec.as_ref().and_then(|spec| spec.capacity.clone());
    if status.capacity != size {
        status.capacity = size;
        let done = Note::normal(reference(claim), "VolumeResizeSuccessful", "Resize volume succeeded");
        plan.then(Write::status(claim, &told).into_iter().map(|write| write.done(done.clone())).collect());
    }
    plan
}

/// Plans a volume that is, or will be, deleted. `exists`: whether there is a Node with a name.
pub fn deletion(found: &PersistentVolume, exists: impl Fn(&str) -> bool) -> Plan {
    let mut plan = Plan::default();
    let finalizers = found.metadata.finalizers.as_deref().unwrap_or_default();
    let held = finalizers.iter().any(|name| name == FINALIZER);
    let is_ours = local::is_ours(found);
    let is_deleted_with_data = volume::policy(found) == "Delete";
    match meta::is_terminating(&found.metadata) {
        // Its data stays.
        true if held && !is_deleted_with_data => {
            let mut free = found.clone();
            let rest: Vec<String> = finalizers.iter().filter(|name| *name != FINALIZER).cloned().collect();
            free.metadata.finalizers = Some(rest).filter(|rest| !rest.is_empty());
            plan.then(Write::change(found, &free).into_iter().collect());
        }
        true if held => {
            let why = match local::node(found).filter(|_| is_ours) {
                None => "nothing says which node has its data".to_owned(),
                Some(node) if exists(node) => return plan,
                Some(node) => format!("node \"{node}\", which has its data, is gone"),
            };
            let message = format!("{why}: once the data is gone, take the finalizer {FINALIZER} away");
            plan.notes.push(Note::warning(reference(found), "VolumeFailedDelete", message));
        }
        true => {}
        false if !is_ours => {}
        false if !held => {
            let mut kept = found.clone();
            kept.metadata.finalizers.get_or_insert_default().push(FINALIZER.to_owned());
            plan.then(Write::change(found, &kept).into_iter().collect());
        }
        false if volume_phase(found) == "Released" && is_deleted_with_data => {
            let mut write = Write::delete(found);
            // A concurrent change of its policy must not be missed.
            if let Some(exactly) = &mut write.request.options.preconditions {
                exactly.resource_version = found.metadata.resource_version.clone();
            }
            plan.then(vec![write]);
        }
        false => {}
    }
    plan
}

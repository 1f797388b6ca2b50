//! VolumeBinding: places a Pod where its volumes are reachable, or where its unbound claims can be bound.
//! <https://kubernetes.io/docs/concepts/storage/storage-classes/#volume-binding-mode>

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::framework::{
    ClusterEvent, ClusterEventKind, Plugin, Point, PreBind, PreFilter, QueueingHint, Reason, Rejection, Row, args,
};
use crate::{
    cluster::{Cluster, NodeInfo},
    pod::PodInfo,
    storage::Storage,
};
use podwright_api::{
    Options, Request, Verb,
    configuration::{FieldError, Problem},
    patch,
    persistent_volume::{
        NO_PROVISIONER, NotOwner, SELECTED_NODE, claim_phase, is_fully_bound, is_own, is_reachable, matching,
        volume_name, volume_phase,
    },
    request::PatchType,
};
use podwright_client::{Key, Typed};

pub const ROW: Row = Row {
    name: "VolumeBinding",
    weight: 0,
    points: &[Point::PreFilter, Point::Filter, Point::Reserve, Point::PreBind],
    events_to_register: &[
        ClusterEventKind::NodeAdded,
        ClusterEventKind::NodeLabels,
        ClusterEventKind::PodRemoved,
        ClusterEventKind::Claim,
        ClusterEventKind::Volume,
        ClusterEventKind::Class,
    ],
    make,
};

/// How long a Pod's node is reserved until its claims are bound.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VolumeBindingArgs {
    bind_timeout_seconds: i64,
}

impl Default for VolumeBindingArgs {
    fn default() -> VolumeBindingArgs {
        VolumeBindingArgs { bind_timeout_seconds: 600 }
    }
}

fn make(value: &Value) -> Result<Box<dyn Plugin>, FieldError> {
    let args: VolumeBindingArgs = args(value)?;
    match args.bind_timeout_seconds {
        0.. => Ok(Box::new(args)),
        _ => {
            let why = "invalid BindTimeoutSeconds, should not be a negative value";
            Err(FieldError::new("bindTimeoutSeconds", Problem::Other(why.into())))
        }
    }
}

/// A claim with delayed binding, until its first Pod has a node.
struct Delayed {
    claim: Arc<PersistentVolumeClaim>,
    /// The node that its volume is being provisioned for.
    selected: Option<String>,
    /// A volume that is reserved for it.
    reserved: Option<Arc<PersistentVolume>>,
    /// Other matching volumes, the best first.
    free: Vec<Arc<PersistentVolume>>,
    class: Option<Arc<StorageClass>>,
}

/// What a Pod's claims require of a node.
#[derive(Default)]
struct Wishes {
    /// The volumes of its bound claims.
    bound: Vec<Arc<PersistentVolume>>,
    /// A claim's volume does not exist.
    lost: bool,
    /// The smallest request first.
    delayed: Vec<Delayed>,
}

/// What the claims of a Pod get on one node.
#[derive(Default)]
struct Found {
    volumes: Vec<(Arc<PersistentVolumeClaim>, Arc<PersistentVolume>)>,
    /// Those to provision volumes for.
    made: Vec<Arc<PersistentVolumeClaim>>,
}

fn is_delayed(claim: &PersistentVolumeClaim, storage: &Storage) -> bool {
    let mode = storage.class_of(claim).and_then(|class| class.volume_binding_mode.as_deref());
    mode == Some("WaitForFirstConsumer")
}

/// Why a Pod's claim cannot be used, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ClaimError {
    #[error("persistentvolumeclaim {name:?} not found")]
    NotFound { name: String },
    /// The Pod's own claim, which is not created yet.
    #[error("waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}")]
    Awaited { name: String },
    /// Its volume is gone.
    #[error("persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}")]
    Lost { name: String, volume: String },
    #[error("persistentvolumeclaim {name:?} is being deleted")]
    Deleted { name: String },
    #[error("{0}")]
    NotOwner(NotOwner),
}

/// A Pod's claim, if it is usable.
fn usable<'c>(
    pod: &PodInfo,
    used: &podwright_api::persistent_volume::Used,
    storage: &'c Storage,
) -> Result<&'c Arc<PersistentVolumeClaim>, ClaimError> {
    let name = || used.name.clone();
    let claim = storage.claim(&pod.key.namespace, &used.name).ok_or_else(|| match used.ephemeral {
        true => ClaimError::Awaited { name: name() },
        false => ClaimError::NotFound { name: name() },
    })?;
    if claim_phase(claim) == "Lost" {
        let volume = volume_name(claim).unwrap_or_default().to_owned();
        return Err(ClaimError::Lost { name: name(), volume });
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(ClaimError::Deleted { name: name() });
    }
    if used.ephemeral {
        is_own(&pod.pod, claim).map_err(ClaimError::NotOwner)?;
    }
    Ok(claim)
}

impl Wishes {
    /// `None`: it has no claims. An error: no node is suitable.
    fn of(pod: &PodInfo, storage: &Storage) -> Result<Option<Wishes>, Reason> {
        if pod.claims.is_empty() {
            return Ok(None);
        }
        // Several volumes of a Pod may name the same claim, which gets a single volume.
        let mut claims = BTreeMap::new();
        for used in &pod.claims {
            claims.insert(&used.name, usable(pod, used, storage).map_err(|why| why.to_string())?);
        }
        let mut wishes = Wishes::default();
        for claim in claims.into_values() {
            match volume_name(claim) {
                Some(name) if is_fully_bound(claim) => match storage.volume(name) {
                    Some(volume) => wishes.bound.push(volume.clone()),
                    None => wishes.lost = true,
                },
                None if is_delayed(claim, storage) => wishes.delayed.push(Delayed::of(claim, storage)),
                _ => return Err("pod has unbound immediate PersistentVolumeClaims".into()),
            }
        }
        wishes.delayed.sort_by_key(|delayed| matching::request(&delayed.claim));
        Ok(Some(wishes))
    }

    /// What the claims get on a node; or the reasons against it.
    fn on(&self, node: &NodeInfo) -> Result<Found, Vec<Reason>> {
        let reached = |volume: &Arc<PersistentVolume>| is_reachable(volume, &node.name, |key| node.label(key));
        let mut why: Vec<Reason> = Vec::new();
        if !self.bound.iter().all(reached) {
            why.push("node(s) had volume node affinity conflict".into());
        }
        let mut found = Found::default();
        let mut chosen = BTreeSet::new();
        for delayed in &self.delayed {
            match delayed.choose(node, |volume| reached(volume) && !chosen.contains(&volume.metadata.name)) {
                Some(Some(volume)) => {
                    chosen.insert(volume.metadata.name.clone());
                    found.volumes.push((delayed.claim.clone(), volume.clone()));
                }
                Some(None) => found.made.push(delayed.claim.clone()),
                None => {
                    why.push("node(s) didn't find available persistent volumes to bind".into());
                    break;
                }
            }
        }
        if self.lost {
            why.push("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)".into());
        }
        if why.is_empty() { Ok(found) } else { Err(why) }
    }
}

impl Delayed {
    fn of(claim: &Arc<PersistentVolumeClaim>, storage: &Storage) -> Delayed {
        let annotations = claim.metadata.annotations.as_ref();
        let mut free: Vec<_> = matching::free(claim, storage.volumes_like(claim)).cloned().collect();
        free.sort_by_cached_key(|volume| matching::waste(volume));
        Delayed {
            selected: annotations.and_then(|all| all.get(SELECTED_NODE)).cloned(),
            reserved: matching::reserved(claim, storage.volumes_like(claim)).cloned(),
            free,
            class: storage.class_of(claim).cloned(),
            claim: claim.clone(),
        }
    }

    /// The volume for the claim on a node; inner `None`: one is provisioned there. `None`: it gets none there.
    fn choose(
        &self,
        node: &NodeInfo,
        is_for_it: impl Fn(&Arc<PersistentVolume>) -> bool,
    ) -> Option<Option<&Arc<PersistentVolume>>> {
        match (&self.selected, &self.reserved) {
            (Some(selected), _) if *selected != node.name => return None,
            (Some(_), _) => {}
            (None, Some(reserved)) if is_for_it(reserved) => return Some(Some(reserved)),
            (None, Some(_)) => {}
            (None, None) => {
                if let Some(volume) = self.free.iter().find(|volume| is_for_it(volume)) {
                    return Some(Some(volume));
                }
            }
        }
        let class = self.class.as_ref()?;
        (makes_volumes(class) && is_in_topology(class, node)).then_some(None)
    }
}

fn makes_volumes(class: &StorageClass) -> bool {
    !class.provisioner.is_empty() && class.provisioner != NO_PROVISIONER
}

/// Whether a class' volumes are reachable from a node: the terms are alternatives, and an empty list allows every node.
fn is_in_topology(class: &StorageClass, node: &NodeInfo) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    let matches = |term: &k8s_openapi::api::core::v1::TopologySelectorTerm| {
        let mut all = term.match_label_expressions.iter().flatten();
        all.all(|wanted| node.label(&wanted.key).is_some_and(|value| wanted.values.iter().any(|v| v == value)))
    };
    terms.is_empty() || terms.iter().any(matches)
}

/// The write of a promise, refused if the object has changed meanwhile.
fn write<K: Typed>(old: &K, patch: Value) -> Request {
    let key = Key::of(old);
    let seen = json!({ "metadata": { "uid": old.metadata().uid, "resourceVersion": old.metadata().resource_version } });
    Request {
        verb: Verb::Patch,
        resource: K::resource(),
        namespace: key.namespace().map(str::to_owned),
        name: Some(key.name),
        body: Some(patch::merge(&seen, &patch)),
        options: Options { patch_type: Some(PatchType::Merge), ..Options::default() },
        ..Request::default()
    }
}

impl Plugin for VolumeBindingArgs {
    fn pre_filter<'c>(&'c self, pod: &'c PodInfo, cluster: &'c Cluster) -> PreFilter<'c> {
        match Wishes::of(pod, &cluster.storage) {
            Ok(None) => PreFilter::Skip,
            Err(why) => PreFilter::Refuse(why),
            Ok(Some(wishes)) => PreFilter::Check(Box::new(move |node| {
                let why = wishes.on(node).err()?;
                Some(Rejection { why, resolvable: false })
            })),
        }
    }

    fn reserve(&self, pod: &PodInfo, node: &str, cluster: &mut Cluster) -> Result<Option<PreBind>, Reason> {
        let Some(wishes) = Wishes::of(pod, &cluster.storage)? else { return Ok(None) };
        let Some(info) = cluster.node(node) else { return Err(format!("node {node:?} not found").into()) };
        let found = wishes.on(info).map_err(|why| Reason::from(why.join(", ")))?;
        if found.volumes.is_empty() && found.made.is_empty() {
            return Ok(None);
        }
        let mut writes = Vec::new();
        for (claim, volume) in &found.volumes {
            let name = volume.metadata.name.as_deref().unwrap_or_default();
            if let Some((old, new)) = cluster.storage.promise_volume(&pod.uid, claim, name) {
                let to = new.spec.as_ref().and_then(|spec| spec.claim_ref.clone());
                let annotations = &new.metadata.annotations;
                writes.push(write(
                    &*old,
                    json!({ "metadata": { "annotations": annotations }, "spec": { "claimRef": to } }),
                ));
            }
        }
        for claim in &found.made {
            if let Some((old, _)) = cluster.storage.promise_claim(&pod.uid, claim, node) {
                writes.push(write(&*old, json!({ "metadata": { "annotations": { SELECTED_NODE: node } } })));
            }
        }
        let patience = Duration::from_secs(self.bind_timeout_seconds.unsigned_abs());
        Ok(Some(PreBind { plugin: ROW.name, writes, patience }))
    }

    fn is_ready(&self, pod: &PodInfo, node: &NodeInfo, cluster: &Cluster) -> Result<bool, Reason> {
        let kept = cluster.storage.is_kept(&pod.uid).map_err(|why| format!("binding volumes: {why}"))?;
        // All its claims are bound then: further candidates are not needed.
        let wishes = if kept { Wishes::of(pod, &cluster.storage).ok().flatten() } else { None };
        let Some(wishes) = wishes else { return Ok(kept) };
        // The binder may have chosen other volumes than promised.
        let far = |volume: &&Arc<PersistentVolume>| !is_reachable(volume, &node.name, |key| node.label(key));
        match wishes.bound.iter().find(far) {
            Some(volume) => {
                let name = volume.metadata.name.as_deref().unwrap_or_default();
                let node = &node.name;
                Err(format!("binding volumes: pv {name:?} node affinity doesn't match node {node:?}").into())
            }
            None => Ok(true),
        }
    }

    fn unreserve(&self, pod: &PodInfo, cluster: &mut Cluster) {
        cluster.storage.forget(&pod.uid);
    }

    fn queueing_hint(&self, pod: &PodInfo, change: &ClusterEvent) -> QueueingHint {
        match change {
            ClusterEvent::NodeAdded | ClusterEvent::NodeLabels => QueueingHint::Here,
            ClusterEvent::Claim(key) => QueueingHint::anywhere(uses(pod, key)),
            ClusterEvent::Volume(old, new) => {
                // A free volume may match a claim; a new one may be what a bound claim was missing.
                let labels = old.as_ref().is_some_and(|old| old.metadata.labels != new.metadata.labels);
                QueueingHint::anywhere(old.is_none() || labels || volume_phase(new) == "Available")
            }
            // It had a chosen node, and its promised volumes there are free again.
            ClusterEvent::PodRemoved(other) => QueueingHint::anywhere(!other.claims.is_empty() && !other.has_node()),
            ClusterEvent::Class(None, _) => QueueingHint::Anywhere,
            ClusterEvent::Class(Some(old), new) => {
                QueueingHint::anywhere(old.allowed_topologies != new.allowed_topologies)
            }
            _ => QueueingHint::No,
        }
    }
}

/// Whether a Pod uses the claim.
pub(super) fn uses(pod: &PodInfo, claim: &Key) -> bool {
    pod.key.namespace == claim.namespace && pod.claim_names.contains(&claim.name)
}

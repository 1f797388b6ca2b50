//! VolumeZone: places a Pod in the zone and region of its volumes' labels.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PersistentVolume;

use super::{
    super::framework::{
        ClusterEvent, ClusterEventKind, Plugin, Point, PreFilter, QueueingHint, Reason, Rejection, Row,
    },
    plain, volume_binding,
};
use crate::{
    cluster::{Cluster, NodeInfo},
    pod::PodInfo,
};
use podwright_api::persistent_volume::{claim_class, volume_name};

pub const ROW: Row = Row {
    name: "VolumeZone",
    weight: 0,
    points: &[Point::PreFilter, Point::Filter],
    events_to_register: &[
        ClusterEventKind::NodeAdded,
        ClusterEventKind::NodeLabels,
        ClusterEventKind::Claim,
        ClusterEventKind::Volume,
        ClusterEventKind::Class,
    ],
    make: plain::<VolumeZone>,
};

#[derive(Default)]
struct VolumeZone;

/// Topology labels, with the current name of each.
const LABELS: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
];

/// A label that a node must have with one of these values, and the label's current name.
type PvTopology = (&'static str, &'static str, BTreeSet<String>);

/// The topology of a volume. Several zones are written `a__b`.
fn places(volume: &PersistentVolume) -> Vec<PvTopology> {
    let label = |key: &str| volume.metadata.labels.as_ref()?.get(key);
    let place = |(key, present): (&'static str, &'static str)| {
        let values: BTreeSet<String> = label(key)?.split("__").map(|zone| zone.trim().to_owned()).collect();
        // Upstream ignores a label with an empty value.
        (!values.contains("")).then_some((key, present, values))
    };
    LABELS.into_iter().filter_map(place).collect()
}

/// The topology of all of a Pod's volumes; unbound claims with delayed binding have none.
fn all_places(pod: &PodInfo, cluster: &Cluster) -> Result<Vec<PvTopology>, Reason> {
    let mut all = Vec::new();
    for used in pod.claims.iter().filter(|used| !used.ephemeral) {
        let name = &used.name;
        let claim = cluster.storage.claim(&pod.key.namespace, name);
        let claim = claim.ok_or_else(|| format!("persistentvolumeclaim {name:?} not found"))?;
        let Some(volume) = volume_name(claim) else {
            let class = claim_class(claim);
            if class.is_empty() {
                return Err("PersistentVolumeClaim had no pv name and storageClass name".into());
            }
            let known = cluster.storage.class_of(claim);
            let known = known.ok_or_else(|| format!("storageclass.storage.k8s.io {class:?} not found"))?;
            match known.volume_binding_mode.as_deref() {
                Some("WaitForFirstConsumer") => continue,
                Some(_) => return Err("PersistentVolume had no name".into()),
                None => return Err(format!("VolumeBindingMode not set for StorageClass {class:?}").into()),
            }
        };
        let volume = cluster.storage.volume(volume).ok_or_else(|| format!("persistentvolume {volume:?} not found"))?;
        all.extend(places(volume));
    }
    Ok(all)
}

fn is_there((key, present, values): &PvTopology, node: &NodeInfo) -> bool {
    node.label(key).or_else(|| node.label(present)).is_some_and(|value| values.contains(value))
}

impl Plugin for VolumeZone {
    fn pre_filter<'c>(&'c self, pod: &'c PodInfo, cluster: &'c Cluster) -> PreFilter<'c> {
        let all = match all_places(pod, cluster) {
            Err(why) => return PreFilter::Refuse(why),
            Ok(all) if all.is_empty() => return PreFilter::Skip,
            Ok(all) => all,
        };
        PreFilter::Check(Box::new(move |node| {
            // A single-zone cluster may have no labels.
            let placed = LABELS.iter().any(|(key, _)| node.label(key).is_some());
            let out = placed && !all.iter().all(|place| is_there(place, node));
            out.then(|| Rejection::always("node(s) had no available volume zone"))
        }))
    }

    fn queueing_hint(&self, pod: &PodInfo, change: &ClusterEvent) -> QueueingHint {
        match change {
            ClusterEvent::NodeAdded | ClusterEvent::NodeLabels => QueueingHint::Here,
            ClusterEvent::Claim(key) => QueueingHint::anywhere(volume_binding::uses(pod, key)),
            ClusterEvent::Volume(old, new) => {
                QueueingHint::anywhere(old.as_ref().is_none_or(|old| places(old) != places(new)))
            }
            ClusterEvent::Class(None, new) => {
                QueueingHint::anywhere(new.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
            }
            _ => QueueingHint::No,
        }
    }
}

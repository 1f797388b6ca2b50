//! VolumeRestrictions: a ReadWriteOncePod claim is used by one Pod.
//!
//! Upstream also checks inline disks of some clouds; no node here mounts these.

use std::collections::HashSet;

use super::{
    super::framework::{ClusterEvent, ClusterEventKind, Plugin, Point, PreFilter, QueueingHint, Rejection, Row},
    plain, volume_binding,
};
use crate::{cluster::Cluster, pod::PodInfo};

pub const ROW: Row = Row {
    name: "VolumeRestrictions",
    weight: 0,
    points: &[Point::PreFilter, Point::Filter],
    events_to_register: &[ClusterEventKind::PodRemoved, ClusterEventKind::Claim],
    make: plain::<VolumeRestrictions>,
};

#[derive(Default)]
struct VolumeRestrictions;

/// Whether a Pod uses one of these claims.
fn uses_one(pod: &PodInfo, namespace: &str, claims: &HashSet<String>) -> bool {
    pod.key.namespace == namespace && !pod.claim_names.is_disjoint(claims)
}

impl Plugin for VolumeRestrictions {
    fn pre_filter<'c>(&'c self, pod: &'c PodInfo, cluster: &'c Cluster) -> PreFilter<'c> {
        let mut alone = HashSet::new();
        for name in pod.claims.iter().filter(|used| !used.ephemeral).map(|used| &used.name) {
            let Some(claim) = cluster.storage.claim(&pod.key.namespace, name) else {
                return PreFilter::Refuse(format!("persistentvolumeclaim {name:?} not found").into());
            };
            let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
            if modes.iter().any(|mode| mode == "ReadWriteOncePod") {
                alone.insert(name.clone());
            }
        }
        if alone.is_empty() {
            return PreFilter::Skip;
        }
        let has_one = move |other: &PodInfo| uses_one(other, &pod.key.namespace, &alone);
        let all = cluster.nodes().flat_map(|node| node.load.pods());
        let users = all.filter(|other| has_one(other)).count() as i64;
        // If another Pod uses it, no node is suitable.
        PreFilter::Check(Box::new(move |node| {
            let users = users + node.supposed.sum(|other| has_one(other).into());
            (users > 0).then(|| {
                Rejection::now(
                    "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
                )
            })
        }))
    }

    fn queueing_hint(&self, pod: &PodInfo, change: &ClusterEvent) -> QueueingHint {
        QueueingHint::anywhere(match change {
            ClusterEvent::PodRemoved(other) => uses_one(other, &pod.key.namespace, &pod.claim_names),
            ClusterEvent::Claim(key) => volume_binding::uses(pod, key),
            _ => false,
        })
    }
}

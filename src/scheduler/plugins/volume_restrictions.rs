//! VolumeRestrictions: a claim that is for one Pod alone has one.
//!
//! Upstream has it look at disks of some clouds, too, which are written into Pods themselves; no node here mounts these.

use super::{
    super::framework::{ClusterEvent, ClusterEventKind, Plugin, Point, PreFilter, QueueingHint, Rejection, Row},
    plain, volume_binding,
};
use crate::{cluster::Cluster, pod::PodInfo};
use podwright_client::Key;

pub const ROW: Row = Row {
    name: "VolumeRestrictions",
    weight: 0,
    points: &[Point::PreFilter, Point::Filter],
    events_to_register: &[ClusterEventKind::PodRemoved, ClusterEventKind::Claim],
    make: plain::<VolumeRestrictions>,
};

#[derive(Default)]
struct VolumeRestrictions;

fn named(pod: &PodInfo) -> impl Iterator<Item = Key> {
    pod.claims.iter().filter(|used| !used.ephemeral).map(|used| Key::new(&pod.key.namespace, &used.name))
}

impl Plugin for VolumeRestrictions {
    fn pre_filter<'c>(&'c self, pod: &'c PodInfo, cluster: &'c Cluster) -> PreFilter<'c> {
        let mut alone = Vec::new();
        for key in named(pod) {
            let Some(claim) = cluster.storage.claim(&key.namespace, &key.name) else {
                return PreFilter::Refuse(format!("persistentvolumeclaim {:?} not found", key.name).into());
            };
            let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
            if modes.iter().any(|mode| mode == "ReadWriteOncePod") {
                alone.push(key);
            }
        }
        if alone.is_empty() {
            return PreFilter::Skip;
        }
        let has_one = move |other: &PodInfo| alone.iter().any(|claim| volume_binding::uses(other, claim));
        let all = cluster.nodes().flat_map(|node| node.load.pods());
        let users = all.filter(|other| has_one(other)).count() as i64;
        // Wherever such a Pod is, this one goes nowhere.
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
            ClusterEvent::PodRemoved(other) => named(pod).any(|claim| volume_binding::uses(other, &claim)),
            ClusterEvent::Claim(key) => volume_binding::uses(pod, key),
            _ => false,
        })
    }
}

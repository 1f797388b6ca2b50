//! TaintToleration: NoSchedule and NoExecute taints reject Pods that do not tolerate them; PreferNoSchedule ones affect the score.
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/>

use k8s_openapi::api::core::v1::Taint;

use super::{
    super::framework::{ClusterEventKind, Plugin, Point, PreFilter, Rejection, Row, normalize},
    plain,
};
use crate::{
    cluster::{Cluster, NodeInfo},
    pod::PodInfo,
};

pub const ROW: Row = Row {
    name: "TaintToleration",
    weight: 3,
    points: &[Point::Filter, Point::PreScore, Point::Score],
    events_to_register: &[ClusterEventKind::NodeAdded, ClusterEventKind::NodeTaints],
    make: plain::<TaintToleration>,
};

#[derive(Default)]
struct TaintToleration;

/// Whether a Pod tolerates a taint.
pub fn tolerated(pod: &PodInfo, taint: &Taint) -> bool {
    let tolerations = pod.spec().and_then(|s| s.tolerations.as_ref()).into_iter().flatten();
    tolerations.into_iter().any(|t| {
        let effect = t.effect.as_deref().unwrap_or("");
        let key = t.key.as_deref().unwrap_or("");
        let value_fits = match t.operator.as_deref().unwrap_or("") {
            "Exists" => true,
            "" | "Equal" => t.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or(""),
            _ => false,
        };
        (effect.is_empty() || effect == taint.effect) && (key.is_empty() || key == taint.key) && value_fits
    })
}

/// Whether a taint that the Pod does not tolerate rejects it.
pub fn is_barred(pod: &PodInfo, node: &NodeInfo) -> bool {
    let bars = |t: &&Taint| t.effect == "NoSchedule" || t.effect == "NoExecute";
    node.taints.iter().filter(bars).any(|t| !tolerated(pod, t))
}

impl Plugin for TaintToleration {
    /// Upstream's message names no taint since 1.34.2: a Pod's status should not reveal details of nodes.
    fn pre_filter<'c>(&'c self, pod: &'c PodInfo, _: &'c Cluster) -> PreFilter<'c> {
        PreFilter::Check(Box::new(|node| {
            is_barred(pod, node).then(|| Rejection::always("node(s) had untolerated taint(s)"))
        }))
    }

    /// Fewer untolerated PreferNoSchedule taints are better.
    fn score(&self, pod: &PodInfo, _: &Cluster, nodes: &[&NodeInfo], points: &mut [i64]) -> bool {
        for (node, points) in nodes.iter().zip(&mut *points) {
            let soft = node.taints.iter().filter(|t| t.effect == "PreferNoSchedule");
            *points = soft.filter(|t| !tolerated(pod, t)).count() as i64;
        }
        normalize(points, true);
        true
    }
}

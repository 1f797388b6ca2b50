//! TaintToleration: NoSchedule and NoExecute taints keep Pods away that do not tolerate them; PreferNoSchedule ones count.
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/>

use k8s_openapi::api::core::v1::Taint;

use super::super::framework::{Normalize, Plugin, Reason, Score};
use crate::scheduler::{cluster::NodeInfo, pod::PodInfo, queue::Change};

pub const PLUGIN: Plugin = Plugin {
    name: "TaintToleration",
    filter: Some(filter),
    score: Some(Score { weight: 3, of: score, normalize: Normalize::Reversed }),
    wakes: |change| matches!(change, Change::NodeAdded | Change::NodeTaints),
};

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

/// The text names no taint since 1.34.2: a Pod's status shall not tell of the nodes.
fn filter(pod: &PodInfo, node: &NodeInfo) -> Vec<Reason> {
    let bars = |t: &&Taint| t.effect == "NoSchedule" || t.effect == "NoExecute";
    let barred = node.taints.iter().filter(bars).any(|t| !tolerated(pod, t));
    if barred { vec!["node(s) had untolerated taint(s)".into()] } else { Vec::new() }
}

/// How many PreferNoSchedule taints are not tolerated.
fn score(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let soft = node.taints.iter().filter(|t| t.effect == "PreferNoSchedule");
    soft.filter(|t| !tolerated(pod, t)).count() as i64
}

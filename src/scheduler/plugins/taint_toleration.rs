//! TaintToleration: NoSchedule and NoExecute taints keep Pods away that do not tolerate them; PreferNoSchedule ones count.
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/>

use k8s_openapi::api::core::v1::{Pod, Taint};

use super::super::framework::{Normalize, Plugin, Score, Subject};
use crate::scheduler::{cluster::NodeInfo, queue::Change};

pub const PLUGIN: Plugin = Plugin {
    name: "TaintToleration",
    filter: Some(filter),
    score: Some(Score { weight: 3, of: score, normalize: Normalize::Reversed }),
    wakes: |change| matches!(change, Change::NodeAdded | Change::NodeTaints),
};

/// Whether a Pod tolerates a taint.
pub fn tolerated(pod: &Pod, taint: &Taint) -> bool {
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_ref()).into_iter().flatten();
    tolerations.into_iter().any(|t| {
        let effect = t.effect.as_deref().unwrap_or("");
        let key = t.key.as_deref().unwrap_or("");
        let value_fits = match t.operator.as_deref().unwrap_or("Equal") {
            "Exists" => true,
            _ => t.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or(""),
        };
        (effect.is_empty() || effect == taint.effect) && (key.is_empty() || key == taint.key) && value_fits
    })
}

fn taints(node: &NodeInfo) -> impl Iterator<Item = &Taint> {
    node.node.spec.as_ref().and_then(|s| s.taints.as_ref()).into_iter().flatten()
}

fn filter(subject: &Subject<'_>, node: &NodeInfo) -> Vec<String> {
    let bars = |t: &&Taint| t.effect == "NoSchedule" || t.effect == "NoExecute";
    match taints(node).filter(bars).find(|t| !tolerated(subject.pod, t)) {
        Some(t) => {
            let value = t.value.as_deref().unwrap_or("");
            vec![format!("node(s) had untolerated taint {{{}: {value}}}", t.key)]
        }
        None => Vec::new(),
    }
}

/// How many PreferNoSchedule taints are not tolerated.
fn score(subject: &Subject<'_>, node: &NodeInfo) -> i64 {
    let soft = taints(node).filter(|t| t.effect == "PreferNoSchedule");
    soft.filter(|t| !tolerated(subject.pod, t)).count() as i64
}

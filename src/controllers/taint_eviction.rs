//! Taint eviction: deletes Pods that do not tolerate their node's NoExecute taints, at once or when tolerationSeconds are over.
//!
//! Upstream: `pkg/controller/tainteviction`. The time counts from when the taint was added, or from when the Pod came to the node,
//! if that was later; so a restart changes nothing: admission ensures that each such taint has its time. `node_zones` decides which
//! nodes get such a taint, and how fast.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, Taint, Toleration};

use super::{
    Context, Plan, Row, Writes,
    conditions::{self, Condition},
    meta,
    write::{Note, Write},
};
use podwright_client::{Informers, Key, reference};

pub const ROW: Row = Row {
    name: "taint-eviction-controller",
    workers: 4,
    writes: Writes::Of(&["pods"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.on(&informers.pods, |_, queue, change| {
            let Some(new) = &change.new else { return };
            let placed = |pod: &Pod| {
                let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.clone());
                (meta::node_name(pod).map(str::to_owned), tolerations)
            };
            if meta::node_name(new).is_some() && change.old.as_ref().is_none_or(|old| placed(old) != placed(new)) {
                queue.add(change.key.clone());
            }
        });
        watches.on(&informers.nodes, |world, queue, change| {
            let taints = |node: &std::sync::Arc<_>| no_execute(node);
            let (old, new) = (change.old.as_ref().map(taints), change.new.as_ref().map(taints));
            if old.unwrap_or_default() == new.unwrap_or_default() {
                return;
            }
            let all = world.informers.pods.indexed(Informers::BY_NODE, &change.key.name);
            all.iter().filter(|pod| meta::node_name(pod).is_some()).for_each(|pod| queue.add(Key::of(&**pod)));
        });
    },
    reconcile,
};

fn no_execute(node: &std::sync::Arc<k8s_openapi::api::core::v1::Node>) -> Vec<Taint> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.filter(|taint| taint.effect == "NoExecute").cloned().collect()
}

fn reconcile(context: &Context<'_>, key: &Key) -> Plan {
    let informers = &context.world.informers;
    let Some(pod) = informers.pods.get(key) else { return Plan::default() };
    let node = informers.nodes.get(&Key::new("", meta::node_name(&pod).unwrap_or_default()));
    let Some(taints) = node.map(|node| no_execute(&node)).filter(|taints| !taints.is_empty()) else {
        return Plan::default();
    };
    plan(&pod, &taints, context.now)
}

/// Plans a Pod on a node with these NoExecute taints.
pub fn plan(pod: &Pod, taints: &[Taint], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if meta::is_terminating(&pod.metadata) || meta::is_finished(pod) {
        return plan;
    }
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    match leaves_at(tolerations, taints, came(pod, now), now) {
        None => {}
        Some(at) => match meta::until(now, at) {
            Some(wait) => plan.requeue(wait),
            None => evict(pod, now, &mut plan),
        },
    }
    plan
}

/// When the Pod came to its node, if that is in the past: the node reports it.
fn came(pod: &Pod, now: Timestamp) -> Timestamp {
    let scheduled = meta::pod_condition(pod, "PodScheduled").filter(|it| it.status == "True");
    let since = scheduled.and_then(|it| it.last_transition_time.as_ref()).map(|time| time.0).filter(|at| *at <= now);
    since.unwrap_or_default().max(meta::created(&pod.metadata))
}

/// When a Pod with these tolerations, which `came` to its node then, must be deleted; `None` if it tolerates all taints without a
/// limit.
pub fn leaves_at(tolerations: &[Toleration], taints: &[Taint], came: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let mut leaves: Option<Timestamp> = None;
    for taint in taints {
        // As upstream, the first of several tolerations for a taint counts.
        let Some(first) = tolerations.iter().find(|toleration| tolerates(toleration, taint)) else { return Some(now) };
        let since = taint.time_added.as_ref().map_or(now, |time| time.0).max(came);
        if let Some(seconds) = first.toleration_seconds {
            let at = meta::later(since, Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
            leaves = Some(leaves.map_or(at, |other| other.min(at)));
        }
    }
    leaves
}

/// Upstream's `Toleration.ToleratesTaint`.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let given = |text: &Option<String>| text.as_deref().unwrap_or_default().to_owned();
    let (effect, key) = (given(&toleration.effect), given(&toleration.key));
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match given(&toleration.operator).as_str() {
        "" | "Equal" => !key.is_empty() && given(&toleration.value) == given(&taint.value),
        "Exists" => true,
        _ => false,
    }
}

fn evict(pod: &Pod, now: Timestamp, plan: &mut Plan) {
    let mut new = pod.clone();
    let all = new.status.get_or_insert_default().conditions.get_or_insert_default();
    let message = "Taint manager: deleting due to NoExecute taint";
    conditions::set(all, PodCondition::new("DisruptionTarget", "True", "DeletionByTaintManager", message, now));
    let note =
        Note::normal(reference(pod), "TaintManagerEviction", format!("Marking for deletion Pod {}", Key::of(pod)));
    plan.then(Write::shared_status(pod, &new).into_iter().collect());
    plan.then(vec![Write::delete(pod).done(note)]);
}

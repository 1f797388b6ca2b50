//! Pod garbage: Pods that no other component removes.
//!
//! Upstream: `pkg/controller/podgc`. Three controllers: Pods of nodes that no longer exist (or are declared out of service), Pods
//! deleted before they were scheduled, and the oldest terminated Pods beyond a limit.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};

use super::{
    Context, Plan, Row, Work, Writes,
    conditions::{self, Condition},
    meta,
    write::{Guard, Write},
};
use podwright_client::{Informers, Key, Typed};

const NAME: &str = "pod-garbage-collector";
/// How long ends are gathered where too many have ended: all of these are looked at for the oldest. (Upstream looks every 20 s.)
const GATHER: Duration = Duration::from_secs(1);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The key is a node's name.
pub const ORPHANED: Row = Row {
    name: NAME,
    workers: 2,
    writes: Writes::Of(&["pods"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        let quarantine = watches.world.config.node_gone_quarantine;
        watches.on(&informers.nodes, move |_, queue, change| match &change.new {
            Some(node) if is_out_of_service(node) => queue.add(change.key.clone()),
            Some(_) => {}
            // The node may come back: its Pods are kept for a while.
            None => queue.add_after(change.key.clone(), quarantine),
        });
        watches.on(&informers.pods, move |world, queue, change| {
            let Some(node) = change.new.as_deref().and_then(meta::node_name) else { return };
            let key = Key::new("", node);
            match world.informers.nodes.get(&key) {
                Some(node) if is_out_of_service(&node) => queue.add(key),
                Some(_) => {}
                None => queue.add_after(key, quarantine),
            }
        });
    },
    reconcile: |context: &Context<'_>, key: &Key| {
        let informers = &context.world.informers;
        let pods = informers.pods.indexed(Informers::BY_NODE, &key.name);
        orphaned(key, informers.nodes.get(key).as_deref(), &pods, context.now)
    },
};

/// The key is a Pod's.
pub const UNSCHEDULED: Row = Row {
    name: NAME,
    workers: 2,
    writes: Writes::Of(&["pods"]),
    watch: |watches| {
        let pods = &watches.world.informers.pods.clone();
        watches.on(pods, |_, queue, change| {
            if change.new.as_ref().is_some_and(|pod| is_unscheduled_leftover(pod)) {
                queue.add(change.key.clone());
            }
        });
    },
    reconcile: |context: &Context<'_>, key: &Key| match context.world.informers.pods.get(key) {
        Some(pod) => unscheduled(&pod),
        None => Plan::default(),
    },
};

/// There is a single key, the cluster.
pub const TERMINATED: Row = Row {
    name: NAME,
    workers: 1,
    writes: Writes::Of(&["pods"]),
    watch: |watches| {
        let pods = &watches.world.informers.pods.clone();
        let threshold = watches.world.config.terminated_pods;
        watches.on(pods, move |world, queue, change| {
            let finished = |pod: &Option<Arc<Pod>>| pod.as_ref().is_some_and(|pod| meta::is_finished(pod));
            let newly = finished(&change.new) && !finished(&change.old);
            if newly && world.informers.pods.count(Informers::ENDED, "") > threshold {
                queue.add_after(Key::default(), GATHER);
            }
        });
    },
    reconcile: |context: &Context<'_>, _: &Key| {
        let ended = context.world.informers.pods.indexed(Informers::ENDED, "");
        terminated(&ended, context.world.config.terminated_pods)
    },
};

fn is_out_of_service(node: &Node) -> bool {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).any(|taint| taint.key == OUT_OF_SERVICE)
}

fn is_unscheduled_leftover(pod: &Pod) -> bool {
    meta::is_terminating(&pod.metadata) && meta::node_name(pod).is_none()
}

/// Removes a terminating Pod that was never scheduled. If it has a finalizer for counting results, it must be marked as failed
/// first.
pub fn unscheduled(pod: &Pod) -> Plan {
    let mut plan = Plan::default();
    if is_unscheduled_leftover(pod) {
        plan.then(failed(pod).into_iter().collect());
        plan.then(vec![force(pod)]);
    }
    plan
}

/// Plans the Pods of a node that may be gone.
pub fn orphaned(key: &Key, node: Option<&Node>, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let doomed: Vec<&Arc<Pod>> = match node {
        None => pods.iter().collect(),
        Some(node) if is_out_of_service(node) && !is_ready(node) => {
            pods.iter().filter(|pod| meta::is_terminating(&pod.metadata)).collect()
        }
        Some(_) => return plan,
    };
    // A Pod that was terminating anyway was not disrupted by the loss of its node.
    let end = |pod: &Pod| if node.is_none() { disrupted(pod, now) } else { failed(pod) };
    let guard = |write: Write| match node {
        None => write.guarded(Guard::Absent { resource: Node::resource(), key: key.clone(), uid: None }),
        Some(_) => write,
    };
    let end = |pod: &Arc<Pod>| Work::from(end(pod).map(guard)).then(guard(force(pod)));
    plan.work = Work::Beside(doomed.iter().map(|pod| end(pod)).collect());
    plan
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions::find(conditions, "Ready").is_some_and(|ready| ready.status == "True")
}

/// The Pods beyond the threshold: first evicted ones, then the oldest. Terminating ones count already.
pub fn terminated(pods: &[Arc<Pod>], threshold: usize) -> Plan {
    let mut finished: Vec<&Arc<Pod>> = pods.iter().filter(|pod| meta::is_finished(pod)).collect();
    let surplus = finished.len().saturating_sub(threshold);
    finished.sort_by_cached_key(|pod| (!is_evicted(pod), meta::created(&pod.metadata), Key::of(&***pod)));
    finished.truncate(surplus);
    let mut plan = Plan::default();
    plan.then(finished.into_iter().map(|pod| force(pod)).collect());
    plan
}

/// Whether its node evicted it for lack of a resource.
fn is_evicted(pod: &Pod) -> bool {
    let reason = pod.status.as_ref().and_then(|status| status.reason.as_deref());
    meta::phase(pod) == "Failed" && reason == Some("Evicted")
}

/// No node is left to report the Pod's end.
fn disrupted(pod: &Pod, now: Timestamp) -> Option<Write> {
    if meta::is_finished(pod) {
        return None;
    }
    let mut new = pod.clone();
    let status = new.status.get_or_insert_default();
    status.phase = Some("Failed".into());
    let message = "PodGC: node no longer exists";
    let condition = PodCondition::new("DisruptionTarget", "True", "DeletionByPodGC", message, now);
    conditions::set(status.conditions.get_or_insert_default(), condition);
    Write::shared_status(pod, &new)
}

/// The same for a Pod without a disruption: it was never scheduled, or was terminating anyway.
fn failed(pod: &Pod) -> Option<Write> {
    if meta::is_finished(pod) {
        return None;
    }
    let mut new = pod.clone();
    new.status.get_or_insert_default().phase = Some("Failed".into());
    Write::shared_status(pod, &new)
}

/// No node is left to end it gracefully.
fn force(pod: &Pod) -> Write {
    let mut write = Write::delete(pod);
    write.request.options.grace_period_seconds = Some(0);
    write
}

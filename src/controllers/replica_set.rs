//! ReplicaSets: as many Pods of a template as asked for.
//!
//! Upstream: `pkg/controller/replicaset/replica_set.go`.

use std::{cmp::Ordering, collections::HashMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    Context, Failure, Plan, Row,
    conditions::{self, Condition},
    meta::{self, Claim},
    plan::{Batch, Note, Write},
};
use crate::client::{Informers, Key, reference};

/// At most so many Pods are created or deleted for one ReplicaSet at a time.
const BURST: usize = 500;
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

pub const ROW: Row = Row {
    name: "replicaset-controller",
    workers: 5,
    wire: |wires| {
        let informers = &wires.world.informers.clone();
        wires.own(&informers.replica_sets);
        wires.owner(&informers.pods, "ReplicaSet");
        wires.on(&informers.pods, |world, queue, change| {
            // An orphan may be adopted by whoever selects it.
            let Some(pod) = change.new.as_ref().filter(|pod| meta::controller(&pod.metadata).is_none()) else { return };
            for rs in world.informers.replica_sets.list_namespace(&change.key.namespace) {
                if selector(&rs).is_some_and(|selector| meta::matches(&selector, &pod.metadata)) {
                    queue.add(Key::of(&*rs));
                }
            }
        });
    },
    reconcile,
};

fn reconcile(context: &Context<'_>, key: &Key) -> Plan {
    let informers = &context.world.informers;
    let Some(rs) = informers.replica_sets.get(key) else { return Plan::default() };
    let Some(selector) = selector(&rs) else { return Plan::default() };
    let orphans = informers.pods.indexed(Informers::BY_OWNER, &format!("{}/", key.namespace));
    let mut pods = informers.pods.indexed(Informers::BY_OWNER, rs.metadata.uid.as_deref().unwrap_or_default());
    pods.extend(orphans.into_iter().filter(|pod| meta::matches(&selector, &pod.metadata)));

    let (mut claims, mut own) = (Vec::new(), Vec::new());
    for pod in pods.into_iter().filter(|pod| !meta::is_finished(pod) || meta::controller(&pod.metadata).is_some()) {
        match meta::claim(&*rs, &selector, &*pod) {
            Claim::Own => own.push(pod),
            Claim::Other => {}
            Claim::Adopt(write) | Claim::Release(write) => claims.push(write),
        }
    }
    if !claims.is_empty() {
        // Who belongs here has to be settled before anything is counted.
        let mut plan = Plan::default();
        plan.then(claims);
        return plan;
    }
    own.retain(|pod| meta::is_active(pod));
    let surplus = own.len().saturating_sub(wanted(&rs));
    let crowd = if surplus > 0 { crowd(informers, &rs, &own) } else { HashMap::new() };
    plan(&rs, &own, &crowd, context.now, context.failure)
}

/// How many active Pods each node has of this ReplicaSet and its siblings under the same owner.
fn crowd(informers: &Informers, rs: &ReplicaSet, own: &[Arc<Pod>]) -> HashMap<String, usize> {
    let related: Vec<Arc<Pod>> = match meta::controller(&rs.metadata) {
        Some(owner) => informers
            .replica_sets
            .indexed(Informers::BY_OWNER, &owner.uid)
            .iter()
            .filter_map(|sibling| sibling.metadata.uid.as_deref())
            .flat_map(|uid| informers.pods.indexed(Informers::BY_OWNER, uid))
            .filter(|pod| meta::is_active(pod))
            .collect(),
        None => own.to_vec(),
    };
    let mut crowd = HashMap::new();
    for node in related.iter().filter_map(|pod| meta::node_name(pod)) {
        *crowd.entry(node.to_owned()).or_insert(0) += 1;
    }
    crowd
}

fn selector(rs: &ReplicaSet) -> Option<crate::api::selector::LabelSelector> {
    meta::selector(&rs.spec.as_ref()?.selector)
}

fn wanted(rs: &ReplicaSet) -> usize {
    usize::try_from(replicas(rs)).unwrap_or(0)
}

/// `spec.replicas`, 1 where unset.
pub fn replicas(rs: &ReplicaSet) -> i32 {
    rs.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

fn min_ready_seconds(rs: &ReplicaSet) -> i32 {
    rs.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
}

/// What a ReplicaSet needs, given its active Pods and how many related Pods each node has.
pub fn plan(
    rs: &ReplicaSet,
    pods: &[Arc<Pod>],
    crowd: &HashMap<String, usize>,
    now: Timestamp,
    failure: Option<&Failure>,
) -> Plan {
    let mut plan = Plan::default();
    let (wanted, terminating) = (wanted(rs), meta::is_terminating(&rs.metadata));
    // Pods come first: the status is worth a write when it shows what has become of them, or why nothing has.
    if pods.len() == wanted || terminating || failure.is_some() {
        let mut new = rs.clone();
        new.status = Some(status(rs, pods, now, failure));
        plan.then(Write::status(rs, &new).into_iter().collect());
    }
    if !terminating {
        if pods.len() < wanted {
            let missing = (wanted - pods.len()).min(BURST);
            plan.batches.push(Batch { writes: vec![create(rs); missing], slow_start: true });
        } else {
            let victims = victims(pods, pods.len() - wanted, crowd, now);
            plan.then(victims.iter().take(BURST).map(|pod| delete(rs, pod)).collect());
        }
    }
    let ripe = pods.iter().filter_map(|pod| meta::available_at(pod, min_ready_seconds(rs)));
    if let Some(wait) = ripe.filter_map(|at| meta::until(now, at)).min() {
        plan.requeue(wait);
    }
    plan
}

fn create(rs: &ReplicaSet) -> Write {
    let template = rs.spec.as_ref().and_then(|spec| spec.template.clone()).unwrap_or_default();
    let from = template.metadata.unwrap_or_default();
    let pod = Pod {
        metadata: ObjectMeta {
            generate_name: Some(prefix(meta::name(&rs.metadata))),
            namespace: rs.metadata.namespace.clone(),
            labels: from.labels,
            annotations: from.annotations,
            finalizers: from.finalizers,
            owner_references: Some(vec![meta::owner_reference(rs)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    };
    Write::create(&pod).done(Note::normal(reference(rs), "SuccessfulCreate", "Created pod: {}")).failed(Note::warning(
        reference(rs),
        "FailedCreate",
        "Error creating: {}",
    ))
}

/// The prefix of a Pod's generated name; one that leaves no room for a dash is used without.
pub(super) fn prefix(name: &str) -> String {
    const LONGEST: usize = 63 - 5;
    if name.len() < LONGEST { format!("{name}-") } else { name.to_owned() }
}

fn delete(rs: &ReplicaSet, pod: &Arc<Pod>) -> Write {
    let name = meta::name(&pod.metadata);
    Write::delete(&**pod)
        .done(Note::normal(reference(rs), "SuccessfulDelete", format!("Deleted pod: {name}")))
        .failed(Note::warning(reference(rs), "FailedDelete", "Error deleting: {}"))
}

/// The status that these Pods make.
pub fn status(rs: &ReplicaSet, pods: &[Arc<Pod>], now: Timestamp, failure: Option<&Failure>) -> ReplicaSetStatus {
    let none = Default::default();
    let old = rs.status.as_ref().unwrap_or(&none);
    let template = rs.spec.as_ref().and_then(|spec| spec.template.as_ref()?.metadata.as_ref()?.labels.as_ref());
    let fully_labeled = |pod: &&Arc<Pod>| {
        let labels = pod.metadata.labels.as_ref();
        template.into_iter().flatten().all(|(k, v)| labels.and_then(|labels| labels.get(k)) == Some(v))
    };
    let available = |pod: &&Arc<Pod>| meta::available_at(pod, min_ready_seconds(rs)).is_some_and(|at| at <= now);
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);

    let mut all = old.conditions.clone().unwrap_or_default();
    let difference = count(pods.len()) - replicas(rs);
    match failure {
        Some(failure) if difference != 0 => {
            let reason = if difference < 0 { "FailedCreate" } else { "FailedDelete" };
            conditions::set(
                &mut all,
                ReplicaSetCondition::new("ReplicaFailure", "True", reason, &failure.message, now),
            );
        }
        _ => conditions::remove(&mut all, "ReplicaFailure"),
    }
    ReplicaSetStatus {
        replicas: count(pods.len()),
        fully_labeled_replicas: Some(count(pods.iter().filter(fully_labeled).count())),
        ready_replicas: Some(count(pods.iter().filter(|pod| meta::is_ready(pod)).count())),
        available_replicas: Some(count(pods.iter().filter(available).count())),
        observed_generation: rs.metadata.generation,
        conditions: (!all.is_empty()).then_some(all),
        terminating_replicas: old.terminating_replicas,
    }
}

/// The `surplus` Pods that are missed least.
pub fn victims<'a>(
    pods: &'a [Arc<Pod>],
    surplus: usize,
    crowd: &HashMap<String, usize>,
    now: Timestamp,
) -> Vec<&'a Arc<Pod>> {
    let mut ranked: Vec<&Arc<Pod>> = pods.iter().collect();
    if surplus < ranked.len() {
        ranked.sort_by(|a, b| less_missed(a, b, crowd, now));
    }
    ranked.truncate(surplus);
    ranked
}

/// Upstream's `ActivePodsWithRanks`: who comes first is deleted first.
pub(super) fn less_missed(a: &Pod, b: &Pod, crowd: &HashMap<String, usize>, now: Timestamp) -> Ordering {
    let rank = |pod: &Pod| meta::node_name(pod).and_then(|node| crowd.get(node)).copied().unwrap_or(0);
    meta::node_name(a)
        .is_some()
        .cmp(&meta::node_name(b).is_some())
        .then_with(|| progress(a).cmp(&progress(b)))
        .then_with(|| meta::is_ready(a).cmp(&meta::is_ready(b)))
        .then_with(|| deletion_cost(a).cmp(&deletion_cost(b)))
        .then_with(|| rank(b).cmp(&rank(a)))
        .then_with(|| age(meta::ready_since(a), now).cmp(&age(meta::ready_since(b), now)))
        .then_with(|| restarts(b).cmp(&restarts(a)))
        .then_with(|| age(Some(meta::created(&a.metadata)), now).cmp(&age(Some(meta::created(&b.metadata)), now)))
        .then_with(|| a.metadata.uid.cmp(&b.metadata.uid))
}

fn progress(pod: &Pod) -> u8 {
    match meta::phase(pod) {
        "Pending" | "" => 0,
        "Running" => 2,
        _ => 1,
    }
}

fn deletion_cost(pod: &Pod) -> i32 {
    meta::annotation(&pod.metadata, DELETION_COST).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn restarts(pod: &Pod) -> i32 {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    containers.into_iter().flatten().map(|container| container.restart_count).max().unwrap_or(0)
}

/// Ages are compared by their order of magnitude (base 2), so that the youngest of a crowd is not always the victim.
fn age(since: Option<Timestamp>, now: Timestamp) -> u32 {
    let age = since.map_or(0, |since| now.duration_since(since).as_nanos().max(0));
    u128::BITS - age.unsigned_abs().leading_zeros()
}

//! ReplicaSets and ReplicationControllers: maintain a number of Pods from a template.
//!
//! Upstream: `pkg/controller/replicaset/replica_set.go`, and `pkg/controller/replication`, which also converts a
//! ReplicationController to a ReplicaSet.

use std::{
    borrow::Cow,
    cmp::Ordering,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetSpec, ReplicaSetStatus},
        core::v1::{Pod, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus},
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};

use super::{
    Context, Failure, Plan, Row, Work, Writes,
    conditions::{self, Condition},
    meta::{self, Claim},
    short_lives::{CREATION_BACK_OFF, Maker},
    watches::Watches,
    write::{Note, Write},
};
use podwright_client::{Informer, Informers, Key, Typed, reference};

/// The most Pods created or deleted for one ReplicaSet at a time.
const BURST: usize = 500;
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

pub const ROW: Row = Row {
    name: "replicaset-controller",
    workers: 5,
    writes: Writes::Of(&["replicasets.apps", "pods"]),
    watch: watch::<ReplicaSet>,
    reconcile: reconcile::<ReplicaSet>,
};

pub const REPLICATION: Row = Row {
    name: "replication-controller",
    workers: 5,
    writes: Writes::Of(&["replicationcontrollers", "pods"]),
    watch: watch::<ReplicationController>,
    reconcile: reconcile::<ReplicationController>,
};

/// Kinds that can be treated as a ReplicaSet.
pub trait Replicated: Typed {
    fn all(informers: &Informers) -> &Informer<Self>;
    /// Its form as a ReplicaSet.
    fn as_set(&self) -> Cow<'_, ReplicaSet>;
    fn with_status(&self, status: ReplicaSetStatus) -> Self;
    /// Whether it selects an object with this metadata, without allocation.
    fn selects(&self, meta: &ObjectMeta) -> bool;
}

impl Replicated for ReplicaSet {
    fn all(informers: &Informers) -> &Informer<ReplicaSet> {
        &informers.replica_sets
    }
    fn as_set(&self) -> Cow<'_, ReplicaSet> {
        Cow::Borrowed(self)
    }
    fn with_status(&self, status: ReplicaSetStatus) -> ReplicaSet {
        ReplicaSet { status: Some(status), ..self.clone() }
    }
    fn selects(&self, meta: &ObjectMeta) -> bool {
        self.spec.as_ref().is_some_and(|spec| meta::selects(&spec.selector, meta))
    }
}

impl Replicated for ReplicationController {
    fn all(informers: &Informers) -> &Informer<ReplicationController> {
        &informers.replication_controllers
    }
    fn as_set(&self) -> Cow<'_, ReplicaSet> {
        let spec = self.spec.clone().map(|spec| ReplicaSetSpec {
            min_ready_seconds: spec.min_ready_seconds,
            replicas: spec.replicas,
            selector: LabelSelector { match_labels: spec.selector, match_expressions: None },
            template: spec.template,
        });
        let status = self.status.clone().map(|status| ReplicaSetStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            observed_generation: status.observed_generation,
            conditions: status.conditions.map(|all| all.into_iter().map(condition_as_sets).collect()),
            terminating_replicas: None,
        });
        Cow::Owned(ReplicaSet { metadata: self.metadata.clone(), spec, status })
    }
    fn with_status(&self, status: ReplicaSetStatus) -> ReplicationController {
        let status = ReplicationControllerStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            observed_generation: status.observed_generation,
            conditions: status.conditions.map(|all| all.into_iter().map(condition_of_set).collect()),
        };
        ReplicationController { status: Some(status), ..self.clone() }
    }
    fn selects(&self, meta: &ObjectMeta) -> bool {
        let labels = self.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        labels.is_some_and(|labels| !labels.is_empty() && meta::has_labels(meta, labels))
    }
}

fn condition_as_sets(of: ReplicationControllerCondition) -> ReplicaSetCondition {
    let ReplicationControllerCondition { last_transition_time, message, reason, status, type_ } = of;
    ReplicaSetCondition { last_transition_time, message, reason, status, type_ }
}

fn condition_of_set(of: ReplicaSetCondition) -> ReplicationControllerCondition {
    let ReplicaSetCondition { last_transition_time, message, reason, status, type_ } = of;
    ReplicationControllerCondition { last_transition_time, message, reason, status, type_ }
}

fn watch<K: Replicated>(watches: &mut Watches<'_>) {
    let informers = &watches.world.informers.clone();
    watches.own(K::all(informers));
    watches.pods_of(K::KIND);
    watches.on(&informers.pods, |world, queue, change| {
        // An unfinished orphan may be adopted by any ReplicaSet that selects it.
        let Some(pod) = meta::orphan(change).filter(|pod| !meta::is_finished(pod)) else { return };
        for owner in K::all(&world.informers).list_namespace(&change.key.namespace) {
            if owner.selects(&pod.metadata) {
                queue.add(Key::of(&*owner));
            }
        }
    });
}

fn reconcile<K: Replicated>(context: &Context<'_>, key: &Key) -> Plan {
    let informers = &context.world.informers;
    let Some(owner) = K::all(informers).get(key) else { return Plan::default() };
    let rs = owner.as_set();
    let Some(selector) = selector(&rs) else { return Plan::default() };
    let orphans = informers.pods.indexed(Informers::BY_OWNER, &format!("{}/", key.namespace));
    let mut pods = informers.pods.indexed(Informers::BY_OWNER, rs.metadata.uid.as_deref().unwrap_or_default());
    pods.extend(orphans.into_iter().filter(|pod| meta::matches(&selector, &pod.metadata)));

    let (mut claims, mut own) = (Vec::new(), Vec::new());
    for pod in pods.into_iter().filter(|pod| !meta::is_finished(pod) || meta::controller(&pod.metadata).is_some()) {
        match meta::claim(&*owner, &selector, &*pod) {
            Claim::Own => own.push(pod),
            Claim::Other => {}
            Claim::Adopt(write) | Claim::Release(write) => claims.push(write),
        }
    }
    if !claims.is_empty() {
        // Adoption and release come before counting.
        let mut plan = Plan::default();
        plan.then(claims);
        return plan;
    }
    let active = own.iter().filter(|pod| meta::is_active(pod)).count();
    let surplus = active.saturating_sub(wanted(&rs));
    let crowd = if surplus > 0 { crowd(informers, &rs, &own) } else { HashMap::new() };
    let maker = Maker::of(&*owner);
    let most = context.most_pods(&key.namespace, &maker);
    let trouble = context.world.short_lives.trouble(&maker);
    let failure = context.failure().or(trouble.as_ref().map(|(failure, _)| failure));
    let mut plan = plan(&*owner, &own, &crowd, most, context.now, failure);
    // After that its status no longer reports this.
    trouble.iter().for_each(|(_, left)| plan.requeue(*left));
    plan
}

/// How many active Pods each node has of this ReplicaSet and its siblings with the same owner.
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
        None => own.iter().filter(|pod| meta::is_active(pod)).cloned().collect(),
    };
    let mut crowd = HashMap::new();
    for node in related.iter().filter_map(|pod| meta::node_name(pod)) {
        *crowd.entry(node.to_owned()).or_insert(0) += 1;
    }
    crowd
}

fn selector(rs: &ReplicaSet) -> Option<podwright_api::selector::LabelSelector> {
    meta::selector(&rs.spec.as_ref()?.selector)
}

fn wanted(rs: &ReplicaSet) -> usize {
    usize::try_from(replicas(rs)).unwrap_or(0)
}

/// `spec.replicas`, 1 if unset.
pub fn replicas(rs: &ReplicaSet) -> i32 {
    rs.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

fn min_ready_seconds(rs: &ReplicaSet) -> i32 {
    rs.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
}

/// Plans a ReplicaSet, given its Pods, the number of active related Pods on each node, and the most Pods to create.
pub fn plan<K: Replicated>(
    owner: &K,
    pods: &[Arc<Pod>],
    crowd: &HashMap<String, usize>,
    most: usize,
    now: Timestamp,
    failure: Option<&Failure>,
) -> Plan {
    let rs = &*owner.as_set();
    let mut plan = Plan::default();
    let active: Vec<Arc<Pod>> = pods.iter().filter(|pod| meta::is_active(pod)).cloned().collect();
    let (wanted, terminating) = (wanted(rs), meta::is_terminating(&rs.metadata));
    let told = owner.with_status(status(rs, pods, now, failure));
    // The number is about to change: writing it is only worthwhile if it shows the result of the work, or why there is none.
    let rest = |set: &ReplicaSet| {
        let status = set.status.clone().unwrap_or_default();
        ReplicaSetStatus { replicas: 0, fully_labeled_replicas: None, ..status }
    };
    let is_news = rest(rs) != rest(&told.as_set());
    let report = Write::status(owner, &told);
    if active.len() == wanted || terminating || failure.is_some() || is_news {
        plan.report = report;
    } else {
        plan.report_if_held = report;
    }
    if !terminating {
        if active.len() < wanted {
            let create = create(owner, rs);
            let missing = (wanted - active.len()).min(create.burst(BURST)).min(most);
            plan.work = Work::SlowStart(vec![create.into(); missing]);
            plan.maker = Some(Maker::of(owner));
        } else {
            let victims = victims(&active, active.len() - wanted, crowd, now);
            plan.then(victims.iter().take(BURST).map(|pod| delete(owner, pod)).collect());
        }
    }
    let ripe = active.iter().filter_map(|pod| meta::available_at(pod, min_ready_seconds(rs)));
    if let Some(wait) = ripe.filter_map(|at| meta::until(now, at)).min() {
        plan.requeue(wait);
    }
    plan
}

fn create<K: Replicated>(owner: &K, rs: &ReplicaSet) -> Write {
    let template = rs.spec.as_ref().and_then(|spec| spec.template.clone()).unwrap_or_default();
    let from = template.metadata.unwrap_or_default();
    let pod = Pod {
        metadata: ObjectMeta {
            generate_name: Some(prefix(meta::name(&rs.metadata))),
            namespace: rs.metadata.namespace.clone(),
            labels: from.labels,
            annotations: from.annotations,
            finalizers: from.finalizers,
            owner_references: Some(vec![meta::owner_reference(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    };
    Write::create(&pod)
        .done(Note::normal(reference(owner), "SuccessfulCreate", "Created pod: {}"))
        .failed(Note::warning(reference(owner), "FailedCreate", "Error creating: {}"))
}

/// The prefix of a Pod's generated name; without the dash if there is no room for it.
pub(super) fn prefix(name: &str) -> String {
    const LONGEST: usize = 63 - 5;
    if name.len() < LONGEST { format!("{name}-") } else { name.to_owned() }
}

fn delete<K: Replicated>(owner: &K, pod: &Arc<Pod>) -> Write {
    let name = meta::name(&pod.metadata);
    Write::delete(&**pod)
        .done(Note::normal(reference(owner), "SuccessfulDelete", format!("Deleted pod: {name}")))
        .failed(Note::warning(reference(owner), "FailedDelete", "Error deleting: {}"))
}

/// The status according to these Pods.
pub fn status(rs: &ReplicaSet, pods: &[Arc<Pod>], now: Timestamp, failure: Option<&Failure>) -> ReplicaSetStatus {
    let leaving = pods.iter().filter(|pod| meta::is_terminating(&pod.metadata) && !meta::is_finished(pod)).count();
    let pods: Vec<&Arc<Pod>> = pods.iter().filter(|pod| meta::is_active(pod)).collect();
    let none = Default::default();
    let old = rs.status.as_ref().unwrap_or(&none);
    let template = rs.spec.as_ref().and_then(|spec| spec.template.as_ref()?.metadata.as_ref()?.labels.as_ref());
    let fully_labeled = |pod: &&&Arc<Pod>| {
        let labels = pod.metadata.labels.as_ref();
        template.into_iter().flatten().all(|(k, v)| labels.and_then(|labels| labels.get(k)) == Some(v))
    };
    let available = |pod: &&&Arc<Pod>| meta::available_at(pod, min_ready_seconds(rs)).is_some_and(|at| at <= now);
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);

    let mut all = old.conditions.clone().unwrap_or_default();
    let difference = count(pods.len()) - replicas(rs);
    match failure {
        Some(failure) if difference != 0 || failure.reason == CREATION_BACK_OFF => {
            let reason = match difference {
                _ if failure.reason == CREATION_BACK_OFF => CREATION_BACK_OFF,
                ..0 => "FailedCreate",
                0.. => "FailedDelete",
            };
            let new = ReplicaSetCondition::new("ReplicaFailure", "True", reason, &failure.message, now);
            conditions::set_once(&mut all, new);
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
        terminating_replicas: Some(count(leaving)),
    }
}

/// The `surplus` Pods to delete.
pub fn victims<'a>(
    pods: &'a [Arc<Pod>],
    surplus: usize,
    crowd: &HashMap<String, usize>,
    now: Timestamp,
) -> Vec<&'a Arc<Pod>> {
    if surplus == 0 {
        return Vec::new();
    }
    let mut ranked: Vec<&Arc<Pod>> = pods.iter().collect();
    if surplus < ranked.len() {
        ranked.sort_by(|a, b| less_missed(a, b, crowd, now));
    }
    ranked.truncate(surplus);
    ranked
}

/// Upstream's `ActivePodsWithRanks`: the lesser is deleted first. Where upstream compares uids directly, for ages within one order
/// of magnitude, the rest is compared here first: upstream's relation is not an order (of three Pods, two with equal age, each may
/// precede the next), which sorting does not support.
pub(super) fn less_missed(a: &Pod, b: &Pod, crowd: &HashMap<String, usize>, now: Timestamp) -> Ordering {
    let rank = |pod: &Pod| meta::node_name(pod).and_then(|node| crowd.get(node)).copied().unwrap_or(0);
    meta::node_name(a)
        .is_some()
        .cmp(&meta::node_name(b).is_some())
        .then_with(|| progress(a).cmp(&progress(b)))
        .then_with(|| meta::is_ready(a).cmp(&meta::is_ready(b)))
        .then_with(|| deletion_cost(a).cmp(&deletion_cost(b)))
        .then_with(|| rank(b).cmp(&rank(a)))
        .then_with(|| ready_for(a, now).cmp(&ready_for(b, now)))
        .then_with(|| restarts(b).cmp(&restarts(a)))
        .then_with(|| age(Some(meta::created(&a.metadata)), now).cmp(&age(Some(meta::created(&b.metadata)), now)))
        .then_with(|| a.metadata.uid.cmp(&b.metadata.uid))
}

/// How long a Pod has been ready; equal for all that are not.
fn ready_for(pod: &Pod, now: Timestamp) -> u32 {
    if meta::is_ready(pod) { age(meta::ready_since(pod), now) } else { 0 }
}

fn progress(pod: &Pod) -> u8 {
    match meta::phase(pod) {
        "Pending" | "" => 0,
        "Running" => 2,
        _ => 1,
    }
}

/// Upstream accepts plain numbers only: no plus sign, no leading zeros.
fn deletion_cost(pod: &Pod) -> i32 {
    let text = meta::annotation(&pod.metadata, DELETION_COST).unwrap_or_default();
    let plain = text == "0" || text.starts_with(|first: char| matches!(first, '-' | '1'..='9'));
    if plain { text.parse().unwrap_or(0) } else { 0 }
}

/// The most restarts of a container, and of a sidecar.
fn restarts(pod: &Pod) -> (i32, i32) {
    let Some(status) = &pod.status else { return (0, 0) };
    let sidecars = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let sidecars: HashSet<&str> =
        sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always")).map(|c| c.name.as_str()).collect();
    let containers = status.container_statuses.iter().flatten();
    let init = status.init_container_statuses.iter().flatten().filter(|c| sidecars.contains(&*c.name));
    (containers.map(|c| c.restart_count).max().unwrap_or(0), init.map(|c| c.restart_count).max().unwrap_or(0))
}

/// Ages are compared by their order of magnitude (base 2), so that the youngest is not always the one to be deleted.
fn age(since: Option<Timestamp>, now: Timestamp) -> u32 {
    let age = since.map_or(0, |since| now.duration_since(since).as_nanos().max(0));
    u128::BITS - age.unsigned_abs().leading_zeros()
}

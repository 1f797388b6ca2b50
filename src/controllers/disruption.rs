//! Disruption budgets: how many of a set of Pods may be evicted now. Evictions decrement the count; it is recomputed here whenever
//! a Pod or its controller's scale changes.
//!
//! Upstream: `pkg/controller/disruption`. Two controllers: one for the budgets' status, and one for Pods whose announced disruption
//! did not happen.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{Pod, PodCondition},
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
    },
    apimachinery::pkg::{
        apis::meta::v1::{Condition as MetaCondition, LabelSelector, OwnerReference, Time},
        util::intstr::IntOrString,
    },
};

use super::{
    Context, Plan, Row, World, Writes,
    conditions::{self, Condition},
    meta,
    queue::Queue,
    scales::{self, Scale},
    write::{Note, Write},
};
use podwright_api::{Request, selector};
use podwright_client::{Key, reference};

/// An evicted Pod that is not terminating after this time will not be deleted.
const DELETION_TIMEOUT: Duration = Duration::from_secs(120);
/// When to ask again for a scale that the server did not return.
const ASK_AGAIN: Duration = Duration::from_secs(5);
const ALLOWED: &str = "DisruptionAllowed";
const TARGET: &str = "DisruptionTarget";

pub const ROW: Row = Row {
    name: "disruption-controller",
    workers: 2,
    writes: Writes::Of(&["poddisruptionbudgets.policy"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.own(&informers.pod_disruption_budgets);
        watches.on(&informers.pods, |world, queue, change| {
            for budget in world.informers.pod_disruption_budgets.list_namespace(&change.key.namespace) {
                if change.old.iter().chain(&change.new).any(|pod| counts(&budget, pod)) {
                    queue.add(Key::of(&*budget));
                }
            }
        });
        // Desired replicas that cannot be created change no Pod.
        watches.on(&informers.deployments, |world, queue, change| {
            let replicas = |d: &std::sync::Arc<_>| super::deployment::replicas(d);
            if change.old.as_ref().map(replicas) != change.new.as_ref().map(replicas) {
                wake(world, queue, &change.key.namespace);
            }
        });
        watches.on(&informers.replica_sets, |world, queue, change| {
            let replicas = |set: &std::sync::Arc<_>| super::replica_set::replicas(set);
            if change.old.as_ref().map(replicas) != change.new.as_ref().map(replicas) {
                wake(world, queue, &change.key.namespace);
            }
        });
        watches.on_metadata(scales::are_asked, |world, queue, change| {
            if scales::may_differ(change) {
                wake(world, queue, &change.key.namespace);
            }
        });
    },
    reconcile,
};

fn wake(world: &World, queue: &Queue, namespace: &str) {
    for budget in world.informers.pod_disruption_budgets.list_namespace(namespace) {
        queue.add(Key::of(&*budget));
    }
}

/// The key is a Pod's.
pub const STALE: Row = Row {
    name: "disruption-controller",
    workers: 1,
    writes: Writes::Of(&["pods"]),
    watch: |watches| {
        let pods = &watches.world.informers.pods.clone();
        watches.on(pods, |_, queue, change| {
            if change.new.as_ref().is_some_and(|pod| stale_at(pod).is_some()) {
                queue.add(change.key.clone());
            }
        });
    },
    reconcile: |context: &Context<'_>, key: &Key| match context.world.informers.pods.get(key) {
        Some(pod) => stale(&pod, context.now),
        None => Plan::default(),
    },
};

/// Whether a Pod counts. An empty selector selects every Pod of the namespace, a missing one none. Mirror Pods do not count:
/// eviction does not end the Pods that they represent, and any node can create one that resembles any Pod.
fn counts(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selects = |given: &LabelSelector| selects_all(given) || meta::selects(given, &pod.metadata);
    !meta::is_mirror(pod) && selector.is_some_and(selects)
}

fn selects_all(selector: &LabelSelector) -> bool {
    let empty = |list: Option<usize>| list.is_none_or(|length| length == 0);
    let expressions = selector.match_expressions.as_ref().map(Vec::len);
    empty(selector.match_labels.as_ref().map(BTreeMap::len)) && empty(expressions)
}

fn reconcile(context: &Context<'_>, key: &Key) -> Plan {
    let world = context.world;
    let Some(budget) = world.informers.pod_disruption_budgets.get(key) else { return Plan::default() };
    let pods = world.informers.pods.list_namespace(&key.namespace);
    let pods: Vec<&Pod> = pods.iter().map(|pod| &**pod).filter(|pod| counts(&budget, pod)).collect();
    plan(&budget, &pods, &|owner| scales::of(context, owner, &key.namespace), context.now)
}

/// The expected number of Pods, and how many of them must be healthy.
struct Expected {
    pods: i32,
    healthy: i32,
    /// Pods without a controller to replace them do not count.
    unmanaged: bool,
}

/// Why this is unknown.
enum Unknown {
    Ask(Vec<Request>),
    /// `again`: retry later.
    Failed {
        why: String,
        again: bool,
    },
}

fn failed(why: impl Into<String>) -> Unknown {
    Unknown::Failed { why: why.into(), again: false }
}

/// Plans a budget that selects these Pods.
pub fn plan(
    budget: &PodDisruptionBudget,
    pods: &[&Pod],
    scale: &dyn Fn(&OwnerReference) -> Scale,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    let mut new = budget.clone();
    let status = new.status.get_or_insert_default();
    match expected(budget, pods, scale) {
        Err(Unknown::Ask(live_reads)) => return Plan { live_reads, ..Plan::default() },
        Err(Unknown::Failed { why, again }) => {
            if again {
                plan.requeue(ASK_AGAIN);
            }
            // Nothing is known, so nothing is allowed.
            status.disruptions_allowed = 0;
            let observed = status.observed_generation;
            set_allowed(
                status,
                MetaCondition { message: why.clone(), ..condition("False", "SyncFailed", observed, now) },
            );
            let about = reference(budget);
            let message = format!("Failed to calculate the number of expected pods: {why}");
            plan.notes.push(Note::warning(about, "CalculateExpectedPodCountFailed", message));
        }
        Ok(expected) => {
            if pods.is_empty() {
                plan.notes.push(Note::normal(reference(budget), "NoPods", "No matching pods found"));
            }
            if expected.unmanaged {
                plan.notes.push(unmanaged(budget));
            }
            let disrupted = disrupted(budget, pods, now, &mut plan);
            let healthy = pods.iter().filter(|pod| is_healthy(pod, &disrupted)).count();
            let healthy = i32::try_from(healthy).unwrap_or(i32::MAX);
            status.current_healthy = healthy;
            status.desired_healthy = expected.healthy;
            status.expected_pods = expected.pods;
            // A budget without Pods allows nothing, so that the first ones are not evicted before they are counted.
            status.disruptions_allowed =
                if expected.pods > 0 { healthy.saturating_sub(expected.healthy).max(0) } else { 0 };
            status.disrupted_pods = (!disrupted.is_empty()).then_some(disrupted);
            status.observed_generation = budget.metadata.generation;
            let (allowed, reason) = match status.disruptions_allowed {
                0 => ("False", "InsufficientPods"),
                _ => ("True", "SufficientPods"),
            };
            let observed = status.observed_generation;
            set_allowed(status, condition(allowed, reason, observed, now));
        }
    }
    // Notes about the status are emitted when it is written, not again.
    let (lasting, news) = plan.notes.into_iter().partition(|note| note.reason == "NotDeleted");
    plan.notes = lasting;
    plan.report = Write::shared_status(budget, &new).map(|write| Write { done: news, ..write });
    plan
}

fn unmanaged(budget: &PodDisruptionBudget) -> Note {
    let given = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selector = given.and_then(selector::LabelSelector::of).unwrap_or_default();
    let message = format!(
        "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be unmanaged. As a result, the \
         status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these \
         pods please set \".spec.minAvailable\" field of the PDB to an integer value."
    );
    Note::warning(reference(budget), "UnmanagedPods", message)
}

/// Upstream's `getExpectedPodCount`.
fn expected(
    budget: &PodDisruptionBudget,
    pods: &[&Pod],
    scale: &dyn Fn(&OwnerReference) -> Scale,
) -> Result<Expected, Unknown> {
    let none = Default::default();
    let spec = budget.spec.as_ref().unwrap_or(&none);
    let share = |value: &IntOrString, of: i32| {
        meta::resolve(value, of, true).ok_or_else(|| failed("invalid value for IntOrString"))
    };
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => {
            let (pods, unmanaged) = scaled(pods, scale)?;
            Ok(Expected { pods, healthy: pods.saturating_sub(share(most, pods)?).max(0), unmanaged })
        }
        (None, Some(IntOrString::Int(least))) => {
            let pods = i32::try_from(pods.len()).unwrap_or(i32::MAX);
            Ok(Expected { pods, healthy: *least, unmanaged: false })
        }
        (None, Some(least)) => {
            let (pods, unmanaged) = scaled(pods, scale)?;
            Ok(Expected { pods, healthy: share(least, pods)?, unmanaged })
        }
        (None, None) => Ok(Expected { pods: 0, healthy: 0, unmanaged: false }),
    }
}

/// The sum of the scales of all these Pods' controllers, and whether some have none.
fn scaled(pods: &[&Pod], scale: &dyn Fn(&OwnerReference) -> Scale) -> Result<(i32, bool), Unknown> {
    let mut unmanaged = false;
    let mut questions = Vec::new();
    let mut owners = HashSet::new();
    let mut scales: HashMap<String, i32> = HashMap::new();
    for pod in pods {
        let Some(owner) = meta::controller(&pod.metadata) else {
            unmanaged = true;
            continue;
        };
        if !owners.insert(&owner.uid) {
            continue;
        }
        match scale(owner) {
            Scale::Of { uid, replicas } => drop(scales.insert(uid, replicas)),
            Scale::Ask(question) => questions.push(*question),
            Scale::Never(why) => return Err(failed(why)),
            Scale::Untold(why) => return Err(Unknown::Failed { why, again: true }),
            Scale::Gone => {
                let name = meta::name(&pod.metadata);
                return Err(failed(format!("found no controllers for pod {name:?}")));
            }
        }
    }
    match questions.is_empty() {
        true => Ok((scales.values().fold(0, |sum: i32, n| sum.saturating_add(*n)), unmanaged)),
        false => Err(Unknown::Ask(questions)),
    }
}

/// Evicted Pods whose deletion is still expected.
fn disrupted(budget: &PodDisruptionBudget, pods: &[&Pod], now: Timestamp, plan: &mut Plan) -> BTreeMap<String, Time> {
    let mut awaited = BTreeMap::new();
    let Some(known) = budget.status.as_ref().and_then(|status| status.disrupted_pods.as_ref()) else { return awaited };
    for pod in pods.iter().filter(|pod| !meta::is_terminating(&pod.metadata)) {
        let name = meta::name(&pod.metadata);
        let Some(since) = known.get(name) else { continue };
        match meta::until(now, meta::later(since.0, DELETION_TIMEOUT)) {
            Some(wait) => {
                plan.requeue(wait);
                awaited.insert(name.to_owned(), since.clone());
            }
            None => {
                let budget = Key::of(budget);
                let message = format!("Pod was expected by PDB {budget} to be deleted but it wasn't");
                plan.notes.push(Note::warning(reference(*pod), "NotDeleted", message));
            }
        }
    }
    awaited
}

fn is_healthy(pod: &Pod, disrupted: &BTreeMap<String, Time>) -> bool {
    !meta::is_terminating(&pod.metadata) && !disrupted.contains_key(meta::name(&pod.metadata)) && meta::is_ready(pod)
}

fn condition(status: &str, reason: &str, observed_generation: Option<i64>, now: Timestamp) -> MetaCondition {
    MetaCondition {
        type_: ALLOWED.into(),
        status: status.into(),
        reason: reason.into(),
        message: String::new(),
        observed_generation,
        last_transition_time: meta::time(now),
    }
}

fn set_allowed(status: &mut PodDisruptionBudgetStatus, mut new: MetaCondition) {
    let all = status.conditions.get_or_insert_default();
    match all.iter_mut().find(|old| old.type_ == new.type_) {
        Some(old) => {
            if old.status == new.status {
                new.last_transition_time = old.last_transition_time.clone();
            }
            *old = new;
        }
        None => all.push(new),
    }
}

/// When to conclude that an announced disruption does not happen.
fn stale_at(pod: &Pod) -> Option<Timestamp> {
    let condition = meta::pod_condition(pod, TARGET)?;
    // The node's own condition stays valid however long termination takes.
    let own = condition.reason.as_deref() == Some("TerminationByKubelet");
    let stays = meta::is_active(pod) && condition.status == "True" && !own;
    let since = condition.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    stays.then(|| meta::later(since, DELETION_TIMEOUT))
}

/// Clears the disruption condition of a Pod that was not disrupted.
pub fn stale(pod: &Pod, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let Some(at) = stale_at(pod) else { return plan };
    match meta::until(now, at) {
        Some(wait) => plan.requeue(wait),
        None => {
            let mut new = pod.clone();
            let all = new.status.get_or_insert_default().conditions.get_or_insert_default();
            let mut condition = PodCondition::new(TARGET, "False", "", "", now);
            (condition.reason, condition.message) = (None, None);
            conditions::set(all, condition);
            plan.then(Write::shared_status(pod, &new).into_iter().collect());
        }
    }
    plan
}

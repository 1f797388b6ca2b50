//! DefaultPreemption: makes room for a Pod by deleting lower-priority ones.
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/>

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    cluster::Cluster,
    framework::{Filters, Handle, Nomination, Plugin, Point, PostFilter, Reason, Rejection, Row, args},
    pod::PodInfo,
    search::{Search, available},
};
use podwright_api::{
    Env,
    configuration::{FieldError, Problem},
};

pub const ROW: Row =
    Row { name: "DefaultPreemption", weight: 0, points: &[Point::PostFilter], events_to_register: &[], make };

/// The condition reason of a preempted Pod.
pub const REASON: &str = "PreemptionByScheduler";

/// Why a node without victims is useless.
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

/// How many candidate nodes are examined.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DefaultPreemptionArgs {
    min_candidate_nodes_percentage: i64,
    min_candidate_nodes_absolute: i64,
}

impl Default for DefaultPreemptionArgs {
    fn default() -> Self {
        DefaultPreemptionArgs { min_candidate_nodes_percentage: 10, min_candidate_nodes_absolute: 100 }
    }
}

fn make(value: &Value) -> Result<Box<dyn Plugin>, FieldError> {
    let args: DefaultPreemptionArgs = args(value)?;
    if !(0..=100).contains(&args.min_candidate_nodes_percentage) {
        return Err(FieldError::must_be("minCandidateNodesPercentage", "in the range [0, 100]"));
    }
    if args.min_candidate_nodes_absolute < 0 {
        return Err(FieldError::must_be("minCandidateNodesAbsolute", "no less than 0"));
    }
    if args.min_candidate_nodes_percentage == 0 && args.min_candidate_nodes_absolute == 0 {
        let why = Problem::Other("cannot be zero at the same time as minCandidateNodesAbsolute".into());
        return Err(FieldError::new("minCandidateNodesPercentage", why));
    }
    Ok(Box::new(args))
}

/// A node, and its victims, the most important one first.
struct Candidate {
    slot: usize,
    victims: Vec<Arc<PodInfo>>,
    /// How many of them violate a PodDisruptionBudget.
    violating: usize,
}

impl Plugin for DefaultPreemptionArgs {
    fn post_filter(
        &self,
        pod: &PodInfo,
        cluster: &Cluster,
        handle: &dyn Handle,
        search: &Search,
        env: &Env,
    ) -> Option<PostFilter> {
        let told = |nomination, message: &str| {
            let message = if message.is_empty() { String::new() } else { format!("preemption: {message}") };
            Some(PostFilter { nomination, message })
        };
        if let Some(why) = not_eligible(pod, cluster, search) {
            return told(Nomination::Keep, why);
        }
        let nodes = cluster.len();
        let mut reasons = BTreeMap::<String, usize>::new();
        let candidates = self.candidates(pod, cluster, handle, search, env, &mut reasons);
        let Some(best) = choose(candidates) else {
            let looked_at: usize = search.rejected.iter().filter(|(.., rejection)| rejection.resolvable).count();
            if nodes > looked_at {
                reasons.insert("Preemption is not helpful for scheduling".into(), nodes - looked_at);
            }
            let reasons = reasons.iter().map(|(why, count)| (why.as_str(), *count)).collect();
            return told(Nomination::Clear, &available(nodes, &reasons));
        };
        let node = cluster.at(best.slot).map(|node| node.name.clone())?;
        let victims = best.victims.iter().map(|victim| (victim.key.clone(), victim.uid.clone())).collect();
        told(Nomination::Preempt { node, victims }, "")
    }
}

/// Why a Pod may not preempt others.
fn not_eligible(pod: &PodInfo, cluster: &Cluster, search: &Search) -> Option<&'static str> {
    if !pod.may_preempt() {
        return Some("not eligible due to preemptionPolicy=Never.");
    }
    let node = cluster.node(cluster.nominations.of(&pod.uid)?)?;
    // If its nominated node is unsuitable anyway, another one may be chosen at once.
    let hopeless = |(slot, _, rejection): &(usize, _, Rejection)| *slot == node.slot && !rejection.resolvable;
    if search.rejected.iter().any(hopeless) {
        return None;
    }
    let leaving = |other: &Arc<PodInfo>| other.priority < pod.priority && is_preempted(other);
    node.load.pods().any(leaving).then_some("not eligible due to a terminating pod on the nominated node.")
}

/// Whether it is terminating because of preemption.
fn is_preempted(pod: &PodInfo) -> bool {
    let conditions = pod.pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    pod.is_terminating()
        && conditions
            .into_iter()
            .flatten()
            .any(|c| c.type_ == "DisruptionTarget" && c.status == "True" && c.reason.as_deref() == Some(REASON))
}

impl DefaultPreemptionArgs {
    /// The nodes where preemption helps; the others' reasons are counted in `reasons`. Starts at a random node, so that not always
    /// the same ones are affected, and stops at enough candidates.
    fn candidates(
        &self,
        pod: &PodInfo,
        cluster: &Cluster,
        handle: &dyn Handle,
        search: &Search,
        env: &Env,
        reasons: &mut BTreeMap<String, usize>,
    ) -> Vec<Candidate> {
        let resolvable = search.rejected.iter().filter(|(.., rejection)| rejection.resolvable);
        let slots: Vec<usize> = resolvable.map(|(slot, ..)| *slot).collect();
        if slots.is_empty() {
            return Vec::new();
        }
        let share = slots.len() as i64 * self.min_candidate_nodes_percentage / 100;
        let enough = share.max(self.min_candidate_nodes_absolute).clamp(1, slots.len() as i64) as usize;
        let start = env.below(slots.len() as u64) as usize;
        // Nodes were filtered, so no plugin rejected the Pod.
        let Ok(filters) = handle.filters(pod, cluster) else { return Vec::new() };
        let (mut found, mut harmless) = (Vec::new(), false);
        for n in 0..slots.len() {
            match select_victims(pod, cluster, &filters, slots[(start + n) % slots.len()]) {
                Ok(candidate) => {
                    harmless |= candidate.violating == 0;
                    found.push(candidate);
                    if harmless && found.len() >= enough {
                        break;
                    }
                }
                Err(why) => why.into_iter().for_each(|why| *reasons.entry(why.into_owned()).or_default() += 1),
            }
        }
        found
    }
}

/// More important first: a higher priority, or longer on its node.
fn importance(pod: &PodInfo) -> (Reverse<i32>, Timestamp) {
    (Reverse(pod.priority), pod.started.unwrap_or(Timestamp::MAX))
}

/// The fewest and least important victims on a node; or why it is useless. On a copy of the node all lower-priority Pods are
/// removed, then each is added back if the Pod still fits; those protected by budgets first.
fn select_victims(
    pod: &PodInfo,
    cluster: &Cluster,
    filters: &Filters<'_>,
    slot: usize,
) -> Result<Candidate, Vec<Reason>> {
    let node = cluster.at(slot).ok_or_else(Vec::new)?;
    let mut lesser: Vec<Arc<PodInfo>> =
        node.load.pods().filter(|other| other.priority < pod.priority).cloned().collect();
    if lesser.is_empty() {
        return Err(vec![NO_VICTIMS.into()]);
    }
    lesser.sort_by(|a, b| (importance(a), &a.uid).cmp(&(importance(b), &b.uid)));
    let mut supposed = node.clone();
    // Pods that are nominated here count as present.
    cluster.nominations.rivals(pod, &node.name).for_each(|rival| supposed.suppose(rival));
    lesser.iter().for_each(|other| supposed.suppose_gone(&other.uid));
    if let Some((_, rejection)) = filters.check(&supposed) {
        return Err(rejection.why);
    }
    let (protected, free) = by_budgets(cluster, &lesser);
    let (mut victims, mut violating) = (Vec::new(), 0);
    for (other, is_protected) in protected.iter().map(|o| (o, true)).chain(free.iter().map(|o| (o, false))) {
        supposed.suppose(other);
        if filters.check(&supposed).is_some() {
            supposed.suppose_gone(&other.uid);
            violating += usize::from(is_protected);
            victims.push(other.clone());
        }
    }
    // There are no victims: the reason for the rejection is gone, too, or cannot be resolved this way.
    if victims.is_empty() {
        return Err(vec![NO_VICTIMS.into()]);
    }
    victims.sort_by_key(|victim| importance(victim));
    Ok(Candidate { slot, victims, violating })
}

/// Splits Pods into those whose disruption a PodDisruptionBudget does not allow if all before them go, and the others. Where there are
/// too many to be judged all are protected.
fn by_budgets(cluster: &Cluster, pods: &[Arc<PodInfo>]) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let mut left = BTreeMap::new();
    pods.iter().cloned().partition(|pod| {
        if cluster.workloads.has_countless_budgets(&pod.key.namespace) {
            return true;
        }
        let mut violates = false;
        for ((namespace, name), budget) in cluster.workloads.budgets_of(pod) {
            let left = left.entry((namespace.to_owned(), name.to_owned())).or_insert(budget.allowed);
            *left -= 1;
            violates |= *left < 0;
        }
        violates
    })
}

/// Upstream's ranking: the fewest protected victims, the least important first victim, the lowest sum of priorities, the fewest
/// victims, the latest start of the longest running of the most important ones; then the first.
fn choose(candidates: Vec<Candidate>) -> Option<Candidate> {
    candidates.into_iter().min_by_key(|candidate| {
        let victims = &candidate.victims;
        let highest = victims.first().map(|victim| victim.priority);
        // Every victim has a positive weight, even one with a negative priority.
        let sum: i64 = victims.iter().map(|victim| i64::from(victim.priority) + i64::from(i32::MAX) + 1).sum();
        let top = victims.iter().filter(|victim| Some(victim.priority) == highest);
        let earliest = top.map(|victim| victim.started.unwrap_or(Timestamp::MAX)).min();
        (candidate.violating, highest, sum, victims.len(), Reverse(earliest))
    })
}

//! Rolling updates of a DaemonSet: which old Pods to delete now, and which nodes get a new one beside the old.
//!
//! Upstream: `pkg/controller/daemon/update.go`. Without surge the old Pod is deleted first, and its node gets a new one once it is
//! gone; with surge the new Pod comes first, and the old one is deleted when the new one is available.

use std::sync::Arc;

use k8s_openapi::{
    api::{apps::v1::DaemonSet, core::v1::Pod},
    apimachinery::pkg::util::intstr::IntOrString,
};
use serde_json::Value;

use super::{Daemons, Steps, meta};
use podwright_api::int_or_string::{Round, scaled};

/// Whether a rollout may run two Pods on a node.
pub fn allows_surge(set: &DaemonSet) -> bool {
    // For any number of nodes: a nonzero percentage is at least one.
    limits(set, 100).is_some_and(|(surge, _)| surge > 0)
}

/// maxSurge and maxUnavailable in nodes, both rounded up; `None` for OnDelete.
pub fn limits(set: &DaemonSet, nodes: usize) -> Option<(usize, usize)> {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete") {
        return None;
    }
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.clone()).unwrap_or_default();
    let surge = resolve(rolling.max_surge, 0, nodes);
    let unavailable = resolve(rolling.max_unavailable, 1, nodes);
    // Otherwise there would be no progress.
    Some(if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) })
}

fn resolve(value: Option<IntOrString>, default: i32, nodes: usize) -> usize {
    let value = match value {
        None => Value::from(default),
        Some(IntOrString::Int(number)) => Value::from(number),
        Some(IntOrString::String(text)) => Value::from(text),
    };
    let number = scaled(&value, i64::try_from(nodes).unwrap_or(i64::MAX), Round::Up).unwrap_or(0);
    usize::try_from(number).unwrap_or(0)
}

/// The new and the old Pod of a node that are not terminating; `None` if there are several of either.
fn pair<'a>(daemons: &Daemons<'a>, pods: &[&'a Arc<Pod>]) -> Option<(Option<&'a Arc<Pod>>, Option<&'a Arc<Pod>>)> {
    let (mut new, mut old) = (None, None);
    for pod in pods.iter().filter(|pod| !meta::is_terminating(&pod.metadata)) {
        let place = if daemons.is_updated(pod) { &mut new } else { &mut old };
        if place.replace(*pod).is_some() {
            return None;
        }
    }
    Some((new, old))
}

/// The next steps of a rollout. On a node where a Pod may stay but would not be replaced (tainted since), the old one is deleted as
/// well, without a successor.
pub fn steps<'a>(daemons: &Daemons<'a>, steps: &mut Steps<'a>) {
    let wanted: Vec<&str> = daemons.wanted().collect();
    let leaving: Vec<&str> = daemons.leaving().collect();
    match limits(daemons.scene.set, wanted.len()) {
        None => {}
        Some((0, unavailable)) => replace(daemons, wanted.into_iter().chain(leaving), unavailable, steps),
        Some((surge, _)) => surge_beside(daemons, &wanted, &leaving, surge, steps),
    }
}

fn replace<'a>(daemons: &Daemons<'a>, nodes: impl Iterator<Item = &'a str>, most: usize, steps: &mut Steps<'a>) {
    let (mut down, mut candidates) = (0, Vec::new());
    for node in nodes {
        match pair(daemons, daemons.on(node)) {
            Some((None, Some(old))) if daemons.is_available(old) => candidates.push(old),
            // It is unavailable, so nothing is lost by deleting it. But it counts as unavailable, like a new one.
            Some((None, Some(old))) => {
                down += 1;
                steps.delete.push(old);
            }
            Some((Some(new), None)) if daemons.is_available(new) => {}
            _ => down += 1,
        }
    }
    steps.delete.extend(candidates.into_iter().take(most.saturating_sub(down)));
}

fn surge_beside<'a>(
    daemons: &Daemons<'a>,
    wanted: &[&'a str],
    leaving: &[&'a str],
    most: usize,
    steps: &mut Steps<'a>,
) {
    let (mut beside, mut available) = (0, 0);
    let (mut candidates, mut last) = (Vec::new(), Vec::new());
    let nodes = wanted.iter().map(|node| (*node, true)).chain(leaving.iter().map(|node| (*node, false)));
    for (node, stays) in nodes {
        let Some((new, old)) = pair(daemons, daemons.on(node)) else {
            beside += 1;
            continue;
        };
        let is_well = old.or(new).is_some_and(|pod| daemons.is_available(pod));
        available += usize::from(is_well);
        match (new, old) {
            (_, None) => {}
            (None, Some(_)) if stays && is_well => candidates.push((node, 0)),
            (None, Some(_)) if stays => steps.create.push((node, 0)),
            (None, Some(old)) if is_well => last.push(old),
            (None, Some(old)) => steps.delete.push(old),
            (Some(new), Some(old)) if daemons.is_available(new) => steps.delete.push(old),
            (Some(_), Some(_)) => beside += 1,
        }
    }
    steps.create.extend(candidates.into_iter().take(most.saturating_sub(beside)));
    // With surge, availability must not drop: Pods without a replacement on their node go when enough others are available.
    steps.delete.extend(last.into_iter().take(available.saturating_sub(wanted.len())));
}

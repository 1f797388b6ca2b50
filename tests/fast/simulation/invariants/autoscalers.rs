//! HorizontalPodAutoscalers: how far they go, how fast, and where they come to rest.
//! <https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/>

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::Deployment;
use podwright::{
    client::{Autoscaler, Key},
    controllers::meta,
};
use serde_json::Value;

use super::{
    super::{
        scalings::{Scaling, range, replicas, target},
        world::{Step, World},
    },
    room,
};

/// By how much the moments of a decision and of what is seen of it differ, at most.
const JITTER: SignedDuration = SignedDuration::from_secs(2);
/// After so long all that nodes have measured before is of no account any more.
const QUIET: SignedDuration = SignedDuration::from_secs(90);

/// The autoscaler of a Deployment.
fn of<'w>(world: &'w World, deployment: &Key) -> Option<&'w Arc<Autoscaler>> {
    world.autoscalers.all().map(|(_, hpa)| hpa).find(|hpa| target(hpa).as_ref() == Some(deployment))
}

pub fn within(world: &World, step: &Step) -> Option<String> {
    let Step::Scales { target, replicas } = step else { return None };
    let (least, most) = world.past.scalings.ranges.get(target)?;
    let is_within = (*least..=*most).contains(&i64::from(*replicas));
    (!is_within).then(|| format!("{target} is to have {replicas}, not {least} to {most}"))
}

/// How far one direction's rules let a Deployment go, from what it had when the period of each began. What is on the edge of
/// a period counts as it may have counted.
fn limit(rules: &Value, done: &[Scaling], from: i32, now: jiff::Timestamp, up: bool) -> Option<i32> {
    let allowed = rules["policies"].as_array()?.iter().filter_map(|policy| {
        let (value, period) =
            (policy["value"].as_i64()? as i32, SignedDuration::from_secs(policy["periodSeconds"].as_i64()?));
        let moved = |grown: bool, period: SignedDuration| -> i32 {
            let recent = done.iter().filter(|it| now.duration_since(it.at) < period && (it.to > it.from) == grown);
            recent.map(|it| (it.to - it.from).abs()).sum()
        };
        let (early, late) = (period - JITTER, period + JITTER);
        let start = match up {
            true => from - moved(true, early) + moved(false, late),
            false => from - moved(true, late) + moved(false, early),
        };
        let by = match policy["type"].as_str()? {
            "Percent" => f64::from(start) * f64::from(value) / 100.0,
            _ => f64::from(value),
        };
        Some(if up { (f64::from(start) + by).ceil() as i32 } else { (f64::from(start) - by) as i32 })
    });
    match (rules["selectPolicy"].as_str(), up) {
        (Some("Disabled"), _) => None,
        (Some("Min"), true) | (Some("Max") | None, false) => allowed.min(),
        _ => allowed.max(),
    }
}

pub fn pace(world: &World, step: &Step) -> Option<String> {
    let Step::Scales { target, replicas: to } = step else { return None };
    let scalings = &world.past.scalings;
    let (hpa, (last, before)) = (of(world, target)?, scalings.done.get(target)?.split_last()?);
    let ((least, most), from) = (range(hpa), last.from);
    // Who is out of bounds goes to them at once; and only who knows all is judged.
    if scalings.meddled.contains(target) || last.to != *to || !(least..=most).contains(&i64::from(from)) {
        return None;
    }
    let behavior = &hpa.spec["behavior"];
    let up = *to > from;
    let allowed = match behavior.is_object() {
        false if up => (from * 2).max(4),
        false => i32::MIN,
        true => {
            let rules = &behavior[if up { "scaleUp" } else { "scaleDown" }];
            limit(rules, before, from, world.now, up).unwrap_or(from)
        }
    };
    let is_fast = if up { *to > allowed.max(from) } else { *to < allowed.min(from) };
    is_fast.then(|| format!("{target} goes from {from} to {to}, {allowed} are allowed: {behavior}, {before:?}"))
}

pub fn leaves_alone(world: &World, step: &Step) -> Option<String> {
    let Step::Scales { target, replicas } = step else { return None };
    let scalings = &world.past.scalings;
    (!scalings.stirred && !scalings.short.contains(target))
        .then(|| format!("{target} is to have {replicas}, though nothing has happened"))
}

/// Thousandths of a CPU that a Pod of the Deployment requests.
fn requested(deployment: &Deployment) -> Option<u64> {
    let container = deployment.spec.as_ref()?.template.spec.as_ref()?.containers.first()?;
    let cpu = container.resources.as_ref()?.requests.as_ref()?.get("cpu")?;
    cpu.0.strip_suffix('m')?.parse().ok()
}

/// What each Pod uses by what it shall use.
fn ratio(hpa: &Autoscaler, deployment: &Deployment, load: u64) -> Option<f64> {
    let goal = &hpa.spec["metrics"][0]["resource"]["target"];
    let each = load / u64::try_from(replicas(deployment)).ok()?.max(1);
    match goal["averageUtilization"].as_u64() {
        Some(percent) => Some((each * 100 / requested(deployment)?) as f64 / percent as f64),
        None => Some(each as f64 / goal["averageValue"].as_str()?.strip_suffix('m')?.parse::<f64>().ok()?),
    }
}

/// desiredReplicas = ceil(currentReplicas * currentMetricValue / desiredMetricValue), unless that is within a tenth of 1.
pub fn settled(world: &World) -> Vec<String> {
    let scalings = &world.past.scalings;
    let check = |(key, hpa): (&Key, &Arc<Autoscaler>)| {
        let target = target(hpa)?;
        let deployment = world.deployments.get(&target).filter(|it| replicas(it) > 0)?;
        if room::lacks(world, &deployment.metadata.uid) || meta::is_terminating(&deployment.metadata) {
            return None;
        }
        if world.now.duration_since(scalings.touched) < QUIET {
            return Some(format!("{key} may not have heard of what has been done at {}", scalings.touched));
        }
        let (count, (least, most)) = (i64::from(replicas(deployment)), range(hpa));
        let ratio = ratio(hpa, deployment, scalings.load.get(&target).copied().unwrap_or(0))?;
        let wanted = if (0.9..=1.1).contains(&ratio) { count } else { (ratio * count as f64).ceil() as i64 };
        let wanted = wanted.clamp(least, most);
        let way = if wanted < count { "scaleDown" } else { "scaleUp" };
        let stays = hpa.spec["behavior"][way]["selectPolicy"] == "Disabled" && (least..=most).contains(&count);
        let (current, desired) = (hpa.status.current_replicas.map(i64::from), i64::from(hpa.status.desired_replicas));
        let is_told =
            hpa.status.observed_generation == hpa.metadata.generation && (current, desired) == (Some(count), count);
        let is_it = is_told && (wanted == count || stays);
        (!is_it).then(|| format!("{key}: {wanted} are wanted at {ratio}, there are {count}: {:?}", hpa.status))
    };
    world.autoscalers.all().filter_map(check).collect()
}

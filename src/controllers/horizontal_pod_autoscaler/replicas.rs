//! The replicas for a metric: the ratio of actual to desired usage, with conservative assumptions for Pods without data.
//!
//! <https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details>; upstream:
//! `pkg/controller/podautoscaler/replica_calculator.go`.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::{
    ReplicasError, Settings,
    samples::{Sample, Samples},
    spec::{Behavior, Goal},
};
use crate::meta;
use podwright_api::Quantity;

/// What a metric is evaluated for.
pub struct Need<'a> {
    /// The Pods that the target's selector selects.
    pub pods: &'a [&'a Pod],
    pub resource: &'a str,
    /// Only this container of each Pod.
    pub container: Option<&'a str>,
    /// `spec.replicas` of the target.
    pub current: i32,
    pub goal: Goal,
    pub tolerance: Tolerance,
    pub settings: &'a Settings,
    pub now: Timestamp,
}

/// The result of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposal {
    pub replicas: i32,
    /// In percent of the requests.
    pub utilization: Option<i32>,
    /// In thousandths per Pod.
    pub average: i64,
}

/// Ratios of actual to desired usage that count as 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    pub up: f64,
    pub down: f64,
}

impl Tolerance {
    pub fn of(behavior: Option<&Behavior>, settings: &Settings) -> Tolerance {
        let of = |rules: fn(&Behavior) -> Option<f64>| behavior.and_then(rules).unwrap_or(settings.tolerance);
        Tolerance { up: of(|behavior| behavior.up.tolerance), down: of(|behavior| behavior.down.tolerance) }
    }

    fn allows(self, ratio: f64) -> bool {
        1.0 - self.down <= ratio && ratio <= 1.0 + self.up
    }
}

/// The replicas for these samples.
///
/// # Errors
///
/// There are no Pods, none that count have data, or they lack the request that utilization is relative to.
pub fn propose(need: &Need<'_>, mut samples: Samples) -> Result<Proposal, ReplicasError> {
    if need.pods.is_empty() {
        return Err(ReplicasError::NoPods);
    }
    // 1. Ignore finished Pods, and set aside those that are starting up.
    let groups = group(need, &samples);
    samples.retain(|name, _| !groups.ignored.contains(&name.as_str()) && !groups.unready.contains(&name.as_str()));
    if samples.is_empty() {
        return Err(ReplicasError::NoSamples);
    }
    let requests = match need.goal {
        Goal::Utilization(_) => requests(need)?,
        _ => BTreeMap::new(),
    };
    // 2. The ratio of the others.
    let Ratio { ratio, utilization, average } = ratio(need, &samples, &requests)?;
    let found = |replicas| Proposal { replicas, utilization, average };
    let unready = if ratio > 1.0 { groups.unready } else { Vec::new() };
    if unready.is_empty() && groups.missing.is_empty() {
        let wanted = || (ratio * groups.ready as f64).ceil() as i32;
        return Ok(found(if need.tolerance.allows(ratio) { need.current } else { wanted() }));
    }
    // 3. Assume for Pods without data what dampens the change.
    for name in groups.missing {
        let assumed = match ratio {
            ratio if ratio < 1.0 => idle_by_far(need, &requests, name),
            ratio if ratio > 1.0 => 0,
            _ => continue,
        };
        samples.insert(name.to_owned(), guess(assumed, need.now));
    }
    samples.extend(unready.into_iter().map(|name| (name.to_owned(), guess(0, need.now))));
    // 4. These assumptions must not reverse the direction.
    let again = self::ratio(need, &samples, &requests)?.ratio;
    let turned = (ratio < 1.0 && again > 1.0) || (ratio > 1.0 && again < 1.0);
    let wanted = (again * samples.len() as f64).ceil() as i32;
    let opposes = (again < 1.0 && wanted > need.current) || (again > 1.0 && wanted < need.current);
    let stays = need.tolerance.allows(again) || turned || opposes;
    Ok(found(if stays { need.current } else { wanted }))
}

/// The replicas if a total of `total` should be `goal`, in thousandths, regardless of the number of Pods. `current` is the desired
/// number. Fails if there are no Pods.
pub fn propose_for_value(
    pods: &[&Pod],
    current: i32,
    total: i64,
    goal: i64,
    tolerance: Tolerance,
) -> Result<i32, ReplicasError> {
    let ratio = total as f64 / goal as f64;
    if current == 0 {
        return Ok(ratio.ceil() as i32);
    }
    if tolerance.allows(ratio) {
        return Ok(current);
    }
    if pods.is_empty() {
        return Err(ReplicasError::NoneToBeReady);
    }
    let ready = pods.iter().filter(|pod| meta::phase(pod) == "Running" && meta::is_ready(pod)).count();
    Ok((ratio * ready as f64).ceil() as i32)
}

/// The same if each Pod's share should be `goal`; also returns the share of each existing Pod.
pub fn propose_for_average(there: i32, total: i64, goal: i64, tolerance: Tolerance) -> (i32, i64) {
    let ratio = total as f64 / (goal as f64 * f64::from(there));
    let replicas = if tolerance.allows(ratio) { there } else { (total as f64 / goal as f64).ceil() as i32 };
    (replicas, (total as f64 / f64::from(there.max(1))).ceil() as i64)
}

/// The assumed usage of a Pod without a sample when the others use too little: all that it may use.
fn idle_by_far(need: &Need<'_>, requests: &BTreeMap<&str, i64>, name: &str) -> i64 {
    match need.goal {
        Goal::Utilization(percent) => {
            requests.get(name).copied().unwrap_or_default().saturating_mul(percent.max(100)) / 100
        }
        Goal::Average(millis) | Goal::Value(millis) => millis,
    }
}

fn guess(millis: i64, now: Timestamp) -> Sample {
    Sample { millis, at: now, window: Duration::ZERO }
}

/// Pods by the validity of their samples.
#[derive(Debug, Default, PartialEq)]
struct Groups<'a> {
    ready: usize,
    /// They may be starting up.
    unready: Vec<&'a str>,
    /// They have no sample.
    missing: Vec<&'a str>,
    /// They are terminating or finished.
    ignored: Vec<&'a str>,
}

fn group<'a>(need: &Need<'a>, samples: &Samples) -> Groups<'a> {
    let mut groups = Groups::default();
    for pod in need.pods {
        let name = meta::name(&pod.metadata);
        if !meta::is_active(pod) {
            groups.ignored.push(name);
        } else if meta::phase(pod) == "Pending" {
            groups.unready.push(name);
        } else {
            match samples.get(name) {
                None => groups.missing.push(name),
                Some(sample) if need.resource == "cpu" && comes_up(need, pod, sample) => groups.unready.push(name),
                Some(_) => groups.ready += 1,
            }
        }
    }
    groups
}

/// Whether a Pod's CPU usage may be caused by its start-up.
fn comes_up(need: &Need<'_>, pod: &Pod, sample: &Sample) -> bool {
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    let (Some(ready), Some(started)) = (meta::pod_condition(pod, "Ready"), started) else { return true };
    let since = ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let within = |period: Duration| meta::later(started.0, period);
    if within(need.settings.cpu_initialization_period) > need.now {
        // A ready Pod needs a whole window of data since then.
        ready.status == "False" || sample.at < meta::later(since, sample.window)
    } else {
        // It has never been ready.
        ready.status == "False" && within(need.settings.initial_readiness_delay) > since
    }
}

/// The request of each Pod, in thousandths: of the Pod itself, or the sum of its containers'.
fn requests<'a>(need: &Need<'a>) -> Result<BTreeMap<&'a str, i64>, ReplicasError> {
    let one = |pod: &&'a Pod| {
        let whole = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get(need.resource));
        let amount = match whole.filter(|_| need.container.is_none()) {
            Some(amount) => millis(&amount.0),
            None => requested_by_containers(need, pod)?,
        };
        Ok((meta::name(&pod.metadata), amount))
    };
    need.pods.iter().map(one).collect()
}

fn requested_by_containers(need: &Need<'_>, pod: &Pod) -> Result<i64, ReplicasError> {
    let name = || meta::name(&pod.metadata).to_owned();
    let sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let spec = pod.spec.iter();
    let all = { spec }.flat_map(|spec| {
        spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(sidecar)).collect::<Vec<_>>()
    });
    let mut sum = 0i64;
    let mut found = need.container.is_none();
    for container in all.filter(|container| need.container.is_none_or(|wanted| wanted == container.name)) {
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let Some(amount) = requests.and_then(|requests| requests.get(need.resource)) else {
            let (resource, container) = (need.resource.to_owned(), container.name.clone());
            return Err(ReplicasError::NoRequest { resource, container, pod: name() });
        };
        sum = sum.saturating_add(millis(&amount.0));
        found = true;
    }
    match need.container {
        Some(container) if !found => Err(ReplicasError::NoContainer { container: container.to_owned(), pod: name() }),
        _ => Ok(sum),
    }
}

fn millis(text: &str) -> i64 {
    text.parse::<Quantity>().map_or(0, |quantity| quantity.millis())
}

/// The ratio of actual to desired usage.
struct Ratio {
    ratio: f64,
    utilization: Option<i32>,
    average: i64,
}

fn ratio(need: &Need<'_>, samples: &Samples, requests: &BTreeMap<&str, i64>) -> Result<Ratio, ReplicasError> {
    let sum = |all: &mut dyn Iterator<Item = i64>| all.fold(0, i64::saturating_add);
    match need.goal {
        Goal::Average(goal) | Goal::Value(goal) => {
            let count = i64::try_from(samples.len()).unwrap_or(i64::MAX).max(1);
            let average = sum(&mut samples.values().map(|sample| sample.millis)) / count;
            Ok(Ratio { ratio: average as f64 / goal as f64, utilization: None, average })
        }
        Goal::Utilization(goal) => {
            let known = || samples.iter().filter_map(|(name, s)| Some((s.millis, *requests.get(name.as_str())?)));
            let (used, requested) = (sum(&mut known().map(|it| it.0)), sum(&mut known().map(|it| it.1)));
            if requested == 0 {
                return Err(ReplicasError::NoRequests);
            }
            let count = i64::try_from(known().count()).unwrap_or(i64::MAX).max(1);
            let percent = i128::from(used) * 100 / i128::from(requested);
            let percent = i32::try_from(percent).unwrap_or(i32::MAX);
            Ok(Ratio { ratio: f64::from(percent) / goal as f64, utilization: Some(percent), average: used / count })
        }
    }
}

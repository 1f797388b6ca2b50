//! How many replicas a metric wants: what Pods use by what they shall use, with care for those of which nothing is known.
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

/// What a metric is looked at for.
pub struct Need<'a> {
    /// The Pods that the target's selector selects.
    pub pods: &'a [&'a Pod],
    pub resource: &'a str,
    /// Only this one of each Pod.
    pub container: Option<&'a str>,
    /// `spec.replicas` of the target.
    pub current: i32,
    pub goal: Goal,
    pub tolerance: Tolerance,
    pub settings: &'a Settings,
    pub now: Timestamp,
}

/// What a metric comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposal {
    pub replicas: i32,
    /// In percent of what is requested.
    pub utilization: Option<i32>,
    /// In thousandths for each Pod.
    pub average: i64,
}

/// Ratios of what is used to what shall be used that are as good as 1.
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

/// How many replicas there should be for these samples.
///
/// # Errors
/// There are no Pods, nothing is known of those that count, or they do not request what they shall use a share of.
pub fn propose(need: &Need<'_>, mut samples: Samples) -> Result<Proposal, ReplicasError> {
    if need.pods.is_empty() {
        return Err(ReplicasError::NoPods);
    }
    // 1. Ended Pods do not count, and those that have not come up yet are set aside.
    let groups = group(need, &samples);
    samples.retain(|name, _| !groups.ignored.contains(&name.as_str()) && !groups.unready.contains(&name.as_str()));
    if samples.is_empty() {
        return Err(ReplicasError::NoSamples);
    }
    let requests = match need.goal {
        Goal::Utilization(_) => requests(need)?,
        _ => BTreeMap::new(),
    };
    // 2. What the others come to.
    let Ratio { ratio, utilization, average } = ratio(need, &samples, &requests)?;
    let found = |replicas| Proposal { replicas, utilization, average };
    let unready = if ratio > 1.0 { groups.unready } else { Vec::new() };
    if unready.is_empty() && groups.missing.is_empty() {
        let wanted = || (ratio * groups.ready as f64).ceil() as i32;
        return Ok(found(if need.tolerance.allows(ratio) { need.current } else { wanted() }));
    }
    // 3. Those of which nothing is known are taken for what dampens the change.
    for name in groups.missing {
        let assumed = match ratio {
            ratio if ratio < 1.0 => idle_by_far(need, &requests, name),
            ratio if ratio > 1.0 => 0,
            _ => continue,
        };
        samples.insert(name.to_owned(), guess(assumed, need.now));
    }
    samples.extend(unready.into_iter().map(|name| (name.to_owned(), guess(0, need.now))));
    // 4. With them it shall not go the other way.
    let again = self::ratio(need, &samples, &requests)?.ratio;
    let turned = (ratio < 1.0 && again > 1.0) || (ratio > 1.0 && again < 1.0);
    let wanted = (again * samples.len() as f64).ceil() as i32;
    let opposes = (again < 1.0 && wanted > need.current) || (again > 1.0 && wanted < need.current);
    let stays = need.tolerance.allows(again) || turned || opposes;
    Ok(found(if stays { need.current } else { wanted }))
}

/// How many replicas there should be where what is measured comes to `total` and shall come to `goal`, in thousandths, however many
/// Pods there are. `current` are those that are wished for. Fails where there are none.
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

/// The same where it shall come to `goal` for each Pod, and what it is for each of those that there are.
pub fn propose_for_average(there: i32, total: i64, goal: i64, tolerance: Tolerance) -> (i32, i64) {
    let ratio = total as f64 / (goal as f64 * f64::from(there));
    let replicas = if tolerance.allows(ratio) { there } else { (total as f64 / goal as f64).ceil() as i32 };
    (replicas, (total as f64 / f64::from(there.max(1))).ceil() as i64)
}

/// What a Pod without a sample is taken to use when the others use too little: all that it may.
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

/// Pods by what their samples are worth.
#[derive(Debug, Default, PartialEq)]
struct Groups<'a> {
    ready: usize,
    /// They may be coming up.
    unready: Vec<&'a str>,
    /// They have no sample.
    missing: Vec<&'a str>,
    /// They end, or have ended.
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

/// Whether what a Pod uses of the CPU may be what it takes to come up.
fn comes_up(need: &Need<'_>, pod: &Pod, sample: &Sample) -> bool {
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    let (Some(ready), Some(started)) = (meta::pod_condition(pod, "Ready"), started) else { return true };
    let since = ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let within = |period: Duration| meta::later(started.0, period);
    if within(need.settings.cpu_initialization_period) > need.now {
        // Of a Pod that is ready a whole window must be known since.
        ready.status == "False" || sample.at < meta::later(since, sample.window)
    } else {
        // It has never been ready.
        ready.status == "False" && within(need.settings.initial_readiness_delay) > since
    }
}

/// What each Pod requests, in thousandths: as a whole, or all its containers together.
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

/// What is used by what shall be used.
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

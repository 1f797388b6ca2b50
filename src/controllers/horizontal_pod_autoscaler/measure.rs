//! Combines an autoscaler's metrics: the largest recommendation counts, and nothing is scaled down while a metric is unavailable.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{
    History, Inputs, MetricsApi, Need, Proposal, RemoteError, Scale, Source, Tolerance, Wish,
    errors::{MeasureError, MetricError},
    of_container, of_pods, propose, propose_for_average, propose_for_value,
    remote::{self, Reading},
    samples::Samples,
    spec::{Goal, Metric},
    status::Draft,
};
use crate::meta;
use podwright_api::{Quantity, quantity::Format, selector::LabelSelector};
use podwright_client::Key;

/// The desired replicas, and why; `None` if unknown.
pub(super) fn measure(
    view: &Inputs<'_>,
    scale: &Scale,
    history: &mut History,
    draft: &mut Draft,
) -> Option<(i32, String)> {
    let found = selected(view, scale, history, draft).and_then(|pods| largest(view, scale, &pods, draft));
    let Largest { replicas, metric } = match found {
        Ok(found) => found,
        Err(why) => {
            draft.told("FailedComputeMetricsReplicas", &why.to_string());
            return None;
        }
    };
    let why = match replicas {
        n if n > scale.replicas => format!("{metric} above target"),
        n if n < scale.replicas => "All metrics below target".to_owned(),
        _ => String::new(),
    };
    let verdict = history.follow(&Wish {
        current: scale.replicas,
        wanted: replicas,
        min: view.spec.min,
        max: view.spec.max,
        behavior: view.spec.behavior.as_ref(),
        downscale_stabilization: view.settings.downscale_stabilization,
        now: view.now,
    });
    let (reason, message) = verdict.able;
    draft.set("AbleToScale", "True", reason, message, view.now);
    let (limited, reason, message) = verdict.limited;
    draft.set("ScalingLimited", if limited { "True" } else { "False" }, reason, message, view.now);
    Some((verdict.replicas, why))
}

/// The Pods that the target selects, if no other autoscaler selects any of them.
fn selected<'a>(
    view: &Inputs<'a>,
    scale: &Scale,
    history: &mut History,
    draft: &mut Draft,
) -> Result<Vec<&'a Pod>, MeasureError> {
    let mut refuse = |event: &'static str, reason: &str, why: MeasureError, condition: Option<&str>| {
        let text = why.to_string();
        draft.told(event, &text);
        draft.set("ScalingActive", "False", reason, condition.unwrap_or(&text), view.now);
        Err(why)
    };
    if scale.selector.is_empty() {
        let condition = "the HPA target's scale is missing a selector";
        return refuse("SelectorRequired", "InvalidSelector", MeasureError::NoSelector, Some(condition));
    }
    let selector = match LabelSelector::parse(&scale.selector) {
        Ok(selector) => selector,
        Err(status) => return refuse("InvalidSelector", "InvalidSelector", MeasureError::Selector(status), None),
    };
    let matching = |selector: &LabelSelector| {
        view.pods
            .iter()
            .map(|pod| &**pod)
            .filter(|pod| !meta::is_mirror(pod) && meta::matches(selector, &pod.metadata))
            .collect::<Vec<_>>()
    };
    let pods = matching(&selector);
    history.selector = Some(selector);
    let rivals = view.rivals.iter();
    let rivals = rivals.filter(|(_, theirs)| pods.iter().any(|pod| meta::matches(theirs, &pod.metadata)));
    let mut all: Vec<String> = rivals.map(|(key, _)| key.to_string()).collect();
    if !all.is_empty() {
        all.push(Key::of(view.hpa).to_string());
        all.sort();
        let why = MeasureError::Rivals { selector: scale.selector.clone(), all };
        return refuse("AmbiguousSelector", "AmbiguousSelector", why, None);
    }
    Ok(pods)
}

/// The largest recommendation of all metrics, and its metric.
struct Largest {
    replicas: i32,
    metric: String,
}

fn largest(view: &Inputs<'_>, scale: &Scale, pods: &[&Pod], draft: &mut Draft) -> Result<Largest, MeasureError> {
    let mut largest: Option<Largest> = None;
    let (mut statuses, mut failed) = (Vec::new(), Vec::new());
    for (at, metric) in view.spec.metrics.iter().enumerate() {
        match one(view, scale, pods, (at, metric)) {
            Ok(Found { replicas, name, status }) => {
                statuses.push(status);
                // Among equal ones the first is reported.
                if largest.as_ref().is_none_or(|largest| replicas > largest.replicas) {
                    largest = Some(Largest { replicas, metric: name });
                }
            }
            Err(failure) => {
                statuses.push(json!({ "type": "" }));
                draft.told(failure.reason, &failure.why.to_string());
                failed.push(failure);
            }
        }
    }
    draft.status.current_metrics = Some(statuses);
    let bad = failed.len();
    let Some(first) = failed.into_iter().next() else {
        return largest.map_or(Err(MeasureError::NoMetrics), |it| Ok(active(view, draft, it)));
    };
    match largest {
        Some(largest) if largest.replicas >= scale.replicas => Ok(active(view, draft, largest)),
        _ => {
            let message = format!("the HPA was unable to compute the replica count: {}", first.why);
            draft.set("ScalingActive", "False", first.reason, &message, view.now);
            let all = view.spec.metrics.len();
            Err(MeasureError::Metrics { bad, all, context: first.context, first: first.why })
        }
    }
}

fn active(view: &Inputs<'_>, draft: &mut Draft, largest: Largest) -> Largest {
    let message = format!("the HPA was able to successfully calculate a replica count from {}", largest.metric);
    draft.set("ScalingActive", "True", "ValidMetricFound", &message, view.now);
    largest
}

/// The result of one metric.
struct Found {
    replicas: i32,
    name: String,
    /// Its entry in `status.currentMetrics`.
    status: Value,
}

/// Why it has no result.
struct Failure {
    /// For the event and the condition.
    reason: &'static str,
    /// Precedes `why` where all metrics are reported.
    context: String,
    why: MetricError,
}

fn one(view: &Inputs<'_>, scale: &Scale, pods: &[&Pod], (at, metric): (usize, &Metric)) -> Result<Found, Failure> {
    let namespace = Key::of(view.hpa).namespace;
    match &metric.source {
        Source::Resource { name } => {
            let found = resource(view, scale, pods, metric.goal, name, None, |all| of_pods(all, name));
            let context = format!("failed to get {name} resource metric value: ");
            let (proposal, current) =
                found.map_err(|why| Failure { reason: "FailedGetResourceMetric", context, why })?;
            let status = json!({ "type": "Resource", "resource": { "name": name, "current": current } });
            let name = named(name, metric.goal, "resource utilization");
            Ok(Found { replicas: proposal.replicas, name, status })
        }
        Source::Container { name, container } => {
            let samples = |all: &[Value]| of_container(all, name, container);
            let found = resource(view, scale, pods, metric.goal, name, Some(container), samples);
            let context = format!("failed to get {container} container metric value: ");
            let (proposal, current) =
                found.map_err(|why| Failure { reason: "FailedGetContainerResourceMetric", context, why })?;
            let it = json!({ "name": name, "container": container, "current": current });
            let status = json!({ "type": "ContainerResource", "containerResource": it });
            let name = named(name, metric.goal, "container resource utilization");
            Ok(Found { replicas: proposal.replicas, name, status })
        }
        Source::Pods { metric: name, .. } => {
            let failure = |why| Failure {
                reason: "FailedGetPodsMetric",
                context: "failed to get pods metric value: ".into(),
                why,
            };
            let unable = |why| failure(MetricError::Remote { metric: format!("metric {name}"), why });
            let readings = told(view, at, MetricsApi::Custom).map_err(unable)?;
            let proposal = propose_for_pods(view, scale, pods, metric.goal, readings).map_err(failure)?;
            let current = json!({ "averageValue": Quantity::from_millis(proposal.average).to_string() });
            let status =
                json!({ "type": "Pods", "pods": { "metric": identity(view, at, "pods"), "current": current } });
            Ok(Found { replicas: proposal.replicas, name: format!("pods metric {name}"), status })
        }
        Source::Object { metric: name, selector, kind, name: object, .. } => {
            let context = "failed to get object metric value: ".to_owned();
            let failure = |why| Failure { reason: "FailedGetObjectMetric", context: context.clone(), why };
            let readings = told(view, at, MetricsApi::Custom).map_err(|why| {
                failure(MetricError::Remote { metric: format!("metric {name} on {kind} {namespace}/{object}"), why })
            })?;
            let (replicas, current) = for_total(view, scale, pods, metric.goal, readings, "object").map_err(failure)?;
            let described = &view.hpa.spec["metrics"][at]["object"]["describedObject"];
            let it =
                json!({ "metric": identity(view, at, "object"), "describedObject": described, "current": current });
            let shown = match metric.goal {
                Some(Goal::Value(_)) => format!("{kind} metric {name}"),
                _ => format!("external metric {name}({})", shown(selector)),
            };
            Ok(Found { replicas, name: shown, status: json!({ "type": "Object", "object": it }) })
        }
        Source::External { metric: name, selector } => {
            let context = format!("failed to get {name} external metric value: ");
            let failure = |why| Failure { reason: "FailedGetExternalMetric", context: context.clone(), why };
            let selector = shown(selector);
            let metric_name = || format!("external metric {namespace}/{name}/{selector}");
            let readings = told(view, at, MetricsApi::External)
                .map_err(|why| failure(MetricError::Remote { metric: metric_name(), why }))?;
            let (replicas, current) =
                for_total(view, scale, pods, metric.goal, readings, "external").map_err(failure)?;
            let it = json!({ "metric": identity(view, at, "external"), "current": current });
            let status = json!({ "type": "External", "external": it });
            Ok(Found { replicas, name: format!("external metric {name}({selector})"), status })
        }
        Source::Unknown(kind) => Err(Failure {
            reason: "InvalidMetricSourceType",
            context: String::new(),
            why: MetricError::UnknownSource(kind.clone()),
        }),
    }
}

/// The values of a custom or external metric.
fn told<'a>(view: &'a Inputs<'_>, at: usize, api: MetricsApi) -> Result<&'a [Reading], RemoteError> {
    match view.told.get(at) {
        Some(Some(Ok(readings))) => Ok(readings),
        Some(Some(Err(why))) => Err(why.clone()),
        Some(None) | None => Err(remote::unregistered(api)),
    }
}

/// The displayed form of a selector.
fn shown(selector: &str) -> &str {
    if selector.is_empty() { "<none>" } else { selector }
}

/// A metric's name and selector, as in the spec.
fn identity(view: &Inputs<'_>, at: usize, field: &str) -> Value {
    view.hpa.spec["metrics"][at][field]["metric"].clone()
}

fn propose_for_pods(
    view: &Inputs<'_>,
    scale: &Scale,
    pods: &[&Pod],
    goal: Option<Goal>,
    readings: &[Reading],
) -> Result<Proposal, MetricError> {
    let Some(goal @ Goal::Average(_)) = goal else { return Err(MetricError::NoAverage) };
    let tolerance = Tolerance::of(view.spec.behavior.as_ref(), view.settings);
    let (current, settings, now) = (scale.replicas, view.settings, view.now);
    let need = Need { pods, resource: "", container: None, current, goal, tolerance, settings, now };
    Ok(propose(&need, remote::of_pods(readings))?)
}

/// The result of an object or external metric, and its `current`.
fn for_total(
    view: &Inputs<'_>,
    scale: &Scale,
    pods: &[&Pod],
    goal: Option<Goal>,
    readings: &[Reading],
    source: &'static str,
) -> Result<(i32, Value), MetricError> {
    let total = remote::total(readings);
    let tolerance = Tolerance::of(view.spec.behavior.as_ref(), view.settings);
    match goal {
        Some(Goal::Value(goal)) => {
            let replicas = propose_for_value(pods, scale.replicas, total, goal, tolerance)?;
            Ok((replicas, json!({ "value": Quantity::from_millis(total).to_string() })))
        }
        Some(Goal::Average(goal)) => {
            let (replicas, average) = propose_for_average(scale.there, total, goal, tolerance);
            Ok((replicas, json!({ "averageValue": Quantity::from_millis(average).to_string() })))
        }
        _ => Err(MetricError::NoTotal(source)),
    }
}

fn named(resource: &str, goal: Option<Goal>, what: &str) -> String {
    match goal {
        Some(Goal::Utilization(_)) => format!("{resource} {what} (percentage of request)"),
        _ => format!("{resource} resource"),
    }
}

/// The result of a resource metric, and its `current`.
fn resource(
    view: &Inputs<'_>,
    scale: &Scale,
    pods: &[&Pod],
    goal: Option<Goal>,
    resource: &str,
    container: Option<&str>,
    samples: impl Fn(&[Value]) -> Samples,
) -> Result<(Proposal, Value), MetricError> {
    let (goal, what) = match goal {
        Some(goal @ Goal::Utilization(_)) => (goal, "utilization"),
        Some(goal @ Goal::Average(_)) => (goal, "usage"),
        _ => return Err(MetricError::NoShare),
    };
    let metrics = view.metrics.as_ref().map_err(|why| MetricError::Metrics {
        resource: resource.to_owned(),
        what,
        why: why.clone(),
    })?;
    let need = Need {
        pods,
        resource,
        container,
        current: scale.replicas,
        goal,
        tolerance: Tolerance::of(view.spec.behavior.as_ref(), view.settings),
        settings: view.settings,
        now: view.now,
    };
    let proposal = propose(&need, samples(metrics));
    let proposal = proposal.map_err(|why| MetricError::Resource { resource: resource.to_owned(), what, why })?;
    let mut average = Quantity::from_millis(proposal.average);
    if resource == "memory" {
        average.format = Format::BinarySi;
    }
    let mut current = json!({ "averageValue": average.to_string() });
    if let Some(percent) = proposal.utilization {
        current["averageUtilization"] = percent.into();
    }
    Ok((proposal, current))
}

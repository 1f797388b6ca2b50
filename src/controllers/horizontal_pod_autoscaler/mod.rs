//! HorizontalPodAutoscalers: scale a target to keep its Pods' usage near the goal.
//!
//! Upstream: `pkg/controller/podautoscaler`. Every 15 seconds each autoscaler requests its target and the usage of its Pods from
//! the server, and sets the target's `scale`. Recent recommendations are in memory only, in [`Memory`], as upstream.

mod errors;
mod limits;
mod measure;
mod memory;
mod metrics_api;
pub mod remote;
mod replicas;
mod samples;
mod spec;
mod status;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{
    Context, Failure, Plan, Row, Writes, meta,
    write::{Note, Write},
};
pub use errors::{MetricsError, RemoteError, RemoteProblem, ReplicasError, ScaleError, UnknownKind};
pub use limits::{History, Verdict, Wish};
pub use memory::Memory;
pub use metrics_api::MetricsApi;
use podwright_api::{Options, Request, Status, Verb, request::Body, request::PatchType, selector::LabelSelector};
use podwright_client::{Autoscaler, Key, reference};
pub use replicas::{Need, Proposal, Tolerance, propose, propose_for_average, propose_for_value};
pub use samples::{Sample, Samples, of_container, of_pods};
pub use spec::{Amount, Behavior, Goal, Metric, Policy, Rules, Select, Source, Spec, Target};
use status::Draft;

/// Upstream's `--horizontal-pod-autoscaler-*` flags.
#[derive(Clone, Debug)]
pub struct Settings {
    pub sync_period: Duration,
    /// How long an autoscaler without a behavior waits before it scales down.
    pub downscale_stabilization: Duration,
    /// A ratio this close to 1 causes no scaling.
    pub tolerance: f64,
    /// For this long after its start a Pod's CPU usage may be caused by its start-up.
    pub cpu_initialization_period: Duration,
    /// A Pod that became unready this soon after its start has never been ready.
    pub initial_readiness_delay: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            sync_period: Duration::from_secs(15),
            downscale_stabilization: Duration::from_secs(300),
            tolerance: 0.1,
            cpu_initialization_period: Duration::from_secs(300),
            initial_readiness_delay: Duration::from_secs(30),
        }
    }
}

pub const ROW: Row = Row {
    name: "horizontal-pod-autoscaler",
    workers: 5,
    writes: Writes::Any,
    watch: |watches| {
        let informer = &watches.world.informers.horizontal_pod_autoscalers.clone();
        watches.on(informer, |_, queue, change| {
            // The status is written here.
            fn wish(it: &Arc<Autoscaler>) -> (Option<&str>, &Value) {
                (it.metadata.uid.as_deref(), &it.spec)
            }
            if change.old.as_ref().map(wish) != change.new.as_ref().map(wish) {
                queue.add(change.key.clone());
            }
        });
    },
    reconcile,
};

/// The inputs of one reconcile.
pub struct Inputs<'a> {
    pub hpa: &'a Autoscaler,
    pub spec: &'a Spec,
    /// The target, or why it is unavailable.
    pub scale: Result<Scale, ScaleError>,
    /// All Pods of its namespace.
    pub pods: &'a [Arc<Pod>],
    /// The PodMetrics of the target's Pods, or why there are none.
    pub metrics: Result<Vec<Value>, MetricsError>,
    /// The custom and external metrics, in order; `None` for other metrics.
    pub told: &'a [Option<remote::Told>],
    /// The selectors of the other autoscalers in its namespace.
    pub rivals: &'a [(Key, LabelSelector)],
    pub failure: Option<&'a Failure>,
    pub settings: &'a Settings,
    pub now: Timestamp,
}

/// The target, according to its `scale`.
#[derive(Clone, Debug, Default)]
pub struct Scale {
    /// Its resource: `deployments.apps`.
    pub resource: String,
    /// `spec.replicas`
    pub replicas: i32,
    /// `status.replicas`
    pub there: i32,
    /// `status.selector`
    pub selector: String,
}

fn reconcile(context: &Context<'_>, key: &Key) -> Plan {
    let world = context.world;
    let Some(hpa) = world.informers.horizontal_pod_autoscalers.get(key) else {
        world.autoscaling.forget(key);
        return Plan::default();
    };
    let settings = &world.config.autoscaling;
    let spec = Spec::of(&hpa.spec, settings);
    // 1. Its target.
    let informer = world.metadata.informer(&spec.target.api_version, &spec.target.kind);
    let resource = resource(&spec.target, informer.map(|informer| (informer.namespaced, informer.resource.clone())));
    let scale = match resource {
        Err(why) => Err(why),
        Ok(resource) => match context.live_reads.to(scale_request(&resource, key, &spec.target)) {
            Err(question) => return Plan::ask(question),
            Ok(Err(status)) => Err(ScaleError::Refused(status.clone())),
            Ok(Ok(body)) => scale(resource, body),
        },
    };
    // 2. The usage of the target's Pods, if relevant.
    let selector = scale.as_ref().ok().filter(|scale| spec.measures(scale)).map(|scale| scale.selector.clone());
    let metrics = match selector.map(|selector| context.live_reads.to(metrics_request(key, selector))) {
        None => Err(MetricsError::Unasked),
        Some(Err(question)) => return Plan::ask(question),
        Some(Ok(answer)) => metrics(answer),
    };
    // 3. Custom and external metrics, all at once.
    let told = match told(context, key, &spec, scale.as_ref().ok()) {
        Ok(told) => told,
        Err(live_reads) => return Plan { live_reads, ..Plan::default() },
    };
    // 4. Plan.
    let mut history = world.autoscaling.of(key, hpa.metadata.uid.as_deref().unwrap_or_default());
    let view = Inputs {
        hpa: &hpa,
        spec: &spec,
        scale,
        pods: &world.informers.pods.list_namespace(&key.namespace),
        metrics,
        told: &told,
        rivals: &world.autoscaling.rivals(key),
        failure: context.failure(),
        settings,
        now: context.now,
    };
    let plan = plan(&view, &mut history);
    world.autoscaling.keep(key, history);
    plan
}

/// The values of each custom and external metric, or the requests that must be made first. If no server is registered for one, this
/// is known already.
fn told(
    context: &Context<'_>,
    key: &Key,
    spec: &Spec,
    scale: Option<&Scale>,
) -> Result<Vec<Option<remote::Told>>, Vec<Request>> {
    let Some(scale) = scale.filter(|scale| spec.looks(scale)) else { return Ok(Vec::new()) };
    let metadata = &context.world.metadata;
    let resource = |api_version: &str, kind: &str| {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let found = metadata.informer(api_version, kind);
        // As a resource of a group, `deployments.apps`, regardless of its version.
        let named = found.map(|informer| informer.resource.split('/').next().unwrap_or_default().to_owned());
        named.ok_or_else(|| UnknownKind { kind: kind.to_owned(), group: group.to_owned() })
    };
    let (mut all, mut live_reads) = (Vec::new(), Vec::new());
    for metric in &spec.metrics {
        let asked = match remote::api(&metric.source) {
            Some(api) if metadata.is_served_elsewhere(api.group()) => {
                remote::question(metric, key, &scale.selector, resource)
            }
            _ => None,
        };
        all.push(match asked {
            None => None,
            Some(Err(why)) => Some(Err(why)),
            Some(Ok(question)) => match context.live_reads.to(question) {
                Ok(answer) => Some(remote::told(metric, answer)),
                Err(question) => {
                    live_reads.push(question);
                    None
                }
            },
        });
    }
    if live_reads.is_empty() { Ok(all) } else { Err(live_reads) }
}

/// The resource of a target, given the scope and name for its kind. An autoscaler scales within its namespace: cluster-scoped
/// objects are outside of it, whatever anybody's permissions.
///
/// # Errors
///
/// Its version is invalid, or its kind is not served in namespaces.
pub fn resource(target: &Target, found: Option<(bool, String)>) -> Result<String, ScaleError> {
    let (group, version) = target.api_version.split_once('/').unwrap_or(("", &target.api_version));
    if version.contains('/') {
        return Err(ScaleError::GroupVersion(target.api_version.clone()));
    }
    match found {
        None => Err(UnknownKind { kind: target.kind.clone(), group: group.to_owned() }.into()),
        Some((false, _)) => Err(ScaleError::NotNamespaced),
        Some((true, resource)) => Ok(resource),
    }
}

fn scale_request(resource: &str, key: &Key, target: &Target) -> Request {
    Request {
        verb: Verb::Get,
        resource: resource.to_owned(),
        namespace: key.namespace().map(str::to_owned),
        name: Some(target.name.clone()),
        subresource: Some("scale".into()),
        ..Request::default()
    }
}

fn scale(resource: String, body: &Body) -> Result<Scale, ScaleError> {
    let Body::Object { bytes, .. } = body else { return Err(ScaleError::NoScale) };
    let scale: Value = serde_json::from_slice(bytes).map_err(|why| ScaleError::Malformed(why.to_string()))?;
    let number = |of: &str| scale[of]["replicas"].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
    let (replicas, there) = (number("spec"), number("status"));
    let selector = scale["status"]["selector"].as_str().unwrap_or_default().to_owned();
    Ok(Scale { resource, replicas, there, selector })
}

fn metrics_request(key: &Key, selector: String) -> Request {
    Request {
        verb: Verb::List,
        resource: "pods.metrics.k8s.io".into(),
        namespace: key.namespace().map(str::to_owned),
        options: Options { label_selector: Some(selector), ..Options::default() },
        ..Request::default()
    }
}

fn metrics(answer: Result<&Body, &Status>) -> Result<Vec<Value>, MetricsError> {
    match answer {
        Err(status) => Err(MetricsError::Refused(status.clone())),
        Ok(Body::List(list)) if list.items.is_empty() => Err(MetricsError::Empty),
        Ok(Body::List(list)) => {
            let items = list.items.iter().map(|item| serde_json::from_slice(item));
            items.collect::<Result<_, _>>().map_err(|why| MetricsError::Malformed(why.to_string()))
        }
        Ok(_) => Err(MetricsError::NotAList),
    }
}

impl Spec {
    /// Whether the usage of the target's Pods is measured.
    fn measures(&self, scale: &Scale) -> bool {
        let of_pods = |metric: &Metric| matches!(metric.source, Source::Resource { .. } | Source::Container { .. });
        self.looks(scale) && self.metrics.iter().any(of_pods)
    }

    /// Whether metrics are evaluated.
    fn looks(&self, scale: &Scale) -> bool {
        self.bound(scale.replicas).is_none() && !scale.selector.is_empty()
    }

    /// The result that needs no metrics: a target scaled to 0 stays so, and one out of bounds goes to the bound.
    fn bound(&self, current: i32) -> Option<Bound> {
        match current {
            0 => Some(Bound::Disabled),
            n if n > self.max => Some(Bound::To(self.max, "Current number of replicas above Spec.MaxReplicas")),
            n if n < self.min => Some(Bound::To(self.min, "Current number of replicas below Spec.MinReplicas")),
            _ => None,
        }
    }
}

enum Bound {
    Disabled,
    To(i32, &'static str),
}

/// Plans an autoscaler.
pub fn plan(view: &Inputs<'_>, history: &mut History) -> Plan {
    let mut draft = Draft::of(view.hpa);
    // A failed scaling does not count, even if the target is unavailable now.
    if refused(view).is_some() {
        history.not_scaled();
    }
    let mut plan = match &view.scale {
        Err(why) => {
            let message = format!("the HPA controller was unable to get the target's current scale: {why}");
            draft.set("AbleToScale", "False", "FailedGetScale", &message, view.now);
            draft.told("FailedGetScale", &why.to_string());
            Plan::default()
        }
        Ok(scale) => decide(view, scale, history, &mut draft),
    };
    plan.notes.append(&mut draft.notes);
    let mut new = view.hpa.clone();
    new.status = draft.status;
    let failed = || Note::warning(reference(view.hpa), "FailedUpdateStatus", "{}");
    plan.then(Write::status(view.hpa, &new).map(|write| write.failed(failed())).into_iter().collect());
    plan.requeue(view.settings.sync_period);
    plan
}

/// The replicas for the target.
fn decide(view: &Inputs<'_>, scale: &Scale, history: &mut History, draft: &mut Draft) -> Plan {
    let (current, now) = (scale.replicas, view.now);
    let able = "the HPA controller was able to get the target's current scale";
    draft.set("AbleToScale", "True", "SucceededGetScale", able, now);
    history.begin(current, now);
    // Earlier measurements are outdated.
    draft.status.current_metrics = None;
    let (wanted, why) = match view.spec.bound(current) {
        Some(Bound::Disabled) => {
            let why = "scaling is disabled since the replica count of the target is zero";
            draft.set("ScalingActive", "False", "ScalingDisabled", why, now);
            (0, String::new())
        }
        Some(Bound::To(count, why)) => (count, why.to_owned()),
        None => match measure::measure(view, scale, history, draft) {
            Some(found) => found,
            None => {
                draft.count(current, None);
                return Plan::default();
            }
        },
    };
    if let Some(failure) = refused(view).filter(|_| wanted != current) {
        // It was tried and reported just now; the next reconcile tries again.
        let message = format!("the HPA controller was unable to update the target scale: {}", failure.message);
        draft.set("AbleToScale", "False", "FailedUpdateScale", &message, now);
        draft.count(current, None);
        return Plan::default();
    }
    draft.count(current, Some(wanted));
    if wanted == current {
        return Plan::default();
    }
    history.scaled(view.spec.behavior.as_ref(), current, wanted, now);
    let message = format!("the HPA controller was able to update the target scale to {wanted}");
    draft.set("AbleToScale", "True", "SucceededRescale", &message, now);
    draft.status.last_scale_time = Some(meta::time(now));
    let mut plan = Plan::default();
    plan.then(vec![rescale(view, scale, wanted, &why)]);
    plan
}

/// The event reason of a failed scaling.
const FAILED: &str = "FailedRescale";

/// Why the last scaling failed.
fn refused<'a>(view: &Inputs<'a>) -> Option<&'a Failure> {
    view.failure.filter(|failure| failure.reason == FAILED)
}

/// Sets the target's scale unconditionally: like upstream, which retries on conflicts. So no refusal is transient.
fn rescale(view: &Inputs<'_>, scale: &Scale, wanted: i32, why: &str) -> Write {
    let key = Key::of(view.hpa);
    let about = reference(view.hpa);
    let mut request = scale_request(&scale.resource, &key, &view.spec.target);
    request.verb = Verb::Patch;
    request.body = Some(json!({ "spec": { "replicas": wanted } }));
    request.options.patch_type = Some(PatchType::Merge);
    let text = format!("New size: {wanted}; reason: {why}");
    Write::new(request)
        .done(Note::normal(about.clone(), "SuccessfulRescale", text.clone()))
        .failed(Note::warning(about, FAILED, format!("{text}; error: {{}}")))
        .never_passes()
}

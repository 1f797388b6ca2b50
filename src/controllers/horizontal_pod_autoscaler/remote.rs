//! Custom and external metrics: custom.metrics.k8s.io for Pods and objects, external.metrics.k8s.io for anything, served by
//! adapters behind APIServices. Upstream: `pkg/controller/podautoscaler/metrics/client.go`, and `k8s.io/metrics/pkg/client`.

use std::time::Duration;

use serde_json::Value;

use super::{
    MetricsApi, RemoteError, RemoteProblem, Sample, Samples, UnknownKind,
    spec::{Metric, Source},
};
use podwright_api::{Options, Quantity, Request, Status, Verb, request::Body};
use podwright_client::Key;

/// The default window of a value; upstream's `metricServerDefaultMetricWindow`.
const WINDOW: Duration = Duration::from_secs(60);
/// The most values that are accepted.
const MOST: usize = 100_000;

/// The values of a metric, or why it is unavailable.
pub type Told = Result<Vec<Reading>, RemoteError>;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The name of the object that it describes, if any.
    pub of: String,
    pub sample: Sample,
}

/// The API of a metric; `None`: nodes report the usage of Pods.
pub fn api(source: &Source) -> Option<MetricsApi> {
    match source {
        Source::Pods { .. } | Source::Object { .. } => Some(MetricsApi::Custom),
        Source::External { .. } => Some(MetricsApi::External),
        Source::Resource { .. } | Source::Container { .. } | Source::Unknown(_) => None,
    }
}

/// The error that no server is registered for it.
pub fn unregistered(api: MetricsApi) -> RemoteError {
    RemoteError::Unable { api, why: RemoteProblem::Unregistered { api } }
}

/// The request for a metric. `selector` selects the target's Pods, `resource` is that of the described object (`deployments.apps`),
/// or why there is none.
pub fn question(
    metric: &Metric,
    key: &Key,
    selector: &str,
    resource: impl Fn(&str, &str) -> Result<String, UnknownKind>,
) -> Option<Result<Request, RemoteError>> {
    let namespace = Some(key.namespace.clone());
    let of_metric = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let of = |resource: &str, api: MetricsApi| format!("{resource}.{}/", api.group());
    let of_custom = |resource: &str| of(resource, MetricsApi::Custom);
    match &metric.source {
        Source::Pods { metric, selector: series } => Some(Ok(Request {
            verb: Verb::Get,
            resource: of_custom("pods"),
            namespace,
            name: Some("*".into()),
            subresource: Some(metric.clone()),
            options: Options {
                label_selector: Some(selector.to_owned()),
                metric_label_selector: of_metric(series),
                ..Options::default()
            },
            ..Request::default()
        })),
        Source::Object { metric, selector: series, api_version, kind, name } => {
            let options = Options { metric_label_selector: of_metric(series), ..Options::default() };
            // A Namespace's metrics are served within it. The name in the reference is ignored, as upstream: a
            // CrossVersionObjectReference never leaves the autoscaler's own namespace.
            if kind == "Namespace" && !api_version.contains('/') {
                let (resource, name) = (of_custom("metrics"), Some(metric.clone()));
                return Some(Ok(Request { verb: Verb::Get, resource, namespace, name, options, ..Request::default() }));
            }
            let request = |resource: String| Request {
                verb: Verb::Get,
                resource: of_custom(&resource),
                namespace,
                name: Some(name.clone()),
                subresource: Some(metric.clone()),
                options,
                ..Request::default()
            };
            let unknown = |why| RemoteError::Unable { api: MetricsApi::Custom, why: RemoteProblem::UnknownKind(why) };
            Some(resource(api_version, kind).map(request).map_err(unknown))
        }
        Source::External { metric, selector: series } => Some(Ok(Request {
            verb: Verb::List,
            resource: of(metric, MetricsApi::External),
            namespace,
            options: Options { label_selector: of_metric(series), ..Options::default() },
            ..Request::default()
        })),
        Source::Resource { .. } | Source::Container { .. } | Source::Unknown(_) => None,
    }
}

/// Parses the response.
///
/// # Errors
///
/// The request was refused, or the response has no values, too many, or invalid ones.
pub fn told(metric: &Metric, answer: Result<&Body, &Status>) -> Told {
    let api = api(&metric.source).unwrap_or(MetricsApi::Custom);
    let unable = |why| RemoteError::Unable { api, why };
    let body = answer.map_err(|status| unable(RemoteProblem::Refused(status.clone())))?;
    let read = |bytes: &[u8]| {
        serde_json::from_slice::<Value>(bytes).map_err(|why| unable(RemoteProblem::Malformed(why.to_string())))
    };
    let items: Vec<Value> = match body {
        Body::Object { bytes, .. } => match read(bytes)?["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        },
        Body::List(list) => list.items.iter().take(MOST).map(|item| read(item)).collect::<Result<_, _>>()?,
        _ => return Err(unable(RemoteProblem::NotAList)),
    };
    let one = matches!(metric.source, Source::Object { .. });
    match items.len() {
        1 if one => {}
        count if one => return Err(unable(RemoteProblem::Count(count))),
        0 => return Err(RemoteError::Empty(api)),
        _ => {}
    }
    let readings: Option<Vec<Reading>> = items.iter().take(MOST).map(reading).collect();
    readings.ok_or_else(|| unable(RemoteProblem::NotAQuantity))
}

fn reading(item: &Value) -> Option<Reading> {
    let window = item["windowSeconds"].as_u64().or(item["window"].as_u64());
    Some(Reading {
        of: item["describedObject"]["name"].as_str().unwrap_or_default().to_owned(),
        sample: Sample {
            millis: Quantity::from_json(&item["value"])?.millis(),
            at: item["timestamp"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default(),
            window: window.map_or(WINDOW, Duration::from_secs),
        },
    })
}

/// By the Pods that they describe.
pub fn of_pods(readings: &[Reading]) -> Samples {
    readings.iter().map(|reading| (reading.of.clone(), reading.sample)).collect()
}

/// Their sum.
pub fn total(readings: &[Reading]) -> i64 {
    readings.iter().fold(0, |sum: i64, reading| sum.saturating_add(reading.sample.millis))
}

//! Why an autoscaler's target, a metric, or its desired replicas are unknown, in upstream's words.

use podwright_api::Status;

use super::metrics_api::MetricsApi;

/// No server has objects of this kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no matches for kind \"{kind}\" in group \"{group}\"")]
pub struct UnknownKind {
    pub kind: String,
    pub group: String,
}

/// Why a target's scale is unavailable.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScaleError {
    #[error("unexpected GroupVersion string: {0}")]
    GroupVersion(String),
    #[error(transparent)]
    UnknownKind(#[from] UnknownKind),
    /// It is cluster-scoped.
    #[error("the server could not find the requested resource")]
    NotNamespaced,
    #[error("{}", .0.message)]
    Refused(Status),
    #[error("the server has answered with no scale")]
    NoScale,
    #[error("{0}")]
    Malformed(String),
}

/// Why the usage of the target's Pods is unknown.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MetricsError {
    #[error("nobody has asked for it")]
    Unasked,
    #[error("no metrics returned from resource metrics API")]
    Empty,
    #[error("unable to fetch metrics from resource metrics API: {}", .0.message)]
    Refused(Status),
    #[error("unable to fetch metrics from resource metrics API: {0}")]
    Malformed(String),
    #[error("unable to fetch metrics from resource metrics API: the server has answered with no list")]
    NotAList,
}

/// Why a custom or external metric is unavailable, with its API.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RemoteError {
    #[error("no metrics returned from {0} metrics API")]
    Empty(MetricsApi),
    #[error("unable to fetch metrics from {api} metrics API: {why}")]
    Unable { api: MetricsApi, why: RemoteProblem },
}

/// What is wrong with the request or its response.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RemoteProblem {
    #[error("no {api} metrics API ({}) registered", .api.group())]
    Unregistered { api: MetricsApi },
    #[error(transparent)]
    UnknownKind(UnknownKind),
    #[error("{}", .0.message)]
    Refused(Status),
    #[error("{0}")]
    Malformed(String),
    #[error("the server has answered with no list")]
    NotAList,
    /// There are this many values instead of one.
    #[error("the custom metrics API server returned {0} results when we asked for exactly one")]
    Count(usize),
    #[error("a value is no quantity")]
    NotAQuantity,
}

/// Why the replicas for a metric are unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicasError {
    #[error("no pods returned by selector while calculating replica count")]
    NoPods,
    #[error("unable to calculate ready pods: no pods returned by selector while calculating replica count")]
    NoneToBeReady,
    #[error("did not receive metrics for targeted pods (pods might be unready)")]
    NoSamples,
    #[error("no metrics returned matched known pods")]
    NoRequests,
    #[error("missing request for {resource} in container {container} of Pod {pod}")]
    NoRequest { resource: String, container: String, pod: String },
    #[error("container {container} not found in Pod {pod}")]
    NoContainer { container: String, pod: String },
}

/// Why a metric has no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum MetricError {
    #[error("no average value target was set")]
    NoAverage,
    /// For a metric of this source.
    #[error("invalid {0} metric source: neither a value target nor an average value target was set")]
    NoTotal(&'static str),
    #[error(
        "invalid resource metric source: neither an average utilization target nor an average value (usage) target was set"
    )]
    NoShare,
    #[error("failed to get {resource} {what}: unable to get metrics for resource {resource}: {why}")]
    Metrics { resource: String, what: &'static str, why: MetricsError },
    #[error("failed to get {resource} {what}: {why}")]
    Resource { resource: String, what: &'static str, why: ReplicasError },
    #[error(transparent)]
    Replicas(#[from] ReplicasError),
    #[error("unable to get {metric}: {why}")]
    Remote { metric: String, why: RemoteError },
    #[error("unknown metric source type {0:?}")]
    UnknownSource(String),
}

/// Why the replicas for all metrics together are unknown.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum MeasureError {
    #[error("selector is required")]
    NoSelector,
    #[error("couldn't convert selector into a corresponding internal selector object: {}", .0.message)]
    Selector(Status),
    /// These autoscalers select the same Pods.
    #[error("pods by selector {selector} are controlled by multiple HPAs: [{}]", .all.join(" "))]
    Rivals { selector: String, all: Vec<String> },
    /// The server defaults the metrics of an autoscaler without any.
    #[error("there are no metrics")]
    NoMetrics,
    #[error("invalid metrics ({bad} invalid out of {all}), first error is: {context}{first}")]
    Metrics { bad: usize, all: usize, context: String, first: MetricError },
}

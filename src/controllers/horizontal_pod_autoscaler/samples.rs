//! The current usage of Pods, from metrics.k8s.io's PodMetrics.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde_json::Value;

use podwright_api::{Quantity, duration};

/// The usage of one Pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// In thousandths: millicores, thousandths of bytes.
    pub millis: i64,
    /// The end of its window.
    pub at: Timestamp,
    pub window: Duration,
}

/// By Pod name.
pub type Samples = BTreeMap<String, Sample>;

/// The usage of a resource by whole Pods. One with containers that lack the metric is left out.
pub fn of_pods(metrics: &[Value], resource: &str) -> Samples {
    samples(metrics, |containers| {
        let all: Option<Vec<i64>> = containers.iter().map(|container| usage(container, resource)).collect();
        all.filter(|all| !all.is_empty()).map(|all| all.iter().fold(0, |sum: i64, one| sum.saturating_add(*one)))
    })
}

/// The usage of a resource by the container of this name in each Pod that reports it.
pub fn of_container(metrics: &[Value], resource: &str, container: &str) -> Samples {
    samples(metrics, |containers| {
        containers.iter().find(|it| it["name"] == container).and_then(|it| usage(it, resource))
    })
}

fn samples(metrics: &[Value], millis: impl Fn(&[Value]) -> Option<i64>) -> Samples {
    let sample = |pod: &Value| {
        let millis = millis(pod["containers"].as_array()?)?;
        let at = pod["timestamp"].as_str()?.parse().ok()?;
        let window = pod["window"].as_str().and_then(duration::parse).unwrap_or_default();
        Some((pod["metadata"]["name"].as_str()?.to_owned(), Sample { millis, at, window }))
    };
    metrics.iter().filter_map(sample).collect()
}

fn usage(container: &Value, resource: &str) -> Option<i64> {
    Quantity::from_json(&container["usage"][resource]).map(|quantity| quantity.millis())
}

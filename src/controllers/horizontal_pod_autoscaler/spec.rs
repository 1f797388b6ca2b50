//! The spec of a HorizontalPodAutoscaler, parsed.

use std::time::Duration;

use serde_json::Value;

use super::Settings;
use podwright_api::{Quantity, selector::LabelSelector};

/// `spec`
#[derive(Clone, Debug)]
pub struct Spec {
    pub target: Target,
    pub min: i32,
    pub max: i32,
    pub metrics: Vec<Metric>,
    pub behavior: Option<Behavior>,
}

/// `spec.scaleTargetRef`
#[derive(Clone, Debug)]
pub struct Target {
    pub api_version: String,
    pub kind: String,
    pub name: String,
}

/// One of `spec.metrics`.
#[derive(Clone, Debug)]
pub struct Metric {
    pub source: Source,
    pub goal: Option<Goal>,
}

/// The source of a metric.
#[derive(Clone, Debug)]
pub enum Source {
    /// A resource of whole Pods.
    Resource { name: String },
    /// A resource of one container of each Pod.
    Container { name: String, container: String },
    /// A metric of each Pod from custom.metrics.k8s.io; the selector selects its series, all if empty.
    Pods { metric: String, selector: String },
    /// A metric of one object from custom.metrics.k8s.io.
    Object { metric: String, selector: String, api_version: String, kind: String, name: String },
    /// A metric from external.metrics.k8s.io.
    External { metric: String, selector: String },
    /// An unknown type, which validation refuses.
    Unknown(String),
}

/// The goal of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// Percent of the requests, on average.
    Utilization(i64),
    /// Thousandths per Pod, on average.
    Average(i64),
    /// Thousandths in total.
    Value(i64),
}

/// `spec.behavior`
#[derive(Clone, Debug, PartialEq)]
pub struct Behavior {
    pub up: Rules,
    pub down: Rules,
}

/// The scaling rules of one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    pub window: Duration,
    pub select: Select,
    pub policies: Vec<Policy>,
    /// A ratio this close to 1 causes no scaling.
    pub tolerance: Option<f64>,
}

/// Which of several policies applies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Select {
    /// The one that allows the most change.
    Max,
    /// The one that allows the least.
    Min,
    Disabled,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    pub amount: Amount,
    pub period: Duration,
}

/// How much may change within a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    Pods(i32),
    Percent(i32),
}

impl Spec {
    pub fn of(spec: &Value, settings: &Settings) -> Spec {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let target = &spec["scaleTargetRef"];
        Spec {
            target: Target {
                api_version: text(&target["apiVersion"]),
                kind: text(&target["kind"]),
                name: text(&target["name"]),
            },
            min: int(&spec["minReplicas"]).unwrap_or(1),
            max: int(&spec["maxReplicas"]).unwrap_or(0),
            metrics: spec["metrics"].as_array().into_iter().flatten().map(Metric::of).collect(),
            behavior: spec["behavior"].is_object().then(|| Behavior::of(&spec["behavior"], settings)),
        }
    }
}

impl Metric {
    fn of(metric: &Value) -> Metric {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let kind = metric["type"].as_str().unwrap_or_default();
        let field = match kind {
            "Resource" => "resource",
            "ContainerResource" => "containerResource",
            "Pods" => "pods",
            "Object" => "object",
            "External" => "external",
            other => return Metric { source: Source::Unknown(other.to_owned()), goal: None },
        };
        let (it, name) = (&metric[field], text(&metric[field]["metric"]["name"]));
        let selector = LabelSelector::from_json(&it["metric"]["selector"]).map(|it| it.to_string()).unwrap_or_default();
        let source = match kind {
            "Resource" => Source::Resource { name: text(&it["name"]) },
            "ContainerResource" => Source::Container { name: text(&it["name"]), container: text(&it["container"]) },
            "Pods" => Source::Pods { metric: name, selector },
            "Object" => {
                let object = &it["describedObject"];
                let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
                Source::Object { metric: name, selector, api_version, kind, name: text(&object["name"]) }
            }
            _ => Source::External { metric: name, selector },
        };
        Metric { source, goal: Goal::of(&it["target"]) }
    }
}

impl Goal {
    fn of(target: &Value) -> Option<Goal> {
        let millis = |field: &str| Quantity::from_json(&target[field]).map(|quantity| quantity.millis());
        let average = millis("averageValue").map(Goal::Average);
        let utilization = || target["averageUtilization"].as_i64().map(Goal::Utilization);
        average.or_else(utilization).or_else(|| millis("value").map(Goal::Value))
    }
}

impl Behavior {
    fn of(behavior: &Value, settings: &Settings) -> Behavior {
        Behavior {
            up: Rules::of(&behavior["scaleUp"], Duration::ZERO),
            down: Rules::of(&behavior["scaleDown"], settings.downscale_stabilization),
        }
    }
}

impl Rules {
    fn of(rules: &Value, window: Duration) -> Rules {
        let select = match rules["selectPolicy"].as_str() {
            Some("Disabled") => Select::Disabled,
            Some("Min") => Select::Min,
            _ => Select::Max,
        };
        Rules {
            window: seconds(&rules["stabilizationWindowSeconds"]).unwrap_or(window),
            select,
            policies: rules["policies"].as_array().into_iter().flatten().filter_map(Policy::of).collect(),
            tolerance: Quantity::from_json(&rules["tolerance"]).map(|quantity| quantity.approximately()),
        }
    }

    /// The longest period of its policies.
    pub fn longest(&self) -> Duration {
        self.policies.iter().map(|policy| policy.period).max().unwrap_or_default()
    }
}

impl Policy {
    fn of(policy: &Value) -> Option<Policy> {
        let value = int(&policy["value"])?;
        let amount = match policy["type"].as_str()? {
            "Pods" => Amount::Pods(value),
            "Percent" => Amount::Percent(value),
            _ => return None,
        };
        Some(Policy { amount, period: seconds(&policy["periodSeconds"])? })
    }
}

fn int(value: &Value) -> Option<i32> {
    value.as_i64().and_then(|n| i32::try_from(n).ok())
}

fn seconds(value: &Value) -> Option<Duration> {
    value.as_u64().map(Duration::from_secs)
}

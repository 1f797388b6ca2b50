//! `create quota`, `poddisruptionbudget` and `priorityclass`.

use serde_json::{Map, Value, json};

use super::{
    access::match_labels,
    object::{named, with},
};
use crate::error::Failure;

#[derive(clap::Args)]
pub struct Quota {
    /// The name of the object to create
    name: String,
    /// Hard limits, as cpu=1,memory=1G,pods=2
    #[arg(long, value_delimiter = ',', value_name = "RESOURCE=QUANTITY")]
    hard: Vec<String>,
    /// Quota scopes that must all match each object tracked by the quota, as BestEffort
    #[arg(long, value_delimiter = ',', value_name = "SCOPE")]
    scopes: Vec<String>,
}

#[derive(clap::Args)]
pub struct PodDisruptionBudget {
    /// The name of the object to create
    name: String,
    /// A label selector for the budget's Pods, as a=b,c=d
    #[arg(long, value_name = "LABELS", required = true)]
    selector: String,
    /// The minimum number or percentage of available Pods that this budget requires
    #[arg(long, value_name = "NUMBER")]
    min_available: Option<String>,
    /// The maximum number or percentage of unavailable Pods that this budget allows
    #[arg(long, value_name = "NUMBER")]
    max_unavailable: Option<String>,
}

#[derive(clap::Args)]
pub struct PriorityClass {
    /// The name of the object to create
    name: String,
    /// The value of this priority class; Pods with higher values are scheduled first
    #[arg(long, allow_negative_numbers = true, default_value_t = 0)]
    value: i32,
    /// Whether this priority class is the default for Pods that name none
    #[arg(long)]
    global_default: bool,
    /// When this priority class should be used
    #[arg(long, default_value = "", value_name = "TEXT")]
    description: String,
    /// The policy for preempting Pods with lower priority: PreemptLowerPriority, Never
    #[arg(long, default_value = "PreemptLowerPriority", value_parser = ["PreemptLowerPriority", "Never"])]
    preemption_policy: String,
}

impl Quota {
    pub fn object(&self) -> Result<Value, Failure> {
        let mut hard = Map::new();
        for word in &self.hard {
            match word.split_once('=') {
                Some((name, quantity)) if !name.is_empty() => hard.insert(name.to_owned(), quantity.into()),
                _ => {
                    return Err(Failure::usage(format!("invalid argument syntax {word}, expected <resource>=<value>")));
                }
            };
        }
        let mut spec = Map::new();
        if !hard.is_empty() {
            spec.insert("hard".to_owned(), Value::Object(hard));
        }
        if !self.scopes.is_empty() {
            spec.insert("scopes".to_owned(), json!(self.scopes));
        }
        Ok(with(named("v1", "ResourceQuota", &self.name), json!({ "spec": spec, "status": {} })))
    }
}

impl PodDisruptionBudget {
    pub fn object(&self) -> Result<Value, Failure> {
        let (field, number) = match (&self.min_available, &self.max_unavailable) {
            (Some(number), None) => ("minAvailable", number),
            (None, Some(number)) => ("maxUnavailable", number),
            (None, None) => return Err(Failure::usage("one of min-available or max-unavailable must be specified")),
            (Some(_), Some(_)) => {
                return Err(Failure::usage("min-available and max-unavailable cannot be both specified"));
            }
        };
        let number = number.parse::<u32>().map_or_else(|_| Value::from(number.as_str()), Value::from);
        let spec = json!({ field: number, "selector": { "matchLabels": match_labels(&self.selector)? } });
        let status = json!({ "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0 });
        let object = named("policy/v1", "PodDisruptionBudget", &self.name);
        Ok(with(object, json!({ "spec": spec, "status": status })))
    }
}

impl PriorityClass {
    pub fn object(&self) -> Value {
        let mut fields = json!({ "preemptionPolicy": self.preemption_policy, "value": self.value });
        if !self.description.is_empty() {
            fields["description"] = self.description.as_str().into();
        }
        if self.global_default {
            fields["globalDefault"] = true.into();
        }
        with(named("scheduling.k8s.io/v1", "PriorityClass", &self.name), fields)
    }
}

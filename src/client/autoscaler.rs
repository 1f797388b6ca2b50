//! `Autoscaler`: the parts of a HorizontalPodAutoscaler (autoscaling/v2) that the autoscaling controller uses.

use k8s_openapi::{
    api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A HorizontalPodAutoscaler. Its spec is untyped: only one controller reads it, and it has many types.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Autoscaler {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Value,
    #[serde(default)]
    pub status: AutoscalerStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AutoscalerStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_replicas: Option<i32>,
    pub desired_replicas: i32,
    /// One for each metric of the spec, in order; `{"type": ""}` for one without a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_metrics: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<HorizontalPodAutoscalerCondition>,
}

podwright_api::view!(Autoscaler, of HorizontalPodAutoscaler);

//! ComponentStatus: the state of control plane components, generated when read. Upstream deprecated it in 1.19, but still serves
//! it.

use serde_json::Value;

use super::{Kind, Storage};
use crate::columns::{Column, NAME, column};
use crate::{Object, Verb};

pub const KIND: Kind = Kind {
    short_names: &["cs"],
    storage: Storage::Nowhere,
    verbs: &[Verb::Get, Verb::List],
    columns: COLUMNS,
    ..Kind::of::<k8s_openapi::api::core::v1::ComponentStatus>("componentstatus")
};

const COLUMNS: &[Column] = &[
    NAME,
    column("STATUS", |o, _| match healthy(o)["status"].as_str() {
        Some("True") => "Healthy".into(),
        Some("False") => "Unhealthy".into(),
        _ => "Unknown".into(),
    }),
    column("MESSAGE", |o, _| healthy(o)["message"].as_str().unwrap_or("").to_owned()),
    column("ERROR", |o, _| healthy(o)["error"].as_str().unwrap_or("").to_owned()),
];

fn healthy(status: &Object) -> &Value {
    let conditions = status.0["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().find(|condition| condition["type"] == "Healthy").unwrap_or(&Value::Null)
}

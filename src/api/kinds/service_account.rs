//! ServiceAccount.

use serde_json::Value;

use super::{Kind, Strategy};
use crate::api::columns::{AGE, NAME, column};
use crate::api::schema::of_type;

pub const KIND: Kind = Kind {
    kind: "ServiceAccount",
    group: "",
    version: "v1",
    plural: "serviceaccounts",
    singular: "serviceaccount",
    short_names: &["sa"],
    namespaced: true,
    categories: &[],
    subresources: &["token"],
    selectable: &[],
    schema: of_type::<k8s_openapi::api::core::v1::ServiceAccount>(),
    columns: &[
        NAME,
        column("SECRETS", |o, _| o.at("secrets").and_then(Value::as_array).map_or(0, Vec::len).to_string()),
        AGE,
    ],
    scale: None,
    strategy: Strategy::PLAIN,
};

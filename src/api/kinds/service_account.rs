//! ServiceAccount.

use serde_json::Value;

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column};

pub const KIND: Kind = Kind {
    short_names: &["sa"],
    subresources: &["token"],
    columns: &[
        NAME,
        column("SECRETS", |o, _| o.at("secrets").and_then(Value::as_array).map_or(0, Vec::len).to_string()),
        AGE,
    ],
    strategy: Strategy { returns_deleted: true, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::core::v1::ServiceAccount>("serviceaccount")
};

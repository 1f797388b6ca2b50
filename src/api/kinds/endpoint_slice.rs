//! EndpointSlice (discovery.k8s.io/v1).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Kind, Strategy};
use crate::api::Object;
use crate::api::columns::{AGE, NAME, column, text};
use crate::api::defaults::{each, fill};
use crate::api::schema::of_type;

pub const KIND: Kind = Kind {
    kind: "EndpointSlice",
    group: "discovery.k8s.io",
    version: "v1",
    plural: "endpointslices",
    singular: "endpointslice",
    short_names: &[],
    namespaced: true,
    categories: &[],
    subresources: &[],
    selectable: &[],
    schema: of_type::<k8s_openapi::api::discovery::v1::EndpointSlice>(),
    columns: &[
        NAME,
        column("ADDRESSTYPE", |o, _| text(o, "addressType")),
        column("PORTS", ports),
        column("ENDPOINTS", endpoints),
        AGE,
    ],
    scale: None,
    strategy: Strategy { default, has_generation: true, ..Strategy::PLAIN },
};

fn default(slice: &mut Object) {
    let Some(map) = slice.0.as_object_mut() else { return };
    for port in each(map, "ports") {
        port.entry("name").or_insert_with(|| "".into());
        fill(port, "protocol", "TCP");
    }
    // Upstream stores a list here, even an empty one.
    map.entry("endpoints").or_insert_with(|| json!([]));
}

/// At most three, then how many more there are.
fn shortened(mut all: Vec<String>) -> String {
    const SHOWN: usize = 3;
    let more = all.len().saturating_sub(SHOWN);
    all.truncate(SHOWN);
    match (all.is_empty(), more) {
        (true, _) => "<unset>".to_owned(),
        (_, 0) => all.join(","),
        _ => format!("{} + {more} more...", all.join(",")),
    }
}

fn ports(slice: &Object, _now: Timestamp) -> String {
    let list = slice.at("ports").and_then(Value::as_array).into_iter().flatten();
    shortened(list.map(|p| p["port"].as_i64().map_or_else(|| "*".to_owned(), |n| n.to_string())).collect())
}

fn endpoints(slice: &Object, _now: Timestamp) -> String {
    let list = slice.at("endpoints").and_then(Value::as_array).into_iter().flatten();
    let addresses = list.flat_map(|e| e["addresses"].as_array().into_iter().flatten());
    shortened(addresses.filter_map(|a| a.as_str().map(str::to_owned)).collect())
}

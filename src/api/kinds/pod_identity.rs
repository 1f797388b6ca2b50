//! PodIdentity (network.podwright.io/v1): who a Pod is to NetworkPolicies, derived from the Pod. Nodes read it.

use serde_json::Value;

use super::{Kind, Storage, View};
use crate::columns::{Column, NAME, column, text};
use crate::pod_identity::PodIdentity;
use crate::{Object, Verb};

pub const KIND: Kind = Kind {
    storage: Storage::View(View { source: || super::row("v1", "Pod"), show }),
    verbs: &[Verb::Get, Verb::List, Verb::Watch],
    selectable: &["nodeName"],
    columns: COLUMNS,
    ..Kind::of::<PodIdentity>("podidentity")
};

const COLUMNS: &[Column] = &[
    NAME,
    column("NODE", |o, _| text(o, "nodeName")),
    column("IPS", |o, _| listed(&o.0["podIPs"], |ip| ip.as_str().unwrap_or("").to_owned())),
    column("PORTS", |o, _| listed(&o.0["ports"], port)),
];

fn show(pod: &[u8]) -> Option<Object> {
    serde_json::to_value(PodIdentity::of_stored(pod)?).ok().map(Object)
}

/// `web:8080/TCP`
fn port(port: &Value) -> String {
    let word = |field: &str| port[field].as_str().unwrap_or("");
    format!("{}:{}/{}", word("name"), port["containerPort"], word("protocol"))
}

fn listed(list: &Value, word: impl Fn(&Value) -> String) -> String {
    list.as_array().into_iter().flatten().map(word).collect::<Vec<_>>().join(",")
}

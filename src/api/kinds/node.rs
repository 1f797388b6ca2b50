//! Node.

use serde_json::Value;

use super::{Kind, Strategy};
use crate::api::Object;
use crate::api::columns::{AGE, NAME, column, text, text_or, wide};
use crate::api::schema::of_type;

pub const KIND: Kind = Kind {
    kind: "Node",
    group: "",
    version: "v1",
    plural: "nodes",
    singular: "node",
    short_names: &["no"],
    namespaced: false,
    categories: &[],
    subresources: &["status"],
    selectable: &["spec.unschedulable"],
    schema: of_type::<k8s_openapi::api::core::v1::Node>(),
    columns: &[
        NAME,
        column("STATUS", |o, _| status(o)),
        column("ROLES", |o, _| roles(o)),
        AGE,
        column("VERSION", |o, _| text(o, "status.nodeInfo.kubeletVersion")),
        wide("INTERNAL-IP", |o, _| address(o, "InternalIP")),
        wide("EXTERNAL-IP", |o, _| address(o, "ExternalIP")),
        wide("OS-IMAGE", |o, _| text_or(o, "status.nodeInfo.osImage", "<unknown>")),
        wide("KERNEL-VERSION", |o, _| text_or(o, "status.nodeInfo.kernelVersion", "<unknown>")),
        wide("CONTAINER-RUNTIME", |o, _| text_or(o, "status.nodeInfo.containerRuntimeVersion", "<unknown>")),
    ],
    scale: None,
    strategy: Strategy { ..Strategy::PLAIN },
};

/// `Ready`, `NotReady,SchedulingDisabled`
fn status(node: &Object) -> String {
    let conditions = node.at("status.conditions").and_then(Value::as_array);
    let ready = conditions.into_iter().flatten().find(|c| c["type"] == "Ready");
    let first = match ready {
        Some(c) if c["status"] == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let disabled = node.0["spec"]["unschedulable"] == true;
    if disabled { format!("{first},SchedulingDisabled") } else { first.to_owned() }
}

fn roles(node: &Object) -> String {
    let mut roles: Vec<&str> = Vec::new();
    for (key, value) in node.labels().into_iter().flatten() {
        if let Some(role) = key.strip_prefix("node-role.kubernetes.io/") {
            roles.extend((!role.is_empty()).then_some(role));
        } else if key == "kubernetes.io/role" {
            roles.extend(value.as_str().filter(|v| !v.is_empty()));
        }
    }
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

fn address(node: &Object, of_type: &str) -> String {
    let addresses = node.at("status.addresses").and_then(Value::as_array);
    let found = addresses.into_iter().flatten().find(|a| a["type"] == of_type);
    found.and_then(|a| a["address"].as_str()).unwrap_or("<none>").to_owned()
}

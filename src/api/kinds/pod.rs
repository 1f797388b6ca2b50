//! Pod.

use serde_json::json;

use super::{Kind, Strategy};
use crate::api::columns;
use crate::api::schema::of_type;
use crate::api::{Object, defaults};

pub const KIND: Kind = Kind {
    kind: "Pod",
    group: "",
    version: "v1",
    plural: "pods",
    singular: "pod",
    short_names: &["po"],
    namespaced: true,
    categories: &["all"],
    subresources: &[
        "status",
        "binding",
        "eviction",
        "log",
        "exec",
        "attach",
        "portforward",
        "ephemeralcontainers",
        "resize",
    ],
    selectable: &[
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ],
    schema: of_type::<k8s_openapi::api::core::v1::Pod>(),
    columns: columns::pod::COLUMNS,
    scale: None,
    strategy: Strategy { default, prepare_create, default_grace, has_generation: true, ..Strategy::PLAIN },
};

fn default(pod: &mut Object) {
    let Some(map) = pod.0.as_object_mut() else { return };
    let spec = defaults::made(map, "spec");
    defaults::pod::spec(spec);
    defaults::pod::pod_only(spec);
}

fn prepare_create(pod: &mut Object) {
    let qos = crate::api::pod::qos_class(&pod.0["spec"]);
    pod.0["status"] = json!({"phase": "Pending", "qosClass": qos});
}

/// The Pod's own grace period; none is needed where nothing runs yet or any more.
fn default_grace(pod: &Object) -> Option<i64> {
    let ended = matches!(pod.0["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let unscheduled = pod.0["spec"]["nodeName"].as_str().unwrap_or("").is_empty();
    if ended || unscheduled {
        return Some(0);
    }
    Some(pod.0["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30))
}

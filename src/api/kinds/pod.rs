//! Pod.

use serde_json::json;

use super::{Kind, Strategy};
use crate::app_armor;
use crate::columns;
use crate::pod_references::MIRROR;
use crate::validation::{At, Errors, pod as rules};
use crate::{Cause, Object, defaults};

pub const KIND: Kind = Kind {
    short_names: &["po"],
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
    columns: columns::pod::COLUMNS,
    strategy: Strategy {
        default,
        prepare_create,
        prepare_status: rules::status::prepare,
        validate,
        validate_create,
        validate_update,
        validate_status,
        // Old kubelets would corrupt the owners.
        metadata_by_status: &["labels", "annotations", "finalizers"],
        default_grace,
        has_generation: true,
        returns_deleted: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::core::v1::Pod>("pod")
};

fn default(pod: &mut Object) {
    let Some(map) = pod.0.as_object_mut() else { return };
    let spec = defaults::made(map, "spec");
    defaults::pod::spec(spec);
    defaults::pod::pod_only(spec);
}

fn prepare_create(pod: &mut Object) {
    app_armor::follow_annotations(pod);
    let qos = crate::pod::qos_class(&pod.0["spec"]);
    pod.0["status"] = json!({"phase": "Pending", "qosClass": qos});
}

fn validate(pod: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    rules::spec(&At::root(&pod.0).get("spec"), true, &mut errs);
    errs.0
}

/// Ephemeral containers are added to a running Pod through a subresource.
fn validate_create(pod: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let ephemeral = At::root(&pod.0).get("spec").get("ephemeralContainers");
    if !ephemeral.is_empty() {
        errs.forbidden(&ephemeral.path, "cannot be set on create");
    }
    let root = At::root(&pod.0);
    rules::app_armor::annotations(&root.get("metadata").get("annotations"), &root.get("spec"), &mut errs);
    errs.0
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    rules::update::annotations(new, old, &mut errs);
    rules::update::spec(new, old, &mut errs);
    errs.0
}

fn validate_status(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    rules::status::check(new, old, &mut errs);
    errs.0
}

/// The Pod's own grace period; 0 if nothing runs yet or any more. A negative one counts as one second.
///
/// A mirror Pod only represents another: deleting it ends nothing, and no node needs to confirm. (Upstream waits for the node,
/// which never confirms if it is lost: namespaces would wait with it.)
fn default_grace(pod: &Object) -> Option<i64> {
    if pod.annotation(MIRROR).is_some() {
        return Some(0);
    }
    let ended = matches!(pod.0["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let unscheduled = pod.0["spec"]["nodeName"].as_str().unwrap_or("").is_empty();
    if ended || unscheduled {
        return Some(0);
    }
    match pod.0["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30) {
        ..0 => Some(1),
        seconds => Some(seconds),
    }
}

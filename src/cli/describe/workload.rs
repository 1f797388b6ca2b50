//! The descriptions of Deployments, ReplicaSets, StatefulSets and DaemonSets.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    containers::{self, Layout},
    pod::tolerations,
    related::Related,
    storage,
    text::{annotations, bracketed, controller, head, labels, list, or, text, time},
    volumes,
};
use crate::page::Page;
use podwright_api::{Object, columns};

/// The Pod template of an object.
pub fn pod_template(page: &mut Page, template: &Value) {
    let (metadata, spec) = (&template["metadata"], &template["spec"]);
    page.line(0, "Pod Template:");
    labels(page, 1, "Labels", &metadata["labels"]);
    if metadata["annotations"].as_object().is_some_and(|map| !map.is_empty()) {
        annotations(page, 1, &metadata["annotations"]);
    }
    page.optional(1, "Service Account", &text(&spec["serviceAccountName"]));
    if !list(&spec["initContainers"]).is_empty() {
        containers::section(page, "Init Containers", &spec["initContainers"], &Value::Null, Layout::Template);
    }
    containers::section(page, "Containers", &spec["containers"], &Value::Null, Layout::Template);
    volumes::section(page, &spec["volumes"], Layout::Template);
    page.optional(1, "Priority Class Name", &text(&spec["priorityClassName"]));
    labels(page, 1, "Node-Selectors", &spec["nodeSelector"]);
    tolerations(page, 1, &spec["tolerations"]);
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

pub fn deployment(page: &mut Page, deployment: &Object, related: &Related, _now: Timestamp) {
    let (metadata, spec, status) = (&deployment.0["metadata"], &deployment.0["spec"], &deployment.0["status"]);
    head(page, deployment);
    page.line(0, format!("CreationTimestamp:\t{}", time(&metadata["creationTimestamp"])));
    labels(page, 0, "Labels", &metadata["labels"]);
    annotations(page, 0, &metadata["annotations"]);
    page.line(0, format!("Selector:\t{}", columns::selector(deployment.at("spec.selector"))));
    page.line(
        0,
        format!(
            "Replicas:\t{} desired | {} updated | {} total | {} available | {} unavailable",
            number(&spec["replicas"]),
            number(&status["updatedReplicas"]),
            number(&status["replicas"]),
            number(&status["availableReplicas"]),
            number(&status["unavailableReplicas"])
        ),
    );
    page.line(0, format!("StrategyType:\t{}", text(&spec["strategy"]["type"])));
    page.line(0, format!("MinReadySeconds:\t{}", number(&spec["minReadySeconds"])));
    let rolling = &spec["strategy"]["rollingUpdate"];
    if rolling.is_object() {
        let (unavailable, surge) = (text(&rolling["maxUnavailable"]), text(&rolling["maxSurge"]));
        page.line(0, format!("RollingUpdateStrategy:\t{unavailable} max unavailable, {surge} max surge"));
    }
    pod_template(page, &spec["template"]);
    conditions(page, status);
    sets(page, deployment, &related.sets);
}

/// The ReplicaSets that have or want Pods, and the current one.
fn sets(page: &mut Page, deployment: &Object, sets: &[Object]) {
    let current = |set: &&Object| {
        const REVISION: &str = "deployment.kubernetes.io/revision";
        set.annotation(REVISION).is_some() && set.annotation(REVISION) == deployment.annotation(REVISION)
    };
    let shown = |set: &Object| {
        let (made, wanted) = (number(&set.0["status"]["replicas"]), number(&set.0["spec"]["replicas"]));
        format!("{} ({made}/{wanted} replicas created)", set.name())
    };
    let joined = |sets: Vec<String>| if sets.is_empty() { "<none>".to_owned() } else { sets.join(", ") };
    let old = sets.iter().filter(|set| !current(set)).map(shown).collect();
    let new = sets.iter().filter(current).map(shown).collect();
    page.line(0, format!("OldReplicaSets:\t{}", joined(old)));
    page.line(0, format!("NewReplicaSet:\t{}", joined(new)));
}

fn conditions(page: &mut Page, status: &Value) {
    if list(&status["conditions"]).is_empty() {
        return;
    }
    page.line(0, "Conditions:");
    page.line(1, "Type\tStatus\tReason");
    page.line(1, "----\t------\t------");
    for condition in list(&status["conditions"]) {
        let [kind, status, reason] = ["type", "status", "reason"].map(|field| text(&condition[field]));
        page.line(1, format!("{kind} \t{status}\t{reason}"));
    }
}

pub fn replica_set(page: &mut Page, set: &Object, related: &Related, _now: Timestamp) {
    let (metadata, spec, status) = (&set.0["metadata"], &set.0["spec"], &set.0["status"]);
    head(page, set);
    page.line(0, format!("Selector:\t{}", columns::selector(set.at("spec.selector"))));
    labels(page, 0, "Labels", &metadata["labels"]);
    annotations(page, 0, &metadata["annotations"]);
    controller(page, set);
    let (current, desired) = (number(&status["replicas"]), number(&spec["replicas"]));
    page.line(0, format!("Replicas:\t{current} current / {desired} desired"));
    pods_status(page, related);
    pod_template(page, &spec["template"]);
    conditions(page, status);
}

/// The number of an object's Pods in each phase.
fn pods_status(page: &mut Page, related: &Related) {
    let count =
        |phase: &str| related.pods.iter().filter(|pod| or(&pod.0["status"]["phase"], "Pending") == phase).count();
    page.line(
        0,
        format!(
            "Pods Status:\t{} Running / {} Waiting / {} Succeeded / {} Failed",
            count("Running"),
            count("Pending"),
            count("Succeeded"),
            count("Failed")
        ),
    );
}

pub fn stateful_set(page: &mut Page, set: &Object, related: &Related, _now: Timestamp) {
    let (metadata, spec, status) = (&set.0["metadata"], &set.0["spec"], &set.0["status"]);
    head(page, set);
    page.line(0, format!("CreationTimestamp:\t{}", time(&metadata["creationTimestamp"])));
    page.line(0, format!("Selector:\t{}", columns::selector(set.at("spec.selector"))));
    labels(page, 0, "Labels", &metadata["labels"]);
    annotations(page, 0, &metadata["annotations"]);
    let (desired, total) = (number(&spec["replicas"]), number(&status["replicas"]));
    page.line(0, format!("Replicas:\t{desired} desired | {total} total"));
    page.line(0, format!("Update Strategy:\t{}", text(&spec["updateStrategy"]["type"])));
    let rolling = &spec["updateStrategy"]["rollingUpdate"];
    page.optional(1, "Partition", &text(&rolling["partition"]));
    if !rolling["partition"].is_null() {
        page.optional(1, "MaxUnavailable", &text(&rolling["maxUnavailable"]));
    }
    pods_status(page, related);
    pod_template(page, &spec["template"]);
    claim_templates(page, list(&spec["volumeClaimTemplates"]));
}

fn claim_templates(page: &mut Page, templates: &[Value]) {
    if templates.is_empty() {
        return page.line(0, "Volume Claims:\t<none>");
    }
    page.line(0, "Volume Claims:");
    for template in templates {
        let (metadata, spec) = (&template["metadata"], &template["spec"]);
        page.line(1, format!("Name:\t{}", text(&metadata["name"])));
        page.line(1, format!("StorageClass:\t{}", storage::class(template)));
        labels(page, 1, "Labels", &metadata["labels"]);
        annotations(page, 1, &metadata["annotations"]);
        page.line(1, format!("Capacity:\t{}", or(&spec["resources"]["requests"]["storage"], "<default>")));
        page.line(1, format!("Access Modes:\t{}", bracketed(&spec["accessModes"])));
    }
}

pub fn daemon_set(page: &mut Page, set: &Object, related: &Related, _now: Timestamp) {
    let (metadata, status) = (&set.0["metadata"], &set.0["status"]);
    head(page, set);
    page.line(0, format!("Selector:\t{}", columns::selector(set.at("spec.selector"))));
    page.line(0, format!("Node-Selector:\t{}", columns::pairs(set.at("spec.template.spec.nodeSelector"))));
    labels(page, 0, "Labels", &metadata["labels"]);
    annotations(page, 0, &metadata["annotations"]);
    for (title, field) in [
        ("Desired Number of Nodes Scheduled", "desiredNumberScheduled"),
        ("Current Number of Nodes Scheduled", "currentNumberScheduled"),
        ("Number of Nodes Scheduled with Up-to-date Pods", "updatedNumberScheduled"),
        ("Number of Nodes Scheduled with Available Pods", "numberAvailable"),
        ("Number of Nodes Misscheduled", "numberMisscheduled"),
    ] {
        page.line(0, format!("{title}: {}", number(&status[field])));
    }
    pods_status(page, related);
    pod_template(page, &set.0["spec"]["template"]);
}

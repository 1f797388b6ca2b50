//! The descriptions of PersistentVolumes and their claims.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    related::Related,
    text::{annotations, bracketed, head, labels, lines, list, or, text, time},
    volumes,
};
use crate::page::Page;
use podwright_api::{Object, columns};

/// The class of a volume or claim: from the old annotation, or the field.
pub fn class(object: &Value) -> String {
    let old = &object["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"];
    or(old, &text(&object["spec"]["storageClassName"]))
}

fn phase(page: &mut Page, object: &Object, now: Timestamp) {
    let deleted = &object.0["metadata"]["deletionTimestamp"];
    match deleted.is_string() {
        true => page.line(0, format!("Status:\tTerminating (lasts {})", columns::age(deleted, now))),
        false => page.line(0, format!("Status:\t{}", text(&object.0["status"]["phase"]))),
    }
}

pub fn volume(page: &mut Page, volume: &Object, _related: &Related, now: Timestamp) {
    let (metadata, spec) = (&volume.0["metadata"], &volume.0["spec"]);
    head(page, volume);
    labels(page, 0, "Labels", &metadata["labels"]);
    annotations(page, 0, &metadata["annotations"]);
    page.line(0, format!("Finalizers:\t{}", bracketed(&metadata["finalizers"])));
    page.line(0, format!("StorageClass:\t{}", class(&volume.0)));
    phase(page, volume, now);
    let claim = &spec["claimRef"];
    let claim = claim.is_object().then(|| format!("{}/{}", text(&claim["namespace"]), text(&claim["name"])));
    page.line(0, format!("Claim:\t{}", claim.unwrap_or_default()));
    page.line(0, format!("Reclaim Policy:\t{}", text(&spec["persistentVolumeReclaimPolicy"])));
    page.line(0, format!("Access Modes:\t{}", columns::access_modes(volume.at("spec.accessModes"))));
    page.optional(0, "VolumeMode", &text(&spec["volumeMode"]));
    page.line(0, format!("Capacity:\t{}", or(&spec["capacity"]["storage"], "0")));
    node_affinity(page, &spec["nodeAffinity"]["required"]);
    page.line(0, format!("Message:\t{}", text(&volume.0["status"]["message"])));
    page.line(0, "Source:");
    let source = spec.as_object().into_iter().flatten().find(|(field, _)| volumes::SOURCES.contains(&field.as_str()));
    match source {
        Some((field, source)) => volumes::source(page, &json!({ field: source })),
        None => page.line(1, "<unknown>"),
    }
}

fn node_affinity(page: &mut Page, required: &Value) {
    if !required.is_object() {
        return page.line(0, "Node Affinity:\t<none>");
    }
    page.line(0, "Node Affinity:\t");
    page.line(1, "Required Terms:\t");
    for (at, term) in list(&required["nodeSelectorTerms"]).iter().enumerate() {
        let expression = |e: &Value| {
            let values: Vec<String> = list(&e["values"]).iter().map(text).collect();
            let values = if values.is_empty() { String::new() } else { format!(" [{}]", values.join(", ")) };
            format!("{} {}{values}", text(&e["key"]), text(&e["operator"]).to_lowercase())
        };
        lines(page, 2, &format!("Term {at}"), list(&term["matchExpressions"]).iter().map(expression).collect());
    }
}

pub fn claim(page: &mut Page, claim: &Object, related: &Related, now: Timestamp) {
    let (metadata, spec, status) = (&claim.0["metadata"], &claim.0["spec"], &claim.0["status"]);
    head(page, claim);
    page.line(0, format!("StorageClass:\t{}", class(&claim.0)));
    phase(page, claim, now);
    page.line(0, format!("Volume:\t{}", text(&spec["volumeName"])));
    labels(page, 0, "Labels", &metadata["labels"]);
    annotations(page, 0, &metadata["annotations"]);
    page.line(0, format!("Finalizers:\t{}", bracketed(&metadata["finalizers"])));
    let (capacity, modes) = match spec["volumeName"].is_string() {
        true => (or(&status["capacity"]["storage"], "0"), columns::access_modes(claim.at("status.accessModes"))),
        false => Default::default(),
    };
    page.line(0, format!("Capacity:\t{capacity}"));
    page.line(0, format!("Access Modes:\t{modes}"));
    page.optional(0, "VolumeMode", &text(&spec["volumeMode"]));
    if spec["dataSource"].is_object() {
        page.line(0, "DataSource:");
        for (title, field) in [("APIGroup", "apiGroup"), ("Kind", "kind"), ("Name", "name")] {
            page.optional(1, title, &text(&spec["dataSource"][field]));
        }
    }
    let mut users: Vec<String> = related.pods.iter().map(|pod| pod.name().to_owned()).collect();
    users.sort();
    lines(page, 0, "Used By", users);
    conditions(page, list(&status["conditions"]));
}

fn conditions(page: &mut Page, conditions: &[Value]) {
    if conditions.is_empty() {
        return;
    }
    page.line(0, "Conditions:");
    page.line(1, "Type\tStatus\tLastProbeTime\tLastTransitionTime\tReason\tMessage");
    page.line(1, "----\t------\t-----------------\t------------------\t------\t-------");
    for condition in conditions {
        let [kind, status, reason, message] = ["type", "status", "reason", "message"].map(|f| text(&condition[f]));
        let never = json!("0001-01-01T00:00:00Z");
        let [probed, changed] = ["lastProbeTime", "lastTransitionTime"].map(|field| match &condition[field] {
            Value::Null => time(&never),
            at => time(at),
        });
        page.line(1, format!("{kind} \t{status} \t{probed} \t{changed} \t{reason} \t{message}"));
    }
}

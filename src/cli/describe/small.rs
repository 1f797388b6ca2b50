//! The descriptions of ConfigMaps, Secrets, ServiceAccounts, Namespaces and PodDisruptionBudgets.

use base64::Engine;
use jiff::Timestamp;
use serde_json::Value;

use super::{
    related::Related,
    text::{annotations, head, head_with_labels, labels, lines, list, or, text},
};
use crate::page::Page;
use podwright_api::{Object, columns};

fn sorted(map: &Value) -> Vec<(&str, String)> {
    let mut all: Vec<_> = map.as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), text(v))).collect();
    all.sort();
    all
}

/// The decoded length of base64 text.
fn decoded(text: &str) -> usize {
    base64::engine::general_purpose::STANDARD.decode(text).map_or(0, |bytes| bytes.len())
}

pub fn config_map(page: &mut Page, map: &Object, _related: &Related, _now: Timestamp) {
    head_with_labels(page, map);
    page.line(0, "\nData\n====");
    for (key, value) in sorted(&map.0["data"]) {
        page.line(0, format!("{key}:\n----\n{value}\n"));
    }
    page.line(0, "\nBinaryData\n====");
    for (key, value) in sorted(&map.0["binaryData"]) {
        page.line(0, format!("{key}: {} bytes", decoded(&value)));
    }
    page.line(0, "");
}

pub fn secret(page: &mut Page, secret: &Object, _related: &Related, _now: Timestamp) {
    head_with_labels(page, secret);
    page.line(0, format!("\nType:\t{}\n\nData\n====", text(&secret.0["type"])));
    for (key, value) in sorted(&secret.0["data"]) {
        page.line(0, format!("{key}:\t{} bytes", decoded(&value)));
    }
}

pub fn service_account(page: &mut Page, account: &Object, _related: &Related, _now: Timestamp) {
    head_with_labels(page, account);
    let names = |field: &str| list(&account.0[field]).iter().map(|s| text(&s["name"])).collect();
    lines(page, 0, "Image pull secrets", names("imagePullSecrets"));
    lines(page, 0, "Mountable secrets", names("secrets"));
    // Tokens are requested, not kept in Secrets.
    lines(page, 0, "Tokens", Vec::new());
}

pub fn namespace(page: &mut Page, namespace: &Object, _related: &Related, _now: Timestamp) {
    head(page, namespace);
    labels(page, 0, "Labels", &namespace.0["metadata"]["labels"]);
    annotations(page, 0, &namespace.0["metadata"]["annotations"]);
    page.line(0, format!("Status:\t{}", text(&namespace.0["status"]["phase"])));
    page.line(0, "\nNo resource quota.\n\nNo LimitRange resource.");
}

pub fn disruption_budget(page: &mut Page, budget: &Object, _related: &Related, _now: Timestamp) {
    let (spec, status) = (&budget.0["spec"], &budget.0["status"]);
    head(page, budget);
    page.optional(0, "Min available", &text(&spec["minAvailable"]));
    page.optional(0, "Max unavailable", &text(&spec["maxUnavailable"]));
    let selector = spec["selector"].is_object().then(|| columns::selector(budget.at("spec.selector")));
    page.line(0, format!("Selector:\t{}", selector.as_deref().unwrap_or("<unset>")));
    page.line(0, "Status:");
    for (title, field) in [
        ("Allowed disruptions", "disruptionsAllowed"),
        ("Current", "currentHealthy"),
        ("Desired", "desiredHealthy"),
        ("Total", "expectedPods"),
    ] {
        page.line(2, format!("{title}:\t{}", or(&status[field], "0")));
    }
}

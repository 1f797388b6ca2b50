//! ValidatingWebhookConfiguration and MutatingWebhookConfiguration (admissionregistration.k8s.io/v1).

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{Kind, Strategy};
use crate::columns::{AGE, Column, NAME, column};
use crate::defaults::{each, fill, object};
use crate::validation::webhook::client_config;
use crate::validation::{At, Errors, admission as rules, names};
use crate::{Cause, Object, policy};

const COLUMNS: &[Column] =
    &[NAME, column("WEBHOOKS", |o, _| o.at("webhooks").and_then(Value::as_array).map_or(0, Vec::len).to_string()), AGE];

pub const VALIDATING: Kind = Kind {
    columns: COLUMNS,
    strategy: Strategy { default, validate, has_generation: true, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration>(
        "validatingwebhookconfiguration",
    )
};

pub const MUTATING: Kind = Kind {
    columns: COLUMNS,
    strategy: Strategy {
        default: default_mutating,
        validate: validate_mutating,
        has_generation: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration>(
        "mutatingwebhookconfiguration",
    )
};

fn default(configuration: &mut Object) {
    let Some(map) = configuration.0.as_object_mut() else { return };
    each(map, "webhooks").for_each(webhook);
}

fn default_mutating(configuration: &mut Object) {
    default(configuration);
    let Some(map) = configuration.0.as_object_mut() else { return };
    each(map, "webhooks").for_each(|webhook| fill(webhook, "reinvocationPolicy", "Never"));
}

fn webhook(webhook: &mut Map<String, Value>) {
    fill(webhook, "failurePolicy", "Fail");
    fill(webhook, "matchPolicy", "Equivalent");
    fill(webhook, "namespaceSelector", json!({}));
    fill(webhook, "objectSelector", json!({}));
    fill(webhook, "timeoutSeconds", 10);
    if let Some(service) = object(webhook, "clientConfig").and_then(|c| object(c, "service")) {
        fill(service, "port", 443);
    }
    each(webhook, "rules").for_each(|rule| fill(rule, "scope", "*"));
}

fn validate(configuration: &Object) -> Vec<Cause> {
    check(configuration, false)
}

fn validate_mutating(configuration: &Object) -> Vec<Cause> {
    check(configuration, true)
}

fn check(configuration: &Object, mutating: bool) -> Vec<Cause> {
    let mut errs = Errors::default();
    let mut seen: HashSet<&str> = HashSet::new();
    for webhook in At::root(&configuration.0).get("webhooks").items() {
        let name = webhook.get("name");
        if seen.contains(&name.str()) {
            errs.duplicate(&name.path, name.str());
        }
        seen.insert(name.str());
        check_webhook(&webhook, mutating, &mut errs);
    }
    errs.0
}

fn check_webhook(webhook: &At<'_>, mutating: bool, errs: &mut Errors) {
    let name = webhook.get("name");
    errs.invalid_each(&name.path, name.str(), names::fully_qualified(name.str()));
    for rule in webhook.get("rules").items() {
        rules::rule(&rule, errs);
    }
    rules::policies(webhook, errs);
    let effects = webhook.get("sideEffects");
    match effects.str() {
        "None" | "NoneOnDryRun" => {}
        "" => errs.required(&effects.path, "must specify one of None, NoneOnDryRun"),
        other => errs.not_supported(&effects.path, other, &["None", "NoneOnDryRun"]),
    }
    let timeout = webhook.get("timeoutSeconds");
    if let Some(n) = timeout.int().filter(|n| !(1..=30).contains(n)) {
        errs.invalid(&timeout.path, n, "the timeout value must be between 1 and 30 seconds");
    }
    client_config(&webhook.get("clientConfig"), errs);
    let versions = webhook.get("admissionReviewVersions");
    if versions.is_empty() {
        errs.required(&versions.path, "must specify one of v1, v1beta1");
    } else if !versions.items().any(|v| matches!(v.str(), "v1" | "v1beta1")) {
        errs.invalid_value(&versions.path, versions.value, "must include at least one of v1, v1beta1");
    }
    if mutating {
        errs.one_of(&webhook.get("reinvocationPolicy"), &["IfNeeded", "Never"]);
    }
    let conditions = webhook.get("matchConditions");
    rules::match_conditions(&conditions, errs);
    for (_, expression) in policy::conditions(conditions.value, &webhook.path, &policy::Known::default()) {
        rules::expression(&expression, errs);
    }
}

//! What the status of an admission policy reports about its expressions.

use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use podwright::api::policy::Custom;
use podwright::controllers::admission_policy::plan;
use serde_json::{Value, json};

use super::{lines, object};

fn policy(spec: Value, status: Value) -> Arc<ValidatingAdmissionPolicy> {
    object(json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "p", "uid": "u", "generation": 2, "resourceVersion": "1"}, "spec": spec, "status": status,
    }))
}

fn about(resources: &[&str], expression: &str) -> Value {
    json!({
        "matchConstraints": {"resourceRules": [
            {"apiGroups": ["", "apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": resources}]},
        "validations": [{"expression": "true"}, {"expression": expression}],
    })
}

#[test]
fn expressions_are_held_against_the_kinds_that_they_are_for() {
    for (resources, expression, told) in [
        (
            &["deployments"][..],
            "object.spec.replicas > 1 && object.spec.template.spec.containers.all(c, c.image != '')",
            None,
        ),
        (
            &["deployments"],
            "object.replicas > 1",
            Some("apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'replicas'"),
        ),
        (
            &["deployments"],
            "object.spec.replicas > 'a'",
            Some("apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_'"),
        ),
        (
            &["deployments"],
            "object.metadata.labels.x == 'a' && timestamp(object.metadata.creationTimestamp) < timestamp('2030-01-01T00:00:00Z')",
            None,
        ),
        (
            &["pods", "deployments"],
            "object.spec.replicas > 1",
            Some("v1, Kind=Pod: ERROR: <input>:1:12: undefined field 'replicas'"),
        ),
        (&["*"], "object.nothing", None),
    ] {
        let plan = plan(&policy(about(resources, expression), json!({})), &[]);
        assert_eq!(lines(&plan), ["patch validatingadmissionpolicies.admissionregistration.k8s.io/p/status"]);
        let body = plan.writes().next().unwrap().request.body.clone().unwrap();
        assert_eq!(body["status"]["observedGeneration"], 2);
        let warnings = body["status"]["typeChecking"]["expressionWarnings"].as_array().cloned().unwrap_or_default();
        match told {
            None => assert!(warnings.is_empty(), "{expression}: {warnings:?}"),
            Some(told) => {
                assert_eq!(warnings.len(), 1, "{expression}: {warnings:?}");
                assert_eq!(warnings[0]["fieldRef"], "spec.validations[1].expression");
                assert!(warnings[0]["warning"].as_str().unwrap().starts_with(told), "{warnings:?}");
            }
        }
    }
}

#[test]
fn what_is_said_already_is_not_written_again() {
    let spec = || about(&["deployments"], "object.replicas > 1");
    let first = plan(&policy(spec(), json!({})), &[]);
    let mut status = first.writes().next().unwrap().request.body.clone().unwrap()["status"].clone();
    assert!(plan(&policy(spec(), status.clone()), &[]).is_empty());
    status["observedGeneration"] = 1.into();
    assert!(!plan(&policy(spec(), status), &[]).is_empty());
}

#[test]
fn custom_kinds_are_held_against_their_schemas() {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"size": {"type": "integer"}, "parts": {"type": "array", "items": {"type": "string"}}}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }});
    let text = |text: &str| text.to_owned();
    let widget = |version: &str| Custom {
        group: text("example.com"),
        version: text(version),
        plural: text("widgets"),
        kind: text("Widget"),
        schema: schema.clone(),
    };
    let custom = [widget("v1"), widget("v2")];
    for (expression, told) in [
        ("object.spec.size > 1 && object.spec.parts.all(p, p != '') && object.metadata.labels.x == 'a'", None),
        ("object.free.whatever.it.is == 1", None),
        ("object.spec.length > 1", Some("undefined field 'length'")),
        ("object.spec.size > 'a'", Some("found no matching overload for '_>_'")),
        ("params.spec.size > 1", None),
        ("params.spec.length > 1", Some("undefined field 'length'")),
    ] {
        let spec = json!({
            "paramKind": {"apiVersion": "example.com/v2", "kind": "Widget"},
            "matchConstraints": {"resourceRules": [
                {"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["widgets"]}]},
            "validations": [{"expression": expression}],
        });
        let plan = plan(&policy(spec, json!({})), &custom);
        let body = plan.writes().next().unwrap().request.body.clone().unwrap();
        let warning = &body["status"]["typeChecking"]["expressionWarnings"][0]["warning"];
        match told {
            None => assert!(warning.is_null(), "{expression}: {warning}"),
            Some(told) => {
                let warning = warning.as_str().unwrap_or_else(|| panic!("{expression}: {body}"));
                assert!(
                    warning.starts_with("example.com/v1, Kind=Widget: ERROR") && warning.contains(told),
                    "{warning}"
                );
            }
        }
    }
}

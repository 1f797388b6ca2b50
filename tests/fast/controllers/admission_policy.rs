//! What the status of an admission policy says of its expressions.

use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
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
        let plan = plan(&policy(about(resources, expression), json!({})));
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
fn a_generation_is_checked_once() {
    let spec = || about(&["deployments"], "object.replicas > 1");
    assert!(plan(&policy(spec(), json!({"observedGeneration": 2}))).is_empty());
    assert!(!plan(&policy(spec(), json!({"observedGeneration": 1}))).is_empty());
}

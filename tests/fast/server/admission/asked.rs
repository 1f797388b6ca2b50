//! What webhooks are asked about beside built-in objects: custom resources, and reviews.

use podwright::api::{Options, Verb};
use serde_json::json;

use super::super::custom::{causes, definition, spec, widget};
use super::hook::{Hook, patch};
use super::{Api, object_of, request, within};

#[tokio::test]
async fn what_a_webhook_makes_of_a_custom_resource_is_pruned_defaulted_and_validated() {
    let api = Api::new().await;
    let part = json!({"type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer", "default": 3, "maximum": 9}}});
    let mut definition = definition(spec(json!({"parts": {"type": "array", "items": part}})));
    let mut older = definition["spec"]["versions"][0].clone();
    (older["name"], older["storage"]) = ("v1beta1".into(), false.into());
    definition["spec"]["versions"].as_array_mut().unwrap().push(older);
    api.define(definition).await;
    let hook = Hook::new(|request| {
        let size = request["object"]["metadata"]["labels"]["size"].as_str().map(|size| size.parse::<i64>().unwrap());
        let mut part = json!({"name": "more", "unknown": {"a": 1}});
        if let Some(size) = size {
            part["size"] = size.into();
        }
        patch(json!([{"op": "add", "path": "/spec/parts/-", "value": part}, {"op": "add", "path": "/spec/junk", "value": 1}]))
    })
    .await;
    let rules = json!([{"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["widgets"]}]);
    api.mutating("m", &[hook.entry("a.example.com", json!({"rules": rules}))]).await;
    let mut older = widget("b", json!({"parts": [{"name": "x"}]}));
    older["apiVersion"] = "example.com/v1beta1".into();
    let beta = "widgets.v1beta1.example.com";
    for (resource, object) in [("widgets", widget("a", json!({"parts": [{"name": "x"}]}))), (beta, older)] {
        let made = api.create(resource, object).await.unwrap();
        let wanted = json!({"parts": [{"name": "x", "size": 3}, {"name": "more", "size": 3}]});
        assert_eq!(made.0["spec"], wanted, "{resource}");
    }
    // On an update too; and what is returned is validated.
    let changed = api.patch("widgets", "a", json!({"metadata": {"labels": {"size": "9"}}})).await.unwrap();
    assert_eq!(changed.0["spec"]["parts"][2], json!({"name": "more", "size": 9}));
    let mut large = widget("c", json!({"parts": []}));
    large["metadata"]["labels"] = json!({"size": "10"});
    let refused = api.create("widgets", large).await.unwrap_err();
    assert_eq!(refused.code, 422);
    assert!(causes(&refused)[0].starts_with("spec.parts[0].size: Invalid value: 10"), "{refused:?}");
}

#[tokio::test]
async fn reviews_are_told_to_webhooks_and_not_to_policies() {
    let api = Api::new().await;
    let hook = Hook::new(|request| match request["object"]["spec"]["user"].as_str() {
        Some("ghost") => json!({"allowed": false, "status": {"message": "nobody asks about ghosts"}}),
        _ => json!({"allowed": true}),
    })
    .await;
    let rules = json!([{"apiGroups": ["authorization.k8s.io", "authentication.k8s.io"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}]);
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "none"},
        "spec": {"matchConstraints": {"resourceRules": rules}, "validations": [{"expression": "false"}]}});
    api.create("validatingadmissionpolicies", policy).await.unwrap();
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "none"},
        "spec": {"policyName": "none", "validationActions": ["Deny"]}});
    api.create("validatingadmissionpolicybindings", binding).await.unwrap();
    api.validating("v", &[hook.entry("a.example.com", json!({"rules": rules}))]).await;
    let about = |user: &str| {
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": {"verb": "get", "resource": "pods"}}})
    };
    let answer = api.create("subjectaccessreviews", about("jane")).await.unwrap();
    assert_eq!(answer.0["status"]["allowed"], false);
    let refused = api.create("subjectaccessreviews", about("ghost")).await.unwrap_err();
    assert!(refused.message.ends_with("denied the request: nobody asks about ghosts"), "{refused}");
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "x"}});
    api.create("tokenreviews", token).await.unwrap();
    let seen: Vec<_> =
        hook.requests().iter().map(|it| it["resource"]["resource"].as_str().unwrap().to_owned()).collect();
    assert_eq!(seen, ["subjectaccessreviews", "subjectaccessreviews", "tokenreviews"]);
    // In a Namespace that is not there, too.
    let mut local = about("jane");
    local["kind"] = "LocalSubjectAccessReview".into();
    (local["spec"]["resourceAttributes"]["namespace"], local["metadata"]["namespace"]) = ("no".into(), "no".into());
    let asked = request(Verb::Create, "localsubjectaccessreviews", "", Some(local), Options::default());
    let answer = object_of(api.0.handle(within("no", asked)).await.unwrap());
    assert_eq!(answer.0["status"]["allowed"], false);
}

//! Small things of single kinds that clients go by.

use podwright::api::request::PatchType;
use podwright::api::{Options, Request, Verb};
use serde_json::{Value, json};

use super::{Api, object_of, request, service};

#[tokio::test]
async fn a_cluster_ip_does_not_change_in_whatever_way_it_is_said() {
    let api = Api::new().await;
    let made = api.create("services", service("a", json!({"clusterIP": "10.96.7.7"}))).await.unwrap();
    let mut alone = made.clone();
    alone.0["spec"]["clusterIP"] = "10.96.7.8".into();
    let mut without_list = alone.clone();
    without_list.0["spec"].as_object_mut().unwrap().shift_remove("clusterIPs");
    let mut both = alone.clone();
    both.0["spec"]["clusterIPs"] = json!(["10.96.7.8"]);
    let refused =
        "Service \"a\" is invalid: spec.clusterIPs[0]: Invalid value: [\"10.96.7.8\"]: may not change once set";
    for object in [alone, without_list, both] {
        assert_eq!(api.update("services", &object).await.unwrap_err().message, refused, "{}", object.0["spec"]);
    }
    let patch = json!({"spec": {"clusterIP": "10.96.7.8"}});
    assert_eq!(api.patch("services", "a", patch).await.unwrap_err().message, refused);
    // Left out it stays, also where another object of the same manifest took it away before.
    for patch in [json!({"spec": {"clusterIP": null}}), json!({"spec": {"clusterIP": null, "clusterIPs": null}})] {
        let kept = api.patch("services", "a", patch).await.unwrap();
        assert_eq!(kept.0["spec"]["clusterIPs"], json!(["10.96.7.7"]));
    }
    // A headless Service may not become one with an address, nor the other way round.
    api.create("services", service("b", json!({"clusterIP": "None"}))).await.unwrap();
    for (name, ip) in [("b", "10.96.7.9"), ("a", "None")] {
        let refused = api.patch("services", name, json!({"spec": {"clusterIP": ip}})).await.unwrap_err();
        assert!(refused.message.ends_with("may not change once set"), "{}", refused.message);
    }
}

#[tokio::test]
async fn all_that_a_node_has_is_to_be_had_unless_it_says_otherwise() {
    let api = Api::new().await;
    let node = |status: Value| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": status});
    let made = api.create("nodes", node(json!({"capacity": {"cpu": "2", "a.b/c": "1"}}))).await.unwrap();
    assert_eq!(made.0["status"]["allocatable"], json!({"cpu": "2", "a.b/c": "1"}));
    let own = json!({"capacity": {"cpu": "3"}, "allocatable": {"cpu": "1"}});
    let told = object_of(api.sub(Verb::Update, "nodes", "n", "status", node(own)).await.unwrap());
    assert_eq!(told.0["status"]["allocatable"], json!({"cpu": "1"}));
    let less = node(json!({"capacity": {"cpu": "4"}}));
    let told = object_of(api.sub(Verb::Update, "nodes", "n", "status", less).await.unwrap());
    assert_eq!(told.0["status"]["allocatable"], json!({"cpu": "4"}));
}

#[tokio::test]
async fn an_event_without_a_source_is_found_by_who_reports_it() {
    let api = Api::new().await;
    let event = |name: &str, field: &str, value: Value| {
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, field: value, "reason": "R",
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}})
    };
    api.create("events", event("old", "source", json!({"component": "kubelet"}))).await.unwrap();
    api.create("events", event("new", "reportingComponent", json!("kubelet"))).await.unwrap();
    api.create("events", event("other", "reportingComponent", json!("scheduler"))).await.unwrap();
    let named = |selector: &str| Options { field_selector: Some(selector.to_owned()), ..Options::default() };
    let mut found: Vec<String> = Vec::new();
    for item in api.list("events", named("source=kubelet")).await.unwrap().items {
        found.push(serde_json::from_slice::<Value>(&item).unwrap()["metadata"]["name"].as_str().unwrap().to_owned());
    }
    found.sort();
    assert_eq!(found, ["new", "old"]);
    assert_eq!(api.list("events", named("reportingComponent=kubelet")).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn conditions_of_signing_requests_get_their_times_and_approvals_keep_annotations() {
    let api = Api::new().await;
    let key = rcgen::KeyPair::generate().unwrap();
    let pem =
        rcgen::CertificateParams::new(Vec::<String>::new()).unwrap().serialize_request(&key).unwrap().pem().unwrap();
    let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
    let csr = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "x"},
        "spec": {"request": encoded, "signerName": "example.com/s", "usages": ["client auth"]}});
    let kind = "certificatesigningrequests.certificates.k8s.io";
    api.create(kind, csr).await.unwrap();
    let patch = async |sub: &str, body: Value| {
        let options = Options { patch_type: Some(PatchType::Merge), ..Options::default() };
        let asked = request(Verb::Patch, kind, "x", Some(body), options);
        api.0.handle(Request { subresource: Some(sub.to_owned()), ..asked }).await.map(object_of)
    };
    let approve = json!({"metadata": {"annotations": {"who": "me"}, "labels": {"a": "b"}},
        "spec": {"signerName": "other.com/s"}, "status": {"conditions": [{"type": "Approved", "reason": "R"}]}});
    let approved = patch("approval", approve).await.unwrap();
    let condition = approved.0["status"]["conditions"][0].clone();
    assert_eq!((approved.annotation("who"), approved.label("a")), (Some("me"), Some("b")));
    assert_eq!(approved.0["spec"]["signerName"], "example.com/s", "of the rest nothing changes");
    assert!(condition["lastUpdateTime"].is_string() && condition["lastTransitionTime"].is_string(), "{condition}");
    assert_eq!(condition["status"], "True");
    // By its status nobody rewrites why it was approved.
    let failed =
        json!({"status": {"conditions": [{"type": "Approved", "reason": "X"}, {"type": "Failed", "reason": "F"}]}});
    let told = patch("status", failed).await.unwrap();
    assert_eq!(told.0["status"]["conditions"][0], condition);
    let other = &told.0["status"]["conditions"][1];
    assert!(other["lastUpdateTime"].is_string() && other["lastTransitionTime"].is_string(), "{other}");
    let since = other["lastTransitionTime"].clone();
    let again = json!({"status": {"conditions": [{"type": "Approved"}, {"type": "Failed", "reason": "G"}]}});
    let told = patch("status", again).await.unwrap();
    assert_eq!(told.0["status"]["conditions"][1]["lastTransitionTime"], since);
}

/// A finalizer's removal is an update like any other, also the one by which the object goes.
#[tokio::test]
async fn policies_have_their_say_of_the_last_finalizer() {
    let api = Api::new().await;
    let group = "admissionregistration.k8s.io/v1";
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["configmaps"]});
    let policy = json!({"apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "keep"},
        "spec": {"matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "has(object.metadata.finalizers)", "message": "keep it"}]}});
    let binding = json!({"apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "keep"},
        "spec": {"policyName": "keep", "validationActions": ["Deny"]}});
    api.create("validatingadmissionpolicies", policy).await.unwrap();
    api.create("validatingadmissionpolicybindings", binding).await.unwrap();
    let mut held = super::config_map("x");
    held["metadata"]["finalizers"] = json!(["a.b/c"]);
    api.create("configmaps", held).await.unwrap();
    api.delete("configmaps", "x", Options::default()).await.unwrap();
    let refused = api.patch("configmaps", "x", json!({"metadata": {"finalizers": null}})).await.unwrap_err();
    assert!(refused.message.contains("keep it"), "{}", refused.message);
    assert!(api.get("configmaps", "x").await.is_ok());
}

/// Upstream's `AuthorizedForAdmin`.
#[tokio::test]
async fn devices_of_others_are_had_where_an_administrator_lets_them_be() {
    let api = Api::new().await;
    let spec = json!({"devices": {"requests": [
        {"name": "r", "exactly": {"deviceClassName": "x", "adminAccess": true}}
    ]}});
    let claim = |name: &str, spec: &Value| {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec})
    };
    let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": spec}});
    let (claims, templates) = ("resourceclaims.resource.k8s.io", "resourceclaimtemplates.resource.k8s.io");
    for (resource, object) in [(claims, claim("c", &spec)), (templates, template.clone())] {
        let refused = api.create(resource, object).await.unwrap_err();
        let why = "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label";
        assert!(refused.code == 422 && refused.message.contains(why), "{refused:?}");
    }
    let mut plain = spec.clone();
    plain["devices"]["requests"][0]["exactly"]["adminAccess"] = false.into();
    api.create(claims, claim("plain", &plain)).await.unwrap();
    let labels = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
    api.patch("namespaces", "default", labels).await.unwrap();
    for (resource, object) in [(claims, claim("c", &spec)), (templates, template)] {
        api.create(resource, object).await.unwrap();
    }
}

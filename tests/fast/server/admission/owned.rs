//! What webhooks may not have: an object's place, its identity and its life are the server's, whatever a patch says.

use base64::Engine;
use podwright::api::{Object, Options, Status, Verb};
use serde_json::{Value, json};

use super::super::config_map;
use super::hook::{Hook, patch};
use super::{Api, object_of, pod, request};

/// Who manages nothing here.
fn managers() -> Value {
    json!([{"manager": "forged", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}])
}

fn add(path: &str, value: Value) -> Value {
    json!({"op": "add", "path": path, "value": value})
}

/// What becomes of an object that a webhook patches while it is created.
async fn created(resource: &str, object: Value, operations: Value) -> (Api, Result<Object, Status>) {
    let api = Api::new().await;
    let hook = Hook::new(move |_| patch(operations.clone())).await;
    let rules = json!({"rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE"],
        "resources": [resource.split_once('.').map_or(resource, |(plural, _)| plural)]}]});
    api.mutating("m", &[hook.entry("a.example.com", rules)]).await;
    let made = api.create(resource, object).await;
    assert_eq!(hook.requests().len(), 1, "{resource}: it has been asked");
    (api, made)
}

#[tokio::test]
async fn another_namespace_is_refused() {
    for (resource, object) in [("configmaps", config_map("x")), ("pods", pod("x"))] {
        let (api, made) = created(resource, object, json!([add("/metadata/namespace", "kube-system".into())])).await;
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        assert_eq!(made.map_err(|refused| (refused.code, refused.message)), Err((400, why.to_owned())), "{resource}");
        assert!(api.get(resource, "x").await.is_err());
    }
    let (_, made) =
        created("configmaps", config_map("x"), json!([{"op": "remove", "path": "/metadata/namespace"}])).await;
    assert_eq!(made.unwrap().namespace(), Some("default"), "none is the request's");
}

#[tokio::test]
async fn what_the_system_owns_is_as_it_would_be_without() {
    let forged = [
        ("uid", json!("0f8fad5b-d9cb-469f-a165-70867728950e")),
        ("uid", json!("")),
        ("creationTimestamp", json!("2001-01-01T00:00:00Z")),
        ("deletionTimestamp", json!("2001-01-01T00:00:00Z")),
        ("deletionGracePeriodSeconds", json!(5)),
        ("resourceVersion", json!("7")),
        ("selfLink", json!("/api/v1/nodes/x")),
        ("managedFields", managers()),
    ];
    for (field, value) in forged {
        let (_, made) =
            created("configmaps", config_map("x"), json!([add(&format!("/metadata/{field}"), value.clone())])).await;
        let made = made.unwrap_or_else(|refused| panic!("{field}: {refused}"));
        assert_ne!(made.0["metadata"][field], value, "{field}");
        assert_eq!(made.uid().len(), 36, "{field}");
        assert!(!made.is_terminating(), "{field}");
    }
    let (_, made) = created("configmaps", config_map("x"), json!([add("/metadata/generation", json!(9))])).await;
    assert!(made.unwrap().0["metadata"]["generation"].is_null(), "ConfigMaps have none");
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": {
        "selector": {"matchLabels": {"app": "x"}}, "template": {"metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]}}}});
    let operations = json!([add("/metadata/generation", json!(9)), add("/status", json!({"replicas": 4}))]);
    let made = created("deployments.apps", deployment, operations).await.1.unwrap();
    assert_eq!((made.generation(), &made.0["status"]["replicas"]), (1, &Value::Null));
}

#[tokio::test]
async fn another_name_is_another_object_and_another_kind_is_none() {
    let (api, made) = created("configmaps", config_map("x"), json!([add("/metadata/name", "y".into())])).await;
    assert_eq!(made.unwrap().name(), "y");
    assert!(api.get("configmaps", "y").await.is_ok() && api.get("configmaps", "x").await.is_err());
    let (_, made) = created("configmaps", config_map("x"), json!([add("/metadata/name", "../secrets/y".into())])).await;
    assert!(made.unwrap_err().message.contains("invalid resource name"));
    for (path, value) in [("/kind", "Secret"), ("/apiVersion", "v2")] {
        let (api, made) = created("configmaps", config_map("x"), json!([add(path, value.into())])).await;
        made.unwrap_err();
        assert!(api.get("secrets", "x").await.is_err(), "{path}");
    }
}

#[tokio::test]
async fn the_last_word_of_the_built_in_plugins_comes_after_them() {
    for (path, value, why) in [
        ("/spec/serviceAccountName", json!("nobody"), "serviceaccount \"nobody\" not found"),
        ("/spec/priority", json!(2_000_000_000), "the integer value of priority"),
        ("/spec/overhead", json!({"cpu": "1"}), "Pod Overhead set without corresponding RuntimeClass"),
    ] {
        let (_, made) = created("pods", pod("x"), json!([add(path, value)])).await;
        let refused = made.unwrap_err();
        assert!(refused.message.contains(why), "{path}: {refused}");
    }
    // One that is asked in the second round is behind all that mutate.
    for (path, value, why) in [
        ("/spec/serviceAccountName", json!("nobody"), "serviceaccount \"nobody\" not found"),
        ("/spec/priority", json!(2_000_000_000), "the integer value of priority"),
    ] {
        let api = Api::new().await;
        let late = Hook::new(move |asked| match asked["object"]["metadata"]["labels"]["second"].is_string() {
            true => patch(json!([add(path, value.clone())])),
            false => json!({"allowed": true}),
        })
        .await;
        let second = Hook::new(|_| patch(json!([add("/metadata/labels/second", "yes".into())]))).await;
        let again = json!({"reinvocationPolicy": "IfNeeded"});
        api.mutating("m", &[late.entry("a.example.com", again), second.entry("b.example.com", json!({}))]).await;
        let refused = api.create("pods", pod("x")).await.unwrap_err();
        assert!(refused.message.contains(why), "{path}: {refused}");
    }
}

/// Of classes and accounts that there are: a Pod is held to what they say, and not to what the last webhook says.
#[tokio::test]
async fn a_pod_is_held_to_its_class_and_its_account_after_them() {
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "vm"}, "handler": "vm",
        "overhead": {"podFixed": {"cpu": "250m"}}});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "held",
        "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}});
    let secret = json!({"name": "stolen", "secret": {"secretName": "others"}});
    for (operation, why) in [
        (json!({"op": "replace", "path": "/spec/overhead", "value": {"cpu": "1m"}}), "Pod's Overhead doesn't match"),
        (json!({"op": "remove", "path": "/spec/overhead"}), "Pod's Overhead doesn't match"),
        (add("/spec/volumes/-", secret), "does not reference that secret"),
    ] {
        let api = Api::new().await;
        api.create("runtimeclasses", class.clone()).await.unwrap();
        api.create("serviceaccounts", account.clone()).await.unwrap();
        let mut it = pod("x");
        it["spec"]["runtimeClassName"] = "vm".into();
        it["spec"]["serviceAccountName"] = "held".into();
        let late = Hook::new(move |asked| match asked["object"]["metadata"]["labels"]["second"].is_string() {
            true => patch(json!([operation])),
            false => json!({"allowed": true}),
        })
        .await;
        let second = Hook::new(|_| patch(json!([add("/metadata/labels/second", "yes".into())]))).await;
        let again = json!({"reinvocationPolicy": "IfNeeded"});
        api.mutating("m", &[late.entry("a.example.com", again), second.entry("b.example.com", json!({}))]).await;
        let refused = api.create("pods", it).await.unwrap_err();
        assert!(late.requests().len() == 2 && refused.message.contains(why), "{why}: {refused}");
    }
}

/// A request for a certificate, as its object holds it.
fn csr() -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    base64::engine::general_purpose::STANDARD.encode(pem)
}

#[tokio::test]
async fn a_subresource_is_the_same_part_after_them() {
    let api = Api::new().await;
    let hook = Hook::new(|asked| {
        let path =
            if asked["resource"]["resource"] == "namespaces" { "/metadata/labels/hooked" } else { "/spec/username" };
        patch(json!([add(path, "system:admin".into())]))
    })
    .await;
    let rules = json!({"rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["UPDATE"],
        "resources": ["certificatesigningrequests/approval", "namespaces/finalize"]}]});
    api.mutating("m", &[hook.entry("a.example.com", rules)]).await;

    let csr = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "x"},
        "spec": {"request": csr(), "signerName": "example.com/s", "usages": ["client auth"]}});
    let csr = api.create("certificatesigningrequests", csr).await.unwrap();
    assert_eq!(csr.0["spec"]["username"], "test");
    let conditions = json!([{"type": "Approved", "status": "True", "reason": "r", "message": "m"}]);
    let mut approved = csr.0.clone();
    approved["status"]["conditions"] = conditions;
    let done = api.sub(Verb::Update, "certificatesigningrequests", "x", "approval", approved).await;
    let done = done.map(object_of);
    assert_eq!(hook.requests().len(), 1);
    assert_eq!(api.get("certificatesigningrequests", "x").await.unwrap().0["spec"], csr.0["spec"], "{done:?}");

    api.create("namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}}))
        .await
        .unwrap();
    let lab = api.get("namespaces", "lab").await.unwrap();
    api.sub(Verb::Update, "namespaces", "lab", "finalize", lab.0.clone()).await.unwrap();
    assert_eq!(hook.requests().len(), 2);
    assert_eq!(api.get("namespaces", "lab").await.unwrap().label("hooked"), None);
}

/// An update is the writer's and the webhook's together; neither of them moves the object or ends it.
#[tokio::test]
async fn an_update_keeps_what_the_system_owns() {
    let api = Api::new().await;
    let before = api.create("configmaps", config_map("x")).await.unwrap();
    let hook = Hook::new(|_| {
        let forged = ["creationTimestamp", "deletionTimestamp"];
        let mut all: Vec<Value> =
            forged.iter().map(|field| add(&format!("/metadata/{field}"), "2001-01-01T00:00:00Z".into())).collect();
        all.push(add("/metadata/generation", json!(9)));
        all.push(add("/metadata/deletionGracePeriodSeconds", json!(5)));
        all.push(add("/metadata/managedFields", managers()));
        patch(all.into())
    })
    .await;
    let rules = json!({"rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"],
        "resources": ["configmaps"]}]});
    api.mutating("m", &[hook.entry("a.example.com", rules)]).await;
    let after = api.patch("configmaps", "x", json!({"data": {"b": "2"}})).await.unwrap();
    assert_eq!(hook.requests().len(), 1);
    for field in
        ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "namespace"]
    {
        assert_eq!(after.0["metadata"][field], before.0["metadata"][field], "{field}");
    }
    assert!(!after.0["metadata"]["managedFields"].to_string().contains("forged"));
    for (field, value) in [("uid", "0f8fad5b-d9cb-469f-a165-70867728950e"), ("namespace", "kube-system")] {
        let api = Api::new().await;
        api.create("configmaps", config_map("x")).await.unwrap();
        let path = format!("/metadata/{field}");
        let hook = Hook::new(move |_| patch(json!([add(&path, value.into())]))).await;
        let rules = json!({"rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"],
            "resources": ["configmaps"]}]});
        api.mutating("m", &[hook.entry("a.example.com", rules)]).await;
        let change = request(Verb::Update, "configmaps", "x", Some(config_map("x")), Options::default());
        let mut change = change;
        change.body.as_mut().unwrap()["data"]["b"] = "2".into();
        let refused = api.0.handle(change).await.map(object_of).unwrap_err();
        assert_eq!(refused.code, 422, "{field}: {refused}");
    }
}

//! What subresources take: decoded as what it should be, whatever is sent.

use podwright::api::{Options, Request, User, Verb};
use serde_json::{Value, json};

use super::{Api, object_of, pod, request};

#[tokio::test]
async fn what_is_no_such_order_is_refused() {
    let api = Api::new().await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "x"}});
    api.create("serviceaccounts", account).await.unwrap();
    api.create("pods", pod("x")).await.unwrap();
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod("p")["spec"]});
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "x"},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    api.create("replicasets", set).await.unwrap();
    let odd = [
        json!([]),
        json!(1),
        json!("x"),
        json!({"metadata": "x"}),
        json!({"kind": "Thing"}),
        json!({"metadata": {"name": []}}),
    ];
    let own: &[(Verb, &str, &str, &[&str])] = &[
        (Verb::Create, "serviceaccounts", "token", &["spec", "status"]),
        (Verb::Create, "pods", "binding", &["target"]),
        (Verb::Create, "pods", "eviction", &["deleteOptions"]),
        (Verb::Update, "replicasets", "scale", &["spec", "status"]),
        (Verb::Update, "pods", "status", &["status", "spec"]),
        (Verb::Update, "pods", "resize", &["spec"]),
        (Verb::Update, "pods", "ephemeralcontainers", &["spec"]),
        (Verb::Update, "namespaces", "finalize", &["spec"]),
        (Verb::Update, "certificatesigningrequests", "approval", &["status", "spec"]),
    ];
    for (verb, resource, sub, fields) in own {
        let bent = fields.iter().flat_map(|field| [json!({*field: "x"}), json!({*field: []}), json!({*field: 1})]);
        for body in odd.iter().cloned().chain(bent) {
            let asked = api.sub(*verb, resource, "x", sub, body.clone()).await;
            let refused = asked.err().unwrap_or_else(|| panic!("{resource}/{sub} takes {body}"));
            assert!(
                matches!(refused.code, 400 | 404 | 422),
                "{resource}/{sub} {body}: {} {}",
                refused.code,
                refused.message
            );
        }
    }
    let patches = [json!({"spec": "x"}), json!({"spec": {"replicas": "x"}}), json!({"metadata": []})];
    for patch in patches {
        let refused = api.sub(Verb::Patch, "replicasets", "x", "scale", patch.clone()).await.unwrap_err();
        assert!(matches!(refused.code, 400 | 422), "{patch}: {}", refused.message);
    }
    // What is one is taken, also the shortest.
    for body in [json!({}), json!({"spec": {}}), json!({"spec": {"audiences": ["a"], "expirationSeconds": 600}})] {
        let token = object_of(api.sub(Verb::Create, "serviceaccounts", "x", "token", body).await.unwrap());
        assert_eq!((token.kind(), token.api_version()), ("TokenRequest", "authentication.k8s.io/v1"));
        assert!(token.0["status"]["token"].as_str().unwrap().len() > 100);
    }
    let unknown = api.sub(Verb::Create, "serviceaccounts", "x", "token", json!({"spec": {"audience": "a"}})).await;
    assert!(unknown.unwrap_err().message.contains("unknown field \"spec.audience\""));
}

/// A name in a field selector stands for itself only where the list is selected by it.
#[tokio::test]
async fn a_name_within_another_fields_value_names_nothing() {
    let api = Api::new().await;
    let secret = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
    for name in ["mine", "yours"] {
        api.create("secrets", secret(name)).await.unwrap();
    }
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"], "verbs": ["list", "watch"]}]});
    api.create("roles", role).await.unwrap();
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b"},
        "roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "ann"}]});
    api.create("rolebindings", binding).await.unwrap();
    for (selector, may) in [
        ("metadata.name=mine", true),
        ("metadata.name==mine", true),
        ("type!=x,metadata.name=mine", true),
        ("metadata.name=yours", false),
        ("metadata.name!=mine", false),
        (r"type!=x\,metadata.name=mine", false),
        (r"type!=x\,metadata.name=mine,type!=y", false),
        ("", false),
    ] {
        let options = Options { field_selector: Some(selector.into()), ..Options::default() };
        let user = User::new("ann", ["system:authenticated"]);
        let asked = api.0.handle(Request { user, ..request(Verb::List, "secrets", "", None, options) }).await;
        assert_eq!(asked.map_err(|why| why.code).err(), (!may).then_some(403), "{selector}");
    }
}

/// Whose uid an object names as its owner's is for its writer to say.
#[tokio::test]
async fn a_trace_tells_nothing_of_another_namespace() {
    let api = Api::new().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "theirs"}});
    api.create("namespaces", namespace).await.unwrap();
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod("p")["spec"]});
    let set = |namespace: &str| {
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "s", "namespace": namespace},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}})
    };
    for (namespace, told) in [("default", 2), ("theirs", 1)] {
        let owner = api.create("replicasets", set(namespace)).await.unwrap();
        let mut made = pod(&format!("of-{namespace}"));
        made["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "s",
            "uid": owner.uid(), "controller": true}]);
        let made = api.create("pods", made).await.unwrap();
        let trace = object_of(api.sub(Verb::Get, "pods", made.name(), "trace", Value::Null).await.unwrap());
        assert_eq!(trace.0["items"].as_array().unwrap().len(), told, "{namespace}: {}", trace.0["items"]);
    }
}

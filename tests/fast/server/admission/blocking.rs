//! Whose deletion an object of a namespace may hold up.

use podwright::api::{Options, Request, Status, User, Verb};
use serde_json::{Value, json};

use super::{Api, request};

/// A tenant, of whom an administrator has let the namespace `default` be edited.
async fn write(api: &Api, verb: Verb, map: Value) -> Result<(), Status> {
    let user = User::new("ann", ["system:authenticated"]);
    let name = map["metadata"]["name"].as_str().unwrap().to_owned();
    let name = if verb == Verb::Create { "" } else { &name };
    let asked = request(verb, "configmaps", name, Some(map), Options::default());
    api.0.handle(Request { user, ..asked }).await.map(drop)
}

#[tokio::test]
async fn a_tenant_holds_up_no_deletion_of_what_is_the_clusters() {
    let api = Api::new().await;
    let rbac = "rbac.authorization.k8s.io";
    let bound = |kind: &str, role: &str| {
        json!({"apiVersion": format!("{rbac}/v1"), "kind": kind, "metadata": {"name": role},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": "ann"}]})
    };
    api.create(&format!("rolebindings.{rbac}"), bound("RoleBinding", "admin")).await.unwrap();
    let class =
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "c"}, "value": 5});
    let class = api.create("priorityclasses.scheduling.k8s.io", class).await.unwrap();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    let secret = api.create("secrets", secret).await.unwrap();
    let owned = |name: &str, api_version: &str, kind: &str, of: (&str, &str), blocks: bool| {
        let owner =
            json!([{"apiVersion": api_version, "kind": kind, "name": of.0, "uid": of.1, "blockOwnerDeletion": blocks}]);
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owner}})
    };
    let (of_class, of_secret) = (("c", class.uid()), ("s", secret.uid()));
    let by_class = |name: &str, blocks| owned(name, "scheduling.k8s.io/v1", "PriorityClass", of_class, blocks);
    let refused = write(&api, Verb::Create, by_class("a", true)).await.unwrap_err();
    assert_eq!(refused.code, 403);
    assert!(refused.message.contains("cannot set blockOwnerDeletion"), "{}", refused.message);
    write(&api, Verb::Create, by_class("a", false)).await.unwrap();
    assert_eq!(write(&api, Verb::Update, by_class("a", true)).await.unwrap_err().code, 403);
    for (version, kind) in [
        ("scheduling.k8s.io/v1", "NoSuchClass"),
        ("nobody.example.com/v1", "PriorityClass"),
        ("scheduling.k8s.io/v9", "PriorityClass"),
    ] {
        let unknown = |blocks| owned("a", version, kind, of_class, blocks);
        let refused = write(&api, Verb::Update, unknown(true)).await.unwrap_err();
        let why = format!("cannot find RESTMapping for APIVersion {version} Kind {kind}");
        assert!(refused.code == 403 && refused.message.contains(&why), "{refused}");
        write(&api, Verb::Update, unknown(false)).await.unwrap();
    }
    // Nor does what names another kind first.
    write(&api, Verb::Create, owned("f", "v1", "Secret", of_class, true)).await.unwrap();
    assert_eq!(write(&api, Verb::Update, by_class("f", true)).await.unwrap_err().code, 403);
    // An owner of the namespace is his, and what an administrator has said stays.
    write(&api, Verb::Create, owned("b", "v1", "Secret", of_secret, true)).await.unwrap();
    api.create("configmaps", by_class("d", true)).await.unwrap();
    write(&api, Verb::Update, by_class("d", true)).await.unwrap();
    let role = json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": "holders"},
        "rules": [{"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses/finalizers"], "verbs": ["update"]}]});
    api.create(&format!("clusterroles.{rbac}"), role).await.unwrap();
    api.create(&format!("clusterrolebindings.{rbac}"), bound("ClusterRoleBinding", "holders")).await.unwrap();
    write(&api, Verb::Create, by_class("e", true)).await.unwrap();
}

/// Nor does who may make objects that are in no namespace, such as requests for certificates.
#[tokio::test]
async fn nor_does_what_is_in_no_namespace_itself() {
    let api = Api::new().await;
    let rbac = "rbac.authorization.k8s.io";
    let rules = json!([{"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"], "verbs": ["create"]}]);
    let role = json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": "makers"}, "rules": rules});
    api.create(&format!("clusterroles.{rbac}"), role).await.unwrap();
    let bound = json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "makers"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "makers"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": "ann"}]});
    api.create(&format!("clusterrolebindings.{rbac}"), bound).await.unwrap();
    let class = |name: &str, owners: Value| {
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 5,
            "metadata": {"name": name, "ownerReferences": owners}})
    };
    let owner = api.create("priorityclasses.scheduling.k8s.io", class("c", json!([]))).await.unwrap();
    let owned = |blocks: bool| json!([{"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "name": "c", "uid": owner.uid(), "blockOwnerDeletion": blocks}]);
    let ask = async |name: &str, blocks: bool| {
        let user = User::new("ann", ["system:authenticated"]);
        let body = Some(class(name, owned(blocks)));
        let asked = request(Verb::Create, "priorityclasses.scheduling.k8s.io", "", body, Options::default());
        api.0.handle(Request { user, namespace: None, ..asked }).await.map(drop)
    };
    let refused = ask("d", true).await.unwrap_err();
    assert!(refused.code == 403 && refused.message.contains("cannot set blockOwnerDeletion"), "{refused}");
    ask("d", false).await.unwrap();
}

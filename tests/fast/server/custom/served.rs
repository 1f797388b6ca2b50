//! How custom kinds are served: verbs, versions, subresources, selectors, watches, rights.

use podwright::api::request::{EventKind, PatchType};
use podwright::api::{Options, Request, User, Verb};
use serde_json::{Value, json};

use super::{DEFINITIONS, causes, definition, spec, widget};
use crate::server::{Api, object_of, request};

fn two_versions() -> Value {
    let mut it = definition(spec(json!({"replicas": {"type": "integer"}, "a": {"type": "string"}})));
    let mut beta = it["spec"]["versions"][0].clone();
    beta["name"] = "v1beta1".into();
    beta["storage"] = false.into();
    beta["deprecated"] = true.into();
    beta["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["old"] = json!({"type": "string"});
    it["spec"]["versions"].as_array_mut().unwrap().push(beta);
    it
}

#[tokio::test]
async fn every_verb_works_on_custom_resources() {
    let api = Api::new().await;
    api.define(definition(spec(json!({"a": {"type": "string"}})))).await;
    let mut watch = api.watch("widgets", Options::default()).await.unwrap();
    for name in ["one", "two", "three"] {
        api.create("wd", widget(name, json!({"a": name}))).await.unwrap();
    }
    assert_eq!(api.list("Widget", Options::default()).await.unwrap().kind, "WidgetList");
    let page = api.list("widgets.example.com", Options { limit: Some(2), ..Options::default() }).await.unwrap();
    assert_eq!((page.items.len(), page.api_version.as_str()), (2, "example.com/v1"));
    let mut one = api.get("widgets.v1.example.com", "one").await.unwrap();
    one.0["spec"]["a"] = "changed".into();
    assert_eq!(api.update("widgets", &one).await.unwrap().generation(), 2);
    assert!(api.update("widgets", &one).await.unwrap_err().is_conflict(), "the old revision");
    let json_patch = json!([{"op": "replace", "path": "/spec/a", "value": "patched"}]);
    let options = Options { patch_type: Some(PatchType::Json), ..Options::default() };
    let patched = api.0.handle(request(Verb::Patch, "widgets", "one", Some(json_patch), options)).await.unwrap();
    assert_eq!(object_of(patched).0["spec"]["a"], "patched");
    let options = Options { patch_type: Some(PatchType::Strategic), ..Options::default() };
    let refused = api.0.handle(request(Verb::Patch, "widgets", "one", Some(json!({})), options)).await.unwrap_err();
    assert_eq!((refused.code, refused.reason.as_str()), (415, "UnsupportedMediaType"));
    api.delete("widgets", "one", Options::default()).await.unwrap();
    api.ask(Verb::DeleteCollection, "widgets", "", Options::default()).await.unwrap();
    assert!(api.list("widgets", Options::default()).await.unwrap().items.is_empty());
    let mut told = Vec::new();
    for _ in 0..8 {
        told.push(watch.recv().await.unwrap().kind);
    }
    use EventKind::{Added, Deleted, Modified};
    assert_eq!(told, [Added, Added, Added, Modified, Modified, Deleted, Deleted, Deleted]);
    // A definition that goes ends the watches of its kind.
    api.delete(DEFINITIONS, "widgets.example.com", Options::default()).await.unwrap();
    let ended = tokio::time::timeout(std::time::Duration::from_secs(10), watch.recv()).await;
    assert!(matches!(ended, Ok(None)), "{ended:?}");
}

#[tokio::test]
async fn versions_show_the_same_object() {
    let api = Api::new().await;
    api.define(two_versions()).await;
    let mut old = widget("w", json!({"a": "x", "old": "y"}));
    old["apiVersion"] = "example.com/v1beta1".into();
    let created = api
        .0
        .handle(request(Verb::Create, "widgets.v1beta1.example.com", "", Some(old), Options::default()))
        .await
        .unwrap();
    assert_eq!(created.warnings, ["example.com/v1beta1 Widget is deprecated"]);
    assert_eq!(object_of(created).api_version(), "example.com/v1beta1");
    assert_eq!(api.get("widgets", "w").await.unwrap().api_version(), "example.com/v1", "v1 is preferred");
    let mut watch = api.watch("widgets.v1beta1.example.com", Options::default()).await.unwrap();
    assert!(String::from_utf8_lossy(&watch.recv().await.unwrap().object).contains("example.com/v1beta1"));

    // The other version becomes the stored one; what lies there is still the old one.
    let mut swapped = api.get(DEFINITIONS, "widgets.example.com").await.unwrap();
    swapped.0["spec"]["versions"][0]["storage"] = false.into();
    swapped.0["spec"]["versions"][1]["storage"] = true.into();
    api.update(DEFINITIONS, &swapped).await.unwrap();
    for version in ["v1", "v1beta1"] {
        let resource = format!("widgets.{version}.example.com");
        let shown = api.get(&resource, "w").await.unwrap();
        assert_eq!(shown.api_version(), format!("example.com/{version}"));
        assert_eq!(shown.0["spec"]["a"], "x");
        let list = api.list(&resource, Options::default()).await.unwrap();
        assert!(String::from_utf8_lossy(&list.items[0]).contains(&format!("\"apiVersion\":\"example.com/{version}\"")));
    }
    api.patch("widgets", "w", json!({"spec": {"a": "z"}})).await.unwrap();
    assert_eq!(api.get("widgets", "w").await.unwrap().0["spec"]["a"], "z");
    let mut stored = Value::Null;
    for _ in 0..300 {
        stored = api.get(DEFINITIONS, "widgets.example.com").await.unwrap().0["status"]["storedVersions"].clone();
        if stored.as_array().is_some_and(|all| all.len() == 2) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(stored, json!(["v1", "v1beta1"]));
    // A version that is not served any more is not there.
    let mut unserved = api.get(DEFINITIONS, "widgets.example.com").await.unwrap();
    unserved.0["spec"]["versions"][0]["served"] = false.into();
    api.update(DEFINITIONS, &unserved).await.unwrap();
    assert_eq!(api.list("widgets.v1.example.com", Options::default()).await.unwrap_err().code, 404);
    assert_eq!(api.get("widgets", "w").await.unwrap().api_version(), "example.com/v1beta1");
}

#[tokio::test]
async fn status_and_scale_are_subresources_where_they_are_asked_for() {
    let api = Api::new().await;
    let mut plain = definition(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
    plain["metadata"]["name"] = "things.example.com".into();
    plain["spec"]["names"] = json!({"plural": "things", "kind": "Thing"});
    api.define(plain).await;
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "status": {"a": 1}});
    assert_eq!(api.create("things", thing).await.unwrap().0["status"]["a"], 1);
    let changed = api.patch("things", "t", json!({"status": {"a": 2}})).await.unwrap();
    assert_eq!((changed.generation(), &changed.0["status"]["a"]), (2, &json!(2)));
    assert_eq!(api.sub(Verb::Patch, "things", "t", "status", json!({})).await.unwrap_err().code, 404);

    let mut it = definition(json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"replicas": {"type": "integer", "minimum": 0, "maximum": 9}}},
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}}}}}));
    it["spec"]["versions"][0]["subresources"] = json!({"status": {}, "scale": {
        "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}});
    api.define(it).await;
    let mut w = widget("w", json!({"replicas": 2}));
    w["status"] = json!({"replicas": 7});
    assert!(api.create("widgets", w).await.unwrap().0.get("status").is_none(), "a creator brings no status");
    let status = json!({"status": {"replicas": 2, "selector": "app=x"}, "spec": {"replicas": 5},
        "metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}}});
    let with_status = object_of(api.sub(Verb::Patch, "widgets", "w", "status", status).await.unwrap());
    assert_eq!((&with_status.0["spec"]["replicas"], with_status.generation()), (&json!(2), 1));
    assert_eq!((with_status.0["metadata"].get("labels"), with_status.annotation("a")), (None, None));
    let refused =
        api.sub(Verb::Patch, "widgets", "w", "status", json!({"status": {"replicas": "x"}})).await.unwrap_err();
    assert!(refused.message.contains("status.replicas in body must be of type integer"), "{}", refused.message);
    let scale = object_of(api.sub(Verb::Get, "widgets", "w", "scale", Value::Null).await.unwrap());
    assert_eq!(
        (scale.kind(), &scale.0["spec"]["replicas"], &scale.0["status"]),
        ("Scale", &json!(2), &json!({"replicas": 2, "selector": "app=x"}))
    );
    api.sub(Verb::Patch, "widgets", "w", "scale", json!({"spec": {"replicas": 4}})).await.unwrap();
    let scaled = api.get("widgets", "w").await.unwrap();
    assert_eq!(
        (&scaled.0["spec"]["replicas"], scaled.generation(), &scaled.0["status"]["replicas"]),
        (&json!(4), 2, &json!(2))
    );
    let refused = api.sub(Verb::Patch, "widgets", "w", "scale", json!({"spec": {"replicas": 40}})).await.unwrap_err();
    assert!(refused.message.contains("spec.replicas in body should be less than or equal to 9"), "{}", refused.message);
}

#[tokio::test]
async fn selectable_fields_select() {
    let api = Api::new().await;
    let mut it =
        definition(spec(json!({"color": {"type": "string"}, "n": {"type": "integer"}, "on": {"type": "boolean"}})));
    api.define(it.clone()).await;
    for (name, spec) in [("r", json!({"color": "red", "n": 1, "on": true})), ("b", json!({"color": "blue", "n": 2}))] {
        api.create("widgets", widget(name, spec)).await.unwrap();
    }
    let by = |selector: &str| Options { field_selector: Some(selector.into()), ..Options::default() };
    let refused = api.list("widgets", by("spec.color=red")).await.unwrap_err();
    assert_eq!(refused.code, 400, "{refused}");
    // Fields that become selectable later are found in what is there already.
    let mut now = api.get(DEFINITIONS, "widgets.example.com").await.unwrap();
    it["spec"]["versions"][0]["selectableFields"] =
        json!([{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.n"}, {"jsonPath": ".spec.on"}]);
    now.0["spec"] = it["spec"].clone();
    api.update(DEFINITIONS, &now).await.unwrap();
    for (selector, found) in [
        ("spec.color=red", 1),
        ("spec.color!=red", 1),
        ("spec.n=2", 1),
        ("spec.on=true", 1),
        ("spec.on=", 1),
        ("metadata.name=r,spec.color=blue", 0),
    ] {
        assert_eq!(api.list("widgets", by(selector)).await.unwrap().items.len(), found, "{selector}");
    }
    let mut watch = api.watch("widgets", by("spec.color=red")).await.unwrap();
    assert_eq!(watch.recv().await.unwrap().kind, EventKind::Added);
    api.patch("widgets", "b", json!({"spec": {"color": "red"}})).await.unwrap();
    api.patch("widgets", "r", json!({"spec": {"color": "green"}})).await.unwrap();
    assert_eq!(watch.recv().await.unwrap().kind, EventKind::Added);
    assert_eq!(watch.recv().await.unwrap().kind, EventKind::Deleted);
}

#[tokio::test]
async fn each_version_selects_by_its_own_fields() {
    let api = Api::new().await;
    let mut it = definition(spec(json!({"color": {"type": "string"}, "n": {"type": "integer"}})));
    let mut beta = it["spec"]["versions"][0].clone();
    (beta["name"], beta["storage"]) = ("v1beta1".into(), false.into());
    beta["selectableFields"] = json!([{"jsonPath": ".spec.n"}]);
    it["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.color"}]);
    it["spec"]["versions"].as_array_mut().unwrap().push(beta);
    api.define(it).await;
    for (name, spec) in [("r", json!({"color": "red", "n": 1})), ("b", json!({"color": "blue", "n": 2}))] {
        api.create("widgets", widget(name, spec)).await.unwrap();
    }
    let by = |selector: &str| Options { field_selector: Some(selector.into()), ..Options::default() };
    let beta = "widgets.v1beta1.example.com";
    for (resource, selector, found) in [
        ("widgets", "spec.color=red", 1),
        (beta, "spec.n=2", 1),
        (beta, "spec.n!=2,metadata.name=r", 1),
        (beta, "spec.n=3", 0),
    ] {
        assert_eq!(api.list(resource, by(selector)).await.unwrap().items.len(), found, "{selector}");
    }
    for (resource, selector) in [("widgets", "spec.n=1"), (beta, "spec.color=red")] {
        assert_eq!(api.list(resource, by(selector)).await.unwrap_err().code, 400, "{selector}");
    }
    let mut watch = api.watch(beta, by("spec.n=2")).await.unwrap();
    assert_eq!(watch.recv().await.unwrap().kind, EventKind::Added);
    api.patch("widgets", "r", json!({"spec": {"n": 2}})).await.unwrap();
    assert_eq!(watch.recv().await.unwrap().kind, EventKind::Added);
    api.patch("widgets", "b", json!({"spec": {"n": 3}})).await.unwrap();
    assert_eq!(watch.recv().await.unwrap().kind, EventKind::Deleted);
}

#[tokio::test]
async fn cluster_scope_and_rights() {
    let api = Api::new().await;
    let mut it = definition(spec(json!({})));
    it["spec"]["scope"] = "Cluster".into();
    api.define(it).await;
    let of_cluster = |request: Request| Request { namespace: None, ..request };
    let made = request(Verb::Create, "widgets", "", Some(widget("w", json!({}))), Options::default());
    assert!(object_of(api.0.handle(of_cluster(made)).await.unwrap()).namespace().is_none());
    let got = request(Verb::Get, "widgets", "w", None, Options::default());
    let lost = api.0.handle(Request { namespace: Some("default".into()), ..got.clone() }).await.unwrap_err();
    assert_eq!((lost.code, lost.message.as_str()), (404, "the server could not find the requested resource"));
    assert!(object_of(api.0.handle(of_cluster(got)).await.unwrap()).namespace().is_none());
    let ask = |verb: Verb| Request {
        user: User { name: "ann".into(), ..User::default() },
        ..of_cluster(request(verb, "widgets", "w", None, Options::default()))
    };
    let refused = api.0.handle(ask(Verb::Get)).await.unwrap_err();
    assert_eq!(refused.code, 403);
    assert!(refused.message.contains("widgets.example.com \"w\" is forbidden: User \"ann\" cannot get resource \"widgets\" in API group \"example.com\""), "{}", refused.message);
    api.create(
        "clusterroles",
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "w"},
        "rules": [{"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["get"]}]}),
    )
    .await
    .unwrap();
    api.create(
        "clusterrolebindings",
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "w"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "w"},
        "subjects": [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}]}),
    )
    .await
    .unwrap();
    api.0.handle(ask(Verb::Get)).await.unwrap();
    assert_eq!(api.0.handle(ask(Verb::Delete)).await.unwrap_err().code, 403);
}

#[tokio::test]
async fn a_condition_says_what_it_is_about() {
    let api = Api::new().await;
    api.define(definition(spec(json!({})))).await;
    let name = "widgets.example.com";
    let good = api.get(DEFINITIONS, name).await.unwrap().0["status"]["conditions"].clone();
    for (condition, why) in [
        (json!({"status": "True"}), "status.conditions[2].type: Required value"),
        (json!({"type": "", "status": "True"}), "status.conditions[2].type: Required value"),
        (json!({"type": "Mine"}), "status.conditions[2].status: Required value"),
        (
            json!({"type": "Established", "status": "False"}),
            "status.conditions[2].type: Duplicate value: \"Established\"",
        ),
    ] {
        let mut all = good.clone();
        all.as_array_mut().unwrap().push(condition);
        let patch = json!({"status": {"conditions": all}});
        let refused = api.sub(Verb::Patch, DEFINITIONS, name, "status", patch).await.unwrap_err();
        assert!(causes(&refused).iter().any(|cause| cause == why), "{}", refused.message);
    }
    let mut all = good.clone();
    all.as_array_mut().unwrap().push(json!({"type": "Mine", "status": "True"}));
    let patch = json!({"status": {"conditions": all}});
    api.sub(Verb::Patch, DEFINITIONS, name, "status", patch).await.unwrap();
}

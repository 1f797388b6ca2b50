//! Versions that a webhook converts: `v1` says `size: 3x4`, `v2` says `width: 3, height: 4` and is stored.

use podwright::api::request::{EventKind, PatchType};
use podwright::api::{Options, Request, User, Verb};
use serde_json::{Value, json};

use super::{DEFINITIONS, definition, spec};
use crate::server::admission::hook::Hook;
use crate::server::admission::webhooks::with_little_room;
use crate::server::{Api, object_of, request};

fn converted(object: &Value, wanted: &str) -> Value {
    let mut out = object.clone();
    let spec = &object["spec"];
    out["apiVersion"] = wanted.into();
    out["spec"] = match wanted {
        "example.com/v2" => {
            let (width, height) = spec["size"].as_str().unwrap().split_once('x').unwrap();
            json!({"width": width.parse::<i64>().unwrap(), "height": height.parse::<i64>().unwrap()})
        }
        _ => json!({"size": format!("{}x{}", spec["width"], spec["height"])}),
    };
    out["metadata"]["creationTimestamp"] = "1970-01-01T00:00:00Z".into();
    out["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "forged"}]);
    if let Some(forged) = object["metadata"]["annotations"]["forge"].as_str() {
        let (path, value) = forged.split_once('=').unwrap();
        *out.pointer_mut(path).unwrap() = serde_json::from_str(value).unwrap();
    }
    out
}

async fn with_versions(hook: &Hook) -> Api {
    define_versions(Api::new().await, hook).await
}

async fn define_versions(api: Api, hook: &Hook) -> Api {
    let mut it = definition(spec(json!({"size": {"type": "string", "pattern": "^[0-9]+x[0-9]+$"}})));
    let mut v2 = it["spec"]["versions"][0].clone();
    it["spec"]["versions"][0]["storage"] = false.into();
    v2["name"] = "v2".into();
    v2["schema"]["openAPIV3Schema"] =
        spec(json!({"width": {"type": "integer"}, "height": {"type": "integer", "maximum": 9}}));
    it["spec"]["versions"].as_array_mut().unwrap().push(v2);
    it["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.size"}]);
    it["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"url": format!("https://127.0.0.1:{}", hook.port), "caBundle": hook.ca}}});
    api.define(it).await;
    api
}

fn answer(request: &Value) -> Value {
    let wanted = request["desiredAPIVersion"].as_str().unwrap();
    let objects = request["objects"].as_array().unwrap();
    if objects.iter().any(|object| object["metadata"]["name"] == "bad") {
        return json!({"result": {"status": "Failed", "message": "it is bad"}});
    }
    let all: Vec<Value> = objects.iter().map(|object| converted(object, wanted)).collect();
    json!({"result": {"status": "Success"}, "convertedObjects": all})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_version_is_spoken_by_who_asks_for_it() {
    let hook = Hook::new(answer).await;
    let api = with_versions(&hook).await;
    let (v1, v2) = ("widgets.v1.example.com", "widgets.v2.example.com");
    let old = |size: &str| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": size}});
    let made = api.create(v1, old("3x4")).await.unwrap();
    assert_eq!((made.api_version(), &made.0["spec"]), ("example.com/v1", &json!({"size": "3x4"})));
    let new = api.get(v2, "w").await.unwrap();
    assert_eq!((new.api_version(), &new.0["spec"]), ("example.com/v2", &json!({"width": 3, "height": 4})));
    assert_eq!(
        (new.uid(), new.resource_version(), &new.0["metadata"]["ownerReferences"]),
        (made.uid(), made.resource_version(), &Value::Null),
        "a webhook does not change what is the system's"
    );
    assert_eq!(new.0["metadata"]["creationTimestamp"], made.0["metadata"]["creationTimestamp"]);
    let refused = api.create(v1, json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "x"}, "spec": {"size": "big"}})).await.unwrap_err();
    assert!(refused.message.contains("spec.size in body should match"), "{}", refused.message);
    let refused = api.patch(v1, "w", json!({"spec": {"size": "3x40"}})).await.unwrap_err();
    assert!(refused.message.contains("spec.height in body should be less than or equal to 9"), "{}", refused.message);
    let patched = api.patch(v1, "w", json!({"spec": {"size": "5x6"}})).await.unwrap();
    assert_eq!(patched.0["spec"], json!({"size": "5x6"}));
    assert_eq!(api.get(v2, "w").await.unwrap().0["spec"]["width"], 5);
    let mut stale = made.clone();
    stale.0["spec"]["size"] = "1x1".into();
    assert!(api.update(v1, &stale).await.unwrap_err().is_conflict());
    let options = Options {
        patch_type: Some(PatchType::Apply),
        field_manager: Some("me".into()),
        force: true,
        ..Options::default()
    };
    let applied = api.0.handle(request(Verb::Patch, v1, "w", Some(old("7x8")), options)).await.unwrap();
    assert_eq!(object_of(applied).0["spec"]["size"], "7x8");

    let list = api.list(v1, Options::default()).await.unwrap();
    assert_eq!(list.api_version, "example.com/v1");
    assert!(String::from_utf8_lossy(&list.items[0]).contains("7x8"));
    let mut watch = api.watch(v1, Options::default()).await.unwrap();
    assert!(String::from_utf8_lossy(&watch.recv().await.unwrap().object).contains("7x8"));
    api.patch(v2, "w", json!({"spec": {"width": 9}})).await.unwrap();
    assert!(String::from_utf8_lossy(&watch.recv().await.unwrap().object).contains("9x8"));

    let bad =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "bad"}, "spec": {"size": "1x1"}});
    let refused = api.create(v1, bad).await.unwrap_err();
    assert_eq!(refused.code, 500);
    assert!(
        refused.message.contains("conversion webhook for example.com/v1, Kind=Widget failed: it is bad"),
        "{}",
        refused.message
    );
    // Whoever speaks the stored version needs no webhook.
    drop(hook);
    assert_eq!(api.get(v2, "w").await.unwrap().0["spec"]["width"], 9);
    assert!(api.get(v1, "w").await.unwrap_err().message.contains("conversion webhook"));
    api.get(DEFINITIONS, "widgets.example.com").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_webhook_makes_of_metadata_must_be_some() {
    let hook = Hook::new(answer).await;
    let api = with_versions(&hook).await;
    let forged = |forge: &str| {
        json!({"apiVersion": "example.com/v2", "kind": "Widget", "spec": {"width": 1, "height": 1},
            "metadata": {"name": "w", "labels": {"a": "b"}, "annotations": {"forge": forge}}})
    };
    for (forge, why) in [
        ("/metadata/uid=\"forged\"", "must have the same UID: "),
        ("/metadata/name=\"other\"", "must have the same name: w != other"),
        ("/metadata/namespace=\"other\"", "must have the same namespace: default != other"),
        ("/metadata=7", "invalid metadata of type number in converted object"),
        ("/metadata/labels=7", "invalid metadata.labels of type number in converted object"),
        ("/metadata/annotations=[]", "invalid metadata.annotations of type list in converted object"),
        ("/metadata/labels={\"a\": {}}", "metadata.labels[a] must be a string, but is map in converted object"),
        (
            "/metadata/annotations={\"a\": null}",
            "metadata.annotations[a] must be a string, but is null in converted object",
        ),
        ("/metadata/labels={\"a b\": \"c\"}", "metadata.labels: Invalid value: \"a b\""),
        ("/metadata/labels={\"a\": \"b c\"}", "metadata.labels: Invalid value: \"b c\""),
        ("/metadata/annotations={\"a b\": \"c\"}", "metadata.annotations: Invalid value: \"a b\""),
    ] {
        api.create("widgets.v2.example.com", forged(forge)).await.unwrap();
        let refused = api.get("widgets.v1.example.com", "w").await.unwrap_err();
        assert_eq!(refused.code, 500);
        let told = format!(
            "conversion webhook for example.com/v2, Kind=Widget failed: returned invalid converted object: {why}"
        );
        assert!(refused.message.contains(&told), "{}", refused.message);
        api.delete("widgets.v2.example.com", "w", Options::default()).await.unwrap();
    }
    for (forge, labels) in
        [("/metadata/labels={\"x\": \"y\"}", json!({"x": "y"})), ("/metadata/labels=null", Value::Null)]
    {
        api.create("widgets.v2.example.com", forged(forge)).await.unwrap();
        assert_eq!(api.get("widgets.v1.example.com", "w").await.unwrap().0["metadata"]["labels"], labels);
        api.delete("widgets.v2.example.com", "w", Options::default()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn selectors_are_asked_of_converted_objects() {
    let hook = Hook::new(answer).await;
    let api = with_versions(&hook).await;
    let (v1, v2) = ("widgets.v1.example.com", "widgets.v2.example.com");
    let sized = |name: &str, size: &str| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": size}});
    for (name, size) in [("a", "1x1"), ("b", "2x2"), ("c", "1x1")] {
        api.create(v1, sized(name, size)).await.unwrap();
    }
    let by = |selector: &str| Options { field_selector: Some(selector.into()), ..Options::default() };
    assert_eq!(api.list(v1, by("spec.size=1x1")).await.unwrap().items.len(), 2);
    assert_eq!(api.list(v1, by("spec.size=1x1,metadata.name!=a")).await.unwrap().items.len(), 1);
    assert_eq!(api.list(v2, by("spec.size=1x1")).await.unwrap_err().code, 400);
    let mut watch = api.watch(v1, by("spec.size=2x2")).await.unwrap();
    let mut next = async || {
        let event = watch.recv().await.unwrap();
        (event.kind, podwright::api::Object::from_slice(&event.object).unwrap().name().to_owned())
    };
    assert_eq!(next().await, (EventKind::Added, "b".into()));
    api.patch(v2, "a", json!({"spec": {"width": 2, "height": 2}})).await.unwrap();
    api.patch(v2, "c", json!({"spec": {"width": 7}})).await.unwrap();
    api.patch(v2, "a", json!({"metadata": {"labels": {"x": "y"}}})).await.unwrap();
    api.patch(v2, "b", json!({"spec": {"width": 3}})).await.unwrap();
    assert_eq!(next().await, (EventKind::Added, "a".into()));
    assert_eq!(next().await, (EventKind::Modified, "a".into()));
    assert_eq!(next().await, (EventKind::Deleted, "b".into()));
    // And nothing else is deleted by one.
    api.0.handle(request(Verb::DeleteCollection, v1, "", None, by("spec.size=2x2"))).await.unwrap();
    assert_eq!(next().await, (EventKind::Deleted, "a".into()));
    let left = api.list(v2, Options::default()).await.unwrap().items.len();
    assert_eq!(left, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn converted_objects_count_for_who_asks_for_them() {
    let hook = Hook::new(|request| {
        let mut response = answer(request);
        response["padding"] = "x".repeat(200 << 10).into();
        response
    })
    .await;
    let (api, ann) = with_little_room("example.com", &["widgets"]).await;
    let api = define_versions(api, &hook).await;
    let (v1, v2) = ("widgets.v1.example.com", "widgets.v2.example.com");
    let widget = json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "w"},
        "spec": {"width": 3, "height": 4}});
    api.create(v2, widget).await.unwrap();
    let get = async |user: &User, version: &str| {
        let asked = request(Verb::Get, version, "w", None, Options::default());
        api.0.handle(Request { user: user.clone(), ..asked }).await.map(drop)
    };
    assert_eq!(get(&ann, v1).await.unwrap_err().code, 429);
    get(&ann, v2).await.expect("there is nothing to convert");
    let before = api.0.large_turns();
    get(&User::system("us"), v1).await.expect("the superuser is not counted");
    assert_eq!(api.0.large_turns() - before, 2, "one to read the answer, one for what is made of it");
}

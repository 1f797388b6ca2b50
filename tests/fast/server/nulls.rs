//! A null is as good as nothing: for every list, map and struct of every kind, whoever writes it and however.

use podwright::api::kinds::{self, Kind};
use podwright::api::request::PatchType;
use podwright::api::schema::{Struct, Type};
use podwright::api::{Object, Options, Status, Verb, yaml};
use serde_json::{Map, Value, json};

use super::{Api, object_of, request};
use crate::api::manifests::MANIFESTS;

/// Whether null stands for an absent one.
fn is_held(of: &Type) -> bool {
    matches!(of, Type::List(_) | Type::Map(_) | Type::Struct(_))
}

/// Puts a null in each place below a struct where a list, a map or a struct is absent.
fn add_nulls(of: &Struct, map: &mut Map<String, Value>) {
    for (name, field) in of.fields().filter(|(_, field)| is_held(&field.of)) {
        match map.get_mut(name) {
            None => drop(map.insert(name.to_owned(), Value::Null)),
            Some(value) => add_nulls_in(&field.of, value),
        }
    }
}

fn add_nulls_in(of: &Type, value: &mut Value) {
    match (of, value) {
        (Type::Struct(of), Value::Object(map)) => add_nulls(of, map),
        (Type::Map(of), Value::Object(map)) => map.values_mut().for_each(|value| add_nulls_in(of, value)),
        (Type::List(list), Value::Array(items)) => items.iter_mut().for_each(|item| add_nulls_in(&list.item, item)),
        _ => {}
    }
}

/// Where below it a list, a map or a struct is null.
fn nulls(of: &Type, value: &Value, at: &str, found: &mut Vec<String>) {
    match (of, value) {
        (of, Value::Null) if is_held(of) => found.push(at.to_owned()),
        (Type::Struct(of), Value::Object(map)) => {
            for (name, value) in map {
                if let Some(field) = of.field(name) {
                    nulls(&field.of, value, &format!("{at}.{name}"), found);
                }
            }
        }
        (Type::Map(of), Value::Object(map)) => {
            map.iter().for_each(|(key, value)| nulls(of, value, &format!("{at}[{key}]"), found));
        }
        (Type::List(list), Value::Array(items)) => {
            items.iter().enumerate().for_each(|(i, item)| nulls(&list.item, item, &format!("{at}[{i}]"), found));
        }
        _ => {}
    }
}

fn nulls_of(kind: &Kind, object: &Object) -> Vec<String> {
    let mut found = Vec::new();
    nulls(&Type::Struct(kind.schema()), &object.0, kind.kind, &mut found);
    found
}

fn with_nulls(kind: &Kind, object: &Value) -> Value {
    let mut value = object.clone();
    add_nulls(&kind.schema(), value.as_object_mut().unwrap());
    value
}

/// Without what differs from one creation to the next.
fn told(answer: Result<Object, Status>) -> Result<Vec<String>, (u16, String)> {
    answer.map(|object| object.0.as_object().unwrap().keys().cloned().collect()).map_err(|why| (why.code, why.message))
}

#[tokio::test]
async fn a_null_is_nothing_in_every_kind() {
    let mut written = 0;
    for (name, text) in MANIFESTS {
        let mut manifest = yaml::documents(text).unwrap().remove(0);
        let kind = kinds::of(manifest["apiVersion"].as_str().unwrap(), manifest["kind"].as_str().unwrap()).unwrap();
        if kind.namespaced {
            manifest["metadata"]["namespace"] = "default".into();
        }
        let resource = kind.resource();
        // What is refused is refused for the same reason, in a server that knows nothing of the first attempt.
        let plain = Api::new().await.create(&resource, manifest.clone()).await;
        let api = Api::new().await;
        let made = api.create(&resource, with_nulls(kind, &manifest)).await;
        let object = match made {
            Ok(object) if kind.is_stored() => object,
            made => {
                assert_eq!(told(made), told(plain), "{name}");
                continue;
            }
        };
        assert_eq!(nulls_of(kind, &object), [""; 0], "{name}: created");
        let fields = |object: &Object| object.0.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(fields(&object), fields(&plain.unwrap()), "{name}");
        written += 1;

        // A definition is changed by the server as well, all the while.
        let updated = loop {
            let now = api.get(&resource, object.name()).await.unwrap();
            match api.update(&resource, &Object(with_nulls(kind, &now.0))).await {
                Err(why) if why.is_conflict() => tokio::task::yield_now().await,
                updated => break updated.unwrap_or_else(|why| panic!("{name}: update: {why}")),
            }
        };
        assert_eq!(nulls_of(kind, &updated), [""; 0], "{name}: updated");
        let labels = json!({"metadata": {"labels": null, "annotations": null, "finalizers": null}});
        let merged = api.patch(&resource, object.name(), labels).await;
        let merged = merged.unwrap_or_else(|why| panic!("{name}: patch: {why}"));
        assert_eq!(nulls_of(kind, &merged), [""; 0], "{name}: patched");
    }
    assert!(written > 40, "{written} kinds");
}

/// Agents, and whoever writes Nodes as they are read: a Node without taints stays one.
#[tokio::test]
async fn a_nodes_taints_may_be_null() {
    let api = Api::new().await;
    let node = |spec: Value| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": spec});
    let made = api.create("nodes", node(json!({"taints": null, "podCIDRs": null}))).await.unwrap();
    let spec = |object: &Object| object.0.get("spec").cloned();
    let none = |spec: Option<Value>| spec.is_none_or(|spec| spec == json!({}));
    assert!(none(spec(&made)), "{made:?}");
    let kept = api.get("nodes", "n").await.unwrap();
    assert!(none(spec(&kept)), "{kept:?}");
    let mut again = kept.clone();
    again.0["spec"] = json!({"taints": null, "unschedulable": true});
    assert_eq!(spec(&api.update("nodes", &again).await.unwrap()).unwrap(), json!({"unschedulable": true}));
    for (of, patch) in [
        (PatchType::Merge, json!({"spec": {"taints": null}})),
        (PatchType::Strategic, json!({"spec": {"taints": null}})),
        (PatchType::Json, json!([{"op": "add", "path": "/spec/taints", "value": null}])),
    ] {
        let options = Options { patch_type: Some(of), ..Options::default() };
        let patched = api.0.handle(request(Verb::Patch, "nodes", "n", Some(patch), options)).await.map(object_of);
        assert_eq!(spec(&patched.unwrap()).unwrap(), json!({"unschedulable": true}), "{of:?}");
    }
    let status = api.sub(Verb::Patch, "nodes", "n", "status", json!({"status": {"conditions": null, "images": null}}));
    let patched = object_of(status.await.unwrap());
    assert_eq!(nulls_of(kinds::lookup("nodes").unwrap(), &patched), [""; 0]);
}

/// Those whose server makes something of a list that may not be there.
#[tokio::test]
async fn what_the_server_adds_leaves_no_null() {
    let api = Api::new().await;
    let service = |spec: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": spec});
    let headless = json!({"clusterIP": "None", "ports": null, "selector": null});
    let made = api.create("services", service(headless)).await.unwrap();
    let kind = kinds::lookup("services").unwrap();
    assert_eq!(nulls_of(kind, &made), [""; 0]);
    let mut external = made.clone();
    external.0["spec"] = json!({"type": "ExternalName", "externalName": "a.example", "ports": null});
    let changed = api.update("services", &external).await.unwrap();
    assert_eq!(nulls_of(kind, &changed), [""; 0]);
}

//! Patches and apply.

use podwright::api::patch::{self, apply};
use podwright::api::{FieldValidation, Object, kinds, strategy, yaml};
use serde_json::{Value, json};

use super::created;

fn value(text: &str) -> Value {
    yaml::documents(text).expect("valid YAML").remove(0)
}

/// A strategic merge patch of a Pod's spec.
fn strategic(spec: &str, patch: &str) -> Value {
    let pod = kinds::lookup("pods").unwrap();
    let (target, patch) = (json!({"spec": value(spec)}), json!({"spec": value(patch)}));
    patch::strategic::merge(&pod.schema(), &target, &patch).map(|v| v["spec"].clone()).unwrap()
}

#[test]
fn strategic_patches_merge_lists_by_key() {
    for (what, target, patch, expected) in [
        (
            "an item changes in place",
            "{containers: [{name: a, image: x}, {name: b, image: y}]}",
            "{containers: [{name: b, image: z}]}",
            "{containers: [{name: a, image: x}, {name: b, image: z}]}",
        ),
        (
            "a new item comes first, as the real kubectl has it",
            "{containers: [{name: a}]}",
            "{containers: [{name: b, image: ~}]}",
            "{containers: [{name: b}, {name: a}]}",
        ),
        (
            "$patch: delete",
            "{containers: [{name: a}, {name: b}]}",
            "{containers: [{name: a, $patch: delete}]}",
            "{containers: [{name: b}]}",
        ),
        (
            "$patch: replace of a list",
            "{containers: [{name: a}, {name: b}]}",
            "{containers: [{$patch: replace}, {name: c}]}",
            "{containers: [{name: c}]}",
        ),
        (
            "$patch: replace of a map",
            "{nodeSelector: {a: b}}",
            "{nodeSelector: {$patch: replace, c: d}}",
            "{nodeSelector: {c: d}}",
        ),
        ("null removes", "{hostname: a, subdomain: b}", "{hostname: ~}", "{subdomain: b}"),
        (
            "lists without a key are replaced",
            "{tolerations: [{key: a}]}",
            "{tolerations: [{key: b}]}",
            "{tolerations: [{key: b}]}",
        ),
        (
            "$setElementOrder",
            "{containers: [{name: a}, {name: server}, {name: b}]}",
            "{$setElementOrder/containers: [{name: b}, {name: a}]}",
            "{containers: [{name: server}, {name: b}, {name: a}]}",
        ),
        (
            "$retainKeys",
            "{volumes: [{name: v, emptyDir: {}}]}",
            "{volumes: [{name: v, $retainKeys: [name, hostPath], hostPath: {path: /a}}]}",
            "{volumes: [{name: v, hostPath: {path: /a}}]}",
        ),
        (
            "nested lists",
            "{containers: [{name: a, env: [{name: X, value: '1'}, {name: Y, value: '2'}]}]}",
            "{containers: [{name: a, env: [{name: X, $patch: delete}, {name: Z, value: '3'}]}]}",
            "{containers: [{name: a, env: [{name: Z, value: '3'}, {name: Y, value: '2'}]}]}",
        ),
    ] {
        assert_eq!(strategic(target, patch), value(expected), "{what}");
    }
}

#[test]
fn strategic_patches_of_plain_lists() {
    let pod = kinds::lookup("pods").unwrap();
    let target = json!({"metadata": {"finalizers": ["a/x", "b/y", "c/z"]}});
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["b/y"], "finalizers": ["d/w"],
                       "$setElementOrder/finalizers": ["d/w", "a/x"]}});
    let out = patch::strategic::merge(&pod.schema(), &target, &patch).unwrap();
    assert_eq!(out["metadata"], json!({"finalizers": ["d/w", "a/x", "c/z"]}));
}

#[test]
fn bad_strategic_patches_are_refused() {
    let pod = kinds::lookup("pods").unwrap();
    for (patch, code, message) in [
        (json!([]), 400, "not a JSON object"),
        (json!({"spec": {"$patch": "explode"}}), 400, "unknown patch type: explode"),
        (
            json!({"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "b"}]}}),
            400,
            "doesn't match $setElementOrder list",
        ),
        (json!({"spec": {"containers": [{"image": "x"}]}}), 422, "does not contain declared merge key: name"),
        (json!({"spec": {"$retainKeys": ["a"], "hostname": "b"}}), 400, "retainKeys"),
    ] {
        let error = patch::strategic::merge(&pod.schema(), &json!({"spec": {}}), &patch).unwrap_err();
        assert_eq!(error.code, code, "{patch}");
        assert!(error.message.contains(message), "{}", error.message);
    }
}

#[test]
fn json_patches() {
    let target = json!({"a": [1, 2]});
    let ok = patch::json(
        &target,
        &json!([{"op": "test", "path": "/a/0", "value": 1}, {"op": "add", "path": "/a/-", "value": 3}]),
    );
    assert_eq!(ok.unwrap(), json!({"a": [1, 2, 3]}));
    assert_eq!(patch::json(&target, &json!([{"op": "test", "path": "/a/0", "value": 7}])).unwrap_err().code, 422);
    assert_eq!(patch::json(&target, &json!([{"op": "remove", "path": "/b"}])).unwrap_err().code, 422);
    assert_eq!(patch::json(&target, &json!([{"op": "explode"}])).unwrap_err().code, 400);
    assert_eq!(patch::json(&target, &json!({})).unwrap_err().code, 400);
}

/// What upstream's library accepts beyond the RFC, in both directions.
#[test]
fn json_patches_test_for_absence_and_count_from_the_end() {
    let target = json!({"m": {"-1": 0}, "l": [{"n": [1, 2]}, {"n": [3]}]});
    let null = Value::Null;
    for (operation, expected) in [
        (json!({"op": "test", "path": "/m/absent", "value": null}), target.clone()),
        (json!({"op": "remove", "path": "/m/-1"}), json!({"m": {}, "l": [{"n": [1, 2]}, {"n": [3]}]})),
        (json!({"op": "remove", "path": "/l/-1"}), json!({"m": {"-1": 0}, "l": [{"n": [1, 2]}]})),
        (
            json!({"op": "add", "path": "/l/-2/n/-1", "value": 9}),
            json!({"m": {"-1": 0}, "l": [{"n": [1, 2, 9]}, {"n": [3]}]}),
        ),
        (
            json!({"op": "add", "path": "/l/0/n/-3", "value": 9}),
            json!({"m": {"-1": 0}, "l": [{"n": [9, 1, 2]}, {"n": [3]}]}),
        ),
        (
            json!({"op": "replace", "path": "/l/-1/n/-1", "value": 9}),
            json!({"m": {"-1": 0}, "l": [{"n": [1, 2]}, {"n": [9]}]}),
        ),
        (
            json!({"op": "move", "from": "/l/-2/n/-1", "path": "/l/-2/n/-2"}),
            json!({"m": {"-1": 0}, "l": [{"n": [2, 1]}, {"n": [3]}]}),
        ),
        (
            json!({"op": "copy", "from": "/l/-1/n/0", "path": "/l/0/n/-1"}),
            json!({"m": {"-1": 0}, "l": [{"n": [1, 2, 3]}, {"n": [3]}]}),
        ),
        (json!({"op": "test", "path": "/m/absent", "value": 1}), null.clone()),
        (json!({"op": "test", "path": "/absent/absent", "value": null}), null.clone()),
        (json!({"op": "test", "path": "/m/-1", "value": null}), null.clone()),
        (json!({"op": "test", "path": "/l/7", "value": null}), null.clone()),
        (json!({"op": "remove", "path": "/l/-3"}), null.clone()),
        (json!({"op": "add", "path": "/l/-4", "value": 9}), null),
    ] {
        let outcome = patch::json(&target, &json!([operation]));
        let code = outcome.as_ref().err().map(|status| status.code);
        assert_eq!(outcome.unwrap_or_default(), expected, "{operation}");
        assert_eq!(code, expected.is_null().then_some(422), "{operation}");
    }
    let second = json!([{"op": "test", "path": "/m/x", "value": null}, {"op": "remove", "path": "/m/x"}]);
    let message = patch::json(&target, &second).unwrap_err().message;
    assert!(message.contains("operation '/1' failed at path '/m/x'"), "{message}");
}

#[test]
fn merge_patches() {
    let out = patch::merge(&json!({"a": {"b": 1, "c": 2}, "l": [1, 2]}), &json!({"a": {"b": null}, "l": [3]}));
    assert_eq!(out, json!({"a": {"c": 2}, "l": [3]}));
}

/// Applies texts one after another, as the server does; returns the last result and whether it changed anything.
fn applied(texts: &[&str]) -> (Object, bool) {
    let mut live: Option<Object> = None;
    let mut changed = true;
    for text in texts {
        let manifest = value(text);
        let kind = kinds::of(manifest["apiVersion"].as_str().unwrap(), manifest["kind"].as_str().unwrap()).unwrap();
        let merged = apply::merge(kind, &manifest, live.as_ref()).unwrap();
        let (mut object, _) = kind.decode(merged.0, FieldValidation::Strict).unwrap();
        match &live {
            None => strategy::prepare_create(kind, &mut object),
            Some(old) => {
                strategy::prepare_update(kind, &mut object, old);
                changed = !strategy::is_unchanged(&object, old);
            }
        }
        live = Some(object);
    }
    (live.unwrap(), changed)
}

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default, labels: {a: b}}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: one, image: 'x:1', ports: [{containerPort: 53}, {containerPort: 53, protocol: UDP}]}
      - {name: two, image: 'y:1', env: [{name: A, value: '1'}, {name: B, value: '2'}]}
      volumes: [{name: v, emptyDir: {}}]
";

#[test]
fn applying_the_same_again_changes_nothing() {
    let (object, changed) = applied(&[DEPLOYMENT, DEPLOYMENT]);
    assert!(!changed, "{object:?}");
    assert_eq!(object.generation(), 1);
    assert_eq!(object.0["spec"]["template"]["spec"]["containers"][0]["ports"].as_array().unwrap().len(), 2);
}

#[test]
fn apply_removes_what_was_applied_and_is_no_more() {
    let next = DEPLOYMENT
        .replace("labels: {a: b}", "labels: {c: d}")
        .replace("{name: A, value: '1'}, ", "")
        .replace("image: 'x:1'", "image: 'x:2'")
        .replace("emptyDir: {}", "hostPath: {path: /tmp}");
    let (object, changed) = applied(&[DEPLOYMENT, &next]);
    assert!(changed);
    assert_eq!(object.0["metadata"]["labels"], json!({"c": "d"}));
    let spec = &object.0["spec"]["template"]["spec"];
    assert_eq!(spec["containers"][0]["image"], "x:2");
    assert_eq!(spec["containers"][1]["env"], json!([{"name": "B", "value": "2"}]));
    assert_eq!(spec["volumes"], json!([{"name": "v", "hostPath": {"path": "/tmp", "type": ""}}]));
    assert_eq!(object.generation(), 2);
}

#[test]
fn apply_keeps_what_others_set() {
    let (mut live, _) = applied(&[DEPLOYMENT]);
    live.0["spec"]["replicas"] = 5.into();
    live.0["metadata"]["labels"]["other"] = "x".into();
    live.0["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "injected"}));
    live.0["status"] = json!({"replicas": 5});
    let kind = kinds::lookup("deployments").unwrap();
    let merged = apply::merge(kind, &value(DEPLOYMENT), Some(&live)).unwrap();
    assert_eq!(merged.0["spec"]["replicas"], 5);
    assert_eq!(merged.0["status"]["replicas"], 5);
    assert_eq!(merged.0["metadata"]["labels"], json!({"a": "b", "other": "x"}));
    let names: Vec<&Value> =
        merged.0["spec"]["template"]["spec"]["containers"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(names, ["one", "two", "injected"]);
}

#[test]
fn the_last_applied_manifest_is_kept_as_kubectl_writes_it() {
    let manifest = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"b": "c"}});
    let out = apply::annotated(&manifest).unwrap();
    assert_eq!(
        out["metadata"]["annotations"][apply::LAST_APPLIED],
        "{\"apiVersion\":\"v1\",\"data\":{\"b\":\"c\"},\"kind\":\"ConfigMap\",\"metadata\":{\"annotations\":{},\"name\":\"a\"}}\n"
    );
    assert_eq!(apply::annotated(&out).unwrap(), out);
}

#[test]
fn scale_is_a_view() {
    let (kind, mut object) = created(DEPLOYMENT);
    let scale = kind.scale.as_ref().unwrap();
    object.0["status"]["replicas"] = 1.into();
    let view = podwright::api::scale::get(scale, &object);
    assert_eq!(view.0["spec"]["replicas"], 1);
    assert_eq!(view.0["status"], json!({"replicas": 1, "selector": "app=web"}));
    podwright::api::scale::set(scale, &mut object, &json!({"spec": {"replicas": 4}})).unwrap();
    assert_eq!(object.0["spec"]["replicas"], 4);
    let error = podwright::api::scale::set(scale, &mut object, &json!({"spec": {"replicas": -1}})).unwrap_err();
    assert_eq!(error.code, 422);
}

/// Upstream's merge keys and strategies of the kinds beyond Pods.
#[test]
fn strategic_patches_know_every_kinds_lists() {
    for (kind, target, patch, expected) in [
        (
            "validatingwebhookconfigurations",
            "{webhooks: [{name: a.b.c, failurePolicy: Fail}, {name: d.e.f}]}",
            "{webhooks: [{name: a.b.c, failurePolicy: Ignore}]}",
            "{webhooks: [{name: a.b.c, failurePolicy: Ignore}, {name: d.e.f}]}",
        ),
        (
            "poddisruptionbudgets",
            "{spec: {selector: {matchLabels: {a: b}}}}",
            "{spec: {selector: {matchLabels: {c: d}}}}",
            "{spec: {selector: {matchLabels: {c: d}}}}",
        ),
        (
            "statefulsets",
            "{spec: {selector: {matchLabels: {a: b}}, template: {spec: {containers: [{name: c, image: i}]}}}}",
            "{spec: {selector: {matchLabels: {c: d}}, template: {spec: {containers: [{name: c, image: j}]}}}}",
            "{spec: {selector: {matchLabels: {a: b, c: d}}, template: {spec: {containers: [{name: c, image: j}]}}}}",
        ),
        (
            "ingresses",
            "{spec: {rules: [{host: a}, {host: b}]}}",
            "{spec: {rules: [{host: c}]}}",
            "{spec: {rules: [{host: c}]}}",
        ),
    ] {
        let schema = kinds::lookup(kind).unwrap().schema();
        assert_eq!(patch::strategic::merge(&schema, &value(target), &value(patch)), Ok(value(expected)), "{kind}");
    }
}

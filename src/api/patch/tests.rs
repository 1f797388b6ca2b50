//! Patches that name one key many times: size and cost of the result are bounded by patch and object.

use serde_json::{Value, json};

use super::{apply, strategic};
use crate::object::length;
use crate::{FieldValidation, Kind, Object, Status, kinds, strategy};

fn deployment(containers: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "n"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers}},
    }})
}

fn containers(of: &Value) -> &Value {
    &of["spec"]["template"]["spec"]["containers"]
}

fn deployments() -> &'static Kind {
    kinds::lookup("deployments").expect("a kind")
}

fn env(count: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..count).map(item).collect()
}

#[test]
fn an_apply_copies_each_live_item_once_however_often_it_is_named() {
    let live = deployment(json!([{"name": "c", "image": "i", "env": [{"name": "e", "value": "v".repeat(10_000)}]}]));
    let named = json!({"name": "c", "env": env(40, |_| json!({"name": "e"}))});
    let manifest = deployment((0..40).map(|_| named.clone()).collect());
    let merged = apply::merge(deployments(), &manifest, Some(&Object(live.clone()))).expect("a merge");
    // The manifest is contained twice: also as the annotation.
    let (made, given) = (length(&merged.0), length(&live) + 3 * length(&manifest));
    assert!(made <= given, "{made} bytes are made of {given}");
}

/// The result of applying to the result of applying `live`, or the refusal.
fn applied(live: &Value, manifest: &Value) -> Result<Object, Status> {
    let kind = deployments();
    let decoded = |made: Object| -> Object { kind.decode(made.0, FieldValidation::Strict).expect("an object").0 };
    let mut live = decoded(apply::merge(kind, live, None).expect("a manifest"));
    strategy::prepare_create(kind, &mut live);
    let mut new = decoded(apply::merge(kind, manifest, Some(&live)).expect("a merge"));
    strategy::prepare_update(kind, &mut new, &live);
    strategy::validate_update(kind, &new, &live).map(|()| new)
}

#[test]
fn containers_of_one_name_are_refused_by_an_apply() {
    let one = json!({"name": "c", "image": "i"});
    let why = applied(&deployment(json!([one])), &deployment(json!([one, one]))).expect_err("two of one name");
    assert_eq!((why.code, why.reason.as_str()), (422, "Invalid"));
    assert!(why.message.contains("spec.template.spec.containers[1].name: Duplicate value: \"c\""), "{}", why.message);
}

/// Upstream allows duplicate variables in an environment.
#[test]
fn variables_of_one_name_stay_as_they_are_applied() {
    let of = |last: &str| {
        let env = json!([{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}, {"name": "A", "value": last}]);
        deployment(json!([{"name": "c", "image": "i", "env": env}]))
    };
    for (live, manifest) in [("2", "2"), ("2", "3")] {
        let made = applied(&of(live), &of(manifest)).expect("a Deployment");
        assert_eq!(containers(&made.0)[0]["env"], containers(&of(manifest))[0]["env"]);
    }
}

#[test]
fn an_apply_does_not_copy_what_is_nested_deep_for_each_level() {
    let nested = |inner: Value| (0..100).fold(inner, |inner, _| json!({"a": inner}));
    let (live, new) = (nested(json!({"b": "v".repeat(1 << 20)})), nested(json!({"c": 1})));
    let revision = |data: Value| json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": "r"}, "data": data, "revision": 1});
    let kind = kinds::lookup("controllerrevisions").expect("a kind");
    let merged = apply::merge(kind, &revision(new), Some(&Object(revision(live)))).expect("a merge");
    let inner = (0..100).fold(&merged.0["data"], |value, _| &value["a"]);
    assert_eq!((inner["b"].as_str().map(str::len), &inner["c"]), (Some(1 << 20), &json!(1)));
}

/// The result of a strategic merge patch.
fn patched(target: &Value, patch: &Value) -> Result<Value, Status> {
    strategic::merge(&deployments().schema(), target, patch)
}

fn patch(containers: Value) -> Value {
    json!({"spec": {"template": {"spec": {"containers": containers}}}})
}

#[test]
fn items_of_one_key_that_merge_into_much_are_refused() {
    let long = |i: usize| json!({"name": format!("e{i}"), "value": "v".repeat(500)});
    let first = json!({"name": "c", "env": env(600, long)});
    let again =
        |change: Value| -> Value { std::iter::once(first.clone()).chain((0..400).map(|_| change.clone())).collect() };
    let live = deployment(json!([first]));
    for (target, change) in [
        (&Value::Null, json!({"name": "c", "env": [{"name": "e0"}]})),
        (&live, json!({"name": "c", "env": [{"name": "e0", "$patch": "delete"}]})),
        (&live, json!({"name": "c", "$setElementOrder/env": [{"name": "e0"}]})),
        (&live, json!({"name": "c", "$deleteFromPrimitiveList/env": ["e0"]})),
        (&live, json!({"name": "c", "$retainKeys": ["name", "env"]})),
    ] {
        let outcome = patched(target, &patch(again(change.clone())));
        let why = outcome.expect_err(&change.to_string());
        assert_eq!((why.code, why.reason.as_str()), (422, "Invalid"), "{change}");
        assert!(why.message.ends_with("its items that share a key merge into more than 3145728 bytes"), "{why:?}");
    }
}

/// Any number of different keys is free: each item is processed once.
#[test]
fn items_of_one_key_merge_in_turn_and_others_are_free() {
    let list =
        |n: usize| (0..n).map(|i| json!({"name": format!("c{i}"), "image": "i".repeat(2000)})).collect::<Value>();
    let outcome = patched(&deployment(list(2000)), &patch(list(2000)));
    assert_eq!(containers(&outcome.expect("a patch")), &list(2000));

    let twice =
        json!([{"name": "c", "image": "j"}, {"name": "c", "env": [{"name": "e"}]}, {"name": "c", "image": "k"}]);
    let outcome = patched(&deployment(json!([{"name": "c", "image": "i"}])), &patch(twice.clone()));
    let expected = json!([{"name": "c", "image": "k", "env": [{"name": "e"}]}]);
    assert_eq!(containers(&outcome.expect("a patch")), &expected);
    let outcome = patched(&Value::Null, &patch(twice));
    assert_eq!(containers(&outcome.expect("a patch")), &expected);
}

/// Each pair would nest a hundred levels deeper, and recursion over a million levels overflows the stack.
#[test]
fn operations_of_a_json_patch_nest_nothing_too_deep_meanwhile() {
    let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }));
    let deep = "/a".repeat(100);
    let pairs = (1..2000).flat_map(|n| {
        let add = json!({"op": "add", "path": format!("/x{n}"), "value": nested(100)});
        let into = format!("/x{n}{deep}");
        [add, json!({"op": "move", "from": format!("/x{}", n - 1), "path": into})]
    });
    let first = json!({"op": "add", "path": "/x0", "value": nested(100)});
    let patch: Vec<Value> = std::iter::once(first).chain(pairs).collect();
    let refused = super::operations::json(&json!({}), &json!(patch)).unwrap_err();
    assert!(refused.message.contains("nested more than 112 levels deep"), "{}", refused.message);
    // The maximum depth, by each operation.
    let at = |levels: usize| json!({ "a": nested(levels - 1) });
    for operation in [
        json!({"op": "add", "path": "/b/c", "value": nested(110)}),
        json!({"op": "copy", "from": "/a", "path": "/b/c"}),
        json!({"op": "move", "from": "/a", "path": "/b/c"}),
    ] {
        let target = json!({"a": nested(110), "b": {}});
        super::operations::json(&target, &json!([operation])).unwrap();
        let target = json!({"a": nested(111), "b": {}});
        let mut operation = operation;
        if !operation["value"].is_null() {
            operation["value"] = nested(111);
        }
        super::operations::json(&target, &json!([operation])).unwrap_err();
    }
    super::operations::json(&at(112), &json!([{"op": "replace", "path": "/a/a", "value": nested(111)}])).unwrap_err();
    // Values that do not get deeper are not checked each time.
    let turns = (0..2500).flat_map(|_| {
        [json!({"op": "move", "from": "/a/a", "path": "/b"}), json!({"op": "move", "from": "/b", "path": "/a/a"})]
    });
    let wide = json!({"a": {"a": vec![0; 100_000]}});
    let refused = super::operations::json(&wide, &json!(turns.collect::<Vec<_>>())).unwrap_err();
    assert!(refused.message.contains("move more than"), "{}", refused.message);
}

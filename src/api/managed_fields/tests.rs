//! Comparisons of lists with many duplicate keys.

use serde_json::{Value, json};

use super::{Apply, Managed, Operation, Scope, Who, compare, refusal};
use crate::{Object, kinds};

fn pod(containers: Value) -> Object {
    Object(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": containers}}))
}

#[test]
fn an_old_item_is_gone_through_once_however_often_the_new_list_names_it() {
    let schema = kinds::lookup("pods").expect("a kind").schema();
    let env: Value = (0..3000).map(|i| json!({"name": format!("e{i}")})).collect();
    let named: Value = (0..100).map(|_| json!({"name": "c", "env": [{"name": "e0"}]})).collect();
    let begun = std::time::Instant::now();
    let old = pod(json!([{"name": "c", "env": env}]));
    let changed = compare(&schema, Scope::Main, Some(&old), &pod(named));
    assert!(begun.elapsed().as_secs() < 4, "it took {:?}", begun.elapsed());
    assert!(changed.removed.paths().contains(&".spec.containers[name=\"c\"].env[name=\"e2999\"].name".to_owned()));
}

#[test]
fn items_of_one_key_are_compared_in_turn() {
    let schema = kinds::lookup("pods").expect("a kind").schema();
    let of = |mut env: Value, more: Option<Value>| {
        env.as_array_mut().expect("a list").extend(more);
        pod(json!([{"name": "c", "env": env}]))
    };
    let env = |second: &str| json!([{"name": "A", "value": "1"}, {"name": "A", "value": second}]);
    let modified = |new: &Object| compare(&schema, Scope::Main, Some(&of(env("2"), None)), new).modified.paths();
    assert!(modified(&of(env("2"), Some(json!({"name": "B"})))).is_empty());
    assert_eq!(modified(&of(env("3"), None)), [".spec.containers[name=\"c\"].env[name=\"A\"].value"]);
}

/// A name is part of the path of everything below it.
#[test]
fn a_refusal_of_many_conflicts_below_a_long_name_is_short() {
    let kind = kinds::lookup("pods").expect("a kind");
    let schema = kind.schema();
    let name = "x".repeat(100_000);
    let of = |value: &str| {
        let env: Value = (0..3000).map(|i| json!({"name": format!("e{i}"), "value": value})).collect();
        pod(json!([{"name": name, "env": env}]))
    };
    let who = |manager: &str| Who {
        manager: manager.to_owned(),
        operation: Operation::Apply,
        api_version: "v1".into(),
        subresource: String::new(),
    };
    let apply = |live: Option<&Object>, by: &str, value: &str, force: bool| {
        let who = who(by);
        let apply = Apply { schema: &schema, scope: Scope::Main, who: &who, now: "2026-01-01T00:00:00Z" };
        let managed = live.map(|live| Managed::of(live).expect("field sets")).unwrap_or_default();
        apply.run(live, &of(value), managed, force)
    };
    let live = apply(None, "one", "1", false).expect("nothing to conflict with");
    let refused = refusal(&apply(Some(&live), "two", "2", false).expect_err("conflicts"));
    assert!(
        refused.message.starts_with("Apply failed with 3000 conflicts: conflicts with \"one\":"),
        "{:.200}",
        refused.message
    );
    assert_eq!(refused.details.as_ref().map(|details| details.causes.len()), Some(1000), "the first are named");
    let told = serde_json::to_string(&refused).expect("JSON").len();
    assert!(told < 4 << 20, "{told} bytes");
    apply(Some(&live), "two", "2", true).expect("it takes them over");
}

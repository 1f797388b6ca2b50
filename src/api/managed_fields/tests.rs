//! Comparisons of lists that name one thing again and again.

use serde_json::{Value, json};

use super::{Scope, compare};
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

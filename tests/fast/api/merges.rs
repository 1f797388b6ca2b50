//! Merges of lists by key: for all lists the result equals that of the plain rule, which searches them for each item.

use podwright::api::managed_fields::{Apply, Managed, Operation, Scope, Who, check, compare};
use podwright::api::patch::{self, apply};
use podwright::api::{Object, kinds};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A list item: its key and its other content.
type Item = (u8, u8);

/// Lists of up to 40 items with distinct keys, so that both lookups by key and scans of short lists occur.
fn items() -> impl Strategy<Value = Vec<Item>> {
    let few = prop::collection::vec((0u8..12, 0u8..3), 0..12);
    let many = prop::collection::vec((0u8..48, 0u8..3), 0..60);
    prop_oneof![few, many].prop_map(|mut items| {
        let mut seen = std::collections::HashSet::new();
        items.retain(|(key, _)| seen.insert(*key));
        items
    })
}

fn containers(items: &[Item]) -> Value {
    items.iter().map(|(key, value)| json!({"name": format!("c{key}"), "image": format!("i{value}")})).collect()
}

fn pod(items: &[Item]) -> Object {
    Object(
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "d"}, "spec": {"containers": containers(items)}}),
    )
}

fn place(list: &[Item], key: u8) -> Option<usize> {
    list.iter().position(|(other, _)| *other == key)
}

/// The order in which server-side apply puts the items of both lists.
fn woven(live: &[Item], config: &[Item]) -> Vec<Item> {
    let (mut all, mut l, mut c) = (Vec::new(), 0, 0);
    while l < live.len() || c < config.len() {
        if let Some(own) = live.get(l) {
            let Some(at) = place(config, own.0) else {
                all.push(*own);
                l += 1;
                continue;
            };
            if (c..config.len()).find(|i| place(live, config[*i].0).is_some()) != Some(at) {
                l += 1;
                continue;
            }
            l += usize::from(at == c);
        }
        if let Some(item) = config.get(c) {
            all.push(*item);
            c += 1;
        }
    }
    all
}

/// The order in which patches put the items of a merged list: those in `wanted` in its order, the others in the order of `before`.
fn arranged(merged: Vec<Item>, wanted: &[Item], before: &[Item]) -> Vec<Item> {
    let (mut named, mut others): (Vec<Item>, Vec<Item>) =
        merged.into_iter().partition(|it| place(wanted, it.0).is_some());
    named.sort_by_key(|it| place(wanted, it.0));
    others.sort_by_key(|it| place(before, it.0));
    let mut out = Vec::new();
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let first = match (named.peek(), others.peek()) {
            (None, None) => return out,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(n), Some(o)) => !matches!((place(before, n.0), place(before, o.0)), (Some(n), Some(o)) if o < n),
        };
        out.extend(if first { named.next() } else { others.next() });
    }
}

/// The items after `new` changes existing ones and adds others, and those in `gone` are deleted.
fn changed(before: &[Item], new: &[Item], gone: &[u8]) -> Vec<Item> {
    let mut merged = before.to_vec();
    for (key, value) in new {
        match (gone.contains(key), place(&merged, *key)) {
            (true, _) => merged.retain(|(other, _)| other != key),
            (false, Some(at)) => merged[at].1 = *value,
            (false, None) => merged.push((*key, *value)),
        }
    }
    merged
}

proptest! {
    #[test]
    fn an_apply_weaves_the_lists(live in items(), config in items()) {
        let schema = kinds::lookup("pods").unwrap().schema();
        let who = Who { manager: "m".into(), operation: Operation::Apply, api_version: "v1".into(), subresource: String::new() };
        let apply = Apply { schema: &schema, scope: Scope::Main, who: &who, now: "2026-01-01T00:00:00Z" };
        let merged = apply.run(Some(&pod(&live)), &pod(&config), Managed::default(), true).unwrap();
        prop_assert_eq!(&merged.0["spec"]["containers"], &containers(&woven(&live, &config)));
    }

    #[test]
    fn a_strategic_patch_merges_and_arranges(before in items(), new in items(), gone in prop::collection::vec(0u8..48, 0..10)) {
        let schema = kinds::lookup("pods").unwrap().schema();
        let mut list = containers(&new);
        for item in list.as_array_mut().unwrap() {
            if gone.iter().any(|key| item["name"] == format!("c{key}")) {
                *item = json!({"name": item["name"], "$patch": "delete"});
            }
        }
        let patch = json!({"spec": {"containers": list}});
        let merged = patch::strategic::merge(&schema, &pod(&before).0, &patch).unwrap();
        let expected = arranged(changed(&before, &new, &gone), &new, &before);
        prop_assert_eq!(&merged["spec"]["containers"], &containers(&expected));
    }

    #[test]
    fn a_three_way_merge_removes_what_was_applied_last(last in items(), new in items(), live in items()) {
        let pods = kinds::lookup("pods").unwrap();
        let mut object = pod(&live);
        object.0["metadata"]["annotations"] = json!({apply::LAST_APPLIED: pod(&last).0.to_string()});
        let merged = apply::merge(pods, &pod(&new).0, Some(&object)).unwrap();
        let mut all: Vec<Item> = new.clone();
        all.extend(live.iter().filter(|it| place(&new, it.0).is_none() && place(&last, it.0).is_none()));
        prop_assert_eq!(&merged.0["spec"]["containers"], &containers(&arranged(all, &new, &live)));
    }

    #[test]
    fn a_comparison_finds_each_item_that_differs(old in items(), new in items()) {
        let schema = kinds::lookup("pods").unwrap().schema();
        let found = compare(&schema, Scope::Main, Some(&pod(&old)), &pod(&new));
        // For a whole item that is new or gone: the item, its name and its image.
        let paths = |items: Vec<u8>, fields: &[&str]| {
            let mut all: Vec<String> = items
                .into_iter()
                .flat_map(|key| fields.iter().map(move |field| format!(".spec.containers[name=\"c{key}\"]{field}")))
                .collect();
            all.sort();
            all
        };
        let sorted = |mut all: Vec<String>| { all.sort(); all };
        let keys = |of: &[Item], holds: &dyn Fn(&Item) -> bool| of.iter().filter(|it| holds(it)).map(|it| it.0).collect::<Vec<u8>>();
        let missing_in = |other: &[Item]| { let other = other.to_vec(); move |it: &Item| place(&other, it.0).is_none() };
        let whole = ["", ".name", ".image"];
        if !old.is_empty() && !new.is_empty() {
            prop_assert_eq!(sorted(found.added.paths()), paths(keys(&new, &missing_in(&old)), &whole));
            prop_assert_eq!(sorted(found.removed.paths()), paths(keys(&old, &missing_in(&new)), &whole));
        }
        let modified = keys(&new, &|it| place(&old, it.0).is_some_and(|at| old[at].1 != it.1));
        prop_assert_eq!(sorted(found.modified.paths()), paths(modified, &[".image"]));
    }

    #[test]
    fn a_key_that_comes_twice_is_found_wherever_it_is(keys in items(), twice in any::<prop::sample::Index>()) {
        let schema = kinds::lookup("pods").unwrap().schema();
        prop_assert!(check(&schema, &pod(&keys).0).is_ok());
        if !keys.is_empty() {
            let again = twice.get(&keys).0;
            let mut with = keys.clone();
            with.push((again, 0));
            let why = check(&schema, &pod(&with).0).unwrap_err().to_string();
            prop_assert_eq!(why, format!(".spec.containers: duplicate entries for key [name=\"c{again}\"]"));
        }
    }
}

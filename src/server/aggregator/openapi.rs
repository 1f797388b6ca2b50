//! OpenAPI v2 documents: extracts the part for one group version from another server's, and merges parts. Upstream:
//! `kube-openapi/pkg/aggregator`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// The prefix of a reference to a definition.
pub const DEFINITIONS: &str = "#/definitions/";
const KINDS: &str = "x-kubernetes-group-version-kind";

/// The paths of a group version, with the definitions that they refer to.
pub fn part_of(mut document: Value, group: &str, version: &str) -> Value {
    let root = format!("/apis/{group}/{version}");
    let is_its = |path: &str| path.strip_prefix(&root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let mut paths = taken(&mut document, "paths");
    paths.retain(|path, item| is_its(path) && item.is_object());
    let all = taken(&mut document, "definitions");
    let mut wanted = BTreeSet::new();
    paths.values().for_each(|item| references(item, &mut wanted));
    let mut definitions = Map::new();
    while let Some(name) = wanted.pop_first() {
        if let Some(definition) = all.get(&name).filter(|_| !definitions.contains_key(&name)) {
            references(definition, &mut wanted);
            definitions.insert(name, definition.clone());
        }
    }
    let is_own = |kind: &Value| kind["group"] == group && kind["version"] == version;
    paths.values_mut().chain(definitions.values_mut()).for_each(|value| keep_kinds(value, &is_own));
    json!({"paths": paths, "definitions": definitions})
}

/// Keeps `x-kubernetes-group-version-kind` only for the server's own group version: clients find the schema of a kind by it, and a
/// server must not claim the kinds of others. (Kinds that all groups have, such as `DeleteOptions`, are named once for each.)
fn keep_kinds(value: &mut Value, is_own: &impl Fn(&Value) -> bool) {
    match value {
        Value::Object(map) => {
            let own = match map.get_mut(KINDS) {
                Some(Value::Array(kinds)) => {
                    kinds.retain(is_own);
                    !kinds.is_empty()
                }
                Some(kind) => is_own(kind),
                None => true,
            };
            if !own {
                map.remove(KINDS);
            }
            map.values_mut().for_each(|value| keep_kinds(value, is_own));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| keep_kinds(value, is_own)),
        _ => {}
    }
}

fn taken(document: &mut Value, field: &str) -> Map<String, Value> {
    match document.get_mut(field).map(Value::take) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// Changes the prefix of references.
pub fn renamed_prefix(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::Object(map) => {
            let name = map.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix(from));
            if let Some(new) = name.map(|name| format!("{to}{name}")) {
                map["$ref"] = new.into();
            }
            map.values_mut().for_each(|value| renamed_prefix(value, from, to));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| renamed_prefix(value, from, to)),
        _ => {}
    }
}

/// The definitions that a value refers to.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            let to = map.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix(DEFINITIONS));
            found.extend(to.map(str::to_owned));
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

/// Adds a part to a document. Existing paths stay; a definition that differs from an existing one is renamed.
pub fn merge(document: &mut Value, part: &Value) {
    let empty = Map::new();
    let of = |field: &str| part[field].as_object().unwrap_or(&empty);
    let renamed = names(document["definitions"].as_object().unwrap_or(&empty), of("definitions"));
    for (name, definition) in of("definitions") {
        let name_here = renamed.get(name).unwrap_or(name);
        document["definitions"][name_here] = pointed(definition, &renamed);
    }
    for (path, item) in of("paths") {
        if document["paths"].get(path).is_none() {
            document["paths"][path] = pointed(item, &renamed);
        }
    }
}

/// How often renaming is repeated: a renamed definition changes those that refer to it.
const ROUNDS: usize = 8;

/// New names for definitions of a part that differ from existing ones with the same name.
fn names(known: &Map<String, Value>, part: &Map<String, Value>) -> BTreeMap<String, String> {
    let mut renamed = BTreeMap::new();
    for _ in 0..ROUNDS {
        let mut next = BTreeMap::new();
        for (name, definition) in part {
            // It may refer to itself, and is compared under its new name.
            let own: Option<String> = renamed.remove(name);
            let definition = pointed(definition, &renamed);
            renamed.extend(own.map(|own| (name.clone(), own)));
            if known.get(name).is_some_and(|known| *known != definition) {
                let free = (2..).map(|n| format!("{name}_v{n}"));
                // An equal one from an earlier part is reused.
                let mut fitting = free.filter(|free| known.get(free).is_none_or(|known| *known == definition));
                next.extend(fitting.next().map(|free| (name.clone(), free)));
            }
        }
        if next == renamed {
            break;
        }
        renamed = next;
    }
    renamed
}

fn pointed(value: &Value, names: &BTreeMap<String, String>) -> Value {
    let mut value = value.clone();
    rename(&mut value, names);
    value
}

fn rename(value: &mut Value, names: &BTreeMap<String, String>) {
    match value {
        _ if names.is_empty() => {}
        Value::Object(map) => {
            let to = map.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix(DEFINITIONS));
            if let Some(new) = to.and_then(|name| names.get(name)) {
                map["$ref"] = format!("{DEFINITIONS}{new}").into();
            }
            map.values_mut().for_each(|value| rename(value, names));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| rename(value, names)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(name: &str) -> Value {
        json!({"$ref": format!("{DEFINITIONS}{name}")})
    }

    #[test]
    fn a_part_has_its_own_paths_and_what_they_need() {
        let document = json!({
            "paths": {
                "/apis/example.com/v1/things": {"get": {"schema": to("Thing")}},
                "/apis/example.com/v1alpha1/things": {"get": {"schema": to("Old")}},
                "/api/v1/pods": {"get": {"schema": to("Pod")}},
                "/apis/example.com/v1": 7,
            },
            "definitions": {
                "Thing": {"properties": {"meta": to("Meta"), "again": to("Thing"), "lost": to("Nowhere")}},
                "Meta": {"type": "object"}, "Old": {}, "Pod": {},
            },
        });
        let part = part_of(document, "example.com", "v1");
        let names = |field: &str| part[field].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names("paths"), ["/apis/example.com/v1/things"]);
        assert_eq!(names("definitions"), ["Thing", "Meta"]);
        assert_eq!(part_of(json!([]), "g", "v1"), json!({"paths": {}, "definitions": {}}));
    }

    #[test]
    fn a_part_says_nothing_of_the_kinds_of_others() {
        let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
        let (own, other) = (kind("example.com", "v1", "Thing"), kind("apps", "v1", "Deployment"));
        let document = json!({
            "paths": {"/apis/example.com/v1/things": {
                "get": {"schema": to("Thing"), KINDS: own}, "put": {"schema": to("Forged"), KINDS: other},
            }},
            "definitions": {
                "Thing": {KINDS: [other, own, kind("example.com", "v2", "Thing")], "properties": {"a": {KINDS: [other]}}},
                "Forged": {"type": "object", KINDS: [other]},
            },
        });
        let part = part_of(document, "example.com", "v1");
        let item = json!({"get": {"schema": to("Thing"), KINDS: own}, "put": {"schema": to("Forged")}});
        assert_eq!(part["paths"]["/apis/example.com/v1/things"], item);
        assert_eq!(part["definitions"]["Thing"], json!({KINDS: [own], "properties": {"a": {}}}));
        assert_eq!(part["definitions"]["Forged"], json!({"type": "object"}));
    }

    #[test]
    fn what_is_there_stays_and_what_differs_gets_a_name_of_its_own() {
        let mut document = json!({
            "paths": {"/a": 1}, "definitions": {"Meta": {"type": "object"}, "Same": {"type": "string"}},
        });
        let part = json!({
            "paths": {"/a": 2, "/b": {"schema": to("Thing")}},
            "definitions": {"Meta": {"type": "string"}, "Same": {"type": "string"}, "Thing": {"meta": to("Meta"), "same": to("Same")}},
        });
        merge(&mut document, &part);
        assert_eq!(document["paths"], json!({"/a": 1, "/b": {"schema": to("Thing")}}));
        assert_eq!(document["definitions"]["Meta"], json!({"type": "object"}));
        assert_eq!(document["definitions"]["Meta_v2"], json!({"type": "string"}));
        assert_eq!(document["definitions"]["Thing"], json!({"meta": to("Meta_v2"), "same": to("Same")}));
        let once = document.clone();
        merge(&mut document, &part);
        assert_eq!(document, once, "the same part adds nothing");
    }
}

//! The kinds that a command knows: the table, what the server's CustomResourceDefinitions add, and what others serve behind it.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::Session;
use podwright_api::discovered::{Resource, Version};
use podwright_api::kinds::{
    self,
    registry::{Kinds, Registry},
};
use podwright_api::{Kind, Object, Request, Verb, request::Body};

static KNOWN: LazyLock<Registry> = LazyLock::new(Registry::default);
/// The verbs of what discovery alone has told, by apiVersion and plural.
static VERBS: LazyLock<Mutex<HashMap<(String, String), Vec<String>>>> = LazyLock::new(Mutex::default);

static LEARNED: OnceCell<()> = OnceCell::const_new();

/// Asks the server for its kinds where a word of argv is no name of a built-in one: it is another's, or a category, to which
/// others may belong. Built-in names are theirs whatever others call themselves.
pub async fn learn_of<'a>(session: &Session, words: impl IntoIterator<Item = &'a str>) {
    if words.into_iter().any(|word| kinds::lookup(word).is_none()) {
        learn(session).await;
    }
}

/// The same, where objects are of types that are not built in.
pub async fn learn_of_types<'a>(session: &Session, types: impl IntoIterator<Item = (&'a str, &'a str)>) {
    if types.into_iter().any(|(api_version, kind)| kinds::of(api_version, kind).is_none()) {
        learn(session).await;
    }
}

/// Asks the server, once in a process. Whoever may not list definitions knows what discovery tells of their kinds, and whoever
/// reaches no server the table alone; what is wrong shows when the command asks for something.
pub async fn learn(session: &Session) {
    LEARNED.get_or_init(|| ask(session)).await;
}

async fn ask(session: &Session) {
    let (definitions, discovered) = tokio::join!(definitions(session), session.client.discovery());
    for definition in definitions.unwrap_or_default() {
        KNOWN.put(&definition);
    }
    let versions = discovered.ok().flatten().unwrap_or_default();
    let known = self::kinds();
    let is_new = |api_version: &str, resource: &Resource| known.of(api_version, &resource.kind).is_none();
    for definition in described(&versions, is_new) {
        KNOWN.put(&definition);
    }
    let mut verbs = VERBS.lock().unwrap_or_else(PoisonError::into_inner);
    for version in &versions {
        let of = |resource: &Resource| (version.api_version(), resource.plural.clone());
        let new = version.resources.iter().filter(|resource| is_new(&version.api_version(), resource));
        verbs.extend(new.map(|resource| (of(resource), resource.verbs.clone())));
    }
}

async fn definitions(session: &Session) -> Option<Vec<Object>> {
    let resource = "customresourcedefinitions.apiextensions.k8s.io".to_owned();
    let request = Request { verb: Verb::List, resource, ..Request::default() };
    match session.client.call(request).await.ok()?.body {
        Body::List(list) => Some(list.items.iter().filter_map(|item| Object::from_slice(item).ok()).collect()),
        _ => None,
    }
}

/// What discovery tells of kinds that are new, as definitions would define them: one a resource, with all its versions.
pub fn described(versions: &[Version], is_new: impl Fn(&str, &Resource) -> bool) -> Vec<Object> {
    let mut all: Vec<Object> = Vec::new();
    for version in versions {
        let new = version.resources.iter().filter(|resource| {
            let whole = !resource.plural.is_empty() && !resource.kind.is_empty() && !version.group.is_empty();
            whole && is_new(&version.api_version(), resource)
        });
        for resource in new {
            let name = format!("{}.{}", resource.plural, version.group);
            let mut entry = served(version, resource);
            match all.iter_mut().find(|known| known.name() == name) {
                Some(known) => {
                    entry["storage"] = false.into();
                    if let Some(versions) = known.0["spec"]["versions"].as_array_mut() {
                        versions.push(entry);
                    }
                }
                None => all.push(definition(&name, version, resource, entry)),
            }
        }
    }
    all
}

fn served(version: &Version, resource: &Resource) -> Value {
    let subresources = resource.subresources.iter().filter(|sub| ["status", "scale"].contains(&sub.as_str()));
    let subresources: serde_json::Map<String, Value> = subresources.map(|sub| (sub.clone(), json!({}))).collect();
    json!({
        "name": version.name, "served": true, "storage": true, "subresources": subresources,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
    })
}

fn definition(name: &str, version: &Version, resource: &Resource, entry: Value) -> Object {
    let singular = match resource.singular.as_str() {
        "" => resource.kind.to_lowercase(),
        singular => singular.to_owned(),
    };
    let names = json!({
        "plural": resource.plural, "singular": singular, "kind": resource.kind,
        "shortNames": resource.short_names, "categories": resource.categories,
    });
    Object(json!({
        "metadata": {"name": name},
        "spec": {
            "group": version.group, "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
            "names": names, "versions": [entry],
        },
        "status": {"acceptedNames": names, "conditions": [{"type": "Established", "status": "True"}]},
    }))
}

/// The verbs of a kind, as discovery tells them.
pub fn verbs(kind: &Kind) -> Vec<String> {
    let of = (kind.api_version(), kind.plural.to_owned());
    let told = VERBS.lock().unwrap_or_else(PoisonError::into_inner).get(&of).cloned();
    told.unwrap_or_else(|| kind.verbs.iter().map(|verb| format!("{verb:?}").to_lowercase()).collect())
}

pub fn kinds() -> Arc<Kinds> {
    KNOWN.now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_serve_is_known_as_custom_resources_are() {
        let thing = Resource {
            plural: "things".into(),
            singular: "thing".into(),
            kind: "Thing".into(),
            namespaced: true,
            verbs: vec!["get".into(), "list".into()],
            short_names: vec!["th".into()],
            subresources: vec!["status".into(), "exec".into()],
            ..Resource::default()
        };
        let version = |name: &str, resources: &[&Resource]| Version {
            group: "ext.example.com".into(),
            name: name.into(),
            stale: false,
            resources: resources.iter().map(|resource| (*resource).clone()).collect(),
        };
        let nameless = Resource { kind: String::new(), ..thing.clone() };
        let pods = Resource { plural: "pods".into(), kind: "Pod".into(), ..Resource::default() };
        let versions = [version("v1", &[&thing, &nameless, &pods]), version("v1beta1", &[&thing])];
        let described = described(&versions, |_, resource| resource.kind != "Pod");
        assert_eq!(described.iter().map(Object::name).collect::<Vec<_>>(), ["things.ext.example.com"]);
        let registry = Registry::default();
        assert!(registry.put(&described[0]));
        let kinds = registry.now();
        for name in ["things", "thing", "th", "things.ext.example.com", "Thing", "things.ext.example.com/v1"] {
            let kind = kinds.lookup(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(
                (kind.exact().as_str(), kind.namespaced, kind.subresources),
                ("things.ext.example.com/v1", true, &["status"][..])
            );
        }
        assert_eq!(kinds.of("ext.example.com/v1beta1", "Thing").unwrap().exact(), "things.ext.example.com/v1beta1");
    }
}

//! The kinds known to a command: the table, the server's CustomResourceDefinitions, and resources of extension API servers.

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
/// The verbs of kinds known only from discovery, by apiVersion and plural.
static VERBS: LazyLock<Mutex<HashMap<(String, String), Vec<String>>>> = LazyLock::new(Mutex::default);

static LEARNED: OnceCell<()> = OnceCell::const_new();

/// Requests the server's kinds if an argument is not a built-in name: it may be a custom one, or a category with custom members.
/// Built-in names always mean built-in kinds.
pub async fn learn_of<'a>(session: &Session, words: impl IntoIterator<Item = &'a str>) {
    if words.into_iter().any(|word| kinds::lookup(word).is_none()) {
        learn(session).await;
    }
}

/// The same for objects whose types are not built in.
pub async fn learn_of_types<'a>(session: &Session, types: impl IntoIterator<Item = (&'a str, &'a str)>) {
    if types.into_iter().any(|(api_version, kind)| kinds::of(api_version, kind).is_none()) {
        learn(session).await;
    }
}

/// Requests them from the server, once per process. Without permission to list definitions discovery is used, and without a
/// connection only the table; errors show up in the command's own requests.
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

/// New kinds in discovery, converted to definitions: one per resource, with all its versions.
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

/// The verbs of a kind, from discovery.
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

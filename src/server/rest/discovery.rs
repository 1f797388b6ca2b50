//! Discovery: API groups, versions and resources, unaggregated and aggregated (`apidiscovery.k8s.io`).

use base64::Engine;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::negotiate::Clause;
use crate::aggregator::AllGathered;
use crate::aggregator::listing::{Group, Listed};
use podwright_api::kinds::registry::Kinds;
use podwright_api::{Kind, Verb};

/// The verbs of the resource itself.
fn verbs(kind: &Kind) -> Vec<String> {
    kind.verbs.iter().map(|verb| format!("{verb:?}").to_lowercase()).collect()
}

const READ_WRITE: &[&str] = &["get", "patch", "update"];
const STREAM: &[&str] = &["create", "get"];
const ALL_METHODS: &[&str] = &["create", "delete", "get", "patch", "update"];

/// A subresource: its name, its kind with group and version unless it is the object itself, its verbs.
type Row = (&'static str, Option<(&'static str, &'static str, &'static str)>, &'static [&'static str]);

const SUBRESOURCES: &[Row] = &[
    ("approval", None, READ_WRITE),
    ("attach", Some(("PodAttachOptions", "", "v1")), STREAM),
    ("binding", Some(("Binding", "", "v1")), &["create"]),
    ("ephemeralcontainers", None, READ_WRITE),
    ("eviction", Some(("Eviction", "policy", "v1")), &["create"]),
    ("exec", Some(("PodExecOptions", "", "v1")), STREAM),
    ("finalize", None, &["update"]),
    ("log", None, &["get"]),
    ("portforward", Some(("PodPortForwardOptions", "", "v1")), STREAM),
    ("resize", None, READ_WRITE),
    ("scale", Some(("Scale", "autoscaling", "v1")), READ_WRITE),
    ("status", None, READ_WRITE),
    ("token", Some(("TokenRequest", "authentication.k8s.io", "v1")), &["create"]),
];

/// A subresource as discovery lists it.
pub struct Subresource {
    pub name: &'static str,
    /// The kind, group and version of requests and responses.
    pub of: (String, &'static str, &'static str),
    pub verbs: &'static [&'static str],
    /// Whether it is a session or a proxy: its kind holds connection options, and is never sent.
    pub connects: bool,
}

/// The subresources that a kind serves over REST.
pub fn subresources(kind: &'static Kind) -> Vec<Subresource> {
    let known = kind.subresources.iter().filter_map(|name| SUBRESOURCES.iter().find(|row| row.0 == *name));
    let mut all: Vec<Subresource> = known
        .map(|(name, of, verbs)| {
            let connects = of.is_some_and(|(kind, ..)| kind.ends_with("Options"));
            let of = of.map_or((kind.kind.to_owned(), kind.group, kind.version), |(k, g, v)| (k.to_owned(), g, v));
            Subresource { name, of, verbs, connects }
        })
        .collect();
    if is_proxied(kind) {
        let of = (format!("{}ProxyOptions", kind.kind), "", "v1");
        all.push(Subresource { name: "proxy", of, verbs: ALL_METHODS, connects: true });
    }
    all.sort_by_key(|sub| sub.name);
    all
}

/// Whether requests are proxied to what an object of the kind represents.
pub fn is_proxied(kind: &Kind) -> bool {
    matches!(kind.built_in(), "Pod" | "Service" | "Node")
}

pub fn kinds_of(kinds: &Kinds, group: &str, version: &str) -> impl Iterator<Item = &'static Kind> {
    kinds.all().filter(move |kind| kind.group == group && kind.version == version)
}

pub fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// `/api`, for clients that used this host.
pub fn versions(host: &str) -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}],
    })
}

/// `/apis`
pub fn group_list(groups: &[Group]) -> Value {
    let groups: Vec<Value> = groups.iter().filter(|group| !group.name.is_empty()).map(api_group).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/apps`, for an existing group.
pub fn group(of: &Group) -> Value {
    let mut group = json!({"kind": "APIGroup", "apiVersion": "v1"});
    for (key, value) in api_group(of).as_object().into_iter().flatten() {
        group[key] = value.clone();
    }
    group
}

fn api_group(group: &Group) -> Value {
    let version = |listed: &Listed| json!({"groupVersion": group_version(&group.name, &listed.version), "version": listed.version});
    let all: Vec<Value> = group.versions.iter().map(version).collect();
    json!({"name": group.name, "versions": all, "preferredVersion": all.first()})
}

/// `/api/v1`, `/apis/apps/v1`
pub fn resource_list(kinds: &Kinds, group: &str, version: &str) -> Value {
    let resources: Vec<Value> = kinds_of(kinds, group, version).flat_map(resources).collect();
    json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": group_version(group, version), "resources": resources,
    })
}

/// A kind and its subresources.
fn resources(kind: &'static Kind) -> Vec<Value> {
    let mut own = json!({
        "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind,
        "verbs": verbs(kind),
    });
    for (key, names) in [("shortNames", kind.short_names()), ("categories", kind.categories())] {
        if !names.is_empty() {
            own[key] = names.into();
        }
    }
    if kind.verbs.contains(&Verb::List) {
        own["storageVersionHash"] = storage_version_hash(kind.stored()).into();
    }
    let sub = |sub: Subresource| {
        let (of, group, version) = sub.of;
        let mut entry = json!({
            "name": format!("{}/{}", kind.plural, sub.name), "singularName": "", "namespaced": kind.namespaced,
            "kind": of, "verbs": sub.verbs,
        });
        if (group, version) != (kind.group, kind.version) {
            entry["group"] = group.into();
            entry["version"] = version.into();
        }
        entry
    };
    std::iter::once(own).chain(subresources(kind).into_iter().map(sub)).collect()
}

/// Identifies the storage version: migrators see when it changes.
fn storage_version_hash(stored: &Kind) -> String {
    let gvk = format!("{}/{}/{}", stored.group, stored.version, stored.kind);
    base64::engine::general_purpose::STANDARD.encode(&Sha256::digest(gvk)[..8])
}

/// The version of aggregated discovery that the client prefers to the plain form, if any.
pub fn aggregated_version(clauses: &[Clause]) -> Option<&'static str> {
    for clause in clauses.iter().filter(|clause| clause.form().is_some()) {
        match clause.turned_into() {
            Some(("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2")) => return Some("v2"),
            Some(("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2beta1")) => return Some("v2beta1"),
            None => return None,
            Some(_) => {}
        }
    }
    None
}

/// `/api` and `/apis` with everything below.
pub fn aggregated(kinds: &Kinds, groups: &[Group], gathered: &AllGathered, version: &'static str, core: bool) -> Value {
    let of_core = groups.iter().filter(|group| group.name.is_empty() == core);
    let items: Vec<Value> = of_core.map(|group| discovered_group(kinds, group, gathered)).collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"), "metadata": {},
        "items": items,
    })
}

/// The media type of a version of aggregated discovery.
pub fn media_type(version: &str) -> &'static str {
    match version {
        "v2" => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        _ => "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
    }
}

fn discovered_group(kinds: &Kinds, group: &Group, gathered: &AllGathered) -> Value {
    let version = |listed: &Listed| {
        let (resources, fresh) = match &listed.remote {
            None => (kinds_of(kinds, &group.name, &listed.version).map(discovered_resource).collect(), true),
            // Its last known resources, if it does not respond now.
            Some(registration) => match gathered.get(&registration.name) {
                Some(gathered) => (gathered.resources.to_vec(), gathered.fresh && registration.available),
                None => (Vec::new(), false),
            },
        };
        let freshness = if fresh { "Current" } else { "Stale" };
        json!({"version": listed.version, "resources": resources, "freshness": freshness})
    };
    let versions: Vec<Value> = group.versions.iter().map(version).collect();
    json!({"metadata": {"name": group.name, "creationTimestamp": null}, "versions": versions})
}

fn discovered_resource(kind: &'static Kind) -> Value {
    let gvk = |(kind, group, version): (&str, &str, &str)| json!({"group": group, "version": version, "kind": kind});
    let sub = |sub: Subresource| {
        let of = gvk((&sub.of.0, sub.of.1, sub.of.2));
        json!({"subresource": sub.name, "responseKind": of, "verbs": sub.verbs})
    };
    let mut resource = json!({
        "resource": kind.plural, "responseKind": gvk((kind.kind, kind.group, kind.version)),
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular, "verbs": verbs(kind),
    });
    for (key, names) in [("shortNames", kind.short_names()), ("categories", kind.categories())] {
        if !names.is_empty() {
            resource[key] = names.into();
        }
    }
    let subresources: Vec<Value> = subresources(kind).into_iter().map(sub).collect();
    if !subresources.is_empty() {
        resource["subresources"] = subresources.into();
    }
    resource
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwright_api::kinds;

    /// The same in every cluster.
    #[test]
    fn the_hash_of_a_stored_version_is_upstreams() {
        for (resource, hash) in [
            ("pods", "xPOwRZ+Yhw8="),
            ("configmaps", "qFsyl6wFWjQ="),
            ("secrets", "S6u1pOWzb84="),
            ("deployments.apps", "8aSe+NMegvE="),
        ] {
            let kind = kinds::lookup(resource).unwrap();
            assert_eq!(storage_version_hash(kind.stored()), hash, "{resource}");
        }
    }
}

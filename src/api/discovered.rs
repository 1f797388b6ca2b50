//! Discovery: group versions with their resources, parsed from aggregated discovery (`apidiscovery.k8s.io`).

use serde_json::Value;

/// The Accept header for the path `/apis`.
pub const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
pub const PATH: &str = "/apis";

/// A version of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Version {
    pub group: String,
    pub name: String,
    /// Whether its server could not be reached lately: its resources may be old or missing.
    pub stale: bool,
    pub resources: Vec<Resource>,
}

/// A resource of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resource {
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub namespaced: bool,
    pub verbs: Vec<String>,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub subresources: Vec<String>,
}

impl Version {
    /// `ext.example.com/v1`
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.name)
    }

    /// The unambiguous name of a resource in requests: `things.ext.example.com/v1`.
    pub fn name_of(&self, resource: &Resource) -> String {
        format!("{}.{}/{}", resource.plural, self.group, self.name)
    }
}

impl Resource {
    pub fn has(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|verb| self.verbs.iter().any(|own| own == verb))
    }
}

/// All versions, each group's preferred one first. `None`: it is not such a document, which older servers lack.
pub fn versions(document: &Value) -> Option<Vec<Version>> {
    if document["kind"] != "APIGroupDiscoveryList" {
        return None;
    }
    let of_group = |group: &Value| {
        let name = text(&group["metadata"]["name"]);
        let versions = group["versions"].as_array().cloned().unwrap_or_default();
        versions.into_iter().map(move |version| Version {
            group: name.clone(),
            name: text(&version["version"]),
            stale: version["freshness"] == "Stale",
            resources: version["resources"].as_array().into_iter().flatten().map(resource).collect(),
        })
    };
    Some(document["items"].as_array()?.iter().flat_map(of_group).collect())
}

fn resource(of: &Value) -> Resource {
    Resource {
        plural: text(&of["resource"]),
        singular: text(&of["singularResource"]),
        kind: text(&of["responseKind"]["kind"]),
        namespaced: of["scope"] == "Namespaced",
        verbs: texts(&of["verbs"]),
        short_names: texts(&of["shortNames"]),
        categories: texts(&of["categories"]),
        subresources: of["subresources"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|sub| text(&sub["subresource"]))
            .collect(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("").to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_is_read_as_far_as_it_says_something() {
        let document = json!({"kind": "APIGroupDiscoveryList", "items": [
            {"metadata": {"name": "ext.example.com"}, "versions": [
                {"version": "v1", "freshness": "Current", "resources": [
                    {"resource": "things", "singularResource": "thing", "scope": "Namespaced", "verbs": ["get", "list", 7],
                     "responseKind": {"kind": "Thing"}, "shortNames": ["th"], "subresources": [{"subresource": "scale"}]}, 8]},
                {"version": "v1beta1", "freshness": "Stale"},
            ]}, "nonsense",
        ]});
        let all = versions(&document).unwrap();
        assert_eq!(
            all.iter().map(|v| (v.api_version(), v.stale)).collect::<Vec<_>>(),
            [("ext.example.com/v1".to_owned(), false), ("ext.example.com/v1beta1".to_owned(), true)]
        );
        let thing = &all[0].resources[0];
        assert_eq!(
            (thing.kind.as_str(), thing.namespaced, thing.has(&["list"]), thing.has(&["list", "delete"])),
            ("Thing", true, true, false)
        );
        assert_eq!(
            (all[0].name_of(thing), &thing.subresources),
            ("things.ext.example.com/v1".to_owned(), &vec!["scale".to_owned()])
        );
        assert_eq!(versions(&json!({"kind": "APIGroupList", "groups": []})), None);
        assert_eq!(versions(&json!(null)), None);
    }
}

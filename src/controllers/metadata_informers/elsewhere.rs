//! The resources of extension API servers according to discovery: which can be followed, and what is unknown.
//!
//! Upstream's garbage collector follows everything that can be listed, watched and deleted, and its namespace controller deletes
//! everything that can be deleted (`GetDeletableResources`, `namespaced_resources_deleter.go`), each resource in its preferred
//! version.

use std::collections::BTreeSet;

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;

use podwright_api::{discovered::Version, kinds};

/// Whether a resource's name is that of another server's: `things.ext.example.com/v1`.
pub fn is_others(resource: &str) -> bool {
    resource.split_once('/').is_some_and(|(_, version)| !version.is_empty())
}

/// The remote group versions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Elsewhere {
    /// Resources that can be listed, watched and deleted.
    pub followed: Vec<Followed>,
    /// Namespaced resources that can be listed and deleted, but not watched, by their names in requests.
    pub unwatched: Vec<String>,
    /// Versions whose discovery failed: `ext.example.com/v1`.
    pub failing: Vec<String>,
    /// What in namespaces is followed, and not known as it is: there is more of it than is kept.
    pub full: Vec<String>,
}

/// A resource that can be followed.
#[derive(Clone, Debug, PartialEq)]
pub struct Followed {
    /// Its name in requests: `things.ext.example.com/v1`.
    pub resource: String,
    pub api_version: String,
    pub kind: String,
    pub namespaced: bool,
}

/// Whether an APIService registers an extension API server.
pub fn is_remote(service: &APIService) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.service.is_some())
}

/// The group and the version of an APIService.
pub fn served(service: &APIService) -> (&str, &str) {
    let spec = service.spec.as_ref();
    let (group, version) = (spec.and_then(|s| s.group.as_deref()), spec.and_then(|s| s.version.as_deref()));
    (group.unwrap_or_default(), version.unwrap_or_default())
}

/// Evaluates these versions: `remote` are those of extension API servers. Resources stored by this server are never remote,
/// whatever is registered.
pub fn sorted(versions: &[Version], remote: &[(String, String)]) -> Elsewhere {
    let mut found = Elsewhere::default();
    let mut seen = BTreeSet::new();
    let is_stored = |group: &str, version: &str| kinds::stored().any(|k| k.group == group && k.version == version);
    let of = |version: &&Version| {
        remote.iter().any(|(group, name)| *group == version.group && *name == version.name)
            && !is_stored(&version.group, &version.name)
    };
    for version in versions.iter().filter(of) {
        if version.stale {
            found.failing.push(version.api_version());
        }
        for resource in version.resources.iter().filter(|resource| resource.has(&["delete", "list"])) {
            // The first version with a resource is the preferred one.
            if resource.kind.is_empty() || !seen.insert((version.group.clone(), resource.plural.clone())) {
                continue;
            }
            let name = version.name_of(resource);
            match resource.has(&["watch"]) {
                true => found.followed.push(Followed {
                    resource: name,
                    api_version: version.api_version(),
                    kind: resource.kind.clone(),
                    namespaced: resource.namespaced,
                }),
                false if resource.namespaced => found.unwatched.push(name),
                false => {}
            }
        }
    }
    let told = |(group, name): &&(String, String)| versions.iter().any(|v| v.group == *group && v.name == *name);
    let untold = remote.iter().filter(|it| !told(it) && !is_stored(&it.0, &it.1));
    found.failing.extend(untold.map(|(group, name)| format!("{group}/{name}")));
    found.failing.sort();
    found
}

impl Elsewhere {
    /// Namespaced resources that can be deleted.
    pub fn namespaced(&self) -> impl Iterator<Item = &String> {
        let followed = self.followed.iter().filter(|it| it.namespaced).map(|it| &it.resource);
        followed.chain(&self.unwatched)
    }
}

/// That some versions could not be asked, or that they have more than is kept, in upstream's words.
pub fn failure(failing: &[String], full: &[String]) -> String {
    let stale = failing.iter().map(|version| format!("{version}: stale GroupVersion discovery: {version}"));
    let more = full.iter().map(|resource| format!("{resource}: there is more of it than is followed"));
    let each: Vec<String> = stale.chain(more).collect();
    format!(
        "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {}",
        each.len(),
        each.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwright_api::discovered::Resource;

    fn resource(plural: &str, namespaced: bool, verbs: &[&str]) -> Resource {
        let verbs = verbs.iter().map(|verb| verb.to_string()).collect();
        Resource { plural: plural.into(), kind: plural.to_uppercase(), namespaced, verbs, ..Resource::default() }
    }

    fn version(group: &str, name: &str, stale: bool, resources: Vec<Resource>) -> Version {
        Version { group: group.into(), name: name.into(), stale, resources }
    }

    #[test]
    fn what_can_be_deleted_is_followed_or_known() {
        const ALL: &[&str] = &["get", "list", "watch", "create", "delete"];
        let versions = [
            version("apps", "v1", false, vec![resource("deployments", true, ALL)]),
            version("a.io", "v2", false, vec![resource("things", true, ALL), resource("lists", true, &["list"])]),
            version("a.io", "v1", false, vec![resource("things", true, ALL), resource("olds", false, ALL)]),
            version(
                "b.io",
                "v1",
                true,
                vec![resource("blind", true, &["list", "delete"]), resource("far", false, &["delete", "list"])],
            ),
            version("crd.io", "v1", false, vec![resource("widgets", true, ALL)]),
        ];
        let remote = ["apps/v1", "a.io/v2", "a.io/v1", "b.io/v1", "c.io/v1", "metrics.k8s.io/v1beta1"];
        let remote = remote.map(|it| it.split_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap());
        let found = sorted(&versions, &remote);
        let names = |found: &Elsewhere| found.followed.iter().map(|it| it.resource.clone()).collect::<Vec<_>>();
        assert_eq!(names(&found), ["things.a.io/v2", "olds.a.io/v1"]);
        assert_eq!(found.unwatched, ["blind.b.io/v1"]);
        assert_eq!(found.namespaced().collect::<Vec<_>>(), ["things.a.io/v2", "blind.b.io/v1"]);
        assert_eq!(found.failing, ["b.io/v1", "c.io/v1", "metrics.k8s.io/v1beta1"]);
        assert_eq!(sorted(&versions, &[]), Elsewhere::default());
    }

    #[test]
    fn a_failure_is_told_in_upstreams_words() {
        let told = "Discovery failed for some groups, 2 failing: unable to retrieve the complete list of server APIs: \
                    a.io/v1: stale GroupVersion discovery: a.io/v1, b.io/v1: stale GroupVersion discovery: b.io/v1";
        assert_eq!(failure(&["a.io/v1".into(), "b.io/v1".into()], &[]), told);
        let told = "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: \
                    things.a.io/v1: there is more of it than is followed";
        assert_eq!(failure(&[], &["things.a.io/v1".into()]), told);
    }
}

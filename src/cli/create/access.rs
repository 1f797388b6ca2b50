//! `create role`, `clusterrole`, `rolebinding` and `clusterrolebinding`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::object::{named, with};
use crate::{error::Failure, target};
use podwright_api::selector::LabelSelector;

const RBAC: &str = "rbac.authorization.k8s.io";
const VERSION: &str = "rbac.authorization.k8s.io/v1";

/// What a role allows with objects.
#[derive(clap::Args)]
struct Rules {
    /// Verbs that apply to the resources contained in the rule: get, list, watch, create, update, patch, delete, *
    #[arg(long, value_delimiter = ',', value_name = "VERB")]
    verb: Vec<String>,
    /// Resources that the rule applies to, as pods, deployments.apps, pods/log
    #[arg(long, value_delimiter = ',', value_name = "RESOURCE")]
    resource: Vec<String>,
    /// Resource names in the allow list that the rule applies to
    #[arg(long, value_name = "NAME")]
    resource_name: Vec<String>,
}

#[derive(clap::Args)]
pub struct Role {
    /// The name of the object to create
    name: String,
    #[command(flatten)]
    rules: Rules,
}

#[derive(clap::Args)]
pub struct ClusterRole {
    /// The name of the object to create
    name: String,
    #[command(flatten)]
    rules: Rules,
    /// Partial URLs that users should have access to, as /metrics
    #[arg(long = "non-resource-url", value_name = "PATH")]
    paths: Vec<String>,
    /// Label selector for combining ClusterRoles
    #[arg(long, value_name = "LABELS", conflicts_with_all = ["verb", "resource", "resource_name", "paths"])]
    aggregation_rule: Option<String>,
}

/// Who has what a role allows.
#[derive(clap::Args)]
struct Subjects {
    /// User names to bind to the role
    #[arg(long, value_name = "NAME")]
    user: Vec<String>,
    /// Groups to bind to the role
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// Service accounts to bind to the role, as NAMESPACE:NAME
    #[arg(long, value_name = "NAMESPACE:NAME")]
    serviceaccount: Vec<String>,
}

#[derive(clap::Args)]
pub struct RoleBinding {
    /// The name of the object to create
    name: String,
    /// ClusterRole that this RoleBinding should reference
    #[arg(long, value_name = "NAME")]
    clusterrole: Option<String>,
    /// Role that this RoleBinding should reference
    #[arg(long, value_name = "NAME")]
    role: Option<String>,
    #[command(flatten)]
    subjects: Subjects,
}

#[derive(clap::Args)]
pub struct ClusterRoleBinding {
    /// The name of the object to create
    name: String,
    /// ClusterRole that this ClusterRoleBinding should reference
    #[arg(long, value_name = "NAME", required = true)]
    clusterrole: String,
    #[command(flatten)]
    subjects: Subjects,
}

impl Rules {
    /// The arguments that name resources, except those for all of a group.
    fn named(&self) -> impl Iterator<Item = &str> {
        let words = self.resource.iter().map(|word| word.split('/').next().unwrap_or(word));
        words.filter(|word| !word.is_empty() && !word.starts_with('*'))
    }

    /// One rule for each API group, in order of the groups' names.
    fn of_resources(&self) -> Result<Vec<Value>, Failure> {
        if self.verb.is_empty() {
            return Err(Failure::usage("at least one verb must be specified"));
        }
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for word in &self.resource {
            let (group, resource) = resolved(word)?;
            let resources = groups.entry(group).or_default();
            if !resources.contains(&resource) {
                resources.push(resource);
            }
        }
        let rule = |(group, resources): (String, Vec<String>)| {
            let mut rule = json!({ "apiGroups": [group], "resources": resources, "verbs": self.verbs() });
            if !self.resource_name.is_empty() {
                rule["resourceNames"] = json!(self.resource_name);
            }
            rule
        };
        Ok(groups.into_iter().map(rule).collect())
    }

    /// Distinct verbs; `*` is all of them.
    fn verbs(&self) -> Vec<&str> {
        if self.verb.iter().any(|verb| verb == "*") {
            return vec!["*"];
        }
        let mut verbs: Vec<&str> = Vec::new();
        for verb in &self.verb {
            if !verbs.contains(&verb.as_str()) {
                verbs.push(verb);
            }
        }
        verbs
    }
}

/// The group and name of a resource argument: `deploy`, `deployments.apps`, `pods/log`, `*`, `*.apps`.
fn resolved(word: &str) -> Result<(String, String), Failure> {
    let (resource, part) = word.split_once('/').map_or((word, ""), |(resource, part)| (resource, part));
    let with_part = |plural: &str| if part.is_empty() { plural.to_owned() } else { format!("{plural}/{part}") };
    if resource.is_empty() {
        return Err(Failure::usage(format!("resource with no name: {word:?}")));
    }
    // As upstream: all resources of a group, by default the core group.
    if let Some(group) = resource.strip_prefix('*') {
        return Ok((group.trim_start_matches('.').to_owned(), with_part("*")));
    }
    let kind = target::kind(resource)?;
    Ok((kind.group.to_owned(), with_part(kind.plural)))
}

impl Role {
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        self.rules.named()
    }

    pub fn object(&self) -> Result<Value, Failure> {
        if self.rules.resource.is_empty() {
            return Err(Failure::usage("at least one resource must be specified"));
        }
        Ok(with(named(VERSION, "Role", &self.name), json!({ "rules": self.rules.of_resources()? })))
    }
}

impl ClusterRole {
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        self.rules.named()
    }

    pub fn object(&self) -> Result<Value, Failure> {
        let object = named(VERSION, "ClusterRole", &self.name);
        if let Some(labels) = &self.aggregation_rule {
            let selectors = json!([{ "matchLabels": match_labels(labels)? }]);
            return Ok(with(
                object,
                json!({ "aggregationRule": { "clusterRoleSelectors": selectors }, "rules": null }),
            ));
        }
        if self.rules.resource.is_empty() && self.paths.is_empty() {
            return Err(Failure::usage("one of resource or nonResourceURL must be specified"));
        }
        let mut rules = self.rules.of_resources()?;
        if !self.paths.is_empty() {
            rules.push(json!({ "nonResourceURLs": self.paths, "verbs": self.rules.verbs() }));
        }
        Ok(with(object, json!({ "rules": rules })))
    }
}

impl RoleBinding {
    pub fn object(&self) -> Result<Value, Failure> {
        let (kind, role) = match (&self.clusterrole, &self.role) {
            (Some(role), None) => ("ClusterRole", role),
            (None, Some(role)) => ("Role", role),
            _ => return Err(Failure::usage("exactly one of clusterrole or role must be specified")),
        };
        binding(named(VERSION, "RoleBinding", &self.name), kind, role, &self.subjects)
    }
}

impl ClusterRoleBinding {
    pub fn object(&self) -> Result<Value, Failure> {
        binding(named(VERSION, "ClusterRoleBinding", &self.name), "ClusterRole", &self.clusterrole, &self.subjects)
    }
}

fn binding(object: Value, kind: &str, role: &str, subjects: &Subjects) -> Result<Value, Failure> {
    let of = |kind: &'static str| move |name: &String| json!({ "apiGroup": RBAC, "kind": kind, "name": name });
    let mut all: Vec<Value> = subjects.user.iter().map(of("User")).collect();
    all.extend(subjects.group.iter().map(of("Group")));
    for account in &subjects.serviceaccount {
        let Some((namespace, name)) = account.split_once(':').filter(|(a, b)| !a.is_empty() && !b.is_empty()) else {
            return Err(Failure::usage("serviceaccount must be <namespace>:<name>"));
        };
        all.push(json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace }));
    }
    let mut fields = json!({ "roleRef": { "apiGroup": RBAC, "kind": kind, "name": role } });
    if !all.is_empty() {
        fields["subjects"] = Value::Array(all);
    }
    Ok(with(object, fields))
}

/// `a=b,c=d` as a selector's `matchLabels`.
pub(super) fn match_labels(text: &str) -> Result<Value, Failure> {
    // An invalid selector is not a list of labels either.
    LabelSelector::parse(text)?;
    let pairs = text
        .split(',')
        .map(|pair| pair.split_once('=').map(|(key, value)| (key.trim(), value.trim_start_matches('=').trim())));
    let pairs: Option<BTreeMap<&str, &str>> = pairs.collect();
    pairs.map(|pairs| json!(pairs)).ok_or_else(|| Failure::usage(format!("expected KEY=VALUE,...: {text:?}")))
}

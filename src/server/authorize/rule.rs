//! One rule of a role: what it allows, its parts, and its text form.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::attributes::Attributes;

/// A grant of a role; upstream's `rbac/v1.PolicyRule`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub api_groups: Vec<String>,
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub non_resource_urls: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub resource_names: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub resources: Vec<String>,
    #[serde(deserialize_with = "list")]
    pub verbs: Vec<String>,
}

/// A null is an empty list.
fn list<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::<Vec<String>>::deserialize(deserializer)?.unwrap_or_default())
}

impl Rule {
    pub fn allows(&self, asked: &Attributes<'_>) -> bool {
        if !has(&self.verbs, asked.verb) {
            return false;
        }
        if asked.is_path() {
            return self.non_resource_urls.iter().any(|url| url_covers(url, asked.path));
        }
        has(&self.api_groups, asked.group)
            && self.resources.iter().any(|resource| is_resource(resource, asked.resource, asked.subresource))
            && (self.resource_names.is_empty() || self.resource_names.iter().any(|name| name == asked.name))
    }

    /// The number of its parts.
    pub(super) fn size(&self) -> usize {
        let resources = self.api_groups.len().saturating_mul(self.resources.len());
        let each =
            resources.saturating_mul(self.resource_names.len().max(1)).saturating_add(self.non_resource_urls.len());
        each.saturating_mul(self.verbs.len())
    }

    /// The most bytes of one of its parts, which has a word of each list.
    pub(super) fn longest(&self) -> usize {
        let Rule { api_groups, non_resource_urls, resource_names, resources, verbs } = self;
        let lists = [api_groups, non_resource_urls, resource_names, resources, verbs];
        lists.into_iter().map(|list| list.iter().map(String::len).max().unwrap_or(0)).sum()
    }

    /// Whether this rule covers another one, or one of its `parts`.
    #[cfg(test)]
    pub(super) fn covers(&self, part: &Rule) -> bool {
        let each = |parts: &[String], mine: &dyn Fn(&str) -> bool| parts.iter().all(|part| mine(part));
        let names = match part.resource_names.as_slice() {
            [] => self.resource_names.is_empty(),
            names => self.resource_names.is_empty() || names.iter().all(|name| self.resource_names.contains(name)),
        };
        names
            && each(&part.verbs, &|verb| has(&self.verbs, verb))
            && each(&part.api_groups, &|group| has(&self.api_groups, group))
            && each(&part.resources, &|resource| self.has_resource(resource))
            && each(&part.non_resource_urls, &|url| self.non_resource_urls.iter().any(|mine| url_covers(mine, url)))
    }

    #[cfg(test)]
    fn has_resource(&self, asked: &str) -> bool {
        let (resource, subresource) = asked.split_once('/').unwrap_or((asked, ""));
        self.resources.iter().any(|mine| is_resource(mine, resource, subresource))
    }

    /// The number of its words.
    pub fn words(&self) -> usize {
        let Rule { api_groups, non_resource_urls, resource_names, resources, verbs } = self;
        [api_groups, non_resource_urls, resource_names, resources, verbs].into_iter().map(Vec::len).sum()
    }

    /// The rule as single grants: one verb on one resource (with one name) or path each.
    ///
    /// Their number is a product: check [`Rule::size`] before.
    pub(super) fn parts(&self) -> Vec<Rule> {
        let one = |word: &String| vec![word.clone()];
        let mut parts = Vec::new();
        for verb in &self.verbs {
            for url in &self.non_resource_urls {
                parts.push(Rule { non_resource_urls: one(url), verbs: one(verb), ..Rule::default() });
            }
        }
        for group in &self.api_groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let part =
                        Rule { api_groups: one(group), resources: one(resource), verbs: one(verb), ..Rule::default() };
                    match self.resource_names.as_slice() {
                        [] => parts.push(part),
                        names => parts.extend(names.iter().map(|n| Rule { resource_names: one(n), ..part.clone() })),
                    }
                }
            }
        }
        parts
    }
}

/// Merges rules that differ only in their verbs.
pub fn compact(rules: impl IntoIterator<Item = Rule>) -> Vec<Rule> {
    let mut out: Vec<Rule> = Vec::new();
    let mut places: HashMap<[Vec<String>; 3], (usize, HashSet<String>)> = HashMap::new();
    for rule in rules {
        let is_simple = rule.resources.len() == 1
            && rule.api_groups.len() == 1
            && rule.resource_names.len() <= 1
            && rule.non_resource_urls.is_empty();
        if !is_simple {
            out.push(rule);
            continue;
        }
        let key = [rule.resources.clone(), rule.api_groups.clone(), rule.resource_names.clone()];
        match places.get_mut(&key) {
            Some((at, known)) => {
                let new = rule.verbs.into_iter().filter(|verb| known.insert(verb.clone()));
                out[*at].verbs.extend(new);
            }
            None => {
                places.insert(key, (out.len(), rule.verbs.iter().cloned().collect()));
                out.push(rule);
            }
        }
    }
    out
}

/// As upstream's errors show a rule: `{APIGroups:["apps"], Resources:["deployments"], Verbs:["get" "list"]}`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        let shown = fields.into_iter().filter(|(_, list)| !list.is_empty());
        let shown: Vec<String> = shown.map(|(name, list)| format!("{name}:{}", quoted(list))).collect();
        write!(f, "{{{}}}", shown.join(", "))
    }
}

/// `["a" "b"]`, as Go prints a list of strings.
pub fn quoted(list: &[String]) -> String {
    let each: Vec<String> = list.iter().map(|word| format!("{word:?}")).collect();
    format!("[{}]", each.join(" "))
}

fn has(list: &[String], word: &str) -> bool {
    list.iter().any(|mine| mine == "*" || mine == word)
}

/// `*` is every resource with all its subresources, `*/scale` that subresource of all.
fn is_resource(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == "*" {
        return true;
    }
    match rule.split_once('/') {
        None => subresource.is_empty() && rule == resource,
        // A resource that ends with a slash matches nothing, as upstream.
        Some((of, sub)) => !sub.is_empty() && sub == subresource && (of == "*" || of == resource),
    }
}

pub(super) fn url_covers(rule: &str, path: &str) -> bool {
    rule == path || rule.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
}

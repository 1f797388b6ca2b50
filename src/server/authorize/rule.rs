//! One rule of a role: what it allows, which other rules it covers, and how it is told.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Attributes;
use super::rule_index::{Asked, Patience, RuleIndex, TooMuch};

/// What a role grants; upstream's `rbac/v1.PolicyRule`.
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

    /// How many parts it has.
    fn size(&self) -> usize {
        let resources = self.api_groups.len().saturating_mul(self.resources.len());
        let each =
            resources.saturating_mul(self.resource_names.len().max(1)).saturating_add(self.non_resource_urls.len());
        each.saturating_mul(self.verbs.len())
    }

    /// How many bytes a part of it has at most: each has a word of each list.
    fn longest(&self) -> usize {
        let Rule { api_groups, non_resource_urls, resource_names, resources, verbs } = self;
        let lists = [api_groups, non_resource_urls, resource_names, resources, verbs];
        lists.into_iter().map(|list| list.iter().map(String::len).max().unwrap_or(0)).sum()
    }

    /// Whether whoever has this rule has the other one too: all of it, or one of its `parts`.
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

    /// One of its `parts`, as a question; `None`: it is of several words, or of none.
    fn asked(&self) -> Option<Asked<'_>> {
        let verb = self.verbs.first().filter(|_| self.verbs.len() == 1)?;
        if let [path] = self.non_resource_urls.as_slice() {
            return self.resources.is_empty().then_some(Asked::Path { verb, path });
        }
        let (group, resource) = (self.api_groups.first()?, self.resources.first()?);
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let name = self.resource_names.first().map(String::as_str);
        Some(Asked::Resource { verb, group, resource, subresource, name })
    }

    /// How many words it has.
    pub fn words(&self) -> usize {
        let Rule { api_groups, non_resource_urls, resource_names, resources, verbs } = self;
        [api_groups, non_resource_urls, resource_names, resources, verbs].into_iter().map(Vec::len).sum()
    }

    /// The rule as single grants: one verb on one resource (of one name) or path each.
    ///
    /// Their number is a product: ask [`Rule::size`] before.
    fn parts(&self) -> Vec<Rule> {
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

/// So many parts are looked at one by one, of so many bytes together. Rules beyond that must each be covered by one rule as they are.
const MOST_PARTS: usize = 8192;
const MOST_BYTES: usize = 4 << 20;

/// How often it may be looked whether a rule has a word: some tenths of a second.
const MOST_LOOKS: usize = 2_000_000;

/// The grants of `wanted` that `owned` does not cover, gathered by resource. An error: there is too much to compare.
pub fn missing<'r>(owned: impl IntoIterator<Item = &'r Rule>, wanted: &[Rule]) -> Result<Vec<Rule>, TooMuch> {
    let (owned, mut patience) = (RuleIndex::<&str>::from_iter(owned), Patience(MOST_LOOKS));
    let (mut left, mut bytes, mut parts, mut whole) = (MOST_PARTS, MOST_BYTES, Vec::new(), Vec::new());
    for rule in wanted {
        let rest = left.checked_sub(rule.size()).zip(bytes.checked_sub(rule.size().saturating_mul(rule.longest())));
        match rest {
            Some(rest) => {
                (left, bytes) = rest;
                for part in rule.parts() {
                    let covered = match part.asked() {
                        Some(asked) => owned.allow(asked, &mut patience)?,
                        None => owned.cover(&part, &mut patience)?,
                    };
                    parts.extend((!covered).then_some(part));
                }
            }
            None if owned.cover(rule, &mut patience)? => {}
            None => whole.push(rule.clone()),
        }
    }
    let mut missing = compact(parts);
    missing.extend(whole);
    Ok(missing)
}

/// Rules that differ by their verbs alone become one.
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
        // What ends with a slash names nothing, as upstream has it.
        Some((of, sub)) => !sub.is_empty() && sub == subresource && (of == "*" || of == resource),
    }
}

pub(super) fn url_covers(rule: &str, path: &str) -> bool {
    rule == path || rule.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(groups: &str, resources: &str, names: &str, verbs: &str) -> Rule {
        let split = |text: &str| text.split(',').filter(|s| !s.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        let api_groups = groups.split(',').map(str::to_owned).collect();
        Rule {
            api_groups,
            resources: split(resources),
            resource_names: split(names),
            verbs: split(verbs),
            ..Rule::default()
        }
    }

    #[test]
    fn what_is_missing_is_told_by_resource() {
        let owned = [rule("", "pods", "", "get,list"), rule("apps", "*", "x", "get")];
        let wanted = [
            rule("", "pods,pods/log", "", "get,watch,delete"),
            rule("apps", "deployments", "x,y", "get"),
            rule("apps", "deployments", "", "get"),
        ];
        let told: Vec<String> = missing(&owned, &wanted).unwrap().iter().map(Rule::to_string).collect();
        assert_eq!(
            told,
            [
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["watch" "delete"]}"#,
                r#"{APIGroups:[""], Resources:["pods/log"], Verbs:["get" "watch" "delete"]}"#,
                r#"{APIGroups:["apps"], Resources:["deployments"], ResourceNames:["y"], Verbs:["get"]}"#,
                r#"{APIGroups:["apps"], Resources:["deployments"], Verbs:["get"]}"#,
            ]
        );
        assert!(missing(&[rule("*", "*", "", "*")], &wanted).unwrap().is_empty());
        assert!(missing(&[rule("", "*/scale", "", "get")], &[rule("", "pods/scale", "", "get")]).unwrap().is_empty());
        // Each part would have the long word.
        let long = Rule { api_groups: vec!["x".repeat(1 << 20)], ..rule("", "a,b,c,d,e", "", "get") };
        assert_eq!(missing(&[], std::slice::from_ref(&long)).unwrap(), [long.clone()], "it is looked at as it is");
        assert!(missing(&[rule("*", "*", "", "*")], &[long]).unwrap().is_empty());
        // Upstream: a resource that ends with a slash is none.
        for nothing in ["*/", "pods/"] {
            for wanted in ["*", "pods", "*/log"] {
                assert_eq!(missing(&[rule("*", nothing, "", "*")], &[rule("", wanted, "", "get")]).unwrap().len(), 1);
            }
        }
        let all_urls = Rule { non_resource_urls: vec!["*".into()], verbs: vec!["*".into()], ..Rule::default() };
        let some = Rule { non_resource_urls: vec!["/a*".into()], verbs: vec!["get".into()], ..Rule::default() };
        assert!(missing(std::slice::from_ref(&all_urls), std::slice::from_ref(&some)).unwrap().is_empty());
        assert_eq!(missing(&[some], &[all_urls]).unwrap().len(), 1);
    }

    /// As many rules as fit in some roles, of which none has both of the words that are asked for.
    #[test]
    fn comparing_takes_no_longer_than_there_is_to_compare() {
        let owned: Vec<Rule> = (0..50_000)
            .map(|n| match n % 2 {
                0 => rule("", &format!("r{n}"), "", &format!("get,v{n}")),
                _ => rule("", &format!("pods,s{n}"), "", &format!("list,v{n}")),
            })
            .collect();
        let names: Vec<String> = (0..8_000).map(|n| format!("n{n}")).collect();
        let wanted = [rule("", "pods", &names.join(","), "get")];
        let begun = std::time::Instant::now();
        assert_eq!(missing(&owned, &wanted), Err(TooMuch));
        let own = [rule("", "r2,s1", "", "get,list"), rule("", "pods", "", "list"), rule("", "s1", "", "get")];
        assert_eq!(
            missing(&owned, &own).unwrap().iter().map(Rule::to_string).collect::<Vec<_>>(),
            [
                r#"{APIGroups:[""], Resources:["r2"], Verbs:["list"]}"#,
                r#"{APIGroups:[""], Resources:["s1"], Verbs:["get"]}"#,
            ]
        );
        // So are rules with too many parts to be looked at one by one.
        let many = rule("", &(0..50_000).map(|n| format!("r{n}")).collect::<Vec<_>>().join(","), "", "get");
        assert_eq!(missing(&owned, &[many]).map(|missing| missing.len()), Ok(1));
        assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    }
}

//! An index of many rules by their words: authors of roles choose how many rules there are, and how long.
//!
//! Each word has an ordered list of the rules that contain it. A grant is looked up by a word of each kind (a verb, an API group, a
//! resource, perhaps a name): the shortest list is scanned, and the others are searched. Lookups are counted and limited, so that
//! no question takes too long.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use super::attributes::Attributes;
use super::rule::{Rule, url_covers};

/// The rules that contain a word.
type Words<S> = HashMap<S, Vec<u32>>;

/// An index of rules. `S` is the type of their words.
pub(super) struct RuleIndex<S> {
    verbs: Words<S>,
    groups: Words<S>,
    /// As in rules: `pods`, `pods/exec`, `*/scale` for all resources, `*` for all. What ends with `/` matches nothing.
    resources: Words<Box<str>>,
    names: Words<S>,
    /// The rules without resource names, which apply to all objects.
    nameless: Vec<u32>,
    /// Paths, and prefixes with their `*`.
    urls: Vec<(S, u32)>,
}

/// How many more lookups an answer may take.
pub(super) struct Patience(pub usize);

/// It would take too many lookups.
#[derive(Debug, PartialEq)]
pub(crate) struct TooMuch;

impl Patience {
    fn spend(&mut self, looks: usize) -> Result<(), TooMuch> {
        self.0 = self.0.checked_sub(looks).ok_or(TooMuch)?;
        Ok(())
    }
}

/// One grant in question.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked<'a> {
    Resource { verb: &'a str, group: &'a str, resource: &'a str, subresource: &'a str, name: Option<&'a str> },
    Path { verb: &'a str, path: &'a str },
}

impl<'a> Asked<'a> {
    pub fn of(asked: &Attributes<'a>) -> Asked<'a> {
        let &Attributes { verb, group, resource, subresource, name, path, .. } = asked;
        match asked.is_path() {
            true => Asked::Path { verb, path },
            false => Asked::Resource { verb, group, resource, subresource, name: Some(name) },
        }
    }
}

impl<'r, S: Borrow<str> + Eq + Hash + From<&'r str> + Clone> FromIterator<&'r Rule> for RuleIndex<S> {
    fn from_iter<I: IntoIterator<Item = &'r Rule>>(rules: I) -> RuleIndex<S> {
        let (verbs, groups, resources, names, nameless, urls) = Default::default();
        let mut grants = RuleIndex { verbs, groups, resources, names, nameless, urls };
        let mut seen = std::collections::HashSet::new();
        // The same rule in many roles counts once.
        for (id, rule) in (0..).zip(rules.into_iter().filter(|rule| seen.insert(*rule))) {
            let add = |words: &mut Words<S>, all: &'r [String]| {
                all.iter().for_each(|word| note(words.entry(S::from(word)).or_default(), id));
            };
            add(&mut grants.verbs, &rule.verbs);
            add(&mut grants.groups, &rule.api_groups);
            add(&mut grants.names, &rule.resource_names);
            rule.resources
                .iter()
                .for_each(|named| note(grants.resources.entry(named.as_str().into()).or_default(), id));
            if rule.resource_names.is_empty() {
                grants.nameless.push(id);
            }
            grants.urls.extend(rule.non_resource_urls.iter().map(|url| (S::from(url), id)));
        }
        grants
    }
}

/// Adds a rule to a word's list, without duplicates.
fn note(rules: &mut Vec<u32>, id: u32) {
    if rules.last() != Some(&id) {
        rules.push(id);
    }
}

impl<S: Borrow<str> + Eq + Hash> RuleIndex<S> {
    /// Whether a rule allows it.
    pub fn allow(&self, asked: Asked<'_>, patience: &mut Patience) -> Result<bool, TooMuch> {
        match asked {
            Asked::Path { verb, path } => {
                let verbs = [of(&self.verbs, verb), of(&self.verbs, "*")];
                patience.spend(self.urls.len())?;
                let has = |(url, id): &(S, u32)| url_covers(url.borrow(), path) && has(&verbs, *id);
                Ok(self.urls.iter().any(has))
            }
            Asked::Resource { verb, group, resource, subresource, name } => {
                let resources = self.resources(resource, subresource);
                let named = name.map_or(&[][..], |name| of(&self.names, name));
                let kinds: [&[&[u32]]; 4] = [
                    &[of(&self.verbs, verb), of(&self.verbs, "*")],
                    &[of(&self.groups, group), of(&self.groups, "*")],
                    &resources,
                    &[named, &self.nameless],
                ];
                let length = |lists: &&[&[u32]]| lists.iter().map(|list| list.len()).sum::<usize>();
                let Some(fewest) = kinds.iter().copied().min_by_key(length) else { return Ok(false) };
                for id in fewest.iter().flat_map(|list| list.iter()) {
                    patience.spend(1)?;
                    if kinds.iter().all(|lists| has(lists, *id)) {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }

    /// Whether a single rule covers another one. (Coverage by several together is not found.)
    pub fn cover(&self, rule: &Rule, patience: &mut Patience) -> Result<bool, TooMuch> {
        let mut left: Option<Vec<u32>> = None;
        let both = |lists: &[&[u32]]| lists.concat();
        for verb in &rule.verbs {
            narrow(&mut left, both(&[of(&self.verbs, verb), of(&self.verbs, "*")]), patience)?;
        }
        for group in &rule.api_groups {
            narrow(&mut left, both(&[of(&self.groups, group), of(&self.groups, "*")]), patience)?;
        }
        for named in &rule.resources {
            let (resource, subresource) = named.split_once('/').unwrap_or((named, ""));
            narrow(&mut left, both(&self.resources(resource, subresource)), patience)?;
        }
        match rule.resource_names.as_slice() {
            [] => narrow(&mut left, self.nameless.clone(), patience)?,
            names => {
                for name in names {
                    narrow(&mut left, both(&[of(&self.names, name), &self.nameless]), patience)?;
                }
            }
        }
        for path in &rule.non_resource_urls {
            patience.spend(self.urls.len())?;
            let covers = |(url, id): &(S, u32)| url_covers(url.borrow(), path).then_some(*id);
            narrow(&mut left, self.urls.iter().filter_map(covers).collect(), patience)?;
        }
        Ok(left.is_some_and(|left| !left.is_empty()))
    }

    fn resources(&self, resource: &str, subresource: &str) -> [&[u32]; 3] {
        let by = |key: &str| self.resources.get(key).map_or(&[][..], Vec::as_slice);
        match subresource {
            "" => [by(resource), &[], by("*")],
            _ => [by(&format!("{resource}/{subresource}")), by(&format!("*/{subresource}")), by("*")],
        }
    }
}

/// Intersects the rules with these.
fn narrow(left: &mut Option<Vec<u32>>, mut rules: Vec<u32>, patience: &mut Patience) -> Result<(), TooMuch> {
    patience.spend(1 + rules.len() + left.as_ref().map_or(0, Vec::len))?;
    rules.sort_unstable();
    rules.dedup();
    match left {
        None => *left = Some(rules),
        Some(left) => left.retain(|id| rules.binary_search(id).is_ok()),
    }
    Ok(())
}

fn of<'w, S: Borrow<str> + Eq + Hash>(words: &'w Words<S>, word: &str) -> &'w [u32] {
    words.get(word).map_or(&[], Vec::as_slice)
}

fn has(lists: &[&[u32]], id: u32) -> bool {
    lists.iter().any(|list| list.binary_search(&id).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwright_api::{Env, User};

    const WORDS: &[&[&str]] = &[
        &["get", "list", "*"],
        &["", "apps", "*"],
        &["pods", "pods/", "pods/log", "*/log", "*/", "*", "a/b/c"],
        &["x", "y", ""],
        &["/a", "/a*", "*", "/ab/*"],
    ];

    /// The index agrees with each rule's own answer, for any rules.
    #[test]
    fn the_index_says_what_the_rules_say() {
        let env = Env::simulated(jiff::Timestamp::UNIX_EPOCH, 7);
        let pick = |of: usize| WORDS[of][env.below(WORDS[of].len() as u64) as usize].to_owned();
        let some = |of: usize, most: u64| (0..env.below(most + 1)).map(|_| pick(of)).collect::<Vec<_>>();
        for _ in 0..3_000 {
            let rule = || Rule {
                verbs: some(0, 2),
                api_groups: some(1, 2),
                resources: some(2, 3),
                resource_names: some(3, 2),
                non_resource_urls: some(4, 1),
            };
            let rules: Vec<Rule> = (0..env.below(5)).map(|_| rule()).collect();
            let (grants, mut patience) = (RuleIndex::<&str>::from_iter(&rules), Patience(1_000_000));
            let user = User::new("u", Vec::<String>::new());
            let (verb, group, resource, name, path) = (pick(0), pick(1), pick(2), pick(3), pick(4));
            let (plain, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
            let asked = Attributes { subresource, name: &name, ..Attributes::new(&user, &verb, &group, plain) };
            for asked in [asked, Attributes::of_path(&user, &verb, &path)] {
                let allowed = rules.iter().any(|rule| rule.allows(&asked));
                assert_eq!(grants.allow(Asked::of(&asked), &mut patience), Ok(allowed), "{asked:?} of {rules:?}");
            }
            let whole = rule();
            let covered = rules.iter().any(|rule| rule.covers(&whole));
            assert_eq!(grants.cover(&whole, &mut patience), Ok(covered), "{whole} by {rules:?}");
        }
    }
}

//! What objects grant: RBAC objects to subjects, and Pods to their nodes. They are parsed once, when the cache receives them,
//! before any request depends on them.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::attributes::Attributes;
use super::needs::Needs;
use super::rule::Rule;
use super::rule_index::{Asked, Patience, RuleIndex};
use podwright_api::selector::LabelSelector;
use podwright_api::{Kind, User, kinds};

pub const GROUP: &str = "rbac.authorization.k8s.io";
/// A role with fewer words is searched as fast as an index.
const FEW_WORDS: usize = 64;

/// What one object grants.
#[derive(Clone, Debug, Default)]
pub(crate) enum Rights {
    /// It grants nothing, or is damaged: stored objects were validated.
    #[default]
    None,
    Role(Arc<Role>),
    Binding(Arc<Binding>),
    /// For a large Pod on a node: what its agent may read for it.
    Needs(Arc<Needs>),
}

impl Rights {
    /// `is_bound`: whether it is a large Pod with a node.
    pub fn of(kind: &Kind, namespace: &str, is_bound: bool, bytes: &[u8]) -> Rights {
        match (kind.group, kind.plural) {
            ("", "pods") if is_bound => Needs::of(bytes).map_or(Rights::None, |needs| Rights::Needs(Arc::new(needs))),
            (GROUP, "roles" | "clusterroles") => {
                #[derive(Deserialize)]
                #[serde(rename_all = "camelCase")]
                struct Stored {
                    #[serde(default)]
                    rules: Option<Vec<Rule>>,
                    #[serde(default)]
                    aggregation_rule: Option<Value>,
                }
                let Ok(stored) = serde_json::from_slice::<Stored>(bytes) else { return Rights::None };
                let gathers = stored.aggregation_rule.map(|rule| selectors_of(&rule));
                Rights::Role(Arc::new(Role { gathers, ..Role::of(stored.rules.unwrap_or_default()) }))
            }
            (GROUP, "rolebindings" | "clusterrolebindings") => {
                Binding::of(namespace, bytes).map_or(Rights::None, |binding| Rights::Binding(Arc::new(binding)))
            }
            _ => Rights::None,
        }
    }
}

/// The selectors of an `aggregationRule`; an invalid one matches nothing.
pub(super) fn selectors_of(rule: &Value) -> Vec<LabelSelector> {
    let all = rule["clusterRoleSelectors"].as_array().into_iter().flatten();
    all.filter_map(|selector| LabelSelector::from_json(selector).ok()).collect()
}

/// What a role grants.
#[derive(Default)]
pub(crate) struct Role {
    pub rules: Vec<Rule>,
    /// The number of words in its rules.
    pub words: usize,
    /// For an aggregated role: the selectors of the roles whose rules it aggregates.
    pub gathers: Option<Vec<LabelSelector>>,
    /// If there are many.
    index: Option<RuleIndex<Box<str>>>,
}

impl std::fmt::Debug for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.rules.fmt(f)
    }
}

impl Role {
    pub fn of(rules: Vec<Rule>) -> Role {
        let words = rules.iter().map(Rule::words).sum();
        let index = (words > FEW_WORDS).then(|| RuleIndex::from_iter(&rules));
        Role { rules, words, gathers: None, index }
    }

    pub fn allows(&self, asked: &Attributes<'_>) -> bool {
        match &self.index {
            // A role is short enough that the limit is never reached.
            Some(index) => index.allow(Asked::of(asked), &mut Patience(usize::MAX)) == Ok(true),
            None => self.rules.iter().any(|rule| rule.allows(asked)),
        }
    }
}

/// A binding: its role's key, and its distinct subjects.
#[derive(Debug)]
pub(crate) struct Binding {
    /// "": cluster-wide.
    pub namespace: Box<str>,
    pub role: Arc<str>,
    users: HashSet<Box<str>>,
    groups: HashSet<Box<str>>,
}

/// A ServiceAccount is stored as the user of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject<'a> {
    User(&'a str),
    Group(&'a str),
}

impl Binding {
    fn of(namespace: &str, bytes: &[u8]) -> Option<Binding> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Stored<'a> {
            #[serde(default)]
            role_ref: Value,
            #[serde(borrow, default)]
            subjects: Option<Vec<Named<'a>>>,
        }
        #[derive(Deserialize)]
        struct Named<'a> {
            #[serde(borrow, default)]
            kind: Cow<'a, str>,
            #[serde(borrow, default)]
            name: Cow<'a, str>,
            #[serde(borrow, default)]
            namespace: Option<Cow<'a, str>>,
        }
        let stored: Stored<'_> = serde_json::from_slice(bytes).ok()?;
        let (mut users, mut groups): (HashSet<Box<str>>, HashSet<Box<str>>) = Default::default();
        // Avoids allocations where the same subject is repeated.
        let add = |set: &mut HashSet<Box<str>>, name: &str| {
            if !set.contains(name) {
                set.insert(name.into());
            }
        };
        for Named { kind, name, namespace: of } in stored.subjects.into_iter().flatten() {
            match &*kind {
                "User" => add(&mut users, &name),
                "Group" => add(&mut groups, &name),
                "ServiceAccount" => {
                    let of = of.as_deref().filter(|of| !of.is_empty()).unwrap_or(namespace);
                    add(&mut users, &format!("system:serviceaccount:{of}:{name}"));
                }
                _ => {}
            }
        }
        let role = role_key(&stored.role_ref, namespace).into();
        Some(Binding { namespace: namespace.into(), role, users, groups })
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.users.len() + self.groups.len()
    }

    pub fn subjects(&self) -> impl Iterator<Item = Subject<'_>> {
        let users = self.users.iter().map(|name| Subject::User(name));
        users.chain(self.groups.iter().map(|name| Subject::Group(name)))
    }

    /// The subject that matches a user.
    pub fn subject_of<'a>(&self, user: &'a User) -> Option<Subject<'a>> {
        if self.users.contains(&*user.name) {
            return Some(Subject::User(&user.name));
        }
        user.groups.iter().find(|group| self.groups.contains(&***group)).map(|group| Subject::Group(group))
    }
}

/// The RBAC kinds, from the table.
pub(super) fn kind(plural: &str) -> Option<&'static Kind> {
    kinds::lookup(&format!("{plural}.{GROUP}"))
}

/// The store key of the role that a `roleRef` refers to.
pub(super) fn role_key(role_ref: &Value, namespace: &str) -> String {
    let plural = if role_ref["kind"] == "Role" { "roles" } else { "clusterroles" };
    let name = role_ref["name"].as_str().unwrap_or("");
    kind(plural).map(|kind| kind.key(Some(namespace), name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_is_named_often_is_bound_once() {
        let kind = kind("rolebindings").unwrap();
        let account = json!({"kind": "ServiceAccount", "name": "a\u{e9}"});
        let others = [json!({"kind": "User", "name": "b"}), json!({"kind": "Group", "name": "b", "namespace": null})];
        let subjects: Vec<Value> = std::iter::repeat_n(account, 10_000).chain(others).collect();
        let object = json!({"metadata": {"name": "x"}, "subjects": subjects, "roleRef": {"kind": "Role", "name": "r"}});
        let Rights::Binding(binding) = Rights::of(kind, "ns", false, object.to_string().as_bytes()) else { panic!() };
        assert_eq!((binding.len(), &*binding.role), (3, role_key(&object["roleRef"], "ns").as_str()));
        let user = |name: &str, group: &str| User::new(name, [group]);
        let of = |user: &User| binding.subject_of(user).is_some();
        assert!(of(&user("system:serviceaccount:ns:a\u{e9}", "")) && !of(&user("a", "")));
        assert_eq!(binding.subject_of(&user("x", "b")), Some(Subject::Group("b")));
        assert!(matches!(Rights::of(kind, "ns", false, b"{\"subjects\": 7}"), Rights::None));
    }
}

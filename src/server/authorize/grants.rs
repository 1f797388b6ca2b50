//! What objects grant: those of RBAC, and Pods to their nodes. They are read once, when the cache takes them in: before anybody
//! waits for what they say.

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
/// A role of fewer words is read as fast as an index of it.
const FEW_WORDS: usize = 64;

/// What one object grants.
#[derive(Clone, Debug, Default)]
pub(crate) enum Rights {
    /// It grants nothing, or is damaged: what was stored was decoded by the schema.
    #[default]
    None,
    Role(Arc<Role>),
    Binding(Arc<Binding>),
    /// Of a large Pod on a node: what its agent may read for it.
    Needs(Arc<Needs>),
}

impl Rights {
    /// `is_bound`: whether it is a large Pod that has a node.
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

/// The selectors of an `aggregationRule`; what is none finds nothing.
pub(super) fn selectors_of(rule: &Value) -> Vec<LabelSelector> {
    let all = rule["clusterRoleSelectors"].as_array().into_iter().flatten();
    all.filter_map(|selector| LabelSelector::from_json(selector).ok()).collect()
}

/// What a role grants.
#[derive(Default)]
pub(crate) struct Role {
    pub rules: Vec<Rule>,
    /// How many words its rules have.
    pub words: usize,
    /// Of an aggregated one: which others it gathers the rules of.
    pub gathers: Option<Vec<LabelSelector>>,
    /// Where that are many.
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
            // No list of a role is so long that there is an end to the patience.
            Some(index) => index.allow(Asked::of(asked), &mut Patience(usize::MAX)) == Ok(true),
            None => self.rules.iter().any(|rule| rule.allows(asked)),
        }
    }
}

/// A binding: its role's key, and whom it is bound to, each of them once.
#[derive(Debug)]
pub(crate) struct Binding {
    /// "": everywhere.
    pub namespace: Box<str>,
    pub role: Arc<str>,
    users: HashSet<Box<str>>,
    groups: HashSet<Box<str>>,
}

/// A ServiceAccount is the user that its tokens are for.
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
        // Most are there already where somebody has written the same again and again.
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

    /// How many they are.
    pub fn len(&self) -> usize {
        self.users.len() + self.groups.len()
    }

    pub fn subjects(&self) -> impl Iterator<Item = Subject<'_>> {
        let users = self.users.iter().map(|name| Subject::User(name));
        users.chain(self.groups.iter().map(|name| Subject::Group(name)))
    }

    /// By which of them it is a user's.
    pub fn subject_of<'a>(&self, user: &'a User) -> Option<Subject<'a>> {
        if self.users.contains(&*user.name) {
            return Some(Subject::User(&user.name));
        }
        user.groups.iter().find(|group| self.groups.contains(&***group)).map(|group| Subject::Group(group))
    }
}

/// The kinds of RBAC; rows of the table.
pub(super) fn kind(plural: &str) -> Option<&'static Kind> {
    kinds::lookup(&format!("{plural}.{GROUP}"))
}

/// The store key of the role that a `roleRef` in a namespace names.
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

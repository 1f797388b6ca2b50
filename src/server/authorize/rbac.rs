//! RBAC: roles and their bindings, indexed by subject.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use serde_json::Value;

use super::attributes::{Attributes, Decision};
use super::bound::Bound;
use super::follow::{Follower, ObjectEvent};
use super::grants::{Binding, GROUP, Rights, Role, Subject, kind, role_key};
use super::rule::Rule;
use crate::cache::Cache;
use podwright_api::{Kind, Status, User};

/// The RBAC authorizer.
pub(crate) struct Rbac {
    index: RwLock<Index>,
}

/// Everything granted to a user in one scope.
#[derive(Debug, Default)]
pub(crate) struct Granted {
    /// The roles, up to a total number of words in their rules.
    pub roles: Vec<Arc<Role>>,
    /// Roles that are bound but do not exist.
    pub errors: Vec<String>,
    /// There is more, which cannot be listed.
    pub incomplete: bool,
}

impl Granted {
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.roles.iter().flat_map(|role| &role.rules)
    }
}

/// The most words of a user's rules that are listed or compared.
const MOST_WORDS: usize = 1_000_000;

/// The subjects' roles, from the watch cache.
struct Index {
    /// Of Roles, ClusterRoles, RoleBindings, ClusterRoleBindings.
    followers: [Follower; 4],
    bindings: BTreeMap<Arc<str>, Arc<Binding>>,
    bound: Bound,
}

impl Rbac {
    pub fn new(cache: &Cache) -> Rbac {
        let follow = |plural| {
            // The invariant: the kinds table has RBAC's rows.
            Follower::new(&cache.resource(kind(plural).expect("a row of RBAC")))
        };
        let followers = ["roles", "clusterroles", "rolebindings", "clusterrolebindings"].map(follow);
        let (bindings, bound) = Default::default();
        Rbac { index: RwLock::new(Index { followers, bindings, bound }) }
    }

    pub fn decide(&self, asked: &Attributes<'_>) -> Decision {
        self.with(|index| {
            let mut missing = Missing::default();
            let mut allowed = false;
            index.bound.visit(asked.user, asked.namespace, |key, role| {
                match role {
                    Some(role) => allowed = role.allows(asked),
                    None => missing.add(key),
                }
                !allowed
            });
            if allowed {
                return Decision::Allow;
            }
            let missing = missing.told();
            Decision::NoOpinion(if missing.is_empty() {
                String::new()
            } else {
                format!("RBAC: {}", aggregate(&missing))
            })
        })
    }

    /// The binding and role that allow it, in upstream's words.
    pub fn reason(&self, asked: &Attributes<'_>) -> Option<String> {
        self.with(|index| {
            let key = index.bound.first(asked.user, asked.namespace, |role| role.allows(asked))?;
            let binding = index.bindings.get(key)?;
            let name = |key: &str| key.rsplit('/').next().unwrap_or("").to_owned();
            let (role_kind, role) = match binding.role.contains("/clusterroles") {
                true => ("ClusterRole", name(&binding.role)),
                false => ("Role", name(&binding.role)),
            };
            let (of, who) = match binding.subject_of(asked.user)? {
                Subject::User(name) => ("User", name),
                Subject::Group(name) => ("Group", name),
            };
            let (kind, within) = match binding.namespace.is_empty() {
                true => ("ClusterRoleBinding", String::new()),
                false => ("RoleBinding", format!("/{}", binding.namespace)),
            };
            let binding = format!("{}{within}", name(key));
            Some(format!("RBAC: allowed by {kind} {binding:?} of {role_kind} {role:?} to {of} {who:?}"))
        })
    }

    /// Everything that a user may do in a namespace ("": in all of them).
    pub fn rules(&self, user: &User, namespace: &str) -> Granted {
        self.with(|index| {
            let (mut granted, mut left, mut missing) = (Granted::default(), MOST_WORDS, Missing::default());
            index.bound.visit(user, namespace, |key, role| {
                match role.map(|role| (role, left.checked_sub(role.words))) {
                    Some((role, Some(rest))) => {
                        left = rest;
                        granted.roles.push(role.clone());
                    }
                    Some((_, None)) => granted.incomplete = true,
                    None => missing.add(key),
                }
                true
            });
            granted.errors = missing.told();
            if granted.incomplete {
                granted.errors.push(format!("rules of more than {MOST_WORDS} words are left out"));
            }
            granted
        })
    }

    /// How many lookups a decision about a user in a namespace takes.
    pub fn lookups(&self, user: &User, namespace: &str) -> usize {
        self.with(|index| index.bound.lookups(user, namespace))
    }

    /// How many words the rules of a user in a namespace have.
    pub fn words(&self, user: &User, namespace: &str) -> usize {
        self.with(|index| {
            let mut words: usize = 0;
            index.bound.visit(user, namespace, |_, role| {
                words = words.saturating_add(role.map_or(0, |role| role.words));
                words < MOST_WORDS
            });
            words.min(MOST_WORDS)
        })
    }

    /// The role that a binding's `roleRef` refers to.
    pub fn role_of(&self, role_ref: &Value, namespace: &str) -> Result<Arc<Role>, Status> {
        let name = role_ref["name"].as_str().unwrap_or("");
        let plural = if role_ref["kind"] == "Role" { "roles" } else { "clusterroles" };
        let key = role_key(role_ref, namespace);
        let found = self.with(|index| index.bound.role(&key).cloned());
        found.ok_or_else(|| Status::not_found(plural, GROUP, name))
    }

    /// Runs `look` on an up-to-date index.
    fn with<R>(&self, look: impl FnOnce(&Index) -> R) -> R {
        let index = self.index.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !index.followers.iter().any(Follower::is_behind) {
            return look(&index);
        }
        drop(index);
        let mut index = self.index.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        index.catch_up();
        look(&index)
    }
}

impl Index {
    /// Applies changes. Objects were parsed when the cache received them: the time does not depend on their size.
    fn catch_up(&mut self) {
        let Index { followers, bindings, bound } = self;
        let [of_roles, of_cluster_roles, of_bindings, of_cluster_bindings] = followers;
        for (follower, plural) in [(of_roles, "roles"), (of_cluster_roles, "clusterroles")] {
            let prefix = kind(plural).map(Kind::prefix).unwrap_or_default();
            follower.catch_up(|event| match event {
                ObjectEvent::Restart => bound.no_roles(&prefix),
                ObjectEvent::Put(item) => match &item.rights {
                    Rights::Role(role) => bound.put_role(&item.key, role.clone()),
                    // A damaged one grants nothing.
                    _ => bound.put_role(&item.key, Arc::default()),
                },
                ObjectEvent::Gone(item) => bound.no_role(&item.key),
            });
        }
        for (follower, is_namespaced) in [(of_bindings, true), (of_cluster_bindings, false)] {
            follower.catch_up(|event| {
                let (key, new) = match event {
                    ObjectEvent::Restart => {
                        let of_kind = |binding: &Binding| binding.namespace.is_empty() != is_namespaced;
                        let gone: Vec<_> = bindings.extract_if(.., |_, binding| of_kind(binding)).collect();
                        return gone.iter().for_each(|(key, binding)| bound.forget(key, binding));
                    }
                    ObjectEvent::Put(item) => match &item.rights {
                        Rights::Binding(binding) => (&item.key, Some(binding)),
                        _ => (&item.key, None),
                    },
                    ObjectEvent::Gone(item) => (&item.key, None),
                };
                let old = match new {
                    Some(new) => bindings.insert(key.clone(), new.clone()),
                    None => bindings.remove(key),
                };
                old.iter().for_each(|binding| bound.forget(key, binding));
                new.iter().for_each(|binding| bound.learn(key, binding));
            });
        }
    }
}

/// Roles that are bound but do not exist, as reported: the first ones by name, the rest by their number.
#[derive(Debug, Default)]
struct Missing {
    named: Vec<String>,
    others: usize,
}

/// The most that are named. (Upstream names all, so writers of bindings could make others' responses arbitrarily long.)
const NAMED: usize = 10;

impl Missing {
    fn add(&mut self, key: &str) {
        match self.named.len() < NAMED {
            true => self.named.push(not_found(key)),
            false => self.others += 1,
        }
    }

    fn told(self) -> Vec<String> {
        let others = (self.others > 0).then(|| format!("and {} more", self.others));
        self.named.into_iter().chain(others).collect()
    }
}

/// `clusterrole.rbac.authorization.k8s.io "x" not found`, from a role's key.
fn not_found(key: &str) -> String {
    let name = key.rsplit('/').next().unwrap_or("");
    let singular = if key.contains("/clusterroles.") { "clusterrole" } else { "role" };
    format!("{singular}.{GROUP} {name:?} not found")
}

/// Joins messages in the format of Go's aggregate errors.
pub(super) fn aggregate(messages: &[String]) -> String {
    match messages {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

//! RBAC: roles and their bindings, indexed by subject.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, RwLock};

use serde::Deserialize;
use serde_json::Value;

use super::follow::{Follower, News};
use super::rule::Rule;
use super::rule_index::{Asked, Patience, RuleIndex};
use super::{Attributes, Decision};
use crate::api::{Kind, Object, Status, User, kinds};
use crate::server::cache::{Cache, Item};

pub const GROUP: &str = "rbac.authorization.k8s.io";

/// The RBAC authorizer.
pub(in crate::server) struct Rbac {
    index: RwLock<Index>,
}

/// All that a user has been granted in one scope.
#[derive(Debug, Default)]
pub(in crate::server) struct Granted {
    /// The roles, as far as their rules have not more than so many words together.
    pub roles: Vec<Arc<Role>>,
    /// Roles that are bound but do not exist.
    pub errors: Vec<String>,
    /// There is more that cannot be listed.
    pub incomplete: bool,
}

impl Granted {
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.roles.iter().flat_map(|role| &role.rules)
    }
}

/// How many words of a user's rules are listed, or compared with others.
const MOST_WORDS: usize = 1_000_000;
/// A role of fewer words is read as fast as an index of it.
const FEW_WORDS: usize = 64;

/// What a role grants.
#[derive(Default)]
pub(in crate::server) struct Role {
    pub rules: Vec<Rule>,
    /// How many words its rules have.
    words: usize,
    /// Where that are many.
    index: Option<RuleIndex<Box<str>>>,
}

impl std::fmt::Debug for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.rules.fmt(f)
    }
}

impl Role {
    pub(super) fn of(rules: Vec<Rule>) -> Role {
        let words = rules.iter().map(Rule::words).sum();
        let index = (words > FEW_WORDS).then(|| RuleIndex::from_iter(&rules));
        Role { rules, words, index }
    }

    fn allows(&self, asked: &Attributes<'_>) -> bool {
        match &self.index {
            // No list of a role is so long that there is an end to the patience.
            Some(index) => index.allow(Asked::of(asked), &mut Patience(usize::MAX)) == Ok(true),
            None => self.rules.iter().any(|rule| rule.allows(asked)),
        }
    }
}

/// Roles by their store keys, and which of them each subject has.
struct Index {
    /// Of Roles, ClusterRoles, RoleBindings, ClusterRoleBindings.
    followers: [Follower; 4],
    roles: HashMap<Arc<str>, Arc<Role>>,
    bindings: HashMap<Arc<str>, Binding>,
    users: HashMap<String, Grants>,
    groups: HashMap<String, Grants>,
}

/// A binding, as much as is needed to take it out of the index again.
struct Binding {
    namespace: String,
    role: Arc<str>,
    subjects: Vec<Subject>,
}

#[derive(Clone, PartialEq, Eq)]
enum Subject {
    User(String),
    Group(String),
}

/// The keys of the roles that one subject has: everywhere, and by namespace.
#[derive(Default)]
struct Grants {
    everywhere: Vec<Arc<str>>,
    within: HashMap<String, Vec<Arc<str>>>,
}

/// The kinds of RBAC; rows of the table.
fn kind(plural: &str) -> Option<&'static Kind> {
    kinds::lookup(&format!("{plural}.{GROUP}"))
}

impl Rbac {
    pub fn new(cache: &Cache) -> Rbac {
        let follow = |plural| {
            // The invariant: the kinds table has RBAC's rows.
            Follower::new(&cache.shelf(kind(plural).expect("a row of RBAC")))
        };
        let followers = ["roles", "clusterroles", "rolebindings", "clusterrolebindings"].map(follow);
        let (roles, bindings, users, groups) = Default::default();
        Rbac { index: RwLock::new(Index { followers, roles, bindings, users, groups }) }
    }

    pub fn decide(&self, asked: &Attributes<'_>) -> Decision {
        self.with(|index| {
            let mut missing = Vec::new();
            let mut allowed = false;
            index.visit(asked.user, asked.namespace, |name, role| {
                match role {
                    Some(role) => allowed = role.allows(asked),
                    None => missing.push(not_found(name)),
                }
                !allowed
            });
            match (allowed, missing.is_empty()) {
                (true, _) => Decision::Allow,
                (false, true) => Decision::NoOpinion(String::new()),
                (false, false) => Decision::NoOpinion(format!("RBAC: {}", aggregate(&missing))),
            }
        })
    }

    /// The binding and the role that allow it, in upstream's words.
    pub fn reason(&self, asked: &Attributes<'_>) -> Option<String> {
        self.with(|index| {
            let is_his = |subject: &&Subject| match subject {
                Subject::User(name) => *name == asked.user.name,
                Subject::Group(name) => asked.user.is_in(name),
            };
            index.bindings.iter().find_map(|(key, binding)| {
                let everywhere = binding.namespace.is_empty();
                let subject = binding.subjects.iter().find(is_his)?;
                let allows = index.roles.get(&binding.role)?.allows(asked);
                if !allows || !(everywhere || binding.namespace == asked.namespace) {
                    return None;
                }
                let name = |key: &str| key.rsplit('/').next().unwrap_or("").to_owned();
                let (role_kind, role) = match binding.role.contains("/clusterroles") {
                    true => ("ClusterRole", name(&binding.role)),
                    false => ("Role", name(&binding.role)),
                };
                let (of, who) = match subject {
                    Subject::User(name) => ("User", name),
                    Subject::Group(name) => ("Group", name),
                };
                let (kind, within) = match everywhere {
                    true => ("ClusterRoleBinding", String::new()),
                    false => ("RoleBinding", format!("/{}", binding.namespace)),
                };
                let binding = format!("{}{within}", name(key));
                Some(format!("RBAC: allowed by {kind} {binding:?} of {role_kind} {role:?} to {of} {who:?}"))
            })
        })
    }

    /// Everything that a user may do in a namespace ("": in all of them).
    pub fn rules(&self, user: &User, namespace: &str) -> Granted {
        self.with(|index| {
            let (mut granted, mut left) = (Granted::default(), MOST_WORDS);
            index.visit(user, namespace, |name, role| {
                match role.map(|role| (role, left.checked_sub(role.words))) {
                    Some((role, Some(rest))) => {
                        left = rest;
                        granted.roles.push(role.clone());
                    }
                    Some((_, None)) => granted.incomplete = true,
                    None => granted.errors.push(not_found(name)),
                }
                true
            });
            if granted.incomplete {
                granted.errors.push(format!("rules of more than {MOST_WORDS} words are left out"));
            }
            granted
        })
    }

    /// How many words the rules have that a user has in a namespace.
    pub fn words(&self, user: &User, namespace: &str) -> usize {
        self.with(|index| {
            let mut words: usize = 0;
            index.visit(user, namespace, |_, role| {
                words = words.saturating_add(role.map_or(0, |role| role.words));
                words < MOST_WORDS
            });
            words.min(MOST_WORDS)
        })
    }

    /// The role that a binding's `roleRef` means.
    pub fn role_of(&self, role_ref: &Value, namespace: &str) -> Result<Arc<Role>, Status> {
        let name = role_ref["name"].as_str().unwrap_or("");
        let plural = if role_ref["kind"] == "Role" { "roles" } else { "clusterroles" };
        let found = self.with(|index| index.roles.get(role_key(role_ref, namespace).as_str()).cloned());
        found.ok_or_else(|| Status::not_found(plural, GROUP, name))
    }

    /// Looks at an index that shows what the cache shows.
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
    /// Shows the roles of a user in a namespace, those granted everywhere first, until `show` has seen enough.
    fn visit(&self, user: &User, namespace: &str, mut show: impl FnMut(&str, Option<&Arc<Role>>) -> bool) {
        let groups = || user.groups.iter().filter_map(|group| self.groups.get(group));
        let grants = || self.users.get(&user.name).into_iter().chain(groups());
        let everywhere = grants().flat_map(|grants| &grants.everywhere);
        let within = grants().filter(|_| !namespace.is_empty()).filter_map(|grants| grants.within.get(namespace));
        // However often it is bound, a role grants what it grants.
        let mut seen = HashSet::new();
        for role in everywhere.chain(within.flatten()).filter(|role| seen.insert(&***role)) {
            if !show(role, self.roles.get(role)) {
                return;
            }
        }
    }

    fn catch_up(&mut self) {
        let Index { followers, roles, bindings, users, groups } = self;
        let [of_roles, of_cluster_roles, of_bindings, of_cluster_bindings] = followers;
        let mut subjects = Subjects { users, groups };
        for (follower, is_namespaced) in [(of_roles, true), (of_cluster_roles, false)] {
            let prefix =
                kind(if is_namespaced { "roles" } else { "clusterroles" }).map(Kind::prefix).unwrap_or_default();
            follower.catch_up(|news| match news {
                News::Restart => roles.retain(|key, _| !key.starts_with(&prefix)),
                News::Put(item) => drop(roles.insert(item.key.clone(), Arc::new(Role::of(rules_of(item))))),
                News::Gone(item) => drop(roles.remove(&item.key)),
            });
        }
        for (follower, is_namespaced) in [(of_bindings, true), (of_cluster_bindings, false)] {
            follower.catch_up(|news| match news {
                News::Restart => {
                    let (gone, kept) = std::mem::take(bindings)
                        .into_iter()
                        .partition(|(_, binding)| binding.namespace.is_empty() != is_namespaced);
                    *bindings = kept;
                    let gone: HashMap<Arc<str>, Binding> = gone;
                    gone.values().for_each(|binding| subjects.forget(binding));
                }
                News::Put(item) => {
                    let new = Binding::of(item, is_namespaced);
                    new.iter().for_each(|binding| subjects.learn(binding));
                    let old = match new {
                        Some(new) => bindings.insert(item.key.clone(), new),
                        None => bindings.remove(&item.key),
                    };
                    old.iter().for_each(|binding| subjects.forget(binding));
                }
                News::Gone(item) => bindings.remove(&item.key).iter().for_each(|binding| subjects.forget(binding)),
            });
        }
    }
}

struct Subjects<'a> {
    users: &'a mut HashMap<String, Grants>,
    groups: &'a mut HashMap<String, Grants>,
}

impl Subjects<'_> {
    fn learn(&mut self, binding: &Binding) {
        for subject in &binding.subjects {
            let (map, name) = self.of(subject);
            let grants = map.entry(name.clone()).or_default();
            match binding.namespace.as_str() {
                "" => grants.everywhere.push(binding.role.clone()),
                namespace => grants.within.entry(namespace.to_owned()).or_default().push(binding.role.clone()),
            }
        }
    }

    /// Takes out one grant for each subject; another binding may grant the same once more.
    fn forget(&mut self, binding: &Binding) {
        for subject in &binding.subjects {
            let (map, name) = self.of(subject);
            let Some(grants) = map.get_mut(name) else { continue };
            let roles = match binding.namespace.as_str() {
                "" => Some(&mut grants.everywhere),
                namespace => grants.within.get_mut(namespace),
            };
            let Some(roles) = roles else { continue };
            if let Some(at) = roles.iter().position(|role| *role == binding.role) {
                roles.swap_remove(at);
            }
            grants.within.retain(|_, roles| !roles.is_empty());
            if grants.everywhere.is_empty() && grants.within.is_empty() {
                map.remove(name);
            }
        }
    }

    fn of<'s>(&mut self, subject: &'s Subject) -> (&mut HashMap<String, Grants>, &'s String) {
        match subject {
            Subject::User(name) => (&mut *self.users, name),
            Subject::Group(name) => (&mut *self.groups, name),
        }
    }
}

impl Binding {
    fn of(item: &Item, is_namespaced: bool) -> Option<Binding> {
        let object = Object::from_slice(&item.bytes).ok()?;
        let namespace = if is_namespaced { object.namespace().unwrap_or("") } else { "" };
        let subjects = object.0["subjects"].as_array().into_iter().flatten();
        let subjects = subjects.filter_map(|subject| Subject::of(subject, namespace)).collect();
        let role = role_key(&object.0["roleRef"], namespace).into();
        Some(Binding { namespace: namespace.to_owned(), role, subjects })
    }
}

impl Subject {
    /// A ServiceAccount is the user that its tokens are for.
    fn of(subject: &Value, namespace: &str) -> Option<Subject> {
        let name = subject["name"].as_str()?;
        Some(match subject["kind"].as_str()? {
            "User" => Subject::User(name.to_owned()),
            "Group" => Subject::Group(name.to_owned()),
            "ServiceAccount" => {
                let of = subject["namespace"].as_str().filter(|ns| !ns.is_empty()).unwrap_or(namespace);
                Subject::User(format!("system:serviceaccount:{of}:{name}"))
            }
            _ => return None,
        })
    }
}

/// The rules of a stored role. What was stored was decoded by the schema, so an error means a damaged object.
fn rules_of(item: &Item) -> Vec<Rule> {
    #[derive(Deserialize)]
    struct Stored {
        #[serde(default)]
        rules: Option<Vec<Rule>>,
    }
    let role: Result<Stored, _> = serde_json::from_slice(&item.bytes);
    role.map(|role| role.rules.unwrap_or_default()).unwrap_or_default()
}

/// The store key of the role that a `roleRef` in a namespace names.
fn role_key(role_ref: &Value, namespace: &str) -> String {
    let plural = if role_ref["kind"] == "Role" { "roles" } else { "clusterroles" };
    let name = role_ref["name"].as_str().unwrap_or("");
    kind(plural).map(|kind| kind.key(Some(namespace), name)).unwrap_or_default()
}

/// `clusterrole.rbac.authorization.k8s.io "x" not found`, of a role's key.
fn not_found(key: &str) -> String {
    let name = key.rsplit('/').next().unwrap_or("");
    let singular = if key.contains("/clusterroles.") { "clusterrole" } else { "role" };
    format!("{singular}.{GROUP} {name:?} not found")
}

/// Several messages as one, as Go's aggregate errors read.
pub(super) fn aggregate(messages: &[String]) -> String {
    match messages {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

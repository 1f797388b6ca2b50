//! RBAC: roles and their bindings, indexed by subject.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, RwLock};

use serde_json::Value;

use super::follow::{Follower, News};
use super::grants::{Binding, GROUP, Rights, Role, Subject, kind, role_key};
use super::rule::Rule;
use super::{Attributes, Decision};
use crate::api::{Kind, Status, User};
use crate::server::cache::Cache;

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
/// A binding of more subjects is asked by itself whether a user is among them: it comes and goes at once, however many they are.
const CROWD: usize = 64;

/// Roles by their store keys, and which of them each subject has.
struct Index {
    /// Of Roles, ClusterRoles, RoleBindings, ClusterRoleBindings.
    followers: [Follower; 4],
    roles: HashMap<Arc<str>, Arc<Role>>,
    bindings: BTreeMap<Arc<str>, Arc<Binding>>,
    bound: Bound,
}

/// What the bindings say: of few subjects by them, and those of many by their namespaces, "" for everywhere.
#[derive(Default)]
struct Bound {
    users: HashMap<Box<str>, Grants>,
    groups: HashMap<Box<str>, Grants>,
    crowds: HashMap<Box<str>, BTreeMap<Arc<str>, Arc<Binding>>>,
}

/// The keys of the roles that one subject has, and by how many bindings: everywhere, and by namespace.
#[derive(Default)]
struct Grants {
    everywhere: Roles,
    within: HashMap<Box<str>, Roles>,
}

type Roles = BTreeMap<Arc<str>, usize>;

impl Rbac {
    pub fn new(cache: &Cache) -> Rbac {
        let follow = |plural| {
            // The invariant: the kinds table has RBAC's rows.
            Follower::new(&cache.shelf(kind(plural).expect("a row of RBAC")))
        };
        let followers = ["roles", "clusterroles", "rolebindings", "clusterrolebindings"].map(follow);
        let (roles, bindings, bound) = Default::default();
        Rbac { index: RwLock::new(Index { followers, roles, bindings, bound }) }
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
            index.bindings_in(asked.namespace).find_map(|(key, binding)| {
                let everywhere = binding.namespace.is_empty();
                let subject = binding.subject_of(asked.user)?;
                if !index.roles.get(&binding.role)?.allows(asked) {
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
        let key = role_key(role_ref, namespace);
        let found = self.with(|index| index.roles.get(key.as_str()).cloned());
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
        let Bound { users, groups, crowds } = &self.bound;
        let of_groups = || user.groups.iter().filter_map(|group| groups.get(&**group));
        let grants = || users.get(&*user.name).into_iter().chain(of_groups());
        let crowd = |namespace: &str| {
            let bindings = crowds.get(namespace).into_iter().flatten();
            bindings.filter(|(_, binding)| binding.subject_of(user).is_some()).map(|(_, binding)| &binding.role)
        };
        let everywhere = grants().flat_map(|grants| grants.everywhere.keys()).chain(crowd(""));
        let within = grants().filter_map(|grants| grants.within.get(namespace)).flat_map(Roles::keys);
        let within = within.chain(crowd(namespace)).take_while(|_| !namespace.is_empty());
        // However often it is bound, a role grants what it grants.
        let mut seen = HashSet::new();
        for role in everywhere.chain(within).filter(|role| seen.insert(&***role)) {
            if !show(role, self.roles.get(role)) {
                return;
            }
        }
    }

    /// The bindings that count in a namespace, those of everywhere first.
    fn bindings_in(&self, namespace: &str) -> impl Iterator<Item = (&Arc<str>, &Arc<Binding>)> {
        let below = |plural: &str, namespace: Option<&str>| {
            let prefix: Arc<str> = kind(plural).map(|kind| kind.key(namespace, "")).unwrap_or_default().into();
            let from = self.bindings.range(prefix.clone()..);
            from.take_while(move |(key, _)| key.starts_with(&*prefix))
        };
        let within = (!namespace.is_empty()).then(|| below("rolebindings", Some(namespace)));
        below("clusterrolebindings", None).chain(within.into_iter().flatten())
    }

    /// Takes in what is new. All of it was read when the cache took it in: nothing here depends on how long an object is.
    fn catch_up(&mut self) {
        let Index { followers, roles, bindings, bound } = self;
        let [of_roles, of_cluster_roles, of_bindings, of_cluster_bindings] = followers;
        for (follower, plural) in [(of_roles, "roles"), (of_cluster_roles, "clusterroles")] {
            let prefix = kind(plural).map(Kind::prefix).unwrap_or_default();
            follower.catch_up(|news| match news {
                News::Restart => roles.retain(|key, _| !key.starts_with(&prefix)),
                News::Put(item) => match &item.rights {
                    Rights::Role(role) => drop(roles.insert(item.key.clone(), role.clone())),
                    // A damaged one grants nothing.
                    _ => drop(roles.insert(item.key.clone(), Arc::default())),
                },
                News::Gone(item) => drop(roles.remove(&item.key)),
            });
        }
        for (follower, is_namespaced) in [(of_bindings, true), (of_cluster_bindings, false)] {
            follower.catch_up(|news| {
                let (key, new) = match news {
                    News::Restart => {
                        let of_kind = |binding: &Binding| binding.namespace.is_empty() != is_namespaced;
                        let gone: Vec<_> = bindings.extract_if(.., |_, binding| of_kind(binding)).collect();
                        return gone.iter().for_each(|(key, binding)| bound.forget(key, binding));
                    }
                    News::Put(item) => match &item.rights {
                        Rights::Binding(binding) => (&item.key, Some(binding)),
                        _ => (&item.key, None),
                    },
                    News::Gone(item) => (&item.key, None),
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

impl Bound {
    fn learn(&mut self, key: &Arc<str>, binding: &Arc<Binding>) {
        if binding.len() > CROWD {
            let crowd = self.crowds.entry(binding.namespace.clone()).or_default();
            crowd.insert(key.clone(), binding.clone());
            return;
        }
        for subject in binding.subjects() {
            let (map, name) = self.of(subject);
            let grants = map.entry(name.into()).or_default();
            let roles = match &*binding.namespace {
                "" => &mut grants.everywhere,
                _ => grants.within.entry(binding.namespace.clone()).or_default(),
            };
            *roles.entry(binding.role.clone()).or_default() += 1;
        }
    }

    /// Takes out one grant for each subject; another binding may grant the same once more.
    fn forget(&mut self, key: &str, binding: &Binding) {
        let namespace = &*binding.namespace;
        if binding.len() > CROWD {
            if let Some(crowd) = self.crowds.get_mut(namespace) {
                crowd.remove(key);
                if crowd.is_empty() {
                    self.crowds.remove(namespace);
                }
            }
            return;
        }
        for subject in binding.subjects() {
            let (map, name) = self.of(subject);
            let Some(grants) = map.get_mut(name) else { continue };
            let roles = match namespace {
                "" => Some(&mut grants.everywhere),
                namespace => grants.within.get_mut(namespace),
            };
            let Some(roles) = roles else { continue };
            if let Some(times) = roles.get_mut(&binding.role) {
                *times -= 1;
                if *times == 0 {
                    roles.remove(&binding.role);
                }
            }
            if roles.is_empty() && !namespace.is_empty() {
                grants.within.remove(namespace);
            }
            if grants.everywhere.is_empty() && grants.within.is_empty() {
                map.remove(name);
            }
        }
    }

    fn of<'s>(&mut self, subject: Subject<'s>) -> (&mut HashMap<Box<str>, Grants>, &'s str) {
        match subject {
            Subject::User(name) => (&mut self.users, name),
            Subject::Group(name) => (&mut self.groups, name),
        }
    }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn binding(role: &str, users: &[String]) -> Arc<Binding> {
        let subjects: Vec<Value> = users.iter().map(|name| json!({"kind": "User", "name": name})).collect();
        let object = json!({"subjects": subjects, "roleRef": {"kind": "Role", "name": role}}).to_string();
        match Rights::of(kind("rolebindings").unwrap(), "ns", false, object.as_bytes()) {
            Rights::Binding(binding) => binding,
            other => panic!("{other:?}"),
        }
    }

    /// However many subjects a binding has, and how often they are bound: what is kept of it is little, and all of it goes again.
    #[test]
    fn what_is_bound_again_and_again_is_kept_once() {
        let users: Vec<String> = (0..CROWD * 10).map(|i| i.to_string()).collect();
        let same = vec!["7".to_owned(); 10_000];
        let mut all: Vec<(Arc<str>, Arc<Binding>)> = Vec::new();
        for (i, of) in [&users[..], &users, &users[..CROWD], &same, &same].into_iter().enumerate() {
            all.push((i.to_string().into(), binding("r", of)));
        }
        all.push(("other".into(), binding("other", &same)));
        let mut bound = Bound::default();
        all.iter().for_each(|(key, binding)| bound.learn(key, binding));
        assert_eq!((bound.users.len(), bound.crowds["ns"].len()), (CROWD, 2));
        assert_eq!(bound.users["7"].within["ns"].values().copied().collect::<Vec<_>>(), [1, 3]);
        bound.forget(&all[3].0, &all[3].1);
        bound.forget(&all[0].0, &all[0].1);
        assert_eq!(bound.users["7"].within["ns"].values().copied().collect::<Vec<_>>(), [1, 2]);
        for i in [1, 2, 4, 5] {
            bound.forget(&all[i].0, &all[i].1);
        }
        assert!(bound.users.is_empty() && bound.crowds.is_empty());
    }
}

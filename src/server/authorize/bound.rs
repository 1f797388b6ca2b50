//! Which roles each subject has: bindings by subject, with each role already resolved.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::grants::{Binding, Role, Subject};
use podwright_api::User;

/// A binding with more subjects is stored once, and searched for the user: adding and removing it takes constant time.
const CROWD: usize = 64;

/// Small bindings by their subjects, large ones by their namespaces ("" for everywhere).
#[derive(Default)]
pub(super) struct Bound {
    roles: Places,
    users: HashMap<Box<str>, Grants>,
    groups: HashMap<Box<str>, Grants>,
    crowds: HashMap<Box<str>, BTreeMap<Arc<str>, (Arc<Binding>, usize)>>,
}

/// A slot for each role that exists or is bound, shared by all of its bindings: adding, changing and removing a role takes constant
/// time, however many bindings it has, and checks need no lookup by name.
#[derive(Default)]
struct Places {
    by_key: HashMap<Arc<str>, usize>,
    all: Vec<BoundRole>,
    free: Vec<usize>,
}

struct BoundRole {
    key: Arc<str>,
    /// `None`: it is bound, but does not exist.
    role: Option<Arc<Role>>,
    bindings: usize,
}

/// The slots of one subject's roles, and the bindings that grant them: everywhere, and by namespace.
#[derive(Default)]
struct Grants {
    everywhere: Roles,
    within: HashMap<Box<str>, Roles>,
}

type Roles = BTreeMap<usize, BTreeSet<Arc<str>>>;

impl Places {
    fn of(&mut self, key: &Arc<str>) -> usize {
        if let Some(place) = self.by_key.get(key) {
            return *place;
        }
        let empty = BoundRole { key: key.clone(), role: None, bindings: 0 };
        let place = match self.free.pop() {
            Some(place) => {
                self.all[place] = empty;
                place
            }
            None => {
                self.all.push(empty);
                self.all.len() - 1
            }
        };
        self.by_key.insert(key.clone(), place);
        place
    }

    /// Removes a role, a binding, or both; frees an unused slot.
    fn change(&mut self, place: usize, change: impl FnOnce(&mut BoundRole)) {
        let changed = &mut self.all[place];
        change(changed);
        if changed.role.is_none() && changed.bindings == 0 {
            // It is cleared when it is used again.
            self.by_key.remove(&changed.key);
            self.free.push(place);
        }
    }
}

impl Bound {
    /// The role with a store key.
    pub fn role(&self, key: &str) -> Option<&Arc<Role>> {
        self.roles.all[*self.roles.by_key.get(key)?].role.as_ref()
    }

    pub fn put_role(&mut self, key: &Arc<str>, role: Arc<Role>) {
        let place = self.roles.of(key);
        self.roles.all[place].role = Some(role);
    }

    pub fn no_role(&mut self, key: &str) {
        if let Some(place) = self.roles.by_key.get(key).copied() {
            self.roles.change(place, |place| place.role = None);
        }
    }

    /// Forgets all roles whose keys have this prefix.
    pub fn no_roles(&mut self, prefix: &str) {
        let keys: Vec<_> = self.roles.by_key.keys().filter(|key| key.starts_with(prefix)).cloned().collect();
        keys.iter().for_each(|key| self.no_role(key));
    }

    /// Visits the roles of a user in a namespace, cluster-wide ones first, until `show` ends the visit.
    pub fn visit(&self, user: &User, namespace: &str, mut show: impl FnMut(&str, Option<&Arc<Role>>) -> bool) {
        let Bound { roles, users, groups, crowds } = self;
        let of_groups = || user.groups.iter().filter_map(|group| groups.get(&**group));
        let grants = || users.get(&*user.name).into_iter().chain(of_groups());
        let crowd = |namespace: &str| {
            let bindings = crowds.get(namespace).into_iter().flat_map(BTreeMap::values);
            bindings.filter(|(binding, _)| binding.subject_of(user).is_some()).map(|(_, place)| place)
        };
        let everywhere = grants().flat_map(|grants| grants.everywhere.keys()).chain(crowd(""));
        let within = grants().filter_map(|grants| grants.within.get(namespace)).flat_map(Roles::keys);
        let within = within.chain(crowd(namespace)).take_while(|_| !namespace.is_empty());
        // A role that is bound several times is visited once.
        let mut seen = HashSet::new();
        for place in everywhere.chain(within).filter(|place| seen.insert(**place)) {
            let BoundRole { key, role, .. } = &roles.all[*place];
            if !show(key, role.as_ref()) {
                return;
            }
        }
    }

    /// How many lookups a visit to the roles of a user in a namespace takes: each of the user's groups among the bindings' subjects
    /// and in each large binding, and each of the user's roles.
    pub fn lookups(&self, user: &User, namespace: &str) -> usize {
        let Bound { users, groups, crowds, .. } = self;
        let of_groups = user.groups.iter().filter_map(|group| groups.get(&**group));
        let grants = users.get(&*user.name).into_iter().chain(of_groups);
        let roles = |grants: &Grants| grants.everywhere.len() + grants.within.get(namespace).map_or(0, Roles::len);
        let roles = grants.fold(0_usize, |sum, grants| sum.saturating_add(roles(grants)));
        let places = if namespace.is_empty() { &[""][..] } else { &["", namespace] };
        let crowds: usize = places.iter().filter_map(|place| crowds.get(*place)).map(BTreeMap::len).sum();
        (1 + user.groups.len()).saturating_mul(1 + crowds).saturating_add(roles)
    }

    /// The first binding that gives a user a wanted role in a namespace, cluster-wide ones first. It takes as long as
    /// [`Bound::visit`], however many others are bound.
    pub fn first(&self, user: &User, namespace: &str, wants: impl Fn(&Role) -> bool) -> Option<&Arc<str>> {
        let Bound { roles, users, groups, crowds } = self;
        let wanted = |place: &usize| roles.all[*place].role.as_ref().is_some_and(|role| wants(role));
        let within = |namespace: &str| {
            let of_groups = user.groups.iter().filter_map(|group| groups.get(&**group));
            let grants = users.get(&*user.name).into_iter().chain(of_groups);
            let few = grants.filter_map(|grants| match namespace {
                "" => Some(&grants.everywhere),
                _ => grants.within.get(namespace),
            });
            let few = few.flatten().filter(|(place, _)| wanted(place)).filter_map(|(_, by)| by.first());
            let crowd = crowds.get(namespace).into_iter().flatten();
            let crowd = crowd.filter(|(_, (binding, place))| binding.subject_of(user).is_some() && wanted(place));
            few.chain(crowd.map(|(key, _)| key)).min()
        };
        within("").or_else(|| (!namespace.is_empty()).then(|| within(namespace)).flatten())
    }

    pub fn learn(&mut self, key: &Arc<str>, binding: &Arc<Binding>) {
        let place = self.roles.of(&binding.role);
        self.roles.all[place].bindings += 1;
        if binding.len() > CROWD {
            let crowd = self.crowds.entry(binding.namespace.clone()).or_default();
            crowd.insert(key.clone(), (binding.clone(), place));
            return;
        }
        for subject in binding.subjects() {
            let (map, name) = self.of(subject);
            let grants = map.entry(name.into()).or_default();
            let roles = match &*binding.namespace {
                "" => &mut grants.everywhere,
                _ => grants.within.entry(binding.namespace.clone()).or_default(),
            };
            roles.entry(place).or_default().insert(key.clone());
        }
    }

    /// Removes one grant for each subject; another binding may make the same grant.
    pub fn forget(&mut self, key: &str, binding: &Binding) {
        let Some(place) = self.roles.by_key.get(&binding.role).copied() else { return };
        self.no_grants(key, binding, place);
        self.roles.change(place, |place| place.bindings -= 1);
    }

    fn no_grants(&mut self, key: &str, binding: &Binding, place: usize) {
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
            if let Some(by) = roles.get_mut(&place) {
                by.remove(key);
                if by.is_empty() {
                    roles.remove(&place);
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::grants::{Rights, kind};
    use super::*;

    fn binding(role: &str, users: &[String]) -> Arc<Binding> {
        let subjects: Vec<Value> = users.iter().map(|name| json!({"kind": "User", "name": name})).collect();
        let object = json!({"subjects": subjects, "roleRef": {"kind": "Role", "name": role}}).to_string();
        match Rights::of(kind("rolebindings").unwrap(), "ns", false, object.as_bytes()) {
            Rights::Binding(binding) => binding,
            other => panic!("{other:?}"),
        }
    }

    /// However many subjects a binding has, and however often they repeat: little is stored, and all of it is removed again.
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
        let times = |bound: &Bound| bound.users["7"].within["ns"].values().map(BTreeSet::len).collect::<Vec<_>>();
        assert_eq!(times(&bound), [3, 1]);
        let first = |bound: &Bound, name: &str| {
            bound.first(&User::new(name, Vec::<String>::new()), "ns", |_| true).map(|key| key.to_string())
        };
        assert_eq!(first(&bound, "7"), None, "there is no such role");
        bound.put_role(&all[0].1.role, Arc::default());
        assert_eq!([first(&bound, "7"), first(&bound, "nobody")], [Some("0".to_owned()), None], "of the crowd, too");
        bound.forget(&all[3].0, &all[3].1);
        bound.forget(&all[0].0, &all[0].1);
        assert_eq!(times(&bound), [2, 1]);
        assert_eq!(first(&bound, "7").as_deref(), Some("1"));
        bound.no_role(&all[0].1.role);
        for i in [1, 2, 4, 5] {
            bound.forget(&all[i].0, &all[i].1);
        }
        assert!(bound.users.is_empty() && bound.crowds.is_empty());
        assert!(bound.roles.by_key.is_empty() && bound.roles.free.len() == 2, "nobody has the roles' places");
    }

    /// Each group may be looked up in each large binding, cluster-wide and of the namespace.
    #[test]
    fn what_a_visit_takes_is_known_before() {
        let mut bound = Bound::default();
        let users: Vec<String> = (0..=CROWD).map(|i| i.to_string()).collect();
        for i in 0..10 {
            bound.learn(&i.to_string().into(), &binding("r", &users));
        }
        bound.learn(&"few".into(), &binding("few", &["u".to_owned()]));
        let user = User::new("u", (0..99).map(|i| format!("g{i}")));
        assert_eq!(bound.lookups(&user, "ns"), 100 * 11 + 1);
        assert_eq!(bound.lookups(&user, ""), 100);
    }

    /// Roles and their bindings come and go in any order, and the result is always current.
    #[test]
    fn a_role_is_found_by_who_is_bound_to_it_whichever_comes_first() {
        let (mut bound, user) = (Bound::default(), User::new("7", Vec::<String>::new()));
        let bindings = ["a", "b"].map(|role| (Arc::<str>::from(role), binding(role, &["7".to_owned()])));
        let shown = |bound: &Bound| {
            let mut shown = Vec::new();
            bound.visit(&user, "ns", |key, role| {
                shown.push((key.rsplit('/').next().unwrap().to_owned(), role.is_some()));
                true
            });
            shown
        };
        let of = |name: &str, found: bool| (name.to_owned(), found);
        bindings.iter().for_each(|(key, binding)| bound.learn(key, binding));
        assert_eq!(shown(&bound), [of("a", false), of("b", false)]);
        bound.put_role(&bindings[1].1.role, Arc::default());
        assert_eq!(shown(&bound), [of("a", false), of("b", true)]);
        bound.forget("a", &bindings[0].1);
        bound.no_role(&bindings[1].1.role);
        assert_eq!(shown(&bound), [of("b", false)]);
        // The slot of the removed one is reused.
        bound.put_role(&"c".into(), Arc::default());
        assert_eq!(shown(&bound), [of("b", false)]);
        assert!(bound.role("c").is_some() && bound.role(&bindings[0].1.role).is_none());
        bound.forget("b", &bindings[1].1);
        bound.no_roles("");
        assert!(shown(&bound).is_empty() && bound.roles.by_key.is_empty());
        assert_eq!(bound.roles.free.len(), bound.roles.all.len());
    }
}

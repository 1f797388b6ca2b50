//! Who is of which group, of all Pods of the cluster. A Pod's change looks at the groups, a group's at the Pods that may be of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use podwright_api::selector::LabelSelector;
use podwright_client::Key;
use podwright_net::dataplane::Member;

use super::peers::{Group, Namespaces};
use super::pod::PodView;

/// Labels, as objects have them.
pub type Labels = BTreeMap<String, String>;

/// A Pod, and the addresses that are its own for certain.
#[derive(Clone, Debug)]
struct Known {
    pod: Arc<PodView>,
    addresses: Vec<IpAddr>,
}

/// The groups that this node's policies name, and all who may be of them.
#[derive(Debug, Default)]
pub struct Groups {
    pods: BTreeMap<Key, Known>,
    namespaces: HashMap<String, Labels>,
    groups: BTreeMap<Arc<str>, Group>,
    /// What the dataplane was told of each.
    members: BTreeMap<Key, Member>,
    /// How many elements each group has.
    sizes: HashMap<Arc<str>, usize>,
    dirty: BTreeSet<Key>,
}

impl Groups {
    pub fn set_pod(&mut self, key: &Key, found: Option<(Arc<PodView>, Vec<IpAddr>)>) {
        match found {
            Some((pod, addresses)) => drop(self.pods.insert(key.clone(), Known { pod, addresses })),
            None => drop(self.pods.remove(key)),
        }
        self.dirty.insert(key.clone());
    }

    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        if self.namespaces.get(name) == labels.as_ref() {
            return;
        }
        match labels {
            Some(labels) => drop(self.namespaces.insert(name.to_owned(), labels)),
            None => drop(self.namespaces.remove(name)),
        }
        let within = self.within(name).map(|(key, _)| key.clone()).collect::<Vec<_>>();
        self.dirty.extend(within);
    }

    /// From now on these are the groups.
    pub fn set_groups(&mut self, groups: BTreeMap<Arc<str>, Group>) {
        let gone: BTreeSet<Arc<str>> = self.groups.keys().filter(|name| !groups.contains_key(*name)).cloned().collect();
        if !gone.is_empty() {
            let has = |member: &Member| {
                let (mut addresses, mut endpoints) = (member.addresses.iter(), member.endpoints.iter());
                addresses.any(|(group, _)| gone.contains(group)) || endpoints.any(|(group, ..)| gone.contains(group))
            };
            self.dirty.extend(self.members.iter().filter(|(_, member)| has(member)).map(|(key, _)| key.clone()));
        }
        let mut dirty = Vec::new();
        for (_, group) in groups.iter().filter(|(name, _)| !self.groups.contains_key(*name)) {
            let members = self.candidates(group).filter(|(_, known)| self.is_of(known, group));
            dirty.extend(members.map(|(key, _)| key.clone()));
        }
        self.dirty.extend(dirty);
        self.groups = groups;
    }

    /// How many elements a group has, or would have: no more than `most` are counted.
    pub fn size(&self, name: &str, group: &Group, most: usize) -> usize {
        if self.groups.contains_key(name) {
            return self.members(name);
        }
        let mut count = 0;
        for known in self.candidates(group).filter(|(_, known)| self.is_of(known, group)).map(|(_, known)| known) {
            let ports = group.port.as_ref().map_or(1, |(protocol, port)| known.pod.numbers(port, *protocol).count());
            count += known.addresses.len() * ports;
            if count >= most {
                break;
            }
        }
        count
    }

    /// How many elements a group has.
    pub fn members(&self, name: &str) -> usize {
        self.sizes.get(name).copied().unwrap_or_default()
    }

    /// Looks at those that have changed; what they are members of now.
    pub fn settle(&mut self) -> BTreeMap<String, Member> {
        let mut changes = BTreeMap::new();
        for key in std::mem::take(&mut self.dirty) {
            let member = self.pods.get(&key).map(|known| self.member(known)).unwrap_or_default();
            let before = self.members.remove(&key).unwrap_or_default();
            if member != before {
                self.count(&before, &member);
                changes.insert(key.to_string(), member.clone());
            }
            if !member.is_empty() {
                self.members.insert(key, member);
            }
        }
        self.sizes.retain(|_, size| *size > 0);
        changes
    }

    fn within<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = (&'a Key, &'a Known)> {
        self.pods.range(Key::new(namespace, "")..).take_while(move |(key, _)| key.namespace == namespace)
    }

    /// Those that may be of a group.
    fn candidates<'a>(&'a self, group: &'a Group) -> Box<dyn Iterator<Item = (&'a Key, &'a Known)> + 'a> {
        match &group.pods.namespaces {
            Namespaces::One(namespace) => Box::new(self.within(namespace)),
            Namespaces::Of(_) => Box::new(self.pods.iter()),
        }
    }

    fn count(&mut self, before: &Member, after: &Member) {
        let groups = |member: &Member| {
            let addresses = member.addresses.iter().map(|(group, _)| group.clone());
            addresses.chain(member.endpoints.iter().map(|(group, ..)| group.clone())).collect::<Vec<_>>()
        };
        for group in groups(after) {
            *self.sizes.entry(group).or_default() += 1;
        }
        for group in groups(before) {
            let size = self.sizes.entry(group).or_default();
            *size = size.saturating_sub(1);
        }
    }

    fn member(&self, known: &Known) -> Member {
        let mut member = Member::default();
        for (name, group) in self.groups.iter().filter(|(_, group)| self.is_of(known, group)) {
            for address in &known.addresses {
                let Some((protocol, port)) = &group.port else {
                    member.addresses.insert((name.clone(), *address));
                    continue;
                };
                let numbers = known.pod.numbers(port, *protocol);
                member.endpoints.extend(numbers.map(|number| (name.clone(), *address, number)));
            }
        }
        member
    }

    fn is_of(&self, known: &Known, group: &Group) -> bool {
        if known.addresses.is_empty() {
            return false;
        }
        let namespace = known.pod.namespace();
        let within = match &group.pods.namespaces {
            Namespaces::One(name) => name == namespace,
            // Of a namespace that nobody knows nothing is known but that it is one.
            Namespaces::Of(selector) => match self.namespaces.get(namespace) {
                Some(labels) => matches(selector, Some(labels)),
                None => selector.is_empty(),
            },
        };
        within && matches(&group.pods.pods, known.pod.labels())
    }
}

pub fn matches(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    selector.matches(|key| labels?.get(key).map(String::as_str))
}

//! Policies: whom isolated addresses talk with. What is said of them in memory, and the chains and sets that stand for it.
//!
//! An isolated address is an element that leads to the chain of its set of policies; the members of a group are the elements of a
//! set. Chains are called by what is in them: one with other rules is another one. So what leads somewhere is always whole: first
//! chains and sets are made that nothing leads to yet, then all elements change in one transaction, then goes what is left over.

mod model;
mod parts;
mod text;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

pub use model::{Allowed, Direction, Isolated, Member, Named, Peers, Policy, PolicyChanges, Ports, Rule};
use parts::{Part, Parts};

use super::difference::Difference;
use super::elements::{ElementKey, Key, Map, Value};
use super::ids::PartIds;
use super::table::{TABLE, nft_family};
use std::net::IpAddr;

use crate::Family;
use text::{endpoints_name, group_name};

/// How many policies of an address are named.
const NAMES: usize = 64;

/// What is wanted, and which chains and sets of it the kernel has.
pub struct Policies {
    families: Vec<Family>,
    members: HashMap<String, BTreeSet<ElementKey>>,
    /// How many owners have each element in its group.
    counts: BTreeMap<ElementKey, usize>,
    /// How many elements the set of each group has.
    sizes: BTreeMap<u64, usize>,
    isolated: HashMap<String, Judged>,
    parts: Parts,
    made: BTreeSet<u64>,
    /// Policies that the kernel has refused, and why: their chains have no rules.
    refused: BTreeMap<u64, String>,
}

/// An owner whose traffic is judged.
struct Judged {
    wanted: Isolated,
    /// The chains of its sets of policies.
    ingress: Option<u64>,
    egress: Option<u64>,
    /// The chain of each of its named policies.
    chains: Vec<Option<u64>>,
}

impl Policies {
    pub fn new(families: &[Family]) -> Policies {
        Policies {
            families: families.to_vec(),
            members: HashMap::new(),
            counts: BTreeMap::new(),
            sizes: BTreeMap::new(),
            isolated: HashMap::new(),
            parts: Parts::default(),
            made: BTreeSet::new(),
            refused: BTreeMap::new(),
        }
    }

    /// Takes changes into memory; which elements are others by them.
    pub fn decide(&mut self, changes: PolicyChanges, ids: &mut PartIds) -> Difference {
        let mut difference = Difference::default();
        for (owner, member) in changes.members {
            self.join(owner, &member, ids, &mut difference);
        }
        if changes.isolated.is_empty() {
            return difference;
        }
        let before = self.verdicts();
        let mut known = HashMap::new();
        for (owner, wanted) in changes.isolated {
            match wanted.is_isolated() {
                true => {
                    let ingress = self.chain_of(wanted.ingress.as_ref(), Direction::Ingress, ids, &mut known);
                    let egress = self.chain_of(wanted.egress.as_ref(), Direction::Egress, ids, &mut known);
                    let of =
                        |named: &Named| known.get(&(named.direction, Arc::as_ptr(named.policy.as_ref()?))).copied();
                    let chains = wanted.named.iter().map(of).collect();
                    self.isolated.insert(owner, Judged { wanted, ingress, egress, chains });
                }
                false => drop(self.isolated.remove(&owner)),
            }
        }
        difference.between(&before, &self.verdicts());
        difference
    }

    /// All elements that the kernel should have of it.
    pub fn elements(&self) -> impl Iterator<Item = (ElementKey, Value)> {
        self.counts.keys().map(|key| (*key, Value::None)).chain(self.verdicts())
    }

    /// The sets of groups that the kernel has.
    pub fn sets(&self) -> Vec<(Family, Map)> {
        let maps = self.made.iter().filter_map(|number| self.parts.map(*number));
        maps.flat_map(|map| self.families.iter().map(move |family| (*family, map))).collect()
    }

    /// What is needed and not there yet, in the order of making.
    pub fn missing(&self) -> Vec<u64> {
        self.parts.sorted(&self.needed().difference(&self.made).copied().collect())
    }

    /// The script that makes these.
    pub fn script_of(&self, parts: &[u64]) -> String {
        self.parts.script(&parts.iter().copied().collect(), &self.refused, &self.families)
    }

    /// The script that makes all that the kernel has.
    pub fn script_of_made(&self) -> String {
        self.parts.script(&self.made, &self.refused, &self.families)
    }

    pub fn add_made(&mut self, made: &[u64]) {
        self.made.extend(made);
    }

    /// The names of the policies that judge an address in a direction: of all, or of those of a chain.
    pub fn names(&self, address: &IpAddr, direction: Direction, chain: Option<&str>) -> Vec<String> {
        let of = |judged: &&Judged| judged.wanted.addresses.contains(address);
        let named = self.isolated.values().filter(of).flat_map(|judged| judged.wanted.named.iter().zip(&judged.chains));
        let is_it =
            |number: &Option<u64>| chain.is_none_or(|chain| number.is_some_and(|it| text::policy_chain(it) == chain));
        let found = named.filter(|(named, number)| named.direction == direction && is_it(number));
        found.map(|(named, _)| named.name.to_string()).take(NAMES).collect()
    }

    /// Whether an address is to be judged in a direction.
    pub fn is_judged(&self, address: &IpAddr, direction: Direction) -> bool {
        let judges = |judged: &Judged| match direction {
            Direction::Ingress => judged.ingress.is_some(),
            Direction::Egress => judged.egress.is_some(),
        };
        self.isolated.values().any(|judged| judges(judged) && judged.wanted.addresses.contains(address))
    }

    /// From now on a policy lets nothing through, as the kernel takes no more of it; `false`: this is no policy, or was refused before.
    pub fn refuse(&mut self, part: u64, why: &str) -> bool {
        self.parts.is_policy(part) && self.refused.insert(part, why.to_owned()).is_none()
    }

    /// These policies are as they were written again.
    pub fn allow(&mut self, parts: &[u64]) {
        parts.iter().for_each(|part| drop(self.refused.remove(part)));
    }

    /// The policies that the kernel has refused.
    pub fn refused(&self) -> Vec<u64> {
        self.refused.keys().copied().collect()
    }

    /// All policies that are needed.
    pub fn all(&self) -> Vec<u64> {
        self.needed().into_iter().filter(|part| self.parts.is_policy(*part)).collect()
    }

    /// The owners whose traffic such a policy judges, and why it was refused.
    pub fn closed(&self) -> BTreeMap<String, String> {
        if self.refused.is_empty() {
            return BTreeMap::new();
        }
        let why = |judged: &Judged| {
            let chains = judged.ingress.into_iter().chain(judged.egress);
            self.parts.reached(chains).iter().find_map(|part| self.refused.get(part)).cloned()
        };
        self.isolated.iter().filter_map(|(owner, judged)| Some((owner.clone(), why(judged)?))).collect()
    }

    /// Of what the kernel has nothing is known.
    pub fn forget_made(&mut self) {
        self.made.clear();
    }

    /// What nothing leads to any more, and the script that removes what the kernel has of it.
    pub fn left_over(&self) -> (BTreeSet<u64>, String) {
        let needed = self.needed();
        let left: BTreeSet<u64> = self.parts.numbers().filter(|number| !needed.contains(number)).collect();
        let made = left.intersection(&self.made).copied().collect();
        let script = self.parts.removal(&made, &self.families);
        (left, script)
    }

    /// These are removed.
    pub fn forget(&mut self, removed: &BTreeSet<u64>, ids: &mut PartIds) {
        for number in removed {
            self.made.remove(number);
            self.refused.remove(number);
            self.parts.remove(*number);
            ids.give_back(*number);
        }
    }

    /// Removes what a predecessor has left of such chains and sets, among all those of a family's table.
    pub fn removal_of_strangers(&self, family: Family, chains: &[String], sets: &[String]) -> String {
        let names: BTreeSet<String> = self.made.iter().filter_map(|number| self.parts.name(*number)).collect();
        let ip = nft_family(family);
        let is_stranger = |name: &&String| !names.contains(*name);
        // Who jumps goes before whom it jumps to.
        let (mut sets_of, mut single): (Vec<&String>, Vec<&String>) = chains
            .iter()
            .filter(|name| parts::is_chain(name))
            .filter(is_stranger)
            .partition(|name| parts::is_set(name));
        sets_of.append(&mut single);
        let chains = sets_of.into_iter().map(|chain| format!("delete chain {ip} {TABLE} {chain}\n"));
        let sets = sets.iter().filter(|name| parts::is_group(name)).filter(is_stranger);
        chains.chain(sets.map(|set| format!("delete set {ip} {TABLE} {set}\n"))).collect()
    }

    fn join(&mut self, owner: String, member: &Member, ids: &mut PartIds, difference: &mut Difference) {
        let mut after = BTreeSet::new();
        for (group, address) in &member.addresses {
            let map = Map::Group(self.parts.add(&group_name(group), Part::Group, ids));
            after.insert(ElementKey { family: Family::of(address), map, key: Key::Address(*address) });
        }
        for (group, address, port) in &member.endpoints {
            let map = Map::GroupPorts(self.parts.add(&endpoints_name(group), Part::GroupPorts, ids));
            after.insert(ElementKey { family: Family::of(address), map, key: Key::Endpoint(*address, *port) });
        }
        after.retain(|key| self.families.contains(&key.family));
        let before = self.members.remove(&owner).unwrap_or_default();
        for key in after.difference(&before) {
            let count = self.counts.entry(*key).or_default();
            *count += 1;
            if *count == 1 {
                *self.sizes.entry(number_of(key)).or_default() += 1;
                if difference.delete.remove(key).is_none() {
                    difference.add.insert(*key, Value::None);
                }
            }
        }
        for key in before.difference(&after) {
            let Some(count) = self.counts.get_mut(key) else { continue };
            *count -= 1;
            if *count == 0 {
                self.counts.remove(key);
                let size = self.sizes.entry(number_of(key)).or_default();
                *size -= 1;
                if *size == 0 {
                    self.sizes.remove(&number_of(key));
                }
                if difference.add.remove(key).is_none() {
                    difference.delete.insert(*key, Value::None);
                }
            }
        }
        if !after.is_empty() {
            self.members.insert(owner, after);
        }
    }

    /// The number of the chain of a set of policies. `known`: policies that were put in words already, in this change.
    fn chain_of(
        &mut self,
        allowed: Option<&Allowed>,
        direction: Direction,
        ids: &mut PartIds,
        known: &mut HashMap<(Direction, *const Policy), u64>,
    ) -> Option<u64> {
        let mut numbers = BTreeSet::new();
        for policy in allowed?.iter().filter(|policy| !policy.rules.is_empty()) {
            let key = (direction, Arc::as_ptr(policy));
            let number = match known.get(&key) {
                Some(number) => *number,
                None => self.parts.add_policy(policy, direction, &self.families, ids),
            };
            known.insert(key, number);
            numbers.insert(number);
        }
        Some(self.parts.add_set(numbers, ids))
    }

    /// The elements of those that are isolated.
    fn verdicts(&self) -> BTreeMap<ElementKey, Value> {
        let mut all: BTreeMap<ElementKey, Value> = BTreeMap::new();
        for Judged { wanted, ingress, egress, .. } in self.isolated.values() {
            for address in wanted.addresses.iter().filter(|address| self.families.contains(&Family::of(address))) {
                let family = Family::of(address);
                all.insert(ElementKey { family, map: Map::Isolated, key: Key::Own(*address) }, Value::None);
                for (map, chain) in [(Map::Ingress, ingress), (Map::Egress, egress)] {
                    let Some(chain) = chain else { continue };
                    let (key, verdict) = (Key::Address(*address), Value::Judge(*chain));
                    // An address of two has no policies that are known to be right.
                    let both = all.entry(ElementKey { family, map, key }).or_insert(verdict);
                    if *both != verdict {
                        *both = Value::Drop;
                    }
                }
            }
        }
        all
    }

    /// What elements lead to, and what has elements.
    fn needed(&self) -> BTreeSet<u64> {
        let chains = self.isolated.values().flat_map(|judged| judged.ingress.into_iter().chain(judged.egress));
        let mut needed = self.parts.reached(chains);
        needed.extend(self.sizes.keys());
        needed
    }
}

/// The group that an element of its set is of.
fn number_of(key: &ElementKey) -> u64 {
    match key.map {
        Map::Group(number) | Map::GroupPorts(number) => number,
        // No member has elements of other maps.
        _ => 0,
    }
}

#[cfg(test)]
mod tests;

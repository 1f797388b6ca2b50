//! The chains and sets that policies are made of, each with its number.

use std::collections::{BTreeMap, BTreeSet};

use super::super::elements::{Map, policies_chain};
use super::super::ids::PartIds;
use super::super::table::{TABLE, nft_family};
use super::model::{Direction, Peers, Policy, Ports};
use super::text::{self, endpoints_name, group_name, policy_chain};
use crate::Family;

/// A chain or set. In order: what others name comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Group,
    GroupPorts,
    /// A policy's chain: its rules in each family, and the groups that they name.
    Policy {
        rules: Vec<(Family, Vec<String>)>,
        groups: BTreeSet<u64>,
    },
    /// The chain of a set of policies.
    Policies(BTreeSet<u64>),
}

/// All that are known.
#[derive(Debug, Default)]
pub struct Parts(BTreeMap<u64, Part>);

impl Parts {
    /// The number of a part of this name.
    pub fn add(&mut self, name: &str, part: Part, ids: &mut PartIds) -> u64 {
        let number = ids.take(name);
        self.0.entry(number).or_insert(part);
        number
    }

    /// A policy's: those with the same rules are one.
    pub fn add_policy(&mut self, policy: &Policy, direction: Direction, families: &[Family], ids: &mut PartIds) -> u64 {
        let mut groups = BTreeSet::new();
        for rule in &policy.rules {
            if let Peers::Group(group) = &rule.peers {
                groups.insert(self.add(&group_name(group), Part::Group, ids));
            }
            if let Ports::Endpoints(_, group) = &rule.ports {
                groups.insert(self.add(&endpoints_name(group), Part::GroupPorts, ids));
            }
        }
        let mut rules = Vec::new();
        for family in families {
            rules.push((*family, text::policy_rules(policy, direction, *family, ids)));
        }
        // By all that is in it: a number alone might be another's, as somebody may choose rules to have it so.
        self.add(&format!("policy {rules:?}"), Part::Policy { rules, groups }, ids)
    }

    pub fn add_set(&mut self, policies: BTreeSet<u64>, ids: &mut PartIds) -> u64 {
        self.add(&format!("policies {policies:?}"), Part::Policies(policies), ids)
    }

    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.0.keys().copied()
    }

    pub fn remove(&mut self, number: u64) {
        self.0.remove(&number);
    }

    /// What these chains name, and what that names, and so on.
    pub fn reached(&self, chains: impl Iterator<Item = u64>) -> BTreeSet<u64> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<u64> = chains.collect();
        while let Some(number) = next.pop() {
            if reached.insert(number) {
                match self.0.get(&number) {
                    Some(Part::Policies(policies)) => next.extend(policies),
                    Some(Part::Policy { groups, .. }) => next.extend(groups),
                    _ => {}
                }
            }
        }
        reached
    }

    pub fn is_policy(&self, number: u64) -> bool {
        matches!(self.0.get(&number), Some(Part::Policy { .. }))
    }

    /// These, so that what others name comes before them.
    pub fn sorted(&self, numbers: &BTreeSet<u64>) -> Vec<u64> {
        self.in_order(numbers).into_iter().map(|(number, _)| number).collect()
    }

    /// The set of a group.
    pub fn map(&self, number: u64) -> Option<Map> {
        match self.0.get(&number)? {
            Part::Group => Some(Map::Group(number)),
            Part::GroupPorts => Some(Map::GroupPorts(number)),
            Part::Policy { .. } | Part::Policies(_) => None,
        }
    }

    pub fn name(&self, number: u64) -> Option<String> {
        Some(match self.0.get(&number)? {
            Part::Group | Part::GroupPorts => self.map(number)?.name().into_owned(),
            Part::Policy { .. } => policy_chain(number),
            Part::Policies(_) => policies_chain(number),
        })
    }

    /// Makes these parts. Of those that are `closed` the chain has no rules: they let nothing through.
    pub fn script(&self, numbers: &BTreeSet<u64>, closed: &BTreeMap<u64, String>, families: &[Family]) -> String {
        let mut script = String::new();
        for (number, part) in self.in_order(numbers) {
            for family in families {
                script += &match part {
                    Part::Group => text::set(Map::Group(number), *family),
                    Part::GroupPorts => text::set(Map::GroupPorts(number), *family),
                    Part::Policy { .. } if closed.contains_key(&number) => {
                        text::chain(&policy_chain(number), *family, &[])
                    }
                    Part::Policy { rules, .. } => {
                        let own = rules.iter().find(|(of, _)| of == family).map(|(_, rules)| rules.as_slice());
                        text::chain(&policy_chain(number), *family, own.unwrap_or_default())
                    }
                    Part::Policies(policies) => {
                        let policies: Vec<u64> = policies.iter().copied().collect();
                        text::chain(&policies_chain(number), *family, &text::set_rules(&policies, *family))
                    }
                };
            }
        }
        script
    }

    /// Removes them.
    pub fn removal(&self, numbers: &BTreeSet<u64>, families: &[Family]) -> String {
        let mut script = String::new();
        for (number, part) in self.in_order(numbers).into_iter().rev() {
            let kind = if matches!(part, Part::Group | Part::GroupPorts) { "set" } else { "chain" };
            let Some(name) = self.name(number) else { continue };
            for family in families {
                script += &format!("delete {kind} {} {TABLE} {name}\n", nft_family(*family));
            }
        }
        script
    }

    /// What others name comes before them.
    fn in_order(&self, numbers: &BTreeSet<u64>) -> Vec<(u64, &Part)> {
        let mut parts: Vec<_> = numbers.iter().filter_map(|number| Some((*number, self.0.get(number)?))).collect();
        parts.sort_by_key(|(_, part)| match part {
            Part::Group | Part::GroupPorts => 0,
            Part::Policy { .. } => 1,
            Part::Policies(_) => 2,
        });
        parts
    }
}

/// Whether a chain of such a name is a policy's, or a set's of policies.
pub fn is_chain(name: &str) -> bool {
    name.starts_with("policy-") || is_set(name)
}

/// Whether it is one of a set of policies.
pub fn is_set(name: &str) -> bool {
    name.starts_with("policies-")
}

/// Whether a set of such a name is a group's.
pub fn is_group(name: &str) -> bool {
    name.starts_with("group-") || name.starts_with("ports-of-")
}

//! Policies by chance: every form that upstream's API has, about labels, addresses and ports that there are, and some that are not.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{
    model::{Place, World},
    policy::{Direction, IpBlock, Operator, Peer, Policy, Port, Protocol, Requirement, Rule, Selector, Spec, Which},
    world::{NAMESPACES, labels},
};
use crate::chaos::Dice;

/// How many policies may be in force together.
const TOGETHER: u64 = 5;

/// Labels that selectors ask for, and values that they may have. Nobody has those of `ghost`.
const OF_PODS: [(&str, &[&str]); 3] = [("pod", &["a", "b", "c"]), ("team", &["red", "blue"]), ("ghost", &["any"])];
const OF_NAMESPACES: [(&str, &[&str]); 3] =
    [("ns", &["x", "y", "z"]), ("kubernetes.io/metadata.name", &["x", "y", "z"]), ("stage", &["test", "live"])];

const NAMES: [&str; 5] = ["web", "other", "dns", "signal", "nobody"];
const RANGES: [(u16, u16); 6] = [(80, 80), (80, 81), (81, 65535), (1, 80), (79, 82), (82, 90)];

/// Gives some Pods and namespaces other labels, beside those that name them.
pub fn relabel(dice: &mut Dice, world: &mut World) {
    let pods = world.ends.iter_mut().filter_map(|end| match &mut end.place {
        Place::Pod(pod) => Some(&mut pod.labels),
        _ => None,
    });
    let of = |labels: &mut super::policy::Labels, (key, values): (&str, &[&str]), dice: &mut Dice| match dice.roll(6) {
        0 => drop(labels.remove(key)),
        1 | 2 => drop(labels.insert(key.to_owned(), one_of(dice, values).to_string())),
        _ => {}
    };
    pods.for_each(|labels| of(labels, OF_PODS[1], dice));
    world.namespaces.values_mut().for_each(|labels| of(labels, OF_NAMESPACES[2], dice));
}

/// Some policies that are in force together, often about the same Pods.
pub fn policies(dice: &mut Dice, world: &World) -> Vec<Policy> {
    let count = 1 + dice.roll(TOGETHER);
    let crowded = one_of(dice, &NAMESPACES);
    let policy = |at| {
        let namespace = if dice.roll(2) == 0 { crowded } else { one_of(dice, &NAMESPACES) };
        Policy {
            namespace: namespace.to_string(),
            name: format!("policy-{at}"),
            spec: Author { dice: &mut *dice, world }.spec(),
        }
    };
    (0..count).map(policy).collect()
}

fn one_of<'a, T>(dice: &mut Dice, all: &'a [T]) -> &'a T {
    &all[dice.roll(all.len() as u64) as usize]
}

struct Author<'a> {
    dice: &'a mut Dice,
    world: &'a World,
}

impl Author<'_> {
    fn chance(&mut self, of_hundred: u64) -> bool {
        self.dice.roll(100) < of_hundred
    }

    fn one_of<'b, T>(&mut self, all: &'b [T]) -> &'b T {
        one_of(self.dice, all)
    }

    /// Absent, empty, or some.
    fn list<T>(&mut self, absent: u64, empty: u64, most: u64, mut make: impl FnMut(&mut Self) -> T) -> Option<Vec<T>> {
        match self.dice.roll(100) {
            roll if roll < absent => None,
            roll if roll < absent + empty => Some(Vec::new()),
            _ => {
                let count = 1 + self.dice.roll(most);
                Some((0..count).map(|_| make(self)).collect())
            }
        }
    }

    fn spec(&mut self) -> Spec {
        use Direction::{Egress, Ingress};
        const TYPES: [&[Direction]; 5] =
            [&[Ingress], &[Egress], &[Ingress, Egress], &[Egress, Ingress], &[Ingress, Ingress]];
        let pod_selector = if self.chance(10) { None } else { Some(self.selector(&OF_PODS)) };
        let policy_types = match self.dice.roll(10) {
            0..3 => None,
            3 => Some(Vec::new()),
            _ => Some(self.one_of(&TYPES).to_vec()),
        };
        let ingress = self.list(20, 10, 2, |author| author.rule(Ingress));
        let egress = self.list(30, 10, 2, |author| author.rule(Egress));
        Spec { pod_selector, policy_types, ingress, egress }
    }

    fn rule(&mut self, direction: Direction) -> Rule {
        let peers = self.list(10, 8, 3, Author::peer);
        let ports = self.list(40, 10, 3, Author::port);
        Rule::of(direction, peers, ports)
    }

    fn peer(&mut self) -> Peer {
        if self.chance(40) {
            return Peer { ip_block: Some(self.block()), ..Peer::default() };
        }
        let which = self.dice.roll(3);
        let pod_selector = (which != 0).then(|| self.selector(&OF_PODS));
        let namespace_selector = (which != 1).then(|| self.selector(&OF_NAMESPACES));
        Peer { pod_selector, namespace_selector, ip_block: None }
    }

    fn selector(&mut self, keys: &[(&str, &[&str])]) -> Selector {
        let (by_labels, by_expressions) = match self.dice.roll(10) {
            0..3 => (false, false),
            3..6 => (true, false),
            6..9 => (false, true),
            _ => (true, true),
        };
        let empty = self.chance(20);
        let match_labels = by_labels.then(|| {
            let (key, values) = self.key(keys);
            labels(&[(key, *self.one_of(values))])
        });
        let match_expressions =
            by_expressions.then(|| (0..=self.dice.roll(2)).map(|_| self.requirement(keys)).collect());
        Selector { match_labels: match_labels.or(empty.then(Default::default)), match_expressions }
    }

    /// Seldom the one that nobody has, or that few have.
    fn key<'b>(&mut self, keys: &[(&'b str, &'b [&'b str])]) -> (&'b str, &'b [&'b str]) {
        keys[[0, 0, 0, 1, 1, 2][self.dice.roll(6) as usize]]
    }

    fn requirement(&mut self, keys: &[(&str, &[&str])]) -> Requirement {
        const ALL: [Operator; 4] = [Operator::In, Operator::NotIn, Operator::Exists, Operator::DoesNotExist];
        let (key, all) = self.key(keys);
        let operator = *self.one_of(&ALL);
        let mut values = Vec::new();
        if matches!(operator, Operator::In | Operator::NotIn) {
            values = (0..=self.dice.roll(2)).map(|_| self.one_of(all).to_string()).collect();
            values.sort();
            values.dedup();
        }
        Requirement { key: key.to_owned(), operator, values }
    }

    /// Around the address of somebody who is there, and without some who may be in it.
    fn block(&mut self) -> IpBlock {
        let cidr = self.network(0);
        let part = |it: &IpNet| cidr.contains(it) && it.prefix_len() > cidr.prefix_len();
        let excepted =
            |author: &mut Self| (0..8).find_map(|_| Some(author.network(cidr.prefix_len() + 1)).filter(&part));
        let except = match self.dice.roll(4) {
            0 => Some(Vec::new()),
            1 => None,
            _ => Some((0..=self.dice.roll(2)).filter_map(|_| excepted(self)).collect()),
        };
        IpBlock { cidr, except }
    }

    /// Of a length that is at least so long, or as long as can be.
    fn network(&mut self, least: u8) -> IpNet {
        let world = self.world;
        let end = self.one_of(&world.ends);
        let address = *self.one_of(&end.addresses);
        let lengths: &[u8] = match address {
            IpAddr::V4(_) => &[32, 32, 31, 30, 29, 28, 24, 16, 8, 0],
            IpAddr::V6(_) => &[128, 128, 127, 126, 125, 124, 64, 48, 16, 0],
        };
        let fit: Vec<u8> = lengths.iter().copied().filter(|length| *length >= least).collect();
        let length = if fit.is_empty() { lengths[0] } else { *self.one_of(&fit) };
        let network = IpNet::new(address, length).expect("no length is longer than the address");
        // A block may be written with an address that is not its first.
        if self.chance(25) { network } else { network.trunc() }
    }

    fn port(&mut self) -> Port {
        let protocol = if self.chance(25) { None } else { Some(*self.one_of(&Protocol::ALL)) };
        let (port, end_port) = match self.dice.roll(10) {
            0 | 1 => (None, None),
            2..5 => (Some(Which::Number(*self.one_of(&[80, 81, 82]))), None),
            5..8 => (Some(Which::Name(self.one_of(&NAMES).to_string())), None),
            _ => {
                let (first, last) = *self.one_of(&RANGES);
                (Some(Which::Number(first)), Some(last))
            }
        };
        Port { protocol, port, end_port }
    }
}

#[test]
fn a_seed_gives_the_same_policies_again() {
    let world = super::world::on_paper();
    let made = |seed| {
        let mut dice = Dice(seed);
        (0..20).flat_map(|_| policies(&mut dice, &world)).collect::<Vec<_>>()
    };
    assert_eq!(made(7), made(7));
    assert_ne!(made(7), made(8));
}

/// Neither all is allowed nor all denied, by most of what is made.
#[test]
fn what_is_made_allows_some_and_denies_some() {
    let world = super::world::on_paper();
    let mut dice = Dice(1);
    let (mut mixed, mut allowed, mut all) = (0, 0, 0);
    for _ in 0..100 {
        let policies = policies(&mut dice, &world);
        policies.iter().for_each(assert_valid);
        let verdicts: Vec<bool> = super::flows(&world).map(|flow| world.allows(&policies, &flow)).collect();
        let yes = verdicts.iter().filter(|allowed| **allowed).count();
        mixed += usize::from(yes > 0 && yes < verdicts.len());
        (allowed, all) = (allowed + yes, all + verdicts.len());
    }
    assert!(mixed > 70, "{mixed} of 100 deny anything");
    assert!((all / 5..all / 10 * 9).contains(&allowed), "{allowed} of {all} are allowed");
}

/// What upstream's API refuses is not made.
fn assert_valid(policy: &Policy) {
    let rules = policy.spec.ingress.iter().chain(&policy.spec.egress).flatten();
    for block in rules.flat_map(Rule::peers).filter_map(|peer| peer.ip_block.as_ref()) {
        let part = |it: &IpNet| block.cidr.contains(it) && it.prefix_len() > block.cidr.prefix_len();
        assert!(block.except.iter().flatten().all(part), "{block:?}");
    }
}

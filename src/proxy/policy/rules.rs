//! A policy's rules in one direction as the dataplane has them: each peer once, with all that any rule lets through for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use podwright_net::dataplane::{Direction, Peers, Policy, Ports, Protocol, Rule};

use super::limits::{ELEMENTS, GROUPS, TooMuch};
use super::peers::{Group, NamedPods, Pods};
use super::pod::PodView;
use super::ranges::{Range, union, union_of_ports};
use super::spec::{self, Number, Peer};

/// Rules for the dataplane, and the groups that they name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    pub policy: Arc<Policy>,
    pub groups: BTreeMap<Arc<str>, Group>,
    /// How many rules, ranges and ports it has: what it takes beside its groups.
    pub weight: usize,
}

/// How many rules, ranges and ports a policy has.
fn weight(rules: &[Rule]) -> usize {
    let peers = |peers: &Peers| if let Peers::Ranges(ranges) = peers { ranges.len() } else { 0 };
    let ports = |ports: &Ports| if let Ports::Numbers(_, numbers) = ports { numbers.len() } else { 0 };
    rules.iter().map(|rule| 1 + peers(&rule.peers) + ports(&rule.ports)).sum()
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Any,
    Group(Arc<str>),
}

/// What is let through for somebody.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct What {
    all: bool,
    numbers: BTreeMap<Protocol, Vec<(u16, u16)>>,
    /// Those of whom a connection is for.
    names: BTreeSet<(Protocol, String)>,
}

/// Compiles rules. `pod`: whom they are about; what its ports are called is its own, as whom a connection is for has a say in that.
///
/// # Errors
///
/// They come to more than a namespace may take, whatever else it has.
pub fn compile(rules: &[spec::Rule], direction: Direction, pod: &PodView) -> Result<Compiled, TooMuch> {
    let mut compiled = Compiled::default();
    let mut all: BTreeMap<Who, What> = BTreeMap::new();
    let mut blocks: BTreeMap<What, Vec<Range>> = BTreeMap::new();
    let mut of_groups: BTreeMap<Arc<str>, Arc<Pods>> = BTreeMap::new();
    for rule in rules {
        let what = what(&rule.ports, direction, pod);
        if rule.peers.is_empty() {
            all.entry(Who::Any).or_default().extend(&what);
        }
        for peer in &rule.peers {
            match peer {
                Peer::Ranges(ranges) => blocks.entry(what.clone()).or_default().extend(ranges),
                Peer::Pods(NamedPods { name, pods }) => {
                    of_groups.entry(name.clone()).or_insert_with(|| pods.clone());
                    let all = all.entry(Who::Group(name.clone())).or_default();
                    all.extend(&what);
                    // Each name of a port is a group of its own.
                    if of_groups.len().max(all.names.len()) > GROUPS {
                        return Err(TooMuch::Groups);
                    }
                }
            }
        }
    }
    all.values_mut().for_each(What::merge);
    let mut rules = Vec::new();
    for (who, what) in &all {
        let (peers, pods) = match who {
            Who::Group(name) => (Peers::Group(name.clone()), of_groups.get(name).cloned()),
            Who::Any => (Peers::Any, None),
        };
        emit(peers, pods, what, &mut rules, &mut compiled.groups)?;
    }
    for (what, ranges) in blocks {
        let ranges = union(ranges);
        if !ranges.is_empty() {
            emit(Peers::Ranges(ranges), None, &what, &mut rules, &mut compiled.groups)?;
        }
    }
    compiled.weight = weight(&rules);
    if compiled.weight > ELEMENTS {
        return Err(TooMuch::Elements);
    }
    compiled.policy = Arc::new(Policy { rules });
    Ok(compiled)
}

fn what(ports: &[spec::Port], direction: Direction, pod: &PodView) -> What {
    let mut what = What { all: ports.is_empty(), ..What::default() };
    for spec::Port { protocol, number } in ports {
        match (number, direction) {
            (Number::Range(first, last), _) => what.numbers.entry(*protocol).or_default().push((*first, *last)),
            (Number::Name(name), Direction::Ingress) => {
                let own = pod.numbers(name, *protocol).map(|number| (number, number)).collect::<Vec<_>>();
                // A name that the Pod has not lets nothing through.
                if !own.is_empty() {
                    what.numbers.entry(*protocol).or_default().extend(own);
                }
            }
            (Number::Name(name), Direction::Egress) => drop(what.names.insert((*protocol, name.clone()))),
        }
    }
    what.merge();
    what
}

impl What {
    /// [`What::merge`] is to follow, once for all that come: many rules may be about one peer.
    fn extend(&mut self, other: &What) {
        self.all |= other.all;
        for (protocol, ports) in &other.numbers {
            self.numbers.entry(*protocol).or_default().extend(ports);
        }
        self.names.extend(other.names.iter().cloned());
    }

    fn merge(&mut self) {
        self.numbers.values_mut().for_each(|ports| *ports = union_of_ports(ports.drain(..)));
    }
}

/// The rules of one peer. `pods`: whom a group selects.
///
/// # Errors
///
/// There are too many groups.
fn emit(
    peers: Peers,
    pods: Option<Arc<Pods>>,
    what: &What,
    rules: &mut Vec<Rule>,
    groups: &mut BTreeMap<Arc<str>, Group>,
) -> Result<(), TooMuch> {
    let mut rule = |peers: &Peers, ports: Ports| rules.push(Rule { peers: peers.clone(), ports });
    let mut named = false;
    if what.all {
        rule(&peers, Ports::Any);
        named = true;
    } else {
        for (protocol, numbers) in &what.numbers {
            rule(&peers, Ports::Numbers(*protocol, numbers.clone()));
            named = true;
        }
        if what.names.len() > GROUPS {
            return Err(TooMuch::Groups);
        }
        for (protocol, name) in &what.names {
            // Who is of a group's ports is one of the group; in a range of addresses any Pod may be.
            let of = pods.clone().unwrap_or_else(|| Pods::all().into());
            let group = Group { pods: of, port: Some((*protocol, name.clone())) };
            let called = group.name();
            let peers = if pods.is_some() { &Peers::Any } else { &peers };
            rule(peers, Ports::Endpoints(*protocol, called.clone()));
            groups.insert(called, group);
        }
    }
    if let (true, Peers::Group(name), Some(pods)) = (named, &peers, pods) {
        groups.insert(name.clone(), Group { pods, port: None });
    }
    if groups.len() > GROUPS { Err(TooMuch::Groups) } else { Ok(()) }
}

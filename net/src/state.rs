//! The desired state of a node's network, as one value, and the differences between its versions. Pure.
//!
//! | part | requested by | driver | location |
//! |---|---|---|---|
//! | [`facts`](NetworkState::facts) | the cluster's nodes: the peers | [`crate::dataplane::Dataplane`] | sets of the tables |
//! | [`service`](Wanted::service) | an owner | [`crate::dataplane::Dataplane`] | maps of the tables |
//! | [`policies`](Changes::policies) | policies, and whom they are about | [`crate::dataplane::Dataplane`] | chains, sets and maps of the tables |
//! | [`zone`](NetworkState::zone), [`names`](Wanted::names) | the cluster, an owner | [`crate::dns::DnsServer`] | its table |
//! | [`forwards`](Wanted::forwards) | an owner | [`crate::forwards::Forwards`] | sockets on loopback |
//!
//! An owner is whoever asks for something, by a key of the caller's. Who is isolated by policies, and who is of which group, is
//! compiled in one go for all, and not kept here. Links belong to network namespaces, which are found and not written down: what is wanted of
//! them is [`crate::links::LinkState`], from [`crate::Network::attach`] on.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::dataplane::{NodeFacts, PolicyChanges, Service};
use crate::dns::{Names, Table};
use crate::forwards::Forward;

/// The complete desired state of a node's network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkState {
    facts: NodeFacts,
    zone: Zone,
    /// Only those that request something.
    owners: HashMap<String, Wanted>,
}

/// What one owner requests of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub service: Option<Arc<Service>>,
    pub names: Arc<Names>,
    pub forwards: Vec<Forward>,
}

/// The zone of the names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    pub domain: String,
    /// Addresses whose reverse names are answered only here.
    pub reverse: Vec<IpNet>,
    /// The addresses that serve it.
    pub servers: Vec<IpAddr>,
}

/// The differences, by driver. Each key has its new value: applying it twice is the same as once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub facts: Option<NodeFacts>,
    /// Another zone; `names` then contains those of all owners.
    pub zone: Option<Zone>,
    pub services: BTreeMap<String, Option<Arc<Service>>>,
    pub policies: PolicyChanges,
    pub names: BTreeMap<String, Arc<Names>>,
    pub forwards: BTreeMap<String, Vec<Forward>>,
}

impl NetworkState {
    pub fn facts(&self) -> &NodeFacts {
        &self.facts
    }

    /// Sets the facts about the node and its peers.
    pub fn set_facts(&mut self, facts: NodeFacts, changes: &mut Changes) {
        if facts != self.facts {
            changes.facts = Some(facts.clone());
            self.facts = facts;
        }
    }

    pub fn set_zone(&mut self, zone: Zone, changes: &mut Changes) {
        if zone == self.zone {
            return;
        }
        let with_names = self.owners.iter().filter(|(_, wanted)| !wanted.names.is_empty());
        changes.names = with_names.map(|(key, wanted)| (key.clone(), wanted.names.clone())).collect();
        changes.zone = Some(zone.clone());
        self.zone = zone;
    }

    /// Sets everything that the owner requests.
    pub fn set(&mut self, key: &str, wanted: Wanted, changes: &mut Changes) {
        let before = self.owners.remove(key).unwrap_or_default();
        if wanted.service != before.service {
            changes.services.insert(key.to_owned(), wanted.service.clone());
        }
        if wanted.names != before.names {
            changes.names.insert(key.to_owned(), wanted.names.clone());
        }
        if wanted.forwards != before.forwards {
            changes.forwards.insert(key.to_owned(), wanted.forwards.clone());
        }
        if wanted != Wanted::default() {
            self.owners.insert(key.to_owned(), wanted);
        }
    }
}

impl Zone {
    /// A table with exactly these names.
    pub fn table(&self, names: &BTreeMap<String, Arc<Names>>) -> Table {
        let mut table = Table::new(&self.domain, self.reverse.clone(), self.servers.clone());
        for (owner, names) in names {
            table.set(owner, names.clone());
        }
        table
    }
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        *self == Changes::default()
    }

    /// Combines these changes with `later` ones.
    pub fn extend(&mut self, later: Changes) {
        if later.facts.is_some() {
            self.facts = later.facts;
        }
        if later.zone.is_some() {
            self.zone = later.zone;
            self.names.clear();
        }
        self.services.extend(later.services);
        self.policies.extend(later.policies);
        self.names.extend(later.names);
        self.forwards.extend(later.forwards);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::Protocol;
    use crate::dns::Entry;

    fn names(all: &[&str]) -> Arc<Names> {
        Arc::new(all.iter().map(|name| ((*name).to_owned(), Entry::default())).collect())
    }

    fn service(tenant: &str) -> Option<Arc<Service>> {
        Some(Arc::new(Service { tenant: tenant.to_owned(), ..Service::default() }))
    }

    fn zone(domain: &str) -> Zone {
        Zone { domain: domain.to_owned(), ..Zone::default() }
    }

    /// The changes that `change` causes.
    fn changes(state: &mut NetworkState, change: impl FnOnce(&mut NetworkState, &mut Changes)) -> Changes {
        let mut changes = Changes::default();
        change(state, &mut changes);
        changes
    }

    #[test]
    fn each_driver_hears_of_its_own_part_and_of_what_is_other_alone() {
        let mut state = NetworkState::default();
        let forward = Forward {
            protocol: Protocol::Tcp,
            at: "127.0.0.1:80".parse().unwrap(),
            to: "10.0.0.1:80".parse().unwrap(),
        };
        let all = Wanted { service: service("a"), names: names(&["x"]), forwards: vec![forward] };
        let mut set = |wanted: &Wanted| changes(&mut state, |state, changes| state.set("o", wanted.clone(), changes));
        let key = || "o".to_owned();
        let made = Changes {
            services: BTreeMap::from([(key(), all.service.clone())]),
            names: BTreeMap::from([(key(), all.names.clone())]),
            forwards: BTreeMap::from([(key(), all.forwards.clone())]),
            ..Changes::default()
        };
        assert_eq!(set(&all), made);
        // The same value at another address.
        let same = Wanted { service: service("a"), names: names(&["x"]), ..all.clone() };
        assert!(set(&same).is_empty());
        let other = Wanted { service: service("b"), ..all.clone() };
        let services = BTreeMap::from([(key(), service("b"))]);
        assert_eq!(set(&other), Changes { services, ..Changes::default() });
        let gone = Changes {
            services: BTreeMap::from([(key(), None)]),
            names: BTreeMap::from([(key(), names(&[]))]),
            forwards: BTreeMap::from([(key(), Vec::new())]),
            ..Changes::default()
        };
        assert_eq!(set(&Wanted::default()), gone);
        assert_eq!(state, NetworkState::default(), "nothing is kept of who wants nothing");
    }

    #[test]
    fn another_zone_comes_with_the_names_of_all() {
        let mut state = NetworkState::default();
        let set = |key: &'static str, names: Arc<Names>| {
            move |state: &mut NetworkState, changes: &mut Changes| {
                state.set(key, Wanted { names, ..Wanted::default() }, changes);
            }
        };
        let mut pending = changes(&mut state, set("a", names(&["x"])));
        pending.extend(changes(&mut state, set("b", names(&["y"]))));
        pending.extend(changes(&mut state, set("a", names(&[]))));
        pending.extend(changes(&mut state, |state, changes| state.set_zone(zone("one"), changes)));
        assert_eq!(pending.names, BTreeMap::from([("b".to_owned(), names(&["y"]))]));
        pending.extend(changes(&mut state, set("a", names(&["z"]))));
        assert_eq!((pending.names.len(), pending.zone.clone()), (2, Some(zone("one"))));
        assert!(changes(&mut state, |state, changes| state.set_zone(zone("one"), changes)).is_empty());
    }

    #[test]
    fn of_two_changes_of_one_thing_the_later_one_counts() {
        let facts = |net: &str| Some(NodeFacts { pod_ranges: vec![net.parse().unwrap()], ..NodeFacts::default() });
        let services = |all: &[(&str, &str)]| all.iter().map(|(key, of)| ((*key).to_owned(), service(of))).collect();
        let mut pending = Changes {
            facts: facts("10.0.0.0/24"),
            services: services(&[("a", "1"), ("b", "1")]),
            ..Changes::default()
        };
        pending.extend(Changes { services: services(&[("b", "2"), ("c", "2")]), ..Changes::default() });
        pending.extend(Changes { facts: facts("10.0.1.0/24"), ..Changes::default() });
        let both = services(&[("a", "1"), ("b", "2"), ("c", "2")]);
        assert_eq!(pending, Changes { facts: facts("10.0.1.0/24"), services: both, ..Changes::default() });
    }
}

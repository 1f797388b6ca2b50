//! Elements that several Services may claim: an address and port, a node port. The most senior claimant gets it.
//!
//! A host port on one address and a node port of the same number are two elements for the same port: the rules check the first one
//! first. So it exists only if its claimant is not the younger one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::compile::Compiled;
use super::elements::{ElementKey, Key, Map, Value};
use super::model::{Claimant, Lost, NodeFacts};

/// The initial value of each touched element, and its holder.
pub type Contested = BTreeMap<ElementKey, Option<Holder>>;

pub type Holder = (Arc<Claimant>, Value);

/// All claims, with their claimants.
#[derive(Default)]
pub struct Claims {
    wanted: HashMap<ElementKey, BTreeMap<Arc<Claimant>, Value>>,
    /// The host ports on one address, by the node port of the same number.
    beside: HashMap<ElementKey, BTreeSet<ElementKey>>,
}

/// The node port of the same number as a host port on one address.
fn node_port_of(place: &ElementKey) -> Option<ElementKey> {
    match (place.map, place.key) {
        (Map::HostPorts, Key::Frontend(_, protocol, port)) => {
            Some(ElementKey { map: Map::NodePorts, key: Key::Port(protocol, port), ..*place })
        }
        _ => None,
    }
}

impl Claims {
    /// Records a Service's claims before and now; `contested` gets the initial value of each touched element.
    pub fn take(&mut self, before: &Compiled, after: &Compiled, facts: &NodeFacts, contested: &mut Contested) {
        let same = before.claimant == after.claimant;
        for place in before.elements.keys().chain(after.elements.keys()).filter(|p| p.map.is_shared()) {
            if let Key::Own(address) = &place.key
                && !facts.is_local(address)
            {
                continue;
            }
            if same && before.elements.get(place) == after.elements.get(place) {
                continue;
            }
            for touched in self.beside.get(place).into_iter().flatten().chain([place]) {
                contested.entry(*touched).or_insert_with(|| self.holder(touched));
            }
            self.put(place, before, after);
        }
    }

    fn put(&mut self, place: &ElementKey, before: &Compiled, after: &Compiled) {
        let claims = self.wanted.entry(*place).or_default();
        claims.remove(&before.claimant);
        if let Some(value) = after.elements.get(place) {
            claims.insert(after.claimant.clone(), *value);
        }
        let is_free = claims.is_empty();
        if is_free {
            self.wanted.remove(place);
        }
        let Some(node_port) = node_port_of(place) else { return };
        let beside = self.beside.entry(node_port).or_default();
        match is_free {
            true => beside.remove(place),
            false => beside.insert(*place),
        };
        if beside.is_empty() {
            self.beside.remove(&node_port);
        }
    }

    /// The most senior claim on an element.
    fn first(&self, place: &ElementKey) -> Option<(&Arc<Claimant>, &Value)> {
        self.wanted.get(place)?.first_key_value()
    }

    /// The holder of the node port with the same number as a host port on one address, if it is another one.
    fn rival(&self, place: &ElementKey, claimant: &Claimant) -> Option<&Arc<Claimant>> {
        let (rival, _) = self.first(&node_port_of(place)?)?;
        (rival.key != claimant.key).then_some(rival)
    }

    /// An element's holder and value; `None`: it is unclaimed, or would take a node port from an earlier holder.
    pub fn holder(&self, place: &ElementKey) -> Option<Holder> {
        let (claimant, value) = self.first(place)?;
        let is_older = |rival: &Arc<Claimant>| rival < claimant;
        (!self.rival(place, claimant).is_some_and(is_older)).then(|| (claimant.clone(), *value))
    }

    pub fn winners(&self) -> impl Iterator<Item = (ElementKey, Value)> {
        self.wanted.keys().filter_map(|place| Some((*place, self.holder(place)?.1)))
    }

    /// Who claims an address and port held by another: of the Services with these keys and the holder `before`.
    pub fn lost(&self, place: &ElementKey, keys: &BTreeSet<String>, before: Option<&Holder>) -> Vec<Lost> {
        let others = self.wanted.get(place).into_iter().flat_map(|claims| claims.keys().skip(1));
        let had = |key: &str| before.is_some_and(|(claimant, _)| claimant.key == key);
        let told = others.filter(|claimant| keys.contains(&claimant.key) || had(&claimant.key));
        told.filter_map(|claimant| lost(place, claimant)).collect()
    }

    /// The same for a host port on one address and the node port of the same number. Only relevant for the node's own addresses.
    pub fn lost_beside(&self, place: &ElementKey, keys: &BTreeSet<String>, before: Option<&Holder>) -> Option<Lost> {
        let (claimant, _) = self.first(place)?;
        let rival = self.rival(place, claimant)?;
        let had = before.map(|(claimant, _)| &claimant.key);
        let (loser, is_new) = match rival < claimant {
            true => (claimant, had == Some(&claimant.key)),
            false => (rival, had != Some(&claimant.key)),
        };
        (is_new || keys.contains(&loser.key)).then(|| lost(place, loser)).flatten()
    }
}

fn lost(place: &ElementKey, claimant: &Claimant) -> Option<Lost> {
    let (protocol, address, port) = match place.key {
        Key::Frontend(address, protocol, port) => (protocol, Some(address), port),
        Key::Port(protocol, port) => (protocol, None, port),
        _ => return None,
    };
    Some(Lost { key: claimant.key.clone(), protocol, address, port })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::Service;
    use super::super::compile::compile;
    use super::super::ids::Ids;
    use super::super::model::{Seniority, port_at};
    use super::*;

    fn service(since: i64, id: &str, endpoint: &str) -> Service {
        let mut port = port_at("198.51.100.7", &[endpoint.parse().unwrap()]);
        port.node_port = Some(30080);
        Service { seniority: Seniority { since, id: id.to_owned() }, ports: vec![port], ..Service::default() }
    }

    /// Applies Services by key, in this order; returns the final holder of the contested address, and who is notified of losing it.
    fn contest(services: &[(&str, Service)]) -> (Option<String>, Vec<String>) {
        let (mut claims, mut ids, facts) = (Claims::default(), Ids::default(), NodeFacts::default());
        let mut told = Vec::new();
        for (key, service) in services {
            let compiled = compile(key, service, None, &mut ids);
            let mut contested = Contested::new();
            claims.take(&Compiled::default(), &compiled, &facts, &mut contested);
            let keys = BTreeSet::from([(*key).to_owned()]);
            let lost = contested.iter().flat_map(|(place, before)| claims.lost(place, &keys, before.as_ref()));
            let lost: BTreeSet<String> = lost.map(|lost| lost.key).collect();
            told.extend(lost);
        }
        let address: IpAddr = "198.51.100.7".parse().unwrap();
        let at_address = |place: &&ElementKey| matches!(place.key, Key::Frontend(at, ..) if at == address);
        let winner = claims.wanted.keys().find(at_address).and_then(|place| claims.holder(place));
        (winner.map(|(claimant, _)| claimant.key.clone()), told)
    }

    #[test]
    fn who_was_there_first_keeps_it_whatever_the_names() {
        let (victim, thief) = (service(100, "x", "10.0.0.1:80"), service(200, "a", "10.0.0.2:80"));
        let had = |order: &[(&str, Service)]| contest(order);
        // Its name sorts first.
        let both = [("shop/web", victim.clone()), ("aaa/aaa", thief.clone())];
        assert_eq!(had(&both), (Some("shop/web".into()), vec!["aaa/aaa".into()]));
        // As seen by an agent that starts later: in any order.
        let both = [("aaa/aaa", thief.clone()), ("shop/web", victim.clone())];
        // The temporary holder is notified of losing it.
        assert_eq!(had(&both), (Some("shop/web".into()), vec!["aaa/aaa".into()]));
        // Created in the same second: decided by the uid, which no one chooses.
        let both = [("shop/web", victim), ("aaa/aaa", service(100, "y", "10.0.0.2:80"))];
        assert_eq!(had(&both), (Some("shop/web".into()), vec!["aaa/aaa".into()]));
    }

    #[test]
    fn one_that_is_made_anew_is_as_old_as_it_is_now() {
        let (mut claims, mut ids, facts) = (Claims::default(), Ids::default(), NodeFacts::default());
        let mut take = |key: &str, before: &Compiled, service: Service| {
            let compiled = compile(key, &service, Some(before), &mut ids);
            let mut contested = Contested::new();
            claims.take(before, &compiled, &facts, &mut contested);
            (compiled, claims.wanted.values().map(|c| c.keys().next().unwrap().key.clone()).collect::<BTreeSet<_>>())
        };
        let (old, _) = take("a", &Compiled::default(), service(100, "a", "10.0.0.1:80"));
        take("b", &Compiled::default(), service(200, "b", "10.0.0.2:80"));
        // Deleted and recreated under the same name, otherwise unchanged.
        let (_, holders) = take("a", &old, service(300, "c", "10.0.0.1:80"));
        assert_eq!(holders, BTreeSet::from(["b".to_owned()]));
    }

    /// A Pod with a host port on one address, since a time.
    fn host_port(since: i64, number: u16) -> Service {
        let mut port = port_at("192.0.2.1", &["10.0.0.9:80".parse().unwrap()]);
        (port.port, port.host_ips, port.external_ips) = (number, vec!["192.0.2.1".parse().unwrap()], Vec::new());
        Service { seniority: Seniority { since, id: "p".to_owned() }, ports: vec![port], ..Service::default() }
    }

    /// The final holders of an address's host ports, and who is notified of losing one.
    fn beside(changes: &[(&str, Option<Service>)]) -> (Vec<String>, Vec<String>) {
        let (mut claims, mut ids, facts) = (Claims::default(), Ids::default(), NodeFacts::default());
        let (mut told, mut known) = (Vec::new(), HashMap::<&str, Compiled>::new());
        // Simulates the kernel, from the reported changes.
        let mut has = BTreeMap::new();
        for (key, service) in changes {
            let before = known.remove(key).unwrap_or_default();
            let compiled = service.as_ref().map(|service| compile(key, service, None, &mut ids)).unwrap_or_default();
            let mut contested = Contested::new();
            claims.take(&before, &compiled, &facts, &mut contested);
            known.insert(key, compiled);
            let keys = BTreeSet::from([(*key).to_owned()]);
            for (place, before) in contested {
                told.extend(claims.lost_beside(&place, &keys, before.as_ref()).map(|lost| lost.key));
                match claims.holder(&place) {
                    Some(holder) => drop(has.insert(place, holder)),
                    None => drop(has.remove(&place)),
                }
            }
        }
        let all: BTreeMap<ElementKey, Value> = has.iter().map(|(place, (_, value))| (*place, *value)).collect();
        assert_eq!(claims.winners().collect::<BTreeMap<_, _>>(), all);
        let of_address = has.iter().filter(|(place, _)| place.map == Map::HostPorts);
        (of_address.map(|(_, (claimant, _))| claimant.key.clone()).collect(), told)
    }

    #[test]
    fn a_host_port_takes_no_older_node_port() {
        let web = || Some(service(100, "w", "10.0.0.1:80"));
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let (young, old) = (|| Some(host_port(200, 30080)), || Some(host_port(50, 30080)));
        // The node port, on all addresses, stays.
        assert_eq!(beside(&[("web", web()), ("pod", young())]), (vec![], words(&["pod"])));
        assert_eq!(beside(&[("pod", young()), ("web", web())]), (vec![], words(&["pod"])));
        // The host port was first, and keeps its one address.
        assert_eq!(beside(&[("web", web()), ("pod", old())]), (words(&["pod"]), words(&["web"])));
        assert_eq!(beside(&[("pod", old()), ("web", web())]), (words(&["pod"]), words(&["web"])));
        // One with another port, or whose Service is gone.
        assert_eq!(beside(&[("web", web()), ("pod", Some(host_port(200, 30081)))]), (words(&["pod"]), vec![]));
        let gone = beside(&[("web", web()), ("pod", young()), ("web", None)]);
        assert_eq!(gone, (words(&["pod"]), words(&["pod"])));
        assert_eq!(beside(&[("web", web()), ("pod", young()), ("pod", None)]), (vec![], words(&["pod"])));
        // A Service does not conflict with itself.
        let mut both = host_port(200, 30080);
        both.ports.push(service(200, "p", "10.0.0.9:80").ports.remove(0));
        assert_eq!(beside(&[("pod", Some(both))]), (words(&["pod"]), vec![]));
    }
}

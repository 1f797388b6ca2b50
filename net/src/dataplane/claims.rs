//! Elements that several Services may want: an address and port, a node port. The most senior of them has it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::compile::Compiled;
use super::elements::{Key, Place, Value};
use super::model::{Lost, NodeFacts, Seniority};

/// Who wants something: in order of seniority, then of keys.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimant {
    pub seniority: Seniority,
    /// The Service's.
    pub key: String,
}

/// What each touched element had at first.
pub type Contested = BTreeMap<Place, Option<Value>>;

/// All that is wanted, and by whom.
#[derive(Default)]
pub struct Claims(HashMap<Place, BTreeMap<Arc<Claimant>, Value>>);

impl Claims {
    /// Notes what a Service wanted before and what it wants now; `contested` gets the value each touched element had at first.
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
            contested.entry(*place).or_insert_with(|| self.winner(place));
            let claims = self.0.entry(*place).or_default();
            claims.remove(&before.claimant);
            if let Some(value) = after.elements.get(place) {
                claims.insert(after.claimant.clone(), *value);
            }
            if claims.is_empty() {
                self.0.remove(place);
            }
        }
    }

    /// What an element has; `None`: nobody wants it.
    pub fn winner(&self, place: &Place) -> Option<Value> {
        self.0.get(place)?.values().next().copied()
    }

    pub fn winners(&self) -> impl Iterator<Item = (Place, Value)> {
        self.0.iter().filter_map(|(place, claims)| Some((*place, *claims.values().next()?)))
    }

    /// Which of the Services with these keys want an address and port that another one has.
    pub fn lost(&self, place: &Place, keys: &BTreeSet<String>) -> Vec<Lost> {
        let (protocol, address, port) = match place.key {
            Key::Frontend(address, protocol, port) => (protocol, Some(address), port),
            Key::Port(protocol, port) => (protocol, None, port),
            _ => return Vec::new(),
        };
        let others = self.0.get(place).into_iter().flat_map(|claims| claims.keys().skip(1));
        let told = others.filter(|claimant| keys.contains(&claimant.key));
        told.map(|claimant| Lost { key: claimant.key.clone(), protocol, address, port }).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::Service;
    use super::super::compile::compile;
    use super::super::ids::Ids;
    use super::super::model::port_at;
    use super::*;

    fn service(since: i64, id: &str, endpoint: &str) -> Service {
        let mut port = port_at("198.51.100.7", &[endpoint.parse().unwrap()]);
        port.node_port = Some(30080);
        Service { seniority: Seniority { since, id: id.to_owned() }, ports: vec![port], ..Service::default() }
    }

    /// Services by key, in the order in which they come; who has the contested address at last, and who hears that he has not.
    fn contest(services: &[(&str, Service)]) -> (Option<String>, Vec<String>) {
        let (mut claims, mut ids, facts) = (Claims::default(), Ids::default(), NodeFacts::default());
        let mut told = Vec::new();
        for (key, service) in services {
            let compiled = compile(key, service, None, &mut ids);
            let mut contested = Contested::new();
            claims.take(&Compiled::default(), &compiled, &facts, &mut contested);
            let keys = BTreeSet::from([(*key).to_owned()]);
            let lost: BTreeSet<String> =
                contested.keys().flat_map(|p| claims.lost(p, &keys)).map(|lost| lost.key).collect();
            told.extend(lost);
        }
        let address: IpAddr = "198.51.100.7".parse().unwrap();
        let at_address = |place: &&Place| matches!(place.key, Key::Frontend(at, ..) if at == address);
        let winner = claims.0.keys().find(at_address).and_then(|place| claims.0[place].keys().next());
        (winner.map(|claimant| claimant.key.clone()), told)
    }

    #[test]
    fn who_was_there_first_keeps_it_whatever_the_names() {
        let (victim, thief) = (service(100, "x", "10.0.0.1:80"), service(200, "a", "10.0.0.2:80"));
        let had = |order: &[(&str, Service)]| contest(order);
        // By its name alone it would come first.
        let both = [("shop/web", victim.clone()), ("aaa/aaa", thief.clone())];
        assert_eq!(had(&both), (Some("shop/web".into()), vec!["aaa/aaa".into()]));
        // As an agent sees them that starts later: in any order.
        let both = [("aaa/aaa", thief.clone()), ("shop/web", victim.clone())];
        assert_eq!(had(&both).0, Some("shop/web".into()));
        // Of one second, by what nobody chooses.
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
            (compiled, claims.0.values().map(|c| c.keys().next().unwrap().key.clone()).collect::<BTreeSet<_>>())
        };
        let (old, _) = take("a", &Compiled::default(), service(100, "a", "10.0.0.1:80"));
        take("b", &Compiled::default(), service(200, "b", "10.0.0.2:80"));
        // Deleted and made again under the same name, with all else as it was.
        let (_, holders) = take("a", &old, service(300, "c", "10.0.0.1:80"));
        assert_eq!(holders, BTreeSet::from(["b".to_owned()]));
    }
}

//! Compiles one Service into elements. Pure: the only previous state is the placement of its endpoints.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use super::base::source_networks;
use super::elements::{Chain, ElementKey, Key, Map, Value};
use super::ids::{Ids, fnv};
use super::model::{Backends, Claimant, Empty, Protocol, Service, ServicePort};
use crate::Family;

/// A Service as elements.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    /// Its identity for contested claims.
    pub claimant: Arc<Claimant>,
    pub elements: BTreeMap<ElementKey, Value>,
    /// The endpoint lists, by id.
    pub lists: HashMap<u32, List>,
    /// UDP node ports: existing conntrack entries of a new one are stale.
    pub udp_node_ports: BTreeSet<(Family, u16)>,
}

/// One endpoint list as stored in the maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    pub family: Family,
    pub protocol: Protocol,
    /// The Service's name for the port, or its number if it has none.
    pub port: String,
    /// The index is the slot. Endpoints keep their slots if possible, so that a change touches few elements.
    pub placed: Vec<SocketAddr>,
}

/// Compiles `service`, named `key`; `before` is its previous compilation.
pub fn compile(key: &str, service: &Service, before: Option<&Compiled>, ids: &mut Ids) -> Compiled {
    let claimant = Claimant { seniority: service.seniority.clone(), key: key.to_owned() };
    let mut out = Compiled { claimant: Arc::new(claimant), ..Compiled::default() };
    for port in &service.ports {
        let share = port.affinity.map(|_| ids.take(&share_of(&service.tenant))).unwrap_or_default();
        let mut list = |role, backends, out: &mut Compiled| list(key, port, role, backends, share, before, ids, out);
        let internal = list("internal", &port.internal, &mut out);
        let external = match &port.external {
            Some(backends) => list("external", backends, &mut out),
            None => internal,
        };
        if let Some(backends) = &port.outside {
            let outside = list("outside", backends, &mut out);
            out.put(port.family, Map::Outside, Key::Id(external), Value::Id(outside));
        }
        frontends(port, internal, external, &mut out);
    }
    for address in &service.whole {
        out.put(Family::of(address), Map::Balancers, Key::Address(*address), Value::None);
    }
    out
}

/// Addresses and ports that lead to the lists.
fn frontends(port: &ServicePort, internal: u32, external: u32, out: &mut Compiled) {
    for address in &port.cluster_ips {
        let key = Key::Frontend(*address, port.protocol, port.port);
        out.put(port.family, Map::ClusterIps, key, Value::Id(internal));
    }
    for address in &port.external_ips {
        let key = Key::Frontend(*address, port.protocol, port.port);
        out.put(port.family, Map::ExternalIps, key, Value::Id(external));
    }
    for address in &port.host_ips {
        let key = Key::Frontend(*address, port.protocol, port.port);
        out.put(port.family, Map::HostPorts, key, Value::Id(external));
    }
    if let Some(number) = port.node_port {
        out.put(port.family, Map::NodePorts, Key::Port(port.protocol, number), Value::Id(external));
        if port.protocol == Protocol::Udp {
            out.udp_node_ports.insert((port.family, number));
        }
    }
    if port.source_ranges.is_empty() {
        return;
    }
    let ranges: Vec<_> = port.source_ranges.iter().filter(|r| Family::of_net(r) == port.family).copied().collect();
    let ranges = IpNet::aggregate(&ranges);
    if ranges.iter().any(|range| range.prefix_len() == 0) {
        // Everyone is permitted.
        return;
    }
    out.put(port.family, Map::Restricted, Key::Id(external), Value::None);
    for network in ranges.into_iter().flat_map(source_networks) {
        out.put(port.family, Map::Sources, Key::Source(external, network), Value::None);
    }
}

/// The name of a tenant's share for id allocation; distinct from all lists.
fn share_of(tenant: &str) -> String {
    format!("share {tenant}")
}

/// Compiles an endpoint list and its verdict; returns its id.
#[expect(clippy::too_many_arguments, reason = "each is a part of the list's name or of what it is made of")]
fn list(
    key: &str,
    port: &ServicePort,
    role: &str,
    backends: &Backends,
    share: u32,
    before: Option<&Compiled>,
    ids: &mut Ids,
    out: &mut Compiled,
) -> u32 {
    let family = port.family;
    let id = ids.take(&format!("{key}:{}:{}:{family:?}:{role}", port.name, port.protocol.name()));
    let previous = before.and_then(|b| b.lists.get(&id)).map_or(&[][..], |l| &l.placed);
    let placed = place(previous, &backends.endpoints, family);
    let count = placed.len() as u32;
    let at_id = Key::Id(id);
    match (count, port.affinity, backends.empty) {
        (0, _, Empty::Drop) => out.put(family, Map::Services, at_id, Value::Drop),
        (0, _, Empty::Refuse) => out.put(family, Map::Refused, at_id, Value::None),
        (_, None, _) => {
            out.put(family, Map::Services, at_id, Value::Goto(Chain::Lb(count)));
            for (slot, endpoint) in placed.iter().enumerate() {
                out.put(family, Map::Endpoints, Key::Slot(id, slot as u32), Value::Endpoint(*endpoint));
            }
        }
        (_, Some(duration), _) => {
            let seconds = remembered_for(duration);
            out.put(family, Map::Services, at_id, Value::Goto(Chain::Affinity { share, seconds }));
            out.put(family, Map::Picks, at_id, Value::Jump(Chain::Pick(count)));
            for (position, (endpoint, slot)) in stable_slots(&placed).into_iter().enumerate() {
                out.put(family, Map::Slots, Key::Slot(id, position as u32), Value::Id(slot));
                out.put(family, Map::Sticky, Key::Slot(id, slot), Value::Endpoint(endpoint));
            }
        }
    }
    for endpoint in &placed {
        out.put(family, Map::Own, Key::Own(endpoint.ip()), Value::None);
    }
    let called = if port.name.is_empty() { port.port.to_string() } else { port.name.clone() };
    out.lists.insert(id, List { family, protocol: port.protocol, port: called, placed });
    id
}

/// How many seconds a client is remembered: at least the requested duration, rounded to three digits. Each value has its own chain,
/// which stays until the tables are recreated, and users who can write Services could otherwise request all 86,400.
fn remembered_for(duration: Duration) -> u32 {
    let seconds = duration.as_secs().clamp(1, 86_400) as u32;
    let step = match seconds {
        0..1_000 => 1,
        1_000..10_000 => 10,
        _ => 100,
    };
    seconds.next_multiple_of(step)
}

/// Assigns a slot to each endpoint: existing ones keep theirs, new ones fill the gaps, and remaining gaps are filled from the end.
/// Drops duplicates and other families' addresses.
fn place(previous: &[SocketAddr], wanted: &[SocketAddr], family: Family) -> Vec<SocketAddr> {
    let wanted: BTreeSet<SocketAddr> = wanted.iter().filter(|e| Family::of(&e.ip()) == family).copied().collect();
    let known: BTreeSet<SocketAddr> = previous.iter().copied().collect();
    let mut new = wanted.iter().filter(|e| !known.contains(e)).copied();
    let mut slots: Vec<Option<SocketAddr>> =
        previous.iter().map(|e| if wanted.contains(e) { Some(*e) } else { new.next() }).collect();
    slots.extend(new.map(Some));
    let mut slot = 0;
    while slot < slots.len() {
        match slots[slot] {
            Some(_) => slot += 1,
            None => drop(slots.swap_remove(slot)),
        }
    }
    slots.into_iter().flatten().collect()
}

/// The numbers under which clients remember endpoints: never 0, and unchanged after a restart of the agent.
fn stable_slots(placed: &[SocketAddr]) -> Vec<(SocketAddr, u32)> {
    let mut taken = BTreeSet::new();
    let mut sorted = placed.to_vec();
    sorted.sort();
    let mut slots = HashMap::new();
    for endpoint in sorted {
        let mut slot = (fnv(endpoint.to_string().as_bytes()) as u32).max(1);
        while !taken.insert(slot) {
            slot = slot.wrapping_add(1).max(1);
        }
        slots.insert(endpoint, slot);
    }
    placed.iter().map(|endpoint| (*endpoint, slots[endpoint])).collect()
}

impl Compiled {
    fn put(&mut self, family: Family, map: Map, key: Key, value: Value) {
        self.elements.insert(ElementKey { family, map, key }, value);
    }

    /// The shared chains used by the elements.
    pub fn chains(&self) -> impl Iterator<Item = (Family, Chain)> {
        self.elements.iter().filter_map(|(place, value)| match value {
            Value::Goto(chain) | Value::Jump(chain) => Some((place.family, *chain)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::port_at;
    use super::*;
    use proptest::prelude::*;

    fn endpoints(numbers: &[u8]) -> Vec<SocketAddr> {
        numbers.iter().map(|n| SocketAddr::from(([10, 0, 0, *n], 80))).collect()
    }

    #[test]
    fn endpoints_keep_their_slots() {
        let place = |before: &[u8], wanted: &[u8]| place(&endpoints(before), &endpoints(wanted), Family::V4);
        assert_eq!(place(&[], &[1, 2, 3]), endpoints(&[1, 2, 3]));
        assert_eq!(place(&[1, 2, 3], &[1, 3]), endpoints(&[1, 3]));
        assert_eq!(place(&[1, 2, 3], &[3, 2]), endpoints(&[3, 2]));
        assert_eq!(place(&[1, 2, 3], &[1, 3, 4]), endpoints(&[1, 4, 3]));
        assert_eq!(place(&[1, 2, 3], &[]), endpoints(&[]));
        assert_eq!(place(&[1], &[2, 2, 1]), endpoints(&[1, 2]));
    }

    #[test]
    fn clients_are_remembered_for_as_long_as_asked_by_few_chains() {
        let chains: BTreeSet<u32> = (0..=90_000).map(|s| remembered_for(Duration::from_secs(s))).collect();
        assert!(chains.len() < 3000, "{}", chains.len());
        for seconds in [1u32, 60, 999, 1_000, 3_600, 10_800, 43_200, 86_400] {
            assert_eq!(remembered_for(Duration::from_secs(seconds.into())), seconds);
        }
        for seconds in 1..=86_400u32 {
            let kept = remembered_for(Duration::from_secs(seconds.into()));
            assert!(kept >= seconds && kept <= seconds + seconds / 100);
        }
        assert_eq!(remembered_for(Duration::from_secs(u64::MAX)), 86_400);
    }

    #[test]
    fn ranges_of_sources_are_networks_with_their_lengths() {
        let sources = |ranges: &[&str]| -> Vec<String> {
            let mut port = port_at("198.51.100.7", &endpoints(&[1]));
            port.source_ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
            let service = Service { ports: vec![port], ..Service::default() };
            let compiled = compile("a/b", &service, None, &mut Ids::default());
            let restricts = |place: &&ElementKey| matches!(place.map, Map::Sources | Map::Restricted);
            let key = |place: &ElementKey| match place.key {
                Key::Id(_) => "restricted".to_owned(),
                key => key.to_string().split_once(" . ").unwrap().1.to_owned(),
            };
            compiled.elements.keys().filter(restricts).map(key).collect()
        };
        assert_eq!(sources(&[]), [""; 0]);
        assert_eq!(sources(&["10.0.0.7/8", "10.1.0.0/16"]), ["restricted", "0x8 . 10.0.0.0"]);
        assert_eq!(sources(&["10.2.0.0/15"]), ["restricted", "0x10 . 10.2.0.0", "0x10 . 10.3.0.0"]);
        assert_eq!(sources(&["fd00::/8"]), ["restricted"], "nobody of this family");
        // Everyone, in one range and in two.
        assert_eq!(sources(&["10.0.0.0/8", "0.0.0.0/0"]), [""; 0]);
        assert_eq!(sources(&["0.0.0.0/1", "128.0.0.0/1"]), [""; 0]);
    }

    proptest! {
        #[test]
        fn placing_is_complete_and_moves_few(before: Vec<u8>, wanted: Vec<u8>) {
            let before = place(&[], &endpoints(&before), Family::V4);
            let after = place(&before, &endpoints(&wanted), Family::V4);
            let set: BTreeSet<_> = after.iter().copied().collect();
            prop_assert_eq!(set.len(), after.len());
            prop_assert_eq!(set, endpoints(&wanted).into_iter().collect::<BTreeSet<_>>());
            let gone = before.iter().filter(|e| !after.contains(e)).count();
            let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
            prop_assert!(changed <= gone);
        }
    }
}

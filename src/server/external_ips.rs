//! External addresses of Services. They are not allocated: the first Service that names one keeps it from other namespaces, port by
//! port.
//!
//! (Upstream leaves open which of several Services gets the traffic.) For existing conflicts and concurrent writes, the older
//! Service gets it on all nodes: `podwright_net::dataplane::Seniority`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use podwright_api::validation::{names, service::MAX_WAYS};
use podwright_api::{Kind, Object, Status, kinds};

use super::Server;
use super::reservation::concerns;
use super::resolved_request::{ResolvedRequest, bad_value};

/// A Service's external entry points: each of the addresses with each of the ports. (A manifest may name too many of both to store
/// all pairs.)
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ways {
    addresses: BTreeSet<IpAddr>,
    ports: BTreeSet<Port>,
}

/// A protocol and its port.
type Port = (Protocol, u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
enum Protocol {
    #[serde(rename = "TCP")]
    Tcp,
    #[serde(rename = "UDP")]
    Udp,
    #[serde(rename = "SCTP")]
    Sctp,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        }
    }
}

impl Ways {
    /// Those of a stored object of any kind; `None` if it has no external addresses.
    pub fn of_stored(kind: &Kind, bytes: &[u8]) -> Option<Arc<Ways>> {
        if !concerns(kind) {
            return None;
        }
        let text = std::str::from_utf8(bytes).ok()?;
        if !text.contains("\"externalIPs\"") && !text.contains("\"ingress\"") {
            return None;
        }
        // Other spellings are decoded as a whole.
        let ways = match serde_json::from_str::<Outside>(text) {
            Ok(outside) => outside.into(),
            Err(_) => Ways::of(&Object::from_slice(bytes).ok()?),
        };
        (!ways.addresses.is_empty()).then(|| Arc::new(ways))
    }

    fn of(service: &Object) -> Ways {
        let port = |port: &Value| -> Option<Port> {
            let protocol = match port["protocol"].as_str() {
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                Some("TCP") | None => Protocol::Tcp,
                // Validation refuses it, and an invalid port.
                Some(_) => return None,
            };
            Some((protocol, u16::try_from(port["port"].as_u64()?).ok()?))
        };
        let list = |path: &str| service.0.pointer(path).and_then(Value::as_array).into_iter().flatten();
        let balancers = list("/status/loadBalancer/ingress").map(|ingress| &ingress["ip"]);
        let addresses = list("/spec/externalIPs").chain(balancers).filter_map(Value::as_str);
        Ways { addresses: plain(addresses).collect(), ports: list("/spec/ports").filter_map(port).collect() }
    }

    fn has(&self, address: &IpAddr, port: &Port) -> bool {
        self.addresses.contains(address) && self.ports.contains(port)
    }

    /// All pairs of address and port.
    fn pairs(&self) -> impl Iterator<Item = (IpAddr, Port)> {
        self.addresses.iter().flat_map(|address| self.ports.iter().map(|port| (*address, *port)))
    }
}

/// Addresses in canonical form: IPv4-mapped IPv6 addresses become IPv4.
fn plain<'a>(addresses: impl Iterator<Item = &'a str>) -> impl Iterator<Item = IpAddr> {
    addresses.filter_map(|ip| Some(names::plain_ip(ip.parse().ok()?)))
}

/// What is read of each stored Service; the rest is skipped.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Outside {
    spec: OutsideSpec,
    status: OutsideStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OutsideSpec {
    #[serde(rename = "externalIPs")]
    external_ips: Vec<String>,
    ports: Vec<OutsidePort>,
}

#[derive(Deserialize)]
struct OutsidePort {
    protocol: Protocol,
    port: u16,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct OutsideStatus {
    load_balancer: Balancer,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Balancer {
    ingress: Vec<Ingress>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ingress {
    ip: String,
}

impl From<Outside> for Ways {
    fn from(outside: Outside) -> Ways {
        let balancers = outside.status.load_balancer.ingress.iter().map(|ingress| &ingress.ip);
        let all = outside.spec.external_ips.iter().chain(balancers);
        let ports = outside.spec.ports.iter().map(|port| (port.protocol, port.port));
        Ways { addresses: plain(all.map(String::as_str)).collect(), ports: ports.collect() }
    }
}

/// An index of entry points: how many Services of each namespace have each. Lookups take no longer if others have many.
#[derive(Debug, Default)]
pub(super) struct WaysIndex(BTreeMap<Entry, u32>);

/// An address and a port, and a namespace that has them.
type Entry = (IpAddr, Port, Arc<str>);

impl WaysIndex {
    /// Updates the index after a change of a Service.
    pub fn change(&mut self, namespace: &str, old: Option<&Ways>, new: Option<&Ways>) {
        if old == new {
            return;
        }
        let namespace: Arc<str> = namespace.into();
        for (address, port) in new.into_iter().flat_map(Ways::pairs) {
            *self.0.entry((address, port, namespace.clone())).or_default() += 1;
        }
        for (address, port) in old.into_iter().flat_map(Ways::pairs) {
            let entry = (address, port, namespace.clone());
            match self.0.get_mut(&entry) {
                Some(services @ 2..) => *services -= 1,
                _ => drop(self.0.remove(&entry)),
            }
        }
    }

    /// Looks up entry points that are not `known`: of each the first two namespaces that have it, enough to see whether another one
    /// than a given one does.
    fn look_up(&self, ways: &Ways, known: &Ways) -> impl Iterator<Item = &Entry> {
        let least: Arc<str> = "".into();
        let new = ways.pairs().filter(|(address, port)| !known.has(address, port));
        new.flat_map(move |(address, port)| {
            let from = self.0.range((address, port, least.clone())..).map(|(entry, _)| entry);
            from.take(2).take_while(move |entry| (entry.0, entry.1) == (address, port))
        })
    }

    /// Whether an address belongs to any Service.
    fn has(&self, address: IpAddr) -> bool {
        let from = (address, (Protocol::Tcp, 0), "".into());
        self.0.range(from..).next().is_some_and(|(entry, _)| entry.0 == address)
    }
}

/// Whether an address is an external address of a Service.
pub(super) fn leads_in(server: &Server, address: IpAddr) -> bool {
    let kind = kinds::lookup("services");
    kind.is_some_and(|kind| server.cache.resource(kind).read().ways.has(address))
}

/// Refuses a Service that newly names an address and port of a Service in another namespace. Conflicts within a namespace are for
/// its users to settle.
pub(super) fn refuse_taken(
    server: &Server,
    call: &ResolvedRequest,
    old: Option<&Object>,
    new: &Object,
) -> Result<(), Status> {
    refuse_of_pool(server, call, old, new)?;
    let (ways, known) = (Ways::of(new), old.map(Ways::of).unwrap_or_default());
    // Validation refuses this many anyway.
    let named = new.0["spec"]["externalIPs"].as_array().map_or(0, Vec::len);
    if named.saturating_mul(ways.ports.len()) > MAX_WAYS {
        return Ok(());
    }
    let resource = server.cache.resource(call.kind);
    let state = resource.read();
    let mut found = state.ways.look_up(&ways, &known);
    match found.find(|(.., namespace)| Some(&**namespace) != new.namespace()) {
        Some((address, (protocol, port), _)) => {
            let why = format!("{} port {port} of it leads to a Service of another namespace already", protocol.name());
            let cause = bad_value("spec.externalIPs", &Value::from(address.to_string()), &why);
            Err(call.invalid(new.name(), vec![cause]))
        }
        None => Ok(()),
    }
}

/// Refuses a Service that newly names an address of the pool as its own: those are given out.
fn refuse_of_pool(server: &Server, call: &ResolvedRequest, old: Option<&Object>, new: &Object) -> Result<(), Status> {
    let Some(pool) = &server.config.load_balancer_pool else { return Ok(()) };
    let named = |service: &Object| -> BTreeSet<IpAddr> {
        let list = service.0["spec"]["externalIPs"].as_array().into_iter().flatten();
        plain(list.filter_map(Value::as_str)).collect()
    };
    let known = old.map(named).unwrap_or_default();
    match named(new).difference(&known).find(|address| pool.contains(address)) {
        Some(address) => {
            let why = "it is in the pool of load balancer addresses; a Service of type LoadBalancer asks for it";
            let cause = bad_value("spec.externalIPs", &Value::from(address.to_string()), why);
            Err(call.invalid(new.name(), vec![cause]))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(service: &str) -> Option<Arc<Ways>> {
        let kind = kinds::lookup("services").unwrap();
        let ways = Ways::of_stored(kind, service.as_bytes());
        let object = Ways::of(&Object::from_slice(service.as_bytes()).unwrap());
        assert_eq!(ways.as_deref().unwrap_or(&Ways::default()).addresses, object.addresses, "{service}");
        assert!(ways.as_deref().is_none_or(|ways| *ways == object), "{service}");
        ways
    }

    fn ways(addresses: &[String], ports: impl IntoIterator<Item = u16>) -> Ways {
        let ports = ports.into_iter().map(|port| (Protocol::Tcp, port)).collect();
        Ways { addresses: plain(addresses.iter().map(String::as_str)).collect(), ports }
    }

    fn numbered(n: u32) -> String {
        IpAddr::V4((0xc633_0000 + n).into()).to_string()
    }

    #[test]
    fn an_address_is_found_however_it_is_written() {
        let service = |ip: &str| format!(r#"{{"spec":{{"externalIPs":["{ip}"]}}}}"#);
        for (address, spellings) in [
            (
                "203.0.113.50",
                &[
                    "203.0.113.50",
                    "::ffff:203.0.113.50",
                    "::ffff:cb00:7132",
                    "0:0:0:0:0:FFFF:CB00:7132",
                    "64:ff9b::cb00:7132",
                ][..],
            ),
            ("203.0.0.0", &["::ffff:cb00:0", "::ffff:cb00:0000", "0:0:0:0:0:ffff:cb00::"]),
            ("2001:db8::1", &["2001:DB8::1", "2001:0db8:0:0::0001"]),
        ] {
            for ip in spellings {
                let ways = stored(&service(ip)).unwrap();
                assert_eq!(ways.addresses, [address.parse().unwrap()].into(), "{ip}");
            }
        }
        assert_eq!(stored(r#"{"spec":{"clusterIP":"203.0.113.50"}}"#), None, "no address from outside");
        let balanced = r#"{"spec":{"ports":[{"protocol":"UDP","port":53},{"port":80}]},
            "status":{"loadBalancer":{"ingress":[{"hostname":"a"},{"ip":"203.0.113.50"}]}}}"#;
        assert_eq!(stored(balanced).unwrap().ports, [(Protocol::Udp, 53), (Protocol::Tcp, 80)].into());
    }

    /// A write costs by what it names, however many entry points others have.
    #[test]
    fn as_much_is_looked_up_as_is_named_whatever_others_have() {
        let (shared, mut index) = (numbered(1), WaysIndex::default());
        let mine = ways(&[shared.clone(), numbered(2)], [80, 443, 8080]);
        let looked_up = |index: &WaysIndex| index.look_up(&mine, &Ways::default()).count();
        assert_eq!(looked_up(&index), 0);
        for n in 0..4000 {
            let others = ways(&[shared.clone(), numbered(1000 + n)], [1000 + n as u16, 10_000 + n as u16]);
            index.change(&format!("other-{n}"), None, Some(&others));
        }
        assert_eq!(looked_up(&index), 0, "they have the address, and none of its ports");
        for n in 0..4000 {
            index.change(&format!("other-{n}"), None, Some(&ways(&[shared.clone()], [80, 443])));
        }
        assert_eq!(looked_up(&index), 4, "of each of two ways two that have it");
        assert_eq!(index.look_up(&mine, &mine).count(), 0, "nothing of it is new");
        assert_eq!(index.look_up(&mine, &ways(&[shared.clone()], [443])).count(), 2);
    }

    #[test]
    fn what_nobody_has_any_more_is_free() {
        let (a, b) = (ways(&[numbered(1)], [80, 443]), ways(&[numbered(1), numbered(2)], [443]));
        let mut index = WaysIndex::default();
        let has = |index: &WaysIndex, namespace: &str| {
            let all = ways(&[numbered(1), numbered(2)], [80, 443]);
            let named: Vec<_> = index.0.keys().filter(|entry| &*entry.2 == namespace).map(|e| (e.0, e.1.1)).collect();
            assert!(named.iter().all(|(address, port)| all.has(address, &(Protocol::Tcp, *port))));
            named.len()
        };
        index.change("web", None, Some(&a));
        index.change("web", None, Some(&b));
        index.change("other", None, Some(&b));
        assert_eq!((has(&index, "web"), has(&index, "other")), (3, 2));
        index.change("web", Some(&a), Some(&b));
        assert_eq!((has(&index, "web"), has(&index, "other")), (2, 2));
        index.change("web", Some(&b), None);
        assert_eq!((has(&index, "web"), has(&index, "other")), (2, 2), "another one of the namespace has it");
        index.change("web", Some(&b), None);
        assert_eq!((has(&index, "web"), has(&index, "other")), (0, 2));
        assert!(index.has("198.51.0.2".parse().unwrap()) && !index.has("198.51.0.3".parse().unwrap()));
        index.change("other", Some(&b), None);
        assert!(index.0.is_empty() && !index.has("198.51.0.2".parse().unwrap()));
    }
}

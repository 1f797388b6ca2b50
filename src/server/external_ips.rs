//! Addresses from outside of the cluster that Services name. Nobody hands them out: whoever names one first keeps it from other
//! namespaces, port by port.
//!
//! (Upstream leaves open which of several Services gets the traffic.) Of those that were there before, and of two that are
//! written at the same moment, the older Service has it on all nodes: `podwright_net::dataplane::Seniority`.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use podwright_api::validation::names;
use podwright_api::{Object, Status, kinds};

use super::Server;
use super::cache::Item;
use super::resolved_request::{ResolvedRequest, bad_value};

/// The addresses that lead to a Service from outside: `externalIPs`, and its load balancers'.
pub(super) fn of(service: &Object) -> impl Iterator<Item = IpAddr> {
    let list = |path: &str| service.0.pointer(path).and_then(Value::as_array).into_iter().flatten();
    let balancers = list("/status/loadBalancer/ingress").map(|ingress| &ingress["ip"]);
    list("/spec/externalIPs").chain(balancers).filter_map(|ip| Some(names::plain_ip(ip.as_str()?.parse().ok()?)))
}

/// The Services that have one of these addresses: of thousands those alone are decoded as a whole.
pub(super) fn services(server: &Server, addresses: &HashSet<IpAddr>) -> impl Iterator<Item = Object> + use<> {
    let kind = kinds::lookup("services").filter(|_| !addresses.is_empty());
    let items: Vec<Arc<Item>> = kind.map_or_else(Vec::new, |kind| {
        let resource = server.cache.resource(kind);
        let state = resource.read();
        state.range(&kind.key(None, ""), None).cloned().collect()
    });
    let addresses = addresses.clone();
    items
        .into_iter()
        .filter(move |item| has_one(&item.bytes, &addresses))
        .filter_map(|item| Object::from_slice(&item.bytes).ok())
}

/// What is looked at of each Service: its addresses, as [`of`] has them, and nothing is made of the rest.
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

/// Whether a Service has one of these addresses, however it is written there. It takes no longer for many than for one.
fn has_one(service: &[u8], addresses: &HashSet<IpAddr>) -> bool {
    let text = std::str::from_utf8(service).unwrap_or("");
    if !text.contains("\"externalIPs\"") && !text.contains("\"ingress\"") {
        return false;
    }
    // What is written otherwise is decoded as a whole.
    let Ok(outside) = serde_json::from_str::<Outside>(text) else { return true };
    let balancers = outside.status.load_balancer.ingress.iter().map(|ingress| &ingress.ip);
    let all = outside.spec.external_ips.iter().chain(balancers);
    all.filter_map(|ip| ip.parse().ok()).any(|ip| addresses.contains(&names::plain_ip(ip)))
}

/// What leads to a Service from outside: each of the addresses with each of the ports. (A manifest may name more of both than there
/// is room for all pairs.)
#[derive(Default)]
struct Ways {
    addresses: HashSet<IpAddr>,
    ports: HashSet<(String, u64)>,
}

impl Ways {
    fn of(service: &Object) -> Ways {
        let ports = service.0["spec"]["ports"].as_array().into_iter().flatten();
        let ports = ports.map(|port| {
            let protocol = port["protocol"].as_str().unwrap_or("TCP").to_owned();
            (protocol, port["port"].as_u64().unwrap_or(0))
        });
        Ways { addresses: of(service).collect(), ports: ports.collect() }
    }

    /// One that both have, and that is not among the `known` ones.
    fn shared<'a>(&'a self, other: &Ways, known: &Ways) -> Option<(&'a IpAddr, &'a (String, u64))> {
        let addresses: Vec<&IpAddr> = self.addresses.iter().filter(|ip| other.addresses.contains(*ip)).collect();
        let ports: Vec<&(String, u64)> = self.ports.iter().filter(|port| other.ports.contains(*port)).collect();
        let new_address = addresses.iter().copied().find(|ip| !known.addresses.contains(*ip));
        let new_port = ports.iter().copied().find(|port| !known.ports.contains(*port));
        new_address.zip(ports.first().copied()).or_else(|| addresses.first().copied().zip(new_port))
    }
}

/// Refuses a Service that comes to name an address and port which one of another namespace names already. Those of one namespace
/// are of people who can settle it.
pub(super) fn refuse_taken(
    server: &Server,
    call: &ResolvedRequest,
    old: Option<&Object>,
    new: &Object,
) -> Result<(), Status> {
    let (ways, known) = (Ways::of(new), old.map(Ways::of).unwrap_or_default());
    if ways.addresses.is_subset(&known.addresses) && ways.ports.is_subset(&known.ports) {
        return Ok(());
    }
    let mut others = services(server, &ways.addresses).filter(|other| other.namespace() != new.namespace());
    match others.find_map(|other| ways.shared(&Ways::of(&other), &known)) {
        Some((address, (protocol, port))) => {
            let why = format!("{protocol} port {port} of it leads to a Service of another namespace already");
            let cause = bad_value("spec.externalIPs", &Value::from(address.to_string()), &why);
            Err(call.invalid(new.name(), vec![cause]))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_however_it_is_written() {
        let of = |address: &str| HashSet::from([address.parse().unwrap()]);
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
                assert!(has_one(service(ip).as_bytes(), &of(address)), "{address} as {ip}");
                let found: Vec<IpAddr> = super::of(&Object::from_slice(service(ip).as_bytes()).unwrap()).collect();
                assert_eq!(found, [address.parse::<IpAddr>().unwrap()], "{ip}");
            }
        }
        let asked = of("203.0.113.50");
        assert!(!has_one(service("203.0.113.51").as_bytes(), &asked));
        assert!(!has_one(br#"{"spec":{"clusterIP":"203.0.113.50"}}"#, &asked), "no address from outside");
        let balanced = br#"{"status":{"loadBalancer":{"ingress":[{"hostname":"a"},{"ip":"203.0.113.50"}]}}}"#;
        assert!(has_one(balanced, &asked));
    }

    /// Whoever writes a Service chooses how many addresses are looked for in those of others, and how large these are.
    #[test]
    fn many_addresses_are_looked_for_as_fast_as_few() {
        let text = "x".repeat(2 << 20);
        let service =
            format!(r#"{{"metadata":{{"annotations":{{"a":"{text}"}}}},"spec":{{"externalIPs":["1.1.1.1"]}}}}"#);
        let addresses = |n: u32| -> HashSet<IpAddr> { (0..n).map(|n| IpAddr::V4((0x0a00_0000 + n).into())).collect() };
        let took = |addresses: HashSet<IpAddr>| {
            let once = |_| {
                let start = std::time::Instant::now();
                assert!(!has_one(service.as_bytes(), &addresses));
                start.elapsed()
            };
            (0..5).map(once).min().unwrap()
        };
        let (few, many) = (took(addresses(4)), took(addresses(4000)));
        assert!(many < few * 20, "{few:?}, {many:?}");
    }
}

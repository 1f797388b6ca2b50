//! Addresses from outside of the cluster that Services name. Nobody hands them out: whoever names one first keeps it from other
//! namespaces, port by port.
//!
//! (Upstream leaves open which of several Services gets the traffic.) Of those that were there before, and of two that are
//! written at the same moment, the older Service has it on all nodes: `podwright_net::dataplane::Seniority`.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

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

/// The Services that may have one of these addresses: of thousands those alone are decoded.
pub(super) fn services(server: &Server, addresses: &HashSet<IpAddr>) -> impl Iterator<Item = Object> + use<> {
    let kind = kinds::lookup("services").filter(|_| !addresses.is_empty());
    let items: Vec<Arc<Item>> = kind.map_or_else(Vec::new, |kind| {
        let resource = server.cache.resource(kind);
        let state = resource.read();
        state.range(&kind.key(None, ""), None).cloned().collect()
    });
    let written = Written::of(addresses);
    items
        .into_iter()
        .filter(move |item| written.may_be_in(&item.bytes))
        .filter_map(|item| Object::from_slice(&item.bytes).ok())
}

/// How addresses may be written in a Service.
struct Written {
    /// How IPv4 addresses end there.
    ends: Vec<String>,
    /// An IPv6 address is written in too many ways.
    any: bool,
}

impl Written {
    fn of(addresses: &HashSet<IpAddr>) -> Written {
        let mut ends = Vec::new();
        for address in addresses {
            let IpAddr::V4(v4) = address else { continue };
            // By itself, or behind whatever prefix of IPv6's: there its second half may be a group in hex too.
            let [_, _, high, low] = v4.octets();
            let group = u16::from_be_bytes([high, low]);
            ends.extend([format!("{address}\""), format!("{group:x}\"")]);
            if group == 0 {
                ends.push("::\"".to_owned());
            }
        }
        Written { ends, any: addresses.iter().any(IpAddr::is_ipv6) }
    }

    fn may_be_in(&self, service: &[u8]) -> bool {
        let text = std::str::from_utf8(service).unwrap_or("");
        let names_some = text.contains("\"externalIPs\"") || text.contains("\"ingress\"");
        // Hex is written in either case.
        names_some
            && (self.any || {
                let text = text.to_ascii_lowercase();
                self.ends.iter().any(|end| text.contains(end.as_str()))
            })
    }
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
        let of = |address: &str| Written::of(&HashSet::from([address.parse().unwrap()]));
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
            ("203.0.0.10", &["::ffff:cb00:A", "::ffff:cb00:000a"]),
            ("203.0.0.0", &["::ffff:cb00:0", "::ffff:cb00:0000", "0:0:0:0:0:ffff:cb00::"]),
        ] {
            for ip in spellings {
                assert!(of(address).may_be_in(service(ip).as_bytes()), "{address} as {ip}");
                let found: Vec<IpAddr> = super::of(&Object::from_slice(service(ip).as_bytes()).unwrap()).collect();
                assert_eq!(found, [address.parse::<IpAddr>().unwrap()], "{ip}");
            }
        }
        assert!(!of("203.0.113.50").may_be_in(service("203.0.113.51").as_bytes()));
        assert!(!of("203.0.113.50").may_be_in(br#"{"spec":{"clusterIP":"203.0.113.50"}}"#), "no address from outside");
    }
}

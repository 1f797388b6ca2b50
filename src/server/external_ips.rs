//! Addresses from outside of the cluster that Services name. Nobody hands them out: whoever names one first keeps it from other
//! namespaces, port by port.
//!
//! (Upstream leaves open which of several Services gets the traffic.) Of those that were there before, and of two that are
//! written at the same moment, the older Service has it on all nodes: `podwright_net::dataplane::Seniority`.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;

use crate::api::validation::names;
use crate::api::{Object, Status, kinds};

use super::Server;
use super::cache::Item;
use super::call::{Call, bad_value};

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
        let shelf = server.cache.shelf(kind);
        let state = shelf.read();
        state.range(&kind.key(None, ""), None).cloned().collect()
    });
    // An IPv4 address is written in one way, but for what stands before it in IPv6's; an IPv6 address in many.
    let is_v4 = |address: &&IpAddr| address.is_ipv4();
    let written: Vec<String> = addresses.iter().filter(is_v4).map(|address| format!("{address}\"")).collect();
    let any = addresses.iter().any(IpAddr::is_ipv6);
    let may = move |item: &Arc<Item>| {
        let text = std::str::from_utf8(&item.bytes).unwrap_or("");
        let names_some = text.contains("\"externalIPs\"") || text.contains("\"ingress\"");
        names_some && (any || written.iter().any(|address| text.contains(address.as_str())))
    };
    items.into_iter().filter(may).filter_map(|item| Object::from_slice(&item.bytes).ok())
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
pub(super) fn refuse_taken(server: &Server, call: &Call, old: Option<&Object>, new: &Object) -> Result<(), Status> {
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

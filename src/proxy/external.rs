//! Which external addresses of a Service lead to it on this node.
//!
//! Users who can write a Service may claim any address (CVE-2020-8554). Those of Pods, nodes, servers and other Services are
//! excluded by the rules themselves (`net/src/dataplane/base.rs`), which follow changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use podwright_net::IpNet;
use podwright_net::dataplane::NodeFacts;

use super::compile::{balancer_addresses, external_ips, kept_ports};
use super::context::{OF_DNS, why_not_in};
use podwright_client::Key;

/// Maximum addresses named in one message.
const MOST_NAMED: usize = 4;

const EXTERNAL_ADDRESS: &str = "ExternalAddressNotServed";
const CLUSTER_IP: &str = "ClusterIPNotServed";

/// The parts of a Service that are not served, for its events: reasons with messages.
pub type Unserved = Vec<(&'static str, String)>;

/// Whether a Service has external addresses.
pub fn names_addresses(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| !external_ips(spec).is_empty()) || !balancer_addresses(service).is_empty()
}

/// Addresses that cannot be claimed from outside.
#[derive(Default)]
pub struct OccupiedAddresses {
    services: Ranges,
    inside: Ranges,
    servers: Ranges,
}

impl OccupiedAddresses {
    pub fn of(facts: &NodeFacts) -> OccupiedAddresses {
        OccupiedAddresses {
            services: Ranges::of(facts.service_ranges.clone()),
            inside: Ranges::of([facts.cluster_ranges.as_slice(), &facts.other_nodes].concat()),
            servers: Ranges::of(facts.servers.clone()),
        }
    }

    /// Why an address is not served. A load balancer (`is_named` is false) may be on a node's own port and report it: no traffic is
    /// misdirected.
    fn why(&self, address: &IpAddr, is_named: bool, dns: &[IpAddr]) -> Option<&'static str> {
        match why_not_in(address, dns) {
            Some(why) => Some(why),
            None if self.services.contain(address) => Some("it is in the range of Services' addresses"),
            None if !is_named => None,
            None if self.inside.contain(address) => Some("it is the address of a Pod or node"),
            None if self.servers.contain(address) => Some("it is the address of an API server"),
            None => None,
        }
    }
}

/// Sorted ranges without overlaps.
#[derive(Default)]
struct Ranges(Vec<IpNet>);

impl Ranges {
    fn of(ranges: Vec<IpNet>) -> Ranges {
        let mut ranges = IpNet::aggregate(&ranges);
        ranges.sort_unstable();
        Ranges(ranges)
    }

    fn contain(&self, address: &IpAddr) -> bool {
        let behind = self.0.partition_point(|range| range.network() <= *address);
        self.0[..behind].last().is_some_and(|range| range.contains(address))
    }
}

/// Which addresses of a Service this node does not serve, and which ports of its own, and why. `dns`: where the node serves DNS.
pub fn unserved_addresses(service: &Service, taken: &OccupiedAddresses, dns: &[IpAddr]) -> Unserved {
    let named = service.spec.as_ref().map(external_ips).unwrap_or_default();
    let given = balancer_addresses(service);
    let all = named.iter().map(|address| (address, true)).chain(given.iter().map(|address| (address, false)));
    let external = all.filter_map(|(address, is_named)| Some((address, taken.why(address, is_named, dns)?)));
    let external = in_words(external, |(address, why)| format!("external address {address} is not served: {why}"));
    let own = in_words(kept_ports(service, dns).into_iter(), |(protocol, port, address)| {
        format!("{protocol} port {port} of {address} is not served: {OF_DNS}")
    });
    let own = own.map(|message| (CLUSTER_IP, message));
    external.map(|message| (EXTERNAL_ADDRESS, message)).into_iter().chain(own).collect()
}

/// The first few, and how many more there are.
fn in_words<T>(mut all: impl Iterator<Item = T>, in_words: impl Fn(T) -> String) -> Option<String> {
    let mut words: Vec<String> = all.by_ref().take(MOST_NAMED).map(in_words).collect();
    let more = all.count();
    words.extend((more > 0).then(|| format!("and {more} more")));
    (!words.is_empty()).then(|| words.join("; "))
}

/// What was reported about Services, so that each gets an event once.
#[derive(Default)]
pub struct Told {
    told: BTreeMap<Key, Unserved>,
    due: BTreeSet<Key>,
}

impl Told {
    /// Marks Services that may need a new report.
    pub fn look_at(&mut self, services: impl IntoIterator<Item = Key>) {
        self.due.extend(services);
    }

    /// The reports for at most this many Services; the others follow the next time.
    pub fn next(&mut self, most: usize, unserved: impl Fn(&Key) -> Unserved) -> Vec<(Key, Unserved)> {
        let mut telling = Vec::new();
        while telling.len() < most
            && let Some(key) = self.due.pop_first()
        {
            let unserved = unserved(&key);
            let before = self.told.remove(&key).unwrap_or_default();
            let anew: Unserved = unserved.iter().filter(|one| !before.contains(one)).cloned().collect();
            if !unserved.is_empty() {
                self.told.insert(key.clone(), unserved);
            }
            if !anew.is_empty() {
                telling.push((key, anew));
            }
        }
        telling
    }
}

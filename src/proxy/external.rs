//! Which of the addresses from outside that a Service names lead to it on this node.
//!
//! Whoever may write a Service names any address (CVE-2020-8554). Those of Pods, nodes, servers and other Services are not to be had
//! by the rules themselves (`net/src/dataplane/base.rs`), which know them as they change.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use podwright_net::dataplane::NodeFacts;

use super::compile::{balancer_addresses, external_ips};
use crate::api::validation::names::{plain_ip, special_ip};
use crate::client::Key;

/// So many addresses are named in one message.
const MOST_NAMED: usize = 4;

/// Whether an address may lead to a Service from outside: neither one of the machine's or a link's own, nor one on which this node
/// answers DNS.
pub fn may_lead_in(address: &IpAddr, dns: &[IpAddr]) -> bool {
    special_ip(*address).is_none() && !dns.contains(&plain_ip(*address))
}

/// Which of the addresses that a Service names this node does not serve, and why, in words. `dns`: where it answers DNS itself.
pub fn unserved_addresses(service: &Service, facts: &NodeFacts, dns: &[IpAddr]) -> Option<String> {
    let named = service.spec.as_ref().map(external_ips).unwrap_or_default();
    let given = balancer_addresses(service);
    // A load balancer may be on a node's own port, and say so: nothing of it is led astray.
    let in_words = |address: &IpAddr, is_named: bool| {
        let is_in = |ranges: &[podwright_net::IpNet]| ranges.iter().any(|range| range.contains(address));
        let why = match special_ip(*address) {
            Some(why) => why,
            None if dns.contains(&plain_ip(*address)) => "it is the address of the cluster's DNS",
            None if is_in(&facts.service_ranges) => "it is in the range of Services' addresses",
            None if !is_named => return None,
            None if is_in(&facts.cluster_ranges) || is_in(&facts.other_nodes) => "it is the address of a Pod or node",
            None if is_in(&facts.servers) => "it is the address of an API server",
            None => return None,
        };
        Some(format!("external address {address} is not served: {why}"))
    };
    let all = named.iter().map(|address| (address, true)).chain(given.iter().map(|address| (address, false)));
    let mut told: Vec<String> = all.filter_map(|(address, is_named)| in_words(address, is_named)).collect();
    let more = told.len().saturating_sub(MOST_NAMED);
    told.truncate(MOST_NAMED);
    told.extend((more > 0).then(|| format!("and {more} more")));
    (!told.is_empty()).then(|| told.join("; "))
}

/// What was told of Services, so that each hears it once.
#[derive(Default)]
pub struct Told(BTreeMap<Key, String>);

impl Told {
    /// What is to be told now.
    pub fn note(&mut self, key: &Key, unserved: Option<String>) -> Option<String> {
        let before = match &unserved {
            Some(message) => self.0.insert(key.clone(), message.clone()),
            None => self.0.remove(key),
        };
        unserved.filter(|message| before.as_ref() != Some(message))
    }
}

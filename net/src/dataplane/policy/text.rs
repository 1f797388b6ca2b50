//! Policies in nft's own words: a chain for each policy, and one for each distinct set of policies.
//!
//! ```text
//! ingress { 10.244.1.5 : goto policies-7 }     policies-7: jump policy-3; jump policy-9; goto forbid
//! policy-3: ct original ip saddr @group-4 ct protocol tcp ct reply proto-src { 80, 443 } accept
//! ```
//!
//! Rules go by what conntrack says of a connection: who has begun it, and who answers it, behind all translation. So packets of
//! both directions are judged alike, whenever they come: what a policy forbids ends, however long it has been going on. An error
//! about a connection goes by that connection.

use std::fmt::Write;
use std::net::IpAddr;

use super::super::elements::Map;
use super::super::ids::PartIds;
use super::super::table::{TABLE, nft_family};
use super::model::{Direction, Peers, Policy, Ports, Rule};
use crate::Family;

/// What groups are called where numbers are given out.
pub fn group_name(group: &str) -> String {
    format!("group {group}")
}

/// The same of groups of endpoints.
pub fn endpoints_name(group: &str) -> String {
    format!("endpoints {group}")
}

/// The rules of a policy's chain in one family.
pub fn policy_rules(policy: &Policy, direction: Direction, family: Family, ids: &mut PartIds) -> Vec<String> {
    policy.rules.iter().filter_map(|rule| rule_text(rule, direction, family, ids)).collect()
}

/// The rules of the chain of a set of policies.
pub fn set_rules(policies: &[u64], family: Family) -> Vec<String> {
    let ip = nft_family(family);
    // An address always reaches itself.
    let own = format!("ct original {ip} saddr . ct reply {ip} saddr @{} accept", Map::Isolated.name());
    let jumps = policies.iter().map(|number| format!("jump {}", policy_chain(*number)));
    [own].into_iter().chain(jumps).chain(["goto forbid".to_owned()]).collect()
}

/// `None`: in this family it lets nobody through.
fn rule_text(rule: &Rule, direction: Direction, family: Family, ids: &mut PartIds) -> Option<String> {
    let ip = nft_family(family);
    let peer = match direction {
        Direction::Ingress => format!("ct original {ip} saddr"),
        Direction::Egress => format!("ct reply {ip} saddr"),
    };
    let mut text = String::new();
    match &rule.peers {
        Peers::Any => {}
        Peers::Group(group) => {
            let set = Map::Group(ids.take(&group_name(group)));
            let _ = write!(text, "{peer} @{} ", set.name());
        }
        Peers::Ranges(ranges) => {
            let own: Vec<_> = ranges.iter().filter(|(first, _)| Family::of(first) == family).collect();
            match own[..] {
                [] => return None,
                [(first, last)] if is_all(first, last) => {}
                _ => {
                    let ranges: Vec<String> = own.into_iter().map(|(first, last)| range(first, last)).collect();
                    let _ = write!(text, "{peer} {{ {} }} ", ranges.join(", "));
                }
            }
        }
    }
    match &rule.ports {
        Ports::Any => {}
        Ports::Numbers(protocol, ports) => {
            let _ = write!(text, "ct protocol {} ", protocol.number());
            if ports[..] != [(0, u16::MAX)] {
                let ports: Vec<String> = ports.iter().map(|(first, last)| range(first, last)).collect();
                let _ = write!(text, "ct reply proto-src {{ {} }} ", ports.join(", "));
            }
        }
        Ports::Endpoints(protocol, group) => {
            let set = Map::GroupPorts(ids.take(&endpoints_name(group)));
            let protocol = protocol.number();
            let _ = write!(text, "ct protocol {protocol} ct reply {ip} saddr . ct reply proto-src @{} ", set.name());
        }
    }
    Some(text + "accept")
}

fn is_all(first: &IpAddr, last: &IpAddr) -> bool {
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => first.to_bits() == 0 && last.to_bits() == u32::MAX,
        (IpAddr::V6(first), IpAddr::V6(last)) => first.to_bits() == 0 && last.to_bits() == u128::MAX,
        _ => false,
    }
}

fn range<T: PartialEq + std::fmt::Display>(first: &T, last: &T) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// What the chain of a policy is called.
pub fn policy_chain(number: u64) -> String {
    format!("policy-{number:x}")
}

/// Makes a chain, or makes it anew where it is there already.
pub fn chain(chain: &str, family: Family, rules: &[String]) -> String {
    let ip = nft_family(family);
    let mut text = format!("add chain {ip} {TABLE} {chain}\nflush chain {ip} {TABLE} {chain}\n");
    for rule in rules {
        let _ = writeln!(text, "add rule {ip} {TABLE} {chain} {rule}");
    }
    text
}

/// Makes the set of a group.
pub fn set(map: Map, family: Family) -> String {
    let address = if family == Family::V4 { "ipv4_addr" } else { "ipv6_addr" };
    let port = if matches!(map, Map::GroupPorts(_)) { " . inet_service" } else { "" };
    format!("add set {} {TABLE} {} {{ type {address}{port}; }}\n", nft_family(family), map.name())
}

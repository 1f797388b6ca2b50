//! By what the traffic of addresses is judged, as currently in the kernel: the chains of their policies, and how many members the sets
//! have that these name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::Serialize;

use super::carriers::{ask, verdicts};
use super::elements::Map;
use super::fixed;
use super::policy::Direction;
use super::table::{TABLE, nft_family};
use crate::netlink::{self, Socket};
use crate::{Family, NodeNetns, Result};

/// How many bytes of chains are read at a time: those of one address in one direction have 512 rules.
const MOST: usize = 8 << 20;

/// What an address's packets of one direction go through.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    pub address: IpAddr,
    pub direction: Direction,
    /// In the order of passing; none: all are dropped.
    pub chains: Vec<Chain>,
    /// The sets that the rules name, and how many elements each has.
    pub sets: BTreeMap<String, usize>,
}

/// A chain, and its rules in nft's words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chain {
    pub name: String,
    pub rules: Vec<String>,
}

/// By what the traffic of these addresses is judged; what is not there is let through.
///
/// # Errors
///
/// The kernel cannot be asked, or it has more chains than are read.
pub fn judged(netns: &NodeNetns, socket: &mut Socket, addresses: &[IpAddr]) -> Result<Vec<Judged>> {
    let mut all = Vec::new();
    for carrier in ask(socket, &verdicts(addresses))? {
        let direction = if carrier.set == Map::Ingress.name() { Direction::Ingress } else { Direction::Egress };
        let Some(address) = carrier.element[0].as_str().and_then(|address| address.parse().ok()) else { continue };
        let chains = match carrier.element[1]["goto"]["target"].as_str() {
            Some(first) => chains_from(netns, carrier.family, first)?,
            None => Vec::new(),
        };
        let words = chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| rule.split(' '));
        let named: BTreeSet<&str> = words.filter_map(|word| word.strip_prefix('@')).collect();
        let mut sets = BTreeMap::new();
        for set in named {
            sets.insert(set.to_owned(), fixed::elements(socket, carrier.family, set)?.len());
        }
        all.push(Judged { address, direction, chains, sets });
    }
    Ok(all)
}

/// A chain, and those that it jumps to.
fn chains_from(netns: &NodeNetns, family: Family, first: &str) -> Result<Vec<Chain>> {
    let mut chains = listed(netns, family, &[first])?;
    let jumps = chains.iter().flat_map(|chain| &chain.rules).filter_map(|rule| rule.strip_prefix("jump "));
    let next = jumps.map(str::to_owned).collect::<Vec<_>>();
    if !next.is_empty() {
        chains.extend(listed(netns, family, &next.iter().map(String::as_str).collect::<Vec<_>>())?);
    }
    Ok(chains)
}

fn listed(netns: &NodeNetns, family: Family, names: &[&str]) -> Result<Vec<Chain>> {
    let ip = nft_family(family);
    let mut chains = Vec::new();
    for name in names {
        // One at a time: nft 1.0.6 finds only the last of several.
        let script = format!("list chain {ip} {TABLE} {name}\n");
        let text = netlink::in_netns(netns.fd(), || netlink::nft_listing(&["-t", "-f", "-"], &script, MOST))??;
        chains.extend(parse(&text));
    }
    Ok(chains)
}

/// What `nft list chain` prints, of several chains one after the other.
fn parse(listing: &str) -> Vec<Chain> {
    let mut chains: Vec<Chain> = Vec::new();
    for line in listing.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("chain ").and_then(|rest| rest.strip_suffix(" {")) {
            chains.push(Chain { name: name.to_owned(), rules: Vec::new() });
        } else if let Some(chain) = chains.last_mut()
            && !(matches!(line, "" | "}") || line.starts_with("table "))
        {
            chain.rules.push(line.to_owned());
        }
    }
    chains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_read_as_nft_prints_them() {
        let listing = "table ip podwright {\n\tchain policies-1 {\n\t\tjump policy-2\n\t\tgoto forbid\n\t}\n}\n\
                       table ip podwright {\n\tchain policy-2 {\n\t\tct original ip saddr @group-3 accept\n\t}\n}\n";
        let chain = |name: &str, rules: &[&str]| Chain {
            name: name.to_owned(),
            rules: rules.iter().map(|rule| (*rule).to_owned()).collect(),
        };
        let expected = [
            chain("policies-1", &["jump policy-2", "goto forbid"]),
            chain("policy-2", &["ct original ip saddr @group-3 accept"]),
        ];
        assert_eq!(parse(listing), expected);
    }
}

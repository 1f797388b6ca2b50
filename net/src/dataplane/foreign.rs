//! Other programs' tables that would drop Pods' traffic: found and reported, never changed.
//!
//! The listing is read chain by chain: the types of the `nftables` crate are closed, and what they do not know in one chain of
//! anybody's must not hide the others.

use nftables::{
    schema::Chain,
    types::{NfChainPolicy, NfFamily, NfHook},
};
use serde::Serialize;
use serde_json::Value;

use super::base::TABLE;
use crate::netlink;
use crate::{NodeNetns, Result};
use podwright_journal::Scribe;

/// Something outside our table that Pods' packets would not survive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// `ip filter FORWARD`.
    pub chain: String,
    pub message: String,
}

/// Looks for base chains of others that drop what they do not know, in forward (Pods) or input (Pods to their node). Docker's
/// and firewalld's are such. Each hook's chains all have to accept a packet: ours cannot speak for them.
pub fn foreign(netns: &NodeNetns) -> Result<Vec<Finding>> {
    let listed = netlink::in_netns(netns.fd(), || netlink::nft(&Scribe::none(), &["-j", "list", "chains"], ""))??;
    Ok(findings(&listed))
}

fn findings(json: &str) -> Vec<Finding> {
    let mut listing: Value = serde_json::from_str(json).unwrap_or_default();
    let entries = listing["nftables"].as_array_mut().into_iter().flatten();
    let chains = entries.filter_map(|entry| entry.get_mut("chain")).map(Value::take);
    chains.filter_map(decoded).filter_map(|chain| finding(&chain)).collect()
}

fn decoded(chain: Value) -> Option<Chain<'static>> {
    let known = serde_json::from_value(chain);
    known.inspect_err(|why| tracing::debug!(%why, "a chain of nftables is of a type that is not known")).ok()
}

fn finding(chain: &Chain<'_>) -> Option<Finding> {
    if chain.table == TABLE || chain.policy != Some(NfChainPolicy::Drop) {
        return None;
    }
    let (hook, who) = match chain.hook? {
        NfHook::Forward => ("forward", "traffic from and to Pods is dropped unless a rule there accepts it"),
        NfHook::Input => {
            ("input", "traffic from Pods to this node (DNS included) is dropped unless a rule there accepts it")
        }
        NfHook::Output => {
            ("output", "traffic from this node to Pods (probes included) is dropped unless a rule there accepts it")
        }
        _ => return None,
    };
    let owner = match &*chain.table {
        "firewalld" => "firewalld's",
        "filter" => "a chain that Docker and ufw use",
        _ => "another program's",
    };
    let chain = format!("{} {} {}", family(chain.family), chain.table, chain.name);
    Some(Finding { message: format!("{owner} chain {chain} has policy drop in {hook}: {who}"), chain })
}

fn family(family: NfFamily) -> &'static str {
    match family {
        NfFamily::IP => "ip",
        NfFamily::IP6 => "ip6",
        NfFamily::INet => "inet",
        NfFamily::ARP => "arp",
        NfFamily::Bridge => "bridge",
        NfFamily::NetDev => "netdev",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_policies_of_others_are_found() {
        let listing = r#"{"nftables": [{"metainfo": {}},
            {"chain": {"family": "netdev", "table": "x", "name": "in", "hook": "ingress", "dev": ["a", "b"], "policy": "drop"}},
            {"chain": {"family": "ip", "table": "x", "name": "later", "type": "unheard-of", "hook": "forward", "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "handle": 1, "type": "filter", "hook": "forward",
                       "prio": 0, "policy": "drop"}},
            {"chain": {"family": "inet", "table": "firewalld", "name": "filter_INPUT", "hook": "input", "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "INPUT", "hook": "input", "policy": "accept"}},
            {"chain": {"family": "ip", "table": "podwright", "name": "forward", "hook": "forward", "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "DOCKER"}}]}"#;
        let found: Vec<String> = findings(listing).into_iter().map(|finding| finding.chain).collect();
        assert_eq!(found, ["ip filter FORWARD", "inet firewalld filter_INPUT"]);
        assert_eq!(findings("not json"), []);
    }
}

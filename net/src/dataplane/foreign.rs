//! Other programs' tables that would drop Pods' traffic: found and reported, never changed.
//!
//! The listing is taken as plain JSON. The `nftables` crate's types are closed: one chain of a kind or hook that they do not
//! name, in anybody's table, and nothing of the listing is read.

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
    let listing: Value = serde_json::from_str(json).unwrap_or_default();
    let chains = listing["nftables"].as_array().into_iter().flatten().filter_map(|entry| entry.get("chain"));
    chains.filter_map(finding).collect()
}

fn finding(chain: &Value) -> Option<Finding> {
    let text = |field: &str| chain[field].as_str().unwrap_or("");
    let (table, hook) = (text("table"), text("hook"));
    if table == TABLE || text("policy") != "drop" {
        return None;
    }
    let who = match hook {
        "forward" => "traffic from and to Pods is dropped unless a rule there accepts it",
        "input" => "traffic from Pods to this node (DNS included) is dropped unless a rule there accepts it",
        "output" => "traffic from this node to Pods (probes included) is dropped unless a rule there accepts it",
        _ => return None,
    };
    let chain = format!("{} {table} {}", text("family"), text("name"));
    let owner = match table {
        "firewalld" => "firewalld's",
        "filter" => "a chain that Docker and ufw use",
        _ => "another program's",
    };
    Some(Finding { message: format!("{owner} chain {chain} has policy drop in {hook}: {who}"), chain })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_policies_of_others_are_found() {
        let listing = r#"{"nftables": [{"metainfo": {}},
            {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "hook": "forward", "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "INPUT", "hook": "input", "policy": "accept"}},
            {"chain": {"family": "ip", "table": "podwright", "name": "forward", "hook": "forward", "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "DOCKER"}}]}"#;
        let found = findings(listing);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].chain, "ip filter FORWARD");
        assert_eq!(findings("not json"), []);
    }
}

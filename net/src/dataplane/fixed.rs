//! The kernel's state of the tables' fixed part: nf_tables objects as hashes to compare.
//!
//! The intended state is what `nft` creates from our script in an empty namespace, whatever the versions of nft and kernel: so two
//! readings are compared, one of that and one of the table in use. Only meaningful parts of an object count: no handles or
//! counters, and for an anonymous set its contents, not its name.

use std::collections::{BTreeMap, HashMap};

use super::elements::{
    NFT_MSG_GETSETELEM, NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_TABLE, nfgen, table_of,
};
use super::ids::fnv;
use super::table::TABLE;
use crate::message::{Writer, attribute, attributes, u32_at};
use crate::netlink::{Answer, Socket};
use crate::{Family, Result};

/// Objects by name (`chain ip podwright service`), each with a hash of its state.
pub type Objects = BTreeMap<String, u64>;

// linux/netfilter/nf_tables.h
const NFTABLES: u16 = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8;
const NFT_MSG_GETTABLE: u16 = NFTABLES | 1;
const NFT_MSG_GETCHAIN: u16 = NFTABLES | 4;
const NFT_MSG_GETRULE: u16 = NFTABLES | 7;
const NFT_MSG_GETSET: u16 = NFTABLES | 10;
const NFT_MSG_GETGEN: u16 = NFTABLES | 16;
const NFTA_GEN_ID: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
/// Hook, policy, type, flags.
const CHAIN: [u16; 4] = [NFTA_CHAIN_HOOK, 5, 7, 10];
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_LOOKUP_SET: u16 = 1;
const NFTA_SET_NAME: u16 = 2;
/// Flags, types and lengths of keys and data, policy, description, timeout, expressions.
const SET: [u16; 9] = [3, 4, 5, 6, 7, 8, 9, 11, 17];
const NFTA_SET_ELEM_FLAGS: u16 = 3;
const NFT_SET_ELEM_INTERVAL_END: u32 = 1;

/// For a chain with a hook, and for one only reached by verdicts.
const BASE_CHAIN: &str = "base chain";
const CHAIN_OF_RULES: &str = "chain";

/// The sets whose elements are node facts: part of the fixed part.
pub const FACTS: [&str; 8] =
    ["local-pods", "plugged", "cluster-net", "other-nodes", "servers", "service-net", "tunnels-v4", "tunnels-v6"];

/// The generation of the ruleset in the socket's namespace: changes with every transaction of anyone. Fails if it cannot be read.
pub fn generation(socket: &mut Socket) -> Result<u32> {
    let mut w = Writer::new();
    w.message(NFT_MSG_GETGEN, (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16, &nfgen(Family::V4));
    let answers = socket.dump("nft: get generation", w)?;
    let id = answers.iter().find_map(|answer| attribute(answer.payload.get(4..)?, NFTA_GEN_ID));
    Ok(id.and_then(|id| id.try_into().ok()).map_or(0, u32::from_be_bytes))
}

/// Reads our table of one family. Fails if it cannot be listed.
pub fn read(socket: &mut Socket, family: Family) -> Result<Objects> {
    let ip = super::table::nft_family(family);
    let mut objects = Objects::new();
    for table in list(socket, family, NFT_MSG_GETTABLE, false)? {
        objects
            .insert(format!("table {ip} {TABLE}"), number(&[attribute(&table, NFTA_TABLE_FLAGS).unwrap_or_default()]));
    }
    let mut anonymous = HashMap::new();
    for set in list(socket, family, NFT_MSG_GETSET, true)? {
        let name = text(&set, NFTA_SET_NAME);
        let mut parts: Vec<Vec<u8>> = SET.iter().map(|kind| owned(attribute(&set, *kind))).collect();
        let is_anonymous = name.starts_with("__");
        if is_anonymous || FACTS.contains(&name.as_str()) {
            parts.extend(elements(socket, family, &name)?);
        }
        match is_anonymous {
            true => drop(anonymous.insert(name, number(&parts))),
            false => drop(objects.insert(format!("set {ip} {TABLE} {name}"), number(&parts))),
        }
    }
    let mut chains: BTreeMap<String, String> = BTreeMap::new();
    for found in list(socket, family, NFT_MSG_GETCHAIN, false)? {
        let parts: Vec<&[u8]> = CHAIN.iter().map(|kind| attribute(&found, *kind).unwrap_or_default()).collect();
        let name = text(&found, NFTA_CHAIN_NAME);
        let kind = if attribute(&found, NFTA_CHAIN_HOOK).is_some() { BASE_CHAIN } else { CHAIN_OF_RULES };
        let object = format!("{kind} {ip} {TABLE} {name}");
        objects.insert(object.clone(), number(&parts));
        chains.insert(name, object);
    }
    // A chain consists of its rules, in order.
    for rule in list(socket, family, NFT_MSG_GETRULE, true)? {
        let Some(object) = chains.get(&text(&rule, NFTA_RULE_CHAIN)) else { continue };
        let rules = objects.entry(object.clone()).or_default();
        let expressions = attribute(&rule, NFTA_RULE_EXPRESSIONS).unwrap_or_default();
        let mut parts = vec![rules.to_ne_bytes().to_vec()];
        for (_, expression) in attributes(expressions) {
            expression_parts(expression, &anonymous, &mut parts);
        }
        *rules = number(&parts);
    }
    Ok(objects)
}

/// The names of our table's chains and sets.
pub fn names(socket: &mut Socket, family: Family) -> Result<(Vec<String>, Vec<String>)> {
    let chains = list(socket, family, NFT_MSG_GETCHAIN, false)?;
    let sets = list(socket, family, NFT_MSG_GETSET, true)?;
    let named = |all: &[Vec<u8>], kind| all.iter().map(|object| text(object, kind)).collect();
    Ok((named(&chains, NFTA_CHAIN_NAME), named(&sets, NFTA_SET_NAME)))
}

/// The differences, by name. An extra chain that nothing leads to has no effect: left by a formerly longer list.
pub fn differences(wanted: &Objects, found: &Objects) -> Vec<String> {
    let counts = |name: &&String| !wanted.contains_key(*name) && !name.starts_with(CHAIN_OF_RULES);
    let names = wanted.keys().chain(found.keys().filter(counts));
    let differ: Vec<&String> = names.filter(|name| wanted.get(*name) != found.get(*name)).collect();
    // Without its table everything is missing.
    let tables: Vec<&String> = differ.iter().filter(|name| name.starts_with("table ")).copied().collect();
    let named = if tables.is_empty() { differ } else { tables };
    named.into_iter().cloned().collect()
}

/// The elements of one of our sets, in the kernel's format, sorted.
pub fn elements(socket: &mut Socket, family: Family, set: &str) -> Result<Vec<Vec<u8>>> {
    let mut w = Writer::new();
    w.message(NFT_MSG_GETSETELEM, (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16, &nfgen(family));
    w.str(NFTA_SET_ELEM_LIST_TABLE, TABLE).str(NFTA_SET_ELEM_LIST_SET, set);
    let mut elements = Vec::new();
    let listed = socket.dump_each("nft: list elements", w, |answer| {
        let list = answer.payload.get(4..).and_then(|body| attribute(body, NFTA_SET_ELEM_LIST_ELEMENTS));
        elements.extend(attributes(list.unwrap_or_default()).map(|(_, element)| element.to_vec()));
    });
    match listed {
        // Removed externally since it was listed: it has none.
        Err(e) if e.errno() == Some(libc::ENOENT) => elements.clear(),
        listed => listed?,
    }
    // At the start of an interval set `nft` adds an end at zero or not, depending on the order of elements.
    elements.retain(|element| !is_end_at_zero(element));
    elements.sort();
    Ok(elements)
}

/// The attributes of each object of a kind in our table. `filter`: have the kernel filter by table; otherwise it lists all.
fn list(socket: &mut Socket, family: Family, kind: u16, filter: bool) -> Result<Vec<Vec<u8>>> {
    let mut w = Writer::new();
    w.message(kind, (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16, &nfgen(family));
    if filter {
        table_of(&mut w);
    }
    let answers = match socket.dump("nft: list", w) {
        // There is no such table.
        Err(e) if e.errno() == Some(libc::ENOENT) => Vec::new(),
        answers => answers?,
    };
    let body = |answer: Answer| answer.payload.get(4..).map(<[u8]>::to_vec);
    // The table's name is the first attribute of each.
    Ok(answers.into_iter().filter_map(body).filter(|body| text(body, 1) == TABLE).collect())
}

fn expression_parts(expression: &[u8], anonymous: &HashMap<String, u64>, parts: &mut Vec<Vec<u8>>) {
    let name = owned(attribute(expression, NFTA_EXPR_NAME));
    let is_lookup = name.starts_with(b"lookup");
    parts.push(name);
    for (kind, value) in attributes(attribute(expression, NFTA_EXPR_DATA).unwrap_or_default()) {
        let set = (is_lookup && kind == NFTA_LOOKUP_SET).then(|| anonymous.get(&string(value))).flatten();
        parts.push(kind.to_ne_bytes().to_vec());
        parts.push(set.map_or_else(|| value.to_vec(), |content| content.to_ne_bytes().to_vec()));
    }
}

fn is_end_at_zero(element: &[u8]) -> bool {
    let flags = attribute(element, NFTA_SET_ELEM_FLAGS).map_or(0, |flags| u32::from_be(u32_at(flags, 0)));
    flags & NFT_SET_ELEM_INTERVAL_END != 0 && super::elements::parse(element).0.iter().all(|byte| *byte == 0)
}

fn text(body: &[u8], kind: u16) -> String {
    string(attribute(body, kind).unwrap_or_default())
}

fn string(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(b"\0").unwrap_or(value)).into_owned()
}

fn owned(value: Option<&[u8]>) -> Vec<u8> {
    value.unwrap_or_default().to_vec()
}

/// A hash of all these parts, including their lengths.
fn number<T: AsRef<[u8]>>(parts: &[T]) -> u64 {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend((part.as_ref().len() as u32).to_ne_bytes());
        bytes.extend(part.as_ref());
    }
    fnv(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_changed_or_foreign_differs() {
        let objects = |all: &[(&str, u64)]| all.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect::<Objects>();
        let wanted = objects(&[("table ip t", 1), ("chain ip t a", 2), ("set ip t s", 3)]);
        assert_eq!(differences(&wanted, &wanted), [""; 0]);
        let found =
            objects(&[("table ip t", 1), ("chain ip t a", 9), ("base chain ip t x", 4), ("chain ip t lb-40", 5)]);
        assert_eq!(differences(&wanted, &found), ["chain ip t a", "set ip t s", "base chain ip t x"]);
        assert_eq!(differences(&wanted, &Objects::new()), ["table ip t"]);
    }
}

//! The elements that carry the traffic of given addresses, as currently in the kernel. Each is queried by key: the cost depends on
//! these addresses, not on all tenants' elements.
//!
//! Memory tells which elements these are, the kernel their values. Remembered clients of Services are excluded: there may be very
//! many.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use serde_json::{Value as Json, json};

use super::Dataplane;
use super::base::SENDERS;
use super::compile::Compiled;
use super::elements::*;
use super::table::TABLE;
use crate::message::{Writer, address, attribute, attributes, u32_at};
use crate::netlink::{Answer, Socket};
use crate::{Family, Result};

/// An element to query.
pub struct Wanted {
    family: Family,
    set: Cow<'static, str>,
    is_map: bool,
    key: Key,
    service: Option<String>,
}

impl Wanted {
    /// One that is asked for whatever the model has.
    pub fn new(family: Family, set: String, key: Key) -> Wanted {
        Wanted { family, set: set.into(), is_map: true, key, service: None }
    }
}

/// An element in the kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Carrier {
    pub family: Family,
    /// The map or set that it is of.
    pub set: Cow<'static, str>,
    pub is_map: bool,
    /// In the format of `nft -j`.
    pub element: Json,
    /// Its Service port: the Service's key and the name of the port.
    pub service: Option<String>,
}

/// Number of queries per call: their responses wait in the socket until all have been sent.
const AT_ONCE: usize = 256;

impl Dataplane {
    /// The elements that carry traffic of these addresses: their endpoints, the lists containing them, and what leads to the lists;
    /// and the addresses' entries as senders. At most `most`, Service by Service, and their total number.
    pub fn carriers(&self, addresses: &[IpAddr], most: usize) -> (Vec<Wanted>, usize) {
        let (mut wanted, mut all) = (Vec::new(), 0);
        let mut want = |set: Cow<'static, str>, is_map: bool, key: Key, family: Family, service: Option<String>| {
            all += 1;
            if wanted.len() < most {
                wanted.push(Wanted { family, set, is_map, key, service });
            }
        };
        for address in addresses {
            for (set, is_pair) in SENDERS {
                let key = if is_pair { Key::Own(*address) } else { Key::Address(*address) };
                want(set.into(), false, key, Family::of(address), None);
            }
        }
        for Wanted { family, set, is_map, key, service } in verdicts(addresses) {
            want(set, is_map, key, family, service);
        }
        let concerned = |compiled: &Compiled| -> HashMap<u32, String> {
            let has = |endpoint: &std::net::SocketAddr| addresses.contains(&endpoint.ip());
            let lists = compiled.lists.iter().filter(|(_, list)| list.placed.iter().any(has));
            lists.map(|(id, list)| (*id, list.port.clone())).collect()
        };
        let mut services: Vec<(&String, &Compiled, HashMap<u32, String>)> =
            self.services.iter().map(|(name, compiled)| (name, compiled, concerned(compiled))).collect();
        services.retain(|(.., lists)| !lists.is_empty());
        services.sort_by_key(|(name, ..)| *name);
        let mut own = BTreeSet::new();
        for (name, compiled, lists) in services {
            for (place, value) in &compiled.elements {
                if let Key::Own(address) = place.key {
                    own.extend((addresses.contains(&address) && self.facts.is_local(&address)).then_some(*place));
                    continue;
                }
                let list = list_of(place, value, &lists, addresses);
                let is_its =
                    || !place.map.is_shared() || self.claims.holder(place).is_some_and(|(_, held)| held == *value);
                if let Some(port) = list.and_then(|list| lists.get(&list)).filter(|_| is_its()) {
                    want(place.map.name(), place.map.is_map(), place.key, place.family, Some(format!("{name}:{port}")));
                }
            }
        }
        for ElementKey { family, map, key } in own {
            want(map.name(), map.is_map(), key, family, None);
        }
        (wanted, all)
    }
}

/// The elements that lead to the chains of these addresses' policies.
pub fn verdicts(addresses: &[IpAddr]) -> Vec<Wanted> {
    let of = |address: &IpAddr| {
        let (family, key) = (Family::of(address), Key::Address(*address));
        [Map::Ingress, Map::Egress].map(|map| Wanted { family, set: map.name(), is_map: true, key, service: None })
    };
    addresses.iter().flat_map(of).collect()
}

/// The list that makes an element relevant. The list's other slots lead to other endpoints.
fn list_of(place: &ElementKey, value: &Value, lists: &HashMap<u32, String>, addresses: &[IpAddr]) -> Option<u32> {
    let list = match (place.key, value) {
        (Key::Slot(id, _), Value::Endpoint(endpoint)) if addresses.contains(&endpoint.ip()) => id,
        (Key::Slot(..), _) => return None,
        (Key::Id(id) | Key::Source(id, _), _) if lists.contains_key(&id) => id,
        (_, Value::Id(id)) => *id,
        _ => return None,
    };
    lists.contains_key(&list).then_some(list)
}

/// Those of the elements that exist in the kernel, with their values. Fails if the kernel cannot be queried.
pub fn ask(socket: &mut Socket, wanted: &[Wanted]) -> Result<Vec<Carrier>> {
    let mut found = Vec::new();
    for some in wanted.chunks(AT_ONCE) {
        let mut request = Writer::new();
        for Wanted { family, set, key, .. } in some {
            get_element(&mut request, *family, set, key);
        }
        socket.get_each(&format!("nft: get {} elements", some.len()), request, |number, answer| {
            let (Some(wanted), Some(element)) = (some.get(number), told(&answer)) else { return };
            let key = key_as_json(&wanted.key);
            found.push(Carrier {
                family: wanted.family,
                set: wanted.set.clone(),
                is_map: wanted.is_map,
                element: if wanted.is_map { json!([key, data_as_json(element)]) } else { key },
                service: wanted.service.clone(),
            });
        })?;
    }
    Ok(found)
}

fn key_as_json(key: &Key) -> Json {
    match key {
        Key::Frontend(address, protocol, port) => json!({"concat": [address, protocol.name(), port]}),
        Key::Port(protocol, port) => json!({"concat": [protocol.name(), port]}),
        Key::Id(id) => json!(id),
        Key::Slot(id, slot) => json!({"concat": [id, slot]}),
        Key::Source(id, net) => json!({"concat": [id, net.prefix_len(), net.network()]}),
        Key::Own(address) => json!({"concat": [address, address]}),
        Key::Address(address) => json!(address),
        Key::Endpoint(address, port) => json!({"concat": [address, port]}),
        Key::Client(id, address) => json!({"concat": [id, address]}),
    }
}

/// The target of an element; empty if it is not one of ours.
fn data_as_json(element: &[u8]) -> Json {
    let data = attribute(element, NFTA_SET_ELEM_DATA).unwrap_or_default();
    if let Some(verdict) = attribute(data, NFTA_DATA_VERDICT) {
        let code = attribute(verdict, NFTA_VERDICT_CODE).map_or(0, |code| i32::from_be(u32_at(code, 0) as i32));
        let chain = attribute(verdict, NFTA_VERDICT_CHAIN).unwrap_or_default();
        let chain = String::from_utf8_lossy(chain.strip_suffix(b"\0").unwrap_or(chain));
        return match code {
            NFT_GOTO => json!({"goto": {"target": chain}}),
            NFT_JUMP => json!({"jump": {"target": chain}}),
            NF_DROP => json!({"drop": null}),
            _ => Json::Null,
        };
    }
    // A mark; or an address, followed by its port in as many bytes.
    match attribute(data, NFTA_DATA_VALUE).and_then(<[u8]>::split_last_chunk::<4>) {
        Some(([], mark)) => json!(u32::from_ne_bytes(*mark)),
        Some((ip, port)) => json!({"concat": [address(ip), u16::from_be_bytes([port[0], port[1]])]}),
        None => Json::Null,
    }
}

/// Queries one element of a set of our table; acknowledged even if there is none.
fn get_element(w: &mut Writer, family: Family, set: &str, key: &Key) {
    w.message(NFT_MSG_GETSETELEM, (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16, &nfgen(family));
    w.str(NFTA_SET_ELEM_LIST_TABLE, TABLE).str(NFTA_SET_ELEM_LIST_SET, set);
    let list = w.open(NFTA_SET_ELEM_LIST_ELEMENTS);
    element(w, key, None);
    w.close(list);
}

/// The first element in a response of the kernel.
fn told(answer: &Answer) -> Option<&[u8]> {
    let list = attribute(answer.payload.get(4..)?, NFTA_SET_ELEM_LIST_ELEMENTS)?;
    attributes(list).next().map(|(_, element)| element)
}

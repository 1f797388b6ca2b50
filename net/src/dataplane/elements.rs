//! Elements of our maps: as comparable values, as nft text for reading, as netlink bytes for sending.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::model::Protocol;
use super::table::{TABLE, nft_family};
use crate::message::{Writer, attribute, attributes};
use crate::netlink::Socket;
use crate::{Family, Result};

/// A map or set whose elements change with Services or policies. The order is that of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Map {
    Endpoints,
    Slots,
    Sticky,
    Picks,
    Services,
    Refused,
    Outside,
    Restricted,
    Sources,
    ClusterIps,
    ExternalIps,
    HostPorts,
    NodePorts,
    /// Addresses that are Services' alone.
    Balancers,
    Own,
    /// The addresses of a group.
    Group(u64),
    /// The addresses and ports of a group.
    GroupPorts(u64),
    Isolated,
    Ingress,
    Egress,
}

impl Map {
    /// Those that are always there.
    pub const ALL: [Map; 18] = [
        Map::Endpoints,
        Map::Slots,
        Map::Sticky,
        Map::Picks,
        Map::Services,
        Map::Refused,
        Map::Outside,
        Map::Restricted,
        Map::Sources,
        Map::ClusterIps,
        Map::ExternalIps,
        Map::HostPorts,
        Map::NodePorts,
        Map::Balancers,
        Map::Own,
        Map::Isolated,
        Map::Ingress,
        Map::Egress,
    ];

    pub fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Map::Endpoints => "endpoints",
            Map::Slots => "slots",
            Map::Sticky => "sticky",
            Map::Picks => "picks",
            Map::Services => "services",
            Map::Refused => "refused",
            Map::Outside => "outside",
            Map::Restricted => "restricted",
            Map::Sources => "sources",
            Map::ClusterIps => "cluster-ips",
            Map::ExternalIps => "external-ips",
            Map::HostPorts => "host-ports",
            Map::NodePorts => "node-ports",
            Map::Balancers => "balancers",
            Map::Own => "own",
            Map::Isolated => "isolated",
            Map::Ingress => "ingress",
            Map::Egress => "egress",
            Map::Group(number) => return Cow::Owned(format!("group-{number:x}")),
            Map::GroupPorts(number) => return Cow::Owned(format!("ports-of-{number:x}")),
        })
    }

    /// Whether its elements have values.
    pub fn is_map(self) -> bool {
        use Map::{Balancers, Group, GroupPorts, Isolated, Own, Refused, Restricted, Sources};
        !matches!(self, Balancers | Refused | Restricted | Sources | Own | Isolated | Group(_) | GroupPorts(_))
    }

    /// Whether several Services may claim the same element.
    pub fn is_shared(self) -> bool {
        use Map::{Balancers, ClusterIps, ExternalIps, HostPorts, NodePorts, Own};
        matches!(self, ClusterIps | ExternalIps | HostPorts | NodePorts | Balancers | Own)
    }
}

/// The place of an element: family, map and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ElementKey {
    pub family: Family,
    pub map: Map,
    pub key: Key,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    Frontend(IpAddr, Protocol, u16),
    Port(Protocol, u16),
    Id(u32),
    Slot(u32, u32),
    Source(u32, IpNet),
    Own(IpAddr),
    /// Of a set that packets fill, of a group, or of who is isolated.
    Address(IpAddr),
    Endpoint(IpAddr, u16),
    /// A remembered client of a list.
    Client(u32, IpAddr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// For a set's element.
    None,
    Id(u32),
    Endpoint(SocketAddr),
    Goto(Chain),
    Jump(Chain),
    /// To the chain of a set of policies.
    Judge(u64),
    Drop,
}

/// A chain shared by all lists of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Chain {
    /// Picks a random one of this many endpoints.
    Lb(u32),
    /// Picks a random slot of this many.
    Pick(u32),
    /// Affinity for this many seconds, remembered in the map of a share.
    Affinity { share: u32, seconds: u32 },
}

impl Chain {
    /// Whether a chain of this name is one of these.
    pub fn is_name(name: &str) -> bool {
        ["lb-", "pick-", "aff-"].iter().any(|start| name.starts_with(start))
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Chain::Lb(n) => write!(f, "lb-{n}"),
            Chain::Pick(n) => write!(f, "pick-{n}"),
            Chain::Affinity { share, seconds } => write!(f, "aff-{share:x}-{seconds}"),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Frontend(address, protocol, port) => write!(f, "{address} . {} . {port}", protocol.name()),
            Key::Port(protocol, port) => write!(f, "{} . {port}", protocol.name()),
            Key::Id(id) => write!(f, "{id:#x}"),
            Key::Slot(id, slot) => write!(f, "{id:#x} . {slot:#x}"),
            Key::Source(id, net) => write!(f, "{id:#x} . {:#x} . {}", net.prefix_len(), net.network()),
            Key::Own(address) => write!(f, "{address} . {address}"),
            Key::Address(address) => write!(f, "{address}"),
            Key::Endpoint(address, port) => write!(f, "{address} . {port}"),
            Key::Client(id, address) => write!(f, "{id:#x} . {address}"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::None => Ok(()),
            Value::Id(id) => write!(f, "{id:#x}"),
            Value::Endpoint(e) => write!(f, "{} . {}", e.ip(), e.port()),
            Value::Goto(chain) => write!(f, "goto {chain}"),
            Value::Jump(chain) => write!(f, "jump {chain}"),
            Value::Judge(policies) => write!(f, "goto {}", policies_chain(*policies)),
            Value::Drop => write!(f, "drop"),
        }
    }
}

/// What the chain of a set of policies is called.
pub fn policies_chain(number: u64) -> String {
    format!("policies-{number:x}")
}

/// An element as `nft add element` takes it: `ip podwright services { 0x1 : goto lb-2 }`.
pub fn text(place: &ElementKey, value: &Value) -> String {
    let colon = if *value == Value::None { "" } else { " : " };
    format!("{} {TABLE} {} {{ {}{colon}{value} }}", nft_family(place.family), place.map.name(), place.key)
}

// linux/netfilter/nfnetlink.h and nf_tables.h
const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFTABLES: u16 = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8;
const NFT_MSG_GETSET: u16 = NFTABLES | 10;
const NFT_MSG_NEWSETELEM: u16 = NFTABLES | 12;
pub(super) const NFT_MSG_GETSETELEM: u16 = NFTABLES | 13;
const NFT_MSG_DELSETELEM: u16 = NFTABLES | 14;
const NFT_MSG_GETOBJ: u16 = NFTABLES | 19;
const NFTA_SET_TABLE: u16 = 1;
const NFTA_SET_NAME: u16 = 2;
pub(super) const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
pub(super) const NFTA_SET_ELEM_LIST_SET: u16 = 2;
pub(super) const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_SET_ELEM_KEY: u16 = 1;
pub(super) const NFTA_SET_ELEM_DATA: u16 = 2;
pub(super) const NFTA_DATA_VALUE: u16 = 1;
pub(super) const NFTA_DATA_VERDICT: u16 = 2;
pub(super) const NFTA_VERDICT_CODE: u16 = 1;
pub(super) const NFTA_VERDICT_CHAIN: u16 = 2;
const NFTA_OBJ_TABLE: u16 = 1;
const NFTA_OBJ_NAME: u16 = 2;
const NFTA_OBJ_TYPE: u16 = 3;
const NFTA_OBJ_DATA: u16 = 4;
const NFT_OBJECT_COUNTER: u32 = 1;
const NFTA_COUNTER_PACKETS: u16 = 2;
pub(super) const NFT_JUMP: i32 = -3;
pub(super) const NFT_GOTO: i32 = -4;
pub(super) const NF_DROP: i32 = 0;

/// The nested element list is one attribute, whose length has 16 bits.
const LIST_LIMIT: usize = 60_000;

/// A transaction under construction.
pub struct Batch {
    writer: Writer,
}

impl Batch {
    pub fn new() -> Batch {
        let mut writer = Writer::new();
        writer.message(NFNL_MSG_BATCH_BEGIN, libc::NLM_F_REQUEST as u16, &batch_header());
        Batch { writer }
    }

    /// Empties a map.
    pub fn flush(&mut self, family: Family, map: Map) {
        self.message(NFT_MSG_DELSETELEM, family, map);
    }

    /// Deletes elements; they should be sorted, so that those of one map share a message.
    pub fn delete<'a>(&mut self, elements: impl Iterator<Item = (&'a ElementKey, &'a Value)>) {
        self.elements(NFT_MSG_DELSETELEM, elements);
    }

    /// Adds elements, sorted likewise.
    pub fn add<'a>(&mut self, elements: impl Iterator<Item = (&'a ElementKey, &'a Value)>) {
        self.elements(NFT_MSG_NEWSETELEM, elements);
    }

    /// The finished transaction. Its last element message requests the acknowledgement, as older kernels do not respond to a
    /// batch's end.
    pub fn finish(mut self) -> Writer {
        self.writer.acknowledge();
        self.writer.message(NFNL_MSG_BATCH_END, libc::NLM_F_REQUEST as u16, &batch_header());
        self.writer
    }

    fn elements<'a>(&mut self, kind: u16, elements: impl Iterator<Item = (&'a ElementKey, &'a Value)>) {
        let mut elements = elements.peekable();
        while let Some((place, _)) = elements.peek() {
            let (family, map) = (place.family, place.map);
            self.message(kind, family, map);
            let list = self.writer.open(NFTA_SET_ELEM_LIST_ELEMENTS);
            let start = self.writer.len();
            while let Some((place, value)) = elements.next_if(|(p, _)| (p.family, p.map) == (family, map)) {
                element(&mut self.writer, &place.key, (kind == NFT_MSG_NEWSETELEM).then_some(value));
                if self.writer.len() - start > LIST_LIMIT {
                    break;
                }
            }
            self.writer.close(list);
        }
    }

    fn message(&mut self, kind: u16, family: Family, map: Map) {
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_CREATE) as u16;
        self.writer.message(kind, flags, &nfgen(family));
        self.writer.str(NFTA_SET_ELEM_LIST_TABLE, TABLE).str(NFTA_SET_ELEM_LIST_SET, &map.name());
    }
}

/// Queries a set of our table, to check whether it exists.
pub fn get_set(family: Family, name: &str) -> Writer {
    let mut w = Writer::new();
    w.message(NFT_MSG_GETSET, (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16, &nfgen(family));
    w.str(NFTA_SET_TABLE, TABLE).str(NFTA_SET_NAME, name);
    w
}

/// The packets counted by a counter of our table; 0 without a table. Fails if it cannot be read.
pub fn counter(socket: &mut Socket, family: Family, name: &str) -> Result<u64> {
    let mut w = Writer::new();
    w.message(NFT_MSG_GETOBJ, (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16, &nfgen(family));
    w.str(NFTA_OBJ_TABLE, TABLE).str(NFTA_OBJ_NAME, name).be32(NFTA_OBJ_TYPE, NFT_OBJECT_COUNTER);
    let answers = match socket.dump("nft: get counter", w) {
        Err(e) if e.errno() == Some(libc::ENOENT) => return Ok(0),
        answers => answers?,
    };
    let data = answers.first().and_then(|answer| attribute(answer.payload.get(4..)?, NFTA_OBJ_DATA));
    let packets = data.and_then(|data| <[u8; 8]>::try_from(attribute(data, NFTA_COUNTER_PACKETS)?).ok());
    packets.map(u64::from_be_bytes).ok_or(crate::Error::Malformed("a counter of nft"))
}

/// Names our table: the first attribute of every query.
pub fn table_of(w: &mut Writer) {
    w.str(NFTA_SET_TABLE, TABLE);
}

/// An element's key and value as bytes; a verdict's are its code and its chain.
pub fn bytes(key: &Key, value: &Value) -> (Vec<u8>, Vec<u8>) {
    parse(&written(key, value))
}

/// An element in the format sent.
pub fn written(key: &Key, value: &Value) -> Vec<u8> {
    let mut w = Writer::new();
    element(&mut w, key, Some(value));
    attributes(w.as_bytes()).next().map(|(_, element)| element.to_vec()).unwrap_or_default()
}

/// The same for an element from the kernel.
pub fn parse(element: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let value = |kind| attribute(attribute(element, kind).unwrap_or_default(), NFTA_DATA_VALUE).unwrap_or_default();
    let key = value(NFTA_SET_ELEM_KEY).to_vec();
    let data = attribute(element, NFTA_SET_ELEM_DATA).unwrap_or_default();
    let data = match attribute(data, NFTA_DATA_VERDICT) {
        Some(verdict) => {
            let part = |kind| attribute(verdict, kind).unwrap_or_default();
            [part(NFTA_VERDICT_CODE), part(NFTA_VERDICT_CHAIN)].concat()
        }
        None => attribute(data, NFTA_DATA_VALUE).unwrap_or_default().to_vec(),
    };
    (key, data)
}

/// `struct nfgenmsg`.
pub fn nfgen(family: Family) -> [u8; 4] {
    [(if family == Family::V4 { libc::NFPROTO_IPV4 } else { libc::NFPROTO_IPV6 }) as u8, 0, 0, 0]
}

fn batch_header() -> [u8; 4] {
    let subsystem = (libc::NFNL_SUBSYS_NFTABLES as u16).to_be_bytes();
    [0, 0, subsystem[0], subsystem[1]]
}

pub(super) fn element(w: &mut Writer, key: &Key, value: Option<&Value>) {
    let element = w.open(NFTA_LIST_ELEM);
    data(w, NFTA_SET_ELEM_KEY, &key_bytes(key));
    match value {
        None | Some(Value::None) => {}
        Some(Value::Id(id)) => data(w, NFTA_SET_ELEM_DATA, &id.to_ne_bytes()),
        Some(Value::Endpoint(e)) => {
            let mut bytes = Vec::with_capacity(20);
            push_address(&mut bytes, &e.ip());
            push_port(&mut bytes, e.port());
            data(w, NFTA_SET_ELEM_DATA, &bytes);
        }
        Some(Value::Goto(chain)) => verdict(w, NFT_GOTO, Some(&chain.to_string())),
        Some(Value::Jump(chain)) => verdict(w, NFT_JUMP, Some(&chain.to_string())),
        Some(Value::Judge(policies)) => verdict(w, NFT_GOTO, Some(&policies_chain(*policies))),
        Some(Value::Drop) => verdict(w, NF_DROP, None),
    }
    w.close(element);
}

fn data(w: &mut Writer, kind: u16, bytes: &[u8]) {
    let nest = w.open(kind);
    w.attr(NFTA_DATA_VALUE, bytes);
    w.close(nest);
}

fn verdict(w: &mut Writer, code: i32, chain: Option<&str>) {
    let data = w.open(NFTA_SET_ELEM_DATA);
    let verdict = w.open(NFTA_DATA_VERDICT);
    w.be32(NFTA_VERDICT_CODE, code as u32);
    if let Some(chain) = chain {
        w.str(NFTA_VERDICT_CHAIN, chain);
    }
    w.close(verdict);
    w.close(data);
}

/// A key as the kernel compares it: each field padded to 4 bytes, marks in host order.
fn key_bytes(key: &Key) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32);
    match key {
        Key::Frontend(address, protocol, port) => {
            push_address(&mut bytes, address);
            bytes.extend([protocol.number(), 0, 0, 0]);
            push_port(&mut bytes, *port);
        }
        Key::Port(protocol, port) => {
            bytes.extend([protocol.number(), 0, 0, 0]);
            push_port(&mut bytes, *port);
        }
        Key::Id(id) => bytes.extend(id.to_ne_bytes()),
        Key::Slot(id, slot) => {
            bytes.extend(id.to_ne_bytes());
            bytes.extend(slot.to_ne_bytes());
        }
        Key::Source(id, net) => {
            bytes.extend(id.to_ne_bytes());
            bytes.extend(u32::from(net.prefix_len()).to_ne_bytes());
            push_address(&mut bytes, &net.network());
        }
        Key::Own(address) => {
            push_address(&mut bytes, address);
            push_address(&mut bytes, address);
        }
        Key::Address(address) => push_address(&mut bytes, address),
        Key::Endpoint(address, port) => {
            push_address(&mut bytes, address);
            push_port(&mut bytes, *port);
        }
        Key::Client(id, address) => {
            bytes.extend(id.to_ne_bytes());
            match address {
                IpAddr::V4(address) => bytes.extend(address.octets()),
                // Its lower half.
                IpAddr::V6(address) => bytes.extend(&address.octets()[8..]),
            }
        }
    }
    bytes
}

fn push_address(bytes: &mut Vec<u8>, address: &IpAddr) {
    match address {
        IpAddr::V4(a) => bytes.extend(a.octets()),
        IpAddr::V6(a) => bytes.extend(a.octets()),
    }
}

fn push_port(bytes: &mut Vec<u8>, port: u16) {
    bytes.extend(port.to_be_bytes());
    bytes.extend([0, 0]);
}

//! Tracked connections (conntrack): lists, deletes, and forgets those that would keep sending datagrams to endpoints that are gone,
//! or to the next owner of a former Pod's address.
//!
//! A UDP "connection" lives as long as its client keeps sending, so an entry for a vanished endpoint would blackhole that client.
//! TCP connections are left alone: the endpoint resets them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::compile::Compiled;
use super::elements::nfgen;
use super::model::Protocol;
use crate::message::{Writer, address, attribute, u32_at};
use crate::netlink::{Answer, Socket};
use crate::{Error, Family, Result};

// linux/netfilter/nfnetlink_conntrack.h
const CTNETLINK: u16 = 1 << 8;
const IPCTNL_MSG_CT_GET: u16 = CTNETLINK | 1;
const IPCTNL_MSG_CT_DELETE: u16 = CTNETLINK | 2;
const IPCTNL_MSG_CT_GET_STATS: u16 = CTNETLINK | 5;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_MARK: u16 = 8;
const CTA_ID: u16 = 12;
const CTA_MARK_MASK: u16 = 21;
const CTA_FILTER: u16 = 25;
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
const CTA_FILTER_REPLY_FLAGS: u16 = 2;
/// The bit of a tuple's source address.
const CTA_FILTER_IP_SRC: u32 = 1;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;
const CTA_STATS_GLOBAL_ENTRIES: u16 = 1;
const CTA_STATS_GLOBAL_MAX_ENTRIES: u16 = 2;
// linux/netfilter/nf_conntrack_common.h and nf_conntrack_tcp.h
const IPS_ASSURED: u32 = 1 << 2;
const IPS_SRC_NAT: u32 = 1 << 4;
const TCP_CONNTRACK_FIN_WAIT: u8 = 4;
const TCP_CONNTRACK_CLOSE: u8 = 8;

/// The lowest of the ports shared by Pods, as a number ([`super::base::LOWEST`]).
pub const LOWEST: u16 = 32768;
/// Listing this many entries is faster than two kernel searches of the table for an address: it may have 262,144 buckets.
const FEW: usize = 2000;

/// Entries to forget after a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stale {
    /// `(family, id, endpoint)`: entries of that id to that endpoint.
    endpoints: BTreeSet<(Family, u32, IpAddr)>,
    /// New node ports: older entries are not translated.
    node_ports: BTreeSet<(Family, u16)>,
    /// Their addresses; `None`: any. Flows to the same port of other addresses are unrelated.
    own: Option<BTreeSet<IpAddr>>,
}

impl Stale {
    /// Adds the stale entries of a Service's change.
    pub fn add(&mut self, before: &Compiled, after: &Compiled) {
        for (id, list) in before.lists.iter().filter(|(_, list)| list.protocol == Protocol::Udp) {
            let left: BTreeSet<_> = after.lists.get(id).into_iter().flat_map(|l| &l.placed).collect();
            let gone = list.placed.iter().filter(|e| !left.contains(e));
            self.endpoints.extend(gone.map(|e| (list.family, *id, e.ip())));
        }
        self.node_ports.extend(after.udp_node_ports.difference(&before.udp_node_ports));
    }

    pub fn has_node_ports(&self) -> bool {
        !self.node_ports.is_empty()
    }

    /// Sets the node ports' addresses; `None`: unknown, so any may be.
    pub fn set_own(&mut self, own: Option<Vec<IpAddr>>) {
        self.own = own.map(|own| own.into_iter().collect());
    }

    fn matches(&self, family: Family, entry: &Entry) -> bool {
        let to_node_port = || {
            entry.mark == 0
                && self.node_ports.contains(&(family, entry.destination_port))
                && self.own.as_ref().is_none_or(|own| own.contains(&entry.destination))
        };
        entry.protocol == Protocol::Udp.number()
            && (self.endpoints.contains(&(family, entry.mark, entry.reply_source)) || to_node_port())
    }
}

/// Deletes the stale entries. An entry that ended meanwhile is not an error.
pub fn flush(socket: &mut Socket, stale: &Stale) -> Result<()> {
    for family in Family::ALL {
        let ids: BTreeSet<u32> = stale.endpoints.iter().filter(|e| e.0 == family).map(|e| e.1).collect();
        let ports = stale.node_ports.iter().any(|p| p.0 == family);
        if ids.is_empty() && !ports {
            continue;
        }
        // The kernel can filter by one mark; for several, everything is listed once.
        let filter = match (ids.first(), ids.len(), ports) {
            (Some(id), 1, false) => Some(*id),
            (None, _, true) => Some(0),
            _ => None,
        };
        let mut found = Vec::new();
        each(socket, family, filter, &mut |entry| found.extend(stale.matches(family, entry).then(|| entry.clone())))?;
        let (mut doomed, mut done) = (Doomed::default(), Ok(()));
        for entry in &found {
            done = done.and(unless_carried(doomed.add(entry, family, socket)));
        }
        done.and(unless_carried(doomed.finish(socket)))?;
    }
    Ok(())
}

/// The kernel may refuse to delete entries in a foreign flowtable until they end: retrying would block all changes.
fn unless_carried(done: Result<()>) -> Result<()> {
    match done {
        Err(error) if error.errno() == Some(libc::EBUSY) => Ok(()),
        done => done,
    }
}

/// Deletes all entries of these addresses: those they initiated, and those they respond to, also as endpoints. `deleting` deletes
/// while `listing` lists: a Pod can have hundreds of thousands. Returns the families where some may be left, each with the first
/// error.
pub fn forget(listing: &mut Socket, deleting: &mut Socket, addresses: &BTreeSet<IpAddr>) -> Vec<(Family, Error)> {
    // Walking the table takes the kernel milliseconds; an empty one is skipped. An unknown count may be large.
    let entries = fullness(listing).map_or(usize::MAX, |(entries, _)| entries);
    if entries == 0 {
        return Vec::new();
    }
    let forgotten = Family::ALL.into_iter().map(|family| {
        let of_family = addresses.iter().filter(|address| Family::of(address) == family).copied().collect();
        (family, forget_of(family, entries, listing, deleting, &of_family))
    });
    forgotten.filter_map(|(family, done)| Some((family, done.err()?))).collect()
}

fn forget_of(
    family: Family,
    entries: usize,
    listing: &mut Socket,
    deleting: &mut Socket,
    addresses: &BTreeSet<IpAddr>,
) -> Result<()> {
    // With many entries, searching for one address, one tuple at a time, is cheaper than listing all. Before Linux 5.8 the filter
    // is not supported, and all are listed.
    if addresses.is_empty() {
        return Ok(());
    }
    let both = |address| [CTA_TUPLE_ORIG, CTA_TUPLE_REPLY].map(|tuple| list_from(address, tuple));
    let requests: Vec<Writer> = match addresses.len().saturating_mul(FEW) < entries {
        true => addresses.iter().flat_map(both).collect(),
        false => vec![list(family, None)],
    };
    let (mut doomed, mut failure) = (Doomed::default(), None);
    for request in requests {
        let listed = listing.dump_each("list conntrack", request, |answer| {
            if let Some(entry) = Entry::parse(&answer).filter(|entry| entry.is_of(addresses)) {
                failure = failure.take().or(doomed.add(&entry, family, deleting).err());
            }
        });
        failure = failure.or(listed.err());
    }
    let finished = doomed.finish(deleting);
    failure.map_or(finished, Err)
}

/// Requests the entries in which this tuple's source is `address`.
fn list_from(address: &IpAddr, tuple: u16) -> Writer {
    let mut w = list(Family::of(address), None);
    let flags = if tuple == CTA_TUPLE_ORIG { CTA_FILTER_ORIG_FLAGS } else { CTA_FILTER_REPLY_FLAGS };
    let nest = w.open(tuple);
    let ip = w.open(CTA_TUPLE_IP);
    match address {
        IpAddr::V4(v4) => w.attr(CTA_IP_V4_SRC, &v4.octets()),
        IpAddr::V6(v6) => w.attr(CTA_IP_V6_SRC, &v6.octets()),
    };
    w.close(ip);
    w.close(nest);
    let filter = w.open(CTA_FILTER);
    w.attr(flags, &CTA_FILTER_IP_SRC.to_ne_bytes());
    w.close(filter);
    w
}

/// Passes on each entry of a family, one at a time: the table may have hundreds of thousands. `mark`: only those with it. Fails if
/// the table cannot be listed.
pub fn each(socket: &mut Socket, family: Family, mark: Option<u32>, see: &mut impl FnMut(&Entry)) -> Result<()> {
    socket.dump_each("list conntrack", list(family, mark), |answer| Entry::parse(&answer).iter().for_each(&mut *see))
}

/// Has the kernel load connection tracking, with its sysctls, if no rule has done so: a message for a subsystem of nfnetlink that is
/// not there requests its module (`nfnetlink-subsys-1`, nfnetlink.c). Fails if there is none, or it does not answer.
pub fn load(socket: &mut Socket) -> Result<()> {
    fullness(socket).map(drop)
}

/// The number of entries in the namespace's table, and its maximum. Fails if they cannot be read.
pub fn fullness(socket: &mut Socket) -> Result<(usize, usize)> {
    let mut w = Writer::new();
    w.message(IPCTNL_MSG_CT_GET_STATS, (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16, &nfgen(Family::V4));
    let answers = socket.dump("count conntrack", w)?;
    let attrs = answers.first().and_then(|answer| answer.payload.get(4..)).unwrap_or_default();
    let number = |kind| attribute(attrs, kind).map(|v| u32::from_be(u32_at(v, 0)) as usize);
    match (number(CTA_STATS_GLOBAL_ENTRIES), number(CTA_STATS_GLOBAL_MAX_ENTRIES)) {
        // 0: no limit.
        (Some(entries), Some(0)) => Ok((entries, usize::MAX)),
        (Some(entries), Some(max)) => Ok((entries, max)),
        _ => Err(Error::Malformed("the answer of conntrack's statistics")),
    }
}

/// Entries to delete, sent in batches. One that ended meanwhile is not an error.
#[derive(Default)]
pub struct Doomed {
    requests: Writer,
    count: usize,
}

impl Doomed {
    /// Number of requests sent at once.
    const HANDFUL: usize = 256;

    pub fn add(&mut self, entry: &Entry, family: Family, socket: &mut Socket) -> Result<()> {
        entry.delete(family, &mut self.requests);
        self.count += 1;
        if self.count < Doomed::HANDFUL { Ok(()) } else { std::mem::take(self).finish(socket) }
    }

    pub fn finish(self, socket: &mut Socket) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        socket.get_each("delete conntrack entries", self.requests, |_, _| {})
    }
}

fn list(family: Family, mark: Option<u32>) -> Writer {
    let mut w = Writer::new();
    w.message(IPCTNL_MSG_CT_GET, (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16, &nfgen(family));
    if let Some(mark) = mark {
        w.be32(CTA_MARK, mark).be32(CTA_MARK_MASK, u32::MAX);
    }
    w
}

/// How much the loss of an entry would hurt, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Worth {
    /// A TCP connection that has ended, or is about to.
    Ending,
    /// Without a response so far, or only short-lived.
    Unassured,
    /// Other protocols than TCP.
    Assured,
    Established,
}

impl Worth {
    pub const ALL: [Worth; 4] = [Worth::Ending, Worth::Unassured, Worth::Assured, Worth::Established];
}

/// The key within which ports must be unique: protocol, the outside address and port, and the node's own address.
pub type Crowd = (u8, IpAddr, u16, IpAddr);

/// The used parts of a conntrack entry.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The reply tuple as the kernel wrote it: together with the id it identifies the entry, including its target.
    ///
    /// The id alone is the kernel's hash of the entry's address and the original tuple. Reopening a connection from the port of a
    /// closed one deletes that entry and creates another, most likely at the same address: with the same original tuple and id,
    /// though it may lead elsewhere by now. An entry listed earlier does not refer to it.
    reply: Vec<u8>,
    id: Vec<u8>,
    mark: u32,
    protocol: u8,
    /// The original destination, before translation.
    destination: IpAddr,
    destination_port: u16,
    /// The responder: after translation, the endpoint.
    reply_source: IpAddr,
    reply_source_port: u16,
    /// The destination of responses: after translation, an address and a port of the node.
    reply_destination: IpAddr,
    reply_destination_port: u16,
    /// The sender of the first packet.
    pub source: IpAddr,
    status: u32,
    tcp_state: Option<u8>,
}

impl Entry {
    pub fn worth(&self) -> Worth {
        match self.tcp_state {
            Some(TCP_CONNTRACK_FIN_WAIT..=TCP_CONNTRACK_CLOSE) => Worth::Ending,
            _ if self.status & IPS_ASSURED == 0 => Worth::Unassured,
            Some(_) => Worth::Established,
            None => Worth::Assured,
        }
    }

    /// Whether it uses one of the ports shared by Pods: its source is translated (masquerade). Hairpin connections take none from
    /// others.
    pub fn has_a_shared_port(&self) -> bool {
        self.status & IPS_SRC_NAT != 0 && self.source != self.reply_source && self.is_in_the_crowd()
    }

    /// Whether the port for responses is one of those given to Pods. An id instead of a port (0 here) counts.
    pub fn is_in_the_crowd(&self) -> bool {
        matches!(self.reply_destination_port, 0 | LOWEST..)
    }

    /// Whether one of these initiated it, or responds.
    fn is_of(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        addresses.contains(&self.source) || addresses.contains(&self.reply_source)
    }

    /// The port space that it uses. A ping's id is in one, without a remote port.
    pub fn crowd(&self) -> Crowd {
        (self.protocol, self.reply_source, self.reply_source_port, self.reply_destination)
    }

    fn parse(answer: &Answer) -> Option<Entry> {
        let attrs = answer.payload.get(4..)?;
        let (original, reply) = (attribute(attrs, CTA_TUPLE_ORIG)?, attribute(attrs, CTA_TUPLE_REPLY)?);
        let (proto, reply_proto) = (attribute(original, CTA_TUPLE_PROTO)?, attribute(reply, CTA_TUPLE_PROTO)?);
        let port = |proto, kind| {
            let port = attribute(proto, kind).and_then(|v| <[u8; 2]>::try_from(v).ok());
            port.map_or(0, u16::from_be_bytes)
        };
        let ip = |tuple, v4, v6| {
            let ip = attribute(tuple, CTA_TUPLE_IP)?;
            address(attribute(ip, v4).or_else(|| attribute(ip, v6))?)
        };
        let tcp = attribute(attrs, CTA_PROTOINFO).and_then(|info| attribute(info, CTA_PROTOINFO_TCP));
        Some(Entry {
            reply: reply.to_vec(),
            id: attribute(attrs, CTA_ID)?.to_vec(),
            mark: attribute(attrs, CTA_MARK).map_or(0, |v| u32::from_be(u32_at(v, 0))),
            protocol: *attribute(proto, CTA_PROTO_NUM)?.first()?,
            destination: ip(original, CTA_IP_V4_DST, CTA_IP_V6_DST)?,
            destination_port: port(proto, CTA_PROTO_DST_PORT),
            reply_source: ip(reply, CTA_IP_V4_SRC, CTA_IP_V6_SRC)?,
            reply_source_port: port(reply_proto, CTA_PROTO_SRC_PORT),
            reply_destination: ip(reply, CTA_IP_V4_DST, CTA_IP_V6_DST)?,
            reply_destination_port: port(reply_proto, CTA_PROTO_DST_PORT),
            source: ip(original, CTA_IP_V4_SRC, CTA_IP_V6_SRC)?,
            status: attribute(attrs, CTA_STATUS).map_or(0, |v| u32::from_be(u32_at(v, 0))),
            tcp_state: tcp.and_then(|tcp| attribute(tcp, CTA_PROTOINFO_TCP_STATE)).and_then(|v| v.first().copied()),
        })
    }

    fn delete(&self, family: Family, w: &mut Writer) {
        w.message(IPCTNL_MSG_CT_DELETE, (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16, &nfgen(family));
        w.attr(CTA_TUPLE_REPLY | libc::NLA_F_NESTED as u16, &self.reply).attr(CTA_ID, &self.id);
    }
}

#[cfg(test)]
impl Entry {
    /// A connection of a Pod to `to`, leaving from the node's port `port`.
    pub fn masqueraded(protocol: Protocol, source: IpAddr, to: std::net::SocketAddr, port: u16) -> Entry {
        Entry {
            reply: Vec::new(),
            id: Vec::new(),
            mark: 0,
            protocol: protocol.number(),
            destination: to.ip(),
            destination_port: to.port(),
            reply_source: to.ip(),
            reply_source_port: to.port(),
            reply_destination: IpAddr::from([192, 0, 2, 1]),
            reply_destination_port: port,
            source,
            status: IPS_SRC_NAT,
            tcp_state: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_node_port_is_on_any_address_where_nobody_knows_the_nodes() {
        let pod = IpAddr::from([10, 244, 1, 2]);
        let to = |ip: [u8; 4], port| Entry::masqueraded(Protocol::Udp, pod, (IpAddr::from(ip), port).into(), 40_000);
        let mut stale = Stale { node_ports: [(Family::V4, 30080)].into(), ..Stale::default() };
        stale.set_own(Some(vec![IpAddr::from([192, 0, 2, 1])]));
        assert!(stale.matches(Family::V4, &to([192, 0, 2, 1], 30080)));
        assert!(!stale.matches(Family::V4, &to([203, 0, 113, 9], 30080)));
        stale.set_own(None);
        assert!(stale.matches(Family::V4, &to([203, 0, 113, 9], 30080)));
        assert!(!stale.matches(Family::V4, &to([203, 0, 113, 9], 30081)));
    }
}

//! Tracked connections (conntrack): listed, deleted, and forgotten where they would keep sending datagrams to endpoints that are
//! gone, or to whoever has a gone Pod's address next.
//!
//! A UDP "connection" lives as long as its client goes on sending, so an entry that leads to a vanished endpoint would blackhole
//! that client. TCP connections are left alone: the endpoint's end resets them.

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

/// The lowest of the ports that Pods share, as a number ([`super::base::LOWEST`]).
pub const LOWEST: u16 = 32768;
/// So many entries are told of sooner than the kernel goes through its table twice for an address: its buckets alone may be 262,144.
const FEW: usize = 2000;

/// What has to be forgotten after a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stale {
    /// `(family, id, endpoint)`: entries of that id that lead to that endpoint.
    endpoints: BTreeSet<(Family, u32, IpAddr)>,
    /// Node ports that are new: entries from before are not translated.
    node_ports: BTreeSet<(Family, u16)>,
    /// The addresses that they are on; `None`: any. A flow to the same port of anybody else is none of theirs.
    own: Option<BTreeSet<IpAddr>>,
}

impl Stale {
    /// Adds what a Service's change leaves behind.
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

    /// Says which addresses node ports are on; `None`: nobody knows, so any may be.
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
        // The kernel can filter by one mark; for several, everything is looked through once.
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

/// What somebody's flowtable carries the kernel may refuse to delete until it ends by itself: to try again would hold up all changes.
fn unless_carried(done: Result<()>) -> Result<()> {
    match done {
        Err(error) if error.errno() == Some(libc::EBUSY) => Ok(()),
        done => done,
    }
}

/// Deletes what there is of these addresses: entries that one of them has begun, and those that it answers, also as an endpoint.
/// `deleting` deletes while `listing` lists: a Pod can have hundreds of thousands. The families of which something may be left, each
/// with the first error.
pub fn forget(listing: &mut Socket, deleting: &mut Socket, addresses: &BTreeSet<IpAddr>) -> Vec<(Family, Error)> {
    // To go through the table costs the kernel milliseconds, and nothing is cheaper than to go through none. What it cannot count
    // may be many.
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
    // To look for one address, in one tuple at a time, costs the kernel less than to tell of all, once there are many. Before Linux
    // 5.8 it does not know the filter, and tells of all.
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

/// Asks for the entries in which this tuple's source is `address`.
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

/// Hands over each entry of a family, one at a time: the table may have hundreds of thousands. `mark`: only those that have it.
pub fn each(socket: &mut Socket, family: Family, mark: Option<u32>, see: &mut impl FnMut(&Entry)) -> Result<()> {
    socket.dump_each("list conntrack", list(family, mark), |answer| Entry::parse(&answer).iter().for_each(&mut *see))
}

/// How many entries the namespace's table has, and how many it may have.
pub fn fullness(socket: &mut Socket) -> Result<(usize, usize)> {
    let mut w = Writer::new();
    w.message(IPCTNL_MSG_CT_GET_STATS, (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16, &nfgen(Family::V4));
    let answers = socket.dump("count conntrack", w)?;
    let attrs = answers.first().and_then(|answer| answer.payload.get(4..)).unwrap_or_default();
    let number = |kind| attribute(attrs, kind).map(|v| u32::from_be(u32_at(v, 0)) as usize);
    match (number(CTA_STATS_GLOBAL_ENTRIES), number(CTA_STATS_GLOBAL_MAX_ENTRIES)) {
        // 0: the kernel has no limit.
        (Some(entries), Some(0)) => Ok((entries, usize::MAX)),
        (Some(entries), Some(max)) => Ok((entries, max)),
        _ => Err(Error::Malformed("the answer of conntrack's statistics")),
    }
}

/// Entries to delete, sent in handfuls. One that has ended meanwhile is not an error.
#[derive(Default)]
pub struct Doomed {
    requests: Writer,
    count: usize,
}

impl Doomed {
    /// How many requests are sent at once.
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

/// How much the loss of an entry would hurt, from little to much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Worth {
    /// A TCP connection that has ended, or is about to.
    Ending,
    /// Nobody has answered yet, or not for long.
    Unassured,
    /// Anything but TCP.
    Assured,
    Established,
}

impl Worth {
    pub const ALL: [Worth; 4] = [Worth::Ending, Worth::Unassured, Worth::Assured, Worth::Established];
}

/// All that needs ports of its own: protocol, the outside address and port, and the node's own address.
pub type Crowd = (u8, IpAddr, u16, IpAddr);

/// A conntrack entry, as far as we need it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The answers' tuple as the kernel wrote it: with the id it names the entry, and whom it leads to.
    ///
    /// The id alone is the kernel's hash of where the entry lies and of the other tuple, the question's. Whoever opens a connection
    /// anew from the port of one that has ended has that entry deleted and another made, most likely in the same place: with the same
    /// question and the same id, though it may lead to somebody else by now. Of what was listed before, that one is not meant.
    reply: Vec<u8>,
    id: Vec<u8>,
    mark: u32,
    protocol: u8,
    /// Whom the first packet was for, before translation.
    destination: IpAddr,
    destination_port: u16,
    /// Who answers: after translation, the endpoint.
    reply_source: IpAddr,
    reply_source_port: u16,
    /// Whom the answer is for: after translation, an address and a port of the node's.
    reply_destination: IpAddr,
    reply_destination_port: u16,
    /// Who has sent the first packet.
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

    /// Whether it has one of the ports that Pods share: its source is not its own any more (masquerade). What goes back to its source
    /// takes them from nobody else.
    pub fn has_a_shared_port(&self) -> bool {
        self.status & IPS_SRC_NAT != 0 && self.source != self.reply_source && self.is_in_the_crowd()
    }

    /// Whether its port, on the side of whom the answer is for, is one that Pods are given. A number that is no port (0 here) counts.
    pub fn is_in_the_crowd(&self) -> bool {
        matches!(self.reply_destination_port, 0 | LOWEST..)
    }

    /// Whether one of these has begun it, or answers it.
    fn is_of(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        addresses.contains(&self.source) || addresses.contains(&self.reply_source)
    }

    /// Whose ports it has one of. A ping's number is one, and has no other side.
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
    /// A connection of a Pod's to `to`, which leaves from port `port` of the node's.
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

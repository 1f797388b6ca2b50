//! The shares of Pods in the node's table of tracked connections, so that no Pod fills it for all others.
//!
//! The table (conntrack) has `nf_conntrack_max` entries for whoever sends through the node; an entry lives from seconds to days,
//! and once all are taken nobody opens a connection. Two things keep room in it:
//!
//! - [`super::base`] holds each Pod to a pace of new connections, so that the table takes seconds to fill, not an instant;
//! - [`Keeper`] looks at the number of entries twice a second. As long as half of them are free nobody has a limit. From then on
//!   all Pods together have a budget, divided as max-min fairness says: who needs less than an equal part keeps all, the others
//!   get equal parts of the rest. A Pod with more than its share loses what exceeds it, connections that have ended first and
//!   established ones last, and opens no new ones for [`QUIET`].
//!
//! The node's ports to one outside address and port are shared in the same way ([`super::ports`]).
//!
//! An entry counts for the source of its first packet, the client. Pods of other nodes count too: their own node sees only what
//! each of them sends to all. Nobody else does: outside clients of node ports and host ports, and the node with its
//! `hostNetwork` Pods, are many behind one address.
//!
//! Why not `ct count over N` in a set by source, which needs no agent: it keeps the connections of a source in a list, walked for
//! each new one. Measured (Linux 6.18, 2 CPUs): 8,000 connections a second of a Pod become 560 once 12,000 others of it are open,
//! each refused packet costs 0.7 ms in the kernel, and TCP connections in TIME_WAIT do not count though they fill the table.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use podwright_journal::JournalWriter;

use super::Commits;
use super::conntrack::{self, Crowd, Doomed, Entry};
use super::model::NodeFacts;
use super::ports::{self, Close, Crowds, Look};
use super::table::{TABLE, nft_family};
use super::tally::{Tally, budget, excess};
use crate::netlink::{self, Socket};
use crate::{Family, NodeNetns, Result};

/// How often the number of entries is read: one short netlink call.
pub const PERIOD: Duration = Duration::from_millis(500);
/// How long a Pod that had more than its share opens no new connections; a little longer than it takes to look again.
pub const QUIET: Duration = Duration::from_secs(2);
/// How long a table that is more than half full, by nobody's fault, is not listed again unless it grows.
const PAUSE: Duration = Duration::from_secs(10);

/// Keeps the shares of one node. Its method waits for the kernel: call it off the runtime's threads.
pub struct Keeper {
    netns: NodeNetns,
    socket: Socket,
    /// Deletes while `socket` lists.
    deleting: Socket,
    /// A smaller table than the kernel's.
    max: Option<usize>,
    last: Option<(Instant, usize)>,
    /// When the crowds of masqueraded connections were looked at.
    crowds: Option<Look>,
    commits: Commits,
}

/// What was done about a table that was filling up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relief {
    /// How many entries there were.
    pub entries: usize,
    /// The sources that had more than their share, and how many entries each has lost.
    pub lost: BTreeMap<IpAddr, usize>,
    /// The outside addresses and ports to which the node's ports ran short.
    pub crowded: BTreeSet<SocketAddr>,
}

/// Who has how much.
#[derive(Default)]
struct Census {
    pods: BTreeMap<IpAddr, Tally>,
    others: usize,
}

/// What each source has too much: of the whole table, and of one crowd.
#[derive(Default)]
struct Excess {
    table: BTreeMap<IpAddr, Tally>,
    crowds: HashMap<Crowd, BTreeMap<IpAddr, Tally>>,
}

impl Excess {
    fn sources(&self) -> BTreeSet<IpAddr> {
        self.table.keys().chain(self.crowds.values().flat_map(BTreeMap::keys)).copied().collect()
    }

    /// Whether this entry is to go; one less of its kind is to go then.
    fn takes(&mut self, entry: &Entry) -> bool {
        let worth = entry.worth() as usize;
        let of_crowd = match self.crowds.is_empty() || !entry.has_a_shared_port() {
            true => None,
            false => self.crowds.get_mut(&entry.crowd()).and_then(|sources| sources.get_mut(&entry.source)),
        };
        // Who has too much of both has lost it of both at once.
        let mut goes = false;
        for tally in of_crowd.into_iter().chain(self.table.get_mut(&entry.source)) {
            if tally[worth] > 0 {
                tally[worth] -= 1;
                goes = true;
            }
        }
        goes
    }
}

impl Keeper {
    /// `max`: the size of the table to count on, where it is to be less than the kernel's `nf_conntrack_max`.
    pub fn new(netns: &NodeNetns, max: Option<usize>, commits: Commits) -> Result<Keeper> {
        let open = || Socket::open_in(netns.fd());
        Ok(Keeper { netns: netns.clone(), socket: open()?, deleting: open()?, max, last: None, crowds: None, commits })
    }

    /// Looks at the table, and takes from those who have too much; `None` where all is well.
    pub fn look(&mut self, facts: &NodeFacts) -> Result<Option<Relief>> {
        // 1. How full it is, and how large a crowd may be.
        let (entries, of_kernel) = conntrack::fullness(&mut self.socket)?;
        let masqueraded = match entries > ports::LARGE {
            true => Some(ports::masqueraded(&mut self.socket)?),
            false => None,
        };
        let max = self.max.map_or(of_kernel, |max| max.min(of_kernel));
        let of_ports = masqueraded.is_some_and(|all| ports::is_due(entries, all, self.crowds));
        let of_table = self.is_due(entries, max);
        if !of_table && !of_ports {
            return Ok(None);
        }
        // 2. Who has how much, and too much of it.
        let ranges = facts.all_pods();
        let is_pod = |source: &IpAddr| ranges.iter().any(|range| range.contains(source));
        let (census, crowds) = self.count(is_pod)?;
        let mut excess = Excess { table: self::excess(&census.pods, budget(census.others, max)), ..Excess::default() };
        let mut largest = crowds.largest();
        if crowds.any_large() {
            let (of_crowds, left) = self.count_closely(is_pod, &crowds)?.excess();
            (excess.crowds, largest) = (of_crowds, largest.max(left));
        }
        self.last = of_table.then(|| (Instant::now(), entries)).or(self.last);
        self.crowds = masqueraded.map(|masqueraded| Look { masqueraded, largest }).or(self.crowds);
        let sources = excess.sources();
        if sources.is_empty() {
            return Ok(None);
        }
        let crowded = excess.crowds.keys().map(|(_, address, port, _)| SocketAddr::new(*address, *port)).collect();
        // 3. No more of it, and what is too much goes.
        self.quieten(sources.iter())?;
        let lost = self.delete(excess)?;
        if of_table {
            self.last = Some((Instant::now(), entries.saturating_sub(lost.values().sum())));
        }
        Ok(Some(Relief { entries, lost, crowded }))
    }

    fn count(&mut self, is_pod: impl Fn(&IpAddr) -> bool) -> Result<(Census, Crowds)> {
        let (mut census, mut crowds) = (Census::default(), Crowds::new());
        let mut count = |entry: &Entry| {
            if !is_pod(&entry.source) {
                census.others += 1;
                return;
            }
            census.pods.entry(entry.source).or_default()[entry.worth() as usize] += 1;
            crowds.add(entry);
        };
        for family in Family::ALL {
            conntrack::each(&mut self.socket, family, None, &mut count)?;
        }
        Ok((census, crowds))
    }

    fn count_closely(&mut self, is_pod: impl Fn(&IpAddr) -> bool, crowds: &Crowds) -> Result<Close> {
        let mut close = Close::default();
        for family in Family::ALL {
            conntrack::each(&mut self.socket, family, None, &mut |entry| {
                if crowds.is_large(&entry.crowd()) {
                    close.add(entry, is_pod(&entry.source));
                }
            })?;
        }
        Ok(close)
    }

    /// How many entries each source has lost.
    fn delete(&mut self, mut excess: Excess) -> Result<BTreeMap<IpAddr, usize>> {
        let mut lost = BTreeMap::new();
        for family in Family::ALL {
            let mut doomed = Doomed::default();
            let mut failed = None;
            let deleting = &mut self.deleting;
            conntrack::each(&mut self.socket, family, None, &mut |entry| {
                if excess.takes(entry) {
                    *lost.entry(entry.source).or_default() += 1;
                    failed = failed.take().or(doomed.add(entry, family, deleting).err());
                }
            })?;
            failed.map_or(Ok(()), Err)?;
            doomed.finish(deleting)?;
        }
        Ok(lost)
    }

    /// Whether the table is to be listed. That costs about a microsecond an entry: not again while nothing has come of it.
    fn is_due(&mut self, entries: usize, max: usize) -> bool {
        if entries <= max / 2 {
            self.last = None;
            return false;
        }
        self.last.is_none_or(|(at, then)| entries >= then + max / 32 || at.elapsed() >= PAUSE)
    }

    /// From now on, for a while, no new connections of these sources.
    fn quieten<'a>(&self, sources: impl Iterator<Item = &'a IpAddr>) -> Result<()> {
        let script = sources.fold(String::new(), |mut script, source| {
            let ip = nft_family(Family::of(source));
            let _ = writeln!(script, "add element {ip} {TABLE} greedy {{ {source} timeout {}s }}", QUIET.as_secs());
            script
        });
        self.commits.note(netlink::in_netns(self.netns.fd(), || {
            netlink::nft(&JournalWriter::none(), &["-f", "-"], &script)
        })?)?;
        Ok(())
    }
}

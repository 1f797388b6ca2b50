//! Pods' shares of the node's conntrack table, so that no Pod can fill it.
//!
//! The table has `nf_conntrack_max` entries for everyone sending through the node; an entry lives from seconds to days, and when it
//! is full no new connection can be opened. Two mechanisms prevent that:
//!
//! - [`super::base`] limits each Pod's rate of new connections, so that filling the table takes seconds, not an instant;
//! - [`Keeper`] checks the number of entries twice a second. While half of them are free there is no limit. Beyond that all Pods
//!   together have a budget, divided by max-min fairness: those that need less than an equal part keep everything, the others get
//!   equal parts of the rest. A Pod above its share loses the excess, ended connections first and established ones last, and cannot
//!   open new ones for [`QUIET`].
//!
//! The node's ports to one outside address and port are shared in the same way ([`super::ports`]).
//!
//! An entry counts for the source of its first packet, the client. Pods of other nodes count too: their own node only sees the
//! total of what each of them sends. Other sources do not: outside clients of node ports and host ports, and the node with its
//! `hostNetwork` Pods, are many behind one address.
//!
//! Why not `ct count over N` in a set by source, which needs no agent: it keeps the connections of a source in a list, and walks it
//! for each new one. Measured (Linux 6.18, 2 CPUs): 8,000 connections a second of a Pod become 560 once 12,000 others of it are
//! open, each refused packet costs 0.7 ms in the kernel, and TCP connections in TIME_WAIT do not count though they fill the table.

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
/// How long a Pod above its share may open no new connections; a little longer than the check interval.
pub const QUIET: Duration = Duration::from_secs(2);
/// How long a table that is more than half full, without any excess, is not listed again unless it grows.
const PAUSE: Duration = Duration::from_secs(10);

/// Enforces the shares of one node. Its method blocks on the kernel: call it off the runtime's threads.
pub struct Keeper {
    netns: NodeNetns,
    socket: Socket,
    /// Deletes while `socket` lists.
    deleting: Socket,
    /// A smaller limit than the kernel's.
    max: Option<usize>,
    last: Option<(Instant, usize)>,
    /// The last inspection of the masqueraded crowds.
    crowds: Option<Look>,
    commits: Commits,
}

/// The actions taken for a table that was filling up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relief {
    /// The number of entries before.
    pub entries: usize,
    /// The sources above their share, and how many entries each lost.
    pub lost: BTreeMap<IpAddr, usize>,
    /// The outside addresses and ports for which the node's ports ran short.
    pub crowded: BTreeSet<SocketAddr>,
}

/// The counts of all sources.
#[derive(Default)]
struct Census {
    pods: BTreeMap<IpAddr, Tally>,
    others: usize,
}

/// Each source's excess: in the whole table, and in one crowd.
#[derive(Default)]
struct Excess {
    table: BTreeMap<IpAddr, Tally>,
    crowds: HashMap<Crowd, BTreeMap<IpAddr, Tally>>,
}

impl Excess {
    fn sources(&self) -> BTreeSet<IpAddr> {
        self.table.keys().chain(self.crowds.values().flat_map(BTreeMap::keys)).copied().collect()
    }

    /// Whether to delete this entry; if so, decrements the remaining excess of its kind.
    fn takes(&mut self, entry: &Entry) -> bool {
        let worth = entry.worth() as usize;
        let of_crowd = match self.crowds.is_empty() || !entry.has_a_shared_port() {
            true => None,
            false => self.crowds.get_mut(&entry.crowd()).and_then(|sources| sources.get_mut(&entry.source)),
        };
        // One entry may reduce both kinds of excess.
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
    /// `max`: the assumed size of the table, if smaller than the kernel's `nf_conntrack_max`. Fails if the sockets cannot be
    /// opened.
    pub fn new(netns: &NodeNetns, max: Option<usize>, commits: Commits) -> Result<Keeper> {
        let open = || Socket::open_in(netns.fd());
        Ok(Keeper { netns: netns.clone(), socket: open()?, deleting: open()?, max, last: None, crowds: None, commits })
    }

    /// Checks the table and deletes excess entries; `None` if there is nothing to do. Fails if the table cannot be read or changed.
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
        // 2. The sources' counts and excess.
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
        // 3. Stop new ones, and delete the excess.
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

    /// Deletes the excess; returns how many entries each source lost.
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

    /// Whether to list the table, at about a microsecond per entry: not again if the last time had no result.
    fn is_due(&mut self, entries: usize, max: usize) -> bool {
        if entries <= max / 2 {
            self.last = None;
            return false;
        }
        self.last.is_none_or(|(at, then)| entries >= then + max / 32 || at.elapsed() >= PAUSE)
    }

    /// Blocks new connections of these sources for a while.
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

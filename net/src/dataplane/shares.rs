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
use super::conntrack::{self, Doomed, Entry, Worth};
use super::model::NodeFacts;
use super::ports::{self, Close, Crowd, Crowds, Look};
use super::table::{TABLE, nft_family};
use crate::netlink::{self, Socket};
use crate::{Family, NodeNetns, Result};

/// How often the number of entries is read: one short netlink call.
pub const PERIOD: Duration = Duration::from_millis(500);
/// How long a Pod that had more than its share opens no new connections; a little longer than it takes to look again.
pub const QUIET: Duration = Duration::from_secs(2);
/// How long a table that is more than half full, by nobody's fault, is not listed again unless it grows.
const PAUSE: Duration = Duration::from_secs(10);

/// How many entries of each [`Worth`].
pub type Tally = [usize; Worth::ALL.len()];

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

/// How many entries all Pods may have together: half of the table; less where others have much of it, and never less than a
/// quarter.
pub fn budget(others: usize, max: usize) -> usize {
    (max / 4 * 3).saturating_sub(others).clamp(max / 4, max / 2)
}

/// What each source must lose so that all together stay within the budget: nothing unless they exceed it. A part of the budget
/// stays free then, so that not everything is listed again at once.
pub fn excess(sources: &BTreeMap<IpAddr, Tally>, budget: usize) -> BTreeMap<IpAddr, Tally> {
    let counts: Vec<usize> = sources.values().map(|tally| tally.iter().sum()).collect();
    if counts.iter().sum::<usize>() <= budget {
        return BTreeMap::new();
    }
    let share = share(counts, budget - budget / 8);
    let excess = |tally: &Tally| {
        let mut left = tally.iter().sum::<usize>().saturating_sub(share);
        // In the order of worth.
        tally.map(|has| {
            let goes = has.min(left);
            left -= goes;
            goes
        })
    };
    let all = sources.iter().map(|(source, tally)| (*source, excess(tally)));
    all.filter(|(_, tally)| tally.iter().any(|goes| *goes > 0)).collect()
}

/// The largest share for which all together stay within the budget (max-min fairness).
fn share(mut counts: Vec<usize>, budget: usize) -> usize {
    counts.sort_unstable();
    let (mut left, mut sharing) = (budget, counts.len());
    for count in counts {
        let equal = left / sharing;
        if count > equal {
            return equal;
        }
        left -= count;
        sharing -= 1;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn source(n: u8) -> IpAddr {
        IpAddr::from([10, 244, 1, n])
    }

    #[test]
    fn shares_are_equal_parts_of_what_the_modest_leave() {
        assert_eq!(share(vec![10, 20, 30], 60), usize::MAX);
        assert_eq!(share(vec![10, 20, 31], 60), 30);
        assert_eq!(share(vec![5, 1000, 1000], 105), 50);
        assert_eq!(share(vec![1000], 100), 100);
        assert_eq!(share(vec![], 100), usize::MAX);
    }

    #[test]
    fn the_greedy_lose_what_has_ended_first_and_the_modest_nothing() {
        let sources = BTreeMap::from([(source(1), [0, 0, 0, 100]), (source(2), [300, 200, 200, 100])]);
        assert_eq!(excess(&sources, 900), BTreeMap::new());
        // 7/8 of 800 are 700: 100 for the first, 600 for the second.
        assert_eq!(excess(&sources, 800), BTreeMap::from([(source(2), [200, 0, 0, 0])]));
        assert_eq!(excess(&sources, 400), BTreeMap::from([(source(2), [300, 200, 50, 0])]));
    }

    #[test]
    fn pods_have_half_of_the_table_and_less_beside_others() {
        assert_eq!(budget(0, 1024), 512);
        assert_eq!(budget(400, 1024), 368);
        assert_eq!(budget(1024, 1024), 256);
    }

    proptest! {
        #[test]
        fn what_is_left_is_within_the_budget_and_fair(counts in prop::collection::vec(prop::array::uniform4(0usize..500), 0..40), budget in 8usize..4000) {
            let sources: BTreeMap<_, Tally> = counts.iter().enumerate().map(|(n, tally)| (source(n as u8), *tally)).collect();
            let excess = excess(&sources, budget);
            let of = |tally: &Tally| tally.iter().sum::<usize>();
            let left: BTreeMap<_, usize> =
                sources.iter().map(|(source, tally)| (*source, of(tally) - excess.get(source).map_or(0, of))).collect();
            prop_assert!(left.values().sum::<usize>() <= budget);
            // Who loses something has no less than anybody who keeps all.
            let most_kept = left.iter().filter(|(source, _)| !excess.contains_key(source)).map(|(_, left)| *left).max().unwrap_or(0);
            prop_assert!(excess.keys().all(|source| left[source] >= most_kept));
        }
    }
}

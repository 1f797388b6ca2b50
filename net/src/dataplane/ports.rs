//! Pods' shares of the node's ports: their connections to one outside address and port at a time.
//!
//! A Pod's connection to the outside leaves from a port of the node (masquerade). To one protocol, address and port there are at
//! most [`PORTS`] of them, for all Pods and the node itself, though the conntrack table has room for many more. So each such crowd
//! is treated like a table of its own, shared as [`super::shares`] does for the whole one.
//!
//! The table is only listed for this when a crowd may be too large: no crowd can have grown by more than the number of masqueraded
//! connections since the last time, which the kernel counts.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use super::base::MASQUERADED;
use super::conntrack::{Crowd, Entry, LOWEST};
use super::elements;
use super::tally::{Tally, budget, excess};
use crate::netlink::Socket;
use crate::{Family, Result};

/// The number of ports: from that one to 65535.
pub const PORTS: usize = 65536 - LOWEST as usize;
/// The crowd size from which its Pods share a budget; no crowd exceeds the table.
pub const LARGE: usize = PORTS / 2;
/// A power of two. Crowds with the same place in [`Crowds`] count as one until they are inspected exactly.
const PLACES: usize = 1 << 16;

/// Upper bounds for the sizes of masqueraded crowds, in little memory.
pub struct Crowds {
    hasher: RandomState,
    places: Vec<u32>,
}

impl Crowds {
    pub fn new() -> Crowds {
        Crowds { hasher: RandomState::new(), places: vec![0; PLACES] }
    }

    /// Counts a Pod's entry.
    pub fn add(&mut self, entry: &Entry) {
        if entry.has_a_shared_port() {
            let place = self.place(&entry.crowd());
            self.places[place] += 1;
        }
    }

    /// No crowd is larger than this, except those that may be too large.
    pub fn largest(&self) -> usize {
        self.places.iter().map(|count| *count as usize).filter(|count| *count <= LARGE).max().unwrap_or(0)
    }

    /// Whether one may be too large.
    pub fn any_large(&self) -> bool {
        self.places.iter().any(|count| *count as usize > LARGE)
    }

    /// Whether this one may be too large.
    pub fn is_large(&self, crowd: &Crowd) -> bool {
        self.places[self.place(crowd)] as usize > LARGE
    }

    fn place(&self, crowd: &Crowd) -> usize {
        self.hasher.hash_one(crowd) as usize % PLACES
    }
}

/// Exact counts for the crowds that may be too large.
#[derive(Default)]
pub struct Close {
    crowds: HashMap<Crowd, (BTreeMap<IpAddr, Tally>, usize)>,
}

impl Close {
    /// Counts an entry of one of them; of a Pod, or of another source, which has no share to exceed.
    pub fn add(&mut self, entry: &Entry, of_a_pod: bool) {
        let (pods, others) = self.crowds.entry(entry.crowd()).or_default();
        match of_a_pod {
            true if entry.has_a_shared_port() => pods.entry(entry.source).or_default()[entry.worth() as usize] += 1,
            false if entry.is_in_the_crowd() => *others += 1,
            _ => {}
        }
    }

    /// Each source's excess in each crowd, and the size of the largest crowd without it.
    pub fn excess(&self) -> (HashMap<Crowd, BTreeMap<IpAddr, Tally>>, usize) {
        let mut left = 0;
        let mut too_much = HashMap::new();
        for (crowd, (pods, others)) in &self.crowds {
            let goes = excess(pods, budget(*others, PORTS));
            let of = |all: &BTreeMap<IpAddr, Tally>| all.values().flatten().sum::<usize>();
            left = left.max(of(pods) - of(&goes));
            if !goes.is_empty() {
                too_much.insert(*crowd, goes);
            }
        }
        (too_much, left)
    }
}

/// The last inspection of the crowds.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The number of connections masqueraded by then.
    pub masqueraded: u64,
    /// The largest crowd.
    pub largest: usize,
}

/// Whether a crowd may be too large by now. `entries`: in the whole table.
pub fn is_due(entries: usize, masqueraded: u64, last: Option<Look>) -> bool {
    let may_be = |last: Look| match masqueraded.checked_sub(last.masqueraded) {
        Some(since) => last.largest as u64 + since > LARGE as u64,
        // The tables were recreated.
        None => true,
    };
    entries > LARGE && last.is_none_or(may_be)
}

/// The number of connections masqueraded since the tables were created. Fails if it cannot be read.
pub fn masqueraded(socket: &mut Socket) -> Result<u64> {
    let mut all = 0;
    for family in Family::ALL {
        all += elements::counter(socket, family, MASQUERADED)?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::base;
    use super::super::model::Protocol;
    use super::*;

    #[test]
    fn the_ports_are_those_of_the_rule() {
        assert_eq!(base::LOWEST.parse(), Ok(LOWEST));
    }

    /// A predecessor's rules gave Pods lower ports, and a connection may live for days.
    #[test]
    fn lower_ports_are_none_of_those_that_run_short() {
        let (pod, to) = (IpAddr::from([10, 244, 1, 2]), (IpAddr::from([203, 0, 113, 9]), 443).into());
        let entry = |port| Entry::masqueraded(Protocol::Tcp, pod, to, port);
        let (mut crowds, mut close) = (Crowds::new(), Close::default());
        for port in 0..=u16::MAX {
            // 0: a ping's id in its entry.
            let entry = entry(if port < LOWEST { port.max(1024) } else { port });
            crowds.add(&entry);
            close.add(&entry, true);
        }
        crowds.add(&entry(0));
        assert_eq!(crowds.places.iter().sum::<u32>(), PORTS as u32 + 1);
        let (excess, left) = close.excess();
        let gone: usize = excess.values().flat_map(BTreeMap::values).flatten().sum();
        assert_eq!(gone + left, PORTS);
        // Nor do those of other sources there.
        let mut close = Close::default();
        (1024..LOWEST).for_each(|port| close.add(&entry(port), false));
        (LOWEST..LOWEST + 100).for_each(|port| close.add(&entry(port), true));
        assert_eq!(close.crowds.values().map(|(_, others)| *others).sum::<usize>(), 0);
    }

    #[test]
    fn the_table_is_listed_when_a_crowd_may_be_too_large_and_not_before() {
        let last = Some(Look { masqueraded: 1000, largest: 100 });
        assert!(!is_due(LARGE, 900_000, None), "the whole table is no larger");
        assert!(is_due(LARGE + 1, 0, None), "nobody has looked yet");
        assert!(!is_due(200_000, 1000 + LARGE as u64 - 100, last));
        assert!(is_due(200_000, 1001 + LARGE as u64 - 100, last));
        assert!(is_due(200_000, 5, last), "the tables were made anew");
    }
}

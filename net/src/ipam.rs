//! Allocates Pod addresses from the node's ranges: one of each range per owner, persistent, round robin.
//!
//! The state is one small file, `ipam.json`, replaced atomically, and synced soon after. It is written before an address is handed
//! out, so a crash leaves at worst an address without a Pod, which [`Ipam::retain`] releases at the next start.
//!
//! It describes running Pods, whose addresses are also in the kernel: missing ones are learned from there ([`Ipam::learn`]), and a
//! damaged or missing file is recreated.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Error, Family, Result};
use podwright_journal::kept;

/// The allocated addresses.
pub struct Ipam {
    path: PathBuf,
    ranges: Vec<IpNet>,
    state: State,
    /// The addresses of `state.owners`, for looking one up.
    taken: BTreeSet<IpAddr>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct State {
    /// Owner (a Pod's uid) -> its addresses, in the order of the ranges.
    owners: BTreeMap<String, Vec<IpAddr>>,
    /// The last address handed out of each range: the next search starts after it.
    last: BTreeMap<IpNet, IpAddr>,
}

impl State {
    fn taken(&self) -> BTreeSet<IpAddr> {
        self.owners.values().flatten().copied().collect()
    }
}

impl Ipam {
    /// Reads the state at `path`; starts empty if it is missing or unreadable.
    pub fn open(path: &Path) -> Ipam {
        let read = fs::read(path).and_then(|bytes| serde_json::from_slice(&bytes).map_err(std::io::Error::other));
        let state = read.unwrap_or_else(|error| {
            if error.kind() != std::io::ErrorKind::NotFound {
                tracing::warn!(%error, path = %path.display(), "the record of Pod addresses is damaged: rebuilding it");
            }
            State::default()
        });
        let taken = State::taken(&state);
        Ipam { path: path.to_owned(), ranges: Vec::new(), state, taken }
    }

    /// Takes over addresses that owners are known to have, whatever was recorded. Fails if the state cannot be written.
    pub fn learn(&mut self, known: BTreeMap<String, Vec<IpAddr>>) -> Result<()> {
        let same = |has: &[IpAddr], known: &[IpAddr]| known.iter().all(|address| has.contains(address));
        let news =
            known.into_iter().filter(|(owner, known)| !self.addresses(owner).is_some_and(|has| same(has, known)));
        let news: BTreeMap<String, Vec<IpAddr>> = news.collect();
        if news.is_empty() {
            return Ok(());
        }
        tracing::warn!(owners = ?news.keys(), "learned unrecorded Pod addresses from the kernel");
        let before = self.state.clone();
        let taken: BTreeSet<IpAddr> = news.values().flatten().copied().collect();
        self.state.owners.retain(|_, addresses| !addresses.iter().any(|address| taken.contains(address)));
        self.state.owners.extend(news);
        self.in_order();
        self.commit(before)
    }

    /// Each owner's addresses in the order of the ranges.
    fn in_order(&mut self) {
        let ranges = &self.ranges;
        let order = |address: &IpAddr| ranges.iter().position(|range| range.contains(address)).unwrap_or(usize::MAX);
        self.state.owners.values_mut().for_each(|addresses| addresses.sort_by_key(|a| (order(a), a.is_ipv6())));
    }

    /// The ranges to allocate from: one per family. Allocated addresses stay with their owners.
    pub fn set_ranges(&mut self, ranges: Vec<IpNet>) {
        self.ranges = ranges.iter().map(IpNet::trunc).collect();
        self.in_order();
    }
    pub fn ranges(&self) -> &[IpNet] {
        &self.ranges
    }

    /// The addresses of `owner`, one of each range; always the same ones. Fails if a range is exhausted, or the state cannot be
    /// written.
    pub fn allocate(&mut self, owner: &str) -> Result<Vec<IpAddr>> {
        if let Some(addresses) = self.state.owners.get(owner) {
            return Ok(addresses.clone());
        }
        if self.ranges.is_empty() {
            return Err(Error::NoPodRange);
        }
        let before = self.state.clone();
        let mut addresses = Vec::with_capacity(self.ranges.len());
        for range in &self.ranges {
            let address = next_free(range, self.state.last.get(range), &self.taken).ok_or(Error::Exhausted(*range))?;
            addresses.push(address);
        }
        for (range, address) in self.ranges.iter().zip(&addresses) {
            self.state.last.insert(*range, *address);
        }
        self.state.owners.insert(owner.to_owned(), addresses.clone());
        self.commit(before)?;
        Ok(addresses)
    }

    /// Records addresses that something else has allocated to `owner`.
    ///
    /// # Errors
    ///
    /// Another owner has one of them, or the state cannot be written.
    pub fn assign(&mut self, owner: &str, addresses: &[IpAddr]) -> Result<()> {
        if self.state.owners.get(owner).is_some_and(|has| has == addresses) {
            return Ok(());
        }
        let others = || self.state.owners.iter().filter(|(other, _)| *other != owner);
        if let Some(taken) = addresses.iter().find(|address| others().any(|(_, has)| has.contains(address))) {
            return Err(Error::Taken(*taken));
        }
        let before = self.state.clone();
        self.state.owners.insert(owner.to_owned(), addresses.to_vec());
        self.commit(before)
    }

    /// Releases the addresses of `owner`; an unknown owner is not an error. Fails if the state cannot be written.
    pub fn release(&mut self, owner: &str) -> Result<()> {
        if !self.state.owners.contains_key(owner) {
            return Ok(());
        }
        let before = self.state.clone();
        self.state.owners.remove(owner);
        self.commit(before)
    }

    /// Releases every owner that is not among the living; returns those released. Fails if the state cannot be written.
    pub fn retain(&mut self, living: &BTreeSet<String>) -> Result<Vec<String>> {
        let dead: Vec<String> = self.state.owners.keys().filter(|o| !living.contains(*o)).cloned().collect();
        if !dead.is_empty() {
            let before = self.state.clone();
            self.state.owners.retain(|owner, _| living.contains(owner));
            self.commit(before)?;
        }
        Ok(dead)
    }

    pub fn addresses(&self, owner: &str) -> Option<&[IpAddr]> {
        self.state.owners.get(owner).map(Vec::as_slice)
    }
    pub fn owners(&self) -> impl Iterator<Item = (&str, &[IpAddr])> {
        self.state.owners.iter().map(|(owner, addresses)| (owner.as_str(), addresses.as_slice()))
    }

    /// Writes the state; on failure, memory is reset to the old state.
    fn commit(&mut self, before: State) -> Result<()> {
        let result = self.write();
        if result.is_err() {
            self.state = before;
        }
        self.taken = State::taken(&self.state);
        result
    }

    /// Rewrites the state if the file was changed or removed externally. Returns whether it was.
    pub fn mend(&self) -> Result<bool> {
        // Nothing was ever allocated: no file is needed.
        if self.state.last.is_empty() {
            return Ok(false);
        }
        let found = fs::read(&self.path).ok().and_then(|bytes| serde_json::from_slice::<State>(&bytes).ok());
        let is_other = found.as_ref() != Some(&self.state);
        if is_other {
            self.write()?;
        }
        Ok(is_other)
    }

    fn write(&self) -> Result<()> {
        let failed = |e| Error::call(format!("write {}", self.path.display()), e);
        let bytes = serde_json::to_vec(&self.state).map_err(|e| failed(std::io::Error::other(e)))?;
        kept::replace(&self.path, &bytes).map(drop).map_err(failed)
    }
}

/// The first free host address of `range` after `last`, wrapping around. Skips the network's own address, the first host
/// (conventionally the gateway) and the broadcast address.
fn next_free(range: &IpNet, last: Option<&IpAddr>, taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    let family = Family::of_net(range);
    let host_bits = u32::from(family.bits() - range.prefix_len());
    let base = number(&range.network());
    // A range of 2^127 or more is practically unbounded: only the offsets that fit are visited.
    let size = 1u128.checked_shl(host_bits).unwrap_or(u128::MAX);
    let end = if family == Family::V4 { size.saturating_sub(1) } else { size };
    let first = 2;
    if end <= first {
        return None;
    }
    let start = last.map_or(first, |l| (number(l).wrapping_sub(base)).saturating_add(1));
    let start = if (first..end).contains(&start) { start } else { first };
    // Among one more candidates than there are allocated addresses, one is free.
    let candidates = (start..end).chain(first..start);
    let enough = taken.len() + 1;
    candidates.take(enough).map(|offset| address(family, base + offset)).find(|a| !taken.contains(a))
}

fn number(address: &IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => u128::from(a.to_bits()),
        IpAddr::V6(a) => a.to_bits(),
    }
}

fn address(family: Family, number: u128) -> IpAddr {
    match family {
        // The range was an IPv4 one, so the number has 32 bits.
        Family::V4 => Ipv4Addr::from_bits(number as u32).into(),
        Family::V6 => Ipv6Addr::from_bits(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ipam(folder: &Path, ranges: &[&str]) -> Ipam {
        let mut ipam = Ipam::open(&folder.join("ipam.json"));
        ipam.set_ranges(ranges.iter().map(|r| r.parse().unwrap()).collect());
        ipam
    }

    #[test]
    fn addresses_go_round_and_leave_out_the_special_ones() {
        let folder = tempfile::tempdir().unwrap();
        let mut ipam = ipam(folder.path(), &["10.1.0.0/29"]);
        let take = |ipam: &mut Ipam, owner: &str| ipam.allocate(owner).map(|a| a[0].to_string());
        assert_eq!(take(&mut ipam, "a").unwrap(), "10.1.0.2");
        assert_eq!(take(&mut ipam, "a").unwrap(), "10.1.0.2");
        ipam.release("a").unwrap();
        for (owner, expected) in [("b", 3), ("c", 4), ("d", 5), ("e", 6), ("f", 2)] {
            assert_eq!(take(&mut ipam, owner).unwrap(), format!("10.1.0.{expected}"));
        }
        assert!(matches!(ipam.allocate("g"), Err(Error::Exhausted(_))));
        ipam.release("nobody").unwrap();
        ipam.release("c").unwrap();
        assert_eq!(take(&mut ipam, "g").unwrap(), "10.1.0.4");
    }

    #[test]
    fn both_families_and_a_reopening() {
        let folder = tempfile::tempdir().unwrap();
        let both = ["10.1.0.0/24", "fd00:1::/64"];
        let first = ipam(folder.path(), &both).allocate("a").unwrap();
        assert_eq!(first, ["10.1.0.2".parse::<IpAddr>().unwrap(), "fd00:1::2".parse().unwrap()]);
        let mut again = ipam(folder.path(), &both);
        assert_eq!(again.allocate("a").unwrap(), first);
        assert_eq!(again.allocate("b").unwrap()[1].to_string(), "fd00:1::3");
        assert_eq!(again.retain(&BTreeSet::from(["b".to_owned()])).unwrap(), ["a"]);
        assert_eq!(ipam(folder.path(), &both).owners().count(), 1);
    }

    #[test]
    fn a_file_that_is_damaged_or_gone_is_made_anew_out_of_what_is_known() {
        for damage in [&b""[..], b"{\"owners\":{\"a\":[\"10.1.0", b"\0\0\0\0", b"[]"] {
            let folder = tempfile::tempdir().unwrap();
            let both = ["10.1.0.0/24", "fd00:1::/64"];
            let a = ipam(folder.path(), &both).allocate("a").unwrap();
            fs::write(folder.path().join("ipam.json"), damage).unwrap();
            let mut anew = Ipam::open(&folder.path().join("ipam.json"));
            // The kernel lists them in any order.
            anew.learn(BTreeMap::from([("a".to_owned(), a.iter().rev().copied().collect())])).unwrap();
            anew.set_ranges(both.iter().map(|range| range.parse().unwrap()).collect());
            assert_eq!(anew.addresses("a").unwrap(), a);
            assert_ne!(anew.allocate("b").unwrap(), a, "a living Pod's address is nobody else's");
            assert_eq!(ipam(folder.path(), &both).owners().count(), 2, "it is written down again");
            let path = folder.path().join("ipam.json");
            assert!(!anew.mend().unwrap(), "it is as it should be");
            fs::write(&path, damage).unwrap();
            assert!(anew.mend().unwrap());
            assert_eq!(ipam(folder.path(), &both).owners().count(), 2, "it is mended while it is in use");
        }
    }

    #[test]
    fn what_the_kernel_has_counts_more_than_what_was_written_down() {
        let folder = tempfile::tempdir().unwrap();
        let mut ipam = ipam(folder.path(), &["10.1.0.0/24"]);
        let stale = ipam.allocate("stale").unwrap();
        ipam.learn(BTreeMap::from([("living".to_owned(), stale.clone())])).unwrap();
        assert_eq!((ipam.addresses("living"), ipam.addresses("stale")), (Some(&stale[..]), None));
    }

    #[test]
    fn no_range_says_so() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(ipam(folder.path(), &[]).allocate("a"), Err(Error::NoPodRange)));
        assert!(matches!(ipam(folder.path(), &["10.0.0.0/32"]).allocate("a"), Err(Error::Exhausted(_))));
    }

    proptest! {
        #[test]
        fn never_twice_never_lost(steps in prop::collection::vec((0u8..12, any::<bool>(), any::<bool>()), 1..60)) {
            let folder = tempfile::tempdir().unwrap();
            let mut real = ipam(folder.path(), &["10.1.0.0/28"]);
            let mut model: BTreeMap<String, IpAddr> = BTreeMap::new();
            for (owner, take, reopen) in steps {
                let owner = owner.to_string();
                if take {
                    let got = real.allocate(&owner).unwrap()[0];
                    prop_assert!(model.iter().all(|(o, a)| *o == owner || *a != got));
                    prop_assert!(model.get(&owner).is_none_or(|a| *a == got));
                    model.insert(owner, got);
                } else {
                    real.release(&owner).unwrap();
                    model.remove(&owner);
                }
                if reopen {
                    real = ipam(folder.path(), &["10.1.0.0/28"]);
                }
                prop_assert_eq!(real.owners().count(), model.len());
            }
        }
    }
}

//! Chains shared by all lists of one shape, and the maps of remembered clients: created when a list needs them, removed once many
//! are unused.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::base::{AFFINITY_MAP, BLOCK, affinity_map};
use super::compile::Compiled;
use super::elements::Chain;
use super::table::{TABLE, nft_family};
use crate::Family;

/// A chain of one family's table.
pub type Shared = (Family, Chain);

/// Number of chains created before unused ones are searched: users who can write Services can have one created for each length of a
/// list.
const SPARE: usize = 1024;

/// The existing ones, and their users.
#[derive(Debug, Default)]
pub struct Chains {
    /// Those in the kernel.
    made: BTreeSet<Shared>,
    /// The number of lists leading to each.
    needed: BTreeMap<Shared, usize>,
    /// Their number at the last search.
    looked_at: usize,
}

impl Chains {
    /// Those in the fixed part.
    pub fn of_base(families: &[Family]) -> BTreeSet<Shared> {
        families.iter().flat_map(|family| (1..=BLOCK).map(|n| (*family, Chain::Lb(n)))).collect()
    }

    /// Records the chains that a Service uses now and used before.
    pub fn lead(&mut self, before: &Compiled, after: &Compiled) {
        for chain in after.chains() {
            *self.needed.entry(chain).or_default() += 1;
        }
        for chain in before.chains() {
            if let Some(lists) = self.needed.get_mut(&chain) {
                *lists -= 1;
                if *lists == 0 {
                    self.needed.remove(&chain);
                }
            }
        }
    }

    pub fn needed(&self) -> BTreeSet<Shared> {
        self.needed.keys().copied().collect()
    }

    pub fn made(&self) -> &BTreeSet<Shared> {
        &self.made
    }

    /// Sets those that exist in the kernel.
    pub fn set_made(&mut self, made: BTreeSet<Shared>) {
        self.looked_at = made.len();
        self.made = made;
    }

    pub fn add_made(&mut self, made: impl IntoIterator<Item = Shared>) {
        self.made.extend(made);
    }

    /// Those of `named` that do not exist yet. Chains by number of endpoints are created in blocks, so that a list growing by one
    /// does not wait for `nft` each time.
    pub fn missing(&self, named: &BTreeSet<Shared>) -> BTreeSet<Shared> {
        let blocks = named.iter().filter(|chain| !self.made.contains(chain)).flat_map(|chain| block(*chain));
        blocks.filter(|chain| !self.made.contains(chain)).collect()
    }

    /// Those that no list needs, nor another one of their block, if many were created since the last call.
    pub fn left_over(&mut self, families: &[Family]) -> BTreeSet<Shared> {
        if self.made.len() < self.looked_at + SPARE {
            return BTreeSet::new();
        }
        let base = Chains::of_base(families);
        let needed: BTreeSet<Shared> = self.needed.keys().flat_map(|chain| block(*chain)).collect();
        let left: BTreeSet<Shared> =
            self.made.iter().filter(|chain| !base.contains(chain) && !needed.contains(chain)).copied().collect();
        self.looked_at = self.made.len() - left.len();
        left
    }

    /// Records that these were removed; returns the shares whose map was removed with them.
    pub fn forget(&mut self, removed: &BTreeSet<Shared>) -> BTreeSet<u32> {
        self.made.retain(|chain| !removed.contains(chain));
        let kept = shares(&self.made);
        shares(removed).difference(&kept).map(|(_, share)| *share).filter(|share| !has(&kept, *share)).collect()
    }

    /// The script that removes unreferenced chains, and the maps that only they use.
    pub fn removal(&self, chains: &BTreeSet<Shared>) -> String {
        let mut script = String::new();
        for (family, chain) in chains {
            let _ = writeln!(script, "delete chain {} {TABLE} {chain}", nft_family(*family));
        }
        let kept = shares(&self.made.difference(chains).copied().collect());
        for (family, share) in shares(chains).difference(&kept) {
            let _ = writeln!(script, "delete map {} {TABLE} {}", nft_family(*family), affinity_map(*share));
        }
        script
    }

    /// The script that removes a predecessor's unused chains and maps, from those of a family's table.
    pub fn removal_of_strangers(&self, family: Family, chains: &[String], maps: &[String]) -> String {
        let own: BTreeSet<String> =
            self.made.iter().filter(|(of, _)| *of == family).map(|(_, chain)| chain.to_string()).collect();
        let remembered: BTreeSet<String> =
            shares(&self.made).iter().filter(|(of, _)| *of == family).map(|(_, share)| affinity_map(*share)).collect();
        let is_stranger = |chain: &&String| Chain::is_name(chain) && !own.contains(*chain);
        let ip = nft_family(family);
        let mut script = String::new();
        for chain in chains.iter().filter(is_stranger) {
            let _ = writeln!(script, "delete chain {ip} {TABLE} {chain}");
        }
        for map in maps.iter().filter(|map| map.starts_with(AFFINITY_MAP) && !remembered.contains(*map)) {
            let _ = writeln!(script, "delete map {ip} {TABLE} {map}");
        }
        script
    }
}

/// The shares whose clients these chains remember.
fn shares(chains: &BTreeSet<Shared>) -> BTreeSet<(Family, u32)> {
    let share = |(family, chain): &Shared| match chain {
        Chain::Affinity { share, .. } => Some((*family, *share)),
        Chain::Lb(_) | Chain::Pick(_) => None,
    };
    chains.iter().filter_map(share).collect()
}

fn has(shares: &BTreeSet<(Family, u32)>, share: u32) -> bool {
    Family::ALL.into_iter().any(|family| shares.contains(&(family, share)))
}

/// The chains that are created together with this one.
fn block((family, chain): Shared) -> Vec<Shared> {
    let around = |n: u32| {
        let first = (n.max(1) - 1) / BLOCK * BLOCK + 1;
        first..first + BLOCK
    };
    match chain {
        Chain::Lb(n) => around(n).map(|n| (family, Chain::Lb(n))).collect(),
        Chain::Pick(n) => around(n).map(|n| (family, Chain::Pick(n))).collect(),
        Chain::Affinity { .. } => vec![(family, chain)],
    }
}

#[cfg(test)]
mod tests {
    use super::super::elements::{ElementKey, Key, Map, Value};
    use super::*;

    fn leading_to(chains: &[Chain]) -> Compiled {
        let mut compiled = Compiled::default();
        for (n, chain) in chains.iter().enumerate() {
            let place = ElementKey { family: Family::V4, map: Map::Services, key: Key::Id(n as u32) };
            compiled.elements.insert(place, Value::Goto(*chain));
        }
        compiled
    }

    #[test]
    fn what_nobody_needs_goes_once_there_is_much_of_it() {
        let mut chains = Chains::default();
        chains.set_made(Chains::of_base(&[Family::V4]));
        let nothing = Compiled::default();
        let affinity = |share, seconds| Chain::Affinity { share, seconds };
        let kept = leading_to(&[Chain::Lb(40), affinity(7, 60)]);
        chains.lead(&nothing, &kept);
        chains.add_made(chains.missing(&chains.needed()));
        // Another tenant has one list grow, through all lengths, and its clients remembered for all durations.
        let mut before = nothing;
        for n in 1..=1200 {
            let after = leading_to(&[Chain::Lb(n), affinity(7, n), affinity(8, n)]);
            chains.lead(&before, &after);
            chains.add_made(chains.missing(&chains.needed()));
            let left = chains.left_over(&[Family::V4]);
            if !left.is_empty() {
                let script = chains.removal(&left);
                assert!(!script.contains("lb-1\n") && !script.contains("lb-40\n"), "{script}");
                assert!(!script.contains("map") && chains.forget(&left).is_empty(), "both maps are needed: {script}");
            }
            before = after;
        }
        assert!(chains.made().len() < SPARE + 2 * BLOCK as usize + 64, "{}", chains.made().len());
        chains.lead(&before, &Compiled::default());
        chains.looked_at = 0;
        chains.add_made((0..SPARE as u32).map(|n| (Family::V4, affinity(9, n + 1))));
        let left = chains.left_over(&[Family::V4]);
        let script = chains.removal(&left);
        assert!(
            script.contains("delete map ip podwright affinity-8\n") && !script.contains("affinity-7\n"),
            "{script}"
        );
        assert_eq!(chains.forget(&left), BTreeSet::from([8, 9]));
        let all = [(Family::V4, Chain::Lb(40)), (Family::V4, affinity(7, 60))];
        assert!(all.iter().all(|chain| chains.made().contains(chain)));
    }

    #[test]
    fn of_a_predecessors_only_what_is_not_needed_goes() {
        let mut chains = Chains::default();
        chains.set_made([(Family::V4, Chain::Lb(1)), (Family::V4, Chain::Affinity { share: 26, seconds: 5 })].into());
        let found = ["lb-1", "lb-900", "aff-1a-5", "aff-1b-5", "service", "lbx"].map(str::to_owned);
        let maps = ["affinity-1a", "affinity-1b", "services"].map(str::to_owned);
        let script = chains.removal_of_strangers(Family::V4, &found, &maps);
        let expected = "delete chain ip podwright lb-900\ndelete chain ip podwright aff-1b-5\n\
                        delete map ip podwright affinity-1b\n";
        assert_eq!(script, expected);
    }
}

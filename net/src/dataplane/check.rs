//! Compares the kernel's state of our tables with the intended one, and repairs external changes.
//!
//! nf_tables counts transactions: the *generation* of a namespace's ruleset. We count our own, so this number reveals external
//! writes; it is cheap enough to be read several times a second. Only then is everything read and compared.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use podwright_journal::JournalWriter;

use super::chains::Chains;
use super::elements::{self, ElementKey, Map};
use super::fixed::{self, Objects};
use super::{Dataplane, base, table};
use crate::netlink::{self, Socket};
use crate::{Family, Result};

/// The number of our own transactions: the generation counts everyone's. Shared by all writers of ours.
#[derive(Clone, Debug, Default)]
pub struct Commits(Arc<AtomicU32>);

impl Commits {
    fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
    /// Counts a transaction, unless it was refused.
    pub(super) fn note<T, E>(&self, made: Result<T, E>) -> Result<T, E> {
        made.inspect(|_| {
            self.0.fetch_add(1, Ordering::Relaxed);
        })
    }
}

/// The last known generation, and our writes since.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    generation: u32,
    /// Of [`Commits`].
    own: u32,
}

/// The intended fixed part, and the script that created it.
#[derive(Default)]
pub struct Wanted {
    script: String,
    objects: Objects,
}

impl Dataplane {
    /// Whether the ruleset was changed externally since the last comparison; `true` also if unknown. Nothing is compared before the
    /// first load. Fails if the generation cannot be read.
    pub fn is_suspect(&mut self) -> Result<bool> {
        if !self.loaded {
            return Ok(false);
        }
        let own = self.commits.count();
        let generation = fixed::generation(&mut self.socket)?;
        let ours = own.wrapping_sub(self.seen.own);
        Ok(self.seen.generation == 0 || generation.wrapping_sub(self.seen.generation) != ours)
    }

    /// Compares the kernel's state of our tables with the intended one and repairs differences, in one transaction. Returns the
    /// differences, in nft's words. Fails if they cannot be read or repaired.
    pub fn mend(&mut self) -> Result<Vec<String>> {
        if !self.loaded {
            return Ok(Vec::new());
        }
        // Later writes are found by the next check.
        let own = self.commits.count();
        let seen = Seen { generation: fixed::generation(&mut self.socket)?, own };
        let mut differ = self.differing_objects()?;
        let elements_alone = differ.is_empty();
        if elements_alone {
            differ = self.differing_maps()?;
        }
        if differ.is_empty() {
            self.seen = seen;
            return Ok(differ);
        }
        match elements_alone {
            true => self.fill()?,
            false => self.replace()?,
        }
        // Our own writes came in between; the next check compares again.
        self.seen = Seen::default();
        Ok(differ)
    }

    /// The objects of the fixed part that differ.
    fn differing_objects(&mut self) -> Result<Vec<String>> {
        let script = self.whole_script();
        if self.wanted.script != script {
            self.wanted = Wanted { objects: made_of(&script, &self.read_families())?, script };
        }
        let mut found = Objects::new();
        for family in self.read_families() {
            found.extend(fixed::read(&mut self.socket, family)?);
        }
        Ok(fixed::differences(&self.wanted.objects, &found))
    }

    /// All that the tables have beside elements.
    fn whole_script(&self) -> String {
        let mut script = self.closed();
        for family in &self.families {
            script += &base::script(*family);
            script += &base::facts_script(&self.facts, *family);
        }
        let further: BTreeSet<_> = self.chains.made().difference(&Chains::of_base(&self.families)).copied().collect();
        script.extend(further.iter().map(|(family, chain)| base::chain_script(*chain, *family)));
        script + &self.policies.script_of_made()
    }

    /// The families with a table of ours, including a closed one.
    fn read_families(&self) -> Vec<Family> {
        let closed = (!self.closed().is_empty()).then_some(Family::V6);
        self.families.iter().copied().chain(closed).collect()
    }

    /// The maps whose elements differ.
    fn differing_maps(&mut self) -> Result<Vec<String>> {
        let mut wanted: BTreeMap<(Family, Map), BTreeMap<Vec<u8>, Vec<u8>>> = BTreeMap::new();
        for (ElementKey { family, map, key }, value) in self.everything() {
            let (key, value) = elements::bytes(&key, &value);
            wanted.entry((family, map)).or_default().insert(key, value);
        }
        let mut differ = Vec::new();
        let maps = self.families.iter().flat_map(|family| Map::ALL.map(|map| (*family, map)));
        let maps: Vec<(Family, Map)> = maps.chain(self.policies.sets()).collect();
        for (family, map) in maps {
            let found = fixed::elements(&mut self.socket, family, &map.name())?;
            let found: BTreeMap<_, _> = found.iter().map(|element| elements::parse(element)).collect();
            let wanted = wanted.remove(&(family, map)).unwrap_or_default();
            if found != wanted {
                let gone = wanted.iter().filter(|(key, value)| found.get(*key) != Some(value)).count();
                let foreign = found.keys().filter(|key| !wanted.contains_key(*key)).count();
                let ip = table::nft_family(family);
                let name = map.name();
                differ.push(format!("map {ip} {} {name} ({gone} lost, {foreign} foreign)", table::TABLE));
            }
        }
        Ok(differ)
    }
}

/// What `nft` creates from a script in an empty namespace.
fn made_of(script: &str, families: &[Family]) -> Result<Objects> {
    let scratch = netlink::new_netns()?;
    netlink::in_netns(scratch.as_fd(), || netlink::nft(&JournalWriter::none(), &["-f", "-"], script))??;
    let mut socket = Socket::open_in(scratch.as_fd())?;
    let mut objects = Objects::new();
    for family in families {
        objects.extend(fixed::read(&mut socket, *family)?);
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::elements::{Key, Value};

    #[test]
    fn an_element_is_read_back_as_it_was_written() {
        let ip = "10.0.0.2".parse().unwrap();
        let net = "10.1.0.0/16".parse().unwrap();
        let chain = elements::Chain::Lb(3);
        let all = [
            (Key::Id(7), Value::Goto(chain)),
            (Key::Id(7), Value::Drop),
            (Key::Slot(7, 1), Value::Endpoint((ip, 80).into())),
            (Key::Source(7, net), Value::None),
            (Key::Own(ip), Value::None),
            (Key::Address(ip), Value::Judge(7)),
            (Key::Endpoint(ip, 80), Value::None),
        ];
        for (key, value) in all {
            let written = elements::written(&key, &value);
            assert_eq!(elements::parse(&written), elements::bytes(&key, &value), "{key} {value}");
        }
    }
}

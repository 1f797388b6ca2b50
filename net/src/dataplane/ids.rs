//! Ids derived from names: unchanged after a restart, so that marks of established connections stay valid.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use sha2::{Digest, Sha256};

/// FNV-1a, 64 bits, with a final mix so that all bits depend on all bytes.
pub fn fnv(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    }
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash ^ (hash >> 32)
}

/// The ids of Services' lists, which have 32 bits in marks and maps.
pub type Ids = Numbers<u32>;

/// The ids of policies' chains and sets. Tenants choose their names, which are all that is in them: nobody finds one whose id is that of
/// another's.
pub type PartIds = Numbers<u64>;

/// What a name is hashed to. 0 is none.
pub trait Number: Copy + Eq + Hash {
    fn of(name: &str) -> Self;
    /// Where the next free one is looked for.
    fn next(self) -> Self;
}

impl Number for u32 {
    fn of(name: &str) -> u32 {
        (fnv(name.as_bytes()) as u32).max(1)
    }
    fn next(self) -> u32 {
        self.wrapping_add(1).max(1)
    }
}

impl Number for u64 {
    fn of(name: &str) -> u64 {
        let hash: [u8; 32] = Sha256::digest(name).into();
        let [a, b, c, d, e, f, g, h, ..] = hash;
        u64::from_be_bytes([a, b, c, d, e, f, g, h]).max(1)
    }
    fn next(self) -> u64 {
        self.wrapping_add(1).max(1)
    }
}

/// Names with a number each, never 0, unique among existing names. A name keeps its number until that is given back.
pub struct Numbers<N> {
    by_name: HashMap<Arc<str>, N>,
    by_number: HashMap<N, Arc<str>>,
}

impl<N> Default for Numbers<N> {
    fn default() -> Numbers<N> {
        Numbers { by_name: HashMap::new(), by_number: HashMap::new() }
    }
}

impl<N: Number> Numbers<N> {
    /// The id of `name`: its hash, or the next free one in the rare case of a collision.
    pub fn take(&mut self, name: &str) -> N {
        if let Some(number) = self.by_name.get(name) {
            return *number;
        }
        let mut number = N::of(name);
        while self.by_number.contains_key(&number) {
            number = number.next();
        }
        let name: Arc<str> = name.into();
        self.by_number.insert(number, name.clone());
        self.by_name.insert(name, number);
        number
    }

    pub fn give_back(&mut self, number: N) {
        if let Some(name) = self.by_number.remove(&number) {
            self.by_name.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_stable_and_unique() {
        let mut ids = Ids::default();
        let a = ids.take("a");
        assert_eq!(a, ids.take("a"));
        assert_eq!(a, Ids::default().take("a"));
        let all: std::collections::HashSet<u32> = (0..20_000).map(|i| ids.take(&i.to_string())).collect();
        assert_eq!(all.len(), 20_000);
        assert!(!all.contains(&0) && !all.contains(&a));
        assert_eq!(PartIds::default().take("a"), 0xca97_8112_ca1b_bdca, "SHA-256, as anybody computes it");
    }

    /// Two names of one hash.
    fn colliding() -> (String, String) {
        let mut seen = HashMap::new();
        let found = (0u32..).find_map(|n| {
            let name = n.to_string();
            seen.insert(u32::of(&name), name.clone()).map(|other| (other, name))
        });
        found.expect("there are more names than hashes")
    }

    /// Whoever comes and goes: a set that is filled under one number is asked for under the same.
    #[test]
    fn a_name_keeps_its_number_when_the_one_that_it_collides_with_goes() {
        let (one, other) = colliding();
        let mut ids = Ids::default();
        let (first, second) = (ids.take(&one), ids.take(&other));
        assert_eq!(second, first + 1);
        ids.give_back(first);
        assert_eq!(ids.take(&other), second);
        assert_eq!(ids.take(&one), first, "and the other's is free");
        ids.give_back(second);
        assert_eq!(ids.take(&other), second);
    }
}

//! Ids derived from names: unchanged after a restart, so that marks of established connections stay valid.

use std::collections::HashMap;

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

/// Names with an id each, never 0, unique among existing names.
#[derive(Default)]
pub struct Ids {
    by_number: HashMap<u32, String>,
}

impl Ids {
    /// The id of `name`: its hash, or the next free one in the rare case of a collision.
    pub fn take(&mut self, name: &str) -> u32 {
        let mut number = (fnv(name.as_bytes()) as u32).max(1);
        loop {
            match self.by_number.get(&number) {
                Some(owner) if owner != name => number = number.wrapping_add(1).max(1),
                Some(_) => return number,
                None => {
                    self.by_number.insert(number, name.to_owned());
                    return number;
                }
            }
        }
    }

    pub fn give_back(&mut self, number: u32) {
        self.by_number.remove(&number);
    }

    pub fn name(&self, number: u32) -> Option<&str> {
        self.by_number.get(&number).map(String::as_str)
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
    }
}

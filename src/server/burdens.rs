//! Namespaces have shares of the memory that objects take where controllers, scheduler and agents keep them as types.
//!
//! Most take some times the bytes that are stored. What of one exceeds that by far (`podwright_api::schema::burden`: thousands of empty
//! volumes, variables, containers) is charged to its namespace, and refused once the namespace has its share: as a quota does, where it
//! can be told to whoever writes it (`admission/burdens.rs`). What is stored already stays as it is, and may shrink.

use std::collections::HashMap;

/// What all namespaces have together, and one at least, whatever the others have: otherwise half of what these leave.
const MOST: usize = 512 << 20;
const LEAST: usize = MOST / 8;

/// How much each namespace is charged for one kind.
#[derive(Debug, Default)]
pub(super) struct Burdens {
    by_namespace: HashMap<Box<str>, usize>,
    all: usize,
}

impl Burdens {
    /// Updates it after a change of an object.
    pub fn change(&mut self, namespace: &str, old: usize, new: usize) {
        if old == new {
            return;
        }
        let own = self.by_namespace.entry(namespace.into()).or_default();
        *own = *own + new - old;
        if *own == 0 {
            self.by_namespace.remove(namespace);
        }
        self.all = self.all + new - old;
    }

    /// What a namespace is charged.
    pub fn of(&self, namespace: &str) -> usize {
        self.by_namespace.get(namespace).copied().unwrap_or(0)
    }

    /// What all are charged.
    pub fn all(&self) -> usize {
        self.all
    }
}

/// How much a namespace may have, beside others that have so much.
pub(super) fn share(others: usize) -> usize {
    (MOST.saturating_sub(others) / 2).max(LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_half_of_what_the_others_leave() {
        assert_eq!((share(0), share(MOST / 2), share(MOST), share(2 * MOST)), (MOST / 2, MOST / 4, LEAST, LEAST));
        let mut burdens = Burdens::default();
        for (old, new, own) in [(0, 7, 7), (0, 3, 10), (7, 1, 4), (1, 0, 3), (3, 0, 0)] {
            burdens.change("a", old, new);
            assert_eq!((burdens.of("a"), burdens.of("b"), burdens.all), (own, 0, own));
        }
        assert!(burdens.by_namespace.is_empty());
    }
}

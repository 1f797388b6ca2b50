//! A bounded cache of objects loaded for containers: their contents depend on manifests, and each holds descriptors.

use std::hash::Hash;
use std::{borrow::Borrow, collections::HashMap};

/// A cluster's manifests use a handful of profiles and of device lists.
const KEPT: usize = 64;

/// Keeps the [`KEPT`] most recently used ones.
#[derive(Debug)]
pub struct Cache<K, V> {
    known: HashMap<K, (u64, V)>,
    uses: u64,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Cache { known: HashMap::new(), uses: 0 }
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Cache<K, V> {
    pub fn get<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (used, value) = self.known.get_mut(key)?;
        self.uses += 1;
        *used = self.uses;
        Some(value.clone())
    }

    /// Adds one, evicting the least recently used.
    pub fn insert(&mut self, key: K, value: V) {
        if self.known.len() >= KEPT && !self.known.contains_key(&key) {
            let oldest = self.known.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| self.known.remove(&oldest));
        }
        self.uses += 1;
        self.known.insert(key, (self.uses, value));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_is_used_stays_and_what_was_used_once_goes() {
        let (mut cache, default) = (Cache::default(), Arc::new(0));
        cache.insert("default".to_owned(), default.clone());
        let others: Vec<_> = (1..10 * KEPT).map(Arc::new).collect();
        for other in &others {
            cache.insert(other.to_string(), other.clone());
            assert!(cache.get("default").is_some());
        }
        assert_eq!(Arc::strong_count(&default), 2);
        let held = others.iter().filter(|other| Arc::strong_count(other) > 1).count();
        assert_eq!(held, KEPT - 1);
        assert!(cache.get("1").is_none());
        assert_eq!(cache.get(&others.len().to_string()), others.last().cloned());
    }
}

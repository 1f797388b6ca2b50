//! The state of autoscalers between reconciles.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use super::History;
use podwright_api::selector::LabelSelector;
use podwright_client::Key;

/// The state of all autoscalers.
#[derive(Default)]
pub struct Memory(Mutex<HashMap<Key, History>>);

impl Memory {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, History>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The state of the autoscaler with this uid.
    pub(super) fn of(&self, key: &Key, uid: &str) -> History {
        let known = self.lock().get(key).filter(|history| history.uid == uid).cloned();
        known.unwrap_or_else(|| History::of(uid))
    }

    pub(super) fn keep(&self, key: &Key, history: History) {
        self.lock().insert(key.clone(), history);
    }

    pub(super) fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    /// The selectors of the other autoscalers of a namespace.
    pub(super) fn rivals(&self, key: &Key) -> Vec<(Key, LabelSelector)> {
        let all = self.lock();
        let others = all.iter().filter(|(other, _)| other.namespace == key.namespace && *other != key);
        others.filter_map(|(other, history)| Some((other.clone(), history.selector.clone()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namesake_inherits_nothing_and_rivals_share_a_namespace() {
        let memory = Memory::default();
        let known = |uid: &str| {
            let mut history = History::of(uid);
            history.selector = LabelSelector::parse("a=b").ok();
            history
        };
        let (it, other, elsewhere) = (Key::new("a", "it"), Key::new("a", "other"), Key::new("b", "it"));
        for key in [&it, &other, &elsewhere] {
            memory.keep(key, known("1"));
        }
        assert_eq!(memory.of(&it, "1"), known("1"));
        assert_eq!(memory.of(&it, "2"), History::of("2"));
        let rivals = |memory: &Memory| memory.rivals(&it).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        assert_eq!(rivals(&memory), std::slice::from_ref(&other));
        memory.forget(&other);
        assert_eq!(rivals(&memory), []);
    }
}

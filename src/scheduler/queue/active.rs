//! Active Pods: higher priority first, and within a priority alternating between namespaces.
//!
//! Upstream's PrioritySort orders by time within a priority, so a user with thousands of Pods delays all others. Here one Pod of
//! each namespace is decided in turn; within a namespace it is first come, first served. Each operation takes logarithmic time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
};

use podwright_client::Key;

/// When a Pod was queued, and its key.
type Arrival = (u64, Key);

/// See the module.
#[derive(Default)]
pub(super) struct Active {
    priorities: BTreeMap<Reverse<i32>, Namespaces>,
    /// How many turns have been assigned.
    turns: u64,
}

/// The Pods of one priority.
#[derive(Default)]
struct Namespaces {
    waiting: HashMap<String, Line>,
    /// Each of them once, in the order of their turns.
    turns: BTreeMap<u64, String>,
}

/// The Pods of one namespace, and its turn.
struct Line {
    turn: u64,
    pods: BTreeSet<Arrival>,
}

impl Active {
    pub fn is_empty(&self) -> bool {
        self.priorities.is_empty()
    }

    /// After those of its namespace; a new namespace gets its turn after all others.
    pub fn insert(&mut self, priority: Reverse<i32>, arrival: Arrival) {
        let Namespaces { waiting, turns } = self.priorities.entry(priority).or_default();
        if let Some(line) = waiting.get_mut(&arrival.1.namespace) {
            line.pods.insert(arrival);
            return;
        }
        self.turns += 1;
        let namespace = arrival.1.namespace.clone();
        turns.insert(self.turns, namespace.clone());
        waiting.insert(namespace, Line { turn: self.turns, pods: [arrival].into() });
    }

    pub fn remove(&mut self, priority: Reverse<i32>, arrival: &Arrival) {
        let Some(Namespaces { waiting, turns }) = self.priorities.get_mut(&priority) else { return };
        let Some(line) = waiting.get_mut(&arrival.1.namespace) else { return };
        line.pods.remove(arrival);
        if line.pods.is_empty() {
            turns.remove(&line.turn);
            waiting.remove(&arrival.1.namespace);
        }
        if waiting.is_empty() {
            self.priorities.remove(&priority);
        }
    }

    /// The next Pod, which stays until it is removed. The following turn is another namespace's.
    pub fn next(&mut self) -> Option<Key> {
        let Namespaces { waiting, turns } = self.priorities.first_entry()?.into_mut();
        let (_, namespace) = turns.pop_first()?;
        let line = waiting.get_mut(&namespace)?;
        self.turns += 1;
        line.turn = self.turns;
        turns.insert(line.turn, namespace);
        line.pods.first().map(|(_, key)| key.clone())
    }
}

//! The Pods whose turn it is or will be: the more important ones first, and of one priority each namespace in its turn.
//!
//! Upstream's PrioritySort goes by time within a priority, whosever the Pods are: who has thousands of them then keeps all others
//! waiting. Here each namespace that has some has one decided, then the next one's has its turn; within a namespace it is first
//! come, first served. Each operation takes logarithmic time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
};

use podwright_client::Key;

/// When a Pod was put in line, and which it is.
type Arrival = (u64, Key);

/// See the module.
#[derive(Default)]
pub(super) struct Active {
    priorities: BTreeMap<Reverse<i32>, Namespaces>,
    /// How many turns have been given out.
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

    /// Behind those of its namespace; a namespace that has none gets its turn behind all others.
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

    /// The Pod whose turn it is, which stays until it is removed. The next turn is another namespace's.
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

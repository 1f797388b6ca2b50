//! A queue that is fair between namespaces: each has its turn, however much others queue.

use std::collections::{HashMap, VecDeque};

/// A queue for each namespace with items.
pub(super) struct FairQueue<T> {
    waiting: HashMap<String, VecDeque<T>>,
    /// These namespaces, in the order of their turns.
    next: VecDeque<String>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> FairQueue<T> {
        FairQueue { waiting: HashMap::new(), next: VecDeque::new() }
    }
}

impl<T> FairQueue<T> {
    /// Appends to the namespace's queue; a new namespace gets its turn after all others.
    pub fn push(&mut self, namespace: &str, item: T) {
        match self.waiting.get_mut(namespace) {
            Some(waiting) => waiting.push_back(item),
            None => {
                self.waiting.insert(namespace.to_owned(), VecDeque::from([item]));
                self.next.push_back(namespace.to_owned());
            }
        }
    }

    /// The first item of the next namespace, whose following turn comes after the others'.
    pub fn pop(&mut self) -> Option<(String, T)> {
        self.pop_of(|_| true)
    }

    /// The first item of the first namespace that `may` accepts; those before it keep their turns.
    pub fn pop_of(&mut self, may: impl Fn(&str) -> bool) -> Option<(String, T)> {
        let turn = self.turn_of(may)?;
        self.take(turn)
    }

    /// The position of that turn.
    pub fn turn_of(&self, may: impl Fn(&str) -> bool) -> Option<usize> {
        self.next.iter().position(|namespace| may(namespace))
    }

    /// The first item of the namespace at that turn.
    pub fn take(&mut self, turn: usize) -> Option<(String, T)> {
        let namespace = self.next.remove(turn)?;
        let waiting = self.waiting.get_mut(&namespace)?;
        let item = waiting.pop_front()?;
        match waiting.is_empty() {
            true => drop(self.waiting.remove(&namespace)),
            false => self.next.push_back(namespace.clone()),
        }
        Some((namespace, item))
    }

    /// The next namespace.
    pub fn next(&self) -> Option<&str> {
        self.next.front().map(String::as_str)
    }

    /// Whether nothing is queued, or only for this namespace.
    pub fn is_only(&self, namespace: &str) -> bool {
        self.next.iter().all(|next| next == namespace)
    }

    pub fn is_empty(&self) -> bool {
        self.next.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_namespace_has_its_turn_and_its_own_order() {
        let mut queue = FairQueue::default();
        for (namespace, item) in [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)] {
            queue.push(namespace, item);
        }
        let mut taken = Vec::new();
        while let Some(namespace) = queue.next().map(str::to_owned) {
            let (of, item) = queue.pop().unwrap();
            assert_eq!(of, namespace);
            if item == 4 {
                queue.push("d", 7);
            }
            taken.push(item);
        }
        assert_eq!(taken, [1, 4, 5, 2, 6, 7, 3]);
        for (namespace, item) in [("a", 1), ("b", 2), ("b", 3), ("c", 4)] {
            queue.push(namespace, item);
        }
        assert_eq!(queue.pop_of(|namespace| namespace != "a"), Some(("b".to_owned(), 2)));
        assert_eq!(queue.pop_of(|_| false), None);
        let left: Vec<u32> = std::iter::from_fn(|| queue.pop()).map(|(_, item)| item).collect();
        assert_eq!(left, [1, 4, 3]);
        assert!(queue.is_empty() && queue.waiting.is_empty());
    }
}

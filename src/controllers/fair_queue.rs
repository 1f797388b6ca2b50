//! What waits, by namespace: each has its turn, however much others have.

use std::collections::{HashMap, VecDeque};

/// Queues, one for each namespace that has something.
pub(super) struct FairQueue<T> {
    waiting: HashMap<String, VecDeque<T>>,
    /// Each of them once, in the order of their turns.
    next: VecDeque<String>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> FairQueue<T> {
        FairQueue { waiting: HashMap::new(), next: VecDeque::new() }
    }
}

impl<T> FairQueue<T> {
    /// Behind what its namespace has; a namespace that has nothing gets its turn behind all others.
    pub fn push(&mut self, namespace: &str, item: T) {
        match self.waiting.get_mut(namespace) {
            Some(waiting) => waiting.push_back(item),
            None => {
                self.waiting.insert(namespace.to_owned(), VecDeque::from([item]));
                self.next.push_back(namespace.to_owned());
            }
        }
    }

    /// The first of the namespace whose turn it is; the next turn is another's.
    pub fn pop(&mut self) -> Option<(String, T)> {
        let namespace = self.next.pop_front()?;
        let waiting = self.waiting.get_mut(&namespace)?;
        let item = waiting.pop_front()?;
        match waiting.is_empty() {
            true => drop(self.waiting.remove(&namespace)),
            false => self.next.push_back(namespace.clone()),
        }
        Some((namespace, item))
    }

    /// Whose turn it is.
    pub fn next(&self) -> Option<&str> {
        self.next.front().map(String::as_str)
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
        assert!(queue.is_empty() && queue.waiting.is_empty());
    }
}

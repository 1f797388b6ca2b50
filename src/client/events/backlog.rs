//! Queued events by namespace: namespaces take turns, and if there are too many, the one with the most loses some.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Told;

/// The most queued events.
pub(super) const MOST: usize = 1000;

/// The events of each namespace, in their order.
#[derive(Default)]
pub(super) struct Backlog {
    waiting: BTreeMap<String, VecDeque<Told>>,
    count: usize,
    /// The namespaces in the order of their turns.
    turns: VecDeque<String>,
    /// Namespaces with an event being written, whose next one waits for that.
    busy: BTreeSet<String>,
}

impl Backlog {
    /// Queues an event. If there are too many, returns the dropped one: the last of the namespace with the most.
    pub fn push(&mut self, namespace: String, told: Told) -> Option<Told> {
        let own = self.waiting.get(&namespace).map_or(0, VecDeque::len);
        let mut lost = None;
        if self.count >= MOST {
            let most = self.waiting.iter_mut().max_by_key(|(_, events)| events.len());
            match most.filter(|(_, events)| events.len() > own + 1) {
                Some((_, events)) => lost = events.pop_back(),
                None => return Some(told),
            }
            self.count -= 1;
        }
        if own == 0 && !self.busy.contains(&namespace) {
            self.turns.push_back(namespace.clone());
        }
        self.waiting.entry(namespace).or_default().push_back(told);
        self.count += 1;
        lost
    }

    /// The first event of the namespace whose turn it is. It gets no other turn before [`Backlog::done`].
    pub fn next(&mut self) -> Option<(String, Told)> {
        let namespace = self.turns.pop_front()?;
        let events = self.waiting.get_mut(&namespace)?;
        let told = events.pop_front()?;
        if events.is_empty() {
            self.waiting.remove(&namespace);
        }
        self.count -= 1;
        self.busy.insert(namespace.clone());
        Some((namespace, told))
    }

    /// A namespace's event was written.
    pub fn done(&mut self, namespace: String) {
        self.busy.remove(&namespace);
        if self.waiting.contains_key(&namespace) {
            self.turns.push_back(namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;

    fn told(message: &str) -> Told {
        Told { about: ObjectReference::default(), kind: "Normal", reason: "R".into(), message: message.into() }
    }

    fn next(backlog: &mut Backlog) -> Option<String> {
        let (namespace, told) = backlog.next()?;
        Some(format!("{namespace}/{}", told.message))
    }

    #[test]
    fn namespaces_take_turns_and_each_has_one_event_under_way() {
        let mut backlog = Backlog::default();
        for message in ["1", "2", "3"] {
            assert!(backlog.push("noisy".into(), told(message)).is_none());
        }
        assert_eq!(next(&mut backlog).as_deref(), Some("noisy/1"));
        assert_eq!(next(&mut backlog), None, "its next one waits");
        backlog.push("quiet".into(), told("1"));
        backlog.done("noisy".into());
        assert_eq!(next(&mut backlog).as_deref(), Some("quiet/1"));
        assert_eq!(next(&mut backlog).as_deref(), Some("noisy/2"));
        backlog.done("quiet".into());
        backlog.done("noisy".into());
        assert_eq!(next(&mut backlog).as_deref(), Some("noisy/3"));
        assert_eq!((next(&mut backlog), backlog.count), (None, 0));
    }

    #[test]
    fn whoever_has_most_loses_the_last_of_them() {
        let mut backlog = Backlog::default();
        for n in 0..MOST {
            assert!(backlog.push("noisy".into(), told(&n.to_string())).is_none());
        }
        assert_eq!(backlog.push("noisy".into(), told("more")).unwrap().message, "more");
        let lost = backlog.push("quiet".into(), told("1")).unwrap();
        assert_eq!((lost.message, backlog.count), ((MOST - 1).to_string(), MOST));
        assert_eq!(next(&mut backlog).as_deref(), Some("noisy/0"));
        assert_eq!(next(&mut backlog).as_deref(), Some("quiet/1"));
    }
}

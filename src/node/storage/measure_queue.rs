//! The order of disk measurements: Pods that are quick to measure do not wait for slow ones, and no namespace waits for another.
//! Pure.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use super::{MOST, PERIOD, REST};

/// Concurrent measurements of Pods of the same gait.
const AT_ONCE: usize = 2;
/// The longest interval between measurements, whatever they cost: a measurement rests in between, and has one of few places.
const LONGEST: Duration = Duration::from_secs(60);
/// CPU time for a measurement of a Pod that is not known to need more.
const QUICK: Duration = Duration::from_secs(1);

/// How expensive a Pod is to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gait {
    #[default]
    Quick,
    Slow,
}

impl Gait {
    /// CPU time limit of a measurement.
    pub fn most(self) -> Duration {
        match self {
            Gait::Quick => QUICK,
            Gait::Slow => MOST,
        }
    }

    /// How many of the places one namespace may use.
    fn share(self) -> usize {
        match self {
            Gait::Quick => AT_ONCE,
            Gait::Slow => 1,
        }
    }
}

/// The result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Complete, at this cost.
    Done(Duration),
    /// The time was too short: the Pod is slow.
    TooSlow,
}

#[derive(Debug)]
struct Turn {
    namespace: String,
    due: Instant,
    gait: Gait,
    underway: bool,
}

/// Pods that are measured periodically, by uid.
#[derive(Debug, Default)]
pub struct MeasureQueue {
    pods: HashMap<String, Turn>,
    /// When a namespace had its last turn, as a counter.
    served: BTreeMap<String, u64>,
    count: u64,
}

impl MeasureQueue {
    /// Sets the existing Pods (uid, namespace).
    pub fn expect<'a>(&mut self, pods: impl Iterator<Item = (&'a str, &'a str)>, now: Instant) {
        let pods: HashMap<&str, &str> = pods.collect();
        self.pods.retain(|uid, turn| turn.underway || pods.contains_key(uid.as_str()));
        for (uid, namespace) in pods {
            let new =
                || Turn { namespace: namespace.to_owned(), due: now + PERIOD, gait: Gait::default(), underway: false };
            self.pods.entry(uid.to_owned()).or_insert_with(new);
        }
        self.served.retain(|namespace, _| self.pods.values().any(|turn| turn.namespace == *namespace));
    }

    /// The next Pod to measure, if there is a place: of the namespace that has waited longest, the Pod that has waited longest.
    pub fn next(&mut self, now: Instant) -> Option<(String, Gait)> {
        let has_place = |turn: &Turn| {
            let others = || self.pods.values().filter(|other| other.underway && other.gait == turn.gait);
            others().count() < AT_ONCE
                && others().filter(|other| other.namespace == turn.namespace).count() < turn.gait.share()
        };
        let due = self.pods.iter().filter(|(_, turn)| !turn.underway && turn.due <= now && has_place(turn));
        let first = due.min_by_key(|(uid, turn)| (self.served.get(&turn.namespace), turn.due, *uid));
        let uid = first?.0.clone();
        let turn = self.pods.get_mut(&uid)?;
        turn.underway = true;
        self.count += 1;
        self.served.insert(turn.namespace.clone(), self.count);
        Some((uid, turn.gait))
    }

    /// Expensive measurements are repeated less often.
    pub fn done(&mut self, uid: &str, outcome: Outcome, now: Instant) {
        let Some(turn) = self.pods.get_mut(uid) else { return };
        turn.underway = false;
        (turn.due, turn.gait) = match outcome {
            Outcome::TooSlow => (now, Gait::Slow),
            Outcome::Done(cost) if cost < QUICK => (now + PERIOD.max(cost * REST), Gait::Quick),
            Outcome::Done(cost) => (now + (cost * REST).min(LONGEST), Gait::Slow),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(pods: &[(&str, &str)]) -> (MeasureQueue, Instant) {
        let (mut queue, begin) = (MeasureQueue::default(), Instant::now());
        queue.expect(pods.iter().copied(), begin);
        assert_eq!(queue.next(begin), None, "a new Pod has time");
        (queue, begin + PERIOD)
    }

    fn all(queue: &mut MeasureQueue, now: Instant) -> Vec<String> {
        std::iter::from_fn(|| queue.next(now).map(|(uid, _)| uid)).collect()
    }

    #[test]
    fn slow_pods_keep_nobody_else_waiting() {
        let (mut queue, now) = queue(&[("a1", "a"), ("a2", "a"), ("b1", "b")]);
        let seconds = |n| now + Duration::from_secs(n);
        // Both quick places rotate between the namespaces.
        assert_eq!(all(&mut queue, now), ["a1", "b1"]);
        queue.done("a1", Outcome::TooSlow, seconds(1));
        assert_eq!(queue.next(seconds(1)), Some(("a2".into(), Gait::Quick)), "it has given its place away");
        assert_eq!(queue.next(seconds(1)), Some(("a1".into(), Gait::Slow)));
        queue.done("a2", Outcome::TooSlow, seconds(1));
        assert_eq!(queue.next(seconds(1)), None, "a namespace has one slow place");
        // While the slow one is measured, others are measured when due.
        for n in 1..10 {
            queue.done("b1", Outcome::Done(Duration::ZERO), seconds(10 * n));
            assert_eq!(all(&mut queue, seconds(10 * n + 10)), ["b1"]);
        }
        queue.done("a1", Outcome::Done(Duration::from_secs(2)), seconds(100));
        assert_eq!(all(&mut queue, seconds(100)), ["a2"]);
        queue.done("a2", Outcome::Done(Duration::from_millis(1)), seconds(100));
        assert_eq!(queue.next(seconds(111)), Some(("a2".into(), Gait::Quick)), "slow no more");
        assert_eq!(all(&mut queue, seconds(159)), [""; 0], "fifty times as long as it took, and a minute at most");
        assert_eq!(queue.next(seconds(160)), Some(("a1".into(), Gait::Slow)));
    }

    #[test]
    fn a_namespace_of_many_pods_has_no_more_turns_than_another() {
        let names: Vec<String> = (0..50).map(|n| format!("a{n:02}")).collect();
        let mut pods: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "a")).collect();
        pods.push(("b", "b"));
        let (mut queue, now) = queue(&pods);
        assert_eq!(all(&mut queue, now), ["a00", "b"]);
        queue.done("b", Outcome::Done(Duration::ZERO), now);
        assert_eq!(all(&mut queue, now), ["a01"]);
        // Due again, with all the others still waiting.
        queue.done("a00", Outcome::TooSlow, now + PERIOD);
        assert_eq!(queue.next(now + PERIOD).unwrap().0, "b");
        // A Pod that is gone is dropped when its measurement is over.
        queue.expect([("b", "b")].into_iter(), now);
        assert_eq!(queue.pods.len(), 2);
        queue.done("a01", Outcome::TooSlow, now);
        queue.expect([("b", "b")].into_iter(), now);
        assert_eq!((queue.pods.len(), queue.served.len()), (1, 1));
    }
}

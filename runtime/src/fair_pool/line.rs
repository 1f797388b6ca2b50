//! The order of turns, as data: pure, with the time as an argument.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Maximum number of concurrent turns.
const PLACES: usize = 32;
/// Maximum number of one owner's turns, ...
const SHARE: usize = 2;
/// ... with more while there are fewer in total than this.
pub const ALONE: usize = PLACES / 2;
/// A longer turn counts as hanging: its place is given to another owner, ...
const STUCK: Duration = Duration::from_secs(5);
/// ... up to this total number of turns. Each is a thread.
const MOST: usize = 128;
/// A newcomer precedes owners who have had a turn, but not those who have waited for more than this many turns.
const AHEAD: u64 = PLACES as u64;

/// Waiting jobs, and turns in progress.
pub struct Line<J> {
    owners: BTreeMap<String, Owner<J>>,
    /// Start times of turns in progress, by number.
    underway: BTreeMap<u64, Instant>,
    turns: u64,
}

struct Owner<J> {
    /// Jobs with their earliest start times.
    waiting: VecDeque<(Instant, J)>,
    underway: usize,
    /// The number of the last turn; for an owner without any, the number it is treated as having had.
    served: u64,
}

/// A turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    pub owner: String,
    number: u64,
}

impl<J> Default for Line<J> {
    fn default() -> Line<J> {
        Line { owners: BTreeMap::new(), underway: BTreeMap::new(), turns: 0 }
    }
}

impl<J> Owner<J> {
    fn is_ready(&self, now: Instant, all: usize) -> bool {
        (self.underway < SHARE || all < ALONE) && self.waiting.iter().any(|(due, _)| *due <= now)
    }
}

impl<J> Line<J> {
    /// An owner without jobs is dropped, and starts over with its next job: such owners overtake each waiting one only for
    /// [`AHEAD`] turns, however many there are.
    pub fn push(&mut self, owner: &str, job: J, due: Instant) {
        let served = self.turns.saturating_sub(AHEAD);
        let new = || Owner { waiting: VecDeque::new(), underway: 0, served };
        self.owners.entry(owner.to_owned()).or_insert_with(new).waiting.push_back((due, job));
    }

    /// The next turn, if there is a place: the oldest job of the owner whose last turn is longest ago.
    pub fn next(&mut self, now: Instant) -> Option<(Given, J)> {
        let held = self.underway.values().filter(|begun| now < **begun + STUCK).count();
        if held >= PLACES || self.underway.len() >= MOST {
            return None;
        }
        // Including hanging ones: they get no more.
        let all = self.underway.len();
        let ready = self.owners.iter_mut().filter(|(_, own)| own.is_ready(now, all));
        let (owner, own) = ready.min_by_key(|(_, own)| own.served)?;
        let at = own.waiting.iter().position(|(due, _)| *due <= now)?;
        let (_, job) = own.waiting.remove(at)?;
        self.turns += 1;
        (own.served, own.underway) = (self.turns, own.underway + 1);
        self.underway.insert(self.turns, now);
        Some((Given { owner: owner.clone(), number: self.turns }, job))
    }

    /// A turn ended.
    pub fn end(&mut self, given: &Given) {
        if self.underway.remove(&given.number).is_none() {
            return;
        }
        if let Some(own) = self.owners.get_mut(&given.owner) {
            own.underway -= 1;
        }
        self.owners.retain(|_, own| own.underway > 0 || !own.waiting.is_empty());
    }

    pub fn has_waiting(&self) -> bool {
        self.owners.values().any(|own| !own.waiting.is_empty())
    }

    /// The number of an owner's jobs, including those in progress.
    pub fn of(&self, owner: &str) -> usize {
        self.owners.get(owner).map_or(0, |own| own.waiting.len() + own.underway)
    }

    /// When there may be a [`next`](Line::next) one without a turn ending: a job is due, or a turn counts as hanging.
    pub fn wake(&self, now: Instant) -> Option<Instant> {
        let due = self.owners.values().flat_map(|own| own.waiting.iter().map(|(due, _)| *due));
        due.chain(self.underway.values().map(|begun| *begun + STUCK)).filter(|at| *at > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(line: &mut Line<u32>, now: Instant) -> Vec<(Given, u32)> {
        std::iter::from_fn(|| line.next(now)).collect()
    }

    #[test]
    fn owners_take_turns_and_none_has_more_than_its_share() {
        let (mut line, now) = (Line::default(), Instant::now());
        (0..100).for_each(|job| line.push("many", job, now));
        line.push("few", 100, now);
        let jobs = |given: &[(Given, u32)]| given.iter().map(|(_, job)| *job).collect::<Vec<_>>();
        let first = all(&mut line, now);
        assert_eq!(jobs(&first), [100].into_iter().chain(0..ALONE as u32 - 1).collect::<Vec<_>>());
        assert!(all(&mut line, now + STUCK).is_empty(), "who is stuck gets no more");
        (101..104).for_each(|job| line.push("few", job, now));
        line.end(&first[1].0);
        let second = all(&mut line, now);
        assert_eq!(jobs(&second), [101], "who had his turn last waits, and nobody has more than his share");
        assert_eq!((line.of("many"), line.of("few"), line.of("none")), (99, 4, 0));
        second.iter().chain(&first).for_each(|(given, _)| line.end(given));
        line.end(&first[0].0);
        assert_eq!((line.of("many"), line.of("few")), (85, 2), "a turn ends once");
        assert!(line.has_waiting() && line.owners.len() == 2);
    }

    #[test]
    fn who_is_stuck_keeps_his_place_from_his_own_alone() {
        let (mut line, now) = (Line::default(), Instant::now());
        for owner in 0..PLACES as u32 {
            (0..3).for_each(|_| line.push(&owner.to_string(), owner, now));
        }
        assert_eq!(all(&mut line, now).len(), PLACES);
        assert_eq!(line.wake(now), Some(now + STUCK));
        line.push("late", 1000, now);
        // All hang: owners without a turn come first, and none gets more than its share.
        let later = now + STUCK;
        let next = all(&mut line, later);
        assert_eq!((next.len(), next[0].1), (PLACES, 1000));
        let end = all(&mut line, later + STUCK);
        assert_eq!(end.len(), 1);
        assert_eq!(line.underway.len(), 2 * PLACES + 1);
        assert_eq!(line.next(later + 2 * STUCK), None);
        for owner in 0..MOST as u32 {
            line.push(&format!("new{owner}"), owner, now);
        }
        let mut at = later;
        for _ in 0..10 {
            at += STUCK;
            all(&mut line, at);
        }
        assert_eq!(line.underway.len(), MOST);
    }

    /// Simulates more owners with one job each than there are places, and one owner with many: returns the longest gap, in turns,
    /// between two of the latter's. `next`: which owner arrives when such a turn has ended.
    fn longest_wait(comers: usize, next: impl Fn(&str, usize) -> String) -> usize {
        let (mut line, now) = (Line::default(), Instant::now());
        (0..comers).for_each(|n| line.push(&format!("comer{n}"), 1, now));
        let mut underway: VecDeque<(Given, u32)> = all(&mut line, now).into();
        (0..1000).for_each(|_| line.push("many", 2, now));
        let (mut last, mut longest) = (0, 0);
        for turn in 1..=5000 {
            let (given, job) = underway.pop_front().unwrap();
            line.end(&given);
            if job == 1 {
                line.push(&next(&given.owner, turn), 1, now);
            }
            for given in all(&mut line, now) {
                if given.1 == 2 {
                    last = turn;
                }
                underway.push_back(given);
            }
            assert_eq!(underway.len(), PLACES);
            longest = longest.max(turn - last);
        }
        longest
    }

    #[test]
    fn whoever_comes_again_and_again_starves_nobody_who_waits() {
        let again = longest_wait(2 * PLACES, |owner, _| owner.to_owned());
        assert!(again <= 4 * PLACES, "{again} turns");
        let ever_new = longest_wait(2 * PLACES, |_, turn| format!("new{turn}"));
        assert!(ever_new <= 4 * PLACES, "{ever_new} turns");
    }

    #[test]
    fn what_is_to_wait_waits_and_is_in_nobodys_way() {
        let (mut line, now) = (Line::default(), Instant::now());
        let later = now + Duration::from_secs(60);
        line.push("a", 1, later);
        line.push("a", 2, now);
        assert_eq!(all(&mut line, now).iter().map(|(_, job)| *job).collect::<Vec<_>>(), [2]);
        assert_eq!(line.wake(now + STUCK), Some(later));
        assert_eq!(all(&mut line, later)[0].1, 1);
        assert!(!line.has_waiting());
    }
}

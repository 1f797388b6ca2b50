//! Limits how many probe commands a node starts at once: each one is a process, and hundreds of Pods may request hundreds per
//! second.
//!
//! The limit covers process creation. A hanging command costs the node nothing more, and its container's limits bound it: so it
//! gives up its place soon, whatever its timeout. But each namespace may have only a bounded number of them, and waits until one
//! ends.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

/// Number of concurrent commands that do not hang; free places are first come, first served.
pub const PLACES: usize = 32;
/// A longer running command counts as hanging: twice the default timeout of a probe.
const STUCK: Duration = Duration::from_secs(2);
/// A namespace with this many commands, most of them hanging, starts no more: as many as a node usually has Pods.
const HUNG: usize = 128;
/// How often a waiter checks whether others hang, and reports how long it has waited.
const LOOK: Duration = Duration::from_secs(1);
/// The wait is reported after this long.
const LONG: Duration = Duration::from_secs(10);

/// Cheap to clone.
#[derive(Clone, Default)]
pub struct Pace(Arc<Mutex<Line<oneshot::Sender<Turn>>>>);

/// A turn; it ends when this is dropped.
pub struct Turn {
    pace: Pace,
    number: Option<u64>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(number) = self.number.take() {
            self.pace.line().end(number);
            self.pace.give();
        }
    }
}

impl Pace {
    fn line(&self) -> MutexGuard<'_, Line<oneshot::Sender<Turn>>> {
        // The state is consistent even after a panic: each change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn of the namespace; regularly calls `waited` with the time so far.
    pub async fn take(&self, namespace: &str, mut waited: impl FnMut(Duration)) -> Turn {
        let begun = Instant::now();
        loop {
            let (sender, mut receiver) = oneshot::channel();
            self.line().push(namespace, sender, oneshot::Sender::is_closed);
            loop {
                self.give();
                match tokio::time::timeout(LOOK, &mut receiver).await {
                    Ok(Ok(turn)) => return turn,
                    // It is not dropped without a turn in it; otherwise the request is repeated.
                    Ok(Err(_)) => break,
                    Err(_) => waited(begun.elapsed()),
                }
            }
        }
    }

    fn give(&self) {
        let mut line = self.line();
        while let Some((number, waits)) = line.next(Instant::now()) {
            // A waiter that left needs no turn. The turn must not be dropped while `line` is locked.
            if let Err(mut turn) = waits.send(Turn { pace: self.clone(), number: Some(number) }) {
                turn.number = None;
                line.end(number);
            }
        }
    }
}

/// Whether a wait should be reported: when it becomes long, and each time it doubles.
#[derive(Debug, Default)]
pub struct Patience {
    told: Duration,
}

impl Patience {
    /// Whether a wait that has lasted this long is reported. Pure.
    pub fn is_news(&mut self, waited: Duration) -> bool {
        let is_news = waited >= LONG && waited >= 2 * self.told;
        if is_news {
            self.told = waited;
        }
        is_news
    }

    /// The wait is over.
    pub fn ends(&mut self, waited: Duration) {
        if waited < LONG {
            self.told = Duration::ZERO;
        }
    }
}

/// The waiting order, as data.
struct Line<J> {
    owners: BTreeMap<String, Owner<J>>,
    /// Turns in progress by number: their owners, and when they began.
    underway: BTreeMap<u64, (String, Instant)>,
    turns: u64,
}

struct Owner<J> {
    waiting: VecDeque<J>,
    /// The number of the last turn.
    served: u64,
}

impl<J> Default for Line<J> {
    fn default() -> Line<J> {
        Line { owners: BTreeMap::new(), underway: BTreeMap::new(), turns: 0 }
    }
}

impl<J> Line<J> {
    /// Queues a job; waiting jobs of the owner that are gone are removed. New and repeated ones queue at the end.
    fn push(&mut self, owner: &str, job: J, is_gone: impl Fn(&J) -> bool) {
        let served = self.turns;
        let own = || Owner { waiting: VecDeque::new(), served };
        let waiting = &mut self.owners.entry(owner.to_owned()).or_insert_with(own).waiting;
        waiting.retain(|job| !is_gone(job));
        waiting.push_back(job);
    }

    /// The next turn, if there is a place: the oldest job of the owner whose last turn is longest ago.
    fn next(&mut self, now: Instant) -> Option<(u64, J)> {
        if self.underway.values().filter(|(_, begun)| now < *begun + STUCK).count() >= PLACES {
            return None;
        }
        let mut running: BTreeMap<&str, usize> = BTreeMap::new();
        self.underway.values().for_each(|(owner, _)| *running.entry(owner).or_default() += 1);
        let has_room = |owner: &str| running.get(owner).is_none_or(|running| *running < HUNG);
        let ready = self.owners.iter_mut().filter(|(owner, own)| !own.waiting.is_empty() && has_room(owner));
        let (owner, own) = ready.min_by_key(|(_, own)| own.served)?;
        let (owner, job) = (owner.clone(), own.waiting.pop_front()?);
        self.turns += 1;
        own.served = self.turns;
        self.underway.insert(self.turns, (owner, now));
        Some((self.turns, job))
    }

    /// A turn ended.
    fn end(&mut self, number: u64) {
        let Some((owner, _)) = self.underway.remove(&number) else { return };
        let is_idle = self.owners.get(&owner).is_some_and(|own| own.waiting.is_empty());
        if is_idle && !self.underway.values().any(|(other, _)| *other == owner) {
            self.owners.remove(&owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    fn all(line: &mut Line<u32>, now: Instant) -> Vec<(u64, u32)> {
        std::iter::from_fn(|| line.next(now)).collect()
    }

    fn push(line: &mut Line<u32>, owner: &str, many: u32) {
        (0..many).for_each(|job| line.push(owner, job, |_| false));
    }

    #[test]
    fn who_is_alone_has_all_places_and_who_comes_then_has_the_next() {
        let (mut line, now) = (Line::default(), Instant::now());
        push(&mut line, "many", 300);
        let first = all(&mut line, now);
        assert_eq!(first.len(), PLACES);
        line.push("few", 1000, |_| false);
        assert_eq!(line.next(now), None);
        line.end(first[0].0);
        assert_eq!(all(&mut line, now).iter().map(|(_, job)| *job).collect::<Vec<_>>(), [1000]);
    }

    #[test]
    fn what_hangs_has_no_place_and_its_namespace_alone_has_so_many_of_it() {
        let (mut line, now) = (Line::default(), Instant::now());
        push(&mut line, "hangs", 1000);
        let mut at = now;
        for _ in 0..100 {
            all(&mut line, at);
            at += STUCK;
        }
        assert_eq!(line.underway.len(), HUNG, "no more of them begin");
        // Others get all places, however many such namespaces there are.
        for owner in 0..10 {
            push(&mut line, &format!("hangs{owner}"), 1000);
        }
        for _ in 0..100 {
            all(&mut line, at);
            at += STUCK;
        }
        assert_eq!(line.underway.len(), 11 * HUNG);
        push(&mut line, "fine", 100);
        let given = all(&mut line, at);
        assert_eq!(given.len(), PLACES);
        assert!(given.iter().all(|(number, _)| line.underway[number].0 == "fine"));
        // One of them ends: its namespace starts one more, when there is a place.
        let ends = *line.underway.keys().next().unwrap();
        given.iter().for_each(|(number, _)| line.end(*number));
        line.end(ends);
        let given = all(&mut line, at);
        assert_eq!(given.len(), PLACES);
        assert_eq!(given.iter().filter(|(number, _)| line.underway[number].0 == "hangs").count(), 1);
    }

    /// As many return each second as there are places: they do not overtake waiters.
    #[test]
    fn who_comes_again_and_again_keeps_nobody_waiting() {
        let (mut line, now) = (Line::default(), Instant::now());
        let come = |line: &mut Line<u32>| (0..PLACES).for_each(|n| push(line, &format!("a{n:02}"), 1));
        come(&mut line);
        let mut given = all(&mut line, now);
        push(&mut line, "z", 1);
        for second in 0.. {
            assert!(second < 3, "it has no turn");
            given.drain(..).for_each(|(number, _)| line.end(number));
            come(&mut line);
            given = all(&mut line, now);
            if given.iter().any(|(number, _)| line.underway[number].0 == "z") {
                break;
            }
        }
    }

    #[test]
    fn who_has_gone_is_forgotten() {
        let (mut line, now) = (Line::default(), Instant::now());
        push(&mut line, "a", 1000);
        line.push("a", 1000, |_| true);
        assert_eq!(line.owners["a"].waiting, [1000]);
        all(&mut line, now).iter().for_each(|(number, _)| line.end(*number));
        assert!(line.owners.is_empty() && line.underway.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn hundreds_of_probes_of_a_namespace_run_a_few_at_a_time_and_keep_nobody_elses_waiting() {
        let (pace, running, most) = (Pace::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut probes = tokio::task::JoinSet::new();
        for _ in 0..300 {
            let (pace, running, most) = (pace.clone(), running.clone(), most.clone());
            probes.spawn(async move {
                let _turn = pace.take("many", |_| ()).await;
                most.fetch_max(running.fetch_add(1, Relaxed) + 1, Relaxed);
                tokio::time::sleep(Duration::from_secs(1)).await;
                running.fetch_sub(1, Relaxed);
            });
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let begin = Instant::now();
        drop(pace.take("other", |_| ()).await);
        assert!(begin.elapsed() <= Duration::from_millis(500), "{:?}", begin.elapsed());
        probes.join_all().await;
        assert_eq!(most.load(Relaxed), PLACES);
        assert!(pace.line().owners.is_empty());
    }

    /// A container's probes end with it, whether they wait or not.
    #[tokio::test(start_paused = true)]
    async fn who_hangs_keeps_his_place_for_a_short_while_and_who_has_gone_has_none() {
        let pace = Pace::default();
        let mut hang = Vec::new();
        for _ in 0..PLACES {
            hang.push(pace.take("hangs", |_| ()).await);
        }
        let waits = tokio::time::timeout(Duration::from_secs(1), pace.take("gone", |_| ()));
        assert!(waits.await.is_err(), "there are no more places");
        let (begin, mut told) = (Instant::now(), Vec::new());
        let late = pace.take("late", |waited| told.push(waited.as_secs())).await;
        assert!(begin.elapsed() <= STUCK && told.len() <= 2, "the others are stuck: {told:?}");
        drop((late, hang));
        assert!(pace.line().owners.is_empty() && pace.line().underway.is_empty());
    }

    #[test]
    fn a_wait_that_grows_is_told_and_one_that_does_not_is_not_told_again() {
        let (mut patience, seconds) = (Patience::default(), Duration::from_secs);
        let told: Vec<u64> = (1..100).filter(|waited| patience.is_news(seconds(*waited))).collect();
        assert_eq!(told, [10, 20, 40, 80]);
        patience.ends(seconds(100));
        assert!((1..160).all(|waited| !patience.is_news(seconds(waited))), "it is not longer than the one before");
        assert!(patience.is_news(seconds(160)));
        patience.ends(seconds(1));
        assert!(patience.is_news(seconds(10)));
    }
}

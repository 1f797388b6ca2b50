//! Limits the CPU time of network probes. An attempt costs what it computes, whatever its server sends or redirects it to; a
//! namespace that has exceeded its share waits until enough time has passed, without delaying others.
//!
//! An attempt's cost is known only when it is over, and many start at once. So each reserves its expected cost: the namespace's
//! recent cost. So a namespace may have many cheap attempts waiting for responses, but few expensive ones.

use std::{
    collections::HashMap,
    num::NonZero,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Mutex as Gate, Notify, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::attempt::{Attempt, Cost};

/// A namespace's share of one CPU: hundreds of ordinary probes a second need less.
const OF_NAMESPACE: f64 = 0.25;
/// The node's share of each CPU.
const OF_NODE: f64 = 0.5;
/// The burst allowance: probes of many containers fall into the same second.
const LEEWAY: Duration = Duration::from_secs(1);
/// Maximum attempts of a namespace waiting for responses: each may hold a full read buffer.
const UNDERWAY: usize = 256;
/// The minimum expected cost: with it, that many waiting attempts reserve less than the burst allowance.
const LEAST: Duration = Duration::from_micros(500);
/// A cheaper attempt lowers the expectation by this fraction of the difference; a more expensive one raises it at once.
const LOWERS: u32 = 16;
/// The expected cost is remembered this long after the account was last even.
const REMEMBERED: Duration = Duration::from_secs(60);
/// How often a waiter reports how long it has waited.
const LOOK: Duration = Duration::from_secs(1);

/// Cheap to clone.
#[derive(Clone)]
pub struct Share(Arc<Shares>);

struct Shares {
    node: Lane,
    namespaces: Mutex<HashMap<String, Arc<Lane>>>,
}

/// A turn; dropping it ends it and charges its cost.
pub struct Turn {
    share: Share,
    lane: Arc<Lane>,
    /// The reserved cost.
    expected: Duration,
    cost: Cost,
    _place: Option<OwnedSemaphorePermit>,
}

impl Turn {
    /// The attempt to charge.
    pub fn attempt(&self) -> Attempt {
        Attempt { cost: self.cost.clone(), ..Attempt::default() }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (cost, now) = (self.cost.so_far(), Instant::now());
        self.lane.account().settle(self.expected, cost, now);
        self.lane.settled.notify_one();
        self.share.0.node.account().correct(self.expected, cost, now);
    }
}

impl Default for Share {
    fn default() -> Share {
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        Share(Arc::new(Shares { node: Lane::new(OF_NODE * cpus as f64), namespaces: Mutex::default() }))
    }
}

impl Share {
    /// Waits for a turn of the namespace; regularly calls `waited` with the time so far.
    pub async fn take(&self, namespace: &str, mut waited: impl FnMut(Duration)) -> Turn {
        let begun = Instant::now();
        let mut enters = pin!(self.enter(namespace));
        loop {
            match tokio::time::timeout(LOOK, &mut enters).await {
                Ok(turn) => return turn,
                Err(_) => waited(begun.elapsed()),
            }
        }
    }

    async fn enter(&self, namespace: &str) -> Turn {
        let lane = self.of(namespace);
        // The semaphore is never closed.
        let place = lane.places.clone().acquire_owned().await.ok();
        let expected = {
            let _first_of_its_own = lane.gate.lock().await;
            lane.is_even().await;
            // At most one waiter per namespace gets here: they take turns.
            let _first_of_all = self.0.node.gate.lock().await;
            self.0.node.is_even().await;
            let expected = lane.account().reserve();
            // Waiting for a response must not delay others: the node's account is charged in advance.
            self.0.node.account().charge(expected, Instant::now());
            expected
        };
        Turn { share: self.clone(), lane, expected, cost: Cost::default(), _place: place }
    }

    fn of(&self, namespace: &str) -> Arc<Lane> {
        let mut all = self.0.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = all.get(namespace) {
            return found.clone();
        }
        let now = Instant::now();
        all.retain(|_, lane| Arc::strong_count(lane) > 1 || lane.account().even_at + REMEMBERED > now);
        let lane = Arc::new(Lane::new(OF_NAMESPACE));
        all.insert(namespace.to_owned(), lane.clone());
        lane
    }
}

/// Users of one account.
struct Lane {
    places: Arc<Semaphore>,
    /// The next one waits behind it until the account is even.
    gate: Gate<()>,
    /// A reservation was settled.
    settled: Notify,
    account: Mutex<Account>,
}

impl Lane {
    fn new(cpus: f64) -> Lane {
        let account = Account { cpus, even_at: Instant::now(), reserved: Duration::ZERO, expected: LEAST };
        let places = Arc::new(Semaphore::new(UNDERWAY));
        Lane { places, gate: Gate::default(), settled: Notify::new(), account: Mutex::new(account) }
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        // The state is consistent even after a panic: each change is a single assignment.
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn is_even(&self) {
        loop {
            let wait = self.account().wait(Instant::now());
            if wait.is_zero() {
                return;
            }
            tokio::time::timeout(wait, self.settled.notified()).await.ok();
        }
    }
}

/// CPU time used of a number of CPUs, as the time that compensates for it.
struct Account {
    cpus: f64,
    /// When the used time will be within the share.
    even_at: Instant,
    /// Expected cost of attempts in progress.
    reserved: Duration,
    /// Expected cost of one attempt.
    expected: Duration,
}

impl Account {
    fn charge(&mut self, cost: Duration, now: Instant) {
        self.even_at = self.even_at.max(now) + cost.div_f64(self.cpus);
    }

    /// Corrects an earlier charge to the actual cost.
    fn correct(&mut self, charged: Duration, cost: Duration, now: Instant) {
        match cost.checked_sub(charged) {
            Some(more) => self.charge(more, now),
            None => self.even_at -= (charged - cost).div_f64(self.cpus),
        }
    }

    /// Reserves an attempt's expected cost.
    fn reserve(&mut self) -> Duration {
        self.reserved += self.expected;
        self.expected
    }

    /// An attempt ended for which `expected` was reserved.
    fn settle(&mut self, expected: Duration, cost: Duration, now: Instant) {
        self.reserved = self.reserved.saturating_sub(expected);
        self.charge(cost, now);
        let lowered = self.expected.saturating_sub(self.expected.saturating_sub(cost) / LOWERS);
        self.expected = lowered.max(cost).max(LEAST);
    }

    /// How long until more may be used, if nothing in progress ends before.
    fn wait(&self, now: Instant) -> Duration {
        let used = self.even_at.saturating_duration_since(now);
        (used + self.reserved.div_f64(self.cpus)).saturating_sub(LEEWAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs attempts of a namespace until `until`, each computing and waiting for these times; returns their number.
    async fn tries(share: &Share, namespace: &str, computes: Duration, waits: Duration, until: Instant) -> usize {
        let mut probes = tokio::task::JoinSet::new();
        for _ in 0..600 {
            let (share, namespace) = (share.clone(), namespace.to_owned());
            probes.spawn(async move {
                let mut tries = 0;
                // Every second, like a probe.
                let mut ticks = tokio::time::interval(Duration::from_secs(1));
                ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                while Instant::now() < until {
                    ticks.tick().await;
                    let turn = share.take(&namespace, |_| ()).await;
                    tokio::time::sleep(waits).await;
                    turn.cost.add(computes);
                    tries += 1;
                }
                tries
            });
        }
        probes.join_all().await.into_iter().sum()
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_whose_probes_cost_much_has_its_share_and_keeps_nobody_elses_waiting() {
        let (share, until) = (Share::default(), Instant::now() + Duration::from_secs(60));
        let costly = {
            let share = share.clone();
            let (computes, waits) = (Duration::from_millis(2), Duration::from_millis(10));
            tokio::spawn(async move { tries(&share, "costly", computes, waits, until).await })
        };
        tokio::time::sleep(Duration::from_secs(30)).await;
        let begun = Instant::now();
        let turn = share.take("other", |_| ()).await;
        assert!(begun.elapsed() < Duration::from_millis(10), "{:?}", begun.elapsed());
        drop(turn);
        // 36,000 would be requested. The last ones wait for their turns.
        let (tries, fair) = (costly.await.unwrap() as f64, 60.0 * OF_NAMESPACE / 0.002);
        assert!((fair..fair * 1.1 + 600.0).contains(&tries), "{tries} tries");
    }

    /// All probes of a namespace start at once, and their servers respond at once: the cost of a burst is bounded before any of it
    /// is known, except for the first time.
    #[tokio::test(start_paused = true)]
    async fn a_wave_of_tries_has_no_more_than_the_leeway_under_way() {
        let (share, dear) = (Share::default(), Duration::from_millis(10));
        share.take("costly", |_| ()).await.cost.add(dear);
        let mut waves = Vec::new();
        for _ in 0..3 {
            let mut turns = Vec::new();
            while let Ok(turn) = tokio::time::timeout(Duration::from_secs(60), share.take("costly", |_| ())).await {
                turns.push(turn);
            }
            let begun = Instant::now();
            drop(share.take("other", |_| ()).await);
            assert!(begun.elapsed() < Duration::from_millis(10), "{:?}", begun.elapsed());
            waves.push(turns.len());
            turns.iter().for_each(|turn| turn.cost.add(dear));
        }
        let most = (LEEWAY.as_secs_f64() * OF_NAMESPACE / dear.as_secs_f64()) as usize;
        assert!(waves.iter().all(|wave| (most..=most + 1).contains(wave)), "{waves:?}");
        // Cheaper attempts allow more of them again, soon.
        for _ in 0..100 {
            share.take("costly", |_| ()).await.cost.add(Duration::from_micros(100));
        }
        let mut turns = Vec::new();
        while let Ok(turn) = tokio::time::timeout(Duration::from_secs(60), share.take("costly", |_| ())).await {
            turns.push(turn);
        }
        assert_eq!(turns.len(), UNDERWAY);
    }

    /// A waiter blocked by reservations goes on as soon as one is settled for less.
    #[tokio::test(start_paused = true)]
    async fn what_is_settled_lets_the_next_one_go_on_at_once() {
        let share = Share::default();
        share.take("a", |_| ()).await.cost.add(Duration::from_millis(200));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let turns = [share.take("a", |_| ()).await, share.take("a", |_| ()).await];
        let ends = async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            drop(turns);
        };
        let begun = Instant::now();
        tokio::join!(ends, async { drop(share.take("a", |_| ()).await) });
        assert_eq!(begun.elapsed().as_millis(), 300);
    }

    /// 110 Pods of three containers with two probes each, every second, in one namespace, on an ordinary machine.
    #[tokio::test(start_paused = true)]
    async fn a_node_full_of_honest_probes_has_none_that_waits() {
        let (share, begun) = (Share::default(), Instant::now());
        let (computes, waits) = (Duration::from_micros(300), Duration::from_millis(200));
        let tries = tries(&share, "honest", computes, waits, begun + Duration::from_secs(60)).await;
        assert!(tries >= 600 * 60, "{tries} tries");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_answers_has_so_many_places_and_nobody_elses() {
        let share = Share::default();
        let mut turns = Vec::new();
        for _ in 0..UNDERWAY {
            turns.push(share.take("silent", |_| ()).await);
        }
        let mut told = Vec::new();
        let waits = share.take("silent", |waited| told.push(waited.as_secs()));
        assert!(tokio::time::timeout(Duration::from_millis(3500), waits).await.is_err());
        assert_eq!(told, [1, 2, 3]);
        drop(share.take("other", |_| ()).await);
        turns.pop();
        drop(share.take("silent", |_| ()).await);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_owed_is_remembered_and_what_is_not_is_forgotten() {
        let share = Share::default();
        share.take("owes", |_| ()).await.cost.add(Duration::from_secs(1));
        let count = || share.0.namespaces.lock().unwrap().len();
        drop(share.take("other", |_| ()).await);
        assert_eq!(count(), 2);
        let begun = Instant::now();
        drop(share.take("owes", |_| ()).await);
        assert!((2..=4).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        drop(share.take("third", |_| ()).await);
        assert_eq!(count(), 3, "what its tries cost is remembered for a while");
        tokio::time::sleep(REMEMBERED + Duration::from_secs(4)).await;
        drop(share.take("fourth", |_| ()).await);
        assert_eq!(count(), 1);
    }
}

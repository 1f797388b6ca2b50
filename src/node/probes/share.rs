//! What probes that ask over the network may take of the node's CPUs. A try costs what it computes, whatever its server answers and
//! leads it to; a namespace that has used more than its share waits until time has made up for it, and keeps nobody else waiting.
//!
//! What a try will cost is known when it is over, and many begin at once. So each keeps what it probably costs until then: as much as the
//! namespace's cost lately. Of tries that cost little a namespace has many that wait for their answers, of dear ones few.

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

/// A namespace has so much of one CPU: hundreds of honest probes a second take less.
const OF_NAMESPACE: f64 = 0.25;
/// All together have so much of each CPU.
const OF_NODE: f64 = 0.5;
/// What is used within so much time may come at once: probes of many containers have the same second.
const LEEWAY: Duration = Duration::from_secs(1);
/// So many of a namespace's wait for answers: each may hold as much as is read of one.
const UNDERWAY: usize = 256;
/// What a try is expected to cost at least: so many that wait for answers keep less than the leeway.
const LEAST: Duration = Duration::from_micros(500);
/// A try that costs less than is expected lowers that by this part of the difference; one that costs more raises it at once.
const LOWERS: u32 = 16;
/// What tries cost is remembered for so long after the last one was made up for.
const REMEMBERED: Duration = Duration::from_secs(60);
/// As often somebody who waits says how long he has waited.
const LOOK: Duration = Duration::from_secs(1);

/// Cheap to clone.
#[derive(Clone)]
pub struct Share(Arc<Shares>);

struct Shares {
    node: Lane,
    namespaces: Mutex<HashMap<String, Arc<Lane>>>,
}

/// A turn; when this is dropped it ends, and is charged for.
pub struct Turn {
    share: Share,
    lane: Arc<Lane>,
    /// What is kept for it.
    expected: Duration,
    cost: Cost,
    _place: Option<OwnedSemaphorePermit>,
}

impl Turn {
    /// The try that is charged for.
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
    /// Waits for a turn of the namespace's, and says now and then for how long it has.
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
            // Here is one of each namespace at most: they take turns.
            let _first_of_all = self.0.node.gate.lock().await;
            self.0.node.is_even().await;
            let expected = lane.account().reserve();
            // What waits for answers keeps nobody else's waiting: for the node it counts as if it had been used by now.
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

/// Those who share an account.
struct Lane {
    places: Arc<Semaphore>,
    /// Who is next waits behind it until the account is even.
    gate: Gate<()>,
    /// Something that was kept has been settled.
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
        // What a panic left behind is sound: each change is one assignment.
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

/// What was used of a number of CPUs, as the time that makes up for it.
struct Account {
    cpus: f64,
    /// When all that was used would have been a fair part of the time.
    even_at: Instant,
    /// What tries that are under way are expected to use.
    reserved: Duration,
    /// What one of them is.
    expected: Duration,
}

impl Account {
    fn charge(&mut self, cost: Duration, now: Instant) {
        self.even_at = self.even_at.max(now) + cost.div_f64(self.cpus);
    }

    /// What was charged for is known now.
    fn correct(&mut self, charged: Duration, cost: Duration, now: Instant) {
        match cost.checked_sub(charged) {
            Some(more) => self.charge(more, now),
            None => self.even_at -= (charged - cost).div_f64(self.cpus),
        }
    }

    /// Keeps what a try is expected to use.
    fn reserve(&mut self) -> Duration {
        self.reserved += self.expected;
        self.expected
    }

    /// A try is over, for which `expected` was kept.
    fn settle(&mut self, expected: Duration, cost: Duration, now: Instant) {
        self.reserved = self.reserved.saturating_sub(expected);
        self.charge(cost, now);
        let lowered = self.expected.saturating_sub(self.expected.saturating_sub(cost) / LOWERS);
        self.expected = lowered.max(cost).max(LEAST);
    }

    /// How long until more may be used, if nothing that is under way ends before.
    fn wait(&self, now: Instant) -> Duration {
        let used = self.even_at.saturating_duration_since(now);
        (used + self.reserved.div_f64(self.cpus)).saturating_sub(LEEWAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries of a namespace for so long, each of which computes for so long and waits for so long: how many there were.
    async fn tries(share: &Share, namespace: &str, computes: Duration, waits: Duration, until: Instant) -> usize {
        let mut probes = tokio::task::JoinSet::new();
        for _ in 0..600 {
            let (share, namespace) = (share.clone(), namespace.to_owned());
            probes.spawn(async move {
                let mut tries = 0;
                // Each second, as a probe.
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
        // 36,000 would be asked for. The last ones wait for their turns.
        let (tries, fair) = (costly.await.unwrap() as f64, 60.0 * OF_NAMESPACE / 0.002);
        assert!((fair..fair * 1.1 + 600.0).contains(&tries), "{tries} tries");
    }

    /// All probes of a namespace come at once, and their servers answer at once: what that costs within a moment is bounded before any
    /// of it is known, but for the first time.
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
        // What costs less from now on has more of them again, soon.
        for _ in 0..100 {
            share.take("costly", |_| ()).await.cost.add(Duration::from_micros(100));
        }
        let mut turns = Vec::new();
        while let Ok(turn) = tokio::time::timeout(Duration::from_secs(60), share.take("costly", |_| ())).await {
            turns.push(turn);
        }
        assert_eq!(turns.len(), UNDERWAY);
    }

    /// Who waits because of what is under way goes on as soon as that has cost less.
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

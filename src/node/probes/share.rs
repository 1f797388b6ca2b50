//! What probes that ask over the network may take of the node's CPUs. A try costs what it computes, whatever its server answers and
//! leads it to; a namespace that has used more than its share waits until time has made up for it, and keeps nobody else waiting.
//!
//! A probe that waits for its answer costs nothing but memory: a namespace has many of them at once.

use std::{
    collections::HashMap,
    num::NonZero,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Mutex as Gate, OwnedSemaphorePermit, Semaphore},
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
        self.lane.account().charge(cost, now);
        self.share.0.node.account().charge(cost, now);
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
        {
            let _first_of_its_own = lane.gate.lock().await;
            lane.is_even().await;
            // Here is one of each namespace at most: they take turns.
            let _first_of_all = self.0.node.gate.lock().await;
            self.0.node.is_even().await;
        }
        Turn { share: self.clone(), lane, cost: Cost::default(), _place: place }
    }

    fn of(&self, namespace: &str) -> Arc<Lane> {
        let mut all = self.0.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = all.get(namespace) {
            return found.clone();
        }
        let now = Instant::now();
        all.retain(|_, lane| Arc::strong_count(lane) > 1 || lane.account().even_at > now);
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
    account: Mutex<Account>,
}

impl Lane {
    fn new(cpus: f64) -> Lane {
        let account = Mutex::new(Account { cpus, even_at: Instant::now() });
        Lane { places: Arc::new(Semaphore::new(UNDERWAY)), gate: Gate::default(), account }
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
            tokio::time::sleep(wait).await;
        }
    }
}

/// What was used of a number of CPUs, as the time that makes up for it.
struct Account {
    cpus: f64,
    /// When all that was used would have been a fair part of the time.
    even_at: Instant,
}

impl Account {
    fn charge(&mut self, cost: Duration, now: Instant) {
        self.even_at = self.even_at.max(now) + cost.div_f64(self.cpus);
    }

    /// How long until more may be used.
    fn wait(&self, now: Instant) -> Duration {
        self.even_at.saturating_duration_since(now).saturating_sub(LEEWAY)
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
        // 36,000 would be asked for. The last ones wait for their turns, and all those that begin at once are charged for afterwards.
        let (tries, fair) = (costly.await.unwrap() as f64, 60.0 * OF_NAMESPACE / 0.002);
        assert!((fair..fair * 1.2 + 600.0).contains(&tries), "{tries} tries");
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
        tokio::time::sleep(Duration::from_secs(2)).await;
        drop(share.take("third", |_| ()).await);
        assert_eq!(count(), 1);
    }
}

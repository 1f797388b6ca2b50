//! CPU time by user: who has used much of it lately works in turns with others who have, and leaves a CPU to those who have not.
//!
//! What a request costs cannot be known from it: so what it has cost is measured, each time that its future is polled. A user who
//! has used more than a little within the last second or so is polled only while he holds one of the turns, of which there is one
//! less than there are CPUs; the next goes to whoever was served least. No turn is held between two polls.
//!
//! Who is not known yet is counted by his site, and with all who are not known (see `flow`): for his handshakes, for finding out who
//! he is, for what he asks.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::Instant;

use super::flow::{Flow, Step};
use super::{Gate, Guest, Limits, Seat};
use crate::api::User;

/// So much CPU time of the last second is little. (What was used counts half a second later.)
const LITTLE: Duration = Duration::from_millis(75);
/// The same of all together who are not known.
const LITTLE_OF_ALL: Duration = Duration::from_millis(500);
const HALF: Duration = Duration::from_secs(1);
/// So many times as long as a client's part of some work may all of it take, with the turns that it waits for.
const WITH_TURNS: u32 = 3;
/// So many users are known by themselves; the others together, as long as these have used anything lately.
const USERS: usize = 10_000;

/// Who has used how much, and the turns of those who have used much.
pub(in crate::server) struct Turns {
    gate: Arc<Gate>,
    users: Mutex<HashMap<Step, Arc<Used>>>,
}

/// What one user has used lately.
struct Used {
    little: Duration,
    lately: Mutex<(Instant, f64)>,
}

impl Used {
    fn new(step: &Step) -> Arc<Used> {
        let little = if *step == Step::Unknown { LITTLE_OF_ALL } else { LITTLE };
        Arc::new(Used { little, lately: Mutex::new((Instant::now(), 0.0)) })
    }

    /// In seconds, with what is added.
    fn add(&self, more: Duration) -> f64 {
        // Numbers: a panic leaves them whole.
        let mut lately = self.lately.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, used) = *lately;
        let now = Instant::now();
        let halves = now.duration_since(at).as_secs_f64() / HALF.as_secs_f64();
        *lately = (now, used * (-halves).exp2() + more.as_secs_f64());
        lately.1
    }

    fn is_much(&self) -> bool {
        self.add(Duration::ZERO) > self.little.as_secs_f64()
    }
}

impl Turns {
    pub fn new(limits: &Limits) -> Arc<Turns> {
        let cpus = std::thread::available_parallelism().map_or(1, |all| all.get().saturating_sub(1).max(1));
        Turns::of(cpus, limits)
    }

    fn of(turns: usize, limits: &Limits) -> Arc<Turns> {
        Arc::new(Turns { gate: Gate::new(turns, limits), users: Mutex::default() })
    }

    /// A user's work, which is not within other such work. The superuser's and nodes' is not measured.
    pub fn measured<F: Future>(self: &Arc<Turns>, user: &User, work: F) -> Measured<F> {
        Measured { share: self.share(user), work: Box::pin(work) }
    }

    /// The work of somebody who is not known yet, by his address.
    pub fn measured_at<F: Future>(self: &Arc<Turns>, address: IpAddr, work: F) -> Measured<F> {
        Measured { share: self.share_at(address), work: Box::pin(work) }
    }

    /// The work of whoever is at the other end of a connection: a user's, by what he has shown there before or his certificate.
    /// Strangers hold up no one who is known.
    pub fn measured_of<F: Future>(
        self: &Arc<Turns>,
        guest: &Guest,
        certificate: Option<&User>,
        work: F,
    ) -> Measured<F> {
        match guest.user().or(certificate) {
            Some(known) => self.measured(known, work),
            None => self.measured_at(guest.address(), work),
        }
    }

    /// A user's share, for what he does bit by bit.
    pub fn share(self: &Arc<Turns>, user: &User) -> Share {
        let exempt = user.is_in("system:masters") || user.is_in("system:nodes");
        self.share_of(user.into(), exempt)
    }

    /// The same of somebody who is not known yet.
    pub fn share_at(self: &Arc<Turns>, address: IpAddr) -> Share {
        self.share_of(address.into(), false)
    }

    fn share_of(self: &Arc<Turns>, flow: Flow, exempt: bool) -> Share {
        // A site has used what was used in it. Within one it is the gate that gives each his turn.
        let counted = flow.steps().iter().take(if exempt { 0 } else { 2 });
        let used = counted.map(|step| self.used(step)).collect();
        Share { turns: self.clone(), flow, used, waits: None, yielded: false }
    }

    fn used(&self, step: &Step) -> Arc<Used> {
        let mut users = self.lock();
        if let Some(known) = users.get(step) {
            return known.clone();
        }
        if users.len() >= USERS {
            users.retain(|_, used| {
                Arc::strong_count(used) > 1 || used.add(Duration::ZERO) > LITTLE.as_secs_f64() / 100.0
            });
        }
        let step = if users.len() >= USERS { Step::Named(String::new()) } else { step.clone() };
        let new = || Used::new(&step);
        users.entry(step.clone()).or_insert_with(new).clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Step, Arc<Used>>> {
        // Each change is whole at once: what a panic left behind is sound.
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one user does at one place, and his turns there.
pub(in crate::server) struct Share {
    turns: Arc<Turns>,
    flow: Flow,
    /// By whom it is counted; by nobody: it is not.
    used: Vec<Arc<Used>>,
    waits: Option<BoxFuture<'static, Seat>>,
    /// It has let others go first once.
    yielded: bool,
}

/// Work that is measured.
pub(in crate::server) struct Measured<F> {
    share: Share,
    work: Pin<Box<F>>,
}

impl Share {
    /// So much time was used.
    pub fn add(&self, time: Duration) {
        for used in &self.used {
            used.add(time);
        }
    }

    /// A turn, where one is needed; pending: until it is had.
    pub fn turn(&mut self, context: &mut Context<'_>) -> Poll<Option<Seat>> {
        if self.waits.is_none() {
            if !self.used.iter().any(|used| used.is_much()) {
                return Poll::Ready(None);
            }
            // Of much that is done one by one, as of a batch, each begins behind others.
            if !std::mem::replace(&mut self.yielded, true) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let (gate, flow) = (self.turns.gate.clone(), self.flow.clone());
            self.waits = Some(Box::pin(async move { gate.turn(&flow).await }));
        }
        let Some(waits) = &mut self.waits else { return Poll::Ready(None) };
        let seat = std::task::ready!(waits.as_mut().poll(context));
        self.waits = None;
        Poll::Ready(Some(seat))
    }
}

impl<F: Future> Future for Measured<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _turn = std::task::ready!(self.share.turn(context));
        let begun = std::time::Instant::now();
        let polled = self.work.as_mut().poll(context);
        self.share.add(begun.elapsed());
        polled
    }
}

impl<F: Future> Measured<F> {
    /// The same where somebody else has so long for his part of it: what is waited for turns is not his time, as long as all of it
    /// takes no more than three times that. `None`: it takes too long.
    pub async fn within(mut self, limit: Duration) -> Option<F::Output> {
        let begun = Instant::now();
        let (mut end, last) = (begun + limit, begun + limit * WITH_TURNS);
        let mut held_up: Option<Instant> = None;
        let mut timer = std::pin::pin!(tokio::time::sleep_until(end));
        std::future::poll_fn(|context| {
            if let Poll::Ready(done) = Pin::new(&mut self).poll(context) {
                return Poll::Ready(Some(done));
            }
            let now = Instant::now();
            match held_up {
                None if self.share.waits.is_some() => held_up = Some(now),
                Some(since) if self.share.waits.is_none() => {
                    (end, held_up) = ((end + now.duration_since(since)).min(last), None);
                }
                _ => {}
            }
            let until = if held_up.is_some() { last } else { end };
            if timer.deadline() != until {
                timer.as_mut().reset(until);
            }
            timer.as_mut().poll(context).map(|()| None)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    // tokio's own comes back only when its thread has nothing else to do.
    use crate::server::large::give_way;

    fn user(name: &str) -> User {
        User::new(name, Vec::<String>::new())
    }

    fn used(turns: &Turns, name: &str) -> Arc<Used> {
        turns.used(&Step::Named(name.to_owned()))
    }

    fn turns(count: usize) -> Arc<Turns> {
        Turns::of(count, &Limits::default())
    }

    /// Of two workers one is always free for whoever has used little, whatever the others do.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_has_used_much_leaves_a_worker_to_the_others() {
        let turns = turns(1);
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let heavy: Vec<_> = (0..8)
            .map(|i| {
                let (now, most) = (now.clone(), most.clone());
                let burn = async move {
                    for poll in 0..20 {
                        // The first ones are free.
                        if poll >= 10 {
                            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        }
                        std::thread::sleep(Duration::from_millis(20));
                        if poll >= 10 {
                            now.fetch_sub(1, Ordering::SeqCst);
                        }
                        give_way().await;
                    }
                };
                tokio::spawn(turns.measured(&user(["a", "b"][i % 2]), burn))
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut waits = Vec::new();
        for _ in 0..20 {
            let begun = std::time::Instant::now();
            tokio::spawn(turns.measured(&user("light"), async {})).await.unwrap();
            waits.push(begun.elapsed());
        }
        waits.sort();
        assert!(waits[10] < Duration::from_millis(15), "a worker is free: {waits:?}");
        for task in heavy {
            tokio::time::timeout(Duration::from_secs(60), task).await.expect("no wake is lost").unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), 1, "one at a time");
    }

    #[tokio::test(start_paused = true)]
    async fn much_is_forgotten_and_little_waits_for_nobody() {
        let turns = turns(1);
        let (heavy, light) = (user("heavy"), user("light"));
        used(&turns, "heavy").add(LITTLE * 4);
        let turn = turns.gate.turn("other").await;
        let mut held = std::pin::pin!(turns.measured(&heavy, async { 1 }));
        for _ in 0..3 {
            assert!(futures::poll!(held.as_mut()).is_pending(), "the turn is another's");
        }
        assert_eq!(turns.measured(&light, async { 2 }).await, 2);
        assert_eq!(turns.measured(&User::new("root", ["system:masters"]), async { 3 }).await, 3);
        drop(turn);
        assert_eq!(held.await, 1);
        let turn = turns.gate.turn("other").await;
        tokio::time::sleep(HALF * 3).await;
        assert_eq!(turns.measured(&heavy, async { 4 }).await, 4, "it was long ago");
        drop(turn);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_not_known_is_counted_by_his_site_and_with_all_others_who_are_not() {
        let turns = turns(1);
        let at = |address: &str| turns.share_at(address.parse().unwrap());
        let waits = |mut share: Share| {
            let mut waits = || share.turn(&mut Context::from_waker(std::task::Waker::noop())).is_pending();
            // The first time it only lets others go first.
            waits() && waits()
        };
        let others = turns.gate.turn("other").await;
        for subnet in 0..4 {
            at(&format!("2001:db8:0:{subnet}::1")).add(LITTLE / 3);
        }
        assert!(waits(at("2001:db8:0:9::1")), "a site has used what its subnets have");
        assert!(!waits(at("2001:db8:1::1")) && !waits(at("10.0.0.1")), "another has not");
        for n in 0..8 {
            at(&format!("10.1.0.{n}")).add(LITTLE);
        }
        assert!(waits(at("10.0.0.1")), "all together have used much: he waits for his turn");
        let mut anonymous = User::new("system:anonymous", ["system:unauthenticated"]);
        anonymous.address = Some([10, 0, 0, 1].into());
        assert!(waits(turns.share(&anonymous)) && !waits(turns.share(&user("known"))));
        drop(others);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_strangers_does_not_hold_up_who_is_known() {
        let turns = turns(1);
        let pass = super::super::Doorman::new(&Limits::default()).admit([10, 0, 0, 1].into()).unwrap();
        let guest = pass.guest();
        turns.share_at([10, 0, 0, 2].into()).add(LITTLE_OF_ALL * 4);
        let others = turns.gate.turn("other").await;
        let is_held_up = |certificate: Option<&User>| {
            let mut work = std::pin::pin!(turns.measured_of(&guest, certificate, async {}));
            let mut context = Context::from_waker(std::task::Waker::noop());
            // The first time it only lets others go first.
            work.as_mut().poll(&mut context).is_pending() && work.as_mut().poll(&mut context).is_pending()
        };
        assert!(is_held_up(None) && !is_held_up(Some(&user("ann"))), "his certificate says who he is");
        guest.known(&user("ann")).unwrap();
        assert!(!is_held_up(None), "he has shown it, if by a token");
        drop((others, pass));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_has_his_time_for_himself() {
        let (turns, limit) = (turns(1), Duration::from_secs(10));
        let address = [10, 0, 0, 1].into();
        let flood = || turns.share_at(address).add(LITTLE_OF_ALL * 4);
        let his_part = |seconds| async move { tokio::time::sleep(Duration::from_secs(seconds)).await };
        let begun = Instant::now();
        assert!(turns.measured_at(address, his_part(9)).within(limit).await.is_some());
        assert!(turns.measured_at(address, his_part(11)).within(limit).await.is_none());
        assert_eq!(begun.elapsed().as_secs(), 9 + 10);

        flood();
        let turn = turns.gate.turn("other").await;
        let mut waits = std::pin::pin!(turns.measured_at(address, his_part(8)).within(limit));
        assert!(tokio::time::timeout(Duration::from_secs(15), &mut waits).await.is_err());
        drop(turn);
        assert!(waits.await.is_some(), "that it was not his turn is not his time");

        flood();
        let _turn = turns.gate.turn("other").await;
        let begun = Instant::now();
        assert!(turns.measured_at(address, his_part(8)).within(limit).await.is_none());
        assert_eq!(begun.elapsed().as_secs(), 30, "it does not wait for ever");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_done_bit_by_bit_waits_for_turns_too() {
        let turns = turns(1);
        let mut share = turns.share(&user("a"));
        let mut turn = async || std::future::poll_fn(|context| Poll::Ready(share.turn(context))).await;
        assert!(turn().await.is_ready());
        turns.share(&user("a")).add(LITTLE * 4);
        let others = turns.gate.turn("other").await;
        for _ in 0..3 {
            assert!(turn().await.is_pending(), "the turn is another's");
        }
        drop(others);
        assert!(matches!(turn().await, Poll::Ready(Some(_))));
        let mut roots = turns.share(&User::new("root", ["system:masters"]));
        roots.add(LITTLE * 4);
        assert!(std::future::poll_fn(|context| Poll::Ready(roots.turn(context).is_ready())).await);
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_gives_his_turn_back_and_the_map_has_an_end() {
        let turns = turns(1);
        for name in ["a", "b"] {
            used(&turns, name).add(LITTLE * 4);
        }
        let turn = turns.gate.turn("other").await;
        let mut gone = Box::pin(turns.measured(&user("a"), std::future::pending::<()>()));
        for _ in 0..2 {
            assert!(futures::poll!(gone.as_mut()).is_pending());
        }
        // Called, and not polled any more.
        drop(turn);
        drop(gone);
        assert_eq!(turns.measured(&user("b"), async { 7 }).await, 7);
        // Between two polls nobody holds a turn.
        let mut waiting = Box::pin(turns.measured(&user("a"), std::future::pending::<()>()));
        for _ in 0..3 {
            assert!(futures::poll!(waiting.as_mut()).is_pending());
        }
        assert_eq!(turns.measured(&user("b"), async { 8 }).await, 8);
        for i in 0..USERS + 10 {
            used(&turns, &i.to_string()).add(LITTLE);
        }
        assert!(turns.lock().len() <= USERS + 1);
        tokio::time::sleep(HALF * 20).await;
        used(&turns, "new");
        assert!(turns.lock().len() < 10);
    }

    /// Whoever was served least goes first, by however many requests he asks.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn those_who_use_much_are_served_alike() {
        let turns = turns(1);
        let begin = |name: &'static str, tasks: usize| {
            used(&turns, name).add(LITTLE * 1000);
            let polls = Arc::new(AtomicUsize::new(0));
            let one = |polls: Arc<AtomicUsize>| async move {
                loop {
                    std::thread::sleep(Duration::from_millis(2));
                    polls.fetch_add(1, Ordering::SeqCst);
                    give_way().await;
                }
            };
            let tasks: Vec<_> =
                (0..tasks).map(|_| tokio::spawn(turns.measured(&user(name), one(polls.clone())))).collect();
            (polls, tasks)
        };
        let (many, one) = (begin("many", 6), begin("one", 1));
        tokio::time::sleep(Duration::from_secs(1)).await;
        many.1.iter().chain(&one.1).for_each(|task| task.abort());
        let (many, one) = (many.0.load(Ordering::SeqCst), one.0.load(Ordering::SeqCst));
        assert!(one * 3 > many && many > 0, "{one} of one, {many} of many");
    }
}

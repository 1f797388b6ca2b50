//! What a request releases while it waits for a webhook, which takes as long as an external program does, for a revision that may
//! never come, or for a turn whose holders may wait for what it holds: others must not queue behind it.

use std::sync::{Arc, Mutex, MutexGuard};

use super::flow::Flow;
use super::{InflightLimiter, Limits, Seat};
use podwright_api::Status;

tokio::task_local! {
    /// What the current request holds.
    static HELD: Arc<Held>;
}

/// How many webhook calls may be in progress for each concurrent write.
const AWAY: usize = 4;

/// Limits on waiting: for webhooks (large requests apart, as they are decoded in memory), for a later revision, and of evictions
/// for their turn (large ones apart, too).
pub(crate) struct Away {
    calls: Arc<InflightLimiter>,
    large: Arc<InflightLimiter>,
    later: Arc<InflightLimiter>,
    turns: Arc<InflightLimiter>,
    large_turns: Arc<InflightLimiter>,
}

/// What a request holds: a seat among running requests, and a place among large ones.
pub(crate) struct Held {
    flow: Flow,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    seat: Option<Seat>,
    place: Option<Seat>,
    /// How many webhooks it waits for, and what it held before the first.
    away: usize,
    limiters: [Option<Arc<InflightLimiter>>; 2],
}

impl Away {
    pub fn new(limits: &Limits, places: usize) -> Away {
        let limiter = |seats: usize| InflightLimiter::new(AWAY * seats, limits);
        Away {
            calls: limiter(limits.mutating_inflight),
            large: limiter(places),
            later: limiter(limits.inflight),
            turns: limiter(limits.mutating_inflight),
            large_turns: limiter(places),
        }
    }

    /// Waits for an external program. Meanwhile the request holds only a call; an error if there are too many.
    pub fn wait<T>(&self, work: impl Future<Output = T>) -> impl Future<Output = Result<T, Status>> {
        self.wait_in(move |large| if large { &self.large } else { &self.calls }, work)
    }

    /// The same for a revision that has not come yet.
    pub fn wait_for_later<T>(&self, work: impl Future<Output = T>) -> impl Future<Output = Result<T, Status>> {
        self.wait_in(move |_| &self.later, work)
    }

    /// The same for a turn.
    pub fn wait_for_turn<T>(&self, work: impl Future<Output = T>) -> impl Future<Output = Result<T, Status>> {
        self.wait_in(move |large| if large { &self.large_turns } else { &self.turns }, work)
    }

    async fn wait_in<'a, T>(
        &'a self,
        place: impl FnOnce(bool) -> &'a Arc<InflightLimiter>,
        work: impl Future<Output = T>,
    ) -> Result<T, Status> {
        let held = HELD.try_with(Arc::clone).ok();
        let Some(held) = held.filter(|held| held.holds_anything()) else { return Ok(work.await) };
        let calls = place(held.depart());
        let done = match calls.enter(&held.flow).await {
            Ok(_call) => Ok(work.await),
            Err(full) => Err(full),
        };
        held.come_back().await;
        done
    }
}

impl Held {
    pub fn new(flow: impl Into<Flow>, seat: Option<Seat>, place: Option<Seat>) -> Arc<Held> {
        let state = State { seat, place, ..State::default() };
        Arc::new(Held { flow: flow.into(), state: Mutex::new(state) })
    }

    /// Runs a request that holds this.
    pub async fn within<F: Future>(self: &Arc<Held>, work: F) -> F::Output {
        HELD.scope(self.clone(), work).await
    }

    /// Takes out what it still holds: its seat and its place.
    pub fn take(&self) -> (Option<Seat>, Option<Seat>) {
        let mut state = self.state();
        (state.seat.take(), state.place.take())
    }

    /// Whether the current request has a place in this limiter.
    pub fn is_in(limiter: &Arc<InflightLimiter>) -> bool {
        let is_there =
            |held: &Arc<Held>| held.state().place.as_ref().is_some_and(|seat| Arc::ptr_eq(seat.limiter(), limiter));
        HELD.try_with(is_there).unwrap_or(false)
    }

    fn holds_anything(&self) -> bool {
        let state = self.state();
        state.seat.is_some() || state.place.is_some() || state.away > 0
    }

    /// Releases what it holds; returns whether it is a large request.
    fn depart(&self) -> bool {
        let mut state = self.state();
        state.away += 1;
        if state.away == 1 {
            let given = [state.seat.take(), state.place.take()];
            state.limiters = given.each_ref().map(|seat| seat.as_ref().map(|seat| seat.limiter().clone()));
        }
        state.limiters[1].is_some()
    }

    /// Takes it back, once it waits for no other webhook.
    async fn come_back(&self) {
        let limiters = {
            let mut state = self.state();
            state.away -= 1;
            if state.away > 0 {
                return;
            }
            std::mem::take(&mut state.limiters)
        };
        // The place first, in the order of arrival.
        let [seat, place] = limiters;
        let place = match &place {
            Some(limiter) => Some(limiter.turn(&self.flow).await),
            None => None,
        };
        let seat = match &seat {
            Some(limiter) => Some(limiter.turn(&self.flow).await),
            None => None,
        };
        let mut state = self.state();
        (state.seat, state.place) = (seat, place);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic can occur between its changes.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use super::*;

    fn limits() -> Limits {
        Limits { mutating_inflight: 4, queue: 2, wait: Duration::from_secs(5), ..Limits::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_webhook_keeps_nobody_from_running() {
        let (limits, away) = (limits(), Away::new(&limits(), 4));
        let (seats, places) = (InflightLimiter::new(4, &limits), InflightLimiter::new(4, &limits));
        // As many as there are seats, all waiting for a webhook that does not answer.
        let mut slow = Vec::new();
        for _ in 0..3 {
            let seat = seats.enter("greedy").await.unwrap();
            let place = places.enter("greedy").await.unwrap();
            let held = Held::new("greedy", Some(seat), Some(place));
            let (of, away) = (held.clone(), &away);
            let work = async move {
                // Two at once, as validating webhooks are called.
                let [one, two] = [30, 60].map(|s| away.wait(tokio::time::sleep(Duration::from_secs(s))));
                let (one, two) = tokio::join!(one, two);
                one.and(two)
            };
            slow.push((held, Box::pin(async move { of.within(work).await })));
        }
        for (_, work) in &mut slow {
            assert!(futures::poll!(work.as_mut()).is_pending());
        }
        for name in ["greedy", "greedy", "other", "greedy"] {
            std::mem::forget(seats.enter(name).await.expect("a seat is free"));
            std::mem::forget(places.enter(name).await.expect("a place is free"));
        }
        tokio::time::sleep(Duration::from_secs(61)).await;
        let (held, work) = &mut slow[0];
        assert!(futures::poll!(work.as_mut()).is_pending(), "it waits for its seat");
        assert!(held.take().0.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_later_state_keeps_nobody_from_reading_and_no_webhook_from_being_asked() {
        let limits = Limits { inflight: 1, mutating_inflight: 1, ..limits() };
        let (seats, away) = (InflightLimiter::new(1, &limits), Away::new(&limits, 1));
        let mut waiting = Vec::new();
        for _ in 0..4 {
            let held =
                Held::new("greedy", Some(seats.enter("greedy").await.expect("the one before has given it back")), None);
            let (of, away) = (held.clone(), &away);
            waiting.push(Box::pin(async move { of.within(away.wait_for_later(std::future::pending::<()>())).await }));
            assert!(futures::poll!(waiting.last_mut().unwrap().as_mut()).is_pending());
        }
        let held = Held::new("other", Some(seats.enter("other").await.unwrap()), None);
        assert!(held.within(away.wait(async {})).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn it_has_its_seat_and_place_again_when_the_last_webhook_has_answered() {
        let (limits, away) = (limits(), Away::new(&limits(), 4));
        let (seats, places) = (InflightLimiter::new(1, &limits), InflightLimiter::new(1, &limits));
        let held = Held::new("one", Some(seats.enter("one").await.unwrap()), Some(places.enter("one").await.unwrap()));
        let work = async {
            let [one, two] = [1, 2].map(|s| away.wait(tokio::time::sleep(Duration::from_secs(s))));
            let (one, two) = tokio::join!(one, two);
            one.and(two)
        };
        held.within(work).await.unwrap();
        assert!(seats.enter("two").await.is_err() && places.enter("two").await.is_err());
        let (seat, place) = held.take();
        assert!(seat.is_some() && place.is_some());
        drop((seat, place));
        assert!(seats.enter("two").await.is_ok() && places.enter("two").await.is_ok());
        // The superuser holds nothing, and waits without any limit.
        let free = Held::new("us", None, None);
        free.within(away.wait(async {})).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_calls_of_one_flow_are_bounded_too() {
        let (limits, away) = (limits(), Away::new(&limits(), 1));
        let places = InflightLimiter::new(1, &limits);
        let wait = async |held: &Arc<Held>| held.within(away.wait(std::future::pending::<()>())).await;
        let mut all = Vec::new();
        for _ in 0..5 {
            all.push(Held::new("greedy", None, Some(places.enter("greedy").await.unwrap())));
            let held = all.last().unwrap();
            // Each passes its place on to the next one.
            let mut waits = Box::pin(wait(held));
            if let std::task::Poll::Ready(refused) = futures::poll!(waits.as_mut()) {
                panic!("{:?}", refused.unwrap_err());
            }
            std::mem::forget(waits);
        }
        let last = Held::new("greedy", None, Some(places.enter("greedy").await.unwrap()));
        let refused = pin!(wait(&last)).await.unwrap_err();
        assert_eq!(refused.code, 429);
    }
}

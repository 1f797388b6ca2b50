//! Who gets a seat, and who waits.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use super::*;

fn limiter(seats: usize, queue: usize) -> Arc<InflightLimiter> {
    InflightLimiter::new(seats, &Limits { queue, wait: Duration::from_secs(5), ..Limits::default() })
}

#[tokio::test(start_paused = true)]
async fn a_polite_user_gets_the_next_seat_before_a_greedy_one() {
    let limiter = limiter(4, 50);
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(limiter.enter("greedy").await.unwrap());
    }
    taken.push(limiter.enter("other").await.expect("one is left for others"));
    let order = Arc::new(Mutex::new(Vec::new()));
    let ask = |user: &'static str| {
        let (limiter, order) = (limiter.clone(), order.clone());
        tokio::spawn(async move {
            let seat = limiter.enter(user).await.unwrap();
            order.lock().unwrap().push(user);
            tokio::time::sleep(Duration::from_millis(100)).await;
            drop(seat);
        })
    };
    let mut tasks: Vec<_> = (0..8).map(|_| ask("greedy")).collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    tasks.extend((0..2).map(|_| ask("polite")));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(order.lock().unwrap().is_empty(), "all seats are taken");
    taken.drain(..2);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(*order.lock().unwrap(), ["polite", "polite"]);
    taken.clear();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(order.lock().unwrap().len(), 10);
    assert!(limiter.lock().flows.is_empty() && limiter.lock().running == 0 && limiter.lock().waiting == 0);
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_or_in_too_long_a_queue_is_refused_and_leaves_no_trace() {
    let limiter = limiter(1, 2);
    let seat = limiter.enter("a").await.unwrap();
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            tokio::spawn({
                let limiter = limiter.clone();
                async move { limiter.enter("a").await.map(drop) }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let begun = Instant::now();
    let refused = limiter.enter("a").await.map(drop).unwrap_err();
    assert_eq!(begun.elapsed(), Duration::ZERO, "a full queue is not waited for");
    assert_eq!((refused.code, refused.details.unwrap().retry_after_seconds), (429, Some(1)));
    for task in waiting {
        assert_eq!(task.await.unwrap().unwrap_err().code, 429);
    }
    drop(seat);
    assert!(limiter.lock().flows.is_empty() && limiter.lock().running == 0 && limiter.lock().waiting == 0);
    drop(limiter.enter("b").await.unwrap());
}

/// Names are free: the total queue is bounded, however many there are.
#[tokio::test(start_paused = true)]
async fn all_flows_together_have_a_queue_that_ends() {
    let limiter = limiter(2, 50);
    let _seats = [limiter.enter("a").await.unwrap(), limiter.enter("b").await.unwrap()];
    let names: Vec<String> = (0..CROWDED * 2).map(|n| format!("f{n}")).collect();
    let mut waiting: Vec<_> = names.iter().map(|name| Box::pin(limiter.enter(name))).collect();
    for one in &mut waiting {
        assert!(futures::poll!(one.as_mut()).is_pending());
    }
    let begun = Instant::now();
    assert_eq!(limiter.enter("one more").await.map(drop).unwrap_err().code, 429);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

/// A newcomer after another's long run alternates with it, and does not first catch up.
#[tokio::test(start_paused = true)]
async fn who_was_not_there_has_no_credit() {
    let limiter = limiter(1, 50);
    let first = limiter.turn("long there").await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    let turns = Arc::new(Mutex::new((0_u32, 0_u32)));
    let work = |name: &'static str| {
        let (limiter, turns) = (limiter.clone(), turns.clone());
        tokio::spawn(async move {
            loop {
                let seat = limiter.turn(name).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
                let mut turns = turns.lock().unwrap();
                *(if name == "long there" { &mut turns.0 } else { &mut turns.1 }) += 1;
                drop((seat, turns));
            }
        })
    };
    // It works without a pause: its history is kept.
    let tasks = [work("long there"), work("long there")];
    tokio::time::sleep(Duration::from_millis(1)).await;
    drop(first);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let others = [work("new"), work("new")];
    tokio::time::sleep(Duration::from_secs(2)).await;
    tasks.iter().chain(&others).for_each(|task| task.abort());
    let (old, new) = *turns.lock().unwrap();
    assert!(old >= 80 && new >= 80, "{old} turns of who was there, {new} of who came");
}

#[tokio::test(start_paused = true)]
async fn no_flow_takes_all_seats() {
    let limiter = limiter(8, 50);
    let mut taken = Vec::new();
    for _ in 0..6 {
        taken.push(limiter.enter("greedy").await.unwrap());
    }
    let mut more = pin!(limiter.enter("greedy"));
    assert!(futures::poll!(more.as_mut()).is_pending(), "two are left for others");
    let other = limiter.enter("other").await.unwrap();
    taken.pop();
    assert!(futures::poll!(more.as_mut()).is_ready());
    drop((other, taken));
}

/// Two flows that wait for the one seat all the time each hold it for equal time.
#[tokio::test(start_paused = true)]
async fn who_takes_long_has_fewer_turns() {
    let limiter = limiter(1, 50);
    let turns = Arc::new(Mutex::new((0_u32, 0_u32)));
    let work = |name: &'static str, each: u64| {
        let (limiter, turns) = (limiter.clone(), turns.clone());
        tokio::spawn(async move {
            loop {
                let seat = limiter.turn(name).await;
                tokio::time::sleep(Duration::from_millis(each)).await;
                let mut turns = turns.lock().unwrap();
                *(if name == "long" { &mut turns.0 } else { &mut turns.1 }) += 1;
                drop((seat, turns));
            }
        })
    };
    let tasks = [work("long", 100), work("long", 100), work("long", 100), work("short", 10), work("short", 10)];
    tokio::time::sleep(Duration::from_secs(20)).await;
    tasks.iter().for_each(|task| task.abort());
    let (long, short) = *turns.lock().unwrap();
    assert!((80..=120).contains(&long) && (800..=1200).contains(&short), "{long} long turns, {short} short ones");
}

fn from(address: &str) -> Flow {
    address.parse::<std::net::IpAddr>().unwrap().into()
}

/// A network has any number of subnets and addresses: its site gets as much as another.
#[tokio::test(start_paused = true)]
async fn of_those_who_are_not_known_whoever_has_most_gives_way_and_each_site_has_its_turn() {
    let limiter = limiter(4, 8);
    let mut seats = Vec::new();
    for name in ["a", "b", "c", "d"] {
        seats.push(limiter.enter(name).await.unwrap());
    }
    let mut site: Vec<_> = (0..12).map(|n| Box::pin(limiter.enter(from(&format!("2001:db8:0:{n:x}::1"))))).collect();
    let mut refused = Vec::new();
    for (n, one) in site.iter_mut().enumerate() {
        if futures::poll!(one.as_mut()).is_ready() {
            refused.push(n);
        }
    }
    assert_eq!(refused, [8, 9, 10, 11], "the queue of one user is full");
    let mut others = ["10.0.0.1", "2001:db8:1::1"].map(|other| Box::pin(limiter.enter(from(other))));
    for other in &mut others {
        assert!(futures::poll!(other.as_mut()).is_pending(), "there is room for another site");
    }
    for (n, one) in site[..8].iter_mut().enumerate() {
        assert_eq!(futures::poll!(one.as_mut()).is_ready(), n >= 6, "those who came last have given way: {n}");
    }
    assert_eq!(limiter.lock().waiting, 8);
    seats.truncate(1);
    let sites: Vec<_> = {
        let state = limiter.lock();
        let sites = state.flows.iter().filter(|(step, _)| step.within() == Some(Step::Unknown));
        sites.map(|(_, site)| site.running).collect()
    };
    assert_eq!(sites, [1, 1, 1], "each site has one");
    let mut ran = 0;
    for one in others.iter_mut().chain(&mut site[..6]) {
        // Its seat is free for the next one at once.
        ran += usize::from(futures::poll!(one.as_mut()).is_ready());
    }
    assert_eq!(ran, 8, "it goes on with the others");
    drop((site, others, seats));
    let state = limiter.lock();
    assert!(state.flows.is_empty() && state.waiting == 0 && state.unknown.count() == 0);
}

/// The result of `next`, by a scan of all waiters.
fn next_of_all(state: &State, of_one: usize) -> Option<(Step, u64)> {
    let fronts = state.flows.values().filter_map(|served| served.waiting.first());
    let flow = |arrival: &u64| &state.tickets[arrival].flow;
    let may = fronts.filter(|arrival| state.may(flow(arrival), of_one, None));
    let ranks = |arrival: &&u64| -> Vec<_> {
        flow(arrival).steps().iter().map(|step| (state.flows[step].rank(), step.clone())).collect()
    };
    may.min_by_key(ranks).map(|arrival| (flow(arrival).last().clone(), *arrival))
}

#[tokio::test(start_paused = true)]
async fn the_next_one_is_whom_one_finds_who_looks_at_all() {
    let limiter = limiter(6, 12);
    let mut flows: Vec<Flow> = ["a", "b", "c"].map(Flow::from).into();
    flows.extend(["10.0.0.1", "10.0.0.2"].map(from));
    for n in 0..16 {
        flows.push(from(&format!("2001:db8:{}:{}::{}", n / 8, n / 4 % 2, n % 4)));
    }
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    let (mut waiting, mut seats, mut found) = (Vec::new(), Vec::new(), 0);
    for _ in 0..20_000 {
        match random(5) {
            0..3 => waiting.push(Box::pin(limiter.enter(flows[random(flows.len())].clone()))),
            3 if !waiting.is_empty() => drop(waiting.swap_remove(random(waiting.len()))),
            4 if !seats.is_empty() => {
                tokio::time::advance(Duration::from_millis(random(200) as u64)).await;
                drop(seats.swap_remove(random(seats.len())));
            }
            _ => {}
        }
        let mut at = 0;
        while at < waiting.len() {
            match futures::poll!(waiting[at].as_mut()) {
                std::task::Poll::Pending => at += 1,
                std::task::Poll::Ready(seat) => {
                    drop(waiting.swap_remove(at));
                    seats.extend(seat.ok());
                }
            }
        }
        let state = limiter.lock();
        let next = state.next(limiter.of_one);
        assert_eq!(next, next_of_all(&state, limiter.of_one));
        found += usize::from(next.is_some());
        for (step, served) in &state.flows {
            let parts = state.flows.keys().filter(|part| part.within().as_ref() == Some(step)).count();
            assert_eq!(served.parts, parts, "{step:?}");
        }
        let in_line = state.tickets.values().filter(|ticket| ticket.place == QueueState::InLine);
        assert_eq!(in_line.filter(|ticket| ticket.flow.steps().len() > 1).count(), state.unknown.count());
        assert_eq!(state.tickets.len(), state.waiting + state.calls.len());
        assert_eq!(state.running, seats.len() + state.calls.len());
    }
    assert!(found > 1_000, "somebody waits most of the time: {found}");
    drop((waiting, seats));
    let state = limiter.lock();
    assert!(state.flows.is_empty() && state.order.is_empty() && state.tickets.is_empty() && state.calls.is_empty());
}

/// A network has any number of flows.
#[tokio::test(start_paused = true)]
async fn what_one_costs_does_not_rise_with_how_many_there_are() {
    let limiter = limiter(2, 50);
    let seats = [limiter.turn("a").await, limiter.turn("b").await];
    let mut waiting: Vec<_> = (0..20_000).map(|n| Box::pin(limiter.turn(from(&format!("2001:db8::{n:x}"))))).collect();
    for one in &mut waiting {
        assert!(futures::poll!(one.as_mut()).is_pending());
    }
    waiting.truncate(10_000);
    assert!(limiter.lock().flows.len() < 10_010, "those who gave up are forgotten");
    drop(seats);
    for one in &mut waiting {
        // A task that is polled this often has to yield.
        let one = pin!(tokio::task::unconstrained(one.as_mut()));
        assert!(futures::poll!(one).is_ready(), "each leaves its seat to the next");
    }
    let looks = limiter.lock().looks.get();
    assert!(looks < 20_000 * 8, "{looks}");
    drop(waiting);
    assert!(limiter.lock().flows.is_empty());
}

/// A second is long for a free seat.
async fn soon<T>(waits: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(1), waits).await.expect("nobody has the seat")
}

#[tokio::test(start_paused = true)]
async fn who_is_called_and_not_polled_stops_nobody_and_stays_in_line() {
    let limiter = limiter(1, 50);
    let seat = limiter.turn("a").await;
    let mut left: Vec<_> = (0..5).map(|_| Box::pin(limiter.turn("b"))).collect();
    for one in &mut left {
        assert!(futures::poll!(one.as_mut()).is_pending());
    }
    let others: Vec<_> = ["b", "c", "d"]
        .map(|name| {
            let limiter = limiter.clone();
            tokio::spawn(async move { drop(limiter.turn(name).await) })
        })
        .into();
    tokio::task::yield_now().await;
    drop(seat);
    let begun = Instant::now();
    for other in others {
        soon(other).await.unwrap();
    }
    assert!(begun.elapsed() <= 6 * Duration::from_millis(20), "each is waited for once: {:?}", begun.elapsed());
    drop(soon(limiter.turn("e")).await);
    let seat = limiter.turn("a").await;
    let mut new = pin!(limiter.turn("b"));
    assert!(futures::poll!(new.as_mut()).is_pending());
    for one in &mut left {
        assert!(futures::poll!(one.as_mut()).is_pending(), "they wait again");
    }
    drop(seat);
    for one in left {
        assert!(futures::poll!(new.as_mut()).is_pending(), "they came before");
        drop(soon(one).await);
    }
    drop(soon(new).await);
    assert!(limiter.lock().flows.is_empty() && limiter.lock().tickets.is_empty());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(limiter.lock().watch.is_none(), "nobody waits");
}

#[tokio::test(start_paused = true)]
async fn who_is_called_and_goes_stops_nobody() {
    let limiter = limiter(1, 50);
    let seat = limiter.turn("a").await;
    let mut waiting: Vec<_> = ["b", "c", "d", "e"].map(|name| Box::pin(limiter.turn(name))).into();
    for one in &mut waiting {
        assert!(futures::poll!(one.as_mut()).is_pending());
    }
    drop(seat);
    // A called one; the next one, just as it goes; a late one.
    drop(waiting.remove(0));
    tokio::time::sleep(Duration::from_millis(30)).await;
    drop(waiting.remove(0));
    drop(soon(waiting.remove(1)).await);
    drop(waiting);
    drop(soon(limiter.turn("f")).await);
    assert!(limiter.lock().flows.is_empty() && limiter.lock().tickets.is_empty());
}

/// However late tasks are polled, each is served, and the time that a seat was kept counts for its flow.
#[tokio::test(start_paused = true)]
async fn who_comes_late_has_a_seat_that_nobody_has_taken() {
    let limiter = limiter(1, 50);
    let seat = limiter.turn("a").await;
    let names: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    let mut waiting: Vec<_> = names.iter().map(|name| Box::pin(limiter.turn(name))).collect();
    for one in &mut waiting {
        assert!(futures::poll!(one.as_mut()).is_pending());
    }
    drop(seat);
    let mut rounds = 0;
    while !waiting.is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut at = 0;
        while at < waiting.len() {
            match futures::poll!(waiting[at].as_mut()).is_ready() {
                true => drop(waiting.remove(at)),
                false => at += 1,
            }
        }
        rounds += 1;
        assert!(rounds < 10, "{} wait", waiting.len());
    }
    drop(waiting);
    assert!(limiter.lock().flows.is_empty());
}

/// A future that is polled this long after being woken, like one that waits for another turn first.
struct Slow<F> {
    waits: Pin<Box<F>>,
    delay: Duration,
    asleep: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl<F: Future> Future for Slow<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let delay = self.delay;
        ready!(self.asleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(delay))).as_mut().poll(context));
        self.asleep = None;
        self.waits.as_mut().poll(context)
    }
}

/// For any number and any delay: somebody always has the seat, and nobody waits forever.
#[tokio::test(start_paused = true)]
async fn who_always_comes_late_has_his_turn_too() {
    for (count, delay) in [(4, 15), (4, 30), (8, 60), (3, 100), (8, 500), (1, 1000)] {
        let (limiter, delay) = (limiter(1, 50), Duration::from_millis(delay));
        let late = |name: usize, delay: Duration| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    let seat = Slow { waits: Box::pin(limiter.turn(&name.to_string())), delay, asleep: None }.await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    drop(seat);
                }
            })
        };
        // A quick one is always present.
        let quick = (limiter.clone(), late(count, Duration::ZERO));
        let all: Vec<_> = (0..count).map(|name| late(name, delay)).collect();
        for one in all {
            let done = tokio::time::timeout(20 * (count as u32 + 1) * (delay + Duration::from_millis(400)), one).await;
            done.unwrap_or_else(|_| panic!("{count} of {delay:?}")).unwrap();
        }
        quick.1.await.unwrap();
        assert!(quick.0.lock().tickets.is_empty());
    }
}

//! Which work waits for turns.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::{ConnectionLimiter, Pass, Runs};
use super::*;
// tokio's own wakes the task only when its thread is idle.
use crate::large::give_way;

fn user(name: &str) -> User {
    User::new(name, Vec::<String>::new())
}

fn used(cpu: &CpuScheduler, name: &str) -> Arc<Used> {
    cpu.used(&Step::Named(name.to_owned()))
}

fn cpu(count: usize) -> Arc<CpuScheduler> {
    CpuScheduler::of(count, &Limits::default())
}

/// Of two workers one is always free for light users, whatever the others do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_used_much_leaves_a_worker_to_the_others() {
    let cpu = cpu(1);
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let heavy: Vec<_> = (0..8)
        .map(|i| {
            let (now, most) = (now.clone(), most.clone());
            let burn = async move {
                for poll in 0..20 {
                    // The first ones need no turn.
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
            tokio::spawn(cpu.measured(&user(["a", "b"][i % 2]), burn))
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut waits = Vec::new();
    for _ in 0..20 {
        let begun = std::time::Instant::now();
        tokio::spawn(cpu.measured(&user("light"), async {})).await.unwrap();
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
    let cpu = cpu(1);
    let (heavy, light) = (user("heavy"), user("light"));
    used(&cpu, "heavy").add(LITTLE * 4);
    let turn = cpu.limiter.turn("other").await;
    let mut held = std::pin::pin!(cpu.measured(&heavy, async { 1 }));
    for _ in 0..3 {
        assert!(futures::poll!(held.as_mut()).is_pending(), "the turn is another's");
    }
    assert_eq!(cpu.measured(&light, async { 2 }).await, 2);
    assert_eq!(cpu.measured(&User::new("root", ["system:masters"]), async { 3 }).await, 3);
    drop(turn);
    assert_eq!(held.await, 1);
    let turn = cpu.limiter.turn("other").await;
    tokio::time::sleep(HALF * 3).await;
    assert_eq!(cpu.measured(&heavy, async { 4 }).await, 4, "it was long ago");
    drop(turn);
}

#[tokio::test(start_paused = true)]
async fn who_is_not_known_is_counted_by_his_site_and_with_all_others_who_are_not() {
    let cpu = cpu(1);
    let at = |address: &str| cpu.share_at(address.parse().unwrap());
    let waits = |mut share: Share| {
        let mut waits = || share.turn(&mut Context::from_waker(std::task::Waker::noop())).is_pending();
        // The first time it only yields.
        waits() && waits()
    };
    let others = cpu.limiter.turn("other").await;
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
    assert!(waits(cpu.share(&anonymous)) && !waits(cpu.share(&user("known"))));
    drop(others);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_strangers_does_not_hold_up_who_is_known() {
    let cpu = cpu(1);
    let pass = super::super::ConnectionLimiter::new(&Limits::default()).admit([10, 0, 0, 1].into()).unwrap();
    let guest = pass.guest();
    cpu.share_at([10, 0, 0, 2].into()).add(LITTLE_OF_ALL * 4);
    let others = cpu.limiter.turn("other").await;
    let is_held_up = |certificate: Option<&User>| {
        let mut work = std::pin::pin!(cpu.measured_of(&guest, certificate, async {}));
        let mut context = Context::from_waker(std::task::Waker::noop());
        // The first time it only yields.
        work.as_mut().poll(&mut context).is_pending() && work.as_mut().poll(&mut context).is_pending()
    };
    assert!(is_held_up(None) && !is_held_up(Some(&user("ann"))), "his certificate says who he is");
    guest.known(&user("ann")).unwrap();
    assert!(!is_held_up(None), "he has shown it, if by a token");
    drop((others, pass));
}

#[tokio::test(start_paused = true)]
async fn a_client_has_his_time_for_himself() {
    let (cpu, limit) = (cpu(1), Duration::from_secs(10));
    let address = [10, 0, 0, 1].into();
    let flood = || cpu.share_at(address).add(LITTLE_OF_ALL * 4);
    let his_part = |seconds| async move { tokio::time::sleep(Duration::from_secs(seconds)).await };
    let begun = Instant::now();
    assert!(cpu.measured_at(address, his_part(9)).within(limit).await.is_some());
    assert!(cpu.measured_at(address, his_part(11)).within(limit).await.is_none());
    assert_eq!(begun.elapsed().as_secs(), 9 + 10);

    flood();
    let turn = cpu.limiter.turn("other").await;
    let mut waits = std::pin::pin!(cpu.measured_at(address, his_part(8)).within(limit));
    assert!(tokio::time::timeout(Duration::from_secs(15), &mut waits).await.is_err());
    drop(turn);
    assert!(waits.await.is_some(), "that it was not his turn is not his time");

    flood();
    let _turn = cpu.limiter.turn("other").await;
    let begun = Instant::now();
    assert!(cpu.measured_at(address, his_part(8)).within(limit).await.is_none());
    assert_eq!(begun.elapsed().as_secs(), 30, "it does not wait for ever");
}

#[tokio::test(start_paused = true)]
async fn what_is_done_bit_by_bit_waits_for_turns_too() {
    let cpu = cpu(1);
    let mut share = cpu.share(&user("a"));
    let mut turn = async || std::future::poll_fn(|context| Poll::Ready(share.turn(context))).await;
    assert!(turn().await.is_ready());
    cpu.share(&user("a")).add(LITTLE * 4);
    let others = cpu.limiter.turn("other").await;
    for _ in 0..3 {
        assert!(turn().await.is_pending(), "the turn is another's");
    }
    drop(others);
    assert!(matches!(turn().await, Poll::Ready(Some(_))));
    let mut roots = cpu.share(&User::new("root", ["system:masters"]));
    roots.add(LITTLE * 4);
    assert!(std::future::poll_fn(|context| Poll::Ready(roots.turn(context).is_ready())).await);
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_gives_his_turn_back_and_the_map_has_an_end() {
    let cpu = cpu(1);
    for name in ["a", "b"] {
        used(&cpu, name).add(LITTLE * 4);
    }
    let turn = cpu.limiter.turn("other").await;
    let mut gone = Box::pin(cpu.measured(&user("a"), std::future::pending::<()>()));
    for _ in 0..2 {
        assert!(futures::poll!(gone.as_mut()).is_pending());
    }
    // Called, and no longer polled.
    drop(turn);
    drop(gone);
    assert_eq!(cpu.measured(&user("b"), async { 7 }).await, 7);
    // No turn is held between two polls.
    let mut waiting = Box::pin(cpu.measured(&user("a"), std::future::pending::<()>()));
    for _ in 0..3 {
        assert!(futures::poll!(waiting.as_mut()).is_pending());
    }
    assert_eq!(cpu.measured(&user("b"), async { 8 }).await, 8);
    for i in 0..USERS + 10 {
        used(&cpu, &i.to_string()).add(LITTLE);
    }
    assert!(cpu.lock().len() <= USERS + 1);
    tokio::time::sleep(HALF * 20).await;
    used(&cpu, "new");
    assert!(cpu.lock().len() < 10);
}

/// The inner one would wait for the turn that the outer one waits for.
#[tokio::test(start_paused = true)]
async fn what_is_measured_twice_waits_once() {
    let cpu = cpu(1);
    let heavy = user("heavy");
    used(&cpu, "heavy").add(LITTLE * 1000);
    let within = async {
        let two = futures::join!(cpu.measured(&heavy, give_way()), cpu.measured(&heavy, async { 1 }));
        tokio::time::sleep(Duration::from_millis(1)).await;
        two.1 + cpu.measured(&heavy, async { 2 }).await
    };
    let others = cpu.limiter.turn("other").await;
    let mut around = std::pin::pin!(cpu.measured(&heavy, cpu.measured(&heavy, within)));
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut around).await.is_err(), "the turn is another's");
    drop(others);
    assert_eq!(tokio::time::timeout(Duration::from_secs(1), around).await, Ok(3));
}

/// A user's work may run within that of the superuser or a node, which is not measured.
#[tokio::test(start_paused = true)]
async fn what_is_within_work_that_is_not_measured_is_on_its_own_users_account() {
    let cpu = cpu(1);
    for exempt in [User::new("root", ["system:masters"]), User::new("system:node:a", ["system:nodes"])] {
        let burn = |name| cpu.measured(&user(name), async { std::thread::sleep(LITTLE * 2) });
        let before = used(&cpu, "ann").add(Duration::ZERO);
        cpu.measured(&exempt, async { tokio::join!(burn("ann"), cpu.measured(&exempt, burn("ann"))) }).await;
        let after = used(&cpu, "ann").add(Duration::ZERO);
        assert!(after - before >= (LITTLE * 4).as_secs_f64(), "{before} and {after}");
        assert!(!used(&cpu, &exempt.name).is_much());
        // Her nested work counts for her, and waits for her turn.
        let others = cpu.limiter.turn("other").await;
        let mut around = std::pin::pin!(cpu.measured(&exempt, cpu.measured(&user("ann"), burn("bob"))));
        assert!(tokio::time::timeout(Duration::from_millis(1), &mut around).await.is_err());
        drop(others);
        around.await;
        assert!(!used(&cpu, "bob").is_much() && used(&cpu, "ann").add(Duration::ZERO) > after);
    }
}

/// A response that its client does not read may wait for a turn without being polled.
#[tokio::test(start_paused = true)]
async fn what_is_not_polled_holds_up_nobody() {
    let cpu = cpu(1);
    for name in ["a", "b", "c"] {
        used(&cpu, name).add(LITTLE * 1000);
    }
    let turn = cpu.limiter.turn("other").await;
    let mut left = Box::pin(cpu.measured(&user("a"), async { 1 }));
    for _ in 0..2 {
        assert!(futures::poll!(left.as_mut()).is_pending());
    }
    let other = tokio::spawn(cpu.measured(&user("b"), async { 2 }));
    tokio::time::sleep(Duration::from_millis(1)).await;
    drop(turn);
    assert_eq!(tokio::time::timeout(Duration::from_secs(1), other).await.expect("he has his turn").unwrap(), 2);
    let newcomer = cpu.measured(&user("c"), async { 3 });
    assert_eq!(tokio::time::timeout(Duration::from_secs(1), newcomer).await, Ok(3));
    assert_eq!(tokio::time::timeout(Duration::from_secs(1), left).await, Ok(1), "once it is polled");
}

/// Whoever was served least goes first, regardless of the number of requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_use_much_are_served_alike() {
    let cpu = cpu(1);
    let begin = |name: &'static str, tasks: usize| {
        used(&cpu, name).add(LITTLE * 1000);
        let polls = Arc::new(AtomicUsize::new(0));
        let one = |polls: Arc<AtomicUsize>| async move {
            loop {
                std::thread::sleep(Duration::from_millis(2));
                polls.fetch_add(1, Ordering::SeqCst);
                give_way().await;
            }
        };
        let tasks: Vec<_> = (0..tasks).map(|_| tokio::spawn(cpu.measured(&user(name), one(polls.clone())))).collect();
        (polls, tasks)
    };
    let (many, one) = (begin("many", 6), begin("one", 1));
    tokio::time::sleep(Duration::from_secs(1)).await;
    many.1.iter().chain(&one.1).for_each(|task| task.abort());
    let (many, one) = (many.0.load(Ordering::SeqCst), one.0.load(Ordering::SeqCst));
    assert!(one * 3 > many && many > 0, "{one} of one, {many} of many");
}

#[tokio::test(start_paused = true)]
async fn what_has_others_work_within_it_is_the_rest() {
    let cpu = cpu(1);
    let mut around = cpu.share(&user("around"));
    let work = async {
        std::thread::sleep(LITTLE / 3);
        for name in ["within", "root"] {
            let of = if name == "root" { User::new(name, ["system:masters"]) } else { user(name) };
            cpu.measured(&of, cpu.measured(&user("within"), async { std::thread::sleep(LITTLE * 2) })).await;
        }
    };
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| around.poll_around(context, true, |context| work.as_mut().poll(context))).await;
    let used = |name| used(&cpu, name).add(Duration::ZERO);
    assert!(used("within") >= (LITTLE * 4).as_secs_f64(), "{}", used("within"));
    let own = used("around");
    assert!(own >= (LITTLE / 3).as_secs_f64() && own < (LITTLE * 2).as_secs_f64(), "{own}");
}

/// A heavy user's connection, whose requests run within its task.
fn heavy_connection(cpu: &Arc<CpuScheduler>) -> (Pass, Runs) {
    let pass = ConnectionLimiter::new(&Limits::default()).admit([10, 0, 0, 1].into()).unwrap();
    pass.guest().known(&user("heavy")).unwrap();
    used(cpu, "heavy").add(LITTLE * 1000);
    let runs = Runs::around(cpu, &pass.guest());
    (pass, runs)
}

/// A proxy in front of the server may send many users' requests on one connection, which is on the first one's account.
#[tokio::test(start_paused = true)]
async fn what_is_asked_on_a_connection_waits_for_no_turn_of_the_connections() {
    let cpu = cpu(1);
    let (_pass, mut runs) = heavy_connection(&cpu);
    let requests = runs.requests();
    let others = cpu.limiter.turn("other").await;
    let limit = Duration::from_millis(500);
    for of in [
        user("light"),
        User::new("root", ["system:masters"]),
        User::new("system:node:a", ["system:nodes"]),
        user("heavy"),
    ] {
        let mut task = std::pin::pin!(async {
            let _asked = requests.begun();
            // A request is known once it has been read.
            give_way().await;
            cpu.measured(&of, async { give_way().await }).await;
        });
        let asked = requests.begun();
        let answered = tokio::time::timeout(limit, std::future::poll_fn(|cx| runs.poll(task.as_mut(), cx))).await;
        assert_eq!(answered.is_ok(), of.name != "heavy", "{}", of.name);
        drop(asked);
        if answered.is_ok() {
            let mut head = std::pin::pin!(async {});
            let head = std::future::poll_fn(|cx| runs.poll(head.as_mut(), cx));
            assert!(tokio::time::timeout(limit, head).await.is_err(), "where nothing is asked the turn is another's");
        }
    }
    drop(others);
    let mut head = std::pin::pin!(async {});
    std::future::poll_fn(|cx| runs.poll(head.as_mut(), cx)).await;
}

/// As with a client that pipelines requests.
#[tokio::test(start_paused = true)]
async fn each_request_on_a_connection_begins_behind_others() {
    let cpu = cpu(1);
    let (_pass, mut runs) = heavy_connection(&cpu);
    let (requests, done) = (runs.requests(), Cell::new(0));
    let mut task = std::pin::pin!(async {
        for _ in 0..16 {
            let _asked = requests.begun();
            cpu.measured(&user("heavy"), async { done.set(done.get() + 1) }).await;
        }
    });
    let (mut polls, begun) = (0, Instant::now());
    std::future::poll_fn(|context| {
        let before = done.get();
        let polled = runs.poll(task.as_mut(), context);
        polls += 1;
        assert!(done.get() - before <= 1, "a turn is for one");
        polled
    })
    .await;
    assert!(done.get() == 16 && polls > 16, "{polls}");
    assert!(begun.elapsed() < Duration::from_millis(10), "nobody is passed over: {:?}", begun.elapsed());
}

//! Large requests: decoding, merging and validating one may take a CPU for a second. This runs beside the workers that serve all
//! other requests, few at once, and leaves one CPU to the others.
//!
//! A request is large by its body, by the object that it changes, or by what its rules may take; a read by what it searches, and by
//! what is built from the result. It waits for a place, which the user with the fewest gets first, and then runs in turns: from one
//! await (of the store, a webhook) to the next it holds a CPU, while it waits it holds none.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::{Handle, RuntimeFlavor};

use super::Server;
use super::limits::{Held, InflightLimiter, Limits, Seat};
use podwright_api::{Kind, Request, Status, User, Verb};

/// From how many bytes on a request is large. Smaller ones take less than changing threads.
pub(super) const LARGE: usize = 64 << 10;

/// How many bytes of a body cost as much as one lookup of a selector's requirement in an object.
const LOOKUP: usize = 8;

/// How many bytes of a body cost as much as one step of an evaluation.
const STEP: usize = 4;

/// How many steps take as long as what is no large request takes at most.
pub(super) const AT_ONCE: u64 = (LARGE / STEP) as u64;

/// How many bytes take as long to copy as one takes to decode.
const COPY: usize = 64;

/// What one value of a tree takes in memory besides its text, in bytes of a body: an ordinary body becomes some 13 times its size,
/// and a value some 200 bytes. A member of an object also has a name and a slot: an object counts twice.
const NODE: usize = 16;

/// From this many values on (98,304) a request is alone in memory: it may take hundreds of times its bytes, with everything derived
/// from it.
const HUGE: usize = 3 << 19;

/// The size of a body once decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodySize {
    /// In bytes of a request.
    pub bytes: usize,
    is_huge: bool,
}

impl BodySize {
    pub fn of_json(bytes: &[u8]) -> BodySize {
        BodySize::of(bytes, values_of(bytes))
    }

    /// Of YAML, whose strings are not known before parsing.
    pub fn of_yaml(bytes: &[u8]) -> BodySize {
        let of_byte = |byte: &u8| match byte {
            b',' | b'[' | b'\n' | b'-' | b':' => 1,
            b'{' => 2,
            _ => 0,
        };
        BodySize::of(bytes, bytes.iter().map(of_byte).sum())
    }

    /// Of protobuf, in which an empty message has two bytes.
    pub fn of_protobuf(bytes: &[u8]) -> BodySize {
        BodySize::of(bytes, bytes.len() / 2)
    }

    fn of(bytes: &[u8], values: usize) -> BodySize {
        let of_values = values.saturating_mul(NODE);
        BodySize { bytes: bytes.len().max(of_values), is_huge: of_values >= HUGE }
    }

    /// Adds to it.
    pub fn and(self, more: usize) -> BodySize {
        BodySize { bytes: self.bytes.saturating_add(more), ..self }
    }
}

/// How many values JSON becomes, an object for two: nothing within its strings is one.
pub(super) fn values_of(json: &[u8]) -> usize {
    let (mut values, mut rest) = (0, json.iter());
    while let Some(byte) = rest.next() {
        match byte {
            b',' | b'[' => values += 1,
            b'{' => values += 2,
            b'"' => {
                while let Some(byte) = rest.next() {
                    match byte {
                        b'\\' => drop(rest.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    values
}

/// That what is decoded is on somebody's account: of a user's request, or the server's own work.
#[derive(Clone, Copy)]
pub(super) struct Weighed(());

impl Weighed {
    /// For the server's own work, and for objects that only administrators write. Never for objects that users write and may
    /// request: use [`LargeRequests::part`] for those.
    pub fn own() -> Weighed {
        Weighed(())
    }
}

tokio::task_local! {
    /// Set while a large request runs.
    static LARGE_NOW: ();
}

/// How many large requests may be decoded in memory, per CPU that works on them: their trees take many times their bytes.
const PLACES: usize = 4;

/// Where large requests wait and run.
pub(super) struct LargeRequests {
    places: Arc<InflightLimiter>,
    /// Serializes huge ones.
    huge: Arc<InflightLimiter>,
    cpus: Arc<InflightLimiter>,
    /// Counts turns.
    turns: AtomicU64,
}

/// The cost of this many lookups of requirements, in bytes of a request.
pub(super) fn of_lookups(count: usize) -> usize {
    count.saturating_mul(LOOKUP)
}

/// How many steps of an evaluation take as long as so many bytes of a body.
pub(super) fn steps_of(bytes: usize) -> u64 {
    (bytes / STEP) as u64
}

/// What the rules of a custom resource may take, in bytes of a request, however small an object is.
pub(super) fn of_rules(kind: &Kind) -> usize {
    let steps = kind.custom().map_or(0, |version| version.rules_work());
    usize::try_from(steps).unwrap_or(usize::MAX).saturating_mul(STEP)
}

/// The cost of copying this many bytes, in bytes of a request.
pub(super) fn of_copies(bytes: usize) -> usize {
    bytes / COPY
}

impl LargeRequests {
    pub fn new(limits: &Limits) -> LargeRequests {
        let cpus = std::thread::available_parallelism().map_or(1, |all| all.get().saturating_sub(1).max(1));
        let limiter = |seats| InflightLimiter::new(seats, limits);
        LargeRequests {
            places: limiter(PLACES * cpus),
            huge: limiter(1),
            cpus: limiter(cpus),
            turns: AtomicU64::new(0),
        }
    }

    /// How many large requests may be decoded in memory.
    pub fn places(&self) -> usize {
        self.places.seats()
    }

    /// How many turns large requests have had so far.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Waits until a user's request of this size may be decoded; small ones, and the superuser's, do not wait.
    pub async fn enter(&self, user: &User, size: usize) -> Result<Option<Seat>, Status> {
        match size < LARGE || user.is_in("system:masters") {
            true => Ok(None),
            false => self.places.enter(user).await.map(Some),
        }
    }

    /// The same for a request with a body, by its decoded size.
    pub async fn enter_body(&self, user: &User, size: BodySize) -> Result<Option<Seat>, Status> {
        match size.is_huge && !user.is_in("system:masters") {
            true => self.huge.enter(user).await.map(Some),
            false => self.enter(user, size.bytes).await,
        }
    }

    /// The same for a part of a request that turns out to be large; a part of a large request uses that one's place.
    pub async fn enter_part(&self, user: &User, size: usize) -> Result<Option<Seat>, Status> {
        match LARGE_NOW.try_with(|()| ()).is_ok() {
            true => Ok(None),
            false => self.enter(user, size).await,
        }
    }

    /// The same for an external program's answer to a request. A huge answer waits to be alone in memory, unless its request
    /// already is.
    pub async fn enter_answer(&self, user: &User, size: BodySize) -> Result<Option<Seat>, Status> {
        match size.is_huge && !Held::is_in(&self.huge) {
            true => self.enter_body(user, size).await,
            false => self.enter_part(user, size.bytes).await,
        }
    }

    /// Runs a part of a user's request with this size: waits for a place, and takes turns.
    pub async fn part<F: Future>(
        &self,
        user: &User,
        size: usize,
        work: impl FnOnce(Weighed) -> F,
    ) -> Result<F::Output, Status> {
        let _place = self.enter_part(user, size).await?;
        Ok(self.run(user, size, work(Weighed(()))).await)
    }

    /// Runs a user's request of this size. Nested large work is part of it. Among those waiting for a CPU the user who has had the
    /// least goes first.
    pub async fn run<F: Future>(&self, user: &User, size: usize, work: F) -> F::Output {
        if size < LARGE || LARGE_NOW.try_with(|()| ()).is_ok() {
            return work.await;
        }
        let mut work = pin!(LARGE_NOW.scope((), work));
        let mut cpu = self.cpus.turn(user).await;
        loop {
            self.turns.fetch_add(1, Ordering::Relaxed);
            let step = poll_fn(|context| {
                let noted = Arc::new(Noted { waker: context.waker().clone(), woken: AtomicBool::new(false) });
                let waker = Waker::from(noted.clone());
                let step = aside(|| work.as_mut().poll(&mut Context::from_waker(&waker)));
                Poll::Ready((step, noted.woken.load(Ordering::SeqCst)))
            });
            let again = match step.await {
                (Poll::Ready(output), _) => return output,
                (Poll::Pending, again) => again,
            };
            let mut next = pin!(self.cpus.turn(user));
            if again {
                // It was woken only to yield: it queues before its CPU is given to the next waiter.
                let asked = futures::poll!(next.as_mut());
                drop(cpu);
                cpu = match asked {
                    Poll::Ready(cpu) => cpu,
                    Poll::Pending => next.await,
                };
            } else {
                drop(cpu);
                woken().await;
                cpu = next.await;
            }
        }
    }
}

/// A waker that records whether it was called.
struct Noted {
    waker: Waker,
    woken: AtomicBool,
}

impl Wake for Noted {
    fn wake(self: Arc<Noted>) {
        self.woken.store(true, Ordering::SeqCst);
        self.waker.wake_by_ref();
    }
}

/// Runs long work on a blocking thread. (A single-threaded runtime has none.)
pub(super) fn aside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Yields to others within a large request: its next turn comes when its user's does. (tokio's own `yield_now` wakes the task only
/// when its thread is idle, which would lose its place in the queue.)
pub(super) async fn give_way() {
    let mut given = false;
    poll_fn(|context| match std::mem::replace(&mut given, true) {
        true => Poll::Ready(()),
        false => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

/// Waits until something wakes the task.
async fn woken() {
    let mut asked = false;
    poll_fn(|_| match std::mem::replace(&mut asked, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

impl Server {
    /// The cost of a request: the size of its object, or for a collection, its label lookups; 0 without either. Plus the cost of
    /// authorizing it; an error if that is too much.
    pub(super) fn size_of(&self, request: &Request) -> Result<usize, Status> {
        let of_one = |kind: &'static podwright_api::Kind| {
            let kind = kind.stored();
            let namespace = request.namespace.as_deref().filter(|_| kind.namespaced);
            let item = self.cache.resource(kind).get(&kind.key(namespace, request.name.as_deref()?))?;
            Some(item.bytes.len())
        };
        // A requirement has a few bytes, and is checked against each object.
        let of_all = |kind: &'static podwright_api::Kind| {
            let requirements = request.options.label_selector.as_ref()?.len() / 4;
            Some(requirements.saturating_mul(self.cache.resource(kind.stored()).read().items.len()))
        };
        let kind = self.kinds().lookup(&request.resource);
        let of_rights = kind.map_or(Ok(0), |kind| self.authorizer.weight(request, kind))?;
        let of_objects = match request.verb.writes() {
            _ if matches!(request.verb, Verb::List | Verb::DeleteCollection) => kind.and_then(of_all).unwrap_or(0),
            true => kind.and_then(of_one).unwrap_or(0),
            false => 0,
        };
        Ok(of_objects.saturating_add(of_rights))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    /// Work that waits, works, and waits again, and records how many work at once.
    async fn work(at_once: &AtomicUsize, most: &AtomicUsize, begin: oneshot::Receiver<()>) {
        begin.await.unwrap();
        most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        // The first takes a second, however busy the machine is, so that others may start meanwhile.
        let begun = std::time::Instant::now();
        while most.load(Ordering::SeqCst) < 2 && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(5));
        at_once.fetch_sub(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn large_requests_hold_no_worker_while_they_work_and_no_cpu_while_they_wait() {
        let large = Arc::new(LargeRequests {
            cpus: InflightLimiter::new(2, &Limits::default()),
            ..LargeRequests::new(&Limits::default())
        });
        let (at_once, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut begins = Vec::new();
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let (begin, begun) = oneshot::channel();
                begins.push(begin);
                let (large, at_once, most) = (large.clone(), at_once.clone(), most.clone());
                tokio::spawn(async move { large.run(&User::default(), LARGE, work(&at_once, &most, begun)).await })
            })
            .collect();
        // All of them wait, and none holds a CPU: the last one may run first.
        begins.pop().unwrap().send(()).unwrap();
        for begin in begins {
            begin.send(()).unwrap();
        }
        for task in tasks {
            tokio::time::timeout(Duration::from_secs(60), task).await.expect("it ends").unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), 2, "as many as there are CPUs for them");

        // As many block as there are workers, and the runtime still responds.
        let large = Arc::new(LargeRequests {
            cpus: InflightLimiter::new(6, &Limits::default()),
            ..LargeRequests::new(&Limits::default())
        });
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (released, blocking) = (Arc::new(std::sync::Mutex::new(released)), Arc::new(AtomicUsize::new(0)));
        let blocked: Vec<_> = (0..4)
            .map(|_| {
                let (large, released, blocking) = (large.clone(), released.clone(), blocking.clone());
                let wait = move || {
                    blocking.fetch_add(1, Ordering::SeqCst);
                    released.lock().unwrap().recv()
                };
                tokio::spawn(async move { large.run(&User::default(), LARGE, async { wait() }).await })
            })
            .collect();
        // This thread is not a worker.
        let begun = std::time::Instant::now();
        while blocking.load(Ordering::SeqCst) < 4 && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (tell, told) = std::sync::mpsc::channel();
        tokio::spawn(async move { tell.send(42) });
        let answer = told.recv_timeout(Duration::from_secs(30));
        (0..4).for_each(|_| release.send(()).unwrap());
        assert_eq!(answer, Ok(42), "a worker is free, while {} block", blocking.load(Ordering::SeqCst));
        for task in blocked {
            task.await.unwrap().unwrap();
        }
    }

    #[test]
    fn a_body_counts_by_what_it_becomes() {
        let json = |text: &str| BodySize::of_json(text.as_bytes());
        let empty = |count: usize| json(&format!("[{}]", vec!["{}"; count].join(",")));
        assert!(empty(LARGE / 16).bytes >= LARGE && !empty(LARGE / 16).is_huge);
        assert!(empty(HUGE / 3 / NODE).is_huge && !empty(HUGE / 3 / NODE - 1).is_huge);
        // These grow as estimated, like all others.
        let nested = json(&format!("[{}]", vec![r#"{"a":{"b":{"c":0}}}"#; 1000].join(",")));
        assert_eq!(nested.bytes, 7 * 1000 * NODE);
        assert_eq!(BodySize::of_yaml("a:\n b:\n  c: 0\n".repeat(1000).as_bytes()).bytes, 6 * 1000 * NODE);
        // However long a string is, it is one value.
        let text = format!("{{\"a\": \"{}\\\"{}\"}}", ",".repeat(HUGE), "[".repeat(HUGE));
        assert_eq!(json(&text), BodySize { bytes: text.len(), is_huge: false });
        // A quotation mark in a comment hides no YAML.
        let yaml = format!("# \"\na: [{}]", "{},".repeat(HUGE / NODE / 2));
        assert!(BodySize::of_yaml(yaml.as_bytes()).is_huge);
        assert!(BodySize::of_yaml("- {}\n".repeat(HUGE / NODE / 3).as_bytes()).is_huge);
        assert!(BodySize::of_protobuf(&[0x0a, 0].repeat(HUGE / NODE)).is_huge);
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_become_huge_lie_in_memory_one_by_one() {
        let large = LargeRequests::new(&Limits::default());
        let huge = BodySize { bytes: HUGE, is_huge: true };
        let user = |name: &str| User::new(name, Vec::<String>::new());
        let first = large.enter_body(&user("a"), huge).await.unwrap();
        let other = user("b");
        let mut next = pin!(large.enter_body(&other, huge));
        assert!(futures::poll!(next.as_mut()).is_pending());
        assert!(large.enter_body(&other, BodySize { is_huge: false, ..huge }).await.unwrap().is_some(), "beside it");
        drop(first);
        assert!(next.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_for_its_place_as_a_request_does() {
        let large = LargeRequests::new(&Limits::default());
        let huge = BodySize { bytes: HUGE, is_huge: true };
        let user = User::new("a", Vec::<String>::new());
        let first = large.enter_body(&user, huge).await.unwrap();
        let mut next = pin!(large.enter_answer(&user, huge));
        assert!(futures::poll!(next.as_mut()).is_pending());
        // It is part of the request that holds the place.
        let held = Held::new("a", None, first);
        let part = held.within(large.run(&user, HUGE, large.enter_answer(&user, huge)));
        assert!(part.await.unwrap().is_none());
        drop(held);
        assert!(next.await.unwrap().is_some());
        let small = BodySize { bytes: LARGE - 1, is_huge: false };
        assert!(large.enter_answer(&user, small).await.unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_of_many_large_requests_leaves_places_to_others() {
        let large = LargeRequests::new(&Limits::default());
        let user = |name: &str| User::new(name, Vec::<String>::new());
        assert!(large.enter(&user("small"), LARGE - 1).await.unwrap().is_none());
        assert!(large.enter(&User::system("us"), LARGE).await.unwrap().is_none());
        let (greedy, polite) = (user("greedy"), user("polite"));
        let mut taken = Vec::new();
        for _ in 0..large.places() - large.places() / 4 {
            taken.push(large.enter(&greedy, LARGE).await.unwrap());
        }
        let (mut more, mut other) = (pin!(large.enter(&greedy, LARGE)), pin!(large.enter(&polite, LARGE)));
        // The rest is for others.
        assert!(futures::poll!(more.as_mut()).is_pending());
        let seat = futures::poll!(other.as_mut());
        assert!(seat.is_ready() && futures::poll!(more.as_mut()).is_pending());
        taken.pop();
        tokio::task::yield_now().await;
        assert!(futures::poll!(more.as_mut()).is_ready());
    }

    /// Three requests of the greedy user work all the time, with long turns.
    #[tokio::test]
    async fn a_user_of_many_large_requests_leaves_the_cpu_to_others() {
        let large = Arc::new(LargeRequests {
            cpus: InflightLimiter::new(1, &Limits::default()),
            ..LargeRequests::new(&Limits::default())
        });
        let user = |name: &str| User::new(name, Vec::<String>::new());
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let greedy: Vec<_> = (0..3)
            .map(|_| {
                let (large, stop, user) = (large.clone(), stop.clone(), user("greedy"));
                let work = async move {
                    while !stop.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(4));
                        give_way().await;
                    }
                };
                tokio::spawn(async move { large.run(&user, LARGE, work).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let before = large.turns();
        let polite = async {
            for _ in 0..20 {
                give_way().await;
            }
        };
        let own = large.clone();
        tokio::spawn(async move { own.run(&User::new("polite", Vec::<String>::new()), LARGE, polite).await })
            .await
            .unwrap();
        let turns = large.turns() - before;
        stop.store(true, Ordering::SeqCst);
        for task in greedy {
            task.await.unwrap();
        }
        // One or, on a busy machine, two of the other's before each of its own; without a place in the queue it is three.
        assert!(turns <= 64, "20 of its own among {turns}");
    }
}

//! The task of a connection, on the account of its peer.
//!
//! Many HTTP/2 frames request nothing (PING, SETTINGS, WINDOW_UPDATE, RST_STREAM), and still cause work. So the task is polled with
//! a turn of its user, or of its address before authentication, and reads at most a piece at a time. Its requests are separate
//! tasks.
//!
//! An HTTP/1 task contains its requests, which are on their users' accounts. The rest is the connection's: TLS records, including
//! empty ones, heads, and writing responses. It waits for turns while no request is in progress: a request, possibly another
//! user's, waits for its own turn only. (A head is bounded, and what follows it waits in a buffer until its request is answered: so
//! pieces are not needed.)

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};
use tokio::time::Instant;

use super::{CpuScheduler, Guest, Share};

/// How much is read per run.
const PIECE: u64 = 32 << 10;

/// A stream that is read in small amounts. (The limit is set before each run.)
pub(crate) struct Paced<S> {
    stream: Take<S>,
    /// What may be read until the run ends; `None`: no limit.
    left: Option<Arc<AtomicU64>>,
    /// The peer has not received all written data yet.
    unsent: Arc<AtomicBool>,
}

/// The runs of one task.
pub(crate) struct Runs {
    cpu: Arc<CpuScheduler>,
    guest: Guest,
    share: Share,
    is_known: bool,
    /// It contains its requests.
    around: bool,
    /// Cloned for each request within.
    asked: Arc<()>,
    left: Arc<AtomicU64>,
    unsent: Arc<AtomicBool>,
    waited: Waited,
}

/// How long a task has waited for turns: in the past, and since when it does now.
#[derive(Clone, Default)]
pub(crate) struct Waited(Arc<Mutex<(Duration, Option<Instant>)>>);

/// Notifies runs of the requests that they contain.
#[derive(Clone)]
pub(crate) struct Requests(Weak<()>);

/// A request is in progress, or its response.
pub(crate) struct Asked(#[expect(dead_code, reason = "it counts")] Arc<()>);

impl Runs {
    /// For a task whose requests are separate tasks.
    pub fn apart(cpu: &Arc<CpuScheduler>, guest: &Guest) -> Runs {
        let share = cpu.share_at(guest.address());
        let (cpu, guest, asked) = (cpu.clone(), guest.clone(), Arc::default());
        let (left, unsent, waited) = (Arc::default(), Arc::default(), Waited::default());
        Runs { cpu, guest, share, is_known: false, around: false, asked, left, unsent, waited }
    }

    /// For a task that contains its requests.
    pub fn around(cpu: &Arc<CpuScheduler>, guest: &Guest) -> Runs {
        Runs { around: true, ..Runs::apart(cpu, guest) }
    }

    /// The handle to report requests with.
    pub fn requests(&self) -> Requests {
        Requests(if self.around { Arc::downgrade(&self.asked) } else { Weak::new() })
    }

    /// Polls the task that owns the stream.
    pub fn poll<F: Future>(&mut self, task: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if !self.is_known
            && let Some(user) = self.guest.user()
        {
            (self.share, self.is_known) = (self.cpu.share(user), true);
        }
        let polled = if self.around {
            // A response counts for its user until it is sent.
            let asked = Arc::strong_count(&self.asked) > 1 || self.unsent.load(Ordering::Relaxed);
            self.share.poll_around(cx, asked, |cx| task.poll(cx))
        } else {
            let left = &self.left;
            self.share.poll(cx, |cx| {
                left.store(PIECE, Ordering::Relaxed);
                task.poll(cx)
            })
        };
        self.waited.note(self.share.waits());
        polled
    }

    /// How long it has waited.
    pub fn waited(&self) -> Waited {
        self.waited.clone()
    }
}

impl Waited {
    pub fn so_far(&self) -> Duration {
        let (before, since) = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        before + since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Records whether it waits now.
    pub fn note(&self, waits: bool) {
        // Both are set without a panic between them.
        let mut waited = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, since) = *waited;
        *waited = match since {
            Some(since) if !waits => (before + since.elapsed(), None),
            None if waits => (before, Some(Instant::now())),
            _ => return,
        };
    }
}

impl Requests {
    /// A request starts. (`None`: it is not within.)
    pub fn begun(&self) -> Option<Asked> {
        self.0.upgrade().map(Asked)
    }
}

impl<S: AsyncRead> Paced<S> {
    /// A stream owned by a task with these runs; unlimited if the task contains its requests.
    pub fn new(stream: S, runs: Option<&Runs>) -> Paced<S> {
        let left = runs.filter(|runs| !runs.around).map(|runs| runs.left.clone());
        let unsent = runs.map(|runs| runs.unsent.clone()).unwrap_or_default();
        Paced { stream: stream.take(PIECE), left, unsent }
    }
}

impl<S> Paced<S> {
    fn noted<T>(&self, sent: Poll<T>) -> Poll<T> {
        self.unsent.store(sent.is_pending(), Ordering::Relaxed);
        sent
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Paced { stream, left, .. } = &mut *self;
        let Some(left) = left else { return Pin::new(stream.get_mut()).poll_read(cx, buf) };
        let may = left.load(Ordering::Relaxed);
        if may == 0 {
            // Continues in the next run.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        stream.set_limit(may);
        let read = Pin::new(&mut *stream).poll_read(cx, buf);
        left.store(stream.limit(), Ordering::Relaxed);
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(self.stream.get_mut()).poll_write(cx, buf);
        self.noted(written)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(self.stream.get_mut()).poll_write_vectored(cx, bufs);
        self.noted(written)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.get_ref().is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(self.stream.get_mut()).poll_flush(cx);
        self.noted(flushed)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::task::Waker;

    use tokio::io::AsyncWriteExt;

    use super::super::{ConnectionLimiter, Limits};
    use super::*;
    use podwright_api::User;

    fn guest() -> (super::super::Pass, Guest) {
        let pass = ConnectionLimiter::new(&Limits::default()).admit([10, 0, 0, 1].into()).unwrap();
        let guest = pass.guest();
        (pass, guest)
    }

    #[tokio::test]
    async fn what_is_no_request_is_read_piece_by_piece_on_the_account_of_who_sends_it() {
        let (cpu, (_pass, guest)) = (CpuScheduler::new(&Limits::default()), guest());
        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(&[0; 1 << 20]).await.unwrap();
        let mut runs = Runs::apart(&cpu, &guest);
        let mut stream = Paced::new(server, Some(&runs));
        let mut context = Context::from_waker(Waker::noop());
        let has_used_much = |cpu: &Arc<CpuScheduler>, share: fn(&Arc<CpuScheduler>) -> Share| {
            share(cpu).turn(&mut Context::from_waker(Waker::noop())).is_pending()
        };
        let by_address = |cpu: &Arc<CpuScheduler>| cpu.share_at([10, 0, 0, 1].into());
        let ann = |cpu: &Arc<CpuScheduler>| cpu.share(&User::new("ann", ["people"]));
        let read = Cell::new(0);
        for run in 1..=4 {
            let mut all = pin!(async {
                let mut piece = [0; 5000];
                loop {
                    read.set(read.get() + stream.read(&mut piece).await.unwrap() as u64);
                    std::thread::sleep(Duration::from_millis(8));
                }
            });
            // After many bytes, others go first.
            let before = read.get();
            while runs.poll(all.as_mut(), &mut context).is_pending() && read.get() == before {}
            assert_eq!(read.get(), run * PIECE);
            if run == 2 {
                assert!(has_used_much(&cpu, by_address) && !has_used_much(&cpu, ann));
                guest.known(&User::new("ann", ["people"])).unwrap();
            }
        }
        assert!(has_used_much(&cpu, ann), "since he is known it is his");
    }

    #[tokio::test]
    async fn what_is_around_requests_is_the_connections_and_they_are_their_users() {
        let (cpu, (_pass, guest)) = (CpuScheduler::new(&Limits::default()), guest());
        let (bob, ann) = (User::new("bob", ["people"]), User::new("ann", ["people"]));
        let mut runs = Runs::around(&cpu, &guest);
        let requests = runs.requests();
        let has_used_much = |mut share: Share| share.turn(&mut Context::from_waker(Waker::noop())).is_pending();
        let by_address = || cpu.share_at([10, 0, 0, 1].into());
        let run = async |runs: &mut Runs, own: u64, of_request: u64| {
            let mut task = pin!(async {
                std::thread::sleep(Duration::from_millis(own));
                let _asked = requests.begun();
                cpu.measured(&bob, async { std::thread::sleep(Duration::from_millis(of_request)) }).await;
            });
            std::future::poll_fn(|cx| runs.poll(task.as_mut(), cx)).await;
        };
        run(&mut runs, 1, 200).await;
        assert!(has_used_much(cpu.share(&bob)) && !has_used_much(by_address()));
        run(&mut runs, 200, 0).await;
        assert!(has_used_much(by_address()) && !has_used_much(cpu.share(&ann)));
        guest.known(&ann).unwrap();
        run(&mut runs, 200, 0).await;
        assert!(has_used_much(cpu.share(&ann)), "since he is known it is his");
        // The connection may be upgraded: then reads belong to no run.
        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(&[0; 1 << 20]).await.unwrap();
        let mut all = vec![0; 1 << 20];
        Paced::new(server, Some(&runs)).read_exact(&mut all).await.unwrap();
    }
}

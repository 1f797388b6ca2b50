//! Response bodies as connections send them, and what happens to those that clients do not read.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{PIECE, Pace, Room, Stuck};
use crate::rest::reply::{BodyError, HttpBody};

/// A connection may keep a piece of at most this many unread responses: 1 MiB.
const STUCK: usize = 16;

/// How long a client may leave a response unread, and how to end its connection, which keeps what it was handed.
#[derive(Clone)]
pub(crate) struct Patience {
    stalled: Duration,
    /// The kernel cuts off what stands still; here only the pace counts.
    by_kernel: bool,
    end: CancellationToken,
    /// How many requests and responses the connection has, and how many of these are left unread for good.
    open: Arc<AtomicUsize>,
    stuck: Arc<AtomicUsize>,
    /// When the last request came, or a response was complete.
    active: Arc<Mutex<Instant>>,
}

impl Patience {
    /// For one connection.
    pub fn new(stalled: Duration, end: CancellationToken) -> Patience {
        let active = Arc::new(Mutex::new(Instant::now()));
        Patience { stalled, by_kernel: false, end, open: Arc::default(), stuck: Arc::default(), active }
    }

    /// For an HTTP/1 connection, which has one response at a time, and ends with it: what is unread blocks the connection.
    pub fn of_http1(stalled: Duration, end: CancellationToken) -> Patience {
        Patience { by_kernel: true, ..Patience::new(stalled, end) }
    }

    /// Counts one more request or response.
    pub fn open(&self) -> Counted {
        let mut counted = Counted::by(&self.open);
        counted.1 = Some(self.active.clone());
        *instant(&self.active) = Instant::now();
        counted
    }

    /// For how long nothing came or completed.
    fn quiet(&self) -> Duration {
        instant(&self.active).elapsed()
    }

    fn are_too_many(&self) -> bool {
        self.stuck.load(Ordering::Relaxed) > STUCK
    }

    fn are_all(&self) -> bool {
        self.stuck.load(Ordering::Relaxed) >= self.open.load(Ordering::Relaxed)
    }
}

/// Counted for as long as it exists.
pub(crate) struct Counted(Arc<AtomicUsize>, Option<Arc<Mutex<Instant>>>);

impl Counted {
    fn by(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count.clone(), None)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
        self.1.iter().for_each(|active| *instant(active) = Instant::now());
    }
}

fn instant(of: &Mutex<Instant>) -> MutexGuard<'_, Instant> {
    // Each change is atomic.
    of.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A body that is sent in pieces. It releases its room when all of it is written; if dropped early, at once, except for what the
/// connection was handed.
struct Sent {
    outgoing: Arc<Mutex<Outgoing>>,
}

/// It ends with the body and its last piece.
struct Overseer {
    task: AbortHandle,
    _open: Counted,
}

impl Drop for Overseer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How many bytes of a response the connection holds unwritten, and their room once the body no longer needs it.
#[derive(Default)]
struct Lying(Mutex<(usize, Option<Room>)>);

impl Lying {
    fn lock(&self) -> MutexGuard<'_, (usize, Option<Room>)> {
        // Each change is atomic.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The body is gone.
    fn keep(&self, mut room: Room) {
        let mut lying = self.lock();
        room.hold(lying.0);
        lying.1 = (lying.0 > 0).then_some(room);
    }
}

/// A piece that a connection holds until it is written.
struct Handed {
    bytes: Bytes,
    lying: Arc<Lying>,
    _here: Arc<()>,
    _overseer: Arc<Overseer>,
}

impl Drop for Handed {
    fn drop(&mut self) {
        let mut lying = self.lying.lock();
        lying.0 -= self.bytes.len();
        let left = lying.0;
        lying.1.iter_mut().for_each(|room| room.shrink(left));
    }
}

impl AsRef<[u8]> for Handed {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

struct Outgoing {
    body: Option<HttpBody>,
    /// What the body produced and the connection has not taken yet, and whether that was more than a piece.
    rest: Bytes,
    in_pieces: bool,
    room: Option<Room>,
    /// It is read too slowly.
    slow: Option<Stuck>,
    pace: Pace,
    lying: Arc<Lying>,
    /// When the connection last polled, and whether that found nothing.
    asked: Instant,
    idle: bool,
    cut: bool,
    overseer: Option<Arc<Overseer>>,
    /// When the last piece was handed on, and that piece while it is unwritten.
    handed: (Instant, Weak<()>),
}

/// A body that holds its room until it is sent. With patience, one that is left unread for that long is dropped with an error, as
/// is one that is read too slowly for that long when its room is needed; if it, or what was handed on of it, is still there after
/// as long again, it is stuck. A connection ends if it has many stuck bodies, if it has had nothing else for as long again, or if
/// the room of one is needed.
pub(crate) fn sent(body: HttpBody, room: Option<Arc<Room>>, patience: Option<Patience>) -> HttpBody {
    let (asked, rest, lying) = (Instant::now(), Bytes::new(), Arc::default());
    // It was shared only to be passed on.
    let room = room.and_then(Arc::into_inner);
    let counts = room.as_ref().is_some_and(|room| !room.user.is_empty());
    let patience = patience.filter(|patience| !patience.by_kernel || counts);
    let (in_pieces, idle, cut, overseer, handed) = (false, false, false, None, (asked, Weak::new()));
    let (body, slow, pace) = (Some(body), None, Pace::new(asked));
    let outgoing = Outgoing { body, rest, in_pieces, room, slow, pace, lying, asked, idle, cut, overseer, handed };
    let outgoing = Arc::new(Mutex::new(outgoing));
    if let Some(patience) = patience {
        let (weak, lying, _open) = (Arc::downgrade(&outgoing), lock(&outgoing).lying.clone(), patience.open());
        let task = tokio::spawn(oversee(weak, lying, patience)).abort_handle();
        lock(&outgoing).overseer = Some(Arc::new(Overseer { task, _open }));
    }
    Sent { outgoing }.boxed_unsync()
}

async fn oversee(outgoing: Weak<Mutex<Outgoing>>, lying: Arc<Lying>, patience: Patience) {
    let (stalled, wanted) = (patience.stalled, CancellationToken::new());
    let is_cut = loop {
        let Some(strong) = outgoing.upgrade() else { break false };
        let now = Instant::now();
        let next = {
            let mut outgoing = lock(&strong);
            let waits = outgoing.waits_since().filter(|_| !patience.by_kernel);
            let due = waits.unwrap_or(now) + stalled;
            if due <= now || wanted.is_cancelled() {
                outgoing.cut_off();
                break true;
            }
            outgoing.look_at_pace(now, stalled, &wanted);
            due.min(outgoing.pace.due(stalled))
        };
        drop(strong);
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = wanted.cancelled() => {}
        }
    };
    if is_cut && patience.by_kernel {
        return patience.end.cancel();
    }
    tokio::time::sleep(stalled).await;
    let _on_account = lying.lock().1.as_mut().and_then(|room| room.stuck(0, &patience.end));
    if patience.by_kernel {
        // All is handed on. It ends when its room is needed, or with the last piece.
        return std::future::pending().await;
    }
    let _stuck = Counted::by(&patience.stuck);
    // A paused stream does not affect others of its connection, and may go on.
    while !patience.are_too_many() {
        tokio::time::sleep(stalled).await;
        if patience.are_all() && patience.quiet() >= stalled {
            break;
        }
    }
    patience.end.cancel();
}

fn lock(outgoing: &Mutex<Outgoing>) -> MutexGuard<'_, Outgoing> {
    // A body that panicked is not polled again: the connection ends with its task.
    outgoing.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Outgoing {
    fn cut_off(&mut self) {
        self.cut = true;
        self.rest = Bytes::new();
        self.end();
    }

    /// One that is read too slowly counts as unread until it is read faster. (A streamed response has no room of its own; its
    /// user's is the backlog, which ends with it.)
    fn look_at_pace(&mut self, now: Instant, period: Duration, wanted: &CancellationToken) {
        let is_slow = self.pace.is_slow(now, period) && !self.idle;
        match (&mut self.room, &self.slow) {
            (Some(room), None) if is_slow => {
                let beside = if room.bytes == 0 { self.rest.len().max(1) } else { 0 };
                self.slow = room.stuck(beside, wanted);
            }
            (_, Some(_)) if !is_slow => self.slow = None,
            _ => {}
        }
    }

    /// Nothing more comes from the body: only what the connection holds still needs room.
    fn end(&mut self) {
        // The rest may be larger than its room.
        (self.body, self.slow) = (None, None);
        if let Some(room) = self.room.take() {
            self.lying.keep(room);
        }
    }

    /// Since when the client has read nothing; `None` if there is nothing to read.
    fn waits_since(&self) -> Option<Instant> {
        let (handed, here) = &self.handed;
        match self.idle {
            false => Some(self.asked),
            true => (here.strong_count() > 0).then_some(*handed),
        }
    }

    fn piece(&mut self) -> Frame<Bytes> {
        let bytes = self.rest.split_to(self.rest.len().min(PIECE));
        self.pace.take(bytes.len());
        let Some(overseer) = &self.overseer else { return Frame::data(bytes) };
        // A stuck piece must not keep the whole allocation alive, as only the piece's own room is left by then.
        let bytes = if self.in_pieces { Bytes::copy_from_slice(&bytes) } else { bytes };
        let here = Arc::new(());
        self.handed = (Instant::now(), Arc::downgrade(&here));
        self.lying.lock().0 += bytes.len();
        let lying = self.lying.clone();
        Frame::data(Bytes::from_owner(Handed { bytes, lying, _here: here, _overseer: overseer.clone() }))
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.end();
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut outgoing = lock(&self.outgoing);
        let outgoing = &mut *outgoing;
        outgoing.asked = Instant::now();
        if outgoing.cut {
            return Poll::Ready(Some(Err(std::io::ErrorKind::TimedOut.into())));
        }
        if !outgoing.rest.is_empty() {
            return Poll::Ready(Some(Ok(outgoing.piece())));
        }
        let Some(body) = outgoing.body.as_mut() else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(cx);
        outgoing.idle = polled.is_pending();
        match polled {
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(match frame.into_data() {
                Ok(data) => {
                    (outgoing.in_pieces, outgoing.rest) = (data.len() > PIECE, data);
                    outgoing.piece()
                }
                Err(trailers) => trailers,
            }))),
            Poll::Ready(None) => {
                outgoing.idle = true;
                outgoing.end();
                Poll::Ready(None)
            }
            other => other,
        }
    }

    fn is_end_stream(&self) -> bool {
        let outgoing = lock(&self.outgoing);
        !outgoing.cut && outgoing.rest.is_empty() && outgoing.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let outgoing = lock(&self.outgoing);
        let rest = outgoing.rest.len() as u64;
        let of_body = outgoing.body.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower().saturating_add(rest));
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

#[cfg(test)]
mod tests;

//! Receive windows: how much is buffered for each stream of a connection whose protocol has no flow control.
//!
//! Clients send on all streams regardless of the readers. So each stream has a window of buffered bytes, and all of a connection
//! share a budget. A full window would block what follows on the connection, possibly other streams (of a port forward). So there
//! is an overdraft: messages without room go there, at a limited rate, and what follows can be read. It suffices for as long as a
//! stream may stall; then that stream is reset, and the others go on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::limits::Charge;

/// The most bytes buffered for all streams of a connection, and for one of them; a single message may be larger. The minimum charge
/// of a message bounds their number.
pub const BUDGET: usize = 2 << 20;
pub const WINDOW: usize = BUDGET / 8;
pub const LEAST: usize = 256;
/// The most additional bytes if other streams are waiting: of a connection, and of all connections of this process. The buffers of
/// the client and the kernel may hold some MiB ahead of the others' data: a small part of it.
pub const OVERDRAFT: usize = 32 << 20;
static ALL_OVERDRAFTS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(2 * OVERDRAFT)));
/// A single stream blocks only streams that do not exist yet: it may stall this many times longer. With a port forward's stall that
/// is less than the 30 s that clients wait for a new stream.
pub const ALONE: u32 = 10;

/// The reading end of a stream.
pub struct Reader {
    pieces: mpsc::UnboundedReceiver<Piece>,
    /// The last piece's room, held until the next piece is requested.
    taken: Option<(Room, Option<Charge>)>,
    reads: Arc<AtomicU64>,
    reset: CancellationToken,
}

/// Bytes of a stream, their room in the connection, and their charge to the user.
type Piece = (Bytes, (Room, Option<Charge>));

/// Permits of the stream's window and the connection's budget; or of the connection's overdraft and the process'.
type Room = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Reader {
    /// The next bytes; `None` when the client has finished the stream, or it was reset.
    pub async fn read(&mut self) -> Option<Bytes> {
        self.taken = None;
        self.reads.fetch_add(1, Ordering::Relaxed);
        let (bytes, taken) = tokio::select! {
            biased;
            () = self.reset.cancelled() => return None,
            piece = self.pieces.recv() => piece?,
        };
        self.taken = Some(taken);
        Some(bytes)
    }

    /// Cancelled when it was reset, because it stalled or by the client: its data is incomplete.
    pub fn reset(&self) -> CancellationToken {
        self.reset.clone()
    }
}

/// The streams of one connection.
pub struct Windows {
    /// Those that the client has not finished.
    open: HashMap<u32, mpsc::UnboundedSender<Piece>>,
    /// Those still in use, whether the client has finished them or not.
    used: HashMap<u32, Used>,
    stall: Option<Duration>,
    budget: Arc<Semaphore>,
    overdraft: Overdraft,
}

/// A stream from the point of view of the connection's reader.
struct Used {
    window: Arc<Semaphore>,
    /// How often its reader has asked for more.
    reads: Weak<AtomicU64>,
    reset: CancellationToken,
    /// That number when a message first found no room, and when that was.
    stands: Option<(u64, Instant)>,
}

impl Used {
    fn held(&self) -> usize {
        WINDOW.saturating_sub(self.window.available_permits())
    }

    /// Checks whether the reader has asked for more since the last check.
    fn look(&mut self, now: Instant) {
        let reads = self.reads.upgrade().map(|reads| reads.load(Ordering::Relaxed));
        self.stands = match (reads.filter(|_| self.held() > 0), self.stands) {
            (Some(reads), Some((before, since))) if reads == before => Some((before, since)),
            (reads, _) => reads.map(|reads| (reads, now)),
        };
    }
}

/// What is buffered beyond the windows.
struct Overdraft {
    own: Arc<Semaphore>,
    /// When it accepts the next message: the rate makes it last for a stall.
    next: Instant,
}

impl Overdraft {
    /// Room for a message, if available; or when to try again.
    fn take(&mut self, bytes: usize, stall: Duration, now: Instant) -> Result<Room, Option<Instant>> {
        // Timers have millisecond resolution, too coarse for each small message.
        if self.next > now + Duration::from_millis(1) {
            return Err(Some(self.next));
        }
        // A message is smaller than the budget.
        let wanted = bytes.max(LEAST) as u32;
        let of = |semaphore: &Arc<Semaphore>| semaphore.clone().try_acquire_many_owned(wanted).map_err(|_| None);
        let room = (of(&self.own)?, of(&ALL_OVERDRAFTS)?);
        self.next = self.next.max(now) + stall.mul_f64(f64::from(wanted) / OVERDRAFT as f64);
        Ok(room)
    }
}

impl Windows {
    /// `stall`: how long a stream may accept no data while it blocks others; `None`: forever.
    pub fn new(stall: Option<Duration>) -> Windows {
        let overdraft = Overdraft { own: Arc::new(Semaphore::new(OVERDRAFT)), next: Instant::now() };
        let budget = Arc::new(Semaphore::new(BUDGET));
        Windows { open: HashMap::new(), used: HashMap::new(), stall, budget, overdraft }
    }

    pub fn len(&self) -> usize {
        self.open.len()
    }
    pub fn contains(&self, id: u32) -> bool {
        self.open.contains_key(&id)
    }

    /// Opens a stream; one that is `finished` already has nothing to read.
    pub fn open(&mut self, id: u32, finished: bool) -> Reader {
        // Nobody reads them any more.
        self.open.retain(|_, pieces| !pieces.is_closed());
        let (sender, pieces) = mpsc::unbounded_channel();
        let (reads, reset) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        if !finished {
            self.open.insert(id, sender);
        }
        self.used.retain(|_, used| used.reads.strong_count() > 0);
        let window = Arc::new(Semaphore::new(WINDOW));
        self.used.insert(id, Used { window, reads: Arc::downgrade(&reads), reset: reset.clone(), stands: None });
        Reader { pieces, taken: None, reads, reset }
    }

    /// The client resets it in both directions. If all streams belong together, only its input ends.
    pub fn reset(&mut self, id: u32) {
        self.open.remove(&id);
        if let Some(used) = self.used.remove(&id).filter(|_| self.stall.is_some()) {
            used.reset.cancel();
        }
    }

    /// The client sends nothing more on it.
    pub fn finish(&mut self, id: u32) {
        self.open.remove(&id);
    }

    /// Removes it if nobody reads it any more.
    pub fn sweep(&mut self, id: u32) {
        if self.open.get(&id).is_some_and(|pieces| pieces.is_closed()) {
            self.open.remove(&id);
        }
    }

    /// Puts a message, at most as large as the budget, into a stream's window; waits until there is room, or nobody reads it any
    /// more. `Some`: that stream was reset, and the message still waits. `charge` is its user's, for as long as it waits.
    pub async fn hand_over(&mut self, id: u32, payload: &Bytes, charge: &mut Option<Charge>) -> Option<u32> {
        loop {
            let (pieces, used) = (self.open.get(&id)?.clone(), self.used.get(&id)?);
            let (window, budget, bytes) = (used.window.clone(), self.budget.clone(), payload.len());
            // The window is taken last: what is taken of it is available to its reader.
            let room = async move {
                let all = budget.acquire_many_owned(bytes as u32).await.ok()?;
                Some((window.acquire_many_owned(bytes.clamp(LEAST, WINDOW) as u32).await.ok()?, all))
            };
            let mut room = std::pin::pin!(room);
            let found = match room.as_mut().now_or_never() {
                Some(found) => found,
                None => {
                    let again = match self.overdrawn(id, bytes) {
                        Found::Room(room) => {
                            let _ = pieces.send((payload.clone(), (room, charge.take())));
                            return None;
                        }
                        Found::Culprit(culprit) => return Some(culprit),
                        Found::None(again) => again,
                    };
                    let again = async {
                        match again {
                            Some(again) => tokio::time::sleep_until(again).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        biased;
                        found = room => found,
                        () = pieces.closed() => return None,
                        () = again => continue,
                    }
                }
            };
            // The semaphores are never closed. The reader may be gone.
            let _ = pieces.send((payload.clone(), (found?, charge.take())));
            return None;
        }
    }

    /// Decides on a message that finds no room.
    fn overdrawn(&mut self, id: u32, bytes: usize) -> Found {
        let Some(stall) = self.stall else { return Found::None(None) };
        let (now, others) = (Instant::now(), self.open.len() > 1);
        self.used.values_mut().for_each(|used| used.look(now));
        // The stream whose window is full, or else the one that holds most of the budget.
        let own = self.used.get(&id).is_some_and(|used| used.held() + bytes.min(WINDOW) > WINDOW);
        let most = || self.used.iter().max_by_key(|(_, used)| used.held()).map(|(id, _)| *id);
        let culprit = if own { Some(id) } else { most() };
        let stands = culprit.and_then(|id| Some((id, self.used.get(&id)?.stands?.1)));
        let patience = if others { stall } else { stall * ALONE };
        let ends = stands.map_or(now + patience, |(_, since)| since + patience);
        if let Some((culprit, _)) = stands.filter(|_| ends <= now) {
            tracing::info!(
                "stream {culprit} of a client's connection takes nothing and holds up the others: it is reset"
            );
            self.reset(culprit);
            return Found::Culprit(culprit);
        }
        // A single stream only blocks itself: it need not be buffered.
        let overdraft = if others { self.overdraft.take(bytes, stall, now) } else { Err(None) };
        match overdraft {
            Ok(room) => Found::Room(room),
            Err(again) => Found::None(Some(again.map_or(ends, |again| again.min(ends)))),
        }
    }
}

/// The decision on a message that does not fit its stream's window.
enum Found {
    Room(Room),
    /// This stream was reset.
    Culprit(u32),
    /// Nothing before that time.
    None(Option<Instant>),
}

#[cfg(test)]
mod tests;

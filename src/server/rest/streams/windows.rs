//! Windows of what clients send: how much waits for the reader of each stream of a connection whose protocol has no flow control.
//!
//! Such a client sends on all streams whatever the other end reads. So each stream has a window of bytes that wait for its reader, and
//! all of a connection have a budget. Who has filled its window would hold up what comes behind it on the connection, which may be
//! others' (a port forward's). So there is an overdraft: what finds no room is taken into it, at a pace, and what is behind is reached.
//! It lasts for as long as a stream may take nothing; then that one is reset, and the others go on.

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

/// How many bytes may wait for the readers of all streams of a connection, and for one of them; any one message may. What a message
/// takes of its stream's at least bounds how many wait.
pub const BUDGET: usize = 2 << 20;
pub const WINDOW: usize = BUDGET / 8;
pub const LEAST: usize = 256;
/// How many bytes more may wait where there are others behind them: of a connection, and of all connections of this process. What
/// lies in a client's and the kernel's buffers before the others' is some MiB: a small part of it.
pub const OVERDRAFT: usize = 32 << 20;
static ALL_OVERDRAFTS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(2 * OVERDRAFT)));
/// A stream that is alone holds up those that do not exist yet: it may stall so many times longer. With the stall of a port forward
/// that is less than the 30 s for which clients wait until a new stream is answered.
pub const ALONE: u32 = 10;

/// The reader's end of a stream.
pub struct Reader {
    pieces: mpsc::UnboundedReceiver<Piece>,
    /// Of the piece that was read last: until the next is wanted, it is on its way.
    taken: Option<(Room, Option<Charge>)>,
    reads: Arc<AtomicU64>,
    reset: CancellationToken,
}

/// Bytes of a stream, what they take of the connection's room, and of what their user may have in memory.
type Piece = (Bytes, (Room, Option<Charge>));

/// Of the stream's window and the connection's budget; or of the connection's overdraft and everybody's.
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

    /// Cancelled when it was reset: because it took nothing, or by the client. What comes of it is not all.
    pub fn reset(&self) -> CancellationToken {
        self.reset.clone()
    }
}

/// The streams of one connection.
pub struct Windows {
    /// Those that the client has not finished.
    open: HashMap<u32, mpsc::UnboundedSender<Piece>>,
    /// Those that are used still, whether the client has finished them or not.
    used: HashMap<u32, Used>,
    stall: Option<Duration>,
    budget: Arc<Semaphore>,
    overdraft: Overdraft,
}

/// A stream as the connection's reader knows it.
struct Used {
    window: Arc<Semaphore>,
    /// How many times its own reader came for more.
    reads: Weak<AtomicU64>,
    reset: CancellationToken,
    /// How many times it had come when something waited for it and there was no room, and since when that is so.
    stands: Option<(u64, Instant)>,
}

impl Used {
    fn held(&self) -> usize {
        WINDOW.saturating_sub(self.window.available_permits())
    }

    /// Looks whether the reader has come for more since the last look.
    fn look(&mut self, now: Instant) {
        let reads = self.reads.upgrade().map(|reads| reads.load(Ordering::Relaxed));
        self.stands = match (reads.filter(|_| self.held() > 0), self.stands) {
            (Some(reads), Some((before, since))) if reads == before => Some((before, since)),
            (reads, _) => reads.map(|reads| (reads, now)),
        };
    }
}

/// What waits for readers beside their windows.
struct Overdraft {
    own: Arc<Semaphore>,
    /// When it takes the next message: all of it lasts for a stall.
    next: Instant,
}

impl Overdraft {
    /// Room for a message, if there is any; or when to ask again.
    fn take(&mut self, bytes: usize, stall: Duration, now: Instant) -> Result<Room, Option<Instant>> {
        // Timers are of milliseconds, which is no time to wait for each small message.
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
    /// `stall`: for how long a stream may take nothing while it holds up others; `None`: for ever.
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

    /// A stream begins; one that is `finished` already has nothing to read.
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

    /// The client wants nothing more of it, in either direction. Where all streams are one's that is the end of its input alone.
    pub fn reset(&mut self, id: u32) {
        self.open.remove(&id);
        if let Some(used) = self.used.remove(&id).filter(|_| self.stall.is_some()) {
            used.reset.cancel();
        }
    }

    /// The client sends nothing more by it.
    pub fn finish(&mut self, id: u32) {
        self.open.remove(&id);
    }

    /// Forgets it if nobody reads it any more.
    pub fn sweep(&mut self, id: u32) {
        if self.open.get(&id).is_some_and(|pieces| pieces.is_closed()) {
            self.open.remove(&id);
        }
    }

    /// Puts a message, which is no larger than the budget, into a stream's window; waits until there is room, or nobody wants it any more.
    /// `Some`: that stream was reset, and the message still waits. `charge` is what it takes on its user's account, as long as it waits.
    pub async fn hand_over(&mut self, id: u32, payload: &Bytes, charge: &mut Option<Charge>) -> Option<u32> {
        loop {
            let (pieces, used) = (self.open.get(&id)?.clone(), self.used.get(&id)?);
            let (window, budget, bytes) = (used.window.clone(), self.budget.clone(), payload.len());
            // The window comes last: what of it is taken is waiting for its reader.
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
            // Neither semaphore is ever closed. A reader that has gone wants nothing.
            let _ = pieces.send((payload.clone(), (found?, charge.take())));
            return None;
        }
    }

    /// What becomes of a message that finds no room.
    fn overdrawn(&mut self, id: u32, bytes: usize) -> Found {
        let Some(stall) = self.stall else { return Found::None(None) };
        let (now, others) = (Instant::now(), self.open.len() > 1);
        self.used.values_mut().for_each(|used| used.look(now));
        // Whose window is full, or else who holds most of the budget.
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
        // One that is alone is held up by itself: it need not be kept.
        let overdraft = if others { self.overdraft.take(bytes, stall, now) } else { Err(None) };
        match overdraft {
            Ok(room) => Found::Room(room),
            Err(again) => Found::None(Some(again.map_or(ends, |again| again.min(ends)))),
        }
    }
}

/// What a message has found that does not fit its stream's window.
enum Found {
    Room(Room),
    /// It was reset.
    Culprit(u32),
    /// Nothing, before that time.
    None(Option<Instant>),
}

#[cfg(test)]
mod tests;

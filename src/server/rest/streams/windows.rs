//! Windows of what clients send: how much waits for the reader of each stream of a connection whose protocol has no flow control.
//!
//! Such a client sends on all streams whatever the other end reads. So each stream has a window of bytes that wait for its reader, and
//! all of a connection have a budget. Who has filled its window holds up what comes behind it on the connection: where that is others'
//! (a port forward's), one that takes nothing for a while is reset, and the others go on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::server::limits::Charge;

/// How many bytes may wait for the readers of all streams of a connection, and for one of them; any one message may. What a message
/// takes of its stream's at least bounds how many wait.
pub const BUDGET: usize = 2 << 20;
pub const WINDOW: usize = BUDGET / 8;
pub const LEAST: usize = 256;
/// A stream that is alone holds up those that do not exist yet: it may stall so many times longer. With the stall of a port forward
/// that is less than the 30 s for which clients wait until a new stream is answered.
pub const ALONE: u32 = 10;

/// The reader's end of a stream.
pub struct Reader {
    pieces: mpsc::UnboundedReceiver<Piece>,
    /// Of the piece that was read last: until the next is wanted, it is on its way.
    taken: Option<Room>,
    reads: Arc<AtomicU64>,
    reset: CancellationToken,
}

/// Bytes of a stream, and what they take.
type Piece = (Bytes, Room);

/// Of the stream's window, of the connection's budget, and of what its user may have in memory.
type Room = (OwnedSemaphorePermit, OwnedSemaphorePermit, Option<Charge>);

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

/// The streams of one connection that the client has not finished.
pub struct Windows {
    open: HashMap<u32, Open>,
    /// Those that are used still, whether the client has finished them or not.
    resets: HashMap<u32, (Weak<AtomicU64>, CancellationToken)>,
    stall: Option<Duration>,
    budget: Arc<Semaphore>,
}

/// A stream as the connection's reader knows it.
struct Open {
    pieces: mpsc::UnboundedSender<Piece>,
    window: Arc<Semaphore>,
    /// How many times its own reader came for more.
    reads: Arc<AtomicU64>,
    reset: CancellationToken,
}

impl Open {
    fn held(&self) -> usize {
        WINDOW.saturating_sub(self.window.available_permits())
    }
}

impl Windows {
    /// `stall`: for how long a stream may take nothing while it holds up others; `None`: for ever.
    pub fn new(stall: Option<Duration>) -> Windows {
        Windows { open: HashMap::new(), resets: HashMap::new(), stall, budget: Arc::new(Semaphore::new(BUDGET)) }
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
        self.open.retain(|_, open| !open.pieces.is_closed());
        let (sender, pieces) = mpsc::unbounded_channel();
        let (reads, reset) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        if !finished {
            let (window, reads, reset) = (Arc::new(Semaphore::new(WINDOW)), reads.clone(), reset.clone());
            self.open.insert(id, Open { pieces: sender, window, reads, reset });
        }
        self.resets.retain(|_, (reads, _)| reads.strong_count() > 0);
        self.resets.insert(id, (Arc::downgrade(&reads), reset.clone()));
        Reader { pieces, taken: None, reads, reset }
    }

    /// The client wants nothing more of it, in either direction. Where all streams are one's that is the end of its input alone.
    pub fn reset(&mut self, id: u32) {
        self.open.remove(&id);
        if let Some((_, reset)) = self.resets.remove(&id).filter(|_| self.stall.is_some()) {
            reset.cancel();
        }
    }

    /// The client sends nothing more by it.
    pub fn finish(&mut self, id: u32) {
        self.open.remove(&id);
    }

    /// Forgets it if nobody reads it any more.
    pub fn sweep(&mut self, id: u32) {
        if self.open.get(&id).is_some_and(|open| open.pieces.is_closed()) {
            self.open.remove(&id);
        }
    }

    /// Puts a message, which is no larger than the budget, into a stream's window; waits until there is room, or nobody wants it any more.
    /// `Some`: that stream was reset, and the message still waits. `charge` is what it takes on its user's account, as long as it waits.
    pub async fn hand_over(&mut self, id: u32, payload: &Bytes, charge: &mut Option<Charge>) -> Option<u32> {
        loop {
            let open = self.open.get(&id)?;
            let room = async {
                let own = payload.len().clamp(LEAST, WINDOW) as u32;
                let own = open.window.clone().acquire_many_owned(own).await.ok()?;
                let all = self.budget.clone().acquire_many_owned(payload.len() as u32).await.ok()?;
                Some((own, all))
            };
            let stalled = async {
                let Some(stall) = self.stall else { return std::future::pending().await };
                let before: HashMap<u32, u64> =
                    self.open.iter().map(|(id, open)| (*id, open.reads.load(Ordering::Relaxed))).collect();
                tokio::time::sleep(if self.open.len() > 1 { stall } else { stall * ALONE }).await;
                before
            };
            let before = tokio::select! {
                biased;
                // Neither semaphore is ever closed.
                room = room => {
                    // A reader that has gone wants nothing.
                    let (own, all) = room?;
                    let _ = open.pieces.send((payload.clone(), (own, all, charge.take())));
                    return None;
                }
                () = open.pieces.closed() => return None,
                before = stalled => before,
            };
            let own = open.held() + payload.len().min(WINDOW) > WINDOW;
            let most = || self.open.iter().max_by_key(|(_, open)| open.held()).map(|(id, _)| *id);
            let Some(culprit) = (if own { Some(id) } else { most() }) else { continue };
            let reads = self.open.get(&culprit).map(|open| open.reads.load(Ordering::Relaxed));
            if reads == before.get(&culprit).copied()
                && let Some(open) = self.open.remove(&culprit)
            {
                tracing::info!(
                    "stream {culprit} of a client's connection takes nothing and holds up the others: it is reset"
                );
                open.reset.cancel();
                return Some(culprit);
            }
        }
    }
}

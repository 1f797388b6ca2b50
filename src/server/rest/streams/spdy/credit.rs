//! Flow control towards clients that have none: their ping replies show how much they have read.
//!
//! Go's spdystream, which all Kubernetes clients use, reads a connection's frames in one loop and dispatches them to five workers:
//! a stream's frames by its number, pings in turn. A worker that waits for the reader of one stream queues 50 frames, then the loop
//! blocks, and with it every stream. So no worker is sent more than its queue holds: a ping's reply shows that its worker has read
//! everything sent to it before. An unread stream only blocks streams of the same worker. Pings go to all workers, so a blocked one
//! is not pinged forever: then those that have answered everything are trusted. A client that answers pings immediately is limited
//! to one window per round trip; one that never answers is not limited.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::{Notify, mpsc};

/// The workers of a client.
const WORKERS: usize = 5;
/// The most queued frames per worker, of its 50: data frames, and in total with other frames (pings, replies).
pub const WINDOW: u64 = 24;
pub const ROOM: u64 = 47;
/// After this many frames for a worker, all are pinged; at most this many pings may be unanswered by each.
pub const MARK: u64 = 12;
pub const ASKED: u64 = 16;
/// How long to wait for a client's first reply.
const FIRST: Duration = Duration::from_secs(1);

/// What a client's workers were sent, and what they have read.
#[derive(Default)]
pub struct Credit {
    workers: [Worker; WORKERS],
    /// The worker that gets the next ping.
    turn: usize,
    marks: VecDeque<Mark>,
    last: u32,
    answers: bool,
    deaf: bool,
}

/// Frames since the beginning, and unanswered pings.
#[derive(Clone, Copy, Default)]
struct Worker {
    sent: u64,
    marked: u64,
    read: u64,
    asked: u64,
}

/// A ping, and how much its worker has read when it is answered.
struct Mark {
    id: u32,
    worker: usize,
    sent: u64,
}

impl Credit {
    fn of(&self, stream: u32) -> &Worker {
        &self.workers[stream as usize % WORKERS]
    }

    /// Whether more data may be sent on this stream.
    pub fn has_room(&self, stream: u32) -> bool {
        let worker = self.of(stream);
        self.deaf || worker.sent - worker.read < WINDOW || (self.is_blind() && worker.asked == 0)
    }

    /// Whether a frame that cannot wait would block the client's loop.
    pub fn is_full(&self, stream: u32) -> bool {
        let worker = self.of(stream);
        !self.deaf && worker.asked > 0 && worker.sent - worker.read + worker.asked >= ROOM
    }

    /// The worker is blocked, and is not pinged again.
    fn is_blind(&self) -> bool {
        self.workers.iter().any(|worker| worker.asked >= ASKED)
    }

    /// A frame of this stream is sent.
    pub fn sent(&mut self, stream: u32) {
        self.workers[stream as usize % WORKERS].sent += 1;
    }

    /// A ping reply is sent, which also takes a worker's turn.
    pub fn turned(&mut self) {
        self.workers[self.turn].sent += 1;
        self.turn = (self.turn + 1) % WORKERS;
    }

    /// The pings that are due, one for each worker; empty if none is.
    pub fn round(&mut self) -> Vec<u32> {
        let due = self.workers.iter().any(|worker| worker.sent - worker.marked >= MARK);
        if self.deaf || !due || self.is_blind() {
            return Vec::new();
        }
        let ask = |credit: &mut Credit| {
            // A server's are even. They wrap after 2^31: none is outstanding that long.
            credit.last = credit.last.wrapping_add(2);
            let worker = &mut credit.workers[credit.turn];
            (worker.marked, worker.asked) = (worker.sent, worker.asked + 1);
            credit.marks.push_back(Mark { id: credit.last, worker: credit.turn, sent: worker.sent });
            credit.turn = (credit.turn + 1) % WORKERS;
            credit.last
        };
        (0..WORKERS).map(|_| ask(self)).collect()
    }

    /// One of our pings was answered; unknown ids are ignored.
    pub fn answered(&mut self, id: u32) {
        let Some(at) = self.marks.iter().position(|mark| mark.id == id) else { return };
        let Some(mark) = self.marks.remove(at) else { return };
        let worker = &mut self.workers[mark.worker];
        (worker.read, worker.asked) = (worker.read.max(mark.sent), worker.asked - 1);
        (self.answers, self.deaf) = (true, false);
    }

    /// The client never answered in time.
    fn gives_up(&mut self) {
        self.deaf = !self.answers;
    }
}

/// The single queue of frames to the client, in the order in which they are counted.
#[derive(Clone)]
pub struct Outlet {
    frames: mpsc::Sender<Bytes>,
    credit: Option<Arc<Shared>>,
}

#[derive(Default)]
struct Shared {
    credit: Mutex<Credit>,
    changed: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Credit> {
        // Counters stay consistent after a panic.
        self.credit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outlet {
    pub fn new(frames: mpsc::Sender<Bytes>, counted: bool) -> Outlet {
        Outlet { frames, credit: counted.then(Arc::default) }
    }

    /// Sends a frame that does not use a stream's queue at the client.
    pub async fn control(&self, frame: Bytes) -> io::Result<()> {
        self.frames.send(frame).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Sends a frame of a stream, after waiting for room at the client.
    pub async fn data(&self, stream: u32, frame: Bytes) -> io::Result<()> {
        let Some(shared) = &self.credit else { return self.control(frame).await };
        loop {
            let mut changed = std::pin::pin!(shared.changed.notified());
            changed.as_mut().enable();
            let permit = self.frames.reserve().await.map_err(|_| io::ErrorKind::BrokenPipe)?;
            let answers = {
                let mut credit = shared.lock();
                if credit.has_room(stream) {
                    credit.sent(stream);
                    permit.send(followed(frame, &credit.round()));
                    return Ok(());
                }
                // Replies use a worker's queue, too, and trigger no pings themselves.
                let round = credit.round();
                if !round.is_empty() {
                    permit.send(followed(Bytes::new(), &round));
                }
                credit.answers
            };
            if answers {
                tokio::select! {
                    () = changed => {}
                    () = self.frames.closed() => return Err(io::ErrorKind::BrokenPipe.into()),
                }
            } else if tokio::time::timeout(FIRST, changed).await.is_err() {
                shared.lock().gives_up();
            }
        }
    }

    /// Sends a frame of a stream without waiting, or drops it if the client has no room for it.
    pub async fn reply(&self, stream: u32, frame: Bytes) -> io::Result<()> {
        let Some(shared) = &self.credit else { return self.control(frame).await };
        let permit = self.frames.reserve().await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        let mut credit = shared.lock();
        if !credit.is_full(stream) {
            credit.sent(stream);
            permit.send(frame);
        }
        Ok(())
    }

    /// Answers a ping of the client.
    pub async fn ping(&self, frame: Bytes) -> io::Result<()> {
        let Some(shared) = &self.credit else { return self.control(frame).await };
        let permit = self.frames.reserve().await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        let mut credit = shared.lock();
        credit.turned();
        permit.send(frame);
        Ok(())
    }

    /// One of our pings was answered.
    pub async fn answered(&self, id: u32) -> io::Result<()> {
        let Some(shared) = &self.credit else { return Ok(()) };
        let permit = self.frames.reserve().await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        let mut credit = shared.lock();
        credit.answered(id);
        let round = credit.round();
        if !round.is_empty() {
            permit.send(followed(Bytes::new(), &round));
        }
        shared.changed.notify_waiters();
        Ok(())
    }
}

fn followed(frame: Bytes, pings: &[u32]) -> Bytes {
    if pings.is_empty() {
        return frame;
    }
    let mut all = BytesMut::from(frame);
    pings.iter().for_each(|id| all.extend_from_slice(&super::ping(*id)));
    all.freeze()
}

#[cfg(test)]
mod tests;

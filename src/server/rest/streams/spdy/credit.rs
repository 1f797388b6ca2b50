//! Flow control towards clients that have none: how much of what they were sent they have read, by their answers to pings.
//!
//! Go's spdystream, which all Kubernetes clients use, reads a connection's frames in one loop and hands them to five workers: those
//! of a stream to the one of its number, pings to each in turn. A worker that waits for the reader of one stream leaves 50 frames
//! behind it, then the loop stands, and with it every stream. So no worker is sent more than it has room for: a ping says, when its
//! answer comes, that its worker has read all that was sent to it before. A stream that nobody reads holds up those of its own worker
//! alone. Pings go to all workers, so one that stands is not asked without end: then those that have answered all are trusted. A
//! client that answers pings at once has no limit but a window per round trip; one that never does has none.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::{Notify, mpsc};

/// The workers of a client.
const WORKERS: usize = 5;
/// Frames that may wait for one of them, of its 50: of streams' bytes, and with the rest that it is sent (pings, replies).
pub const WINDOW: u64 = 24;
pub const ROOM: u64 = 47;
/// After so many frames for a worker all are asked whether they have read theirs; so many questions may wait for an answer of each.
pub const MARK: u64 = 12;
pub const ASKED: u64 = 16;
/// For how long the first answer of a client is awaited.
const FIRST: Duration = Duration::from_secs(1);

/// What a client's workers were sent, and what they have read.
#[derive(Default)]
pub struct Credit {
    workers: [Worker; WORKERS],
    /// Who gets the next ping.
    turn: usize,
    marks: VecDeque<Mark>,
    last: u32,
    answers: bool,
    deaf: bool,
}

/// Frames, counted from the beginning, and questions without an answer.
#[derive(Clone, Copy, Default)]
struct Worker {
    sent: u64,
    marked: u64,
    read: u64,
    asked: u64,
}

/// A ping, and what its worker has read once it is answered.
struct Mark {
    id: u32,
    worker: usize,
    sent: u64,
}

impl Credit {
    fn of(&self, stream: u32) -> &Worker {
        &self.workers[stream as usize % WORKERS]
    }

    /// Whether more bytes may be sent on this stream.
    pub fn has_room(&self, stream: u32) -> bool {
        let worker = self.of(stream);
        self.deaf || worker.sent - worker.read < WINDOW || (self.is_blind() && worker.asked == 0)
    }

    /// Whether a frame that cannot wait would make the client's loop wait.
    pub fn is_full(&self, stream: u32) -> bool {
        let worker = self.of(stream);
        !self.deaf && worker.asked > 0 && worker.sent - worker.read + worker.asked >= ROOM
    }

    /// A worker stands, and is not asked again.
    fn is_blind(&self) -> bool {
        self.workers.iter().any(|worker| worker.asked >= ASKED)
    }

    /// A frame of this stream is sent.
    pub fn sent(&mut self, stream: u32) {
        self.workers[stream as usize % WORKERS].sent += 1;
    }

    /// A ping is sent that says nothing: the answer to one of the client's own.
    pub fn turned(&mut self) {
        self.workers[self.turn].sent += 1;
        self.turn = (self.turn + 1) % WORKERS;
    }

    /// The pings, one for each worker, that are to be sent now; none if nothing is due.
    pub fn round(&mut self) -> Vec<u32> {
        let due = self.workers.iter().any(|worker| worker.sent - worker.marked >= MARK);
        if self.deaf || !due || self.is_blind() {
            return Vec::new();
        }
        let ask = |credit: &mut Credit| {
            // Those of a server are even. They come round after 2^31: none waits that long.
            credit.last = credit.last.wrapping_add(2);
            let worker = &mut credit.workers[credit.turn];
            (worker.marked, worker.asked) = (worker.sent, worker.asked + 1);
            credit.marks.push_back(Mark { id: credit.last, worker: credit.turn, sent: worker.sent });
            credit.turn = (credit.turn + 1) % WORKERS;
            credit.last
        };
        (0..WORKERS).map(|_| ask(self)).collect()
    }

    /// A ping of ours has come back; one that was never sent says nothing.
    pub fn answered(&mut self, id: u32) {
        let Some(at) = self.marks.iter().position(|mark| mark.id == id) else { return };
        let Some(mark) = self.marks.remove(at) else { return };
        let worker = &mut self.workers[mark.worker];
        (worker.read, worker.asked) = (worker.read.max(mark.sent), worker.asked - 1);
        (self.answers, self.deaf) = (true, false);
    }

    /// The first answer has been awaited long enough.
    fn gives_up(&mut self) {
        self.deaf = !self.answers;
    }
}

/// Where all frames of a connection are put that go to the client, in the order in which they are counted.
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
        // Counters are whole whoever has died.
        self.credit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outlet {
    pub fn new(frames: mpsc::Sender<Bytes>, counted: bool) -> Outlet {
        Outlet { frames, credit: counted.then(Arc::default) }
    }

    /// A frame that takes nothing of what the client reads stream by stream.
    pub async fn control(&self, frame: Bytes) -> io::Result<()> {
        self.frames.send(frame).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// A frame of a stream: it waits until the client has room for it.
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
                // Replies fill a worker's room too, and nobody has asked after them.
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

    /// A frame of a stream that does not wait. Where the client could not read it either, it is not sent.
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

    /// The answer to a ping of the client.
    pub async fn ping(&self, frame: Bytes) -> io::Result<()> {
        let Some(shared) = &self.credit else { return self.control(frame).await };
        let permit = self.frames.reserve().await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        let mut credit = shared.lock();
        credit.turned();
        permit.send(frame);
        Ok(())
    }

    /// A ping of ours has come back.
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

//! Answers on a JSON-RPC WebSocket that are not read yet: how many bytes are in memory, and for how long. (`messages` covers
//! incomplete input.)
//!
//! The library below queues answers and events of any size, and continues to read requests. So their bytes are counted here, from
//! creation until the connection has written them: answers keep their room (`Answers`) until then, and so do events beyond the
//! first piece; a watch's next event waits while too much precedes it, or its user has no room. Unanswered requests are counted as
//! well (`in_flight`), and at the limit reading pauses. A client that does not read is not read from either, and is cut off when it
//! takes less than a piece in the time that HTTP/2 allows for one. One that reads more slowly than REST's minimum keeps its data
//! until somebody needs the room: then it is cut off as well.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::answers::{Answers, PIECE, Pace, Room, Stuck};
use super::in_flight::InFlight;
use super::limits::{BodyBytes, Share};
use super::messages::Messages;
use podwright_api::User;

mod metered;

pub(super) use metered::Metered;

/// The most bytes of events queued for one connection, except for a single larger one, and how many of them need no room: REST
/// buffers as much.
const EVENTS: u64 = 4 << 20;
const FREE: u64 = PIECE as u64;
/// How often an event or message asks again for room that does not depend on its own connection.
const AGAIN: Duration = Duration::from_millis(100);
/// The most bytes of requests that are read while an answer waits to be written.
const REQUESTS: usize = 4 << 20;
/// The cost of parsing a byte of a message, which the library does in a task that cannot be measured.
const PARSING: Duration = Duration::from_nanos(2);
/// An answer that the library replaces with an error is never written. After this time without progress the debt is dropped.
const MOVED: Duration = Duration::from_secs(5);

/// The accounting of one connection.
pub(super) struct Unread {
    stalled: Duration,
    state: Mutex<State>,
    written: Notify,
    /// Data is pending again: its pace must be checked.
    begun: Notify,
}

struct State {
    /// It is a JSON-RPC WebSocket by now.
    counts: bool,
    /// What was read before the upgrade.
    before: Before,
    in_flight: InFlight,
    /// A message waits for others to be answered.
    held_up: bool,
    /// The accounting of its messages, until its reader takes it.
    messages: Option<(Messages, Share)>,
    closed: bool,
    /// Its client was too slow for too long.
    cut: bool,
    /// The total bytes promised, and how many are not written yet. Other written bytes (frame headers, errors) count as if
    /// promised: the count never exceeds what is in memory.
    promised: u64,
    owed: u64,
    /// Running calls: their answers are still to be sent.
    working: usize,
    /// Rooms, in the order of writing.
    rooms: VecDeque<Kept>,
    /// The write pace while data is pending; whether nothing checks it; and what is ended if it is too slow.
    pace: Pace,
    unseen: bool,
    slow: Option<CancellationToken>,
    /// Whether the last write blocked; when anything last moved.
    blocked: bool,
    moved: Instant,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// The room of an answer or event: the written position that frees it.
struct Kept {
    until: u64,
    room: Room,
    /// It is read too slowly.
    slow: Option<Stuck>,
}

impl Unread {
    pub fn new(stalled: Duration) -> Arc<Unread> {
        let (counts, messages, closed, cut, promised, owed) = Default::default();
        let (before, in_flight, held_up, working, rooms, slow, blocked, reader, writer) = Default::default();
        let now = Instant::now();
        let state = State {
            counts,
            before,
            in_flight,
            held_up,
            messages,
            closed,
            cut,
            promised,
            owed,
            working,
            rooms,
            pace: Pace::new(now),
            unseen: false,
            slow,
            blocked,
            moved: now,
            reader,
            writer,
        };
        Arc::new(Unread { stalled, state: Mutex::new(state), written: Notify::new(), begun: Notify::new() })
    }

    /// Whether nothing but the head of one request was read: frames start after it.
    pub fn is_new(&self) -> bool {
        self.lock().before == Before::WholeHead
    }

    /// Starts counting, for input and requests, too. The token is cancelled when its requests have made room for others.
    pub fn start(&self, messages: Messages, taken: BodyBytes, share: Share) -> CancellationToken {
        let mut state = self.lock();
        if !state.closed {
            (state.counts, state.messages) = (true, Some((messages, share)));
        }
        state.in_flight.start(taken)
    }

    /// Records that this many calls of a message run, until this is dropped. Report with `done` whether it will be answered.
    pub fn work(self: &Arc<Unread>, calls: usize) -> Working {
        let mut state = self.lock();
        state.working += 1;
        state.in_flight.batch(calls);
        Working { unread: self.clone(), calls, is_answered: false }
    }

    /// Records that this many messages were answered, or never will be.
    pub fn answered(&self, messages: usize) {
        let mut state = self.lock();
        (0..messages).for_each(|_| state.in_flight.answered());
        state.let_on();
    }

    /// Records an answer of this size; its room is freed once it is written, or nobody reads it any more.
    pub fn answer(&self, bytes: usize, room: Room) {
        let mut state = self.lock();
        if !state.closed && bytes > 0 {
            self.promise(&mut state, bytes as u64, Some(room));
        }
    }

    /// Adds bytes to be written.
    fn promise(&self, state: &mut State, bytes: u64, room: Option<Room>) {
        state.promise(bytes, room);
        if std::mem::take(&mut state.unseen) {
            self.begun.notify_one();
        }
    }

    /// Resolves when somebody needs the room of what is read too slowly. Called once per connection.
    pub async fn gives_way(&self) {
        let wanted = CancellationToken::new();
        loop {
            let due = self.lock().look_at_pace(Instant::now(), self.stalled, &wanted);
            let next = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => self.begun.notified().await,
                }
            };
            if wanted.run_until_cancelled(next).await.is_none() {
                return;
            }
        }
    }

    /// Waits until an event of this size may be sent to a user; false: the connection has ended.
    pub async fn event(&self, bytes: usize, answers: &Arc<Answers>, user: &User) -> bool {
        // If the client is slow, what waits here is unread as well, including its watch's backlog.
        let mut left = None;
        loop {
            let mut written = std::pin::pin!(self.written.notified());
            written.as_mut().enable();
            let patience = {
                let mut state = self.lock();
                state.forgive();
                if state.closed {
                    return false;
                }
                let owed = state.owed + bytes as u64;
                if state.owed == 0 || owed <= EVENTS {
                    let room = if owed <= FREE { Some(None) } else { answers.try_enter(user, bytes).map(Some) };
                    if let Some(room) = room {
                        self.promise(&mut state, bytes as u64, room);
                        return true;
                    }
                }
                left = match (&state.slow, left.take()) {
                    (Some(wanted), None) => answers.left_unread(user.counted_as(), bytes, wanted),
                    (slow, left) => left.filter(|_| slow.is_some()),
                };
                if state.owed == 0 { AGAIN } else { MOVED }
            };
            let _ = tokio::time::timeout(patience, written).await;
        }
    }

    /// Whether this counts, and whether it was the last of what was promised.
    fn wrote(&self, bytes: usize) -> (bool, bool) {
        let mut state = self.lock();
        if !state.counts {
            return (false, false);
        }
        let before = state.owed;
        state.owed = state.owed.saturating_sub(bytes as u64);
        let is_all = before > 0 && state.owed == 0;
        state.pace.take(bytes);
        state.moved = Instant::now();
        state.free();
        drop(state);
        self.written.notify_waiters();
        (true, is_all)
    }

    fn block(&self, blocked: bool) -> bool {
        let mut state = self.lock();
        let before = state.blocked;
        state.blocked = blocked && state.counts;
        if before && !state.blocked {
            state.wake_reader();
        }
        state.blocked
    }

    /// Resolves when the connection has ended.
    pub async fn closed(&self) {
        loop {
            let mut written = std::pin::pin!(self.written.notified());
            written.as_mut().enable();
            if self.lock().closed {
                return;
            }
            written.await;
        }
    }

    /// Ends the reading side, and with it the connection.
    pub fn cut(&self) {
        let mut state = self.lock();
        state.cut = true;
        state.wake_reader();
        state.writer.take().into_iter().for_each(Waker::wake);
    }

    fn close(&self) {
        let mut state = self.lock();
        (state.closed, state.in_flight) = (true, InFlight::default());
        state.rooms.clear();
        drop(state);
        self.written.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Counters stay consistent: nothing panics while they are changed.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    fn wake_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Lets a waiting message be read, or ask again.
    fn let_on(&mut self) {
        if std::mem::take(&mut self.held_up) {
            self.wake_reader();
        }
    }

    fn promise(&mut self, bytes: u64, room: Option<Room>) {
        self.forgive();
        let now = Instant::now();
        if self.owed == 0 {
            self.pace = Pace::new(now);
        }
        self.promised += bytes;
        self.owed += bytes;
        self.moved = now;
        if let Some(mut room) = room {
            let slow = self.slow.as_ref().and_then(|wanted| room.stuck(0, wanted));
            self.rooms.push_back(Kept { until: self.promised, room, slow });
        }
    }

    /// Marks data that is read too slowly as unread, until it is read faster. Returns when to check again; `None`: when data is
    /// pending again. (Answers that wait for the rest of a batch, or are never written, count as unread, too.)
    fn look_at_pace(&mut self, now: Instant, period: Duration, wanted: &CancellationToken) -> Option<Instant> {
        self.forgive();
        if self.owed == 0 {
            self.unseen = true;
            return None;
        }
        self.slow = self.pace.is_slow(now, period).then(|| wanted.clone());
        for kept in &mut self.rooms {
            match &self.slow {
                None => kept.slow = None,
                Some(wanted) if kept.slow.is_none() => kept.slow = kept.room.stuck(0, wanted),
                Some(_) => {}
            }
        }
        Some(self.pace.due(period))
    }

    fn forgive(&mut self) {
        if !self.blocked && self.working == 0 && self.moved.elapsed() >= MOVED {
            self.owed = 0;
            self.free();
        }
    }

    fn free(&mut self) {
        let written = self.promised - self.owed;
        while self.rooms.front().is_some_and(|kept| kept.until <= written) {
            self.rooms.pop_front();
        }
        if self.owed == 0 {
            self.slow = None;
        }
    }
}

/// A message being processed.
pub(super) struct Working {
    unread: Arc<Unread>,
    calls: usize,
    is_answered: bool,
}

impl Working {
    /// Processing has ended, and an answer will be written, unless it is a notification. After a panic there is none either.
    pub fn done(mut self, is_answered: bool) {
        self.is_answered = is_answered;
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut state = self.unread.lock();
        state.working -= 1;
        state.moved = Instant::now();
        state.in_flight.end_batch(self.calls);
        if !self.is_answered {
            state.in_flight.answered();
        }
        state.let_on();
    }
}

/// What was read before a connection became a WebSocket: frames start after the head of one request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A part of a head; how much of its end the last bytes match.
    Head(u8),
    WholeHead,
    More,
}

impl Default for Before {
    fn default() -> Before {
        Before::Head(0)
    }
}

impl Before {
    fn read(&mut self, bytes: &[u8]) {
        for byte in bytes {
            *self = match (*self, byte) {
                (Before::More | Before::WholeHead, _) => Before::More,
                (Before::Head(0), b'\n') => Before::Head(1),
                (Before::Head(1), b'\r') => Before::Head(2),
                (Before::Head(_), b'\n') => Before::WholeHead,
                (Before::Head(_), _) => Before::Head(0),
            };
            if *self == Before::More {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;

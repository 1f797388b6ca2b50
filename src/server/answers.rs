//! Answers on their way out: how many bytes of them lie in memory, in pieces, and for how long a client may leave them unread.
//!
//! HTTP/2 lets a client take an answer as slowly as it likes while its connection is alive, so nothing below cuts it off.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::limits::Limits;
use super::rest::reply::{BodyError, HttpBody};
use crate::api::{Status, User};

/// The most that is handed to a connection at once: it keeps that until its client takes it.
pub(super) const PIECE: usize = 64 << 10;

/// How many bytes of answers may lie in memory, of all users and of one. One answer is always let through, however large.
pub(super) struct Answers {
    most: usize,
    most_of_one: usize,
    queue: usize,
    wait: Duration,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Default)]
struct State {
    bytes: usize,
    users: HashMap<String, OfUser>,
}

#[derive(Default)]
struct OfUser {
    bytes: usize,
    waiting: usize,
}

/// The right of an answer to lie in memory; it ends when dropped.
pub(super) struct Room {
    answers: Arc<Answers>,
    user: String,
    bytes: usize,
}

/// Bytes with their room.
struct Charged {
    bytes: Bytes,
    _room: Room,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Answers {
    pub fn new(limits: &Limits) -> Arc<Answers> {
        let (state, freed) = Default::default();
        let Limits { answers: most, answers_of_one: most_of_one, queue, wait, .. } = *limits;
        Arc::new(Answers { most, most_of_one, queue, wait, state, freed })
    }

    /// Room for an answer of this size, if there is any now. The superuser's have it always, as he has a seat.
    pub fn try_enter(self: &Arc<Answers>, user: &User, bytes: usize) -> Option<Room> {
        if bytes == 0 || user.is_in("system:masters") {
            return Some(Room { answers: self.clone(), user: String::new(), bytes: 0 });
        }
        let mut state = self.lock();
        let of_user = state.users.get(user.counted_as()).map_or(0, |of_user| of_user.bytes);
        let fits = |taken: usize, most: usize| taken == 0 || taken.saturating_add(bytes) <= most;
        if !fits(of_user, self.most_of_one) || !fits(state.bytes, self.most) {
            return None;
        }
        state.bytes += bytes;
        state.users.entry(user.counted_as().to_owned()).or_default().bytes += bytes;
        Some(Room { answers: self.clone(), user: user.counted_as().to_owned(), bytes })
    }

    /// The same bytes, which keep their room for as long as anybody has them: so they are on their reader's account, not only on
    /// that of whoever wrote them first. `None`: there is no room.
    pub fn charged(self: &Arc<Answers>, user: &User, bytes: Bytes) -> Option<Bytes> {
        if user.is_in("system:masters") {
            return Some(bytes);
        }
        let _room = self.try_enter(user, bytes.len())?;
        Some(Bytes::from_owner(Charged { bytes, _room }))
    }

    /// Waits for room; 429 when none becomes free in time, or too many of this user wait already.
    pub async fn enter(self: &Arc<Answers>, user: &User, bytes: usize) -> Result<Room, Status> {
        if let Some(room) = self.try_enter(user, bytes) {
            return Ok(room);
        }
        let _waiting = Waiting::of(self, user.counted_as()).ok_or_else(full)?;
        let room = async {
            loop {
                let mut freed = std::pin::pin!(self.freed.notified());
                freed.as_mut().enable();
                if let Some(room) = self.try_enter(user, bytes) {
                    return room;
                }
                freed.await;
            }
        };
        tokio::time::timeout(self.wait, room).await.map_err(|_| full())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Counters that a panic left behind are whole: each is changed in one step.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Room {
    /// Takes so much more for the same answer; false: there is no room, beside others of the user or of all. One answer may have any
    /// length.
    pub fn grow(&mut self, user: &User, bytes: usize) -> bool {
        if user.is_in("system:masters") {
            return true;
        }
        let (most, most_of_one) = (self.answers.most, self.answers.most_of_one);
        let mut state = self.answers.lock();
        let of_user = state.users.get(user.counted_as()).map_or(0, |of_user| of_user.bytes);
        let fits = |taken: usize, most: usize| taken == self.bytes || taken.saturating_add(bytes) <= most;
        if !fits(of_user, most_of_one) || !fits(state.bytes, most) {
            return false;
        }
        state.bytes += bytes;
        state.users.entry(user.counted_as().to_owned()).or_default().bytes += bytes;
        drop(state);
        self.user = user.counted_as().to_owned();
        self.bytes += bytes;
        true
    }

    /// Takes another one of the same user into it.
    fn join(&mut self, mut other: Room) {
        if self.bytes == 0 {
            std::mem::swap(self, &mut other);
        }
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Gives back what the answer, now that it is made, does not need.
    pub fn shrink(&mut self, bytes: usize) {
        let free = self.bytes.saturating_sub(bytes);
        if free == 0 {
            return;
        }
        self.bytes -= free;
        let mut state = self.answers.lock();
        state.bytes -= free;
        if let Some(of_user) = state.users.get_mut(&self.user) {
            of_user.bytes -= free;
        }
        state.forget(&self.user);
        drop(state);
        self.answers.freed.notify_waiters();
    }
}

/// The rooms of what is answered by one reply of HTTP, until it is made.
#[derive(Default)]
pub(super) struct Rooms(Mutex<Option<Room>>);

impl Rooms {
    pub fn add(&self, room: Room) {
        let mut all = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match &mut *all {
            Some(all) => all.join(room),
            None => *all = Some(room),
        }
    }

    /// Room for the reply of so many bytes; a piece more than was told needs none.
    pub fn of_reply(&self, answers: &Arc<Answers>, user: &User, bytes: usize) -> Result<Room, Status> {
        let told = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let mut room = match told {
            Some(room) => room,
            None => return answers.try_enter(user, bytes).ok_or_else(full),
        };
        let more = bytes.saturating_sub(room.bytes);
        if more > PIECE {
            room.join(answers.try_enter(user, more).ok_or_else(full)?);
        }
        room.shrink(bytes);
        Ok(room)
    }
}

impl State {
    fn forget(&mut self, user: &str) {
        if self.users.get(user).is_some_and(|of_user| of_user.bytes == 0 && of_user.waiting == 0) {
            self.users.remove(user);
        }
    }
}

pub(super) fn full() -> Status {
    Status::too_many_requests("Too many answers are being sent, please try again later.", 1)
}

/// One who waits for room, and may give up at any moment.
struct Waiting<'a> {
    answers: &'a Answers,
    user: &'a str,
}

impl<'a> Waiting<'a> {
    fn of(answers: &'a Answers, user: &'a str) -> Option<Waiting<'a>> {
        let mut state = answers.lock();
        let of_user = state.users.entry(user.to_owned()).or_default();
        if of_user.waiting >= answers.queue {
            return None;
        }
        of_user.waiting += 1;
        Some(Waiting { answers, user })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.answers.lock();
        if let Some(of_user) = state.users.get_mut(self.user) {
            of_user.waiting -= 1;
        }
        state.forget(self.user);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut state = self.answers.lock();
        state.bytes -= self.bytes;
        if let Some(of_user) = state.users.get_mut(&self.user) {
            of_user.bytes -= self.bytes;
        }
        state.forget(&self.user);
        drop(state);
        self.answers.freed.notify_waiters();
    }
}

/// So many answers that its client does not take may a connection keep a piece of each of: 1 MiB.
const STUCK: usize = 16;

/// How long a client may leave an answer unread, and the end of his connection, which keeps what it was handed.
#[derive(Clone)]
pub(super) struct Patience {
    stalled: Duration,
    end: CancellationToken,
    /// How many of the connection's answers are left unread for good.
    stuck: Arc<AtomicUsize>,
}

impl Patience {
    /// That with one connection.
    pub fn new(stalled: Duration, end: CancellationToken) -> Patience {
        Patience { stalled, end, stuck: Arc::default() }
    }
}

/// An answer that is stuck, until it is there no more.
struct Stuck(Arc<AtomicUsize>);

impl Stuck {
    fn of(patience: &Patience) -> Stuck {
        patience.stuck.fetch_add(1, Ordering::Relaxed);
        Stuck(patience.stuck.clone())
    }

    fn are_too_many(&self) -> bool {
        self.0.load(Ordering::Relaxed) > STUCK
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body that goes out in pieces; its room is free as soon as all of it has gone, or nobody wants the rest.
struct Sent {
    outgoing: Arc<Mutex<Outgoing>>,
}

/// It ends with the body and the last piece of it.
struct Overseer(AbortHandle);

impl Drop for Overseer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A piece that a connection has, until it has written it.
struct Handed {
    bytes: Bytes,
    _here: Arc<()>,
    _overseer: Arc<Overseer>,
}

impl AsRef<[u8]> for Handed {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

struct Outgoing {
    body: Option<HttpBody>,
    /// What the body has told and the connection has not taken yet; and whether that was more than a piece.
    rest: Bytes,
    in_pieces: bool,
    room: Option<Arc<Room>>,
    /// When the connection last asked for more, and whether there was nothing more for it.
    asked: Instant,
    idle: bool,
    cut: bool,
    overseer: Option<Arc<Overseer>>,
    /// The last piece that was handed on, while it is not written; and when it was.
    handed: (Instant, Weak<()>),
}

/// A body that holds its room until it is sent. With patience, one that is left unread for so long is dropped, and ends with an
/// error; if it is still there, or what was handed on of it, after as long again, it is stuck: a connection that has many such ends.
pub(super) fn sent(body: HttpBody, room: Option<Arc<Room>>, patience: Option<Patience>) -> HttpBody {
    let (asked, rest) = (Instant::now(), Bytes::new());
    let (in_pieces, idle, cut, overseer, handed) = (false, false, false, None, (asked, Weak::new()));
    let outgoing = Outgoing { body: Some(body), rest, in_pieces, room, asked, idle, cut, overseer, handed };
    let outgoing = Arc::new(Mutex::new(outgoing));
    if let Some(patience) = patience {
        let overseer = tokio::spawn(oversee(Arc::downgrade(&outgoing), patience)).abort_handle();
        lock(&outgoing).overseer = Some(Arc::new(Overseer(overseer)));
    }
    Sent { outgoing }.boxed_unsync()
}

async fn oversee(outgoing: Weak<Mutex<Outgoing>>, patience: Patience) {
    let stalled = patience.stalled;
    while let Some(strong) = outgoing.upgrade() {
        let now = Instant::now();
        let next = {
            let mut outgoing = lock(&strong);
            match outgoing.waits_since().map(|since| since + stalled) {
                None => now + stalled,
                Some(due) if due > now => due,
                Some(_) => {
                    outgoing.cut_off();
                    break;
                }
            }
        };
        drop(strong);
        tokio::time::sleep_until(next).await;
    }
    tokio::time::sleep(stalled).await;
    let stuck = Stuck::of(&patience);
    // One that pauses leaves the others of its connection alone, and may go on.
    while !stuck.are_too_many() {
        tokio::time::sleep(stalled).await;
    }
    patience.end.cancel();
}

fn lock(outgoing: &Mutex<Outgoing>) -> MutexGuard<'_, Outgoing> {
    // What a body left behind that panicked is not polled again: the connection ends with its task.
    outgoing.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Outgoing {
    fn cut_off(&mut self) {
        self.cut = true;
        self.rest = Bytes::new();
        drop((self.body.take(), self.room.take()));
    }

    /// Since when the client takes nothing; none: there is nothing for him.
    fn waits_since(&self) -> Option<Instant> {
        let (handed, here) = &self.handed;
        match self.idle {
            false => Some(self.asked),
            true => (here.strong_count() > 0).then_some(*handed),
        }
    }

    fn piece(&mut self) -> Frame<Bytes> {
        let bytes = self.rest.split_to(self.rest.len().min(PIECE));
        let Some(overseer) = &self.overseer else { return Frame::data(bytes) };
        // A piece that is stuck must not keep all that it is of, whose room is free by then.
        let bytes = if self.in_pieces { Bytes::copy_from_slice(&bytes) } else { bytes };
        let here = Arc::new(());
        self.handed = (Instant::now(), Arc::downgrade(&here));
        Frame::data(Bytes::from_owner(Handed { bytes, _here: here, _overseer: overseer.clone() }))
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
                drop((outgoing.body.take(), outgoing.room.take()));
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

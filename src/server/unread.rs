//! What a JSON-RPC WebSocket has been answered and not read: how many bytes of it lie in memory, and for how long. (What its
//! client has begun to send is in `messages`.)
//!
//! The library below takes answers and events into a queue of messages, of any size, and goes on reading requests. So the bytes
//! are counted here, from when they are made to when the connection has written so many: answers keep their room among all
//! answers (`Answers`) for so long, and so do events beyond the first piece; a watch's next event waits while too much is before
//! it, or its user has no room. What is asked and not answered is counted as well (`in_flight`), and while it is too much no more
//! is read. A client that does not read is not read from either, and is cut off when it takes less than a piece in the time that
//! HTTP/2 has for one.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use super::answers::{Answers, PIECE, Room};
use super::in_flight::{InFlight, Wait, Written};
use super::limits::{BodyBytes, Share};
use super::messages::{self, Messages};
use podwright_api::User;

/// The most bytes of events that wait for one connection, unless it is one, and how many of them need no room: REST keeps as much.
const EVENTS: u64 = 4 << 20;
const FREE: u64 = PIECE as u64;
/// How often an event, or a message, asks for room that nothing of its own connection will give back.
const AGAIN: Duration = Duration::from_millis(100);
/// The most bytes of requests that are read while an answer waits to be written.
const REQUESTS: usize = 4 << 20;
/// What parsing a byte of a message takes: that is the library's, in a task that nobody can measure.
const PARSING: Duration = Duration::from_nanos(2);
/// An answer that the library replaces by an error is never written. Where nothing has moved for so long, nothing is owed.
const MOVED: Duration = Duration::from_secs(5);

/// The account of one connection.
pub(super) struct Unread {
    stalled: Duration,
    state: Mutex<State>,
    written: Notify,
}

struct State {
    /// It has become a WebSocket of JSON-RPC.
    counts: bool,
    /// What was read before.
    before: Before,
    in_flight: InFlight,
    /// A message waits for others to be answered.
    held_up: bool,
    /// The account of its messages, until its reader has it.
    messages: Option<(Messages, Share)>,
    closed: bool,
    /// Its client has taken too little for too long.
    cut: bool,
    /// Bytes that were ever to be sent, and how many of them are not written yet. What is written beside them (frames' heads,
    /// errors) counts as if it were theirs: this is never more than what lies in memory.
    promised: u64,
    owed: u64,
    /// Calls that are worked on: what they have answered is still to be sent.
    working: usize,
    /// The rooms of answers, and what must have been written until they are free.
    rooms: VecDeque<(u64, Room)>,
    /// The last write found no space; when something last moved.
    blocked: bool,
    moved: Instant,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Unread {
    pub fn new(stalled: Duration) -> Arc<Unread> {
        let (counts, messages, closed, cut, promised, owed) = Default::default();
        let (before, in_flight, held_up, working, rooms, blocked, reader, writer) = Default::default();
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
            blocked,
            moved: Instant::now(),
            reader,
            writer,
        };
        Arc::new(Unread { stalled, state: Mutex::new(state), written: Notify::new() })
    }

    /// Whether nothing was read but the head of one request: frames begin behind it.
    pub fn is_new(&self) -> bool {
        self.lock().before == Before::WholeHead
    }

    /// From now on it counts, and so does what its client sends and asks. Cancelled when what it asks has given way to others.
    pub fn start(&self, messages: Messages, taken: BodyBytes, share: Share) -> CancellationToken {
        let mut state = self.lock();
        if !state.closed {
            (state.counts, state.messages) = (true, Some((messages, share)));
        }
        state.in_flight.start(taken)
    }

    /// So many calls of a message are worked on, until this is dropped. If it will have been answered is to be told.
    pub fn work(self: &Arc<Unread>, calls: usize) -> Working {
        let mut state = self.lock();
        state.working += 1;
        state.in_flight.batch(calls);
        Working { unread: self.clone(), calls, is_answered: false }
    }

    /// So many messages have been answered, or never will be.
    pub fn answered(&self, messages: usize) {
        let mut state = self.lock();
        (0..messages).for_each(|_| state.in_flight.answered());
        state.let_on();
    }

    /// An answer of so many bytes is on its way; its room is free once they are written, or nobody takes them any more.
    pub fn answer(&self, bytes: usize, room: Room) {
        let mut state = self.lock();
        if !state.closed && bytes > 0 {
            let until = state.promise(bytes as u64);
            state.rooms.push_back((until, room));
        }
    }

    /// Waits until an event of so many bytes may be sent to a user; false: the connection has ended.
    pub async fn event(&self, bytes: usize, answers: &Arc<Answers>, user: &User) -> bool {
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
                        let until = state.promise(bytes as u64);
                        state.rooms.extend(room.map(|room| (until, room)));
                        return true;
                    }
                }
                if state.owed == 0 { AGAIN } else { MOVED }
            };
            let _ = tokio::time::timeout(patience, written).await;
        }
    }

    /// Whether that counts.
    fn wrote(&self, bytes: usize) -> bool {
        let mut state = self.lock();
        if !state.counts {
            return false;
        }
        state.owed = state.owed.saturating_sub(bytes as u64);
        state.moved = Instant::now();
        state.free();
        drop(state);
        self.written.notify_waiters();
        true
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

    /// Ends the reading side, and the connection with it.
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
        // Counters that a panic left behind are whole: nothing panics while they are changed.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    fn wake_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// A message that waits may be read, or asks again.
    fn let_on(&mut self) {
        if std::mem::take(&mut self.held_up) {
            self.wake_reader();
        }
    }

    fn promise(&mut self, bytes: u64) -> u64 {
        self.forgive();
        self.promised += bytes;
        self.owed += bytes;
        self.moved = Instant::now();
        self.promised
    }

    fn forgive(&mut self) {
        if !self.blocked && self.working == 0 && self.moved.elapsed() >= MOVED {
            self.owed = 0;
            self.free();
        }
    }

    fn free(&mut self) {
        let written = self.promised - self.owed;
        while self.rooms.front().is_some_and(|(until, _)| *until <= written) {
            self.rooms.pop_front();
        }
    }
}

/// A message that is worked on.
pub(super) struct Working {
    unread: Arc<Unread>,
    calls: usize,
    is_answered: bool,
}

impl Working {
    /// It has been worked on, and an answer will be written, unless it wants none. What has panicked has none either.
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

/// What was read before a connection became a WebSocket: the frames begin behind it if it is the head of one request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A part of a head; how much of its end the last bytes are.
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

/// A stream that keeps the account.
pub(super) struct Metered<S> {
    stream: S,
    unread: Arc<Unread>,
    messages: Option<Messages>,
    /// Its user's, of whose time it is that messages are read.
    share: Option<Share>,
    out: Written,
    /// When it is asked again whether there is room for a message.
    again: Option<Pin<Box<Sleep>>>,
    /// Until when a piece must be taken, and how much of it was.
    due: Option<Pin<Box<Sleep>>>,
    taken: usize,
    /// How much was read since a write found no space.
    read: usize,
}

impl<S> Metered<S> {
    pub fn new(stream: S, unread: Arc<Unread>) -> Metered<S> {
        let (messages, share, out, again, due) = Default::default();
        Metered { stream, unread, messages, share, out, again, due, taken: 0, read: 0 }
    }

    fn went_on<'a>(&mut self, bytes: usize, bufs: impl Iterator<Item = &'a [u8]>) {
        if self.unread.wrote(bytes) {
            let mut left = bytes;
            let mut answers = 0;
            for buf in bufs {
                let written = left.min(buf.len());
                answers += self.out.answers(&buf[..written]);
                left -= written;
            }
            self.unread.answered(answers);
        }
        self.taken += bytes;
        if self.taken >= PIECE {
            (self.taken, self.read, self.due) = (0, 0, None);
            self.unread.block(false);
        }
    }

    fn waits<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if !self.unread.block(true) {
            return Poll::Pending;
        }
        {
            let mut state = self.unread.lock();
            if state.cut {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            state.writer = Some(cx.waker().clone());
        }
        let stalled = self.unread.stalled;
        let due = self.due.get_or_insert_with(|| Box::pin(tokio::time::sleep(stalled)));
        match due.as_mut().poll(cx) {
            Poll::Ready(()) => {
                self.unread.cut();
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S> Drop for Metered<S> {
    fn drop(&mut self) {
        self.unread.close();
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let begun = {
            let mut state = this.unread.lock();
            if state.cut {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            if state.counts {
                state.reader = Some(cx.waker().clone());
            }
            if state.blocked && this.read >= REQUESTS {
                this.messages.iter_mut().for_each(Messages::pause);
                return Poll::Pending;
            }
            state.messages.take()
        };
        if let Some((messages, share)) = begun {
            if !this.unread.is_new() {
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
            (this.messages, this.share) = (Some(messages), Some(share));
        }
        let turn = this.share.as_mut().map_or(Poll::Ready(None), |share| share.turn(cx));
        let Poll::Ready(_turn) = turn else {
            this.messages.iter_mut().for_each(Messages::pause);
            return Poll::Pending;
        };
        let before = buf.filled().len();
        let polled = match &mut this.messages {
            Some(messages) => {
                let mut wait = None;
                let may_end = || {
                    let mut state = this.unread.lock();
                    wait = state.in_flight.enter().err();
                    state.held_up = wait.is_some();
                    wait.is_none()
                };
                let polled = messages::poll_read(&mut this.stream, messages, may_end, cx, buf);
                match (&polled, wait) {
                    (Poll::Ready(Err(why)), _) if this.out.is_between() => messages::tell(&mut this.stream, why, cx),
                    (Poll::Pending, Some(Wait::Room)) => {
                        let mut again = Box::pin(tokio::time::sleep(AGAIN));
                        if again.as_mut().poll(cx).is_pending() {
                            this.again = Some(again);
                        }
                    }
                    _ => {}
                }
                polled
            }
            None => {
                let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
                let read = &buf.filled()[before..];
                if !read.is_empty() {
                    this.unread.lock().before.read(read);
                }
                polled
            }
        };
        let read = buf.filled().len() - before;
        this.read += read;
        if let Some(share) = &this.share {
            share.add(PARSING * u32::try_from(read).unwrap_or(u32::MAX));
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(cx, polled, std::iter::once(buf))
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(cx, polled, bufs.iter().map(|buf| &**buf))
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_flush(cx) {
            Poll::Pending => self.waits(cx),
            ended => {
                (self.taken, self.read, self.due) = (0, 0, None);
                self.unread.block(false);
                ended
            }
        }
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_shutdown(cx) {
            Poll::Pending => self.waits(cx),
            ended => ended,
        }
    }
}

impl<S> Metered<S> {
    fn written<'a>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<usize>>,
        bufs: impl Iterator<Item = &'a [u8]>,
    ) -> Poll<io::Result<usize>> {
        match polled {
            Poll::Ready(Ok(bytes)) => {
                self.went_on(bytes, bufs);
                Poll::Ready(Ok(bytes))
            }
            Poll::Pending => self.waits(cx),
            failed => failed,
        }
    }
}

#[cfg(test)]
mod tests;

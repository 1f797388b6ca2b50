//! What a JSON-RPC WebSocket has been answered and not read: how many bytes of it lie in memory, and for how long.
//!
//! The library below takes answers and events into a queue of messages, of any size, and goes on reading requests. So the bytes
//! are counted here, from when they are made to when the connection has written so many: answers keep their room among all
//! answers (`Answers`) for so long, a watch's next event waits while too much is before it. A client that does not read is not
//! read from either, and is cut off when it takes less than a piece in the time that HTTP/2 has for one.

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

use super::answers::{PIECE, Room};

/// The most bytes of events that wait for one connection. One is always let through, however large.
const EVENTS: u64 = 4 << 20;
/// The most bytes of requests that are read while an answer waits to be written.
const REQUESTS: usize = 4 << 20;
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
    closed: bool,
    /// Its client has taken too little for too long.
    cut: bool,
    /// Bytes that were ever to be sent, and how many of them are not written yet. What is written beside them (frames' heads,
    /// errors) counts as if it were theirs: this is never more than what lies in memory.
    promised: u64,
    owed: u64,
    /// The rooms of answers, and what must have been written until they are free.
    rooms: VecDeque<(u64, Room)>,
    /// The last write found no space; when something last moved.
    blocked: bool,
    moved: Instant,
    reader: Option<Waker>,
}

impl Unread {
    pub fn new(stalled: Duration) -> Arc<Unread> {
        let (counts, closed, cut, promised, owed, rooms, blocked, reader) = Default::default();
        let state = State { counts, closed, cut, promised, owed, rooms, blocked, moved: Instant::now(), reader };
        Arc::new(Unread { stalled, state: Mutex::new(state), written: Notify::new() })
    }

    /// From now on it counts.
    pub fn start(&self) {
        self.lock().counts = true;
    }

    /// An answer of so many bytes is on its way; its room is free once they are written, or nobody takes them any more.
    pub fn answer(&self, bytes: usize, room: Room) {
        let mut state = self.lock();
        if !state.closed && bytes > 0 {
            let until = state.promise(bytes as u64);
            state.rooms.push_back((until, room));
        }
    }

    /// Waits until an event of so many bytes may be sent; false: the connection has ended.
    pub async fn event(&self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        loop {
            let mut written = std::pin::pin!(self.written.notified());
            written.as_mut().enable();
            {
                let mut state = self.lock();
                state.forgive();
                if state.closed {
                    return false;
                }
                if state.owed == 0 || state.owed + bytes <= EVENTS {
                    state.promise(bytes);
                    return true;
                }
            }
            let _ = tokio::time::timeout(MOVED, written).await;
        }
    }

    fn wrote(&self, bytes: usize) {
        let mut state = self.lock();
        if !state.counts {
            return;
        }
        state.owed = state.owed.saturating_sub(bytes as u64);
        state.moved = Instant::now();
        state.free();
        drop(state);
        self.written.notify_waiters();
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
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
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

    fn promise(&mut self, bytes: u64) -> u64 {
        self.forgive();
        self.promised += bytes;
        self.owed += bytes;
        self.moved = Instant::now();
        self.promised
    }

    fn forgive(&mut self) {
        if !self.blocked && self.moved.elapsed() >= MOVED {
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

/// A stream that keeps the account.
pub(super) struct Metered<S> {
    stream: S,
    unread: Arc<Unread>,
    /// Until when a piece must be taken, and how much of it was.
    due: Option<Pin<Box<Sleep>>>,
    taken: usize,
    /// How much was read since a write found no space.
    read: usize,
}

impl<S> Metered<S> {
    pub fn new(stream: S, unread: Arc<Unread>) -> Metered<S> {
        Metered { stream, unread, due: None, taken: 0, read: 0 }
    }

    fn went_on(&mut self, bytes: usize) {
        self.unread.wrote(bytes);
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

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        {
            let mut state = self.unread.lock();
            if state.cut {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            if state.counts {
                state.reader = Some(cx.waker().clone());
            }
            if state.blocked && self.read >= REQUESTS {
                return Poll::Pending;
            }
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.read += buf.filled().len() - before;
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(cx, polled)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(cx, polled)
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
    fn written(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match polled {
            Poll::Ready(Ok(bytes)) => {
                self.went_on(bytes);
                Poll::Ready(Ok(bytes))
            }
            Poll::Pending => self.waits(cx),
            failed => failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::answers::Answers;
    use super::super::limits::Limits;
    use super::*;
    use crate::api::User;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const STALLED: Duration = Duration::from_secs(60);

    fn metered() -> (Arc<Unread>, Metered<tokio::io::DuplexStream>, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1000);
        let unread = Unread::new(STALLED);
        unread.start();
        (unread.clone(), Metered::new(ours, unread), theirs)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_keeps_its_room_until_it_is_written() {
        let answers = Answers::new(&Limits { answers_of_one: 100, ..Limits::default() });
        let user = User::new("a", Vec::<String>::new());
        let (unread, mut stream, mut client) = metered();
        unread.answer(60, answers.try_enter(&user, 60).unwrap());
        unread.answer(40, answers.try_enter(&user, 40).unwrap());
        assert!(answers.try_enter(&user, 1).is_none());
        stream.write_all(&[0; 62]).await.unwrap();
        assert!(answers.try_enter(&user, 60).is_some() && answers.try_enter(&user, 61).is_none());
        stream.write_all(&[0; 40]).await.unwrap();
        assert!(answers.try_enter(&user, 100).is_some());
        unread.answer(70, answers.try_enter(&user, 70).unwrap());
        drop(stream);
        assert!(answers.try_enter(&user, 100).is_some(), "what nobody takes any more has no room");
        client.read_exact(&mut [0; 102]).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn events_wait_behind_what_is_not_read_and_end_with_the_connection() {
        let (unread, mut stream, _client) = metered();
        assert!(unread.event(64 << 20).await, "one is let through, however large");
        assert!(stream.write(&[0; 1000]).await.is_ok());
        let mut write = std::pin::pin!(stream.write(&[0; 1000]));
        assert!(futures::poll!(write.as_mut()).is_pending());
        let mut second = std::pin::pin!(unread.event(1));
        assert!(tokio::time::timeout(STALLED / 2, second.as_mut()).await.is_err());
        assert_eq!(write.await.unwrap_err().kind(), io::ErrorKind::TimedOut, "who does not read is cut off");
        drop(stream);
        assert!(!second.await);
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_slowly_is_served_and_who_takes_too_little_is_not() {
        for (portion, served) in [(1000, true), (100, false)] {
            let (_unread, mut stream, mut client) = metered();
            let reader = tokio::spawn(async move {
                let mut piece = vec![0; portion];
                while client.read_exact(&mut piece).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            });
            let written = stream.write_all(&[0; 4 * PIECE]).await;
            assert_eq!(written.is_ok(), served, "{written:?}");
            drop(stream);
            reader.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_not_read_from() {
        let (_unread, stream, mut client) = metered();
        let (mut reads, mut writes) = tokio::io::split(stream);
        // Whoever sends a message flushes it.
        let writer = tokio::spawn(async move {
            writes.write_all(&[0; 4 * PIECE]).await?;
            writes.flush().await
        });
        let reader = tokio::spawn(async move {
            let mut piece = vec![0; PIECE];
            while reads.read(&mut piece).await.is_ok_and(|read| read > 0) {}
        });
        let sent = tokio::time::timeout(STALLED / 2, client.write_all(&vec![0; 2 * REQUESTS])).await;
        assert!(sent.is_err(), "it takes requests without end");
        let mut all = vec![0; 4 * PIECE];
        client.read_exact(&mut all).await.unwrap();
        assert!(writer.await.unwrap().is_ok());
        client.write_all(&vec![0; 2 * REQUESTS]).await.expect("it goes on");
        drop(client);
        reader.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_never_written_is_forgiven() {
        let (unread, _stream, _client) = metered();
        assert!(unread.event(EVENTS as usize * 2).await);
        let began = Instant::now();
        assert!(unread.event(1).await && began.elapsed() >= MOVED);
    }
}

//! A connection's stream that reports written bytes to its accounting, and reads no more than that allows.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::{AGAIN, PARSING, REQUESTS, Unread};
use crate::answers::PIECE;
use crate::in_flight::{Wait, Written};
use crate::limits::Share;
use crate::messages::{self, Messages};

/// A stream with accounting.
pub(crate) struct Metered<S> {
    stream: S,
    unread: Arc<Unread>,
    messages: Option<Messages>,
    /// Its user's share, which reading messages counts for.
    share: Option<Share>,
    out: Written,
    /// When to ask again for room for a message.
    again: Option<Pin<Box<Sleep>>>,
    /// The deadline for reading a piece, and how much of it was read.
    due: Option<Pin<Box<Sleep>>>,
    taken: usize,
    /// How much was read since a write blocked.
    read: usize,
}

impl<S> Metered<S> {
    pub fn new(stream: S, unread: Arc<Unread>) -> Metered<S> {
        let (messages, share, out, again, due) = Default::default();
        Metered { stream, unread, messages, share, out, again, due, taken: 0, read: 0 }
    }

    fn went_on<'a>(&mut self, bytes: usize, bufs: impl Iterator<Item = &'a [u8]>) {
        let (counts, is_all) = self.unread.wrote(bytes);
        if counts {
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
        // After taking everything the client's time starts over: later data has its own.
        if self.taken >= PIECE || is_all {
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

//! The end of a connection: a client that is still sending must be able to read the response.
//!
//! The kernel resets a socket that is closed with unread data, and the last response may be lost. So further input is read and
//! discarded for a moment. (Upstream's servers wait half a second for the same reason.)

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// For how long, and how much is read: more than the largest body.
const TIMEOUT: Duration = Duration::from_secs(2);
const MOST: usize = 4 << 20;
const PIECE: usize = 16 << 10;

/// A stream whose `poll_shutdown` waits until the peer closes.
pub(super) struct Lingering<S> {
    stream: S,
    handed_over: Arc<AtomicBool>,
    end: Option<End>,
}

struct End {
    until: Pin<Box<Sleep>>,
    left: usize,
}

impl<S> Lingering<S> {
    /// `handed_over` is set after an upgrade from HTTP: the new owner then closes only its own half, and goes on reading.
    pub fn new(stream: S, handed_over: Arc<AtomicBool>) -> Lingering<S> {
        Lingering { stream, handed_over, end: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Lingering { stream, handed_over, end } = self.get_mut();
        if handed_over.load(Ordering::Relaxed) {
            return Pin::new(stream).poll_shutdown(cx);
        }
        if end.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
        }
        let End { until, left } =
            end.get_or_insert_with(|| End { until: Box::pin(tokio::time::sleep(TIMEOUT)), left: MOST });
        let mut piece = [MaybeUninit::uninit(); PIECE];
        while *left > 0 && until.as_mut().poll(cx).is_pending() {
            let mut read = ReadBuf::uninit(&mut piece);
            // A peer that closed needs no more time; neither does one that reset the connection.
            if ready!(Pin::new(&mut *stream).poll_read(cx, &mut read)).is_err() || read.filled().is_empty() {
                break;
            }
            *left = left.saturating_sub(read.filled().len());
        }
        Poll::Ready(Ok(()))
    }
}

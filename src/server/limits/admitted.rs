//! The stream of a counted connection: it holds its pass while it exists, and breaks when it loses that.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::Pass;

/// A stream with a pass, which stays with it when a connection changes protocols.
pub(crate) struct Admitted<S> {
    stream: S,
    /// Wakes readers and writers when the pass is lost.
    reading: Pin<Box<WaitForCancellationFutureOwned>>,
    writing: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Dropped after the stream: only closed sockets stop counting.
    _pass: Pass,
}

impl<S> Admitted<S> {
    pub fn new(stream: S, pass: Pass) -> Admitted<S> {
        let lost = || Box::pin(pass.guest().lost().clone().cancelled_owned());
        Admitted { stream, reading: lost(), writing: lost(), _pass: pass }
    }
}

/// An error once the connection must end.
fn stays(lost: &mut Pin<Box<WaitForCancellationFutureOwned>>, cx: &mut Context<'_>) -> io::Result<()> {
    match lost.as_mut().poll(cx) {
        Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
        Poll::Pending => Ok(()),
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Admitted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        stays(&mut self.reading, cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Admitted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        stays(&mut self.writing, cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        stays(&mut self.writing, cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        stays(&mut self.writing, cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::{ConnectionLimiter, Limits};
    use super::*;

    #[tokio::test]
    async fn both_directions_end_with_the_pass_and_the_pass_with_the_stream() {
        let limits = Limits { connections: 1, connections_of_one: 1, ..Limits::default() };
        let (limiter, address) = (ConnectionLimiter::new(&limits), [127, 0, 0, 1].into());
        let (near, _far) = tokio::io::duplex(1);
        let (mut reads, mut writes) = tokio::io::split(Admitted::new(near, limiter.admit(address).unwrap()));
        let (mut read, written) = ([0; 1], [0; 100]);
        let waiting = async { tokio::join!(reads.read(&mut read), writes.write_all(&written)) };
        let next = async { limiter.admit(address).expect("a stranger gives way") };
        let (ended, next) = tokio::join!(waiting, next);
        let why = [ended.0.map(drop).unwrap_err().kind(), ended.1.unwrap_err().kind()];
        assert_eq!(why, [io::ErrorKind::ConnectionAborted; 2]);
        // Dropping an ended one releases nothing further.
        drop(reads.unsplit(writes));
        assert!(next.guest().known(&podwright_api::User::new("ann", [""])).is_ok());
        assert!(limiter.admit(address).is_none());
        drop(Admitted::new(tokio::io::empty(), next));
        assert!(limiter.admit(address).is_some());
    }
}

//! A byte stream with a limit on what is read: a malicious peer could send interim responses or pings endlessly.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reads from a stream until a number of bytes have come; then reading fails. Writing is not limited.
pub struct Bounded<S> {
    stream: S,
    bound: Bound,
}

/// How many bytes a [`Bounded`] stream, or several of them together, may still read.
#[derive(Clone)]
pub struct Bound {
    bytes: usize,
    left: Arc<AtomicUsize>,
}

impl Bound {
    pub fn new(bytes: usize) -> Bound {
        Bound { bytes, left: Arc::new(AtomicUsize::new(bytes)) }
    }

    /// Removes the limit: the head of a response is complete, and its body has its own reader.
    pub fn lift(&self) {
        self.left.store(usize::MAX, Ordering::Relaxed);
    }
}

impl<S> Bounded<S> {
    pub fn new(stream: S, bytes: usize) -> Bounded<S> {
        Bounded::within(stream, Bound::new(bytes))
    }

    /// A stream that shares `bound` with others.
    pub fn within(stream: S, bound: Bound) -> Bounded<S> {
        Bounded { stream, bound }
    }

    pub fn bound(&self) -> Bound {
        self.bound.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    /// Fails with `InvalidData` in the words of Go's client, whose limit includes interim responses as well.
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.bound.left.load(Ordering::Relaxed);
        if left == 0 {
            let why = format!("net/http: server response headers exceeded {} bytes; aborted", self.bound.bytes);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
        }
        let before = buffer.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if left != usize::MAX {
            let read = buffer.filled().len() - before;
            // Once lifted, it stays lifted.
            let counted = (left, left.saturating_sub(read));
            let _ = self.bound.left.compare_exchange(counted.0, counted.1, Ordering::Relaxed, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn streams_of_one_bound_give_so_much_together() {
        let (bound, mut some) = (Bound::new(1000), [0; 400]);
        for _ in 0..3 {
            let stream = tokio::io::join(tokio::io::repeat(b'1'), tokio::io::sink());
            Bounded::within(stream, bound.clone()).read_exact(&mut some).await.unwrap();
        }
        let mut last = Bounded::within(tokio::io::join(tokio::io::repeat(b'1'), tokio::io::sink()), bound);
        let why = last.read_exact(&mut some).await.unwrap_err();
        assert_eq!(why.to_string(), "net/http: server response headers exceeded 1000 bytes; aborted");
    }

    #[tokio::test]
    async fn an_endless_stream_ends_at_its_bound_unless_that_is_lifted() {
        let mut stream = Bounded::new(tokio::io::join(tokio::io::repeat(b'1'), tokio::io::sink()), 1000);
        let mut some = [0; 700];
        stream.read_exact(&mut some).await.unwrap();
        stream.read_exact(&mut some).await.unwrap();
        let why = stream.read_exact(&mut some).await.unwrap_err();
        assert_eq!(why.to_string(), "net/http: server response headers exceeded 1000 bytes; aborted");
        let mut stream = Bounded::new(tokio::io::join(tokio::io::repeat(b'1'), tokio::io::sink()), 1000);
        let bound = stream.bound();
        stream.read_exact(&mut some).await.unwrap();
        bound.lift();
        for _ in 0..10 {
            stream.read_exact(&mut some).await.unwrap();
        }
    }
}

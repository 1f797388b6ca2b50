//! The rest of a request body after the response, over HTTP/2.
//!
//! A client that is refused early is still sending. If its body is dropped, the stream is reset, and many clients take that for an
//! error and lose the response. So further input is read and discarded for a moment. (`linger` does this for HTTP/1.)

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};

/// For how long, and how much is read: more than the largest body. The reset stops clients that send more.
const TIMEOUT: Duration = Duration::from_secs(2);
const MOST: usize = 4 << 20;

/// A body that is read to its end even if dropped.
pub(super) struct ReadToEnd<B: Body<Data = Bytes> + Send + Unpin + 'static>(Option<B>);

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> ReadToEnd<B> {
    pub fn new(body: B) -> ReadToEnd<B> {
        ReadToEnd(Some(body))
    }
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Body for ReadToEnd<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.0 {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }
    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }
    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Drop for ReadToEnd<B> {
    fn drop(&mut self) {
        let Some(mut body) = self.0.take().filter(|body| !body.is_end_stream()) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let read = async move {
            let mut left = MOST;
            while let Some(Ok(frame)) = body.frame().await {
                left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                if left == 0 {
                    break;
                }
            }
        };
        drop(runtime.spawn(tokio::time::timeout(TIMEOUT, read)));
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// This many pieces, and how many were read.
    struct Pieces(usize, Arc<AtomicUsize>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.0 == 0 {
                return Poll::Ready(None);
            }
            self.0 -= 1;
            self.1.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; 1024])))))
        }
        fn is_end_stream(&self) -> bool {
            self.0 == 0
        }
    }

    #[tokio::test]
    async fn a_small_body_is_read_by_nobody() {
        for (pieces, expected) in [(3, 3), (10_000, MOST / 1024)] {
            let read = Arc::new(AtomicUsize::new(0));
            drop(ReadToEnd::new(Pieces(pieces, read.clone())));
            while Arc::strong_count(&read) > 1 {
                tokio::task::yield_now().await;
            }
            assert_eq!(read.load(Ordering::Relaxed), expected);
        }
    }
}

//! Responses that break off when they must end.

use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};

use crate::ends::Ended;
use crate::rest::reply::{BodyError, HttpBody, Reply};

/// The same response, cut off at `ended`.
pub fn until(reply: Reply, ended: Ended) -> Reply {
    reply.map(|body| Until { body, ended: Some(ended) }.boxed_unsync())
}

pub fn broken_off() -> BodyError {
    BodyError::new(ErrorKind::ConnectionAborted, "the answer was broken off")
}

/// A body that breaks off when its time is over or its credentials end.
struct Until {
    body: HttpBody,
    ended: Option<Ended>,
}

impl Body for Until {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(ended) = &mut self.ended else { return Poll::Ready(None) };
        if ended.as_mut().poll(context).is_ready() {
            self.ended = None;
            return Poll::Ready(Some(Err(broken_off())));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

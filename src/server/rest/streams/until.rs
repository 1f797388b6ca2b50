//! Answers that break off once they have to end.

use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};

use crate::ends::Ended;
use crate::rest::reply::{BodyError, HttpBody, Reply};

/// The same answer, for as long as it may go on.
pub fn until(reply: Reply, ended: Ended) -> Reply {
    reply.map(|body| Until { body, ended: Some(ended) }.boxed_unsync())
}

pub fn broken_off() -> BodyError {
    BodyError::new(ErrorKind::ConnectionAborted, "the answer was broken off")
}

/// A body that breaks off when something has happened: its time is over, or who has asked is nobody any more.
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

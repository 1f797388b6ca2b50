//! `pods/log`: the node's bytes as a plain text that goes on for as long as the log is followed.

use std::time::Duration;

use futures::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame as HttpFrame;

use super::{Frames, open};
use crate::api::stream::{Frame, STATUS, STDOUT};
use crate::api::{Request, Status};
use crate::server::Server;
use crate::server::rest::reply::{self, BodyError, Reply};

/// So long a node may think about whether there is a log, before the answer begins without knowing.
const FIRST_WORD: Duration = Duration::from_secs(2);

pub async fn serve(server: &Server, request: Request) -> Result<Reply, Status> {
    let mut frames = open(server, request).await?;
    let first = match tokio::time::timeout(FIRST_WORD, frames.next()).await {
        Ok(Some(Ok(frame))) if frame.channel == STATUS => return ended(&frame),
        Ok(Some(Ok(frame))) => Some(frame),
        Ok(Some(Err(why))) => return Err(Status::internal(why)),
        Ok(None) => return Err(Status::unavailable("the node has hung up")),
        Err(_) => None,
    };
    let chunks = stream::unfold((frames, first), |(mut frames, first)| async move {
        let frame = match first {
            Some(frame) => frame,
            None => next(&mut frames).await?,
        };
        Some((Ok::<_, BodyError>(HttpFrame::data(frame.payload)), (frames, None)))
    });
    Ok(reply::typed(StreamBody::new(chunks).boxed_unsync(), "text/plain"))
}

/// A log that is over before it began: an error, or nothing was said.
fn ended(frame: &Frame) -> Result<Reply, Status> {
    let status: Status = serde_json::from_slice(&frame.payload).map_err(Status::internal)?;
    match status.status.as_str() {
        "Success" => Ok(reply::typed(reply::full(""), "text/plain")),
        _ => Err(status),
    }
}

/// The next bytes; `None` at the end. That something went wrong can be said no more.
async fn next(frames: &mut Frames) -> Option<Frame> {
    loop {
        let frame = frames.next().await?.ok()?;
        match frame.channel {
            STDOUT => return Some(frame),
            STATUS => return None,
            _ => {}
        }
    }
}

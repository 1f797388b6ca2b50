//! `pods/log`: the node's bytes as plain text, or as WebSocket messages, for as long as the log is followed.

use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, Stream, StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame as HttpFrame;
use hyper_util::rt::TokioIo;

use super::until::{broken_off, until};
use super::websocket::{self, Framing, Socket};
use super::{Frames, Switch, open, switch, wants_upgrade};
use crate::Server;
use crate::ends::Ended;
use crate::rest::Ask;
use crate::rest::reply::{self, BodyError, Reply};
use podwright_api::stream::{Frame, STATUS, STDOUT};
use podwright_api::{Request, Status};

/// How long to wait for the node's first frame before the response starts without it.
const FIRST_WORD: Duration = Duration::from_secs(2);

/// WebSocket messages contain the log's bytes, or base64 text.
const WEBSOCKET: &[&str] = &["binary.k8s.io", "base64.binary.k8s.io"];

/// A log that has started, with its first bytes, unless it has ended.
struct Begun {
    frames: Frames,
    first: Option<Frame>,
    is_over: bool,
}

pub async fn serve(server: &Server, request: Request, mut ask: Ask, ended: Ended) -> Result<Reply, Status> {
    let by_websocket = wants_upgrade(ask.http.headers(), "websocket");
    let switch = by_websocket.then(|| switch(&ask, WEBSOCKET, &[])).transpose()?;
    let log = begin(server, request).await?;
    let Some(Switch::WebSocket { protocol, reply }) = switch else {
        let chunks = log.chunks().map(|bytes| bytes.map(HttpFrame::data));
        return Ok(until(reply::typed(StreamBody::new(chunks).boxed_unsync(), "text/plain"), ended));
    };
    let (upgrade, framing) = (hyper::upgrade::on(&mut ask.http), Framing::of(&protocol));
    let messages = server.messages(&ask.user, websocket::MAX_MESSAGE);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => tokio::select! {
                () = async { send(websocket::socket(TokioIo::new(upgraded), messages).await, framing, log).await } => {}
                () = ended => {}
            },
            Err(why) => tracing::debug!("a log was not upgraded: {why}"),
        }
    });
    Ok(reply)
}

/// A log that ends immediately is an error or empty.
async fn begin(server: &Server, request: Request) -> Result<Begun, Status> {
    let mut frames = open(server, request).await?;
    let first = match tokio::time::timeout(FIRST_WORD, frames.next()).await {
        Ok(Some(Ok(frame))) => Some(frame),
        Ok(Some(Err(why))) => return Err(Status::internal(why)),
        Ok(None) => return Err(Status::unavailable("the node has hung up")),
        Err(_) => None,
    };
    match first {
        Some(frame) if frame.channel == STATUS => {
            let status: Status = serde_json::from_slice(&frame.payload).map_err(Status::internal)?;
            match status.status.as_str() {
                "Success" => Ok(Begun { frames, first: None, is_over: true }),
                _ => Err(status),
            }
        }
        first => Ok(Begun { frames, first, is_over: false }),
    }
}

impl Begun {
    /// Its bytes. One that is cut off ends with an error.
    fn chunks(self) -> impl Stream<Item = Result<Bytes, BodyError>> + Send {
        stream::unfold(self, |mut log| async move {
            if log.is_over {
                return None;
            }
            let frame = match log.first.take() {
                Some(frame) => Ok(frame),
                None => next(&mut log.frames).await?,
            };
            log.is_over = frame.is_err();
            Some((frame.map(|frame| frame.payload), log))
        })
    }
}

/// Sends a log as messages, until it ends or the client is gone.
async fn send(socket: Socket, framing: Framing, log: Begun) {
    let (mut sink, mut source) = socket.split();
    let mut chunks = std::pin::pin!(log.chunks());
    let down = async {
        // As upstream: an empty message marks the beginning.
        let mut next = Some(Ok(Bytes::new()));
        while let Some(bytes) = next {
            // One that is cut off ends without a normal close.
            let Ok(bytes) = bytes else { return };
            if sink.send(framing.whole(bytes)).await.is_err() {
                return;
            }
            next = chunks.next().await;
        }
        websocket::close(&mut sink).await;
    };
    // Input from the client only shows that it is there.
    let up = async { while websocket::payload(source.next().await).is_ok() {} };
    tokio::select! {
        () = down => {}
        () = up => {}
    }
}

/// The next bytes; `None` at the end reported by the node, by when it is too late to report errors.
async fn next(frames: &mut Frames) -> Option<Result<Frame, BodyError>> {
    loop {
        let Some(Ok(frame)) = frames.next().await else { return Some(Err(broken_off())) };
        match frame.channel {
            STDOUT => return Some(Ok(frame)),
            STATUS => return None,
            _ => {}
        }
    }
}

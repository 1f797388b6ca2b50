//! Sessions with extension API servers for JSON-RPC clients: `connect` answers with the id of a stream to dial, whose frames
//! (`api::stream`) map to the messages of upstream's WebSocket protocols. A `log` is a plain GET.
//!
//! The other server is contacted once the caller has dialled. A session ends when either side ends it, when its user loses access,
//! or when it has to make room for others.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_util::codec::Framed;

use super::ask::{Wanted, wanted};
use super::connect::{identity, trace_header};
use super::pass::{Elsewhere, LONGEST_EVENT, TIMEOUT, late, unreached};
use super::table::Remote;
use super::wire;
use crate::Server;
use crate::audit::Entry;
use crate::rest::query::Query;
use crate::rest::strangers::Read;
use crate::rest::streams::Dialled;
use crate::rest::streams::websocket::{Framing, MAX_MESSAGE, close, payload};
use crate::streams::{Come, Half};
use podwright_api::bounded::Bounded;
use podwright_api::request::Body;
use podwright_api::stream::{CLOSE, Frame, FrameCodec, MAX_PAYLOAD, STATUS, STDOUT};
use podwright_api::{Request, Response, Status, User};

/// The protocols, in order of preference. Only the first can half-close.
const CHANNELS: &str = "v5.channel.k8s.io, v4.channel.k8s.io";
const CLOSING: &str = "v5.channel.k8s.io";
/// For ports: each channel starts with the port's number.
const PORT: &str = "v4.channel.k8s.io";
/// The longest head of a response.
const MAX_HEAD: usize = 64 << 10;
/// How often to check that a silent caller is still there.
const STILL_THERE: Duration = Duration::from_secs(10);

type Sink = SplitSink<Framed<Half, FrameCodec>, Frame>;
type Source = SplitStream<Framed<Half, FrameCodec>>;
type Socket = WebSocketStream<Bounded<Dialled>>;

/// The request, and on whose behalf.
struct Asked {
    remote: Arc<Remote>,
    wanted: Wanted,
    user: User,
    subresource: String,
}

impl Server {
    /// Authorizes as REST does (as a GET), and offers a stream.
    pub(super) async fn connect_elsewhere(
        &self,
        to: Elsewhere,
        request: Request,
        entry: Option<&Entry>,
    ) -> Result<Response, Status> {
        let wanted = wanted(&to.registration, &to.plural, &request)?;
        let remote = self.may_ask(&to, &wanted, &request.user, entry).await?;
        let read = Read::of(&wanted.method, &wanted.path, &Query::parse(&wanted.query))?.unwrap_or_default();
        let open = self.open_with(&to, &request.user)?;
        let (id, caller) = self.streams.offer(&self.env, &request.user.name);
        let (user, subresource) = (request.user, request.subresource.unwrap_or_default());
        let withdrawn = self.withdrawn(vec![read.attributes(&user).keep()]);
        let asked = Asked { remote, wanted, user, subresource };
        let (server, lost) = (self.me.clone(), open.lasting());
        tokio::spawn(async move {
            let _open = open;
            let whole = async {
                if let (Some(Come { half, ended }), Some(server)) = (caller.await, server.upgrade()) {
                    tokio::select! {
                        () = asked.serve(&server, half) => {}
                        () = ended => {}
                    }
                }
            };
            tokio::select! {
                () = whole => {}
                () = withdrawn => {}
                () = lost.cancelled() => tracing::info!("ended a session with an extension API server to make room for others"),
            }
        });
        Ok(Body::Stream { id }.into())
    }
}

impl Asked {
    async fn serve(&self, server: &Server, caller: Half) {
        let (mut sink, mut source) = Framed::new(caller, FrameCodec).split();
        let ended = match self.subresource.as_str() {
            "log" => tokio::select! {
                ended = self.log(server, &mut sink) => ended.map(Some),
                () = gone(&mut source) => Ok(None),
            },
            _ => self.channels(server, &mut sink, &mut source).await,
        };
        let told = ended.unwrap_or_else(Some);
        let last = async {
            if let Some(status) = told {
                // A Status always encodes.
                let payload = serde_json::to_vec(&status).unwrap_or_default().into();
                let _ = sink.send(Frame { channel: STATUS, payload }).await;
            }
            let _ = sink.close().await;
        };
        // Best effort: the caller may not read, or be gone.
        let _ = tokio::time::timeout(TIMEOUT, last).await;
    }

    /// Streams the response of a GET to its end.
    async fn log(&self, server: &Server, to: &mut Sink) -> Result<Status, Status> {
        let asking = async {
            let answer = server.ask_for(&self.remote, &self.wanted, &self.user).await?;
            match answer.status() {
                StatusCode::OK => Ok(answer),
                code => Err(wire::failure(code, &answer.body(LONGEST_EVENT).await.map_err(unreached)?)),
            }
        };
        let mut answer = tokio::time::timeout(TIMEOUT, asking).await.unwrap_or_else(|_| Err(late()))?;
        while let Some(part) = answer.part().await {
            let mut part = part.map_err(unreached)?;
            while !part.is_empty() {
                let payload = part.split_to(part.len().min(MAX_PAYLOAD));
                to.send(Frame { channel: STDOUT, payload }).await.map_err(Status::internal)?;
            }
        }
        Ok(Status::success())
    }

    /// Translates messages to frames and back. `None`: the end was reported already, or the caller is gone.
    async fn channels(&self, server: &Server, sink: &mut Sink, source: &mut Source) -> Result<Option<Status>, Status> {
        let opened = tokio::time::timeout(TIMEOUT, self.open(server)).await.unwrap_or_else(|_| Err(late()))?;
        let (socket, says_ends) = opened;
        let (mut to, mut from) = socket.split();
        let framing = Framing::default();
        let up = async {
            while let Some(Ok(Frame { channel, payload })) = source.next().await {
                if (channel != CLOSE || says_ends) && to.send(framing.message(channel, &payload)).await.is_err() {
                    break;
                }
            }
            std::future::pending::<()>().await;
        };
        let down = async {
            let mut ports = Ports(if self.is_port() { 2 } else { 0 });
            loop {
                let message = match tokio::time::timeout(STILL_THERE, from.next()).await {
                    Ok(message) => payload(message),
                    // An empty frame; it detects a caller who is gone.
                    Err(_) => Ok(Some(Bytes::from_static(&[STDOUT]))),
                };
                let Ok(message) = message else {
                    return match self.is_port() {
                        true => Ok(Some(Status::success())),
                        false => Err(Status::internal("the session ended without a status")),
                    };
                };
                let Some((channel, payload)) = message.and_then(|bytes| framing.split(bytes)) else { continue };
                if self.is_port() && ports.is_head(channel, &payload) {
                    continue;
                }
                let channel = match (self.is_port(), channel) {
                    (true, 0) => STDOUT,
                    // An empty error is no error: the port was reached.
                    (true, _) if payload.is_empty() => STDOUT,
                    (true, _) => return Err(Status::internal(String::from_utf8_lossy(&payload))),
                    (false, channel) => channel,
                };
                if sink.send(Frame { channel, payload }).await.is_err() || channel == STATUS {
                    return Ok(None);
                }
            }
        };
        let ended = tokio::select! {
            ended = down => ended,
            () = up => Ok(None),
        };
        let _ = tokio::time::timeout(STILL_THERE, close(&mut to)).await;
        ended
    }

    fn is_port(&self) -> bool {
        self.subresource == "portforward"
    }

    /// Opens a WebSocket, and returns whether it supports half-close.
    async fn open(&self, server: &Server) -> Result<(Socket, bool), Status> {
        let protocols = if self.is_port() { PORT } else { CHANNELS };
        let target = format!("wss://{}{}", self.remote.authority(), self.wanted.target());
        let mut request = target.into_client_request().map_err(|why| Status::bad_request(why.to_string()))?;
        let headers = request.headers_mut();
        headers.extend(identity(&self.user).map_err(|why| Status::internal(format!("X-Remote-*: {why}")))?);
        headers.extend(trace_header());
        headers.insert(header::USER_AGENT, HeaderValue::from_static("podwright"));
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocols));
        let stream = Bounded::new(dialled(server, &self.remote).await.map_err(unreached)?, MAX_HEAD);
        let bound = stream.bound();
        let config = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
        let opening = Box::pin(tokio_tungstenite::client_async_with_config(request, stream, Some(config)));
        match opening.await {
            Ok((socket, answer)) => {
                bound.lift();
                let protocol = answer.headers().get(header::SEC_WEBSOCKET_PROTOCOL);
                Ok((socket, protocol.is_some_and(|protocol| protocol == CLOSING)))
            }
            Err(Error::Http(answer)) => {
                Err(wire::failure(answer.status(), answer.body().as_deref().unwrap_or_default()))
            }
            Err(why) => Err(unreached(why.into())),
        }
    }
}

/// Dialling asks this server for Services, which a session may serve in turn: the boxed type breaks the cycle.
fn dialled<'a>(server: &'a Server, remote: &'a Remote) -> BoxFuture<'a, anyhow::Result<Dialled>> {
    Box::pin(server.dial_extension(remote))
}

/// The first message of each channel of a port is the port's number.
struct Ports(u8);

impl Ports {
    fn is_head(&mut self, channel: u8, payload: &[u8]) -> bool {
        let is_head = self.0 > 0 && channel < 2 && payload.len() == 2;
        self.0 -= u8::from(is_head);
        is_head
    }
}

/// Resolves when the caller disconnects; a half-close does not count.
async fn gone(source: &mut Source) {
    while let Some(frame) = source.next().await {
        if frame.is_err() {
            return;
        }
    }
    std::future::pending().await
}

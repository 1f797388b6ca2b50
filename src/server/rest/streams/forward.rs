//! portforward: connections to ports inside a Pod, over WebSocket channels, or SPDY streams, direct or tunnelled.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, SinkExt, StreamExt};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

use super::spdy::{Session, Stream, Writer};
use super::websocket::{self, Framing, Socket};
use super::windows::{Reader, Windows};
use super::{Frames, Switch, Upgraded, open, switch};
use crate::Server;
use crate::ends::Ended;
use crate::limits::Account;
use crate::rest::Ask;
use crate::rest::reply::Reply;
use podwright_api::stream::{CLOSE, Frame, STATUS, STDIN, STDOUT};
use podwright_api::{Object, Request, Status, Verb};

/// SPDY inside a WebSocket's binary messages; kubectl's protocol since 1.31.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const WEBSOCKET: &[&str] = &[TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io", "portforward.k8s.io"];
const SPDY: &[&str] = &["portforward.k8s.io"];
/// The most ports of one WebSocket: each has two channels, numbered by one byte.
const MAX_PORTS: usize = 127;
/// The most incomplete pairs of streams on a SPDY connection.
const MAX_HALVES: usize = 32;
/// How long one stream of a pair waits for the other.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most concurrent port connections on a SPDY connection.
const MAX_RUNNING: usize = 128;
/// How long a connection into the Pod may accept no data while it blocks others, before it is ended. Its buffers in the Pod, some
/// MiB, are full by then.
const STALL: Duration = Duration::from_secs(2);
const BACKLOG: usize = 8;

/// Shared by the connections of one request: how to reach a port of the Pod.
pub(crate) struct Ports(Box<dyn Fn(u16) -> BoxFuture<'static, Result<Frames, Status>> + Send + Sync>);

impl Ports {
    fn of(server: Arc<Server>, request: Request) -> Ports {
        Ports::by(move |port| {
            let request = Request { body: Some(json!({"port": port})), ..request.clone() };
            let server = server.clone();
            async move { open(&server, request).await }.boxed()
        })
    }

    pub(crate) fn by(
        open: impl Fn(u16) -> BoxFuture<'static, Result<Frames, Status>> + Send + Sync + 'static,
    ) -> Ports {
        Ports(Box::new(open))
    }

    async fn open(&self, port: u16) -> Result<Frames, Status> {
        (self.0)(port).await
    }
}

pub(super) async fn serve(server: Arc<Server>, request: Request, mut ask: Ask, ended: Ended) -> Result<Reply, Status> {
    let switch = switch(&ask, WEBSOCKET, SPDY)?;
    // Whether the Pod exists, and the caller is authorized, is answered before the upgrade.
    let pod = Request { verb: Verb::Get, subresource: None, body: None, ..request.clone() };
    server.may(&request).await?;
    let phase = |pod: Object| pod.0["status"]["phase"].as_str().unwrap_or("").to_owned();
    let phase = server.read_as_server(pod, phase).await?;
    if phase != "Running" {
        let why = format!("unable to forward port because pod is not running. Current status={phase}");
        return Err(Status::bad_request(why));
    }
    let (messages, account) = (server.messages(&ask.user, websocket::MAX_MESSAGE), server.account(&ask.user));
    let ports = Arc::new(Ports::of(server, request));
    let mut wanted = Vec::new();
    for text in ask.query.all("ports").flat_map(|list| list.split(',')) {
        let port: u16 = text.parse().map_err(|_| Status::bad_request(format!("unable to parse {text:?} as a port")))?;
        wanted.push(port);
    }
    let upgrade = hyper::upgrade::on(&mut ask.http);
    let (reply, websocket) = match switch {
        Switch::WebSocket { protocol, reply } => (reply, Some(protocol)),
        Switch::Spdy { reply } => (reply, None),
    };
    let by_channels = websocket.as_deref().is_some_and(|protocol| protocol != TUNNEL);
    if by_channels && (wanted.is_empty() || wanted.contains(&0) || wanted.len() > MAX_PORTS) {
        return Err(Status::bad_request("query parameter \"ports\" is required: 1 to 127 ports"));
    }
    tokio::spawn(async move {
        let upgraded: Upgraded = match upgrade.await {
            Ok(upgraded) => hyper_util::rt::TokioIo::new(upgraded),
            Err(why) => return tracing::debug!("a port forward was not upgraded: {why}"),
        };
        let whole = async {
            match websocket {
                None => by_streams(Session::start(upgraded, Some(STALL), account), ports).await,
                Some(protocol) if by_channels => {
                    let socket = websocket::socket(upgraded, messages).await;
                    by_websocket(socket, ports, wanted, Framing::of(&protocol), account).await;
                }
                Some(_) => {
                    let socket = websocket::socket(upgraded, messages).await;
                    by_streams(Session::start(websocket::tunnel(socket), Some(STALL), account), ports).await;
                }
            }
        };
        tokio::select! {
            () = whole => {}
            () = ended => {}
        }
    });
    Ok(reply)
}

/// Each connection is a pair of streams, data and error, with one `requestid`.
pub(crate) async fn by_streams(mut session: Session, ports: Arc<Ports>) {
    let mut halves: HashMap<String, (Stream, Instant)> = HashMap::new();
    let mut running = tokio::task::JoinSet::new();
    loop {
        let due = halves.values().map(|(_, until)| *until).min();
        let stream = tokio::select! {
            stream = session.accept() => stream,
            Some(_) = running.join_next() => continue,
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let now = Instant::now();
                let late = halves.extract_if(|_, (_, until)| *until <= now).map(|(_, (stream, _))| stream.split().1);
                for writer in late.collect::<Vec<_>>() {
                    writer.finish().await;
                }
                continue;
            }
        };
        let Some(stream) = stream else { break };
        let id = stream.header("requestid").to_owned();
        let Some((first, _)) = halves.remove(&id) else {
            // Bounds the pairs that a client leaves incomplete.
            if halves.len() == MAX_HALVES {
                break;
            }
            halves.insert(id, (stream, Instant::now() + TIMEOUT));
            continue;
        };
        let (data, error) = if stream.header("streamtype") == "error" { (first, stream) } else { (stream, first) };
        if running.len() < MAX_RUNNING {
            running.spawn(one(data, error, ports.clone()));
            continue;
        }
        let (writer, error) = (data.split().1, error.split().1);
        let why = format!("too many connections: {MAX_RUNNING} are forwarded already");
        // The client may be gone.
        let _ = error.write(Bytes::from(why)).await;
        writer.finish().await;
        error.finish().await;
    }
    running.shutdown().await;
    // A stream keeps the writer alive: those waiting for their other half would keep the session open forever.
    drop(halves);
    session.end().await;
}

async fn one(data: Stream, error: Stream, ports: Arc<Ports>) {
    let port = data.header("port").parse::<u16>();
    let (reader, writer) = data.split();
    // The client sends nothing there; its data would be dropped.
    let mut error = Some(error.split().1);
    let ended = match port {
        Ok(port) => match ports.open(port).await {
            Ok(frames) => copy(frames, reader, &writer, &mut error).await,
            Err(status) => Err(status),
        },
        Err(_) => Err(Status::bad_request("the header port is not a port")),
    };
    if let (Err(status), Some(error)) = (ended, &error) {
        // The client may be gone.
        let _ = error.write(Bytes::from(status.message)).await;
    }
    writer.finish().await;
    if let Some(error) = error {
        error.finish().await;
    }
}

/// Copies bytes both ways until the node's side ends.
///
/// With the first bytes the connection is established, and its error stream is finished: later ends carry no message. Upstream's
/// clients close a connection only after reading the end of both streams, which an unread stream of theirs may delay (`credit`).
async fn copy(frames: Frames, mut reader: Reader, writer: &Writer, error: &mut Option<Writer>) -> Result<(), Status> {
    let (mut to_node, mut from_node) = frames.split();
    let reset = reader.reset();
    let upward = async {
        while let Some(payload) = reader.read().await {
            if to_node.send(Frame { channel: STDIN, payload }).await.is_err() {
                break;
            }
        }
        if !reset.is_cancelled() {
            let _ = to_node.send(Frame { channel: CLOSE, payload: Bytes::from_static(&[STDIN]) }).await;
        }
        std::future::pending::<Result<(), Status>>().await
    };
    let downward = async {
        while let Some(Ok(frame)) = from_node.next().await {
            if frame.channel == STATUS {
                return verdict(&frame.payload);
            }
            if frame.channel != STDOUT {
                continue;
            }
            if let Some(error) = error.take() {
                // The client may have no room for it yet.
                tokio::spawn(async move { error.finish().await });
            }
            if writer.write(frame.payload).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    };
    tokio::select! {
        ended = upward => ended,
        ended = downward => ended,
        // The stream was reset, by the client or because it stalled, which ends the client's connection. An error message would end
        // more: upstream's clients give up the whole forward, with all its ports, once any connection has an error.
        () = reset.cancelled() => Ok(()),
    }
}

/// The reason for ending a connection that blocks others.
fn stalled() -> Status {
    let why = "the port took nothing of what was sent to it, and held up the other connections";
    Status::timeout(format!("{why}: for {} s", STALL.as_secs()))
}

fn verdict(payload: &[u8]) -> Result<(), Status> {
    let status: Status = serde_json::from_slice(payload).map_err(Status::internal)?;
    if status.status == "Success" { Ok(()) } else { Err(status) }
}

/// Port i has the channels 2i (data) and 2i + 1 (error); each starts with the port's number.
pub(crate) async fn by_websocket<S>(
    socket: Socket<S>,
    ports: Arc<Ports>,
    wanted: Vec<u16>,
    framing: Framing,
    account: Arc<Account>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let lost = socket.get_ref().lost();
    let (mut sink, mut source) = socket.split();
    let (sender, mut messages) = mpsc::channel::<Message>(BACKLOG);
    let mut windows = Windows::new(Some(STALL));
    let mut running = tokio::task::JoinSet::new();
    for (i, port) in wanted.into_iter().enumerate() {
        // At most MAX_PORTS: the channels' numbers fit a byte.
        let channel = (i * 2) as u8;
        let reader = windows.open(u32::from(channel), false);
        running.spawn(channel_pair(channel, port, reader, (sender.clone(), framing), ports.clone()));
    }
    drop(sender);
    let upward = async {
        while let Ok(message) = websocket::payload(source.next().await) {
            let Some((channel, payload)) = message.and_then(|bytes| framing.split(bytes)) else { continue };
            let channel = u32::from(channel);
            // It waits beyond the next read, for which it is charged already.
            let Ok(charge) = account.charge(payload.len()) else { return };
            let mut charge = Some(charge);
            // The reset stream reports it itself. Any message fits the budget: a socket accepts none that is larger.
            while windows.hand_over(channel, &payload, &mut charge).await.is_some() {}
            windows.sweep(channel);
        }
    };
    let downward = async {
        while let Some(message) = messages.recv().await {
            if sink.send(message).await.is_err() {
                return;
            }
        }
        websocket::close(&mut sink).await;
    };
    tokio::select! {
        () = upward => {}
        () = downward => {}
        () = lost.cancelled() => {}
        () = account.lost().cancelled() => {}
    }
    running.shutdown().await;
}

async fn channel_pair(
    channel: u8,
    port: u16,
    mut reader: Reader,
    (messages, framing): (mpsc::Sender<Message>, Framing),
    ports: Arc<Ports>,
) {
    let message = |channel: u8, payload: &[u8]| framing.message(channel, payload);
    for channel in [channel, channel + 1] {
        if messages.send(message(channel, &port.to_le_bytes())).await.is_err() {
            return;
        }
    }
    let reset = reader.reset();
    let session = async {
        let (mut to_node, mut from_node) = ports.open(port).await?.split();
        let upward = async {
            while let Some(payload) = reader.read().await {
                if to_node.send(Frame { channel: STDIN, payload }).await.is_err() {
                    break;
                }
            }
            std::future::pending::<Result<(), Status>>().await
        };
        let downward = async {
            while let Some(Ok(frame)) = from_node.next().await {
                match frame.channel {
                    STDOUT if messages.send(message(channel, &frame.payload)).await.is_err() => return Ok(()),
                    STATUS => return verdict(&frame.payload),
                    _ => {}
                }
            }
            Ok(())
        };
        tokio::select! {
            ended = upward => ended,
            ended = downward => ended,
            // What follows would be incomplete.
            () = reset.cancelled() => Err(stalled()),
        }
    };
    let ended: Result<(), Status> = session.await;
    if let Err(status) = ended {
        let _ = messages.send(message(channel + 1, status.message.as_bytes())).await;
    }
}

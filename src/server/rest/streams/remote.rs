//! exec and attach: the standard streams of a process over WebSocket channels or SPDY streams.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{FutureExt, Shared};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

use super::spdy::{Session, Stream};
use super::websocket::{self, Framing, Socket};
use super::windows::Reader;
use super::{Frames, LAST_WORDS, Switch, Upgraded, cut_off, switch};
use crate::Server;
use crate::ends::Ended;
use crate::rest::Ask;
use crate::rest::reply::Reply;
use podwright_api::stream::{CLOSE, Frame, RESIZE, STATUS, STDERR, STDIN, STDOUT};
use podwright_api::{Request, Status};

/// v5 is v4 with half-close. Versions before v4 report failures as text, and success not at all.
const WEBSOCKET: &[&str] =
    &["v5.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io", "channel.k8s.io", "base64.channel.k8s.io"];
const SPDY: &[&str] = &["v4.channel.k8s.io"];
/// How long a client may take to open its streams; the session waits as long.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The size of a terminal is told by no more: two numbers. A node gives the rest up when it reads it, and holds it until then.
const LONGEST_SIZE: usize = 256;
/// Frames that may wait for a slow node.
const BACKLOG: usize = 4;

pub(super) async fn serve(
    server: Arc<Server>,
    request: Request,
    mut ask: Ask,
    tty: bool,
    ended: Ended,
) -> Result<Reply, Status> {
    let switch = switch(&ask, WEBSOCKET, SPDY)?;
    let ends = Ends {
        stdin: ask.query.flag("stdin"),
        stdout: ask.query.flag("stdout"),
        stderr: ask.query.flag("stderr") && !tty,
        tty,
    };
    // Errors in the request are still HTTP responses.
    let session = super::ask(&server, request).await?;
    let (upgrade, account) = (hyper::upgrade::on(&mut ask.http), server.account(&ask.user));
    let messages = server.messages(&ask.user, websocket::MAX_MESSAGE);
    let (reply, websocket) = match switch {
        Switch::WebSocket { protocol, reply } => (reply, Some(Dialect::of(&protocol))),
        Switch::Spdy { reply } => (reply, None),
    };
    tokio::spawn(async move {
        let upgraded: Upgraded = match upgrade.await {
            Ok(upgraded) => hyper_util::rt::TokioIo::new(upgraded),
            Err(why) => return tracing::debug!("a session was not upgraded: {why}"),
        };
        // The session starts only now, when the client can receive its output.
        let dial = || session.dial(&server).inspect_err(|why| tracing::debug!("a session was not opened: {why}"));
        let ended = ended.shared();
        let over = ended.clone();
        let late = async {
            over.await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        let whole = async {
            match websocket {
                None => by_spdy(Session::start(upgraded, None, account), dial, ends, ended).await,
                Some(dialect) => {
                    let Ok(frames) = dial() else { return };
                    by_websocket(websocket::socket(upgraded, messages).await, frames, ends, dialect, ended).await;
                }
            }
        };
        tokio::select! {
            () = whole => {}
            // Best effort.
            () = late => {}
        }
    });
    Ok(reply)
}

/// The streams of a session.
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// The message format of a WebSocket's subprotocol.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dialect {
    framing: Framing,
    /// The result is a `Status`, and always sent.
    has_status: bool,
}

impl Dialect {
    pub fn of(protocol: &str) -> Dialect {
        let has_status = protocol.starts_with("v4.") || protocol.starts_with("v5.");
        Dialect { framing: Framing::of(protocol), has_status }
    }

    /// The message with the result of a session, if any.
    fn verdict(self, status: &Status) -> Option<Message> {
        self.message(&Frame { channel: STATUS, payload: encoded(status) })
    }

    /// The message for a frame from the node, if any.
    fn message(self, frame: &Frame) -> Option<Message> {
        if frame.channel != STATUS || self.has_status {
            return Some(self.framing.message(frame.channel, &frame.payload));
        }
        let status: Status = serde_json::from_slice(&frame.payload).ok()?;
        (status.status != "Success").then(|| self.framing.message(STATUS, status.message.as_bytes()))
    }
}

fn encoded(status: &Status) -> Bytes {
    // A Status always encodes.
    serde_json::to_vec(status).unwrap_or_default().into()
}

/// Channels are the same as in frames: only the framing differs. Nothing is sent to the node once `ended` resolves, and the client
/// gets an error: clients consider a session that ends silently a success.
pub(crate) async fn by_websocket<S>(
    socket: Socket<S>,
    frames: Frames,
    ends: Ends,
    dialect: Dialect,
    ended: Shared<Ended>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let lost = socket.get_ref().lost();
    let (mut sink, mut source) = socket.split();
    let (mut to_node, from_node) = frames.split();
    let mut from_node = from_node.take_until(ended.clone());
    let heard = async {
        while let Ok(message) = websocket::payload(source.next().await) {
            let Some((channel, payload)) = message.and_then(|bytes| dialect.framing.split(bytes)) else { continue };
            let wanted = match channel {
                STDIN => ends.stdin && !payload.is_empty(),
                RESIZE => ends.tty && payload.len() <= LONGEST_SIZE,
                CLOSE => payload.first() == Some(&STDIN),
                _ => false,
            };
            if wanted && to_node.send(Frame { channel, payload }).await.is_err() {
                // The node no longer reads, but has not reported the result yet.
                std::future::pending::<()>().await;
            }
        }
    };
    let downward = async {
        // An empty message shows that the session is established.
        let first = match (ends.stdout, ends.stderr) {
            (true, _) => STDOUT,
            (false, true) => STDERR,
            (false, false) => STATUS,
        };
        if sink.send(dialect.framing.message(first, &[])).await.is_err() {
            return;
        }
        let mut told = false;
        while let Some(Ok(frame)) = from_node.next().await {
            let message = match frame.channel {
                // The node probes whether a silent client is still there.
                CLOSE => Some(dialect.framing.message(first, &[])),
                _ => dialect.message(&frame),
            };
            let sent = match message {
                Some(message) => sink.send(message).await.is_ok(),
                None => true,
            };
            told = !sent || frame.channel == STATUS;
            if told {
                break;
            }
        }
        if let Some(message) = dialect.verdict(&cut_off()).filter(|_| !told) {
            // The client may be gone.
            let _ = sink.send(message).await;
        }
        websocket::close(&mut sink).await;
    };
    let upward = async {
        tokio::select! {
            () = heard => {}
            () = ended => std::future::pending().await,
        }
    };
    tokio::select! {
        () = upward => {}
        () = downward => {}
        () = lost.cancelled() => {}
    }
}

/// The streams that a client opened for one session.
#[derive(Default)]
struct Opened {
    error: Option<Stream>,
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    resize: Option<Stream>,
}

impl Opened {
    async fn all(session: &mut Session, ends: Ends) -> Option<Opened> {
        let mut opened = Opened::default();
        loop {
            let outputs = (!ends.stdout || opened.stdout.is_some()) && (!ends.stderr || opened.stderr.is_some());
            let inputs = (!ends.stdin || opened.stdin.is_some()) && (!ends.tty || opened.resize.is_some());
            if outputs && inputs && opened.error.is_some() {
                return Some(opened);
            }
            let stream = session.accept().await?;
            match stream.header("streamtype") {
                "error" => opened.error = Some(stream),
                "stdin" => opened.stdin = Some(stream),
                "stdout" => opened.stdout = Some(stream),
                "stderr" => opened.stderr = Some(stream),
                "resize" => opened.resize = Some(stream),
                other => tracing::debug!("a client opened a stream of type {other:?}"),
            }
        }
    }
}

async fn by_spdy(
    mut session: Session,
    dial: impl FnOnce() -> Result<Frames, Status>,
    ends: Ends,
    ended: Shared<Ended>,
) {
    let Ok(Some(opened)) = tokio::time::timeout(TIMEOUT, Opened::all(&mut session, ends)).await else {
        return tracing::debug!("a client did not open the streams of its session");
    };
    let Ok(frames) = dial() else { return };
    let (mut to_node, from_node) = frames.split();
    let mut from_node = from_node.take_until(ended.clone());
    let (sender, mut input) = mpsc::channel(BACKLOG);
    let split = |stream: Option<Stream>| stream.map(Stream::split).unzip();
    let (stdin, stdin_end) = split(opened.stdin);
    let (resize, resize_end) = split(opened.resize);
    for (channel, reader) in [(STDIN, stdin), (RESIZE, resize)] {
        let Some(reader) = reader else { continue };
        tokio::spawn(feed(channel, reader, sender.clone()));
    }
    drop(sender);
    let (_, error) = split(opened.error);
    let (_, stdout) = split(opened.stdout);
    let (_, stderr) = split(opened.stderr);
    let upward = async {
        let sent = async {
            while let Some(frame) = input.recv().await
                && to_node.send(frame).await.is_ok()
            {}
        };
        tokio::select! {
            () = sent => {}
            () = ended => {}
        }
        std::future::pending::<()>().await;
    };
    let downward = async {
        let mut told = false;
        while let Some(Ok(frame)) = from_node.next().await {
            let to = match frame.channel {
                STDOUT => &stdout,
                STDERR => &stderr,
                STATUS => &error,
                _ => continue,
            };
            if let Some(to) = to
                && to.write(frame.payload).await.is_err()
            {
                return;
            }
            told = frame.channel == STATUS;
            if told {
                break;
            }
        }
        if let Some(error) = error.as_ref().filter(|_| !told)
            && error.write(encoded(&cut_off())).await.is_err()
        {
            return;
        }
        for end in [stdin_end, resize_end, stdout, stderr, error].into_iter().flatten() {
            end.finish().await;
        }
    };
    tokio::select! {
        () = upward => {}
        () = downward => {}
        () = session.closed() => {}
    }
    session.end().await;
}

async fn feed(channel: u8, mut reader: Reader, sender: mpsc::Sender<Frame>) {
    while let Some(payload) = reader.read().await {
        if sender.send(Frame { channel, payload }).await.is_err() {
            return;
        }
    }
    if channel == STDIN {
        let _ = sender.send(Frame { channel: CLOSE, payload: Bytes::from_static(&[STDIN]) }).await;
    }
}

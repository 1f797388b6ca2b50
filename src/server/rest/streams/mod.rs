//! Requests that need a node: logs, exec, attach, portforward, proxy; translates WebSocket and SPDY to the node's frames.

use std::time::Duration;

use bytes::Bytes;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::io::DuplexStream;
use tokio_util::codec::Framed;

pub(crate) use proxy::{Dialled, backend_of};

use super::authenticate::Peer;
use super::paths::Target;
use super::query::Query;
use super::reply::{self, Reply};
use super::{Ask, Face, Server};
use crate::authorize::attributes::Attributes;
use crate::ends::{Ended, disowned, either, never};
use crate::resolved_request::ResolvedRequest;
use crate::sessions::OpenSession;
use crate::streams::Come;
use podwright_api::request::Body;
use podwright_api::rpc::{ExecOptions, Task};
use podwright_api::stream::FrameCodec;
use podwright_api::{Request, Status};

pub(super) mod aggregated;
pub(crate) mod forward;
mod headers;
mod log;
mod proxy;
pub(crate) mod remote;
pub(crate) mod spdy;
mod until;
pub(crate) mod websocket;
mod windows;

/// The caller's end of a session with a node.
pub(crate) type Frames = Framed<DuplexStream, FrameCodec>;
/// A connection after its upgrade.
type Upgraded = hyper_util::rt::TokioIo<hyper::upgrade::Upgraded>;

const BUFFER: usize = 64 << 10;
/// How long one side may go on after the other has ended.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The methods that open a session, upstream's `rest.Connecter.ConnectMethods`: kubectl uses GET for WebSockets, POST for SPDY. A
/// HEAD, otherwise like a GET, opens none, as there is no use for it.
pub(super) fn is_method_of(subresource: &str, method: &Method) -> bool {
    match subresource {
        "log" => *method == Method::GET,
        "proxy" => {
            [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS]
                .contains(method)
        }
        _ => [Method::GET, Method::POST].contains(method),
    }
}

/// The verb that a proxied method is authorized as; upstream's `RequestInfoFactory`. For other methods only `*` matches.
pub(super) fn verb_of(method: &Method) -> &'static str {
    match *method {
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// Handles a request that needs a node.
pub(super) async fn connect(
    face: &Face,
    peer: &Peer,
    target: Target,
    mut request: Request,
    ask: Ask,
) -> Result<Reply, Status> {
    let sub = request.subresource.clone().unwrap_or_default();
    // As upstream since 1.35: with GET, a session requires the right to get and (below) to create.
    if matches!(sub.as_str(), "exec" | "attach" | "portforward") {
        face.server.may_by(&request, verb_of(&ask.method)).await?;
    }
    let ended = ended(face, peer, &request, &ask)?;
    match sub.as_str() {
        "log" => {
            request.body = Some(log_options(&ask.query)?);
            log::serve(&face.server, request, ask, ended).await
        }
        "exec" | "attach" => {
            request.body = Some(exec_options(&ask.query, sub == "exec")?);
            let tty = ask.query.flag("tty");
            remote::serve(face.server.clone(), request, ask, tty, ended).await
        }
        "portforward" => forward::serve(face.server.clone(), request, ask, ended).await,
        "proxy" => proxy::serve(&face.server, target, request, ask, ended).await,
        _ => Err(super::not_allowed()),
    }
}

/// Resolves when the credentials or the authorization end. (The server checks a session with a node itself; but a port-forward may
/// have none at the moment.)
fn ended(face: &Face, peer: &Peer, request: &Request, ask: &Ask) -> Result<Ended, Status> {
    let call = ResolvedRequest::resolve(&face.server.kinds(), request.clone())?;
    let by_method = verb_of(&ask.method);
    let mut verbs = match request.subresource.as_deref() {
        Some("portforward") => vec!["create", by_method],
        Some("exec" | "attach" | "proxy") => vec![by_method],
        _ => Vec::new(),
    };
    verbs.dedup();
    let asked = verbs.iter().map(|verb| Attributes { verb, ..call.attributes() }.keep()).collect();
    let shown = ask.http.headers().clone();
    let disowned = disowned(face.server.clone(), peer.clone(), shown, ask.user.clone());
    Ok(either(disowned, face.server.withdrawn(asked)))
}

/// Opens the session of a connect request whose caller is already connected.
async fn open(server: &Server, request: Request) -> Result<Frames, Status> {
    ask(server, request).await?.dial(server)
}

/// A session that is requested from the node once it is dialled; it expires otherwise.
struct Awaited {
    id: String,
    user: String,
}

/// Checks a connect request.
async fn ask(server: &Server, request: Request) -> Result<Awaited, Status> {
    let user = request.user.name.clone();
    match server.handle(request).await?.body {
        Body::Stream { id } => Ok(Awaited { id, user }),
        _ => Err(Status::internal("connect opened no stream")),
    }
}

impl Awaited {
    fn dial(self, server: &Server) -> Result<Frames, Status> {
        let gone = || Status::timeout("the stream has ended before it began");
        let (ours, theirs) = tokio::io::duplex(BUFFER);
        let half = server.streams.take(&self.id, &self.user).ok_or_else(gone)?;
        // It ends with its client's connection.
        half.send(Come { half: Box::new(theirs), ended: never() }).map_err(|_| gone())?;
        Ok(Framed::new(ours, FrameCodec))
    }
}

/// Opens a session for the server itself.
fn ask_node(server: &Server, node: &str, task: Task, counted: OpenSession) -> Result<Frames, Status> {
    const USER: &str = "system:apiserver";
    let id = server.streams.open(&server.env, node, USER, task, counted, never())?;
    Awaited { id, user: USER.to_owned() }.dial(server)
}

/// The status of a session that broke off without one.
fn cut_off() -> Status {
    Status::internal("the session was cut off before its end")
}

/// `PodLogOptions` from a query.
fn log_options(query: &Query) -> Result<Value, Status> {
    let mut options = Map::new();
    for key in ["container", "sinceTime", "stream"] {
        if let Some(text) = query.first(key) {
            options.insert(key.into(), text.into());
        }
    }
    for key in ["follow", "previous", "timestamps"] {
        options.insert(key.into(), query.flag(key).into());
    }
    for key in ["sinceSeconds", "tailLines", "limitBytes"] {
        if let Some(number) = query.number::<i64>(key)? {
            options.insert(key.into(), number.into());
        }
    }
    // The values are validated where the options are parsed.
    Ok(options.into())
}

/// `PodExecOptions` or `PodAttachOptions` from a query.
fn exec_options(query: &Query, with_command: bool) -> Result<Value, Status> {
    let mut options = Map::new();
    for key in ["stdin", "stdout", "stderr", "tty"] {
        options.insert(key.into(), query.flag(key).into());
    }
    if let Some(container) = query.first("container") {
        options.insert("container".into(), container.into());
    }
    if with_command {
        options.insert("command".into(), query.all("command").collect());
    }
    if !["stdin", "stdout", "stderr"].iter().any(|key| query.flag(key)) {
        return Err(Status::bad_request("you must specify at least 1 of stdin, stdout, stderr"));
    }
    if query.flag("tty") {
        // A terminal has one output.
        options.insert("stderr".into(), false.into());
    }
    check::<ExecOptions>(options.into())
}

fn check<T: DeserializeOwned>(options: Value) -> Result<Value, Status> {
    T::deserialize(&options).map_err(|why| Status::bad_request(why.to_string()))?;
    Ok(options)
}

/// Whether a request wants to upgrade to this protocol.
pub(super) fn wants_upgrade(headers: &HeaderMap, protocol: &str) -> bool {
    let has = |name: HeaderName, wanted: &str| {
        words(headers, name.as_str()).iter().any(|word| word.eq_ignore_ascii_case(wanted))
    };
    has(header::CONNECTION, "upgrade") && has(header::UPGRADE, protocol)
}

/// All values of a comma-separated header.
fn words<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let texts = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).map(str::trim).filter(|word| !word.is_empty()).collect()
}

/// The 101 response, with the protocol's headers.
fn switching(protocol: &'static str, headers: &[(&'static str, &str)]) -> Reply {
    let mut reply = reply::text(StatusCode::SWITCHING_PROTOCOLS, Bytes::new());
    let map = reply.headers_mut();
    map.clear();
    map.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    map.insert(header::UPGRADE, HeaderValue::from_static(protocol));
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(value) {
            map.insert(*name, value);
        }
    }
    reply
}

/// The client's protocol, with the accepting response.
enum Switch {
    WebSocket { protocol: String, reply: Reply },
    Spdy { reply: Reply },
}

/// Chooses protocol and subprotocol, each by our order of preference.
fn switch(ask: &Ask, websocket: &[&str], spdy: &[&str]) -> Result<Switch, Status> {
    let headers = ask.http.headers();
    if wants_upgrade(headers, "websocket") {
        let offered = words(headers, "sec-websocket-protocol");
        let chosen = websocket.iter().find(|name| offered.contains(name));
        // Without subprotocols the oldest is used, as upstream.
        let protocol = match (chosen, offered.is_empty()) {
            (Some(name), _) => *name,
            (None, true) => "",
            (None, false) => {
                let why = format!("unable to negotiate a subprotocol: the client offers {offered:?}, we {websocket:?}");
                return Err(Status::bad_request(why));
            }
        };
        if ask.method != Method::GET {
            return Err(super::not_allowed());
        }
        let reply = websocket::accept(headers, protocol)?;
        return Ok(Switch::WebSocket { protocol: protocol.to_owned(), reply });
    }
    if wants_upgrade(headers, "SPDY/3.1") {
        let offered = words(headers, "x-stream-protocol-version");
        let Some(protocol) = spdy.iter().find(|name| offered.contains(name)) else {
            let why = format!("unable to upgrade: the client offers {offered:?}, we {spdy:?}");
            return Err(Status::failure(403, "Forbidden", why));
        };
        let reply = switching("SPDY/3.1", &[("x-stream-protocol-version", protocol)]);
        return Ok(Switch::Spdy { reply });
    }
    Err(Status::bad_request("unable to upgrade: a WebSocket or SPDY/3.1 upgrade is needed"))
}

//! The JSON-RPC face: HTTP and WebSocket on a Unix socket, root only; raw streams and health beside it.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request as HttpRequest, Response as HttpResponse, StatusCode, header};
use hyper_util::rt::TokioIo;
use jsonrpsee::RpcModule;
use jsonrpsee::core::server::{Extensions, SubscriptionCloseResponse, SubscriptionMessage};
use jsonrpsee::server::{BatchRequestConfig, Methods, PendingSubscriptionSink, ServerConfig, StopHandle, stop_channel};
use jsonrpsee::types::{ErrorObjectOwned, Params};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::net::{UnixListener, UnixStream};
use tower::Service;

use crate::api::request::{Body, List, PatchType};
use crate::api::rpc::{self, Answer};
use crate::api::{Request, Response, Status, User, Verb, WatchEvent};

use super::{Server, discover};

/// The largest message that is taken in, and sent out.
const MAX_REQUEST: u32 = 16 << 20;
const MAX_RESPONSE: u32 = 256 << 20;
const MAX_CONNECTIONS: u32 = 100_000;
const MAX_SUBSCRIPTIONS: u32 = 100_000;
/// Messages that may wait for a slow connection.
const MESSAGES: u32 = 1024;
const MAX_BATCH: u32 = 1000;

type HttpBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// Makes the socket, for its owner alone. One that a dead server left behind is replaced.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        let why = format!("another server listens on {}", path.display());
        return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    }
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves until `shutdown` resolves; then open calls are given a moment and all connections are closed.
pub async fn serve(server: Arc<Server>, listener: UnixListener, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    let methods: Methods = methods(server.clone()).map_err(io::Error::other)?.into();
    let config = ServerConfig::builder()
        .max_request_body_size(MAX_REQUEST)
        .max_response_body_size(MAX_RESPONSE)
        .max_connections(MAX_CONNECTIONS)
        .max_subscriptions_per_connection(MAX_SUBSCRIPTIONS)
        .set_message_buffer_capacity(MESSAGES)
        .set_batch_request_config(BatchRequestConfig::Limit(MAX_BATCH))
        .build();
    let builder = jsonrpsee::server::Server::builder().set_config(config).to_service_builder();
    let (stop, handle) = stop_channel();
    let mut connections = tokio::task::JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(why) => {
                    // Out of descriptors, most likely: let some be closed first.
                    tracing::warn!("cannot accept a connection: {why}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
            () = &mut shutdown => break,
        };
        let service = builder.clone().build(methods.clone(), stop.clone());
        connections.spawn(connection(server.clone(), stream, service, stop.clone()));
    }
    // An error says that it is stopped already.
    let _ = handle.stop();
    let ended = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(Duration::from_secs(1), ended).await;
    Ok(())
}

type RpcService = jsonrpsee::server::TowerService<tower::layer::util::Identity, tower::layer::util::Identity>;

async fn connection(server: Arc<Server>, stream: UnixStream, rpc: RpcService, stop: StopHandle) {
    let user = authenticate(&stream);
    let service = service_fn(move |request| {
        let (server, rpc, user) = (server.clone(), rpc.clone(), user.clone());
        async move { Ok::<_, std::convert::Infallible>(route(server, rpc, user, request).await) }
    });
    let http = hyper::server::conn::http1::Builder::new();
    let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stop.shutdown() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(why) = ended {
        tracing::debug!("a connection broke: {why}");
    }
}

/// Root is cluster-admin; nobody else may come in by the socket.
fn authenticate(stream: &UnixStream) -> Option<User> {
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == 0 => Some(User::system("system:admin")),
        Ok(peer) => {
            tracing::warn!("refused a connection of uid {}: the socket is for root", peer.uid());
            None
        }
        Err(why) => {
            tracing::warn!("refused a connection whose peer is unknown: {why}");
            None
        }
    }
}

async fn route(
    server: Arc<Server>,
    mut rpc: RpcService,
    user: Option<User>,
    mut request: HttpRequest<Incoming>,
) -> HttpResponse<HttpBody> {
    let Some(user) = user else {
        return answer(StatusCode::FORBIDDEN, "only root may use this socket\n");
    };
    match request.uri().path() {
        rpc::PATH => {
            request.extensions_mut().insert(user);
            match rpc.call(request).await {
                Ok(response) => response.map(|body| body.map_err(Into::into).boxed_unsync()),
                Err(why) => answer(StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
            }
        }
        "/healthz" | "/livez" | "/readyz" => answer(StatusCode::OK, "ok"),
        path => match path.strip_prefix(rpc::STREAM_PATH).map(str::to_owned) {
            Some(id) => upgrade(&server, &id, request),
            None => answer(StatusCode::NOT_FOUND, "404 page not found\n"),
        },
    }
}

fn answer(status: StatusCode, text: impl Into<Bytes>) -> HttpResponse<HttpBody> {
    let body = Full::new(text.into()).map_err(|never| match never {}).boxed_unsync();
    let mut response = HttpResponse::new(body);
    *response.status_mut() = status;
    response
}

/// Switches the connection to frames and hands it to whoever waits for this half.
fn upgrade(server: &Server, id: &str, request: HttpRequest<Incoming>) -> HttpResponse<HttpBody> {
    let wanted = request.headers().get(header::UPGRADE).and_then(|v| v.to_str().ok()).unwrap_or("");
    if !wanted.eq_ignore_ascii_case(rpc::STREAM_PROTOCOL) {
        return answer(StatusCode::UPGRADE_REQUIRED, format!("Upgrade: {} is needed\n", rpc::STREAM_PROTOCOL));
    }
    let Some(half) = server.streams.take(id) else {
        return answer(StatusCode::NOT_FOUND, "no such stream, or it has been taken\n");
    };
    tokio::spawn(async move {
        match hyper::upgrade::on(request).await {
            // Nobody waits any more: dropping the connection says so.
            Ok(upgraded) => drop(half.send(Box::new(TokioIo::new(upgraded)))),
            Err(why) => tracing::debug!("a stream was not upgraded: {why}"),
        }
    });
    let mut response = answer(StatusCode::SWITCHING_PROTOCOLS, Bytes::new());
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, header::HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, header::HeaderValue::from_static(rpc::STREAM_PROTOCOL));
    response
}

/// The methods that take a request and answer it; `patch_type` is what the method implies.
const REQUESTS: [(&str, Verb, Option<PatchType>); 9] = [
    ("get", Verb::Get, None),
    ("list", Verb::List, None),
    ("create", Verb::Create, None),
    ("update", Verb::Update, None),
    ("patch", Verb::Patch, None),
    ("apply", Verb::Patch, Some(PatchType::Apply)),
    ("delete", Verb::Delete, None),
    ("deletecollection", Verb::DeleteCollection, None),
    ("connect", Verb::Connect, None),
];

fn methods(server: Arc<Server>) -> Result<RpcModule<Server>, jsonrpsee::core::RegisterMethodError> {
    let mut module = RpcModule::from_arc(server);
    for (name, verb, patch_type) in REQUESTS {
        module.register_async_method(name, move |params, server, ext| async move {
            let mut request = parse(&params, verb, &ext)?;
            request.options.patch_type = patch_type.or(request.options.patch_type);
            let response = server.handle(request).await.map_err(error)?;
            encode(response).map_err(error)
        })?;
    }
    module.register_subscription(rpc::WATCH, rpc::WATCH_EVENT, rpc::UNWATCH, watch)?;
    module.register_subscription(rpc::SESSIONS, rpc::SESSION_EVENT, rpc::UNSESSIONS, sessions)?;
    module.register_async_method("backup", |params, server, _| async move {
        let Backup { path } = parse_params(&params)?;
        server.backup(Path::new(&path)).await.map_err(error)?;
        encode(super::get::status(Status::success())).map_err(error)
    })?;
    module.register_method("rpc.discover", |_, _, _| discover::document())?;
    Ok(module)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Backup {
    path: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfNode {
    node: String,
}

fn parse_params<T: for<'a> Deserialize<'a>>(params: &Params<'_>) -> Result<T, ErrorObjectOwned> {
    let text = params.as_str().unwrap_or("{}");
    serde_json::from_str(text).map_err(|e| error(Status::bad_request(format!("params: {e}"))))
}

fn parse(params: &Params<'_>, verb: Verb, ext: &Extensions) -> Result<Request, ErrorObjectOwned> {
    let request: Request = parse_params(params)?;
    // Without the face's word on who it is, the caller is nobody.
    let user = ext.get::<User>().cloned().unwrap_or_default();
    Ok(Request { verb, user, ..request })
}

/// A `Status` as JSON-RPC carries it.
fn error(status: Status) -> ErrorObjectOwned {
    ErrorObjectOwned::owned(i32::from(status.code), status.message.clone(), Some(status))
}

/// Bytes that are JSON already.
fn raw(bytes: &[u8]) -> Result<Box<RawValue>, Status> {
    let text = std::str::from_utf8(bytes).map_err(Status::internal)?;
    RawValue::from_string(text.to_owned()).map_err(Status::internal)
}

fn encode(response: Response) -> Result<Answer, Status> {
    let mut answer = Answer { warnings: response.warnings, ..Answer::default() };
    match response.body {
        Body::Object { bytes, created } => {
            answer.object = Some(raw(&bytes)?);
            answer.created = created;
        }
        Body::List(list) => answer.object = Some(raw(&encode_list(&list))?),
        Body::Status(status) => {
            answer.object = Some(serde_json::value::to_raw_value(&status).map_err(Status::internal)?)
        }
        Body::Stream { id } => answer.stream = Some(id),
    }
    Ok(answer)
}

/// A list as one JSON object, its items as they are.
fn encode_list(list: &List) -> Vec<u8> {
    let mut metadata = serde_json::json!({"resourceVersion": list.resource_version});
    if !list.continue_token.is_empty() {
        metadata["continue"] = list.continue_token.as_str().into();
    }
    if let Some(remaining) = list.remaining_item_count {
        metadata["remainingItemCount"] = remaining.into();
    }
    let head = serde_json::json!({"kind": list.kind, "apiVersion": list.api_version, "metadata": metadata}).to_string();
    let size = list.items.iter().map(|item| item.len() + 1).sum::<usize>();
    let mut out = Vec::with_capacity(head.len() + size + 16);
    out.extend_from_slice(&head.as_bytes()[..head.len() - 1]);
    out.extend_from_slice(b",\"items\":[");
    for (i, item) in list.items.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        out.extend_from_slice(item);
    }
    out.extend_from_slice(b"]}");
    out
}

fn encode_event(event: &WatchEvent) -> Result<Box<RawValue>, Status> {
    let object = std::str::from_utf8(&event.object).map_err(Status::internal)?;
    let kind = serde_json::to_string(&event.kind).map_err(Status::internal)?;
    RawValue::from_string(format!("{{\"type\":{kind},\"object\":{object}}}")).map_err(Status::internal)
}

/// Serves one watch. Its end is told, so that the client resumes.
async fn watch(
    params: Params<'static>,
    pending: PendingSubscriptionSink,
    server: Arc<Server>,
    ext: Extensions,
) -> SubscriptionCloseResponse {
    let opened = match parse(&params, Verb::Watch, &ext) {
        Ok(request) => server.watch(request).await.map_err(error),
        Err(why) => Err(why),
    };
    let mut events = match opened {
        Ok(events) => events,
        Err(why) => {
            pending.reject(why).await;
            return SubscriptionCloseResponse::None;
        }
    };
    let Ok(sink) = pending.accept().await else { return SubscriptionCloseResponse::None };
    loop {
        let event = tokio::select! {
            event = events.recv() => event,
            () = sink.closed() => return SubscriptionCloseResponse::None,
        };
        let Some(event) = event else {
            return SubscriptionCloseResponse::NotifErr("the watch has ended".to_owned().into());
        };
        match encode_event(&event) {
            // Waiting here is the backpressure: a client that does not read is cut off by the cache.
            Ok(message) => {
                if sink.send(message).await.is_err() {
                    return SubscriptionCloseResponse::None;
                }
            }
            Err(why) => return SubscriptionCloseResponse::NotifErr(why.message.into()),
        }
    }
}

/// Tells a node what sessions it shall serve.
async fn sessions(
    params: Params<'static>,
    pending: PendingSubscriptionSink,
    server: Arc<Server>,
    ext: Extensions,
) -> SubscriptionCloseResponse {
    let node = match parse_params::<OfNode>(&params) {
        Ok(of) => of.node,
        Err(why) => {
            pending.reject(why).await;
            return SubscriptionCloseResponse::None;
        }
    };
    let user = ext.get::<User>().cloned().unwrap_or_default();
    let mut sessions = match server.sessions(&user, &node) {
        Ok(sessions) => sessions,
        Err(status) => {
            pending.reject(error(status)).await;
            return SubscriptionCloseResponse::None;
        }
    };
    let Ok(sink) = pending.accept().await else { return SubscriptionCloseResponse::None };
    loop {
        let session = tokio::select! {
            session = sessions.recv() => session,
            () = sink.closed() => return SubscriptionCloseResponse::None,
        };
        let Some(session) = session else { return SubscriptionCloseResponse::None };
        // A Session is made of strings and numbers: it encodes.
        let Ok(message) = serde_json::value::to_raw_value(&session) else { continue };
        if sink.send(SubscriptionMessage::from(message)).await.is_err() {
            return SubscriptionCloseResponse::None;
        }
    }
}

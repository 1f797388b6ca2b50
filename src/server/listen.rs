//! The listeners: a Unix socket for root and TCP with TLS; on both, JSON-RPC at `/rpc`, raw streams, and REST.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request as HttpRequest, StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use jsonrpsee::server::{StopHandle, stop_channel};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tower::Service;

use tokio_util::sync::CancellationToken;

use podwright_api::request::Origin;
use podwright_api::{Status, User, rpc};

use super::answers::{self, Patience, Room, Rooms};
use super::audit::Facts;
use super::ends::{apart, disowned};
use super::limits::{Admitted, Asked, ConnectionLimiter, Guest, Paced, Pass, Requests, Runs, WITH_CPU_WAIT, Waited};
use super::linger::Lingering;
use super::rest::authenticate::Peer;
use super::rest::origin::{self, Source};
use super::rest::reply::{self, HttpBody, Reply};
use super::rest::{self, Face};
use super::rpc::{Endpoint, RpcService, wire::MAX_REQUEST};
use super::streams::Come;
use super::unread::{Metered, Unread};
use super::{Server, hello, pki};

mod socket;

pub use socket::{Socket, bind};

/// The longest headers, in bytes.
const HEADERS: u32 = 64 << 10;
/// How often an HTTP/2 client is pinged, and how many requests it may have open.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const STREAMS: u32 = 1000;
/// How many unprocessed requests a client may have reset.
const RESETS: usize = 20;
/// How many streams the server may reset for a client's errors during a connection: it is never reduced, and a correct client's
/// connection lasts for days. (hyper's default.)
const MISTAKES: usize = 1024;
/// The HTTP/2 receive windows, per stream (upstream's value) and per connection.
const WINDOW: u32 = 256 << 10;

/// The TLS configuration and its TCP listeners.
pub struct Tls {
    config: Arc<rustls::ServerConfig>,
    tls_listeners: mpsc::UnboundedSender<TcpListener>,
    listeners: mpsc::UnboundedReceiver<TcpListener>,
}

impl Tls {
    pub fn new(listener: TcpListener, config: Arc<rustls::ServerConfig>) -> Tls {
        let (tls_listeners, listeners) = mpsc::unbounded_channel();
        // The receiver is in `self`.
        let _ = tls_listeners.send(listener);
        Tls { config, tls_listeners, listeners }
    }

    /// Accepts further listeners, also while serving.
    pub fn tls_listeners(&self) -> mpsc::UnboundedSender<TcpListener> {
        self.tls_listeners.clone()
    }
}

/// Shared by all connections.
struct ConnectionContext {
    server: Arc<Server>,
    face: Arc<Face>,
    endpoint: Endpoint,
    limiter: ConnectionLimiter,
    stop: StopHandle,
}

/// Serves until `shutdown` resolves; then open calls get a moment to finish and all connections are closed.
pub async fn serve(
    server: Arc<Server>,
    mut socket: Socket,
    mut tls: Option<Tls>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let (stop, handle) = stop_channel();
    let endpoint = Endpoint::new(server.clone()).map_err(io::Error::other)?;
    let context = Arc::new(ConnectionContext {
        face: Face::new(server.clone()),
        limiter: ConnectionLimiter::new(&server.config.limits),
        server,
        endpoint,
        stop,
    });
    let (mut connections, mut tls_listeners) = (JoinSet::new(), JoinSet::new());
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok(stream) => drop(connections.spawn(of_socket(context.clone(), stream))),
                Err(why) => out_of_descriptors(&why).await,
            },
            (listener, acceptor) = next(&mut tls) => {
                drop(tls_listeners.spawn(accept_from(context.clone(), acceptor, listener)));
            }
            Some(_) = connections.join_next() => {}
            () = &mut shutdown => break,
        }
    }
    // An error means that it is stopped already.
    let _ = handle.stop();
    let ended = async {
        while connections.join_next().await.is_some() {}
        while tls_listeners.join_next().await.is_some() {}
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), ended).await;
    Ok(())
}

/// The next listener to serve.
async fn next(tls: &mut Option<Tls>) -> (TcpListener, TlsAcceptor) {
    if let Some(tls) = tls
        && let Some(listener) = tls.listeners.recv().await
    {
        return (listener, TlsAcceptor::from(tls.config.clone()));
    }
    std::future::pending().await
}

/// Serves one listener until the server stops; then its connections end.
async fn accept_from(context: Arc<ConnectionContext>, acceptor: TlsAcceptor, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => match context.limiter.admit(from.ip()) {
                    Some(pass) => drop(connections.spawn(admitted(context.clone(), acceptor.clone(), stream, pass))),
                    // Closed at once: there are too many.
                    None => drop(stream),
                },
                Err(why) => out_of_descriptors(&why).await,
            },
            Some(_) = connections.join_next() => {}
            () = context.stop.clone().shutdown() => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Waits for some to be closed.
async fn out_of_descriptors(why: &io::Error) {
    tracing::warn!("failed to accept a connection: {why}");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// Root is cluster-admin; nobody else may use the socket.
async fn of_socket(context: Arc<ConnectionContext>, stream: UnixStream) {
    let peer = match stream.peer_cred() {
        Ok(peer) if peer.uid() == 0 => Some(Peer { root: true, ..Peer::default() }),
        Ok(peer) => {
            tracing::warn!("refused a connection of uid {}: the socket is for root", peer.uid());
            None
        }
        Err(why) => {
            tracing::warn!("refused a connection whose peer is unknown: {why}");
            None
        }
    };
    connection(context, stream, peer, None, false).await;
}

/// Serves a connection for as long as it has its pass. (After an upgrade the stream holds the pass.)
async fn admitted(context: Arc<ConnectionContext>, acceptor: TlsAcceptor, stream: TcpStream, pass: Pass) {
    let guest = pass.guest();
    tokio::select! {
        () = of_tls(context, acceptor, stream, pass) => {}
        () = guest.lost().cancelled() => {}
    }
}

async fn of_tls(context: Arc<ConnectionContext>, acceptor: TlsAcceptor, stream: TcpStream, pass: Pass) {
    let (limits, guest) = (&context.server.config.limits, pass.guest());
    // Responses are small and urgent. If this fails, they are a little late.
    let _ = stream.set_nodelay(true);
    // The kernel cuts off clients that do not read; if this fails, only when the peer is gone.
    let stalled = u32::try_from(limits.stalled.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, stalled);
    let stream = Admitted::new(stream, pass);
    let handshake = async { acceptor.accept(hello::read(stream).await?).await };
    let handshake = context.server.limiters.cpu.measured_at(guest.address(), handshake);
    let stream = match handshake.within(limits.handshake).await {
        Some(Ok(stream)) => stream,
        Some(Err(why)) => return tracing::debug!("a TLS handshake failed: {why}"),
        None => return tracing::debug!("a TLS handshake took too long"),
    };
    let chain = stream.get_ref().1.peer_certificates();
    let shown = chain.and_then(|chain| chain.first());
    let (certificate, until) = (shown.and_then(pki::user_of), shown.and_then(pki::end_of));
    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    if let Some(user) = &certificate {
        // A user with too many connections learns that with the first request.
        let _ = guest.known(user);
    }
    connection(context, stream, Some(Peer { root: false, certificate, until }), Some(guest), is_h2).await;
}

/// Serves one connection with a known protocol: detecting it could take forever.
async fn connection<S>(
    context: Arc<ConnectionContext>,
    stream: S,
    peer: Option<Peer>,
    guest: Option<Guest>,
    is_h2: bool,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let rpc = context.endpoint.service(context.stop.clone());
    let (stop, peer) = (context.stop.clone(), Arc::new(peer));
    let headers = context.server.config.limits.headers;
    let unsent = CancellationToken::new();
    let patience_of = if is_h2 { Patience::new } else { Patience::of_http1 };
    let patience = patience_of(context.server.config.limits.stalled, unsent.clone());
    let (asked, handed_over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let unread = Unread::new(context.server.config.limits.stalled);
    let runs_of = if is_h2 { Runs::apart } else { Runs::around };
    let mut runs = guest.as_ref().map(|guest| runs_of(&context.server.limiters.cpu, guest));
    let greeting = greeting(headers, asked.clone(), runs.as_ref().map(Runs::waited).unwrap_or_default());
    let requests = runs.as_ref().map(Runs::requests);
    let stream = Metered::new(Paced::new(stream, runs.as_ref()), unread.clone());
    let io = TokioIo::new(Lingering::new(stream, handed_over.clone()));
    let service = service_fn(move |mut request: HttpRequest<Incoming>| {
        asked.store(true, Ordering::Relaxed);
        if let Some(guest) = &guest {
            request.extensions_mut().insert(Source(guest.address()));
            request.extensions_mut().insert(guest.clone());
        }
        let (context, rpc, peer) = (context.clone(), rpc.clone(), peer.clone());
        let open = patience.open();
        let begun = requests.as_ref().and_then(Requests::begun);
        let (reply, handed_over, patience): (BoxFuture<'static, Reply>, _, _) =
            (Box::pin(route(context, rpc, peer, unread.clone(), request)), handed_over.clone(), patience.clone());
        async move {
            let mut reply = reply.await;
            let room = reply.extensions_mut().remove::<Arc<Room>>();
            let reply = reply.map(|body| within(begun, answers::sent(body, room, Some(patience))));
            // It now counts as a response.
            drop(open);
            handed_over.fetch_or(reply.status() == StatusCode::SWITCHING_PROTOCOLS, Ordering::Relaxed);
            Ok::<_, std::convert::Infallible>(reply)
        }
    });
    let http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    let mut http = if is_h2 { http.http2_only() } else { http.http1_only() };
    http.http1().timer(TokioTimer::new()).header_read_timeout(headers).max_buf_size(HEADERS as usize);
    http.http2().timer(TokioTimer::new()).keep_alive_interval(Some(KEEP_ALIVE)).max_concurrent_streams(STREAMS);
    http.http2().max_header_list_size(HEADERS);
    http.http2().max_pending_accept_reset_streams(RESETS).max_local_error_reset_streams(MISTAKES);
    http.http2().initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
    let connection = http.serve_connection_with_upgrades(io, service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = poll_fn(|cx| run(&mut runs, connection.as_mut(), cx)) => ended,
        () = unsent.cancelled() => return tracing::debug!("a connection was left unread"),
        () = greeting => return tracing::debug!("a connection asked for nothing"),
        () = stop.shutdown() => {
            connection.as_mut().graceful_shutdown();
            poll_fn(|cx| run(&mut runs, connection.as_mut(), cx)).await
        }
    };
    if let Err(why) = ended {
        tracing::debug!("a connection broke: {why}");
    }
}

/// Polls a connection, on its client's account if it has one.
fn run<F: Future>(runs: &mut Option<Runs>, connection: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<F::Output> {
    match runs {
        Some(runs) => runs.poll(connection, cx),
        None => connection.poll(cx),
    }
}

/// A response body that counts as part of its request while it exists.
fn within(asked: Option<Asked>, body: HttpBody) -> HttpBody {
    let Some(asked) = asked else { return body };
    // Owned by the error mapper, so dropped with the body. (A body with a known length keeps that.)
    body.map_err(move |why| {
        let _ = &asked;
        why
    })
    .boxed_unsync()
}

/// Resolves if nothing was requested in time, as HTTP/2 has no such limit. As with a handshake, waiting for turns does not count as
/// the client's time, as long as the total is at most three times the limit.
async fn greeting(patience: Duration, asked: Arc<AtomicBool>, waited: Waited) {
    let begun = Instant::now();
    loop {
        let end = begun + (patience + waited.so_far()).min(patience * WITH_CPU_WAIT);
        if end <= Instant::now() {
            break;
        }
        tokio::time::sleep_until(end).await;
    }
    if asked.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
}

async fn route(
    context: Arc<ConnectionContext>,
    mut rpc: RpcService,
    peer: Arc<Option<Peer>>,
    unread: Arc<Unread>,
    request: HttpRequest<Incoming>,
) -> Reply {
    let known = peer.clone();
    let Some(peer) = &*peer else {
        return reply::text(StatusCode::FORBIDDEN, "only root may use this socket\n");
    };
    let path = request.uri().path();
    let (is_rpc, stream) = (path == rpc::PATH, path.strip_prefix(rpc::STREAM_PATH).map(str::to_owned));
    if !is_rpc && stream.is_none() {
        return context.face.answer(peer, rest::boxed(request)).await;
    }
    let origin = origin::of(&context.server.env, &request);
    let user = match context.face.user(peer, request.headers(), request.extensions(), &origin).await {
        Ok(user) if user.is_in("system:unauthenticated") => Err(Status::unauthorized("Unauthorized")),
        user => user,
    };
    let user = match user.and_then(|user| rest::cross_site::refuse(&request).map(|()| user)) {
        Ok(user) => user,
        Err(status) => return refused(&context, &origin, path, &status),
    };
    if let Some(id) = stream {
        return upgrade(&context.server, &id, peer, user, request);
    }
    // Counts against the limit of REST's bodies while it is processed. (An upgrade has no body.)
    let mut taken = context.server.limiters.bodies.of(&user);
    let patience = context.server.config.limits.body;
    let (head, body) = rest::boxed(request).into_parts();
    let body = match head.method == Method::POST {
        true => match rest::body::read(body, MAX_REQUEST as usize, patience, &mut taken).await {
            Ok(bytes) => bytes,
            Err(status) => return reply::status(&status, &rest::negotiate::Wanted::PLAIN),
        },
        false => Bytes::new(),
    };
    let mut request = HttpRequest::from_parts(head, reply::full(body));
    let shown = request.headers().clone();
    request.extensions_mut().insert(user.clone());
    request.extensions_mut().insert(Arc::new(origin));
    let rooms = Arc::new(Rooms::default());
    if jsonrpsee::server::ws::is_upgrade_request(&request) {
        if !unread.is_new() {
            let why = Status::bad_request("a WebSocket of JSON-RPC is the first request of its connection");
            return reply::status(&why, &rest::negotiate::Wanted::PLAIN);
        }
        request.extensions_mut().insert(unread.clone());
    } else {
        request.extensions_mut().insert(rooms.clone());
    }
    // Over HTTP all work for a message counts for the request: reading it, its calls, and writing their answers.
    let mut reply = match context.server.limiters.cpu.measured(&user, rpc.call(request)).await {
        Ok(response) => response.map(|body| body.map_err(io::Error::other).boxed_unsync()),
        Err(why) => reply::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
    };
    if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
        let messages = context.server.messages(&user, MAX_REQUEST as usize);
        let share = context.server.limiters.cpu.share(&user);
        let asked = unread.start(messages, context.server.limiters.bodies.of(&user), share);
        tokio::spawn(give_way(asked, user.clone(), unread.clone()));
        // Root on the socket stays root.
        if !(peer.root && !shown.contains_key(header::AUTHORIZATION)) {
            tokio::spawn(ask_again(context.clone(), known, shown, user.clone(), unread));
        }
    }
    let size = usize::try_from(reply.body().size_hint().lower()).unwrap_or(usize::MAX);
    match rooms.of_reply(&context.server.answers, &user, size) {
        Ok(room) => drop(reply.extensions_mut().insert(Arc::new(room))),
        Err(full) => return reply::status(&full, &rest::negotiate::Wanted::PLAIN),
    }
    reply
}

/// Cuts a WebSocket off when the room of its requests, or of its unread answers, goes to another user.
async fn give_way(asked: CancellationToken, user: User, unread: Arc<Unread>) {
    let why = tokio::select! {
        () = asked.cancelled() => "there are too many requests, and he has most of them",
        () = unread.gives_way() => "it is read too slowly, and others wait for its room",
        () = unread.closed() => return,
    };
    tracing::info!("closing a connection of {}: {why}", user.name);
    unread.cut();
}

/// Checks periodically whether a WebSocket's credentials still authenticate its user, and cuts it off otherwise: it would outlive
/// the token or certificate that it was opened with.
async fn ask_again(
    context: Arc<ConnectionContext>,
    peer: Arc<Option<Peer>>,
    shown: HeaderMap,
    user: User,
    unread: Arc<Unread>,
) {
    let Some(peer) = &*peer else { return };
    tokio::select! {
        () = disowned(context.server.clone(), peer.clone(), shown, user) => unread.cut(),
        () = unread.closed() => {}
        () = context.stop.clone().shutdown() => {}
    }
}

/// Answers a refused client, and logs it.
fn refused(context: &ConnectionContext, origin: &Origin, path: &str, status: &Status) -> Reply {
    if let Some(audit) = &context.server.config.audit {
        let facts = Facts { user: origin.caller.get(), verb: "get", path, ..Facts::default() };
        audit.face(origin, &facts, status.code, Some(status));
    }
    let mut reply = reply::status(status, &rest::negotiate::Wanted::PLAIN);
    origin::name(&mut reply, origin);
    reply
}

/// Upgrades the connection to frames and passes it to whoever waits for this half of the session. The id authorizes this, only for
/// the user that it was issued to.
fn upgrade(server: &Arc<Server>, id: &str, peer: &Peer, user: User, request: HttpRequest<Incoming>) -> Reply {
    let wanted = request.headers().get(header::UPGRADE).and_then(|v| v.to_str().ok()).unwrap_or("");
    if !wanted.eq_ignore_ascii_case(rpc::STREAM_PROTOCOL) {
        return reply::text(StatusCode::UPGRADE_REQUIRED, format!("Upgrade: {} is needed\n", rpc::STREAM_PROTOCOL));
    }
    let Some(half) = server.streams.take(id, &user.name) else {
        return reply::text(StatusCode::NOT_FOUND, "no such stream, or it has been taken\n");
    };
    let ended = apart(disowned(server.clone(), peer.clone(), request.headers().clone(), user));
    tokio::spawn(async move {
        match hyper::upgrade::on(request).await {
            // Nobody waits any more: dropping the connection tells the peer.
            Ok(upgraded) => drop(half.send(Come { half: Box::new(TokioIo::new(upgraded)), ended })),
            Err(why) => tracing::debug!("a stream was not upgraded: {why}"),
        }
    });
    let mut response = reply::text(StatusCode::SWITCHING_PROTOCOLS, Bytes::new());
    let headers = response.headers_mut();
    headers.clear();
    headers.insert(header::CONNECTION, header::HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, header::HeaderValue::from_static(rpc::STREAM_PROTOCOL));
    response
}

#[cfg(test)]
mod tests;

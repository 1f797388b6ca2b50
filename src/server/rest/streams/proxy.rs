//! proxy: HTTP to a Pod, an endpoint of a Service, or a node's address; dialled from within the node's network.

use std::fmt::Display;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{FutureExt, Shared};
use futures::{SinkExt, StreamExt};
use http_body_util::BodyExt;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode, Uri, upgrade};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::headers::{self, Mount};
use super::until::until;
use super::{BUFFER, Frames, LAST_WORDS, ask_node};
use crate::dial::{self, Purpose};
use crate::ends::Ended;
use crate::rest::Ask;
use crate::rest::paths::{Target, resource_name};
use crate::rest::reply::{self, Reply};
use crate::sessions::With;
use crate::{Server, authorities};
use podwright_api::bounded::Bounded;
use podwright_api::rpc::{PodRef, Task};
use podwright_api::stream::{CLOSE, Frame, STATUS, STDIN, STDOUT};
use podwright_api::{Object, Options, Request, Status, User, Verb, kinds};

/// Upstream's default.
const KUBELET_PORT: u16 = 10250;

/// The most bytes read before the response's head is complete: interim responses are otherwise unbounded.
const MAX_HEAD: usize = 1 << 20;

/// The destination of a request: an address, and the node whose network it is dialled from; none: the server's own network.
#[derive(Default)]
pub struct Backend {
    node: Option<String>,
    host: String,
    port: u16,
    /// The Pod, if known.
    pod: Option<PodRef>,
    /// The node's own endpoints, which its agent serves: nothing listens at the address.
    endpoints: bool,
}

impl Backend {
    /// In URL form: IPv6 in brackets.
    pub fn address(&self) -> String {
        let Backend { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Connects if the purpose permits the address; for a user, whose session with the node or Pod it is, or uncounted for the
    /// server itself.
    pub(crate) async fn dial(&self, server: &Server, purpose: Purpose, user: Option<&User>) -> Result<Dialled, Status> {
        let Some(node) = &self.node else {
            let stream = dial::connect(purpose, &self.host, self.port).await;
            return Ok(Box::new(stream.map_err(|why| Status::unavailable(format!("{why:#}")))?));
        };
        let task = match self.endpoints {
            true => Task::Endpoints,
            false => {
                // Nodes dial addresses only: they resolve no names.
                let not_allowed = |why: anyhow::Error| Status::bad_request(why.to_string());
                let ip = self.host.parse().map_err(|_| not_allowed(anyhow::anyhow!("address not allowed")))?;
                dial::permitted(purpose, ip).map_err(not_allowed)?;
                Task::Dial { address: self.address(), pod: self.pod.clone() }
            }
        };
        let counted = match (user, &self.pod) {
            (Some(user), Some(PodRef { namespace, uid, .. })) => {
                server.sessions.enter(user, With { namespace, object: uid, shared: false })?
            }
            (Some(user), None) => {
                server.sessions.enter(user, With { namespace: "", object: &format!("nodes/{node}"), shared: false })?
            }
            (None, _) => server.sessions.uncounted(),
        };
        Ok(bytes_of(ask_node(server, node, task, counted)?))
    }
}

/// A byte stream to a backend.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Connection for S {}
pub type Dialled = Box<dyn Connection>;

/// A connection together with something that is held while it is open, such as a counted session.
pub struct Holding<T> {
    stream: Dialled,
    _held: T,
}

impl<T: Send + Unpin + 'static> Holding<T> {
    pub fn boxed(stream: Dialled, held: T) -> Dialled {
        Box::new(Holding { stream, _held: held })
    }
}

impl<T: Unpin> AsyncRead for Holding<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<T: Unpin> AsyncWrite for Holding<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Any endpoint of a Service: for a webhook, or an extension API server.
pub async fn backend_of(server: &Server, namespace: &str, name: &str, port: u16) -> Result<Backend, Status> {
    let request = Request {
        resource: "services".into(),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        user: User::system("system:apiserver"),
        ..Request::default()
    };
    let found = read(server, request, |service| service).await?;
    if found.0["spec"]["type"] == "ExternalName" {
        let host = found.0["spec"]["externalName"].as_str().unwrap_or("").to_owned();
        return Ok(Backend { host, port, ..Backend::default() });
    }
    let endpoints = endpoints(server, &User::system("system:apiserver"), &found, &port.to_string()).await?;
    chosen(server, &found, endpoints.into_iter().map(|endpoint| endpoint.backend).collect())
}

pub async fn serve(server: &Server, target: Target, request: Request, ask: Ask, ended: Ended) -> Result<Reply, Status> {
    server.may_by(&request, super::verb_of(&ask.method)).await?;
    server.admit_proxy(&request, target.rest.as_deref().unwrap_or("")).await?;
    let Some(rest) = target.rest.clone() else {
        // Without the trailing slash a page's relative links would be wrong.
        let query = ask.http.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        let mut reply = reply::text(StatusCode::MOVED_PERMANENTLY, "");
        let location = HeaderValue::from_str(&format!("{}/{query}", ask.path)).map_err(Status::internal)?;
        reply.headers_mut().insert(header::LOCATION, location);
        return Ok(reply);
    };
    let id = request.name.clone().unwrap_or_default();
    let invalid = || Status::bad_request(format!("invalid {} request {id:?}", target.kind.singular));
    let (by_tls, name, port) = split_name(&id).ok_or_else(invalid)?;
    let user = request.user.clone();
    let named = Request { name: Some(name.to_owned()), ..request };
    let backend = match target.kind.built_in() {
        "Pod" => pod(server, named, port, if by_tls { 443 } else { 80 }).await?,
        "Service" => service(server, named, port).await?,
        _ => node(server, named, port).await?,
    };
    let dialled = backend.dial(server, Purpose::Proxy, Some(&user)).await?;
    // A node's own endpoints are reached through its agent, with any scheme.
    let connection = if by_tls && !backend.endpoints { secured(dialled, &backend).await? } else { dialled };
    let ended = ended.shared();
    let base = ask.path.strip_suffix(rest.as_str()).unwrap_or(&ask.path).to_owned();
    let way = Way { rest: &rest, address: &backend.address(), mount: Mount { hidden: &base, own: &base } };
    let reply = pass(connection, way, ask, HeaderMap::new(), ended.clone()).await?;
    match reply.status() {
        StatusCode::SWITCHING_PROTOCOLS => Ok(reply),
        // A truncated response is truncated for the client, too.
        _ => Ok(until(reply, ended.boxed())),
    }
}

/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The same connection with TLS. Certificates are not verified, as upstream: the destination is an address.
async fn secured(connection: Dialled, backend: &Backend) -> Result<Dialled, Status> {
    let connector = TlsConnector::from(Arc::new(authorities::trusting_anyone().map_err(Status::internal)?));
    let name = ServerName::try_from(backend.host.clone()).map_err(Status::internal)?;
    let shaken = tokio::time::timeout(HANDSHAKE, connector.connect(name, connection));
    match shaken.await {
        Ok(Ok(stream)) => Ok(Box::new(stream)),
        Ok(Err(why)) => Err(unreachable(&backend.address(), &why)),
        Err(_) => Err(unreachable(&backend.address(), &"TLS handshake timeout")),
    }
}

fn unreachable(address: &str, why: &dyn Display) -> Status {
    Status::unavailable(format!("error trying to reach service: dial tcp {address}: {why}"))
}

/// `[scheme:]name[:port]`: whether it uses TLS, the name and the port. After a scheme a port is required, but may be empty.
fn split_name(text: &str) -> Option<(bool, &str, &str)> {
    let found = match text.split(':').collect::<Vec<_>>()[..] {
        [name] => (false, name, ""),
        [name, port] => (false, name, port),
        [scheme @ ("" | "http" | "https"), name, port] => (scheme == "https", name, port),
        _ => return None,
    };
    (!found.1.is_empty()).then_some(found)
}

/// Looks into an object, on behalf of the request's user.
async fn read<T>(server: &Server, request: Request, look: impl FnOnce(Object) -> T) -> Result<T, Status> {
    server.read_as_server(Request { verb: Verb::Get, subresource: None, body: None, ..request }, look).await
}

fn port_number(text: &str) -> Result<u16, Status> {
    text.parse().map_err(|_| Status::bad_request(format!("invalid port {text:?}")))
}

async fn pod(server: &Server, request: Request, port: &str, default: u16) -> Result<Backend, Status> {
    read(server, request, |pod| at_pod(&pod, port, default)).await?
}

fn at_pod(pod: &Object, port: &str, default: u16) -> Result<Backend, Status> {
    if let Some(phase) = ended(pod) {
        let why = format!("cannot proxy to a completed pod; current phase is {phase}");
        return Err(Status::bad_request(why));
    }
    let declared = || {
        let containers = pod.0["spec"]["containers"].as_array().into_iter().flatten();
        containers.filter_map(|c| u16::try_from(c["ports"][0]["containerPort"].as_u64()?).ok()).next()
    };
    let port = if port.is_empty() { declared().unwrap_or(default) } else { port_number(port)? };
    let (node, ip) = (pod.0["spec"]["nodeName"].as_str(), pod.0["status"]["podIP"].as_str());
    match (node, ip) {
        (Some(node), Some(ip)) => {
            let (node, pod) = (Some(node.to_owned()), Some(identity(pod)));
            Ok(Backend { node, host: ip.to_owned(), port, pod, endpoints: false })
        }
        _ => Err(Status::unavailable(format!("address not allowed: pod {} has no address yet", pod.name()))),
    }
}

/// A node's address; without a port, or with its kubelet's, the kubelet's own endpoints.
async fn node(server: &Server, request: Request, port: &str) -> Result<Backend, Status> {
    let node = read(server, request, |node| node).await?;
    let said = node.0["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
    let own = said.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
    let port = if port.is_empty() { own.unwrap_or(KUBELET_PORT) } else { port_number(port)? };
    let addresses = node.0["status"]["addresses"].as_array().into_iter().flatten();
    let internal = addresses.filter(|a| a["type"] == "InternalIP").find_map(|a| a["address"].as_str());
    let ip = internal.ok_or_else(|| Status::unavailable(format!("node {} has no address", node.name())))?;
    let endpoints = own == Some(port);
    Ok(Backend { node: Some(node.name().to_owned()), host: ip.to_owned(), port, pod: None, endpoints })
}

fn identity(pod: &Object) -> PodRef {
    PodRef {
        namespace: pod.namespace().unwrap_or("").to_owned(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
    }
}

/// The phase of a finished Pod: its status still has the address, which may belong to another by now.
fn ended(pod: &Object) -> Option<&str> {
    pod.0["status"]["phase"].as_str().filter(|phase| matches!(*phase, "Succeeded" | "Failed"))
}

/// A random ready endpoint of a Service that is a Pod. Users write endpoints: one that does not match its Pod's own status is
/// ignored (upstream's `isValidAddress`); it is dialled from the Pod's node.
async fn service(server: &Server, request: Request, port: &str) -> Result<Backend, Status> {
    let user = request.user.clone();
    let service = read(server, request, |service| service).await?;
    let mut backends = Vec::new();
    for Endpoint { backend, pod } in endpoints(server, &user, &service, port).await? {
        let Some(name) = pod else { continue };
        let request = Request {
            resource: "pods".into(),
            namespace: service.namespace().map(str::to_owned),
            name: Some(name),
            user: user.clone(),
            ..Request::default()
        };
        // A deleted Pod has no endpoint.
        backends.extend(read(server, request, |pod| of_pod(&pod, backend)).await.ok().flatten());
    }
    chosen(server, &service, backends)
}

/// The endpoint, if it matches the Pod's own status.
fn of_pod(pod: &Object, endpoint: Backend) -> Option<Backend> {
    let ips = pod.0["status"]["podIPs"].as_array().into_iter().flatten().filter_map(|ip| ip["ip"].as_str());
    let is_its = ips.chain(pod.0["status"]["podIP"].as_str()).any(|ip| ip == endpoint.host);
    let node = pod.0["spec"]["nodeName"].as_str().filter(|_| is_its && ended(pod).is_none())?;
    Some(Backend { node: Some(node.to_owned()), pod: Some(identity(pod)), ..endpoint })
}

fn chosen(server: &Server, service: &Object, mut backends: Vec<Backend>) -> Result<Backend, Status> {
    if backends.is_empty() {
        return Err(no_endpoints(service));
    }
    let at = server.env.below(backends.len() as u64) as usize;
    Ok(backends.swap_remove(at))
}

fn no_endpoints(service: &Object) -> Status {
    Status::unavailable(format!("no endpoints available for service \"{}\"", service.name()))
}

/// An endpoint in a slice.
struct Endpoint {
    backend: Backend,
    /// Its target Pod in the Service's namespace.
    pod: Option<String>,
}

/// The ready endpoints of one port of a Service.
async fn endpoints(server: &Server, user: &User, service: &Object, port: &str) -> Result<Vec<Endpoint>, Status> {
    let ports = service.0["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_it = |p: &&Value| p["name"] == port || p["port"].as_u64().is_some_and(|n| n.to_string() == port);
    let found = if port.is_empty() && ports.len() == 1 { ports.first() } else { ports.iter().find(is_it) };
    let none = || no_endpoints(service);
    let port_name = found.ok_or_else(none)?["name"].as_str().unwrap_or("");
    let slices = Request {
        verb: Verb::List,
        resource: resource_name(kinds::of("discovery.k8s.io/v1", "EndpointSlice").ok_or_else(none)?),
        namespace: service.namespace().map(str::to_owned),
        options: Options {
            label_selector: Some(format!("kubernetes.io/service-name={}", service.name())),
            ..Options::default()
        },
        user: user.clone(),
        ..Request::default()
    };
    let mut all = Vec::new();
    for slice in server.list_as_server(slices).await? {
        let ports = slice.0["ports"].as_array().into_iter().flatten();
        let number = ports.filter(|p| p["name"].as_str().unwrap_or("") == port_name).find_map(|p| p["port"].as_u64());
        let Some(port) = number.and_then(|number| u16::try_from(number).ok()) else { continue };
        for endpoint in slice.0["endpoints"].as_array().into_iter().flatten() {
            let ready = endpoint["conditions"]["ready"].as_bool().unwrap_or(true);
            let (true, Some(ip)) = (ready, endpoint["addresses"][0].as_str()) else { continue };
            let node = endpoint["nodeName"].as_str().map(str::to_owned);
            let of = &endpoint["targetRef"];
            let here = of["kind"] == "Pod" && of["namespace"].as_str() == service.namespace();
            let named = |field: &str| of[field].as_str().filter(|_| here).map(str::to_owned);
            let pod = named("name");
            let known = pod.clone().zip(named("uid")).zip(named("namespace"));
            let known = known.map(|((name, uid), namespace)| PodRef { namespace, name, uid });
            let backend = Backend { node, host: ip.to_owned(), port, pod: known, ..Backend::default() };
            all.push(Endpoint { backend, pod });
        }
    }
    Ok(all)
}

/// Where a request goes on a connection.
pub struct Way<'a> {
    /// The path, as the backend shall see it.
    pub rest: &'a str,
    pub address: &'a str,
    pub mount: Mount<'a>,
}

/// Sends the request on, and the answer back as it comes. The connection is for this one request: unless the backend switches to
/// what the client has asked for, nothing else ever goes over it (CVE-2018-1002105). `more` are headers of our own. The connection
/// ends once `ended` resolves, whatever has come by it and whether anybody reads.
pub async fn pass(
    connection: Dialled,
    Way { rest, address, mount }: Way<'_>,
    mut ask: Ask,
    more: HeaderMap,
    ended: Shared<Ended>,
) -> Result<Reply, Status> {
    let connection = Bounded::new(connection, MAX_HEAD);
    let bound = connection.bound();
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(connection)).await;
    let (mut sender, connection) = shaken.map_err(|why| unreachable(address, &why))?;
    // Until the response the connection ends with the caller; then with the response's body.
    let over = ended.clone();
    let connection = AbortOnDropHandle::new(tokio::spawn(async move {
        tokio::select! {
            done = connection.with_upgrades() => {
                let _ = done.inspect_err(|why| tracing::debug!("a proxied connection broke: {why}"));
            }
            () = over => {}
        }
    }));
    let query = ask.http.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let uri: Uri = format!("{rest}{query}").parse().map_err(|_| Status::bad_request("invalid path"))?;
    let wanted = headers::upgrade(ask.http.headers());
    let client_side = wanted.is_some().then(|| upgrade::on(&mut ask.http));
    *ask.http.uri_mut() = uri;
    *ask.http.version_mut() = hyper::Version::HTTP_11;
    let sent = ask.http.headers_mut();
    headers::to_backend(sent);
    sent.extend(more);
    sent.insert(header::HOST, HeaderValue::from_str(address).map_err(Status::internal)?);
    if let Some(protocol) = &wanted {
        sent.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        sent.insert(header::UPGRADE, protocol.clone());
    }
    let mut answer = sender.send_request(ask.http).await.map_err(|why| unreachable(address, &why))?;
    bound.lift();
    connection.detach();
    if answer.status().is_informational() {
        let switched = wanted.as_ref().filter(|wanted| headers::is_switched_to(answer.headers(), wanted));
        let (Some(protocol), Some(client_side)) = (switched.cloned(), client_side) else {
            let why = format!("the backend answered {}, which it was not asked for", answer.status());
            return Err(Status::failure(502, "BadGateway", why));
        };
        tunnel(client_side, upgrade::on(&mut answer), ended);
        let mut reply = answer.map(|_| reply::full(""));
        headers::from_backend(reply.headers_mut(), &mount);
        reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        reply.headers_mut().insert(header::UPGRADE, protocol);
        return Ok(reply);
    }
    let mut reply = answer.map(|body| body.map_err(reply::BodyError::other).boxed_unsync());
    headers::from_backend(reply.headers_mut(), &mount);
    if wanted.is_some() {
        // Data that the client sent in expectation of an upgrade is no request.
        reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if ask.method == Method::HEAD {
        *reply.body_mut() = reply::full("");
    }
    Ok(reply)
}

/// Connects both ends after the upgrade; either may close, and both stop at the end.
fn tunnel(client: upgrade::OnUpgrade, backend: upgrade::OnUpgrade, ended: Shared<Ended>) {
    tokio::spawn(async move {
        let joined = async {
            let (Ok(client), Ok(backend)) = tokio::join!(client, backend) else { return };
            let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(backend)).await;
        };
        tokio::select! {
            () = joined => {}
            () = ended => {}
        }
    });
}

/// A session's bytes as a plain stream. It ends the session when closed, whatever the backend does.
fn bytes_of(frames: Frames) -> Dialled {
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    let gone = CancellationToken::new();
    let theirs = Holding::boxed(Box::new(theirs), gone.clone().drop_guard());
    tokio::spawn(async move {
        let (mut to_node, mut from_node) = frames.split();
        let (mut from, mut to) = tokio::io::split(ours);
        let up = async {
            let mut buffer = vec![0; BUFFER];
            while let Ok(count @ 1..) = from.read(&mut buffer).await {
                let payload = Bytes::copy_from_slice(&buffer[..count]);
                if to_node.send(Frame { channel: STDIN, payload }).await.is_err() {
                    return;
                }
            }
            let _ = to_node.send(Frame { channel: CLOSE, payload: Bytes::from_static(&[STDIN]) }).await;
            gone.cancelled().await;
        };
        // The last data still reaches a backend that accepts it.
        let late = async {
            gone.cancelled().await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        let down = async {
            while let Some(Ok(frame)) = from_node.next().await {
                match frame.channel {
                    STDOUT if to.write_all(&frame.payload).await.is_err() => return,
                    STATUS => break,
                    _ => {}
                }
            }
            let _ = to.shutdown().await;
        };
        tokio::select! {
            () = up => {}
            () = down => {}
            () = late => {}
        }
    });
    theirs
}

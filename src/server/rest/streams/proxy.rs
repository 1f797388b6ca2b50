//! proxy: HTTP to a Pod, to an endpoint of a Service, to a node's address; dialled from inside the node's network.

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http_body_util::BodyExt;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, StatusCode, Uri, upgrade};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;

use super::{BUFFER, Frames, ask_node};
use crate::api::rpc::Task;
use crate::api::stream::{CLOSE, Frame, STATUS, STDIN, STDOUT};
use crate::api::{Object, Options, Request, Status, Verb, kinds};
use crate::server::Server;
use crate::server::rest::Ask;
use crate::server::rest::paths::{Target, resource_name};
use crate::server::rest::reply::{self, Reply};

/// What concerns one connection and goes no further.
const HOP_BY_HOP: &[HeaderName] = &[
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    // The credentials are for us.
    header::AUTHORIZATION,
];

/// Where a request goes: an address, and the node whose network it is dialled from. Without a node it is outside of all of
/// them.
struct Backend {
    node: Option<String>,
    address: String,
}

/// Bytes to a backend and back.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Connection for S {}
pub type Dialled = Box<dyn Connection>;

async fn dial(server: &Server, backend: &Backend) -> Result<Dialled, Status> {
    let Some(node) = &backend.node else {
        let stream = TcpStream::connect(&backend.address).await;
        return Ok(Box::new(
            stream.map_err(|why| Status::unavailable(format!("dial tcp {}: {why}", backend.address)))?,
        ));
    };
    Ok(Box::new(bytes_of(ask_node(server, node, Task::Dial { address: backend.address.clone() })?)))
}

/// A connection to an endpoint of a Service, any of them.
pub async fn dial_service(server: &Server, namespace: &str, name: &str, port: u16) -> Result<Dialled, Status> {
    let request = Request {
        resource: "services".into(),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        ..Request::default()
    };
    let found = read(server, request.clone()).await?;
    if found.0["spec"]["type"] == "ExternalName" {
        let host = found.0["spec"]["externalName"].as_str().unwrap_or("");
        return dial(server, &Backend { node: None, address: joined(host, port.into()) }).await;
    }
    dial(server, &service(server, request, &port.to_string()).await?).await
}

pub async fn serve(server: &Server, target: Target, request: Request, ask: Ask) -> Result<Reply, Status> {
    let verb = match &ask.method {
        &Method::GET => "get",
        &Method::POST => "create",
        &Method::PUT => "update",
        other => &other.as_str().to_ascii_lowercase(),
    };
    server.may_by(&request, verb)?;
    let Some(rest) = target.rest.clone() else {
        // Relative links of a page would lead astray without the slash.
        let query = ask.http.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        let mut reply = reply::text(StatusCode::MOVED_PERMANENTLY, "");
        let location = HeaderValue::from_str(&format!("{}/{query}", ask.path)).map_err(Status::internal)?;
        reply.headers_mut().insert(header::LOCATION, location);
        return Ok(reply);
    };
    let (scheme, name, port) = split_name(request.name.as_deref().unwrap_or(""));
    if scheme == "https" {
        return Err(Status::bad_request("a proxy speaks http to what it leads to, not https"));
    }
    let named = Request { name: Some(name.to_owned()), ..request };
    let backend = match target.kind.kind {
        "Pod" => pod(server, named, port).await?,
        "Service" => service(server, named, port).await?,
        _ => node(server, named, port).await?,
    };
    pass(dial(server, &backend).await?, &rest, ask, &backend).await
}

/// `[scheme:]name[:port]`
fn split_name(text: &str) -> (&str, &str, &str) {
    match text.split(':').collect::<Vec<_>>()[..] {
        [name, port] if name != "http" && name != "https" => ("", name, port),
        [scheme, name] => (scheme, name, ""),
        [scheme, name, port] => (scheme, name, port),
        _ => ("", text, ""),
    }
}

/// An address as a URL has it: IPv6 in brackets.
fn joined(ip: &str, port: u64) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

async fn read(server: &Server, request: Request) -> Result<Object, Status> {
    server.read_as_server(Request { verb: Verb::Get, subresource: None, body: None, ..request }).await
}

async fn pod(server: &Server, request: Request, port: &str) -> Result<Backend, Status> {
    let pod = read(server, request).await?;
    let declared = || {
        let containers = pod.0["spec"]["containers"].as_array().into_iter().flatten();
        containers.filter_map(|c| c["ports"][0]["containerPort"].as_u64()).next()
    };
    let port = match port {
        "" => declared().unwrap_or(80),
        text => text.parse::<u16>().map_err(|_| Status::bad_request(format!("invalid port {text:?}")))?.into(),
    };
    let (node, ip) = (pod.0["spec"]["nodeName"].as_str(), pod.0["status"]["podIP"].as_str());
    match (node, ip) {
        (Some(node), Some(ip)) => Ok(Backend { node: Some(node.to_owned()), address: joined(ip, port) }),
        _ => Err(Status::unavailable(format!("address not allowed: pod {} has no address yet", pod.name()))),
    }
}

async fn node(server: &Server, request: Request, port: &str) -> Result<Backend, Status> {
    let node = read(server, request).await?;
    let port = match port {
        "" => 10250,
        text => text.parse::<u16>().map_err(|_| Status::bad_request(format!("invalid port {text:?}")))?,
    };
    let addresses = node.0["status"]["addresses"].as_array().into_iter().flatten();
    let internal = addresses.filter(|a| a["type"] == "InternalIP").find_map(|a| a["address"].as_str());
    let ip = internal.ok_or_else(|| Status::unavailable(format!("node {} has no address", node.name())))?;
    Ok(Backend { node: Some(node.name().to_owned()), address: joined(ip, port.into()) })
}

/// A ready endpoint of a Service, any of them.
async fn service(server: &Server, request: Request, port: &str) -> Result<Backend, Status> {
    let service = read(server, request).await?;
    let ports = service.0["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_it = |p: &&Value| p["name"] == port || p["port"].as_u64().is_some_and(|n| n.to_string() == port);
    let found = if port.is_empty() && ports.len() == 1 { ports.first() } else { ports.iter().find(is_it) };
    let none = || Status::unavailable(format!("no endpoints available for service \"{}\"", service.name()));
    let port_name = found.ok_or_else(none)?["name"].as_str().unwrap_or("");
    let slices = Request {
        verb: Verb::List,
        resource: resource_name(kinds::of("discovery.k8s.io/v1", "EndpointSlice").ok_or_else(none)?),
        namespace: service.namespace().map(str::to_owned),
        options: Options {
            label_selector: Some(format!("kubernetes.io/service-name={}", service.name())),
            ..Options::default()
        },
        ..Request::default()
    };
    let mut backends = Vec::new();
    for slice in server.list_as_server(slices).await? {
        let ports = slice.0["ports"].as_array().into_iter().flatten();
        let number = ports.filter(|p| p["name"].as_str().unwrap_or("") == port_name).find_map(|p| p["port"].as_u64());
        let Some(number) = number else { continue };
        for endpoint in slice.0["endpoints"].as_array().into_iter().flatten() {
            let ready = endpoint["conditions"]["ready"].as_bool().unwrap_or(true);
            let (ip, node) = (endpoint["addresses"][0].as_str(), endpoint["nodeName"].as_str());
            if let (true, Some(ip)) = (ready, ip) {
                backends.push(Backend { node: node.map(str::to_owned), address: joined(ip, number) });
            }
        }
    }
    if backends.is_empty() {
        return Err(none());
    }
    let at = server.env.below(backends.len() as u64) as usize;
    Ok(backends.swap_remove(at))
}

/// Sends the request on, and the answer back as it comes.
async fn pass(connection: Dialled, rest: &str, mut ask: Ask, backend: &Backend) -> Result<Reply, Status> {
    let unreachable = |why: String| {
        Status::unavailable(format!("error trying to reach service: dial tcp {}: {why}", backend.address))
    };
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(connection)).await;
    let (mut sender, connection) = shaken.map_err(|why| unreachable(why.to_string()))?;
    tokio::spawn(async move {
        if let Err(why) = connection.with_upgrades().await {
            tracing::debug!("a proxied connection broke: {why}");
        }
    });
    let query = ask.http.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let uri: Uri = format!("{rest}{query}").parse().map_err(|_| Status::bad_request("invalid path behind /proxy"))?;
    let client_side = ask.http.headers().contains_key(header::UPGRADE).then(|| upgrade::on(&mut ask.http));
    let switched = ask.http.headers().get(header::UPGRADE).cloned();
    *ask.http.uri_mut() = uri;
    *ask.http.version_mut() = hyper::Version::HTTP_11;
    let headers = ask.http.headers_mut();
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    headers.insert(header::HOST, HeaderValue::from_str(&backend.address).map_err(Status::internal)?);
    if let Some(protocol) = switched {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
    let mut answer = sender.send_request(ask.http).await.map_err(|why| unreachable(why.to_string()))?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client_side) = client_side
    {
        let backend_side = upgrade::on(&mut answer);
        tokio::spawn(async move {
            let (Ok(client), Ok(backend)) = tokio::join!(client_side, backend_side) else { return };
            // Either end may hang up.
            let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(backend)).await;
        });
        return Ok(answer.map(|_| reply::full("")));
    }
    let mut reply = answer.map(|body| body.map_err(reply::BodyError::other).boxed_unsync());
    for name in HOP_BY_HOP {
        reply.headers_mut().remove(name);
    }
    if ask.method == Method::HEAD {
        *reply.body_mut() = reply::full("");
    }
    Ok(reply)
}

/// A session's bytes as a plain stream.
fn bytes_of(frames: Frames) -> DuplexStream {
    let (ours, theirs) = tokio::io::duplex(BUFFER);
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
            std::future::pending::<()>().await;
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
        }
    });
    theirs
}

//! The JSON-RPC transport: one WebSocket over the server's Unix socket, or over TLS, which reconnects.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request as HttpRequest, StatusCode};
use hyper_util::rt::TokioIo;
use jsonrpsee::{
    client_transport::ws::{Url, WsTransportClientBuilder},
    core::{
        client::{Client as RpcClient, ClientBuilder, ClientT, Error, Subscription, SubscriptionClientT},
        params::ObjectParams,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};
use tokio::{
    net::UnixStream,
    sync::{Mutex, mpsc},
};
use tokio_util::task::AbortOnDropHandle;

use super::{Client, Stream, Transport, tls};
use podwright_api::{
    Request, Response, Status, Verb, WatchEvent, discovered,
    request::{Body, List},
    rpc,
};

/// Events of one subscription that the client buffers; beyond that the server's buffer fills, until it cuts us off.
const SUBSCRIPTION_BUFFER: usize = 16 * 1024;
/// The largest response.
const MAX_MESSAGE: u32 = 256 << 20;
/// Longer than any request may take; a call that takes longer means a lost connection.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// A running server accepts connections faster.
const DIAL_TIMEOUT: Duration = Duration::from_secs(15);

/// An API server's address: `unix:///run/podwright/api.sock`, or a bare path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(pub PathBuf);

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        match text.strip_prefix("unix://") {
            Some(path) if path.starts_with('/') => Ok(Address(path.into())),
            None if text.starts_with('/') || text.starts_with('.') => Ok(Address(text.into())),
            _ => Err(format!("{text:?} is not the address of a server: expected unix:///path/to/api.sock")),
        }
    }
}

/// How the server is reached.
enum Way {
    Socket(Address),
    Tls(tls::ServerEndpoint),
}

impl Way {
    async fn dial(&self) -> std::io::Result<Stream> {
        match self {
            Way::Socket(address) => Ok(Box::new(UnixStream::connect(&address.0).await?)),
            Way::Tls(server) => server.dial().await,
        }
    }

    /// The authentication headers of every HTTP request; none on the socket and with a certificate.
    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Way::Tls(tls::ServerEndpoint { bearer: Some(token), .. }) = self
            && let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {token}"))
        {
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        headers
    }
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Way::Socket(address) => write!(f, "unix://{}", address.0.display()),
            Way::Tls(server) => write!(f, "https://{}", server.authority),
        }
    }
}

struct Rpc {
    way: Way,
    connection: Mutex<Option<Arc<RpcClient>>>,
}

/// A client for the server at `address`. It dials at the first call.
pub fn client(address: Address, manager: &str) -> Client {
    Client::new(Arc::new(Rpc { way: Way::Socket(address), connection: Mutex::new(None) }), manager)
}

/// The same for a remote server.
pub fn over_tls(server: tls::ServerEndpoint, manager: &str) -> Client {
    Client::new(Arc::new(Rpc { way: Way::Tls(server), connection: Mutex::new(None) }), manager)
}

impl Rpc {
    /// The current connection, or a new one.
    async fn connection(&self) -> Result<Arc<RpcClient>, Status> {
        let mut slot = self.connection.lock().await;
        if let Some(living) = slot.as_ref().filter(|c| c.is_connected()) {
            return Ok(living.clone());
        }
        let stream = self.dialled().await?;
        // The invariant: a literal that parses. The host is a placeholder, the socket is dialled already.
        let url = Url::parse(&format!("ws://localhost{}", rpc::PATH)).expect("a valid URL");
        let (sender, receiver) = WsTransportClientBuilder::default()
            .max_request_size(MAX_MESSAGE)
            .max_response_size(MAX_MESSAGE)
            .set_headers(self.way.headers())
            .build_with_stream(url, stream)
            .await
            .map_err(|e| self.unreachable(e))?;
        let client = ClientBuilder::default()
            .request_timeout(CALL_TIMEOUT)
            .max_concurrent_requests(4096)
            .max_buffer_capacity_per_subscription(SUBSCRIPTION_BUFFER)
            .build_with_tokio(sender, receiver);
        Ok(slot.insert(Arc::new(client)).clone())
    }

    async fn dialled(&self) -> Result<Stream, Status> {
        let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
        let dialled = tokio::time::timeout(DIAL_TIMEOUT, self.way.dial()).await.map_err(late);
        dialled.flatten().map_err(|e| self.unreachable(e))
    }

    /// One HTTP request on a separate connection.
    async fn ask(&self, path: &str, headers: &[(HeaderName, &str)]) -> Result<hyper::Response<Incoming>, Status> {
        let stream = TokioIo::new(self.dialled().await?);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(stream).await.map_err(|e| self.unreachable(e))?;
        // Until the response it ends with the caller; then with the response's body, or the upgraded connection.
        let connection = AbortOnDropHandle::new(tokio::spawn(connection.with_upgrades()));
        let request = HttpRequest::get(path).header(header::HOST, "localhost");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(name, *value));
        let mut request = request.body(Empty::<Bytes>::new()).map_err(|e| Status::bad_request(e.to_string()))?;
        request.headers_mut().extend(self.way.headers());
        let answer = sender.send_request(request).await.map_err(|e| self.unreachable(e))?;
        connection.detach();
        Ok(answer)
    }

    fn unreachable(&self, why: impl std::fmt::Display) -> Status {
        let why = format!("The connection to the server {} was refused: {why}", self.way);
        Status::unavailable(why).unanswered()
    }

    fn status(&self, error: Error) -> Status {
        match error {
            Error::Call(e) => match e.data().and_then(|d| serde_json::from_str::<Status>(d.get()).ok()) {
                Some(status) => status,
                None => Status::failure(u16::try_from(e.code()).unwrap_or(400), "BadRequest", e.message()),
            },
            Error::RequestTimeout => Status::timeout("the server did not answer in time").unanswered(),
            other => self.unreachable(other),
        }
    }

    async fn subscribe<T: DeserializeOwned>(
        &self,
        method: &'static str,
        unsubscribe: &'static str,
        params: Params,
    ) -> Result<Subscription<T>, Status> {
        let client = self.connection().await?;
        client.subscribe(method, params.0, unsubscribe).await.map_err(|e| self.status(e))
    }
}

struct Params(ObjectParams);

impl Params {
    fn of<T: Serialize>(named: &T) -> Result<Params, Status> {
        let mut params = ObjectParams::new();
        let Value::Object(fields) = serde_json::to_value(named).map_err(Status::internal)? else {
            return Err(Status::internal("parameters must be an object"));
        };
        for (name, value) in fields {
            if name != "verb" {
                params.insert(&name, value).map_err(Status::internal)?;
            }
        }
        Ok(Params(params))
    }
}

fn method(request: &Request) -> &'static str {
    use podwright_api::request::PatchType;
    match request.verb {
        Verb::Get => "get",
        Verb::List => "list",
        Verb::Watch => rpc::WATCH,
        Verb::Create => "create",
        Verb::Update => "update",
        Verb::Patch if request.options.patch_type == Some(PatchType::ThreeWay) => "apply",
        Verb::Patch => "patch",
        Verb::Delete => "delete",
        Verb::DeleteCollection => "deletecollection",
        Verb::Connect => "connect",
    }
}

/// The type and metadata of a response, enough to distinguish an object, a list and a `Status`.
#[derive(Deserialize)]
struct Shape {
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireList {
    kind: String,
    api_version: String,
    #[serde(default)]
    metadata: WireListMeta,
    items: Vec<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    continue_token: String,
    remaining_item_count: Option<u64>,
}

fn bytes(raw: Box<RawValue>) -> Bytes {
    Bytes::from(String::from(Box::<str>::from(raw)).into_bytes())
}

fn response(verb: Verb, answer: rpc::Answer) -> Result<Response, Status> {
    let broken = |e: serde_json::Error| Status::internal(format!("the server's answer does not decode: {e}"));
    let body = match (answer.stream, answer.object) {
        (Some(id), _) => Body::Stream { id },
        (None, None) => return Err(Status::internal("the server's answer is empty")),
        (None, Some(raw)) if verb == Verb::List => {
            let list: WireList = serde_json::from_str(raw.get()).map_err(broken)?;
            Body::List(List {
                kind: list.kind,
                api_version: list.api_version,
                resource_version: list.metadata.resource_version,
                continue_token: list.metadata.continue_token,
                remaining_item_count: list.metadata.remaining_item_count,
                items: list.items.into_iter().map(bytes).collect(),
            })
        }
        (None, Some(raw)) => match serde_json::from_str::<Shape>(raw.get()).map_err(broken)?.kind.as_str() {
            "Status" => Body::Status(serde_json::from_str(raw.get()).map_err(broken)?),
            _ => Body::Object { bytes: bytes(raw), created: answer.created },
        },
    };
    Ok(Response { body, warnings: answer.warnings, unchanged: answer.unchanged })
}

/// Forwards a subscription's items to a channel until either end closes.
fn pump<T, U>(mut subscription: Subscription<T>, turn: impl Fn(T) -> U + Send + 'static) -> mpsc::Receiver<U>
where
    T: DeserializeOwned + Send + 'static,
    U: Send + 'static,
{
    let (sender, receiver) = mpsc::channel(256);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                item = subscription.next() => match item {
                    Some(Ok(item)) => if sender.send(turn(item)).await.is_err() { break },
                    Some(Err(_)) | None => break,
                },
                () = sender.closed() => break,
            }
        }
        // A broken connection cannot unsubscribe; that is harmless.
        subscription.unsubscribe().await.ok();
    });
    receiver
}

#[async_trait]
impl Transport for Rpc {
    async fn call(&self, request: Request) -> Result<Response, Status> {
        let client = self.connection().await?;
        let params = Params::of(&request)?.0;
        let answer: rpc::Answer = client.request(method(&request), params).await.map_err(|e| self.status(e))?;
        response(request.verb, answer)
    }

    async fn watch(&self, request: Request) -> Result<mpsc::Receiver<WatchEvent>, Status> {
        let subscription = self.subscribe(rpc::WATCH, rpc::UNWATCH, Params::of(&request)?).await?;
        Ok(pump(subscription, |e: rpc::Event| WatchEvent { kind: e.kind, object: bytes(e.object) }))
    }

    async fn sessions(&self, node: &str) -> Result<mpsc::Receiver<rpc::Session>, Status> {
        let params = Params::of(&serde_json::json!({ "node": node }))?;
        Ok(pump(self.subscribe(rpc::SESSIONS, rpc::UNSESSIONS, params).await?, |s: rpc::Session| s))
    }

    fn host(&self) -> String {
        match &self.way {
            Way::Socket(_) => "localhost".to_owned(),
            Way::Tls(server) => server.authority.clone(),
        }
    }

    async fn method(&self, name: &'static str, params: Value) -> Result<Value, Status> {
        let client = self.connection().await?;
        client.request(name, Params::of(&params)?.0).await.map_err(|e| self.status(e))
    }

    async fn raw(&self, path: &str) -> Result<Bytes, Status> {
        self.read(path, &[]).await
    }

    async fn discovery(&self) -> Result<Value, Status> {
        let document = self.read(discovered::PATH, &[(header::ACCEPT, discovered::ACCEPT)]).await?;
        serde_json::from_slice(&document).map_err(Status::internal)
    }

    async fn dial(&self, id: &str) -> Result<Stream, Status> {
        let upgrade = [(header::CONNECTION, "Upgrade"), (header::UPGRADE, rpc::STREAM_PROTOCOL)];
        let response = self.ask(&format!("{}{id}", rpc::STREAM_PATH), &upgrade).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(Status::failure(response.status().as_u16(), "BadRequest", "the server refused the stream"));
        }
        let upgraded = hyper::upgrade::on(response).await.map_err(|e| self.unreachable(e))?;
        Ok(Box::new(TokioIo::new(upgraded)))
    }
}

impl Rpc {
    /// GETs a path; anything but success is an error.
    async fn read(&self, path: &str, headers: &[(HeaderName, &str)]) -> Result<Bytes, Status> {
        let response = self.ask(path, headers).await?;
        let code = response.status();
        let body = response.into_body().collect().await.map_err(|e| self.unreachable(e))?.to_bytes();
        if code.is_success() {
            return Ok(body);
        }
        // For unknown paths the response is a page for humans; kubectl has these words for it.
        let words = || match code {
            StatusCode::NOT_FOUND => {
                Status::failure(404, "NotFound", "the server could not find the requested resource")
            }
            _ => Status::failure(code.as_u16(), "", String::from_utf8_lossy(&body)),
        };
        Err(serde_json::from_slice(&body).unwrap_or_else(|_| words()))
    }
}

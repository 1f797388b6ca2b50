//! The client: typed calls on the API over two transports, informers, and the events recorder.
//!
//! [`Client`] handles typed `k8s_openapi` objects or raw [`Request`]s, over a [`Transport`]: [`local`] calls an API server in the
//! same process, [`rpc`] uses JSON-RPC over a Unix socket or TLS and reconnects automatically.

#![forbid(unsafe_code)]

pub mod autoscaler;
pub mod blame;
mod counted;
mod deadline;
pub mod definition;
pub mod discovery;
pub mod elector;
mod events;
mod informer;
pub mod informers;
pub mod join;
pub mod kubeconfig;
pub mod local;
mod metrics;
mod older;
mod partial;
mod reflector;
pub mod rpc;
pub mod tls;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use k8s_openapi::{Metadata, api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

use podwright_api::{
    Options, Request, Response, Status, Verb, WatchEvent, discovered,
    metrics::Report,
    request::{Body, List, PatchType, Preconditions},
    status::qualified,
};

use counted::Counted;
use deadline::Deadline;
use older::Older;

pub use autoscaler::Autoscaler;
pub use counted::{Measured, Told};
pub use definition::Definition;
pub use events::{Recorder, reference};
pub use informer::{Delta, Followed, Informer, InformerBuilder, Key, Room, Rooms, Undecodable};
pub use informers::Informers;
pub use partial::Partial;

/// Scanning a list yields after this many bytes: about a millisecond.
const TURN: usize = 256 << 10;

/// A raw stream to a node, with `api::stream` frames.
pub type Stream = Box<dyn Duplex>;

/// Anything that reads and writes bytes.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// How requests reach an API server.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    async fn call(&self, request: Request) -> Result<Response, Status>;
    /// The events of one watch, until the server ends it or the connection breaks (the channel closes).
    async fn watch(&self, request: Request) -> Result<tokio::sync::mpsc::Receiver<WatchEvent>, Status>;
    /// A method of the server itself: `backup`, `rpc.discover`. Only remote transports support them.
    async fn method(&self, name: &'static str, _params: Value) -> Result<Value, Status> {
        Err(Status::bad_request(format!("{name} needs a connection to the server's socket")))
    }
    /// GETs a path of the REST face; anything but success is an error.
    async fn raw(&self, path: &str) -> Result<bytes::Bytes, Status> {
        Err(Status::bad_request(format!("{path} needs a connection to the server's socket")))
    }
    /// Aggregated discovery at `/apis`; a server without it responds with another document.
    async fn discovery(&self) -> Result<Value, Status> {
        Err(Status::bad_request("discovery needs a connection to the server's socket"))
    }
    /// Dials `/stream/<id>`.
    async fn dial(&self, id: &str) -> Result<Stream, Status>;
    /// Subscribes to the sessions that `node` must serve.
    async fn sessions(&self, node: &str) -> Result<tokio::sync::mpsc::Receiver<podwright_api::rpc::Session>, Status>;
    /// Whether requests are encoded as JSON: not within one process.
    fn encodes(&self) -> bool {
        true
    }
    /// The server's name in metrics: `10.0.0.1:6443`.
    fn host(&self) -> String {
        "localhost".to_owned()
    }
}

/// A typed object of the API: every `k8s_openapi` resource with `ObjectMeta`.
pub trait Typed:
    k8s_openapi::Resource + Metadata<Ty = ObjectMeta> + Serialize + DeserializeOwned + Clone + Send + Sync + 'static
{
    /// The resource's name in requests: `pods`, `deployments.apps`.
    fn resource() -> String;
}

impl<K> Typed for K
where
    K: k8s_openapi::Resource + Metadata<Ty = ObjectMeta> + Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
{
    fn resource() -> String {
        qualified(K::URL_PATH_SEGMENT, K::GROUP)
    }
}

/// Calls on an API server. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    /// The `fieldManager` of writes.
    manager: Arc<str>,
}

/// The typed result of a list call.
pub struct TypedList<K> {
    pub items: Vec<K>,
    pub resource_version: String,
    pub continue_token: String,
}

impl Client {
    /// `manager` is the component's name: `kubelet`, `kube-scheduler`, `kubectl`.
    pub fn new(transport: Arc<dyn Transport>, manager: &str) -> Client {
        Client { transport, manager: manager.into() }
    }

    /// The same connection, writing with another field manager.
    pub fn named(&self, manager: &str) -> Client {
        Client { transport: self.transport.clone(), manager: manager.into() }
    }

    /// The same connection with a time limit for responses; zero: none. Watches and streams are exempt.
    pub fn within(&self, time: Duration) -> Client {
        match time {
            Duration::ZERO => self.clone(),
            time => Client {
                transport: Arc::new(Deadline { inner: self.transport.clone(), time }),
                manager: self.manager.clone(),
            },
        }
    }

    /// The same connection, to a server that may be older than this program: custom resources are named as it supports.
    pub fn to_any_version(&self) -> Client {
        Client { transport: Arc::new(Older::over(self.transport.clone())), manager: self.manager.clone() }
    }

    /// The same connection, reporting completed requests.
    pub fn counted(&self, tell: impl Fn(&Told<'_>) + Send + Sync + 'static) -> Client {
        let transport = Arc::new(Counted { inner: self.transport.clone(), tell: Arc::new(tell) });
        Client { transport, manager: self.manager.clone() }
    }

    /// Any request except watch.
    pub async fn call(&self, mut request: Request) -> Result<Response, Status> {
        if request.options.field_manager.is_none() && !self.manager.is_empty() {
            request.options.field_manager = Some(self.manager.to_string());
        }
        self.transport.call(request).await
    }

    /// A raw watch; `request.verb` is set here.
    pub async fn watch(&self, mut request: Request) -> Result<tokio::sync::mpsc::Receiver<WatchEvent>, Status> {
        request.verb = Verb::Watch;
        self.transport.watch(request).await
    }

    /// Calls a method of the server itself: `backup`, `rpc.discover`.
    pub async fn method(&self, name: &'static str, params: Value) -> Result<Value, Status> {
        self.transport.method(name, params).await
    }

    /// GETs a path of the REST face.
    pub async fn raw(&self, path: &str) -> Result<bytes::Bytes, Status> {
        self.transport.raw(path).await
    }

    /// The resources served by the server and those behind it. `None`: it is too old for that.
    pub async fn discovery(&self) -> Result<Option<Vec<discovered::Version>>, Status> {
        Ok(discovered::versions(&self.transport.discovery().await?))
    }

    /// Requests a session (`connect`) and dials its stream.
    pub async fn connect(&self, mut request: Request) -> Result<Stream, Status> {
        request.verb = Verb::Connect;
        match self.call(request).await?.body {
            Body::Stream { id } => self.transport.dial(&id).await,
            other => Err(unexpected("a stream", &other)),
        }
    }

    /// Dials the stream of a session, as nodes do.
    pub async fn dial(&self, id: &str) -> Result<Stream, Status> {
        self.transport.dial(id).await
    }

    /// The sessions that `node` must serve.
    pub async fn sessions(
        &self,
        node: &str,
    ) -> Result<tokio::sync::mpsc::Receiver<podwright_api::rpc::Session>, Status> {
        self.transport.sessions(node).await
    }

    pub async fn get<K: Typed>(&self, namespace: Option<&str>, name: &str) -> Result<K, Status> {
        self.object(request::<K>(Verb::Get, namespace, Some(name))).await
    }

    pub async fn list<K: Typed>(&self, namespace: Option<&str>, options: Options) -> Result<TypedList<K>, Status> {
        self.collection(Request { options, ..request::<K>(Verb::List, namespace, None) }).await
    }

    /// Sends a list request whose items decode as `T`.
    pub async fn collection<T: DeserializeOwned>(&self, request: Request) -> Result<TypedList<T>, Status> {
        match self.call(Request { verb: Verb::List, ..request }).await?.body {
            Body::List(List { items, resource_version, continue_token, .. }) => {
                let items = items.iter().map(decode).collect::<Result<_, _>>()?;
                Ok(TypedList { items, resource_version, continue_token })
            }
            other => Err(unexpected("a list", &other)),
        }
    }

    /// Sends a list request and returns the first result of `look` on its items. Each item is decoded as `T` just before it is
    /// examined and dropped after it, yielding in between: a long list takes no more memory or time at once than a short one.
    ///
    /// Fails if the request does, or if an examined item is not a `T`.
    pub async fn find<T: DeserializeOwned, F>(
        &self,
        request: Request,
        mut look: impl FnMut(T) -> Option<F>,
    ) -> Result<Option<F>, Status> {
        let items = match self.call(Request { verb: Verb::List, ..request }).await?.body {
            Body::List(list) => list.items,
            other => return Err(unexpected("a list", &other)),
        };
        let mut read = 0;
        for item in items {
            if let Some(found) = look(decode(&item)?) {
                return Ok(Some(found));
            }
            read += item.len();
            if read >= TURN {
                read = 0;
                tokio::task::yield_now().await;
            }
        }
        Ok(None)
    }

    pub async fn create<K: Typed>(&self, object: &K) -> Result<K, Status> {
        self.write(Verb::Create, object, None).await
    }

    /// Replaces the object; fails with `Conflict` if its resourceVersion is not the newest.
    pub async fn update<K: Typed>(&self, object: &K) -> Result<K, Status> {
        self.write(Verb::Update, object, None).await
    }

    /// Replaces only the object's status.
    pub async fn update_status<K: Typed>(&self, object: &K) -> Result<K, Status> {
        self.write(Verb::Update, object, Some("status")).await
    }

    /// A merge patch (RFC 7386) on the object or, with `subresource`, on that.
    pub async fn merge<K: Typed>(
        &self,
        namespace: Option<&str>,
        name: &str,
        subresource: Option<&str>,
        patch: Value,
    ) -> Result<K, Status> {
        self.merge_as::<K, K>(namespace, name, subresource, patch).await
    }

    /// [`Client::merge`] with a response of type `T`.
    pub async fn merge_as<K: Typed, T: DeserializeOwned>(
        &self,
        namespace: Option<&str>,
        name: &str,
        subresource: Option<&str>,
        patch: Value,
    ) -> Result<T, Status> {
        let mut request = request::<K>(Verb::Patch, namespace, Some(name));
        request.subresource = subresource.map(str::to_owned);
        request.body = Some(patch);
        request.options.patch_type = Some(PatchType::Merge);
        self.object(request).await
    }

    /// Deletes the object. With `uid` only exactly that one; `options` may have a grace period and propagation policy.
    pub async fn delete<K: Typed>(
        &self,
        namespace: Option<&str>,
        name: &str,
        uid: Option<&str>,
        options: Options,
    ) -> Result<(), Status> {
        let mut request = Request { options, ..request::<K>(Verb::Delete, namespace, Some(name)) };
        if let Some(uid) = uid {
            request.options.preconditions.get_or_insert_with(Preconditions::default).uid = Some(uid.to_owned());
        }
        self.call(request).await.map(drop)
    }

    /// Reports the resource usage of a node and its Pods, which `api::metrics` serves.
    pub async fn report(&self, node: &str, report: &Report) -> Result<(), Status> {
        let mut request = request::<Node>(Verb::Update, None, Some(node));
        request.subresource = Some("usage".to_owned());
        request.body = Some(serde_json::to_value(report).map_err(Status::internal)?);
        self.call(request).await.map(drop)
    }

    /// Sends a request whose response is one object.
    pub async fn object<T: DeserializeOwned>(&self, request: Request) -> Result<T, Status> {
        match self.call(request).await?.body {
            Body::Object { bytes, .. } => decode(&bytes),
            other => Err(unexpected("an object", &other)),
        }
    }

    async fn write<K: Typed>(&self, verb: Verb, object: &K, subresource: Option<&str>) -> Result<K, Status> {
        let meta = object.metadata();
        let mut request = request::<K>(verb, meta.namespace.as_deref(), meta.name.as_deref());
        request.subresource = subresource.map(str::to_owned);
        request.body = Some(serde_json::to_value(object).map_err(Status::internal)?);
        self.object(request).await
    }
}

fn request<K: Typed>(verb: Verb, namespace: Option<&str>, name: Option<&str>) -> Request {
    Request {
        verb,
        resource: K::resource(),
        namespace: namespace.map(str::to_owned),
        name: name.map(str::to_owned),
        ..Request::default()
    }
}

fn decode<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Status> {
    serde_json::from_slice(bytes).map_err(|e| Status::internal(format!("the server's answer does not decode: {e}")))
}

fn unexpected(wanted: &str, got: &Body) -> Status {
    let got = match got {
        Body::Object { .. } => "an object",
        Body::List(_) => "a list",
        Body::Status(_) => "a Status",
        Body::Stream { .. } => "a stream",
    };
    Status::internal(format!("the server answered with {got} where {wanted} was expected"))
}

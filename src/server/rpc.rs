//! The JSON-RPC face: methods and subscriptions over HTTP and WebSocket, a codec onto the pipeline.

use std::path::Path;
use std::sync::Arc;

use jsonrpsee::RpcModule;
use jsonrpsee::core::server::{Extensions, SubscriptionCloseResponse, SubscriptionMessage};
use jsonrpsee::server::{BatchRequestConfig, Methods, PendingSubscriptionSink, ServerConfig, StopHandle};
use jsonrpsee::types::{ErrorObjectOwned, Params};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::api::duplicates;
use crate::api::request::{Body, Origin, PatchType};
use crate::api::rpc::{self, Answer};
use crate::api::{Request, Response, Status, User, Verb, WatchEvent};

use super::rest::origin;
use super::{Server, discover};

/// The largest message that is taken in, and sent out.
const MAX_REQUEST: u32 = 4 << 20;
const MAX_RESPONSE: u32 = 256 << 20;
const MAX_CONNECTIONS: u32 = 100_000;
const MAX_SUBSCRIPTIONS: u32 = 100_000;
/// Messages that may wait for a slow connection.
const MESSAGES: u32 = 1024;
const MAX_BATCH: u32 = 1000;

/// The service of one connection.
pub(super) type RpcService =
    jsonrpsee::server::TowerService<tower::layer::util::Identity, tower::layer::util::Identity>;

/// The JSON-RPC methods, ready to serve connections.
pub(super) struct Endpoint {
    builder: jsonrpsee::server::TowerServiceBuilder<tower::layer::util::Identity, tower::layer::util::Identity>,
    methods: Methods,
}

impl Endpoint {
    pub fn new(server: Arc<Server>) -> Result<Endpoint, jsonrpsee::core::RegisterMethodError> {
        let config = ServerConfig::builder()
            .max_request_body_size(MAX_REQUEST)
            .max_response_body_size(MAX_RESPONSE)
            .max_connections(MAX_CONNECTIONS)
            .max_subscriptions_per_connection(MAX_SUBSCRIPTIONS)
            .set_message_buffer_capacity(MESSAGES)
            .set_batch_request_config(BatchRequestConfig::Limit(MAX_BATCH))
            .build();
        let builder = jsonrpsee::server::Server::builder().set_config(config).to_service_builder();
        Ok(Endpoint { builder, methods: methods(server)?.into() })
    }

    /// One service a connection: a shared one would give all connections one id.
    pub fn service(&self, stop: StopHandle) -> RpcService {
        self.builder.clone().build(self.methods.clone(), stop)
    }
}

/// The methods that take a request and answer it; `patch_type` is what the method implies.
const REQUESTS: [(&str, Verb, Option<PatchType>); 9] = [
    ("get", Verb::Get, None),
    ("list", Verb::List, None),
    ("create", Verb::Create, None),
    ("update", Verb::Update, None),
    ("patch", Verb::Patch, None),
    ("apply", Verb::Patch, Some(PatchType::ThreeWay)),
    ("delete", Verb::Delete, None),
    ("deletecollection", Verb::DeleteCollection, None),
    ("connect", Verb::Connect, None),
];

fn methods(server: Arc<Server>) -> Result<RpcModule<Server>, jsonrpsee::core::RegisterMethodError> {
    let mut module = RpcModule::from_arc(server);
    for (name, verb, patch_type) in REQUESTS {
        module.register_async_method(name, move |params, server, ext| async move {
            let mut request = parse(&server, &params, verb, &ext)?;
            request.options.patch_type = match patch_type {
                Some(_) if request.options.server_side => Some(PatchType::Apply),
                implied => implied.or(request.options.patch_type),
            };
            let _seat = server.gates.enter(&request).await.map_err(error)?;
            let response = server.handle(request).await.map_err(error)?;
            encode(response).map_err(error)
        })?;
    }
    module.register_subscription(rpc::WATCH, rpc::WATCH_EVENT, rpc::UNWATCH, watch)?;
    module.register_subscription(rpc::SESSIONS, rpc::SESSION_EVENT, rpc::UNSESSIONS, sessions)?;
    module.register_async_method("backup", |params, server, ext| async move {
        let Backup { path, force } = parse_params(&params)?;
        let user = ext.get::<User>().cloned().unwrap_or_default();
        server.authorizer.authorize_path(&user, "post", "/backup").map_err(error)?;
        server.backup(Path::new(&path), force).await.map_err(error)?;
        encode(super::get::status(Status::success())).map_err(error)
    })?;
    module.register_method("rpc.discover", |_, context, _| discover::document(&context.kinds()))?;
    Ok(module)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Backup {
    path: String,
    #[serde(default)]
    force: bool,
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

fn parse(server: &Server, params: &Params<'_>, verb: Verb, ext: &Extensions) -> Result<Request, ErrorObjectOwned> {
    let request: Request = parse_params(params)?;
    let duplicates = match &request.body {
        Some(_) => duplicates::fields_within(params.as_str().unwrap_or("{}"), "body"),
        None => Vec::new(),
    };
    // Without the face's word on who it is, the caller is nobody.
    let user = ext.get::<User>().cloned().unwrap_or_default();
    // Only the audit log wants to know more.
    let connection = ext.get::<Arc<Origin>>().filter(|_| server.config.audit.is_some());
    let origin = connection.map(|connection| origin::again(&server.env, connection));
    Ok(Request { verb, user, duplicates, origin, ..request })
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
        Body::List(list) => answer.object = Some(raw(&super::rest::reply::list(&list))?),
        Body::Status(status) => {
            answer.object = Some(serde_json::value::to_raw_value(&status).map_err(Status::internal)?)
        }
        Body::Stream { id } => answer.stream = Some(id),
    }
    Ok(answer)
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
    let (opened, _origin) = match parse(&server, &params, Verb::Watch, &ext) {
        // The origin ends with the watch.
        Ok(request) => {
            let origin = request.origin.clone();
            (server.watch(request).await.map_err(error), origin)
        }
        Err(why) => (Err(why), None),
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

//! The JSON-RPC face: methods and subscriptions over HTTP and WebSocket, a codec onto the pipeline.

pub(crate) mod told;
pub(crate) mod wire;

use std::sync::Arc;

use jsonrpsee::RpcModule;
use jsonrpsee::core::middleware::RpcServiceBuilder;
use jsonrpsee::core::server::{Extensions, SubscriptionCloseResponse, SubscriptionMessage};
use jsonrpsee::server::{
    BatchRequestConfig, Methods, PendingSubscriptionSink, ResponsePayload, ServerConfig, StopHandle, SubscriptionSink,
};
use jsonrpsee::types::{ErrorObjectOwned, Params};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use podwright_api::object::check_nesting;
use podwright_api::request::{Body, EventKind, Origin, PatchType};
use podwright_api::rpc::{self, Answer};
use podwright_api::{Env, Request, Response, Status, User, Verb, WatchEvent};
use podwright_api::{duplicates, protections};

use super::answers::{Room, Rooms};
use super::calls::Counting;
use super::in_flight::EACH;
use super::large::BodySize;
use super::limits::Held;
use super::rest;
use super::rest::origin::{self, Source};
use super::rest::traced;
use super::unread::Unread;
use super::{Server, answers, discover};
use told::{tell, tell_of};
use wire::{MAX_BATCH, MAX_REQUEST, MAX_RESPONSE, error, user};

/// The longest parameters of a subscription, which may last forever: REST's are as long as a head.
const MAX_SUBSCRIPTION: usize = 64 << 10;
const MAX_CONNECTIONS: u32 = 100_000;
/// Of one connection; a node's agent has a few dozen, and one for each ConfigMap and Secret of its Pods.
const MAX_SUBSCRIPTIONS: u32 = 10_000;
/// Messages buffered for a slow connection; their bytes are counted (see `unread`), and so are those waiting to be buffered (see
/// `in_flight`).
const MESSAGES: u32 = 16;

/// Counts each call.
type Layers = tower::layer::util::Stack<Counting, tower::layer::util::Identity>;

/// The service of one connection.
pub(super) type RpcService = jsonrpsee::server::TowerService<Layers, tower::layer::util::Identity>;

/// The JSON-RPC methods, ready to serve connections.
pub(super) struct Endpoint {
    builder: jsonrpsee::server::TowerServiceBuilder<Layers, tower::layer::util::Identity>,
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
        let counted = RpcServiceBuilder::new().layer(Counting { server: server.clone() });
        let builder = jsonrpsee::server::Server::builder().set_config(config).set_rpc_middleware(counted);
        let builder = builder.to_service_builder();
        Ok(Endpoint { builder, methods: methods(server)?.into() })
    }

    /// One service per connection: a shared one would give all connections one id.
    pub fn service(&self, stop: StopHandle) -> RpcService {
        self.builder.clone().build(self.methods.clone(), stop)
    }
}

/// The methods with a request and a response; `patch_type` is implied by the method.
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
            match answer(&server, params, &ext, (name, verb), patch_type).await {
                Ok((answer, size, room)) => {
                    keep(&ext, size, room);
                    ResponsePayload::success(answer)
                }
                Err(why) => ResponsePayload::error(refusal(&server, &ext, why)),
            }
        })?;
    }
    module.register_subscription(rpc::WATCH, rpc::WATCH_EVENT, rpc::UNWATCH, watch)?;
    module.register_subscription(rpc::SESSIONS, rpc::SESSION_EVENT, rpc::UNSESSIONS, sessions)?;
    module.register_async_method("backup", |params, server, ext| async move {
        let Nothing {} = read(&server, &ext, "backup", &params)?;
        let user = ext.get::<User>().cloned().unwrap_or_default();
        let stream = server.backup(&user).await;
        tell(&server, &ext, "post", "/backup", &stream);
        let stream = Some(stream.map_err(error)?);
        Ok::<_, ErrorObjectOwned>(Answer { stream, ..Answer::default() })
    })?;
    module.register_async_method(protections::METHOD, |params, server, ext| async move {
        let Nothing {} = read(&server, &ext, protections::METHOD, &params)?;
        let user = ext.get::<User>().cloned().unwrap_or_default();
        let told = server.protections(&user).await;
        tell(&server, &ext, "get", protections::PATH, &told);
        told.map_err(error)
    })?;
    module.register_async_method("health", |params, server, ext| async move {
        let Health { of, exclude } = read(&server, &ext, "health", &params)?;
        let user = ext.get::<User>().cloned().unwrap_or_default();
        let of = of.as_deref().unwrap_or("readyz");
        let report = server.health_report(&user, of, &exclude).await;
        tell(&server, &ext, "get", &format!("/{of}"), &report);
        report.map_err(error)
    })?;
    module.register_async_method("rpc.discover", |_, server, ext| async move {
        let user = user(&ext);
        let document = discovered(&server, &user).await;
        tell(&server, &ext, "get", "/rpc/rpc.discover", &document);
        let (document, room) = document.map_err(error)?;
        keep(&ext, document.get().len(), room);
        Ok::<_, ErrorObjectOwned>(document)
    })?;
    Ok(module)
}

/// Keeps a response's room until it is sent.
fn keep(ext: &Extensions, size: usize, room: Room) {
    if let Some(unread) = ext.get::<Arc<Unread>>() {
        unread.answer(size, room);
    } else if let Some(rooms) = ext.get::<Arc<Rooms>>() {
        rooms.add(room);
    }
}

/// A refusal; a long one holds room like a response, as it may have a thousand causes.
fn refusal(server: &Server, ext: &Extensions, why: ErrorObjectOwned) -> ErrorObjectOwned {
    let size = why.message().len() + why.data().map_or(0, |data| data.get().len());
    if size <= EACH {
        return why;
    }
    match server.answers.try_enter(&user(ext), size) {
        Some(room) => {
            keep(ext, size, room);
            why
        }
        None => error(answers::full()),
    }
}

/// The document of `rpc.discover`: built once for the current kinds, and counted against the limit of reads.
async fn discovered(server: &Server, user: &User) -> Result<(Box<RawValue>, Room), Status> {
    let _seat = server.limiters.enter_to_read(user).await?;
    let (kinds, all) = (server.kinds(), Vec::from_iter(server.kinds().all()));
    let make = || discover::document(&kinds).to_string().into();
    let document = server.document("rpc.discover", &all, user, make).await?;
    let room = server.answers.try_enter(user, document.bytes.len()).ok_or_else(answers::full)?;
    Ok((raw(&document.bytes)?, room))
}

/// Answers one request; its room is held until the connection has written it.
async fn answer(
    server: &Server,
    params: Params<'_>,
    ext: &Extensions,
    (method, verb): (&'static str, Verb),
    patch_type: Option<PatchType>,
) -> Result<(Answer, usize, Room), ErrorObjectOwned> {
    let (of_params, caller) = (BodySize::of_json(params.as_str().unwrap_or("").as_bytes()), user(ext));
    let size = of_params.bytes;
    let read = async {
        let place = server.large.enter_body(&caller, of_params).await?;
        let request = server.large.run(&caller, size, async { parse(server, &params, verb, ext) }).await?;
        Ok::<_, Status>((place, request))
    };
    let (mut place, mut request) = read.await.map_err(|why| unread(server, ext, method, why))?;
    request.options.patch_type = match patch_type {
        Some(_) if request.options.server_side => Some(PatchType::Apply),
        implied => implied.or(request.options.patch_type),
    };
    let entering = async {
        let size = size + server.size_of(&request)?;
        if place.is_none() {
            place = server.large.enter(&request.user, size).await?;
        }
        Ok::<_, Status>((size, server.limiters.enter(&request).await?))
    };
    let (size, seat) = entering.await.map_err(|why| turned_away(server, &request, why))?;
    let held = Held::new(&caller, seat, place);
    let (span, origin) = (traced::begin_call(method, &request), request.origin.clone());
    let work = async {
        let handled = Box::pin(span.around(server.handle(request))).await;
        if let Some(origin) = &origin {
            traced::end(origin, handled.as_ref().map_or_else(Status::http_code, |_| 200));
        }
        let response = handled?;
        let size = rest::size_of(&response);
        let room = server.answers.try_enter(&caller, size).ok_or_else(answers::full)?;
        // It is copied twice, and scanned once.
        let encoded = server.large.run(&caller, size / 4, async { encode(response) }).await?;
        Ok((encoded, size, room))
    };
    held.within(server.large.run(&caller, size, work)).await.map_err(error)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Health {
    of: Option<String>,
    #[serde(default)]
    exclude: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfNode {
    node: String,
}

/// Parses the parameters of a call.
///
/// # Errors
///
/// They cannot be parsed, which is recorded in the audit log.
fn read<T: for<'a> Deserialize<'a>>(
    server: &Server,
    ext: &Extensions,
    method: &str,
    params: &Params<'_>,
) -> Result<T, ErrorObjectOwned> {
    parse_params(params).map_err(|why| unread(server, ext, method, why))
}

/// Records a call that cannot be parsed in the audit log.
fn unread(server: &Server, ext: &Extensions, method: &str, why: Status) -> ErrorObjectOwned {
    tell_of(server, ext, "post", &format!("/rpc/{method}"), Some(&why));
    error(why)
}

/// Records a request for which there is no room in the audit log.
fn turned_away(server: &Server, request: &Request, why: Status) -> ErrorObjectOwned {
    if let Some(audit) = &server.config.audit {
        audit.turned_away(request, &server.kinds(), &why);
    }
    error(why)
}

fn parse_params<T: for<'a> Deserialize<'a>>(params: &Params<'_>) -> Result<T, Status> {
    let text = params.as_str().unwrap_or("{}");
    // Structs deserialize from lists, too, which have no names that could be duplicate.
    if !text.trim_start().starts_with('{') {
        return Err(Status::bad_request("params: they are an object, by their names"));
    }
    serde_json::from_str(text).map_err(|e| Status::bad_request(format!("params: {e}")))
}

/// The parameters of a subscription are kept for as long as it lasts.
fn lasting(params: &Params<'_>) -> Result<(), Status> {
    match params.as_str().is_none_or(|text| text.len() <= MAX_SUBSCRIPTION) {
        true => Ok(()),
        false => {
            let why = format!("params: a subscription's have at most {MAX_SUBSCRIPTION} bytes");
            Err(Status::failure(413, "RequestEntityTooLarge", why))
        }
    }
}

fn parse(server: &Server, params: &Params<'_>, verb: Verb, ext: &Extensions) -> Result<Request, Status> {
    let request: Request = parse_params(params)?;
    request.body.as_ref().map_or(Ok(()), check_nesting)?;
    let duplicates = match &request.body {
        Some(_) => duplicates::fields_within(params.as_str().unwrap_or("{}"), "body"),
        None => Vec::new(),
    };
    let user = user(ext);
    let origin = Some(origin_of(&server.env, ext));
    Ok(Request { verb, user, duplicates, address: Source::of(ext), origin, ..request })
}

/// The origin of a request, which must be set: a request without one counts as this process' own.
fn origin_of(env: &Env, ext: &Extensions) -> Arc<Origin> {
    match ext.get::<Arc<Origin>>() {
        Some(connection) => origin::again(env, connection),
        None => origin::again(env, &Origin::default()),
    }
}

/// Bytes that are valid JSON.
fn raw(bytes: &[u8]) -> Result<Box<RawValue>, Status> {
    let text = std::str::from_utf8(bytes).map_err(Status::internal)?;
    RawValue::from_string(text.to_owned()).map_err(Status::internal)
}

fn encode(response: Response) -> Result<Answer, Status> {
    let mut answer = Answer { warnings: response.warnings, unchanged: response.unchanged, ..Answer::default() };
    match response.body {
        Body::Object { bytes, created } => {
            answer.object = Some(raw(&bytes)?);
            answer.created = created;
        }
        Body::List(list) => answer.object = Some(raw(&super::rest::lists::list(&list))?),
        Body::Status(status) => {
            answer.object = Some(serde_json::value::to_raw_value(&status).map_err(Status::internal)?)
        }
        Body::Stream { id } => answer.stream = Some(id),
    }
    Ok(answer)
}

/// An event of a subscription.
#[derive(Serialize)]
struct Told<'a> {
    r#type: EventKind,
    object: &'a RawValue,
}

/// An event's message. Its object's JSON is validated once for all subscriptions.
async fn message(
    server: &Server,
    user: &User,
    event: &WatchEvent,
    sink: &SubscriptionSink,
) -> Result<SubscriptionMessage, Status> {
    let work = async {
        let checked = || raw(&event.object).map(Arc::from);
        let object: Arc<RawValue> = server.for_rpc.get_or(&event.object, (0, 0), checked, |raw| raw.get().len())?;
        let told = Told { r#type: event.kind, object: &object };
        SubscriptionMessage::new(sink.method_name(), sink.subscription_id(), &told).map_err(Status::internal)
    };
    // It is not part of a call.
    server.limiters.cpu.measured(user, server.large.run(user, event.object.len(), work)).await
}

/// Serves one watch. Reports its end, so that the client resumes.
async fn watch(
    params: Params<'static>,
    pending: PendingSubscriptionSink,
    server: Arc<Server>,
    ext: Extensions,
) -> SubscriptionCloseResponse {
    let (opened, _origin) = match lasting(&params).and_then(|()| parse(&server, &params, Verb::Watch, &ext)) {
        // The origin ends with the watch.
        Ok(mut request) => {
            rest::end_at_last(&server, &mut request);
            let (span, origin) = (traced::begin_call(rpc::WATCH, &request), request.origin.clone());
            let cpu = server.limiters.cpu.clone();
            let opened = cpu.measured(&user(&ext), span.around(server.watch(request))).await;
            if let Some(origin) = &origin {
                traced::end(origin, opened.as_ref().map_or_else(Status::http_code, |_| 200));
            }
            (opened.map_err(error), origin)
        }
        Err(why) => (Err(unread(&server, &ext, rpc::WATCH, why)), None),
    };
    let mut events = match opened {
        Ok(events) => events,
        Err(why) => {
            pending.reject(why).await;
            return SubscriptionCloseResponse::None;
        }
    };
    let Ok(sink) = pending.accept().await else { return SubscriptionCloseResponse::None };
    let user = user(&ext);
    loop {
        let event = tokio::select! {
            event = events.recv() => event,
            () = sink.closed() => return SubscriptionCloseResponse::None,
        };
        let Some(event) = event else {
            return SubscriptionCloseResponse::NotifErr("the watch has ended".to_owned().into());
        };
        if !may_send(&server, &ext, event.object.len()).await {
            return SubscriptionCloseResponse::None;
        }
        match message(&server, &user, &event, &sink).await {
            // Waiting here is the backpressure: the cache cuts off a client that does not read.
            Ok(message) => {
                if sink.send(message).await.is_err() {
                    return SubscriptionCloseResponse::None;
                }
            }
            Err(why) => return SubscriptionCloseResponse::NotifErr(why.message.into()),
        }
    }
}

/// Waits until the connection has room for an event; false: it has ended.
async fn may_send(server: &Server, ext: &Extensions, bytes: usize) -> bool {
    match ext.get::<Arc<Unread>>() {
        Some(unread) => unread.event(bytes, &server.answers, &user(ext)).await,
        None => true,
    }
}

/// Notifies a node of the sessions that it must serve.
async fn sessions(
    params: Params<'static>,
    pending: PendingSubscriptionSink,
    server: Arc<Server>,
    ext: Extensions,
) -> SubscriptionCloseResponse {
    let node = match lasting(&params).and_then(|()| parse_params::<OfNode>(&params)) {
        Ok(of) => of.node,
        Err(why) => {
            pending.reject(unread(&server, &ext, rpc::SESSIONS, why)).await;
            return SubscriptionCloseResponse::None;
        }
    };
    let user = ext.get::<User>().cloned().unwrap_or_default();
    let sessions = server.sessions(&user, &node);
    tell(&server, &ext, "connect", &format!("/api/v1/nodes/{node}"), &sessions);
    let mut sessions = match sessions {
        Ok(sessions) => sessions,
        Err(status) => {
            pending.reject(error(status)).await;
            return SubscriptionCloseResponse::None;
        }
    };
    let Ok(sink) = pending.accept().await else { return SubscriptionCloseResponse::None };
    let every = server.config.limits.ask_again;
    let mut rounds = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    loop {
        let session = tokio::select! {
            session = sessions.recv() => session,
            () = sink.closed() => return SubscriptionCloseResponse::None,
            // An agent that is no longer authorized gets no more sessions, and none waits for it.
            _ = rounds.tick() => match server.may_serve(&user, &node) {
                Ok(()) => continue,
                Err(why) => return SubscriptionCloseResponse::NotifErr(why.message.into()),
            },
        };
        let Some(session) = session else { return SubscriptionCloseResponse::None };
        // A Session consists of strings and numbers: it always encodes.
        let Ok(message) = serde_json::value::to_raw_value(&session) else { continue };
        if !may_send(&server, &ext, message.get().len()).await {
            return SubscriptionCloseResponse::None;
        }
        if sink.send(SubscriptionMessage::from(message)).await.is_err() {
            return SubscriptionCloseResponse::None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_an_origin_whatever_its_connection_says() {
        let env = Env::system();
        let mut ext = Extensions::new();
        assert!(!origin_of(&env, &ext).id.is_empty());
        let connection = Origin { id: "one".into(), user_agent: "a".into(), ..Origin::default() };
        ext.insert(Arc::new(connection));
        let origin = origin_of(&env, &ext);
        assert_eq!(origin.user_agent, "a");
        assert_ne!(origin.id, "one", "each request of a connection has its own");
    }
}

//! The REST face: the Kubernetes API as kubectl and the client libraries speak it, a codec onto the pipeline.
//!
//! A request is recognized ([`authenticate`]), its path and query become a `Request` ([`paths`], [`query`]), its body a value
//! ([`body`]); the answer is written as the client wants it ([`negotiate`], [`table`], [`reply`], [`watch`]). What names no
//! object is answered here: [`discovery`], [`openapi`], [`health`], [`metrics`], [`zpages`], [`profiles`]. Sessions with a node are in [`streams`].

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use futures::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::header::HeaderValue;
use hyper::http::Extensions;
use hyper::{Method, Request as HttpRequest, Version};
use serde_json::{Value, json};

use crate::api::instruments::Format;
use crate::api::kinds::{self, Storage};
use crate::api::request::{Body, Origin, PatchType};
use crate::api::{Kind, Options, Request, Response, Status, User, Verb, process};

use super::Server;
use super::aggregator::listing::Group;
use super::answers::Room;
use super::audit::Facts;
use super::authorize::Attributes;
use super::documents::Document;
use super::ends::{apart, disowned};
use super::large::{BodySize, of_copies};
use super::limits::{Guest, Held, Seat};

pub mod authenticate;
pub mod body;
pub(super) mod cross_site;
mod custom;
mod discovery;
mod gnostic;
mod health;
pub mod lists;
mod metrics;
pub mod negotiate;
mod openapi;
pub mod origin;
pub mod paths;
mod profiles;
pub mod query;
pub mod reply;
mod rest_of_body;
mod served;
pub(super) mod strangers;
pub(in crate::server) mod streams;
mod table;
pub(super) mod traced;
mod watch;
mod zpages;

use authenticate::{Authenticator, Credentials, Peer};
use body::Meant;
use metrics::{Metrics, Series};
use negotiate::{Form, Shape, Wanted};
use origin::Source;
use paths::{Place, Target};
use query::Query;
use reply::{HttpBody, Reply};
use rest_of_body::ReadToEnd;
use served::Served;
use strangers::Read;
use table::{Include, Tabulator};

/// A watch that names no end ends after half an hour, up to twice that: clients then come back, spread over time.
const SHORTEST_WATCH: u64 = 1800;

/// Gives a watch that names no end an end. The superuser's may go on: the server's own, and the node's beside it.
pub(super) fn end_at_last(server: &Server, request: &mut Request) {
    if !request.user.is_in("system:masters") {
        request.options.timeout_seconds.get_or_insert_with(|| SHORTEST_WATCH + server.env.below(SHORTEST_WATCH));
    }
}

/// The REST face of a server.
pub struct Face {
    server: Arc<Server>,
    authenticators: Vec<Box<dyn Authenticator>>,
    metrics: Metrics,
    /// Held by each watch.
    watches: Arc<()>,
}

/// What is told of a request afterwards: to the metrics, and to the audit log.
#[derive(Default)]
struct Asked {
    series: Series,
    verb: String,
    subresource: String,
    /// What it is about that another server serves, and for whom.
    remote: Option<(Read, User)>,
}

/// A request whose path and caller are known.
struct Ask {
    method: Method,
    /// The path as it came.
    path: String,
    query: Query,
    user: User,
    origin: Arc<Origin>,
    wanted: Wanted,
    http: HttpRequest<HttpBody>,
}

impl Face {
    pub fn new(server: Arc<Server>) -> Arc<Face> {
        Arc::new(Face { server, authenticators: authenticate::all(), metrics: Metrics::new(), watches: Arc::default() })
    }

    /// Who asks, or who he asks to be; who he is himself is noted in `origin`, and by him his connection is counted.
    pub async fn user(
        &self,
        peer: &Peer,
        headers: &hyper::HeaderMap,
        extensions: &Extensions,
        origin: &Origin,
    ) -> Result<User, Status> {
        let (credentials, guest) = (Credentials::of(peer, headers), extensions.get::<Guest>());
        let (recognizing, turns) =
            (authenticate::authenticate(&self.authenticators, &self.server, &credentials), &self.server.gates.turns);
        let mut user = match guest {
            None => recognizing.await?,
            Some(guest) => turns.measured_of(guest, peer.certificate.as_ref(), recognizing).await?,
        };
        if user.is_in("system:unauthenticated") {
            user.address = guest.map(Guest::address);
        }
        let user = origin.caller.get_or_init(|| user).clone();
        if let Some(guest) = guest {
            guest.known(&user)?;
        }
        self.server.impersonate(user, &authenticate::impersonation(headers)).await
    }

    /// Answers one request of a connection. Never fails: errors are answers.
    pub fn answer<'a>(&'a self, peer: &'a Peer, http: HttpRequest<HttpBody>) -> BoxFuture<'a, Reply> {
        Box::pin(self.answered(peer, http))
    }

    async fn answered(&self, peer: &Peer, http: HttpRequest<HttpBody>) -> Reply {
        let began = Instant::now();
        let head = http.method() == Method::HEAD;
        let origin = Arc::new(origin::of(&self.server.env, &http));
        let verb = http.method().as_str().to_ascii_lowercase();
        let mut asked = Asked { series: Series::path(http.method(), http.uri().path()), ..Asked::default() };
        let (mut reply, refused) = match self.route(peer, http, &mut asked, &origin).await {
            Ok(reply) => (reply, None),
            Err(status) => (reply::status(&status, &Wanted::PLAIN), Some(status)),
        };
        if let (Some(caller), None) = (origin.caller.get(), reply.extensions().get::<Arc<Room>>()) {
            // What is refused is on its caller's account too where he leaves it unread.
            reply.extensions_mut().insert(Arc::new(self.server.answers.none_yet(caller)));
        }
        if head {
            reply::without_body(&mut reply);
        }
        origin::name(&mut reply, &origin);
        traced::end(&origin, reply.status().as_u16());
        reply::as_it_says(&mut reply);
        if let Some(audit) = self.server.config.audit.as_ref().filter(|_| !origin.is_told()) {
            let path = origin.uri.split('?').next().unwrap_or("");
            let facts = Facts { user: origin.caller.get(), path, ..Facts::default() };
            let facts = match &asked.remote {
                Some((read, user)) => Facts {
                    acting: Some(user).filter(|user| facts.user != Some(*user)),
                    verb: read.verb,
                    group: &read.group,
                    resource: &read.resource,
                    subresource: &read.subresource,
                    namespace: &read.namespace,
                    name: &read.name,
                    ..facts
                },
                None => Facts {
                    verb: if asked.series.resource.is_empty() { &verb } else { &asked.verb },
                    group: asked.series.group,
                    resource: asked.series.resource,
                    subresource: &asked.subresource,
                    ..facts
                },
            };
            audit.face(&origin, &facts, reply.status().as_u16(), refused.as_ref());
        }
        self.metrics.end(&asked.series, reply.status().as_u16(), began.elapsed(), length_of(&reply));
        reply
    }

    /// The path decides who answers.
    async fn route(
        &self,
        peer: &Peer,
        http: HttpRequest<HttpBody>,
        asked: &mut Asked,
        origin: &Arc<Origin>,
    ) -> Result<Reply, Status> {
        let (began, user) = (SystemTime::now(), self.user(peer, http.headers(), http.extensions(), origin).await?);
        let (span, of) = (traced::begin(&http, origin, &user, began), user.clone());
        let work = span.around(self.recognized(peer, http, user, asked, origin));
        let mut reply = self.server.gates.turns.measured(&of, work).await?;
        if reply.extensions().get::<Arc<Room>>().is_none() {
            // What is told bit by bit is on his account as well where he leaves it unread.
            reply.extensions_mut().insert(Arc::new(self.server.answers.none_yet(&of)));
        }
        Ok(reply)
    }

    /// Answers who is known.
    async fn recognized(
        &self,
        peer: &Peer,
        http: HttpRequest<HttpBody>,
        user: User,
        asked: &mut Asked,
        origin: &Arc<Origin>,
    ) -> Result<Reply, Status> {
        cross_site::refuse(&http)?;
        let path = http.uri().path().to_owned();
        let query = Query::parse(http.uri().query().unwrap_or(""));
        // A HEAD is a GET whose body stays here.
        let method = if http.method() == Method::HEAD { Method::GET } else { http.method().clone() };
        if let Some(read) = Read::of_stranger(&user, &method, &path, &query)? {
            self.server.authorize(&read.attributes(&user)).await?;
        }
        let ask = Ask { method, path, query, user, origin: origin.clone(), wanted: Wanted::PLAIN, http };
        if let Some(registration) = streams::aggregated::registration_of(&self.server, &ask.path)? {
            return Box::pin(self.aggregated(peer, &registration, ask, asked)).await;
        }
        match paths::parse(&self.server.kinds(), &ask.path)? {
            Some(Place::Resource(target)) => self.resource(peer, target, ask, asked).await,
            place => {
                let Ask { method, path, query, user, http, .. } = ask;
                let headers = http.headers().clone();
                drop(http);
                let verb = method.as_str().to_ascii_lowercase();
                self.server.authorize(&Attributes::of_path(&user, &verb, &path)).await?;
                if method != Method::GET && place.is_some() {
                    return Err(not_allowed());
                }
                let pretty = query.first("pretty").map(|_| query.flag("pretty"));
                self.other(place, &path, &query, &user, pretty, &headers).await
            }
        }
    }

    /// What is no resource. Whoever may log in may read it, so it takes part in the limits of reads.
    async fn other(
        &self,
        place: Option<Place>,
        path: &str,
        query: &Query,
        user: &User,
        pretty: Option<bool>,
        headers: &hyper::HeaderMap,
    ) -> Result<Reply, Status> {
        let Some(place) = place else { return Ok(reply::not_found()) };
        if let Place::Health(only) = place {
            return Ok(health::answer(&self.server, user, path, only.as_deref(), query).await);
        }
        if let Place::Profile(name) = place {
            // It takes its time, and there is one at a time.
            return Ok(profiles::answer(&self.server, path, name.as_deref(), query).await);
        }
        let mut seat = self.server.gates.enter_to_read(user).await?;
        let clauses = negotiate::clauses(headers);
        // Discovery and version are JSON, whatever representation of objects is wished.
        let wanted = negotiate::wanted(headers, pretty, true).unwrap_or(Wanted::PLAIN);
        let json = Wanted { form: Form::Json, ..wanted };
        let host = headers.get(hyper::header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
        let (server, aggregated) = (&*self.server, discovery::aggregated_version(&clauses));
        match place {
            Place::Resource(_) | Place::Health(_) | Place::Profile(_) => Ok(reply::not_found()),
            Place::Statusz => zpages::statusz(server, headers),
            Place::Flagz => zpages::flagz(server, headers),
            Place::Version => Ok(reply::value(200, &health::version(), &json)),
            Place::OpenIdConfiguration => Ok(reply::value(200, &server.openid_configuration(), &wanted)),
            Place::OpenIdKeys => {
                let keys = server.openid_keys().to_string();
                Ok(reply::typed(reply::full(keys), "application/jwk-set+json"))
            }
            Place::Metrics => {
                let format = Format::wanted(accept(headers));
                let (stored, size) = (server.cache.counts(), server.store.size().await);
                let expose = async { self.metrics.expose(stored, size, format) };
                let text = server.large.run(user, self.metrics.size(), expose).await;
                let plain = Wanted { gzip: false, pretty: false, ..json };
                self.send(user, &mut seat, &Document::of(text.into()), format.media_type(), &plain).await
            }
            Place::Slis => {
                // Nobody else may look whether the server is well: who wants to know has it looked at.
                for of in ["livez", "readyz"] {
                    server.health(of, None, &[]).await;
                }
                let format = Format::wanted(accept(headers));
                let text = server.slis.expose(&process::start_metric(), format);
                Ok(reply::typed(reply::full(text), format.media_type()))
            }
            Place::OpenApiV2 => {
                let (document, media_type) = openapi::v2(server, user, &Served::now(server), &clauses).await?;
                let pretty = json.pretty && media_type == reply::JSON;
                self.send_named(user, &mut seat, &document, media_type, &Wanted { pretty, ..json }, headers).await
            }
            Place::OpenApiV3(None) => {
                let index = openapi::v3_index(server, user, &Served::now(server)).await?.to_string();
                self.send_named(user, &mut seat, &Document::of(index.into()), reply::JSON, &json, headers).await
            }
            Place::OpenApiV3(Some(of)) => {
                let Some(document) = openapi::v3(server, user, &Served::now(server), &of).await? else {
                    return Ok(reply::not_found());
                };
                let mut reply = self.send_named(user, &mut seat, &document, reply::JSON, &json, headers).await?;
                if query.first("hash") == Some(document.hash.as_str()) {
                    openapi::kept_for_good(&mut reply);
                }
                Ok(reply)
            }
            Place::Versions if aggregated.is_none() => Ok(reply::value(200, &discovery::versions(host), &wanted)),
            place => {
                let aggregated = aggregated.filter(|_| matches!(place, Place::Versions | Place::Groups));
                let served = Served::now(server);
                if !served.has(&place) {
                    return Ok(reply::not_found());
                }
                let of: Vec<_> = served.concerned(&place).collect();
                let make = || (discovered(&served, &place, aggregated).to_string() + "\n").into();
                let name = format!("discovery {place:?} {}", aggregated.unwrap_or(""));
                let document = served.document(server, user, &name, &of, make).await?;
                match aggregated {
                    Some(version) => {
                        let media_type = discovery::media_type(version);
                        self.send_named(user, &mut seat, &document, media_type, &json, headers).await
                    }
                    None => self.send(user, &mut seat, &document, reply::JSON, &wanted).await,
                }
            }
        }
    }

    /// A document as it is wanted. The one that asks gives up his seat where he has to wait until others of his answers are sent.
    async fn send(
        &self,
        user: &User,
        seat: &mut Option<Seat>,
        document: &Document,
        media_type: &'static str,
        wanted: &Wanted,
    ) -> Result<Reply, Status> {
        let (server, length) = (&self.server, document.bytes.len());
        let plain = wanted.form == Form::Json && !wanted.pretty;
        let size = if plain { 0 } else { length };
        let mut room = self.room(user, seat, length + TREE * size).await?;
        let _place = server.large.enter_part(user, size).await?;
        let mut reply = match plain {
            true if reply::is_compressed(length, wanted) => {
                reply::ready(200, server.zipped(document, user).await?, media_type, true)
            }
            true => reply::ready(200, document.bytes.clone(), media_type, false),
            false => server.large.run(user, size, async { reply::json(200, document.bytes.clone(), wanted) }).await,
        };
        if wanted.form == Form::Json {
            reply.headers_mut().insert(hyper::header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        }
        room.shrink(length_of(&reply));
        reply.extensions_mut().insert(Arc::new(room));
        Ok(reply)
    }

    /// The same of a document that clients keep by its name, or nothing of it for those who have it.
    async fn send_named(
        &self,
        user: &User,
        seat: &mut Option<Seat>,
        document: &Document,
        media_type: &'static str,
        wanted: &Wanted,
        headers: &hyper::HeaderMap,
    ) -> Result<Reply, Status> {
        let reply = match reply::has(headers, &document.hash) {
            true => reply::not_modified(),
            false => self.send(user, seat, document, media_type, wanted).await?,
        };
        Ok(reply::tagged(reply, &document.hash))
    }

    /// Room for an answer. Nobody else shall wait behind who does not read what he asked for.
    async fn room(&self, user: &User, seat: &mut Option<Seat>, bytes: usize) -> Result<Room, Status> {
        if let Some(room) = self.server.answers.try_enter(user, bytes) {
            return Ok(room);
        }
        drop(seat.take());
        self.server.answers.enter(user, bytes).await
    }

    /// Objects: the method, the path and the query make the request of the pipeline.
    async fn resource(&self, peer: &Peer, target: Target, mut ask: Ask, asked: &mut Asked) -> Result<Reply, Status> {
        let watches = target.watch || ask.query.flag("watch");
        let verb = verb(ask.http.method(), &target, watches).ok_or_else(not_allowed)?;
        let verb_name = format!("{verb:?}").to_lowercase();
        let scope = match (&target.name, &target.namespace) {
            (Some(_), _) => "resource",
            (None, Some(_)) => "namespace",
            (None, None) => "cluster",
        };
        *asked = Asked {
            series: Series::of(target.kind, &verb_name, target.subresource.as_deref(), scope),
            verb: verb_name,
            subresource: target.subresource.clone().unwrap_or_default(),
            remote: None,
        };
        let running = self.metrics.begin(&asked.verb);
        let mut request = Request {
            verb,
            resource: target.resource(),
            namespace: target.namespace.clone(),
            name: target.name.clone(),
            subresource: target.subresource.clone(),
            duplicates: Vec::new(),
            body: None,
            options: Options::default(),
            user: ask.user.clone(),
            address: Source::of(ask.http.extensions()),
            origin: Some(ask.origin.clone()),
            part_of: None,
        };
        traced::named(&target, &ask.method, &asked.verb);
        if verb == Verb::Connect {
            drop(running);
            return streams::connect(self, peer, target, request, ask).await;
        }
        let pretty = ask.query.first("pretty").map(|_| ask.query.flag("pretty"));
        ask.wanted = negotiate::wanted(ask.http.headers(), pretty, has_table(&target))?;
        request.options = query::options(&ask.query)?;
        asked.series.dry_run = if request.options.dry_run { "All" } else { "" };
        let include = Include::parse(ask.query.first("includeObject"))?;
        let tabulator = Tabulator { kind: target.kind, include, now: self.server.env.now() };
        if verb == Verb::Watch {
            drop(running);
            end_at_last(&self.server, &mut request);
            let events = self.server.watch(request).await?;
            let shown = ask.http.headers().clone();
            let withdrawn = apart(disowned(self.server.clone(), peer.clone(), shown, ask.user.clone()));
            let (server, shape) = (self.server.clone(), ask.wanted.shape);
            let pace = watch::Pace::new(self.watches.clone());
            let (running, told) = self.metrics.watch(&asked.series);
            let ongoing = watch::Ongoing { withdrawn, pace, told, _running: running, _origin: ask.origin };
            return Ok(watch::reply(server, ask.user, events, shape, tabulator, ongoing));
        }
        let headers = ask.http.headers().clone();
        if verb.writes() && !request.user.is_in("system:masters") {
            self.server.may_send(&request).await?;
        }
        let mut room = self.server.gates.bodies.of(&ask.user);
        let bytes = body::read(ask.http.into_body(), body::LIMIT, self.server.config.limits.body, &mut room).await?;
        let size = body_size(&bytes, verb, &headers).and(self.server.size_of(&request)?);
        let place = self.server.large.enter_body(&request.user, size).await?;
        let size = size.bytes;
        let seat = self.server.gates.enter(&request).await?;
        let held = Held::new(&ask.user, seat, place);
        let work = async {
            take_body(&mut request, target.kind, &headers, &bytes)?;
            drop(bytes);
            // Who applies must say its name.
            if request.options.patch_type != Some(PatchType::Apply) {
                request.options.field_manager = request.options.field_manager.or_else(|| agent_name(&headers));
            }
            // On the heap: of a request all that it waits for lies there, however deep.
            Ok(Box::pin(self.server.handle(request)).await)
        };
        let answer = held.within(self.server.large.run(&ask.user, size, work)).await;
        let (mut seat, mut place) = held.take();
        let answer = answer?;
        let cost = match &answer {
            Ok(response) => cost_of(response, &ask.wanted),
            Err(status) => cost_of_status(status, &ask.wanted),
        };
        let mut room = match self.server.answers.try_enter(&ask.user, cost.room) {
            Some(room) => room,
            None => {
                // Nor shall others wait for a place that is not worked in.
                place = None;
                self.room(&ask.user, &mut seat, cost.room).await?
            }
        };
        if place.is_none() {
            place = self.server.large.enter(&ask.user, cost.work).await?;
        }
        let written = async {
            match answer {
                Ok(response) => written(response, &ask.wanted, &tabulator).await,
                Err(status) => Ok(reply::status(&status, &ask.wanted)),
            }
        };
        let mut reply = self.server.large.run(&ask.user, cost.work, written).await?;
        drop(place);
        room.shrink(length_of(&reply));
        reply.extensions_mut().insert(Arc::new(room));
        Ok(reply)
    }
}

impl Server {
    /// What is served, as aggregated discovery tells it of `/apis`.
    pub(crate) fn discovery(&self) -> Value {
        discovered(&Served::now(self), &Place::Groups, Some("v2"))
    }
}

/// A document of discovery.
fn discovered(served: &Served, place: &Place, aggregated: Option<&'static str>) -> Value {
    let Served { kinds, groups, gathered, .. } = served;
    match (place, aggregated) {
        (place, Some(version)) => {
            discovery::aggregated(kinds, groups, gathered, version, matches!(place, Place::Versions))
        }
        (Place::Groups, None) => discovery::group_list(groups),
        (Place::Group(name), None) => served.group(name).map_or(Value::Null, discovery::group),
        (Place::GroupVersion(group, version), None) => discovery::resource_list(kinds, group, version),
        _ => json!({"paths": all_paths(groups)}),
    }
}

/// What a method means for a path.
fn verb(method: &Method, target: &Target, watches: bool) -> Option<Verb> {
    let (named, sub) = (target.name.is_some(), target.subresource.is_some());
    if let Some(connected @ ("log" | "exec" | "attach" | "portforward" | "proxy")) = target.subresource.as_deref() {
        let served = streams::is_method_of(connected, method);
        return (served && (connected != "proxy" || discovery::is_proxied(target.kind))).then_some(Verb::Connect);
    }
    match *method {
        // A HEAD is a GET whose body stays here.
        Method::GET | Method::HEAD if target.watch => Some(Verb::Watch),
        Method::GET | Method::HEAD if named => Some(Verb::Get),
        Method::GET | Method::HEAD if watches => Some(Verb::Watch),
        Method::GET | Method::HEAD => Some(Verb::List),
        Method::POST if named == sub && (!target.kind.namespaced || target.namespace.is_some()) => Some(Verb::Create),
        Method::PUT if named => Some(Verb::Update),
        Method::PATCH if named => Some(Verb::Patch),
        Method::DELETE if named && !sub => Some(Verb::Delete),
        Method::DELETE if !named => Some(Verb::DeleteCollection),
        _ => None,
    }
}

/// Whether what is answered can be printed as a table. Upstream's reviews, and what is ordered of an object, cannot.
fn has_table(target: &Target) -> bool {
    match target.subresource.as_deref() {
        Some(sub) => sub == "scale" || kinds::order::of(sub).is_none(),
        None => !matches!(target.kind.storage, Storage::Nowhere) || target.kind.verbs.contains(&Verb::Get),
    }
}

/// What a body becomes, by how it is written; what cannot be read is not.
fn body_size(bytes: &[u8], verb: Verb, headers: &hyper::HeaderMap) -> BodySize {
    let form = match verb {
        Verb::Patch => negotiate::patch_form(headers).map(|(_, form)| form),
        _ => negotiate::body_form(headers),
    };
    match form {
        Ok(body::Written::Yaml) => BodySize::of_yaml(bytes),
        Ok(body::Written::Protobuf) => BodySize::of_protobuf(bytes),
        Ok(body::Written::Json) | Err(_) => BodySize::of_json(bytes),
    }
}

/// The body as the verb wants it.
fn take_body(request: &mut Request, kind: &Kind, headers: &hyper::HeaderMap, bytes: &[u8]) -> Result<(), Status> {
    let order = request.subresource.as_deref().and_then(kinds::order::of);
    let meant_kind = order.unwrap_or(kind).kind;
    match request.verb {
        Verb::Create | Verb::Update => {
            let form = negotiate::body_form(headers)?;
            request.body = Some(body::parse(bytes, form, Meant::Object(meant_kind))?);
            request.duplicates = body::duplicates(bytes, form);
        }
        Verb::Patch => {
            let (of_type, form) = negotiate::patch_form(headers)?;
            request.options.patch_type = Some(of_type);
            request.body = Some(body::parse(bytes, form, Meant::Patch)?);
            request.duplicates = body::duplicates(bytes, form);
        }
        Verb::Delete | Verb::DeleteCollection if !bytes.trim_ascii().is_empty() => {
            let value = body::parse(bytes, negotiate::body_form(headers)?, Meant::Object("DeleteOptions"))?;
            query::delete_options(&mut request.options, &value)?;
        }
        _ => {}
    }
    Ok(())
}

/// How many bytes an answer has, more or less.
pub(super) fn size_of(response: &Response) -> usize {
    match &response.body {
        Body::Object { bytes, .. } => bytes.len(),
        Body::List(list) => list.items.iter().map(|item| item.len()).sum(),
        Body::Status(_) | Body::Stream { .. } => 0,
    }
}

/// How many times its bytes a tree of values has, more or less.
const TREE: usize = 8;

/// What it takes to write an answer: room in memory, in bytes, and work, in bytes of a request.
struct Cost {
    room: usize,
    work: usize,
}

fn cost_of(response: &Response, wanted: &Wanted) -> Cost {
    match &response.body {
        Body::Object { .. } | Body::List(_) => cost(size_of(response), matches!(response.body, Body::List(_)), wanted),
        Body::Status(status) => cost_of_status(status, wanted),
        Body::Stream { .. } => Cost { room: 0, work: 0 },
    }
}

fn cost_of_status(status: &Status, wanted: &Wanted) -> Cost {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let of_causes: usize = causes.map(|cause| cause.message.len() + cause.field.len()).sum();
    cost(status.message.len() + of_causes, false, &Wanted { gzip: false, shape: Shape::Whole, ..*wanted })
}

/// What an answer of so many bytes of JSON takes: one that goes out as it is is copied at most.
fn cost(bytes: usize, is_list: bool, wanted: &Wanted) -> Cost {
    let as_tree = wanted.form == Form::Yaml || wanted.pretty || wanted.shape == Shape::Table;
    let rendered = as_tree || wanted.shape != Shape::Whole || reply::is_compressed(bytes, wanted);
    let work = match rendered {
        true => bytes,
        false if is_list => of_copies(bytes),
        false => 0,
    };
    Cost { room: if as_tree { bytes + TREE * bytes } else { bytes }, work }
}

/// How many bytes a reply has that is all there.
fn length_of(reply: &Reply) -> usize {
    let length = hyper::body::Body::size_hint(reply.body()).lower();
    usize::try_from(length).unwrap_or(usize::MAX)
}

/// A response in the form and shape that are wanted.
async fn written(response: Response, wanted: &Wanted, tabulator: &Tabulator) -> Result<Reply, Status> {
    let mut reply = match response.body {
        Body::Object { bytes, created } => {
            let bytes = match wanted.shape {
                Shape::Whole => bytes,
                Shape::Table => tabulator.one(&bytes, true)?,
                Shape::Metadata => table::metadata_of(&bytes)?,
            };
            reply::json(if created { 201 } else { 200 }, bytes, wanted)
        }
        Body::List(mut list) => {
            let listed = match wanted.shape {
                Shape::Whole => {
                    let items = std::mem::take(&mut list.items);
                    reply::listed(&list, items)
                }
                Shape::Table => tabulator.list(&list).await?,
                Shape::Metadata => table::metadata_of_list(&list).await?,
            };
            drop(list);
            listed.reply(wanted).await?
        }
        Body::Status(status) => reply::status(&status, wanted),
        Body::Stream { .. } => return Err(Status::internal("a stream was opened where none is served")),
    };
    reply::warn(&mut reply, &response.warnings);
    Ok(reply)
}

/// Who changes a field, where the client does not say: its name, as its User-Agent begins.
fn agent_name(headers: &hyper::HeaderMap) -> Option<String> {
    let agent = headers.get(hyper::header::USER_AGENT)?.to_str().ok()?;
    let name: String = agent.split('/').next()?.chars().take(128).collect();
    (!name.is_empty()).then_some(name)
}

fn accept(headers: &hyper::HeaderMap) -> Option<&str> {
    headers.get(hyper::header::ACCEPT)?.to_str().ok()
}

fn not_allowed() -> Status {
    Status::failure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
}

/// The paths that `/` tells of.
fn all_paths(groups: &[Group]) -> Vec<Value> {
    let fixed = [
        "/api",
        "/api/v1",
        "/apis",
        "/flagz",
        "/healthz",
        "/livez",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/statusz",
    ];
    let mut all: Vec<String> = fixed.iter().map(|path| (*path).to_owned()).collect();
    for Group { name, versions } in groups.iter().filter(|group| !group.name.is_empty()) {
        all.push(format!("/apis/{name}"));
        all.extend(versions.iter().map(|listed| format!("/apis/{name}/{}", listed.version)));
    }
    all.push("/version".into());
    all.sort();
    all.into_iter().map(Value::from).collect()
}

/// A request's body as every face hands it on.
pub fn boxed<B>(request: HttpRequest<B>) -> HttpRequest<HttpBody>
where
    B: hyper::body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let is_h2 = request.version() == Version::HTTP_2;
    let boxed = request.map(|body| body.map_err(reply::BodyError::other).boxed_unsync());
    if is_h2 { boxed.map(|body| ReadToEnd::new(body).boxed_unsync()) } else { boxed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_of_an_answer_counts_by_its_bytes() {
        let object = |bytes: usize| Response {
            body: Body::Object { bytes: vec![b' '; bytes].into(), created: false },
            warnings: Vec::new(),
        };
        let plain = Wanted::PLAIN;
        for (wanted, counts) in [
            (plain, false),
            (Wanted { gzip: true, ..plain }, true),
            (Wanted { pretty: true, ..plain }, true),
            (Wanted { form: Form::Yaml, ..plain }, true),
            (Wanted { shape: Shape::Table, ..plain }, true),
            (Wanted { shape: Shape::Metadata, ..plain }, true),
        ] {
            let cost = cost_of(&object(200 << 10), &wanted).work;
            assert_eq!(cost, if counts { 200 << 10 } else { 0 });
        }
        let small = cost_of(&object(1 << 10), &Wanted { gzip: true, ..plain });
        assert_eq!(small.work, 0, "small ones go out as they are");
    }
}

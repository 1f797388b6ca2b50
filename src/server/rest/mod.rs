//! The REST face: the Kubernetes API as kubectl and the client libraries speak it, a codec onto the pipeline.
//!
//! A request is recognized ([`authenticate`]), its path and query become a `Request` ([`paths`], [`query`]), its body a value
//! ([`body`]); the answer is written as the client wants it ([`negotiate`], [`table`], [`reply`], [`watch`]). What names no
//! object is answered here: [`discovery`], [`openapi`], [`health`], [`metrics`]. Sessions with a node are in [`streams`].

use std::sync::Arc;
use std::time::Instant;

use futures::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use hyper::{Method, Request as HttpRequest};
use serde_json::{Value, json};

use crate::api::kinds::registry::Kinds;
use crate::api::request::{Body, Origin, PatchType};
use crate::api::{Options, Request, Response, Status, User, Verb};

use super::audit::Facts;
use super::authorize::Attributes;
use super::{Server, large};

pub mod authenticate;
pub mod body;
pub(super) mod cross_site;
mod custom;
mod discovery;
mod gnostic;
mod health;
mod metrics;
pub mod negotiate;
mod openapi;
pub mod origin;
pub mod paths;
pub mod query;
pub mod reply;
pub(in crate::server) mod streams;
mod table;
mod watch;

use authenticate::{Authenticator, Credentials, Peer};
use metrics::{Asked, Metrics};
use negotiate::{Form, Shape, Wanted};
use paths::{Place, Target};
use query::Query;
use reply::{HttpBody, Reply};
use table::{Include, Tabulator};

/// A watch that names no end ends after half an hour, up to twice that: clients then come back, spread over time.
const SHORTEST_WATCH: u64 = 1800;

/// The REST face of a server.
pub struct Face {
    server: Arc<Server>,
    authenticators: Vec<Box<dyn Authenticator>>,
    metrics: Metrics,
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
        Arc::new(Face { server, authenticators: authenticate::all(), metrics: Metrics::new() })
    }

    /// Who asks, or who he asks to be; who he is himself is noted in `origin`.
    pub async fn user(&self, peer: &Peer, headers: &hyper::HeaderMap, origin: &Origin) -> Result<User, Status> {
        let user =
            authenticate::authenticate(&self.authenticators, &self.server, &Credentials::of(peer, headers)).await?;
        let user = origin.caller.get_or_init(|| user).clone();
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
        let mut asked = Asked::default();
        let (mut reply, refused) = match self.route(peer, http, &mut asked, &origin).await {
            Ok(reply) => (reply, None),
            Err(status) => (reply::status(&status, &Wanted::PLAIN), Some(status)),
        };
        if head {
            *reply.body_mut() = reply::full("");
        }
        origin::name(&mut reply, &origin);
        reply::as_it_says(&mut reply);
        if let Some(audit) = self.server.config.audit.as_ref().filter(|_| !origin.is_told()) {
            let path = origin.uri.split('?').next().unwrap_or("");
            let facts = Facts {
                user: origin.caller.get(),
                verb: if asked.resource.is_empty() { &verb } else { &asked.verb },
                group: &asked.group,
                resource: &asked.resource,
                subresource: &asked.subresource,
                path,
                ..Facts::default()
            };
            audit.face(&origin, &facts, reply.status().as_u16(), refused.as_ref());
        }
        self.metrics.end(asked, reply.status().as_u16(), began.elapsed());
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
        let user = self.user(peer, http.headers(), origin).await?;
        cross_site::refuse(&http)?;
        let path = http.uri().path().to_owned();
        let query = Query::parse(http.uri().query().unwrap_or(""));
        // A HEAD is a GET whose body stays here.
        let method = if http.method() == Method::HEAD { Method::GET } else { http.method().clone() };
        match paths::parse(&self.server.kinds(), &path)? {
            Some(Place::Resource(target)) => {
                let wanted = Wanted::PLAIN;
                let origin = origin.clone();
                let ask = Ask { method, path, query, user, origin, wanted, http };
                self.resource(target, ask, asked).await
            }
            place => {
                let verb = method.as_str().to_ascii_lowercase();
                self.server.authorize(&Attributes::of_path(&user, &verb, &path)).await?;
                asked.verb.clone_from(&verb);
                if method != Method::GET && place.is_some() {
                    return Err(not_allowed());
                }
                let pretty = query.first("pretty").map(|_| query.flag("pretty"));
                let work = self.other(&place, &path, &query, pretty, http.headers());
                match &place {
                    // Who asks whether the server lives is answered however busy it is.
                    None | Some(Place::Health(_) | Place::Version) => work.await,
                    Some(place) => self.document(&user, place, work).await,
                }
            }
        }
    }

    /// A document of the server's own, in its turn like an object: it is as large, and made as slowly.
    async fn document(
        &self,
        user: &User,
        place: &Place,
        work: impl Future<Output = Result<Reply, Status>>,
    ) -> Result<Reply, Status> {
        let size = if matches!(place, Place::OpenApiV2 | Place::OpenApiV3(_)) { large::LARGE } else { 0 };
        let _place = self.server.large.enter(user, size).await?;
        let request = Request { verb: Verb::Get, user: user.clone(), ..Request::default() };
        let seat = self.server.gates.enter(&request).await?;
        let mut reply = self.server.large.run(size, work).await?;
        drop(seat);
        let bytes = usize::try_from(reply.body().size_hint().lower()).unwrap_or(usize::MAX);
        let room = self.server.answers.enter(user, bytes).await?;
        reply.extensions_mut().insert(Arc::new(room));
        Ok(reply)
    }

    /// What is no resource.
    async fn other(
        &self,
        place: &Option<Place>,
        path: &str,
        query: &Query,
        pretty: Option<bool>,
        headers: &hyper::HeaderMap,
    ) -> Result<Reply, Status> {
        let clauses = negotiate::clauses(headers);
        // Discovery and version are JSON, whatever representation of objects is wished.
        let wanted = negotiate::wanted(headers, pretty).unwrap_or(Wanted::PLAIN);
        let host = headers.get(hyper::header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
        let kinds = &*self.server.kinds();
        Ok(match place {
            None | Some(Place::Resource(_)) => reply::not_found(),
            Some(Place::Root) => reply::value(200, &json!({"paths": all_paths(kinds)}), &wanted),
            Some(Place::Versions) => discovery::versions(kinds, &clauses, host, &wanted),
            Some(Place::Groups) => discovery::group_list(kinds, &clauses, &wanted),
            Some(Place::Group(name)) => discovery::group(kinds, name, &wanted),
            Some(Place::GroupVersion(group, version)) => discovery::resource_list(kinds, group, version, &wanted),
            Some(Place::Version) => reply::value(200, &health::version(), &Wanted { form: Form::Json, ..wanted }),
            Some(Place::Health(only)) => health::answer(&self.server, path, only.as_deref(), query).await,
            Some(Place::Metrics) => reply::typed(
                reply::full(self.metrics.expose()),
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            ),
            Some(Place::OpenIdConfiguration) => reply::value(200, &self.server.openid_configuration(), &wanted),
            Some(Place::OpenIdKeys) => {
                let keys = self.server.openid_keys().to_string();
                reply::typed(reply::full(keys), "application/jwk-set+json")
            }
            Some(Place::OpenApiV2) => openapi::v2(kinds, &clauses, &wanted)?,
            Some(Place::OpenApiV3(None)) => openapi::v3_index(kinds, &wanted),
            Some(Place::OpenApiV3(Some(of))) => openapi::v3(kinds, of, query.first("hash"), &wanted),
        })
    }

    /// Objects: the method, the path and the query make the request of the pipeline.
    async fn resource(&self, target: Target, mut ask: Ask, asked: &mut Asked) -> Result<Reply, Status> {
        let watches = target.watch || ask.query.flag("watch");
        let verb = verb(ask.http.method(), &target, watches).ok_or_else(not_allowed)?;
        *asked = Asked {
            verb: format!("{verb:?}").to_lowercase(),
            group: target.kind.group.to_owned(),
            version: target.kind.version.to_owned(),
            resource: target.kind.plural.to_owned(),
            subresource: target.subresource.clone().unwrap_or_default(),
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
            origin: Some(ask.origin.clone()),
        };
        if verb == Verb::Connect {
            drop(running);
            return streams::connect(self, target, request, ask).await;
        }
        let pretty = ask.query.first("pretty").map(|_| ask.query.flag("pretty"));
        ask.wanted = negotiate::wanted(ask.http.headers(), pretty)?;
        request.options = query::options(&ask.query)?;
        let include = Include::parse(ask.query.first("includeObject"))?;
        let tabulator = Tabulator { kind: target.kind, include, now: self.server.env.now() };
        if verb == Verb::Watch {
            drop(running);
            let spread = SHORTEST_WATCH + self.server.env.below(SHORTEST_WATCH);
            request.options.timeout_seconds.get_or_insert(spread);
            let events = self.server.watch(request).await?;
            return Ok(watch::reply(events, ask.wanted.shape, tabulator, ask.origin));
        }
        let headers = ask.http.headers().clone();
        if verb.writes() && !request.user.is_in("system:masters") {
            self.server.may_send(&request).await?;
        }
        let mut room = self.server.gates.bodies.none();
        let bytes = body::read(ask.http.into_body(), body::LIMIT, self.server.config.limits.body, &mut room).await?;
        let size = bytes.len() + self.server.size_of(&request);
        let mut place = self.server.large.enter(&request.user, size).await?;
        let mut seat = self.server.gates.enter(&request).await?;
        let work = async {
            take_body(&mut request, &headers, &bytes)?;
            drop(bytes);
            // Who applies must say its name.
            if request.options.patch_type != Some(PatchType::Apply) {
                request.options.field_manager = request.options.field_manager.or_else(|| agent_name(&headers));
            }
            Ok(self.server.handle(request).await)
        };
        match self.server.large.run(size, work).await? {
            Ok(response) => {
                let bytes = size_of(&response);
                let room = match self.server.answers.try_enter(&ask.user, bytes) {
                    Some(room) => room,
                    // Nobody else shall wait behind who does not read what he asked for.
                    None => {
                        drop((seat.take(), place.take()));
                        self.server.answers.enter(&ask.user, bytes).await?
                    }
                };
                let size = size_to_render(&response, &ask.wanted);
                if place.is_none() && size >= large::LARGE {
                    // Who has a place may be waiting for a seat.
                    drop(seat.take());
                    place = self.server.large.enter(&ask.user, size).await?;
                }
                let written = async { written(response, &ask.wanted, &tabulator) };
                let mut reply = self.server.large.run(size, written).await?;
                drop((seat, place));
                reply.extensions_mut().insert(Arc::new(room));
                Ok(reply)
            }
            Err(status) => Ok(reply::status(&status, &ask.wanted)),
        }
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

/// The body as the verb wants it.
fn take_body(request: &mut Request, headers: &hyper::HeaderMap, bytes: &[u8]) -> Result<(), Status> {
    match request.verb {
        Verb::Create | Verb::Update => {
            let form = negotiate::body_form(headers)?;
            request.body = Some(body::parse(bytes, form)?);
            request.duplicates = body::duplicates(bytes, form);
        }
        Verb::Patch => {
            let (of_type, form) = negotiate::patch_form(headers)?;
            request.options.patch_type = Some(of_type);
            request.body = Some(body::parse(bytes, form)?);
            request.duplicates = body::duplicates(bytes, form);
        }
        Verb::Delete | Verb::DeleteCollection if !bytes.trim_ascii().is_empty() => {
            let value = body::parse(bytes, negotiate::body_form(headers)?)?;
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

/// The bytes of which something else is to be made: an answer may be large, whatever was asked. What goes out as it is stored
/// is not looked at.
fn size_to_render(response: &Response, wanted: &Wanted) -> usize {
    let size = size_of(response);
    let is_as_stored = matches!((wanted.shape, wanted.form), (Shape::Whole, Form::Json)) && !wanted.pretty;
    match is_as_stored && !reply::compresses(wanted, size) {
        true => 0,
        false => size,
    }
}

/// A response in the form and shape that are wanted.
fn written(response: Response, wanted: &Wanted, tabulator: &Tabulator) -> Result<Reply, Status> {
    let mut reply = match response.body {
        Body::Object { bytes, created } => {
            let bytes = match wanted.shape {
                Shape::Whole => bytes,
                Shape::Table => tabulator.one(&bytes, true)?,
                Shape::Metadata => table::metadata_of(&bytes)?,
            };
            reply::json(if created { 201 } else { 200 }, bytes, wanted)
        }
        Body::List(list) => {
            let bytes = match wanted.shape {
                Shape::Whole => reply::list(&list),
                Shape::Table => tabulator.list(&list)?,
                Shape::Metadata => reply::list(&table::metadata_of_list(list)?),
            };
            reply::json(200, bytes, wanted)
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

fn not_allowed() -> Status {
    Status::failure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
}

/// The paths that `/` tells of.
fn all_paths(kinds: &Kinds) -> Vec<Value> {
    let fixed = ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz"];
    let mut all: Vec<String> = fixed.iter().map(|path| (*path).to_owned()).collect();
    for (group, versions) in discovery::groups(kinds).into_iter().filter(|(group, _)| !group.is_empty()) {
        all.push(format!("/apis/{group}"));
        all.extend(versions.iter().map(|version| format!("/apis/{group}/{version}")));
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
    request.map(|body| body.map_err(reply::BodyError::other).boxed_unsync())
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
            assert_eq!(size_to_render(&object(200 << 10), &wanted), if counts { 200 << 10 } else { 0 });
        }
        assert_eq!(
            size_to_render(&object(1 << 10), &Wanted { gzip: true, ..plain }),
            0,
            "small ones go out as they are"
        );
    }
}

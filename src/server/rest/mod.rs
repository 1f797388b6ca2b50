//! The REST face: the Kubernetes API as kubectl and the client libraries use it, a codec onto the pipeline.
//!
//! A request is authenticated ([`authenticate`]), its path and query become a `Request` ([`resource`], [`paths`], [`query`]), its
//! body a value ([`body`]); the response is encoded as the client requests ([`written`], [`negotiate`], [`table`], [`reply`],
//! [`watch`]). [`nonresource`] handles other paths: [`discovery`], [`openapi`], [`health`], [`metrics`], [`zpages`], [`profiles`].
//! Sessions with a node are in [`streams`].

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use futures::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::http::Extensions;
use hyper::{Method, Request as HttpRequest, Version};

use podwright_api::request::Origin;
use podwright_api::{Status, User};

use super::Server;
use super::answers::Room;
use super::audit::{Audit, Facts};
use super::authorize::attributes::Attributes;
use super::limits::{Guest, Seat};

pub mod authenticate;
pub mod body;
pub(super) mod cross_site;
mod discovery;
mod gnostic;
mod health;
pub mod lists;
mod metrics;
pub mod negotiate;
mod nonresource;
mod openapi;
pub mod origin;
pub mod paths;
mod profiles;
pub mod query;
pub mod reply;
mod resource;
mod rest_of_body;
mod served;
pub(super) mod strangers;
pub(crate) mod streams;
mod table;
pub(super) mod traced;
mod watch;
mod written;
mod zpages;

pub(super) use resource::end_at_last;
pub(super) use written::size_of;

use authenticate::{Authenticator, Credentials, Peer};
use metrics::{Metrics, Series};
use negotiate::Wanted;
use paths::Route;
use query::Query;
use reply::{HttpBody, Reply};
use rest_of_body::ReadToEnd;
use strangers::Read;
use written::length_of;

/// The REST face of a server.
pub struct Face {
    server: Arc<Server>,
    authenticators: Vec<Box<dyn Authenticator>>,
    metrics: Metrics,
    /// Held by each watch.
    watches: Arc<()>,
}

/// What is reported about a request afterwards: to the metrics, and to the audit log.
#[derive(Default)]
struct Asked {
    series: Series,
    verb: String,
    /// If another server serves it: the request, and for whom.
    remote: Option<(Read, User)>,
}

/// A request with a known path and caller.
struct Ask {
    method: Method,
    /// The path as received.
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

    /// The effective user, after impersonation; the authenticated one is recorded in `origin`, and its connection counts for it.
    pub async fn user(
        &self,
        peer: &Peer,
        headers: &hyper::HeaderMap,
        extensions: &Extensions,
        origin: &Origin,
    ) -> Result<User, Status> {
        let (credentials, guest) = (Credentials::of(peer, headers), extensions.get::<Guest>());
        let (recognizing, cpu) =
            (authenticate::authenticate(&self.authenticators, &self.server, &credentials), &self.server.limiters.cpu);
        let mut user = match guest {
            None => recognizing.await?,
            Some(guest) => cpu.measured_of(guest, peer.certificate.as_ref(), recognizing).await?,
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

    /// Answers one request of a connection. Never fails: errors become responses.
    pub fn answer<'a>(&'a self, peer: &'a Peer, http: HttpRequest<HttpBody>) -> BoxFuture<'a, Reply> {
        Box::pin(self.answered(peer, http))
    }

    async fn answered(&self, peer: &Peer, http: HttpRequest<HttpBody>) -> Reply {
        let began = Instant::now();
        let head = http.method() == Method::HEAD;
        let origin = Arc::new(origin::of(&self.server.env, &http));
        let method = http.method().clone();
        let mut asked = Asked { series: Series::path(http.method(), http.uri().path()), ..Asked::default() };
        let (mut reply, refused) = match self.route(peer, http, &mut asked, &origin).await {
            Ok(reply) => (reply, None),
            Err(status) => (reply::status(&status, &Wanted::PLAIN), Some(status)),
        };
        if let (Some(caller), None) = (origin.caller.get(), reply.extensions().get::<Arc<Room>>()) {
            // An unread refusal counts for its caller, too.
            reply.extensions_mut().insert(Arc::new(self.server.answers.none_yet(caller)));
        }
        if head {
            reply::without_body(&mut reply);
        }
        origin::name(&mut reply, &origin);
        traced::end(&origin, reply.status().as_u16());
        reply::as_it_says(&mut reply);
        if let Some(audit) = self.server.config.audit.as_ref().filter(|_| !origin.is_told()) {
            tell(audit, &origin, &method, &asked, reply.status().as_u16(), refused.as_ref());
        }
        self.metrics.end(&asked.series, reply.status().as_u16(), began.elapsed(), length_of(&reply));
        reply
    }

    /// Dispatches by path.
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
        let mut reply = self.server.limiters.cpu.measured(&of, work).await?;
        if reply.extensions().get::<Arc<Room>>().is_none() {
            // An unread streamed response counts for its user, too.
            reply.extensions_mut().insert(Arc::new(self.server.answers.none_yet(&of)));
        }
        Ok(reply)
    }

    /// Handles an authenticated request.
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
        // A HEAD is a GET without the response body.
        let method = if http.method() == Method::HEAD { Method::GET } else { http.method().clone() };
        if let Some(read) = Read::of_stranger(&user, &method, &path, &query)? {
            self.server.authorize(&read.attributes(&user)).await?;
        }
        let ask = Ask { method, path, query, user, origin: origin.clone(), wanted: Wanted::PLAIN, http };
        if let Some(registration) = streams::aggregated::registration_of(&self.server, &ask.path)? {
            return Box::pin(self.aggregated(peer, &registration, ask, asked)).await;
        }
        match paths::parse(&self.server.kinds(), &ask.path)? {
            Some(Route::Resource(target)) => self.resource(peer, target, ask, asked).await,
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

    /// Room for a response. Releases the seat while waiting, so that clients that do not read hold up nobody else.
    async fn room(&self, user: &User, seat: &mut Option<Seat>, bytes: usize) -> Result<Room, Status> {
        if let Some(room) = self.server.answers.try_enter(user, bytes) {
            return Ok(room);
        }
        drop(seat.take());
        self.server.answers.enter(user, bytes).await
    }
}

/// Reports to the audit log what the face answered itself: the attributes are derived from the path, whatever the reason for
/// refusal.
fn tell(audit: &Arc<Audit>, origin: &Origin, method: &Method, asked: &Asked, code: u16, failure: Option<&Status>) {
    let (path, query) = origin.uri.split_once('?').unwrap_or((&origin.uri, ""));
    let of = if *method == Method::HEAD { Method::GET } else { method.clone() };
    let (read, acting) = match &asked.remote {
        Some((read, user)) => (Some(read.clone()), Some(user)),
        None => (Read::of(&of, path, &Query::parse(query)).ok().flatten(), None),
    };
    let (user, verb) = (origin.caller.get(), method.as_str().to_ascii_lowercase());
    let facts = Facts { user, verb: &verb, path, ..Facts::default() };
    let facts = match &read {
        Some(read) => Facts {
            acting: acting.filter(|acting| user != Some(*acting)),
            verb: if asked.verb.is_empty() { read.verb } else { &asked.verb },
            group: &read.group,
            version: &read.version,
            resource: &read.resource,
            subresource: &read.subresource,
            namespace: &read.namespace,
            name: &read.name,
            ..facts
        },
        None => facts,
    };
    audit.face(origin, &facts, code, failure);
}

fn not_allowed() -> Status {
    Status::failure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
}

/// A request's body in the type that all faces use.
pub fn boxed<B>(request: HttpRequest<B>) -> HttpRequest<HttpBody>
where
    B: hyper::body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let is_h2 = request.version() == Version::HTTP_2;
    let boxed = request.map(|body| body.map_err(reply::BodyError::other).boxed_unsync());
    if is_h2 { boxed.map(|body| ReadToEnd::new(body).boxed_unsync()) } else { boxed }
}

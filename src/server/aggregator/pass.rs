//! Forwards requests of the pipeline to extension API servers: JSON-RPC clients and this process' own components reach what they
//! serve like REST clients (`rest::aggregated`), with the same authorization.
//!
//! Responses are not trusted to be small or prompt: their bytes and list items are bounded, they have deadlines, and watch events
//! are read one by one, as the client takes them.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures::future::{BoxFuture, FutureExt};
use hyper::{StatusCode, header};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::ask::{Wanted, wanted};
use super::connect::{Answer, Fetch};
use super::table::{Registration, Remote};
use super::wire::{self, Event};
use crate::audit::Entry;
use crate::rest::query::Query;
use crate::rest::strangers::Read;
use crate::sessions::{OpenSession, With};
use crate::{Server, Watch};
use podwright_api::kinds::Storage;
use podwright_api::request::{Body, PatchType};
use podwright_api::spans::Span;
use podwright_api::{Kind, Object, Options, Request, Response, Status, User, Verb, WatchEvent, patch};

/// How long a response may take; upstream's `--request-timeout`. (For a watch, its head.)
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest response, and the longest watch event.
const LONGEST: usize = 32 << 20;
pub(super) const LONGEST_EVENT: usize = 4 << 20;
/// How many values an object has at most, an object within it counting for two: of those that our own components read, which count on
/// nobody's account, and of those that are passed on to users.
const OF_OURS: usize = 100_000;
const OF_USERS: usize = 300_000;
/// How many events wait to be taken.
const EVENTS: usize = 16;
/// How often apply switches between creating and patching.
const MAX_RETRIES: usize = 8;

/// A resource that is served elsewhere.
pub(crate) struct Elsewhere {
    pub(super) registration: Arc<Registration>,
    pub(super) plural: String,
}

impl Elsewhere {
    fn group(&self) -> &str {
        &self.registration.group
    }
}

impl Server {
    /// The other server of a resource, if any; `kind` is the local kind. What is in this server's store is served here, whatever an
    /// APIService says of its group; for metrics of nodes the APIService decides.
    pub(crate) fn elsewhere(&self, resource: &str, kind: Option<&Kind>) -> Option<Elsewhere> {
        match kind {
            Some(kind) if matches!(kind.storage, Storage::Nowhere) && kind.verbs.contains(&Verb::List) => {
                let registration = self.registrations().remote(kind.group, kind.version)?.clone();
                Some(Elsewhere { registration, plural: kind.plural.to_owned() })
            }
            Some(_) => None,
            None => {
                let (registration, plural) = self.registrations().named(resource)?;
                Some(Elsewhere { registration, plural })
            }
        }
    }

    /// Forwards a request other than a watch.
    pub(crate) async fn pass_on(
        &self,
        to: Elsewhere,
        request: Request,
        entry: Option<&Entry>,
    ) -> Result<Response, Status> {
        match request.verb {
            Verb::Patch if request.options.patch_type == Some(PatchType::ThreeWay) => {
                Box::pin(self.apply_elsewhere(&to, request, entry)).await
            }
            Verb::DeleteCollection if !self.deletes_collections(&to) => {
                let one_by_one = Box::pin(self.delete_each_elsewhere(&to, request, entry));
                tokio::time::timeout(TIMEOUT, one_by_one).await.unwrap_or_else(|_| Err(late()))
            }
            Verb::Connect => Box::pin(self.connect_elsewhere(to, request, entry)).await,
            _ => self.passed_on(&to, request, entry).await,
        }
    }

    /// Whether it supports deletecollection; assumed until discovery answered.
    fn deletes_collections(&self, to: &Elsewhere) -> bool {
        let gathered = self.aggregator.gathered();
        let resources = gathered.get(&to.registration.name).map(|gathered| gathered.resources.clone());
        let resources = resources.unwrap_or_default();
        let verbs = resources.iter().find(|it| it["resource"] == to.plural.as_str()).map(|it| &it["verbs"]);
        verbs.and_then(|verbs| verbs.as_array()).is_none_or(|verbs| verbs.iter().any(|verb| verb == "deletecollection"))
    }

    /// Deletes each object of a collection by name; upstream's namespace controller does the same where it must.
    async fn delete_each_elsewhere(
        &self,
        to: &Elsewhere,
        request: Request,
        entry: Option<&Entry>,
    ) -> Result<Response, Status> {
        let Options { label_selector, field_selector, .. } = request.options.clone();
        let options = Options { label_selector, field_selector, ..Options::default() };
        let list = Request { verb: Verb::List, options, body: None, ..request.clone() };
        let listed = self.passed_on(to, list, entry).await?;
        let Body::List(list) = listed.body else { return Err(Status::internal("a list was answered with no list")) };
        for item in list.items {
            let object = Object::from_slice(&item)?;
            let (namespace, name) = (object.namespace().map(str::to_owned), Some(object.name().to_owned()));
            let namespace = request.namespace.clone().or(namespace);
            match self.passed_on(to, Request { verb: Verb::Delete, namespace, name, ..request.clone() }, entry).await {
                Err(why) if !why.is_not_found() => return Err(why),
                _ => {}
            }
        }
        Ok(Body::Status(Box::new(Status::success())).into())
    }

    async fn passed_on(&self, to: &Elsewhere, request: Request, entry: Option<&Entry>) -> Result<Response, Status> {
        let wanted = wanted(&to.registration, &to.plural, &request)?;
        let remote = self.may_ask(to, &wanted, &request.user, entry).await?;
        let _open = self.open_with(to, &request.user)?;
        let (verb, user) = (request.verb, request.user);
        // What controllers ask for counts on nobody's account.
        let turns = user.is_in("system:masters").then_some(&remote.turns);
        let asking = async {
            let answer = self.ask_for(&remote, &wanted, &user).await?;
            let code = answer.status();
            let warnings = wire::warnings(answer.headers(header::WARNING));
            let (body, turn) = answer.body_in_turn(LONGEST, turns).await.map_err(unreached)?;
            Ok((code, warnings, body, turn))
        };
        // He may take a minute: that is nobody else's, and least of all the few places of our own components.
        let asking = self.away.wait(tokio::time::timeout(TIMEOUT, asking)).await?;
        let (code, warnings, body, _turn) = asking.unwrap_or_else(|_| Err(late()))?;
        // Reading many megabytes takes its time.
        let size = body.len();
        let body = self.large.run(&user, size, async { wire::response(verb, code, body, most_values(&user)) }).await?;
        Ok(Response { warnings, ..body.into() })
    }

    /// Authorizes, and returns where the resource is served, if that is available.
    pub(super) async fn may_ask(
        &self,
        to: &Elsewhere,
        wanted: &Wanted,
        user: &User,
        entry: Option<&Entry>,
    ) -> Result<Arc<Remote>, Status> {
        let read = Read::of(&wanted.method, &wanted.path, &Query::parse(&wanted.query))?.unwrap_or_default();
        self.allow(&read.attributes(user), entry).await?;
        match &to.registration.remote {
            Some(remote) if to.registration.available => Ok(remote.clone()),
            _ => Err(Status::unavailable("the server is currently unable to handle the request")),
        }
    }

    pub(super) fn open_with(&self, to: &Elsewhere, user: &User) -> Result<OpenSession, Status> {
        self.sessions
            .enter(user, With { namespace: "", object: &format!("apiservices/{}", to.registration.name), shared: true })
    }

    /// Sends the request on a task of its own: dialling reads Services and endpoints, and nested requests need too much stack.
    pub(super) fn ask_for<'a>(
        &'a self,
        remote: &Arc<Remote>,
        wanted: &Wanted,
        user: &User,
    ) -> BoxFuture<'a, Result<Answer, Status>> {
        let (remote, user, target) = (remote.clone(), user.clone(), wanted.target());
        let (method, body) = (wanted.method.clone(), wanted.body.clone());
        let server = self.me.upgrade();
        let asking = async move {
            let server = server.ok_or_else(|| Status::internal("the server ends"))?;
            let asked = Fetch { method, body, ..Fetch::get(&target, &user) };
            server.ask_extension(&remote, &asked).await.map_err(unreached)
        };
        let asking = Span::current().around(asking).boxed();
        Box::pin(async move {
            let answer = AbortOnDropHandle::new(tokio::spawn(asking)).await.map_err(Status::internal)??;
            match answer.status() {
                code if code.is_redirection() && answer.headers(header::LOCATION).next().is_some() => {
                    let why = "the backend attempted to redirect this request, which is not permitted";
                    Err(Status::failure(StatusCode::BAD_GATEWAY.as_u16(), "InternalError", why))
                }
                _ => Ok(answer),
            }
        })
    }

    /// Creates the object, or merges into the existing one, as `kubectl apply` does without a schema: the other server does not
    /// support apply.
    async fn apply_elsewhere(
        &self,
        to: &Elsewhere,
        request: Request,
        entry: Option<&Entry>,
    ) -> Result<Response, Status> {
        let manifest = request.body.clone().ok_or_else(|| Status::bad_request("the request has no body"))?;
        let part = |verb: Verb, body: Option<serde_json::Value>, of_type: Option<PatchType>| {
            let mut part = Request { verb, body, ..request.clone() };
            part.options.patch_type = of_type;
            part
        };
        for _ in 0..MAX_RETRIES {
            let live = match self.passed_on(to, part(Verb::Get, None, None), entry).await {
                Ok(live) => live,
                Err(why) if why.is_not_found() => {
                    let made = part(Verb::Create, Some(patch::apply::annotated(&manifest)?), None);
                    match self.passed_on(to, made, entry).await {
                        Err(why) if why.is_already_exists() => continue,
                        done => return done,
                    }
                }
                Err(why) => return Err(why),
            };
            let object = wire::object(&live)?;
            let merged = patch::apply::merge_untyped(&manifest, &object)?;
            let Some(change) = patch::difference(&object.0, &merged.0) else {
                return Ok(Response { unchanged: true, ..live });
            };
            match self.passed_on(to, part(Verb::Patch, Some(change), Some(PatchType::Merge)), entry).await {
                // Create it again.
                Err(why) if why.is_not_found() => {}
                Err(why) => return Err(why),
                Ok(mut done) => {
                    done.warnings.extend(patch::apply::unapplied(&to.plural, &object));
                    return Ok(done);
                }
            }
        }
        let name = request.name.as_deref().unwrap_or("");
        let why = "the object is created and deleted by others meanwhile; please try again";
        Err(Status::conflict(&to.plural, to.group(), name, why))
    }

    /// Forwards the other server's watch for as long as it lasts and its user is authorized.
    pub(crate) async fn watch_elsewhere(
        &self,
        to: Elsewhere,
        request: Request,
        entry: Option<&Entry>,
    ) -> Result<Watch, Status> {
        let wanted = wanted(&to.registration, &to.plural, &request)?;
        let remote = self.may_ask(&to, &wanted, &request.user, entry).await?;
        let read = Read::of(&wanted.method, &wanted.path, &Query::parse(&wanted.query))?.unwrap_or_default();
        let open = self.open_with(&to, &request.user)?;
        let asking = async {
            let answer = self.ask_for(&remote, &wanted, &request.user).await?;
            match answer.status() {
                StatusCode::OK => Ok(answer),
                code => Err(wire::failure(code, &answer.body(LONGEST_EVENT).await.map_err(unreached)?)),
            }
        };
        let answer = tokio::time::timeout(TIMEOUT, asking).await.unwrap_or_else(|_| Err(late()))?;
        let (sender, receiver) = mpsc::channel(EVENTS);
        let withdrawn = self.withdrawn(vec![read.attributes(&request.user).keep()]);
        let lost = open.lasting();
        let most = most_values(&request.user);
        tokio::spawn(async move {
            let _open = open;
            tokio::select! {
                () = told(answer, &sender, most) => {}
                () = sender.closed() => {}
                () = withdrawn => {}
                () = lost.cancelled() => {}
            }
        });
        Ok(receiver)
    }
}

/// How many values an object has at most that is answered to a user.
fn most_values(user: &User) -> usize {
    if user.is_in("system:masters") { OF_OURS } else { OF_USERS }
}

pub(super) fn unreached(why: anyhow::Error) -> Status {
    Status::unavailable(format!("error trying to reach service: {why:#}"))
}

pub(super) fn late() -> Status {
    Status::timeout("request did not complete within the allotted timeout")
}

/// Sends on what comes, event by event, until it ends or makes no sense any more.
async fn told(mut answer: Answer, to: &mpsc::Sender<WatchEvent>, most: usize) {
    let mut waiting = BytesMut::new();
    // The length of the incomplete line so far.
    let mut seen = 0;
    loop {
        while let Some(end) = waiting[seen..].iter().position(|byte| *byte == b'\n') {
            let line = waiting.split_to(seen + end + 1).freeze();
            seen = 0;
            if line.trim_ascii().is_empty() {
                continue;
            }
            let Some(event) = event(&line, most) else {
                return tracing::warn!("ending a watch of an extension API server: failed to read an event");
            };
            if to.send(event).await.is_err() {
                return;
            }
        }
        seen = waiting.len();
        if seen > LONGEST_EVENT {
            return tracing::warn!(
                "ending a watch of an extension API server: an event has more than {LONGEST_EVENT} bytes"
            );
        }
        match answer.part().await {
            Some(Ok(part)) => waiting.extend_from_slice(&part),
            Some(Err(_)) | None => return,
        }
    }
}

fn event(line: &[u8], most: usize) -> Option<WatchEvent> {
    wire::bounded(line, most).ok()?;
    let Event { kind, object } = serde_json::from_slice(line).ok()?;
    Some(WatchEvent { kind, object: wire::bytes(object) })
}

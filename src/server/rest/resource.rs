//! Objects: turns a request's method, path, query and body into the pipeline's request.

use std::sync::Arc;

use hyper::Method;

use crate::Server;
use crate::ends::{apart, disowned};
use crate::large::BodySize;
use crate::limits::Held;
use podwright_api::kinds::{self, Storage};
use podwright_api::request::PatchType;
use podwright_api::{Kind, Options, Request, Status, Verb};

use super::authenticate::Peer;
use super::body::{self, Meant};
use super::metrics::Series;
use super::origin::Source;
use super::paths::Target;
use super::reply::{self, Reply};
use super::table::{Include, Tabulator};
use super::written::{cost_of, cost_of_status, length_of, written};
use super::{Ask, Asked, Face, discovery, negotiate, not_allowed, query, streams, traced, watch};

/// A watch without a timeout ends after half an hour, up to twice that: clients then reconnect spread over time.
const SHORTEST_WATCH: u64 = 1800;

/// Sets the timeout of a watch without one. The superuser's may last: the server's own, and those of the node beside it.
pub(crate) fn end_at_last(server: &Server, request: &mut Request) {
    if !request.user.is_in("system:masters") {
        request.options.timeout_seconds.get_or_insert_with(|| SHORTEST_WATCH + server.env.below(SHORTEST_WATCH));
    }
}

impl Face {
    /// Turns the method, path and query into the pipeline's request, and runs it.
    pub(super) async fn resource(
        &self,
        peer: &Peer,
        target: Target,
        mut ask: Ask,
        asked: &mut Asked,
    ) -> Result<Reply, Status> {
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
        let mut room = self.server.limiters.bodies.of(&ask.user);
        let bytes = body::read(ask.http.into_body(), body::LIMIT, self.server.config.limits.body, &mut room).await?;
        let size = body_size(&bytes, verb, &headers).and(self.server.size_of(&request)?);
        let place = self.server.large.enter_body(&request.user, size).await?;
        let size = size.bytes;
        let seat = self.server.limiters.enter(&request).await?;
        let held = Held::new(&ask.user, seat, place);
        let work = async {
            take_body(&mut request, target.kind, &headers, &bytes)?;
            drop(bytes);
            // Server-side apply requires an explicit field manager.
            if request.options.patch_type != Some(PatchType::Apply) {
                request.options.field_manager = request.options.field_manager.or_else(|| agent_name(&headers));
            }
            // On the heap: the request's nested futures would enlarge the stack.
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
                // Do not let others wait for an unused place.
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

/// The verb for a method and path.
fn verb(method: &Method, target: &Target, watches: bool) -> Option<Verb> {
    let (named, sub) = (target.name.is_some(), target.subresource.is_some());
    if let Some(connected @ ("log" | "exec" | "attach" | "portforward" | "proxy")) = target.subresource.as_deref() {
        let served = streams::is_method_of(connected, method);
        return (served && (connected != "proxy" || discovery::is_proxied(target.kind))).then_some(Verb::Connect);
    }
    match *method {
        // A HEAD is a GET without the response body.
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

/// Whether the response can be a table. Reviews and subresources with kinds of their own cannot, as upstream.
fn has_table(target: &Target) -> bool {
    match target.subresource.as_deref() {
        Some(sub) => sub == "scale" || kinds::order::of(sub).is_none(),
        None => !matches!(target.kind.storage, Storage::Nowhere) || target.kind.verbs.contains(&Verb::Get),
    }
}

/// The decoded size of a body by its encoding; unsupported encodings are not decoded.
fn body_size(bytes: &[u8], verb: Verb, headers: &hyper::HeaderMap) -> BodySize {
    let form = match verb {
        Verb::Patch => negotiate::patch_form(headers).map(|(_, form)| form),
        _ => negotiate::body_form(headers),
    };
    match form {
        Ok(negotiate::Written::Yaml) => BodySize::of_yaml(bytes),
        Ok(negotiate::Written::Protobuf) => BodySize::of_protobuf(bytes),
        Ok(negotiate::Written::Json) | Err(_) => BodySize::of_json(bytes),
    }
}

/// Parses the body as the verb requires.
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

/// The default field manager: the beginning of the User-Agent.
fn agent_name(headers: &hyper::HeaderMap) -> Option<String> {
    let agent = headers.get(hyper::header::USER_AGENT)?.to_str().ok()?;
    let name: String = agent.split('/').next()?.chars().take(128).collect();
    (!name.is_empty()).then_some(name)
}

//! Tracing in the pipeline: requests of this process' own components that belong to a trace, and the trace that each object came
//! from.

use std::time::SystemTime;

use podwright_api::request::Body;
use podwright_api::spans::{self, Origin, Span};
use podwright_api::{Object, Request, Response, Status, Verb};

use super::resolved_request::ResolvedRequest;

/// The span of a request by one of this process' own components; faces start those of others. What a controller creates belongs to
/// its owner's trace. (An owner named by a client does not count: requests through a face have an origin, and the face starts their
/// spans.)
pub(super) fn begin(request: &Request) -> Option<Span> {
    if !spans::are_made() || request.origin.is_some() || Span::current().is_recorded() {
        return None;
    }
    let link = request.part_of.clone().or_else(|| {
        let made = request.body.as_ref().filter(|_| request.verb == Verb::Create && request.subresource.is_none())?;
        let owners = made["metadata"]["ownerReferences"].as_array()?;
        let owner = owners.iter().find(|owner| owner["controller"] == true)?;
        spans::cause_of(owner["uid"].as_str()?)
    })?;
    let name = match &request.subresource {
        Some(subresource) => format!("{} {}/{subresource}", request.verb.as_str(), request.resource),
        None => format!("{} {}", request.verb.as_str(), request.resource),
    };
    let span = Span::begin(name, Origin::Parent(&link), SystemTime::now(), true);
    span.set("user_agent.original", request.options.field_manager.as_deref().unwrap_or(""));
    Some(span).filter(Span::is_recorded)
}

pub(super) fn end(span: &Span, outcome: &Result<Response, Status>) {
    let code = match outcome {
        Ok(Response { body: Body::Object { created: true, .. }, .. }) => 201,
        Ok(_) => 200,
        Err(why) => why.http_code(),
    };
    span.set_number("http.response.status_code", code.into());
    if let Err(why) = outcome {
        span.fail(&why.message);
    }
    span.end();
}

/// Upstream's name for the verb's part of a request.
pub(super) fn name(verb: Verb) -> &'static str {
    match verb {
        Verb::Get => "Get",
        Verb::List => "List",
        Verb::Watch => "Watch",
        Verb::Create => "Create",
        Verb::Update => "Update",
        Verb::Patch => "Patch",
        Verb::Delete => "Delete",
        Verb::DeleteCollection => "DeleteCollection",
        Verb::Connect => "Connect",
    }
}

/// Whether an object creates Pods.
pub(super) fn makes_pods(call: &ResolvedRequest, object: &Object) -> bool {
    call.kind.built_in() == "Pod" || object.0["spec"].get("template").is_some()
}

/// Records the trace of a Pod's creation. For objects that create Pods, that of the last request that changed their template.
pub(super) fn remember(call: &ResolvedRequest, object: &Object, is_new: bool) {
    let is_cause = is_new || call.kind.built_in() != "Pod" && call.subresource.is_none();
    if !is_cause || !makes_pods(call, object) {
        return;
    }
    if let Some(link) = Span::current().link() {
        spans::remember(object.uid(), link);
    }
}

//! The span of a request by REST, as in upstream's API server (KEP-647), or by JSON-RPC.
//!
//! A `traceparent` is trusted from administrators and monitoring, upstream's `system:masters` and `system:monitoring`: their
//! request becomes part of that trace. Other users' requests start a trace of their own, which links to the other one and is
//! sampled by the configured rate: users cannot add to others' traces, or have more recorded than others.

use std::time::SystemTime;

use hyper::{HeaderMap, Method, Request as HttpRequest};

use super::paths::Target;
use super::reply::HttpBody;
use podwright_api::request;
use podwright_api::spans::{Link, Origin, Span, TRACEPARENT, are_made};
use podwright_api::{Request, User};

const BELIEVED: [&str; 2] = ["system:masters", "system:monitoring"];

/// The trace context of a request. Two of them count as none.
pub fn named_by(headers: &HeaderMap) -> Option<Link> {
    if !are_made() {
        return None;
    }
    the_one(headers)
}

fn the_one(headers: &HeaderMap) -> Option<Link> {
    let mut all = headers.get_all(TRACEPARENT).iter();
    let one = all.next()?.to_str().ok()?;
    if all.next().is_some() { None } else { Link::parse(one) }
}

/// Starts the span of an authenticated request; the time so far is its first part.
pub fn begin(http: &HttpRequest<HttpBody>, origin: &request::Origin, user: &User, began: SystemTime) -> Span {
    let span = begin_as(http.method().as_str(), origin, user, began);
    if span.is_recorded() {
        span.set("http.request.method", http.method().as_str());
        span.set("http.target", &origin.uri);
        span.child_since("Authenticate", began).end();
    }
    span
}

/// The same for a JSON-RPC request, whose caller is that of its connection or HTTP request.
pub fn begin_call(method: &'static str, request: &Request) -> Span {
    let Some(origin) = &request.origin else { return Span::default() };
    let span = begin_as(method, origin, &request.user, SystemTime::now());
    if span.is_recorded() {
        span.set("rpc.system", "jsonrpc");
        span.set("rpc.method", method);
        span.set("verb", request.verb.as_str());
        span.set("resource", &request.resource);
        span.set("namespace", request.namespace.as_deref().unwrap_or(""));
        span.set("name", request.name.as_deref().unwrap_or(""));
        span.rename(|| match &request.subresource {
            Some(subresource) => format!("{method} {}/{subresource}", request.resource),
            None => format!("{method} {}", request.resource),
        });
    }
    span
}

fn begin_as(name: &str, origin: &request::Origin, user: &User, began: SystemTime) -> Span {
    if !are_made() {
        return Span::default();
    }
    let from = match &origin.link {
        Some(link) if BELIEVED.iter().any(|group| user.is_in(group)) => Origin::Parent(link),
        link => Origin::New(link.as_ref()),
    };
    let span = Span::begin(name.to_owned(), from, began, true);
    if span.is_recorded() {
        span.set("user_agent.original", &origin.user_agent);
        span.set("audit-id", &origin.id);
        // It is the first one: an origin has one request.
        let _ = origin.span.set(span.clone());
    }
    span
}

/// Names the span by the kind of request, without names and namespaces of objects.
pub fn named(target: &Target, method: &Method, verb: &str) {
    let span = Span::current();
    span.set("verb", verb);
    span.set("resource", target.kind.plural);
    span.set("namespace", target.namespace.as_deref().unwrap_or(""));
    span.set("name", target.name.as_deref().unwrap_or(""));
    span.rename(|| {
        let kind = target.kind;
        let mut name = match kind.group {
            "" => format!("{method} /api/{}", kind.version),
            group => format!("{method} /apis/{group}/{}", kind.version),
        };
        if target.namespace.is_some() {
            name += "/namespaces/{:namespace}";
        }
        name = format!("{name}/{}", kind.plural);
        if target.name.is_some() {
            name += "/{:name}";
        }
        match &target.subresource {
            Some(subresource) => format!("{name}/{subresource}"),
            None => name,
        }
    });
}

/// A request was answered.
pub fn end(origin: &request::Origin, code: u16) {
    let Some(span) = origin.span.get() else { return };
    span.set_number("http.response.status_code", code.into());
    if code >= 500 {
        span.fail(&format_args!("status {code}"));
    }
    span.end();
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn a_request_names_one_trace_or_none() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(TRACEPARENT, HeaderValue::from_str(value).unwrap());
            }
            the_one(&headers).map(|link| link.traceparent())
        };
        assert_eq!(of(&[text]), Some(text.to_owned()));
        assert_eq!(of(&[text, text]), None);
        assert_eq!(of(&["x"]), None);
        assert_eq!(of(&[]), None);
    }
}

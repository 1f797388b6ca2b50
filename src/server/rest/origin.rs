//! How a request came: its audit ID, the addresses that it came by, the program that made it.

use std::net::IpAddr;
use std::sync::Arc;

use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Request as HttpRequest, http::Extensions};

use super::reply::Reply;
use super::traced;
use crate::api::Env;
use crate::api::request::Origin;

const AUDIT_ID: &str = "audit-id";
/// A client may name a request itself, so shortly.
const LONGEST_ID: usize = 64;

/// The address of the connection; a listener notes it in a request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct Source(pub IpAddr);

impl Source {
    /// The address that a listener has noted, IPv4 as such.
    pub fn of(extensions: &Extensions) -> Option<IpAddr> {
        extensions.get::<Source>().map(|source| source.0.to_canonical())
    }
}

/// What is known before anything is read.
pub fn of<B>(env: &Env, http: &HttpRequest<B>) -> Origin {
    let headers = http.headers();
    let named = text(headers, AUDIT_ID).filter(|id| id.len() <= LONGEST_ID);
    Origin {
        id: named.map_or_else(|| env.uid(), str::to_owned),
        received: env.now(),
        uri: http.uri().path_and_query().map_or_else(String::new, |uri| uri.as_str().to_owned()),
        sources: sources(headers, http.extensions()),
        user_agent: text(headers, header::USER_AGENT.as_str()).unwrap_or("").to_owned(),
        link: traced::named_by(headers),
        ..Origin::default()
    }
}

/// One more request of a connection that carries many.
pub fn again(env: &Env, origin: &Origin) -> Arc<Origin> {
    let (sources, user_agent, caller) = (origin.sources.clone(), origin.user_agent.clone(), origin.caller.clone());
    let (id, received, link) = (env.uid(), env.now(), origin.link.clone());
    Arc::new(Origin { id, received, sources, user_agent, caller, link, ..Origin::default() })
}

/// Tells the client the request's ID.
pub fn name(reply: &mut Reply, origin: &Origin) {
    // An ID that came by a header fits into one.
    if let Ok(id) = HeaderValue::from_str(&origin.id) {
        reply.headers_mut().insert(AUDIT_ID, id);
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().filter(|text| !text.is_empty())
}

/// What proxies tell, then the connection's; upstream's order.
fn sources(headers: &HeaderMap, extensions: &Extensions) -> Vec<String> {
    let address = |text: &str| text.trim().parse::<IpAddr>().ok();
    let forwarded = text(headers, "x-forwarded-for").into_iter().flat_map(|list| list.split(',')).filter_map(address);
    let real = text(headers, "x-real-ip").and_then(address);
    let own = Source::of(extensions);
    let mut all: Vec<String> = Vec::new();
    for address in forwarded.chain(real).chain(own).map(|address| address.to_string()) {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all
}

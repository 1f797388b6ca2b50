//! The origin of a request: its audit ID, its source addresses, its user agent.

use std::net::IpAddr;
use std::sync::Arc;

use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Request as HttpRequest, http::Extensions};

use super::reply::Reply;
use super::traced;
use podwright_api::Env;
use podwright_api::request::Origin;

const AUDIT_ID: &str = "audit-id";
/// The longest audit ID that a client may choose.
const LONGEST_ID: usize = 64;
/// The length to which a user agent is truncated, and the suffix then, as upstream.
const LONGEST_AGENT: usize = 1024;
const CUT: &str = "...TRUNCATED";
/// The most source addresses that are kept of those in proxies' headers.
const SOURCES: usize = 16;
const TOLD: usize = 64;

/// The connection's address, which listeners add to a request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct Source(pub IpAddr);

impl Source {
    /// The address set by a listener, IPv4 in canonical form.
    pub fn of(extensions: &Extensions) -> Option<IpAddr> {
        extensions.get::<Source>().map(|source| source.0.to_canonical())
    }
}

/// What is known before anything is read.
pub fn of<B>(env: &Env, http: &HttpRequest<B>) -> Origin {
    let headers = http.headers();
    let (sources, more_sources) = sources(headers, http.extensions());
    let named = text(headers, AUDIT_ID).filter(|id| id.len() <= LONGEST_ID);
    Origin {
        id: named.map_or_else(|| env.uid(), str::to_owned),
        received: env.now(),
        uri: http.uri().path_and_query().map_or_else(String::new, |uri| uri.as_str().to_owned()),
        sources,
        more_sources,
        user_agent: agent(text(headers, header::USER_AGENT.as_str()).unwrap_or("")),
        link: traced::named_by(headers),
        ..Origin::default()
    }
}

/// For another request of a connection that carries many.
pub fn again(env: &Env, origin: &Origin) -> Arc<Origin> {
    let (sources, user_agent, caller) = (origin.sources.clone(), origin.user_agent.clone(), origin.caller.clone());
    let (id, received, link, more_sources) = (env.uid(), env.now(), origin.link.clone(), origin.more_sources);
    Arc::new(Origin { id, received, sources, more_sources, user_agent, caller, link, ..Origin::default() })
}

/// Adds the request's ID to the response.
pub fn name(reply: &mut Reply, origin: &Origin) {
    // An ID from a header fits into one.
    if let Ok(id) = HeaderValue::from_str(&origin.id) {
        reply.headers_mut().insert(AUDIT_ID, id);
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().filter(|text| !text.is_empty())
}

/// The user agent. (Text from a header is ASCII: it may be cut anywhere.)
fn agent(name: &str) -> String {
    name.get(..LONGEST_AGENT)
        .filter(|_| name.len() > LONGEST_AGENT)
        .map_or_else(|| name.to_owned(), |name| format!("{name}{CUT}"))
}

/// The addresses from proxies' headers, then the connection's; upstream's order. And whether some were dropped.
fn sources(headers: &HeaderMap, extensions: &Extensions) -> (Vec<String>, bool) {
    let address = |text: &str| text.trim().parse::<IpAddr>().ok();
    let mut told = text(headers, "x-forwarded-for").into_iter().flat_map(|list| list.split(','));
    let real = text(headers, "x-real-ip").and_then(address);
    let own = Source::of(extensions);
    let (mut all, mut more): (Vec<IpAddr>, bool) = (Vec::new(), false);
    let last = [real, own].into_iter().flatten();
    let room = SOURCES - last.clone().count();
    for address in told.by_ref().take(TOLD).filter_map(address) {
        match all.contains(&address) {
            true => {}
            false if all.len() < room => all.push(address),
            false => more = true,
        }
    }
    more |= told.next().is_some();
    for address in last {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    (all.iter().map(IpAddr::to_string).collect(), more)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(headers: &[(&str, &str)]) -> Origin {
        let mut http = HttpRequest::get("/");
        for (name, value) in headers {
            http = http.header(*name, *value);
        }
        let mut http = http.body(()).unwrap();
        http.extensions_mut().insert(Source([192, 0, 2, 1].into()));
        of(&Env::system(), &http)
    }

    #[test]
    fn of_many_addresses_the_first_are_kept_and_the_connections_own() {
        let few = origin(&[("x-forwarded-for", "10.0.0.1, rubbish,10.0.0.2,10.0.0.1"), ("x-real-ip", "10.0.0.3")]);
        assert_eq!(few.sources, ["10.0.0.1", "10.0.0.2", "10.0.0.3", "192.0.2.1"]);
        assert!(!few.more_sources);
        let many: Vec<String> = (0..4000).map(|n| format!("10.0.{}.{}", n / 250, n % 250)).collect();
        let begun = std::time::Instant::now();
        let many = origin(&[("x-forwarded-for", &many.join(","))]);
        assert!(begun.elapsed() < std::time::Duration::from_millis(50), "{:?}", begun.elapsed());
        assert_eq!((many.sources.len(), many.more_sources), (SOURCES, true));
        assert_eq!((many.sources[14].as_str(), many.sources[15].as_str()), ("10.0.0.14", "192.0.2.1"));
        // With any separator.
        let same = origin(&[("x-forwarded-for", &"10.0.0.1,".repeat(100))]);
        assert_eq!((same.sources.len(), same.more_sources), (2, true));
    }

    #[test]
    fn the_name_of_a_program_is_cut_as_upstream_does() {
        let kept = |length: usize| origin(&[("user-agent", &"a".repeat(length))]).user_agent;
        assert_eq!((kept(0).len(), kept(1024).len()), (0, 1024));
        assert_eq!(kept(60_000), "a".repeat(1024) + "...TRUNCATED");
    }
}

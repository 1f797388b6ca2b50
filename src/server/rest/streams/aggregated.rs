//! Proxies requests to extension API servers: authenticated and authorized here, then forwarded with the front proxy's user
//! headers. Upstream: kube-aggregator's `handler_proxy.go`.
//!
//! Authorization uses the path, so an ambiguous path is refused. Neither the client's credentials nor headers that only a front
//! proxy may send are forwarded (`headers`); redirects are not followed.

use std::sync::Arc;
use std::time::Duration;

use futures::future::FutureExt;
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};
use tokio::time::Instant;

use super::headers::{self, Mount};
use super::proxy::{Holding, Way, pass};
use super::until::until;
use crate::Server;
use crate::aggregator::connect::identity;
use crate::aggregator::table::Registration;
use crate::authorize::attributes::Attributes;
use crate::ends::{disowned, either, never};
use crate::limits::Held;
use crate::rest::authenticate::Peer;
use crate::rest::body;
use crate::rest::paths::percent_decode;
use crate::rest::reply::{self, Reply};
use crate::rest::strangers::Read;
use crate::rest::{Ask, Asked, Face};
use crate::sessions::With;
use podwright_api::spans::TRACEPARENT;
use podwright_api::{Request, Status, Verb};

/// The time limit of requests other than watches and sessions; upstream's `--request-timeout`.
const TIMEOUT: Duration = Duration::from_secs(60);
/// These last as long as both sides want.
const SESSIONS: &[&str] = &["attach", "exec", "log", "portforward", "proxy"];

/// The other server of a path, if any.
pub fn registration_of(server: &Server, path: &str) -> Result<Option<Arc<Registration>>, Status> {
    let Some(rest) = path.strip_prefix("/apis/") else { return Ok(None) };
    let mut parts = rest.split('/');
    let (group, version) = (parts.next(), parts.next());
    let unlike = || Status::bad_request("the path is not one that everybody reads alike");
    // No group or version needs an escape. With one, a remotely served resource would be looked up here.
    if [group, version].into_iter().flatten().any(|part| part.contains('%')) {
        return Err(unlike());
    }
    let (Some(group), Some(version)) = (group, version) else { return Ok(None) };
    let Some(found) = server.registrations().remote(group, version).cloned() else { return Ok(None) };
    let parts: Vec<&str> = parts.collect();
    // A trailing slash is allowed.
    let named = parts.strip_suffix(&[""]).unwrap_or(&parts);
    match named.iter().all(|part| is_plain(part)) {
        true => Ok(Some(found)),
        false => Err(unlike()),
    }
}

/// Whether every parser reads a path segment alike, decoded or not, with `..` or without.
fn is_plain(part: &str) -> bool {
    let decoded = percent_decode(part, false);
    decoded.is_some_and(|bytes| {
        !matches!(&bytes[..], b"" | b"." | b"..")
            && !bytes.iter().any(|byte| b"/\\%;?#".contains(byte) || byte.is_ascii_control())
    })
}

fn said(code: StatusCode, text: &str) -> Reply {
    reply::text(code, format!("{text}\n"))
}

impl Face {
    /// Forwards a request.
    pub(in crate::rest) async fn aggregated(
        &self,
        peer: &Peer,
        registration: &Registration,
        mut ask: Ask,
        asked: &mut Asked,
    ) -> Result<Reply, Status> {
        let server = &self.server;
        let Some(remote) = &registration.remote else { return Ok(reply::not_found()) };
        if let Some(key) = Read::OF_QUERY.iter().find(|key| ask.query.all(key).nth(1).is_some()) {
            return Err(Status::bad_request(format!("the query has {key} more than once")));
        }
        let read = Read::of(&ask.method, &ask.path, &ask.query)?;
        asked.remote = read.clone().map(|read| (read, ask.user.clone()));
        let by_path = ask.method.as_str().to_ascii_lowercase();
        let asks = match &read {
            Some(read) => read.attributes(&ask.user),
            None => Attributes::of_path(&ask.user, &by_path, &ask.path),
        };
        server.authorize(&asks).await?;
        let asks = asks.keep();
        if !registration.available {
            return Ok(said(StatusCode::SERVICE_UNAVAILABLE, "service unavailable"));
        }
        let mut told = identity(&ask.user).map_err(|why| Status::internal(format!("X-Remote-*: {why}")))?;
        headers::to_extension(ask.http.headers_mut());
        let link = ask.origin.span.get().and_then(|span| span.link());
        if let Some(value) = link.and_then(|link| HeaderValue::from_str(&link.traceparent()).ok()) {
            told.insert(TRACEPARENT, value);
        }
        let read = read.unwrap_or_default();
        let upgrades = headers::upgrade(ask.http.headers()).is_some();
        let watches = read.verb == "watch" && ask.method == Method::GET;
        let session = SESSIONS.contains(&read.subresource.as_str());
        // Before the upgrade it is a request like others.
        let lasts = watches || session;
        let late = Instant::now() + TIMEOUT;
        // A request's body is complete when it ends; a session's data is streamed.
        let mut room = server.limiters.bodies.of(&ask.user);
        if !session {
            let sent = std::mem::replace(ask.http.body_mut(), reply::full(""));
            let bytes = body::read(sent, body::LIMIT, server.config.limits.body, &mut room).await?;
            *ask.http.body_mut() = reply::full(bytes);
        }
        let seat = match lasts {
            true => None,
            false => {
                server
                    .limiters
                    .enter(&Request { verb: verb(&read), user: ask.user.clone(), ..Request::default() })
                    .await?
            }
        };
        let with = With { namespace: "", object: &format!("apiservices/{}", registration.name), shared: true };
        let open = server.sessions.enter(&ask.user, with)?;
        let revoked = match lasts || upgrades {
            true => {
                let (shown, user) = (ask.http.headers().clone(), ask.user.clone());
                let disowned = disowned(server.clone(), peer.clone(), shown, user);
                let lost = open.lasting();
                let lost = async move {
                    lost.cancelled().await;
                    tracing::info!("ended a session with an extension API server to make room for others");
                };
                either(either(disowned, server.withdrawn(vec![asks])), lost)
            }
            false => never(),
        };
        let revoked = revoked.shared();
        let (path, authority, asker) = (ask.path.clone(), remote.authority(), ask.user.clone());
        let own = format!("/apis/{}/{}", registration.group, registration.version);
        let passing = async {
            let unreached = |why: anyhow::Error| Status::unavailable(format!("error trying to reach service: {why:#}"));
            let stream = Holding::boxed(server.dial_extension(remote).await.map_err(unreached)?, open);
            let mount = Mount { hidden: "", own: &own };
            pass(stream, Way { rest: &path, address: &authority, mount }, ask, told, revoked.clone()).await
        };
        // He may take a minute: that is nobody else's.
        let held = Held::new(&asker, seat, None);
        let passed = held.within(server.away.wait(tokio::time::timeout_at(late, passing))).await?;
        let reply = match passed {
            Ok(Ok(reply)) => reply,
            Ok(Err(why)) if why.code == 503 => return Ok(said(StatusCode::SERVICE_UNAVAILABLE, &why.message)),
            Ok(Err(why)) => return Err(why),
            Err(_) => return Err(Status::timeout("request did not complete within the allotted timeout")),
        };
        if reply.status().is_redirection() && reply.headers().contains_key(header::LOCATION) {
            let why = "the backend attempted to redirect this request, which is not permitted";
            return Ok(said(StatusCode::BAD_GATEWAY, why));
        }
        if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(reply);
        }
        let ended = match lasts {
            true => revoked.boxed(),
            false => either(revoked, tokio::time::sleep_until(late)),
        };
        Ok(until(reply, ended))
    }
}

/// The verb whose limit applies.
fn verb(read: &Read) -> Verb {
    if matches!(read.verb, "get" | "list" | "") { Verb::Get } else { Verb::Update }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_path_is_what_it_seems() {
        for part in ["things", "a.b-c", "a%3Ab", "...", "%41", "caf%C3%A9"] {
            assert!(is_plain(part), "{part}");
        }
        for part in [
            "", ".", "..", "%2e%2e", "%2E", "a%2fb", "a%2Fb", "a%5Cb", "%252e", "a%00", "%zz", "a%", "a;b", "a%3Bb",
            "a%3fb", "a%23",
        ] {
            assert!(!is_plain(part), "{part}");
        }
    }
}

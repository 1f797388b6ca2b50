//! Authentication: a list of authenticators, of which the first that recognizes a credential decides.

use std::borrow::Cow;

use async_trait::async_trait;
use hyper::header::{self, HeaderMap};
use jiff::Timestamp;

use crate::metrics::METRICS;
use crate::{Impersonation, Server};
use podwright_api::{Status, User};

/// What the connection itself says about its peer.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Root on the Unix socket.
    pub root: bool,
    /// The verified client certificate's subject.
    pub certificate: Option<User>,
    /// When that certificate expires. A connection, or a resumed TLS session, may last longer.
    pub until: Option<Timestamp>,
}

/// The credentials of a request.
pub struct Credentials<'a> {
    pub peer: &'a Peer,
    /// `Authorization: Bearer ...`
    pub bearer: Option<Cow<'a, str>>,
}

impl<'a> Credentials<'a> {
    pub fn of(peer: &'a Peer, headers: &'a HeaderMap) -> Credentials<'a> {
        // Non-text is a credential as well: an invalid one is not the same as none.
        let bytes = headers.get(header::AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
        let (scheme, token) = bytes.split_at(bytes.iter().position(|byte| *byte == b' ').unwrap_or(bytes.len()));
        let token = token.trim_ascii();
        let is_bearer = scheme.eq_ignore_ascii_case(b"bearer") && !token.is_empty();
        Credentials { peer, bearer: is_bearer.then(|| String::from_utf8_lossy(token)) }
    }
}

/// One method of authentication.
#[async_trait]
pub trait Authenticator: Send + Sync {
    /// The user of this credential; `None` for other types; an error refuses the request.
    async fn authenticate(&self, server: &Server, credentials: &Credentials<'_>) -> Result<Option<User>, Status>;
}

/// All methods, in order.
pub fn all() -> Vec<Box<dyn Authenticator>> {
    vec![Box::new(Socket), Box::new(Certificate), Box::new(BearerToken)]
}

struct Socket;

#[async_trait]
impl Authenticator for Socket {
    async fn authenticate(&self, _: &Server, credentials: &Credentials<'_>) -> Result<Option<User>, Status> {
        // Root may use another user's token, to see what a ServiceAccount sees.
        Ok((credentials.peer.root && credentials.bearer.is_none()).then(|| User::system("system:admin")))
    }
}

/// The TLS handshake has verified it already; expiry is checked for each request, as upstream does.
struct Certificate;

#[async_trait]
impl Authenticator for Certificate {
    async fn authenticate(&self, server: &Server, credentials: &Credentials<'_>) -> Result<Option<User>, Status> {
        let Peer { certificate, until, .. } = credentials.peer;
        match certificate.is_some() && until.is_some_and(|until| until < server.env.now()) {
            true => Err(Status::unauthorized("x509: certificate has expired")),
            false => Ok(certificate.clone()),
        }
    }
}

/// ServiceAccount tokens, and the server's other types.
struct BearerToken;

#[async_trait]
impl Authenticator for BearerToken {
    async fn authenticate(&self, server: &Server, credentials: &Credentials<'_>) -> Result<Option<User>, Status> {
        match credentials.bearer.as_deref() {
            Some(token) => server.authenticate_token(token, &[]).await.map(|it| Some(it.user)),
            None => Ok(None),
        }
    }
}

/// The user of a request. An unauthenticated one is refused without a reason.
pub async fn authenticate(
    authenticators: &[Box<dyn Authenticator>],
    server: &Server,
    credentials: &Credentials<'_>,
) -> Result<User, Status> {
    let user = recognize(authenticators, server, credentials).await.map_err(|why| {
        tracing::debug!("a request was refused: {why}");
        Status::unauthorized("Unauthorized")
    })?;
    let Peer { certificate, until, .. } = credentials.peer;
    if let (Some(_), Some(until)) = (certificate, until) {
        METRICS.certificate(until.duration_since(server.env.now()).as_secs_f64());
    }
    Ok(user)
}

/// Tries all methods. Without credentials the user is anonymous. Errors: 401 for invalid credentials; others if validity cannot be
/// determined at the moment.
pub async fn recognize(
    authenticators: &[Box<dyn Authenticator>],
    server: &Server,
    credentials: &Credentials<'_>,
) -> Result<User, Status> {
    let mut refused: Option<Status> = None;
    for authenticator in authenticators {
        match authenticator.authenticate(server, credentials).await {
            Ok(Some(mut user)) => {
                if !user.groups.iter().any(|group| group == "system:authenticated") {
                    user.groups.push("system:authenticated".into());
                }
                return Ok(user);
            }
            Ok(None) => {}
            Err(why) => {
                if refused.as_ref().is_none_or(|before| before.code == 401) {
                    refused = Some(why);
                }
            }
        }
    }
    match refused {
        Some(why) => Err(why),
        None => Ok(User::new("system:anonymous", ["system:unauthenticated"])),
    }
}

/// The user to impersonate, if any.
pub fn impersonation(headers: &HeaderMap) -> Impersonation {
    let mut asked = Impersonation::default();
    for (name, value) in headers.iter().filter(|(name, _)| name.as_str().starts_with("impersonate-")) {
        // Non-text names nobody, and is never allowed.
        asked.add(name.as_str(), value.to_str().unwrap_or("\u{fffd}"));
    }
    asked
}

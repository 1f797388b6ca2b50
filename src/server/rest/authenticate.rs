//! Who asks: a row of authenticators, the first that recognizes a credential decides.

use std::borrow::Cow;

use async_trait::async_trait;
use hyper::header::{self, HeaderMap};
use jiff::Timestamp;

use crate::metrics::METRICS;
use crate::{Impersonation, Server};
use podwright_api::{Status, User};

/// What the connection itself says of who is at its other end.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Root on the Unix socket.
    pub root: bool,
    /// The verified client certificate's subject.
    pub certificate: Option<User>,
    /// When that certificate ends. A connection may last longer, and so may a TLS session that is resumed.
    pub until: Option<Timestamp>,
}

/// Everything that may tell who asks.
pub struct Credentials<'a> {
    pub peer: &'a Peer,
    /// `Authorization: Bearer ...`
    pub bearer: Option<Cow<'a, str>>,
}

impl<'a> Credentials<'a> {
    pub fn of(peer: &'a Peer, headers: &'a HeaderMap) -> Credentials<'a> {
        // What is no text is a credential as well: who shows a bad one is not taken for somebody who shows none.
        let bytes = headers.get(header::AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
        let (scheme, token) = bytes.split_at(bytes.iter().position(|byte| *byte == b' ').unwrap_or(bytes.len()));
        let token = token.trim_ascii();
        let is_bearer = scheme.eq_ignore_ascii_case(b"bearer") && !token.is_empty();
        Credentials { peer, bearer: is_bearer.then(|| String::from_utf8_lossy(token)) }
    }
}

/// One way to be recognized.
#[async_trait]
pub trait Authenticator: Send + Sync {
    /// The user whose credential this is; `None` for one of another sort; an error refuses the request.
    async fn authenticate(&self, server: &Server, credentials: &Credentials<'_>) -> Result<Option<User>, Status>;
}

/// All that are asked, in order.
pub fn all() -> Vec<Box<dyn Authenticator>> {
    vec![Box::new(Socket), Box::new(Certificate), Box::new(BearerToken)]
}

struct Socket;

#[async_trait]
impl Authenticator for Socket {
    async fn authenticate(&self, _: &Server, credentials: &Credentials<'_>) -> Result<Option<User>, Status> {
        // Root may speak as someone else by a token: so one can see what a ServiceAccount sees.
        Ok((credentials.peer.root && credentials.bearer.is_none()).then(|| User::system("system:admin")))
    }
}

/// The TLS handshake has verified it already; that it has not ended meanwhile is asked at each request, as upstream does.
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

/// Tokens of ServiceAccounts, and the other sorts that the server knows.
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

/// Who makes a request. Whoever is not recognized is refused, and not told why.
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

/// Asks them all. Who shows nothing is anonymous. Errors: 401 for who shows something wrong; any other where it cannot be known at
/// the moment whether it is.
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

/// Who it wants to be instead, if anyone.
pub fn impersonation(headers: &HeaderMap) -> Impersonation {
    let mut asked = Impersonation::default();
    for (name, value) in headers.iter().filter(|(name, _)| name.as_str().starts_with("impersonate-")) {
        // What is not text names nobody, whom one may not be.
        asked.add(name.as_str(), value.to_str().unwrap_or("\u{fffd}"));
    }
    asked
}

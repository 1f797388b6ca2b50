//! Bearer tokens of an OpenID Connect issuer, configured like upstream's `--oidc-*` flags.
//!
//! The issuer's keys come from a file, or from the issuer itself; they are refreshed when no known key verifies a token.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::verify::refuse;
use crate::authorities;
use crate::dial::{self, Purpose};
use podwright_api::{Status, User, bounded::Bounded};

/// Debian's path of the system's trusted certificates.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The minimum interval between refreshes of the keys, and their time limit.
const REFRESH_EVERY: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_DOCUMENT: usize = 1 << 20;
/// The most bytes before a document: interim responses, the head, a TLS handshake.
const MAX_HEAD: usize = 1 << 20;
/// Asymmetric algorithms only.
const ALGORITHMS: [Algorithm; 8] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
];

/// The issuer's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OidcConfig {
    /// The expected `iss` of its tokens.
    pub issuer: String,
    /// The expected `aud` of its tokens.
    pub client_id: String,
    /// The claim with the user's name; default `sub`.
    pub username_claim: String,
    /// The prefix of user names; `None`: the issuer and `#`, unless the claim is `email`; "-": nothing.
    pub username_prefix: Option<String>,
    pub groups_claim: Option<String>,
    pub groups_prefix: String,
    /// The CA of its TLS certificate; by default the system's authorities.
    pub ca_file: Option<PathBuf>,
    /// A file with its keys, instead of fetching them.
    pub jwks_file: Option<PathBuf>,
}

/// The issuer, with its cached keys. Cheap to clone.
#[derive(Clone)]
pub struct Oidc(Arc<Inner>);

struct Inner {
    config: OidcConfig,
    keys: Mutex<Keys>,
    /// Held while fetching keys. Tokens of known keys do not wait for it.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Keys {
    set: Arc<Vec<Jwk>>,
    /// The time of the last refresh, even if it failed.
    read_at: Option<Instant>,
    is_unread: bool,
}

impl Oidc {
    /// Fails if the issuer is not an https URL (OpenID Connect Core 1.0, section 2: `iss`).
    pub fn new(mut config: OidcConfig) -> anyhow::Result<Oidc> {
        secure(&config.issuer)?;
        if config.username_claim.is_empty() {
            config.username_claim = "sub".into();
        }
        Ok(Oidc(Arc::new(Inner { config, keys: Mutex::default(), asking: tokio::sync::Mutex::default() })))
    }

    pub(super) fn is_issuer(&self, issuer: &str) -> bool {
        self.0.config.issuer == issuer
    }

    /// The user of a token; 503 if no known key verifies it, and the issuer's cannot be fetched.
    pub(super) async fn user(&self, token: &str, now: Timestamp) -> Result<User, Status> {
        let wrong = |why: anyhow::Error| refuse(format!("{why:#}"));
        let head = jsonwebtoken::decode_header(token).map_err(refuse)?;
        if !ALGORITHMS.contains(&head.alg) {
            return Err(refuse(format!("its algorithm {:?} is not accepted", head.alg)));
        }
        let mut validation = Validation::new(head.alg);
        validation.set_issuer(&[&self.0.config.issuer]);
        validation.set_audience(&[&self.0.config.client_id]);
        // Without this a token without an audience would be accepted.
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        // Checked below with our clock.
        validation.validate_exp = false;
        let signed_by = |keys: &[Jwk]| claims(token, keys, head.kid.as_deref(), &validation);
        let known = self.keys().set.clone();
        let claims = match signed_by(&known).map_err(wrong)? {
            Some(claims) => claims,
            None => {
                self.refresh().await?;
                let keys = self.keys().set.clone();
                let signed = signed_by(&keys).map_err(wrong)?;
                signed.ok_or_else(|| refuse("none of the issuer's keys has signed it"))?
            }
        };
        self.user_of(&claims, now).map_err(wrong)
    }

    /// Refreshes the keys, unless that was done just now.
    async fn refresh(&self) -> Result<(), Status> {
        let unread = || Status::unavailable("the issuer's keys cannot be read");
        let _turn = self.0.asking.lock().await;
        let (read_at, is_unread) = {
            let keys = self.keys();
            (keys.read_at, keys.is_unread)
        };
        if read_at.is_some_and(|at| at.elapsed() < REFRESH_EVERY) {
            return if is_unread { Err(unread()) } else { Ok(()) };
        }
        let read = self.read_keys().await.context("reading the issuer's keys");
        let mut keys = self.keys();
        // After a failure, too, which may have taken long: no immediate retry.
        keys.read_at = Some(Instant::now());
        keys.is_unread = read.is_err();
        // The reason is only logged: the client is not authenticated yet, and the issuer may be on the server's own machine.
        let read = read.inspect_err(|why| tracing::warn!("{why:#}"));
        keys.set = Arc::new(read.map_err(|_| unread())?.keys);
        Ok(())
    }

    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.0.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read_keys(&self) -> anyhow::Result<JwkSet> {
        let config = &self.0.config;
        if let Some(path) = &config.jwks_file {
            let text = tokio::fs::read(path).await.with_context(|| format!("reading {}", path.display()))?;
            return published(&text);
        }
        let roots = config.ca_file.as_deref().unwrap_or(Path::new(SYSTEM_ROOTS));
        let url = format!("{}/.well-known/openid-configuration", config.issuer.trim_end_matches('/'));
        let document: Value = serde_json::from_slice(&fetch(&url, roots).await?)?;
        if document["issuer"] != config.issuer {
            bail!("{url} is the document of {}", document["issuer"]);
        }
        let keys = document["jwks_uri"].as_str().ok_or_else(|| anyhow!("{url} names no keys"))?;
        published(&fetch(keys, roots).await?)
    }

    fn user_of(&self, claims: &Value, now: Timestamp) -> anyhow::Result<User> {
        let config = &self.0.config;
        if claims["exp"].as_i64().is_none_or(|exp| exp <= now.as_second()) {
            bail!("it has expired");
        }
        if claims["nbf"].as_i64().is_some_and(|from| from > now.as_second() + 60) {
            bail!("it is not valid yet");
        }
        let claim = config.username_claim.as_str();
        let name = claims[claim].as_str().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| anyhow!("it has no claim {claim:?}"))?;
        if claim == "email" && claims.get("email_verified").is_some_and(|verified| *verified != true) {
            bail!("the email address is not verified");
        }
        let prefix = match config.username_prefix.as_deref() {
            Some("-") => String::new(),
            Some(prefix) => prefix.to_owned(),
            None if claim == "email" => String::new(),
            None => format!("{}#", config.issuer),
        };
        let groups = match config.groups_claim.as_deref().map(|claim| &claims[claim]) {
            Some(Value::String(one)) => vec![one.as_str()],
            Some(list) => list.as_array().into_iter().flatten().filter_map(Value::as_str).collect(),
            None => Vec::new(),
        };
        Ok(User::new(format!("{prefix}{name}"), groups.iter().map(|group| format!("{}{group}", config.groups_prefix))))
    }
}

/// The keys in a document (RFC 7517). Unsupported ones are ignored.
pub(crate) fn published(document: &[u8]) -> anyhow::Result<JwkSet> {
    let document: Value = serde_json::from_slice(document)?;
    let keys = document["keys"].as_array().ok_or_else(|| anyhow!("it is no set of keys"))?;
    Ok(JwkSet { keys: keys.iter().filter_map(|key| serde_json::from_value(key.clone()).ok()).collect() })
}

/// A token's claims, if one of the keys verifies it: the one with its key id, or any if the token has none. An error: the signature
/// is valid, the token is not.
pub(crate) fn claims(
    token: &str,
    keys: &[Jwk],
    id: Option<&str>,
    validation: &Validation,
) -> anyhow::Result<Option<Value>> {
    for key in keys.iter().filter(|key| id.is_none() || key.common.key_id.as_deref() == id) {
        let verified =
            DecodingKey::from_jwk(key).and_then(|key| jsonwebtoken::decode::<Value>(token, &key, validation));
        match verified {
            Ok(decoded) => return Ok(Some(decoded.claims)),
            Err(why) if is_about_claims(why.kind()) => return Err(why.into()),
            // Another key's signature, or a key for other algorithms.
            Err(_) => {}
        }
    }
    Ok(None)
}

fn is_about_claims(why: &ErrorKind) -> bool {
    use ErrorKind::{InvalidAudience, InvalidIssuer, InvalidSubject, MissingRequiredClaim};
    matches!(why, InvalidAudience | InvalidIssuer | InvalidSubject | MissingRequiredClaim(_))
}

impl std::fmt::Debug for Oidc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.config.issuer)
    }
}

/// Parses an https URL.
fn secure(url: &str) -> anyhow::Result<Uri> {
    let uri: Uri = url.parse().with_context(|| format!("{url:?} is no https URL"))?;
    if uri.scheme_str() != Some("https") || uri.host().is_none_or(str::is_empty) {
        bail!("{url:?} is no https URL");
    }
    Ok(uri)
}

/// Fetches a document.
async fn fetch(url: &str, roots: &Path) -> anyhow::Result<Bytes> {
    let get = async {
        let uri = secure(url)?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let stream = dial::connect(Purpose::Issuer, host, uri.port_u16().unwrap_or(443)).await?;
        let stream = Bounded::new(stream, MAX_HEAD + MAX_DOCUMENT);
        let pem = tokio::fs::read(roots).await.with_context(|| format!("reading {}", roots.display()))?;
        let config = authorities::trusting(&pem).with_context(|| format!("reading {}", roots.display()))?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = connector.connect(ServerName::try_from(host.to_owned())?, stream).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let request = Request::get(path).header(header::HOST, authority).header(header::ACCEPT, "application/json");
        let answer = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
        if answer.status() != StatusCode::OK {
            bail!("answered {}", answer.status());
        }
        let body = Limited::new(answer.into_body(), MAX_DOCUMENT).collect().await.map_err(|why| anyhow!("{why}"))?;
        Ok(body.to_bytes())
    };
    tokio::time::timeout(TIMEOUT, get).await.with_context(|| url.to_owned())?.with_context(|| url.to_owned())
}

//! Talking to a registry (OCI distribution spec): credentials, manifests, blobs; with responses bounded in size and time, and
//! converted to meaningful errors.
//!
//! By hand on [`http`](super::http): clients that exist read documents however long they are, and follow wherever they are led.

use std::future::Future;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RANGE, WWW_AUTHENTICATE};
use serde::Deserialize;
use url::Url;

use super::guard::{Guard, shown};
use super::http::{Client, Response};
use super::limits::{MAX_DOCUMENT, Options};
use super::{Auth, ImageError, ImageName, Result};

const MANIFEST_TYPES: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";
/// Tokens and error messages are small.
const MAX_ANSWER: u64 = 1 << 20;
/// Maximum length of an error message in the Pod's events.
const MAX_COMPLAINT: usize = 200;

/// A connection to the registry of one image.
pub(super) struct Registry {
    http: Client,
    /// `https://<registry>/v2/`
    root: String,
    name: ImageName,
    guard: Guard,
    authorization: Option<HeaderValue>,
    /// Whoever has not sent a document whole by then sends it drop by drop.
    patience: Duration,
}

impl Registry {
    /// Asks the registry for its authentication method, and gets a token if required. Fails if it is unreachable or refuses.
    pub(super) async fn connect(name: &ImageName, auth: &Auth, options: &Options) -> Result<Registry> {
        let read_timeout = Duration::from_secs(options.read_timeout_seconds);
        let host = name.reference().resolve_registry();
        let guard = Guard::new(host, name.is_loopback());
        let http = Client::new(&guard, read_timeout)?;
        let scheme = if name.is_loopback() { "http" } else { "https" };
        let mut registry = Registry {
            http,
            root: format!("{scheme}://{host}/v2/"),
            name: name.clone(),
            guard,
            authorization: None,
            patience: read_timeout * 2,
        };
        registry.authorization = registry.authorize(auth).await?;
        Ok(registry)
    }

    /// A manifest or index, by tag or digest.
    pub(super) async fn manifest(&self, reference: &str) -> Result<Bytes> {
        let url = format!("{}{}/manifests/{reference}", self.root, self.name.repository());
        let read = async {
            let response = self.get(&url, Some((ACCEPT, HeaderValue::from_static(MANIFEST_TYPES)))).await?;
            self.body(response, "manifest", MAX_DOCUMENT).await
        };
        self.in_time("manifest", read).await
    }

    /// A blob's bytes from `offset` on; from its start, if the registry responds with 200 instead of 206.
    pub(super) async fn blob(&self, digest: &str, offset: u64) -> Result<Response> {
        let url = format!("{}{}/blobs/{digest}", self.root, self.name.repository());
        let range = if offset > 0 { Some((RANGE, value(&format!("bytes={offset}-"))?)) } else { None };
        self.get(&url, range).await
    }

    /// A success, by the credentials that the registry has asked for.
    async fn get(&self, url: &str, header: Option<(HeaderName, HeaderValue)>) -> Result<Response> {
        let credentials = self.authorization.clone().map(|credentials| (AUTHORIZATION, credentials));
        let response = self.http.get(&self.check(url)?, header.into_iter().chain(credentials).collect()).await?;
        self.accepted(response, url).await
    }

    fn check(&self, url: &str) -> Result<Url> {
        let url = Url::parse(url).map_err(|e| ImageError::Network(format!("{:?}: {e}", cut(url))))?;
        self.guard.check(&url).map_err(ImageError::Network)?;
        Ok(url)
    }

    /// The `Authorization` header for what follows.
    async fn authorize(&self, auth: &Auth) -> Result<Option<HeaderValue>> {
        if let Auth::RegistryToken(token) = auth {
            return bearer(token).map(Some);
        }
        let asked = self.http.get(&self.check(&self.root)?, HeaderMap::new()).await?;
        let Some(challenge) = Challenge::read(asked.headers()) else {
            return match auth {
                Auth::Basic { username, password } if asked.headers().contains_key(WWW_AUTHENTICATE) => {
                    basic(username, password).map(Some)
                }
                Auth::IdentityToken(_) => {
                    Err(ImageError::Unauthorized(format!("{} takes no identity token", self.root)))
                }
                _ => Ok(None),
            };
        };
        let token = self.in_time("token", self.token(auth, &challenge)).await?;
        bearer(&token).map(Some)
    }

    /// A token for pulling from this repository (distribution's token spec; OAuth2's `refresh_token` grant for identity tokens).
    async fn token(&self, auth: &Auth, challenge: &Challenge) -> Result<String> {
        let realm = self.check(&challenge.realm).map_err(|e| e.context("token server"))?;
        let scope = format!("repository:{}:pull", self.name.repository());
        let mut fields = vec![("scope", scope.as_str())];
        fields.extend(challenge.service.as_deref().map(|service| ("service", service)));
        let response = match auth {
            Auth::IdentityToken(token) => {
                let grant = [("grant_type", "refresh_token"), ("client_id", "podwright"), ("refresh_token", token)];
                let form = encode(&[grant.as_slice(), &fields].concat());
                let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
                // The credential goes where it is sent, and is led nowhere else.
                self.http.post(&realm, HeaderMap::from_iter([(CONTENT_TYPE, kind)]), form.into()).await?
            }
            _ => {
                let mut url = realm.clone();
                url.query_pairs_mut().extend_pairs(fields);
                let credentials = match auth {
                    Auth::Basic { username, password } => Some((AUTHORIZATION, basic(username, password)?)),
                    _ => None,
                };
                self.http.get(&url, credentials.into_iter().collect()).await?
            }
        };
        let (status, is_own) = (response.status(), self.guard.is_own(response.url()));
        let body = self.body(response, "token", MAX_ANSWER).await?;
        if !status.is_success() {
            let said = if is_own { quoted(&body) } else { String::new() };
            let what = format!("failed to fetch token: unexpected status from {}: {status}{said}", shown(&realm));
            return Err(if status.is_client_error() { denied(what) } else { ImageError::Network(what) });
        }
        // The content is not for the Pod: the response is not quoted.
        token_of(&body).ok_or_else(|| ImageError::Network(format!("bad answer of the token server {}", shown(&realm))))
    }

    async fn in_time<T>(&self, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        let late = || ImageError::Network(format!("{what}: not here after {} s", self.patience.as_secs()));
        tokio::time::timeout(self.patience, work).await.map_err(|_| late())?
    }

    async fn body(&self, mut response: Response, what: &str, limit: u64) -> Result<Bytes> {
        let mut body = Vec::new();
        while let Some(bytes) = response.chunk().await? {
            if (body.len() + bytes.len()) as u64 > limit {
                return Err(ImageError::Invalid(format!("{what} has more than {limit} bytes")));
            }
            body.extend_from_slice(&bytes);
        }
        Ok(body.into())
    }

    /// The response, if it is a success; else its error, in containerd's words where it has some.
    async fn accepted(&self, response: Response, url: &str) -> Result<Response> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status == StatusCode::UNAUTHORIZED {
            return Err(denied(format!("authorization failed: {url}: 401 Unauthorized")));
        }
        // What a host that the registry redirected to says is not for the Pod.
        let body = match self.guard.is_own(response.url()) {
            true => self.in_time("answer", self.body(response, "answer", MAX_ANSWER)).await.unwrap_or_default(),
            false => Bytes::new(),
        };
        Err(refusal(&self.name, url, status, &body))
    }
}

/// The error of an unsuccessful response.
pub(super) fn refusal(name: &ImageName, url: &str, status: StatusCode, body: &[u8]) -> ImageError {
    let said: Complaints = serde_json::from_slice(body).unwrap_or_default();
    let has = |codes: &[&str]| said.errors.iter().any(|e| codes.contains(&e.code.as_str()));
    let lines: Vec<String> = said.errors.iter().map(|e| format!("{}: {}", e.code, e.message)).collect();
    let message = || cut(&lines.join(", "));
    if has(&["UNAUTHORIZED", "DENIED"]) {
        denied(format!("server message: {}", message()))
    } else if status == StatusCode::NOT_FOUND || has(&UNKNOWN) {
        ImageError::NotFound(format!("{name}: not found"))
    } else if status == StatusCode::FORBIDDEN {
        denied(format!("{url}: {status}{}", quoted(body)))
    } else if !lines.is_empty() {
        ImageError::Network(format!("{url}: server message: {}", message()))
    } else {
        ImageError::Network(format!("unexpected status from {url}: {}{}", status.as_u16(), quoted(body)))
    }
}

/// The token in a token server's response, valid in a header.
pub(super) fn token_of(body: &[u8]) -> Option<String> {
    let answer: TokenAnswer = serde_json::from_slice(body).ok()?;
    answer.token.or(answer.access_token).filter(|token| token.bytes().all(|b| b.is_ascii_graphic()))
}

const UNKNOWN: [&str; 5] = ["MANIFEST_UNKNOWN", "NAME_UNKNOWN", "NOT_FOUND", "BLOB_UNKNOWN", "MANIFEST_BLOB_UNKNOWN"];

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: Option<String>,
    token: Option<String>,
}

#[derive(Deserialize, Default)]
struct Complaints {
    #[serde(default)]
    errors: Vec<Complaint>,
}

#[derive(Deserialize)]
struct Complaint {
    code: String,
    #[serde(default)]
    message: String,
}

/// A `WWW-Authenticate: Bearer realm="..",service=".."`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Challenge {
    pub(super) realm: String,
    service: Option<String>,
}

impl Challenge {
    pub(super) fn read(headers: &HeaderMap) -> Option<Challenge> {
        headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|h| h.to_str().ok()).find_map(|challenge| {
            Some(Challenge { realm: parameter(challenge, "realm")?, service: parameter(challenge, "service") })
        })
    }
}

/// The value of `key="value"` in a `Bearer` challenge.
fn parameter(challenge: &str, key: &str) -> Option<String> {
    let (scheme, mut rest) = challenge.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    loop {
        let (name, after) = rest.split_once("=\"")?;
        let (value, after) = after.split_once('"')?;
        if name.trim_matches([',', ' ']).eq_ignore_ascii_case(key) {
            return Some(value.to_owned());
        }
        rest = after;
    }
}

fn basic(username: &str, password: &str) -> Result<HeaderValue> {
    value(&format!("Basic {}", STANDARD.encode(format!("{username}:{password}"))))
}

fn bearer(token: &str) -> Result<HeaderValue> {
    value(&format!("Bearer {token}"))
}

/// A header's value. Errors: a character that no header has, which only a Secret's own token brings along.
fn value(text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text)
        .map_err(|_| ImageError::Unauthorized("the token has characters that no header may have".into()))
}

fn encode(form: &[(&str, &str)]) -> String {
    let pairs: Vec<String> = form.iter().map(|(key, value)| format!("{key}={}", percent_encode(value))).collect();
    pairs.join("&")
}

fn percent_encode(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => (byte as char).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

fn denied(detail: String) -> ImageError {
    let what = "pull access denied, repository does not exist or may require authorization";
    ImageError::Unauthorized(format!("{what}: {detail}"))
}

/// A server's unstructured error message, for the end of ours: one line, shortened.
fn quoted(body: &[u8]) -> String {
    match String::from_utf8_lossy(body).trim() {
        "" => String::new(),
        said => format!(": {}", cut(said)),
    }
}

fn cut(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_COMPLAINT).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn challenges_are_read() {
        let challenge = r#"Bearer realm="https://auth.example/token",service="reg,x",scope="repository:a:pull""#;
        let mut headers = HeaderMap::new();
        headers.append(WWW_AUTHENTICATE, "Basic realm=\"x\"".parse().unwrap());
        assert_eq!(Challenge::read(&headers), None);
        headers.append(WWW_AUTHENTICATE, challenge.parse().unwrap());
        let expected = Challenge { realm: "https://auth.example/token".into(), service: Some("reg,x".into()) };
        assert_eq!(Challenge::read(&headers), Some(expected));
        assert_eq!(parameter(challenge, "other"), None);
        assert_eq!(percent_encode("a b/ä"), "a%20b%2F%C3%A4");
    }

    #[tokio::test]
    async fn of_a_request_that_fails_little_is_said_of_where_it_went() {
        // Port 1 of loopback: nobody listens there.
        let url = format!("http://127.0.0.1:1/{}?secret=1", "r".repeat(60_000)).parse().unwrap();
        let client = Client::new(&Guard::new("127.0.0.1:1", true), Duration::from_secs(5)).unwrap();
        let said = client.get(&url, HeaderMap::new()).await.err().unwrap().to_string();
        assert!(said.contains("refused"), "{said}");
        assert!(said.len() < 1000 && said.contains("rrr...") && !said.contains("secret"), "{}", said.len());
    }

    /// A server on loopback that responds by path, and the requests it got.
    async fn serve(answer: impl Fn(&str) -> String + Send + 'static) -> (String, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, asked) = (listener.local_addr().unwrap().to_string(), Arc::new(Mutex::new(Vec::new())));
        let heard = asked.clone();
        tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut head = vec![0; 4096];
                let read = client.read(&mut head).await.unwrap();
                let head = String::from_utf8_lossy(&head[..read]);
                let path = head.split(' ').nth(1).unwrap_or_default();
                heard.lock().unwrap().push(path.to_owned());
                client.write_all(answer(path).as_bytes()).await.unwrap();
            }
        });
        (address, asked)
    }

    fn said(status: &str, headers: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
    }

    async fn error_of(address: &str) -> String {
        let name = ImageName::parse(&format!("{address}/a:1")).unwrap();
        match Registry::connect(&name, &Auth::Anonymous, &Options::default()).await {
            Ok(registry) => registry.manifest("1").await.unwrap_err().to_string(),
            Err(why) => why.to_string(),
        }
    }

    #[tokio::test]
    async fn a_registry_on_loopback_leads_to_its_own_port_alone() {
        let (neighbour, asked) = serve(|_| said("418 I'm a teapot", "", "the neighbour's secret")).await;
        let there = format!("http://{neighbour}/admin");
        let location = format!("location: {there}\r\n");
        let (redirects, _) = serve(move |path| match path {
            "/v2/" => said("200 OK", "", ""),
            _ => said("307 Temporary Redirect", &location, ""),
        })
        .await;
        let challenge = format!("www-authenticate: Bearer realm=\"{there}\"\r\n");
        let (challenges, _) = serve(move |_| said("401 Unauthorized", &challenge, "")).await;
        for registry in [redirects, challenges] {
            let error = error_of(&registry).await;
            assert!(error.contains("must not lead to other ports of the node itself"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        assert_eq!(*asked.lock().unwrap(), [""; 0]);
    }

    #[tokio::test]
    async fn a_registry_leads_to_itself_and_is_quoted() {
        let (own, asked) = serve(|path| match path {
            "/v2/" => said("200 OK", "", ""),
            "/busy" => said("503 Service Unavailable", "", "come later"),
            _ => said("307 Temporary Redirect", "location: /busy\r\n", ""),
        })
        .await;
        let error = error_of(&own).await;
        assert!(error.ends_with(": 503: come later"), "{error}");
        assert_eq!(*asked.lock().unwrap(), ["/v2/", "/v2/a/manifests/1", "/busy"]);
    }

    #[test]
    fn complaints_are_cut_to_a_line() {
        assert_eq!(quoted(b" a\nb\x1b[2J "), ": a b [2J");
        assert_eq!(quoted("ä".repeat(1000).as_bytes()).chars().count(), 2 + MAX_COMPLAINT);
        assert_eq!(quoted(b" \n"), "");
    }
}

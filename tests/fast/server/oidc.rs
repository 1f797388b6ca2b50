//! Tokens of an OpenID Connect issuer, whose keys come from a file or from the issuer itself.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http_body_util::Full;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use podwright::api::{Env, User};
use podwright::server::{Config, Oidc, OidcConfig, Server};
use podwright::store::Memory;
use rcgen::KeyPair;
use serde_json::{Value, json};

use super::Api;
use super::https::Https;

/// An ES256 key of an issuer, which signs with it and publishes it.
struct Key {
    id: Option<&'static str>,
    pair: KeyPair,
}

impl Key {
    fn new(id: &'static str) -> Key {
        Key { id: Some(id), pair: KeyPair::generate().unwrap() }
    }

    fn nameless() -> Key {
        Key { id: None, pair: KeyPair::generate().unwrap() }
    }

    fn published(&self) -> Value {
        // An uncompressed point: 4, x, y.
        let point = self.pair.public_key_raw();
        let mut key = json!({
            "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig",
            "x": URL_SAFE_NO_PAD.encode(&point[1..33]), "y": URL_SAFE_NO_PAD.encode(&point[33..]),
        });
        if let Some(id) = self.id {
            key["kid"] = id.into();
        }
        key
    }

    /// A token for Ann of the developers, unless changed.
    fn sign(&self, issuer: &str, now: i64, change: Value) -> String {
        let mut claims = json!({"iss": issuer, "aud": "podwright", "sub": "ann", "exp": now + 600, "groups": ["devs"]});
        claims.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let head = Header { kid: self.id.map(str::to_owned), ..Header::new(Algorithm::ES256) };
        jsonwebtoken::encode(&head, &claims, &EncodingKey::from_ec_der(self.pair.serialized_der())).unwrap()
    }
}

fn config(issuer: &str) -> OidcConfig {
    OidcConfig {
        issuer: issuer.into(),
        client_id: "podwright".into(),
        groups_claim: Some("groups".into()),
        groups_prefix: "oidc:".into(),
        ..OidcConfig::default()
    }
}

#[tokio::test]
async fn an_issuers_tokens_are_recognized_by_its_keys() {
    let (key, forged) = (Key::new("k1"), Key::new("k1"));
    let folder = tempfile::tempdir().unwrap();
    let jwks_file = folder.path().join("keys.json");
    std::fs::write(&jwks_file, json!({"keys": [key.published()]}).to_string()).unwrap();
    let issuer = "https://login.example.com";
    let oidc = Oidc::new(OidcConfig { jwks_file: Some(jwks_file), ..config(issuer) }).unwrap();
    let api = Api::with(Config { oidc: Some(oidc), ..Config::default() }).await;
    let now = Env::system().now().as_second();
    let user = api.0.authenticate_token(&key.sign(issuer, now, json!({})), &[]).await.unwrap().user;
    assert_eq!(user, User::new("https://login.example.com#ann", ["oidc:devs"]));
    let wrong = [
        forged.sign(issuer, now, json!({})),
        key.sign(issuer, now, json!({"aud": "another"})),
        key.sign(issuer, now, json!({"aud": null})),
        key.sign(issuer, now, json!({"aud": 5})),
        key.sign(issuer, now, json!({"iss": null})),
        key.sign(issuer, now, json!({"iss": "https://evil.example.com"})),
        key.sign(issuer, now, json!({"exp": now - 1})),
        key.sign(issuer, now, json!({"nbf": now + 600})),
        key.sign(issuer, now, json!({"sub": ""})),
    ];
    for token in wrong {
        assert_eq!(api.0.authenticate_token(&token, &[]).await.unwrap_err().code, 401);
    }
}

/// An issuer as it serves its document and its keys.
struct Issuer {
    url: String,
    ca_file: PathBuf,
    keys: Arc<Mutex<Value>>,
    asked: Arc<AtomicUsize>,
    _server: Https,
    _folder: tempfile::TempDir,
}

impl Issuer {
    async fn start(keys: &[&Key]) -> Issuer {
        let keys = Arc::new(Mutex::new(Issuer::published(keys)));
        let asked = Arc::new(AtomicUsize::new(0));
        let (served, count) = (keys.clone(), asked.clone());
        let server = Https::start(move |http| {
            count.fetch_add(1, Ordering::Relaxed);
            // The port is the one that was asked.
            let host = http.headers()["host"].to_str().unwrap().to_owned();
            let document = match http.uri().path() {
                "/realm/.well-known/openid-configuration" => {
                    json!({"issuer": format!("https://{host}/realm"), "jwks_uri": format!("https://{host}/keys?all=yes")})
                }
                "/other/.well-known/openid-configuration" => {
                    json!({"issuer": "https://elsewhere", "jwks_uri": format!("https://{host}/keys")})
                }
                "/plain/.well-known/openid-configuration" => {
                    json!({"issuer": format!("https://{host}/plain"), "jwks_uri": format!("http://{host}/keys")})
                }
                "/keys" => served.lock().unwrap().clone(),
                _ => Value::Null,
            };
            std::future::ready(Ok(hyper::Response::new(Full::from(document.to_string()))))
        });
        let server = server.await;
        let folder = tempfile::tempdir().unwrap();
        let ca_file = folder.path().join("ca.pem");
        std::fs::write(&ca_file, &server.ca).unwrap();
        let url = format!("https://localhost:{}/realm", server.port);
        Issuer { url, ca_file, keys, asked, _server: server, _folder: folder }
    }

    fn published(keys: &[&Key]) -> Value {
        json!({"keys": keys.iter().map(|key| key.published()).collect::<Vec<_>>()})
    }

    fn config(&self, url: &str) -> Config {
        let oidc = OidcConfig { ca_file: Some(self.ca_file.clone()), ..config(url) };
        Config { oidc: Some(Oidc::new(oidc).unwrap()), ..Config::default() }
    }
}

#[tokio::test]
async fn an_issuer_is_asked_for_its_keys_and_may_change_them() {
    let (old, new, unknown) = (Key::new("old"), Key::new("new"), Key::new("unknown"));
    let issuer = Issuer::start(&[&old]).await;
    let env = Env::simulated(Env::system().now(), 1);
    let api = Api(Server::open(Arc::new(Memory::new()), env.clone(), issuer.config(&issuer.url)).await.unwrap());
    let now = env.now().as_second();
    let name = |key: &Key| {
        let (api, token) = (&api, key.sign(&issuer.url, now, json!({})));
        async move { api.0.authenticate_token(&token, &[]).await.map(|it| it.user.name).map_err(|status| status.code) }
    };
    let ann = Ok(format!("{}#ann", issuer.url));
    assert_eq!(name(&old).await, ann);
    assert_eq!(issuer.asked.load(Ordering::Relaxed), 2, "the document, then the keys");
    // It is not asked again for keys that are known, nor at once for those that are not.
    assert_eq!(name(&old).await, ann);
    *issuer.keys.lock().unwrap() = Issuer::published(&[&old, &new]);
    for _ in 0..3 {
        assert_eq!((name(&new).await, name(&unknown).await), (Err(401), Err(401)));
    }
    assert_eq!(issuer.asked.load(Ordering::Relaxed), 2);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    assert_eq!(name(&new).await, ann);
    assert_eq!(name(&old).await, ann);
    assert_eq!(issuer.asked.load(Ordering::Relaxed), 4);

    // Keys need no names; and one that means nothing here spoils none of the others.
    let nameless = Key::nameless();
    *issuer.keys.lock().unwrap() =
        json!({"keys": [{"kty": "OKP", "crv": "X9", "kid": "odd"}, nameless.published(), new.published()]});
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    assert_eq!(name(&nameless).await, ann);
    assert_eq!(name(&new).await, ann);
    assert_eq!(name(&old).await, Err(401), "the issuer has withdrawn it");
    let other = Value::from("another");
    let refused = api.0.authenticate_token(&nameless.sign(&issuer.url, now, json!({"aud": other})), &[]).await;
    assert_eq!(refused.unwrap_err().code, 401);
    assert_eq!(issuer.asked.load(Ordering::Relaxed), 6);
}

#[tokio::test]
async fn an_issuer_that_cannot_be_trusted_is_not() {
    let key = Key::new("k1");
    let issuer = Issuer::start(&[&key]).await;
    let now = Env::system().now().as_second();
    let base = issuer.url.strip_suffix("/realm").unwrap();
    let stranger = Config { oidc: Some(Oidc::new(config(&issuer.url)).unwrap()), ..Config::default() };
    let wrong = [
        // The document is another issuer's; the keys would come unprotected; there is no document.
        (format!("{base}/other"), issuer.config(&format!("{base}/other"))),
        (format!("{base}/plain"), issuer.config(&format!("{base}/plain"))),
        (format!("{base}/nothing"), issuer.config(&format!("{base}/nothing"))),
        // Signed by nobody whom the system knows.
        (issuer.url.clone(), stranger),
    ];
    for (url, config) in wrong {
        let api = Api::with(config).await;
        // That its keys cannot be read says nothing of a token, also while they are not asked for again.
        for _ in 0..2 {
            let refused = api.0.authenticate_token(&key.sign(&url, now, json!({})), &[]).await;
            assert_eq!(refused.unwrap_err().code, 503, "{url}");
        }
    }
    for url in ["http://localhost/realm", "localhost", "https://", ""] {
        let error = Oidc::new(config(url)).unwrap_err().to_string();
        assert!(error.contains("https"), "{url}: {error}");
    }
}

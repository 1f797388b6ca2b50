//! A webhook for tests: a real one, over TLS on loopback.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper::{Request as HttpRequest, Response as HttpResponse, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::net::TcpListener;

type Answer = dyn Fn(&Value) -> Value + Send + Sync;

/// A webhook that runs, and what it was asked.
pub struct Hook {
    pub port: u16,
    pub ca: String,
    seen: Arc<Mutex<Vec<Value>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Hook {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Hook {
    /// Answers each request with the `response` that `answer` makes of it; its uid is filled in. An answer with `raw` is
    /// sent as that; one with `wait` comes too late.
    pub async fn new(answer: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Hook {
        let names = ["localhost", "127.0.0.1", "hook.default.svc"].map(str::to_owned);
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = builder.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (asked, answer): (_, Arc<Answer>) = (seen.clone(), Arc::new(answer));
        let task = tokio::spawn(async move {
            let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, asked, answer) = (acceptor.clone(), asked.clone(), answer.clone());
                tokio::spawn(async move {
                    // Who does not trust us hangs up.
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let serve = service_fn(move |http| reply(http, asked.clone(), answer.clone()));
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), serve).await.ok();
                });
            }
        });
        Hook { port, ca: STANDARD.encode(made.cert.pem()), seen, task }
    }

    pub async fn allowing() -> Hook {
        Hook::new(|_| json!({"allowed": true})).await
    }

    /// One entry of a configuration, for Pods' creation unless changed.
    pub fn entry(&self, name: &str, more: Value) -> Value {
        let mut entry = json!({
            "name": name, "clientConfig": {"url": format!("https://127.0.0.1:{}", self.port), "caBundle": self.ca},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
        });
        json_patch::merge(&mut entry, &more);
        entry
    }

    pub fn requests(&self) -> Vec<Value> {
        self.seen.lock().unwrap().iter().map(|document| document["request"].clone()).collect()
    }

    /// `CREATE pods p`, ...
    pub fn lines(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let line = |request: &Value| {
            let resource = [text(&request["resource"]["resource"]), text(&request["subResource"])];
            let resource = resource.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join("/");
            format!("{} {resource} {}", text(&request["operation"]), text(&request["name"]))
        };
        self.requests().iter().map(line).collect()
    }
}

async fn reply(
    http: HttpRequest<hyper::body::Incoming>,
    asked: Arc<Mutex<Vec<Value>>>,
    answer: Arc<Answer>,
) -> Result<HttpResponse<Full<Bytes>>, hyper::Error> {
    let body = http.into_body().collect().await?.to_bytes();
    let document: Value = serde_json::from_slice(&body).unwrap();
    let request = document["request"].clone();
    asked.lock().unwrap().push(document.clone());
    let mut response = answer(&request);
    if response["wait"] == true {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    if let Some(code) = response["code"].as_u64() {
        let code = StatusCode::from_u16(code as u16).unwrap();
        return Ok(HttpResponse::builder().status(code).body(Full::from("trouble")).unwrap());
    }
    if let Some(raw) = response.get("raw") {
        return Ok(HttpResponse::new(Full::from(raw.to_string())));
    }
    if response["uid"].is_null() {
        response["uid"] = request["uid"].clone();
    }
    let review = json!({"kind": "AdmissionReview", "apiVersion": document["apiVersion"], "response": response});
    Ok(HttpResponse::new(Full::from(review.to_string())))
}

/// An answer that changes the object.
pub fn patch(operations: Value) -> Value {
    json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(operations.to_string())})
}

/// One that adds a label.
pub fn label(name: &str) -> Value {
    patch(json!([{"op": "add", "path": format!("/metadata/labels/{name}"), "value": "yes"}]))
}

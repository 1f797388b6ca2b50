//! A webhook for tests: a real one, over TLS on loopback.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request as HttpRequest, Response as HttpResponse, StatusCode};
use serde_json::{Value, json};

use crate::server::https::Https;

type Answer = dyn Fn(&Value) -> Value + Send + Sync;

/// A webhook that runs, and what it was asked.
pub struct Hook {
    pub port: u16,
    pub ca: String,
    seen: Arc<Mutex<Vec<Value>>>,
    _server: Https,
}

impl Hook {
    /// Answers each request with the `response` that `answer` makes of it; its uid is filled in. An answer with `raw` is
    /// sent as that; one with `wait` comes too late.
    pub async fn new(answer: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Hook {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (asked, answer): (_, Arc<Answer>) = (seen.clone(), Arc::new(answer));
        let server = Https::start(move |http| reply(http, asked.clone(), answer.clone())).await;
        Hook { port: server.port, ca: STANDARD.encode(&server.ca), seen, _server: server }
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

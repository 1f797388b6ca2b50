//! The REST face, driven in memory: no network, the same service that connections get.

mod aggregation;
mod answers;
mod custom;
mod deletions;
mod dialects;
mod discovery;
mod ends;
mod limits;
mod memory;
mod metrics;
mod objects;
mod pace;
mod proxy;
mod published;
mod reads;
mod refused;
mod sessions;
mod smuggling;
mod streams;
mod tls;
mod who;
mod zpages;

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request};
use podwright::server::rest::authenticate::Peer;
use podwright::server::rest::{Face, boxed};
use serde_json::Value;

use super::Api;

/// A server's REST face, asked as root on the socket.
struct Rest {
    api: Api,
    face: Arc<Face>,
}

/// An answer, read to its end.
struct Told {
    code: u16,
    headers: HeaderMap,
    bytes: Bytes,
}

impl Told {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|e| panic!("{e}: {:?}", self.text()))
    }
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

impl Rest {
    async fn new() -> Rest {
        let api = Api::new().await;
        Rest { face: Face::new(api.0.clone()), api }
    }

    /// `GET /path` or `POST /path`, headers, body.
    async fn ask(&self, line: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Told {
        let root = Peer { root: true, certificate: None, until: None };
        self.ask_as(&root, line, headers, body).await
    }

    async fn ask_as(&self, peer: &Peer, line: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Told {
        let (method, path) = line.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let (head, body) = self.face.answer(peer, boxed(request)).await.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Told { code: head.status.as_u16(), headers: head.headers, bytes }
    }

    async fn get(&self, path: &str) -> Told {
        self.ask(&format!("GET {path}"), &[], "").await
    }
    async fn post(&self, path: &str, object: Value) -> Told {
        self.ask(&format!("POST {path}"), &[("content-type", "application/json")], object.to_string()).await
    }
}

//! The REST API, as used by a client library: over TLS with the administrator's certificate, of a separate server process.
//!
//! The load comes from this process and shares the machine's CPUs with the server; it does as little as possible with responses,
//! and its own CPU time is printed beside the server's.

mod reads;
mod stored;
mod watchers;

pub use reads::requests;
pub use stored::stored;
pub use watchers::watchers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::TestNode;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// `podwright server`, and the administrator's connection to it.
struct Served {
    node: TestNode,
    address: String,
    connector: TlsConnector,
}

/// One connection with keep-alive.
struct Connection(SendRequest<Full<Bytes>>);

impl Served {
    fn start() -> Served {
        let node = TestNode::server(&["--listen", "127.0.0.1:0"]);
        let (address, config) = crate::support::tls::client(&node, true);
        // Pods are admitted once their namespace has its ServiceAccount.
        crate::support::eventually("there is a ServiceAccount", Duration::from_secs(20), || {
            match node.run(&["get", "serviceaccount", "default"]) {
                answer if answer.code == 0 => Ok(()),
                answer => Err(answer.all()),
            }
        });
        Served { node, address, connector: TlsConnector::from(config) }
    }

    async fn connect(&self) -> Connection {
        let stream = TcpStream::connect(&self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = self.connector.connect(name, stream).await.unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        // The requester gets its error as well.
        tokio::spawn(async move { drop(connection.await) });
        Connection(sender)
    }

    /// Creates Pods `p-FROM`..`p-TO` over this many connections; returns the rate per second.
    async fn create_pods(&self, range: std::ops::Range<usize>, connections: usize) -> f64 {
        let (start, count) = (Instant::now(), range.len());
        let next = Arc::new(std::sync::atomic::AtomicUsize::new(range.start));
        let mut writers = Vec::new();
        for _ in 0..connections {
            let (mut connection, next) = (self.connect().await, next.clone());
            writers.push(tokio::spawn(async move {
                loop {
                    let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if i >= range.end {
                        break;
                    }
                    connection.create(PODS, &pod(i)).await;
                }
            }));
        }
        for writer in writers {
            writer.await.unwrap();
        }
        count as f64 / start.elapsed().as_secs_f64()
    }
}

impl Connection {
    async fn send(&mut self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        self.0.ready().await.unwrap();
        self.0.send_request(request).await.unwrap()
    }

    /// The length of the body, and its first piece: a list's metadata comes before its items.
    async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> (usize, Bytes) {
        let mut request = Request::builder().uri(path).header("host", "x");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = self.send(request.body(Full::default()).unwrap()).await;
        assert_eq!(answer.status().as_u16(), 200, "{path}");
        let (mut body, mut length, mut first) = (answer.into_body(), 0, Bytes::new());
        while let Some(frame) = body.frame().await {
            let data = frame.unwrap().into_data().unwrap_or_default();
            if length == 0 {
                first = data.clone();
            }
            length += data.len();
        }
        (length, first)
    }

    async fn write(&mut self, method: Method, path: &str, object: &Value, code: u16) {
        let request = Request::builder().method(method).uri(path).header("host", "x");
        let request = request.header("content-type", "application/json");
        let answer = self.send(request.body(Full::from(object.to_string())).unwrap()).await;
        let got = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(got, code, "{}", String::from_utf8_lossy(&body));
    }

    async fn create(&mut self, path: &str, object: &Value) {
        self.write(Method::POST, path, object, 201).await;
    }
}

/// A typical Pod of a small service; it is not scheduled.
fn pod(i: usize) -> Value {
    let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10});
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("p-{i}"), "labels": {"app": format!("web-{}", i % 100), "tier": "front"},
            "annotations": {"example.org/note": "what a deployment's tool leaves behind"}},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "web", "image": "registry.example.org/web:1.2.3",
            "args": ["--listen=:8080", "--verbose"], "ports": [{"name": "http", "containerPort": 8080}],
            "env": [{"name": "MODE", "value": "production"},
                {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
            "livenessProbe": probe, "readinessProbe": probe}]}})
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

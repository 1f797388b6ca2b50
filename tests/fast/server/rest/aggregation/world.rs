//! A server, a node whose every dial leads to an extension server, and that one.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request as HttpRequest, Response as HttpResponse, Uri};
use podwright::api::rpc::Task;
use podwright::api::stream::{Frame, FrameCodec, STDIN, STDOUT};
use podwright::client::rpc;
use podwright::server::listen::{bind, serve};
use podwright::server::rest::Face;
use podwright::server::{Config, Limits, SessionLimits};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::codec::Framed;

use super::super::super::https::Https;
use super::super::super::{Api, service};
use super::super::Rest;

pub const GROUP: &str = "ext.example.com";
pub const NAME: &str = "v1.ext.example.com";
pub const THINGS: &str = "/apis/ext.example.com/v1/namespaces/default/things";

/// What the extension server was asked: the line, and the headers, a line each.
pub type Heard = Arc<Mutex<Vec<(String, Vec<String>, String)>>>;

/// What an extension server answers to a method, a target and a body.
pub type Answer = Arc<dyn Fn(&Method, &Uri, &str) -> (u16, String) + Send + Sync>;

pub struct World {
    pub rest: Rest,
    pub heard: Heard,
    /// Whether the extension server has trouble.
    pub broken: Arc<Mutex<bool>>,
    extension: Https,
    /// Where the node's dials lead.
    pub port: Arc<AtomicU16>,
    dir: tempfile::TempDir,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|task| task.abort());
    }
}

fn answer(path: &str) -> (u16, Value) {
    let openapi = json!({
        "paths": {"/apis/ext.example.com/v1/things": {"get": {"schema": {"$ref": "#/definitions/Thing"}}}, "/api/v1/pods": {}},
        "definitions": {"Thing": {"type": "object"}, "Unused": {}},
    });
    match path {
        "/apis/ext.example.com/v1" => (
            200,
            json!({"kind": "APIResourceList", "groupVersion": "ext.example.com/v1", "resources": [
            {"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["get", "list"]}]}),
        ),
        "/openapi/v2" => (200, openapi),
        "/openapi/v3" => {
            (200, json!({"paths": {"apis/ext.example.com/v1": {"serverRelativeURL": "/openapi/v3/doc?hash=1"}}}))
        }
        "/openapi/v3/doc" => (200, json!({"openapi": "3.0.0", "of": "things"})),
        path if path.ends_with("/away") => (302, json!("elsewhere")),
        path if path.starts_with(THINGS) => (200, json!({"kind": "Thing", "path": path})),
        _ => (404, json!({"kind": "Status", "code": 404})),
    }
}

impl World {
    pub async fn new() -> World {
        World::with(SessionLimits::default()).await
    }

    pub async fn with(sessions: SessionLimits) -> World {
        let things = |_: &Method, uri: &Uri, _: &str| {
            let (code, value) = answer(uri.path());
            (code, value.to_string())
        };
        World::of(sessions, Arc::new(things)).await
    }

    pub async fn of(sessions: SessionLimits, answer: Answer) -> World {
        let limits = Limits { ask_again: Duration::from_millis(200), sessions, ..Limits::default() };
        let api = Api::with(Config { limits, ..Config::default() }).await;
        let rest = Rest { face: Face::new(api.0.clone()), api };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        let (listener, server) = (bind(&path).unwrap(), rest.api.0.clone());
        let serving = tokio::spawn(async move { serve(server, listener, None, std::future::pending()).await.unwrap() });
        let (heard, broken): (Heard, Arc<Mutex<bool>>) = Default::default();
        let (asked, trouble) = (heard.clone(), broken.clone());
        let extension = Https::start(move |request: HttpRequest<Incoming>| {
            let (asked, trouble, answer) = (asked.clone(), *trouble.lock().unwrap(), answer.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = String::from_utf8_lossy(&body.collect().await?.to_bytes()).into_owned();
                let headers = head.headers.iter();
                let headers = headers.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
                let (code, text) = match trouble {
                    true => (500, json!("trouble").to_string()),
                    false => answer(&head.method, &head.uri, &body),
                };
                asked.lock().unwrap().push((format!("{} {}", head.method, head.uri), headers, body));
                let mut reply = HttpResponse::builder().status(code).header("content-type", "application/json");
                if code == 302 {
                    reply = reply.header("location", "https://169.254.169.254/");
                }
                Ok(reply.body(Full::from(text)).unwrap())
            }
        })
        .await;
        let client = rpc::client(rpc::Address(path), "test");
        let mut sessions = client.sessions("n").await.unwrap();
        let port = Arc::new(AtomicU16::new(extension.port));
        let leads = port.clone();
        let agent = tokio::spawn(async move {
            while let Some(session) = sessions.recv().await {
                assert!(matches!(session.task, Task::Dial { .. }), "{:?}", session.task);
                let frames = Framed::new(client.dial(&session.id).await.unwrap(), FrameCodec);
                tokio::spawn(carry(frames, leads.load(Ordering::Relaxed)));
            }
        });
        World { rest, heard, broken, extension, port, dir, tasks: vec![serving, agent] }
    }

    pub async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join("api.sock")).await.unwrap()
    }

    /// A client of the server's socket.
    pub fn client(&self) -> podwright::client::Client {
        rpc::client(rpc::Address(self.dir.path().join("api.sock")), "test")
    }

    /// The Service of the extension server, whose certificate is for `hook.default.svc`, with one endpoint on the node.
    pub async fn serve(&self) {
        self.rest.api.create("services", service("hook", json!({"ports": [{"port": 443}]}))).await.unwrap();
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}},
            "ports": [{"name": "", "port": 6443, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.244.0.9"], "nodeName": "n"}]});
        self.rest.api.create("endpointslices", slice).await.unwrap();
    }

    pub async fn register(&self, change: Value) {
        let mut object = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": NAME},
            "spec": {"group": GROUP, "version": "v1", "groupPriorityMinimum": 1500, "versionPriority": 15,
                "caBundle": STANDARD.encode(&self.extension.ca), "service": {"namespace": "default", "name": "hook"}}});
        json_patch::merge(&mut object, &change);
        self.rest.api.create("apiservices", object).await.unwrap();
    }

    /// Lets ann read and make things, as long as there is the binding.
    pub async fn let_ann(&self) {
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "things"},
            "rules": [{"apiGroups": [GROUP], "resources": ["things"], "verbs": ["get", "create"]}]});
        self.rest.api.create("clusterroles", role).await.unwrap();
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "things"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "things"},
            "subjects": [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}]});
        self.rest.api.create("clusterrolebindings", binding).await.unwrap();
    }

    pub async fn ready() -> World {
        let world = World::new().await;
        world.serve().await;
        world.register(json!({})).await;
        world.until(NAME, "Passed").await;
        world
    }

    pub async fn until(&self, name: &str, reason: &str) -> String {
        let mut last = Value::Null;
        for _ in 0..600 {
            last = self.rest.api.get("apiservices", name).await.unwrap().0["status"]["conditions"][0].clone();
            if last["reason"] == reason {
                return last["message"].as_str().unwrap().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{name} is not {reason}: {last}");
    }

    /// What a document says once it has a word in it.
    pub async fn document(&self, path: &str, accept: &str, word: &str) -> Value {
        let mut last = String::new();
        for _ in 0..600 {
            let told = self.rest.ask(&format!("GET {path}"), &[("accept", accept)], "").await;
            last = told.text();
            if last.contains(word) {
                return told.json();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{path} has no {word}: {}", &last[..last.len().min(2000)]);
    }

    /// What it was asked last by this line.
    pub fn heard(&self, line: &str) -> (Vec<String>, String) {
        let heard = self.heard.lock().unwrap();
        let found = heard.iter().rev().find(|(asked, ..)| asked == line);
        let found = found.unwrap_or_else(|| panic!("{line} is not among {heard:?}"));
        (found.1.clone(), found.2.clone())
    }
}

async fn carry(frames: Framed<podwright::client::Stream, FrameCodec>, port: u16) {
    let (mut from, mut to) = TcpStream::connect(("127.0.0.1", port)).await.unwrap().into_split();
    let (mut sink, mut source) = frames.split();
    let up = async {
        while let Some(Ok(frame)) = source.next().await {
            if frame.channel != STDIN || to.write_all(&frame.payload).await.is_err() {
                break;
            }
        }
    };
    let down = async {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let payload = Bytes::copy_from_slice(&buffer[..count]);
            if sink.send(Frame { channel: STDOUT, payload }).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

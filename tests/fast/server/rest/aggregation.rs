//! What an extension API server serves, through the face of this one: who may ask, what gets there, what comes back.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request as HttpRequest, Response as HttpResponse};
use podwright::api::rpc::Task;
use podwright::api::stream::{Frame, FrameCodec, STDIN, STDOUT};
use podwright::api::{Options, User};
use podwright::client::rpc;
use podwright::server::listen::{bind, serve};
use podwright::server::rest::authenticate::Peer;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::codec::Framed;

use super::super::https::Https;
use super::super::service;
use super::Rest;

const GROUP: &str = "ext.example.com";
const NAME: &str = "v1.ext.example.com";
const THINGS: &str = "/apis/ext.example.com/v1/namespaces/default/things";

/// What the extension server was asked: the line, and the headers, a line each.
type Heard = Arc<Mutex<Vec<(String, Vec<String>, String)>>>;

/// A server, a node whose every dial leads to an extension server, and that one.
struct World {
    rest: Rest,
    heard: Heard,
    /// Whether the extension server has trouble.
    broken: Arc<Mutex<bool>>,
    extension: Https,
    _dir: tempfile::TempDir,
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
    async fn new() -> World {
        let rest = Rest::new().await;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        let (listener, server) = (bind(&path).unwrap(), rest.api.0.clone());
        let serving = tokio::spawn(async move { serve(server, listener, None, std::future::pending()).await.unwrap() });
        let (heard, broken): (Heard, Arc<Mutex<bool>>) = Default::default();
        let (asked, trouble) = (heard.clone(), broken.clone());
        let extension = Https::start(move |request: HttpRequest<Incoming>| {
            let (asked, trouble) = (asked.clone(), *trouble.lock().unwrap());
            async move {
                let (head, body) = request.into_parts();
                let body = String::from_utf8_lossy(&body.collect().await?.to_bytes()).into_owned();
                let headers = head.headers.iter();
                let headers = headers.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
                asked.lock().unwrap().push((format!("{} {}", head.method, head.uri), headers, body));
                let (code, value) = if trouble { (500, json!("trouble")) } else { answer(head.uri.path()) };
                let mut reply = HttpResponse::builder().status(code).header("content-type", "application/json");
                if code == 302 {
                    reply = reply.header("location", "https://169.254.169.254/");
                }
                Ok(reply.body(Full::from(value.to_string())).unwrap())
            }
        })
        .await;
        let client = rpc::client(rpc::Address(path), "test");
        let mut sessions = client.sessions("n").await.unwrap();
        let port = extension.port;
        let agent = tokio::spawn(async move {
            while let Some(session) = sessions.recv().await {
                assert!(matches!(session.task, Task::Dial { .. }), "{:?}", session.task);
                let frames = Framed::new(client.dial(&session.id).await.unwrap(), FrameCodec);
                tokio::spawn(carry(frames, port));
            }
        });
        World { rest, heard, broken, extension, _dir: dir, tasks: vec![serving, agent] }
    }

    /// The Service of the extension server, whose certificate is for `hook.default.svc`, with one endpoint on the node.
    async fn serve(&self) {
        self.rest.api.create("services", service("hook", json!({"ports": [{"port": 443}]}))).await.unwrap();
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}},
            "ports": [{"name": "", "port": 6443, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.244.0.9"], "nodeName": "n"}]});
        self.rest.api.create("endpointslices", slice).await.unwrap();
    }

    async fn register(&self, change: Value) {
        let mut object = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": NAME},
            "spec": {"group": GROUP, "version": "v1", "groupPriorityMinimum": 1500, "versionPriority": 15,
                "caBundle": STANDARD.encode(&self.extension.ca), "service": {"namespace": "default", "name": "hook"}}});
        json_patch::merge(&mut object, &change);
        self.rest.api.create("apiservices", object).await.unwrap();
    }

    async fn ready() -> World {
        let world = World::new().await;
        world.serve().await;
        world.register(json!({})).await;
        world.until(NAME, "Passed").await;
        world
    }

    async fn until(&self, name: &str, reason: &str) -> String {
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
    async fn document(&self, path: &str, accept: &str, word: &str) -> Value {
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
    fn heard(&self, line: &str) -> (Vec<String>, String) {
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

fn somebody(name: &str) -> Peer {
    Peer { root: false, certificate: Some(User::new(name, ["devs"])), until: None }
}

#[tokio::test]
async fn a_request_is_authorized_here_and_passed_on_with_a_front_proxys_word() {
    let world = World::ready().await;
    let ask = async |name: &str, line: &str, headers: &[(&str, &str)], body: &str| {
        world.rest.ask_as(&somebody(name), line, headers, body.to_owned()).await
    };
    let refused = ask("ann", &format!("GET {THINGS}/one"), &[], "").await;
    assert_eq!(refused.code, 403);
    let why = "things.ext.example.com \"one\" is forbidden: User \"ann\" cannot get resource \"things\" in API group \
               \"ext.example.com\" in the namespace \"default\"";
    assert_eq!(refused.json()["message"], why);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "things"},
        "rules": [{"apiGroups": [GROUP], "resources": ["things"], "verbs": ["get", "create"]}]});
    world.rest.api.create("clusterroles", role).await.unwrap();
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "things"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "things"},
        "subjects": [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}]});
    world.rest.api.create("clusterrolebindings", binding).await.unwrap();
    let forged = [
        ("x-remote-user", "root"),
        ("X-Remote-Group", "system:masters"),
        ("X-Remote-Extra-Scopes", "all"),
        ("x-remote-uid", "0"),
        ("X_Remote_Group", "system:masters"),
        ("X-HTTP-Method-Override", "DELETE"),
        ("X-Original-URL", "/apis/ext.example.com/v1/secrets"),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("cookie", "a=b"),
    ];
    let told = ask("ann", &format!("GET {THINGS}/one?x=%2F1"), &forged, "").await;
    assert_eq!(
        (told.code, told.json()["path"].as_str()),
        (200, Some("/apis/ext.example.com/v1/namespaces/default/things/one"))
    );
    let (headers, _) = world.heard(&format!("GET {THINGS}/one?x=%2F1"));
    let remote: Vec<&String> = headers.iter().filter(|line| line.starts_with("x-remote-")).collect();
    assert_eq!(remote, ["x-remote-user: ann", "x-remote-group: devs", "x-remote-group: system:authenticated"]);
    assert!(headers.contains(&"host: hook.default.svc:443".to_owned()), "{headers:?}");
    for gone in ["x_remote", "x-http-method", "x-original", "traceparent", "x-forwarded"] {
        assert!(!headers.iter().any(|line| line.starts_with(gone)), "{gone}: {headers:?}");
    }
    let told = ask("ann", &format!("POST {THINGS}"), &[("content-type", "application/json")], "{\"a\": 1}").await;
    assert_eq!(told.code, 200);
    assert_eq!(world.heard(&format!("POST {THINGS}")).1, "{\"a\": 1}");
    // Whoever acts as somebody else is that one there; how he came to be is nobody's business.
    let acting =
        [("impersonate-user", "bob"), ("impersonate-group", "system:masters"), ("authorization", "Basic eDp5")];
    let told = world.rest.ask(&format!("GET {THINGS}/two"), &acting, "").await;
    assert_eq!(told.code, 200);
    let (headers, _) = world.heard(&format!("GET {THINGS}/two"));
    assert!(headers.contains(&"x-remote-user: bob".to_owned()), "{headers:?}");
    assert!(
        !headers.iter().any(|line| line.starts_with("impersonate") || line.starts_with("authorization")),
        "{headers:?}"
    );
    // Paths that the other server may read otherwise than they were authorized.
    for path in ["things/..%2f..%2fsecrets", "things/%2e%2e/x", "things//x", "../v1/things", "things/a%252fb", "things/a;b", "things/a%3Fb"] {
        let told = world.rest.get(&format!("/apis/ext.example.com/v1/namespaces/default/{path}")).await;
        assert_eq!(told.code, 400, "{path}: {}", told.text());
    }
    for path in ["/apis/ext%2Eexample.com/v1/things", "/apis/ext.example.com/%761/things"] {
        let told = world.rest.get(path).await;
        assert_eq!(told.code, 400, "{path}: {}", told.text());
    }
    let told = world.rest.get(&format!("{THINGS}/away")).await;
    assert_eq!(told.code, 502);
    assert_eq!(told.text(), "the backend attempted to redirect this request, which is not permitted\n");
    assert_eq!(told.header("location"), "");
    let large = "x".repeat((3 << 20) + 1);
    assert_eq!(world.rest.ask(&format!("POST {THINGS}"), &[], large).await.code, 413);
}

#[tokio::test]
async fn what_it_serves_is_discovered_and_described_with_ours() {
    const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let world = World::ready().await;
    let groups = world.document("/apis", "application/json", GROUP).await;
    let names: Vec<&str> =
        groups["groups"].as_array().unwrap().iter().map(|group| group["name"].as_str().unwrap()).collect();
    assert_eq!(names[..2], ["apiregistration.k8s.io", "apps"]);
    assert_eq!(names[names.len() - 2..], [GROUP, "metrics.k8s.io"]);
    let group = world.rest.get("/apis/ext.example.com").await.json();
    assert_eq!(group["preferredVersion"]["groupVersion"], "ext.example.com/v1");
    let version = async |freshness: &str| {
        let freshness = format!(
            "\"resource\":\"things\",\"responseKind\":{{\"group\":\"ext.example.com\",\"version\":\"v1\",\"kind\":\"Thing\"}},\"scope\":\"Namespaced\",\"singularResource\":\"thing\",\"verbs\":[\"get\",\"list\"]}}],\"freshness\":\"{freshness}\""
        );
        world.document("/apis", AGGREGATED, &freshness).await
    };
    version("Current").await;
    let plain = world.rest.get("/apis/ext.example.com/v1").await.json();
    assert_eq!(plain["resources"][0]["name"], "things");
    let v2 = world.document("/openapi/v2", "application/json", "ext.example.com").await;
    assert!(v2["definitions"]["Thing"].is_object() && v2["definitions"]["Unused"].is_null());
    assert!(
        v2["paths"]["/apis/ext.example.com/v1/things"].is_object() && v2["paths"]["/api/v1/pods"]["get"].is_object()
    );
    let index = world.document("/openapi/v3", "application/json", "apis/ext.example.com/v1").await;
    let at = index["paths"]["apis/ext.example.com/v1"]["serverRelativeURL"].as_str().unwrap();
    assert_eq!(world.rest.get(at).await.json()["of"], "things");
    // By JSON-RPC it is not to be had, and that is said.
    let why = world.rest.api.list("things.ext.example.com", Options::default()).await.unwrap_err();
    assert_eq!(why.code, 404);
    let said = "things.ext.example.com is served by an extension API server (v1.ext.example.com), by REST alone: \
                /apis/ext.example.com/v1";
    assert_eq!(why.message, said);
    // Then it has trouble: it is still known, as it was, and nobody is passed on.
    *world.broken.lock().unwrap() = true;
    world.rest.api.patch("services", "hook", json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    let why = world.until(NAME, "FailedDiscoveryCheck").await;
    let url = "https://hook.default.svc:443/apis/ext.example.com/v1";
    assert_eq!(why, format!("failing or missing response from {url}: bad status from {url}: 500"));
    version("Stale").await;
    let told = world.rest.get("/apis/ext.example.com/v1").await;
    assert_eq!((told.code, told.text()), (503, "service unavailable\n".to_owned()));
    // The core group and our own are as they were.
    assert_eq!(world.rest.get("/apis/apps/v1").await.code, 200);
    world.rest.api.delete("apiservices", NAME, Options::default()).await.unwrap();
    assert_eq!(world.rest.get("/apis/ext.example.com/v1").await.code, 404);
    assert!(!world.rest.get("/apis").await.text().contains(GROUP));
}

#[tokio::test]
async fn a_version_of_ours_is_somebody_elses_for_as_long_as_he_says_so() {
    let world = World::new().await;
    world.serve().await;
    let ours = async || world.rest.get("/apis/metrics.k8s.io/v1beta1").await;
    assert_eq!(ours().await.json()["resources"][0]["kind"], "NodeMetrics");
    world.register(json!({"metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": {"group": "metrics.k8s.io", "version": "v1beta1"}})).await;
    // At once, before anybody has looked whether it is there.
    assert_eq!(ours().await.code, 503);
    let why = world.until("v1beta1.metrics.k8s.io", "FailedDiscoveryCheck").await;
    assert!(why.ends_with(": 404"), "{why}");
    world.rest.api.delete("apiservices", "v1beta1.metrics.k8s.io", Options::default()).await.unwrap();
    assert_eq!(ours().await.json()["resources"][0]["kind"], "NodeMetrics");
    // Nobody else is asked about APIServices: who could not delete them again would be shut out.
    world
        .register(
            json!({"metadata": {"name": "v1.apiregistration.k8s.io"}, "spec": {"group": "apiregistration.k8s.io"}}),
        )
        .await;
    assert_eq!(world.rest.get("/apis/apiregistration.k8s.io/v1/apiservices").await.code, 200);
    let local = world.rest.api.get("apiservices", "v1.apps").await.unwrap();
    assert_eq!(local.label("kube-aggregator.kubernetes.io/automanaged"), Some("onstart"));
    world.rest.api.delete("apiservices", "v1.apps", Options::default()).await.unwrap();
    assert_eq!(world.rest.get("/apis/apps/v1").await.code, 200);
    for _ in 0..600 {
        if world.rest.api.get("apiservices", "v1.apps").await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("v1.apps is not made again");
}

#[tokio::test]
async fn a_certificate_that_the_bundle_does_not_vouch_for_is_no_answer() {
    let world = World::new().await;
    world.serve().await;
    let other = rcgen::generate_simple_self_signed(["hook.default.svc".to_owned()]).unwrap();
    world.register(json!({"spec": {"caBundle": STANDARD.encode(other.cert.pem())}})).await;
    let why = world.until(NAME, "FailedDiscoveryCheck").await;
    assert!(why.contains("certificate"), "{why}");
    assert!(world.heard.lock().unwrap().is_empty(), "nothing was asked by such a connection");
    let insecure = json!({"spec": {"caBundle": null, "insecureSkipTLSVerify": true}});
    world.rest.api.patch("apiservices", NAME, insecure).await.unwrap();
    world.until(NAME, "Passed").await;
}

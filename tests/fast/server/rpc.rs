//! The JSON-RPC face over a real Unix socket: calls, watches, streams, and what is refused.

mod audit;
mod commands;
mod floods;
mod origins;
mod turned_away;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use podwright::api::object::MAX_NESTED;
use podwright::api::request::{Body, EventKind};
use podwright::api::rpc::{ImageOptions, Session, Task};
use podwright::api::stream::{Frame, FrameCodec, STATUS, STDIN, STDOUT};
use podwright::api::{Env, Object, Options, Request, Status, User, Verb};
use podwright::client::{Client, rpc};
use podwright::server::listen::{bind, serve};
use podwright::server::{Config, Limits, Server};
use podwright::store::{Sqlite, restore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest};
use tokio_util::codec::Framed;

use super::custom::{definition, spec};
use super::{Api, config_map, object_of, pod, request};

/// A served socket; it closes when this is dropped.
struct Served {
    api: Api,
    client: Client,
    path: PathBuf,
    _dir: tempfile::TempDir,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Served {
    async fn new() -> Served {
        Served::with(Config::default()).await
    }

    async fn with(config: Config) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        let api = Api::with(config).await;
        let (listener, server) = (bind(&path).unwrap(), api.0.clone());
        let task = tokio::spawn(async move { serve(server, listener, None, std::future::pending()).await.unwrap() });
        let client = rpc::client(rpc::Address(path.clone()), "test");
        Served { api, client, path, _dir: dir, task }
    }

    /// What curl would send and see: the status line's code and the body.
    async fn http(&self, head: &str, body: &str) -> (u16, String) {
        self.http_with(head, "", body).await
    }

    /// The same with headers, each with its line's end.
    async fn http_with(&self, head: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(&self.path).await.unwrap();
        let length = body.len();
        let text = format!(
            "{head} HTTP/1.1\r\nHost: x\r\n{headers}Content-Type: application/json\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        );
        // A server that refuses a body does not read it to its end.
        let _ = stream.write_all(text.as_bytes()).await;
        let mut answer = Vec::new();
        // And resets what is left of it, behind its answer.
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (code, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    async fn post(&self, method: &str, params: Value) -> Value {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let (code, body) = self.http("POST /rpc", &call).await;
        assert_eq!(code, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }
}

#[tokio::test]
async fn objects_are_written_and_read_over_http_and_websocket() {
    let served = Served::new().await;
    let body = config_map("a");
    let made = served.post("create", json!({"resource": "configmaps", "namespace": "default", "body": body})).await;
    assert_eq!(made["result"]["created"], true);
    assert_eq!(made["result"]["object"]["metadata"]["name"], "a");
    let read = request(Verb::Get, "configmaps", "a", None, Options::default());
    let read = object_of(served.client.call(read).await.unwrap());
    assert_eq!(read.0, made["result"]["object"]);
    let list = served.client.call(request(Verb::List, "configmaps", "", None, Options::default())).await.unwrap();
    let Body::List(list) = list.body else { panic!("not a list") };
    assert_eq!((list.kind.as_str(), list.items.len()), ("ConfigMapList", 1));
    assert_eq!(Object::from_slice(&list.items[0]).unwrap(), read);
    assert_eq!(served.http("GET /healthz", "").await, (200, "ok".into()));
    assert_eq!(served.http("GET /other", "").await.0, 404);
    let document = served.post("rpc.discover", json!({})).await;
    let names: Vec<_> = document["result"]["methods"].as_array().unwrap().iter().map(|m| &m["name"]).collect();
    assert!(names.iter().any(|name| *name == "deletecollection"), "{names:?}");
}

/// What one face stores the other can write again.
#[tokio::test]
async fn an_object_may_be_nested_as_deep_in_one_face_as_in_the_other() {
    let served = Served::new().await;
    let nested = |levels: usize| (2..levels).fold(json!({}), |inner, _| json!({"a": inner}));
    let body = |name: &str, levels: usize| {
        json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": name}, "revision": 1,
            "data": nested(levels)})
    };
    let all = "/apis/apps/v1/namespaces/default/controllerrevisions";
    let why = format!("the body is nested more than {MAX_NESTED} levels deep");
    for (levels, stored) in [(MAX_NESTED, true), (MAX_NESTED + 1, false)] {
        let (code, told) = served.http(&format!("POST {all}"), &body("rest", levels).to_string()).await;
        let of = "controllerrevisions.apps";
        let call = json!({"resource": of, "namespace": "default", "body": body("rpc", levels)});
        let answer = served.post("create", call).await;
        match stored {
            true => assert_eq!((code, &answer["result"]["created"]), (201, &json!(true)), "{told} {answer}"),
            false => {
                assert!(code == 400 && told.contains(&why), "{code} {told}");
                assert_eq!((&answer["error"]["code"], &answer["error"]["message"]), (&json!(400), &json!(why)));
            }
        }
        let patch = json!({"resource": of, "namespace": "default", "name": "rpc", "body": {"data": nested(levels)},
            "options": {"patchType": "application/merge-patch+json"}});
        let answer = served.post("patch", patch).await;
        assert_eq!(answer["error"].is_null(), stored, "{answer}");
    }
}

#[tokio::test]
async fn a_field_that_is_named_twice_is_refused() {
    let served = Served::new().await;
    let create = |validation: &str| {
        let body = r#"{"metadata": {"name": "twice", "labels": {"a": "1", "a": "2"}}, "data": {"x": "1", "x": "2"}}"#;
        let options = format!(r#"{{"fieldValidation": "{validation}", "dryRun": true}}"#);
        let params =
            format!(r#"{{"resource": "configmaps", "namespace": "default", "options": {options}, "body": {body}}}"#);
        format!(r#"{{"jsonrpc": "2.0", "id": 1, "method": "create", "params": {params}}}"#)
    };
    let (_, answer) = served.http("POST /rpc", &create("Strict")).await;
    let words = r#"strict decoding error: duplicate field \"metadata.labels.a\", duplicate field \"data.x\""#;
    assert!(answer.contains(words), "{answer}");
    let (_, answer) = served.http("POST /rpc", &create("Ignore")).await;
    assert!(answer.contains(r#""x":"2""#), "{answer}");
}

/// What `/readyz?verbose` says, for those who speak JSON-RPC; who may not read the path is refused.
#[tokio::test]
async fn health_is_told_check_by_check() {
    let served = Served::new().await;
    let told = served.post("health", json!({})).await;
    let names = |told: &Value| -> Vec<String> {
        let checks = told["result"]["checks"].as_array().cloned().unwrap_or_default();
        checks.iter().map(|c| format!("{} {}", c["name"].as_str().unwrap(), c["status"].as_str().unwrap())).collect()
    };
    assert_eq!(told["result"]["status"], "ok", "{told}");
    assert_eq!(names(&told), ["ping ok", "etcd ok", "etcd-readiness ok", "watch-cache ok"]);
    let told = served.post("health", json!({"of": "livez", "exclude": ["ping"]})).await;
    assert_eq!(names(&told), ["ping excluded", "etcd ok", "watch-cache ok"]);
    assert_eq!(served.post("health", json!({"of": "sickz"})).await["error"]["code"], 400);
    let nobody = User::new("nobody", Vec::<String>::new());
    assert_eq!(served.api.0.health_report(&nobody, "readyz", &[]).await.unwrap_err().code, 403);
    // A store that has ended: each check says so, and the whole is no success.
    let store = Arc::new(podwright::store::Memory::new());
    let server = Server::open(store.clone(), Env::system(), Config::default()).await.unwrap();
    podwright::store::Store::close(&*store).await.unwrap();
    let root = User::system("test");
    let told = json!({"result": server.health_report(&root, "readyz", &["watch-cache".to_owned()]).await.unwrap()});
    assert_eq!(told["result"]["status"], "failed");
    assert_eq!(names(&told), ["ping ok", "etcd failed", "etcd-readiness failed", "watch-cache excluded"]);
}

/// Root may ask for it, and yet the server writes no file that somebody names.
#[tokio::test]
async fn a_backup_comes_as_a_stream_and_goes_to_no_path_of_the_servers() {
    let served = Served::new().await;
    let there = served.path.with_file_name("there");
    std::fs::write(&there, "precious").unwrap();
    for params in [json!({"path": there}), json!({"path": there, "force": true})] {
        let answer = served.post("backup", params).await;
        assert!(answer["error"]["message"].as_str().unwrap().contains("unknown field `path`"), "{answer}");
    }
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "precious");

    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Sqlite::open(&dir.path().join("store.db")).unwrap());
    let server = Server::open(store.clone(), Env::system(), Config::default()).await.unwrap();
    let nobody = User::new("nobody", ["system:authenticated"]);
    assert_eq!(server.backup(&nobody).await.unwrap_err().code, 403);
    let path = dir.path().join("api.sock");
    let listener = bind(&path).unwrap();
    let serving = tokio::spawn(serve(server.clone(), listener, None, std::future::pending()));
    let client = rpc::client(rpc::Address(path), "test");
    let answer = client.method("backup", json!({})).await.unwrap();
    let mut frames = Framed::new(client.dial(answer["stream"].as_str().unwrap()).await.unwrap(), FrameCodec);
    let mut copy = Vec::new();
    let ended: Status = loop {
        let frame = frames.next().await.unwrap().unwrap();
        match frame.channel {
            STDOUT => copy.extend_from_slice(&frame.payload),
            _ => break serde_json::from_slice(&frame.payload).unwrap(),
        }
    };
    assert_eq!((ended.status.as_str(), &copy[..15]), ("Success", &b"SQLite format 3"[..]));
    serving.abort();
    let saved = dir.path().join("saved");
    std::fs::write(&saved, copy).unwrap();
    let check = |key: &str, value: &[u8]| podwright::server::restored::check(key, value).map_err(|why| why.to_string());
    restore(&saved, &dir.path().join("restored.db"), check, |_, _| {}).unwrap();
}

#[tokio::test]
async fn what_is_wrong_is_answered_with_its_status() {
    let served = Served::new().await;
    for (method, params, code, part) in [
        ("get", json!({"resource": "pods", "namespace": "default", "name": "x"}), 404, "pods \"x\" not found"),
        ("get", json!({"resource": "gadgets", "name": "x"}), 404, "could not find the requested resource"),
        ("get", json!({"resource": "pods", "namespce": "default", "name": "x"}), 400, "namespce"),
        ("get", json!({"resource": 3}), 400, "params"),
        ("get", json!({"resource": "pods", "name": "x"}), 400, "namespace"),
        ("get", json!({"resource": "pods", "namespace": "default", "name": "../x"}), 400, "may not contain '/'"),
        ("get", json!({"resource": "pods", "namespace": "default", "name": ".."}), 400, "may not be '..'"),
        ("create", json!({"resource": "pods", "namespace": "default"}), 400, "no body"),
        ("create", json!({"resource": "pods", "namespace": "default", "body": [1]}), 400, ""),
        ("create", json!({"resource": "configmaps", "namespace": "nowhere", "body": config_map("a")}), 404, "nowhere"),
        ("list", json!({"resource": "pods", "options": {"labelSelector": "a in ("}}), 400, ""),
        (
            "list",
            json!({"resource": "pods", "options": {"fieldSelector": "spec.image=x"}}),
            400,
            "field label not supported",
        ),
        ("list", json!({"resource": "pods", "options": {"continue": "!"}}), 400, "continue key is not valid"),
        ("list", json!({"resource": "pods", "options": {"resourceVersion": "x"}}), 400, "resourceVersion"),
    ] {
        let answer = served.post(method, params.clone()).await;
        let status: Status = serde_json::from_value(answer["error"]["data"].clone())
            .unwrap_or_else(|e| panic!("{e}: {params} {answer}"));
        assert_eq!(i64::from(status.code), answer["error"]["code"].as_i64().unwrap());
        assert_eq!(status.code, code, "{params} {answer}");
        assert!(status.message.contains(part), "{params} {answer}");
    }
    for bad in
        ["{", "[]", "3", "{\"jsonrpc\": \"2.0\", \"id\": 1}", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"nothing\"}"]
    {
        let (_, body) = served.http("POST /rpc", bad).await;
        let code = serde_json::from_str::<Value>(&body).unwrap()["error"]["code"].as_i64().unwrap();
        assert!((-32700..=-32600).contains(&code), "{bad}: {body}");
    }
    let (code, _) = served.http("POST /rpc", &"x".repeat((16 << 20) + 1)).await;
    assert_eq!(code, 413);
}

#[tokio::test]
async fn a_subscription_tells_events_and_its_end() {
    let served = Served::new().await;
    let options = Options { timeout_seconds: Some(1), ..Options::default() };
    let mut watch = served.client.watch(request(Verb::Watch, "configmaps", "", None, options)).await.unwrap();
    served.api.create("configmaps", config_map("a")).await.unwrap();
    let event = watch.recv().await.unwrap();
    assert_eq!(event.kind, EventKind::Added);
    assert_eq!(Object::from_slice(&event.object).unwrap().name(), "a");
    assert!(tokio::time::timeout(Duration::from_secs(10), watch.recv()).await.unwrap().is_none(), "its time was up");

    let options = Options { resource_version: Some("999999".into()), ..Options::default() };
    let future = served.client.watch(request(Verb::Watch, "configmaps", "", None, options)).await.unwrap_err();
    assert!(future.message.contains("Too large resource version"), "{future}");
    // As client-go tells it from other timeouts.
    let details = future.details.unwrap();
    assert_eq!((details.causes[0].reason.as_str(), details.retry_after_seconds), ("ResourceVersionTooLarge", Some(1)));
}

/// A WebSocket outlives requests; it must not outlive what it was opened with.
#[tokio::test]
async fn a_connection_ends_with_the_token_that_opened_it() {
    let limits = Limits { ask_again: Duration::from_millis(50), ..Limits::default() };
    let served = Served::with(Config { limits, ..Config::default() }).await;
    let token = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
        },
    });
    served.api.create("secrets", token).await.unwrap();
    let open = async |authorization: &str| {
        let mut stream = UnixStream::connect(&served.path).await.unwrap();
        let head = format!(
            "GET /rpc HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{authorization}\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, *b"HTTP/1.1 101");
        stream
    };
    let mut root = open("").await;
    let mut node = open("Authorization: Bearer abcdef.0123456789abcdef\r\n").await;
    let ended = async |stream: &mut UnixStream, patience: Duration| {
        let mut rest = Vec::new();
        tokio::time::timeout(patience, stream.read_to_end(&mut rest)).await.is_ok()
    };
    assert!(!ended(&mut node, Duration::from_millis(300)).await, "the token is good");
    let gone = request(Verb::Delete, "secrets", "bootstrap-token-abcdef", None, Options::default());
    served.api.0.handle(Request { namespace: Some("kube-system".into()), ..gone }).await.unwrap();
    assert!(ended(&mut node, Duration::from_secs(10)).await, "the token is gone");
    assert!(!ended(&mut root, Duration::from_millis(100)).await, "root on the socket has no token");
}

fn connect(resource: &str, name: &str, sub: &str, body: Value) -> Request {
    Request { subresource: Some(sub.into()), ..request(Verb::Connect, resource, name, Some(body), Options::default()) }
}

#[tokio::test]
async fn a_stream_joins_the_caller_and_the_node() {
    let served = Served::new().await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    served.api.create("nodes", node).await.unwrap();
    let list = json!(ImageOptions::List);
    let away = served.client.connect(connect("nodes", "n1", "image", list.clone())).await.err().unwrap();
    assert_eq!(away.code, 503, "{away}");

    let mut sessions = served.client.sessions("n1").await.unwrap();
    let client = served.client.clone();
    let agent = tokio::spawn(async move {
        let Session { id, task, .. } = sessions.recv().await.unwrap();
        assert!(matches!(task, Task::Image(ImageOptions::List)));
        let mut frames = Framed::new(client.dial(&id).await.unwrap(), FrameCodec);
        while let Some(Ok(frame)) = frames.next().await {
            let last = frame.payload.is_empty();
            frames.send(Frame { channel: STDOUT, ..frame }).await.unwrap();
            if last {
                break;
            }
        }
        frames.send(Frame { channel: STATUS, payload: "{}".into() }).await.unwrap();
    });
    let mut frames =
        Framed::new(served.client.connect(connect("nodes", "n1", "image", list)).await.unwrap(), FrameCodec);
    let block = bytes::Bytes::from(vec![7u8; 300_000]);
    for payload in [block.clone(), block.clone(), bytes::Bytes::new()] {
        frames.send(Frame { channel: STDIN, payload: payload.clone() }).await.unwrap();
        assert_eq!(frames.next().await.unwrap().unwrap(), Frame { channel: STDOUT, payload });
    }
    assert_eq!(frames.next().await.unwrap().unwrap().channel, STATUS);
    assert!(frames.next().await.is_none(), "the node's end ends the stream");
    agent.await.unwrap();
    let gone = served.http("GET /stream/0123", "").await;
    assert_eq!(gone.0, 426);
}

#[tokio::test]
async fn a_log_is_refused_for_what_has_none() {
    let served = Served::new().await;
    let mut object = pod("p");
    object["spec"]["containers"] = json!([{"name": "a", "image": "x:1"}, {"name": "b", "image": "x:1"}]);
    served.api.create("pods", object).await.unwrap();
    let log = |body: Value| {
        let client = served.client.clone();
        async move { client.call(connect("pods", "p", "log", body)).await.unwrap_err().message }
    };
    assert_eq!(log(json!({"container": "z"})).await, "container z is not valid for pod p");
    assert_eq!(log(json!({})).await, "container \"a\" in pod \"p\" is waiting to start: ContainerCreating");
    assert!(log(json!({"previous": true, "container": "b"})).await.contains("previous terminated container \"b\""));
    assert!(log(json!({"colour": 1})).await.contains("colour"));
}

#[tokio::test]
async fn a_batch_has_so_many_calls_and_no_more() {
    let served = Served::new().await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "nothing"});
    for (calls, answers) in [(100, true), (101, false)] {
        let (_, told) = served.http("POST /rpc", &Value::from(vec![call.clone(); calls]).to_string()).await;
        assert_eq!(told.trim_start().starts_with('['), answers, "{calls}: {told}");
    }
}

/// Anyone may ask for it, and it is long: so it is made once for the kinds that there are, aside, and waits for its turn and for
/// room as what is read does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_of_the_methods_is_a_read_that_is_made_once() {
    let discover = json!({"jsonrpc": "2.0", "id": 1, "method": "rpc.discover"}).to_string();
    let nobody = "Impersonate-User: nob\r\n";
    let limited = async |limits: Limits| Served::with(Config { limits, ..Config::default() }).await;
    let wait = Duration::from_millis(20);
    let full = limited(Limits { inflight: 0, wait, ..Limits::default() }).await;
    let (_, told) = full.http_with("POST /rpc", nobody, &discover).await;
    assert!(told.contains("\"code\":429"), "{told:.300}");
    let (_, told) = full.http("POST /rpc", &discover).await;
    assert!(told.contains("\"openrpc\""), "the administrator waits for nobody: {told:.300}");

    let served = Served::new().await;
    // For this test's own definitions, whatever others have asked for.
    served.api.define(definition(spec(json!({"discovered": {"type": "string"}})))).await;
    let mut aside = Vec::new();
    for _ in 0..4 {
        let before = served.api.0.large_turns();
        let (_, told) = served.http_with("POST /rpc", nobody, &discover).await;
        assert!(told.contains("widgets.example.com"), "{told:.300}");
        aside.push(served.api.0.large_turns() > before);
    }
    assert!(aside[0], "it is made with everybody else's threads");
    // Another server of this process may have asked for its own meanwhile.
    assert!(aside[1..].iter().any(|aside| !aside), "it is made again and again");

    let small = limited(Limits { answers_of_one: 1, wait, ..Limits::default() }).await;
    let mut request = "ws://x/rpc".into_client_request().unwrap();
    request.headers_mut().insert("impersonate-user", "nob".parse().unwrap());
    let stream = UnixStream::connect(&small.path).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    const ASKED: usize = 60;
    for _ in 0..ASKED {
        socket.send(Message::text(discover.clone())).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut refused = 0;
    for _ in 0..ASKED {
        let told = socket.next().await.unwrap().unwrap();
        refused += usize::from(told.to_text().unwrap().contains("\"code\":429"));
    }
    assert!((1..ASKED).contains(&refused), "{refused} of {ASKED} that nobody had read were refused");
}

/// A node has a watch for each ConfigMap and Secret of its Pods; a connection that asks for more than any node is refused them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_has_so_many_subscriptions_and_no_more() {
    let served = Served::new().await;
    let request = "ws://x/rpc".into_client_request().unwrap();
    let stream = UnixStream::connect(&served.path).await.unwrap();
    let (socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    let (mut asking, mut answers) = socket.split();
    const MOST: usize = 10_000;
    let params = json!({"resource": "configmaps", "namespace": "default"});
    let watch = json!({"jsonrpc": "2.0", "id": 1, "method": "watch", "params": params}).to_string();
    let asked = tokio::spawn(async move {
        for _ in 0..MOST + 5 {
            asking.send(Message::text(watch.clone())).await.unwrap();
        }
        asking
    });
    let (mut open, mut refused) = (0, 0);
    while open + refused < MOST + 5 {
        let told = answers.next().await.unwrap().unwrap();
        match told.to_text().unwrap() {
            told if told.contains("\"error\"") => refused += 1,
            told if told.contains("\"result\":") && told.contains("\"id\":1") => open += 1,
            _ => {}
        }
    }
    assert_eq!((open, refused), (MOST, 5));
    drop(asked.await);
}

/// Somebody has cleaned up below /run: who calls the server finds it again, and those who are connected notice nothing.
#[tokio::test]
async fn a_socket_that_somebody_deletes_is_made_anew() {
    let served = Served::new().await;
    let mut held = UnixStream::connect(&served.path).await.unwrap();
    for damage in ["gone", "a file"] {
        std::fs::remove_file(&served.path).unwrap();
        if damage == "a file" {
            std::fs::write(&served.path, "").unwrap();
        }
        let begun = std::time::Instant::now();
        while UnixStream::connect(&served.path).await.is_err() {
            assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{damage}: not made anew");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        println!("{damage}: made anew after {} ms", begun.elapsed().as_millis());
        assert_eq!(served.http("GET /livez", "").await.0, 200);
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&served.path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600, "for its owner alone");
    }
    held.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    held.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

/// Structs are read from lists as well, of which admission would see nothing.
#[tokio::test]
async fn what_has_names_is_not_taken_without_them() {
    let served = Served::new().await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    served.api.create("nodes", node).await.unwrap();
    let mut pod = pod("p");
    pod["spec"]["nodeName"] = "n1".into();
    served.api.create("pods", pod).await.unwrap();
    let _sessions = served.client.sessions("n1").await.unwrap();
    let by_names = json!({"container": "c", "command": ["sh"], "stdout": true});
    for (body, code) in [(json!(["c", ["sh"], false, true]), 400), (json!("c"), 400), (json!([]), 400), (by_names, 0)] {
        let params =
            json!({"resource": "pods", "namespace": "default", "name": "p", "subresource": "exec", "body": body});
        let told = served.post("connect", params).await;
        assert_eq!(told["error"]["code"].as_i64().unwrap_or(0), code, "{body}: {told}");
    }
    let told = served.post("list", json!(["list", "configmaps", "default"])).await;
    assert_eq!(told["error"]["code"], 400, "{told}");
}

/// Who may no longer serve a node is told of none of its sessions.
#[tokio::test]
async fn a_subscription_to_sessions_ends_with_the_right_to_them() {
    let limits = Limits { ask_again: Duration::from_millis(50), ..Limits::default() };
    let served = Served::with(Config { limits, ..Config::default() }).await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "serve"},
        "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["connect"]}]});
    served.api.create("clusterroles", role).await.unwrap();
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "serve"}, "roleRef": {"kind": "ClusterRole", "name": "serve"},
        "subjects": [{"kind": "User", "name": "ann"}]});
    served.api.create("clusterrolebindings", binding).await.unwrap();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    served.api.create("nodes", node).await.unwrap();
    let mut request = "ws://x/rpc".into_client_request().unwrap();
    request.headers_mut().insert("impersonate-user", "ann".parse().unwrap());
    let stream = UnixStream::connect(&served.path).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "node.sessions", "params": {"node": "n1"}}).to_string();
    socket.send(Message::text(ask.clone())).await.unwrap();
    let told = socket.next().await.unwrap().unwrap();
    assert!(told.to_text().unwrap().contains("result"), "{told}");
    let open = || served.client.connect(connect("nodes", "n1", "image", json!(ImageOptions::List)));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let _asked = open().await.unwrap();
    let told = socket.next().await.unwrap().unwrap();
    assert!(told.to_text().unwrap().contains("node.session"), "while he may he serves it: {told}");

    served.api.delete("clusterrolebindings", "serve", Options::default()).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(10), socket.next()).await.unwrap().unwrap().unwrap();
    assert!(told.to_text().unwrap().contains("cannot connect"), "{told}");
    let nobody = open().await.err().unwrap();
    assert_eq!(nobody.code, 503, "{nobody}");
}

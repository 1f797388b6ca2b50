//! Who may open sessions, how many, and when they start: for a client that is there, by upstream's methods, from no page of
//! others'.

use std::time::{Duration, Instant};

use futures::{SinkExt, StreamExt};
use podwright::api::request::Body;
use podwright::api::{Options, Request, User, Verb};
use podwright::client::rpc;
use podwright::server::{Config, Limits, SessionLimits};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::super::{config_map, request};
use super::ends::{LOST, all_end_without, code, let_all, robot};
use super::streams::World;

const EXEC: &str = "/api/v1/namespaces/default/pods/p/exec?command=cat&stdin=1&stdout=1";
const TIMEOUT: Duration = Duration::from_secs(20);

/// Everybody may exec, by the verbs that are named.
async fn world(limits: Limits, verbs: &[&str]) -> World {
    let world = World::with(Config { limits, ..Config::default() }).await;
    let resources = ["pods/exec", "pods/attach", "pods/portforward", "pods/log", "pods/proxy"];
    let_all(&world.api, &resources, verbs).await;
    world
}

/// Opens a WebSocket; its answer's code, `Retry-After` and body where it is refused.
async fn open(
    world: &World,
    path: &str,
    user: &str,
    headers: &[(&'static str, &str)],
) -> Result<WebSocketStream<UnixStream>, (u16, String, String)> {
    let mut request = format!("ws://api.example{path}").into_client_request().unwrap();
    for (name, value) in [("impersonate-user", user)].iter().chain(headers) {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    match tokio_tungstenite::client_async(request, world.connect().await).await {
        Ok((socket, _)) => Ok(socket),
        Err(Error::Http(answer)) => {
            let retry = answer.headers().get("retry-after").map_or("", |after| after.to_str().unwrap()).to_owned();
            let body = answer.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
            Err((answer.status().as_u16(), retry, body))
        }
        Err(other) => panic!("{other}"),
    }
}

async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < TIMEOUT, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn connect(user: &str) -> Request {
    let options = json!({"command": ["cat"], "stdin": true, "stdout": true});
    let request = request(Verb::Connect, "pods", "p", Some(options), Options::default());
    let user = User::new(user, ["system:authenticated"]);
    Request { subresource: Some("exec".into()), user, ..request }
}

/// Three requests of four hundred each once used up the descriptors of a node.
#[tokio::test]
async fn the_node_is_asked_for_nothing_before_the_client_is_there() {
    let world = world(Limits::default(), &["get", "create"]).await;
    for _ in 0..50 {
        world.api.0.handle(connect("jane")).await.expect("it is checked, and may be dialled");
    }
    let root = rpc::client(rpc::Address(world.socket()), "test");
    for _ in 0..50 {
        root.call(connect("root")).await.unwrap();
    }
    // A SPDY client that never opens its streams.
    let mut idle = world.connect().await;
    let head = format!(
        "POST {EXEC} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n"
    );
    idle.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    idle.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
    let mut there = open(&world, EXEC, "jane", &[]).await.unwrap();
    assert_eq!(there.next().await.unwrap().unwrap(), Message::Binary(vec![1].into()), "this one stands");
    eventually("the session that stands was not asked for", || world.asked.lock().unwrap().len() == 1).await;
    // What was to be asked for before it would be there by now: one channel carries all.
    let asked = world.asked.lock().unwrap().clone();
    assert_eq!(asked.len(), 1, "{asked:?}");
}

#[tokio::test]
async fn sessions_have_bounds_by_user_and_pod_and_a_refusal_is_upstreams() {
    let sessions = SessionLimits { of_user_with_object: 2, with_object: 3, ..SessionLimits::default() };
    let world = world(Limits { sessions, ..Limits::default() }, &["get", "create"]).await;
    let first = open(&world, EXEC, "jane", &[]).await.unwrap();
    let waiting = world.api.0.handle(connect("jane")).await.unwrap();
    let (code, retry, body) = open(&world, EXEC, "jane", &[]).await.unwrap_err();
    let told: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, retry.as_str(), &told["reason"]), (429, "1", &json!("TooManyRequests")), "{body}");
    let by_rpc = world.api.0.handle(connect("jane")).await.unwrap_err();
    assert_eq!((by_rpc.code, by_rpc.details.unwrap().retry_after_seconds), (429, Some(1)));
    let (code, ..) = open(&world, "/api/v1/namespaces/default/pods/p/log", "jane", &[]).await.unwrap_err();
    assert_eq!(code, 429, "logs count too");
    let mut polite = open(&world, EXEC, "john", &[]).await.expect("nobody keeps others from a Pod");
    assert_eq!(polite.next().await.unwrap().unwrap(), Message::Binary(vec![1].into()));
    assert_eq!(open(&world, EXEC, "joe", &[]).await.unwrap_err().0, 429, "a Pod has so many");
    drop((first, waiting));
    let begun = Instant::now();
    while open(&world, EXEC, "jane", &[]).await.is_err() {
        assert!(begun.elapsed() < TIMEOUT, "one that has ended counts on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn options_that_are_too_long_are_not_kept() {
    let world = world(Limits::default(), &["get", "create"]).await;
    let long = json!({"command": ["echo", "x".repeat(200 << 10)], "stdout": true});
    let refused = world.api.0.handle(Request { body: Some(long), ..connect("jane") }).await.unwrap_err();
    assert_eq!((refused.code, refused.reason.as_str()), (413, "RequestEntityTooLarge"));
}

#[tokio::test]
async fn only_upstreams_methods_open_sessions() {
    let world = world(Limits::default(), &["*"]).await;
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n";
    let ask = async |method: &str, path: &str, headers: &str| {
        let mut stream = world.connect().await;
        let path = format!("/api/v1/namespaces/default/pods/p/{path}");
        let text = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n{headers}\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut code = [0; 12];
        stream.read_exact(&mut code).await.unwrap();
        String::from_utf8_lossy(&code[9..]).into_owned()
    };
    for path in ["exec?command=cat&stdin=1&stdout=1", "attach?stdin=1&stdout=1", "portforward?ports=80", "log?follow=1"]
    {
        for method in ["HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"] {
            assert_eq!(ask(method, path, upgrade).await, "405", "{method} {path}");
            assert_eq!(ask(method, path, "").await, "405", "{method} {path} without an upgrade");
        }
    }
    for method in ["TRACE", "CONNEKT"] {
        assert_eq!(ask(method, "proxy/", "").await, "405", "{method}");
    }
    assert!(world.asked.lock().unwrap().is_empty());
    assert_eq!(ask("GET", "exec?command=cat&stdin=1&stdout=1", upgrade).await, "101");
}

/// As upstream since 1.35: what creates something is not authorized as what gets it alone, nor the other way round.
#[tokio::test]
async fn the_methods_verb_is_what_is_authorized() {
    let post = format!(
        "POST {EXEC} HTTP/1.1\r\nHost: x\r\nImpersonate-User: jane\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n"
    );
    let head = "HEAD /api/v1/namespaces/default/pods/p/proxy HTTP/1.1\r\nHost: x\r\nImpersonate-User: jane\r\n\r\n";
    for (verbs, by_get, by_post, by_head) in [
        (&["get"][..], Some(403), "403", "301"),
        (&["create"][..], Some(403), "101", "403"),
        (&["head"][..], Some(403), "403", "403"),
        (&["get", "create"][..], None, "101", "301"),
    ] {
        let world = world(Limits::default(), verbs).await;
        assert_eq!(open(&world, EXEC, "jane", &[]).await.err().map(|refused| refused.0), by_get, "GET with {verbs:?}");
        for (text, wanted) in [(post.as_str(), by_post), (head, by_head)] {
            let mut stream = world.connect().await;
            stream.write_all(text.as_bytes()).await.unwrap();
            let mut code = [0; 12];
            stream.read_exact(&mut code).await.unwrap();
            assert_eq!(&code[9..], wanted.as_bytes(), "{verbs:?}: {text}");
        }
    }
}

#[tokio::test]
async fn a_page_of_another_site_gets_no_websocket() {
    let world = world(Limits::default(), &["*"]).await;
    let paths = [
        EXEC,
        "/api/v1/namespaces/default/pods/p/attach?stdin=1&stdout=1",
        "/api/v1/namespaces/default/pods/p/portforward?ports=80",
        "/api/v1/namespaces/default/pods/p/proxy/",
        "/rpc",
    ];
    for path in paths {
        for origin in ["https://evil.example", "null", "https://api.example:1"] {
            let refused = open(&world, path, "jane", &[("origin", origin)]).await.err().map(|refused| refused.0);
            assert_eq!(refused, Some(403), "{path} of {origin}");
        }
    }
    assert!(world.asked.lock().unwrap().is_empty());
    for path in [EXEC, "/rpc"] {
        for headers in [&[][..], &[("origin", "https://api.example")], &[("origin", "http://api.example")]] {
            assert!(open(&world, path, "jane", headers).await.is_ok(), "{path} {headers:?}");
        }
    }
}

/// The library below queues answers of any size, and goes on reading requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_by_a_websocket_and_does_not_read_is_cut_off() {
    let limits = Limits { stalled: Duration::from_millis(500), ..Limits::default() };
    let world = world(limits, &["*"]).await;
    let mut map = config_map("big");
    map["data"]["a"] = "x".repeat(1 << 20).into();
    world.api.create("configmaps", map).await.unwrap();
    let request = "ws://x/rpc".into_client_request().unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(request, world.connect().await).await.unwrap();
    let get = json!({"jsonrpc": "2.0", "id": 1, "method": "get",
        "params": {"resource": "configmaps", "namespace": "default", "name": "big"}});
    const ASKED: usize = 60;
    for _ in 0..ASKED {
        socket.send(Message::text(get.to_string())).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut answered = 0;
    while let Some(Ok(message)) = socket.next().await {
        answered += usize::from(message.is_text());
    }
    assert!(answered < 3, "{answered} of {ASKED} were kept for who did not read them");
    // Who reads gets all.
    let request = "ws://x/rpc".into_client_request().unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(request, world.connect().await).await.unwrap();
    for _ in 0..ASKED {
        socket.send(Message::text(get.to_string())).await.unwrap();
        let told: Value = serde_json::from_str(socket.next().await.unwrap().unwrap().to_text().unwrap()).unwrap();
        assert_eq!(told["result"]["object"]["metadata"]["name"], "big");
    }
}

/// By REST, over WebSocket, SPDY and plain HTTP, and by JSON-RPC.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_with_the_right_to_it() {
    const WEBSOCKET: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    const SPDY: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n";
    let attach = EXEC.replace("exec?command=cat&", "attach?");
    let pod = "/api/v1/namespaces/default/pods/p";
    let (ports, log) = (format!("{pod}/portforward"), format!("{pod}/log?follow=1&sinceSeconds=60"));
    let protocol = |name: &str| format!("{WEBSOCKET}Sec-WebSocket-Protocol: {name}\r\n");
    let spdy = |name: &str| format!("{SPDY}X-Stream-Protocol-Version: {name}\r\n");
    let tunnel = protocol("SPDY/3.1+portforward.k8s.io");
    let by_rest = [
        ("GET", EXEC.to_owned(), protocol("v5.channel.k8s.io"), 101),
        ("POST", EXEC.to_owned(), spdy("v4.channel.k8s.io"), 101),
        ("GET", attach, protocol("v4.channel.k8s.io"), 101),
        ("GET", format!("{ports}?ports=80"), protocol("v4.channel.k8s.io"), 101),
        // No connection is forwarded by these at the moment.
        ("GET", ports.clone(), tunnel, 101),
        ("POST", ports, spdy("portforward.k8s.io"), 101),
        ("GET", log.clone(), "Connection: close\r\n".to_owned(), 200),
        ("GET", log, protocol("binary.k8s.io"), 101),
    ];
    for lost in LOST {
        let limits = Limits { ask_again: Duration::from_millis(200), ..Limits::default() };
        let world = world(limits, &["get", "create"]).await;
        let shown = format!("Authorization: Bearer {}\r\n", robot(&world.api).await);
        let open = async |method: &str, path: &str, headers: &str, wanted: u16| {
            let mut stream = world.connect().await;
            let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            assert_eq!(code(&mut stream).await, wanted, "{method} {path}");
            stream
        };
        let mut opened = Vec::new();
        for (method, path, headers, wanted) in &by_rest {
            let stream = open(method, path, &format!("{shown}{headers}"), *wanted).await;
            opened.push((format!("{method} {path} {headers}"), stream));
        }
        let asked = world.api.0.handle(connect("system:serviceaccount:default:robot")).await.unwrap();
        let Body::Stream { id } = asked.body else { panic!("no stream") };
        let dial = format!("{shown}Connection: Upgrade\r\nUpgrade: podwright-stream\r\n");
        opened.push(("JSON-RPC".to_owned(), open("GET", &format!("/stream/{id}"), &dial, 101).await));
        let mut roots = open("GET", EXEC, &protocol("v5.channel.k8s.io"), 101).await;
        all_end_without(&world.api, lost, &mut opened, &mut roots).await;
    }
}

/// What ends without a word has succeeded, to clients.
#[tokio::test]
async fn who_is_cut_off_is_told_so() {
    let limits = Limits { ask_again: Duration::from_millis(200), ..Limits::default() };
    let world = world(limits, &["get", "create"]).await;
    let protocol = [("sec-websocket-protocol", "v4.channel.k8s.io")];
    let mut exec = open(&world, EXEC, "jane", &protocol).await.unwrap();
    let mut log = world.connect().await;
    let head = "GET /api/v1/namespaces/default/pods/p/log?follow=1&sinceSeconds=60 HTTP/1.1\r\nHost: x\r\n\
                Impersonate-User: jane\r\nConnection: close\r\n\r\n";
    log.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(code(&mut log).await, 200);
    world.api.delete("clusterrolebindings", "all", Options::default()).await.unwrap();
    let (mut said, mut rest) = (Vec::new(), Vec::new());
    let told = async {
        while let Some(Ok(message)) = exec.next().await {
            said.extend(Some(message.into_data().to_vec()).filter(|bytes| bytes.first() == Some(&3)));
        }
        // That it breaks off may be an error.
        let _ = log.read_to_end(&mut rest).await;
    };
    tokio::time::timeout(TIMEOUT, told).await.expect("they go on");
    let [status] = &said[..] else { panic!("{said:?}") };
    let status: Value = serde_json::from_slice(&status[1..]).unwrap();
    assert_eq!(status["message"], "Internal error occurred: the session was cut off before its end");
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.contains("said") && !rest.ends_with("0\r\n\r\n"), "it ends as if it were all: {rest}");
}

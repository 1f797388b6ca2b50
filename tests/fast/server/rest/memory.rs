//! What users make the server keep of what they send and ask for: each on an account of his own, on real connections.

use std::time::Duration;

use podwright::server::Limits;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::super::config_map;
use super::limits::{Door, ended};

fn post(token: &str, length: usize) -> String {
    let head = "POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close";
    format!("{head}\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n")
}

async fn called(door: &Door, token: &str, body: &str) -> (u16, Value) {
    let mut stream = door.stranger().await;
    stream.write_all((post(token, body.len()) + body).as_bytes()).await.unwrap();
    let mut said = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut said)).await.unwrap();
    let said = String::from_utf8_lossy(&said);
    let (head, body) = said.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap_or_default())
}

/// Bodies that are sent to a half, by a token that may nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_half_of_his_bodies_keeps_nobody_else_from_asking() {
    let limits = Limits { bodies: 100_000, bodies_of_one: 60_000, ..Limits::default() };
    let door = Door::open(limits, "{level: None}").await;
    let body = |size: usize| json!({"jsonrpc": "2.0", "id": 1, "method": "x".repeat(size)}).to_string();
    let half = async |token: &str| {
        let mut stream = door.stranger().await;
        stream.write_all((post(token, 100_000) + &" ".repeat(50_000)).as_bytes()).await.unwrap();
        stream
    };
    let held = half("token-ann").await;
    let begun = std::time::Instant::now();
    while called(&door, "token-ann", &body(20_000)).await.0 != 429 {
        assert!(begun.elapsed() < Duration::from_secs(20), "one user has so much and no more");
    }
    for size in [10, 40_000] {
        assert_eq!(called(&door, "token-bob", &body(size)).await.0, 200, "{size} bytes of another one");
    }
    let mut other = half("token-bob").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut root = door.connect().await;
    let text = body(90_000);
    root.write_all((post("", text.len()).replace("Authorization: Bearer \r\n", "") + &text).as_bytes()).await.unwrap();
    assert_eq!(ended(&mut root).await, 200, "the administrator's are not counted");
    assert_eq!(called(&door, "token-carl", &body(10_000)).await.0, 200, "whoever has most gives way");
    assert_eq!(ended(&mut other).await, 429);
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answers_of_a_batch_by_http_count_as_they_are_made() {
    let door = Door::open(Limits { answers_of_one: 100_000, ..Limits::default() }, "{level: None}").await;
    let mut map = config_map("large");
    map["data"] = json!({"x": "x".repeat(60_000)});
    door.api.create("configmaps", map).await.unwrap();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "all-view"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "people"}],
    });
    door.api.create("clusterrolebindings.rbac.authorization.k8s.io", binding).await.unwrap();
    let get = |id: i32| {
        let params = json!({"resource": "configmaps", "namespace": "default", "name": "large"});
        json!({"jsonrpc": "2.0", "id": id, "method": "get", "params": params})
    };
    let batch = Value::from_iter((1..=4).map(get)).to_string();
    for _ in 0..2 {
        let (code, said) = called(&door, "token-ann", &batch).await;
        let codes: Vec<_> = said.as_array().unwrap().iter().map(|one| one["error"]["code"].as_i64()).collect();
        assert_eq!((code, codes), (200, vec![None, Some(429), Some(429), Some(429)]), "{said}");
    }
}

/// A masked frame; its mask is nothing.
fn frame(length: usize, payload: &str) -> Vec<u8> {
    let mut frame = vec![0x81, 0x80 | 127];
    frame.extend((length as u64).to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(payload.as_bytes());
    frame
}

/// Somebody asks for a WebSocket of JSON-RPC; with the head of the request he sends `early`. The code of the answer.
async fn upgraded(door: &Door, token: &str, early: &[u8]) -> (u16, TlsStream<TcpStream>) {
    let mut stream = door.stranger().await;
    let head = format!(
        "GET /rpc HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), early].concat()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    let answer = String::from_utf8_lossy(&answer);
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), stream)
}

/// ann's.
async fn socket(door: &Door, early: &[u8]) -> TlsStream<TcpStream> {
    let (code, stream) = upgraded(door, "token-ann", early).await;
    assert_eq!(code, 101);
    stream
}

/// They are no HTTP any more, and count all the same: by their users, for as long as they are open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgraded_connections_are_shared_by_users_as_all_are() {
    let limits = Limits { connections: 6, connections_of_user: 3, ..Limits::default() };
    let door = Door::open(limits, "{level: None}").await;
    let (mut first, second, third) = (socket(&door, b"").await, socket(&door, b"").await, socket(&door, b"").await);
    assert_eq!(upgraded(&door, "token-ann", b"").await.0, 429, "one user has so many");
    let held = [upgraded(&door, "token-bob", b"").await, upgraded(&door, "token-carl", b"").await];
    let (code, bob) = upgraded(&door, "token-bob", b"").await;
    assert_eq!((code, held.each_ref().map(|it| it.0)), (101, [101; 2]), "five are known, of six");
    ended(&mut first).await;
    assert_eq!(upgraded(&door, "token-carl", b"").await.0, 429, "nobody has more than he would");
    let mut root = door.connect().await;
    root.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    assert_eq!(ended(&mut root).await, 200, "the administrator comes in");
    drop((second, third));
    let begun = std::time::Instant::now();
    while upgraded(&door, "token-ann", b"").await.0 != 101 {
        assert!(begun.elapsed() < Duration::from_secs(20), "what has ended counts no more");
    }
    drop((bob, held));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_are_never_finished_count_and_end() {
    let limits = Limits { bodies_of_one: 5 << 20, body: Duration::from_secs(8), ..Limits::default() };
    let door = Door::open(limits, "{level: None}").await;
    let begun = frame((4 << 20) - 100, "{");
    // By its head, the memory for it is taken.
    let mut first = socket(&door, b"").await;
    first.write_all(&begun).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut second = socket(&door, b"").await;
    second.write_all(&begun).await.unwrap();
    let at = std::time::Instant::now();
    ended(&mut second).await;
    assert!(at.elapsed() < Duration::from_secs(6), "there is no room for a second one");
    ended(&mut first).await;
    // Whoever sends frames before he is answered has them begin nobody knows where.
    for early in [&b"\x89\x84\0\0\0\0\r\n\r\n"[..], &[0x81]] {
        let (code, mut stream) = upgraded(&door, "token-ann", early).await;
        assert!(code == 101 || code == 400, "{code}");
        let at = std::time::Instant::now();
        while code == 101 && stream.read(&mut [0; 100]).await.is_ok_and(|read| read > 0) {}
        assert!(at.elapsed() < Duration::from_secs(6), "{early:?}: it is not followed");
    }
    // What is finished is served, and a watch keeps no parameters of any length.
    let mut stream = socket(&door, b"").await;
    let watch = |padding: usize| {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "watch", "params": {"resource": "configmaps"}});
        call.to_string().replace(":{\"res", &format!(":{{{}\"res", " ".repeat(padding)))
    };
    for (padding, code) in [(10, "403"), (70_000, "413")] {
        let call = watch(padding);
        stream.write_all(&frame(call.len(), &call)).await.unwrap();
        let mut said = String::new();
        while !said.contains(code) {
            let mut piece = [0; 1000];
            let read = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut piece)).await.unwrap().unwrap();
            assert!(read > 0, "{said}");
            said.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
    }
}

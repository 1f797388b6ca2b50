//! Clients that read little of what they asked for, and never nothing, on real connections.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::{SinkExt, StreamExt};
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use podwright::server::Limits;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest};

use super::super::config_map;
use super::limits::{Door, ended};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TIMEOUT: Duration = Duration::from_secs(60);

/// Far more than the buffers of narrow sockets have, which are as good as read.
const OBJECTS: usize = 6;
const SIZE: usize = 900 << 10;
/// Of two such lists one has room.
const ROOM: usize = 4 << 20;

/// 40 kB a second: too little, and more than a piece in the time that a client may leave everything unread.
const STALLED: Duration = Duration::from_secs(3);
const PORTION: usize = 10 << 10;
const PAUSE: Duration = Duration::from_millis(250);

/// A connection that is read so slowly, until it is to be fast.
struct Slow {
    stream: TlsStream<TcpStream>,
    pause: Option<Pin<Box<Sleep>>>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    fast: AtomicBool,
    read: AtomicUsize,
}

impl AsyncRead for Slow {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        let mut portion = vec![0; PORTION.min(buf.remaining())];
        let mut portion = ReadBuf::new(&mut portion);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut portion))?;
        buf.put_slice(portion.filled());
        self.state.read.fetch_add(portion.filled().len(), Ordering::SeqCst);
        if !self.state.fast.load(Ordering::SeqCst) {
            self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Slow {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Asks for everything as ann, and reads until that ends; whether all of it came.
type Reader = fn(Slow) -> BoxFuture<'static, bool>;

fn of_http1(mut slow: Slow) -> BoxFuture<'static, bool> {
    Box::pin(async move {
        slow.write_all(ask("ann", "").as_bytes()).await.unwrap();
        // A reset is an end as well.
        let _ = slow.read_to_end(&mut Vec::new()).await;
        false
    })
}

fn of_http2(slow: Slow) -> BoxFuture<'static, bool> {
    Box::pin(async move {
        let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (mut client, connection) = builder.handshake(TokioIo::new(slow)).await.unwrap();
        let open = tokio::spawn(connection);
        let request =
            hyper::Request::get(format!("https://127.0.0.1{MAPS}")).header("authorization", "Bearer token-ann");
        let request = request.body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap();
        let answer = client.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        let is_whole = answer.into_body().collect().await.is_ok();
        assert!(!open.is_finished(), "its connection goes on without it");
        open.abort();
        is_whole
    })
}

async fn by_websocket(slow: Slow, method: &str, messages: usize) -> bool {
    let mut request = "ws://x/rpc".into_client_request().unwrap();
    request.headers_mut().insert("authorization", "Bearer token-ann".parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::client_async(request, slow).await.unwrap();
    let params = json!({"resource": "configmaps", "namespace": "default"});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    socket.send(Message::text(call.to_string())).await.unwrap();
    let mut read = 0;
    while let Some(Ok(Message::Text(text))) = socket.next().await {
        assert!(!text.contains(r#""error""#), "{text:.300}");
        read += 1;
        if read == messages {
            return true;
        }
    }
    false
}

fn of_a_call(slow: Slow) -> BoxFuture<'static, bool> {
    Box::pin(by_websocket(slow, "list", 1))
}

fn of_a_subscription(slow: Slow) -> BoxFuture<'static, bool> {
    Box::pin(by_websocket(slow, "watch", 1 + OBJECTS))
}

fn ask(who: &str, what: &str) -> String {
    format!("GET {MAPS}{what} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-{who}\r\nConnection: close\r\n\r\n")
}

/// What is read slowly ends while another user waits for its room.
async fn gives_way(reader: Reader, protocol: &[u8]) {
    let door = Door::narrow(Limits { answers: ROOM, stalled: STALLED, ..Limits::default() }).await;
    for number in 0..OBJECTS {
        let mut map = config_map(&format!("a{number}"));
        map["data"] = json!({"a": "x".repeat(SIZE)});
        door.api.create("configmaps", map).await.unwrap();
    }
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "all-view"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "people"}],
    });
    door.api.create("clusterrolebindings.rbac.authorization.k8s.io", binding).await.unwrap();
    let asked = async |who: &str, what: &str| {
        let mut stream = door.stranger().await;
        stream.write_all(ask(who, what).as_bytes()).await.unwrap();
        ended(&mut stream).await
    };
    let begun = Instant::now();
    while asked("ann", "/a0").await != 200 {
        assert!(begun.elapsed() < TIMEOUT, "rights take a moment to be in force");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (stream, state) = (door.narrow_stranger(protocol).await, Arc::new(State::default()));
    let reader = tokio::spawn(reader(Slow { stream, pause: None, state: state.clone() }));
    while state.read.load(Ordering::SeqCst) < 3 * PORTION {
        assert!(begun.elapsed() < TIMEOUT && !reader.is_finished(), "it comes");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(asked("bob", "/a0").await, 200, "the room is never one user's alone");
    assert_eq!(asked("bob", "").await, 200, "he waits for more of it, and has it");
    state.fast.store(true, Ordering::SeqCst);
    let is_whole = tokio::time::timeout(TIMEOUT, reader).await.unwrap().unwrap();
    let read = state.read.load(Ordering::SeqCst);
    assert!(!is_whole && read < OBJECTS * SIZE, "what is slow has ended, after {read} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_an_answer_of_http1_slowly_gives_way_to_others() {
    gives_way(of_http1, b"http/1.1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_an_answer_of_http2_slowly_gives_way_to_others() {
    gives_way(of_http2, b"h2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_an_answer_of_a_websocket_slowly_gives_way_to_others() {
    gives_way(of_a_call, b"http/1.1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_a_subscriptions_events_slowly_gives_way_to_others() {
    gives_way(of_a_subscription, b"http/1.1").await;
}

//! Limits, on real connections: clients that dawdle, send too much, ask for too much, or do not read.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use podwright::api::{Env, User};
use podwright::server::audit::{Audit, LogTarget, Policy};
use podwright::server::listen::{Tls, bind, serve};
use podwright::server::rest::authenticate::Peer;
use podwright::server::{Config, Limits, Server, StaticTokens, rest};
use podwright::store::{self, Memory, Outcome, Page, Range, Store, Txn};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;

use super::super::{Api, config_map};
use super::{Rest, tls};
use crate::twisted::{Twist, Twisted};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TIMEOUT: Duration = Duration::from_secs(20);
const NARROW: usize = 16 << 10;

/// A server on a TLS port.
pub(super) struct Door {
    pub(super) api: Api,
    address: SocketAddr,
    kubeconfig: String,
    dir: tempfile::TempDir,
    _serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Door {
    pub(super) async fn open(limits: Limits, rules: &str) -> Door {
        Door::at(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap(), limits, rules).await
    }

    /// One whose connections have small buffers, so that the server soon sees how fast its client reads.
    pub(super) async fn narrow(limits: Limits) -> Door {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&listener, NARROW).unwrap();
        Door::at(listener, limits, "{level: None}").await
    }

    async fn at(listener: TcpListener, limits: Limits, rules: &str) -> Door {
        let dir = tempfile::tempdir().unwrap();
        let pki = tls::open(dir.path(), Timestamp::now());
        let address = listener.local_addr().unwrap();
        let policy = format!("{{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{rules}]}}");
        let place = LogTarget { path: Some(dir.path().join("audit.log")), ..LogTarget::default() };
        let audit = Audit::open(Policy::parse(&policy).unwrap(), place, Env::system()).unwrap();
        let tokens =
            StaticTokens::parse("token-ann,ann,1,people\ntoken-bob,bob,2,people\ntoken-carl,carl,3,people\n").unwrap();
        let config = Config { limits, tokens, audit: Some(Arc::new(audit)), ..Config::default() };
        let server = Server::open(Arc::new(Memory::new()), Env::system(), config).await.unwrap();
        let socket = bind(&dir.path().join("api.sock")).unwrap();
        let tls = Tls::new(listener, pki.server_config().unwrap());
        let kubeconfig = pki.kubeconfig("https://127.0.0.1:1");
        let serving = tokio::spawn(serve(server.clone(), socket, Some(tls), std::future::pending()));
        Door { api: Api(server), address, kubeconfig, dir, _serving: serving }
    }

    /// A connection of somebody who is to show who he is.
    pub(super) async fn stranger(&self) -> TlsStream<TcpStream> {
        tls::handshake(self.address, tls::client(&self.kubeconfig, false)).await.unwrap()
    }

    /// The same, by this protocol, with a small buffer.
    pub(super) async fn narrow_stranger(&self, protocol: &[u8]) -> TlsStream<TcpStream> {
        let mut config = tls::client(&self.kubeconfig, false);
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = tls::handshake(self.address, config).await.unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(stream.get_ref().0, NARROW).unwrap();
        stream
    }

    /// A connection of the administrator.
    pub(super) async fn connect(&self) -> TlsStream<TcpStream> {
        tls::handshake(self.address, tls::client(&self.kubeconfig, true)).await.unwrap()
    }
}

/// A connection by which somebody has shown who he is, to the server's knowledge.
async fn known(mut stream: TlsStream<TcpStream>) -> TlsStream<TcpStream> {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    stream.read_exact(&mut [0; 12]).await.unwrap();
    stream
}

type Sent = http_body_util::Full<bytes::Bytes>;
type H2 = hyper::client::conn::http2::SendRequest<Sent>;

impl Door {
    /// A connection of HTTP/2 with the administrator's certificate, or with none; with `window`, so much of each answer is taken.
    async fn h2(&self, window: Option<u32>) -> (H2, tokio::task::JoinHandle<hyper::Result<()>>) {
        let mut config = tls::client(&self.kubeconfig, window.is_none());
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = tls::handshake(self.address, config).await.unwrap();
        let mut builder = hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
        builder.initial_stream_window_size(window);
        let (client, connection) = builder.handshake(hyper_util::rt::TokioIo::new(stream)).await.unwrap();
        (client, tokio::spawn(connection))
    }

    /// ann asks for a ConfigMap, or for the methods of JSON-RPC.
    fn asks(&self, face: &str) -> hyper::Request<Sent> {
        let body = match face {
            "rpc" => json!({"jsonrpc": "2.0", "id": 1, "method": "rpc.discover"}).to_string(),
            _ => String::new(),
        };
        let (method, path) = if face == "rpc" { ("POST", "/rpc".to_owned()) } else { ("GET", format!("{MAPS}/a")) };
        let ask = hyper::Request::builder().method(method).uri(format!("https://127.0.0.1{path}"));
        let ask = ask.header("authorization", "Bearer token-ann").header("content-type", "application/json");
        ask.body(body.into()).unwrap()
    }
}

const EVERYTHING: u32 = 1 << 20;

/// What a user leaves unread counts, by whichever face he has asked for it, and he gets no more by either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_unread_takes_the_room_of_the_next_answers() {
    let limits = Limits { answers_of_one: 1, wait: Duration::from_millis(200), ..Limits::default() };
    let door = Door::open(limits, "{level: None}").await;
    door.api.create("configmaps", config_map("a")).await.unwrap();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "all-view"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "people"}],
    });
    door.api.create("clusterrolebindings.rbac.authorization.k8s.io", binding).await.unwrap();
    let asked = async |face: &str| {
        let (mut client, _open) = door.h2(Some(EVERYTHING)).await;
        let answer = client.send_request(door.asks(face)).await.unwrap();
        let code = answer.status().as_u16();
        let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
        (code, String::from_utf8_lossy(&body).into_owned())
    };
    for unread in ["rest", "rpc"] {
        let (mut client, open) = door.h2(Some(0)).await;
        let begun = Instant::now();
        // Rights take a moment to be in force, and an answer a moment to be gone.
        while !matches!(asked("rest").await, (200, _)) {
            assert!(begun.elapsed() < TIMEOUT, "ann may look: {:?}", asked("rest").await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let held = client.send_request(door.asks(unread)).await.unwrap();
        assert_eq!(held.status(), 200);
        for face in ["rest", "rpc"] {
            let (code, said) = asked(face).await;
            assert_eq!(code, 429, "{face} beside what came by {unread}: {said}");
        }
        drop((held, client));
        open.abort();
    }
}

/// Who waits for room to be answered holds no seat.
#[tokio::test(start_paused = true)]
async fn nobody_waits_behind_who_does_not_read() {
    let limits = Limits { inflight: 1, answers_of_one: 1, ..Limits::default() };
    let config = Config { limits, ..Config::default() };
    let server = Server::open(Arc::new(Memory::new()), Env::system(), config).await.unwrap();
    let rest = Arc::new(Rest { face: rest::Face::new(server.clone()), api: Api(server) });
    rest.post(MAPS, config_map("a")).await;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "all-view"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "people"}],
    });
    rest.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
    let peer = |name: &str| Peer { certificate: Some(User::new(name, ["people"])), ..Peer::default() };
    let (lazy, polite) = (peer("lazy"), peer("polite"));
    let ask = || rest::boxed(hyper::Request::get(MAPS).body(Sent::default()).unwrap());
    let unread = rest.face.answer(&lazy, ask()).await;
    assert_eq!(unread.status(), 200);
    let second = tokio::spawn({
        let (rest, lazy) = (rest.clone(), peer("lazy"));
        async move { rest.ask_as(&lazy, &format!("GET {MAPS}"), &[], "").await.code }
    });
    tokio::time::sleep(Duration::from_millis(10)).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(rest.ask_as(&polite, &format!("GET {MAPS}"), &[], "").await.code, 200);
    assert!(begun.elapsed() < Duration::from_secs(1), "after {:?}", begun.elapsed());
    assert_eq!(second.await.unwrap(), 429, "nothing was read in time");
    drop(unread);
    assert_eq!(rest.ask_as(&lazy, &format!("GET {MAPS}"), &[], "").await.code, 200);
}

/// Everything that is said until the connection ends, which it must; its status code, 0 for none.
pub(super) async fn ended(stream: &mut (impl AsyncReadExt + Unpin)) -> u16 {
    let mut answer = Vec::new();
    // A reset is an end as well.
    let _ = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut answer)).await.expect("the server hangs up");
    String::from_utf8_lossy(&answer).split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_dawdles_is_cut_off() {
    // Long enough for a client that hurries on a busy machine.
    let short = Duration::from_secs(3);
    let limits = Limits { handshake: short, headers: short, body: short, ..Limits::default() };
    let door = Door::open(limits, "{level: None}").await;
    let begun = Instant::now();
    let mut silent = TcpStream::connect(door.address).await.unwrap();
    let mut idle = door.connect().await;
    let mut half = door.connect().await;
    half.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow:").await.unwrap();
    let mut h2 = {
        let mut config = tls::client(&door.kubeconfig, true);
        config.alpn_protocols = vec![b"h2".to_vec()];
        tls::handshake(door.address, config).await.unwrap()
    };
    h2.write_all(b"PRI * HTTP/2.0").await.unwrap();
    let mut body = door.connect().await;
    let head =
        format!("POST {MAPS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{");
    body.write_all(head.as_bytes()).await.unwrap();
    let mut rpc = door.connect().await;
    rpc.write_all(b"POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        .await
        .unwrap();
    assert_eq!(ended(&mut rpc).await, 408, "a body of JSON-RPC that never comes");
    assert_eq!(ended(&mut silent).await, 0, "a handshake that never comes");
    // A server may say 408 before it hangs up.
    for stream in [&mut idle, &mut half, &mut h2] {
        let code = ended(stream).await;
        assert!(code == 0 || code == 408, "headers that never come: {code}");
    }
    assert_eq!(ended(&mut body).await, 408, "a body that never comes");
    assert!(begun.elapsed() < TIMEOUT);
    // The next request on a connection has no more time than the first.
    let mut second = door.connect().await;
    second.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    second.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    second.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow:").await.unwrap();
    ended(&mut second).await;
    // Who is quick is served meanwhile and afterwards.
    let mut quick = door.connect().await;
    quick.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    assert_eq!(ended(&mut quick).await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_is_refused_before_it_is_read() {
    let door = Door::open(Limits::default(), "{level: None}").await;
    let post = |more: &str| format!("POST {MAPS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{more}\r\n");
    let mut told = door.connect().await;
    told.write_all(post("Content-Length: 10485760\r\n").as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    // Not one byte of it was sent.
    tokio::time::timeout(TIMEOUT, told.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");

    let mut untold = door.connect().await;
    untold.write_all(post("Transfer-Encoding: chunked\r\n").as_bytes()).await.unwrap();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for _ in 0..160 {
        // It may hang up before all is sent.
        if untold.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    let code = ended(&mut untold).await;
    assert!(code == 413 || code == 0, "{code}");

    let mut head = door.connect().await;
    let long = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "x".repeat(100 << 10));
    let _ = head.write_all(long.as_bytes()).await;
    let code = ended(&mut head).await;
    assert!(code == 431 || code == 0, "headers of a hundred kilobytes: {code}");
    let mut many = door.connect().await;
    let headers: String = (0..1000).map(|i| format!("X-{i}: x\r\n")).collect();
    let _ = many.write_all(format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{headers}\r\n").as_bytes()).await;
    assert_eq!(ended(&mut many).await, 431, "a thousand headers");
    let (mut client, _open) = door.h2(None).await;
    for (size, code) in [(10 << 10, 200), (100 << 10, 431)] {
        let ask = hyper::Request::get("https://127.0.0.1/healthz").header("x-long", "x".repeat(size));
        let answer = client.send_request(ask.body(Sent::default()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), code, "{size} bytes of a header of HTTP/2");
    }
}

/// HTTP/2 lets a client be there and take nothing, for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_http2_that_is_left_unread_is_cut_off() {
    let limits = Limits { stalled: Duration::from_millis(300), ..Limits::default() };
    let door = Door::open(limits, "{level: Metadata, verbs: [watch]}").await;
    door.api.create("configmaps", config_map("a")).await.unwrap();
    let mut config = tls::client(&door.kubeconfig, true);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = tls::handshake(door.address, config).await.unwrap();
    let (mut client, connection) = hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
        .initial_stream_window_size(0)
        .handshake(hyper_util::rt::TokioIo::new(stream))
        .await
        .unwrap();
    let open = tokio::spawn(connection);
    let ask = hyper::Request::get(format!("https://127.0.0.1{MAPS}?watch=true&resourceVersion=0"));
    let request = ask.body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap();
    let unread = client.send_request(request).await.unwrap();
    assert_eq!(unread.status(), 200);
    let begun = Instant::now();
    let told = || {
        let log = std::fs::read_to_string(door.dir.path().join("audit.log")).unwrap_or_default();
        log.lines().any(|line| line.contains("kubernetes-admin") && line.contains("ResponseComplete"))
    };
    while !told() {
        assert!(begun.elapsed() < TIMEOUT, "the watch goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!open.is_finished(), "its connection stays");
    open.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_has_so_many_connections_and_no_more() {
    let door = Door::open(Limits { connections_of_one: 3, ..Limits::default() }, "{level: None}").await;
    let (first, _second) = (known(door.connect().await).await, known(door.connect().await).await);
    let asks = async || {
        let mut third = door.connect().await;
        third.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = [0; 12];
        third.read_exact(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[9..]).into_owned()
    };
    assert_eq!(asks().await, "429", "one place of an address is for who has not shown yet who he is");
    drop(first);
    let begun = Instant::now();
    while asks().await != "200" {
        assert!(begun.elapsed() < TIMEOUT, "there is room again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Peers without credentials have all connections that there are; who has some comes in all the same, and stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_shows_nothing_keeps_nobody_out() {
    let limits = Limits { connections: 8, connections_of_one: 100, ..Limits::default() };
    let door = Door::open(limits, "{level: None}").await;
    let half = b"GET /healthz HTTP/1.1\r\nHost: x\r\n";
    let stranger = async || {
        let mut stream = tls::handshake(door.address, tls::client(&door.kubeconfig, false)).await.ok()?;
        stream.write_all(half).await.ok()?;
        Some(stream)
    };
    let ask = async |stream: &mut TlsStream<TcpStream>, token: &str| -> bool {
        let text = format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{token}\r\n");
        let mut answer = [0; 12];
        stream.write_all(text.as_bytes()).await.is_ok()
            && stream.read_exact(&mut answer).await.is_ok()
            && answer == *b"HTTP/1.1 200"
    };
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(stranger().await);
    }
    let mut known = tls::handshake(door.address, tls::client(&door.kubeconfig, false)).await.unwrap();
    assert!(ask(&mut known, "Authorization: Bearer token-ann\r\n").await, "somebody with a token");
    for _ in 0..20 {
        held.push(stranger().await);
    }
    let mut certified = door.connect().await;
    assert!(ask(&mut certified, "").await, "somebody with a certificate");
    let mut rest = Vec::new();
    known.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let _ = known.read_to_end(&mut rest).await;
    assert!(String::from_utf8_lossy(&rest).contains("HTTP/1.1 200"), "he is still there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_does_not_read_is_cut_off() {
    let limits = Limits { stalled: Duration::from_millis(500), ..Limits::default() };
    let door = Door::open(limits, "{level: Metadata, verbs: [watch]}").await;
    let mut lazy = door.connect().await;
    lazy.write_all(format!("GET {MAPS}?watch=true HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    let told = |stage: &str| {
        let log = std::fs::read_to_string(door.dir.path().join("audit.log")).unwrap_or_default();
        log.lines().any(|line| line.contains("kubernetes-admin") && line.contains(stage))
    };
    let until = async |stage: &str| {
        let begun = Instant::now();
        while !told(stage) {
            assert!(begun.elapsed() < TIMEOUT, "no {stage}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    until("ResponseStarted").await;
    let big = "x".repeat(1 << 20);
    for i in 0..40 {
        let mut map = config_map(&format!("m{i}"));
        map["data"]["a"] = big.as_str().into();
        door.api.create("configmaps", map).await.unwrap();
    }
    until("ResponseComplete").await;
    drop(lazy);
}

#[tokio::test(start_paused = true)]
async fn a_greedy_client_waits_behind_a_polite_one() {
    let limits = Limits { inflight: 4, queue: 2, ..Limits::default() };
    let config = Config { limits, ..Config::default() };
    let server = Server::open(Arc::new(Twisted::<Slow>::default()), Env::system(), config).await.unwrap();
    let rest = Arc::new(Rest { face: rest::Face::new(server.clone()), api: Api(server) });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "all-edit"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "people"}],
    });
    rest.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
    let peer = |name: &str| Peer { certificate: Some(User::new(name, ["people"])), ..Peer::default() };
    let slow = format!("GET {MAPS}?{OLD}");
    let ended = Arc::new(std::sync::Mutex::new(Vec::new()));
    let ask = |user: &'static str, line: String| {
        let (rest, ended, peer) = (rest.clone(), ended.clone(), peer(user));
        tokio::spawn(async move {
            let told = rest.ask_as(&peer, &line, &[], "").await;
            ended.lock().unwrap().push(user);
            (told.code, told.header("retry-after").to_owned())
        })
    };
    let mut greedy: Vec<_> = (0..6).map(|_| ask("greedy", slow.clone())).collect();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let refused = greedy.pop().unwrap().await.unwrap();
    assert_eq!(refused, (429, "1".to_owned()), "three run, a seat is left to others, two wait, one is refused");
    ended.lock().unwrap().clear();
    let polite = ask("polite", format!("GET {MAPS}"));
    // Who must always be answered, what writes, and what goes on are not held up.
    let begun = tokio::time::Instant::now();
    assert_eq!(rest.get(MAPS).await.code, 200);
    let json = [("content-type", "application/json")];
    let write = rest.ask_as(&peer("greedy"), &format!("POST {MAPS}"), &json, config_map("a").to_string()).await;
    assert_eq!(write.code, 201, "{}", write.text());
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(polite.await.unwrap().0, 200);
    let before = ended.lock().unwrap().clone();
    assert!(before.iter().filter(|user| **user == "greedy").count() <= 3, "{before:?}");
    for task in greedy {
        assert_eq!(task.await.unwrap().0, 200);
    }
    assert_eq!(ended.lock().unwrap().len(), 6);
}

/// What is read from the store.
const OLD: &str = "resourceVersion=1&resourceVersionMatch=Exact";

/// A store that takes its time with old states, and with what is written when it is told to.
#[derive(Default)]
struct Slow(std::sync::atomic::AtomicBool);

#[async_trait::async_trait]
impl Twist for Slow {
    async fn commit(&self, memory: &Memory, txn: Txn) -> Result<Outcome, store::Error> {
        if self.0.load(std::sync::atomic::Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        memory.commit(txn).await
    }
    async fn list(&self, memory: &Memory, range: Range) -> Result<Page, store::Error> {
        if range.at.is_some() {
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        memory.list(range).await
    }
}

/// Whoever has as much under way as one may have takes nothing from another: of what reads, of what writes, and of documents.
#[tokio::test(start_paused = true)]
async fn requests_are_counted_by_who_asks() {
    let limits = Limits { inflight: 4, mutating_inflight: 4, queue: 0, ..Limits::default() };
    let store = Arc::new(Twisted::<Slow>::default());
    let server = Server::open(store.clone(), Env::system(), Config { limits, ..Config::default() }).await.unwrap();
    let rest = Arc::new(Rest { face: rest::Face::new(server.clone()), api: Api(server) });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "all-edit"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "people"}],
    });
    rest.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
    store.0.store(true, std::sync::atomic::Ordering::SeqCst);
    let ask = |user: &'static str, line: &str, name: &str| {
        let peer = Peer { certificate: Some(User::new(user, ["people"])), ..Peer::default() };
        let body = if line.starts_with("POST") { config_map(name).to_string() } else { String::new() };
        let (rest, line) = (rest.clone(), line.to_owned());
        async move { rest.ask_as(&peer, &line, &[("content-type", "application/json")], body).await.code }
    };
    let slow_read = format!("GET {MAPS}?{OLD}");
    let (read, write) = (format!("GET {MAPS}"), format!("POST {MAPS}"));
    let table = [
        ("reads", slow_read.as_str(), 200, read.as_str(), 200),
        ("documents", slow_read.as_str(), 200, "GET /openapi/v2", 200),
        ("writes", write.as_str(), 201, write.as_str(), 201),
    ];
    for (what, slow, slow_code, quick, quick_code) in table {
        let under_way: Vec<_> = (0..3).map(|n| tokio::spawn(ask("greedy", slow, &format!("{what}-{n}")))).collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(ask("greedy", quick, &format!("{what}-more")).await, 429, "{what}: he has three of four");
        assert_eq!(ask("polite", quick, &format!("{what}-polite")).await, quick_code, "{what}: nobody else has any");
        for task in under_way {
            assert_eq!(task.await.unwrap(), slow_code, "{what}");
        }
    }
    // Who waits for a state that may never come does nothing, and has no seat.
    let later = format!("GET {MAPS}?resourceVersion=99999999&resourceVersionMatch=NotOlderThan");
    let mut waiting = Vec::new();
    for _ in 0..6 {
        waiting.push(tokio::spawn(ask("greedy", &later, "")));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(ask("greedy", &read, "").await, 200);
    for task in waiting {
        assert_eq!(task.await.unwrap(), 504);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_counted_by_the_address_that_they_come_from() {
    let door = Door::open(Limits { connections_of_one: 1, ..Limits::default() }, "{level: None}").await;
    let from = async |address: [u8; 4]| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::from(address), 0).into()).unwrap();
        let stream = socket.connect(door.address).await?;
        let config = Arc::new(tls::client(&door.kubeconfig, true));
        let name = rustls::pki_types::ServerName::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST));
        tokio_rustls::TlsConnector::from(config).connect(name, stream).await
    };
    let _first = known(from([127, 0, 0, 1]).await.unwrap()).await;
    assert!(from([127, 0, 0, 1]).await.is_err(), "it has one");
    from([127, 0, 0, 2]).await.expect("another address has none");
}

#[tokio::test]
async fn who_may_not_write_is_refused_before_his_body_is_looked_at() {
    let rest = Rest::new().await;
    let nobody = Peer { certificate: Some(User::new("ann", ["people"])), ..Peer::default() };
    let json = [("content-type", "application/json")];
    for body in ["{", "{}", &"x".repeat(4 << 20)] {
        assert_eq!(rest.ask_as(&nobody, &format!("POST {MAPS}"), &json, body.to_owned()).await.code, 403);
    }
    // Each answer names its request.
    let told = rest.ask("GET /version", &[("audit-id", "mine")], "").await;
    assert_eq!(told.header("audit-id"), "mine");
    assert_eq!(rest.get("/version").await.header("audit-id").len(), 36);
}

/// What nobody reads lies in memory, a document of the server's own like an object.
#[tokio::test(start_paused = true)]
async fn documents_take_room_and_wait_for_it() {
    let limits = Limits { answers_of_one: 1 << 20, ..Limits::default() };
    let config = Config { limits, ..Config::default() };
    let server = Server::open(Arc::new(Memory::new()), Env::system(), config).await.unwrap();
    let face = rest::Face::new(server);
    let ask = async |path: &str| {
        let peer = Peer { certificate: Some(User::new("nobody", ["system:authenticated"])), ..Peer::default() };
        let body = http_body_util::Full::new(bytes::Bytes::new());
        face.answer(&peer, rest::boxed(hyper::Request::get(path).body(body).unwrap())).await
    };
    let unread = ask("/openapi/v2").await;
    assert_eq!(unread.status(), 200);
    assert_eq!(ask("/openapi/v2?pretty=1").await.status(), 429);
    assert_eq!(ask("/healthz").await.status(), 200, "who must always be answered");
    drop(unread);
    assert_eq!(ask("/openapi/v2").await.status(), 200);
}

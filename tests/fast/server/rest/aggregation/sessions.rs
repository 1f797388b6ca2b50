//! Sessions with what an extension server serves, by JSON-RPC's `connect`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use podwright::api::request::Body;
use podwright::api::stream::{Frame, FrameCodec, STATUS, STDIN, STDOUT};
use podwright::api::{Options, Request, Status, User, Verb};
use podwright::client::{Client, Stream};
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::codec::Framed;

use super::super::super::request;
use super::super::ends::{code, ended};
use super::world::{GROUP, NAME, World};

/// An extension server of WebSockets alone: it says what it was asked for, then what it hears, and ends as `exec` does. Where `no`
/// is asked for it refuses.
async fn echo() -> (u16, tokio::task::JoinHandle<()>) {
    let made = rcgen::generate_simple_self_signed(["hook.default.svc".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                serve(stream).await;
            });
        }
    });
    (port, serving)
}

async fn serve(mut stream: tokio_rustls::server::TlsStream<tokio::net::TcpStream>) {
    let head = super::head(&mut stream).await;
    let header = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        lines
            .filter(|(of, _)| of.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.to_owned())
            .next()
            .unwrap_or_default()
    };
    let plain = |code: &str, body: &str| format!("HTTP/1.1 {code}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    if header("upgrade") != "websocket" {
        let _ = stream.write_all(plain("200 OK", "{}").as_bytes()).await;
        return;
    }
    let target = head.split(' ').nth(1).unwrap();
    if target.ends_with("/no") {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 409, "reason": "Conflict",
            "message": "it does not run"});
        let _ = stream.write_all(plain("409 Conflict", &status.to_string()).as_bytes()).await;
        return;
    }
    let asked = format!("{target} {} {}", header("x-remote-user"), header("authorization"));
    let accept = derive_accept_key(header("sec-websocket-key").as_bytes());
    let offered = header("sec-websocket-protocol");
    let best = offered.split(',').next().unwrap().trim();
    let switching = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {best}\r\n\r\n"
    );
    stream.write_all(switching.as_bytes()).await.unwrap();
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    let message = |channel: u8, bytes: &[u8]| Message::Binary([&[channel], bytes].concat().into());
    if asked.contains("/portforward") {
        for channel in [0, 1] {
            socket.send(message(channel, &80u16.to_le_bytes())).await.unwrap();
        }
    }
    socket.send(message(if asked.contains("/portforward") { 0 } else { 1 }, asked.as_bytes())).await.unwrap();
    while let Some(Ok(heard)) = socket.next().await {
        match heard.into_data() {
            // v5: the input has ended.
            end if end == [255, 0][..] => {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NonZeroExitCode",
                    "message": "command terminated with exit code 3"});
                socket.send(message(3, status.to_string().as_bytes())).await.unwrap();
            }
            heard if heard.first() == Some(&0) && asked.contains("/portforward") => {
                socket.send(Message::Binary(heard)).await.unwrap();
            }
            heard if heard.first() == Some(&0) => socket.send(message(1, &heard[1..])).await.unwrap(),
            _ => {}
        }
    }
}

async fn world() -> (World, tokio::task::JoinHandle<()>) {
    let world = World::ready().await;
    let (port, serving) = echo().await;
    world.port.store(port, Ordering::Relaxed);
    let insecure = json!({"spec": {"caBundle": null, "insecureSkipTLSVerify": true}});
    world.rest.api.patch("apiservices", NAME, insecure).await.unwrap();
    world.until(NAME, "Passed").await;
    (world, serving)
}

fn asked(sub: &str, options: Value) -> Request {
    let of = request(Verb::Connect, "things.ext.example.com/v1", "one", Some(options), Options::default());
    Request { subresource: Some(sub.to_owned()), ..of }
}

async fn open(client: &Client, sub: &str, options: Value) -> Result<Framed<Stream, FrameCodec>, Status> {
    Ok(Framed::new(client.connect(asked(sub, options)).await?, FrameCodec))
}

async fn next(stream: &mut Framed<Stream, FrameCodec>) -> (u8, String) {
    let frame = tokio::time::timeout(Duration::from_secs(20), stream.next()).await.unwrap().unwrap().unwrap();
    (frame.channel, String::from_utf8(frame.payload.to_vec()).unwrap())
}

#[tokio::test]
async fn a_session_by_json_rpc_is_one_with_the_extension_server() {
    let (world, serving) = world().await;
    let client = world.client();
    const ONE: &str = "/apis/ext.example.com/v1/namespaces/default/things/one";
    let mut exec = open(&client, "exec", json!({"command": ["a", "b"], "stdin": true})).await.unwrap();
    let (channel, told) = next(&mut exec).await;
    let line = format!("{ONE}/exec?command=a&command=b&stdin=true ");
    assert!(channel == STDOUT && told.starts_with(&line), "{told}");
    assert!(told.ends_with(' '), "no credentials: {told}");
    exec.send(Frame { channel: STDIN, payload: Bytes::from_static(b"hello") }).await.unwrap();
    assert_eq!(next(&mut exec).await, (STDOUT, "hello".into()));
    exec.send(Frame { channel: 255, payload: Bytes::from_static(&[STDIN]) }).await.unwrap();
    let (channel, end) = next(&mut exec).await;
    assert!(channel == STATUS && end.contains("exit code 3"), "{end}");
    assert!(exec.next().await.is_none(), "and that is all");
    // A port's bytes are the bytes alone.
    let mut port = open(&client, "portforward", json!({"ports": 80})).await.unwrap();
    assert!(next(&mut port).await.1.starts_with(&format!("{ONE}/portforward?ports=80 ")));
    port.send(Frame { channel: STDIN, payload: Bytes::from_static(b"ping") }).await.unwrap();
    assert_eq!(next(&mut port).await, (STDOUT, "ping".into()));
    // Why it is refused the other server says.
    let mut refused = open(&client, "no", json!({})).await.unwrap();
    let (channel, why) = next(&mut refused).await;
    assert!(channel == STATUS && why.contains("it does not run"), "{why}");
    assert_eq!(open(&client, "proxy", json!({})).await.err().unwrap().code, 405);
    serving.abort();
}

#[tokio::test]
async fn a_log_of_an_extension_server_is_told_by_a_stream() {
    let world = World::ready().await;
    let client = world.client();
    let mut log = open(&client, "log", json!({"tailLines": 3})).await.unwrap();
    let (channel, told) = next(&mut log).await;
    assert!(channel == STDOUT && told.contains("/things/one/log"), "{told}");
    let (channel, end) = next(&mut log).await;
    assert!(channel == STATUS && end.contains("Success"), "{end}");
    assert!(!world.heard("GET /apis/ext.example.com/v1/namespaces/default/things/one/log?tailLines=3").0.is_empty());
}

#[tokio::test]
async fn who_may_not_read_a_part_has_no_session_with_it() {
    let (world, serving) = world().await;
    let as_ann = || Request { user: User::new("ann", ["system:authenticated"]), ..asked("exec", json!({})) };
    assert_eq!(world.rest.api.0.handle(as_ann()).await.unwrap_err().code, 403);
    // He who may read things may not so their parts.
    world.let_ann().await;
    assert_eq!(world.rest.api.0.handle(as_ann()).await.unwrap_err().code, 403);
    serving.abort();
}

/// One that is dialled by its id, as the user who asked for it.
#[tokio::test]
async fn a_session_by_json_rpc_ends_with_the_right_to_it() {
    let (world, serving) = world().await;
    world.let_ann().await;
    let rules = json!({"rules": [{"apiGroups": [GROUP], "resources": ["things/exec"], "verbs": ["get"]}]});
    world.rest.api.patch("clusterroles", "things", rules).await.unwrap();
    let open = async |name: &str| {
        let groups = if name == "root" { ["system:masters"] } else { ["system:authenticated"] };
        let asked = Request { user: User::new(name, groups), ..asked("exec", json!({"stdin": true})) };
        let Body::Stream { id } = world.rest.api.0.handle(asked).await.unwrap().body else { panic!("no stream") };
        let mut stream = world.connect().await;
        let shown = format!("Impersonate-User: {name}\r\n");
        let head = format!(
            "GET /stream/{id} HTTP/1.1\r\nHost: x\r\n{shown}Connection: Upgrade\r\nUpgrade: podwright-stream\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        assert_eq!(code(&mut stream).await, 101, "{name}");
        stream
    };
    let mut anns = open("ann").await;
    let mut roots = open("root").await;
    assert!(!ended(&mut anns, Duration::from_secs(1)).await, "it ends while he may");
    world.rest.api.delete("clusterrolebindings", "things", Options::default()).await.unwrap();
    assert!(ended(&mut anns, Duration::from_secs(20)).await, "it goes on without the right to it");
    assert!(!ended(&mut roots, Duration::from_millis(500)).await, "an administrator's has ended too");
    serving.abort();
}

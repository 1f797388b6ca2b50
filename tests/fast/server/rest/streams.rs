//! Sessions over WebSocket, with a node that echoes: exec, port-forward, logs, and broken frames.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use podwright::api::Verb;
use podwright::api::rpc::{Session, Task};
use podwright::api::stream::{CLOSE, Frame, FrameCodec, STATUS, STDIN, STDOUT};
use podwright::client::{Client, rpc};
use podwright::server::Config;
use podwright::server::listen::{bind, serve};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_util::codec::Framed;

use super::super::{Api, pod};

/// A served socket, a running Pod `p` on a node, and that node's agent.
pub(super) struct World {
    pub api: Api,
    dir: tempfile::TempDir,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    /// The sessions that the agent was asked for.
    pub asked: Arc<Mutex<Vec<Session>>>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|task| task.abort());
    }
}

impl World {
    async fn new() -> World {
        World::with(Config::default()).await
    }

    pub async fn with(config: Config) -> World {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        let api = Api::with(config).await;
        let mut object = pod("p");
        object["spec"]["nodeName"] = "n".into();
        api.create("pods", object).await.unwrap();
        let running = json!({"status": {"phase": "Running", "containerStatuses": [
            {"name": "c", "ready": true, "restartCount": 0, "image": "i", "imageID": "i",
             "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}});
        api.sub(Verb::Patch, "pods", "p", "status", running).await.unwrap();
        let (listener, server) = (bind(&path).unwrap(), api.0.clone());
        let serving = tokio::spawn(async move { serve(server, listener, None, std::future::pending()).await.unwrap() });
        let client = rpc::client(rpc::Address(path), "test");
        let mut sessions = client.sessions("n").await.unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        let agent = tokio::spawn(async move {
            while let Some(session) = sessions.recv().await {
                log.lock().unwrap().push(session.clone());
                tokio::spawn(echo(client.clone(), session));
            }
        });
        World { api, dir, tasks: vec![serving, agent], asked }
    }

    pub fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("api.sock")
    }

    pub async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join("api.sock")).await.unwrap()
    }

    /// Without a subprotocol where that is "".
    pub async fn websocket(&self, path: &str, protocol: &str) -> WebSocketStream<UnixStream> {
        let mut request =
            format!("ws://localhost/api/v1/namespaces/default/pods/p/{path}").into_client_request().unwrap();
        if !protocol.is_empty() {
            request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
        }
        let (socket, reply) = tokio_tungstenite::client_async(request, self.connect().await).await.unwrap();
        let told = reply.headers().get("sec-websocket-protocol").map_or("", |told| told.to_str().unwrap());
        assert_eq!(told, protocol);
        socket
    }
}

/// Sends back what it is sent until the caller has ended, or says `end`; then it ends as a command that fails with 3.
async fn echo(client: Client, session: Session) {
    let mut frames = Framed::new(client.dial(&session.id).await.unwrap(), FrameCodec);
    let end = match session.task {
        // One that is followed from a time on goes on.
        Task::Log { log, .. } if log.since_seconds.is_some() => {
            frames.send(Frame { channel: STDOUT, payload: Bytes::from_static(b"said\n") }).await.unwrap();
            while let Some(Ok(_)) = frames.next().await {}
            json!({"status": "Success", "code": 200})
        }
        Task::Log { .. } => {
            frames.send(Frame { channel: STDOUT, payload: Bytes::from_static(b"said\n") }).await.unwrap();
            json!({"status": "Success", "code": 200})
        }
        // Who listens there takes nothing.
        Task::PortForward { port: STALLED, .. } => return std::future::pending().await,
        _ => {
            while let Some(Ok(frame)) = frames.next().await {
                match frame.channel {
                    STDIN if frame.payload == "end" => break,
                    STDIN => frames.send(Frame { channel: STDOUT, payload: frame.payload }).await.unwrap(),
                    CLOSE => break,
                    _ => {}
                }
            }
            let cause = json!({"reason": "ExitCode", "message": "3"});
            let why = "command terminated with exit code 3";
            json!({"status": "Failure", "reason": "NonZeroExitCode", "message": why, "details": {"causes": [cause]}})
        }
    };
    // Who has hung up does not hear it.
    let _ = frames.send(Frame { channel: STATUS, payload: end.to_string().into() }).await;
    let _ = frames.close().await;
}

/// A port that takes nothing of what it is sent.
const STALLED: u16 = 9;

async fn next(socket: &mut WebSocketStream<UnixStream>) -> Vec<u8> {
    match socket.next().await.unwrap().unwrap() {
        Message::Binary(bytes) => bytes.to_vec(),
        other => panic!("no binary message: {other:?}"),
    }
}

fn message(channel: u8, payload: &[u8]) -> Message {
    Message::Binary([&[channel][..], payload].concat().into())
}

#[tokio::test]
async fn exec_has_its_streams_half_close_and_exit_code() {
    let world = World::new().await;
    let mut socket = world.websocket("exec?command=cat&stdin=true&stdout=true", "v5.channel.k8s.io").await;
    assert_eq!(next(&mut socket).await, [STDOUT], "the session stands");
    socket.send(message(STDIN, b"hello")).await.unwrap();
    assert_eq!(next(&mut socket).await, b"\x01hello");
    socket.send(message(CLOSE, &[STDIN])).await.unwrap();
    let end = next(&mut socket).await;
    let status: Value = serde_json::from_slice(&end[1..]).unwrap();
    assert_eq!((end[0], status["details"]["causes"][0]["message"].clone()), (STATUS, json!("3")));
    assert!(matches!(socket.next().await, Some(Ok(Message::Close(Some(close)))) if u16::from(close.code) == 1000));
}

#[tokio::test]
async fn ports_are_forwarded_over_channels() {
    let world = World::new().await;
    let mut socket = world.websocket("portforward?ports=80&ports=8080", "v4.channel.k8s.io").await;
    let mut heads = Vec::new();
    for _ in 0..4 {
        heads.push(next(&mut socket).await);
    }
    heads.sort();
    assert_eq!(heads, [[0, 80, 0], [1, 80, 0], [2, 0x90, 0x1f], [3, 0x90, 0x1f]]);
    for (channel, text) in [(0, b"one"), (2, b"two")] {
        socket.send(message(channel, text)).await.unwrap();
        assert_eq!(next(&mut socket).await, [&[channel][..], text].concat());
    }
}

/// WebSockets have no windows per channel: one that is full holds up the others, and is given up for them, and said so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_takes_nothing_is_given_up_for_the_others() {
    let world = World::new().await;
    let mut socket = world.websocket(&format!("portforward?ports={STALLED}&ports=80"), "v4.channel.k8s.io").await;
    for _ in 0..4 {
        next(&mut socket).await;
    }
    let (mut sink, mut source) = socket.split();
    let begun = std::time::Instant::now();
    // More than all buffers on the way hold; what comes behind it is for the other port.
    let send = async {
        for _ in 0..200 {
            sink.send(message(0, &vec![b'x'; 64 << 10])).await.unwrap();
        }
        sink.send(message(2, b"other")).await.unwrap();
        loop {
            sink.send(message(0, b"more")).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let mut heard = Vec::new();
    let read = async {
        // The other port's bytes, and the error of the first one.
        while ![1, 2].iter().all(|channel| heard.iter().any(|bytes: &Vec<u8>| bytes[0] == *channel)) {
            heard.push(source.next().await.unwrap().unwrap().into_data().to_vec());
        }
    };
    let limit = std::time::Duration::from_secs(40);
    tokio::select! {
        () = send => unreachable!(),
        done = tokio::time::timeout(limit, read) => done.expect("the other port goes on"),
    }
    assert!(heard.iter().any(|bytes| bytes == b"\x02other"));
    let told = heard.iter().find(|bytes| bytes[0] == 1).expect("the end of the first is told");
    assert!(String::from_utf8_lossy(&told[1..]).contains("held up the other connections"));
    assert!(begun.elapsed() >= std::time::Duration::from_millis(1900), "it had its time");
    assert!(begun.elapsed() < std::time::Duration::from_secs(8), "and no more: {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_log_is_plain_text() {
    let world = World::new().await;
    let mut stream = world.connect().await;
    let request = "GET /api/v1/namespaces/default/pods/p/log HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("said\n"), "{answer}");
}

#[tokio::test]
async fn broken_frames_end_their_connection_and_nothing_else() {
    let world = World::new().await;
    let head = "GET /api/v1/namespaces/default/pods/p/exec?command=cat&stdin=1&stdout=1 HTTP/1.1\r\nHost: x\r\n\
                Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n";
    for rubbish in [
        &b"\x82\x01x"[..],                                   // not masked
        b"\xf2\x81\0\0\0\0x",                                // reserved bits
        b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0", // longer than all there is
        b"\x8f\x80\0\0\0\0",                                 // an opcode that is none
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        let mut stream = world.connect().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(rubbish).await.unwrap();
        let mut answer = Vec::new();
        // It may be reset, with what it has not read.
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.starts_with(b"HTTP/1.1 101"), "{:?}", String::from_utf8_lossy(&answer));
    }
    let mut socket = world.websocket("exec?command=cat&stdin=true&stdout=true", "v4.channel.k8s.io").await;
    socket.send(message(200, b"no such channel")).await.unwrap();
    socket.send(Message::Binary(Bytes::new())).await.unwrap();
    socket.send(message(STDIN, b"still here")).await.unwrap();
    assert_eq!(next(&mut socket).await, [STDOUT]);
    assert_eq!(next(&mut socket).await, b"\x01still here");
}

//! Entry points for `./dev fuzz`: parsers of untrusted input that are otherwise private.

use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{FutureExt, SinkExt, StreamExt};
use jsonwebtoken::{Algorithm, Validation};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio_util::codec::Framed;

use super::admission::webhook::exchange;
use super::certificates::check_request;
use super::custom::conversion_review;
use super::ends::never;
use super::limits::{Account, Bodies, Limits};
use super::messages::Messages;
use super::rest::streams::forward::{Ports, by_streams, by_websocket as by_channels};
use super::rest::streams::remote::{Dialect, Ends, by_websocket};
use super::rest::streams::{spdy::Session, websocket, websocket::Framing};
use super::tokens::oidc;
use podwright_api::stream::{Frame, FrameCodec, STDIN, STDOUT};
use podwright_api::{Object, User};

/// What a client of SPDY/3.1 sends, up to its end: returns how many streams it opened, and how many bytes they carried.
pub async fn spdy(sent: &[u8]) -> (usize, usize) {
    let (server, mut client) = tokio::io::duplex(64 << 10);
    let mut session = Session::start(server, None, account());
    let feed = async {
        // Invalid input ends the connection early.
        let _ = client.write_all(sent).await;
        let _ = client.shutdown().await;
        let _ = tokio::io::copy(&mut client, &mut tokio::io::sink()).await;
    };
    let take = async {
        let (mut streams, mut read) = (0, Vec::new());
        while let Some(stream) = session.accept().await {
            streams += 1;
            let (mut reader, writer) = stream.split();
            read.push(tokio::spawn(async move {
                let mut length = 0;
                while let Some(bytes) = reader.read().await {
                    length += bytes.len();
                    // The client may be gone.
                    let _ = writer.write(Bytes::from_static(b"heard")).await;
                }
                length
            }));
        }
        let mut length = 0;
        for reader in read {
            length += reader.await.unwrap_or_default();
        }
        session.end().await;
        (streams, length)
    };
    let ((), told) = tokio::join!(feed, take);
    told
}

/// What an exec client sends in WebSocket frames with a subprotocol, up to its end: returns what reaches the node. The node answers
/// each frame.
pub async fn websocket(protocol: &str, sent: &[u8]) -> Vec<Frame> {
    let (server, client) = tokio::io::duplex(64 << 10);
    let (ours, node) = tokio::io::duplex(64 << 10);
    let (mut answers, mut sender) = tokio::io::split(client);
    let feed = async {
        // Invalid input ends the connection early.
        let _ = sender.write_all(sent).await;
        let _ = sender.shutdown().await;
    };
    let drain = async {
        let _ = tokio::io::copy(&mut answers, &mut tokio::io::sink()).await;
    };
    let serve = async {
        let ends = Ends { stdin: true, stdout: true, stderr: true, tty: true };
        let dialect = Dialect::of(protocol);
        let (socket, frames) = (websocket::socket(server, messages()).await, Framed::new(ours, FrameCodec));
        by_websocket(socket, frames, ends, dialect, never().shared()).await;
    };
    let hear = async {
        let mut node = Framed::new(node, FrameCodec);
        let mut heard = Vec::new();
        while let Some(Ok(frame)) = node.next().await {
            // The session may have ended.
            let _ = node.send(Frame { channel: STDOUT, payload: frame.payload.clone() }).await;
            heard.push(frame);
        }
        heard
    };
    tokio::join!(feed, drain, serve, hear).3
}

pub(super) fn messages() -> Messages {
    let limits = Limits::default();
    Messages::new(Bodies::new(&limits).of(&User::default()), websocket::MAX_MESSAGE, limits.body)
}

pub(super) fn account() -> Arc<Account> {
    let limits = Limits::default();
    Account::new(Bodies::new(&limits).of(&User::default()), limits.body)
}

/// The transport of a port-forward client: WebSocket channels with this subprotocol; SPDY; SPDY inside a WebSocket.
#[derive(Clone, Copy, Debug)]
pub enum Forward<'a> {
    Channels(&'a str),
    Streams,
    Tunnel,
}

/// What a port-forward client sends up to its end: returns each connection into the Pod with its port and number of bytes. The Pod
/// echoes. Channels are for `wanted`.
pub async fn forward(by: Forward<'_>, wanted: Vec<u16>, sent: &[u8]) -> Vec<(u16, usize)> {
    let heard: Arc<Mutex<Vec<(u16, usize)>>> = Arc::default();
    let (server, client) = tokio::io::duplex(64 << 10);
    let pod = heard.clone();
    let ports = Arc::new(Ports::by(move |port| {
        let (ours, node) = tokio::io::duplex(64 << 10);
        let (pod, place) = (
            pod.clone(),
            pod.lock().map_or(0, |mut pod| {
                pod.push((port, 0));
                pod.len() - 1
            }),
        );
        tokio::spawn(async move {
            let mut node = Framed::new(node, FrameCodec);
            while let Some(Ok(frame)) = node.next().await {
                if frame.channel != STDIN {
                    continue;
                }
                if let Ok(mut pod) = pod.lock() {
                    pod[place].1 += frame.payload.len();
                }
                // The session may have ended.
                let _ = node.send(Frame { channel: STDOUT, payload: frame.payload }).await;
            }
        });
        async move { Ok(Framed::new(ours, FrameCodec)) }.boxed()
    }));
    let (mut answers, mut sender) = tokio::io::split(client);
    let feed = async {
        // Invalid input ends the connection early.
        let _ = sender.write_all(sent).await;
        let _ = sender.shutdown().await;
    };
    let drain = async {
        let _ = tokio::io::copy(&mut answers, &mut tokio::io::sink()).await;
    };
    let serve = async {
        match by {
            Forward::Channels(protocol) => {
                let socket = websocket::socket(server, messages()).await;
                by_channels(socket, ports, wanted, Framing::of(protocol), account()).await;
            }
            Forward::Streams => by_streams(Session::start(server, None, account()), ports).await,
            Forward::Tunnel => {
                let tunnel = websocket::tunnel(websocket::socket(server, messages()).await);
                by_streams(Session::start(tunnel, None, account()), ports).await;
            }
        }
    };
    tokio::join!(feed, drain, serve);
    heard.lock().map(|mut heard| std::mem::take(&mut *heard)).unwrap_or_default()
}

/// Whether a certificate request, in PEM, may be signed.
pub fn certificate_request(pem: &str) -> Result<(), String> {
    let spec = json!({"request": STANDARD.encode(pem), "signerName": "kubernetes.io/kube-apiserver-client",
        "usages": ["client auth"], "username": "someone"});
    check_request(&Object(json!({"spec": spec}))).map_err(|why| why.to_string())
}

/// The `response` of a webhook's answer to the request `u`.
pub fn webhook_answer(answer: Value, mutating: bool) -> Result<Value, String> {
    exchange::response_of(answer, &json!("admission.k8s.io/v1"), "u", mutating).map_err(|why| why.to_string())
}

/// The objects of a conversion webhook's answer to the request `u`: one Widget converted to v2.
pub fn converted(answer: Value) -> Result<Object, String> {
    let objects = conversion_review::objects_of(answer, "u", "Widget", "example.com/v2", 1);
    objects.map(|mut objects| objects.remove(0)).map_err(|why| why.to_string())
}

/// The number of keys in an OpenID Connect issuer's key document, and whether one of them has signed a token.
pub fn issuer_keys(document: &[u8], token: &str) -> Result<(usize, bool), String> {
    let keys = oidc::published(document).map_err(|why| why.to_string())?.keys;
    let mut validation = Validation::new(Algorithm::ES256);
    validation.validate_exp = false;
    let claims = oidc::claims(token, &keys, None, &validation).map_err(|why| why.to_string())?;
    Ok((keys.len(), claims.is_some()))
}

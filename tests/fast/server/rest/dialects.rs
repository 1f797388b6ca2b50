//! The subprotocols of WebSockets: all that upstream speaks, browsers' base64 among them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::net::UnixStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::streams::World;

/// A channel's message, as this subprotocol writes it.
fn written(protocol: &str, channel: u8, payload: &[u8]) -> Message {
    match protocol.contains("base64") {
        true => Message::text(format!("{channel}{}", STANDARD.encode(payload))),
        false => Message::Binary([&[channel][..], payload].concat().into()),
    }
}

async fn read(socket: &mut WebSocketStream<UnixStream>) -> Message {
    socket.next().await.unwrap().unwrap()
}

#[tokio::test]
async fn sessions_speak_every_subprotocol() {
    let world = World::with(Default::default()).await;
    for protocol in [
        "",
        "channel.k8s.io",
        "base64.channel.k8s.io",
        "v4.channel.k8s.io",
        "v4.base64.channel.k8s.io",
        "v5.channel.k8s.io",
    ] {
        for path in ["exec?command=cat&stdin=true&stdout=true", "attach?stdin=true&stdout=true"] {
            let mut socket = world.websocket(path, protocol).await;
            assert_eq!(read(&mut socket).await, written(protocol, 1, b""), "{protocol}: the session stands");
            socket.send(written(protocol, 0, b"hello \xff")).await.unwrap();
            assert_eq!(read(&mut socket).await, written(protocol, 1, b"hello \xff"), "{protocol}");
            socket.send(written(protocol, 0, b"end")).await.unwrap();
            let end = read(&mut socket).await;
            // Before v4 it is said in words.
            let why = "command terminated with exit code 3";
            if protocol.starts_with('v') {
                let text = match end {
                    Message::Text(text) => STANDARD.decode(&text.as_str()[1..]).unwrap(),
                    other => other.into_data()[1..].to_vec(),
                };
                let status: Value = serde_json::from_slice(&text).unwrap();
                assert_eq!(status["message"], why, "{protocol}");
            } else {
                assert_eq!(end, written(protocol, 3, why.as_bytes()), "{protocol}");
            }
            assert!(matches!(read(&mut socket).await, Message::Close(_)), "{protocol}");
        }
    }
    let mut socket = world.websocket("portforward?ports=80", "v4.base64.channel.k8s.io").await;
    let mut heads = [read(&mut socket).await.into_text().unwrap(), read(&mut socket).await.into_text().unwrap()];
    heads.sort();
    assert_eq!(heads, ["0UAA=", "1UAA="]);
}

/// Rubbish is no input.
#[tokio::test]
async fn what_is_no_base64_is_left_out() {
    let world = World::with(Default::default()).await;
    let mut socket = world.websocket("exec?command=cat&stdin=true&stdout=true", "base64.channel.k8s.io").await;
    for rubbish in ["", "0", "0*", "/aGk=", "\u{e9}aGk=", "0aGk"] {
        socket.send(Message::text(rubbish)).await.unwrap();
    }
    socket.send(Message::text("0aGk=")).await.unwrap();
    assert_eq!(read(&mut socket).await, Message::text("1"));
    assert_eq!(read(&mut socket).await, Message::text("1aGk="));
}

#[tokio::test]
async fn logs_come_by_websocket_too() {
    let world = World::with(Default::default()).await;
    for (protocol, said) in [
        ("", Message::Binary("said\n".into())),
        ("binary.k8s.io", Message::Binary("said\n".into())),
        ("base64.binary.k8s.io", Message::text(STANDARD.encode("said\n"))),
    ] {
        let mut socket = world.websocket("log?follow=true", protocol).await;
        assert!(read(&mut socket).await.is_empty(), "{protocol}: it begins");
        assert_eq!(read(&mut socket).await, said, "{protocol}");
        assert!(matches!(read(&mut socket).await, Message::Close(_)), "{protocol}");
    }
}

//! Ways in for `./dev fuzz`: parsers of untrusted input that are nobody else's business.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::admission::webhook::exchange;
use super::certificates::check_request;
use super::rest::streams::spdy::Session;
use crate::api::Object;

/// What a client of SPDY/3.1 sends, up to its end: how many streams it opened, and how many bytes came by them.
pub async fn spdy(sent: &[u8]) -> (usize, usize) {
    let (server, mut client) = tokio::io::duplex(64 << 10);
    let mut session = Session::start(server);
    let feed = async {
        // Rubbish ends the connection early.
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
                    // A client that is gone hears nothing.
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

/// Whether a request for a certificate, in PEM, is one that may be signed.
pub fn certificate_request(pem: &str) -> Result<(), String> {
    let spec = json!({"request": STANDARD.encode(pem), "signerName": "kubernetes.io/kube-apiserver-client",
        "usages": ["client auth"], "username": "someone"});
    check_request(&Object(json!({"spec": spec})))
}

/// The `response` of what a webhook answered to the question `u`.
pub fn webhook_answer(answer: Value, mutating: bool) -> Result<Value, String> {
    exchange::response_of(answer, &json!("admission.k8s.io/v1"), "u", mutating)
}

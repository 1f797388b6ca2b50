//! Requests that two parsers could read in two ways, as raw bytes: each is refused, or answered once and the connection ended.

use std::time::Duration;

use podwright::server::listen::{bind, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::super::Api;

/// What a smuggled request would ask for; its answer names it.
const HIDDEN: &str = "GET /api/v1/namespaces/hidden HTTP/1.1\r\nHost: x\r\n\r\n";

struct World {
    dir: tempfile::TempDir,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl World {
    async fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let (api, listener) = (Api::new().await, bind(&dir.path().join("api.sock")).unwrap());
        let server = api.0.clone();
        let task = tokio::spawn(async move { serve(server, listener, None, std::future::pending()).await.unwrap() });
        World { dir, task }
    }

    /// Sends bytes and reads to the connection's end, which must come by itself.
    async fn send(&self, bytes: &str) -> String {
        let mut stream = UnixStream::connect(self.dir.path().join("api.sock")).await.unwrap();
        // Who is refused early may be cut off while it still sends.
        let _ = stream.write_all(bytes.as_bytes()).await;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer));
        let _ = read
            .await
            .unwrap_or_else(|_| panic!("the connection stays open after {:?}", &bytes[..bytes.len().min(200)]));
        String::from_utf8_lossy(&answer).into_owned()
    }
}

fn post(headers: &str, body: &str) -> String {
    format!("POST /apis/none HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n{body}")
}

#[tokio::test]
async fn what_could_be_read_in_two_ways_is_refused() {
    let world = World::new().await;
    let huge = format!("X-Huge: {}", "x".repeat(400 << 10));
    for (headers, body) in [
        ("Content-Length: 5\r\nContent-Length: 6", "hello"),
        ("Content-Length: 5, 6", "hello"),
        ("Content-Length: +5", "hello"),
        ("Content-Length: 0x5", "hello"),
        ("Content-Length: -1", ""),
        ("Content-Length : 5", "hello"),
        ("Transfer-Encoding: chunked, identity", "0\r\n\r\n"),
        ("Transfer-Encoding: xchunked", "0\r\n\r\n"),
        ("X-Folded: a\r\n Content-Length: 5", "hello"),
        ("X-Bare: a\rContent-Length: 5", "hello"),
        ("X-Null: a\0b", ""),
        (huge.as_str(), ""),
    ] {
        let answer = world.send(&(post(headers, body) + HIDDEN)).await;
        let shown = &headers[..headers.len().min(60)];
        assert!(answer.starts_with("HTTP/1.1 4"), "{shown:?}: {answer}");
        assert!(answer.matches("HTTP/1.1").count() == 1 && !answer.contains("hidden"), "{shown:?}: {answer}");
    }
    let old = "POST /apis/none HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert!(world.send(&format!("{old}{HIDDEN}")).await.starts_with("HTTP/1.1 4"));
}

/// Both lengths at once: chunks count (RFC 9112, section 6.1), and nothing is read behind them.
#[tokio::test]
async fn two_lengths_end_the_connection() {
    let world = World::new().await;
    for headers in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\nConnection: keep-alive",
    ] {
        let answer = world.send(&(post(headers, "0\r\n\r\n") + HIDDEN)).await;
        assert!(answer.matches("HTTP/1.1").count() <= 1 && !answer.contains("hidden"), "{headers:?}: {answer}");
    }
}

#[tokio::test]
async fn chunks_that_are_none_end_the_connection() {
    let world = World::new().await;
    let long = format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(64 << 10));
    for body in
        ["0x1\r\na\r\n0\r\n\r\n", "1\na\n0\n\n", "-1\r\n\r\n", "fffffffffffffffff\r\na", "1\r\nab\r\n0\r\n\r\n", &long]
    {
        let request = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
            Transfer-Encoding: chunked\r\n\r\n";
        let answer = world.send(&format!("{request}{body}{HIDDEN}")).await;
        let shown = &body[..body.len().min(20)];
        assert!(answer.matches("HTTP/1.1").count() <= 1 && !answer.contains("hidden"), "{shown:?}: {answer}");
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{shown:?}: {answer}");
    }
}

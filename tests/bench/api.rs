//! The API: durable writes over its socket.

use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use podwright::{
    api::Env,
    server::{Config, Server, listen},
    store::{Sqlite, Store},
};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
};

use crate::report;

/// Creates per second at 1, 16 and 128 writers.
pub fn writes() {
    const SECONDS: u64 = 5;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for (writers, budget) in [(1, 2_000), (16, 10_000), (128, 15_000)] {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Sqlite::open(&dir.path().join("store.db")).unwrap());
        let figures = runtime.block_on(bench(store, dir.path(), writers, SECONDS)).unwrap();
        report(
            &format!("durable API writes, {writers} writers"),
            format!("{:.0}/s, p50 {:.2?}, p99 {:.2?}", figures.per_second, figures.p50, figures.p99),
            &format!(">= {budget}/s, p99 <= 50 ms"),
            figures.per_second >= f64::from(budget) && figures.p99 <= Duration::from_millis(50),
        );
    }
}

/// The result of one run.
#[derive(Clone, Copy, Debug)]
struct Figures {
    per_second: f64,
    p50: Duration,
    p99: Duration,
}

/// Creates ConfigMaps of about 1 KiB over JSON-RPC on a Unix socket for `seconds`, from `writers` connections, each with one call
/// at a time, on an empty store; the socket is in the directory `dir`.
async fn bench(store: Arc<dyn Store>, dir: &Path, writers: usize, seconds: u64) -> io::Result<Figures> {
    let server = Server::open(store, Env::system(), Config::default()).await.map_err(io::Error::other)?;
    let path = dir.join(format!("api-{writers}.sock"));
    let listener = listen::bind(&path)?;
    let serving = tokio::spawn(listen::serve(server, listener, None, std::future::pending()));

    let start = Instant::now();
    let until = start + Duration::from_secs(seconds);
    let each = |writer| {
        let path = path.clone();
        tokio::spawn(async move { create_until(&path, writer, until).await })
    };
    let tasks: Vec<_> = (0..writers).map(each).collect();
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await.map_err(io::Error::other)??);
    }
    let elapsed = start.elapsed();
    serving.abort();
    took.sort_unstable();
    let quantile = |q: f64| took.get(((took.len() as f64 - 1.0) * q) as usize).copied().unwrap_or_default();
    let per_second = took.len() as f64 / elapsed.as_secs_f64();
    Ok(Figures { per_second, p50: quantile(0.5), p99: quantile(0.99) })
}

/// One writer, over HTTP with keep-alive: returns the duration of each call. It shares the CPUs with the server, so it does as
/// little as possible.
async fn create_until(path: &Path, writer: usize, until: Instant) -> io::Result<Vec<Duration>> {
    const NAME: &str = "the name";
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "labels": {"app": "bench"}},
        "data": {"filler": "x".repeat(900)}});
    let params = json!({"resource": "configmaps", "namespace": "default", "body": body});
    let call = json!({"jsonrpc": "2.0", "id": writer, "method": "create", "params": params}).to_string();
    let (head, tail) = call.split_once(NAME).unwrap_or_default();
    let mut stream = BufReader::with_capacity(16 << 10, UnixStream::connect(path).await?);
    let mut took = Vec::new();
    for turn in 0u64.. {
        if Instant::now() >= until {
            break;
        }
        let name = format!("c-{writer}-{turn}");
        let length = head.len() + name.len() + tail.len();
        let request = format!(
            "POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n\
             {head}{name}{tail}"
        );
        let start = Instant::now();
        stream.get_mut().write_all(request.as_bytes()).await?;
        let answer = read_answer(&mut stream).await?;
        took.push(start.elapsed());
        // After the object, which is long.
        let end = &answer[answer.len().saturating_sub(64)..];
        if !end.windows(14).any(|part| part == b"\"created\":true") {
            return Err(io::Error::other(String::from_utf8_lossy(&answer).into_owned()));
        }
    }
    Ok(took)
}

async fn read_answer(stream: &mut BufReader<UnixStream>) -> io::Result<Vec<u8>> {
    const LENGTH: &str = "content-length:";
    let (mut line, mut length) = (String::new(), 0);
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if line.get(..LENGTH.len()).is_some_and(|name| name.eq_ignore_ascii_case(LENGTH)) {
            length = line[LENGTH.len()..].trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

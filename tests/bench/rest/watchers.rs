//! A thousand watchers of one kind during writes: whether all get all events, in order, and the latency.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::{Served, millis, runtime};
use crate::idle::{cpu_ticks, peak_rss_mib, rss_mib};
use crate::{beside, quantile, report, sorted};

const WATCHERS: usize = 1000;
const WRITES_PER_SECOND: u32 = 500;
const SECONDS: u32 = 10;
const WRITES: usize = (WRITES_PER_SECOND * SECONDS) as usize;
/// This many objects are written in rotation.
const OBJECTS: usize = 100;
const WRITERS: usize = 16;
/// Timeout for the last events.
const TIMEOUT: Duration = Duration::from_secs(60);

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(i: usize, sent: u128) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m-{i}")}, "data": {"sent": sent.to_string()}})
}

/// What one watcher received.
#[derive(Default)]
struct Seen {
    /// From sending a write, in microseconds.
    latencies: Vec<f64>,
    last: u64,
    out_of_order: usize,
}

/// 1,000 watchers, 500 writes a second.
pub fn watchers() {
    let served = Served::start();
    let pid = served.node.pid();
    runtime().block_on(async {
        let mut connection = served.connect().await;
        for i in 0..OBJECTS {
            connection.create(MAPS, &map(i, 0)).await;
        }
        let (begin, before) = (Instant::now(), rss_mib(pid));
        let mut watching = Vec::with_capacity(WATCHERS);
        for _ in 0..WATCHERS {
            watching.push(tokio::spawn(follow(watch(&served).await, begin)));
        }
        let each = (rss_mib(pid) - before) * 1024.0 / WATCHERS as f64;
        report("RSS of an idle watcher over TLS", format!("{each:.0} KiB"), "<= 64 KiB", each <= 64.0);

        let (cpu, own, start) = (cpu_ticks(pid), cpu_ticks(std::process::id()), Instant::now());
        let writes = sorted(write(&served, begin).await);
        let wrote = start.elapsed().as_secs_f64();
        let figure = format!("p50 {:.2} ms, p99 {:.2} ms", quantile(&writes, 0.5), quantile(&writes, 0.99));
        beside(&format!("writes at {:.0}/s meanwhile", WRITES as f64 / wrote), figure);
        let mut seen = Vec::new();
        for task in watching {
            seen.push(task.await.unwrap());
        }
        let elapsed = start.elapsed().as_secs_f64();
        tell(seen);
        let percent = |before: u64, pid: u32| (cpu_ticks(pid) - before) as f64 / elapsed;
        let (cpu, own) = (percent(cpu, pid), percent(own, std::process::id()));
        beside("CPU meanwhile", format!("server {cpu:.0} % of a core, the watchers {own:.0} %"));
        let rss = peak_rss_mib(pid);
        report("RSS of the server, at most", format!("{rss:.1} MiB"), "<= 400 MiB", rss <= 400.0);
    });
}

/// Latency, and whether each watcher received each write, in the order of the revisions.
fn tell(seen: Vec<Seen>) {
    let lost: usize = seen.iter().map(|seen| WRITES - seen.latencies.len()).sum();
    let out_of_order: usize = seen.iter().map(|seen| seen.out_of_order).sum();
    let figure = format!("{lost} lost, {out_of_order} out of order");
    let events = WRITES * WATCHERS;
    report(&format!("{events} events told"), figure, "none", lost + out_of_order == 0);
    let latencies = sorted(seen.into_iter().flat_map(|seen| seen.latencies).collect());
    let (p50, p99) = (quantile(&latencies, 0.5), quantile(&latencies, 0.99));
    let figure = format!("p50 {p50:.1} ms, p99 {p99:.1} ms");
    report(
        "1,000 watchers, 500 writes/s: sent -> told",
        figure,
        "p50 <= 50 ms, p99 <= 500 ms",
        p50 <= 50.0 && p99 <= 500.0,
    );
}

/// Opens a watch from now on.
async fn watch(served: &Served) -> Incoming {
    let mut connection = served.connect().await;
    let (_, list) = connection.get(&format!("{MAPS}?limit=1"), &[]).await;
    let list = String::from_utf8_lossy(&list[..list.len().min(300)]).into_owned();
    let revision = list.split_once("\"resourceVersion\":\"").unwrap().1.split('"').next().unwrap().to_owned();
    let path = format!("{MAPS}?watch=true&resourceVersion={revision}&timeoutSeconds=300");
    let request = hyper::Request::get(path).header("host", "x").body(Default::default()).unwrap();
    let answer = connection.send(request).await;
    assert_eq!(answer.status().as_u16(), 200);
    answer.into_body()
}

/// Reads until all writes have arrived, or nothing more comes.
async fn follow(mut events: Incoming, begin: Instant) -> Seen {
    let mut seen = Seen { latencies: Vec::with_capacity(WRITES), ..Seen::default() };
    let mut rest = Vec::new();
    while seen.latencies.len() < WRITES {
        let Ok(Some(Ok(frame))) = tokio::time::timeout(TIMEOUT, events.frame()).await else { break };
        let now = begin.elapsed().as_secs_f64() * 1000.0;
        rest.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        let mut from = 0;
        while let Some(end) = rest[from..].iter().position(|byte| *byte == b'\n') {
            seen.take(&rest[from..from + end], now);
            from += end + 1;
        }
        rest.drain(..from);
    }
    seen
}

impl Seen {
    fn take(&mut self, line: &[u8], now: f64) {
        let line = std::str::from_utf8(line).unwrap();
        let number =
            |before: &str| line.split_once(before).unwrap().1.split('"').next().unwrap().parse::<u64>().unwrap();
        let revision = number("\"resourceVersion\":\"");
        self.out_of_order += usize::from(revision <= self.last);
        self.last = revision;
        self.latencies.push(now - number("\"sent\":\"") as f64 / 1000.0);
    }
}

/// So many writes a second, each sent when its time has come; how long each took, in milliseconds.
async fn write(served: &Served, begin: Instant) -> Vec<f64> {
    let (next, start) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        let (mut connection, next) = (served.connect().await, next.clone());
        writers.push(tokio::spawn(async move {
            let mut took = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= WRITES {
                    return took;
                }
                tokio::time::sleep_until((start + Duration::from_secs(1) * i as u32 / WRITES_PER_SECOND).into()).await;
                let (sent, object) = (Instant::now(), i % OBJECTS);
                let body = map(object, begin.elapsed().as_micros());
                connection.write(Method::PUT, &format!("{MAPS}/m-{object}"), &body, 200).await;
                took.push(millis(sent.elapsed()));
            }
        }));
    }
    let mut took = Vec::new();
    for writer in writers {
        took.extend(writer.await.unwrap());
    }
    took
}

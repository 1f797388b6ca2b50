//! Latency of single requests with 10,000 Pods stored.

use std::time::Instant;

use serde_json::json;

use super::{PODS, Served, millis, pod, runtime};
use crate::{beside, quantile, report, sorted};

const STORED: usize = 10_000;

/// Variants of a list: a name, the rest of the path, headers, repetitions, and the budget of the median in ms.
type Listed = (&'static str, &'static str, &'static [(&'static str, &'static str)], usize, f64);

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

const LISTS: &[Listed] = &[
    ("JSON", "", &[], 20, 150.0),
    ("JSON, gzip", "", &[("accept-encoding", "gzip")], 5, 1000.0),
    ("JSON, of one label", "?labelSelector=app%3Dweb-7", &[], 20, 20.0),
    ("as a Table", "", &[("accept", TABLE)], 5, 1000.0),
    ("its metadata alone", "", &[("accept", METADATA)], 5, 1000.0),
];

/// get, create and list over TLS.
pub fn requests() {
    let served = Served::start();
    runtime().block_on(async {
        let rate = served.create_pods(0..STORED, 16).await;
        crate::beside("filled by 16 connections", format!("{rate:.0} Pods/s"));
        creates(&served).await;
        gets(&served).await;
        gets_at_once(&served).await;
        lists(&served).await;
        pages(&served).await;
        page_of_maps(&served).await;
    });
}

fn told(what: &str, took: Vec<f64>, more: &str, (p50, p99): (f64, f64)) {
    let took = sorted(took);
    let (median, last) = (quantile(&took, 0.5), quantile(&took, 0.99));
    let figure = format!("p50 {median:.2} ms, p99 {last:.2} ms{more}");
    report(what, figure, &format!("p50 <= {p50} ms, p99 <= {p99} ms"), median <= p50 && last <= p99);
}

async fn creates(served: &Served) {
    let (mut connection, mut took) = (served.connect().await, Vec::new());
    for i in 0..1000 {
        let pod = pod(STORED + i);
        let start = Instant::now();
        connection.create(PODS, &pod).await;
        took.push(millis(start.elapsed()));
    }
    told("create of a Pod", took, "", (5.0, 50.0));
    for i in 0..1000 {
        let request = hyper::Request::delete(format!("{PODS}/p-{}?gracePeriodSeconds=0", STORED + i));
        let request = request.header("host", "x").body(Default::default()).unwrap();
        let answer = connection.send(request).await;
        http_body_util::BodyExt::collect(answer.into_body()).await.unwrap();
    }
}

async fn gets(served: &Served) {
    let (mut connection, mut took) = (served.connect().await, Vec::new());
    for i in 0..3000 {
        let path = format!("{PODS}/p-{}", i * 7919 % STORED);
        let start = Instant::now();
        connection.get(&path, &[]).await;
        took.push(millis(start.elapsed()));
    }
    told("get of one of 10,000 Pods", took, "", (1.0, 5.0));
}

/// Gets over 16 connections.
async fn gets_at_once(served: &Served) {
    const CONNECTIONS: usize = 16;
    const EACH: usize = 1000;
    let mut readers = Vec::new();
    for reader in 0..CONNECTIONS {
        let mut connection = served.connect().await;
        readers.push(async move {
            for i in 0..EACH {
                connection.get(&format!("{PODS}/p-{}", (reader * EACH + i) * 7919 % STORED), &[]).await;
            }
        });
    }
    let start = Instant::now();
    let readers: Vec<_> = readers.into_iter().map(tokio::spawn).collect();
    for reader in readers {
        reader.await.unwrap();
    }
    let rate = (CONNECTIONS * EACH) as f64 / start.elapsed().as_secs_f64();
    beside("gets by 16 connections", format!("{rate:.0}/s"));
}

/// A page of 500 ConfigMaps, 600 KB: stored bytes should be joined, not parsed.
async fn page_of_maps(served: &Served) {
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let mut connection = served.connect().await;
    for i in 0..500 {
        let data = json!({"settings": format!("{i:04}").repeat(225)});
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m-{i}")}, "data": data});
        connection.create(MAPS, &map).await;
    }
    let (mut took, mut size) = (Vec::new(), 0);
    for _ in 0..200 {
        let start = Instant::now();
        (size, _) = connection.get(&format!("{MAPS}?limit=500"), &[]).await;
        took.push(millis(start.elapsed()));
    }
    told("page of 500 ConfigMaps", took, &format!(", {} KB", size / 1000), (25.0, 100.0));
}

async fn lists(served: &Served) {
    for (name, query, headers, times, budget) in LISTS {
        let (mut connection, mut took, mut size) = (served.connect().await, Vec::new(), 0);
        for _ in 0..*times {
            let start = Instant::now();
            (size, _) = connection.get(&format!("{PODS}{query}"), headers).await;
            took.push(millis(start.elapsed()));
        }
        let more = format!(", {:.1} MiB", size as f64 / f64::from(1 << 20));
        told(&format!("list of 10,000 Pods, {name}"), took, &more, (*budget, budget * 2.0));
    }
}

/// The whole list in pages of 500, as requested by kubectl and client-go.
async fn pages(served: &Served) {
    let (mut connection, mut walks, mut each) = (served.connect().await, Vec::new(), Vec::new());
    for _ in 0..5 {
        let (start, mut path, mut count) = (Instant::now(), format!("{PODS}?limit=500"), 0);
        loop {
            let begin = Instant::now();
            let (_, head) = connection.get(&path, &[]).await;
            each.push(millis(begin.elapsed()));
            count += 1;
            // A list's metadata comes before its items.
            let head = String::from_utf8_lossy(&head[..head.len().min(1000)]).into_owned();
            let Some((_, token)) = head.split_once("\"continue\":\"") else { break };
            path = format!("{PODS}?limit=500&continue={}", token.split('"').next().unwrap_or(""));
        }
        assert_eq!(count, STORED / 500);
        walks.push(millis(start.elapsed()));
    }
    told("list of 10,000 Pods, in pages of 500", walks, "", (400.0, 800.0));
    told("  one page of 500", each, "", (25.0, 100.0));
}

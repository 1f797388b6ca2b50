//! The memory cost of many stored objects.

use super::{PODS, Served, runtime};
use crate::idle::rss_mib;
use crate::{beside, report};

const STORED: usize = 50_000;

/// RSS of the server with 50,000 Pods, and the bytes of the objects.
pub fn stored() {
    let mut served = Served::start();
    let empty = rss_mib(served.node.pid());
    let (rate, bytes) = runtime().block_on(async {
        let rate = served.create_pods(0..STORED, 16).await;
        let mut connection = served.connect().await;
        let (mut bytes, mut path) = (0, format!("{PODS}?limit=500"));
        loop {
            let (length, head) = connection.get(&path, &[]).await;
            bytes += length;
            let head = String::from_utf8_lossy(&head[..head.len().min(1000)]).into_owned();
            let Some((_, token)) = head.split_once("\"continue\":\"") else { break };
            path = format!("{PODS}?limit=500&continue={}", token.split('"').next().unwrap_or(""));
        }
        (rate, bytes)
    });
    let objects = bytes as f64 / f64::from(1 << 20);
    beside("created by 16 connections", format!("{rate:.0} Pods/s"));
    beside("the objects, as JSON", format!("{objects:.1} MiB, {:.0} bytes each", bytes as f64 / STORED as f64));
    let rss = rss_mib(served.node.pid());
    let figure = format!("{rss:.1} MiB ({empty:.1} MiB when empty)");
    // Upstream's largest cluster, 150,000 Pods, should fit into 8 GiB, including its 5,000 nodes.
    report("RSS of the server with 50,000 Pods", figure, "<= 2730 MiB (8 GiB for 150,000)", rss <= 2730.0);
    served.node.terminate();
    served.node.spawn();
    served.node.wait_answering();
    beside("the same after a restart", format!("{:.1} MiB", rss_mib(served.node.pid())));
}

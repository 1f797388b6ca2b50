//! The store by itself: durable puts.

use crate::beside;

/// Puts per second at 1, 16 and 128 writers: what the API's writes are made of.
pub fn writes() {
    const SECONDS: u64 = 3;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for writers in [1, 16, 128] {
        let dir = tempfile::tempdir().unwrap();
        let figures = runtime.block_on(podwright::store::bench::bench(dir.path(), writers, SECONDS)).unwrap();
        let figure = format!("{:.0}/s, p50 {:.2?}, p99 {:.2?}", figures.per_second, figures.p50, figures.p99);
        beside(&format!("durable puts, {writers} writers"), figure);
    }
}

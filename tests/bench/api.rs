//! The API: durable writes over its socket.

use std::{sync::Arc, time::Duration};

use podwright::{server::bench::bench, store::Sqlite};

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

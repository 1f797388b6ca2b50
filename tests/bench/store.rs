//! The store by itself: durable puts.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use podwright::store::{Compare, Error, Outcome, Revision, Sqlite, Store, Txn, Write};

use crate::beside;

/// Puts per second at 1, 16 and 128 writers: what the API's writes are made of.
pub fn writes() {
    const SECONDS: u64 = 3;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for writers in [1, 16, 128] {
        let dir = tempfile::tempdir().unwrap();
        let figures = runtime.block_on(bench(dir.path(), writers, SECONDS)).unwrap();
        let figure = format!("{:.0}/s, p50 {:.2?}, p99 {:.2?}", figures.per_second, figures.p50, figures.p99);
        beside(&format!("durable puts, {writers} writers"), figure);
    }
}

/// The result of one run.
#[derive(Clone, Copy, Debug)]
struct Figures {
    per_second: f64,
    p50: Duration,
    p99: Duration,
}

/// Writes values of 1 to 2 KiB durably to a new store in the directory `dir` for `seconds`, with this many concurrent writers; each
/// compares and overwrites keys of its own, like updates of objects. A live watch receives all changes, like the API server's.
async fn bench(dir: &Path, writers: usize, seconds: u64) -> Result<Figures, Error> {
    let store = Arc::new(Sqlite::open(&dir.join(format!("bench-{writers}.db")))?);
    let mut watch = store.watch("", 0).await?;
    let watcher = tokio::spawn(async move { while let Some(Ok(_)) = watch.recv().await {} });
    let start = Instant::now();
    let until = start + Duration::from_secs(seconds);
    let tasks: Vec<_> = (0..writers).map(|writer| tokio::spawn(write_until(store.clone(), writer, until))).collect();
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await.map_err(|e| Error::Io(format!("a writer failed: {e}")))??);
    }
    let elapsed = start.elapsed();
    store.close().await?;
    let _ = watcher.await;
    took.sort_unstable();
    let quantile = |q: f64| took.get(((took.len() as f64 - 1.0) * q) as usize).copied().unwrap_or_default();
    let per_second = took.len() as f64 / elapsed.as_secs_f64();
    Ok(Figures { per_second, p50: quantile(0.5), p99: quantile(0.99) })
}

/// One writer: returns the duration of each commit.
async fn write_until(store: Arc<Sqlite>, writer: usize, until: Instant) -> Result<Vec<Duration>, Error> {
    const KEYS: usize = 64;
    let mut revisions: [Revision; KEYS] = [0; KEYS];
    let mut took = Vec::new();
    for turn in 0.. {
        let start = Instant::now();
        if start >= until {
            break;
        }
        let slot = turn % KEYS;
        let key = format!("/registry/pods/bench/writer-{writer:04}-{slot:04}");
        let value = Bytes::from(vec![b'x'; 1024 + (turn * 97) % 1024]);
        let compares = vec![Compare::Unchanged(key.clone(), revisions[slot])];
        let txn = Txn { compares, writes: vec![Write::Put(key, value)], ..Txn::default() };
        match store.commit(txn).await? {
            Outcome::Committed(revision) => revisions[slot] = revision,
            Outcome::Refused(_) => return Err(Error::Io("somebody else wrote a writer's own key".to_owned())),
        }
        took.push(start.elapsed());
    }
    Ok(took)
}

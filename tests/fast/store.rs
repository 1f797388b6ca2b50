//! The store: every implementation against one model, and what only a store on disk can get wrong.

mod contract;
mod damage;
mod etcd;
mod faults;
mod foreign;
mod model;
mod pages;
mod sqlite;
mod subjects;

use bytes::Bytes;
use podwright::store::{Durability, Error, Outcome, Revision, Store, Txn, Watch, Write};

fn put(key: &str, value: impl AsRef<[u8]>) -> Txn {
    let value = Bytes::copy_from_slice(value.as_ref());
    Txn { writes: vec![Write::Put(key.to_owned(), value)], ..Txn::default() }
}

fn delete(key: &str) -> Txn {
    Txn { writes: vec![Write::Delete(key.to_owned())], ..Txn::default() }
}

fn relaxed(txn: Txn) -> Txn {
    Txn { durability: Durability::Relaxed, ..txn }
}

async fn committed(store: &dyn Store, txn: Txn) -> Revision {
    match store.commit(txn).await.unwrap() {
        Outcome::Committed(revision) => revision,
        refused => panic!("{refused:?}"),
    }
}

/// The next revisions that a watch shows, until one is at least `until`.
async fn revisions(watch: &mut Watch, until: Revision) -> Result<Vec<Revision>, Error> {
    let mut seen = Vec::new();
    while seen.last().is_none_or(|&r| r < until) {
        let next = tokio::time::timeout(std::time::Duration::from_secs(30), watch.recv()).await;
        match next {
            Ok(Some(batch)) => seen.extend(batch?.changes.into_iter().map(|c| c.revision)),
            Ok(None) => panic!("the watch ended after {:?}, before {until}", seen.last()),
            Err(_) => panic!("the watch stands still after {:?}, before {until}", seen.last()),
        }
    }
    Ok(seen)
}

/// Not a test: the figures of a store with as many objects as the largest cluster that is planned for has Pods.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a benchmark"]
async fn bench_large() {
    use podwright::store::{Range, Sqlite};
    use std::time::Instant;
    let folder = match std::env::var_os("STORE_BENCH_DIR") {
        Some(folder) => tempfile::tempdir_in(folder).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    let rss = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        status.lines().find(|l| l.starts_with("VmRSS")).unwrap().to_owned()
    };
    let path = folder.path().join("large.db");
    let store = Sqlite::open(&path).unwrap();
    println!("empty: {}", rss());
    for batch in 0..1500 {
        let put = |n: usize| {
            let key = format!("/registry/pods/namespace-{}/deployment-7f9c8d5b64-{:06}", n % 100, n);
            Write::Put(key, Bytes::from(vec![b'x'; 2500]))
        };
        let writes = (batch * 100..batch * 100 + 100).map(put).collect();
        committed(&store, relaxed(Txn { writes, ..Txn::default() })).await;
    }
    store.close().await.unwrap();
    println!("filled: {}, {} MiB", rss(), std::fs::metadata(&path).unwrap().len() >> 20);
    let start = Instant::now();
    let store = Sqlite::open(&path).unwrap();
    println!("open and check 150,000 objects: {:.2?}, {}", start.elapsed(), rss());
    let start = Instant::now();
    let (mut after, mut pages) = (None, 0);
    loop {
        let range = Range {
            prefix: "/registry/pods/".to_owned(),
            after,
            limit: 500,
            at: Some(store.revision().await.unwrap()),
        };
        let page = store.list(range).await.unwrap();
        pages += 1;
        after = page.entries.last().map(|e| e.key.to_string());
        if page.remaining == 0 {
            break;
        }
    }
    println!("list them in {pages} pages: {:.2?}, {}", start.elapsed(), rss());
    let start = Instant::now();
    for n in 0..1000 {
        store
            .get(&format!("/registry/pods/namespace-{}/deployment-7f9c8d5b64-{n:06}", n % 100))
            .await
            .unwrap()
            .unwrap();
    }
    println!("a get: {:.2?}", start.elapsed() / 1000);
}

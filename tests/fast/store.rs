//! The store: every implementation against one model, and what only a store on disk can get wrong.

mod contract;
mod damage;
mod model;
mod sqlite;

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
            Ok(Some(batch)) => seen.extend(batch?.into_iter().map(|c| c.revision)),
            Ok(None) => panic!("the watch ended after {:?}, before {until}", seen.last()),
            Err(_) => panic!("the watch stands still after {:?}, before {until}", seen.last()),
        }
    }
    Ok(seen)
}

/// Not a test: prints the figures that `./dev bench` shows. `STORE_BENCH_DIR` chooses the disk.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a benchmark"]
async fn bench() {
    let folder = match std::env::var_os("STORE_BENCH_DIR") {
        Some(folder) => tempfile::tempdir_in(folder).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    for writers in [1, 16, 128] {
        println!("{}", podwright::store::bench::bench(folder.path(), writers, 4).await.unwrap());
    }
}

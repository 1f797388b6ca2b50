//! The finer points of the contract, on every implementation.

use std::{any::Any, collections::HashSet, sync::Arc};

use bytes::Bytes;
use podwright::store::{Compare, Error, Memory, Outcome, Sqlite, Store, Txn, Write};

use super::{committed, delete, put, relaxed, revisions, subjects};
use crate::etcd::EtcdServer;

/// A store of each kind, with what it lives in.
async fn stores() -> Vec<(Arc<dyn Store>, Box<dyn Any>)> {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = Sqlite::open(&folder.path().join("store.db")).unwrap();
    let server = EtcdServer::start();
    let etcd = subjects::open(&server).await;
    vec![
        (Arc::new(Memory::new()), Box::new(())),
        (Arc::new(sqlite), Box::new(folder)),
        (Arc::new(etcd), Box::new(server)),
    ]
}

#[tokio::test]
async fn a_transaction_without_effect_has_no_revision() {
    for (store, _home) in stores().await {
        let begun = store.revision().await.unwrap();
        assert_eq!(committed(&*store, delete("/nothing")).await, begun);
        assert_eq!(committed(&*store, put("/a", "1")).await, begun + 1);
        assert_eq!(committed(&*store, Txn::default()).await, begun + 1);
        assert_eq!(store.revision().await.unwrap(), begun + 1);
    }
}

#[tokio::test]
async fn of_two_writes_to_one_key_the_last_counts() {
    for (store, _home) in stores().await {
        let mut watch = store.watch("", store.revision().await.unwrap()).await.unwrap();
        let write = |v: &'static str| Write::Put("/a".to_owned(), Bytes::from_static(v.as_bytes()));
        let txn = Txn { writes: vec![write("1"), Write::Delete("/a".to_owned()), write("2")], ..Txn::default() };
        committed(&*store, txn).await;
        let changes = watch.recv().await.unwrap().unwrap().changes;
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].now.as_ref().unwrap().value, "2");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_create_one_key_one_wins_and_the_others_are_told_who() {
    for (store, _home) in stores().await {
        let create = |n: usize| {
            let store = store.clone();
            tokio::spawn(async move {
                let compares = vec![Compare::Absent("/one".to_owned())];
                let txn = Txn { compares, ..put("/one", n.to_string()) };
                (n, store.commit(txn).await.unwrap())
            })
        };
        let tasks: Vec<_> = (0..64).map(create).collect();
        let mut outcomes = Vec::new();
        for task in tasks {
            outcomes.push(task.await.unwrap());
        }
        let (winners, losers): (Vec<_>, Vec<_>) =
            outcomes.into_iter().partition(|(_, outcome)| matches!(outcome, Outcome::Committed(_)));
        assert_eq!(winners.len(), 1);
        let winner = store.get("/one").await.unwrap().unwrap();
        assert_eq!(winner.value, winners[0].0.to_string());
        for (_, outcome) in losers {
            assert_eq!(outcome, Outcome::Refused(vec![Some(winner.clone())]));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_transactions_have_a_revision_each_and_watches_show_them_all_once() {
    for (store, _home) in stores().await {
        let begun = store.revision().await.unwrap();
        let mut watches = vec![store.watch("/k/", begun).await.unwrap()];
        let writers: Vec<_> = (0..16)
            .map(|writer| {
                let store = store.clone();
                tokio::spawn(async move {
                    let mut mine = Vec::new();
                    for n in 0..50 {
                        let txn = put(&format!("/k/{writer}/{}", n % 7), vec![0; 100]);
                        mine.push(committed(&*store, if n % 3 == 0 { relaxed(txn) } else { txn }).await);
                    }
                    mine
                })
            })
            .collect();
        // Watches that begin in the middle of it all.
        let mut starts = vec![begun];
        loop {
            let done = store.revision().await.unwrap() - begun;
            if done >= 600 {
                break;
            }
            let after = begun + done / 2;
            watches.push(store.watch("/k/", after).await.unwrap());
            starts.push(after);
            tokio::task::yield_now().await;
            if watches.len() > 200 {
                break;
            }
        }
        let mut given = HashSet::new();
        for writer in writers {
            let mine = writer.await.unwrap();
            assert!(mine.is_sorted());
            given.extend(mine);
        }
        assert_eq!(given, (begun + 1..=begun + 800).collect());
        for (mut watch, after) in watches.into_iter().zip(starts) {
            let seen = revisions(&mut watch, begun + 800).await.unwrap();
            assert_eq!(seen, (after + 1..=begun + 800).collect::<Vec<_>>(), "after {after}");
        }
    }
}

#[tokio::test]
async fn a_watcher_that_does_not_read_is_cut_off_and_holds_up_nobody() {
    for (store, _home) in stores().await {
        let begun = store.revision().await.unwrap();
        let mut slow = store.watch("", begun).await.unwrap();
        let mut brisk = store.watch("", begun).await.unwrap();
        for n in begun + 1..=begun + 1200 {
            committed(&*store, relaxed(put("/a", "1"))).await;
            assert_eq!(revisions(&mut brisk, n).await.unwrap(), [n]);
        }
        let error = revisions(&mut slow, begun + 1200).await.unwrap_err();
        assert!(matches!(error, Error::Lagged), "{error}");
        assert!(slow.recv().await.is_none());
    }
}

#[tokio::test]
async fn a_closed_store_says_so_and_ends_its_watches() {
    for (store, _home) in stores().await {
        let now = committed(&*store, put("/a", "1")).await;
        let mut watch = store.watch("", now).await.unwrap();
        store.close().await.unwrap();
        assert!(watch.recv().await.is_none());
        for error in [
            store.get("/a").await.unwrap_err(),
            store.commit(put("/a", "2")).await.unwrap_err(),
            store.watch("", now).await.unwrap_err(),
            store.close().await.unwrap_err(),
        ] {
            assert!(error.to_string().contains("closed"), "{error}");
        }
    }
}

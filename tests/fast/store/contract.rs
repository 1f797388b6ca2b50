//! The finer points of the contract, on every implementation.

use std::{any::Any, collections::HashSet, sync::Arc};

use bytes::Bytes;
use podwright::store::{Compare, Error, Memory, Outcome, Range, Sqlite, Store, Txn, Write};

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

/// A namespace's Service may have claimed hundreds of ports, a few at a time: all of them go with it.
#[tokio::test]
async fn as_many_keys_as_one_likes_are_written_at_one_revision() {
    for (store, _home) in stores().await {
        let key = |n: usize| format!("/claims/{n:04}");
        let all = |write: fn(String) -> Write| (0..2000).map(|n| write(key(n))).collect::<Vec<_>>();
        for (mut writes, left) in
            [(all(|key| Write::Put(key, Bytes::from_static(b"owner"))), 2000), (all(Write::Delete), 0)]
        {
            let before = store.revision().await.unwrap();
            let mut watch = store.watch("/claims/", before).await.unwrap();
            writes.push(Write::Put("/owner".to_owned(), Bytes::new()));
            // Conditions take from the room for writes.
            let compares = (3000..3060).map(|n| Compare::Absent(key(n))).collect();
            let at = committed(&*store, Txn { compares, writes, ..Txn::default() }).await;
            let page = store.list(Range { prefix: "/claims/".to_owned(), ..Range::default() }).await.unwrap();
            assert_eq!(page.entries.len(), left);
            let (mut changes, mut seen) = (0, HashSet::new());
            while changes < 2000 {
                let batch = watch.recv().await.unwrap().unwrap();
                changes += batch.changes.len();
                seen.extend(batch.changes.iter().map(|change| change.revision));
            }
            assert_eq!((changes, seen), (2000, HashSet::from([at])));
        }
        let refused = Txn {
            compares: vec![Compare::Absent("/owner".to_owned())],
            writes: all(|key| Write::Put(key, Bytes::new())),
            ..Txn::default()
        };
        assert!(matches!(store.commit(refused).await.unwrap(), Outcome::Refused(_)));
        let page = store.list(Range { prefix: "/claims/".to_owned(), ..Range::default() }).await.unwrap();
        assert_eq!(page.entries.len(), 0, "some of what was refused was written");
    }
}

/// A Service may ask for hundreds of ports at once, while others ask for theirs.
#[tokio::test(flavor = "multi_thread")]
async fn as_many_conditions_as_one_likes_hold_together() {
    for (store, _home) in stores().await {
        let key = |n: usize| format!("/claims/{n:04}");
        let claim = |from: usize, to: usize, owner: &'static str| Txn {
            compares: (from..to).map(|n| Compare::Absent(key(n))).collect(),
            writes: (from..to).map(|n| Write::Put(key(n), Bytes::from_static(owner.as_bytes()))).collect(),
            ..Txn::default()
        };
        committed(&*store, claim(0, 300, "a")).await;
        // One that is taken, anywhere, refuses all, and is told of in its place.
        let Outcome::Refused(found) = store.commit(claim(299, 699, "b")).await.unwrap() else {
            panic!("one key is taken")
        };
        assert_eq!((found.len(), found.iter().flatten().count()), (400, 1));
        assert_eq!(found[0].as_ref().unwrap().value, "a");
        // Those that are there are compared each: up to a store's bound.
        let entries = store.list(Range { prefix: "/claims/".to_owned(), ..Range::default() }).await.unwrap().entries;
        let mut both = claim(300, 600, "c");
        both.compares.extend(entries.iter().take(100).map(|e| Compare::Unchanged(e.key.to_string(), e.mod_revision)));
        let gone = committed(&*store, delete("/claims/0099")).await;
        assert!(gone > 0 && matches!(store.commit(both.clone()).await.unwrap(), Outcome::Refused(_)), "one has gone");
        both.compares.truncate(399);
        committed(&*store, both).await;
        // Of many at once, whose keys lie between each other's, those that share none all get theirs, and of those that share some one.
        let tasks: Vec<_> = (0..12)
            .map(|n| {
                let store = store.clone();
                let keys: Vec<String> = (0..200).map(|k| key(1000 + k * 10 + n % 6)).collect();
                let txn = Txn {
                    compares: keys.iter().cloned().map(Compare::Absent).collect(),
                    writes: keys.into_iter().map(|key| Write::Put(key, Bytes::new())).collect(),
                    ..Txn::default()
                };
                tokio::spawn(async move { matches!(store.commit(txn).await.unwrap(), Outcome::Committed(_)) })
            })
            .collect();
        let mut won = 0;
        for task in tasks {
            won += usize::from(task.await.unwrap());
        }
        assert_eq!(won, 6);
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

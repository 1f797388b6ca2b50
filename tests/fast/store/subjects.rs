//! Each implementation of the store against the model, with the ways in which it ends.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use podwright::store::{Etcd, EtcdConfig, Memory, Revision, Sqlite, Store, Watch};
use proptest::prelude::*;

use super::model::{Left, Model, Op, Subject, op, run};
use crate::etcd::EtcdServer;

impl Subject for Memory {
    fn store(&self) -> &dyn Store {
        self
    }
}

/// A store on disk, and how it crashes.
struct Disk {
    store: Sqlite,
    folder: tempfile::TempDir,
    lives: usize,
    /// What was acknowledged as durable is in the log's first so many bytes.
    synced: u64,
    /// Since the start there has been a relaxed write. The first one is synced, with the reserve of revisions.
    reserved: bool,
}

impl Disk {
    fn new() -> Disk {
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&folder.path().join("0.db")).unwrap();
        let mut disk = Disk { store, folder, lives: 0, synced: 0, reserved: false };
        disk.note_synced();
        disk
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join(format!("{}.db", self.lives))
    }

    fn note_synced(&mut self) {
        self.synced = wal(&self.file()).metadata().map_or(0, |m| m.len());
    }

    async fn reopen(&mut self) {
        self.store.close().await.unwrap();
        self.store = Sqlite::open(&self.file()).unwrap();
        self.reserved = false;
        self.note_synced();
    }

    /// Goes on with the files as a crash leaves them. `lost`: how much (of 256) of the log that was not synced is gone.
    fn crash(&mut self, lost: u8) {
        let old = self.file();
        self.lives += 1;
        let new = self.file();
        fs::copy(&old, &new).unwrap();
        let mut log = fs::read(wal(&old)).unwrap_or_default();
        let unsynced = log.len() - (self.synced as usize).min(log.len());
        log.truncate(log.len() - (unsynced * usize::from(lost)).div_ceil(256));
        fs::write(wal(&new), log).unwrap();
        self.store = Sqlite::open(&new).unwrap();
        self.reserved = false;
        self.note_synced();
    }
}

fn wal(file: &Path) -> PathBuf {
    file.with_extension("db-wal")
}

#[async_trait(?Send)]
impl Subject for Disk {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn committed(&mut self, relaxed: bool, is_durable: bool) -> bool {
        let reserves = relaxed && !self.reserved;
        self.reserved |= reserves;
        if reserves || is_durable {
            self.note_synced();
        }
        reserves
    }

    async fn restart(&mut self, end: &Op, model: &Model) -> Left {
        let at_least = match end {
            Op::PowerLoss(lost) => {
                self.crash(*lost);
                model.durable
            }
            Op::Kill => {
                self.crash(0);
                model.revision
            }
            _ => {
                self.reopen().await;
                let revision = self.store.revision().await.unwrap();
                assert_eq!(revision, model.revision, "after a clean end there is no hole");
                model.revision
            }
        };
        // Not to be told from the state: a creation and a deletion may cancel each other out.
        let file = rusqlite::Connection::open(self.file()).unwrap();
        let newest =
            file.query_row("SELECT max(place) >> 16 FROM log", [], |row| row.get::<_, Option<i64>>(0)).unwrap();
        Left::UpTo((newest.unwrap_or(0) as Revision).max(at_least))
    }
}

/// A store in an etcd, which is killed under it; or it is opened anew.
struct InEtcd {
    server: EtcdServer,
    store: Etcd,
    /// Of all that happens, and up to where it has shown it.
    watch: Watch,
    seen: Revision,
}

/// A store in an etcd whose changes are always waited for: so its revisions are those of the model.
pub async fn open(server: &EtcdServer) -> Etcd {
    let (servers, prefix, grace) = (vec![server.url().to_owned()], "/model".to_owned(), Duration::from_secs(60));
    Etcd::open(EtcdConfig { servers, prefix, grace, ..EtcdConfig::default() }).await.unwrap()
}

impl InEtcd {
    async fn new() -> InEtcd {
        let server = EtcdServer::start();
        let store = open(&server).await;
        let seen = store.revision().await.unwrap();
        InEtcd { watch: store.watch("", seen).await.unwrap(), seen, store, server }
    }
}

#[async_trait(?Send)]
impl Subject for InEtcd {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn caught_up(&mut self, revision: Revision) {
        while self.seen < revision {
            let batch = tokio::time::timeout(Duration::from_secs(30), self.watch.recv()).await;
            let batch = batch.unwrap_or_else(|_| panic!("{revision} is not seen, but {}", self.seen));
            self.seen = batch.unwrap().unwrap().reached;
        }
    }

    async fn restart(&mut self, end: &Op, model: &Model) -> Left {
        match end {
            Op::Reopen => {
                self.store.close().await.unwrap();
                self.store = open(&self.server).await;
                self.seen = self.store.revision().await.unwrap();
                self.watch = self.store.watch("", self.seen).await.unwrap();
                Left::UpTo(model.revision)
            }
            _ => {
                self.server.kill();
                self.server.spawn();
                // Its watches go on, its revisions too.
                assert_eq!(self.store.revision().await.unwrap(), model.revision);
                Left::All
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn memory_is_as_the_model(ops in prop::collection::vec(op(), 1..120)) {
        run(async || Memory::new(), &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 500, max_shrink_time: 30_000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn sqlite_is_as_the_model_through_crashes(ops in prop::collection::vec(op(), 1..100)) {
        run(async || Disk::new(), &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 50, max_shrink_time: 30_000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn etcd_is_as_the_model_through_crashes(ops in prop::collection::vec(op(), 1..80)) {
        run(InEtcd::new, &ops);
    }
}

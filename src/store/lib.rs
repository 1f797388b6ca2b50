//! The store's contract: revisioned keys to bytes, with etcd's semantics. It does not know kinds.
//!
//! Every committed transaction has a revision of its own, greater than the last. A key's entry carries the revision of its creation
//! and of its last change. Nothing is visible before it is durable (but see `Durability`).
//!
//! Three implementations pass the same suite: [`Sqlite`], embedded, for one process; [`Etcd`], for several; [`Memory`], for
//! simulation. Users have an `Arc<dyn Store>`, and must expect other writers: the newest revision is queried ([`Store::revision`]),
//! and a write compares what it depends on.
//!
//! History reaches back to `Store::oldest`: lists work at any revision from there on, watches after any revision from the one
//! before it. An unclean shutdown may leave a hole in the revisions; a list or watch from within it fails with `Compacted`, as for
//! compacted history: what its caller saw there was never durable.

#![forbid(unsafe_code)]

mod etcd;
mod health;
mod hub;
mod memory;
mod sqlite;

pub use etcd::{Config as EtcdConfig, Etcd, Tls as EtcdTls};
pub use memory::Memory;
pub use sqlite::{Sqlite, restore};

use std::{
    fs::File,
    future::{Ready, ready},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::{BoxFuture, Either};

/// A point in the store's history; 0 is before all history.
pub type Revision = u64;

/// A key's state at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Arc<str>,
    pub value: Bytes,
    pub create_revision: Revision,
    pub mod_revision: Revision,
}

/// A page of a list.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Sorted by key, bytewise.
    pub entries: Vec<Entry>,
    /// The revision of the page.
    pub revision: Revision,
    /// How many entries follow the page.
    pub remaining: u64,
}

/// A page with a limit ends after the entry at which its values reach this size: paging limits memory use.
pub const PAGE_BYTES: usize = 8 << 20;

/// Which part of a prefix to list.
#[derive(Clone, Debug, Default)]
pub struct Range {
    pub prefix: String,
    /// Start after this key.
    pub after: Option<String>,
    /// The most entries, fewer once they have [`PAGE_BYTES`]; 0 is no limit.
    pub limit: usize,
    /// At this revision; `None` is now.
    pub at: Option<Revision>,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    Absent(String),
    /// The key's mod_revision is this (0: it is absent).
    Unchanged(String, Revision),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Put(String, Bytes),
    /// Deleting an absent key does nothing.
    Delete(String),
}

/// When a transaction may be acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// After its fsync.
    #[default]
    Full,
    /// At once; a later commit makes it durable (Leases, Events).
    Relaxed,
}

/// Either all of `compares` hold, or none of `writes` happens. Of several writes to a key the last one counts.
#[derive(Clone, Debug, Default)]
pub struct Txn {
    pub compares: Vec<Compare>,
    pub writes: Vec<Write>,
    pub durability: Durability,
}

/// The result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The transaction's revision. One that changed nothing has no revision of its own: then the store's newest.
    Committed(Revision),
    /// A condition failed: the current entries of the compared keys, in the order of `compares`.
    Refused(Vec<Option<Entry>>),
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: Arc<str>,
    pub revision: Revision,
    /// The new entry; `None`: deleted.
    pub now: Option<Entry>,
    /// The previous entry, if there was one: every change in a watch includes it.
    pub before: Option<Entry>,
}

/// A piece of history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Ordered by revision, then key: complete transactions, or their part below the prefix.
    pub changes: Vec<Change>,
    /// With this piece all changes up to this revision have been delivered. Without changes it is only progress.
    pub reached: Revision,
}

/// Consecutive pieces of history. An error is the last item; an end without one means that the store was closed.
pub type Watch = tokio::sync::mpsc::Receiver<Result<Batch, Error>>;

/// A value that a store either knows immediately, at no cost, or must request.
pub type Asked<'a, T> = Either<Ready<Result<T, Error>>, BoxFuture<'a, Result<T, Error>>>;

/// The result of a store that knows it immediately.
pub fn known<T>(value: T) -> Asked<'static, T> {
    Either::Left(ready(Ok(value)))
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The revision was compacted; `oldest` is the oldest readable one.
    #[error("revision {asked} has been compacted (the oldest kept is {oldest})")]
    Compacted { asked: Revision, oldest: Revision },
    /// The revision has not happened yet.
    #[error("revision {asked} is in the future (the store is at {now})")]
    Future { asked: Revision, now: Revision },
    /// A row's checksum does not match, or the file is torn: what is damaged, and where.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// A watcher read too slowly and was cut off: list again.
    #[error("the watch fell too far behind")]
    Lagged,
    /// The store is unreachable for now. If a transaction could be sent, it is unknown whether it happened.
    #[error("the store does not answer: {0}")]
    Unavailable(String),
    /// The transaction exceeds the store's limit.
    #[error("{0}")]
    TooLarge(String),
    #[error("store: {0}")]
    Io(String),
}

/// A store. All implementations pass the suite in `tests/fast/store.rs`.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The current newest revision: includes everything acknowledged to anybody, by this store or another one on the same data,
    /// before the call. Every open watch reaches it soon, with or without a change.
    fn revision(&self) -> Asked<'_, Revision>;
    /// The oldest revision that can still be read.
    async fn oldest(&self) -> Result<Revision, Error>;
    async fn get(&self, key: &str) -> Result<Option<Entry>, Error>;
    async fn list(&self, range: Range) -> Result<Page, Error>;
    async fn commit(&self, txn: Txn) -> Result<Outcome, Error>;
    /// All changes below `prefix` with a revision greater than `after`.
    async fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, Error>;
    /// A piece of what such a watch delivers from history; the next piece continues from its `reached`. The last one reaches at
    /// least the current newest revision.
    async fn history(&self, prefix: &str, after: Revision) -> Result<Batch, Error>;
    /// Drops versions that were overwritten before `keep_from`, which becomes the oldest revision (does nothing if that is past it
    /// already).
    async fn compact(&self, keep_from: Revision) -> Result<(), Error>;
    /// Creates a consistent online copy: an unnamed file, which disappears with its reader.
    async fn backup(&self) -> Result<File, Error>;
    /// Its size on disk, if it has one.
    async fn size(&self) -> Option<u64> {
        None
    }
    /// Why writes are impossible for now, if the file or its disk has failed and is not recovered yet.
    fn trouble(&self) -> Option<Error> {
        None
    }
    /// Whether writes can be made durable: proved by a recent one, or by writing something without effect now.
    async fn prove(&self) -> Result<(), Error>;
    /// Resolves when the store has failed permanently: something acknowledged is missing in its file. It must not continue; what
    /// remains can only be determined by a restart.
    async fn failed(&self) -> Error {
        std::future::pending().await
    }
    /// Makes everything durable and closes the store: later calls fail, watches end.
    async fn close(&self) -> Result<(), Error>;
}

/// The error of a call after `close`.
fn closed() -> Error {
    Error::Io("the store is closed".to_owned())
}

//! The store's contract: revisioned keys to bytes, with etcd's semantics. It knows no kinds.
//!
//! Every committed transaction has a revision of its own, greater than the last. A key's entry carries the revision of
//! its creation and of its last change. Nothing is seen by anyone before it is durable (but see `Durability`).
//!
//! Three of them pass one suite: [`Sqlite`], embedded, of one process; [`Etcd`], for several; [`Memory`], for simulation. Who
//! uses a store has `Arc<dyn Store>`, and reckons with others who write to it: what is newest is asked ([`Store::revision`]),
//! and a write compares what it rests on.
//!
//! History reaches back to `Store::oldest`: a list works at any revision from there on, a watch behind any revision from
//! the one before it on. A store that ended uncleanly may leave a hole in the revisions; a list or a watch from inside it
//! gets `Compacted`, as for history that is gone: what its caller saw there was never made durable.

#![forbid(unsafe_code)]

pub mod bench;
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
    /// The revision that the page shows.
    pub revision: Revision,
    /// How many entries follow the page.
    pub remaining: u64,
}

/// A page that has a limit ends behind the entry by which its values have so many bytes: who reads page by page holds no more.
pub const PAGE_BYTES: usize = 8 << 20;

/// Which part of a prefix to list.
#[derive(Clone, Debug, Default)]
pub struct Range {
    pub prefix: String,
    /// Start behind this key.
    pub after: Option<String>,
    /// At most so many entries, and with them no more once they have [`PAGE_BYTES`]; 0 is no limit.
    pub limit: usize,
    /// As of this revision; `None` is now.
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
    /// At once; it rides along with a later commit (Leases, Events).
    Relaxed,
}

/// All of `compares` hold, or none of `writes` happens. Of several writes to one key the last counts.
#[derive(Clone, Debug, Default)]
pub struct Txn {
    pub compares: Vec<Compare>,
    pub writes: Vec<Write>,
    pub durability: Durability,
}

/// How a transaction went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The transaction's revision. A transaction that changed nothing has none of its own: then the store's newest.
    Committed(Revision),
    /// A condition failed: the entries of the compared keys as they are, in the order of `compares`.
    Refused(Vec<Option<Entry>>),
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: Arc<str>,
    pub revision: Revision,
    /// The new entry; `None`: deleted.
    pub now: Option<Entry>,
    /// The entry before, if there was one: whatever change a watch still shows, it shows with this.
    pub before: Option<Entry>,
}

/// A piece of history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// In order of revision, then key: whole transactions, or what of them is below the prefix.
    pub changes: Vec<Change>,
    /// With this piece all changes up to this revision have been shown. Without changes it is progress and nothing else.
    pub reached: Revision,
}

/// Pieces of history, one after the other. An error is the last item; without one, the end means that the store was closed.
pub type Watch = tokio::sync::mpsc::Receiver<Result<Batch, Error>>;

/// What a store either knows at once, which costs nothing, or asks somebody else for.
pub type Asked<'a, T> = Either<Ready<Result<T, Error>>, BoxFuture<'a, Result<T, Error>>>;

/// The answer of a store that knows at once.
pub fn known<T>(value: T) -> Asked<'static, T> {
    Either::Left(ready(Ok(value)))
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The revision is older than what compaction kept; `oldest` is the oldest readable one.
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
    /// Nobody answers for now. Whether a transaction has happened is not known, where it could be sent.
    #[error("the store does not answer: {0}")]
    Unavailable(String),
    /// The transaction is larger than the store takes.
    #[error("{0}")]
    TooLarge(String),
    #[error("store: {0}")]
    Io(String),
}

/// A store. All implementations pass the suite in `tests/fast/store.rs`.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The newest revision of this moment: whatever anybody, by this store or by another one on the same data, had been told to be
    /// committed before the call. Every open watch reaches it soon, by a change or without one.
    fn revision(&self) -> Asked<'_, Revision>;
    /// The oldest revision that can still be read.
    async fn oldest(&self) -> Result<Revision, Error>;
    async fn get(&self, key: &str) -> Result<Option<Entry>, Error>;
    async fn list(&self, range: Range) -> Result<Page, Error>;
    async fn commit(&self, txn: Txn) -> Result<Outcome, Error>;
    /// All changes below `prefix` with a revision greater than `after`.
    async fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, Error>;
    /// A piece of what such a watch shows of the past; the next piece goes on from what it has reached. The last one reaches at
    /// least the newest revision of this moment.
    async fn history(&self, prefix: &str, after: Revision) -> Result<Batch, Error>;
    /// Forgets what was overwritten before `keep_from`, which becomes the oldest revision (does nothing if it is already
    /// past).
    async fn compact(&self, keep_from: Revision) -> Result<(), Error>;
    /// Makes a consistent copy while serving: a file that has no name, so that it is gone with whoever reads it.
    async fn backup(&self) -> Result<File, Error>;
    /// How many bytes it takes on the disk, where it has one.
    async fn size(&self) -> Option<u64> {
        None
    }
    /// Why nothing can be written for now, if the file or its disk has failed and has not been brought back yet.
    fn trouble(&self) -> Option<Error> {
        None
    }
    /// Whether a write can be made durable: one that was, a moment ago, says so, or one that changes nothing is made now.
    async fn prove(&self) -> Result<(), Error>;
    /// Resolves when the store has failed for good: something that was acknowledged is not in its file any more. To go on would
    /// be to lie; what is left can be told by a new start alone.
    async fn failed(&self) -> Error {
        std::future::pending().await
    }
    /// Makes everything durable and ends: later calls fail, watches end.
    async fn close(&self) -> Result<(), Error>;
}

/// The error of a call after `close`.
fn closed() -> Error {
    Error::Io("the store is closed".to_owned())
}

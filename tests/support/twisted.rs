//! An in-memory store with some calls altered: simulates failures in tests.

use std::fs::File;
use std::ops::Deref;

use async_trait::async_trait;
use podwright::store::{Asked, Batch, Entry, Error, Memory, Outcome, Page, Range, Revision, Store, Txn, Watch};

/// The altered calls. Others go to the store itself.
#[async_trait]
pub trait Twist: Send + Sync + 'static {
    fn revision<'a>(&'a self, memory: &'a Memory) -> Asked<'a, Revision> {
        memory.revision()
    }
    async fn commit(&self, memory: &Memory, txn: Txn) -> Result<Outcome, Error> {
        memory.commit(txn).await
    }
    async fn list(&self, memory: &Memory, range: Range) -> Result<Page, Error> {
        memory.list(range).await
    }
    async fn watch(&self, memory: &Memory, prefix: &str, after: Revision) -> Result<Watch, Error> {
        memory.watch(prefix, after).await
    }
    async fn history(&self, memory: &Memory, prefix: &str, after: Revision) -> Result<Batch, Error> {
        memory.history(prefix, after).await
    }
}

#[derive(Default)]
pub struct Twisted<T> {
    memory: Memory,
    twist: T,
}

impl<T> Twisted<T> {
    pub fn new(twist: T) -> Twisted<T> {
        Twisted { memory: Memory::new(), twist }
    }
}

impl<T> Deref for Twisted<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.twist
    }
}

#[async_trait]
impl<T: Twist> Store for Twisted<T> {
    fn revision(&self) -> Asked<'_, Revision> {
        self.twist.revision(&self.memory)
    }
    async fn oldest(&self) -> Result<Revision, Error> {
        self.memory.oldest().await
    }
    async fn get(&self, key: &str) -> Result<Option<Entry>, Error> {
        self.memory.get(key).await
    }
    async fn list(&self, range: Range) -> Result<Page, Error> {
        self.twist.list(&self.memory, range).await
    }
    async fn commit(&self, txn: Txn) -> Result<Outcome, Error> {
        self.twist.commit(&self.memory, txn).await
    }
    async fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, Error> {
        self.twist.watch(&self.memory, prefix, after).await
    }
    async fn history(&self, prefix: &str, after: Revision) -> Result<Batch, Error> {
        self.twist.history(&self.memory, prefix, after).await
    }
    async fn compact(&self, keep_from: Revision) -> Result<(), Error> {
        self.memory.compact(keep_from).await
    }
    async fn backup(&self) -> Result<File, Error> {
        self.memory.backup().await
    }
    async fn prove(&self) -> Result<(), Error> {
        self.memory.prove().await
    }
    async fn close(&self) -> Result<(), Error> {
        self.memory.close().await
    }
}

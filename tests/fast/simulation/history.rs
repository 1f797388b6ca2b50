//! What happened, in order: a store that notes every write.

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

use async_trait::async_trait;
use podwright::store::{Change, Error, Memory, Outcome, Page, Range, Revision, Store, Txn, Watch};

/// A store in memory that remembers each of its writes.
#[derive(Default)]
pub struct Recorded {
    memory: Memory,
    lines: Mutex<Vec<Line>>,
}

/// One write: two runs of one seed have the same ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub key: Arc<str>,
    pub revision: Revision,
    /// What was written; nothing where the key was deleted.
    pub text: Option<String>,
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.revision, self.key, self.text.as_deref().unwrap_or("deleted"))
    }
}

impl Recorded {
    pub fn lines(&self) -> MutexGuard<'_, Vec<Line>> {
        self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn note(&self, changes: &[Change]) {
        let line = |change: &Change| {
            let bytes = change.now.as_ref().map(|entry| &entry.value);
            Line {
                key: change.key.clone(),
                revision: change.revision,
                text: bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()),
            }
        };
        self.lines().extend(changes.iter().map(line));
    }
}

#[async_trait]
impl Store for Recorded {
    fn revision(&self) -> Revision {
        self.memory.revision()
    }
    fn oldest(&self) -> Revision {
        self.memory.oldest()
    }
    async fn get(&self, key: &str) -> Result<Option<podwright::store::Entry>, Error> {
        self.memory.get(key).await
    }
    async fn list(&self, range: Range) -> Result<Page, Error> {
        self.memory.list(range).await
    }
    async fn commit(&self, txn: Txn) -> Result<Outcome, Error> {
        let before = self.memory.revision();
        let outcome = self.memory.commit(txn).await?;
        if self.memory.revision() > before {
            self.note(&self.memory.history("", before).await?.0);
        }
        Ok(outcome)
    }
    async fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, Error> {
        self.memory.watch(prefix, after).await
    }
    async fn history(&self, prefix: &str, after: Revision) -> Result<(Vec<Change>, Revision), Error> {
        self.memory.history(prefix, after).await
    }
    async fn compact(&self, keep_from: Revision) -> Result<(), Error> {
        self.memory.compact(keep_from).await
    }
    async fn backup(&self, path: &Path) -> Result<(), Error> {
        self.memory.backup(path).await
    }
    async fn close(&self) -> Result<(), Error> {
        self.memory.close().await
    }
}

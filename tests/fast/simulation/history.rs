//! What happened, in order: a store that notes each of its writes, and has it judged at once.

use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use podwright::{
    api::Env,
    store::{Change, Error, Memory, Outcome, Revision, Store, Txn},
};

use super::{
    invariants,
    world::{Step, World},
};
use crate::twisted::{Twist, Twisted};

/// A store in memory that remembers each of its writes.
pub type Recorded = Twisted<History>;

/// What it remembers.
pub struct History {
    env: Env,
    seen: Mutex<Seen>,
}

/// What is known of a run.
#[derive(Default)]
pub struct Seen {
    /// All writes, in order.
    pub lines: Vec<Line>,
    pub world: World,
    /// What has been wrong since somebody looked.
    pub violations: Vec<String>,
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

impl History {
    pub fn new(env: Env) -> History {
        History { env, seen: Mutex::default() }
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Something has happened outside of the store.
    pub fn step(&self, step: Step) {
        let now = self.env.now();
        let seen = &mut *self.seen();
        seen.world.now = now;
        seen.world.remember(&step);
        seen.violations.extend(invariants::after(&seen.world, &step));
    }

    fn note(&self, change: &Change) {
        let now = self.env.now();
        let seen = &mut *self.seen();
        let bytes = change.now.as_ref().map(|entry| &entry.value);
        let text = bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        seen.lines.push(Line { key: change.key.clone(), revision: change.revision, text });
        seen.world.now = now;
        let step = seen.world.write(&change.key, bytes.map(|bytes| bytes.as_ref()));
        seen.violations.extend(invariants::after(&seen.world, &step));
    }
}

#[async_trait]
impl Twist for History {
    async fn commit(&self, memory: &Memory, txn: Txn) -> Result<Outcome, Error> {
        let before = memory.revision().await?;
        let outcome = memory.commit(txn).await?;
        memory.history("", before).await?.changes.iter().for_each(|change| self.note(change));
        Ok(outcome)
    }
}

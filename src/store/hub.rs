//! Live watches: the watchers by prefix, and the end of slow ones.

use tokio::sync::mpsc::{OwnedPermit, Sender, channel, error::TrySendError};

use super::{Batch, Change, Error, Revision, Watch};

/// How many batches a watcher may lag before it is cut off.
pub const BACKLOG: usize = 1024;

type Item = Result<Batch, Error>;

/// The sending side of one watch. One slot in the channel is reserved for a final error.
pub struct Watcher {
    prefix: String,
    /// It receives what happens after this revision.
    after: Revision,
    sender: Sender<Item>,
    last_word: OwnedPermit<Item>,
}

impl Watcher {
    pub fn new(prefix: &str, after: Revision) -> (Watcher, Watch) {
        let (sender, watch) = channel(BACKLOG + 1);
        // The invariant: a new channel has room, and its receiver is alive.
        let last_word = sender.clone().try_reserve_owned().expect("room in a new channel");
        (Watcher { prefix: prefix.to_owned(), after, sender, last_word }, watch)
    }

    pub fn wants(&self, change: &Change) -> bool {
        change.revision > self.after && change.key.starts_with(&self.prefix)
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Sends history, waiting for room; false: the receiver is gone.
    pub async fn send(&self, batch: Batch) -> bool {
        self.sender.send(Ok(batch)).await.is_ok()
    }

    pub fn end(self, error: Error) {
        self.last_word.send(Err(error));
    }

    /// Sends the watcher's part of `changes`, up to a revision; `None`: the watch has ended.
    pub fn offer(self, changes: &[Change], reached: Revision) -> Option<Watcher> {
        let wanted: Vec<Change> = changes.iter().filter(|c| self.wants(c)).cloned().collect();
        if wanted.is_empty() {
            return (!self.sender.is_closed()).then_some(self);
        }
        self.tell(Batch { changes: wanted, reached })
    }

    /// Sends a batch; `None`: the watch has ended.
    pub fn tell(self, batch: Batch) -> Option<Watcher> {
        match self.sender.try_send(Ok(batch)) {
            Ok(()) => Some(self),
            Err(TrySendError::Closed(_)) => None,
            Err(TrySendError::Full(_)) => {
                self.end(Error::Lagged);
                None
            }
        }
    }
}

/// All live watchers of a store.
#[derive(Default)]
pub struct Hub {
    watchers: Vec<Watcher>,
}

impl Hub {
    pub fn add(&mut self, watcher: Watcher) {
        self.watchers.push(watcher);
    }

    /// Sends complete transactions, in order, to all watchers: everything up to a revision. Never waits.
    pub fn publish(&mut self, changes: &[Change], reached: Revision) {
        if !changes.is_empty() {
            let offer = |watcher: Watcher| watcher.offer(changes, reached);
            self.watchers = std::mem::take(&mut self.watchers).into_iter().filter_map(offer).collect();
        }
    }

    /// Sends progress up to a revision to all watchers.
    pub fn progress(&mut self, reached: Revision) {
        let tell = |watcher: Watcher| match reached > watcher.after {
            true => watcher.tell(Batch { changes: Vec::new(), reached }),
            false => Some(watcher),
        };
        self.watchers = std::mem::take(&mut self.watchers).into_iter().filter_map(tell).collect();
    }

    /// Ends all watches with an error.
    pub fn end(&mut self, error: &Error) {
        self.watchers.drain(..).for_each(|watcher| watcher.end(error.clone()));
    }

    /// Ends all watches.
    pub fn clear(&mut self) {
        self.watchers.clear();
    }
}

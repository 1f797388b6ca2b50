//! Live watches: who is watching which prefix, and what happens to those who read too slowly.

use tokio::sync::mpsc::{OwnedPermit, Sender, channel, error::TrySendError};

use super::{Change, Error, Watch};

/// Batches that a watcher may be behind before it is cut off.
pub const BACKLOG: usize = 1024;

type Item = Result<Vec<Change>, Error>;

/// The sending side of one watch. One place in the channel is kept free for the error that ends it.
pub struct Watcher {
    prefix: String,
    sender: Sender<Item>,
    last_word: OwnedPermit<Item>,
}

impl Watcher {
    pub fn new(prefix: &str) -> (Watcher, Watch) {
        let (sender, watch) = channel(BACKLOG + 1);
        // The invariant: a new channel has room, and its receiver is alive.
        let last_word = sender.clone().try_reserve_owned().expect("room in a new channel");
        (Watcher { prefix: prefix.to_owned(), sender, last_word }, watch)
    }

    pub fn wants(&self, change: &Change) -> bool {
        change.key.starts_with(&self.prefix)
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Hands over history, which waits for room; false: nobody reads any more.
    pub async fn send(&self, changes: Vec<Change>) -> bool {
        self.sender.send(Ok(changes)).await.is_ok()
    }

    pub fn end(self, error: Error) {
        self.last_word.send(Err(error));
    }

    /// Hands over the watcher's part of `changes`; `None`: the watch is over.
    pub fn offer(self, changes: &[Change]) -> Option<Watcher> {
        let wanted: Vec<Change> = changes.iter().filter(|c| self.wants(c)).cloned().collect();
        if wanted.is_empty() {
            return (!self.sender.is_closed()).then_some(self);
        }
        match self.sender.try_send(Ok(wanted)) {
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

    /// Hands whole transactions, in order, to everybody. Never waits.
    pub fn publish(&mut self, changes: &[Change]) {
        if !changes.is_empty() {
            self.watchers = std::mem::take(&mut self.watchers).into_iter().filter_map(|w| w.offer(changes)).collect();
        }
    }

    /// Ends all watches.
    pub fn clear(&mut self) {
        self.watchers.clear();
    }
}

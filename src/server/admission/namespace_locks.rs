//! Locks by namespace: writes that are charged to a namespace's quotas are committed one at a time; so are writes under a joint
//! check.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{Mutex as Queue, OwnedMutexGuard};

/// Queues by key: a namespace, or the key of a [`super::together`] rule.
#[derive(Default)]
pub(crate) struct NamespaceLocks(Mutex<HashMap<String, Weak<Queue<()>>>>);

impl NamespaceLocks {
    /// Waits for its turn, which lasts until the guard is dropped.
    pub async fn take(&self, name: &str) -> OwnedMutexGuard<()> {
        let queue = {
            let mut queues = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let queue = queues.get(name).and_then(Weak::upgrade).unwrap_or_else(|| {
                // Drops queues without waiters.
                queues.retain(|_, queue| queue.strong_count() > 0);
                Arc::default()
            });
            queues.insert(name.to_owned(), Arc::downgrade(&queue));
            queue
        };
        queue.lock_owned().await
    }
}

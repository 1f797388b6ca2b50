//! Locks by namespace: of the writes that a namespace's quotas are charged for, one at a time is committed; so of those that are
//! looked at together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{Mutex as Queue, OwnedMutexGuard};

/// Who waits for what: a namespace, or what [`super::together`] names.
#[derive(Default)]
pub(crate) struct NamespaceLocks(Mutex<HashMap<String, Weak<Queue<()>>>>);

impl NamespaceLocks {
    /// Waits for its turn; it lasts until the guard is dropped.
    pub async fn take(&self, name: &str) -> OwnedMutexGuard<()> {
        let queue = {
            let mut queues = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let queue = queues.get(name).and_then(Weak::upgrade).unwrap_or_else(|| {
                // Nobody waits here; nor in others that only their names are left of.
                queues.retain(|_, queue| queue.strong_count() > 0);
                Arc::default()
            });
            queues.insert(name.to_owned(), Arc::downgrade(&queue));
            queue
        };
        queue.lock_owned().await
    }
}

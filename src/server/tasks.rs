//! The server's own loops, which end with it, or before the store that they use.

use std::sync::{Mutex, MutexGuard};

use tokio::task::JoinHandle;

#[derive(Default)]
pub(super) struct Tasks(Mutex<Vec<AbortOnDrop>>);

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Tasks {
    pub fn add(&self, task: JoinHandle<()>) {
        self.lock().push(AbortOnDrop(task));
    }

    /// Ends all of them, and waits until none runs.
    pub async fn end(&self) {
        let mut all = std::mem::take(&mut *self.lock());
        all.iter().for_each(|task| task.0.abort());
        for task in &mut all {
            // A panic has been reported already.
            let _ = (&mut task.0).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<AbortOnDrop>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

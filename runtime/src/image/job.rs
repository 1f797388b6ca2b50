//! One pull: for whom, of what, by what right, and who hears of it.

use std::sync::Arc;

use super::disk::Inner;
use super::{Auth, ImageError, ImageName, Progress, PullEvent, Result};

/// One pull.
pub(super) struct Job {
    pub(super) inner: Arc<Inner>,
    /// For whom.
    pub(super) tenant: String,
    pub(super) name: ImageName,
    pub(super) auth: Auth,
    pub(super) progress: Option<Progress>,
}

impl Job {
    pub(super) fn tell(&self, event: PullEvent) {
        if let Some(progress) = &self.progress {
            progress(event);
        }
    }
}

/// Does work that reads or writes files where it keeps nobody else waiting.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|e| ImageError::Local(format!("image worker: {e}")))?
}

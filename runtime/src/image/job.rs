//! One pull: its tenant, target, credentials, and progress receiver.

use std::sync::Arc;

use super::disk::Inner;
use super::{Auth, ImageError, ImageName, Progress, PullEvent, Result};

/// One pull.
pub(super) struct Job {
    pub(super) inner: Arc<Inner>,
    /// Its tenant.
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

/// Runs file work on a blocking thread.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|e| ImageError::Local(format!("image worker: {e}")))?
}

//! Restores parts of Pods' volumes that were removed externally: mounts, links, and files of API objects.

use std::collections::BTreeSet;

use super::{Volumes, error::VolumeError};
use crate::disk;

impl Volumes {
    /// Restores removed mounts, with their contents, and links; releases the memory of ended Pods once its files are closed.
    /// Returns what was restored, in words.
    pub async fn mend(&self) -> Vec<String> {
        // Pods' own tmpfs are mounted in it.
        let memory = self.mend_memory().await;
        let (held, ended) = (self.held.clone(), self.ended.clone());
        let look = move || {
            let mended = held.mend();
            ended.look();
            mended
        };
        let mended = disk::work(look).await;
        let mended =
            mended.inspect_err(|why| tracing::warn!("failed to check the volumes of Pods: {why}")).unwrap_or_default();
        memory.into_iter().chain(mended).collect()
    }

    /// Restores the tmpfs of Secrets. Returns what was done, in words.
    async fn mend_memory(&self) -> Option<String> {
        let memory = self.memory.clone();
        match disk::work(move || memory.mend()).await.map_err(VolumeError::Panicked).and_then(|done| Ok(done?)) {
            Ok(true) => Some(format!("the tmpfs of Secrets at {}", self.memory.path().display())),
            Ok(false) => None,
            Err(why) => {
                tracing::warn!("failed to check the tmpfs of Secrets: {why}");
                None
            }
        }
    }

    /// The uids of Pods whose files of ConfigMaps, Secrets and the like were changed externally since they were written.
    pub async fn damaged(&self) -> BTreeSet<String> {
        // If the tmpfs is only hidden, its files must not be rewritten to a disk.
        if self.mend_memory().await.is_some() {
            tracing::warn!("the tmpfs of Secrets was unmounted: mounted it again");
        }
        let (shown, held) = (self.shown.clone(), self.held.clone());
        let damaged = move || {
            // Each Pod's own are mounted in it.
            for mended in held.mend() {
                tracing::warn!("restored {mended}");
            }
            shown.damaged()
        };
        disk::work(damaged).await.unwrap_or_default()
    }
}

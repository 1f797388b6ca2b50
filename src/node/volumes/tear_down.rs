//! The teardown of Pods' volumes, whatever their kinds: everything mounted below a Pod's folder is unmounted, its links are
//! removed, and its folder is moved aside.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use podwright_runtime::{IdRange, JournalWriter, sys::Kernel};

use super::{
    Volumes,
    error::{Result, VolumeError, all, call},
    kinds,
};
use crate::{disk, mounts, spec::PodExt};

/// The manifest field that the removed mounts were for.
const FIELD: &str = "spec.volumes";
/// Time limit for one Pod's files in memory: only its namespace waits.
const A_WALK: Duration = Duration::from_secs(30);

impl Volumes {
    /// Unmounts everything of the Pod; its folders stay.
    ///
    /// # Errors
    ///
    /// Something is still mounted. The rest is not.
    pub async fn release(self: &Arc<Self>, pod: &Pod, journal: &JournalWriter) -> Result<()> {
        let kernel = Kernel::new(&journal.at(FIELD));
        self.empty_memory(&kernel, pod).await;
        let (own, pod) = (self.clone(), pod.clone());
        disk::work(move || own.unmount_all(&kernel, &pod)).await.map_err(VolumeError::Panicked)?
    }

    /// Truncates the files of the Pod's in-memory emptyDirs: another Pod may have received descriptors of them, and their memory
    /// would count for no Pod. Works on the agent's own mounts, whatever is mounted over them.
    async fn empty_memory(self: &Arc<Self>, kernel: &Kernel, pod: &Pod) {
        // Without a uid its folder would be that of all Pods.
        let all = if pod.uid().is_empty() { Vec::new() } else { self.held.take_mounts(&self.folder(pod)) };
        if all.is_empty() {
            return;
        }
        let kernel = kernel.clone();
        let empty = move || {
            let end = Instant::now() + A_WALK;
            for kept in all {
                let path = kept.path().to_owned();
                if let Err(error) = kept.wipe(&kernel, end.saturating_duration_since(Instant::now())) {
                    tracing::warn!("failed to empty {}: {error}", path.display());
                }
            }
        };
        // Runs when its turn comes, even if the caller no longer waits.
        let (own, namespace) = (self.clone(), pod.metadata.namespace.clone().unwrap_or_default());
        let walk = tokio::spawn(async move { own.walk(&namespace, empty).await });
        match tokio::time::timeout(2 * A_WALK, walk).await {
            Ok(Ok(Err(error))) => tracing::warn!("failed to empty in-memory volumes: {error}"),
            Ok(Err(error)) => tracing::warn!("failed to empty in-memory volumes: {error}"),
            Ok(Ok(Ok(()))) => {}
            Err(_) => tracing::warn!(pod = %pod.full_name(), "in-memory volumes are waiting to be emptied"),
        }
    }

    fn unmount_all(&self, kernel: &Kernel, pod: &Pod) -> Result<()> {
        let mut errors = Vec::new();
        // It is not restored from here on.
        self.held.forget(&self.folder(pod));
        let unmount = |path: &Path| kernel.unmount_all(path).map_err(VolumeError::from);
        // The Pod's tmpfs first, at its primary mount point.
        let twin = self.twin(pod);
        let shown = fs::canonicalize(&twin).unwrap_or_else(|_| twin.clone());
        let others = mounts::below(&self.folder(pod)).into_iter().rev().filter(|path| *path != shown);
        errors.extend(others.filter_map(|path| unmount(&path).err()));
        // Hidden mounts would not be found, and survive.
        errors.extend(self.memory.mend().err().map(VolumeError::from));
        errors.extend(self.ended.end(kernel, &self.memory.path().join(pod.uid())).and_then(|()| unmount(&twin)).err());
        errors.extend(self.let_go(pod));
        self.tokens.forget(pod.uid());
        self.shown.forget(pod.uid());
        self.rooms.forget(pod.uid());
        all(errors)
    }

    /// The volumes of an ended and released Pod whose content will not be read any more. Excludes those with mounts on them.
    pub fn scratch(&self, pod: &Pod) -> Vec<PathBuf> {
        let mounted = mounts::below(&self.folder(pod));
        let volumes =
            pod.spec().volumes.iter().flatten().filter(|volume| kinds::find(volume).is_some_and(|row| row.scratch));
        let folders = volumes.map(|volume| self.folder(pod).join("volumes").join(&volume.name));
        folders.filter(|folder| !mounted.iter().any(|mount| mount.starts_with(folder))).collect()
    }

    /// Removes the Pod's data on disk by moving it aside. `users`: ids that its files may have, if more are known than its note
    /// says.
    ///
    /// # Errors
    ///
    /// Something is still mounted, and all its files remain; or its folder could not be moved.
    pub async fn remove(self: &Arc<Self>, pod: &Pod, users: Option<IdRange>, journal: &JournalWriter) -> Result<()> {
        let kernel = Kernel::new(&journal.at(FIELD));
        self.empty_memory(&kernel, pod).await;
        let (own, pod) = (self.clone(), pod.clone());
        disk::work(move || own.remove_all(&kernel, &pod, users)).await.map_err(VolumeError::Panicked)?
    }

    fn remove_all(&self, kernel: &Kernel, pod: &Pod, users: Option<IdRange>) -> Result<()> {
        let released = self.unmount_all(kernel, pod);
        let folder = self.folder(pod);
        // While something is mounted below it, its content must not be deleted.
        if !mounts::below(&folder).is_empty() {
            return released.and(Err(VolumeError::StillMounted(folder)));
        }
        released?;
        self.removals.put_aside(&folder, &self.owner(pod, users)).map_err(call("rename", &folder))
    }

    /// Unmounts the node's tmpfs.
    ///
    /// # Errors
    ///
    /// It is still mounted.
    pub fn close(&self) -> Result<()> {
        // Its contents are not restored either.
        self.held.forget(self.memory.path());
        Ok(self.memory.close()?)
    }
}

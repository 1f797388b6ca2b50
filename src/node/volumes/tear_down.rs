//! The end of Pods' volumes, whatever their kinds: all that is mounted below a Pod's folder is unmounted, its links are removed, and
//! its folder is put aside.

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

/// The field of the manifest for which what is taken away was there.
const FIELD: &str = "spec.volumes";
/// As long may the files of one Pod's volumes in memory take: only its namespace waits.
const A_WALK: Duration = Duration::from_secs(30);

impl Volumes {
    /// Takes away what is mounted for the Pod; its folders stay.
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

    /// Has the files of the Pod's emptyDirs in memory hold nothing: another Pod may have been handed them, and they would count for
    /// nobody. It is done with what the agent has mounted itself, whatever lies over it by now.
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
        // It is done when its turn comes, though nobody waits for that any longer.
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
        // Nobody brings it back from here on.
        self.held.forget(&self.folder(pod));
        let unmount = |path: &Path| kernel.unmount_all(path).map_err(VolumeError::from);
        // The Pod's tmpfs ends first where it is known by.
        let twin = self.twin(pod);
        let shown = fs::canonicalize(&twin).unwrap_or_else(|_| twin.clone());
        let others = mounts::below(&self.folder(pod)).into_iter().rev().filter(|path| *path != shown);
        errors.extend(others.filter_map(|path| unmount(&path).err()));
        // What is hidden would not be found, and live on.
        errors.extend(self.memory.mend().err().map(VolumeError::from));
        errors.extend(self.ended.end(kernel, &self.memory.path().join(pod.uid())).and_then(|()| unmount(&twin)).err());
        errors.extend(self.let_go(pod));
        self.tokens.forget(pod.uid());
        self.shown.forget(pod.uid());
        self.rooms.forget(pod.uid());
        all(errors)
    }

    /// The volumes of a Pod that has ended and been released whose content nobody will read any more. Those that something is still
    /// mounted on are left out.
    pub fn scratch(&self, pod: &Pod) -> Vec<PathBuf> {
        let mounted = mounts::below(&self.folder(pod));
        let volumes =
            pod.spec().volumes.iter().flatten().filter(|volume| kinds::find(volume).is_some_and(|row| row.scratch));
        let folders = volumes.map(|volume| self.folder(pod).join("volumes").join(&volume.name));
        folders.filter(|folder| !mounted.iter().any(|mount| mount.starts_with(folder))).collect()
    }

    /// Removes everything that the Pod has on disk: it is put aside. `users`: the ids that its files may have, as far as that is known
    /// beside what is noted with them.
    ///
    /// # Errors
    ///
    /// Something is still mounted, and all its files are there; or its folder could not be put aside.
    pub async fn remove(self: &Arc<Self>, pod: &Pod, users: Option<IdRange>, journal: &JournalWriter) -> Result<()> {
        let kernel = Kernel::new(&journal.at(FIELD));
        self.empty_memory(&kernel, pod).await;
        let (own, pod) = (self.clone(), pod.clone());
        disk::work(move || own.remove_all(&kernel, &pod, users)).await.map_err(VolumeError::Panicked)?
    }

    fn remove_all(&self, kernel: &Kernel, pod: &Pod, users: Option<IdRange>) -> Result<()> {
        let released = self.unmount_all(kernel, pod);
        let folder = self.folder(pod);
        // While something is still mounted below it, its content is not ours to delete.
        if !mounts::below(&folder).is_empty() {
            return released.and(Err(VolumeError::StillMounted(folder)));
        }
        released?;
        self.removals.put_aside(&folder, &self.owner(pod, users)).map_err(call("rename", &folder))
    }

    /// Takes the node's tmpfs away.
    ///
    /// # Errors
    ///
    /// It is still mounted.
    pub fn close(&self) -> Result<()> {
        // Nor does what was in it come back.
        self.held.forget(self.memory.path());
        Ok(self.memory.close()?)
    }
}

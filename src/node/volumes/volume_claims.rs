//! Which Pod uses which PersistentVolume: links below the Pods' folders tell other Pods, and later agents, that it is in use.
//!
//! Upstream decides by name whether a single-Pod volume is in use (`IsVolumeMountedElsewhere` of the kubelet's volume manager), and
//! by the mounted folder who owns its files (`SetUpAt` of the plugin `local`): two volumes may be one folder.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Volume};
use podwright_runtime::sys::tree::LONGEST;

use super::{
    Volumes,
    claims::{self, BoundVolume, Kind},
    error::{ClaimError, MountError, VolumeError, file},
    fs_group,
    kinds::is_read_only,
    local::{Identity, LocalError},
    ownership,
};
use crate::{disk, spec::PodExt};
use podwright_api::persistent_volume::used;
use podwright_client::reference;

/// The folder of a Pod with links to the volumes in use, by PersistentVolume name.
const TAKEN: &str = "taken";
/// The same for those in use for writing.
const WRITTEN: &str = "written";

impl Volumes {
    /// Creates the links to a claim's volume.
    ///
    /// 1. check that the claim is bound,
    /// 2. locate the volume here,
    /// 3. check that it exists, or create it,
    /// 4. give it to the Pod's group,
    /// 5. mark it as in use.
    ///
    /// # Errors
    ///
    /// Those of each step.
    pub(super) async fn prepare_claim(self: &Arc<Self>, pod: &Pod, volume: &Volume) -> Result<(), MountError> {
        let unprocessed = |why: ClaimError| MountError::unprocessed(&volume.name, why);
        let used = &used(pod, volume).ok_or_else(|| unprocessed(ClaimError::Unnamed))?;
        let link = self.folder(pod).join("volumes").join(&volume.name);
        let there = link.clone();
        // It may hang on a dead disk.
        let is_there = disk::work(move || fs::metadata(&there).is_ok()).await;
        if is_there.map_err(|why| unprocessed(ClaimError::Panicked(why)))? {
            self.hold(pod, &link);
            return Ok(());
        }
        // Its target is gone, as after a reboot: whatever replaces it is another volume and must be checked.
        fs::remove_file(&link).ok();
        let claim = self.objects.claim(pod, &used.name).await.map_err(|e| unprocessed(e.into()))?;
        let name = claims::bound(pod, used, &claim).map_err(unprocessed)?;
        let found = self.objects.volume(pod, name, pod.spec().node_name.as_deref()).await;
        let (found, node) = found.map_err(|e| unprocessed(e.into()))?;
        let mut place = claims::place(pod, volume, &claim, &found, node.as_ref())?;
        if let Kind::Provisioned(identity, capacity) = &place.kind {
            place.path = self.provisioned(&place, identity, *capacity, &claim).await?;
        }
        let looked = place.clone();
        disk::work(move || looked.check()).await.map_err(|why| unprocessed(ClaimError::Panicked(why)))??;
        self.must_be_free(pod, &place)?;
        let failed = |why: io::Error| MountError::set_up(&place.volume, file(&place.path)(why));
        // The first Pod that may write decides the group. (Upstream: the first Pod, and none if it only reads.)
        let writes = !is_read_only(volume);
        if writes && !self.others(pod, WRITTEN).any(|(_, at)| is_same(&at, &place.path)) {
            self.own(pod, &place).await.map_err(failed)?;
        }
        // The state is consistent even after a panic: creating a link is atomic.
        let _taking = self.taking.lock().unwrap_or_else(|p| p.into_inner());
        self.must_be_free(pod, &place)?;
        let links = [Some(TAKEN), writes.then_some(WRITTEN)].into_iter().flatten();
        let links = links.map(|kind| self.folder(pod).join(kind).join(&place.volume));
        links.chain([link]).try_for_each(|link| self.held.lead(&link, &place.path)).map_err(failed)
    }

    /// Keeps the links to a volume created by an earlier agent.
    fn hold(&self, pod: &Pod, link: &Path) {
        let Ok(to) = fs::read_link(link) else { return };
        let others = [TAKEN, WRITTEN].into_iter().flat_map(|kind| entries(&self.folder(pod).join(kind)));
        let same = others.map(|entry| entry.path()).filter(|other| fs::read_link(other).is_ok_and(|leads| leads == to));
        same.chain([link.to_owned()]).for_each(|link| self.held.link(&link, &to));
    }

    /// Creates a volume of the built-in provisioner, unless it exists; returns its path. If its size cannot be limited, its claim
    /// gets one event.
    async fn provisioned(
        self: &Arc<Self>,
        place: &BoundVolume,
        identity: &Identity,
        capacity: Option<u64>,
        claim: &PersistentVolumeClaim,
    ) -> Result<PathBuf, MountError> {
        let (own, wanted) = (self.clone(), identity.clone());
        let made = disk::work(move || own.local.make(&wanted, capacity)).await.map_err(LocalError::Panicked).flatten();
        let made = made.map_err(|why| place.failed("MountVolume.SetUp", why.into()))?;
        if let (true, Err(why)) = (made.fresh, made.limited) {
            let message = format!("volume {} may take more than its capacity: {why}", place.volume);
            self.recorder.warning(reference(claim), "CapacityNotEnforced", message);
        }
        Ok(self.local.data(&identity.name))
    }

    /// The uid of a Pod that uses a PersistentVolume.
    pub fn user_of(&self, volume: &str) -> Option<String> {
        let mut all = self.folders();
        let user = all.find(|pod| fs::symlink_metadata(pod.path().join(TAKEN).join(volume)).is_ok())?;
        Some(user.file_name().to_string_lossy().into_owned())
    }

    /// What other Pods use ([`TAKEN`], [`WRITTEN`]): the names and paths of PersistentVolumes.
    fn others(&self, pod: &Pod, kind: &'static str) -> impl Iterator<Item = (OsString, PathBuf)> + use<> {
        let own = self.folder(pod);
        self.folders()
            .filter(move |other| other.path() != own)
            .flat_map(move |other| entries(&other.path().join(kind)))
            .filter_map(|link| Some((link.file_name(), fs::read_link(link.path()).ok()?)))
    }

    fn must_be_free(&self, pod: &Pod, place: &BoundVolume) -> Result<(), MountError> {
        if place.alone && self.others(pod, TAKEN).any(|(name, _)| name == *place.volume) {
            let stage = if place.block { "MapVolume.SetUpDevice" } else { "MountVolume.SetUp" };
            return Err(place.failed(stage, VolumeError::TakenByAnother));
        }
        Ok(())
    }

    /// Gives a volume to the Pod's group. Host paths are unchanged. The duration depends on the volume's users: it runs in its
    /// namespace's turn, and is retried after a timeout.
    async fn own(&self, pod: &Pod, place: &BoundVolume) -> io::Result<()> {
        let is_given = matches!(place.kind, Kind::Local | Kind::Provisioned(..)) && !place.block;
        let Some(group) = fs_group(pod).filter(|_| is_given) else { return Ok(()) };
        let context = pod.spec().security_context.as_ref();
        let on_mismatch = context.and_then(|c| c.fs_group_change_policy.as_deref()) == Some("OnRootMismatch");
        let path = place.path.clone();
        let given = self.walk(pod.namespace(), move || ownership::give(&path, group, on_mismatch, LONGEST)).await;
        given.map_err(io::Error::other)?
    }

    /// Releases the volumes of the Pod's claims for other Pods. Returns what failed.
    pub(super) fn let_go(&self, pod: &Pod) -> Vec<VolumeError> {
        let folders = ["volumes", TAKEN, WRITTEN].map(|kind| self.folder(pod).join(kind));
        let all = folders.iter().flat_map(|folder| entries(folder));
        let links = all.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
        links.filter_map(|link| fs::remove_file(link.path()).map_err(file(link.path())).err()).collect()
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = fs::DirEntry> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten()
}

/// Whether two paths are the same folder or device.
fn is_same(a: &Path, b: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    a == b || id(a).is_some_and(|a| Some(a) == id(b))
}

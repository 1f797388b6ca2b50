//! Volumes: from `spec.volumes` to folders on the host, and from `volumeMounts` to bind mounts.
//!
//! ```text
//!   <state>/pods/<uid>/volumes/<name>                 emptyDir, configMap; of a claim a link to where its volume is
//!   <state>/pods/<uid>/taken/<PersistentVolume>       another link there: the volume is in use by the Pod
//!   <state>/local-volumes/<PersistentVolume>          of the built-in provisioner: `local`
//!   <run>/volumes/<uid>/<name>                        secret, projected, downwardAPI: a tmpfs for each Pod
//!   <run>/volumes/.ended/<uid>.<n>                    such a tmpfs whose Pod has ended, while somebody has files of it open
//!   <state>/pods/<uid>/owner                          the Pod's namespace, and the ids of the host that its users are: `owner`
//!   <state>/pods/.aside-<n>.<owner>                   what a Pod that is gone has left, until it is removed; the same of an emptyDir
//!   <state>/pods/<uid>/subpaths/<container>/<index>   what a subPath resolved to, bound there
//! ```

pub mod atomic;
pub mod claims;
mod empty_dir;
mod ended;
mod held;
mod host_path;
pub mod local;
mod mounting;
mod owner;
pub mod ownership;
pub mod payload;
mod shares;
mod shown;
mod subpath;
mod taking;
mod tokens;

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use k8s_openapi::api::core::v1::{Pod, Volume};
use podwright_runtime::{
    IdRange, Scribe,
    kept::Kept,
    removals::{Removals, is_aside},
    sys::Kernel,
    turns::Turns as Places,
};

use super::{
    disk,
    executor::Trouble,
    mounts,
    objects::Objects,
    spec::PodExt,
    translate::env::{Facts, Sources},
    turns::Turns,
};
use crate::{
    api::{Env as World, persistent_volume},
    client::Recorder,
};
use atomic::{File, Payload};
pub use empty_dir::is_on_disk;
use empty_dir::{empty_dir, in_memory};
use ended::Ended;
use held::HeldVolumes;
pub use owner::{owners_in, owners_of};
use payload::Room;
use shares::Shares;
use shown::Shown;
pub use tokens::Tokens;

/// The most elements that the path of an item, and a `subPath`, may have: the agent makes the folders, and they count for nobody's
/// limit of memory.
const DEEPEST: usize = 64;

/// So many volumes of a node are written at once.
const WRITTEN: usize = 2;

pub struct Volumes {
    /// `<state>/pods`
    pods: PathBuf,
    /// `<run>/volumes`, a tmpfs.
    memory: PathBuf,
    objects: Arc<Objects>,
    tokens: Tokens,
    world: World,
    /// The volumes of the built-in provisioner that this node keeps.
    local: local::Folders,
    recorder: Recorder,
    /// Held while a Pod takes a volume that may be for one alone.
    taking: Mutex<()>,
    /// Who has how much of `memory`.
    shares: Arc<Shares>,
    turns: Turns,
    /// What goes through all files of a volume.
    walks: Places,
    /// What removes volumes of the built-in provisioner.
    deletions: Places,
    /// What Pods have left.
    removals: Removals,
    shown: Shown,
    held: HeldVolumes,
    ended: Ended,
    /// What `memory` is.
    kept: Arc<Mutex<Option<Kept>>>,
}

fn mount_error(volume: &str, why: impl std::fmt::Display) -> Trouble {
    Trouble::new("FailedMount", format!("MountVolume.SetUp failed for volume \"{volume}\" : {why}"))
}

impl Volumes {
    /// `memory` becomes a tmpfs, unless it is one already; volumes of the built-in provisioner are below `local`. What an earlier agent
    /// has put aside is removed from now on.
    #[expect(clippy::too_many_arguments, reason = "each is a part of the node, made once")]
    pub fn open(
        pods: PathBuf,
        memory: PathBuf,
        local: PathBuf,
        objects: Arc<Objects>,
        tokens: Tokens,
        world: World,
        recorder: Recorder,
        removals: Removals,
    ) -> io::Result<Volumes> {
        fs::create_dir_all(&pods)?;
        removals.find(&pods);
        mounts::keep_in_memory(&memory)?;
        mounts::share(&memory)?;
        let kept = Kept::of(&Kernel::new(&Scribe::none()), &memory).map_err(io::Error::other)?;
        let kept = kept.ok_or_else(|| io::Error::other(format!("{} is not mounted", memory.display())))?;
        let kept = Arc::new(Mutex::new(Some(kept)));
        let (shares, turns, shown) = (Arc::new(Shares::of(&memory)?), Turns::new(WRITTEN), Shown::default());
        let (local, taking, held) = (local::Folders::open(local)?, Mutex::default(), HeldVolumes::default());
        let ended = Ended::open(&memory, shares.clone(), held.clone());
        let volumes = Volumes {
            pods,
            memory,
            objects,
            tokens,
            world,
            local,
            recorder,
            taking,
            shares,
            turns,
            walks: Places::default(),
            deletions: Places::default(),
            removals,
            shown,
            held,
            ended,
            kept,
        };
        Ok(volumes)
    }

    /// Does something with all files of a volume, in a turn of the namespace that has it: as long as they take, it has few places.
    /// Errors: it panicked.
    async fn walk<T: Send + 'static>(
        &self,
        namespace: &str,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        self.walks.run(namespace, act).await.ok_or_else(|| "a task panicked".to_owned())
    }

    /// The same for removing volumes, of which no Pod that starts waits for any.
    async fn delete<T: Send + 'static>(
        &self,
        namespace: &str,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        self.deletions.run(namespace, act).await.ok_or_else(|| "a task panicked".to_owned())
    }

    /// The volumes of the built-in provisioner that this node keeps.
    pub fn local(&self) -> &local::Folders {
        &self.local
    }

    pub fn folder(&self, pod: &Pod) -> PathBuf {
        self.pods.join(pod.uid())
    }

    /// Where the Pod's tmpfs is mounted a second time. An agent of release 0.1 that takes the node back does not know of Pods' own
    /// tmpfs; but it unmounts what is below a Pod's folder, and so can remove the Pod.
    fn twin(&self, pod: &Pod) -> PathBuf {
        self.folder(pod).join("memory")
    }

    /// The folder of all Pods' folders.
    pub fn root(&self) -> &Path {
        &self.pods
    }

    /// Where a volume of the Pod is on the host.
    pub fn path(&self, pod: &Pod, volume: &Volume) -> PathBuf {
        if let Some(host) = &volume.host_path {
            return PathBuf::from(&host.path);
        }
        if volume.secret.is_some() || volume.projected.is_some() || volume.downward_api.is_some() {
            return self.memory.join(pod.uid()).join(&volume.name);
        }
        let own = self.folder(pod).join("volumes").join(&volume.name);
        fs::read_link(&own).unwrap_or(own)
    }

    /// Makes all volumes of the Pod. What exists already stays as it is.
    pub async fn prepare(self: &Arc<Self>, pod: &Arc<Pod>, facts: &Facts) -> Result<(), Trouble> {
        let mut room = Room::default();
        for volume in pod.spec().volumes.iter().flatten() {
            match persistent_volume::used(pod, volume) {
                Some(used) => self.prepare_claim(pod, volume, &used).await?,
                None => {
                    let prepared = self.prepare_one(pod, volume, facts, &mut room).await;
                    prepared.map_err(|why| mount_error(&volume.name, why))?;
                }
            }
        }
        Ok(())
    }

    async fn prepare_one(&self, pod: &Arc<Pod>, volume: &Volume, facts: &Facts, room: &mut Room) -> Result<(), String> {
        let path = self.path(pod, volume);
        let fs_group = fs_group(pod);
        if let Some(source) = &volume.empty_dir {
            let (source, pod, held) = (source.clone(), pod.clone(), self.held.clone());
            let made = move || {
                let made = empty_dir(&path, &source, &pod, fs_group);
                let kept = made.and_then(|()| if in_memory(&source) { held.mount(&path) } else { Ok(()) });
                kept.map_err(|e| format!("{}: {e}", path.display()))
            };
            return disk::work(made).await?;
        }
        if let Some(source) = &volume.host_path {
            let kind = source.type_.clone().unwrap_or_default();
            return disk::work(move || host_path::check(&path, &kind)).await?;
        }
        if let Some(payload) = self.payload(pod, volume, facts, room).await? {
            self.show(pod, path, payload).await?;
            return Ok(());
        }
        Err("this kind of volume is not supported by this node".to_owned())
    }

    async fn show(&self, pod: &Pod, path: PathBuf, payload: Payload) -> Result<bool, String> {
        let own = match path.starts_with(&self.memory) {
            true => {
                let folder = self.memory.join(pod.uid());
                let (bytes, room) = (atomic::takes(&payload), mounts::room_of(&folder));
                let room = self.shares.hold(&folder, &path, pod.namespace(), bytes, room)?;
                Some((folder, self.twin(pod), pod.namespace().to_owned(), room, self.held.clone()))
            }
            false => None,
        };
        let _turn = self.turns.take(pod.namespace()).await;
        let (world, fs_group) = (self.world.clone(), fs_group(pod));
        let (shown, uid) = (self.shown.clone(), pod.uid().to_owned());
        // What is for memory never comes to a disk.
        let kept = path.starts_with(&self.memory).then(|| self.kept.clone());
        let show = move || {
            kept.as_deref().map_or(Ok(false), mend)?;
            if let Some((folder, twin, namespace, room, held)) = own {
                // What containers have comes back, if it was taken away.
                let made = held.mend_at(&folder).and_then(|_| mounts::in_memory_of(&folder, &twin, &namespace, room));
                made.and_then(|()| held.mount(&folder)).map_err(|e| format!("{}: {e}", folder.display()))?;
            }
            // Each pass that finds it otherwise writes a folder of another name.
            let changed = shown.keep(&uid, &path, || atomic::write(&path, &payload, fs_group, world.now()));
            changed.map_err(|e| format!("{}: {e}", path.display()))
        };
        disk::work(show).await?
    }

    /// Brings back mounts and links that somebody has taken away, mounts with all that is in them, and gives up what ended Pods have
    /// left once nobody has it open. Returns what was brought back, in words.
    pub async fn mend(&self) -> Vec<String> {
        // Pods' own are mounted in it.
        let memory = self.mend_memory().await;
        let (held, ended) = (self.held.clone(), self.ended.clone());
        let look = move || {
            let mended = held.mend();
            ended.look();
            mended
        };
        let mended = disk::work(look).await;
        let mended = mended.inspect_err(|why| tracing::warn!("the volumes of Pods: {why}")).unwrap_or_default();
        memory.into_iter().chain(mended).collect()
    }

    /// Brings the tmpfs of Secrets back. Returns what was done, in words.
    async fn mend_memory(&self) -> Option<String> {
        let kept = self.kept.clone();
        match disk::work(move || mend(&kept)).await {
            Ok(Ok(true)) => Some(format!("the tmpfs of Secrets at {}", self.memory.display())),
            Ok(Ok(false)) => None,
            Ok(Err(why)) | Err(why) => {
                tracing::warn!("the tmpfs of Secrets: {why}");
                None
            }
        }
    }

    /// The Pods whose files of ConfigMaps, Secrets and the like somebody else has changed since they were written: their uids.
    pub async fn damaged(&self) -> BTreeSet<String> {
        // Files that are only hidden are not written again, to a disk.
        if self.mend_memory().await.is_some() {
            tracing::warn!("the tmpfs of Secrets was unmounted: it is back");
        }
        let (shown, held) = (self.shown.clone(), self.held.clone());
        let damaged = move || {
            // Each Pod's own are mounted in it.
            for mended in held.mend() {
                tracing::warn!("brought back: {mended}");
            }
            shown.damaged()
        };
        disk::work(damaged).await.unwrap_or_default()
    }

    /// Brings the volumes that show API objects up to date. An object that has gone leaves its files as they are.
    pub async fn refresh(&self, pod: &Arc<Pod>, facts: &Facts) -> Result<(), Trouble> {
        let mut room = Room::default();
        for volume in pod.spec().volumes.iter().flatten() {
            match self.payload(pod, volume, facts, &mut room).await {
                Ok(Some(payload)) => {
                    let path = self.path(pod, volume);
                    let shown = self.show(pod, path, payload).await;
                    shown.map_err(|why| mount_error(&volume.name, why))?;
                }
                Ok(None) => {}
                Err(why) => return Err(mount_error(&volume.name, why)),
            }
        }
        Ok(())
    }

    /// The files of a volume that is made of API objects; `None` for the other kinds.
    async fn payload(
        &self,
        pod: &Arc<Pod>,
        volume: &Volume,
        facts: &Facts,
        room: &mut Room,
    ) -> Result<Option<Payload>, String> {
        if let Some(s) = &volume.config_map {
            let sources = self.objects.sources(pod, &BTreeSet::from([s.name.clone()]), &BTreeSet::new()).await?;
            return payload::config_map(&sources, &s.name, s.items.as_deref(), s.default_mode, s.optional, room)
                .map(Some);
        }
        if let Some(s) = &volume.secret {
            let name = s.secret_name.clone().unwrap_or_default();
            let sources = self.objects.sources(pod, &BTreeSet::new(), &BTreeSet::from([name.clone()])).await?;
            return payload::secret(&sources, &name, s.items.as_deref(), s.default_mode, s.optional, room).map(Some);
        }
        if let Some(s) = &volume.downward_api {
            return payload::downward(pod, facts, s.items.as_deref(), s.default_mode, room).map(Some);
        }
        let Some(projected) = &volume.projected else { return Ok(None) };
        let mut all = Payload::new();
        for source in projected.sources.iter().flatten() {
            let maps = source.config_map.iter().map(|s| s.name.clone()).collect();
            let secrets = source.secret.iter().map(|s| s.name.clone()).collect();
            let sources = match source.config_map.is_some() || source.secret.is_some() {
                true => self.objects.sources(pod, &maps, &secrets).await?,
                false => Sources::default(),
            };
            all.extend(payload::projection(pod, &sources, facts, source, projected.default_mode, room)?);
            if let Some(token) = &source.service_account_token {
                let user = common_user(pod);
                let private = user.is_some() || fs_group(pod).is_some();
                let mode = if private { 0o600 } else { projected.default_mode.unwrap_or(0o644) as u32 };
                let data = self.tokens.get(pod, token).await?.into_bytes();
                room.take(Path::new(&token.path), data.len())?;
                all.insert(PathBuf::from(&token.path), File { data, mode, uid: user });
            }
        }
        Ok(Some(all))
    }

    /// Takes away what is mounted for the Pod; its folders stay. All errors, in words.
    pub async fn release(self: &Arc<Self>, pod: &Pod) -> Result<(), String> {
        let (own, pod) = (self.clone(), pod.clone());
        disk::work(move || own.unmount_all(&pod)).await?
    }

    fn unmount_all(&self, pod: &Pod) -> Result<(), String> {
        let mut errors = Vec::new();
        // Nobody brings it back from here on.
        self.held.forget(&self.folder(pod));
        let unmount = |path: &Path| mounts::unmount(path).map_err(|e| format!("umount {}: {e}", path.display()));
        // The Pod's tmpfs ends first where it is known by.
        let twin = self.twin(pod);
        let shown = fs::canonicalize(&twin).unwrap_or_else(|_| twin.clone());
        let others = mounts::below(&self.folder(pod)).into_iter().rev().filter(|path| *path != shown);
        errors.extend(others.filter_map(|path| unmount(&path).err()));
        // What is hidden would not be found, and live on.
        errors.extend(mend(&self.kept).err());
        errors.extend(self.ended.end(&self.memory.join(pod.uid())).and_then(|()| unmount(&twin)).err());
        errors.extend(self.let_go(pod));
        self.tokens.forget(pod.uid());
        self.shown.forget(pod.uid());
        if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
    }

    /// The emptyDirs of a Pod that has ended and been released: nobody will read them any more. Those that something is still
    /// mounted on are left out.
    pub fn scratch(&self, pod: &Pod) -> Vec<PathBuf> {
        let mounted = mounts::below(&self.folder(pod));
        let volumes = pod.spec().volumes.iter().flatten().filter(|volume| volume.empty_dir.is_some());
        let folders = volumes.map(|volume| self.folder(pod).join("volumes").join(&volume.name));
        folders.filter(|folder| !mounted.iter().any(|mount| mount.starts_with(folder))).collect()
    }

    /// Removes everything that the Pod has on disk: it is put aside. `users`: the ids that its files may have, as far as that is known
    /// beside what is noted with them.
    pub async fn remove(self: &Arc<Self>, pod: &Pod, users: Option<IdRange>) -> Result<(), String> {
        let (own, pod) = (self.clone(), pod.clone());
        disk::work(move || own.remove_all(&pod, users)).await?
    }

    fn remove_all(&self, pod: &Pod, users: Option<IdRange>) -> Result<(), String> {
        let released = self.unmount_all(pod);
        let folder = self.folder(pod);
        // While something is still mounted below it, its content is not ours to delete.
        if !mounts::below(&folder).is_empty() {
            return released.and(Err(format!("{}: something is still mounted there", folder.display())));
        }
        released?;
        self.removals
            .put_aside(&folder, &self.owner(pod, users))
            .map_err(|e| format!("rename {}: {e}", folder.display()))
    }

    /// Takes the node's tmpfs away.
    pub fn close(&self) -> Result<(), String> {
        // Nobody brings it back from here on.
        let mut kept = self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *kept = None;
        self.held.forget(&self.memory);
        mounts::unmount(&self.memory).map_err(|e| format!("umount {}: {e}", self.memory.display()))
    }

    /// The uids that have folders here.
    pub fn owners(&self) -> BTreeSet<String> {
        let names = |dir: &Path| -> Vec<String> {
            fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok()).collect()
        };
        let all = names(&self.pods).into_iter().chain(names(&self.memory));
        all.filter(|name| name != ended::FOLDER && !is_aside(name)).collect()
    }

    /// The Pods whose tokens are old enough to be renewed.
    pub fn stale_tokens(&self) -> BTreeSet<String> {
        self.tokens.stale()
    }
}

fn mend(kept: &Mutex<Option<Kept>>) -> Result<bool, String> {
    // A mount is brought back in one step.
    let mut kept = kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mended = kept.as_mut().map(|kept| kept.mend(&Kernel::new(&Scribe::none())));
    mended.unwrap_or(Ok(false)).map_err(|e| e.to_string())
}

fn fs_group(pod: &Pod) -> Option<u32> {
    pod.spec().security_context.as_ref().and_then(|c| c.fs_group).and_then(|g| u32::try_from(g).ok())
}

/// Whether a Pod uses its claim for reading alone.
fn is_read_only(volume: &Volume) -> bool {
    volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.read_only == Some(true))
}

/// The user that all containers run as, where the manifest says so for each.
fn common_user(pod: &Pod) -> Option<u32> {
    let of_pod = pod.spec().security_context.as_ref().and_then(|c| c.run_as_user);
    let parts = pod.parts();
    let mut users = parts.iter().map(|p| p.container.security_context.as_ref().and_then(|c| c.run_as_user).or(of_pod));
    let first = users.next()??;
    users.all(|u| u == Some(first)).then(|| u32::try_from(first).ok())?
}

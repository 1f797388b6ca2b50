//! Volumes: from `spec.volumes` to folders on the host, and from `volumeMounts` to bind mounts.
//!
//! ```text
//!   <state>/pods/<uid>/volumes/<name>                 emptyDir, configMap; of a claim a link to where its volume is
//!   <state>/pods/<uid>/volumes/.new-<name>            an emptyDir that is being made
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
mod ended;
pub(crate) mod error;
mod healing;
mod held;
pub mod kinds;
pub mod local;
mod memory;
mod mounting;
pub(crate) mod owner;
pub mod ownership;
pub mod payload;
mod set_up;
mod shares;
mod shown;
mod subpath;
mod tear_down;
pub(crate) mod tokens;
mod volume_claims;

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use k8s_openapi::api::core::v1::{Pod, Volume};
use podwright_runtime::{
    fair_pool::FairPool,
    removals::{Removals, is_aside},
};

use super::{fair_semaphore::FairSemaphore, objects::Objects, spec::PodExt};
use ended::Ended;
use error::Result;
pub use error::{ClaimError, MountError, VolumeError};
use held::HeldVolumes;
use kinds::Location;
use local::LocalError;
use memory::Memory;
pub use owner::{Note, owners_in, owners_of};
use payload::Rooms;
use podwright_api::Env as World;
use podwright_client::Recorder;
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
    /// `<run>/volumes`
    memory: Arc<Memory>,
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
    /// Held while a Pod's tmpfs is made, or grows.
    growing: Arc<Mutex<()>>,
    /// What Pods' volumes show of API objects.
    rooms: Rooms,
    turns: FairSemaphore,
    /// What goes through all files of a volume.
    walks: FairPool,
    /// What removes volumes of the built-in provisioner.
    deletions: FairPool,
    /// What Pods have left.
    removals: Removals,
    shown: Shown,
    held: HeldVolumes,
    ended: Ended,
}

impl Volumes {
    /// `memory` becomes a tmpfs, unless it is one already; volumes of the built-in provisioner are below `local`. What an earlier agent
    /// has put aside is removed from now on.
    ///
    /// # Errors
    ///
    /// A folder cannot be made, or nothing be mounted there.
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
        // That of Pods that are still there: what is aside says whose ids it has, when its Pod has ended.
        owner::folders(&pods).for_each(|pod| removals.find(&pod.path().join("volumes")));
        let memory = Memory::open(memory)?;
        let (shares, turns, shown) =
            (Arc::new(Shares::of(memory.path())?), FairSemaphore::new(WRITTEN), Shown::default());
        let (local, taking, held) = (local::Folders::open(local)?, Mutex::default(), HeldVolumes::default());
        let ended = Ended::open(memory.path(), shares.clone(), held.clone());
        let volumes = Volumes {
            pods,
            memory: Arc::new(memory),
            objects,
            tokens,
            world,
            local,
            recorder,
            taking,
            shares,
            growing: Arc::default(),
            rooms: Rooms::default(),
            turns,
            walks: FairPool::default(),
            deletions: FairPool::default(),
            removals,
            shown,
            held,
            ended,
        };
        Ok(volumes)
    }

    /// Does something with all files of a volume, in a turn of the namespace that has it: as long as they take, it has few places.
    /// Errors: it panicked.
    async fn walk<T: Send + 'static>(&self, namespace: &str, act: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        self.walks.run(namespace, act).await.ok_or_else(|| VolumeError::Panicked("a task panicked".to_owned()))
    }

    /// The same for removing volumes, of which no Pod that starts waits for any. Errors: it panicked.
    async fn delete<T: Send + 'static>(
        &self,
        namespace: &str,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LocalError> {
        self.deletions.run(namespace, act).await.ok_or_else(|| LocalError::Panicked("a task panicked".to_owned()))
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
        let own = self.folder(pod).join("volumes").join(&volume.name);
        match kinds::find(volume).map(|row| row.location) {
            Some(Location::Host(path)) => path(volume),
            Some(Location::PodMemory) => self.memory.path().join(pod.uid()).join(&volume.name),
            Some(Location::Link) => fs::read_link(&own).unwrap_or(own),
            Some(Location::PodFolder) | None => own,
        }
    }

    /// The uids that have folders here.
    pub fn owners(&self) -> BTreeSet<String> {
        let names = |dir: &Path| -> Vec<String> {
            fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok()).collect()
        };
        let all = names(&self.pods).into_iter().chain(names(self.memory.path()));
        all.filter(|name| name != ended::FOLDER && !is_aside(name)).collect()
    }

    /// The Pods whose tokens are old enough to be renewed.
    pub fn stale_tokens(&self) -> BTreeSet<String> {
        self.tokens.stale()
    }
}

fn fs_group(pod: &Pod) -> Option<u32> {
    pod.spec().security_context.as_ref().and_then(|c| c.fs_group).and_then(|g| u32::try_from(g).ok())
}

//! Volumes: from `spec.volumes` to folders on the host, and from `volumeMounts` to bind mounts.
//!
//! ```text
//!   <state>/pods/<uid>/volumes/<name>                 emptyDir, configMap; for a claim a link to its volume
//!   <state>/pods/<uid>/volumes/.new-<name>            an emptyDir being created
//!   <state>/pods/<uid>/taken/<PersistentVolume>       another link there: the volume is in use by the Pod
//!   <state>/local-volumes/<PersistentVolume>          of the built-in provisioner: `local`
//!   <run>/volumes/<uid>/<name>                        secret, projected, downwardAPI: a tmpfs for each Pod
//!   <run>/volumes/.ended/<uid>.<n>                    the tmpfs of an ended Pod, while its files are open
//!   <state>/pods/<uid>/owner                          the Pod's namespace, and its users' host ids: `owner`
//!   <state>/pods/.aside-<n>.<owner>                   what a removed Pod has left, until it is deleted; the same for an emptyDir
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

/// Maximum number of path elements of an item and a `subPath`: the agent creates the folders, and they count for no memory limit.
const DEEPEST: usize = 64;

/// Number of a node's volumes written at the same time.
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
    /// Held while a Pod takes a volume that may be for one Pod only.
    taking: Mutex<()>,
    /// Each namespace's use of `memory`.
    shares: Arc<Shares>,
    /// Held while a Pod's tmpfs is created, or grows.
    growing: Arc<Mutex<()>>,
    /// The size of API objects shown by Pods' volumes.
    rooms: Rooms,
    turns: FairSemaphore,
    /// For operations on all files of a volume.
    walks: FairPool,
    /// For removing volumes of the built-in provisioner.
    deletions: FairPool,
    /// For deleting what Pods have left.
    removals: Removals,
    shown: Shown,
    held: HeldVolumes,
    ended: Ended,
}

impl Volumes {
    /// `memory` becomes a tmpfs, unless it is one; volumes of the built-in provisioner are below `local`. Starts deleting what an
    /// earlier agent has moved aside.
    ///
    /// # Errors
    ///
    /// A folder cannot be created or mounted on.
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
        // Data of existing Pods: what is aside records its own ids if its Pod has ended.
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

    /// Runs an operation on all files of a volume, in a turn of its namespace: long ones use few places. Fails if it panics.
    async fn walk<T: Send + 'static>(&self, namespace: &str, act: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        self.walks.run(namespace, act).await.ok_or_else(|| VolumeError::Panicked("a task panicked".to_owned()))
    }

    /// The same for removing volumes, which no starting Pod waits for. Fails if it panics.
    async fn delete<T: Send + 'static>(
        &self,
        namespace: &str,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LocalError> {
        self.deletions.run(namespace, act).await.ok_or_else(|| LocalError::Panicked("a task panicked".to_owned()))
    }

    /// The built-in provisioner's volumes kept on this node.
    pub fn local(&self) -> &local::Folders {
        &self.local
    }

    pub fn folder(&self, pod: &Pod) -> PathBuf {
        self.pods.join(pod.uid())
    }

    /// The second mount point of the Pod's tmpfs. After a downgrade to release 0.1, the agent does not know Pods' own tmpfs; but it
    /// unmounts everything below a Pod's folder, and so can remove the Pod.
    fn twin(&self, pod: &Pod) -> PathBuf {
        self.folder(pod).join("memory")
    }

    /// The folder of all Pods' folders.
    pub fn root(&self) -> &Path {
        &self.pods
    }

    /// The path of a Pod's volume on the host.
    pub fn path(&self, pod: &Pod, volume: &Volume) -> PathBuf {
        let own = self.folder(pod).join("volumes").join(&volume.name);
        match kinds::find(volume).map(|row| row.location) {
            Some(Location::Host(path)) => path(volume),
            Some(Location::PodMemory) => self.memory.path().join(pod.uid()).join(&volume.name),
            Some(Location::Link) => fs::read_link(&own).unwrap_or(own),
            Some(Location::PodFolder) | None => own,
        }
    }

    /// The uids with folders here.
    pub fn owners(&self) -> BTreeSet<String> {
        let names = |dir: &Path| -> Vec<String> {
            fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok()).collect()
        };
        let all = names(&self.pods).into_iter().chain(names(self.memory.path()));
        all.filter(|name| name != ended::FOLDER && !is_aside(name)).collect()
    }

    /// The Pods whose tokens must be renewed.
    pub fn stale_tokens(&self) -> BTreeSet<String> {
        self.tokens.stale()
    }
}

fn fs_group(pod: &Pod) -> Option<u32> {
    pod.spec().security_context.as_ref().and_then(|c| c.fs_group).and_then(|g| u32::try_from(g).ok())
}

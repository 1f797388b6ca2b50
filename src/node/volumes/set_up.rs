//! Sets up volumes by their kinds, and keeps those made of API objects up to date.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::api::core::v1::{Pod, Volume};
use podwright_runtime::{JournalWriter, sys::Kernel};

use super::{
    Volumes,
    atomic::{self, Payload},
    error::{MountError, Result, VolumeError, file},
    fs_group,
    held::HeldVolumes,
    kinds::{self, Files, Make, Making, Order, SetUp},
    memory::Memory,
    shares::Shares,
};
use crate::{
    disk, mounts,
    objects::{Held, What},
    spec::PodExt,
    translate::env::{Facts, Sources},
};

impl Volumes {
    /// Sets up a volume of the Pod, recorded in its journal. Existing content stays, except files, which are updated. Other volumes
    /// of the Pod may be set up at the same time.
    ///
    /// # Errors
    ///
    /// It cannot be created, or is not available yet.
    pub async fn set_up(
        self: &Arc<Self>,
        pod: &Arc<Pod>,
        volume: &Volume,
        facts: &Facts,
        journal: &JournalWriter,
    ) -> Result<(), MountError> {
        match kinds::find(volume).map(|row| row.set_up) {
            Some(SetUp::Claim) => self.prepare_claim(pod, volume).await,
            Some(SetUp::Files(files)) => self.write(pod, volume, files, facts, journal).await,
            Some(SetUp::Once(make)) => self.make(pod, volume, make, journal).await,
            None => Err(MountError::set_up(&volume.name, VolumeError::NotSupported)),
        }
    }

    /// Updates a volume that shows API objects; others are unchanged. If an object is gone, its files stay.
    ///
    /// # Errors
    ///
    /// Its content cannot be read or written: the old one stays.
    pub async fn refresh(
        &self,
        pod: &Arc<Pod>,
        volume: &Volume,
        facts: &Facts,
        journal: &JournalWriter,
    ) -> Result<(), MountError> {
        match kinds::find(volume).map(|row| row.set_up) {
            Some(SetUp::Files(files)) => self.write(pod, volume, files, facts, journal).await,
            Some(SetUp::Claim | SetUp::Once(_)) | None => Ok(()),
        }
    }

    async fn make(
        &self,
        pod: &Arc<Pod>,
        volume: &Volume,
        make: Make,
        journal: &JournalWriter,
    ) -> Result<(), MountError> {
        let (path, kernel, held) = (self.path(pod, volume), kernel_for(volume, journal), self.held.clone());
        let order = Order { pod: pod.clone(), volume: volume.clone(), path, kernel, held };
        let made = disk::work(move || make(&order)).await.map_err(VolumeError::Panicked).flatten();
        made.map_err(|why| MountError::set_up(&volume.name, why))
    }

    /// Updates the files of a volume.
    async fn write(
        &self,
        pod: &Pod,
        volume: &Volume,
        files: Files,
        facts: &Facts,
        journal: &JournalWriter,
    ) -> Result<(), MountError> {
        let kernel = kernel_for(volume, journal);
        self.show(pod, volume, files, facts, kernel).await.map_err(|why| MountError::set_up(&volume.name, why))
    }

    /// The objects that a volume refers to, those that exist.
    async fn sources(&self, held: &mut Held<'_>, pod: &Pod, volume: &Volume) -> Result<Sources> {
        let (mut maps, mut secrets) = (BTreeSet::new(), BTreeSet::new());
        for (what, name) in kinds::references_of(pod, volume) {
            match what {
                What::ConfigMap => drop(maps.insert(name)),
                What::Secret => drop(secrets.insert(name)),
                What::Claim => {}
            }
        }
        Ok(self.objects.sources(held, pod, &maps, &secrets).await?)
    }

    /// 1. the sources, 2. their files, 3. a turn, 4. space in the Pod's tmpfs, if there, 5. publish the files.
    async fn show(&self, pod: &Pod, volume: &Volume, files: Files, facts: &Facts, kernel: Kernel) -> Result<()> {
        // Until the files are in sight, if these are much: of large objects a volume may show little.
        let mut held = self.objects.hold();
        let sources = self.sources(&mut held, pod, volume).await?;
        let mut room = self.rooms.of(pod.uid(), &volume.name);
        let making = Making { pod, volume, facts, sources: &sources, tokens: &self.tokens, room: &mut room };
        let payload = files(making).await?;
        // Others of the namespace may write for long.
        drop(sources);
        held.lessen(payload.values().map(|file| file.data.len()).sum());
        let path = self.path(pod, volume);
        let own = path.starts_with(self.memory.path()).then(|| self.own_memory(pod, kernel));
        let _turn = self.turns.take(pod.namespace()).await;
        let (world, fs_group) = (self.world.clone(), fs_group(pod));
        let (shown, uid) = (self.shown.clone(), pod.uid().to_owned());
        let write = move || {
            if let Some(own) = own {
                own.hold(&path, &payload)?;
            }
            // Each pass that finds a difference writes a folder of another name.
            let changed = shown.keep(&uid, &path, || atomic::write(&path, &payload, fs_group, world.now()));
            changed.map(drop).map_err(file(&path))
        };
        disk::work(write).await.map_err(VolumeError::Panicked)??;
        room.keep();
        Ok(())
    }

    fn own_memory(&self, pod: &Pod, kernel: Kernel) -> OwnMemory {
        OwnMemory {
            folder: self.memory.path().join(pod.uid()),
            twin: self.twin(pod),
            namespace: pod.namespace().to_owned(),
            shares: self.shares.clone(),
            growing: self.growing.clone(),
            held: self.held.clone(),
            memory: self.memory.clone(),
            kernel,
        }
    }
}

/// A kernel handle that records the manifest field.
fn kernel_for(volume: &Volume, journal: &JournalWriter) -> Kernel {
    let kind = kinds::find(volume).map_or("", |row| row.field);
    Kernel::new(&journal.at(&format!("spec.volumes{{{}}}.{kind}", volume.name)))
}

/// The tmpfs of one Pod, which grows with its volumes.
struct OwnMemory {
    folder: PathBuf,
    twin: PathBuf,
    namespace: String,
    shares: Arc<Shares>,
    growing: Arc<Mutex<()>>,
    held: HeldVolumes,
    memory: Arc<Memory>,
    kernel: Kernel,
}

impl OwnMemory {
    /// Ensures that it exists with space for a volume's files. Fails otherwise.
    fn hold(&self, volume: &Path, payload: &Payload) -> Result<()> {
        // In-memory data must never reach a disk.
        self.memory.mend()?;
        // Another volume of the Pod may grow it too: the later one takes both into account. A panic leaves nothing half done.
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let (bytes, room) = (atomic::takes(payload), mounts::room_of(&self.folder));
        let room = self.shares.hold(&self.folder, volume, &self.namespace, bytes, room)?;
        // Restores the mount used by containers, if it was removed.
        let made = self.held.mend_at(&self.folder);
        let made =
            made.and_then(|_| mounts::in_memory_of(&self.kernel, &self.folder, &self.twin, &self.namespace, room));
        let is_own = || mounts::namespace_of(&self.folder).is_some_and(|of| of == self.namespace);
        made.and_then(|()| self.held.mount(&self.kernel, &self.folder, None, is_own)).map_err(file(&self.folder))
    }
}

//! Sets volumes up, each as its kind is, and keeps those that are made of API objects up to date.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use k8s_openapi::api::core::v1::{Pod, Volume};

use super::{
    Volumes,
    atomic::{self, Payload},
    error::{MountError, Result, VolumeError, file},
    fs_group,
    healing::mend,
    kinds::{self, Files, Make, Making, Order, SetUp},
    payload::Room,
};
use crate::{
    disk, mounts,
    objects::What,
    spec::PodExt,
    translate::env::{Facts, Sources},
};

impl Volumes {
    /// Makes all volumes of the Pod. What exists already stays as it is.
    ///
    /// # Errors
    ///
    /// One of them cannot be made, or is not to be had yet.
    pub async fn prepare(self: &Arc<Self>, pod: &Arc<Pod>, facts: &Facts) -> Result<(), MountError> {
        let mut room = Room::default();
        for volume in pod.spec().volumes.iter().flatten() {
            match kinds::find(volume).map(|row| row.set_up) {
                Some(SetUp::Claim) => self.prepare_claim(pod, volume).await,
                Some(SetUp::Files(files)) => self.write(pod, volume, files, facts, &mut room).await,
                Some(SetUp::Once(make)) => self.make(pod, volume, make).await,
                None => Err(MountError::set_up(&volume.name, VolumeError::NotSupported)),
            }?;
        }
        Ok(())
    }

    /// Brings the volumes that show API objects up to date. An object that has gone leaves its files as they are.
    ///
    /// # Errors
    ///
    /// One of them cannot be read or written; it shows what it showed.
    pub async fn refresh(&self, pod: &Arc<Pod>, facts: &Facts) -> Result<(), MountError> {
        let mut room = Room::default();
        for volume in pod.spec().volumes.iter().flatten() {
            if let Some(SetUp::Files(files)) = kinds::find(volume).map(|row| row.set_up) {
                self.write(pod, volume, files, facts, &mut room).await?;
            }
        }
        Ok(())
    }

    async fn make(&self, pod: &Arc<Pod>, volume: &Volume, make: Make) -> Result<(), MountError> {
        let path = self.path(pod, volume);
        let order = Order { pod: pod.clone(), volume: volume.clone(), path, held: self.held.clone() };
        let made = disk::work(move || make(&order)).await.map_err(VolumeError::Panicked).flatten();
        made.map_err(|why| MountError::set_up(&volume.name, why))
    }

    /// Brings the files of a volume to what they are to be.
    async fn write(
        &self,
        pod: &Pod,
        volume: &Volume,
        files: Files,
        facts: &Facts,
        room: &mut Room,
    ) -> Result<(), MountError> {
        let failed = |why| MountError::set_up(&volume.name, why);
        let sources = self.sources(pod, volume).await.map_err(failed)?;
        let making = Making { pod, volume, facts, sources: &sources, tokens: &self.tokens, room };
        let payload = files(making).await.map_err(failed)?;
        let shown = self.show(pod, self.path(pod, volume), payload).await;
        shown.map(drop).map_err(failed)
    }

    /// The objects that a volume refers to, those that exist.
    async fn sources(&self, pod: &Pod, volume: &Volume) -> Result<Sources> {
        let (mut maps, mut secrets) = (BTreeSet::new(), BTreeSet::new());
        for (what, name) in kinds::references_of(pod, volume) {
            match what {
                What::ConfigMap => drop(maps.insert(name)),
                What::Secret => drop(secrets.insert(name)),
                What::Claim => {}
            }
        }
        Ok(self.objects.sources(pod, &maps, &secrets).await?)
    }

    async fn show(&self, pod: &Pod, path: PathBuf, payload: Payload) -> Result<bool> {
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
                made.and_then(|()| held.mount(&folder)).map_err(file(&folder))?;
            }
            // Each pass that finds it otherwise writes a folder of another name.
            let changed = shown.keep(&uid, &path, || atomic::write(&path, &payload, fs_group, world.now()));
            changed.map_err(file(&path))
        };
        disk::work(show).await.map_err(VolumeError::Panicked)?
    }
}

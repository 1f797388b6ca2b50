//! Claims, volumes and classes for plugins, and the promises to Pods being bound.
//!
//! A promise changes an object here before the server does: a volume refers to its claim, a claim names the node where a volume is
//! to be provisioned. The object's next version settles it: if that differs from the promised one, the write of the promise is
//! refused.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::{
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use podwright_api::persistent_volume::{
    SELECTED_NODE, claim_class, claim_ref, is_fully_bound, taken, uid, volume_class,
};
use podwright_client::{Key, Typed, reference};

/// One object, and its promised state.
struct Known<K> {
    seen: Arc<K>,
    promised: Option<Arc<K>>,
}

impl<K> Known<K> {
    fn get(&self) -> &Arc<K> {
        self.promised.as_ref().unwrap_or(&self.seen)
    }
}

/// The promises to one Pod.
#[derive(Default)]
struct Promise {
    node: String,
    volumes: Vec<Part<String>>,
    claims: Vec<Part<()>>,
}

/// A claim, in `on` its volume, and the version of the written object; `None`: nothing had to be written.
struct Part<T> {
    claim: Key,
    on: T,
    version: Option<String>,
}

/// See the module.
#[derive(Default)]
pub struct Storage {
    claims: HashMap<Key, Known<PersistentVolumeClaim>>,
    volumes: HashMap<String, Known<PersistentVolume>>,
    /// The names of the volumes of each class.
    by_class: HashMap<String, BTreeSet<String>>,
    classes: HashMap<String, Arc<StorageClass>>,
    /// By the uids of Pods.
    promises: HashMap<String, Promise>,
}

fn version(meta: &ObjectMeta) -> Option<String> {
    meta.resource_version.clone()
}

impl Storage {
    pub fn set_claim(&mut self, key: &Key, claim: Option<Arc<PersistentVolumeClaim>>) {
        match claim {
            Some(seen) => drop(self.claims.insert(key.clone(), Known { seen, promised: None })),
            None => drop(self.claims.remove(key)),
        }
    }

    pub fn set_volume(&mut self, name: &str, volume: Option<Arc<PersistentVolume>>) {
        let old = match volume {
            Some(seen) => {
                self.by_class.entry(volume_class(&seen).to_owned()).or_default().insert(name.to_owned());
                let new = volume_class(&seen).to_owned();
                let old = self.volumes.insert(name.to_owned(), Known { seen, promised: None });
                old.filter(|old| volume_class(&old.seen) != new)
            }
            None => self.volumes.remove(name),
        };
        let Some(class) = old.map(|old| volume_class(&old.seen).to_owned()) else { return };
        if let Some(names) = self.by_class.get_mut(&class) {
            names.remove(name);
            if names.is_empty() {
                self.by_class.remove(&class);
            }
        }
    }

    pub fn set_class(&mut self, name: &str, class: Option<Arc<StorageClass>>) {
        match class {
            Some(class) => drop(self.classes.insert(name.to_owned(), class)),
            None => drop(self.classes.remove(name)),
        }
    }

    pub fn claim(&self, namespace: &str, name: &str) -> Option<&Arc<PersistentVolumeClaim>> {
        self.claims.get(&Key::new(namespace, name)).map(Known::get)
    }

    pub fn volume(&self, name: &str) -> Option<&Arc<PersistentVolume>> {
        self.volumes.get(name).map(Known::get)
    }

    /// A claim's class, if it exists.
    pub fn class_of(&self, claim: &PersistentVolumeClaim) -> Option<&Arc<StorageClass>> {
        self.classes.get(claim_class(claim))
    }

    /// The volumes of a claim's class.
    pub fn volumes_like(&self, claim: &PersistentVolumeClaim) -> impl Iterator<Item = &Arc<PersistentVolume>> {
        let names = self.by_class.get(claim_class(claim)).into_iter().flatten();
        names.filter_map(|name| self.volume(name))
    }

    /// Promises a volume to a Pod's claim; returns the observed volume, and the one to write, unless it is equal. If two Pods share
    /// a claim both write: one must not rely on the other's promise.
    pub fn promise_volume(
        &mut self,
        pod: &str,
        claim: &PersistentVolumeClaim,
        volume: &str,
    ) -> Option<(Arc<PersistentVolume>, Arc<PersistentVolume>)> {
        let known = self.volumes.get_mut(volume)?;
        let old = known.seen.clone();
        let dirty = claim_ref(&old).and_then(uid).is_none();
        let new = dirty.then(|| Arc::new(taken(&old, reference(claim))));
        let part =
            Part { claim: Key::of(claim), on: volume.to_owned(), version: version(&old.metadata).filter(|_| dirty) };
        self.promises.entry(pod.to_owned()).or_default().volumes.push(part);
        known.promised = new.clone();
        new.map(|new| (old, new))
    }

    /// Promises that a volume is provisioned for a Pod's claim on a node; returns the claim to write, unless it is equal.
    pub fn promise_claim(
        &mut self,
        pod: &str,
        claim: &PersistentVolumeClaim,
        node: &str,
    ) -> Option<(Arc<PersistentVolumeClaim>, Arc<PersistentVolumeClaim>)> {
        let known = self.claims.get_mut(&Key::of(claim))?;
        let old = known.seen.clone();
        let mut new = PersistentVolumeClaim::clone(&old);
        let told = new.metadata.annotations.get_or_insert_default().insert(SELECTED_NODE.into(), node.to_owned());
        let dirty = told.as_deref() != Some(node);
        let promise = self.promises.entry(pod.to_owned()).or_default();
        promise.node = node.to_owned();
        let part = Part { claim: Key::of(claim), on: (), version: version(&old.metadata).filter(|_| dirty) };
        promise.claims.push(part);
        if !dirty {
            return None;
        }
        let new = Arc::new(new);
        known.promised = Some(new.clone());
        Some((old, new))
    }

    /// Whether all claims of a Pod that were promised something are bound, as the server has it.
    ///
    /// # Errors
    /// They will not be: what was promised is gone, or somebody has taken it back.
    pub fn is_kept(&self, pod: &str) -> Result<bool, PromiseError> {
        let Some(promise) = self.promises.get(pod) else { return Ok(true) };
        let mut kept = true;
        for Part { claim, on: name, version } in &promise.volumes {
            let volume = self.volumes.get(name).ok_or_else(|| absent::<PersistentVolume>(name))?;
            let claim = self.claims.get(claim).ok_or_else(|| absent::<PersistentVolumeClaim>(&claim.name))?;
            let news = version.is_none() || volume.seen.metadata.resource_version != *version;
            if news && claim_ref(&volume.seen).and_then(uid).is_none() {
                return Err(PromiseError::Reset { volume: name.clone() });
            }
            kept &= news && is_fully_bound(&claim.seen);
        }
        for Part { claim: key, version, .. } in &promise.claims {
            let claim = self.claims.get(key).ok_or_else(|| absent::<PersistentVolumeClaim>(&key.name))?;
            let news = version.is_none() || claim.seen.metadata.resource_version != *version;
            let selected = claim.seen.metadata.annotations.as_ref().and_then(|all| all.get(SELECTED_NODE));
            if news && selected != Some(&promise.node) {
                return Err(PromiseError::Provisioning { claim: key.name.clone() });
            }
            kept &= news && is_fully_bound(&claim.seen);
        }
        Ok(kept)
    }

    /// Reverts the promises to a Pod that are not observed yet.
    pub fn forget(&mut self, pod: &str) {
        let Some(promise) = self.promises.remove(pod) else { return };
        // Others with the same promise see the observed state, and write it again if necessary.
        for Part { on: name, .. } in &promise.volumes {
            self.volumes.get_mut(name).into_iter().for_each(|known| known.promised = None);
        }
        for Part { claim, .. } in &promise.claims {
            self.claims.get_mut(claim).into_iter().for_each(|known| known.promised = None);
        }
    }
}

fn absent<K: Typed>(name: &str) -> PromiseError {
    PromiseError::NotFound { resource: K::resource(), name: name.to_owned() }
}

/// Why a promise to a Pod's claims is not fulfilled, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromiseError {
    #[error("failed to check binding: {resource} {name:?} not found")]
    NotFound { resource: String, name: String },
    /// The volume is free again.
    #[error("ClaimRef got reset for pv {volume:?}")]
    Reset { volume: String },
    /// Provisioning for the chosen node was cancelled.
    #[error("provisioning failed for PVC {claim:?}")]
    Provisioning { claim: String },
}

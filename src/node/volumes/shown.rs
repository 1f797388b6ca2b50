//! The volumes that show objects of the API, as they were when they were written last: whether anybody else has been at them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use super::atomic::fingerprint;

/// Fingerprints of folders, by their Pods' uids. Cheap to clone.
#[derive(Clone, Default)]
pub struct Shown(Arc<Mutex<BTreeMap<String, BTreeMap<PathBuf, u64>>>>);

impl Shown {
    /// This folder has just been written.
    pub fn note(&self, uid: &str, folder: &Path) {
        let print = fingerprint(folder);
        self.lock().entry(uid.to_owned()).or_default().insert(folder.to_owned(), print);
    }

    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// The Pods one of whose folders is not as it was written. Each is told once: until it is written again.
    pub fn damaged(&self) -> BTreeSet<String> {
        let all = self.lock().clone();
        let others = all.iter().filter_map(|(uid, folders)| {
            let other = folders.iter().find(|(folder, print)| fingerprint(folder) != **print)?;
            Some((uid.clone(), other.0.clone(), *other.1))
        });
        let others: Vec<(String, PathBuf, u64)> = others.collect();
        let mut known = self.lock();
        let mut damaged = BTreeSet::new();
        for (uid, folder, print) in others {
            // One that was written meanwhile is as it should be.
            let folders = known.get_mut(&uid);
            if let Some(folders) = folders.filter(|folders| folders.get(&folder) == Some(&print)) {
                folders.remove(&folder);
                damaged.insert(uid);
            }
        }
        damaged
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, BTreeMap<PathBuf, u64>>> {
        // Each change is whole at once.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

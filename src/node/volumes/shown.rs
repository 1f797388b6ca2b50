//! Tracks the folders of volumes made of API objects since they were last written, to detect external changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Bound::{Excluded, Unbounded},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use super::atomic::{Fingerprint, fingerprint};

/// Maximum files, folders and links checked per Pod each time. A Pod with more is checked less often.
const LOOKS: usize = 256;

/// Maximum passes when a folder is written. If it differs each time, it is written again at the next check.
const PASSES: usize = 4;

/// Fingerprints of folders, by their Pods' uids. Cheap to clone.
#[derive(Clone, Default)]
pub struct Shown(Arc<Mutex<BTreeMap<String, Folders>>>);

/// Those of one Pod.
#[derive(Default)]
struct Folders {
    all: BTreeMap<PathBuf, Fingerprint>,
    /// The last one checked.
    last: PathBuf,
    /// Checks in excess of the limit, to be made up for.
    owed: usize,
}

impl Folders {
    /// Those due for a check.
    fn due(&mut self) -> Vec<(PathBuf, Fingerprint)> {
        self.owed = self.owed.saturating_sub(LOOKS);
        let after = self.all.range::<Path, _>((Excluded(&*self.last), Unbounded));
        let turns = after.chain(&self.all).take(self.all.len());
        let mut due = Vec::new();
        for (folder, print) in turns {
            if self.owed >= LOOKS {
                break;
            }
            self.owed += print.looks;
            due.push((folder.clone(), *print));
        }
        if let Some((last, _)) = due.last() {
            self.last = last.clone();
        }
        due
    }
}

impl Shown {
    /// Calls `write`, which updates a folder and returns whether anything differed, and records the folder's fingerprint. Returns
    /// whether anything differed.
    ///
    /// Others may change it at the same time. So the fingerprint is taken before a pass that finds no difference: earlier changes
    /// are found by that pass, and later ones change the fingerprint.
    pub fn keep(&self, uid: &str, folder: &Path, mut write: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
        let (mut changed, mut noted) = (false, Fingerprint::NONE);
        for _ in 0..PASSES {
            let print = fingerprint(folder);
            if !write()? {
                noted = print;
                break;
            }
            changed = true;
        }
        self.lock().entry(uid.to_owned()).or_default().all.insert(folder.to_owned(), noted);
        Ok(changed)
    }

    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// The Pods with a folder that has changed since it was written. Each is reported once, until it is written again.
    pub fn damaged(&self) -> BTreeSet<String> {
        let due: Vec<_> = self.lock().iter_mut().map(|(uid, folders)| (uid.clone(), folders.due())).collect();
        let others = due.into_iter().filter_map(|(uid, folders)| {
            let other = folders.into_iter().find(|(folder, print)| fingerprint(folder) != *print)?;
            Some((uid, other.0, other.1))
        });
        let others: Vec<(String, PathBuf, Fingerprint)> = others.collect();
        let mut known = self.lock();
        let mut damaged = BTreeSet::new();
        for (uid, folder, print) in others {
            // One that was written meanwhile is correct.
            let folders = known.get_mut(&uid).map(|folders| &mut folders.all);
            if let Some(folders) = folders.filter(|folders| folders.get(&folder) == Some(&print)) {
                folders.remove(&folder);
                damaged.insert(uid);
            }
        }
        damaged
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Folders>> {
        // Each change is atomic.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A recorded folder with this many files.
    fn shown(shown: &Shown, root: &Path, name: &str, files: usize) -> PathBuf {
        let folder = root.join(name);
        fs::create_dir(&folder).unwrap();
        (0..files).for_each(|n| fs::write(folder.join(n.to_string()), "").unwrap());
        shown.keep("pod", &folder, || Ok(false)).unwrap();
        folder
    }

    #[test]
    fn what_is_small_is_looked_at_each_time_and_what_is_large_in_turns() {
        let (root, all) = (tempfile::tempdir().unwrap(), Shown::default());
        let folders = ["a", "b", "c"].map(|name| shown(&all, root.path(), name, 50));
        for folder in &folders {
            fs::write(folder.join("other"), "").unwrap();
            assert_eq!(all.damaged().len(), 1, "{}", folder.display());
            assert!(all.damaged().is_empty(), "told once");
            all.keep("pod", folder, || Ok(false)).unwrap();
        }
        let large = shown(&all, root.path(), "d", 3000);
        let looks = |all: &Shown| {
            let mut all = all.lock();
            all.get_mut("pod").unwrap().due().iter().map(|(_, print)| print.looks).sum::<usize>()
        };
        let sum: usize = (0..100).map(|_| looks(&all)).sum();
        assert!((50 * LOOKS..=100 * LOOKS + 3001).contains(&sum), "{sum}");
        fs::write(large.join("other"), "").unwrap();
        let found = (0..40).position(|_| !all.damaged().is_empty());
        assert!(found.is_some(), "each has its turn");
    }

    /// Removes a file right after each write, this many times.
    fn write_and_damage(all: &Shown, folder: &Path, mut damages: usize) -> bool {
        let file = folder.join("key");
        let write = || {
            let otherwise = !file.exists();
            if otherwise {
                fs::write(&file, "value")?;
            }
            if damages > 0 {
                damages -= 1;
                fs::remove_file(&file)?;
            }
            Ok(otherwise)
        };
        all.keep("pod", folder, write).unwrap()
    }

    #[test]
    fn what_somebody_does_while_it_is_written_is_not_taken_for_what_was_written() {
        let (root, all) = (tempfile::tempdir().unwrap(), Shown::default());
        assert!(write_and_damage(&all, root.path(), 1));
        assert!(root.path().join("key").exists(), "it is written again at once");
        assert!(all.damaged().is_empty());
        fs::remove_file(root.path().join("key")).unwrap();
        assert!(write_and_damage(&all, root.path(), PASSES));
        assert!(!root.path().join("key").exists());
        assert_eq!(all.damaged().len(), 1, "and found at the next look, where that was too often");
    }
}

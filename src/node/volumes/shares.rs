//! Limits how much of the node's memory each namespace's Secrets and tokens may use. The agent writes them, so they count for no
//! Pod's memory limit.
//!
//! Each Pod has its own tmpfs, sized by its share here: a Pod that keeps old files open, so that new ones do not fit, affects no
//! other.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{
    atomic::PAGE,
    error::{Result, VolumeError},
};

/// A namespace may use one part in this many of what the others leave, so there is always something for a later one.
const PART: usize = 4;
/// New files are written before the old ones are removed.
const TWICE: usize = 2;
/// The minimum share of an ended Pod's tmpfs: many small ones are many mounts, and are checked repeatedly.
pub const ENDED: usize = 256 << 10;
/// This many of them use up the whole limit: with much memory, mounts are the scarcer resource.
const ALL_ENDED: usize = 4096;

pub struct Shares {
    all: usize,
    /// By Pod folder.
    held: Mutex<HashMap<PathBuf, Held>>,
}

/// A Pod's share.
struct Held {
    namespace: String,
    volumes: HashMap<PathBuf, usize>,
    /// The current size of its tmpfs: files shown earlier may still be open.
    room: usize,
}

impl Held {
    fn bytes(&self) -> usize {
        self.room.max(self.volumes.values().sum())
    }
}

impl Shares {
    /// The shares of this tmpfs.
    pub fn of(tmpfs: &Path) -> io::Result<Shares> {
        let size = rustix::fs::statvfs(tmpfs)?;
        // 0: no limit. Every inode counts as at least one page.
        let limits = [size.f_blocks * size.f_frsize, size.f_files * PAGE as u64];
        let all = limits.into_iter().filter(|limit| *limit > 0).min().unwrap_or(u64::MAX);
        Ok(Shares::new(all as usize))
    }

    fn new(all: usize) -> Shares {
        Shares { all, held: Mutex::default() }
    }

    /// Records that a volume of the Pod with this folder, whose tmpfs has size `room`, shows this many bytes from now on. Returns
    /// the size required for all its volumes: it never shrinks.
    ///
    /// # Errors
    ///
    /// [`VolumeError::OverShare`]: its namespace's limit would be exceeded; nothing changes.
    pub fn hold(&self, pod: &Path, volume: &Path, namespace: &str, bytes: usize, room: usize) -> Result<usize> {
        let mut held = self.held();
        let new = || Held { namespace: namespace.to_owned(), volumes: HashMap::new(), room };
        let own = held.entry(pod.to_owned()).or_insert_with(new);
        own.room = own.room.max(room);
        let (before, had) = (own.bytes(), own.volumes.insert(volume.to_owned(), bytes.saturating_mul(TWICE)));
        let now = own.bytes();
        if now > before {
            let (mut all, mut others) = (0usize, 0usize);
            for pod in held.values() {
                let sum = if pod.namespace == namespace { &mut all } else { &mut others };
                *sum = sum.saturating_add(pod.bytes());
            }
            let most = self.all.saturating_sub(others) / PART;
            if all > most {
                if let Some(own) = held.get_mut(pod) {
                    match had {
                        Some(had) => drop(own.volumes.insert(volume.to_owned(), had)),
                        None => drop(own.volumes.remove(volume)),
                    }
                }
                return Err(VolumeError::OverShare { namespace: namespace.to_owned(), bytes: all, most });
            }
        }
        Ok(now)
    }

    /// Records an existing tmpfs of this namespace with unknown contents.
    pub fn found(&self, folder: &Path, namespace: &str, room: usize) {
        let found = Held { namespace: namespace.to_owned(), volumes: HashMap::new(), room };
        self.held().insert(folder.to_owned(), found);
    }

    /// Records that the volumes of this Pod have ended, and that their tmpfs is at another place until it is empty.
    pub fn ended(&self, pod: &Path, place: &Path, namespace: &str, room: usize) {
        let mut held = self.held();
        let least = ENDED.max(self.all / ALL_ENDED);
        let room = held.remove(pod).map_or(room, |held| held.room.max(room)).max(least);
        held.insert(place.to_owned(), Held { namespace: namespace.to_owned(), volumes: HashMap::new(), room });
    }

    /// The recorded folders below this one.
    pub fn below(&self, folder: &Path) -> Vec<PathBuf> {
        self.held().keys().filter(|path| path.starts_with(folder)).cloned().collect()
    }

    /// The volumes of this Pod are gone.
    pub fn forget(&self, pod: &Path) {
        self.held().remove(pod);
    }

    fn held(&self) -> MutexGuard<'_, HashMap<PathBuf, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In pages; a Pod's tmpfs has its required size.
    fn hold(shares: &Shares, pod: &str, volume: &str, namespace: &str, pages: usize) -> Result<usize, String> {
        let room = shares.held().get(Path::new(pod)).map_or(0, Held::bytes);
        let held = shares.hold(Path::new(pod), Path::new(volume), namespace, pages * PAGE, room);
        held.map(|bytes| bytes / PAGE).map_err(|error| error.to_string())
    }

    #[test]
    fn a_namespace_has_its_share_and_no_more() {
        let shares = Shares::new(80 * PAGE);
        assert_eq!(hold(&shares, "/1", "a", "red", 5), Ok(10));
        assert_eq!(hold(&shares, "/1", "b", "red", 5), Ok(20), "of the Pod");
        let refused = hold(&shares, "/2", "a", "red", 1).unwrap_err();
        assert!(refused.contains("namespace red would have 90112 bytes"), "{refused}");
        assert_eq!(hold(&shares, "/3", "a", "blue", 7), Ok(14));
        // Files shown earlier may still be open.
        assert_eq!(hold(&shares, "/1", "b", "red", 1), Ok(20));
        hold(&shares, "/2", "a", "red", 1).unwrap_err();
        shares.forget(Path::new("/1"));
        assert_eq!(hold(&shares, "/4", "a", "red", 8), Ok(16));
    }

    #[test]
    fn what_is_left_of_a_pod_that_has_ended_counts_until_it_is_forgotten() {
        let shares = Shares::new(8 * ENDED);
        let (pages, place) = (ENDED / PAGE, Path::new("/ended/1"));
        assert_eq!(hold(&shares, "/1", "a", "red", pages / 2), Ok(pages));
        shares.ended(Path::new("/1"), place, "red", ENDED);
        assert_eq!(shares.below(Path::new("/ended")), [place]);
        hold(&shares, "/1", "a", "red", pages).unwrap_err();
        // A small one counts as the minimum.
        assert_eq!(hold(&shares, "/1", "a", "red", 1), Ok(2));
        shares.ended(Path::new("/1"), Path::new("/ended/2"), "red", PAGE);
        hold(&shares, "/1", "a", "red", 1).unwrap_err();
        shares.forget(place);
        assert_eq!(hold(&shares, "/1", "a", "red", pages / 2), Ok(pages));
    }

    #[test]
    fn what_is_left_of_ended_pods_is_bounded_by_number_however_much_memory_there_is() {
        let shares = Shares::new(64 << 30);
        let mut left = 0;
        while hold(&shares, &format!("/{left}"), "a", "red", 1).is_ok() {
            shares.ended(Path::new(&format!("/{left}")), Path::new(&format!("/ended/{left}")), "red", PAGE);
            left += 1;
        }
        assert_eq!(left, ALL_ENDED / PART);
        hold(&shares, "/other", "a", "blue", 1).unwrap();
    }

    #[test]
    fn what_is_there_already_is_refused_to_nobody_and_counts() {
        let shares = Shares::new(80 * PAGE);
        let (pod, volume) = (Path::new("/1"), Path::new("a"));
        assert_eq!(shares.hold(pod, volume, "red", PAGE, 30 * PAGE).unwrap(), 30 * PAGE);
        hold(&shares, "/2", "a", "red", 1).unwrap_err();
        assert_eq!(hold(&shares, "/3", "a", "blue", 6), Ok(12));
        hold(&shares, "/4", "a", "blue", 1).unwrap_err();
    }

    #[test]
    fn there_is_always_something_for_one_that_comes_later() {
        let shares = Shares::new(1 << 30);
        let mut left = 1 << 30;
        for n in 0..20 {
            let (namespace, most) = (n.to_string(), left / PART);
            let held = shares.hold(Path::new(&namespace), Path::new("a"), &namespace, most / TWICE, 0).unwrap();
            hold(&shares, &namespace, "b", &namespace, 1).unwrap_err();
            left -= held;
        }
        assert!(left > 1 << 20, "{left}");
    }
}

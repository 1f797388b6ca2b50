//! Memory limits for informers of remote resources: their servers determine how much there is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// A memory budget shared by several informers. Each owner may use at most half of what the others leave, and at least an eighth of
/// the total.
pub struct Rooms {
    /// In bytes.
    most: usize,
    taken: Mutex<HashMap<String, usize>>,
}

impl Rooms {
    /// A budget of `most` bytes.
    pub fn new(most: usize) -> Arc<Rooms> {
        Arc::new(Rooms { most, taken: Mutex::default() })
    }

    /// One informer's share, accounted to an owner.
    pub fn of(self: &Arc<Rooms>, owner: &str) -> Room {
        Room { rooms: self.clone(), owner: owner.to_owned(), taken: 0 }
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One informer's share, released when dropped.
pub struct Room {
    rooms: Arc<Rooms>,
    owner: String,
    taken: usize,
}

impl Room {
    /// Changes its size, if there is room. Shrinking always succeeds.
    pub fn resize(&mut self, wanted: usize) -> bool {
        let mut taken = self.rooms.taken();
        let all: usize = taken.values().sum();
        let own = taken.entry(self.owner.clone()).or_default();
        let (others, new) = (all - *own, *own - self.taken + wanted);
        // A minimum that others cannot take away: an owner can change its objects even after others have grown.
        let most = (self.rooms.most.saturating_sub(others) / 2).max(self.rooms.most / 8);
        if wanted > self.taken && new > most {
            taken.retain(|_, bytes| *bytes > 0);
            return false;
        }
        *own = new;
        self.taken = wanted;
        taken.retain(|_, bytes| *bytes > 0);
        true
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.resize(0);
    }
}

/// The approximate size of an object whose metadata is kept.
pub(super) fn size(meta: &ObjectMeta) -> usize {
    /// Empty fields, and entries in maps and indexes.
    const ALWAYS: usize = 1024;
    // JSON has about as many bytes as the strings, which use more memory than that.
    ALWAYS + 2 * serde_json::to_vec(meta).map_or(0, |json| json.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_has_half_of_what_the_others_leave() {
        let rooms = Rooms::new(100);
        let (mut one, mut more, mut other) = (rooms.of("a"), rooms.of("a"), rooms.of("b"));
        assert!(one.resize(30) && more.resize(20), "half of all");
        assert!(!more.resize(21));
        assert!(other.resize(25) && !other.resize(26), "half of the other half");
        // Now a has more than its half of the rest: it may shrink, but not grow.
        assert!(one.resize(29) && !one.resize(30));
        drop(more);
        assert!(one.resize(37) && !one.resize(38));
        let mut late = rooms.of("c");
        assert!(late.resize(19) && !late.resize(20));
        let mut last = rooms.of("d");
        assert!(last.resize(12) && !last.resize(13), "an eighth, whatever the others have");
        drop((one, other, late, last));
        assert!(rooms.taken().is_empty());
    }
}

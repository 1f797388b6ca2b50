//! How much informers keep of what others serve: whoever serves it decides how much there is of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Room that several informers share. Each owner has at most half of what the others leave, and at least an eighth of all.
pub struct Rooms {
    /// In bytes.
    most: usize,
    taken: Mutex<HashMap<String, usize>>,
}

impl Rooms {
    /// Room for `most` bytes.
    pub fn new(most: usize) -> Arc<Rooms> {
        Arc::new(Rooms { most, taken: Mutex::default() })
    }

    /// What one informer takes of it, on an owner's account.
    pub fn of(self: &Arc<Rooms>, owner: &str) -> Room {
        Room { rooms: self.clone(), owner: owner.to_owned(), taken: 0 }
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One informer's part, given back when it is dropped.
pub struct Room {
    rooms: Arc<Rooms>,
    owner: String,
    taken: usize,
}

impl Room {
    /// Takes so many bytes instead of what it has, if there is room for them. Less is always to be had.
    pub fn resize(&mut self, wanted: usize) -> bool {
        let mut taken = self.rooms.taken();
        let all: usize = taken.values().sum();
        let own = taken.entry(self.owner.clone()).or_default();
        let (others, new) = (all - *own, *own - self.taken + wanted);
        // A floor that others cannot take away: what an owner has may change though they have grown.
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

/// About how many bytes an object takes of which the metadata is kept.
pub(super) fn size(meta: &ObjectMeta) -> usize {
    /// Fields that are empty, and the place in maps and indexes.
    const ALWAYS: usize = 1024;
    // In JSON, which has about as many bytes as there are in strings; these are more than their bytes.
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
        // Now a has more than its half of what is left: it may have less, and no more.
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

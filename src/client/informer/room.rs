//! Memory limits for informers of remote resources: their servers determine how much there is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

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
        let Some(new) = self.fitting(&taken, wanted) else { return false };
        taken.insert(self.owner.clone(), new);
        self.taken = wanted;
        taken.retain(|_, bytes| *bytes > 0);
        true
    }

    /// Whether there is room for so many bytes instead of what it has.
    pub fn fits(&self, wanted: usize) -> bool {
        self.fitting(&self.rooms.taken(), wanted).is_some()
    }

    /// How much its owner has with so many bytes instead of what it has, if there is room for them.
    fn fitting(&self, taken: &HashMap<String, usize>, wanted: usize) -> Option<usize> {
        let all: usize = taken.values().sum();
        let own = taken.get(&self.owner).copied().unwrap_or(0);
        let (others, new) = (all - own, own - self.taken + wanted);
        // A floor that others cannot take away: what an owner has may change though they have grown.
        let most = (self.rooms.most.saturating_sub(others) / 2).max(self.rooms.most / 8);
        (wanted <= self.taken || new <= most).then_some(new)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.resize(0);
    }
}

/// About how many bytes an object takes of which the metadata is kept: by what it becomes, for `[{},{}]` has few.
pub(super) fn size(meta: &ObjectMeta) -> usize {
    /// Empty fields, and entries in maps and indexes.
    const ALWAYS: usize = 1024;
    /// What a text takes beside its bytes, and an owner beside its texts, in the object and in the index of owners.
    const TEXT: usize = 48;
    const OWNER: usize = 384;
    let text = |text: &str| TEXT + 2 * text.len();
    let optional = |of: &Option<String>| of.as_deref().map_or(0, text);
    let names = [&meta.name, &meta.namespace, &meta.uid, &meta.resource_version];
    let finalizers = meta.finalizers.iter().flatten().map(|finalizer| text(finalizer)).sum::<usize>();
    let owner = |owner: &OwnerReference| {
        let texts = [&owner.api_version, &owner.kind, &owner.name, &owner.uid];
        OWNER + texts.map(|it| text(it)).iter().sum::<usize>()
    };
    let owners = meta.owner_references.iter().flatten().map(owner).sum::<usize>();
    ALWAYS + names.map(optional).iter().sum::<usize>() + finalizers + owners
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

    #[test]
    fn an_object_counts_by_what_it_becomes() {
        let with = |json: serde_json::Value| size(&serde_json::from_value::<ObjectMeta>(json).unwrap());
        let empty = with(serde_json::json!({}));
        let owners = serde_json::json!({ "ownerReferences": vec![serde_json::json!({}); 1000] });
        assert!(with(owners) - empty >= 1000 * size_of::<OwnerReference>());
        let finalizers = serde_json::json!({ "finalizers": vec![""; 1000] });
        assert!(with(finalizers) - empty >= 1000 * size_of::<String>());
    }
}

//! Keys of a kind that no available encryption key can decrypt: reads that would return one fail with the reason.

use std::collections::BTreeMap;
use std::sync::Arc;

use podwright_api::Status;
use podwright_store::Revision;

/// The undecryptable keys of a kind: when they were written, and the reason.
#[derive(Default)]
pub(crate) struct Unopened(BTreeMap<Arc<str>, (Revision, String)>);

impl Unopened {
    pub fn insert(&mut self, key: Arc<str>, revision: Revision, why: String) {
        tracing::error!("{why}; reads that include it fail until it is deleted or overwritten");
        self.0.insert(key, (revision, why));
    }

    /// When an undecryptable key was written, and the reason.
    pub fn get(&self, key: &str) -> Option<&(Revision, String)> {
        self.0.get(key)
    }

    pub fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }

    /// The error for a read of everything with this prefix, or of this one key.
    pub fn none_below(&self, prefix: &str) -> Result<(), Status> {
        let is_meant = |key: &str| key == prefix || prefix.ends_with('/') && key.starts_with(prefix);
        match self.0.iter().find(|(key, _)| is_meant(key)) {
            Some((_, (_, why))) => Err(Status::internal(why)),
            None => Ok(()),
        }
    }
}

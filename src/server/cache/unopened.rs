//! The keys of a kind that do not open, with no key that the server has: reads that would show one fail and say why.

use std::collections::BTreeMap;
use std::sync::Arc;

use podwright_api::Status;
use podwright_store::Revision;

/// The keys of a kind that do not open: when they were written, and why.
#[derive(Default)]
pub(crate) struct Unopened(BTreeMap<Arc<str>, (Revision, String)>);

impl Unopened {
    pub fn insert(&mut self, key: Arc<str>, revision: Revision, why: String) {
        tracing::error!("{why}; reads that include it fail until it is deleted or overwritten");
        self.0.insert(key, (revision, why));
    }

    /// When a key was written that does not open, and why it does not.
    pub fn get(&self, key: &str) -> Option<&(Revision, String)> {
        self.0.get(key)
    }

    pub fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }

    /// The error of who asks for all that begins so, or for the one key that a prefix is.
    pub fn none_below(&self, prefix: &str) -> Result<(), Status> {
        let is_meant = |key: &str| key == prefix || prefix.ends_with('/') && key.starts_with(prefix);
        match self.0.iter().find(|(key, _)| is_meant(key)) {
            Some((_, (_, why))) => Err(Status::internal(why)),
            None => Ok(()),
        }
    }
}

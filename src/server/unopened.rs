//! What lies in the store and does not open, with no key that the server has: reads that would show it fail and say why, all others
//! go on, and an administrator can delete it.

use std::collections::BTreeMap;
use std::sync::Arc;

use podwright_api::{Response, Status};
use podwright_store::{Compare, Outcome, Revision, Txn, Write};

use super::resolved_request::ResolvedRequest;
use super::{Server, admission, get, store_error};

/// The keys of a kind that do not open: when they were written, and why.
#[derive(Default)]
pub(super) struct Unopened(BTreeMap<Arc<str>, (Revision, String)>);

impl Unopened {
    pub fn insert(&mut self, key: Arc<str>, revision: Revision, why: String) {
        tracing::error!("{why}; what would show it fails until it is deleted or written anew");
        self.0.insert(key, (revision, why));
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

impl Server {
    /// What rules over writes is in force as a whole, or nothing is written.
    pub(super) fn rules_open(&self) -> Result<(), Status> {
        let rules = |kind| admission::is_policy(kind) || ["ResourceQuota", "LimitRange"].contains(&kind.built_in());
        let mut resources = self.cache.built_in().filter(|resource| rules(resource.kind));
        resources.try_for_each(|resource| resource.read().unopened.none_below(&resource.kind.prefix()))
    }

    /// Deletes what does not open, for an administrator: whatever finalizers it has are not known.
    pub(super) async fn delete_unopened(&self, call: &ResolvedRequest) -> Result<Option<Response>, Status> {
        let key = call.key();
        let resource = self.cache.resource(call.kind);
        let Some((revision, why)) = resource.read().unopened.0.get(key.as_str()).cloned() else { return Ok(None) };
        if !call.user.is_in("system:masters") {
            return Err(Status::internal(why));
        }
        if !call.options.dry_run {
            let (compares, writes) = (vec![Compare::Unchanged(key.clone(), revision)], vec![Write::Delete(key)]);
            let committed = self.store.commit(Txn { compares, writes, ..Txn::default() }).await;
            match committed.map_err(store_error)? {
                Outcome::Committed(revision) => self.cache.reach(revision).await?,
                Outcome::Refused(_) => return Err(call.conflict("please try again")),
            }
        }
        Ok(Some(get::status(Status { code: 0, ..call.success("") })))
    }
}

//! What lies in the store and does not open, with no key that the server has: reads that would show it fail and say why, all others
//! go on, and an administrator can delete it.

use podwright_api::{Response, Status};
use podwright_store::{Compare, Outcome, Txn, Write};

use super::resolved_request::ResolvedRequest;
use super::{Server, admission, get, store_error};

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
        let Some((revision, why)) = resource.read().unopened.get(&key).cloned() else { return Ok(None) };
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

//! Stored objects that no available key decrypts: reads that would return one fail with the reason, all others work, and an
//! administrator can delete them.

use podwright_api::{Response, Status};
use podwright_store::{Compare, Outcome, Txn, Write};

use super::resolved_request::ResolvedRequest;
use super::{Server, admission, get, store_error};

impl Server {
    /// Objects that govern writes must all be in force, or nothing is written.
    pub(super) fn rules_open(&self) -> Result<(), Status> {
        let rules = |kind| admission::is_policy(kind) || ["ResourceQuota", "LimitRange"].contains(&kind.built_in());
        let mut resources = self.cache.built_in().filter(|resource| rules(resource.kind));
        resources.try_for_each(|resource| resource.read().unopened.none_below(&resource.kind.prefix()))
    }

    /// Deletes an undecryptable object for an administrator, whatever its unknown finalizers.
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

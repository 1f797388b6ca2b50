//! The get verb.

use podwright_api::{Response, Status, request::Body};

use super::{Server, list, resolved_request::ResolvedRequest};

impl Server {
    /// One object. Waits until the cache shows all acknowledged writes, unless the request accepts older state.
    pub(super) async fn get(&self, call: &ResolvedRequest) -> Result<Response, Status> {
        match list::revision_option(call)? {
            None => self.cache.fresh().await?,
            Some(revision) => self.shows(revision).await?,
        }
        let (resource, key) = (self.cache.resource(call.kind), call.key());
        let Some(item) = resource.get(&key) else {
            resource.read().unopened.none_below(&key)?;
            return Err(call.not_found());
        };
        Ok(object(item.bytes.clone(), false))
    }
}

/// The response with one object.
pub(super) fn object(bytes: bytes::Bytes, created: bool) -> Response {
    Body::Object { bytes, created }.into()
}

/// The response with a `Status`.
pub(super) fn status(status: Status) -> Response {
    Body::Status(Box::new(status)).into()
}

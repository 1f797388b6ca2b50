//! Writes of built-in components: controllers and scheduler have as much work as manifests cause, on behalf of all users. Their
//! writes yield to other requests: few at once, namespaces in turn, and no faster than the watch cache follows.
//!
//! The last protects other clients' reads: these wait until the cache has everything written before, so an unthrottled writer would
//! delay each of them by its lead.

use std::sync::Arc;

use super::limits::Held;
use super::{Server, store_error};
use podwright_api::object::length;
use podwright_api::{Request, Response, Status};

/// How far the cache may lag, in revisions, when such a write starts.
const AHEAD: u64 = 128;
/// How often to wait for that (three seconds each) before refusing.
const TRIES: usize = 20;

impl Server {
    /// Waits until the cache has nearly caught up.
    async fn is_followed(&self) -> Result<(), Status> {
        let written = self.store.revision().await.map_err(store_error)?;
        self.cache.reach(written.saturating_sub(AHEAD)).await
    }

    /// Like `handle`. Each write runs as a task of its own, so others are served in between.
    pub async fn handle_behind(self: Arc<Server>, request: Request) -> Result<Response, Status> {
        let namespace = request.namespace.clone().unwrap_or_default();
        let seat = self.limiters.enter_behind(&namespace).await;
        let mut tries = TRIES;
        while let Err(late) = self.is_followed().await {
            tries -= 1;
            if tries == 0 {
                return Err(late);
            }
        }
        let held = Held::new(&namespace, Some(seat), None);
        // A large one shares the CPUs for large requests.
        let (size, user) = (request.body.as_ref().map_or(0, length), request.user.clone());
        let work = Box::pin(async move {
            let handled = Box::pin(self.handle(request));
            held.within(self.large.run(&user, size, handled)).await
        });
        let work = tokio::spawn(work);
        match work.await {
            Ok(answer) => answer,
            Err(why) if why.is_panic() => std::panic::resume_unwind(why.into_panic()),
            Err(_) => Err(Status::internal("the server ends")),
        }
    }
}

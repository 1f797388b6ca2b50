//! Writes of our own components: controllers and scheduler have as much to do as manifests ask for, and work for all. They run
//! behind the requests of others: few at once, each namespace's in turn, and no faster than the watch cache follows.
//!
//! The last is what others' reads depend on: whoever reads waits until the cache shows all that was written before, so a
//! writer that does not wait for anybody makes each of them wait for as long as it is ahead.

use std::sync::Arc;

use super::limits::Held;
use super::{Server, store_error};
use podwright_api::object::length;
use podwright_api::{Request, Response, Status};

/// How many revisions the cache may lack when such a write begins.
const AHEAD: u64 = 128;
/// How often it waits for that (three seconds each), before it is refused.
const TRIES: usize = 20;

impl Server {
    /// Waits until the cache lacks few enough revisions.
    async fn is_followed(&self) -> Result<(), Status> {
        let written = self.store.revision().await.map_err(store_error)?;
        self.cache.reach(written.saturating_sub(AHEAD)).await
    }

    /// As `handle`. Each write is a task of its own: others come in between two of them, however many there are.
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
        // A large one takes part in the CPUs of large requests.
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

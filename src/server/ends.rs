//! What outlives its request ends soon after the right to it, or the credentials that it was opened with: watches, followed logs,
//! sessions with Pods, nodes and extension API servers, and what a proxy has switched to another protocol.
//!
//! Each has one question of either kind, asked again at [`Limits::ask_again`](super::Limits); both are answered from memory, on its
//! user's share of the CPU. So a session costs what a watch costs, and there are only so many of either.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use hyper::HeaderMap;

use super::Server;
use super::authorize::{Decision, Kept, MASTERS};
use super::rest::authenticate::{self, Credentials, Peer};
use crate::api::User;

/// Resolves when something has to end.
pub(super) type Ended = BoxFuture<'static, ()>;

/// What ends by itself alone.
pub(super) fn never() -> Ended {
    pending().boxed()
}

impl Server {
    /// Resolves when one of these is allowed no more: rights are withdrawn, accounts are deleted, and a Pod leaves the node that
    /// could read its Secrets for it. Asked again now and then, not all at once.
    pub(super) fn withdrawn(&self, asked: Vec<Kept>) -> impl Future<Output = ()> + Send + use<> {
        let every = self.config.limits.ask_again;
        let spread = u64::try_from(every.as_millis()).unwrap_or(u64::MAX).max(1);
        let every = every + Duration::from_millis(self.env.below(spread));
        let (authorizer, turns) = (self.authorizer.clone(), self.gates.turns.clone());
        async move {
            if asked.iter().all(|one| one.attributes().user.is_in(MASTERS)) {
                return pending().await;
            }
            loop {
                tokio::time::sleep(every).await;
                for one in &asked {
                    let attributes = one.attributes();
                    let decided = turns.measured(attributes.user, async { authorizer.decide(&attributes) }).await;
                    if decided != Decision::Allow {
                        return tracing::info!(
                            "what {} has opened is cut off: {}",
                            attributes.user.name,
                            attributes.refusal()
                        );
                    }
                }
            }
        }
    }
}

/// Resolves when who has asked is not who he was any more, by what he has shown: his token or his certificate has ended, or his
/// account is gone.
pub(super) async fn disowned(server: Arc<Server>, peer: Peer, shown: HeaderMap, user: User) {
    let (every, authenticators) = (server.config.limits.ask_again, authenticate::all());
    loop {
        tokio::time::sleep(every).await;
        let credentials = Credentials::of(&peer, &shown);
        let now = match authenticate::authenticate(&authenticators, &server, &credentials).await {
            Ok(now) => server.impersonate(now, &authenticate::impersonation(&shown)).await,
            Err(why) => Err(why),
        };
        let why = match now {
            Ok(now) if now == user => continue,
            Ok(now) => format!("now it is {}'s, or of other groups", now.name),
            // That it cannot be known at the moment is no reason.
            Err(why) if why.code != 401 && why.code != 403 => continue,
            Err(why) => why.message,
        };
        return tracing::info!("what {} has opened is cut off: {why}", user.name);
    }
}

/// The first of both.
pub(super) fn either(
    one: impl Future<Output = ()> + Send + 'static,
    other: impl Future<Output = ()> + Send + 'static,
) -> Ended {
    async move {
        tokio::select! {
            () = one => {}
            () = other => {}
        }
    }
    .boxed()
}

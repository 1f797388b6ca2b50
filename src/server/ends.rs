//! Ends long-running requests soon after their authorization or credentials end: watches, followed logs, sessions with Pods, nodes
//! and extension API servers, and proxied upgraded connections.
//!
//! Both are checked again at [`Limits::ask_again`](super::Limits), on the user's share of the CPU: rights, from memory, and
//! credentials, which may need the store's current revision. A single refusal ends nothing: a grant that is being replaced, such as
//! a recreated binding, is gone for a moment. Neither does a check that fails to run.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use hyper::HeaderMap;
use tokio_util::sync::CancellationToken;

use super::Server;
use super::authorize::attributes::{Decision, Kept, MASTERS};
use super::rest::authenticate::{self, Credentials, Peer};
use podwright_api::User;

/// Resolves when something must end.
pub(super) type Ended = BoxFuture<'static, ()>;

/// For what only ends by itself.
pub(super) fn never() -> Ended {
    pending().boxed()
}

/// The delay after which a refusal is checked again, at most.
const ONCE_MORE: Duration = Duration::from_secs(1);

/// Checks periodically, first after `first`, until the answer is a refusal twice in a row; returns the reason.
async fn until_refused<F>(first: Duration, every: Duration, refusal: impl Fn() -> F) -> String
where
    F: Future<Output = Option<String>>,
{
    tokio::time::sleep(first).await;
    loop {
        if refusal().await.is_some() {
            tokio::time::sleep(every.min(ONCE_MORE)).await;
            if let Some(why) = refusal().await {
                return why;
            }
        }
        tokio::time::sleep(every).await;
    }
}

impl Server {
    /// A random part of the period, so that checks are spread out.
    fn part_of(&self, every: Duration) -> Duration {
        let spread = u64::try_from(every.as_millis()).unwrap_or(u64::MAX).max(1);
        Duration::from_millis(self.env.below(spread))
    }

    /// Resolves when one of these is no longer allowed: rights are withdrawn, accounts deleted, and a Pod leaves the node that
    /// could read its Secrets for it. Checked periodically.
    pub(super) fn withdrawn(&self, asked: Vec<Kept>) -> impl Future<Output = ()> + Send + use<> {
        let every = self.config.limits.ask_again;
        let every = every + self.part_of(every);
        let (authorizer, cpu) = (self.authorizer.clone(), self.limiters.cpu.clone());
        async move {
            if asked.iter().all(|one| one.attributes().user.is_in(MASTERS)) {
                return pending().await;
            }
            let refusal = || async {
                for one in &asked {
                    let attributes = one.attributes();
                    let decided = cpu.measured(attributes.user, async { authorizer.decide(&attributes) }).await;
                    if decided != Decision::Allow {
                        return Some(attributes.refusal());
                    }
                }
                None
            };
            // The refusal names the user.
            let why = until_refused(every, every, refusal).await;
            tracing::info!("closing what was open: {why}");
        }
    }
}

/// Resolves when the credentials no longer authenticate the same user: the token or certificate has expired, or the account is
/// gone.
pub(super) async fn disowned(server: Arc<Server>, peer: Peer, shown: HeaderMap, user: User) {
    let (authenticators, cpu) = (authenticate::all(), server.limiters.cpu.clone());
    let refusal = || async {
        let credentials = Credentials::of(&peer, &shown);
        let asking = async {
            let now = authenticate::recognize(&authenticators, &server, &credentials).await?;
            server.impersonate(now, &authenticate::impersonation(&shown)).await
        };
        match cpu.measured(&user, asking).await {
            Ok(now) if is_still(&user, &now) => None,
            Ok(now) => Some(format!("now it is {}'s, or of other groups", now.name)),
            // A check that fails to run is no reason.
            Err(why) => matches!(why.code, 401 | 403).then_some(why.message),
        }
    };
    let every = server.config.limits.ask_again;
    let why = until_refused(server.part_of(every), every, refusal).await;
    tracing::info!("closing the connections and streams of {}: {why}", user.name);
}

/// The address of an anonymous user is not part of the credentials.
fn is_still(user: &User, now: &User) -> bool {
    *user == User { address: user.address, ..now.clone() }
}

/// The same in a task of its own, for what is not polled continuously: a check may need turns, which do not wait for a slow poller.
pub(super) fn apart(ended: impl Future<Output = ()> + Send + 'static) -> Ended {
    let come = CancellationToken::new();
    let (left, told) = (come.clone().drop_guard(), come.clone());
    tokio::spawn(async move {
        // In every case, even on a panic.
        let _told = told.clone().drop_guard();
        tokio::select! {
            () = ended => {}
            () = told.cancelled() => {}
        }
    });
    async move {
        let _left = left;
        come.cancelled().await;
    }
    .boxed()
}

/// The earlier of both, in a task of its own.
pub(super) fn either(
    one: impl Future<Output = ()> + Send + 'static,
    other: impl Future<Output = ()> + Send + 'static,
) -> Ended {
    apart(async move {
        tokio::select! {
            () = one => {}
            () = other => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_known_stays_who_he_is() {
        let shown = User::new("system:anonymous", ["system:unauthenticated"]);
        let user = User { address: Some([10, 0, 0, 1].into()), ..shown.clone() };
        assert!(is_still(&user, &shown) && is_still(&shown, &shown));
        assert!(!is_still(&user, &User::new("system:anonymous", ["others"])));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_found_out_apart_is_told_and_ends_with_whoever_waits() {
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        let ended = apart(async { drop(told.await) });
        tell.send(()).unwrap();
        ended.await;
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        drop(apart(async { drop(told.await) }));
        let mut tell = tell;
        tokio::time::timeout(Duration::from_secs(1), tell.closed()).await.expect("nobody asks any more");
    }
}

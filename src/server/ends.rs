//! What outlives its request ends soon after the right to it, or the credentials that it was opened with: watches, followed logs,
//! sessions with Pods, nodes and extension API servers, and what a proxy has switched to another protocol.
//!
//! Both are asked again at [`Limits::ask_again`](super::Limits), on their user's share of the CPU: each right, which is answered from
//! memory, and the credentials, for which the store may have to say first how far it is. One answer ends nothing: a right that is
//! given anew, as by a binding that is replaced, is away for a moment. What cannot be known at the moment is no reason either.

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

/// Resolves when something has to end.
pub(super) type Ended = BoxFuture<'static, ()>;

/// What ends by itself alone.
pub(super) fn never() -> Ended {
    pending().boxed()
}

/// What is refused is asked again after this, or sooner.
const ONCE_MORE: Duration = Duration::from_secs(1);

/// Asks every now and then, for the first time after `first`, until the answer is twice why not.
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
    /// Any part of the time that lies between two questions: not all are asked at once.
    fn part_of(&self, every: Duration) -> Duration {
        let spread = u64::try_from(every.as_millis()).unwrap_or(u64::MAX).max(1);
        Duration::from_millis(self.env.below(spread))
    }

    /// Resolves when one of these is allowed no more: rights are withdrawn, accounts are deleted, and a Pod leaves the node that
    /// could read its Secrets for it. Asked again now and then.
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
            // The refusal names who is refused.
            let why = until_refused(every, every, refusal).await;
            tracing::info!("closing what was open: {why}");
        }
    }
}

/// Resolves when who has asked is not who he was any more, by what he has shown: his token or his certificate has ended, or his
/// account is gone.
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
            // That it cannot be known at the moment is no reason.
            Err(why) => matches!(why.code, 401 | 403).then_some(why.message),
        }
    };
    let every = server.config.limits.ask_again;
    let why = until_refused(server.part_of(every), every, refusal).await;
    tracing::info!("closing the connections and streams of {}: {why}", user.name);
}

/// Where somebody comes from who is not known is no part of what he has shown.
fn is_still(user: &User, now: &User) -> bool {
    *user == User { address: user.address, ..now.clone() }
}

/// The same in a task of its own, for what is not polled all the time: to find out may take turns, which wait for nobody.
pub(super) fn apart(ended: impl Future<Output = ()> + Send + 'static) -> Ended {
    let come = CancellationToken::new();
    let (left, told) = (come.clone().drop_guard(), come.clone());
    tokio::spawn(async move {
        // However it ends.
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

/// The first of both, in a task of its own.
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

//! ClusterRoles that aggregate the rules of others, by labels.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::json;

use super::grants::Rights;
use super::rule::Rule;
use crate::Server;
use crate::retries::Backoff;
use podwright_api::request::PatchType;
use podwright_api::selector::LabelSelector;
use podwright_api::{Options, Request, Status, User, Verb, kinds};

const RESOURCE: &str = "clusterroles.rbac.authorization.k8s.io";
const USER: &str = "system:serviceaccount:kube-system:clusterrole-aggregation-controller";
/// The delay before a failure is retried.
const AGAIN: Duration = Duration::from_secs(1);

/// The rules that an aggregated role should have: all that its selectors match, without duplicates.
pub(super) fn gathered<'a, I: IntoIterator<Item = &'a Rule>>(
    selectors: &[LabelSelector],
    find: impl Fn(&LabelSelector) -> I,
) -> Vec<Rule> {
    let mut known = HashSet::new();
    selectors.iter().flat_map(find).filter(|rule| known.insert(*rule)).cloned().collect()
}

impl Server {
    /// Starts the loop that keeps aggregated roles up to date.
    pub(crate) fn start_aggregation(self: &Arc<Server>) {
        self.tasks.add(tokio::spawn(run(Arc::downgrade(self))));
    }

    /// Reconciles all aggregated roles; `false`: one could not be written, which does not affect others.
    async fn aggregate(&self) -> Result<bool, Status> {
        let kind = kinds::lookup(RESOURCE).ok_or_else(|| Status::internal("no kind ClusterRole"))?;
        let items: Vec<_> = self.cache.resource(kind).read().items.values().cloned().collect();
        // They were parsed when the cache received them.
        let roles = items.iter().filter_map(|item| match &item.rights {
            Rights::Role(role) => Some((item, role)),
            _ => None,
        });
        let mut complete = true;
        for (item, role) in roles.clone().filter(|(item, _)| item.deletion_timestamp().is_none()) {
            let Some(selectors) = &role.gathers else { continue };
            let rules = gathered(selectors, |selector| {
                let others = roles.clone().filter(|(other, _)| other.key != item.key);
                let found = others.filter(|(other, _)| selector.matches(|label| other.label(label)));
                found.flat_map(|(_, role)| &role.rules).collect::<Vec<_>>()
            });
            if role.rules == rules {
                continue;
            }
            let request = Request {
                verb: Verb::Patch,
                resource: RESOURCE.into(),
                name: Some(item.name().to_owned()),
                body: Some(json!({"rules": rules})),
                options: Options { patch_type: Some(PatchType::Merge), ..Options::default() },
                user: User::system(USER),
                ..Request::default()
            };
            match self.handle(request).await {
                Err(why) if !why.is_not_found() => {
                    tracing::warn!("failed to aggregate the role {}: {why}", item.name());
                    complete = false;
                }
                _ => {}
            }
        }
        Ok(complete)
    }
}

/// Reconciles whenever a role has changed; its own changes trigger it again until nothing is left to do.
async fn run(server: Weak<Server>) {
    let mut backoff = Backoff::default();
    loop {
        let Some(strong) = server.upgrade() else { return };
        let request = Request { resource: RESOURCE.into(), user: User::system(USER), ..Request::default() };
        let watch = strong.watch(request).await;
        let mut outcome = strong.aggregate().await;
        drop(strong);
        if let Ok(mut events) = watch {
            while let Ok(complete) = outcome {
                let patience = match complete {
                    true => {
                        backoff = Backoff::default();
                        Duration::MAX
                    }
                    false => backoff.next(),
                };
                match tokio::time::timeout(patience, events.recv()).await {
                    Ok(None) => break,
                    // Handles many changes at once.
                    Ok(Some(_)) => while events.try_recv().is_ok() {},
                    Err(_) => {}
                }
                let Some(strong) = server.upgrade() else { return };
                outcome = strong.aggregate().await;
            }
        }
        if let Err(why) = outcome {
            tracing::warn!("failed to aggregate roles: {why}");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

//! ClusterRoles that gather the rules of others, by labels.

use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::request::PatchType;
use crate::api::selector::LabelSelector;
use crate::api::{Object, Options, Request, Status, User, Verb, kinds};
use crate::server::Server;
use crate::server::retries::Backoff;

const RESOURCE: &str = "clusterroles.rbac.authorization.k8s.io";
const USER: &str = "system:serviceaccount:kube-system:clusterrole-aggregation-controller";
/// When to try again what failed.
const AGAIN: Duration = Duration::from_secs(1);

/// The rules that an aggregated role should have. `all` is in order of their names.
pub(super) fn gathered(role: &Object, all: &[Object]) -> Vec<Value> {
    let mut rules: Vec<Value> = Vec::new();
    for selector in role.0["aggregationRule"]["clusterRoleSelectors"].as_array().into_iter().flatten() {
        let Ok(selector) = LabelSelector::from_json(selector) else { continue };
        let others = all.iter().filter(|other| other.name() != role.name() && selector.matches_labels(other.labels()));
        for rule in others.flat_map(|other| other.0["rules"].as_array().into_iter().flatten()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    rules
}

impl Server {
    /// Starts the loop that keeps aggregated roles up to date.
    pub(in crate::server) fn start_aggregation(self: &Arc<Server>) {
        self.tasks.add(tokio::spawn(run(Arc::downgrade(self))));
    }

    /// Looks at all aggregated roles; `false`: one could not be written, which keeps no other from its rules.
    async fn aggregate(&self) -> Result<bool, Status> {
        let kind = kinds::lookup(RESOURCE).ok_or_else(|| Status::internal("no kind ClusterRole"))?;
        let items: Vec<_> = self.cache.shelf(kind).read().items.values().cloned().collect();
        let all: Vec<Object> = items.iter().filter_map(|item| Object::from_slice(&item.bytes).ok()).collect();
        let mut complete = true;
        for role in all.iter().filter(|role| role.at("aggregationRule").is_some() && !role.is_terminating()) {
            let rules = gathered(role, &all);
            if role.0["rules"].as_array().map(Vec::as_slice).unwrap_or_default() == rules {
                continue;
            }
            let request = Request {
                verb: Verb::Patch,
                resource: RESOURCE.into(),
                name: Some(role.name().to_owned()),
                body: Some(json!({"rules": rules})),
                options: Options { patch_type: Some(PatchType::Merge), ..Options::default() },
                user: User::system(USER),
                ..Request::default()
            };
            match self.handle(request).await {
                Err(why) if !why.is_not_found() => {
                    tracing::warn!("the aggregated role {}: {why}", role.name());
                    complete = false;
                }
                _ => {}
            }
        }
        Ok(complete)
    }
}

/// Looks at all roles whenever one has changed; what it changes itself brings it back, until nothing is left to do.
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
                    // Many changes at once are one look.
                    Ok(Some(_)) => while events.try_recv().is_ok() {},
                    Err(_) => {}
                }
                let Some(strong) = server.upgrade() else { return };
                outcome = strong.aggregate().await;
            }
        }
        if let Err(why) = outcome {
            tracing::warn!("aggregated roles: {why}");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

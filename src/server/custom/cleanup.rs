//! Deletion of a definition: first its objects, then itself. Upstream: `customresourcecleanup.apiextensions.k8s.io`.

use serde_json::Value;

use super::set_condition;
use crate::Server;
use podwright_api::{Object, Options, Request, Status, User, Verb};

const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Marks a definition as terminating: it waits for its objects, and its conditions say so.
pub(crate) fn begin(definition: &mut Object, now: &str) {
    let mut finalizers: Vec<Value> = definition.finalizers().into_iter().map(Value::from).collect();
    if !definition.finalizers().contains(&FINALIZER) {
        finalizers.push(FINALIZER.into());
    }
    definition.set_meta("finalizers", Value::Array(finalizers));
    definition.set_meta("deletionTimestamp", Value::from(now));
    let why = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    set_condition(definition, "Terminating", "True", "InstanceDeletionPending", why, now);
}

impl Server {
    /// Deletes the objects of a terminating definition, and removes the finalizer when none is left. `true`: some are.
    pub(super) async fn clean_up(&self, definition: &Object) -> Result<bool, Status> {
        if !definition.finalizers().contains(&FINALIZER) {
            return Ok(false);
        }
        let kinds = self.kinds();
        if let Some(defined) = kinds.defined(definition.name()) {
            let stored = defined.stored.0;
            let left = self.cache.resource(stored).read().items.len();
            if left > 0 {
                self.say(definition, "True", "InstanceDeletionInProgress", "CustomResource deletion is in progress")
                    .await?;
                // Objects of an unserved version are deleted through a served one.
                let Some(served) = defined.served.first() else { return Ok(true) };
                let user = User::system("system:apiserver");
                let options = Options { propagation_policy: Some("Background".into()), ..Options::default() };
                let resource = served.0.exact();
                self.handle(Request { verb: Verb::DeleteCollection, resource, options, user, ..Request::default() })
                    .await?;
                self.cache.fresh().await?;
                if !self.cache.resource(stored).read().items.is_empty() {
                    return Ok(true);
                }
            }
        }
        let Some(mut done) =
            self.say(definition, "False", "InstanceDeletionCompleted", "removed all instances").await?
        else {
            return Ok(true);
        };
        let rest = done.finalizers().into_iter().filter(|f| *f != FINALIZER).map(Value::from).collect::<Vec<_>>();
        done.set_meta("finalizers", Value::Array(rest));
        self.write_definition(&done, None).await.map(|written| written.is_none())
    }

    /// Sets the condition `Terminating`; `None` on a conflict.
    async fn say(&self, definition: &Object, status: &str, reason: &str, why: &str) -> Result<Option<Object>, Status> {
        let mut new = definition.clone();
        match set_condition(&mut new, "Terminating", status, reason, why, &self.timestamp()) {
            true => self.write_definition(&new, Some("status")).await,
            false => Ok(Some(new)),
        }
    }
}

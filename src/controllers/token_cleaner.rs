//! Token cleaner: bootstrap tokens that have ended are deleted.
//!
//! Upstream: `pkg/controller/bootstrap/tokencleaner.go`.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;

use super::{Context, Plan, Row, Writes, meta, write::Write};
use podwright_api::bootstrap_token;
use podwright_client::Key;

pub const ROW: Row = Row {
    name: "token-cleaner-controller",
    workers: 1,
    writes: Writes::Of(&["secrets"]),
    watch: |watches| {
        let tokens = &watches.world.informers.bootstrap_tokens.clone();
        watches.on(tokens, |_, queue, change| {
            if change.new.is_some() {
                queue.add(change.key.clone());
            }
        });
    },
    reconcile: |context: &Context<'_>, key: &Key| match context.world.informers.bootstrap_tokens.get(key) {
        Some(token) => plan(&token, context.now),
        None => Plan::default(),
    },
};

/// Deletes the Secret when its token has ended; exactly this state of it.
pub fn plan(secret: &Secret, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let is_token = secret.type_.as_deref() == Some(bootstrap_token::TYPE)
        && secret.metadata.namespace.as_deref() == Some(bootstrap_token::NAMESPACE);
    if !is_token || meta::is_terminating(&secret.metadata) {
        return plan;
    }
    let expiration = secret.data.as_ref().and_then(|data| data.get(bootstrap_token::EXPIRATION));
    // What is no text is no time.
    let expiration = expiration.map(|bytes| std::str::from_utf8(&bytes.0).unwrap_or("?"));
    let Some(end) = bootstrap_token::end(expiration) else { return plan };
    match meta::until(now, end) {
        Some(wait) => plan.requeue(wait),
        None => {
            let mut write = Write::delete(secret);
            if let Some(preconditions) = &mut write.request.options.preconditions {
                preconditions.resource_version = secret.metadata.resource_version.clone();
            }
            plan.then(vec![write]);
        }
    }
    plan
}

//! Bootstrap signer: `kube-public/cluster-info` is signed by every bootstrap token that may sign, so that who knows the token knows
//! the ConfigMap to be the cluster's.
//!
//! Upstream: `pkg/controller/bootstrap/bootstrapsigner.go`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};

use super::{Context, Plan, Row, Writes, meta, write::Write};
use podwright_api::{
    bootstrap_token::{self, Token},
    cluster_info,
};
use podwright_client::Key;

pub const ROW: Row = Row {
    name: "bootstrap-signer-controller",
    workers: 1,
    writes: Writes::Of(&["configmaps"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.on(&informers.cluster_infos, |_, queue, _| queue.add(info()));
        watches.on(&informers.bootstrap_tokens, |_, queue, _| queue.add(info()));
    },
    reconcile: |context: &Context<'_>, _: &Key| {
        let informers = &context.world.informers;
        let tokens = informers.bootstrap_tokens.list();
        match informers.cluster_infos.get(&info()) {
            Some(held) => plan(&held, tokens.iter().map(AsRef::as_ref), context.now),
            None => Plan::default(),
        }
    },
};

fn info() -> Key {
    Key::new(cluster_info::NAMESPACE, cluster_info::NAME)
}

/// Gives the ConfigMap the signatures of these Secrets' tokens, and no others; and looks again when the next of them ends.
pub fn plan<'a>(held: &ConfigMap, secrets: impl Iterator<Item = &'a Secret>, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let Some(kubeconfig) = held.data.as_ref().and_then(|data| data.get(cluster_info::KUBECONFIG)) else { return plan };
    let mut wanted: BTreeMap<String, String> = held.data.clone().unwrap_or_default();
    wanted.retain(|key, _| !key.starts_with(cluster_info::SIGNATURE));
    for secret in secrets {
        let end = bootstrap_token::end(text(secret, bootstrap_token::EXPIRATION));
        let left = end.map(|end| meta::until(now, end));
        let Some(token) = signs(secret).filter(|_| left != Some(None)) else { continue };
        wanted.insert(format!("{}{}", cluster_info::SIGNATURE, token.id()), token.sign(kubeconfig));
        if let Some(Some(left)) = left {
            plan.requeue(left);
        }
    }
    let signed = ConfigMap { data: Some(wanted), ..held.clone() };
    plan.then(Write::change(held, &signed).into_iter().collect());
    plan
}

/// The token of a Secret that may sign: its name, type and usage say so.
fn signs(secret: &Secret) -> Option<Token> {
    let is_token = secret.type_.as_deref() == Some(bootstrap_token::TYPE)
        && secret.metadata.namespace.as_deref() == Some(bootstrap_token::NAMESPACE)
        && !meta::is_terminating(&secret.metadata);
    let may = text(secret, "usage-bootstrap-signing") == Some("true");
    let token = Token::new(text(secret, bootstrap_token::ID)?, text(secret, bootstrap_token::SECRET)?).ok()?;
    let named = meta::name(&secret.metadata).strip_prefix(bootstrap_token::PREFIX) == Some(token.id());
    (is_token && may && named).then_some(token)
}

fn text<'a>(secret: &'a Secret, key: &str) -> Option<&'a str> {
    std::str::from_utf8(&secret.data.as_ref()?.get(key)?.0).ok()
}

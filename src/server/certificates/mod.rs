//! CertificateSigningRequests: who asks is noted, who may approve is checked, nodes are approved by themselves, and what is
//! approved is signed with the cluster's CA.
//!
//! What a request may hold is decided in [`request`], without I/O; the loop here acts on it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::authorize::{Attributes, Decision};
use super::call::Call;
use super::create::timestamp;
use super::{Server, Watch};
use crate::api::request::EventKind;
use crate::api::{Object, Request, Status, User, Verb};

mod names;
mod request;

pub use request::{NODE_CLIENT, NODE_SERVING};

use request::Asked;

/// Whether a request may be signed at all; the error says why not.
pub(super) fn check_request(csr: &Object) -> Result<(), String> {
    Asked::of(csr)?.check()
}

const GROUP: &str = "certificates.k8s.io";
const RESOURCE: &str = "certificatesigningrequests.certificates.k8s.io";
const USER: &str = "system:serviceaccount:kube-system:certificate-controller";
const MASTERS: &str = "system:masters";
/// The annotation of a request that is left to an administrator: why.
pub const WAITS: &str = "podwright/waits-for-approval";
const AGAIN: Duration = Duration::from_secs(1);
/// How long a certificate lasts that asks for no time of its own, and the longest one.
const YEAR: i64 = 365 * 24 * 3600;

/// Notes who asks.
pub(super) fn note_user(call: &Call, csr: &mut Object) {
    if call.kind.built_in() != "CertificateSigningRequest" {
        return;
    }
    let spec = &mut csr.0["spec"];
    for field in ["username", "uid", "groups", "extra"] {
        if let Some(map) = spec.as_object_mut() {
            map.shift_remove(field);
        }
    }
    let User { name, uid, groups, extra } = &call.user;
    spec["username"] = name.as_str().into();
    spec["groups"] = groups.as_slice().into();
    if !uid.is_empty() {
        spec["uid"] = uid.as_str().into();
    }
    if !extra.is_empty() {
        spec["extra"] = json!(extra);
    }
}

/// Refuses what nobody may ask for; upstream's CertificateSubjectRestriction, and names that not all read alike.
pub(super) fn may_ask(call: &Call, csr: &Object) -> Result<(), Status> {
    let signer = csr.0["spec"]["signerName"].as_str().unwrap_or("");
    if request::SIGNERS.contains(&signer) && Asked::of(csr).is_ok_and(|asked| !asked.legible) {
        return Err(call.forbidden(request::ILLEGIBLE.to_owned()));
    }
    let asks_for_masters = || Asked::of(csr).is_ok_and(|asked| asked.groups.iter().any(|group| group == MASTERS));
    if csr.0["spec"]["signerName"] == request::CLIENT && asks_for_masters() {
        let why = format!("use of {} signer with {MASTERS} group is not allowed", request::CLIENT);
        return Err(call.forbidden(why));
    }
    Ok(())
}

/// Whether the user may approve, or sign, for the request's signer; upstream's CertificateApproval and CertificateSigning.
pub(super) fn may_decide(server: &Server, call: &Call, new: &Object, old: &Object) -> Result<(), Status> {
    let approval = |csr: &Object| -> Vec<Value> {
        let conditions = csr.0["status"]["conditions"].as_array().into_iter().flatten();
        conditions.filter(|c| c["type"] == "Approved" || c["type"] == "Denied").map(|c| c["type"].clone()).collect()
    };
    let mut verbs = Vec::new();
    if call.subresource.as_deref() == Some("approval") || approval(new) != approval(old) {
        verbs.push("approve");
    }
    if new.0["status"]["certificate"] != old.0["status"]["certificate"] {
        verbs.push("sign");
    }
    let signer = old.0["spec"]["signerName"].as_str().unwrap_or("");
    let all_of_domain = format!("{}/*", signer.split('/').next().unwrap_or(""));
    for verb in verbs {
        let may = |name: &str| {
            let asked = Attributes { name, ..Attributes::new(&call.user, verb, GROUP, "signers") };
            server.authorizer.decide(&asked) == Decision::Allow
        };
        if !may(signer) && !may(&all_of_domain) {
            return Err(call.forbidden(format!("user not permitted to {verb} requests with signerName {signer:?}")));
        }
    }
    Ok(())
}

/// The object with the approval of `new`: conditions alone, and with their times.
pub(super) fn with_approval(new: &Object, old: &Object, now: &str) -> Object {
    let mut out = old.clone();
    let mut conditions = new.0["status"]["conditions"].clone();
    for condition in conditions.as_array_mut().into_iter().flatten() {
        for field in ["lastUpdateTime", "lastTransitionTime"] {
            if condition[field].is_null() {
                condition[field] = now.into();
            }
        }
        if condition["status"].is_null() {
            condition["status"] = "True".into();
        }
    }
    out.0["status"]["conditions"] = conditions;
    out
}

impl Server {
    /// Starts the loop that approves nodes and signs what is approved.
    pub(super) fn start_certificates(self: &Arc<Server>) {
        self.tasks.add(tokio::spawn(run(Arc::downgrade(self))));
    }

    /// What is next for one request.
    async fn advance(&self, csr: &Object) -> Result<(), Status> {
        let has = |name: &str| {
            csr.0["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|c| c["type"] == name && c["status"] == "True")
        };
        if has("Denied") || has("Failed") || csr.at("status.certificate").is_some() {
            return Ok(());
        }
        if has("Approved") {
            return self.sign(csr).await;
        }
        let asked = Asked::of(csr);
        let Ok(asked) = asked.as_ref() else { return Ok(()) };
        if !asked.is_node_client() {
            return Ok(());
        }
        // A node renews its own certificate, or someone asks for a node that is to join.
        let subresource = if asked.requestor.name == asked.name { "selfnodeclient" } else { "nodeclient" };
        let may = Attributes {
            subresource,
            ..Attributes::new(&asked.requestor, "create", GROUP, "certificatesigningrequests")
        };
        if self.decide(&may).await? != Decision::Allow {
            return Ok(());
        }
        // Upstream does not ask: there whoever holds a bootstrap token may be any node.
        self.cache.fresh().await?;
        let node = asked.node().unwrap_or("");
        if subresource == "nodeclient" {
            if self.has_node(node) {
                return self.leave(csr, &format!("there is a Node {node:?}: delete it, or approve this request")).await;
            }
            if !self.take_name(node, csr.uid(), asked.lifetime()).await? {
                let why = format!(
                    "a certificate was signed for the node {node:?}, which has not come yet: approve this request if it is the \
                     same machine, or its certificate is lost"
                );
                return self.leave(csr, &why).await;
            }
        }
        let why = "Auto approving kubelet client certificate after SubjectAccessReview.";
        self.condition(csr, "approval", "Approved", "AutoApproved", why).await
    }

    /// Leaves a request to an administrator, and says so, once, to him and in the request to who asks.
    async fn leave(&self, csr: &Object, why: &str) -> Result<(), Status> {
        if csr.annotation(WAITS).is_some() {
            return Ok(());
        }
        let (name, who) = (csr.name(), &csr.0["spec"]["username"]);
        tracing::warn!("the certificate signing request {name} of {who} waits for an administrator: {why}");
        let mut told = csr.clone();
        told.0["metadata"]["annotations"][WAITS] = why.into();
        self.write(told, "").await
    }

    async fn sign(&self, csr: &Object) -> Result<(), Status> {
        let Some(authority) = &self.config.authority else { return Ok(()) };
        if !request::SIGNERS.contains(&csr.0["spec"]["signerName"].as_str().unwrap_or("")) {
            return Ok(());
        }
        let now = self.env.now();
        let signed = Asked::of(csr).and_then(|asked| {
            asked.check()?;
            let certificate = authority.sign(&asked.pem, &asked.usages, asked.lifetime(), now);
            Ok((asked, certificate.map_err(|why| format!("{why:#}"))?))
        });
        match signed {
            Ok((asked, certificate)) => {
                self.cache.fresh().await?;
                if let Some(node) = asked.node().filter(|node| asked.is_node_client() && !self.has_node(node)) {
                    self.keep_name(node, csr.uid(), now, asked.lifetime()).await?;
                }
                let mut signed = csr.clone();
                signed.0["status"]["certificate"] = STANDARD.encode(certificate).into();
                self.write(signed, "status").await
            }
            Err(why) => self.condition(csr, "status", "Failed", "SignerValidationFailure", &why).await,
        }
    }

    async fn condition(&self, csr: &Object, part: &str, of: &str, reason: &str, message: &str) -> Result<(), Status> {
        let mut csr = csr.clone();
        let now = timestamp(self.env.now());
        let condition = json!({
            "type": of, "status": "True", "reason": reason, "message": message,
            "lastUpdateTime": now, "lastTransitionTime": now,
        });
        match csr.0["status"]["conditions"].as_array_mut() {
            Some(conditions) => conditions.push(condition),
            None => csr.0["status"]["conditions"] = json!([condition]),
        }
        self.write(csr, part).await
    }

    /// Writes a part of a request; that it has changed meanwhile is told as an event, and decided anew.
    async fn write(&self, csr: Object, part: &str) -> Result<(), Status> {
        let request = Request {
            verb: Verb::Update,
            resource: RESOURCE.into(),
            name: Some(csr.name().to_owned()),
            subresource: Some(part.to_owned()).filter(|part| !part.is_empty()),
            body: Some(csr.0),
            user: User::system(USER),
            ..Request::default()
        };
        match Box::pin(self.handle(request)).await {
            Err(why) if !why.is_conflict() && !why.is_not_found() => Err(why),
            _ => Ok(()),
        }
    }

    async fn watch_all(&self, resource: &str) -> Result<Watch, Status> {
        self.watch(Request { resource: resource.into(), user: User::system(USER), ..Request::default() }).await
    }
}

async fn run(server: Weak<Server>) {
    loop {
        let Some(strong) = server.upgrade() else { return };
        let watches = (strong.watch_all(RESOURCE).await, strong.watch_all("nodes").await);
        drop(strong);
        let (Ok(mut requests), Ok(mut nodes)) = watches else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        loop {
            let (is_node, event) = tokio::select! {
                event = requests.recv() => (false, event),
                event = nodes.recv() => (true, event),
            };
            let Some(event) = event else { break };
            let Some(strong) = server.upgrade() else { return };
            let Ok(object) = Object::from_slice(&event.object) else { continue };
            let (what, done) = match event.kind {
                EventKind::Added | EventKind::Deleted if is_node => ("node", strong.release_name(object.name()).await),
                EventKind::Added | EventKind::Modified if !is_node => {
                    ("certificate signing request", strong.advance(&object).await)
                }
                _ => continue,
            };
            if let Err(why) = done {
                tracing::warn!("the {what} {}: {why}", object.name());
                tokio::time::sleep(AGAIN).await;
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_approval_changes_nothing_but_conditions() {
        let old = Object(json!({"spec": {"signerName": "a.b/c"}, "status": {"certificate": "x"}}));
        let new = Object(json!({
            "spec": {"signerName": "other"}, "status": {"certificate": "y", "conditions": [{"type": "Approved"}]},
        }));
        let out = with_approval(&new, &old, "now");
        let condition: &Value = &out.0["status"]["conditions"][0];
        assert_eq!((&out.0["spec"], &out.0["status"]["certificate"]), (&old.0["spec"], &json!("x")));
        assert_eq!(
            condition,
            &json!({"type": "Approved", "status": "True", "lastUpdateTime": "now", "lastTransitionTime": "now"})
        );
    }
}

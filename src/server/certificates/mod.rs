//! CertificateSigningRequests: records the requestor, checks approvers, approves nodes automatically, and signs approved requests
//! with the cluster's CA.
//!
//! [`request`] decides what a request may contain, without I/O; the loop here acts on it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::authorize::attributes::{Attributes, Decision};
use super::resolved_request::{ResolvedRequest, bad_value};
use super::retries::Retries;
use super::timestamp::timestamp;
use super::{Server, Watch};
use podwright_api::request::EventKind;
use podwright_api::{Object, Request, Status, User, Verb, WatchEvent, kinds, strategy};

mod names;
mod request;
mod standing;

pub use request::{NODE_CLIENT, NODE_SERVING};

use names::NameOwner;
use request::{Asked, RequestError};
use standing::{AUTOMATIC, Lapse, is_automatic, is_renewal};

/// Fails if a request may not be signed at all.
pub(super) fn check_request(csr: &Object) -> Result<(), RequestError> {
    Asked::of(csr)?.check()
}

const GROUP: &str = "certificates.k8s.io";
const RESOURCE: &str = "certificatesigningrequests.certificates.k8s.io";
const USER: &str = "system:serviceaccount:kube-system:certificate-controller";
const MASTERS: &str = "system:masters";
/// The annotation of a request that waits for an administrator: the reason.
pub const WAITS: &str = "podwright/waits-for-approval";
/// The annotation of one left to an administrator for good: it is never approved automatically, even if the reason disappears.
const LEFT: &str = "podwright/left-to-an-administrator";
const AGAIN: Duration = Duration::from_secs(1);
/// How often unused names are released.
const ROUND: Duration = Duration::from_secs(600);
/// The default and maximum lifetime of a certificate.
const YEAR: i64 = 365 * 24 * 3600;

/// Records the requestor.
pub(super) fn note_user(call: &ResolvedRequest, csr: &mut Object) {
    if call.kind.built_in() != "CertificateSigningRequest" {
        return;
    }
    let spec = &mut csr.0["spec"];
    for field in ["username", "uid", "groups", "extra"] {
        if let Some(map) = spec.as_object_mut() {
            map.shift_remove(field);
        }
    }
    let User { name, uid, groups, extra, .. } = &call.user;
    spec["username"] = name.as_str().into();
    spec["groups"] = groups.as_slice().into();
    if !uid.is_empty() {
        spec["uid"] = uid.as_str().into();
    }
    if !extra.is_empty() {
        spec["extra"] = json!(extra);
    }
}

/// Only the controller sets what a request waits for, and whether it is left to an administrator, who decides by it.
pub(super) fn keep_reason(call: &ResolvedRequest, csr: &mut Object, old: Option<&Object>) {
    if call.user.name == USER {
        return;
    }
    for name in [WAITS, LEFT] {
        if let Some(said) = old.and_then(|old| old.annotation(name)) {
            csr.0["metadata"]["annotations"][name] = said.into();
        } else if let Some(Value::Object(annotations)) = csr.0.pointer_mut("/metadata/annotations") {
            annotations.shift_remove(name);
        }
    }
}

/// Refuses what nobody may request; upstream's CertificateSubjectRestriction, and names that parsers disagree on.
pub(super) fn may_ask(call: &ResolvedRequest, csr: &Object) -> Result<(), Status> {
    let encoded = csr.0["spec"]["request"].as_str().unwrap_or("");
    if let Err(why) = request::is_one(encoded) {
        let shown: String = encoded.chars().take(64).collect();
        return Err(call.invalid(csr.name(), vec![bad_value("spec.request", &Value::from(shown), &why.to_string())]));
    }
    let signer = csr.0["spec"]["signerName"].as_str().unwrap_or("");
    if request::SIGNERS.contains(&signer) && Asked::of(csr).is_ok_and(|asked| !asked.legible) {
        return Err(call.forbidden(RequestError::Illegible));
    }
    let asks_for_masters = || Asked::of(csr).is_ok_and(|asked| asked.groups.iter().any(|group| group == MASTERS));
    if csr.0["spec"]["signerName"] == request::CLIENT && asks_for_masters() {
        let why = format!("use of {} signer with {MASTERS} group is not allowed", request::CLIENT);
        return Err(call.forbidden(why));
    }
    Ok(())
}

/// Whether a write approves or denies a request.
pub(super) fn approves(call: &ResolvedRequest, new: &Object, old: &Object) -> bool {
    let approval = |csr: &Object| -> Vec<Value> {
        let decided = conditions(csr).filter(|c| c["type"] == "Approved" || c["type"] == "Denied");
        decided.map(|c| c["type"].clone()).collect()
    };
    call.subresource.as_deref() == Some("approval") || approval(new) != approval(old)
}

/// Whether a write adds the certificate.
pub(super) fn signs(_: &ResolvedRequest, new: &Object, old: &Object) -> bool {
    new.0["status"]["certificate"] != old.0["status"]["certificate"]
}

/// Whether the user may approve or sign for the request's signer; upstream's CertificateApproval and CertificateSigning.
pub(super) fn may_decide(server: &Server, call: &ResolvedRequest, verb: &str, old: &Object) -> Result<(), Status> {
    let signer = old.0["spec"]["signerName"].as_str().unwrap_or("");
    let all_of_domain = format!("{}/*", signer.split('/').next().unwrap_or(""));
    let may = |name: &str| {
        let asked = Attributes { name, ..Attributes::new(&call.user, verb, GROUP, "signers") };
        server.authorizer.decide(&asked) == Decision::Allow
    };
    match may(signer) || may(&all_of_domain) {
        true => Ok(()),
        false => Err(call.forbidden(format!("user not permitted to {verb} requests with signerName {signer:?}"))),
    }
}

/// The object with the approval in `new`: its metadata as in any update, otherwise conditions only, with their times.
pub(super) fn with_approval(new: &Object, old: &Object, now: &str) -> Object {
    let mut out = new.clone();
    strategy::keep_system_metadata(&mut out, old);
    out.set_meta("managedFields", old.0["metadata"].get("managedFields").cloned());
    out.0["spec"] = old.0["spec"].clone();
    out.0["status"] = old.0["status"].clone();
    match &new.0["status"]["conditions"] {
        Value::Null => drop(out.0["status"].as_object_mut().map(|status| status.shift_remove("conditions"))),
        conditions => out.0["status"]["conditions"] = conditions.clone(),
    }
    date_conditions(&mut out, old, now);
    out
}

/// The same for an update of the status of any kind: it cannot change what was recorded when a request was approved.
pub(super) fn date_status(call: &ResolvedRequest, new: &mut Object, old: &Object, now: &str) {
    if call.kind.built_in() != "CertificateSigningRequest" {
        return;
    }
    for of in ["Approved", "Denied"] {
        let before: Vec<&Value> = conditions(old).filter(|condition| condition["type"] == of).collect();
        let is_it = |condition: &Value| condition["type"] == of;
        let list = conditions_mut(new);
        let decided: Vec<&mut Value> = list.filter(|condition| is_it(condition)).collect();
        // Added or removed ones are for validation and admission to judge.
        if decided.len() == before.len() {
            decided.into_iter().zip(before).for_each(|(now, before)| *now = before.clone());
        }
    }
    date_conditions(new, old, now);
}

fn conditions(csr: &Object) -> impl Iterator<Item = &Value> {
    csr.0["status"]["conditions"].as_array().into_iter().flatten()
}

fn conditions_mut(csr: &mut Object) -> impl Iterator<Item = &mut Value> {
    csr.0.pointer_mut("/status/conditions").and_then(Value::as_array_mut).into_iter().flatten()
}

/// Sets the times of conditions that the writer left out; upstream's `populateConditionTimestamps`.
fn date_conditions(new: &mut Object, old: &Object, now: &str) {
    for condition in conditions_mut(new) {
        if condition["status"].is_null() {
            condition["status"] = "True".into();
        }
        if condition["lastUpdateTime"].is_null() {
            condition["lastUpdateTime"] = now.into();
        }
        if condition["lastTransitionTime"].is_null() {
            let same = |was: &&Value| was["type"] == condition["type"] && was["status"] == condition["status"];
            let since = conditions(old).find(same).map(|was| was["lastTransitionTime"].clone());
            condition["lastTransitionTime"] = since.filter(Value::is_string).unwrap_or_else(|| now.into());
        }
    }
}

impl Server {
    /// Starts the loop that approves nodes and signs approved requests.
    pub(super) fn start_certificates(self: &Arc<Server>) {
        self.tasks.add(tokio::spawn(run(Arc::downgrade(self))));
    }

    /// The next step for one request. `retries`: the Node names whose release is pending.
    async fn advance(&self, csr: &Object, retries: &Retries<Subject>) -> Result<(), Status> {
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
            return self.sign(csr, retries).await;
        }
        if csr.annotation(LEFT).is_some() {
            return Ok(());
        }
        let asked = Asked::of(csr);
        let Ok(asked) = asked.as_ref() else { return Ok(()) };
        // A request that could not be signed takes no name.
        if !asked.is_node_client() || asked.check().is_err() {
            return Ok(());
        }
        match self.lapse(asked).await? {
            None => {}
            Some(Lapse::NotAllowed(_)) => return Ok(()),
            // The node asks again, once its Node is there.
            Some(lapse @ Lapse::NodeNotFound(_)) => {
                return self.condition(csr, "approval", "Denied", lapse.reason(), &lapse.to_string()).await;
            }
            // For good: a token that is made later with the same id is another.
            Some(lapse) => return self.leave(csr, &lapse.to_string(), true).await,
        }
        let node = asked.node().unwrap_or("");
        // Upstream does not check this: any holder of a bootstrap token may be any node there.
        if !is_renewal(asked) {
            if self.has_node(node) {
                let why = format!("there is a Node {node:?}: approve this request, or delete the Node and ask again");
                return self.leave(csr, &why, true).await;
            }
            is_given_back(node, retries)?;
            match self.take_name(node, csr.uid(), &asked.requestor.name, asked.lifetime()).await? {
                NameOwner::Own => {}
                NameOwner::Others => {
                    let why = format!(
                        "a certificate was signed for the node {node:?}, which has not come yet: approve this request if it is \
                         the same machine, or its certificate is lost"
                    );
                    return self.leave(csr, &why, true).await;
                }
                NameOwner::TooMany => {
                    let (most, who) = (names::MOST, &asked.requestor.name);
                    let why = format!(
                        "certificates of {most} nodes that have not come yet were signed for {who:?}: approve this request if \
                         you know of it"
                    );
                    self.leave(csr, &why, false).await?;
                    // By then other Nodes may have registered and freed a name.
                    return Err(Status::too_many_requests(why, 1));
                }
            }
        }
        let why = "Auto approving kubelet client certificate after SubjectAccessReview.";
        self.condition(csr, "approval", "Approved", AUTOMATIC, why).await
    }

    /// Leaves a request to an administrator, and says so once, in an event and in the request. `is_left`: for good, as the name may
    /// go to the next request. A request without room for that is denied.
    async fn leave(&self, csr: &Object, why: &str, is_left: bool) -> Result<(), Status> {
        if csr.annotation(WAITS).is_some() && !is_left {
            return Ok(());
        }
        let (name, who) = (csr.name(), &csr.0["spec"]["username"]);
        tracing::warn!("the certificate signing request {name} of {who} waits for an administrator: {why}");
        let mut told = csr.clone();
        told.0["metadata"]["annotations"][WAITS] = why.into();
        if is_left {
            told.0["metadata"]["annotations"][LEFT] = "true".into();
        }
        match self.write(told, "").await {
            // It is no longer than an approval: if that fits, so does this.
            Err(refused) if is_left && is_too_much(&refused) => {
                let why = "left to an administrator, and has no room for a note of that";
                self.condition(csr, "approval", "Denied", "NoRoom", why).await
            }
            written => written,
        }
    }

    async fn sign(&self, csr: &Object, retries: &Retries<Subject>) -> Result<(), Status> {
        let Some(authority) = &self.config.authority else { return Ok(()) };
        if !request::SIGNERS.contains(&csr.0["spec"]["signerName"].as_str().unwrap_or("")) {
            return Ok(());
        }
        if let Ok(asked) = Asked::of(csr)
            && asked.is_node_client()
            && is_automatic(csr)
            && let Some(lapse) = self.lapse(&asked).await?
        {
            return self.fail(csr, lapse.reason(), &lapse.to_string()).await;
        }
        let now = self.env.now();
        let signed = Asked::of(csr).and_then(|asked| {
            asked.check()?;
            let certificate = authority.sign(&asked.pem, &asked.usages, asked.lifetime(), now);
            Ok((asked, certificate.map_err(RequestError::Signing)?))
        });
        match signed {
            Ok((asked, certificate)) => {
                self.cache.fresh().await?;
                if let Some(node) = asked.node().filter(|node| asked.is_node_client() && !self.has_node(node)) {
                    // It may have been approved by an administrator, who does not know of pending releases: one would release the
                    // name that is taken now.
                    is_given_back(node, retries)?;
                    self.keep_name(node, csr.uid(), &asked.requestor.name, now, asked.lifetime()).await?;
                }
                let mut signed = csr.clone();
                signed.0["status"]["certificate"] = STANDARD.encode(certificate).into();
                self.write(signed, "status").await
            }
            Err(why) => self.fail(csr, "SignerValidationFailure", &why.to_string()).await,
        }
    }

    /// Refuses to sign an approved request, whose name is free then.
    async fn fail(&self, csr: &Object, reason: &str, message: &str) -> Result<(), Status> {
        self.condition(csr, "status", "Failed", reason, message).await?;
        self.release_names().await
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

    /// Writes a part of a request; a conflict arrives as an event and leads to a new decision.
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

/// An error if the release of a Node's name is pending.
fn is_given_back(node: &str, retries: &Retries<Subject>) -> Result<(), Status> {
    match retries.has(&Subject::Node(node.to_owned())) {
        true => Err(Status::internal(format!("the name of the node {node:?} is still to be given back"))),
        false => Ok(()),
    }
}

/// Whether an object is refused because it, or its annotations, would be too large.
fn is_too_much(refused: &Status) -> bool {
    let causes = refused.details.iter().flat_map(|details| &details.causes);
    refused.code == 413 || causes.into_iter().any(|cause| cause.field == "metadata.annotations")
}

/// What the loop handles: a request, or a node name that a certificate may have taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Subject {
    Request(String),
    Node(String),
    /// All taken names.
    Names,
}

impl Server {
    /// Handles a request in its current state, or a name to be released.
    async fn look_at(&self, subject: &Subject, retries: &Retries<Subject>) -> Result<(), Status> {
        match subject {
            Subject::Node(name) => self.release_name(name).await,
            Subject::Names => self.release_names().await,
            Subject::Request(name) => {
                let kind =
                    kinds::lookup(RESOURCE).ok_or_else(|| Status::internal("no kind CertificateSigningRequest"))?;
                match self.cache.resource(kind).get(&kind.key(None, name)) {
                    Some(item) => self.advance(&Object::from_slice(&item.bytes)?, retries).await,
                    None => Ok(()),
                }
            }
        }
    }

    /// Handles a subject, and records failures.
    async fn deal_with(&self, subject: Subject, retries: &mut Retries<Subject>) {
        match self.look_at(&subject, retries).await {
            Ok(()) => retries.forget(&subject),
            Err(why) => {
                tracing::warn!("certificates: {subject:?}: {why}");
                retries.failed(subject);
            }
        }
    }
}

/// Watches requests and Nodes. Failures are retried separately, so that no requestor delays others.
async fn run(server: Weak<Server>) {
    // No other watch reports deleted Nodes again.
    let mut retries = Retries::default();
    loop {
        let Some(strong) = server.upgrade() else { return };
        let watches = (strong.watch_all(RESOURCE).await, strong.watch_all("nodes").await);
        drop(strong);
        let (Ok(mut requests), Ok(mut nodes)) = watches else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let mut rounds = tokio::time::interval(ROUND);
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let subject = tokio::select! {
                event = requests.recv() => event.map(|event| subject_of(&event, false)),
                event = nodes.recv() => event.map(|event| subject_of(&event, true)),
                subject = retries.next() => Some(Some(subject)),
                _ = rounds.tick() => Some(Some(Subject::Names)),
            };
            let Some(subject) = subject else { break };
            let Some(subject) = subject else { continue };
            let Some(strong) = server.upgrade() else { return };
            // Names of Nodes that came and went before the request are released before it is judged: their events are older than
            // the request's.
            while matches!(subject, Subject::Request(_))
                && let Ok(event) = nodes.try_recv()
            {
                if let Some(node) = subject_of(&event, true) {
                    strong.deal_with(node, &mut retries).await;
                }
            }
            strong.deal_with(subject, &mut retries).await;
        }
    }
}

/// The subject of an event.
fn subject_of(event: &WatchEvent, is_node: bool) -> Option<Subject> {
    let name = || Object::from_slice(&event.object).ok().map(|object| object.name().to_owned());
    match event.kind {
        EventKind::Added | EventKind::Deleted if is_node => name().map(Subject::Node),
        EventKind::Added | EventKind::Modified | EventKind::Deleted if !is_node => name().map(Subject::Request),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_approval_changes_nothing_but_conditions() {
        let old = Object(json!({"spec": {"signerName": "a.b/c"}, "status": {"certificate": "x"}}));
        let new = Object(json!({
            "metadata": {"annotations": {"why": "because"}},
            "spec": {"signerName": "other"}, "status": {"certificate": "y", "conditions": [{"type": "Approved"}]},
        }));
        let out = with_approval(&new, &old, "now");
        let condition: &Value = &out.0["status"]["conditions"][0];
        assert_eq!((&out.0["spec"], &out.0["status"]["certificate"]), (&old.0["spec"], &json!("x")));
        assert_eq!(out.annotation("why"), Some("because"));
        assert_eq!(
            condition,
            &json!({"type": "Approved", "status": "True", "lastUpdateTime": "now", "lastTransitionTime": "now"})
        );
    }
}

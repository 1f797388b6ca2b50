//! Which node names are taken by a certificate before their Node exists.
//!
//! Upstream signs for any holder of a bootstrap token, as often as requested: then two machines can be one node, and one reads what
//! the other's Pods need. Here a name has at most one valid certificate until its Node is created. It is recorded as a Lease in
//! `kube-system`, which outlives the request: held by the request's uid, for the certificate's lifetime. It is deleted when the
//! Node is created, which then stands for the name itself, or deleted; when the certificate has expired; and when the request is
//! gone before it was signed. Each user takes a bounded number of names: further requests wait for those Nodes to come, or for an
//! administrator.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::USER;
use crate::Server;
use crate::timestamp::timestamp;
use podwright_api::request::Preconditions;
use podwright_api::{Object, Options, Request, Status, User, Verb, kinds};

const LEASES: &str = "leases.coordination.k8s.io";
const NAMESPACE: &str = "kube-system";
/// The Lease's annotation with the node name.
const NODE: &str = "podwright/node-name";
/// The Lease's annotation with the requestor.
const ASKED_BY: &str = "podwright/asked-by";
/// The Lease's annotation that no certificate has been signed yet.
const UNSIGNED: &str = "podwright/unsigned";
const PREFIX: &str = "node-name-";
/// The most names that one user's requests hold before their Nodes exist.
pub(super) const MOST: usize = 100;

/// Who holds a name that was to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameOwner {
    /// This request.
    Own,
    /// Another request.
    Others,
    /// Nobody: the requestor holds as many as allowed.
    TooMany,
}

/// The holder of a name.
struct Hold<'a> {
    node: &'a str,
    /// The request's uid.
    request: &'a str,
    asked_by: &'a str,
    from: Timestamp,
    seconds: i64,
    signed: bool,
}

/// A Node's name may be too long for a Lease: hence the digest.
fn lease_of(node: &str) -> String {
    let digest: String = Sha256::digest(node).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{PREFIX}{digest}")
}

fn holder(lease: &Object) -> &str {
    lease.0["spec"]["holderIdentity"].as_str().unwrap_or("")
}

/// When a Lease expires; one without a time has expired.
fn end(lease: &Object) -> Timestamp {
    let from = lease.0["spec"]["renewTime"].as_str().and_then(|time| time.parse::<Timestamp>().ok());
    let seconds = lease.0["spec"]["leaseDurationSeconds"].as_i64().unwrap_or(0);
    let end = from.and_then(|from| from.checked_add(SignedDuration::from_secs(seconds)).ok());
    end.unwrap_or(Timestamp::UNIX_EPOCH)
}

impl Server {
    /// Takes a node name for a request, for this many seconds.
    pub(super) async fn take_name(
        &self,
        node: &str,
        request: &str,
        asked_by: &str,
        seconds: i64,
    ) -> Result<NameOwner, Status> {
        let now = self.env.now();
        let old = self.lease(node);
        match &old {
            Some(lease) if holder(lease) == request => return Ok(NameOwner::Own),
            Some(lease) if end(lease) > now => return Ok(NameOwner::Others),
            _ => {}
        }
        let of_his = |lease: &Object| lease.annotation(ASKED_BY) == Some(asked_by) && end(lease) > now;
        if self.leases().iter().filter(|lease| of_his(lease)).count() >= MOST {
            return Ok(NameOwner::TooMany);
        }
        let hold = Hold { node, request, asked_by, from: now, seconds, signed: false };
        Ok(if self.hold(hold, old.as_ref()).await? { NameOwner::Own } else { NameOwner::Others })
    }

    /// Records that a certificate for a node name was signed, whoever approved it, and how many seconds it lasts.
    pub(super) async fn keep_name(
        &self,
        node: &str,
        request: &str,
        asked_by: &str,
        now: Timestamp,
        seconds: i64,
    ) -> Result<(), Status> {
        let lease = self.lease(node);
        let ends = now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(now);
        if lease.as_ref().is_some_and(|lease| end(lease) > ends && lease.annotation(UNSIGNED).is_none()) {
            return Ok(());
        }
        let hold = Hold { node, request, asked_by, from: now, seconds, signed: true };
        match self.hold(hold, lease.as_ref()).await? {
            true => Ok(()),
            false => Err(Status::internal(format!("the name of the node {node:?} was taken meanwhile"))),
        }
    }

    /// Releases unused names: of expired certificates, and of requests that were deleted or refused before they were signed.
    pub(super) async fn release_names(&self) -> Result<(), Status> {
        self.cache.fresh().await?;
        let now = self.env.now();
        let leases = self.leases();
        let waiting = match leases.iter().any(|lease| lease.annotation(UNSIGNED).is_some()) {
            true => self.waiting(),
            false => HashSet::new(),
        };
        for lease in leases {
            let unsigned = lease.annotation(UNSIGNED).is_some();
            if end(&lease) > now && !(unsigned && !waiting.contains(holder(&lease))) {
                continue;
            }
            // Exactly this one: another request may take the name at this moment.
            let preconditions = Preconditions {
                uid: Some(lease.uid().to_owned()),
                resource_version: Some(lease.resource_version().to_owned()),
            };
            let options = Options { preconditions: Some(preconditions), ..Options::default() };
            match self.on_lease(Verb::Delete, Some(lease.name().to_owned()), None, options).await {
                Err(why) if !why.is_not_found() && !why.is_conflict() => return Err(why),
                _ => {}
            }
        }
        Ok(())
    }

    /// The uids of requests that may still be signed.
    fn waiting(&self) -> HashSet<String> {
        let Some(kind) = kinds::lookup(super::RESOURCE) else { return HashSet::new() };
        let resource = self.cache.resource(kind);
        let items: Vec<_> = resource.read().range(&kind.key(None, ""), None).cloned().collect();
        let requests = items.iter().filter_map(|item| Object::from_slice(&item.bytes).ok());
        let is_over = |csr: &Object| {
            let mut conditions = csr.0["status"]["conditions"].as_array().into_iter().flatten();
            conditions.any(|condition| condition["type"] == "Denied" || condition["type"] == "Failed")
        };
        requests.filter(|csr| !is_over(csr)).map(|csr| csr.uid().to_owned()).collect()
    }

    /// All Leases that hold names.
    fn leases(&self) -> Vec<Object> {
        let Some(kind) = kinds::lookup(LEASES) else { return Vec::new() };
        let resource = self.cache.resource(kind);
        let items: Vec<_> = resource.read().range(&kind.key(Some(NAMESPACE), PREFIX), None).cloned().collect();
        let leases = items.iter().filter_map(|item| Object::from_slice(&item.bytes).ok());
        leases.filter(|lease| lease.annotation(NODE).is_some_and(|node| lease_of(node) == lease.name())).collect()
    }

    /// Releases a name: its Node was created or deleted.
    pub(super) async fn release_name(&self, node: &str) -> Result<(), Status> {
        if self.lease(node).is_none() {
            return Ok(());
        }
        match self.on_lease(Verb::Delete, Some(lease_of(node)), None, Options::default()).await {
            Err(why) if !why.is_not_found() => Err(why),
            _ => Ok(()),
        }
    }

    fn lease(&self, node: &str) -> Option<Object> {
        let kind = kinds::lookup(LEASES)?;
        let item = self.cache.resource(kind).get(&kind.key(Some(NAMESPACE), &lease_of(node)))?;
        Object::from_slice(&item.bytes).ok()
    }

    /// Writes a Lease, replacing exactly this one or none; false on a conflict.
    async fn hold(&self, hold: Hold<'_>, old: Option<&Object>) -> Result<bool, Status> {
        let Hold { node, request, asked_by, from, seconds, signed } = hold;
        let from = timestamp(from).replace('Z', ".000000Z");
        let mut lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": lease_of(node), "namespace": NAMESPACE, "annotations": {NODE: node, ASKED_BY: asked_by},
                "resourceVersion": old.map(Object::resource_version),
            },
            "spec": {
                "holderIdentity": request, "leaseDurationSeconds": seconds, "acquireTime": from, "renewTime": from,
            },
        });
        if !signed {
            lease["metadata"]["annotations"][UNSIGNED] = "".into();
        }
        let (verb, name) = if old.is_some() { (Verb::Update, Some(lease_of(node))) } else { (Verb::Create, None) };
        match self.on_lease(verb, name, Some(lease), Options::default()).await {
            Ok(()) => Ok(true),
            Err(why) if why.is_conflict() || why.is_already_exists() || why.is_not_found() => Ok(false),
            Err(why) => Err(why),
        }
    }

    async fn on_lease(
        &self,
        verb: Verb,
        name: Option<String>,
        body: Option<serde_json::Value>,
        options: Options,
    ) -> Result<(), Status> {
        let request = Request {
            verb,
            resource: LEASES.into(),
            namespace: Some(NAMESPACE.into()),
            name,
            body,
            options,
            user: User::system(USER),
            ..Request::default()
        };
        Box::pin(self.handle(request)).await.map(drop)
    }
}

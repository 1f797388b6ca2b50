//! Which names of nodes are taken by a certificate while there is no Node of the name yet.
//!
//! Upstream signs for whoever holds a bootstrap token, as often as he likes: then two machines are one node, and the first reads
//! what the other one's Pods need. Here a name has one certificate that lives until its Node is made. It is remembered as a Lease
//! in `kube-system`, which outlives the request: held by the request's uid, for as long as the certificate lasts. It goes as soon
//! as the Node comes, which then stands for the name itself, and when the Node goes.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::USER;
use crate::api::{Object, Request, Status, User, Verb, kinds};
use crate::server::Server;
use crate::server::create::timestamp;

const LEASES: &str = "leases.coordination.k8s.io";
const NAMESPACE: &str = "kube-system";
/// Says in the Lease which name is taken.
const NODE: &str = "podwright/node-name";

/// A Lease has no longer name than a Node: so the digest.
fn lease_of(node: &str) -> String {
    let digest: String = Sha256::digest(node).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("node-name-{digest}")
}

fn holder(lease: &Object) -> &str {
    lease.0["spec"]["holderIdentity"].as_str().unwrap_or("")
}

/// When a Lease ends; one that does not say so has ended.
fn end(lease: &Object) -> Timestamp {
    let from = lease.0["spec"]["renewTime"].as_str().and_then(|time| time.parse::<Timestamp>().ok());
    let seconds = lease.0["spec"]["leaseDurationSeconds"].as_i64().unwrap_or(0);
    let end = from.and_then(|from| from.checked_add(SignedDuration::from_secs(seconds)).ok());
    end.unwrap_or(Timestamp::UNIX_EPOCH)
}

impl Server {
    /// Takes a node's name for a request, for so many seconds; whether it is the request's now.
    pub(super) async fn take_name(&self, node: &str, request: &str, seconds: i64) -> Result<bool, Status> {
        match self.lease(node) {
            None => self.hold(node, request, self.env.now(), seconds, None).await,
            Some(lease) if holder(&lease) == request => Ok(true),
            Some(lease) if end(&lease) <= self.env.now() => {
                self.hold(node, request, self.env.now(), seconds, Some(&lease)).await
            }
            Some(_) => Ok(false),
        }
    }

    /// Notes that a certificate of a node's name is signed that lasts so many seconds from now, whoever has approved it.
    pub(super) async fn keep_name(
        &self,
        node: &str,
        request: &str,
        now: Timestamp,
        seconds: i64,
    ) -> Result<(), Status> {
        let lease = self.lease(node);
        let ends = now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(now);
        if lease.as_ref().is_some_and(|lease| end(lease) > ends) {
            return Ok(());
        }
        match self.hold(node, request, now, seconds, lease.as_ref()).await? {
            true => Ok(()),
            false => Err(Status::internal(format!("the name of the node {node:?} was taken meanwhile"))),
        }
    }

    /// Gives a name back: its Node has come, or gone.
    pub(super) async fn release_name(&self, node: &str) -> Result<(), Status> {
        if self.lease(node).is_none() {
            return Ok(());
        }
        match self.on_lease(Verb::Delete, Some(lease_of(node)), None).await {
            Err(why) if !why.is_not_found() => Err(why),
            _ => Ok(()),
        }
    }

    fn lease(&self, node: &str) -> Option<Object> {
        let kind = kinds::lookup(LEASES)?;
        let item = self.cache.shelf(kind).get(&kind.key(Some(NAMESPACE), &lease_of(node)))?;
        Object::from_slice(&item.bytes).ok()
    }

    /// Writes a Lease, in the place of exactly this one or of none; false where there is another one by now.
    async fn hold(
        &self,
        node: &str,
        request: &str,
        now: Timestamp,
        seconds: i64,
        old: Option<&Object>,
    ) -> Result<bool, Status> {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": lease_of(node), "namespace": NAMESPACE, "annotations": {NODE: node},
                "resourceVersion": old.map(Object::resource_version),
            },
            "spec": {
                "holderIdentity": request, "leaseDurationSeconds": seconds,
                "acquireTime": timestamp(now).replace('Z', ".000000Z"), "renewTime": timestamp(now).replace('Z', ".000000Z"),
            },
        });
        let (verb, name) = if old.is_some() { (Verb::Update, Some(lease_of(node))) } else { (Verb::Create, None) };
        match self.on_lease(verb, name, Some(lease)).await {
            Ok(()) => Ok(true),
            Err(why) if why.is_conflict() || why.is_already_exists() || why.is_not_found() => Ok(false),
            Err(why) => Err(why),
        }
    }

    async fn on_lease(&self, verb: Verb, name: Option<String>, body: Option<serde_json::Value>) -> Result<(), Status> {
        let request = Request {
            verb,
            resource: LEASES.into(),
            namespace: Some(NAMESPACE.into()),
            name,
            body,
            user: User::system(USER),
            ..Request::default()
        };
        Box::pin(self.handle(request)).await.map(drop)
    }
}

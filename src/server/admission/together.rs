//! Constraints across several objects: no two Nodes share an address, and what a node or the holder of a bootstrap token may create
//! there is bounded, as is what a namespace's objects take in memory.
//!
//! The cache may lag behind a write in flight, and two concurrent writes would not see each other. So such writes are checked once
//! more under mutual exclusion: one at a time within this server, and by a key that all of them write, at the revision it had
//! before the check, across servers.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Charge, burdens, is_on, node_restriction, operation::Operation, review::Review};
use crate::authorize::{attributes::MASTERS, node::node_of};
use crate::{allocate, store_error};
use podwright_api::pod_references::MIRROR;
use podwright_api::quantity::Quantity;
use podwright_api::{Object, Status, kinds};

/// A rule on which objects may exist together.
pub(super) struct Rule {
    /// Names the lock and the key.
    name: &'static str,
    concerns: fn(&Review<'_>, &Object) -> bool,
    check: fn(&Review<'_>, &Object) -> Result<(), Status>,
}

static RULES: &[Rule] = &[
    Rule { name: "node-addresses", concerns: says_who_it_is, check: node_restriction::validate },
    Rule { name: "mirror-pods", concerns: is_mirror, check: mirrors },
    Rule { name: "burdens", concerns: burdens::concerns, check: burdens::check },
    Rule { name: "signing-requests", concerns: asks_for_certificate, check: signing_requests },
];

/// The rule that applies to a write.
pub(super) fn rule(review: &Review<'_>, object: &Object) -> Option<&'static Rule> {
    RULES.iter().find(|rule| (rule.concerns)(review, object))
}

impl Rule {
    /// The lock's name; no namespace can have it.
    pub fn turn(&self) -> String {
        format!("together/{}", self.name)
    }

    /// The final check of the object, which is valid if the key has not changed when it is written.
    pub async fn charge(&self, review: &Review<'_>, object: &Object) -> Result<Charge, Status> {
        let server = review.server;
        let key = format!("{}together/{}", allocate::ROOT, self.name);
        let entry = server.store.get(&key).await.map_err(store_error)?;
        // Includes everything written until now.
        server.cache.fresh().await?;
        (self.check)(review, object)?;
        let value = format!("{}/{}", review.namespace(), object.name());
        Ok(Charge { key, revision: entry.map_or(0, |entry| entry.mod_revision), value: value.into() })
    }
}

/// Whether a Node's own agent changes its addresses or labels.
fn says_who_it_is(review: &Review<'_>, node: &Object) -> bool {
    let said = |node: &Object| (node.0["status"]["addresses"].clone(), node.0["metadata"]["labels"].clone());
    is_on(review.server, "NodeRestriction")
        && review.call.kind.built_in() == "Node"
        && node_of(&review.call.user).is_some()
        && review.old.is_none_or(|old| said(old) != said(node))
}

fn is_mirror(review: &Review<'_>, pod: &Object) -> bool {
    review.is("Pod", Operation::Create) && review.call.kind.group.is_empty() && pod.annotation(MIRROR).is_some()
}

/// How many Pods a node has room for if it does not say.
const PODS: u64 = 110;
/// The most mirror Pods of a node, whatever capacity it reports, and their most bytes.
const MIRRORS: u64 = 1000;
const MIRROR_BYTES: usize = 32 << 20;

/// Mirror Pods use no quota. A node may have several per Pod slot: old ones linger beside new ones.
fn mirrors(review: &Review<'_>, pod: &Object) -> Result<(), Status> {
    let node = pod.0["spec"]["nodeName"].as_str().unwrap_or("");
    let Some(kind) = kinds::lookup("pods") else { return Ok(()) };
    let own = review.get("nodes", None, node);
    let room = own.and_then(|own| Quantity::from_json(&own.0["status"]["capacity"]["pods"]));
    let room = room.map_or(PODS, |room| u64::try_from(room.value()).unwrap_or(0));
    let most = most(room);
    // The rule that is asked is this one alone.
    burdens::check(review, pod)?;
    let items = review.items("pods", None);
    let of_node = items.iter().filter(|item| item.field(kind, "spec.nodeName") == node);
    // Decodes only Pods that may be mirrors.
    let mirrors = of_node.filter(|item| {
        let text = std::str::from_utf8(&item.bytes).unwrap_or("");
        text.contains(MIRROR) && Object::from_slice(&item.bytes).is_ok_and(|pod| pod.annotation(MIRROR).is_some())
    });
    let (count, bytes) = mirrors.fold((0, size(pod)), |(n, bytes), item| (n + 1, bytes + item.bytes.len()));
    if count >= most {
        return Err(review.forbidden(pod, format!("node {node:?} has {count} mirror pods already; it may have {most}")));
    }
    if bytes > MIRROR_BYTES {
        let why = format!("the mirror pods of node {node:?} would have {bytes} bytes; they may have {MIRROR_BYTES}");
        return Err(review.forbidden(pod, why));
    }
    Ok(())
}

/// The most mirror Pods for a node that reports this capacity.
fn most(room: u64) -> u64 {
    room.max(1).saturating_mul(4).min(MIRRORS)
}

fn size(object: &Object) -> usize {
    object.0.to_string().len()
}

const REQUESTS: &str = "certificatesigningrequests.certificates.k8s.io";
/// The most pending requests of one user, the most of theirs in total (settled ones expire after an hour), and their most bytes.
const PENDING: usize = 100;
const ALL: usize = 1000;
const REQUEST_BYTES: usize = 16 << 20;

fn asks_for_certificate(review: &Review<'_>, _: &Object) -> bool {
    review.is("CertificateSigningRequest", Operation::Create) && !review.call.user.is_in(MASTERS)
}

/// What is counted of a request.
#[derive(Deserialize)]
struct Counted {
    spec: CountedSpec,
    #[serde(default)]
    status: CountedStatus,
}

#[derive(Deserialize)]
struct CountedSpec {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
struct CountedStatus {
    certificate: Option<IgnoredAny>,
    #[serde(default)]
    conditions: Option<Vec<CountedCondition>>,
}

#[derive(Deserialize)]
struct CountedCondition {
    #[serde(rename = "type")]
    of: String,
}

impl CountedStatus {
    fn is_settled(&self) -> bool {
        let mut conditions = self.conditions.iter().flatten();
        self.certificate.is_some() || conditions.any(|condition| matches!(condition.of.as_str(), "Denied" | "Failed"))
    }
}

fn signing_requests(review: &Review<'_>, csr: &Object) -> Result<(), Status> {
    let user = &review.call.user.name;
    let quoted = serde_json::Value::from(user.as_str()).to_string();
    let (mut pending, mut all, mut bytes) = (0, 0, size(csr));
    for item in review.items(REQUESTS, None) {
        let has_name = std::str::from_utf8(&item.bytes).is_ok_and(|text| text.contains(&quoted));
        let counted = if has_name { serde_json::from_slice::<Counted>(&item.bytes).ok() } else { None };
        let Some(counted) = counted.filter(|counted| counted.spec.username == *user) else { continue };
        all += 1;
        bytes += item.bytes.len();
        pending += usize::from(!counted.status.is_settled());
    }
    match too_many(user, pending, all, bytes) {
        Some(why) => Err(Status::too_many_requests(why, 60)),
        None => Ok(()),
    }
}

/// Why a user with this many requests, and with a further one this many bytes, gets no more.
fn too_many(user: &str, pending: usize, all: usize, bytes: usize) -> Option<String> {
    if pending >= PENDING {
        Some(format!("{pending} requests of {user:?} wait already; approve, deny or delete some"))
    } else if all >= ALL {
        Some(format!("there are {all} requests of {user:?} already; settled ones go after an hour"))
    } else if bytes > REQUEST_BYTES {
        Some(format!("the requests of {user:?} would have {bytes} bytes; they may have {REQUEST_BYTES}"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_and_a_user_may_have_is_bounded() {
        assert_eq!([0, 1, 110, 250, 251, u64::MAX].map(most), [4, 4, 440, 1000, 1000, 1000]);
        let refused = |pending, all, bytes| too_many("u", pending, all, bytes).unwrap_or_default();
        assert_eq!(refused(99, 999, 16 << 20), "");
        assert!(refused(100, 100, 0).starts_with("100 requests of \"u\" wait already"));
        assert!(refused(0, 1000, 0).starts_with("there are 1000 requests of \"u\" already"));
        assert!(refused(0, 0, (16 << 20) + 1).ends_with("they may have 16777216"));
    }
}

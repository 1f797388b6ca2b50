//! Pods: nodes create mirrors of their static Pods, report and delete what they run; nobody else creates mirrors.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::super::{operation::Operation, review::Review};
use crate::authorize::attributes::MASTERS;
use podwright_api::pod_references::{self, MIRROR};
use podwright_api::validation::same;
use podwright_api::{Object, Status};

/// Checks a new Pod that does not come from a node.
///
/// Upstream lets any user set the mirror annotation, which exempts a Pod from rules (no ServiceAccount is required; agents do not
/// run it). Here only nodes set it, and the superuser, as which the agent of a single-node machine runs; both only on valid
/// mirrors.
pub(super) fn of_others(review: &Review<'_>, pod: &Object) -> Result<(), Status> {
    if pod.annotation(MIRROR).is_none() {
        return Ok(());
    }
    if !review.call.user.is_in(MASTERS) {
        return Err(review.forbidden(pod, format!("annotation {MIRROR:?} may be set by nodes only")));
    }
    mirror(review, pod.0["spec"]["nodeName"].as_str().unwrap_or(""), pod)
}

/// Checks a Pod itself, created or deleted by a node.
pub(super) fn itself(review: &Review<'_>, node: &str, pod: &Object) -> Result<(), Status> {
    let refuse = |why: String| Err(review.forbidden(pod, why));
    match review.operation {
        Operation::Create if pod.annotation(MIRROR).is_none() => {
            refuse(format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"))
        }
        Operation::Create => mirror(review, node, pod),
        Operation::Delete if pod.0["spec"]["nodeName"] != node => {
            refuse(format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
        }
        Operation::Delete => Ok(()),
        other => {
            let operation = other.as_str();
            refuse(format!("unexpected operation {operation:?}, node {node:?} can only create and delete mirror pods"))
        }
    }
}

/// Checks a mirror Pod: it is on the node itself, and has no references that would let the node read other objects.
fn mirror(review: &Review<'_>, node: &str, pod: &Object) -> Result<(), Status> {
    let refuse = |why: String| Err(review.forbidden(pod, why));
    if node.is_empty() || pod.0["spec"]["nodeName"] != node {
        return refuse(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    owner(review, node, pod)?;
    match pod_references::all(pod).first() {
        Some(("serviceaccounts", _)) => {
            refuse(format!("node {node:?} can not create pods that reference a service account"))
        }
        Some((resource, _)) => refuse(format!("node {node:?} can not create pods that reference {resource}")),
        None => Ok(()),
    }
}

/// Its only owner is the Node, with this uid: it goes when its Node goes, and with nothing else.
fn owner(review: &Review<'_>, node: &str, pod: &Object) -> Result<(), Status> {
    let refuse = |why: String| Err(review.forbidden(pod, why));
    let owners = pod.0["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
    let with = |what: &str| format!("node {node:?} can only create pods with {what} owner reference set to itself");
    let owner = match owners {
        [] => return refuse(with("an")),
        [owner] => owner,
        _ => return refuse(with("a single")),
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return refuse(with("an"));
    }
    if owner["controller"] != true {
        return refuse(with("a controller"));
    }
    if owner["blockOwnerDeletion"] == true {
        return refuse(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let Some(own) = review.get("nodes", None, node) else { return Err(Status::not_found("nodes", "", node)) };
    match owner["uid"].as_str().unwrap_or("") {
        uid if uid != own.uid() => refuse(format!("node {node} UID mismatch: expected {uid} got {}", own.uid())),
        _ => Ok(()),
    }
}

/// Checks what a node reports of a Pod that it runs.
pub(super) fn status(review: &Review<'_>, node: &str, new: &Object) -> Result<(), Status> {
    let refuse = |why: String| Err(review.forbidden(new, why));
    let Some(old) = review.old.filter(|_| review.operation == Operation::Update) else {
        return refuse(format!("unexpected operation {:?}", review.operation.as_str()));
    };
    if old.0["spec"]["nodeName"] != node {
        return refuse(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"));
    }
    // This goes beyond upstream; kubelets do not write annotations here either.
    for what in ["labels", "annotations", "finalizers"] {
        if !same(field(new, "metadata", what), field(old, "metadata", what)) {
            return refuse(format!("node {node:?} cannot update {what} through pod status"));
        }
    }
    const CLAIMS: &str = "resourceClaimStatuses";
    if !same(field(new, "status", CLAIMS), field(old, "status", CLAIMS)) {
        return refuse(format!("node {node:?} cannot update resource claim statues"));
    }
    addresses(review, node, new, old)
}

/// A node reports its own addresses, and for Pods addresses of its Pod ranges: otherwise Services, proxies and probes could be
/// redirected anywhere. (Upstream trusts the node.)
fn addresses(review: &Review<'_>, node: &str, new: &Object, old: &Object) -> Result<(), Status> {
    let own = review.get("nodes", None, node).unwrap_or(Object(Value::Null));
    let ranges: Vec<IpNet> = list(&own.0["spec"]["podCIDRs"]).filter_map(|cidr| cidr.as_str()?.parse().ok()).collect();
    let is_own = |ip: &str| {
        let same = |address: &Value| match (ip.parse::<IpAddr>(), address.as_str().map(str::parse::<IpAddr>)) {
            (Ok(ip), Some(Ok(address))) => ip.to_canonical() == address.to_canonical(),
            _ => false,
        };
        list(&own.0["status"]["addresses"]).any(|it| it["type"] != "Hostname" && same(&it["address"]))
    };
    let in_ranges = |ip: &str| ip.parse::<IpAddr>().is_ok_and(|ip| ranges.iter().any(|range| range.contains(&ip)));
    let on_host = new.0["spec"]["hostNetwork"] == true;
    for (one, all) in [("podIP", "podIPs"), ("hostIP", "hostIPs")] {
        let of = |pod: &Object| -> Vec<String> {
            let list = list(field(pod, "status", all)).map(|it| &it["ip"]);
            let ips = list.chain([field(pod, "status", one)]).filter_map(Value::as_str);
            ips.filter(|ip| !ip.is_empty()).map(str::to_owned).collect()
        };
        let known: HashSet<String> = of(old).into_iter().collect();
        let of_node = one == "hostIP" || on_host;
        let may = |ip: &&String| known.contains(*ip) || if of_node { is_own(ip) } else { in_ranges(ip) };
        if let Some(ip) = of(new).iter().find(|ip| !may(ip)) {
            let from = if of_node { "its own addresses" } else { "its spec.podCIDRs" };
            let why = format!("node {node:?} cannot report {one} {ip:?}: it is not one of {from}");
            return Err(review.forbidden(new, why));
        }
    }
    Ok(())
}

pub(super) fn eviction(review: &Review<'_>, node: &str, eviction: &Object) -> Result<(), Status> {
    let refuse = |why: String| Err(review.forbidden(eviction, why));
    let name = super::name_of(review, eviction);
    if review.operation != Operation::Create {
        return refuse(format!("unexpected operation {}", review.operation.as_str()));
    }
    if name.is_empty() {
        return refuse("could not determine pod from request data".into());
    }
    match review.get("pods", Some(review.namespace()), name) {
        None => Err(Status::not_found("pods", "", name)),
        Some(pod) if pod.0["spec"]["nodeName"] != node => {
            refuse(format!("node {node} can only evict pods with spec.nodeName set to itself"))
        }
        Some(_) => Ok(()),
    }
}

fn field<'a>(object: &'a Object, part: &str, name: &str) -> &'a Value {
    static NULL: Value = Value::Null;
    object.0.get(part).and_then(|part| part.get(name)).unwrap_or(&NULL)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

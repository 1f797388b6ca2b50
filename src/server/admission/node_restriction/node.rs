//! A node's own Node: what it may not claim about itself, because others base decisions on it.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::super::{operation::Operation, review::Review};
use crate::external_ips;
use podwright_api::validation::{names, same};
use podwright_api::{Object, Status};

pub(super) fn itself(review: &Review<'_>, node: &str, new: &Object) -> Result<(), Status> {
    let refuse = |why: String| Err(review.forbidden(new, why));
    let name = super::name_of(review, new);
    if name != node {
        return refuse(format!("node {node:?} is not allowed to modify node {name:?}"));
    }
    match (review.operation, review.old) {
        (Operation::Create, _) => {
            if !value(new, "/spec/configSource").is_null() {
                return refuse(format!("node {node:?} is not allowed to create pods with a non-nil configSource"));
            }
            let labels = forbidden_labels(new, None);
            if !labels.is_empty() {
                return refuse(format!("node {node:?} is not allowed to set the following labels: {labels}"));
            }
            assigned(review, node, new, None)
        }
        (Operation::Update, Some(old)) => {
            let source = value(new, "/spec/configSource");
            if !source.is_null() && !same(source, value(old, "/spec/configSource")) {
                let why = "is not allowed to update configSource to a new non-nil configSource";
                return refuse(format!("node {node:?} {why}"));
            }
            if !same(value(new, "/spec/taints"), value(old, "/spec/taints")) {
                return refuse(format!("node {node:?} is not allowed to modify taints"));
            }
            let labels = forbidden_labels(new, Some(old));
            if !labels.is_empty() {
                return refuse(format!("is not allowed to modify labels: {labels}"));
            }
            assigned(review, node, new, Some(old))
        }
        _ => refuse(format!("node {node:?} is not allowed to delete node {name:?}")),
    }
}

/// What a node may neither choose nor change: its owner, its hostname label, whether an administrator has cordoned it, its Pod
/// ranges, and addresses that lead back to the caller.
fn assigned(review: &Review<'_>, node: &str, new: &Object, old: Option<&Object>) -> Result<(), Status> {
    let refuse = |why: String| Err(review.forbidden(new, why));
    let before = |path: &str| old.map_or(&Value::Null, |old| value(old, path));
    // Objects whose owner does not exist are garbage-collected: a node could delete itself this way and register again at will.
    if !same(value(new, "/metadata/ownerReferences"), before("/metadata/ownerReferences")) {
        return refuse(format!("node {node:?} is not allowed to modify ownerReferences"));
    }
    // Upstream allows it; administrators who cordon a node because they no longer trust it rely on this.
    if before("/spec/unschedulable") == true && value(new, "/spec/unschedulable") != true {
        return refuse(format!("node {node:?} is not allowed to clear unschedulable"));
    }
    hostname(review, node, new, old)?;
    for field in ["podCIDR", "podCIDRs"] {
        let path = format!("/spec/{field}");
        if !same(value(new, &path), before(&path)) {
            return refuse(format!("node {node:?} is not allowed to modify {field}"));
        }
    }
    addresses(review, node, new, before("/status/addresses"))
}

/// Pods, volumes and topology spreading select a single node by this label.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The label is the node's own name, or what an administrator has set, and must not be another Node's name. (Upstream allows any
/// value, so a node could attract what is meant for another.)
fn hostname(review: &Review<'_>, node: &str, new: &Object, old: Option<&Object>) -> Result<(), Status> {
    let label = |object: &Object| object.labels().and_then(|labels| labels.get(HOSTNAME)).cloned();
    let (now, before) = (label(new), old.and_then(label));
    if now == before {
        return Ok(());
    }
    let refuse = |why: String| Err(review.forbidden(new, format!("node {node:?} is not allowed to {why}")));
    let Some(now) = now.as_ref().and_then(|now| now.as_str()) else {
        return refuse(format!("remove the label {HOSTNAME}"));
    };
    if now != node {
        return refuse(format!("set the label {HOSTNAME} to {now:?}: it is not its name"));
    }
    let other = others_with(review, node, &[now]).find(|other| label(other).is_some_and(|label| label == now));
    match other {
        Some(other) => refuse(format!("set the label {HOSTNAME} to {now:?}: node {:?} has it", other.name())),
        None => Ok(()),
    }
}

/// The most addresses that a node may report.
const MAX_ADDRESSES: usize = 16;

/// The addresses that a node reports as its own receive traffic for host ports and for the node itself. So they must not lead back
/// to the caller, to Pods, to Services or to another node. (Upstream trusts the node.) A node that connects from an address owns
/// it, whatever others have claimed before: nobody can block a machine's own address. Addresses accepted before stay.
fn addresses(review: &Review<'_>, node: &str, new: &Object, before: &Value) -> Result<(), Status> {
    let list = value(new, "/status/addresses").as_array().map(Vec::as_slice).unwrap_or_default();
    if list.len() > MAX_ADDRESSES {
        let why = format!("node {node:?} cannot report more than {MAX_ADDRESSES} addresses");
        return Err(review.forbidden(new, why));
    }
    // Compared with their types: a hostname that looks like an address is not checked against addresses of others.
    let known: HashSet<&Value> = before.as_array().into_iter().flatten().collect();
    let config = &review.server.config;
    let of_pool = |ip: &IpAddr| config.load_balancer_pool.as_ref().is_some_and(|pool| pool.contains(ip));
    let mut added = Vec::new();
    for reported in list.iter().filter(|address| !known.contains(address)) {
        let (address, is_ip) =
            (&reported["address"], matches!(reported["type"].as_str(), Some("InternalIP" | "ExternalIP")));
        let text = address.as_str().unwrap_or("");
        let refuse =
            |why: &str| Err(review.forbidden(new, format!("node {node:?} cannot report the address {address}: {why}")));
        let Ok(ip) = text.parse::<IpAddr>() else {
            match is_ip {
                true => return refuse("must be a valid IP address"),
                false => continue,
            }
        };
        let among = |ranges: &[IpNet]| ranges.iter().any(|range| range.contains(&names::plain_ip(ip)));
        match names::special_ip(ip) {
            Some(why) => return refuse(why),
            None if names::plain_ip(ip).to_string() != text => {
                return refuse(&format!("must be in canonical form (\"{}\")", names::plain_ip(ip)));
            }
            None if among(&config.cluster_cidrs) => return refuse("it is in the range of Pods' addresses"),
            None if among(&config.service_cidrs) => return refuse("it is in the range of Services' addresses"),
            None if review.call.address == Some(names::plain_ip(ip)) => {}
            // Whoever is to have it would never get it.
            None if of_pool(&names::plain_ip(ip)) => return refuse("it is in the pool of load balancer addresses"),
            None => added.push(text),
        }
    }
    if let Some((text, other)) = held_by_others(review, node, &added) {
        let why = format!("node {node:?} cannot report the address {text:?}: node {other:?} has it");
        return Err(review.forbidden(new, why));
    }
    // A node may not take an address that is a Service's external IP: the Service would lose its traffic.
    let leads_in = |text: &str| text.parse().is_ok_and(|ip: IpAddr| external_ips::leads_in(review.server, ip));
    match added.iter().find(|text| leads_in(text)) {
        Some(text) => {
            let why = format!("node {node:?} cannot report the address {text:?}: it leads to a Service");
            Err(review.forbidden(new, why))
        }
        None => Ok(()),
    }
}

/// The first of these addresses that another Node has, and that Node.
fn held_by_others(review: &Review<'_>, node: &str, addresses: &[&str]) -> Option<(String, String)> {
    others_with(review, node, addresses).find_map(|other| {
        let held = value(&other, "/status/addresses").as_array().into_iter().flatten();
        let held: HashSet<&str> =
            held.filter(|it| it["type"] != "Hostname").filter_map(|it| it["address"].as_str()).collect();
        let address = addresses.iter().find(|address| held.contains(*address))?;
        Some(((*address).to_owned(), other.name().to_owned()))
    })
}

/// The other Nodes that contain one of these strings: of thousands only those are decoded.
fn others_with(review: &Review<'_>, node: &str, strings: &[&str]) -> impl Iterator<Item = Object> {
    let quoted: Vec<String> = strings.iter().map(|string| format!("{string:?}")).collect();
    let items = if quoted.is_empty() { Vec::new() } else { review.items("nodes", None) };
    let others: Vec<_> = items.into_iter().filter(|item| item.name() != node).collect();
    others.into_iter().filter_map(move |item| {
        let text = std::str::from_utf8(&item.bytes).unwrap_or("");
        quoted.iter().any(|quoted| text.contains(quoted.as_str())).then(|| Object::from_slice(&item.bytes).ok())?
    })
}

fn value<'a>(object: &'a Object, path: &str) -> &'a Value {
    object.0.pointer(path).unwrap_or(&Value::Null)
}

/// The labels that a node may set on itself below `kubernetes.io` and `k8s.io`.
const OWN_LABELS: &[&str] = &[
    HOSTNAME,
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.kubernetes.io/region",
    "failure-domain.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// The changed labels by which a node would attract Pods, as a list.
fn forbidden_labels(new: &Object, old: Option<&Object>) -> String {
    let labels = |object: &Object| object.labels().cloned().unwrap_or_default();
    let (new, old) = (labels(new), old.map(labels).unwrap_or_default());
    let changed = new.keys().chain(old.keys()).filter(|key| new.get(*key) != old.get(*key));
    let mut forbidden: Vec<&str> = changed.filter(|key| is_reserved(key)).map(String::as_str).collect();
    forbidden.sort_unstable();
    forbidden.dedup();
    forbidden.join(", ")
}

fn is_reserved(label: &str) -> bool {
    let Some((prefix, _)) = label.split_once('/') else { return false };
    let below = |domain: &str| prefix == domain || prefix.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    if below("node-restriction.kubernetes.io") {
        return true;
    }
    let open = below("kubelet.kubernetes.io") || below("node.kubernetes.io") || OWN_LABELS.contains(&label);
    !open && (below("kubernetes.io") || below("k8s.io"))
}

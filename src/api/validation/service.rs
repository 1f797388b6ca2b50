//! The rules for a Service.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{At, Errors, names, same, selectors};
use crate::{Cause, Object};

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const MAX_AFFINITY: i64 = 86400;

pub fn check(service: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&service.0).get("spec");
    let kind = spec.get("type");
    let headless = is_headless(&spec);
    if spec.get("ports").is_empty() && !headless && kind.str() != "ExternalName" {
        errs.required(spec.path("ports"), "");
    }
    by_type(&spec, headless, &mut errs);
    ports(&spec, &mut errs);
    selectors::label_map(&spec.get("selector"), &mut errs);
    affinity(&spec, &mut errs);
    cluster_ips(&spec, &mut errs);
    for ip in spec.get("externalIPs").items() {
        match ip.str().parse().ok().and_then(names::special_ip) {
            Some(wrong) => errs.invalid(&ip.path, ip.str(), wrong),
            None => errs.invalid_each(&ip.path, ip.str(), names::ip(ip.str())),
        }
    }
    errs.one_of(&kind, TYPES);
    source_ranges(&spec, &mut errs);
    ways(&spec, &mut errs);
    traffic(&spec, &mut errs);
    families(&spec, &mut errs);
    errs.0
}

/// Refused for a new Service, while an existing one may keep it.
pub fn check_create(service: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    unmapped(&At::root(&service.0), None, &mut errs);
    errs.0
}

/// For the status: its external addresses.
pub fn check_status(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let (new, before) = (ingress(&At::root(&new.0)), ingress(&At::root(&old.0)));
    let before: HashSet<&str> = before.iter().map(|ip| ip.str()).collect();
    for ip in new.iter().filter(|ip| !ip.is_empty() && !before.contains(ip.str())) {
        errs.invalid_each(&ip.path, ip.str(), names::ip(ip.str()));
        errs.invalid_each(&ip.path, ip.str(), names::unmapped_ip(ip.str()));
    }
    errs.0
}

fn ingress<'a>(service: &At<'a>) -> Vec<At<'a>> {
    let list = service.get("status").get("loadBalancer").get("ingress");
    list.items().map(|one| one.get("ip")).collect()
}

/// An IPv4-mapped address, which not all programs treat as IPv4. Existing values of the same field stay (upstream's
/// `IsValidIPForLegacyField`).
fn unmapped(new: &At<'_>, old: Option<&At<'_>>, errs: &mut Errors) {
    type Field = for<'a> fn(&At<'a>) -> Vec<At<'a>>;
    const FIELDS: [Field; 3] =
        [cluster_ips_of, |spec| spec.get("externalIPs").items().collect(), |spec| vec![spec.get("loadBalancerIP")]];
    let (new, old) = (new.get("spec"), old.map(|old| old.get("spec")));
    for field in FIELDS {
        let before: HashSet<&str> = old.as_ref().map(field).into_iter().flatten().map(|ip| ip.str()).collect();
        for ip in field(&new).iter().filter(|ip| !before.contains(ip.str())) {
            errs.invalid_each(&ip.path, ip.str(), names::unmapped_ip(ip.str()));
        }
    }
}

/// `clusterIPs`, or `clusterIP` if only that is given.
fn cluster_ips_of<'a>(spec: &At<'a>) -> Vec<At<'a>> {
    let list = spec.get("clusterIPs");
    if list.is_empty() { vec![spec.get("clusterIP")] } else { list.items().collect() }
}

/// They may have surrounding spaces, as in the annotation that preceded them; upstream's messages use the names of its Go types.
fn source_ranges(spec: &At<'_>, errs: &mut Errors) {
    let ranges = spec.get("loadBalancerSourceRanges");
    let path = spec.path("LoadBalancerSourceRanges");
    if !ranges.is_empty() && spec.get("type").str() != "LoadBalancer" {
        errs.forbidden(&path, "may only be used when `type` is 'LoadBalancer'");
    }
    for (i, range) in ranges.items().enumerate() {
        let range = range.str().trim();
        errs.invalid_each(&format!("{path}[{i}]"), range, names::cidr(range));
    }
}

/// The most entry points of a Service. Upstream has no limit; but each address, and each source range, is an entry in every node's
/// rules for each port, and a megabyte has room for millions of them.
pub const MAX_WAYS: usize = 4096;

/// The most ports with a named target: each may have a different number in each Pod, and then each Pod has its own slice, and
/// subset, with all of the Service's ports.
const MAX_NAMED_TARGETS: usize = 256;

fn ways(spec: &At<'_>, errs: &mut Errors) {
    let addresses = spec.get("clusterIPs").len().max(1) + spec.get("externalIPs").len();
    let each = addresses.saturating_add(spec.get("loadBalancerSourceRanges").len());
    let all = each.saturating_mul(spec.get("ports").len().max(1));
    if all > MAX_WAYS {
        errs.too_many_of(spec.path("ports"), all, MAX_WAYS, "ways in: addresses and source ranges, times ports");
    }
    let named = spec.get("ports").items().filter(|port| port.get("targetPort").value.is_string()).count();
    if named > MAX_NAMED_TARGETS {
        errs.too_many_of(spec.path("ports"), named, MAX_NAMED_TARGETS, "ports with a named targetPort");
    }
}

fn is_headless(spec: &At<'_>) -> bool {
    spec.get("clusterIP").str() == "None" || spec.get("clusterIPs").items().next().is_some_and(|ip| ip.str() == "None")
}

/// Which other fields are valid for which type.
fn by_type(spec: &At<'_>, headless: bool, errs: &mut Errors) {
    let ips = spec.path("clusterIPs");
    match spec.get("type").str() {
        "LoadBalancer" if headless => {
            errs.invalid(format!("{ips}[0]"), "None", "may not be set to 'None' for LoadBalancer services");
        }
        "NodePort" if headless => {
            errs.invalid(format!("{ips}[0]"), "None", "may not be set to 'None' for NodePort services");
        }
        "ExternalName" => {
            if !spec.get("clusterIPs").is_empty() || !spec.get("clusterIP").is_empty() {
                errs.forbidden(ips, "may not be set for ExternalName services");
            }
            let name = spec.get("externalName");
            if name.is_empty() {
                errs.required(&name.path, "");
            } else {
                let bare = name.str().strip_suffix('.').unwrap_or(name.str());
                errs.invalid_each(&name.path, name.str(), names::dns1123_subdomain(bare));
            }
        }
        _ => {}
    }
}

fn ports(spec: &At<'_>, errs: &mut Errors) {
    let list = spec.get("ports");
    let (mut seen_names, mut seen_ports, mut seen_nodes) = (HashSet::new(), HashSet::new(), HashSet::new());
    for port in list.items() {
        let name = port.get("name");
        if name.is_empty() && list.len() > 1 {
            errs.required(&name.path, "");
        } else if !name.is_empty() {
            errs.invalid_each(&name.path, name.str(), names::dns1123_label(name.str()));
            if seen_names.contains(&name.str()) {
                errs.duplicate(&name.path, name.str());
            }
            seen_names.insert(name.str());
        }
        let number = port.get("port").int().unwrap_or(0);
        for why in names::port_number(number) {
            errs.invalid(port.path("port"), number, why);
        }
        errs.one_of(&port.get("protocol"), PROTOCOLS);
        target(&port.get("targetPort"), errs);
        let protocol = port.get("appProtocol");
        if protocol.is_set() {
            errs.invalid_each(&protocol.path, protocol.str(), names::qualified_name(protocol.str()));
        }
        let key = json!({"port": number, "protocol": port.get("protocol").str()});
        if seen_ports.contains(&key) {
            errs.duplicate(&port.path, key.clone());
        }
        seen_ports.insert(key);
        node_port(spec, &port, &mut seen_nodes, errs);
    }
}

fn target(at: &At<'_>, errs: &mut Errors) {
    match at.value.as_str() {
        Some(name) => errs.invalid_each(&at.path, name, names::port_name(name)),
        None if at.is_set() => {
            for why in names::port_number(at.int().unwrap_or(0)) {
                errs.invalid_value(&at.path, at.value, why);
            }
        }
        None => {}
    }
}

fn node_port(spec: &At<'_>, port: &At<'_>, seen: &mut HashSet<Value>, errs: &mut Errors) {
    let at = port.get("nodePort");
    let number = at.int().unwrap_or(0);
    if number == 0 {
        return;
    }
    match spec.get("type").str() {
        "ClusterIP" => errs.forbidden(&at.path, "may not be used when `type` is 'ClusterIP'"),
        "ExternalName" => errs.forbidden(&at.path, "may not be used when `type` is 'ExternalName'"),
        _ => {}
    }
    let key = json!({"nodePort": number, "protocol": port.get("protocol").str()});
    if seen.contains(&key) {
        errs.duplicate(&at.path, number);
    }
    seen.insert(key);
}

fn affinity(spec: &At<'_>, errs: &mut Errors) {
    let kind = spec.get("sessionAffinity");
    errs.one_of(&kind, &["ClientIP", "None"]);
    let config = spec.get("sessionAffinityConfig");
    match kind.str() {
        "ClientIP" => {
            let timeout = config.get("clientIP").get("timeoutSeconds");
            match timeout.int() {
                None => errs.required(&timeout.path, ""),
                Some(n) if n <= 0 || n > MAX_AFFINITY => {
                    let why = format!("must be greater than 0 and less than {MAX_AFFINITY}");
                    errs.invalid(&timeout.path, n, why);
                }
                Some(_) => {}
            }
        }
        _ if config.is_set() => {
            errs.forbidden(&config.path, "must not be set when session affinity is None");
        }
        _ => {}
    }
}

fn cluster_ips(spec: &At<'_>, errs: &mut Errors) {
    let (one, list) = (spec.get("clusterIP"), spec.get("clusterIPs"));
    if let Some(first) = list.items().next()
        && first.str() != one.str()
        && !one.is_empty()
    {
        errs.invalid_value(&list.path, list.value, "first value must match `clusterIP`");
    }
    if list.len() > 2 {
        errs.invalid_value(&list.path, list.value, "may only hold up to 2 values");
    }
    let all = cluster_ips_of(spec);
    let none = all.iter().filter(|ip| ip.str() == "None").count();
    if none > 0 && all.len() > 1 {
        errs.invalid_value(&list.path, list.value, "'None' must be the first and only value");
    }
    for ip in all.iter().filter(|ip| !ip.is_empty() && ip.str() != "None") {
        errs.invalid_each(&ip.path, ip.str(), names::ip(ip.str()));
    }
    if let [first, second] = all.as_slice()
        && first.str().contains(':') == second.str().contains(':')
        && none == 0
    {
        errs.invalid_value(&list.path, list.value, "may specify no more than one IP for each IP family");
    }
}

fn traffic(spec: &At<'_>, errs: &mut Errors) {
    let (kind, external, internal) =
        (spec.get("type"), spec.get("externalTrafficPolicy"), spec.get("internalTrafficPolicy"));
    let outside = matches!(kind.str(), "NodePort" | "LoadBalancer") || !spec.get("externalIPs").is_empty();
    if !external.is_empty() {
        if !outside {
            errs.invalid(&external.path, external.str(), "may only be set for externally-accessible services");
        } else {
            errs.one_of(&external, &["Cluster", "Local"]);
        }
    }
    if !internal.is_empty() {
        errs.one_of(&internal, &["Cluster", "Local"]);
    }
    let health = spec.get("healthCheckNodePort");
    if let Some(n) = health.int().filter(|n| *n != 0)
        && (kind.str() != "LoadBalancer" || external.str() != "Local")
    {
        let why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errs.invalid(&health.path, n, why);
    }
    let distribution = spec.get("trafficDistribution");
    if !distribution.is_empty() {
        errs.one_of(&distribution, &["PreferClose", "PreferSameNode", "PreferSameZone"]);
    }
    if kind.str() != "LoadBalancer" {
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if spec.get(field).is_set() {
                errs.forbidden(spec.path(field), "may only be used when `type` is 'LoadBalancer'");
            }
        }
    }
}

fn families(spec: &At<'_>, errs: &mut Errors) {
    let (list, policy) = (spec.get("ipFamilies"), spec.get("ipFamilyPolicy"));
    if spec.get("type").str() == "ExternalName" {
        for at in [&list, &policy] {
            if !at.is_empty() {
                errs.forbidden(&at.path, "may not be set for ExternalName services");
            }
        }
        return;
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for family in list.items() {
        errs.one_of(&family, &["IPv4", "IPv6"]);
        if seen.contains(&family.str()) {
            errs.duplicate(&family.path, family.str());
        }
        seen.insert(family.str());
    }
    if list.len() > 2 {
        errs.invalid_value(&list.path, list.value, "may only hold up to 2 values");
    }
    if policy.is_set() {
        errs.one_of(&policy, &["SingleStack", "PreferDualStack", "RequireDualStack"]);
        if policy.str() == "SingleStack" && list.len() > 1 {
            errs.invalid(
                &policy.path,
                policy.str(),
                "must be 'RequireDualStack' or 'PreferDualStack' when multiple 'ipFamilies' are specified",
            );
        }
    }
}

/// `clusterIPs`, or `clusterIP` if only that is given.
fn addresses<'a>(spec: &At<'a>) -> Vec<&'a str> {
    let all: Vec<&str> = spec.get("clusterIPs").items().map(|ip| ip.str()).collect();
    match spec.get("clusterIP").str() {
        ip if all.is_empty() && !ip.is_empty() => vec![ip],
        _ => all,
    }
}

/// The positions and values of addresses that have changed.
fn changed_cluster_ips<'a>(new: &At<'a>, old: &At<'a>) -> Vec<(usize, &'a str)> {
    let (now, before) = (addresses(new), addresses(old));
    now.into_iter().enumerate().filter(|(i, ip)| before.get(*i).is_some_and(|was| was != ip)).collect()
}

/// Whether an update changes a Service's addresses, which is refused.
pub fn changes_cluster_ips(new: &Object, old: &Object) -> bool {
    let (new, old) = (At::root(&new.0).get("spec"), At::root(&old.0).get("spec"));
    let has_none = |spec: &At<'_>| spec.get("type").str() == "ExternalName";
    !has_none(&new) && !has_none(&old) && !changed_cluster_ips(&new, &old).is_empty()
}

/// An assigned ClusterIP is immutable, as long as the Service has one at all.
pub fn check_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    unmapped(&At::root(&new.0), Some(&At::root(&old.0)), &mut errs);
    let (new, old) = (At::root(&new.0).get("spec"), At::root(&old.0).get("spec"));
    let kinds = (new.get("type"), old.get("type"));
    if kinds.0.str() == "ExternalName" || kinds.1.str() == "ExternalName" {
        return errs.0;
    }
    for (i, _) in changed_cluster_ips(&new, &old) {
        let path = format!("{}[{i}]", new.path("clusterIPs"));
        errs.invalid(path, json!(addresses(&new)), "may not change once set");
    }
    let families = (new.get("ipFamilies"), old.get("ipFamilies"));
    for (family, was) in families.0.items().zip(families.1.items()) {
        if !same(family.value, was.value) {
            errs.invalid_value(&family.path, families.0.value, "may not change once set");
        }
    }
    let (class, had) = (new.get("loadBalancerClass"), old.get("loadBalancerClass"));
    if kinds.0.str() == "LoadBalancer" && kinds.1.str() == "LoadBalancer" && !same(class.value, had.value) {
        errs.invalid_value(&class.path, class.value, "may not change once set");
    }
    errs.0
}

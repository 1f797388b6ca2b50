//! Service.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{Kind, Strategy};
use crate::Object;
use crate::columns::{AGE, NAME, column, pairs, text, wide};
use crate::defaults::{each, fill, made};
use crate::validation::{NameRule, service};

pub const KIND: Kind = Kind {
    short_names: &["svc"],
    categories: &["all"],
    subresources: &["status", "proxy"],
    selectable: &["spec.clusterIP", "spec.type"],
    columns: &[
        NAME,
        column("TYPE", |o, _| text(o, "spec.type")),
        column("CLUSTER-IP", |o, _| cluster_ip(o)),
        column("EXTERNAL-IP", external_ip),
        column("PORT(S)", |o, _| ports(o)),
        AGE,
        wide("SELECTOR", |o, _| pairs(o.at("spec.selector"))),
    ],
    strategy: Strategy {
        default,
        prepare_create,
        prepare_update,
        validate: service::check,
        validate_create: service::check_create,
        validate_update: service::check_update,
        validate_status: service::check_status,
        name: NameRule::Dns1035Label,
        returns_deleted: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::core::v1::Service>("service")
};

fn default(service: &mut Object) {
    let Some(map) = service.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    fill(spec, "type", "ClusterIP");
    fill(spec, "sessionAffinity", "None");
    if spec["sessionAffinity"] == "ClientIP" {
        let client_ip = made(made(spec, "sessionAffinityConfig"), "clientIP");
        fill(client_ip, "timeoutSeconds", 10800);
    } else {
        spec.shift_remove("sessionAffinityConfig");
    }
    for port in each(spec, "ports") {
        fill(port, "protocol", "TCP");
        let target = port.get("targetPort");
        let absent = target.is_none_or(|t| *t == Value::Null || *t == json!(0) || *t == json!(""));
        if absent && let Some(number) = port.get("port").cloned() {
            port.insert("targetPort".into(), number);
        }
    }
    traffic(spec);
}

fn traffic(spec: &mut Map<String, Value>) {
    let kind = spec["type"].as_str().unwrap_or("").to_owned();
    let external = matches!(kind.as_str(), "NodePort" | "LoadBalancer");
    let external_ips = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|l| !l.is_empty());
    if external || (kind == "ClusterIP" && external_ips) {
        fill(spec, "externalTrafficPolicy", "Cluster");
    }
    if external || kind == "ClusterIP" {
        fill(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        fill(spec, "allocateLoadBalancerNodePorts", true);
    }
}

fn prepare_create(service: &mut Object) {
    service.0["status"] = json!({"loadBalancer": {}});
}

/// An update that omits them keeps allocated values: manifests have neither ClusterIP nor NodePorts, and are applied again and
/// again.
fn prepare_update(new: &mut Object, old: &Object) {
    let kind = |o: &Object| o.0["spec"]["type"].as_str().unwrap_or("").to_owned();
    let (now, before) = (kind(new), kind(old));
    let Some(spec) = new.0.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if now != "ExternalName" && before != "ExternalName" {
        follow_cluster_ip(spec, &old.0["spec"]);
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            keep(spec, &old.0["spec"], field);
        }
    }
    let needs_ports = |kind: &str| matches!(kind, "NodePort" | "LoadBalancer");
    if needs_ports(&now) && needs_ports(&before) {
        keep_node_ports(spec, &old.0["spec"]);
        keep(spec, &old.0["spec"], "healthCheckNodePort");
    }
    drop_what_the_type_lacks(spec, &old.0["spec"], &now, &before);
}

/// Changing only `clusterIP` also changes the first of `clusterIPs` (upstream's `NormalizeClusterIPs`). Validation decides whether
/// that is allowed.
fn follow_cluster_ip(spec: &mut Map<String, Value>, old: &Value) {
    let (ip, was) = (spec.get("clusterIP").cloned().unwrap_or_default(), &old["clusterIP"]);
    let all = spec.get("clusterIPs").filter(|all| **all != json!([])).unwrap_or(&Value::Null);
    let alone = all.is_null() || *all == old["clusterIPs"];
    if !alone || ip == *was {
        return;
    }
    match ip.as_str().unwrap_or("") {
        "" => drop(spec.shift_remove("clusterIPs")),
        ip => drop(spec.insert("clusterIPs".to_owned(), json!([ip]))),
    }
}

/// Changing only `type` is enough: fields that only the old type has are cleared, unless the update changed them.
fn drop_what_the_type_lacks(spec: &mut Map<String, Value>, old: &Value, now: &str, before: &str) {
    const BY_TYPE: &[(&str, &[&str])] = &[
        ("clusterIP", &["ClusterIP", "NodePort", "LoadBalancer"]),
        ("clusterIPs", &["ClusterIP", "NodePort", "LoadBalancer"]),
        ("ipFamilies", &["ClusterIP", "NodePort", "LoadBalancer"]),
        ("ipFamilyPolicy", &["ClusterIP", "NodePort", "LoadBalancer"]),
        ("internalTrafficPolicy", &["ClusterIP", "NodePort", "LoadBalancer"]),
        ("externalTrafficPolicy", &["NodePort", "LoadBalancer"]),
        ("healthCheckNodePort", &["LoadBalancer"]),
        ("allocateLoadBalancerNodePorts", &["LoadBalancer"]),
        ("loadBalancerClass", &["LoadBalancer"]),
    ];
    let has_external_ips = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|l| !l.is_empty());
    for (field, types) in BY_TYPE {
        let lost = types.contains(&before) && !types.contains(&now);
        let needed = *field == "externalTrafficPolicy" && has_external_ips;
        if lost && !needed && spec.get(*field) == old.get(field) {
            spec.shift_remove(*field);
        }
    }
    if matches!(before, "NodePort" | "LoadBalancer") && !matches!(now, "NodePort" | "LoadBalancer") {
        let had: HashSet<&Value> = old["ports"].as_array().into_iter().flatten().map(|p| &p["nodePort"]).collect();
        for port in each(spec, "ports") {
            if port.get("nodePort").is_some_and(|n| had.contains(n)) {
                port.shift_remove("nodePort");
            }
        }
    }
}

fn keep(spec: &mut Map<String, Value>, old: &Value, field: &str) {
    let empty = |v: &Value| v.is_null() || *v == json!("") || *v == json!([]) || *v == json!(0);
    if spec.get(field).is_none_or(empty)
        && let Some(value) = old.get(field)
    {
        spec.insert(field.to_owned(), value.clone());
    }
}

/// Ports are matched by protocol and number; a NodePort that the new Service assigns to another port is not kept.
fn keep_node_ports(spec: &mut Map<String, Value>, old: &Value) {
    let mut old_ports: HashMap<(&Value, &Value), &Value> = HashMap::new();
    for port in old["ports"].as_array().into_iter().flatten().filter(|port| !port["nodePort"].is_null()) {
        old_ports.entry((&port["port"], &port["protocol"])).or_insert(&port["nodePort"]);
    }
    let mut taken: HashSet<Value> = each(spec, "ports").filter_map(|p| p.get("nodePort").cloned()).collect();
    for port in each(spec, "ports").filter(|p| p.get("nodePort").and_then(Value::as_i64).unwrap_or(0) == 0) {
        let known = port.get("port").zip(port.get("protocol")).and_then(|which| old_ports.get(&which));
        if let Some(found) = known.copied()
            && taken.insert(found.clone())
        {
            port.insert("nodePort".into(), found.clone());
        }
    }
}

fn cluster_ip(service: &Object) -> String {
    match text(service, "spec.clusterIP").as_str() {
        "" => "<none>".to_owned(),
        ip => ip.to_owned(),
    }
}

fn external_ip(service: &Object, _now: Timestamp) -> String {
    let list = |path: &str| service.at(path).and_then(Value::as_array).into_iter().flatten();
    let mut all: Vec<&str> = Vec::new();
    let kind = service.0["spec"]["type"].as_str().unwrap_or("");
    if kind == "ExternalName" {
        return text(service, "spec.externalName");
    }
    if kind == "LoadBalancer" {
        let address = |i: &'_ Value| i["ip"].as_str().or(i["hostname"].as_str()).map(str::to_owned);
        let ingress: Vec<String> = list("status.loadBalancer.ingress").filter_map(address).collect();
        let mut out = ingress;
        out.extend(list("spec.externalIPs").filter_map(|v| v.as_str().map(str::to_owned)));
        return if out.is_empty() { "<pending>".to_owned() } else { out.join(",") };
    }
    all.extend(list("spec.externalIPs").filter_map(Value::as_str));
    if all.is_empty() { "<none>".to_owned() } else { all.join(",") }
}

/// `80/TCP,443:30443/TCP`
fn ports(service: &Object) -> String {
    let list = service.at("spec.ports").and_then(Value::as_array);
    let one = |p: &Value| {
        let protocol = p["protocol"].as_str().unwrap_or("TCP");
        match p["nodePort"].as_i64() {
            Some(node) if node > 0 => format!("{}:{node}/{protocol}", p["port"]),
            _ => format!("{}/{protocol}", p["port"]),
        }
    };
    let all: Vec<String> = list.into_iter().flatten().map(one).collect();
    if all.is_empty() { "<none>".to_owned() } else { all.join(",") }
}

//! Service.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{Kind, Strategy};
use crate::api::Object;
use crate::api::columns::{AGE, NAME, column, pairs, text, wide};
use crate::api::defaults::{each, fill, made};
use crate::api::schema::of_type;
use crate::api::validation::NameRule;

pub const KIND: Kind = Kind {
    kind: "Service",
    group: "",
    version: "v1",
    plural: "services",
    singular: "service",
    short_names: &["svc"],
    namespaced: true,
    categories: &["all"],
    subresources: &["status", "proxy"],
    selectable: &["spec.clusterIP", "spec.type"],
    schema: of_type::<k8s_openapi::api::core::v1::Service>(),
    columns: &[
        NAME,
        column("TYPE", |o, _| text(o, "spec.type")),
        column("CLUSTER-IP", |o, _| cluster_ip(o)),
        column("EXTERNAL-IP", external_ip),
        column("PORT(S)", |o, _| ports(o)),
        AGE,
        wide("SELECTOR", |o, _| pairs(o.at("spec.selector"))),
    ],
    scale: None,
    strategy: Strategy { default, prepare_create, name: NameRule::Dns1035Label, ..Strategy::PLAIN },
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

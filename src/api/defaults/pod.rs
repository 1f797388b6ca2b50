//! The defaults of a PodSpec, for Pods and every kind with a Pod template.

use serde_json::{Map, Value, json};

use super::{each, fill, made, object};
use crate::pod_totals::of_containers;

/// All defaults of a PodSpec.
pub fn spec(spec: &mut Map<String, Value>) {
    fill(spec, "restartPolicy", "Always");
    fill(spec, "terminationGracePeriodSeconds", 30);
    fill(spec, "dnsPolicy", "ClusterFirst");
    fill(spec, "schedulerName", "default-scheduler");
    fill(spec, "securityContext", json!({}));
    service_account(spec);
    for list in CONTAINERS {
        for item in each(spec, list) {
            container(item);
        }
    }
    for item in each(spec, "volumes") {
        volume(item);
    }
    for constraint in each(spec, "topologySpreadConstraints") {
        fill(constraint, "nodeAffinityPolicy", "Honor");
        fill(constraint, "nodeTaintsPolicy", "Ignore");
    }
}

const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// For Pods only, not for templates; after `spec`.
pub fn pod_only(spec: &mut Map<String, Value>) {
    fill(spec, "enableServiceLinks", true);
    let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
    for list in CONTAINERS {
        for item in each(spec, list) {
            requests_from_limits(item);
            if host_network {
                each(item, "ports").for_each(host_port);
            }
        }
    }
    whole(spec);
}

/// With host networking a container port is a host port.
fn host_port(port: &mut Map<String, Value>) {
    if port.get("hostPort").and_then(Value::as_i64).unwrap_or(0) == 0
        && let Some(number) = port.get("containerPort").cloned()
    {
        port.insert("hostPort".into(), number);
    }
}

/// `serviceAccount` is the old name of `serviceAccountName`; upstream keeps them equal.
fn service_account(spec: &mut Map<String, Value>) {
    let text = |field: &str| spec.get(field).and_then(Value::as_str).filter(|s| !s.is_empty()).map(str::to_owned);
    if let Some(name) = text("serviceAccountName").or_else(|| text("serviceAccount")) {
        spec.insert("serviceAccountName".into(), name.clone().into());
        spec.insert("serviceAccount".into(), name.into());
    }
}

fn container(container: &mut Map<String, Value>) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or("");
    let policy = if has_latest_tag(image) { "Always" } else { "IfNotPresent" };
    fill(container, "imagePullPolicy", policy);
    fill(container, "terminationMessagePath", "/dev/termination-log");
    fill(container, "terminationMessagePolicy", "File");
    fill(container, "resources", json!({}));
    for port in each(container, "ports") {
        fill(port, "protocol", "TCP");
    }
    for env in each(container, "env") {
        if let Some(field) = object(env, "valueFrom").and_then(|v| object(v, "fieldRef")) {
            fill(field, "apiVersion", "v1");
        }
        if let Some(field) = object(env, "valueFrom").and_then(|v| object(v, "resourceFieldRef")) {
            fill(field, "divisor", "0");
        }
        if let Some(file) = object(env, "valueFrom").and_then(|v| object(v, "fileKeyRef")) {
            fill(file, "optional", false);
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(it) = object(container, name) {
            probe(it);
        }
    }
    if let Some(lifecycle) = object(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(get) = object(lifecycle, hook).and_then(|h| object(h, "httpGet")) {
                http_get(get);
            }
        }
    }
}

fn probe(probe: &mut Map<String, Value>) {
    for (field, value) in
        [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
    {
        // 0 counts as absent here.
        if probe.get(field).and_then(Value::as_i64).unwrap_or(0) == 0 {
            probe.insert(field.into(), value.into());
        }
    }
    if let Some(get) = object(probe, "httpGet") {
        http_get(get);
    }
    if let Some(grpc) = object(probe, "grpc") {
        // Upstream fills an empty string here, the server's overall health.
        grpc.entry("service").or_insert_with(|| "".into());
    }
}

fn http_get(get: &mut Map<String, Value>) {
    fill(get, "path", "/");
    fill(get, "scheme", "HTTP");
}

/// Resources with a limit but no request are requested in full.
fn requests_from_limits(container: &mut Map<String, Value>) {
    let Some(resources) = object(container, "resources") else { return };
    let Some(limits) = object(resources, "limits").cloned().filter(|l| !l.is_empty()) else { return };
    let requests = made(resources, "requests");
    for (name, limit) in limits {
        requests.entry(name).or_insert(limit);
    }
}

/// Pod-level resources, after the containers' defaults: with limits, a missing request is the sum of its containers' requests, or
/// else its limit. For huge pages, which are not shared, its limit is the sum of theirs.
/// <https://github.com/kubernetes/enhancements/tree/master/keps/sig-node/2837-pod-level-resource-spec>
pub fn whole(spec: &mut Map<String, Value>) {
    let amounts = |field: &str| spec.get("resources")?.get(field)?.as_object().filter(|amounts| !amounts.is_empty());
    if amounts("limits").or_else(|| amounts("requests")).is_none() {
        return;
    }
    let (asked, most) = (of_containers(spec, "requests"), of_containers(spec, "limits"));
    let Some(resources) = object(spec, "resources") else { return };
    for (name, amount) in most.into_iter().filter(|(name, _)| name.starts_with("hugepages-")) {
        made(resources, "limits").entry(name).or_insert_with(|| amount.to_string().into());
    }
    let Some(limits) = object(resources, "limits").cloned().filter(|limits| !limits.is_empty()) else { return };
    let requests = made(resources, "requests");
    for (name, amount) in asked.into_iter().filter(|(name, _)| matches!(&**name, "cpu" | "memory")) {
        requests.entry(name).or_insert_with(|| amount.to_string().into());
    }
    for (name, limit) in limits {
        requests.entry(name).or_insert(limit);
    }
}

/// The tag `latest`, or neither tag nor digest.
pub fn has_latest_tag(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let name = image.rsplit('/').next().unwrap_or(image);
    match name.split_once(':') {
        Some((_, tag)) => tag == "latest",
        None => true,
    }
}

fn volume(volume: &mut Map<String, Value>) {
    const PLAIN: &[&str] = &["name"];
    if volume.keys().all(|k| PLAIN.contains(&k.as_str())) {
        volume.insert("emptyDir".into(), json!({}));
    }
    for (source, field, value) in SOURCES {
        if let Some(it) = object(volume, source) {
            fill(it, field, value());
        }
    }
    if let Some(downward) = object(volume, "downwardAPI") {
        downward_items(downward);
    }
    if let Some(projected) = object(volume, "projected") {
        for source in each(projected, "sources") {
            if let Some(downward) = object(source, "downwardAPI") {
                downward_items(downward);
            }
            if let Some(token) = object(source, "serviceAccountToken") {
                fill(token, "expirationSeconds", 3600);
            }
        }
    }
    if let Some(template) = object(volume, "ephemeral").and_then(|e| object(e, "volumeClaimTemplate"))
        && let Some(spec) = object(template, "spec")
    {
        fill(spec, "volumeMode", "Filesystem");
    }
    if let Some(image) = object(volume, "image") {
        let reference = image.get("reference").and_then(Value::as_str).unwrap_or("");
        let policy = if has_latest_tag(reference) { "Always" } else { "IfNotPresent" };
        fill(image, "pullPolicy", policy);
    }
}

type Source = (&'static str, &'static str, fn() -> Value);

/// Volume source, field, default. 420 is 0644.
const SOURCES: &[Source] = &[
    ("configMap", "defaultMode", || 420.into()),
    ("secret", "defaultMode", || 420.into()),
    ("downwardAPI", "defaultMode", || 420.into()),
    ("projected", "defaultMode", || 420.into()),
    // Upstream's empty string: no check.
    ("hostPath", "type", || "".into()),
    ("iscsi", "iscsiInterface", || "default".into()),
    ("rbd", "pool", || "rbd".into()),
    ("rbd", "user", || "admin".into()),
    ("rbd", "keyring", || "/etc/ceph/keyring".into()),
    ("azureDisk", "cachingMode", || "ReadWrite".into()),
    ("azureDisk", "kind", || "Shared".into()),
    ("azureDisk", "fsType", || "ext4".into()),
    ("azureDisk", "readOnly", || false.into()),
    ("scaleIO", "storageMode", || "ThinProvisioned".into()),
    ("scaleIO", "fsType", || "xfs".into()),
];

fn downward_items(source: &mut Map<String, Value>) {
    for item in each(source, "items") {
        if let Some(field) = object(item, "fieldRef") {
            fill(field, "apiVersion", "v1");
        }
        if let Some(field) = object(item, "resourceFieldRef") {
            fill(field, "divisor", "0");
        }
    }
}

/// The `template` of a workload's spec.
pub fn template(workload: &mut Map<String, Value>) {
    let template = made(workload, "template");
    spec(made(template, "spec"));
}

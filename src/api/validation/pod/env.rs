//! Environment variables and their sources; also the downward API's fields and resources.

use super::super::{At, Errors, names};

pub fn all(container: &At<'_>, errs: &mut Errors) {
    for var in container.get("env").items() {
        let name = var.get("name");
        if name.is_empty() {
            errs.required(&name.path, "");
        } else {
            errs.invalid_each(&name.path, name.str(), names::env_var_name(name.str()));
        }
        value_from(&var, errs);
    }
    let from = container.get("envFrom");
    for source in from.items() {
        env_from(&from, &source, errs);
    }
}

const SOURCES: [&str; 5] = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];

fn value_from(var: &At<'_>, errs: &mut Errors) {
    let from = var.get("valueFrom");
    if !from.is_set() {
        return;
    }
    let given = SOURCES.iter().filter(|s| from.get(s).is_set()).count();
    let field = from.get("fieldRef");
    if field.is_set() {
        field_ref(&field, ENV_FIELDS, errs);
    }
    let resource = from.get("resourceFieldRef");
    if resource.is_set() {
        resource_field_ref(&resource, false, errs);
    }
    for source in ["configMapKeyRef", "secretKeyRef"] {
        let at = from.get(source);
        if at.is_set() {
            key_ref(&at, errs);
        }
    }
    let file = from.get("fileKeyRef");
    for field in ["volumeName", "path", "key"] {
        if file.is_set() && file.get(field).is_empty() {
            errs.required(file.path(field), "");
        }
    }
    if given == 0 {
        let why =
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        errs.invalid(&from.path, "", why);
    } else if !var.get("value").is_empty() {
        errs.invalid(&from.path, "", "may not be specified when `value` is not empty");
    } else if given > 1 {
        errs.invalid(&from.path, "", "may not have more than one field specified at a time");
    }
}

fn key_ref(at: &At<'_>, errs: &mut Errors) {
    if at.get("name").is_empty() {
        errs.required(at.path("name"), "");
    }
    let key = at.get("key");
    if key.is_empty() {
        errs.required(&key.path, "");
    } else {
        errs.invalid_each(&key.path, key.str(), names::config_key(key.str()));
    }
}

fn env_from(list: &At<'_>, source: &At<'_>, errs: &mut Errors) {
    let prefix = source.get("prefix");
    if !prefix.is_empty() {
        errs.invalid_each(&prefix.path, prefix.str(), names::env_var_name(prefix.str()));
    }
    let refs = [source.get("configMapRef"), source.get("secretRef")];
    let given = refs.iter().filter(|r| r.is_set()).count();
    for at in refs.iter().filter(|r| r.is_set()) {
        let name = at.get("name");
        if name.is_empty() {
            errs.required(&name.path, "");
        } else {
            errs.invalid_each(&name.path, name.str(), names::dns1123_subdomain(name.str()));
        }
    }
    match given {
        0 => errs.invalid(&list.path, "", "must specify one of: `configMapRef` or `secretRef`"),
        1 => {}
        _ => errs.invalid(&list.path, "", "may not have more than one field specified at a time"),
    }
}

/// The Pod fields available to environment variables.
pub const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// The Pod fields available to files.
pub const VOLUME_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

pub fn field_ref(at: &At<'_>, supported: &[&str], errs: &mut Errors) {
    let (version, path) = (at.get("apiVersion"), at.get("fieldPath"));
    if version.is_empty() {
        errs.required(&version.path, "");
        return;
    }
    if version.str() != "v1" {
        let why = "unsupported pod version: ".to_owned() + version.str();
        errs.invalid(&path.path, path.str(), format!("error converting fieldPath: {why}"));
        return;
    }
    if path.is_empty() {
        errs.required(&path.path, "");
        return;
    }
    // `metadata.labels['app']`
    if let Some((whole, key)) = path.str().strip_suffix("']").and_then(|p| p.split_once("['")) {
        let wrong = match whole {
            "metadata.annotations" => names::qualified_name(&key.to_lowercase()),
            "metadata.labels" => names::qualified_name(key),
            _ => {
                errs.invalid(&path.path, whole, "does not support subscript");
                return;
            }
        };
        errs.invalid_each(&path.path, key, wrong);
        return;
    }
    const KNOWN: &[&str] = &["spec.restartPolicy", "spec.schedulerName", "spec.hostNetwork", "status.phase"];
    if supported.contains(&path.str()) {
        return;
    }
    let known = KNOWN.iter().chain(ENV_FIELDS).chain(VOLUME_FIELDS).any(|f| *f == path.str());
    if known {
        errs.not_supported(&path.path, path.str(), supported);
    } else {
        let why = format!("error converting fieldPath: field label not supported: {}", path.str());
        errs.invalid(&path.path, path.str(), why);
    }
}

const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

pub fn resource_field_ref(at: &At<'_>, in_volume: bool, errs: &mut Errors) {
    if in_volume && at.get("containerName").is_empty() {
        errs.required(at.path("containerName"), "");
    }
    let resource = at.get("resource");
    let huge = ["limits.hugepages-", "requests.hugepages-"].iter().any(|p| resource.str().starts_with(p));
    if resource.is_empty() {
        errs.required(&resource.path, "");
        return;
    }
    if !huge && !RESOURCES.contains(&resource.str()) {
        errs.not_supported(&resource.path, resource.str(), RESOURCES);
        return;
    }
    divisor(&at.get("divisor"), resource.str(), errs);
}

const SIZES: &[&str] = &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

fn divisor(at: &At<'_>, resource: &str, errs: &mut Errors) {
    let (allowed, what) = match resource.split_once('.').map(|(_, r)| r) {
        Some("cpu") => (&["1m", "1"][..], "cpu"),
        Some("memory") => (SIZES, "memory"),
        Some("ephemeral-storage") => (SIZES, "local ephemeral storage"),
        _ => (SIZES, "hugepages"),
    };
    if matches!(at.str(), "" | "0") || allowed.contains(&at.str()) {
        return;
    }
    let shown = if what == "cpu" { "1m and 1".to_owned() } else { allowed.join(", ") };
    let why = format!("only divisor's values {shown} are supported with the {what} resource");
    errs.invalid(&at.path, at.str(), why);
}

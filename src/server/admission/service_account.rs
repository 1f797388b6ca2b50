//! ServiceAccount: gives every Pod one, with a token volume to reach the server, unless the Pod opts out.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{operation::Operation, review::Review};
use crate::Server;
use podwright_api::{Object, Status, pod_references::MIRROR, root_ca, validation::names};

/// Where programs look for their token.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const DEFAULT: &str = "default";
/// An hour plus the kubelet's reaction time; upstream's value.
const TOKEN_SECONDS: i64 = 3607;

pub(super) fn concerns(review: &Review<'_>) -> bool {
    review.is("Pod", Operation::Create) || is_ephemeral(review)
}

fn is_ephemeral(review: &Review<'_>) -> bool {
    review.call.kind.built_in() == "Pod" && review.subresource() == "ephemeralcontainers"
}

/// A ServiceAccount may be long, with the Secrets that it names; that is part of the request's cost.
pub(super) async fn mutate(review: &Review<'_>, pod: &mut Object) -> Result<(), Status> {
    let name = pod.0["spec"]["serviceAccountName"].as_str().filter(|name| !name.is_empty()).unwrap_or(DEFAULT);
    let size = review.item("serviceaccounts", Some(review.namespace()), name).map_or(0, |item| item.bytes.len());
    review.server.large.part(&review.call.user, size, |_| Box::pin(mutate_with(review, pod))).await?
}

async fn mutate_with(review: &Review<'_>, pod: &mut Object) -> Result<(), Status> {
    if pod.annotation(MIRROR).is_some() {
        // Mirrors of static Pods are exempt: their node runs them regardless.
        return Ok(());
    }
    if is_ephemeral(review) {
        // The rest of the Pod was checked on create.
        let name = pod.0["spec"]["serviceAccountName"].as_str().unwrap_or(DEFAULT).to_owned();
        let account = review.get("serviceaccounts", Some(review.namespace()), &name);
        return account.map_or(Ok(()), |account| mountable_secrets(review, pod, &account));
    }
    if pod.0["spec"]["serviceAccountName"].as_str().unwrap_or("").is_empty() {
        pod.0["spec"]["serviceAccountName"] = DEFAULT.into();
        pod.0["spec"]["serviceAccount"] = DEFAULT.into();
    }
    let name = pod.0["spec"]["serviceAccountName"].as_str().unwrap_or(DEFAULT).to_owned();
    let account = find(review, pod, &name).await?;
    mountable_secrets(review, pod, &account)?;

    let wish = |object: &Object, path: &str| object.at(path).and_then(Value::as_bool);
    let automount = wish(pod, "spec.automountServiceAccountToken")
        .or(wish(&account, "automountServiceAccountToken"))
        .unwrap_or(true);
    if automount {
        let server = review.server;
        mount_token(server, pod);
        if let Some(authority) = &server.config.authority {
            // Created like the ServiceAccount, so that a Pod need not wait for the controller.
            let ca = root_ca::config_map(authority.certificate());
            server.ensure("configmaps", Some(review.namespace()), root_ca::NAME, ca).await?;
        }
    }
    let has = |v: &Value| v.as_array().is_some_and(|list| !list.is_empty());
    if !has(&pod.0["spec"]["imagePullSecrets"]) && has(&account.0["imagePullSecrets"]) {
        pod.0["spec"]["imagePullSecrets"] = account.0["imagePullSecrets"].clone();
    }
    Ok(())
}

/// Checks the result of webhooks: the Pod has an existing ServiceAccount, and is held to its Secrets.
pub(super) fn validate(review: &Review<'_>, pod: &Object) -> Result<(), Status> {
    if pod.annotation(MIRROR).is_some() {
        return Ok(());
    }
    let (namespace, name) = (review.namespace(), pod.at("spec.serviceAccountName").and_then(Value::as_str));
    let name = name.unwrap_or("");
    match review.get("serviceaccounts", Some(namespace), name) {
        Some(account) => mountable_secrets(review, pod, &account),
        None if is_ephemeral(review) => Ok(()),
        None if name.is_empty() => {
            let why = format!("no service account specified for pod {namespace}/{}", pod.name());
            Err(review.forbidden(pod, why))
        }
        None => Err(not_found(review, pod, name)),
    }
}

/// If the ServiceAccount says so, its Pods may only use the Secrets that it names: in volumes, variables, and image pull secrets.
fn mountable_secrets(review: &Review<'_>, pod: &Object, account: &Object) -> Result<(), Status> {
    if account.annotation("kubernetes.io/enforce-mountable-secrets") != Some("true") {
        return Ok(());
    }
    let names = |list: &str| -> HashSet<&Value> {
        account.0[list].as_array().into_iter().flatten().map(|s| &s["name"]).collect()
    };
    let (secrets, pull_secrets) = (names("secrets"), names("imagePullSecrets"));
    let account = account.name();
    let refuse = |what: String, kind: &str| {
        let why = format!("{what} is not allowed because service account {account} does not reference that {kind}");
        Err(review.forbidden(pod, why))
    };
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let spec = &pod.0["spec"];
    for volume in items(&spec["volumes"]) {
        let projected = items(&volume["projected"]["sources"]);
        let projected = projected.iter().map(|source| &source["secret"]["name"]);
        for secret in projected.chain([&volume["secret"]["secretName"]]).filter(|name| name.is_string()) {
            if !secrets.contains(secret) {
                return refuse(format!("volume with secret.secretName={secret}"), "secret");
            }
        }
    }
    for (list, what) in [
        ("initContainers", "init container"),
        ("containers", "container"),
        ("ephemeralContainers", "ephemeral container"),
    ] {
        for container in items(&spec[list]) {
            let name = container["name"].as_str().unwrap_or_default();
            for variable in items(&container["env"]) {
                let secret = &variable["valueFrom"]["secretKeyRef"]["name"];
                if secret.is_string() && !secrets.contains(secret) {
                    let variable = variable["name"].as_str().unwrap_or_default();
                    return refuse(
                        format!("{what} {name} with envVar {variable} referencing secret.secretName={secret}"),
                        "secret",
                    );
                }
            }
            for source in items(&container["envFrom"]) {
                let secret = &source["secretRef"]["name"];
                if secret.is_string() && !secrets.contains(secret) {
                    return refuse(
                        format!("{what} {name} with envFrom referencing secret.secretName={secret}"),
                        "secret",
                    );
                }
            }
        }
    }
    for (number, secret) in items(&spec["imagePullSecrets"]).iter().enumerate() {
        if !pull_secrets.contains(&secret["name"]) {
            return refuse(format!("imagePullSecrets[{number}].name={}", secret["name"]), "imagePullSecret");
        }
    }
    Ok(())
}

/// The Pod's ServiceAccount. The default one is created if missing, so that a Pod need not wait for the controller that gives every
/// Namespace one.
async fn find(review: &Review<'_>, pod: &Object, name: &str) -> Result<Object, Status> {
    let (server, namespace) = (review.server, Some(review.namespace()));
    let account = || review.get("serviceaccounts", namespace, name);
    if let Some(account) = account() {
        return Ok(account);
    }
    server.cache.fresh().await?;
    if account().is_none() && name == DEFAULT {
        server.ensure("serviceaccounts", namespace, name, json!({})).await?;
        server.cache.fresh().await?;
    }
    account().ok_or_else(|| not_found(review, pod, name))
}

fn not_found(review: &Review<'_>, pod: &Object, name: &str) -> Status {
    let namespace = review.namespace();
    let why = format!("error looking up service account {namespace}/{name}: serviceaccount \"{name}\" not found");
    review.forbidden(pod, why)
}

/// Mounts a token into each container that has no mount there.
fn mount_token(server: &Server, pod: &mut Object) {
    let spec = &mut pod.0["spec"];
    let volumes = spec["volumes"].as_array();
    let existing = volumes.into_iter().flatten().filter_map(|v| v["name"].as_str()).find(|name| {
        // One from an update or a copied manifest. Each container's mount repeats it, before validation.
        name.starts_with("kube-api-access-") && names::dns1123_label(name).is_empty()
    });
    let name = existing.map(str::to_owned).unwrap_or_else(|| format!("kube-api-access-{}", server.env.suffix(5)));
    let has_volume = existing.is_some();

    let mut used = false;
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let mounts = &mut container["volumeMounts"];
            if mounts.as_array().into_iter().flatten().any(|m| m["mountPath"] == MOUNT_PATH) {
                continue;
            }
            let mount = json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH});
            match mounts.as_array_mut() {
                Some(mounts) => mounts.push(mount),
                None => *mounts = json!([mount]),
            }
            used = true;
        }
        // Indexing created a null where there was no such list.
        if spec[list].is_null()
            && let Some(map) = spec.as_object_mut()
        {
            map.shift_remove(list);
        }
    }
    if !used || has_volume {
        return;
    }
    let volume = json!({"name": name, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": root_ca::NAME, "items": [{"key": root_ca::KEY, "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
        ]}},
    ]}});
    match spec["volumes"].as_array_mut() {
        Some(volumes) => volumes.push(volume),
        None => spec["volumes"] = json!([volume]),
    }
}

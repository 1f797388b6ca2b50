//! ServiceAccount: every Pod has one, and a token of it, with what it needs to reach the server, unless it wants none.

use serde_json::{Value, json};

use super::{Operation, Review};
use crate::api::{Object, Status, root_ca};
use crate::server::Server;

/// Where programs look for their token.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const DEFAULT: &str = "default";
/// An hour and the time that a kubelet takes to notice; upstream's figure.
const TOKEN_SECONDS: i64 = 3607;

pub(super) fn concerns(review: &Review<'_>) -> bool {
    review.is("Pod", Operation::Create)
}

pub(super) async fn mutate(review: &Review<'_>, pod: &mut Object) -> Result<(), Status> {
    if pod.annotation("kubernetes.io/config.mirror").is_some() {
        // A mirror is a static Pod's picture: its node runs it without asking.
        return Ok(());
    }
    if pod.0["spec"]["serviceAccountName"].as_str().unwrap_or("").is_empty() {
        pod.0["spec"]["serviceAccountName"] = DEFAULT.into();
        pod.0["spec"]["serviceAccount"] = DEFAULT.into();
    }
    let name = pod.0["spec"]["serviceAccountName"].as_str().unwrap_or(DEFAULT).to_owned();
    let account = find(review, pod, &name).await?;

    let wish = |object: &Object, path: &str| object.at(path).and_then(Value::as_bool);
    let automount = wish(pod, "spec.automountServiceAccountToken")
        .or(wish(&account, "automountServiceAccountToken"))
        .unwrap_or(true);
    if automount {
        let server = review.server;
        mount_token(server, pod);
        if let Some(authority) = &server.config.authority {
            // As the ServiceAccount: a Pod need not wait for the controller.
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

/// The Pod's ServiceAccount. The default one is made where it is missing, so that a Pod need not wait for the
/// controller that gives every Namespace one.
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
    account().ok_or_else(|| {
        let namespace = review.namespace();
        review.forbidden(
            pod,
            format!("error looking up service account {namespace}/{name}: serviceaccount \"{name}\" not found"),
        )
    })
}

/// Mounts a token into each container that has nothing else there.
fn mount_token(server: &Server, pod: &mut Object) {
    let spec = &mut pod.0["spec"];
    let volumes = spec["volumes"].as_array();
    let existing = volumes.into_iter().flatten().filter_map(|v| v["name"].as_str()).find(|name| {
        // One that an updater or a copied manifest brought along.
        name.starts_with("kube-api-access-")
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
        // Indexing made a null where there was no such list.
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

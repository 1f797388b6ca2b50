//! RBAC: what the default roles grant, and how they are completed.

use podwright::api::Options;
use serde_json::{Value, json};

use super::{Api, rules};

const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// A resource, and what `view`, `edit` and `admin` may do with it in their namespace: `r`ead, `w`rite, both, `c`reate alone.
const DEFAULTS: &[(&str, &str, &str, &str)] = &[
    ("core pods", "r", "rw", "rw"),
    ("core pods/log", "r", "r", "r"),
    ("core pods/status", "r", "r", "r"),
    ("core pods/exec", "", "rw", "rw"),
    ("core pods/attach", "", "rw", "rw"),
    ("core pods/portforward", "", "rw", "rw"),
    ("core pods/eviction", "", "c", "c"),
    ("core pods/binding", "", "", ""),
    ("core secrets", "", "rw", "rw"),
    ("core configmaps", "r", "rw", "rw"),
    ("core services", "r", "rw", "rw"),
    ("core services/proxy", "", "rw", "rw"),
    ("core endpoints", "r", "r", "r"),
    ("core events", "r", "rw", "rw"),
    ("core persistentvolumeclaims", "r", "rw", "rw"),
    ("core persistentvolumes", "", "", ""),
    ("core serviceaccounts", "r", "rw", "rw"),
    ("core serviceaccounts/token", "", "c", "c"),
    ("core replicationcontrollers/scale", "r", "rw", "rw"),
    ("core resourcequotas", "r", "r", "r"),
    ("core limitranges", "r", "r", "r"),
    ("core namespaces", "r", "r", "r"),
    ("core nodes", "", "", ""),
    ("apps deployments", "r", "rw", "rw"),
    ("apps deployments/scale", "r", "rw", "rw"),
    ("apps deployments/status", "r", "r", "r"),
    ("apps statefulsets", "r", "rw", "rw"),
    ("apps daemonsets", "r", "rw", "rw"),
    ("apps controllerrevisions", "r", "r", "r"),
    ("batch jobs", "r", "rw", "rw"),
    ("batch cronjobs", "r", "rw", "rw"),
    ("autoscaling horizontalpodautoscalers", "r", "rw", "rw"),
    ("policy poddisruptionbudgets", "r", "rw", "rw"),
    ("networking.k8s.io ingresses", "r", "rw", "rw"),
    ("networking.k8s.io networkpolicies", "r", "rw", "rw"),
    ("coordination.k8s.io leases", "", "rw", "rw"),
    ("discovery.k8s.io endpointslices", "r", "r", "r"),
    ("rbac.authorization.k8s.io roles", "", "", "rw"),
    ("rbac.authorization.k8s.io rolebindings", "", "", "rw"),
    ("rbac.authorization.k8s.io clusterroles", "", "", ""),
    ("authorization.k8s.io localsubjectaccessreviews", "", "", "c"),
    ("storage.k8s.io storageclasses", "", "", ""),
    ("example.com widgets", "", "", ""),
];

fn includes(kinds: &str, verb: &str) -> bool {
    kinds.chars().any(|kind| match kind {
        'r' => matches!(verb, "get" | "list" | "watch"),
        'w' => !matches!(verb, "get" | "list" | "watch"),
        _ => verb == "create",
    })
}

#[tokio::test]
async fn the_default_roles_grant_what_upstreams_do() {
    let api = Api::new().await;
    for role in ["view", "edit", "admin"] {
        api.bind(role, Some("default"), json!([{"kind": "ServiceAccount", "name": role, "namespace": "apps"}])).await;
    }
    let mut wrong = Vec::new();
    for (resource, view, edit, admin) in DEFAULTS {
        for (role, granted) in [("view", view), ("edit", edit), ("admin", admin)] {
            for verb in VERBS {
                let user = format!("system:serviceaccount:apps:{role}");
                let question = format!("{verb} {resource} in default");
                if api.may(&user, &[], &question).await != includes(granted, verb) {
                    wrong.push(format!("{role}: {question}"));
                }
                assert!(!api.may(&user, &[], &format!("{verb} {resource} in other")).await);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn default_roles_are_completed_at_the_start_and_otherwise_left_alone() {
    use podwright::api::Env;
    use podwright::server::{Config, Server};
    use std::sync::Arc;
    let store = Arc::new(podwright::store::Memory::new());
    let open = || async { Api(Server::open(store.clone(), Env::system(), Config::default()).await.unwrap()) };
    let api = open().await;
    let version = api.get("clusterroles", "system:discovery").await.unwrap().resource_version().to_owned();
    api.patch("clusterroles", "system:basic-user", json!({"rules": rules(&["get x.io mine"])})).await.unwrap();
    api.patch("clusterrolebindings", "system:basic-user", json!({"subjects": null})).await.unwrap();
    let alone =
        json!({"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}, "rules": []});
    api.patch("clusterroles", "system:node-proxier", alone).await.unwrap();
    api.delete("clusterroles", "system:kube-dns", Options::default()).await.unwrap();
    drop(api);

    let api = open().await;
    assert_eq!(api.get("clusterroles", "system:discovery").await.unwrap().resource_version(), version);
    let completed = api.get("clusterroles", "system:basic-user").await.unwrap();
    let texts: Vec<String> = completed.0["rules"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert!(texts[0].contains("mine") && texts.iter().any(|t| t.contains("selfsubjectreviews")), "{texts:?}");
    assert_eq!(
        api.get("clusterrolebindings", "system:basic-user").await.unwrap().0["subjects"][0]["name"],
        "system:authenticated"
    );
    assert_eq!(api.get("clusterroles", "system:node-proxier").await.unwrap().0["rules"], json!([]));
    assert!(api.get("clusterroles", "system:kube-dns").await.is_ok());
    let everything = api.get("clusterroles", "cluster-admin").await.unwrap();
    assert_eq!(everything.label("kubernetes.io/bootstrapping"), Some("rbac-defaults"));
}

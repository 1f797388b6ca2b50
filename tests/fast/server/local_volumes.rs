//! Volumes that nodes keep: which node sees and lets go of which; and the StorageClass that a cluster begins with.

use std::sync::Arc;

use podwright::{
    api::{Env, Options, Request, Status, Verb, patch},
    server::{Config, Server},
    store::Memory,
};
use serde_json::{Value, json};

use super::{Api, nodes, nodes::ask, request};

fn volume(name: &str, node: &str, changes: Value) -> Value {
    let base = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": { "name": name, "labels": { "podwright.dev/node": node },
            "annotations": { "pv.kubernetes.io/provisioned-by": "podwright.dev/local" },
            "finalizers": ["podwright.dev/local-volume", "x.io/other"] },
        "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete", "local": { "path": "/x" },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [
                { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [node] }] }] } } },
    });
    patch::merge(&base, &changes)
}

async fn list(api: &Api, selector: Option<&str>, verb: Verb) -> Result<(), Status> {
    let options = Options { label_selector: selector.map(str::to_owned), ..Options::default() };
    let request = Request { user: nodes::node("n1"), ..request(verb, "persistentvolumes", "", None, options) };
    match verb {
        Verb::Watch => api.0.watch(request).await.map(drop),
        _ => api.0.handle(request).await.map(drop),
    }
}

#[tokio::test]
async fn a_node_follows_the_volumes_that_it_keeps_and_no_others() {
    let api = Api::new().await;
    api.create("persistentvolumes", volume("pvc-mine", "n1", json!({}))).await.unwrap();
    api.create("persistentvolumes", volume("pvc-other", "n2", json!({}))).await.unwrap();
    let unlike = json!({ "metadata": { "annotations": { "pv.kubernetes.io/provisioned-by": "x.io/other" } } });
    api.create("persistentvolumes", volume("pvc-foreign", "n1", unlike)).await.unwrap();
    for verb in [Verb::List, Verb::Watch] {
        list(&api, Some("podwright.dev/node=n1"), verb).await.unwrap();
        list(&api, Some("podwright.dev/node=n1,disk=fast"), verb).await.unwrap();
        for selector in [
            None,
            Some("podwright.dev/node=n2"),
            Some("podwright.dev/node in (n1,n2)"),
            Some("podwright.dev/node"),
            Some("podwright.dev/node!=n2"),
            Some("disk=fast"),
        ] {
            let refused = list(&api, selector, verb).await.unwrap_err();
            let why = "can only list/watch persistentvolumes with the label selector podwright.dev/node=n1";
            assert!(refused.code == 403 && refused.message.ends_with(why), "{selector:?}: {refused}");
        }
    }
    for (name, code) in [("pvc-mine", None), ("pvc-other", Some(403)), ("pvc-foreign", Some(403))] {
        let answer = ask(&api, Verb::Get, "persistentvolumes", name, "", Value::Null).await;
        assert_eq!(answer.err().map(|status| status.code), code, "{name}");
    }
}

#[tokio::test]
async fn a_node_lets_go_of_what_it_keeps_and_writes_nothing_else_of_volumes() {
    let api = Api::new().await;
    for (name, node) in [("pvc-mine", "n1"), ("pvc-living", "n1"), ("pvc-other", "n2")] {
        api.create("persistentvolumes", volume(name, node, json!({}))).await.unwrap();
        api.patch(
            "persistentvolumes",
            name,
            json!({ "metadata": { "finalizers": ["podwright.dev/local-volume", "x.io/other"] } }),
        )
        .await
        .unwrap();
        if name != "pvc-living" {
            api.delete("persistentvolumes", name, Options::default()).await.unwrap();
        }
    }
    let rest = json!({ "metadata": { "finalizers": ["x.io/other"] } });
    let with = |more: Value| patch::merge(&rest, &more);
    for (verb, name, sub, body, why) in [
        (Verb::Patch, "pvc-other", "", rest.clone(), "no relationship found"),
        (Verb::Patch, "pvc-living", "", rest.clone(), "can only update persistentvolumes that are being deleted"),
        (Verb::Patch, "pvc-mine", "", json!({ "metadata": { "finalizers": null } }), "anything but the finalizer"),
        (
            Verb::Patch,
            "pvc-mine",
            "",
            json!({ "metadata": { "finalizers": ["podwright.dev/local-volume"] } }),
            "anything but",
        ),
        (Verb::Patch, "pvc-mine", "", with(json!({ "metadata": { "labels": { "a": "b" } } })), "anything but"),
        (Verb::Patch, "pvc-mine", "", with(json!({ "spec": { "storageClassName": "x" } })), "anything but"),
        (
            Verb::Patch,
            "pvc-mine",
            "",
            with(json!({ "spec": { "claimRef": { "name": "x", "namespace": "y" } } })),
            "anything but",
        ),
        (Verb::Patch, "pvc-mine", "status", json!({ "status": { "phase": "Available" } }), "can only get, list"),
        (Verb::Delete, "pvc-living", "", Value::Null, "can only get, list"),
        (Verb::Create, "", "", volume("pvc-new", "n1", json!({})), "can only get, list"),
    ] {
        let refused = ask(&api, verb, "persistentvolumes", name, sub, body.clone()).await.unwrap_err();
        assert!(refused.code == 403 && refused.message.contains(why), "{verb:?} {name} {body}: {refused}");
    }
    ask(&api, Verb::Patch, "persistentvolumes", "pvc-mine", "", rest).await.unwrap();
    let left = api.get("persistentvolumes", "pvc-mine").await.unwrap();
    assert_eq!(left.finalizers(), ["x.io/other"]);
    let again = json!({ "metadata": { "finalizers": ["x.io/other", "podwright.dev/local-volume"] } });
    let refused = ask(&api, Verb::Patch, "persistentvolumes", "pvc-mine", "", again).await.unwrap_err();
    assert_eq!(refused.code, 403, "{refused}");
}

/// Whatever else it was granted.
#[tokio::test]
async fn a_node_that_was_granted_volumes_makes_none() {
    let api = Api::new().await;
    let rules =
        json!([{ "apiGroups": [""], "resources": ["persistentvolumes", "persistentvolumes/status"], "verbs": ["*"] }]);
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "pv" }, "rules": rules });
    api.create("clusterroles", role).await.unwrap();
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "pv" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "pv" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes" }] });
    api.create("clusterrolebindings", binding).await.unwrap();
    api.create("persistentvolumes", volume("pvc-mine", "n1", json!({}))).await.unwrap();
    for (verb, name, sub, body) in [
        (
            Verb::Create,
            "",
            "",
            volume("pvc-new", "n1", json!({ "spec": { "local": null, "hostPath": { "path": "/" } } })),
        ),
        (Verb::Patch, "pvc-mine", "status", json!({ "status": { "phase": "Available" } })),
        (Verb::Delete, "pvc-mine", "", Value::Null),
    ] {
        let refused = ask(&api, verb, "persistentvolumes", name, sub, body).await.unwrap_err();
        assert!(refused.message.ends_with("is not allowed to write persistentvolumes"), "{verb:?}: {refused}");
    }
}

#[tokio::test]
async fn a_cluster_begins_with_a_default_class_once() {
    let store = Arc::new(Memory::new());
    let open = |wanted: bool| {
        let store = store.clone();
        let config = Config { local_storage_class: wanted, ..Config::default() };
        async move { Api(Server::open(store, Env::system(), config).await.unwrap()) }
    };
    const CLASSES: &str = "storageclasses";
    assert!(open(false).await.get(CLASSES, "local").await.is_err());
    let class = open(true).await.get(CLASSES, "local").await.unwrap();
    assert_eq!(class.annotation("storageclass.kubernetes.io/is-default-class"), Some("true"));
    assert_eq!(
        (
            &class.0["provisioner"],
            &class.0["reclaimPolicy"],
            &class.0["volumeBindingMode"],
            &class.0["allowVolumeExpansion"]
        ),
        (&json!("podwright.dev/local"), &json!("Delete"), &json!("WaitForFirstConsumer"), &json!(true))
    );
    // What an operator makes of it stays.
    let changed = json!({ "metadata": { "annotations": { "storageclass.kubernetes.io/is-default-class": "false" } }, "allowVolumeExpansion": false });
    let changed = open(true).await.patch(CLASSES, "local", changed).await.unwrap();
    let api = open(true).await;
    assert_eq!(api.get(CLASSES, "local").await.unwrap(), changed);
    api.delete(CLASSES, "local", Options::default()).await.unwrap();
    assert!(open(true).await.get(CLASSES, "local").await.is_err(), "nor does it come back");
    // Without the mark it does.
    let unmarked = json!({ "metadata": { "annotations": { "podwright.dev/local-storage-class": null } } });
    open(true).await.patch("namespaces", "kube-system", unmarked).await.unwrap();
    assert!(open(true).await.get(CLASSES, "local").await.is_ok());
}

#[tokio::test]
async fn an_operators_default_class_stays_the_only_one() {
    let store = Arc::new(Memory::new());
    let api = Api(Server::open(store.clone(), Env::system(), Config::default()).await.unwrap());
    let own = json!({ "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "x.io/own",
        "metadata": { "name": "own", "annotations": { "storageclass.kubernetes.io/is-default-class": "true" } } });
    api.create("storageclasses", own).await.unwrap();
    drop(api);
    let config = Config { local_storage_class: true, ..Config::default() };
    let api = Api(Server::open(store, Env::system(), config).await.unwrap());
    let class = api.get("storageclasses", "local").await.unwrap();
    assert_eq!(class.annotation("storageclass.kubernetes.io/is-default-class"), Some("false"));
}

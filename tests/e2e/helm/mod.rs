//! The real helm installs, tests, upgrades, rolls back and uninstalls the chart `shop` of this folder: hooks, a CRD, what waits.
//!
//! It is `HELM`, the one on PATH, or `target/tools/helm` (`./dev test` gets it).

use std::{path::PathBuf, process::Command};

use crate::kubectl::{
    Cluster,
    Expect::{Fails, Has, Is, Lacks},
};
use crate::support::missing;

/// The installed helm. `None`, with a message, if there is none.
fn helm() -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|dir| dir.join("helm"));
    let fetched = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/tools/helm");
    let mut all = std::env::var_os("HELM").map(PathBuf::from).into_iter().chain(on_path).chain([fetched]);
    let runs = |file: &PathBuf| Command::new(file).arg("version").output().is_ok_and(|output| output.status.success());
    let found = all.find(runs);
    if found.is_none() {
        missing::client("there is no helm here; `./dev test` gets one for x86-64");
    }
    found
}

/// A node, and a shell with helm, kubectl, and the chart as `shop`.
fn cluster() -> Option<Cluster> {
    let (helm, cluster) = (helm()?, Cluster::start()?);
    cluster.offer(&helm);
    let chart = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/helm/shop");
    cluster.says(&format!("cp -r '{}' shop", chart.display()));
    Some(cluster)
}

#[test]
fn a_chart_is_installed_tested_upgraded_and_rolled_back() {
    let Some(cluster) = cluster() else { return };
    cluster.drill(&[
        ("helm lint shop --strict", Has(&["0 chart(s) failed"])),
        ("helm template shop shop --include-crds", Has(&["kind: CustomResourceDefinition", "kind: Ingress"])),
        ("kubectl get deployments,secrets -o name", Is("")),
        ("helm install shop shop --wait --timeout 60s", Has(&["STATUS: deployed", "REVISION: 1", "says first on port 80"])),
        ("kubectl get deployment shop -o jsonpath={.status.availableReplicas}", Is("1")),
        ("kubectl get pvc shop -o jsonpath={.status.phase}", Is("Bound")),
        ("kubectl get gadgets shop -o jsonpath={.spec}", Has(&["\"size\":3", "\"colour\":\"red\""])),
        ("kubectl get jobs -o name", Is("")),
        ("helm install shop shop", Fails(1, "cannot reuse a name that is still in use")),
        ("helm status shop", Has(&["STATUS: deployed", "==> v1/Deployment", "1/1", "==> v1/Gadget", "==> v1/Pod(related)"])),
        ("helm list", Has(&["shop-0.1.0", "deployed"])),
        ("helm list -q --filter '^sh'", Is("shop")),
        ("helm upgrade shop shop --set greeting=other --dry-run=server", Has(&["pending-upgrade", "says other on port 80"])),
        ("helm get manifest shop | kubectl diff -f -", Is("")),
        ("helm get values shop --all", Has(&["greeting: first"])),
        ("helm get hooks shop", Has(&["helm.sh/hook: pre-install", "helm.sh/hook: post-upgrade", "helm.sh/hook: test"])),
        ("helm get notes shop", Has(&["says first on port 80"])),
        ("helm get metadata shop", Has(&["APPLY_METHOD: server-side apply"])),
        (
            "kubectl get secrets -l owner=helm,status=deployed -o 'jsonpath={.items[*].metadata.name} {.items[*].type}'",
            Is("sh.helm.release.v1.shop.v1 helm.sh/release.v1"),
        ),
        ("helm test shop --logs --timeout 60s", Has(&["Phase:          Succeeded", "first"])),
        (
            "helm upgrade shop shop --set greeting=second,replicas=2 --wait --timeout 60s",
            Has(&["has been upgraded", "REVISION: 2"]),
        ),
        ("kubectl get deployment shop -o jsonpath={.status.availableReplicas}", Is("2")),
        ("kubectl wait --for=condition=Complete job/shop-after --timeout=30s", Has(&["condition met"])),
        ("kubectl logs job/shop-after", Is("revision 2")),
        ("helm test shop --logs --timeout 60s", Has(&["Phase:          Succeeded", "second"])),
        // A rejection by the server, the chart's schema, or a hook leaves the release unchanged.
        ("helm upgrade shop shop --set port=0", Fails(1, "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535")),
        ("helm upgrade shop shop --set gadget.size=10", Fails(1, "spec.size in body should be less than or equal to 9")),
        ("helm upgrade shop shop --set replicas=-1", Fails(1, "minimum: got -1, want 0")),
        (
            "helm upgrade shop shop --set afterwards=4 --wait --timeout 60s --rollback-on-failure",
            Fails(1, "rolled back due to rollback-on-failure"),
        ),
        ("helm history shop --max 3", Has(&["failed", "deployed", "Rollback to 2"])),
        ("helm rollback shop 1 --wait --timeout 60s", Has(&["Rollback was a success"])),
        ("kubectl get deployment shop -o jsonpath={.status.replicas}", Is("1")),
        ("kubectl get configmap shop -o jsonpath={.data.index\\\\.html}", Is("first")),
        ("helm history shop", Has(&["superseded", "Rollback to 1"])),
        // External changes are reverted by the next upgrade.
        ("kubectl scale deployment shop --replicas=3", Has(&["scaled"])),
        ("helm upgrade shop shop --reset-values --force-conflicts --wait --timeout 60s", Has(&["has been upgraded"])),
        ("kubectl get deployment shop -o jsonpath={.spec.replicas}", Is("1")),
        ("helm uninstall shop --keep-history --wait --timeout 60s", Has(&["release \"shop\" uninstalled"])),
        ("helm list --uninstalled", Has(&["shop", "uninstalled"])),
        ("kubectl get deployments,services,ingresses,pvc,roles,rolebindings,gadgets -o name", Is("service/kubernetes")),
        ("helm uninstall shop", Has(&["release \"shop\" uninstalled"])),
        ("helm history shop", Fails(1, "release: not found")),
        ("kubectl get crd gadgets.shop.example.com -o name", Has(&["gadgets.shop.example.com"])),
    ]);
}

#[test]
fn releases_are_of_their_namespaces_and_a_failed_hook_fails_them() {
    let Some(cluster) = cluster() else { return };
    cluster.drill(&[
        (
            "helm install one shop -n first --create-namespace --set beforehand=3 --wait --timeout 60s",
            Fails(1, "failed pre-install"),
        ),
        ("kubectl -n first get deployments -o name", Is("")),
        ("helm list -A", Has(&["one", "first", "failed"])),
        ("helm upgrade --install one shop -n first --wait --timeout 60s", Has(&["REVISION: 2", "STATUS: deployed"])),
        (
            "helm upgrade --install one shop -n second --create-namespace --wait --timeout 60s",
            Has(&["STATUS: deployed"]),
        ),
        ("helm list -A -q", Is("one\none")),
        ("helm list -n second -o json", Has(&["\"namespace\":\"second\"", "\"status\":\"deployed\""])),
        ("helm uninstall one -n first --wait --timeout 60s", Has(&["uninstalled"])),
        ("kubectl -n first get secrets,deployments,pvc -o name", Lacks(&["one"])),
        ("kubectl -n second get deployment one -o jsonpath={.status.availableReplicas}", Is("1")),
        (
            "helm package shop && helm install two shop-0.1.0.tgz -n second --wait --timeout 60s",
            Has(&["STATUS: deployed"]),
        ),
        // With ConfigMaps as storage, too.
        ("HELM_DRIVER=configmap helm install three shop --wait --timeout 60s", Has(&["STATUS: deployed"])),
        ("kubectl get configmaps -l owner=helm -o name", Is("configmap/sh.helm.release.v1.three.v1")),
        ("HELM_DRIVER=configmap helm uninstall three --wait --timeout 60s", Has(&["uninstalled"])),
        (
            "helm uninstall one two -n second --wait --timeout 60s",
            Has(&["release \"one\" uninstalled", "\"two\" uninstalled"]),
        ),
        ("kubectl delete namespace first second --timeout=60s", Has(&["namespace \"second\" deleted"])),
    ]);
}

//! delete with each propagation and grace, and wait.

use super::{Cluster, Fails, Has, Is};

const APP: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, infinity]}]
";

#[test]
fn dependents_go_as_the_deletion_says() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.file("app.yaml", APP);
    let made = ("kubectl apply -f app.yaml && kubectl rollout status deploy/app --timeout=60s", Has(&["successfully"]));
    cluster.drill(&[
        made,
        // Orphans stay, without an owner; a recreated Deployment adopts them.
        ("kubectl delete deploy app --cascade=orphan", Has(&["deployment.apps \"app\" deleted"])),
        ("kubectl get rs -l app=app -o jsonpath='{.items[*].metadata.ownerReferences}'", Is("")),
        ("kubectl get pods -l app=app --no-headers", Has(&["1/1   Running"])),
        made,
        ("kubectl get rs -l app=app -o jsonpath='{.items[*].metadata.ownerReferences[0].kind}'", Is("Deployment")),
        // In the foreground the owner goes last.
        ("kubectl delete deploy app --cascade=foreground --timeout=60s", Has(&["deployment.apps \"app\" deleted"])),
        ("kubectl get rs,pods -l app=app", Has(&["No resources found"])),
        made,
        ("kubectl delete deploy app --cascade=foreground --wait=false", Has(&["deleted"])),
        ("kubectl wait --for=delete deploy/app pods -l app=app --timeout=60s || kubectl wait --for=delete deploy/app --timeout=60s", Has(&[])),
        made,
        ("kubectl delete deploy app --cascade=background", Has(&["deployment.apps \"app\" deleted"])),
        ("kubectl wait --for=delete rs,pods -l app=app --timeout=60s", Has(&[])),
        ("kubectl get rs,pods -l app=app", Has(&["No resources found"])),
        // Grace.
        ("kubectl run slow --image=$IMAGE -- sleep infinity", Has(&["pod/slow created"])),
        ("kubectl wait --for=condition=Ready pod/slow --timeout=60s", Is("pod/slow condition met")),
        ("kubectl delete pod slow --wait=false && kubectl get pod slow -o jsonpath='{.metadata.deletionGracePeriodSeconds}'", Has(&["30"])),
        ("kubectl delete pod slow --grace-period=1", Has(&["pod \"slow\" deleted"])),
        ("kubectl run stuck --image=$IMAGE -- sleep infinity", Has(&["pod/stuck created"])),
        ("kubectl wait --for=condition=Ready pod/stuck --timeout=60s", Is("pod/stuck condition met")),
        ("kubectl delete pod stuck --grace-period=0 --force", Has(&["Warning: Immediate deletion does not wait", "pod \"stuck\" force deleted"])),
        ("kubectl get pod stuck", Fails(1, "NotFound")),
    ]);
}

#[test]
fn objects_are_deleted_and_waited_for() {
    let Some(cluster) = Cluster::without_node() else { return };
    cluster.drill(&[
        ("for n in a b c d; do kubectl create cm $n --from-literal=n=$n; done", Has(&["configmap/d created"])),
        ("kubectl delete cm a b", Has(&["configmap \"a\" deleted", "configmap \"b\" deleted"])),
        ("kubectl delete cm a", Fails(1, "Error from server (NotFound): configmaps \"a\" not found")),
        ("kubectl delete cm a --ignore-not-found", Is("")),
        ("kubectl delete cm c --dry-run=server && kubectl get cm c -o name", Has(&["(server dry run)", "configmap/c"])),
        ("kubectl delete cm c -o name", Is("configmap/c")),
        ("kubectl delete --raw /api/v1/namespaces/default/configmaps/d", Has(&["\"status\":\"Success\""])),
        ("kubectl delete", Fails(1, "You must provide one or more resources")),
        ("kubectl delete cm --field-selector=metadata.name=nobody", Has(&["No resources found"])),
        // A finalizer holds it.
        ("kubectl create cm held --from-literal=a=1 && kubectl patch cm held --type=merge -p '{\"metadata\":{\"finalizers\":[\"x/y\"]}}'", Has(&["patched"])),
        ("kubectl delete cm held --timeout=1s", Fails(1, "timed out waiting for the condition")),
        ("kubectl get cm held -o jsonpath='{.metadata.deletionTimestamp}'", Has(&["20"])),
        ("kubectl patch cm held --type=json -p '[{\"op\":\"remove\",\"path\":\"/metadata/finalizers\"}]' && kubectl wait --for=delete cm/held --timeout=20s", Has(&["patched"])),
        // wait.
        ("(sleep 1; kubectl create cm later --from-literal=a=b) > /dev/null & kubectl wait --for=create cm/later --timeout=60s", Is("configmap/later condition met")),
        ("kubectl wait --for=jsonpath='{.data.a}'=b cm/later", Is("configmap/later condition met")),
        ("kubectl wait --for=jsonpath='{.data.a}' cm/later", Is("configmap/later condition met")),
        ("kubectl wait --for=jsonpath='{.data.a}'=z cm/later --timeout=1s", Fails(1, "error: timed out waiting for the condition on configmaps/later")),
        ("kubectl wait --for=delete cm/later --timeout=1s", Fails(1, "error: timed out waiting for the condition on configmaps/later")),
        ("kubectl wait --for=delete cm/never", Is("")),
        ("kubectl wait --for=condition=Ready pod/never --timeout=1s", Fails(1, "pods \"never\" not found")),
        // A namespace is deleted with its contents.
        ("kubectl create ns lab && kubectl -n lab create cm a --from-literal=a=b && kubectl -n lab create deploy d --image=i", Has(&["created"])),
        ("kubectl delete ns lab --timeout=60s", Has(&["namespace \"lab\" deleted"])),
        ("kubectl get cm,deploy,sa -n lab", Has(&["No resources found in lab namespace."])),
        ("kubectl -n lab create cm late --from-literal=a=b", Fails(1, "namespaces \"lab\" not found")),
    ]);
}

//! StatefulSets and DaemonSets: rolled out, described, undone and scaled by kubectl.

use super::{Cluster, Fails, Has, Is};

const SETS: &str = "
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: c
        image: localhost/busybox:1
        command: [sleep, infinity]
        env: [{name: A, value: '1'}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: logs}
spec:
  selector: {matchLabels: {app: logs}}
  template:
    metadata: {labels: {app: logs}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: c
        image: localhost/busybox:1
        command: [sleep, infinity]
        env: [{name: A, value: '1'}]
";

#[test]
fn stateful_sets_and_daemon_sets_are_followed_and_undone() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.file("sets.yaml", SETS);
    const COMPLETE: &str = "partitioned roll out complete: 2 new pods have been updated...";
    const ROLLED: &str = "daemon set \"logs\" successfully rolled out";
    const PATH: &str = "-o jsonpath='{.items[*].spec.template.spec.containers[0].env[?(@.name==\"A\")].value}'";
    let values = format!("kubectl get sts,ds {PATH}");
    cluster.drill(&[
        ("kubectl create -f sets.yaml", Is("statefulset.apps/db created\ndaemonset.apps/logs created")),
        ("kubectl rollout status sts/db --timeout=60s", Has(&[COMPLETE])),
        ("kubectl rollout status ds/logs --timeout=60s", Has(&[ROLLED])),
        (
            "kubectl get sts,ds --no-headers",
            Has(&["statefulset.apps/db   2/2", "daemonset.apps/logs   1     1     1     1     1 "]),
        ),
        ("kubectl get pods -l app=db -o name", Is("pod/db-0\npod/db-1")),
        ("kubectl annotate sts/db ds/logs kubernetes.io/change-cause=second", Has(&["annotated"])),
        ("kubectl set env sts/db ds/logs A=2", Is("statefulset.apps/db env updated\ndaemonset.apps/logs env updated")),
        ("kubectl rollout status sts/db --timeout=60s", Has(&[COMPLETE])),
        ("kubectl rollout status ds/logs --timeout=60s", Has(&[ROLLED])),
        ("kubectl rollout history sts/db", Has(&["REVISION  CHANGE-CAUSE\n1         <none>\n2         second\n"])),
        ("kubectl rollout history ds/logs", Has(&["REVISION  CHANGE-CAUSE\n1         <none>\n2         second\n"])),
        ("kubectl rollout history sts/db --revision=1", Has(&["statefulset.apps/db with revision #1", "A:\t1"])),
        ("kubectl rollout history ds/logs --revision=2", Has(&["daemonset.apps/logs with revision #2", "A:\t2"])),
        (&values, Is("2 2")),
        ("kubectl rollout undo sts/db", Is("statefulset.apps/db rolled back")),
        ("kubectl rollout undo ds/logs --to-revision=1", Is("daemonset.apps/logs rolled back")),
        (&values, Is("1 1")),
        ("kubectl rollout status sts/db --timeout=60s", Has(&[COMPLETE])),
        ("kubectl rollout status ds/logs --timeout=60s", Has(&[ROLLED])),
        ("kubectl get pods -o jsonpath='{.items[*].spec.containers[0].env[0].value}'", Is("1 1 1")),
        (
            "kubectl rollout undo ds/logs --to-revision=99",
            Fails(1, "error: unable to find specified revision 99 in history"),
        ),
        ("kubectl rollout restart sts/db", Is("statefulset.apps/db restarted")),
        ("kubectl rollout status sts/db --timeout=60s", Has(&[COMPLETE])),
        ("kubectl rollout pause sts/db", Fails(1, "pausing is not supported")),
        ("kubectl get controllerrevisions", Has(&["statefulset.apps/db", "daemonset.apps/logs"])),
        (
            "kubectl scale sts/db --replicas=1 && kubectl wait --for=delete pod/db-1 --timeout=60s",
            Has(&["statefulset.apps/db scaled"]),
        ),
        (
            "kubectl delete sts/db ds/logs && kubectl wait --for=delete pods --all --timeout=60s",
            Has(&["\"db\" deleted"]),
        ),
    ]);
}

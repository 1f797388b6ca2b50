//! `kubectl debug`: containers that join a running Pod, copies of Pods, a Pod on a node.

use super::{Cluster, Fails, Has, Is, Lacks};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: app, labels: {app: app}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'echo secret > /tmp/word; while :; do sleep 1; done', the-main-process]
";

#[test]
fn a_running_pod_is_debugged_from_within_beside_and_below() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.file("app.yaml", POD);
    let debug = "kubectl debug --profile=general --image=$IMAGE";
    let line = |rest: &str| format!("{debug} {rest}");
    cluster.drill(&[
        ("kubectl create -f app.yaml && kubectl wait --for=condition=Ready pod/app --timeout=60s", Has(&["met"])),
        // It sees its target's processes, and through them its files; it has the Pod's network.
        (
            &line("app -q -c look --target=c -i -- sh -c 'read x; echo got $x; ps; cat /proc/1/root/tmp/word; hostname' <<'Y'\ntyped\nY"),
            Has(&["got typed", "the-main-process", "secret", "app"]),
        ),
        ("kubectl wait --for=jsonpath='{.status.ephemeralContainerStatuses[?(@.name==\"look\")].state.terminated.exitCode}'=0 pod/app --timeout=60s", Has(&["met"])),
        ("kubectl logs app -c look", Has(&["got typed"])),
        ("kubectl get pod app -o jsonpath='{.spec.ephemeralContainers[0].targetContainerName} {.status.containerStatuses[0].restartCount} {.status.phase}'", Is("c 0 Running")),
        // Without a target it only sees itself.
        (&line("app -c alone -- sleep 1000"), Has(&[])),
        ("kubectl wait --for=jsonpath='{.status.ephemeralContainerStatuses[?(@.name==\"alone\")].state.running}' pod/app --timeout=60s", Has(&["met"])),
        ("kubectl exec app -c alone -- ps", Has(&["1 root     sleep 1000"])),
        ("kubectl exec app -c alone -- ps", Lacks(&["the-main-process"])),
        ("kubectl exec app -c alone -- ip address show eth0", Has(&["10.244.0."])),
        ("kubectl describe pod app", Has(&["Ephemeral Containers:\n  look:", "  alone:", "Reason:       Completed"])),
        ("kubectl get pod app --no-headers", Has(&["1/1   Running"])),
        // It stays unchanged, and the error is reported.
        (&line("app -c look -- true"), Fails(1, "look")),
        (&line("app -c blind --target=nothing -- true"), Fails(1, "spec.ephemeralContainers[2].targetContainerName: Not found: \"nothing\"")),
        (
            "kubectl patch pod app --subresource=ephemeralcontainers -p '{\"spec\":{\"ephemeralContainers\":[{\"name\":\"look\",\"image\":\"other\"}]}}'",
            Fails(1, ""),
        ),
        (
            "kubectl get --raw /api/v1/namespaces/default/pods/app/ephemeralcontainers | grep -o '\"name\":\"alone\"' | head -1",
            Is("\"name\":\"alone\""),
        ),
        // A copy, with shared processes and another command.
        (&line("app --copy-to=copy --share-processes -c beside -- sleep 1000"), Has(&[])),
        ("kubectl wait --for=condition=Ready pod/copy --timeout=60s && kubectl exec copy -c beside -- ps", Has(&["the-main-process", "sleep 1000"])),
        ("kubectl get pod copy -o jsonpath='{.spec.shareProcessNamespace} {.metadata.labels}'", Is("true")),
        ("kubectl debug app --profile=general --copy-to=other --container=c --set-image='*=localhost/busybox:1' -- sleep 2000", Has(&[])),
        ("kubectl wait --for=condition=Ready pod/other --timeout=60s && kubectl exec other -- ps", Has(&["sleep 2000"])),
        // A Pod in the node's own namespaces.
        (&line("$(kubectl get nodes -o name) -- sh -c 'ls -d /host/proc; readlink /proc/self/ns/uts'"), Has(&["Creating debugging pod node-debugger-"])),
        ("kubectl wait --for=jsonpath='{.status.phase}'=Succeeded $(kubectl get pods -o name | grep node-debugger) --timeout=60s", Has(&["met"])),
        ("kubectl logs $(kubectl get pods -o name | grep node-debugger)", Has(&["/host/proc"])),
        ("kubectl delete pods --all --now", Has(&["pod \"app\" deleted", "pod \"copy\" deleted"])),
    ]);
}

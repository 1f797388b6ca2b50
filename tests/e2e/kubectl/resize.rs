//! `--subresource=resize`: the resources of a running Pod change by patch, edit, replace and apply.

use super::{Cluster, Fails, Has, Is};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: app}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, '1000']
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 100m, memory: 64Mi}}
";

const APPLIED: &str = "
apiVersion: v1
kind: Pod
metadata: {name: app}
spec:
  containers: [{name: c, resources: {limits: {memory: 128Mi}}}]
";

#[test]
fn a_running_pod_is_resized() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.file("app.yaml", POD);
    cluster.file("applied.yaml", APPLIED);
    cluster.file("editor", "#!/bin/sh\nsed -i 's/cpu: 300m/cpu: 400m/' $1\n");
    let id = "kubectl get pod app -o jsonpath='{.status.containerStatuses[0].containerID}'";
    cluster.drill(&[
        (
            "chmod +x editor && kubectl create -f app.yaml && kubectl wait --for=condition=Ready pod/app --timeout=60s",
            Has(&["met"]),
        ),
        (
            "kubectl get pod app -o jsonpath='{.status.containerStatuses[0].resources.limits}'",
            Has(&["\"cpu\":\"100m\""]),
        ),
    ]);
    let before = cluster.says(id);
    let has = |limit: &str, wanted: &str| {
        let path = format!("{{.status.containerStatuses[0].resources.limits.{limit}}}");
        format!("kubectl wait --for=jsonpath='{path}'={wanted} pod/app --timeout=60s")
    };
    cluster.drill(&[
        (
            "kubectl patch pod app --subresource=resize -p '{\"spec\":{\"containers\":[{\"name\":\"c\",\"resources\":{\"limits\":{\"cpu\":\"200m\"}}}]}}'",
            Is("pod/app patched"),
        ),
        (&has("cpu", "200m"), Has(&["met"])),
        (
            "kubectl patch pod app --subresource=resize --type=json -p '[{\"op\":\"replace\",\"path\":\"/spec/containers/0/resources/limits/cpu\",\"value\":\"300m\"}]'",
            Is("pod/app patched"),
        ),
        ("kubectl get pod app --subresource=resize -o jsonpath='{.spec.containers[0].resources.limits.cpu}'", Is("300m")),
        ("KUBE_EDITOR=./editor kubectl edit pod app --subresource=resize", Is("pod/app edited")),
        (&has("cpu", "400m"), Has(&["met"])),
        ("kubectl get pod app -o yaml | sed 's/cpu: 400m/cpu: 500m/' | kubectl replace --subresource=resize -f -", Is("pod/app replaced")),
        (&has("cpu", "500m"), Has(&["met"])),
        ("kubectl apply --server-side --force-conflicts --subresource=resize -f applied.yaml", Is("pod/app serverside-applied")),
        (&has("memory", "128Mi"), Has(&["met"])),
        ("kubectl get pod app -o jsonpath='{.metadata.generation} {.status.containerStatuses[0].restartCount} {.spec.containers[0].image}'", Is("6 0 localhost/busybox:1")),
        (
            "kubectl wait --for=jsonpath='{.status.observedGeneration}'=6 pod/app --timeout=60s && kubectl events --for pod/app",
            Has(&["ResizeStarted", "ResizeCompleted", "Pod resize completed: {\"containers\":[{\"name\":\"c\""]),
        ),
        // Not through a write of the Pod itself; nor changes that would require a new Pod.
        (
            "kubectl patch pod app -p '{\"spec\":{\"containers\":[{\"name\":\"c\",\"resources\":{\"limits\":{\"cpu\":\"1\"}}}]}}'",
            Fails(1, "spec: Forbidden: pod updates may not change fields other than"),
        ),
        (
            "kubectl patch pod app --subresource=resize -p '{\"spec\":{\"containers\":[{\"name\":\"c\",\"resources\":{\"limits\":{\"cpu\":null}}}]}}'",
            Fails(1, "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed"),
        ),
        (
            "kubectl patch pod app --subresource=resize -p '{\"spec\":{\"containers\":[{\"name\":\"c\",\"resources\":{\"requests\":{\"cpu\":\"500m\",\"memory\":\"128Mi\"}}}]}}'",
            Fails(1, "spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing"),
        ),
        // More than the node has.
        (
            "kubectl patch pod app --subresource=resize -p '{\"spec\":{\"containers\":[{\"name\":\"c\",\"resources\":{\"requests\":{\"cpu\":\"4k\"},\"limits\":{\"cpu\":\"4k\"}}}]}}'",
            Is("pod/app patched"),
        ),
        ("kubectl wait --for=condition=PodResizePending pod/app --timeout=60s && kubectl describe pod app", Has(&["PodResizePending", "ResizeInfeasible"])),
        ("kubectl get pod app -o jsonpath='{.status.containerStatuses[0].allocatedResources.cpu}'", Is("10m")),
    ]);
    assert_eq!(cluster.says(id), before, "it is the same container");
    cluster.drill(&[("kubectl delete pod app --now", Has(&["deleted"]))]);
}

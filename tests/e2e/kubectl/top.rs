//! CPU and memory usage, through an unmodified `kubectl top`.

use super::{Cluster, Fails, Has, Is};

#[test]
fn top_tells_what_pods_and_nodes_use() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.drill(&[
        ("kubectl top pods", Has(&["No resources found in default namespace."])),
        ("kubectl run busy --image=$IMAGE -l app=busy -- sh -c 'while :; do :; done'", Has(&["created"])),
        ("kubectl run idle --image=$IMAGE -- sleep infinity", Has(&["created"])),
        ("kubectl wait --for=condition=Ready pod/busy pod/idle --timeout=60s", Has(&["met"])),
        (
            "timeout 60 sh -c 'until kubectl top pod busy && kubectl top pod idle; do sleep 0.5; done' 2>/dev/null",
            Has(&["CPU(cores)"]),
        ),
        ("kubectl top pod busy --no-headers | awk '{print ($2+0 >= 100 && $2+0 <= 1100)}'", Is("1")),
        ("kubectl top pod idle --no-headers | awk '{print ($2+0 <= 20 && $2 ~ /m$/ && $3 ~ /Mi$/)}'", Is("1")),
        ("kubectl top pods | head -1", Has(&["NAME", "CPU(cores)", "MEMORY(bytes)"])),
        ("kubectl top pods --containers --no-headers | awk '{print $1 \"/\" $2}'", Is("busy/busy\nidle/idle")),
        ("kubectl top pods --sort-by=cpu --no-headers | awk '{print $1}'", Is("busy\nidle")),
        ("kubectl top pods -l app=busy --no-headers | awk '{print $1}'", Is("busy")),
        ("kubectl top pods --field-selector metadata.name=idle --no-headers | awk '{print $1}'", Is("idle")),
        ("kubectl top pods -A --sum --no-headers", Has(&["default   busy", "________"])),
        ("kubectl top nodes", Has(&["NAME", "CPU(cores)", "MEMORY(bytes)", "%"])),
        ("kubectl top nodes --no-headers | awk '{print ($2+0 >= 100 && $4+0 > 64)}'", Is("1")),
        ("kubectl top node $(kubectl get nodes -o jsonpath='{.items[0].metadata.name}') --no-headers | wc -l", Is("1")),
        ("kubectl top pod nobody", Fails(1, "Error from server (NotFound): pods \"nobody\" not found")),
        // As objects.
        (
            "kubectl get --raw /apis/metrics.k8s.io/v1beta1/namespaces/default/pods/busy",
            Has(&["\"kind\":\"PodMetrics\"", "\"labels\":{\"app\":\"busy\"}"]),
        ),
        ("kubectl get pods.metrics.k8s.io", Has(&["NAME   CPU", "MEMORY", "WINDOW", "busy"])),
        ("kubectl get podmetrics idle -o jsonpath='{.containers[0].name}'", Is("idle")),
        ("kubectl get pods -o name", Is("pod/busy\npod/idle")),
        (
            "kubectl api-resources --api-group=metrics.k8s.io --no-headers -o wide | grep PodMetrics",
            Has(&["metrics.k8s.io/v1beta1   true", "get,list"]),
        ),
        ("kubectl explain podmetrics.containers.usage", Has(&["KIND:       PodMetrics", "FIELD: usage <map[string]"])),
        ("kubectl auth can-i list pods.metrics.k8s.io", Is("yes")),
        // The node's own endpoint.
        (
            "kubectl get --raw /api/v1/nodes/$(kubectl get nodes -o jsonpath='{.items[0].metadata.name}')/proxy/stats/summary",
            Has(&["\"nodeName\"", "\"usageCoreNanoSeconds\"", "\"name\":\"busy\""]),
        ),
    ]);
}

#[test]
fn top_says_why_there_is_nothing() {
    let Some(cluster) = Cluster::without_node() else { return };
    cluster.drill(&[
        ("kubectl run waits --image=x", Has(&["created"])),
        ("kubectl top nodes", Fails(1, "error: metrics not available yet")),
        ("kubectl top pods", Fails(1, "error: metrics not available yet")),
        (
            "kubectl top pod waits",
            Fails(1, "Error from server (NotFound): podmetrics.metrics.k8s.io \"default/waits\" not found"),
        ),
        ("kubectl get podmetrics", Has(&["No resources found"])),
    ]);
}

//! Cordon, drain and taint.

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
fn a_node_is_closed_emptied_and_tainted() {
    let Some(mut cluster) = Cluster::start() else { return };
    let node = cluster.says("kubectl get nodes -o jsonpath='{.items[0].metadata.name}'");
    cluster.env.push(("NODE", node));
    cluster.file("app.yaml", APP);
    cluster.drill(&[
        ("kubectl apply -f app.yaml && kubectl rollout status deploy/app --timeout=60s", Has(&["successfully"])),
        ("kubectl run bare --image=$IMAGE -- sleep infinity", Has(&["created"])),
        ("kubectl wait --for=condition=Ready pod/bare --timeout=60s", Has(&["met"])),
        ("kubectl cordon $NODE", Has(&[" cordoned"])),
        ("kubectl cordon $NODE", Has(&[" already cordoned"])),
        ("kubectl get nodes --no-headers", Has(&["Ready,SchedulingDisabled"])),
        ("kubectl run late --image=$IMAGE && kubectl wait --for=jsonpath='{.status.conditions[0].reason}'=Unschedulable pod/late --timeout=20s", Has(&["met"])),
        ("kubectl describe pod late", Has(&["0/1 nodes are available: 1 node(s) were unschedulable."])),
        ("kubectl uncordon $NODE", Has(&[" uncordoned"])),
        ("kubectl wait --for=condition=PodScheduled pod/late --timeout=60s && kubectl delete pod late --now", Has(&["deleted"])),
        // Drain warns about Pods without a controller.
        ("kubectl drain $NODE", Fails(1, "cannot delete Pods that declare no controller (use --force to override): default/bare")),
        ("kubectl drain $NODE --force --grace-period=0 --timeout=60s", Has(&["evicting pod default/app-", "evicting pod default/bare", " drained"])),
        ("kubectl get pods --field-selector=status.phase=Running", Has(&["No resources found"])),
        ("kubectl uncordon $NODE && kubectl rollout status deploy/app --timeout=60s", Has(&["successfully"])),
        // Taints.
        ("kubectl taint nodes $NODE key=a:NoSchedule", Has(&[" tainted"])),
        ("kubectl taint nodes $NODE key=b:NoSchedule", Fails(1, "already has key taint(s) with same effect(s) and --overwrite is false")),
        ("kubectl taint nodes $NODE key=b:NoSchedule --overwrite", Has(&[" modified"])),
        ("kubectl describe node", Has(&["Taints:             key=b:NoSchedule"])),
        ("kubectl taint nodes $NODE key=c:NoExecute", Has(&[" tainted"])),
        ("kubectl wait --for=jsonpath='{.status.availableReplicas}'=1 deploy/app --timeout=1s; kubectl wait --for=jsonpath='{.status.unavailableReplicas}'=1 deploy/app --timeout=60s", Has(&["met"])),
        ("kubectl taint nodes $NODE key-", Has(&[" untainted"])),
        ("kubectl taint nodes $NODE key-", Fails(1, "error: taint \"key\" not found")),
        ("kubectl rollout status deploy/app --timeout=60s", Has(&["successfully"])),
        ("kubectl label node $NODE disk=fast && kubectl get nodes -l disk=fast -o name", Has(&["node/"])),
        ("kubectl get nodes -o jsonpath='{.items[0].status.nodeInfo.containerRuntimeVersion}'", Has(&["podwright://"])),
        ("kubectl cordon nobody", Fails(1, "nodes \"nobody\" not found")),
        ("kubectl get nodes -o name | wc -l", Is("1")),
    ]);
}

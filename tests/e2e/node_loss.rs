//! A silent node: it becomes not ready, its Pods stop serving, are replaced elsewhere, and are removed when it returns.

use std::time::Duration;

use crate::support::{TestNode, contains, eventually, leftovers::Machine};

const TIMEOUT: Duration = Duration::from_secs(60);

const WORK: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
      containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: faithful}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 0
  tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute}]
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
";

const READY: &str = ".status.conditions[?(@.type==\"Ready\")]";

#[test]
fn the_pods_of_a_lost_node_are_replaced_and_it_comes_back() {
    // Heartbeats are every 10 seconds.
    let server = TestNode::server(&["--node-monitor-grace-period", "12s"]);
    let mut agents = ["n1", "n2"].map(|name| TestNode::agent(&server, name));
    let untouched = agents.each_ref().map(|agent| Machine::untouched(agent.dir.path()));
    let tar = crate::support::node::busybox_tar().to_str().unwrap();
    for name in ["n1", "n2"] {
        server.ok(&["image", "--node", name, "import", tar, "localhost/busybox:1"]);
    }
    let cordon = |yes: bool| {
        server.ok(&["patch", "node", "n2", "-p", &format!("{{\"spec\":{{\"unschedulable\":{yes}}}}}")]);
    };
    cordon(true);
    server.apply(WORK);
    server.wait("condition=Available", &["deployment/web"], TIMEOUT);
    server.wait("condition=Ready", &["pod/faithful"], TIMEOUT);
    cordon(false);
    let old = server.field(&["pods", "-l", "app=web"], ".items[0].metadata.name");
    let serving = || server.field(&["endpointslices"], ".items[*].endpoints[*].conditions.ready");
    assert_eq!(server.field(&["pod", &old], ".spec.nodeName"), "n1");
    eventually("its endpoint serves", TIMEOUT, || contains(&serving(), "true"));
    let container = server.field(&["pod", "faithful"], ".status.containerStatuses[0].containerID");

    agents[0].kill();
    server.wait_field(&["node", "n1"], &format!("{READY}.status"), "Unknown", TIMEOUT);
    let node = |path: &str| server.field(&["node", "n1"], path);
    assert_eq!(node(&format!("{READY}.reason")), "NodeStatusUnknown");
    assert_eq!(node(&format!("{READY}.message")), "Kubelet stopped posting node status.");
    for effect in ["NoSchedule", "NoExecute"] {
        eventually(effect, TIMEOUT, || {
            let taints =
                server.field(&["node", "n1"], ".spec.taints[?(@.key==\"node.kubernetes.io/unreachable\")].effect");
            contains(&taints, effect)
        });
    }
    contains(&server.ok(&["get", "nodes"]), "NotReady").unwrap();
    server.wait_field(&["pod", "faithful"], &format!("{READY}.status"), "False", TIMEOUT);
    // After its two seconds it is evicted, and replaced; it stays until its node confirms its end.
    server.wait("jsonpath={.metadata.deletionTimestamp}", &[&format!("pod/{old}")], TIMEOUT);
    eventually("the eviction is told", TIMEOUT, || {
        contains(&server.ok(&["events", "--for", &format!("pod/{old}")]), "Marking for deletion Pod default/")
    });
    eventually("another Pod runs on the other node", TIMEOUT, || {
        let nodes = server
            .field(&["pods", "-l", "app=web", "--field-selector", "status.phase=Running"], ".items[*].spec.nodeName");
        contains(&nodes, "n2")
    });
    server.wait("condition=Available", &["deployment/web"], TIMEOUT);
    eventually("its endpoint serves", TIMEOUT, || contains(&serving(), "true"));
    assert_eq!(server.run(&["get", "pod", &old]).code, 0, "nobody knows whether it has ended");
    assert_eq!(server.field(&["pod", "faithful"], ".metadata.deletionTimestamp"), "");

    agents[0].spawn();
    server.wait("condition=Ready", &["node/n1"], TIMEOUT);
    server.wait("delete", &[&format!("pod/{old}")], TIMEOUT);
    server.wait("condition=Ready", &["pod/faithful"], TIMEOUT);
    let status = |path: &str| server.field(&["pod", "faithful"], &format!(".status.containerStatuses[0].{path}"));
    assert_eq!((status("containerID"), status("restartCount")), (container, "0".to_owned()));
    eventually("the taints are gone", TIMEOUT, || match node(".spec.taints") {
        taints if taints.is_empty() => Ok(()),
        taints => Err(taints),
    });
    server.ok(&["delete", "deployment,service,pod", "--all"]);
    drop(agents);
    untouched.iter().for_each(Machine::assert_unchanged);
}

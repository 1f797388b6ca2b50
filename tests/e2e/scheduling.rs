//! Scheduling of real Pods: preemption on one node, topology spread over several, profiles from a file.

use std::time::Duration;

use crate::support::{TestNode, contains, eventually, node::busybox_tar};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A file of `manifests/`.
fn manifest(name: &str) -> String {
    format!("{}/manifests/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn an_important_pod_takes_the_place_of_another() {
    let node = TestNode::start(&["--node-name", "n1"]);
    node.import_busybox();
    node.ok(&["apply", "-f", &manifest("preemption.yaml")]);
    node.wait("condition=Ready", &["-n", "preemption", "pod/filler"], TIMEOUT);
    let important = ["-n", "preemption", "pod", "important"];
    let reason = ".status.conditions[?(@.type==\"PodScheduled\")].reason";
    node.wait_field(&important, reason, "SchedulingGated", TIMEOUT);
    node.ok(&["-n", "preemption", "patch", "pod", "important", "-p", "{\"spec\":{\"schedulingGates\":null}}"]);
    node.wait_field(&important, ".status.nominatedNodeName", "n1", TIMEOUT);
    let filler = ["-n", "preemption", "pod", "filler"];
    let target = node.field(&filler, ".status.conditions[?(@.type==\"DisruptionTarget\")].reason");
    assert_eq!(target, "PreemptionByScheduler", "it is told why, and has time to end");
    node.wait("condition=Ready", &["-n", "preemption", "pod/important"], TIMEOUT);
    assert_eq!(node.run(&["-n", "preemption", "get", "pod", "filler"]).code, 1, "it is gone by then");
    eventually("the event", TIMEOUT, || {
        contains(&node.ok(&["-n", "preemption", "events", "--for", "pod/filler"]), "on node n1")
    });
    // An equal one waits, and reports that preemption on this node does not help.
    let late = std::fs::read_to_string(manifest("preemption.yaml")).unwrap();
    let late = late.split("---").find(|part| part.contains("name: filler\n  namespace")).unwrap();
    node.apply(late);
    let told = "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports. \
                preemption: not eligible due to preemptionPolicy=Never.";
    eventually(told, TIMEOUT, || contains(&node.ok(&["-n", "preemption", "events", "--for", "pod/filler"]), told));
}

#[test]
fn pods_are_spread_over_zones() {
    let server = TestNode::server(&[]);
    let names = ["n1", "n2", "n3"];
    let _agents = names.map(|name| TestNode::agent(&server, name));
    for (name, zone) in names.iter().zip(["a", "a", "b"]) {
        server.ok(&["image", "--node", name, "import", busybox_tar().to_str().unwrap(), "localhost/busybox:1"]);
        server.ok(&["label", "node", name, &format!("topology.kubernetes.io/zone={zone}")]);
    }
    server.ok(&["apply", "-f", &manifest("topology-spread.yaml")]);
    server.ok(&["-n", "spread", "rollout", "status", "deployment/web", "--timeout=60s"]);
    let on = |node: &str| {
        let selection = format!("spec.nodeName={node}");
        let pods = ["-n", "spread", "pods", "--field-selector", &selection];
        server.field(&pods, ".items[*].metadata.name").split_whitespace().count()
    };
    assert_eq!((on("n1") + on("n2"), on("n3")), (2, 2));
    // With zone b cordoned a new one would exceed the skew in a.
    server.ok(&["cordon", "n3"]);
    server.ok(&["-n", "spread", "scale", "deployment/web", "--replicas=6"]);
    eventually("one has no place", TIMEOUT, || {
        let events = server.ok(&["-n", "spread", "get", "events", "-o", "json"]);
        contains(&events, "node(s) didn't match pod topology spread constraints")
    });
    assert_eq!((on("n1") + on("n2"), on("n3")), (3, 2));
    server.ok(&["uncordon", "n3"]);
    server.ok(&["-n", "spread", "rollout", "status", "deployment/web", "--timeout=60s"]);
    assert_eq!((on("n1") + on("n2"), on("n3")), (3, 3));
}

const PROFILES: &str = "
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
- schedulerName: everywhere
  plugins:
    filter:
      disabled: [{name: NodeUnschedulable}, {name: TaintToleration}]
";

#[test]
fn a_file_sets_the_scheduler_up() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("scheduler.yaml");
    std::fs::write(&file, PROFILES.replace("plugins", "plugin")).unwrap();
    let args = ["--scheduler-config", file.to_str().unwrap()];
    let mut server = TestNode::stopped(&args);
    server.spawn();
    server.wait_ended();
    contains(&server.log(), "profiles[1].plugin: unknown field").unwrap();
    std::fs::write(&file, PROFILES).unwrap();
    let node = TestNode::start(&[&["--node-name", "n1"][..], &args].concat());
    node.import_busybox();
    node.ok(&["cordon", "n1"]);
    let pod = |name: &str, scheduler: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{schedulerName: {scheduler}, \
             containers: [{{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}}]}}}}"
        )
    };
    node.apply(&pod("here", "everywhere"));
    node.wait("condition=Ready", &["pod/here"], TIMEOUT);
    node.apply(&pod("waits", "default-scheduler"));
    let reason = ".status.conditions[?(@.type==\"PodScheduled\")].reason";
    node.wait_field(&["pod", "waits"], reason, "Unschedulable", TIMEOUT);
}

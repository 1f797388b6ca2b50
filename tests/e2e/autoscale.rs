//! A HorizontalPodAutoscaler follows real Pods' usage: up to its limit under load, and down again afterwards.

use std::time::Duration;

use crate::support::{TestNode, contains, eventually, leftovers::Machine};

/// Agents measure every 15 seconds, and a new Pod's usage counts after as long.
const TIMEOUT: Duration = Duration::from_secs(120);

fn events(node: &TestNode) -> String {
    node.ok(&["-n", "autoscale", "get", "events", "--field-selector", "involvedObject.kind=HorizontalPodAutoscaler"])
}

fn has_event(node: &TestNode, event: &str) {
    eventually(&format!("the event {event}"), TIMEOUT, || contains(&events(node), event));
}

/// Waits until the autoscaler has counted this many replicas, each ready.
fn replicas(node: &TestNode, count: &str) {
    eventually(&format!("{count} replicas"), TIMEOUT, || {
        let ready = node.field(&["-n", "autoscale", "deployment", "web"], ".status.readyReplicas");
        let counted = node.field(&["-n", "autoscale", "hpa", "web"], ".status.currentReplicas");
        let pods = node.field(&["-n", "autoscale", "deployment", "web"], ".status.replicas");
        match (&*ready, &*counted, &*pods) == (count, count, count) {
            true => Ok(()),
            false => {
                let seen = format!("{ready} ready, {counted} counted, {pods} in all\n");
                Err(seen + &node.ok(&["-n", "autoscale", "describe", "hpa", "web"]))
            }
        }
    });
}

#[test]
fn an_autoscaler_goes_up_under_load_and_down_after_it() {
    let node = TestNode::start(&["--horizontal-pod-autoscaler-sync-period", "2s"]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.ok(&["apply", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/autoscale.yaml")]);
    let scale = |count: &str| node.ok(&["-n", "autoscale", "scale", "deployment/load", "--replicas", count]);
    let condition = |kind: &str| {
        let path = format!(".status.conditions[?(@.type==\"{kind}\")].reason");
        node.field(&["-n", "autoscale", "hpa", "web"], &path)
    };
    // Idle: its usage is known and low; a new Pod reports nothing at first.
    node.wait("condition=ScalingActive", &["-n", "autoscale", "hpa/web"], TIMEOUT);
    replicas(&node, "1");
    let row = node.ok(&["-n", "autoscale", "get", "hpa", "web", "--no-headers"]);
    contains(&row, "Deployment/web").unwrap();
    assert!(row.contains("cpu: ") && row.contains("%/50%"), "{row}");

    scale("1");
    replicas(&node, "4");
    has_event(&node, "reason: cpu resource utilization (percentage of request) above target");
    eventually("it is limited", TIMEOUT, || match &*condition("ScalingLimited") {
        "TooManyReplicas" => Ok(()),
        other => Err(other.to_owned()),
    });
    let page = node.ok(&["-n", "autoscale", "describe", "hpa", "web"]);
    for part in ["resource cpu on pods  (as a percentage of request):", "4 current / 4 desired", "SuccessfulRescale"] {
        contains(&page, part).unwrap();
    }

    scale("0");
    replicas(&node, "1");
    has_event(&node, "New size: 1; reason: All metrics below target");
    let last = node.field(&["-n", "autoscale", "hpa", "web"], ".status.lastScaleTime");
    assert!(!last.is_empty());

    // A target scaled to zero is left alone.
    node.ok(&["-n", "autoscale", "scale", "deployment/web", "--replicas=0"]);
    eventually("it is switched off", TIMEOUT, || match &*condition("ScalingActive") {
        "ScalingDisabled" => Ok(()),
        other => Err(other.to_owned()),
    });
    node.ok(&["delete", "namespace", "autoscale"]);
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn the_command_makes_autoscalers() {
    let server = TestNode::server(&[]);
    server.ok(&["create", "deployment", "web", "--image=localhost/busybox:1"]);
    let said = server.ok(&["autoscale", "deployment", "web", "--min=2", "--max=5", "--cpu=70%", "--memory=64Mi"]);
    assert_eq!(said.trim(), "horizontalpodautoscaler.autoscaling/web autoscaled");
    let row = server.ok(&["get", "hpa", "web", "--no-headers"]);
    let row = row.split_whitespace().collect::<Vec<_>>().join(" ");
    contains(&row, "web Deployment/web cpu: <unknown>/70%, memory: <unknown>/64Mi 2 5").unwrap();
    assert_eq!(server.field(&["hpa", "web"], ".spec.scaleTargetRef.apiVersion"), "apps/v1");
    // Below the minimum: no metrics are needed.
    eventually("there are two", TIMEOUT, || match &*server.field(&["deployment", "web"], ".spec.replicas") {
        "2" => Ok(()),
        other => Err(other.to_owned()),
    });
    let refused = server.run(&["autoscale", "pod", "web", "--max=5"]);
    assert_ne!(refused.code, 0, "{}", refused.all());
}

//! The cells of tables, above all a Pod's.

use jiff::Timestamp;
use podwright::api::{Object, kinds};
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn row(value: Value) -> Vec<String> {
    let object = Object(value);
    let kind = kinds::of(object.api_version(), object.kind()).expect("a kind");
    kind.columns.iter().map(|c| c.text(&object, now())).collect()
}

fn pod(spec: Value, status: Value) -> Vec<String> {
    let metadata = json!({"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"});
    row(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}))
}

fn waiting(reason: &str) -> Value {
    json!({"name": "c", "restartCount": 0, "state": {"waiting": {"reason": reason}}})
}
fn terminated(state: Value) -> Value {
    json!({"name": "c", "restartCount": 0, "state": {"terminated": state}})
}
fn running(restarts: u32) -> Value {
    json!({"name": "c", "ready": true, "restartCount": restarts, "state": {"running": {}}})
}

#[test]
fn ready_status_and_restarts_of_pods() {
    let one = json!({"containers": [{"name": "c"}]});
    let two = json!({"containers": [{"name": "c"}, {"name": "d"}]});
    let init = json!({"initContainers": [{"name": "i"}, {"name": "j"}], "containers": [{"name": "c"}]});
    let sidecar = json!({"initContainers": [{"name": "s", "restartPolicy": "Always"}], "containers": [{"name": "c"}]});
    let done = |name: &str| json!({"name": name, "restartCount": 0, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}});
    let ended = json!({"terminated": {"finishedAt": "2026-01-01T00:55:00Z"}});
    for (what, spec, status, expected) in [
        ("pending", &one, json!({"phase": "Pending"}), "0/1 Pending 0"),
        (
            "creating",
            &one,
            json!({"phase": "Pending", "containerStatuses": [waiting("ContainerCreating")]}),
            "0/1 ContainerCreating 0",
        ),
        ("running", &one, json!({"phase": "Running", "containerStatuses": [running(0)]}), "1/1 Running 0"),
        (
            "crashing",
            &one,
            json!({"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 3, "lastState": ended,
                   "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}),
            "0/1 CrashLoopBackOff 3 (5m ago)",
        ),
        (
            "completed",
            &one,
            json!({"phase": "Succeeded", "containerStatuses": [terminated(json!({"exitCode": 0, "reason": "Completed"}))]}),
            "0/1 Completed 0",
        ),
        (
            "exit code",
            &one,
            json!({"phase": "Failed", "containerStatuses": [terminated(json!({"exitCode": 3}))]}),
            "0/1 ExitCode:3 0",
        ),
        (
            "signal",
            &one,
            json!({"phase": "Failed", "containerStatuses": [terminated(json!({"exitCode": 137, "signal": 9}))]}),
            "0/1 Signal:9 0",
        ),
        ("evicted", &one, json!({"phase": "Failed", "reason": "Evicted"}), "0/1 Evicted 0"),
        (
            "one of two ended",
            &two,
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}],
                   "containerStatuses": [done("c"), running(0)]}),
            "1/2 NotReady 0",
        ),
        (
            "gated",
            &one,
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}),
            "0/1 SchedulingGated 0",
        ),
        (
            "initialising",
            &init,
            json!({"phase": "Pending", "initContainerStatuses": [done("i"), {"name": "j", "restartCount": 0, "state": {"running": {}}}],
                   "containerStatuses": [waiting("PodInitializing")]}),
            "0/1 Init:1/2 0",
        ),
        (
            "init fails",
            &init,
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "restartCount": 2, "lastState": ended,
                   "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}),
            "0/1 Init:Error 2 (5m ago)",
        ),
        (
            "init waits",
            &init,
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "restartCount": 0, "state": {"waiting": {"reason": "ErrImagePull"}}}]}),
            "0/1 Init:ErrImagePull 0",
        ),
        (
            "initialised",
            &init,
            json!({"phase": "Running", "initContainerStatuses": [done("i"), done("j")], "containerStatuses": [running(0)]}),
            "1/1 Running 0",
        ),
        (
            "sidecar",
            &sidecar,
            json!({"phase": "Running", "initContainerStatuses": [{"name": "s", "started": true, "ready": true, "restartCount": 1,
                   "lastState": ended, "state": {"running": {}}}], "containerStatuses": [running(0)]}),
            "2/2 Running 1 (5m ago)",
        ),
    ] {
        let cells = pod(spec.clone(), status);
        assert_eq!(cells[1..4].join(" "), expected, "{what}");
        assert_eq!(cells[4], "60m");
    }
}

#[test]
fn terminating_pods() {
    let metadata = json!({"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"});
    let cells =
        row(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": "Running", "containerStatuses": [running(0)]}}));
    assert_eq!((cells[2].as_str(), cells[4].as_str()), ("Terminating", "<unknown>"));
}

#[test]
fn every_kind_has_a_row() {
    for kind in kinds::stored() {
        // An empty object has a value in every column and panics in none.
        let cells = row(json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"name": "n"}}));
        assert_eq!(cells.len(), kind.columns.len());
        assert!(kind.columns.iter().any(|c| c.name == "NAME"), "{}", kind.kind);
    }
}

#[test]
fn metrics_are_summed_over_containers() {
    let version = "metrics.k8s.io/v1beta1";
    let usage = json!({"cpu": "1500u", "memory": "1Mi"});
    let containers = json!([{"name": "a", "usage": usage}, {"name": "b", "usage": usage}]);
    let pod = json!({"apiVersion": version, "kind": "PodMetrics", "metadata": {"name": "p"}, "window": "15s",
        "containers": containers});
    assert_eq!(row(pod), ["p", "3m", "2Mi", "15s"]);
    let node = json!({"apiVersion": version, "kind": "NodeMetrics", "metadata": {"name": "n"}, "window": "15s", "usage": usage});
    assert_eq!(row(node), ["n", "1500u", "1Mi", "15s"]);
}

#[test]
fn services_and_their_like() {
    let meta = json!({"name": "a", "creationTimestamp": "2026-01-01T00:59:50Z"});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"type": "NodePort",
        "clusterIP": "10.0.0.1", "selector": {"b": "c", "a": "b"},
        "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}});
    assert_eq!(row(service), ["a", "NodePort", "10.0.0.1", "<none>", "80:30080/TCP,53/UDP", "10s", "a=b,b=c"]);
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta, "addressType": "IPv4",
        "ports": [{"port": 80}], "endpoints": [{"addresses": ["1.1.1.1"]}, {"addresses": ["1.1.1.2"]},
        {"addresses": ["1.1.1.3"]}, {"addresses": ["1.1.1.4"]}]});
    assert_eq!(row(slice), ["a", "IPv4", "80", "1.1.1.1,1.1.1.2,1.1.1.3 + 1 more...", "10s"]);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:59:50Z",
        "labels": {"node-role.kubernetes.io/worker": ""}}, "spec": {"unschedulable": true},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1"}}});
    assert_eq!(row(node)[..5], ["a", "Ready,SchedulingDisabled", "worker", "10s", "v1"]);
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": {"replicas": 3,
        "selector": {"matchLabels": {"a": "b"}}, "template": {"spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "j"}]}}},
        "status": {"readyReplicas": 1, "updatedReplicas": 2, "availableReplicas": 1}});
    assert_eq!(row(deployment), ["a", "1/3", "2", "1", "10s", "c,d", "i,j", "a=b"]);
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": meta, "type": "Normal", "reason": "Started", "message": "m\n",
        "involvedObject": {"kind": "Pod", "name": "p"}, "lastTimestamp": "2026-01-01T00:59:00Z", "source": {"component": "x", "host": "h"}});
    assert_eq!(row(event)[..7], ["60s", "Normal", "Started", "pod/p", "", "x, h", "m"]);
}

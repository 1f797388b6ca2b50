//! Pods whose resources change while they run, through kubectl if a recent one is installed, and our own command.

use std::time::Duration;

use serde_json::Value;

use crate::support::{TestNode, contains, eventually, leftovers::Machine, node::busybox_tar, registry::tree};

const TIMEOUT: Duration = Duration::from_secs(30);

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 0
  initContainers:
  - name: side
    image: localhost/busybox:1
    command: [sleep, '1000']
    restartPolicy: Always
    resources: {requests: {cpu: 10m, memory: 8Mi}, limits: {cpu: 100m, memory: 32Mi}}
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, '1000']
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 200m, memory: 64Mi}}
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]
    volumeMounts: [{name: about, mountPath: /about}]
  volumes:
  - name: about
    downwardAPI:
      items: [{path: cpu, resourceFieldRef: {containerName: c, resource: limits.cpu, divisor: 1m}}]
";

fn status(node: &TestNode, pod: &str) -> Value {
    serde_json::from_str(&node.ok(&["get", "pod", pod, "-o", "json"])).unwrap()
}

/// Waits until a container has its whole allocation, and no resize is in progress.
fn until_resized(node: &TestNode, list: &str, name: &str, limit: &str, wanted: &str) -> Value {
    let mut found = Value::Null;
    eventually(&format!("{name} has {limit} {wanted}"), TIMEOUT, || {
        let pod = status(node, "web");
        let of = |list: &str| pod["status"][list].as_array().cloned().unwrap_or_default();
        let container = of(list).into_iter().find(|c| c["name"] == name).unwrap_or_default();
        let has = &container["resources"]["limits"][limit];
        let resizing = of("conditions").iter().any(|c| c["type"].as_str().is_some_and(|kind| kind.contains("Resize")));
        let ready = !container["state"]["running"].is_null() && container["ready"] == true;
        let seen = pod["status"]["observedGeneration"] == pod["metadata"]["generation"];
        if *has == *wanted && ready && seen && !resizing {
            found = container;
            return Ok(());
        }
        Err(format!("{:#}\n{}", pod["status"], node.log()))
    });
    found
}

fn patch(node: &TestNode, patch: &str) {
    node.ok(&["patch", "pod", "web", "--subresource", "resize", "-p", patch]);
}

#[test]
fn a_running_pod_is_resized_in_place() {
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(PODS);
    node.wait("condition=Ready", &["pod/web"], TIMEOUT);
    let before = until_resized(&node, "containerStatuses", "c", "cpu", "200m");
    assert_eq!(before["allocatedResources"], serde_json::json!({"cpu": "10m", "memory": "16Mi"}));

    patch(&node, "spec: {containers: [{name: c, resources: {limits: {cpu: 400m}}}]}");
    let after = until_resized(&node, "containerStatuses", "c", "cpu", "400m");
    assert_eq!((&after["containerID"], &after["restartCount"]), (&before["containerID"], &before["restartCount"]));
    eventually("the Pod is told", TIMEOUT, || match node.run(&["exec", "web", "-c", "c", "--", "cat", "/about/cpu"]) {
        told if told.out.trim() == "400" => Ok(()),
        told => Err(told.all()),
    });
    patch(&node, "spec: {initContainers: [{name: side, resources: {limits: {memory: 48Mi}}}]}");
    let side = until_resized(&node, "initContainerStatuses", "side", "memory", "48Mi");
    assert_eq!(side["restartCount"], 0);
    // The other one requires a restart for memory.
    patch(&node, "spec: {containers: [{name: c, resources: {limits: {memory: 80Mi}}}]}");
    let anew = until_resized(&node, "containerStatuses", "c", "memory", "80Mi");
    assert_eq!((&anew["restartCount"], &anew["lastState"]["terminated"].is_null()), (&1.into(), &false));
    assert_ne!(anew["containerID"], before["containerID"]);
    let events = node.ok(&["get", "events", "-o", "jsonpath={range .items[*]}{.reason}: {.message}{\"\\n\"}{end}"]);
    for told in ["ResizeStarted: Pod resize started: {", "ResizeCompleted: Pod resize completed: {"] {
        contains(&events, told).unwrap();
    }
    contains(&events, "Killing: Container c resize requires restart").unwrap();

    // More than available: it continues with its current resources. A restarted agent knows them.
    patch(&node, "spec: {containers: [{name: c, resources: {requests: {cpu: '5000'}, limits: {cpu: '5000'}}}]}");
    let pending = ".status.conditions[?(@.type=='PodResizePending')]";
    node.wait_field(&["pod", "web"], &format!("{pending}.reason"), "Infeasible", TIMEOUT);
    let why = node.field(&["pod", "web"], &format!("{pending}.message"));
    contains(&why, "Node didn't have enough capacity: cpu, requested: 5000010, capacity: ").unwrap();
    node.kill();
    node.spawn();
    node.wait_ready();
    let kept = |what: &str| node.field(&["pod", "web"], &format!(".status.containerStatuses[0].{what}"));
    patch(&node, "spec: {initContainers: [{name: side, resources: {limits: {memory: 64Mi}}}]}");
    node.wait_field(&["pod", "web"], &format!("{pending}.observedGeneration"), "6", TIMEOUT);
    assert_eq!([kept("resources.limits.cpu"), kept("restartCount")], ["400m", "1"]);
    assert_eq!(kept("containerID"), anew["containerID"].as_str().unwrap());
    patch(&node, "spec: {containers: [{name: c, resources: {requests: {cpu: 20m}, limits: {cpu: 300m}}}]}");
    let last = until_resized(&node, "containerStatuses", "c", "cpu", "300m");
    assert_eq!(last["containerID"], anew["containerID"]);
    until_resized(&node, "initContainerStatuses", "side", "memory", "64Mi");
    node.ok(&["delete", "pod", "web"]);
    drop(node);
    untouched.assert_unchanged();
}

/// It exits well on SIGTERM, but only when released.
const SLOW: &str = "
apiVersion: v1
kind: Pod
metadata: {name: slow}
spec:
  restartPolicy: OnFailure
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'trap \"touch /tmp/told; until [ -e /tmp/go ]; do sleep 0.1; done; exit 0\" TERM; while :; do sleep 0.1; done']
    resources: {limits: {memory: 64Mi}}
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]
";

#[test]
fn a_container_is_started_anew_although_the_agent_dies_before_it_ends() {
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(SLOW);
    node.wait("condition=Ready", &["pod/slow"], TIMEOUT);
    let pod: Value = serde_json::from_str(&node.ok(&["inspect", "pod", "slow", "-o", "json"])).unwrap();
    let process = std::path::PathBuf::from(format!("/proc/{}", pod["containers"][0]["pid"]));
    let inside = process.join("root/tmp");
    let memory = "spec: {containers: [{name: c, resources: {requests: {memory: 80Mi}, limits: {memory: 80Mi}}}]}";
    node.ok(&["patch", "pod", "slow", "--subresource", "resize", "-p", memory]);
    eventually("it is told to end", TIMEOUT, || match inside.join("told").exists() {
        true => Ok(()),
        false => Err(node.ok(&["get", "pod", "slow", "-o", "yaml"])),
    });
    node.kill();
    std::fs::write(inside.join("go"), "").unwrap();
    eventually("it ends", TIMEOUT, || if process.exists() { Err(process.display().to_string()) } else { Ok(()) });
    node.spawn();
    node.wait_ready();
    let container = |what: &str| format!(".status.containerStatuses[0].{what}");
    node.wait_field(&["pod", "slow"], &container("restartCount"), "1", TIMEOUT);
    node.wait_field(&["pod", "slow"], &container("ready"), "true", TIMEOUT);
    let now = ["resources.limits.memory", "lastState.terminated.exitCode"]
        .map(|w| node.field(&["pod", "slow"], &container(w)));
    assert_eq!(now, ["80Mi", "0"]);
    node.ok(&["delete", "pod", "slow", "--grace-period=1"]);
    drop(node);
    untouched.assert_unchanged();
}

/// The resources of such a container were not recorded; they are those of its Pod at admission.
#[test]
fn a_container_of_an_agent_that_could_not_resize_is_resized() {
    const RESOURCES: &str = "podwright.container.resources";
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(PODS);
    node.wait("condition=Ready", &["pod/web"], TIMEOUT);
    let before = until_resized(&node, "containerStatuses", "c", "cpu", "200m");
    node.kill();
    let files = tree(node.dir.path());
    let record = files.iter().find(|path| path.ends_with("/c/c.0/container.json")).expect("the container's record");
    let record = node.dir.path().join(record);
    let read = || -> Value { serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap() };
    let mut older = read();
    older["labels"].as_object_mut().unwrap().remove(RESOURCES).expect("it is noted");
    std::fs::write(&record, older.to_string()).unwrap();
    node.spawn();
    node.wait_ready();
    patch(&node, "spec: {containers: [{name: c, resources: {limits: {cpu: 400m}}}]}");
    let after = until_resized(&node, "containerStatuses", "c", "cpu", "400m");
    assert_eq!(after["containerID"], before["containerID"]);
    // Without enforced limits, this shows that its cgroup was written.
    let noted: Value = serde_json::from_str(read()["labels"][RESOURCES].as_str().unwrap_or("null")).unwrap();
    assert_eq!(noted["limits"]["cpu"], "400m", "{:#}", read());
    node.ok(&["delete", "pod", "web"]);
    drop(node);
    untouched.assert_unchanged();
}

/// A container that was to be restarted, and has not exited when its resize is reverted, is unchanged: also for later agents.
#[test]
fn a_container_whose_resize_is_taken_back_ends_when_it_ends() {
    let server = TestNode::server(&[]);
    let mut agent = TestNode::agent(&server, "n1");
    server.ok(&["image", "--node", "n1", "import", busybox_tar().to_str().unwrap(), "localhost/busybox:1"]);
    server.apply(SLOW);
    server.wait("condition=Ready", &["pod/slow"], TIMEOUT);
    let pod: Value = serde_json::from_str(&server.ok(&["inspect", "pod", "slow", "-o", "json"])).unwrap();
    let process = std::path::PathBuf::from(format!("/proc/{}", pod["containers"][0]["pid"]));
    let inside = process.join("root/tmp");
    let resize = |memory: &str| {
        let resources = format!("{{requests: {{memory: {memory}}}, limits: {{memory: {memory}}}}}");
        let patch = format!("spec: {{containers: [{{name: c, resources: {resources}}}]}}");
        server.ok(&["patch", "pod", "slow", "--subresource", "resize", "-p", &patch]);
    };
    let noted = |agent: &TestNode| {
        let files = tree(agent.dir.path());
        let record = files.iter().find(|path| path.ends_with("/c/c.0/container.json")).expect("the container's record");
        let record = std::fs::read(agent.dir.path().join(record)).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        record["labels"]["podwright.container.renews"].as_str().unwrap_or("").to_owned()
    };
    resize("80Mi");
    eventually("it is told to end", TIMEOUT, || match inside.join("told").exists() {
        true => Ok(()),
        false => Err(server.ok(&["get", "pod", "slow", "-o", "yaml"])),
    });
    assert_eq!(noted(&agent), "true");
    agent.kill();
    resize("64Mi");
    agent.spawn();
    eventually("nothing is noted any more", TIMEOUT, || match noted(&agent) {
        note if note == "true" => Err(agent.log()),
        _ => Ok(()),
    });
    agent.kill();
    std::fs::write(inside.join("go"), "").unwrap();
    eventually("it ends", TIMEOUT, || if process.exists() { Err(process.display().to_string()) } else { Ok(()) });
    agent.spawn();
    server.wait_field(&["pod", "slow"], ".status.phase", "Succeeded", TIMEOUT);
    assert_eq!(server.field(&["pod", "slow"], ".status.containerStatuses[0].restartCount"), "0");
    server.ok(&["delete", "pod", "slow", "--grace-period=1"]);
}

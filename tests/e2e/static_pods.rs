//! Static Pods: manifests in a folder of the node, represented by mirror Pods.

use std::{fs, path::Path, time::Duration};

use crate::support::{TestNode, contains, eventually, leftovers::Machine, node::busybox_tar};

const TIMEOUT: Duration = Duration::from_secs(30);

fn manifest(word: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{{name: c, image: 'localhost/busybox:1', command: [sh, -c, 'echo {word}; exec sleep 1000']}}]
"
    )
}

/// Atomic, as editors and `mv` do it.
fn put(folder: &Path, name: &str, text: &str) {
    let hidden = folder.join(format!(".{name}"));
    fs::write(&hidden, text).unwrap();
    fs::rename(hidden, folder.join(name)).unwrap();
}

#[test]
fn a_file_is_a_pod_and_its_mirror_only_shows_it() {
    let mut node = TestNode::start(&["--node-name", "n1"]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    let folder = node.dir.path().join("manifests");
    put(&folder, "web.yaml", &manifest("first"));
    let pod = ["pod", "web-n1"];
    eventually("the mirror is there", TIMEOUT, || {
        let answer = node.run(&["get", "pod", "web-n1"]);
        if answer.code == 0 { Ok(()) } else { Err(answer.all() + &node.log()) }
    });
    node.wait("condition=Ready", &["pod/web-n1"], TIMEOUT);
    eventually("it speaks", TIMEOUT, || contains(&node.run(&["logs", "web-n1"]).out, "first\n"));
    assert_eq!(node.field(&pod, ".metadata.annotations['kubernetes.io/config.source']"), "file");
    assert_eq!(node.field(&pod, ".metadata.ownerReferences[0].kind"), "Node");
    let container = || node.field(&pod, ".status.containerStatuses[0].containerID");
    let (id, uid) = (container(), node.field(&pod, ".metadata.uid"));
    assert!(!id.is_empty());

    // Deleting the mirror stops nothing: it is recreated and shows the same container.
    node.ok(&["delete", "pod", "web-n1", "--wait=false"]);
    eventually("the mirror comes again", TIMEOUT, || {
        let answer = node.run(&["get", "pod", "web-n1", "-o", "jsonpath={.metadata.uid}"]);
        if answer.code == 0 && answer.out != uid { Ok(()) } else { Err(answer.all()) }
    });
    node.wait("condition=Ready", &["pod/web-n1"], TIMEOUT);
    assert_eq!(container(), id);
    assert_eq!(node.field(&pod, ".status.containerStatuses[0].restartCount"), "0");
    // exec and logs work through the mirror.
    assert_eq!(node.ok(&["exec", "web-n1", "--", "hostname"]).trim(), "web-n1");

    // Bad files are reported and harmless; hidden ones and other suffixes are ignored.
    put(&folder, "bad.yaml", "kind: [");
    put(&folder, "deployment.yaml", "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}}");
    put(&folder, "typo.yaml", &manifest("x").replace("name: web", "name: typo").replace("containers:", "container:"));
    put(&folder, "empty.yaml", "{apiVersion: v1, kind: Pod, metadata: {name: empty}, spec: {containers: []}}");
    put(&folder, "notes.txt", &manifest("x").replace("name: web", "name: notes"));
    put(&folder, "second.json", &serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "second", "namespace": "kube-system"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "localhost/busybox:1", "command": ["sleep", "1000"]}]},
    }).to_string());
    node.wait("create", &["-n", "kube-system", "pod/second-n1"], TIMEOUT);
    node.wait("condition=Ready", &["-n", "kube-system", "pod/second-n1"], TIMEOUT);
    for file in ["bad.yaml", "deployment.yaml", "typo.yaml", "empty.yaml"] {
        eventually("it is told", TIMEOUT, || {
            let log = node.log();
            let told = log.lines().any(|line| line.contains("WARN") && line.contains(file));
            if told { Ok(()) } else { Err(format!("no word of {file} in\n{log}")) }
        });
    }
    assert_eq!(node.ok(&["get", "pods", "-A", "-o", "name"]), "pod/web-n1\npod/second-n1\n");
    assert_eq!(container(), id);

    // After a SIGKILL it is the same container, still shown.
    node.kill();
    node.spawn();
    node.wait_ready();
    node.wait("condition=Ready", &["pod/web-n1"], TIMEOUT);
    assert_eq!(node.field(&pod, ".status.containerStatuses[0].containerID"), id);

    // Changed content makes another Pod; a removed file removes the Pod.
    put(&folder, "web.yaml", &manifest("other"));
    eventually("the new one speaks", TIMEOUT, || contains(&node.run(&["logs", "web-n1"]).out, "other"));
    assert_ne!(node.field(&pod, ".status.containerStatuses[0].containerID"), id);
    fs::remove_file(folder.join("web.yaml")).unwrap();
    node.wait("delete", &["pod/web-n1"], TIMEOUT);
    fs::remove_file(folder.join("second.json")).unwrap();
    node.wait("delete", &["-n", "kube-system", "pod/second-n1"], TIMEOUT);
    eventually("nothing of them runs", TIMEOUT, || {
        let sandboxes = node.dir.path().join("runtime/sandboxes");
        let left: Vec<_> = fs::read_dir(&sandboxes).into_iter().flatten().flatten().map(|e| e.path()).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    drop(node);
    untouched.assert_unchanged();
}

/// What a Pod's container has said, as its node has it; empty: nothing.
fn said(agent: &TestNode, pod: &str) -> String {
    let folders = fs::read_dir(agent.dir.path().join("log")).into_iter().flatten().flatten();
    let of_pod = folders.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains(&format!("_{pod}-n1_")));
    of_pod.and_then(|folder| fs::read_to_string(folder.join("c/0.log")).ok()).unwrap_or_default()
}

/// As after a reboot: nothing of the node is left in the kernel, and its server is not there; it may be one of these Pods.
#[test]
fn those_on_the_nodes_network_need_no_server_to_start() {
    let mut server = TestNode::server(&[]);
    let mut agent = TestNode::agent(&server, "n1");
    let untouched = Machine::untouched(agent.dir.path());
    let tar = busybox_tar().to_str().unwrap();
    server.ok(&["image", "--node", "n1", "import", tar, "localhost/busybox:1"]);
    server.apply(&manifest("of the server").replace("name: web", "name: api"));
    server.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    server.kill();
    agent.terminate();
    let (folder, of_host) = (agent.dir.path().join("manifests"), "spec:\n  hostNetwork: true");
    put(&folder, "host.yaml", &manifest("first").replace("name: web", "name: host").replace("spec:", of_host));
    put(&folder, "web.yaml", &manifest("with an address"));
    agent.spawn();
    eventually("it speaks", TIMEOUT, || contains(&said(&agent, "host"), "first\n").map_err(|e| e + &agent.log()));
    // The folder is followed, and another agent takes over.
    put(&folder, "host.yaml", &manifest("second").replace("name: web", "name: host").replace("spec:", of_host));
    eventually("the new one speaks", TIMEOUT, || {
        let said = said(&agent, "host");
        // The first one's folder goes with it.
        contains(&said, "second\n").map_err(|e| e + &agent.log())
    });
    agent.kill();
    agent.spawn();
    // Those with an address of their own are judged by policies that nobody knows; those of the server are the server's.
    assert_eq!([said(&agent, "web"), said(&agent, "api")], ["", ""]);
    server.spawn();
    server.wait_answering();
    for name in ["host", "web"] {
        server.wait("create", &[&format!("pod/{name}-n1")], TIMEOUT);
        server.wait("condition=Ready", &[&format!("pod/{name}-n1")], TIMEOUT);
    }
    let restarts = server.field(&["pod", "host-n1"], ".status.containerStatuses[0].restartCount");
    let said = said(&agent, "host");
    assert_eq!((restarts.as_str(), said.matches("second\n").count()), ("0", 1), "{said}");
    for name in ["host", "web"] {
        fs::remove_file(folder.join(format!("{name}.yaml"))).unwrap();
        server.wait("delete", &[&format!("pod/{name}-n1")], TIMEOUT);
    }
    server.ok(&["delete", "pods", "--all"]);
    drop(agent);
    drop(server);
    untouched.assert_unchanged();
}

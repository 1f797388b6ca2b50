//! What a killed node left is taken away by `podwright reset`; one that cannot start leaves nothing by itself.

use std::time::Duration;

use crate::support::{TestNode, contains, eventually, leftovers::Machine};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  volumes: [{name: memory, emptyDir: {medium: Memory}}]
  containers:
  - name: web
    image: localhost/busybox:1
    command: [sleep, infinity]
    volumeMounts: [{name: memory, mountPath: /memory}]
";

#[test]
fn reset_removes_all_that_a_killed_node_left() {
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(POD);
    node.wait("condition=Ready", &["pod/web"], Duration::from_secs(30));
    let dir = node.dir.path().to_str().unwrap().to_owned();
    let refused = node.run(&["reset", "--state-dir", &dir, "--yes"]);
    assert!(refused.code == 1 && refused.err.contains("is running on"), "{}", refused.all());
    node.kill();
    let refused = node.run(&["reset", "--state-dir", &dir]);
    assert!(refused.code == 1 && refused.err.contains("give --yes"), "{}", refused.all());
    let done = node.run(&["reset", "--state-dir", &dir, "--yes"]);
    assert_eq!((done.code, done.out.as_str()), (0, "nothing of the node is left\n"), "{}", done.all());
    assert!(!node.dir.path().exists());
    untouched.assert_unchanged();
}

#[test]
fn a_start_that_fails_leaves_nothing_but_what_ran_before() {
    let mut node = TestNode::stopped(&[]);
    let untouched = Machine::untouched(node.dir.path());
    // Read after the namespace is made, and no file.
    let addresses = node.dir.path().join("network/ipam.json");
    std::fs::create_dir_all(&addresses).unwrap();
    node.spawn();
    node.wait_ended();
    contains(&node.log(), "the node's network").unwrap();
    untouched.assert_unchanged();
    // The Pods of a killed node stay where they are, with their network.
    std::fs::remove_dir(&addresses).unwrap();
    node.spawn();
    node.wait_ready();
    node.import_busybox();
    node.apply(POD);
    node.wait("condition=Ready", &["pod/web"], Duration::from_secs(30));
    let started = node.field(&["pod", "web"], ".status.containerStatuses[0].containerID");
    node.kill();
    let kept = std::fs::read(&addresses).unwrap();
    std::fs::remove_file(&addresses).unwrap();
    std::fs::create_dir(&addresses).unwrap();
    let before = Machine::look(node.dir.path());
    node.spawn();
    node.wait_ended();
    assert_eq!(Machine::look(node.dir.path()), before);
    std::fs::remove_dir(&addresses).unwrap();
    std::fs::write(&addresses, kept).unwrap();
    node.spawn();
    node.wait_ready();
    eventually("its agent tells of the Pod", Duration::from_secs(30), || {
        let answer = node.run(&["exec", "web", "--", "true"]);
        if answer.code == 0 { Ok(()) } else { Err(answer.all()) }
    });
    assert_eq!(node.field(&["pod", "web"], ".status.containerStatuses[0].containerID"), started);
    node.ok(&["delete", "pods", "--all", "--grace-period=0", "--force"]);
    drop(node);
    untouched.assert_unchanged();
}

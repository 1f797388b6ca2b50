//! `podwright reset`: what a killed node left is taken away.

use std::time::Duration;

use crate::support::{TestNode, leftovers::Machine};

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

//! PersistentVolumes with real Pods: persistence, scheduling constraints, sharing, and devices.

use std::{fs, path::Path, process::Command, time::Duration};

use crate::support::{TestNode, contains, eventually, leftovers::Machine, node::busybox_tar};

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn a_stateful_set_comes_back_to_its_claims_where_its_volumes_are() {
    let server = TestNode::server(&[]);
    let names = ["n1", "n2"];
    let _agents = names.map(|name| TestNode::agent(&server, name));
    for name in names {
        server.ok(&["image", "--node", name, "import", busybox_tar().to_str().unwrap(), "localhost/busybox:1"]);
    }
    let disks = tempfile::tempdir().unwrap();
    let manifest = include_str!("../../manifests/persistent-volume.yaml");
    server.apply(&manifest.replace("/tmp/podwright-disks", disks.path().to_str().unwrap()));
    let why = "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind.";
    eventually(why, TIMEOUT, || contains(&server.ok(&["-n", "storage", "events", "--for", "pod/journal-0"]), why));
    let waiting = server.ok(&["-n", "storage", "events", "--for", "pvc/data-journal-0"]);
    contains(&waiting, "waiting for first consumer to be created before binding").unwrap();
    // One of two nodes reaches the volumes.
    server.ok(&["label", "node", "n2", "disk=here"]);
    server.ok(&["-n", "storage", "rollout", "status", "statefulset/journal", "--timeout=60s"]);
    assert_eq!(server.field(&["-n", "storage", "pods"], ".items[*].spec.nodeName"), "n2 n2");
    assert_eq!(server.field(&["-n", "storage", "pvc"], ".items[*].status.phase"), "Bound Bound");
    let starts = || server.run(&["-n", "storage", "exec", "journal-0", "--", "cat", "/data/starts"]).out;
    assert_eq!(starts(), "journal-0 has started\n");
    let claim = ["-n", "storage", "pvc", "data-journal-0"];
    let volume = server.field(&claim, ".spec.volumeName");
    let uid = server.field(&["-n", "storage", "pod", "journal-0"], ".metadata.uid");
    server.ok(&["-n", "storage", "delete", "pod", "journal-0"]);
    eventually("it comes back to what it wrote", TIMEOUT, || match starts() {
        text if text == "journal-0 has started\n".repeat(2) => Ok(()),
        text => Err(text),
    });
    assert_ne!(server.field(&["-n", "storage", "pod", "journal-0"], ".metadata.uid"), uid);
    assert_eq!(server.field(&claim, ".spec.volumeName"), volume);
    // A claim in use stays; written data survives without claims.
    server.ok(&["-n", "storage", "delete", "pvc", "data-journal-0", "--wait=false"]);
    assert!(!server.field(&claim, ".metadata.deletionTimestamp").is_empty());
    server.ok(&["-n", "storage", "delete", "statefulset", "journal"]);
    eventually("the claim goes with its last Pod", TIMEOUT, || {
        match server.run(&["-n", "storage", "get", "pvc"]).out {
            left if left.contains("data-journal-1") && !left.contains("data-journal-0") => Ok(()),
            left => Err(left),
        }
    });
    server.wait_field(&["pv", &volume], ".status.phase", "Released", TIMEOUT);
    let kept = disks.path().join(volume.trim_start_matches("disk-")).join("starts");
    assert_eq!(fs::read_to_string(kept).unwrap().lines().count(), 2);
}

/// Claims on local volumes of the only node with a Pod that reads one of them, and more Pods that use them.
fn local(folder: &Path) -> [String; 2] {
    let at = folder.display();
    let volume = |name: &str, kind: &str, mode: &str| {
        format!(
            "
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec:
  storageClassName: ''
  capacity: {{storage: 1Gi}}
  accessModes: [{kind}]
  volumeMode: {mode}
  claimRef: {{namespace: default, name: {name}}}
  local: {{path: '{at}/{name}'}}
  nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [n1]}}]}}]}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec:
  storageClassName: ''
  accessModes: [{kind}]
  volumeMode: {mode}
  resources: {{requests: {{storage: 1Gi}}}}
---"
        )
    };
    let pod = |name: &str, claim: &str, more: &str, uses: &str| {
        format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {{runAsUser: 1000, fsGroup: 4242}}
  containers: [{{name: c, image: 'localhost/busybox:1', command: [sleep, '1000'], {uses}}}]
  volumes: [{{name: v, persistentVolumeClaim: {{claimName: {claim}{more}}}}}]
---"
        )
    };
    let mount = "volumeMounts: [{name: v, mountPath: /v}]";
    let reader = [
        volume("shared", "ReadWriteOnce", "Filesystem"),
        volume("alone", "ReadWriteOncePod", "Filesystem"),
        volume("disk", "ReadWriteOnce", "Block"),
        pod("reader", "shared", ", readOnly: true", mount),
    ];
    let others = [
        pod("writer", "shared", "", mount),
        pod("below", "shared", "", "volumeMounts: [{name: v, mountPath: /v, subPath: deep/er}]"),
        pod("first", "alone", "", mount),
        pod("device", "disk", "", "securityContext: {runAsUser: 0}, volumeDevices: [{name: v, devicePath: /dev/mine}]"),
        pod("mistaken", "disk", "", mount),
    ];
    [reader.concat(), others.concat()]
}

/// A file as a block device, for as long as it lives.
struct Loop(String);

impl Loop {
    fn of(file: &Path) -> Loop {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output().expect("util-linux is there");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Loop(String::from_utf8_lossy(&made.stdout).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        Command::new("losetup").args(["--detach", &self.0]).status().ok();
    }
}

#[test]
fn local_volumes_are_mounted_and_mapped_as_their_claims_say() {
    let mut node = TestNode::start(&["--node-name", "n1"]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    let folder = tempfile::tempdir().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), [b"the disk".as_slice(), &[0; 65536 - 8]].concat()).unwrap();
    let disk = Loop::of(file.path());
    std::os::unix::fs::symlink(&disk.0, folder.path().join("disk")).unwrap();
    for name in ["shared", "alone"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("shared/old"), "old").unwrap();
    // The reader comes first: it uses the volume, but does not decide its files' owner.
    let [reader, others] = local(folder.path());
    node.apply(&reader);
    node.wait("condition=Ready", &["pod/reader"], TIMEOUT);
    node.apply(&others);
    for name in ["writer", "below", "first", "device"] {
        node.wait("condition=Ready", &[&format!("pod/{name}")], TIMEOUT);
    }
    let inside = |node: &TestNode, pod: &str, script: &str| node.run(&["exec", pod, "--", "sh", "-c", script]);
    // The Pods' group may write root's files, and new ones belong to it.
    let written = inside(&node, "writer", "echo new >> /v/old && touch /v/fresh && stat -c %g /v/old /v/fresh");
    assert_eq!((written.out.as_str(), written.err.as_str()), ("4242\n4242\n", ""));
    assert_eq!(inside(&node, "reader", "cat /v/old").out, "oldnew\n");
    contains(&inside(&node, "reader", "touch /v/x").err, "Read-only file system").unwrap();
    inside(&node, "below", "echo word > /v/file");
    assert_eq!(fs::read_to_string(folder.path().join("shared/deep/er/file")).unwrap(), "word\n");
    assert_eq!(inside(&node, "device", "test -b /dev/mine && head -c 8 /dev/mine").out, "the disk");
    inside(&node, "device", "printf 'is mine.' | dd of=/dev/mine conv=notrunc,fsync");
    assert_eq!(&fs::read(file.path()).unwrap()[..8], b"is mine.");
    let told = |node: &TestNode, pod: &str, why: &str| {
        eventually(why, TIMEOUT, || contains(&node.ok(&["events", "--for", &format!("pod/{pod}")]), why));
    };
    told(&node, "mistaken", "volume v has volumeMode Block, but is specified in volumeMounts");
    // Only one Pod; if the scheduler is bypassed, the node enforces it.
    let second = "
apiVersion: v1
kind: Pod
metadata: {name: second}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000'], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: alone}}]
";
    node.apply(second);
    told(
        &node,
        "second",
        "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
    );
    let forced = second.replace("name: second", "name: forced").replace("spec:", "spec:\n  nodeName: n1");
    node.apply(&forced);
    told(&node, "forced", "volume uses the ReadWriteOncePod access mode and is already in use by another pod");
    // Mounts stay with the Pod across agents.
    node.kill();
    node.spawn();
    node.wait_ready();
    eventually("the new agent finds it", TIMEOUT, || match inside(&node, "writer", "cat /v/old") {
        found if found.out == "oldnew\n" => Ok(()),
        other => Err(other.all()),
    });
    node.ok(&["delete", "pod", "second", "first"]);
    node.wait("condition=Ready", &["pod/forced"], TIMEOUT);
    node.ok(&["delete", "pods", "--all"]);
    assert_eq!(
        fs::read_to_string(folder.path().join("shared/old")).unwrap(),
        "oldnew\n",
        "a Pod takes nothing with it"
    );
    drop(node);
    drop(disk);
    untouched.assert_unchanged();
}

const BRIEF: &str = "
apiVersion: v1
kind: Pod
metadata: {name: brief}
spec:
  restartPolicy: Never
  nodeName: n1
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'until [ -e /v/go ]; do sleep 0.1; done']
    volumeMounts: [{name: v, mountPath: /v}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: alone}}]
";

/// An ended Pod releases its volumes, even if no agent observed its end.
#[test]
fn a_volume_of_a_pod_that_ended_without_an_agent_is_free() {
    let mut node = TestNode::start(&["--node-name", "n1"]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("alone")).unwrap();
    let [all, _] = local(folder.path());
    let only: Vec<&str> = all.split("---").filter(|part| part.contains("metadata: {name: alone}")).collect();
    node.apply(&only.join("---"));
    node.apply(BRIEF);
    node.wait("condition=Ready", &["pod/brief"], TIMEOUT);
    let pod: serde_json::Value = serde_json::from_str(&node.ok(&["inspect", "pod", "brief", "-o", "json"])).unwrap();
    let process = format!("/proc/{}", pod["containers"][0]["pid"]);
    node.kill();
    fs::write(folder.path().join("alone/go"), "").unwrap();
    eventually("it ends", TIMEOUT, || if Path::new(&process).exists() { Err(process.clone()) } else { Ok(()) });
    node.spawn();
    node.wait_ready();
    node.wait_field(&["pod", "brief"], ".status.phase", "Succeeded", TIMEOUT);
    fs::remove_file(folder.path().join("alone/go")).unwrap();
    node.apply(&BRIEF.replace("name: brief", "name: next"));
    node.wait("condition=Ready", &["pod/next"], TIMEOUT);
    node.ok(&["delete", "pods", "--all", "--grace-period=0", "--force"]);
    drop(node);
    untouched.assert_unchanged();
}

const WAITING: &str = "
apiVersion: v1
kind: Pod
metadata: {name: early}
spec:
  nodeName: member
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000'], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {
    storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}]
";

/// A node with its own identity, which may get its Pods' claims and volumes one by one.
#[test]
fn a_pod_waits_on_its_node_for_the_claim_of_its_own() {
    let server = TestNode::server(&["--listen", "127.0.0.1:0"]);
    server.apply(crate::api_access::TOKEN);
    let mut agent = TestNode::joining(&server, "member", "abcdef.0123456789abcdef");
    agent.spawn();
    eventually("the node is ready", TIMEOUT, || {
        let answer = server.run(&["wait", "--for=condition=Ready", "node/member", "--timeout=1s"]);
        if answer.code == 0 { Ok(()) } else { Err(answer.all() + &agent.log()) }
    });
    server.ok(&["image", "--node", "member", "import", busybox_tar().to_str().unwrap(), "localhost/busybox:1"]);
    server.apply(WAITING);
    let told = "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], \
                failed to process volumes=[v]: error processing PVC default/early-v: PVC is not bound";
    eventually(told, TIMEOUT, || contains(&server.ok(&["events", "--for", "pod/early"]), told));
    let folder = tempfile::tempdir().unwrap();
    server.apply(&format!(
        "
apiVersion: v1
kind: PersistentVolume
metadata: {{name: late}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Delete
  local: {{path: '{}'}}
  nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [
    {{key: kubernetes.io/hostname, operator: In, values: [member]}}]}}]}}}}
",
        folder.path().display()
    ));
    server.wait("condition=Ready", &["pod/early"], TIMEOUT);
    // With foreground deletion the Pod waits for its claim, and the claim not for the Pod.
    server.ok(&["delete", "pod", "early", "--cascade=foreground"]);
    assert_eq!(server.run(&["get", "pvc", "early-v"]).code, 1, "it goes with its Pod");
    eventually("nobody can delete it", TIMEOUT, || {
        contains(&server.ok(&["events", "--for", "pv/late"]), "no deletable volume plugin matched")
    });
    server.wait_field(&["pv", "late"], ".status.phase", "Failed", TIMEOUT);
}

//! The built-in provisioner's volumes with real Pods: reuse, growth, removal and retention, across kills and with any content.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use crate::support::{TestNode, contains, eventually, leftovers::Machine, node::busybox_tar};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The folders that a node keeps.
fn folders(node: &TestNode) -> Vec<String> {
    let entries = fs::read_dir(node.dir.path().join("local-volumes")).unwrap().flatten();
    let mut all: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

fn data(node: &TestNode, volume: &str) -> PathBuf {
    node.dir.path().join("local-volumes").join(volume).join("data")
}

fn gone(server: &TestNode, node: &TestNode, volume: &str) {
    eventually("the volume is gone, its folder too", TIMEOUT, || {
        match (server.run(&["get", "pv", volume, "-o", "yaml"]), folders(node)) {
            (answer, left) if answer.code == 1 && left.iter().all(|name| !name.ends_with(volume)) => Ok(()),
            (answer, left) => Err(format!("{} {left:?} {}", answer.all(), server.ok(&["events", "-A"]))),
        }
    });
}

#[test]
fn a_stateful_set_needs_nobody_who_makes_volumes() {
    let mut node = TestNode::start(&["--node-name", "n1"]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    contains(&node.ok(&["get", "storageclass"]), "local (default)").unwrap();
    node.apply(include_str!("../../manifests/local-storage.yaml"));
    node.ok(&["-n", "notes", "rollout", "status", "statefulset/notes", "--timeout=60s"]);
    let notes = |node: &TestNode, args: &[&str]| node.run(&[&["-n", "notes"], args].concat());
    let starts = |node: &TestNode| notes(node, &["exec", "notes-0", "--", "cat", "/data/starts"]).out;
    let wrote = |node: &TestNode, times: usize| {
        eventually("it comes back to what it wrote", TIMEOUT, || match starts(node) {
            text if text == "notes-0 has started\n".repeat(times) => Ok(()),
            text => Err(text + &node.log()),
        });
    };
    wrote(&node, 1);
    let claim = ["-n", "notes", "pvc", "data-notes-0"];
    let volume = node.field(&claim, ".spec.volumeName");
    let uid = node.field(&claim, ".metadata.uid");
    assert_eq!(volume, format!("pvc-{uid}"));
    assert_eq!(node.field(&["pv", &volume], ".spec.local.path"), data(&node, &volume).display().to_string());
    // The binder's events for a waiting claim only appear if no other component was faster.
    for told in ["Provisioning ", "ProvisioningSucceeded"] {
        eventually(told, TIMEOUT, || contains(&node.ok(&["-n", "notes", "events", "--for", "pvc/data-notes-0"]), told));
    }
    // The file systems here lack project quotas; the guest of vm/ has one.
    if node.field(&["node", "n1"], ".metadata.annotations['podwright/disk-usage']") != "project quotas" {
        let told = "CapacityNotEnforced";
        eventually(told, TIMEOUT, || contains(&node.ok(&["-n", "notes", "events", "--for", "pvc/data-notes-0"]), told));
    }
    let found = fs::metadata(data(&node, &volume)).unwrap();
    assert_eq!((found.gid(), found.mode() & 0o7777), (2000, 0o2777), "fsGroup");
    let outer = fs::metadata(data(&node, &volume).parent().unwrap()).unwrap();
    assert_eq!((outer.uid(), outer.mode() & 0o7777), (0, 0o700));

    // The Pod is deleted, the agent dies: it is the same volume.
    node.ok(&["-n", "notes", "delete", "pod", "notes-0"]);
    wrote(&node, 2);
    node.kill();
    node.spawn();
    node.wait_ready();
    wrote(&node, 2);
    node.ok(&["-n", "notes", "delete", "pod", "notes-0"]);
    wrote(&node, 3);
    assert_eq!(node.field(&claim, ".spec.volumeName"), volume);

    // It can grow, but not shrink.
    let size = |size: &str| format!("{{\"spec\":{{\"resources\":{{\"requests\":{{\"storage\":\"{size}\"}}}}}}}}");
    node.ok(&["-n", "notes", "patch", "pvc", "data-notes-0", "-p", &size("256Mi")]);
    node.wait_field(&claim, ".status.capacity.storage", "256Mi", TIMEOUT);
    assert_eq!(node.field(&["pv", &volume], ".spec.capacity.storage"), "256Mi");
    contains(&notes(&node, &["patch", "pvc", "data-notes-0", "-p", &size("1Mi")]).err, "can not be less").unwrap();

    // Without the claim everything is removed; the other volume is untouched.
    let other = node.field(&["-n", "notes", "pvc", "data-notes-1"], ".spec.volumeName");
    node.ok(&["-n", "notes", "delete", "statefulset", "notes"]);
    node.ok(&["-n", "notes", "delete", "pvc", "data-notes-0"]);
    gone(&node, &node, &volume);
    assert_eq!(folders(&node), [other.as_str()]);
    assert_eq!(node.field(&["pv", &other], ".status.phase"), "Bound");
    node.ok(&["delete", "namespace", "notes"]);
    gone(&node, &node, &other);
    drop(node);
    untouched.assert_unchanged();
}

/// A claim of a class, and a Pod using it.
fn user(name: &str, class: &str, command: &str) -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{storageClassName: {class}, accessModes: [ReadWriteOncePod], resources: {{requests: {{storage: 16Mi}}}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{{name: c, image: 'localhost/busybox:1', command: [sh, -c, '{command}; exec sleep 1000'],
    volumeMounts: [{{name: v, mountPath: /v}}]}}]
  volumes: [{{name: v, persistentVolumeClaim: {{claimName: {name}}}}}]
---
"
    )
}

const KEPT: &str = "
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: kept}, provisioner: podwright.dev/local,
 reclaimPolicy: Retain, volumeBindingMode: WaitForFirstConsumer}
---
";

#[test]
fn what_is_retained_stays_and_links_lead_no_removal_out() {
    let node = TestNode::start(&["--node-name", "n1"]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir(outside.path().join("folder")).unwrap();
    fs::write(outside.path().join("folder/canary"), "sings").unwrap();
    let at = outside.path().display();
    let hostile = format!(
        "cd /v && ln -s {at} out && ln -s {at}/folder/canary file && ln -s / root && mkdir -p a/b/c && ln -s {at}/folder a/b/c/out \
         && mkfifo fifo && ln -s . loop && touch -- -rf .hidden && chmod 0 a && i=0; while [ $i -lt 300 ]; do mkdir d && cd d; \
         i=$((i+1)); done; echo ready > /v/ready"
    );
    node.apply(&(KEPT.to_owned() + &user("kept", "kept", "echo mine > /v/file") + &user("hostile", "local", &hostile)));
    node.wait("condition=Ready", &["pod/kept", "pod/hostile"], TIMEOUT);
    let volume = |name: &str| node.field(&["pvc", name], ".spec.volumeName");
    let (kept, hostile) = (volume("kept"), volume("hostile"));
    eventually("it is full of links", TIMEOUT, || {
        fs::symlink_metadata(data(&node, &hostile).join("ready")).map_err(|e| e.to_string())
    });
    node.ok(&["delete", "pod", "kept", "hostile"]);
    node.ok(&["delete", "pvc", "kept", "hostile"]);
    gone(&node, &node, &hostile);
    assert_eq!(fs::read_to_string(outside.path().join("folder/canary")).unwrap(), "sings");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    // A retained volume waits for an administrator, and outlives its object.
    node.wait_field(&["pv", &kept], ".status.phase", "Released", TIMEOUT);
    node.ok(&["delete", "pv", &kept]);
    assert_eq!(fs::read_to_string(data(&node, &kept).join("file")).unwrap(), "mine\n");
    assert_eq!(folders(&node), [kept.as_str()]);
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn what_a_folder_cannot_be_is_said() {
    let node = TestNode::start(&["--node-name", "n1"]);
    node.import_busybox();
    let shared = user("shared", "local", "true").replace("ReadWriteOncePod", "ReadWriteMany");
    let block = user("block", "local", "true").replace("accessModes", "volumeMode: Block, accessModes");
    node.apply(&(shared + &block));
    for (claim, why) in [
        ("shared", "ProvisioningFailed"),
        ("shared", "access mode ReadWriteMany is not supported"),
        ("block", "podwright.dev/local does not support block volume provisioning"),
    ] {
        eventually(why, TIMEOUT, || contains(&node.ok(&["events", "--for", &format!("pvc/{claim}")]), why));
    }
    assert_eq!(folders(&node), Vec::<String>::new());
    assert_eq!(node.field(&["pvc", "shared"], ".status.phase"), "Pending");
}

/// The server, its controllers and the agent are one process, which is killed at any time in a volume's life.
#[test]
fn whoever_is_killed_meanwhile_no_volume_is_lost_and_none_is_left() {
    let mut node = TestNode::start(&["--node-name", "n1"]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    for (round, pause) in [0, 20, 40, 70, 100, 150, 250].into_iter().enumerate() {
        let name = format!("w{round}");
        let object = format!("pod/{name}");
        node.apply(&user(&name, "local", "echo mine > /v/mine"));
        sleep(Duration::from_millis(pause));
        node.kill();
        node.spawn();
        node.wait_ready();
        node.wait("condition=Ready", &[&object], TIMEOUT);
        let volume = node.field(&["pvc", &name], ".spec.volumeName");
        eventually("it has written", TIMEOUT, || match fs::read_to_string(data(&node, &volume).join("mine")) {
            Ok(text) if text == "mine\n" => Ok(()),
            other => Err(format!("{other:?} {:?} {}", folders(&node), node.log())),
        });
        assert_eq!(folders(&node), [volume.as_str()], "one claim, one volume");
        let volumes = node.field(&["pv"], ".items[*].metadata.name");
        assert_eq!(volumes, volume);
        // Many files, so that the kill hits the removal. Hard links of one file: ext4 checks recently freed inodes before reusing
        // them, so thousands of files per round would slow everything down.
        for folder in 0..40 {
            let folder = data(&node, &volume).join(folder.to_string());
            fs::create_dir(&folder).unwrap();
            (0..200).for_each(|name| fs::hard_link(folder.join("../mine"), folder.join(name.to_string())).unwrap());
        }
        node.ok(&["delete", "pod", &name, "--wait=false"]);
        node.ok(&["delete", "pvc", &name, "--wait=false"]);
        sleep(Duration::from_millis(pause));
        node.kill();
        node.spawn();
        node.wait_ready();
        gone(&node, &node, &volume);
        assert_eq!(folders(&node), Vec::<String>::new());
    }
    drop(node);
    untouched.assert_unchanged();
}

/// A node with its own identity creates the folders, and is offline when its volume is deleted.
#[test]
fn a_volume_of_a_node_that_is_away_waits_for_it() {
    let server = TestNode::server(&["--listen", "127.0.0.1:0"]);
    server.apply(crate::api_access::TOKEN);
    let mut agent = TestNode::joining(&server, "member", "abcdef.0123456789abcdef");
    agent.spawn();
    eventually("the node is ready", TIMEOUT, || {
        let answer = server.run(&["wait", "--for=condition=Ready", "node/member", "--timeout=1s"]);
        if answer.code == 0 { Ok(()) } else { Err(answer.all() + &agent.log()) }
    });
    server.ok(&["image", "--node", "member", "import", busybox_tar().to_str().unwrap(), "localhost/busybox:1"]);
    server.apply(&user("far", "local", "echo mine > /v/file"));
    server.wait("condition=Ready", &["pod/far"], TIMEOUT);
    let volume = server.field(&["pvc", "far"], ".spec.volumeName");
    assert_eq!(server.field(&["pv", &volume], ".metadata.labels['podwright.dev/node']"), "member");
    let file = data(&agent, &volume).join("file");
    eventually("it has written", TIMEOUT, || fs::read_to_string(&file).map_err(|e| e.to_string()));
    server.ok(&["delete", "pod", "far"]);
    agent.kill();
    server.ok(&["delete", "pvc", "far"]);
    eventually("the volume is deleted", TIMEOUT, || {
        match server.field(&["pv", &volume], ".metadata.deletionTimestamp") {
            at if at.is_empty() => Err(server.ok(&["get", "pv", "-o", "yaml"])),
            _ => Ok(()),
        }
    });
    sleep(Duration::from_secs(2));
    assert_eq!(server.field(&["pv", &volume], ".metadata.finalizers[*]"), "podwright.dev/local-volume");
    assert!(Path::new(&file).exists());
    agent.spawn();
    gone(&server, &agent, &volume);
}

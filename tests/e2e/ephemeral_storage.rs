//! Pods that fill the disk are evicted, with upstream's messages; their neighbours stay.

use std::{fs, path::Path, time::Duration};

use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};
use podwright_runtime::sys::walk::{Measure, measure};

use crate::support::{TestNode, contains, eventually};

/// A Pod is measured every ten seconds.
const TIMEOUT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// A Pod that runs a shell command, then sleeps. `limit`: further fields of its container.
fn pod(name: &str, does: &str, limit: &str, volumes: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 600
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, \"trap '' TERM; {does}; while :; do sleep 1; done\"]
    {limit}
{volumes}
---
"
    )
}

const LIMIT: &str = "resources: {limits: {ephemeral-storage: 8Mi}}";
const WHOLE: &str = "Pod ephemeral local storage usage exceeds the total limit of containers 8Mi. ";

fn count(path: &Path) -> std::io::Result<Measure> {
    measure(path, TIMEOUT)
}

fn evicted(node: &TestNode, name: &str, message: &str) {
    node.wait_field(&["pod", name], ".status.reason", "Evicted", TIMEOUT);
    assert_eq!(node.field(&["pod", name], ".status.message").trim_end(), message.trim_end(), "{name}");
    assert_eq!(node.field(&["pod", name], ".status.phase"), "Failed", "{name}");
    let state = ".status.containerStatuses[0].state.terminated.exitCode";
    node.wait_field(&["pod", name], state, "137", TIMEOUT);
    let what = format!("{name} tells of its eviction");
    eventually(&what, TIMEOUT, || {
        let events = node.ok(&["events", "--for", &format!("pod/{name}")]);
        contains(&events, "Evicted").and_then(|_| contains(&events, message.trim_end()))
    });
}

fn conditions(node: &TestNode, name: &str) -> String {
    node.field(&["pod", name], ".status.conditions[?(@.type==\"DisruptionTarget\")].reason")
}

/// What all Pods of the node have written to its disk.
fn written(node: &TestNode) -> u64 {
    ["runtime/sandboxes", "agent/pods", "log"].iter().map(|f| count(&node.dir.path().join(f)).unwrap().bytes).sum()
}

#[test]
fn who_writes_more_than_his_limit_is_evicted_and_gives_the_space_back() {
    let node = TestNode::start(&[]);
    node.import_busybox();
    let write = |path: &str, mib: u32| format!("dd if=/dev/zero of={path} bs=1M count={mib}");
    let scratch = "  volumes: [{name: scratch, emptyDir: {sizeLimit: 4Mi}}]";
    let mounted = "volumeMounts: [{name: scratch, mountPath: /scratch}]";
    let hidden = "mkdir -p /a/.../b; ln /bin/busybox /a/x; for i in 1 2 3 4 5 6; do cp /bin/busybox /a/.../b/$i; done; dd if=/dev/zero of=/a/.../b/7 bs=1M count=9";
    node.apply(&pod("layer", &write("/big", 12), LIMIT, ""));
    node.apply(&pod("hidden", hidden, LIMIT, ""));
    let deleted =
        "exec 5>/scratch/a 6>/b; rm /scratch/a /b; head -c 6000000 /dev/zero >&5; head -c 6000000 /dev/zero >&6";
    node.apply(&pod("deleted", deleted, &format!("{LIMIT}\n    {mounted}"), &scratch.replace("4Mi", "1Gi")));
    node.apply(&pod("volume", &write("/scratch/big", 6), mounted, scratch));
    // Without a newline, and both streams.
    node.apply(&pod("logs", "head -c 6000000 /dev/zero; head -c 6000000 /dev/zero >&2", LIMIT, ""));
    // A container may write to files provided by the node.
    node.apply(&pod("hosts", &write("/etc/hosts", 12), LIMIT, ""));
    node.apply(&pod("last-words", &write("/dev/termination-log", 12), LIMIT, ""));
    let own = pod("own", &write("/big", 6), "resources: {limits: {ephemeral-storage: 4Mi}}", "");
    let other = "  - {name: d, image: localhost/busybox:1, command: [sleep, '1000'], resources: {limits: {ephemeral-storage: 1Gi}}}\n---\n";
    node.apply(&own.replace("---\n", other));
    // Holes, hard links, and small files do not use the disk.
    let modest = "dd if=/dev/zero of=/a bs=1M count=2; ln /a /b; ln /a /c; dd if=/dev/zero of=/hole bs=1 count=1 seek=1000000000";
    node.apply(&pod("modest", modest, LIMIT, scratch));
    let finished = pod("finished", &(write("/scratch/a", 3) + "; exit 0"), mounted, scratch);
    node.apply(&finished.replace("spec:", "spec:\n  restartPolicy: Never"));

    for name in ["layer", "hidden", "deleted", "logs", "hosts", "last-words"] {
        evicted(&node, name, WHOLE);
        // Evicted for its own usage: a Job that ignores disruptions does not ignore this.
        assert_eq!(conditions(&node, name), "", "{name}");
    }
    evicted(&node, "volume", "Usage of EmptyDir volume \"scratch\" exceeds the limit \"4Mi\". ");
    evicted(&node, "own", "Container c exceeded its local ephemeral storage limit \"4Mi\". ");
    node.wait_field(&["pod", "finished"], ".status.phase", "Succeeded", TIMEOUT);
    assert_eq!(node.field(&["pod", "modest"], ".status.phase"), "Running");
    assert_eq!(node.field(&["pod", "modest"], ".status.containerStatuses[0].restartCount"), "0");
    // Logs stay readable.
    eventually("what the others wrote is gone", TIMEOUT, || match written(&node) / MIB {
        left if left < 16 => Ok(()),
        left => Err(format!("{left} MiB are left")),
    });
    assert!(node.run(&["logs", "logs"]).code == 0);
    assert!(!node.ok(&["events"]).contains("UnsupportedFields"));
}

#[test]
fn another_pod_takes_the_place_of_one_that_was_evicted() {
    let node = TestNode::start(&[]);
    node.import_busybox();
    node.apply(include_str!("../../manifests/ephemeral-storage.yaml"));
    let pods = |path: &str| node.field(&["pods", "-l", "app=diary"], path);
    eventually("the writer is evicted", TIMEOUT, || contains(&pods(".items[*].status.reason"), "Evicted"));
    let why = "Usage of EmptyDir volume \"pages\" exceeds the limit \"5Mi\".";
    contains(&pods(".items[*].status.message"), why).unwrap();
    eventually("and has a successor", TIMEOUT, || contains(&pods(".items[*].status.phase"), "Running"));
    assert_eq!(node.field(&["pod", "note"], ".status.phase"), "Running");
}

/// An agent that dies before deciding decides later; one that dies afterwards has not forgotten.
#[test]
fn neither_the_deed_nor_the_verdict_is_forgotten_when_the_agent_dies() {
    let mut node = TestNode::start(&[]);
    node.import_busybox();
    let does = "dd if=/dev/zero of=/big bs=1M count=12; echo written";
    node.apply(&pod("layer", does, LIMIT, ""));
    eventually("it has written", TIMEOUT, || contains(&node.run(&["logs", "layer"]).out, "written"));
    node.kill();
    node.spawn();
    node.wait_ready();
    evicted(&node, "layer", WHOLE);
    let ended = node.field(&["pod", "layer"], ".status.containerStatuses[0].state.terminated.finishedAt");
    node.kill();
    node.spawn();
    node.wait_ready();
    node.apply(&pod("next", "true", LIMIT, ""));
    node.wait_field(&["pod", "next"], ".status.phase", "Running", TIMEOUT);
    evicted(&node, "layer", WHOLE);
    assert_eq!(node.field(&["pod", "layer"], ".status.containerStatuses[0].state.terminated.finishedAt"), ended);
}

/// A node whose state folder is a small separate disk, filled by one Pod without limits.
#[test]
fn when_the_disk_runs_full_the_pod_goes_that_fills_it_and_none_is_taken() {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let mut node = TestNode::stopped(&["--eviction-hard", "nodefs.available<100Mi"]);
        let disk = node.dir.path().to_owned();
        mount(Some("disk"), &disk, Some("tmpfs"), MsFlags::empty(), Some("size=200m,mode=0700")).unwrap();
        node.spawn();
        node.wait_ready();
        a_full_disk(&node, &disk);
        node.terminate();
        umount(&disk).unwrap();
    });
    thread.join().unwrap();
}

fn a_full_disk(node: &TestNode, disk: &Path) {
    node.import_busybox();
    let condition = ".status.conditions[?(@.type==\"DiskPressure\")].status";
    assert_eq!(node.field(&["node"], &format!(".items[0]{condition}")), "False");
    node.apply(&pod("modest", "dd if=/dev/zero of=/a bs=1M count=2", "", ""));
    node.wait_field(&["pod", "modest"], ".status.phase", "Running", TIMEOUT);
    node.apply(&pod("hog", "dd if=/dev/zero of=/big bs=1M count=120", "", ""));
    node.wait_field(&["pod", "hog"], ".status.reason", "Evicted", TIMEOUT);
    let message = node.field(&["pod", "hog"], ".status.message");
    contains(&message, "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: ")
        .unwrap();
    contains(&message, "Container c was using ").unwrap();
    contains(&message, ", request is 0, has larger consumption of ephemeral-storage.").unwrap();
    assert_eq!(conditions(node, "hog"), "TerminationByKubelet");
    eventually("the node says so", TIMEOUT, || match node.field(&["node"], &format!(".items[0]{condition}")) {
        status if status == "True" => Ok(()),
        status => Err(status),
    });
    eventually("it is tainted", TIMEOUT, || {
        contains(&node.field(&["node"], ".items[0].spec.taints[*].key"), "node.kubernetes.io/disk-pressure")
    });
    eventually("the disk has room again", TIMEOUT, || {
        let stat = nix::sys::statvfs::statvfs(disk).unwrap();
        let free = stat.blocks_available() as u64 * stat.fragment_size() as u64 / MIB;
        if free > 120 { Ok(()) } else { Err(format!("{free} MiB")) }
    });
    let name = node.field(&["node"], ".items[0].metadata.name");
    node.apply(&pod("late", "true", "", "").replace("spec:", &format!("spec:\n  nodeName: {name}")));
    node.wait_field(&["pod", "late"], ".status.reason", "Evicted", TIMEOUT);
    let why = "Pod was rejected: The node had condition: [DiskPressure].";
    assert_eq!(node.field(&["pod", "late"], ".status.message").trim_end(), why);
    assert_eq!(node.field(&["pod", "modest"], ".status.phase"), "Running");
    fs::metadata(disk.join("store.db")).unwrap();
}

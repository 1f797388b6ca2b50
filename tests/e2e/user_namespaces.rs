//! Pods with user namespaces: their identity inside and outside, ownership of their files, and distinct ranges.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
    time::Duration,
};

use serde_json::Value;

use crate::support::{TestNode, contains, eventually, leftovers::Machine, missing};

const TIMEOUT: Duration = Duration::from_secs(30);
const IDS: u64 = 65536;

/// A node; `None`, with a message and verified, if its host does not support user namespaces.
fn node() -> Option<TestNode> {
    let node = TestNode::start(&[]);
    node.import_busybox();
    if gives_users(&node) {
        return Some(node);
    }
    missing::here("this host cannot give Pods users of their own: they must be refused");
    node.apply(&sleeper("own", "hostUsers: false"));
    node.wait("jsonpath={.status.phase}=Failed", &["pod/own"], TIMEOUT);
    assert_eq!(node.field(&["pod", "own"], ".status.reason"), "PodFeatureUnsupported");
    contains(&node.field(&["pod", "own"], ".status.message"), "can't set `spec.hostUsers: false`").unwrap();
    None
}

fn gives_users(node: &TestNode) -> bool {
    node.field(&["nodes"], ".items[0].status.runtimeHandlers[0].features.userNamespaces") == "true"
}

fn sleeper(name: &str, fields: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  {fields}\n  \
         containers: [{{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}}]\n---\n"
    )
}

/// The first host id of a Pod's users, from its processes.
fn first_id(node: &TestNode, pod: &str) -> u64 {
    let map = node.ok(&["exec", pod, "-c", "c", "--", "cat", "/proc/self/uid_map", "/proc/self/gid_map"]);
    let lines: Vec<Vec<u64>> =
        map.lines().map(|l| l.split_whitespace().map(|n| n.parse().unwrap()).collect()).collect();
    assert_eq!(lines.len(), 2, "{map}");
    assert_eq!(lines[0], lines[1], "users and groups alike");
    assert_eq!((lines[0][0], lines[0][2]), (0, IDS), "{map}");
    lines[0][1]
}

/// The status of a container's first process, as seen by the host.
fn outside(node: &TestNode, pod: &str) -> impl Fn(&str) -> String + use<> {
    let found: Value = serde_json::from_str(&node.ok(&["inspect", "pod", pod, "-o", "json"])).unwrap();
    let all = found["containers"].as_array().unwrap();
    let pid = all.iter().find(|c| c["name"] == "c").unwrap()["pid"].as_u64().unwrap();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    move |key: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':').map(str::trim));
        line.unwrap_or_default().to_owned()
    }
}

const OBJECTS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: cm}
data: {word: first}
---
apiVersion: v1
kind: Secret
metadata: {name: sec}
stringData: {word: hidden}
";

/// One of each kind of volume; the second container has a non-root user, in a group that owns the files.
fn all_volumes(host: &str) -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolume
metadata: {{name: disk}}
spec:
  storageClassName: none
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteOnce]
  claimRef: {{namespace: default, name: disk}}
  local: {{path: {host}/local}}
  nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: kubernetes.io/os, operator: In, values: [linux]}}]}}]}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: disk}}
spec: {{storageClassName: none, volumeName: disk, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: own, labels: {{tier: front}}}}
spec:
  hostUsers: false
  terminationGracePeriodSeconds: 0
  securityContext: {{fsGroup: 2000}}
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'echo of a start > /dev/termination-log; exec sleep 1000']
    readinessProbe: {{exec: {{command: [sh, -c, 'test $(id -u) = 0 && ! grep -q 4294967295 /proc/self/uid_map']}}, periodSeconds: 1}}
    lifecycle: {{postStart: {{exec: {{command: [sh, -c, 'id -u > /shared/hook']}}}}}}
    volumeMounts: &mounts
    - {{name: cm, mountPath: /cm}}
    - {{name: sec, mountPath: /sec}}
    - {{name: all, mountPath: /all}}
    - {{name: down, mountPath: /down}}
    - {{name: shared, mountPath: /shared}}
    - {{name: shared, mountPath: /below, subPath: a/b}}
    - {{name: memory, mountPath: /memory}}
    - {{name: disk, mountPath: /disk}}
    - {{name: host, mountPath: /host}}
  - name: user
    image: localhost/busybox:1
    command: [sleep, '1000']
    securityContext: {{runAsUser: 1000, runAsGroup: 3000}}
    volumeMounts: *mounts
  volumes:
  - {{name: cm, configMap: {{name: cm}}}}
  - {{name: sec, secret: {{secretName: sec, defaultMode: 0400}}}}
  - {{name: down, downwardAPI: {{items: [{{path: labels, fieldRef: {{fieldPath: metadata.labels}}}}]}}}}
  - {{name: all, projected: {{sources: [{{configMap: {{name: cm}}}}, {{serviceAccountToken: {{path: token}}}}]}}}}
  - {{name: shared, emptyDir: {{}}}}
  - {{name: memory, emptyDir: {{medium: Memory, sizeLimit: 1Mi}}}}
  - {{name: disk, persistentVolumeClaim: {{claimName: disk}}}}
  - {{name: host, hostPath: {{path: {host}/path}}}}
"
    )
}

#[test]
fn files_belong_inside_to_whom_they_belong_outside() {
    let Some(node) = node() else { return };
    let untouched = Machine::untouched(node.dir.path());
    let host = node.dir.path().join("host");
    fs::create_dir_all(host.join("local")).unwrap();
    fs::create_dir_all(host.join("path")).unwrap();
    let canary = host.join("path/canary");
    fs::write(&canary, "of the host\n").unwrap();
    fs::set_permissions(&canary, PermissionsExt::from_mode(0o600)).unwrap();
    node.apply(OBJECTS);
    node.apply(&all_volumes(&host.display().to_string()));
    node.wait("condition=Ready", &["pod/own"], TIMEOUT);
    let run = |container: &str, script: &str| node.run(&["exec", "own", "-c", container, "--", "sh", "-c", script]);
    let inside = |script: &str| {
        let answer = run("c", script);
        assert_eq!(answer.code, 0, "{script}: {}", answer.all());
        answer.out
    };
    for (file, owner, content) in [
        ("/cm/word", "0 2000", "first"),
        ("/sec/word", "0 2000", "hidden"),
        ("/all/word", "0 2000", "first"),
        ("/down/labels", "0 2000", "tier=\"front\""),
        ("/host/canary", "0 0", "of the host\n"),
        ("/dev/termination-log", "0 0", "of a start\n"),
        ("/shared/hook", "0 2000", "0\n"),
    ] {
        assert_eq!(inside(&format!("stat -L -c '%u %g' {file}; cat {file}")), format!("{owner}\n{content}"), "{file}");
    }
    contains(&inside("stat -c '%u %g' /etc/hosts /etc/resolv.conf /etc/hostname / /bin/busybox"), "0 0").unwrap();
    assert!(!inside("stat -c %u /etc/hosts /etc/resolv.conf /etc/hostname / /bin /proc/self/").contains("65534"));
    assert!(!inside("cat /all/token").is_empty());
    // Its files belong to the mapped root outside, and to its group in the volume.
    let uid = node.field(&["pod", "own"], ".metadata.uid");
    let empty_dir = node.dir.path().join("pods").join(uid).join("volumes/shared");
    for (inner, outer, group) in [
        ("/shared/x", empty_dir.join("x"), 2000),
        ("/below/x", empty_dir.join("a/b/x"), 2000),
        ("/disk/x", host.join("local/x"), 2000),
        ("/host/x", host.join("path/x"), 0),
    ] {
        inside(&format!("echo mine > {inner}"));
        let found = fs::metadata(&outer).unwrap_or_else(|e| panic!("{}: {e}", outer.display()));
        assert_eq!((found.uid(), found.gid()), (0, group), "{inner}");
    }
    inside("echo x > /memory/x && chown 1000:3000 /memory/x /shared/x");
    assert_eq!(fs::metadata(empty_dir.join("x")).unwrap().uid(), 1000);
    // A non-root user reads what the group may, and no more.
    for (script, allowed) in [
        ("cat /cm/word /sec/word /all/token /down/labels", true),
        ("echo > /shared/user && echo > /disk/user && echo > /below/user && echo > /memory/user", true),
        ("test $(stat -c '%u %g' /shared/user | tr ' ' :) = 1000:2000", true),
        ("cat /host/canary", false),
        ("echo > /host/user", false),
    ] {
        let answer = run("user", script);
        assert_eq!(answer.code == 0, allowed, "{script}: {}", answer.all());
    }
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

/// Pod Security allows root inside, as it is unprivileged outside.
const RESTRICTED: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: strict, labels: {pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: v1
kind: Pod
metadata: {name: root, namespace: strict}
spec:
  hostUsers: false
  terminationGracePeriodSeconds: 0
  securityContext: {runAsUser: 0, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, '1000']
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
---
apiVersion: v1
kind: Pod
metadata: {name: mighty}
spec:
  hostUsers: false
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000'], securityContext: {privileged: true}}]
---
apiVersion: v1
kind: Pod
metadata: {name: far}
spec:
  hostUsers: false
  terminationGracePeriodSeconds: 0
  securityContext: {runAsUser: 65536}
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
";

#[test]
fn root_inside_is_nobody_outside() {
    let Some(node) = node() else { return };
    let untouched = Machine::untouched(node.dir.path());
    node.apply(RESTRICTED);
    node.apply(&sleeper("own", "hostUsers: false"));
    node.wait("condition=Ready", &["pod/own", "pod/mighty"], TIMEOUT);
    node.wait("condition=Ready", &["-n", "strict", "pod/root"], TIMEOUT);
    assert_eq!(node.ok(&["-n", "strict", "exec", "root", "--", "id", "-u"]), "0\n");
    for pod in ["own", "mighty"] {
        let (first, seen) = (first_id(&node, pod), outside(&node, pod));
        assert!(first >= IDS, "{pod}: {first}");
        assert_eq!(seen("Uid"), [first.to_string().as_str(); 4].join("\t"), "{pod}");
        assert_eq!(seen("Gid"), [first.to_string().as_str(); 4].join("\t"), "{pod}");
    }
    // Whatever its capabilities inside, it has none over the host's objects; if permitted, these calls would change nothing.
    for script in [
        "cat /proc/sys/kernel/core_pattern > /tmp/p && cat /tmp/p > /proc/sys/kernel/core_pattern",
        "cat /proc/sys/vm/swappiness > /tmp/p && cat /tmp/p > /proc/sys/vm/swappiness",
        "mknod /tmp/log c 1 11 && : > /tmp/log",
        "mount -t ext4 /dev/vda /mnt",
        "touch /tmp/f && chown 65536 /tmp/f",
        "nsenter -t 1 -U true",
        "hostname x && test $(cat /proc/1/comm) = init",
    ] {
        let answer = node.run(&["exec", "mighty", "--", "sh", "-c", script]);
        assert_ne!(answer.code, 0, "{script}: {}", answer.all());
    }
    // An unmapped id is refused, not replaced.
    eventually("the Pod with an id of no user waits", TIMEOUT, || {
        let message = node.field(&["pod", "far"], ".status.containerStatuses[0].state.waiting.message");
        contains(&message, "id 65536 is not mapped in the Pod's user namespace")
    });
    node.ok(&["delete", "pods", "--all"]);
    node.ok(&["delete", "pods", "--all", "-n", "strict"]);
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn a_range_is_one_pods_alone_and_outlives_the_agent() {
    let Some(mut node) = node() else { return };
    let untouched = Machine::untouched(node.dir.path());
    let names: Vec<String> = (0..30).map(|n| format!("p{n}")).collect();
    let pods: Vec<String> = names.iter().map(|name| sleeper(name, "hostUsers: false")).collect();
    node.apply(&pods.concat());
    node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let ranges = |node: &TestNode| names.iter().map(|pod| first_id(node, pod)).collect::<Vec<_>>();
    let before = ranges(&node);
    let mut sorted = before.clone();
    sorted.sort_unstable();
    assert!(sorted.windows(2).all(|pair| pair[0] + IDS <= pair[1]), "{sorted:?}");
    assert!(sorted[0] >= IDS);
    // Another agent knows the ranges.
    node.kill();
    node.spawn();
    node.wait_ready();
    node.apply(&sleeper("late", "hostUsers: false"));
    node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    assert_eq!(ranges(&node), before);
    let late = first_id(&node, "late");
    assert!(before.iter().all(|first| first.abs_diff(late) >= IDS), "{late} {before:?}");
    assert_eq!(node.field(&["pod", "p0"], ".status.containerStatuses[0].restartCount"), "0");
    // Pods that do not request it are unaffected.
    node.apply(&sleeper("plain", "restartPolicy: Always"));
    node.wait("condition=Ready", &["pod/plain"], TIMEOUT);
    let map: PathBuf = "/proc/self/uid_map".into();
    assert_eq!(node.ok(&["exec", "plain", "--", "cat", "/proc/self/uid_map"]), fs::read_to_string(map).unwrap());
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

/// Ended Pods keep their objects, logs and statuses, but no ranges: there are two, and a namespace gets half of them.
#[test]
fn a_pod_that_has_ended_gives_its_range_back() {
    let mut node = TestNode::start(&["--userns-range", "1310720000:131072"]);
    node.import_busybox();
    if !gives_users(&node) {
        return;
    }
    let untouched = Machine::untouched(node.dir.path());
    let ended = |name: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  hostUsers: false\n  restartPolicy: Never\n  \
             volumes: [{{name: v, emptyDir: {{}}}}]\n  containers:\n  - name: c\n    image: localhost/busybox:1\n    \
             command: [sh, -c, 'echo one > /file; echo two > /v/file; echo of {name}; echo said > /dev/termination-log']\n    \
             volumeMounts: [{{name: v, mountPath: /v}}]\n---\n"
        )
    };
    let succeeds = |node: &TestNode, name: &str| {
        node.apply(&ended(name));
        node.wait("jsonpath={.status.phase}=Succeeded", &[&format!("pod/{name}")], TIMEOUT);
    };
    ["e0", "e1", "e2"].iter().for_each(|name| succeeds(&node, name));
    // Another agent finds their sandboxes' records.
    node.kill();
    node.spawn();
    node.wait_ready();
    node.apply(&sleeper("lives", "hostUsers: false"));
    node.wait("condition=Ready", &["pod/lives"], TIMEOUT);
    // The other range is reserved for newcomers.
    node.apply(&sleeper("second", "hostUsers: false"));
    eventually("the namespace has its share", TIMEOUT, || {
        contains(&node.ok(&["get", "events"]), "namespace default has 1 of this node's 2 ranges of ids")
    });
    node.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n");
    node.apply(&sleeper("third", "hostUsers: false").replace("{name: third}", "{name: third, namespace: other}"));
    node.wait("condition=Ready", &["-n", "other", "pod/third"], TIMEOUT);
    assert_eq!(node.ok(&["logs", "e0"]), "of e0\n");
    assert_eq!(node.field(&["pod", "e0"], ".status.containerStatuses[0].state.terminated.message"), "said\n");
    node.ok(&["delete", "namespace", "other"]);
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn a_container_that_is_debugged_into_the_pod_is_of_its_users() {
    let Some(node) = node() else { return };
    let untouched = Machine::untouched(node.dir.path());
    node.apply(include_str!("../../manifests/user-namespace.yaml"));
    node.apply(&sleeper("own", "hostUsers: false"));
    node.wait("condition=Ready", &["-n", "own-users", "pod/inner-root"], TIMEOUT);
    node.wait("condition=Ready", &["pod/own"], TIMEOUT);
    contains(&node.ok(&["-n", "own-users", "exec", "inner-root", "--", "cat", "/data/who"]), "uid=0(root)").unwrap();
    let map = |container: &str| node.run(&["exec", "own", "-c", container, "--", "cat", "/proc/self/uid_map"]).out;
    let own = map("c");
    assert!(first_id(&node, "own") >= IDS, "{own}");
    node.ok(&["debug", "own", "--image=localhost/busybox:1", "-c", "look", "--", "sleep", "1000"]);
    eventually("the debugging container is of the same users", TIMEOUT, || {
        let map = map("look");
        if map == own { Ok(()) } else { Err(map) }
    });
    node.ok(&["delete", "pods", "--all"]);
    node.ok(&["delete", "namespace", "own-users"]);
    drop(node);
    untouched.assert_unchanged();
}

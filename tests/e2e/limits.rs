//! Enforcement of limits by Linux: needs cgroup v2 with its controllers, so these run in the guest of `vm/`.

use std::{fs, path::PathBuf, time::Duration};

use serde_json::Value;

use crate::support::{TestNode, contains, eventually, leftovers::Machine, missing};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Whether limits can be enforced here; prints a message if not.
fn enforceable() -> bool {
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    let lacks: Vec<&str> =
        ["cpu", "memory", "pids"].into_iter().filter(|c| !controllers.split_whitespace().any(|h| h == *c)).collect();
    if !lacks.is_empty() {
        assert!(std::env::var_os("PODWRIGHT_TEST_GUEST").is_none(), "the guest lacks the controllers {lacks:?}");
        missing::here(&format!("/sys/fs/cgroup lacks the controllers {}; `./dev vm` has them", lacks.join(", ")));
    }
    lacks.is_empty()
}

/// A cgroup as shown by `podwright inspect`.
struct Cgroup(Value);

impl Cgroup {
    /// A file's content in `inspect`, as read from the kernel.
    fn file(&self, name: &str) -> &str {
        let told = self.0["files"][name].as_str().unwrap_or_else(|| panic!("no {name} in {:#}", self.0));
        assert_eq!(self.read(name).trim(), told, "{name} of {}", self.0["path"]);
        told
    }
    fn read(&self, name: &str) -> String {
        let path = self.folder().join(name);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }
    /// Its path, read without `inspect`.
    fn folder(&self) -> PathBuf {
        format!("/sys/fs/cgroup{}", self.0["path"].as_str().unwrap_or_else(|| panic!("no path in {:#}", self.0))).into()
    }
    /// One number of a file of `key value` lines.
    fn keyed(&self, file: &str, key: &str) -> u64 {
        let text = self.read(file);
        let value = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("no {key} in {text}"))
    }
}

fn inspect(node: &TestNode, pod: &str) -> Value {
    serde_json::from_str(&node.ok(&["inspect", "pod", pod, "-o", "json"])).unwrap()
}

fn pod_cgroup(inspected: &Value) -> Cgroup {
    Cgroup(inspected["sandbox"]["cgroup"].clone())
}

/// The running container of that name; earlier runs are listed too.
fn container<'a>(inspected: &'a Value, name: &str) -> &'a Value {
    let mut all = inspected["containers"].as_array().into_iter().flatten();
    let running = all.find(|c| c["name"] == name && c["pid"] != 0);
    running.unwrap_or_else(|| panic!("no running {name} in {inspected:#}"))
}

fn container_cgroup(inspected: &Value, name: &str) -> Cgroup {
    Cgroup(container(inspected, name)["cgroup"].clone())
}

const CLASSES: &str = "
apiVersion: v1
kind: Pod
metadata: {name: careless}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: localhost/busybox:1, command: [sleep, '1000']}]
---
apiVersion: v1
kind: Pod
metadata: {name: modest}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, '1000']
    resources: {requests: {cpu: 200m, memory: 64Mi}, limits: {cpu: 400m, memory: 128Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: certain}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: localhost/busybox:1, command: [sleep, '1000'], resources: {limits: {cpu: 100m, memory: 32Mi}}}
";

#[test]
fn each_qos_class_has_its_place_its_limits_and_its_oom_score() {
    if !enforceable() {
        return;
    }
    let node = TestNode::start(&["--pod-max-pids", "50"]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(CLASSES);
    node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let capacity = node.field(&["nodes"], ".items[0].status.capacity.memory");
    let capacity: i64 = capacity.trim_end_matches("Ki").parse().expect("memory is told in Ki");
    let modest_score = 1000 - 1000 * 64 * 1024 / capacity;
    // Weights as runc converts shares: 2, 204 and 102 of 262144.
    let rows = [
        ("careless", "BestEffort", "1", "max 100000", "max", "max", 1000),
        ("modest", "Burstable", "8", "40000 100000", "134217728", "0", modest_score),
        ("certain", "Guaranteed", "4", "10000 100000", "33554432", "0", -997),
    ];
    for (pod, class, weight, cpu, memory, swap, score) in rows {
        assert_eq!(node.field(&["pod", pod], ".status.qosClass"), class);
        let found = inspect(&node, pod);
        let (outer, inner) = (pod_cgroup(&found), container_cgroup(&found, "c"));
        let place = format!("/{}/pod{}", class.to_lowercase(), found["pod"]["uid"].as_str().unwrap());
        assert!(outer.folder().to_string_lossy().ends_with(&place), "{pod} is in {}", outer.folder().display());
        assert_eq!(inner.folder().parent(), Some(outer.folder().as_path()));
        for cgroup in [&outer, &inner] {
            let read = ["cpu.weight", "cpu.max", "memory.max"].map(|f| cgroup.file(f));
            assert_eq!(read, [weight, cpu, memory], "{pod}: {}", cgroup.0["path"]);
        }
        assert_eq!((inner.file("memory.swap.max"), outer.file("pids.max")), (swap, "50"), "{pod}");
        assert_eq!(inner.file("memory.oom.group"), if memory == "max" { "0" } else { "1" }, "{pod}");
        let adjusted = fs::read_to_string(format!("/proc/{}/oom_score_adj", container(&found, "c")["pid"])).unwrap();
        assert_eq!(adjusted.trim(), score.to_string(), "{pod}");
        let folder = outer.folder().parent().unwrap().to_owned();
        assert_eq!(fs::read_to_string(folder.join("cpu.weight")).unwrap().trim(), weight, "{}", folder.display());
    }
    // A class weighs the sum of its Pods' requests, also after they are gone.
    let burstable = pod_cgroup(&inspect(&node, "modest")).folder().parent().unwrap().join("cpu.weight");
    node.apply(&CLASSES.replace("name: modest", "name: another"));
    node.wait("condition=Ready", &["pod/another"], TIMEOUT);
    let weight = |wanted: &str| {
        let found = fs::read_to_string(&burstable).unwrap();
        if found.trim() == wanted { Ok(()) } else { Err(format!("{} is {found}", burstable.display())) }
    };
    eventually("the class of two Pods weighs more", TIMEOUT, || weight("16"));
    node.ok(&["delete", "pod", "another", "modest"]);
    eventually("an empty class weighs next to nothing", TIMEOUT, || weight("1"));
    drop(node);
    untouched.assert_unchanged();
}

/// The first run of `greedy` fills its memory, the second one sleeps.
const GREEDY: &str = "
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: greedy
    image: localhost/busybox:1
    command: [sh, -c, 'test -e /data/again && exec sleep 1000; touch /data/again; sleep 900 & dd if=/dev/zero of=/dev/null bs=96M count=1; sleep 1000']
    resources: {limits: {memory: 24Mi}}
    volumeMounts: [{name: data, mountPath: /data}]
  - {name: neighbour, image: localhost/busybox:1, command: [sleep, '1000']}
  volumes: [{name: data, emptyDir: {}}]
";

#[test]
fn a_container_over_its_memory_limit_is_oom_killed_alone_and_restarted() {
    if !enforceable() {
        return;
    }
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(GREEDY);
    let (pod, status) = (["pod", "greedy"], ".status.containerStatuses");
    node.wait_field(&pod, &format!("{status}[0].restartCount"), "1", TIMEOUT);
    let last = format!("{status}[0].lastState.terminated");
    assert_eq!(node.field(&pod, &format!("{last}.reason")), "OOMKilled");
    assert_eq!(node.field(&pod, &format!("{last}.exitCode")), "137");
    node.wait("condition=Ready", &["pod/greedy"], TIMEOUT);
    assert_eq!(node.field(&pod, &format!("{status}[1].restartCount")), "0");
    // The whole container died, not only its greedy process: the second run is the only process.
    let greedy = container_cgroup(&inspect(&node, "greedy"), "greedy");
    assert_eq!((greedy.read("pids.current").trim(), greedy.file("memory.max")), ("1", "25165824"));
    node.ok(&["delete", "pod", "greedy"]);
    drop(node);
    untouched.assert_unchanged();
}

const BUSY: &str = "
apiVersion: v1
kind: Pod
metadata: {name: busy}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'while :; do :; done']
    resources: {limits: {cpu: 100m}}
---
apiVersion: v1
kind: Pod
metadata: {name: fertile}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Never
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'i=0; while [ $i -lt 40 ]; do sleep 1000 & i=$((i+1)); done; echo all']
";

#[test]
fn cpu_max_throttles_and_pids_max_refuses() {
    if !enforceable() {
        return;
    }
    let node = TestNode::start(&["--pod-max-pids", "20"]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(BUSY);
    node.wait_field(&["pod", "fertile"], ".status.phase", "Failed", TIMEOUT);
    contains(&node.ok(&["logs", "fertile"]), "can't fork").unwrap();
    node.wait_field(&["pod", "busy"], ".status.phase", "Running", TIMEOUT);
    let found = inspect(&node, "busy");
    let busy = container_cgroup(&found, "c");
    assert_eq!((busy.file("cpu.max"), pod_cgroup(&found).file("pids.max")), ("10000 100000", "20"));
    eventually("the busy container is throttled", TIMEOUT, || {
        let throttled = busy.keyed("cpu.stat", "nr_throttled");
        if throttled >= 5 { Ok(()) } else { Err(format!("throttled {throttled} times")) }
    });
    // 10 ms of each 100 ms; a period may be overrun by a tick.
    let (periods, used) = (busy.keyed("cpu.stat", "nr_periods"), busy.keyed("cpu.stat", "usage_usec"));
    assert!(used < (periods + 2) * 20_000, "{used} us in {periods} periods");
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

const RESIZED: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: a
    image: localhost/busybox:1
    command: [sh, -c, 'dd if=/dev/zero of=/dev/shm/held bs=1M count=24; exec sleep 1000']
    resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}
  - name: b
    image: localhost/busybox:1
    command: [sleep, '1000']
    resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}
";

/// The settings in the cgroups of a Pod and of its containers `a` and `b`: cpu.weight, cpu.max, memory.max. (`inspect` may be
/// outdated.)
fn written(node: &TestNode) -> [[String; 3]; 3] {
    let found = inspect(node, "web");
    [pod_cgroup(&found), container_cgroup(&found, "a"), container_cgroup(&found, "b")]
        .map(|cgroup| ["cpu.weight", "cpu.max", "memory.max"].map(|file| cgroup.read(file).trim().to_owned()))
}

#[test]
fn a_resize_is_written_into_the_cgroups_of_the_same_containers() {
    if !enforceable() {
        return;
    }
    const MIB: u64 = 1 << 20;
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(RESIZED);
    node.wait("condition=Ready", &["pod/web"], TIMEOUT);
    let row = |weight: &str, quota: u64, memory: u64| {
        [weight.to_owned(), format!("{quota} 100000"), (memory * MIB).to_string()]
    };
    assert_eq!(written(&node), [row("8", 40_000, 128), row("4", 20_000, 64), row("4", 20_000, 64)]);
    let ids = || node.field(&["pod", "web"], ".status.containerStatuses[*]['containerID','restartCount']");
    let before = ids();
    let patch = |a: &str, b: &str| {
        let containers = format!("[{{name: a, resources: {a}}}, {{name: b, resources: {b}}}]");
        let patch = format!("spec: {{containers: {containers}}}");
        node.ok(&["patch", "pod", "web", "--subresource", "resize", "-p", &patch]);
    };
    let until = |wanted: [[String; 3]; 3]| {
        eventually("the cgroups are as wanted", TIMEOUT, || match written(&node) {
            found if found == wanted => Ok(()),
            found => Err(format!("{found:?} is not {wanted:?}\n{}", node.ok(&["get", "pod", "web", "-o", "yaml"]))),
        });
    };
    // One grows, the other shrinks.
    patch(
        "{requests: {cpu: 300m}, limits: {cpu: 500m, memory: 96Mi}}",
        "{requests: {cpu: 50m, memory: 16Mi}, limits: {cpu: 100m, memory: 48Mi}}",
    );
    until([row("14", 60_000, 144), row("12", 50_000, 96), row("2", 10_000, 48)]);
    assert_eq!(ids(), before, "they are the same containers, and were not restarted");
    let burstable = pod_cgroup(&inspect(&node, "web")).folder().parent().unwrap().join("cpu.weight");
    eventually("the class weighs what they request", TIMEOUT, || {
        match fs::read_to_string(&burstable).unwrap().trim() {
            "14" => Ok(()),
            weight => Err(format!("it weighs {weight}")),
        }
    });

    // No limit falls below current usage: nothing is written, and that is reported.
    patch("{requests: {memory: 8Mi}, limits: {memory: 16Mi}}", "{limits: {cpu: 150m}}");
    let progress = ".status.conditions[?(@.type=='PodResizeInProgress')]";
    node.wait_field(&["pod", "web"], &format!("{progress}.reason"), "Error", TIMEOUT);
    let why = node.field(&["pod", "web"], &format!("{progress}.message"));
    contains(&why, "cannot decrease memory limits: attempting to set container \"a\" memory limit (16777216) below current usage (")
        .unwrap();
    assert_eq!(written(&node), [row("14", 60_000, 144), row("12", 50_000, 96), row("2", 10_000, 48)]);
    // Another agent continues, and retries until there is room.
    node.kill();
    node.spawn();
    node.wait_ready();
    assert_eq!(node.field(&["pod", "web"], &format!("{progress}.reason")), "Error");
    node.ok(&["exec", "web", "-c", "a", "--", "rm", "/dev/shm/held"]);
    let until = |wanted: [[String; 3]; 3]| {
        eventually("the cgroups are as wanted", TIMEOUT, || match written(&node) {
            found if found == wanted => Ok(()),
            found => Err(format!("{found:?} is not {wanted:?}\n{}", node.ok(&["get", "pod", "web", "-o", "yaml"]))),
        });
    };
    until([row("14", 65_000, 64), row("12", 50_000, 16), row("2", 15_000, 48)]);
    node.wait_field(&["pod", "web"], ".status.containerStatuses[0].resources.limits.memory", "16Mi", TIMEOUT);
    let after = node.field(&["pod", "web"], ".status.containerStatuses[*]['containerID','restartCount']");
    assert_eq!(after, before);
    node.ok(&["delete", "pod", "web"]);
    drop(node);
    untouched.assert_unchanged();
}

/// A Pod with the guest's disk as a volume, and a privileged one.
const DISKS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: plain}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: disk, hostPath: {path: /dev/vda, type: BlockDevice}}]
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, '1000']
    securityContext: {capabilities: {add: [MKNOD, SYS_ADMIN, DAC_OVERRIDE]}}
    volumeMounts: [{name: disk, mountPath: /disk}]
---
apiVersion: v1
kind: Pod
metadata: {name: mighty}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: localhost/busybox:1, command: [sleep, '1000'], securityContext: {privileged: true}}]
";

#[test]
fn only_the_privileged_open_a_disk_of_the_host() {
    if std::env::var_os("PODWRIGHT_TEST_GUEST").is_none() {
        missing::here("this would read a disk of this machine; `./dev vm` has one for it");
        return;
    }
    let number = nix::sys::stat::stat("/dev/vda").expect("vm/run gives the guest a disk").st_rdev;
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(DISKS);
    node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let inside = |pod: &str, script: &str| node.run(&["exec", pod, "--", "sh", "-c", script]);
    let own = format!("mknod /own b {major} {minor} && head -c 21 /own");
    // Whether it creates a node or gets the host's: it may stat it, but not open it.
    for script in [&own, "test -b /disk && head -c 21 /disk", "true > /disk"] {
        let refused = inside("plain", script);
        assert_ne!(refused.code, 0, "{script}: {}", refused.all());
        contains(&refused.err, "Operation not permitted").unwrap();
    }
    for script in [&own, "head -c 21 /dev/vda"] {
        assert_eq!(inside("mighty", script).out, "the disk of the guest", "{script}");
    }
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

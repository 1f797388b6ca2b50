//! Pod features of a node: volumes, probes, hooks, sidecars, restarts, reasons; and recovery after a SIGKILL.

use std::time::Duration;

use crate::support::{TestNode, contains, eventually, leftovers::Machine};

const TIMEOUT: Duration = Duration::from_secs(30);

const KIT: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: cm}
data: {greeting: hello}
---
apiVersion: v1
kind: Secret
metadata: {name: sec}
stringData: {password: s3cret}
---
apiVersion: v1
kind: Pod
metadata: {name: kit}
spec:
  terminationGracePeriodSeconds: 2
  securityContext: {fsGroup: 2000}
  initContainers:
  - name: init
    image: localhost/busybox:1
    command: [sh, -c, 'echo prepared > /data/x']
    volumeMounts: [{name: data, mountPath: /data}]
  - name: side
    image: localhost/busybox:1
    restartPolicy: Always
    command: [sh, -c, 'trap \"exit 0\" TERM; while :; do sleep 0.1; done']
    startupProbe: {exec: {command: ['true']}, periodSeconds: 1}
  containers:
  - name: main
    image: localhost/busybox:1
    command: [sh, -c, 'echo $(GREETING) $POD_IP; trap \"exit 0\" TERM; while :; do sleep 0.1; done']
    env:
    - {name: GREETING, valueFrom: {configMapKeyRef: {name: cm, key: greeting}}}
    - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    readinessProbe: {exec: {command: [test, -f, /data/ready]}, periodSeconds: 1}
    lifecycle: {postStart: {exec: {command: [sh, -c, 'echo hooked > /data/hook']}}}
    volumeMounts:
    - {name: data, mountPath: /data}
    - {name: data, mountPath: /sub, subPath: a/b}
    - {name: cfg, mountPath: /cfg}
    - {name: sec, mountPath: /sec}
  volumes:
  - {name: data, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: cfg, configMap: {name: cm}}
  - {name: sec, secret: {secretName: sec, defaultMode: 0400}}
";

const REASONS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: crash}
spec:
  containers:
  - {name: c, image: localhost/busybox:1, command: [sh, -c, 'echo last words > /dev/termination-log; exit 4']}
---
apiVersion: v1
kind: Pod
metadata: {name: noimage}
spec:
  containers: [{name: c, image: 'localhost/nothing:1'}]
---
apiVersion: v1
kind: Pod
metadata: {name: never}
spec:
  containers: [{name: c, image: 'example.com/nothing:1', imagePullPolicy: Never}]
---
apiVersion: v1
kind: Pod
metadata: {name: noconfig}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: localhost/busybox:1, command: [sleep, '1000'], envFrom: [{configMapRef: {name: later}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: nocommand}
spec:
  containers: [{name: c, image: localhost/busybox:1, command: [/nope]}]
---
apiVersion: v1
kind: Pod
metadata: {name: root}
spec:
  securityContext: {runAsNonRoot: true}
  containers: [{name: c, image: localhost/busybox:1, command: [sleep, '1000']}]
---
apiVersion: v1
kind: Pod
metadata: {name: once}
spec:
  restartPolicy: Never
  containers: [{name: c, image: localhost/busybox:1, command: [sh, -c, 'exit 7']}]
";

#[test]
fn a_pod_gets_all_that_its_manifest_says() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(KIT);
    let pod = ["pod", "kit"];
    node.wait_field(&pod, ".status.phase", "Running", TIMEOUT);
    let inside = |command: &str| node.ok(&["exec", "kit", "-c", "main", "--", "sh", "-c", command]);
    assert_eq!(inside("cat /data/x /data/hook /cfg/greeting /sec/password"), "prepared\nhooked\nhellos3cret");
    let ip = node.field(&pod, ".status.podIP");
    assert_eq!(node.ok(&["logs", "kit", "-c", "main"]).trim(), format!("hello {ip}"));
    assert_eq!(inside("touch /sub/f; ls /data/a/b; stat -c '%g %a' /data; id -G").trim(), "f\n2000 2777\n0 2000");
    assert_eq!(inside("readlink /cfg/greeting").trim(), "..data/greeting");
    assert_eq!(node.field(&pod, ".status.containerStatuses[0].ready"), "false");
    inside("touch /data/ready");
    node.wait("condition=Ready", &["pod/kit"], TIMEOUT);
    node.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: cm}, data: {greeting: changed}}");
    eventually("the mounted ConfigMap changes", TIMEOUT, || contains(&inside("cat /cfg/greeting"), "changed"));
    node.ok(&["delete", "pod", "kit"]);
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn what_goes_wrong_is_said_in_upstreams_words() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(REASONS);
    let waiting = ".status.containerStatuses[0].state.waiting.reason";
    for (pod, reason) in [
        ("crash", "CrashLoopBackOff"),
        ("noimage", "ImagePullBackOff"),
        ("never", "ErrImageNeverPull"),
        ("noconfig", "CreateContainerConfigError"),
        ("nocommand", "CrashLoopBackOff"),
        ("root", "CreateContainerConfigError"),
    ] {
        node.wait_field(&["pod", pod], waiting, reason, TIMEOUT);
    }
    let last = ".status.containerStatuses[0].lastState.terminated";
    node.wait_field(&["pod", "crash"], &format!("{last}.exitCode"), "4", TIMEOUT);
    assert_eq!(node.field(&["pod", "crash"], &format!("{last}.message")).trim(), "last words");
    assert_eq!(node.field(&["pod", "nocommand"], &format!("{last}.reason")), "StartError");
    node.wait_field(&["pod", "once"], ".status.phase", "Failed", TIMEOUT);
    assert_eq!(node.field(&["pod", "once"], ".status.containerStatuses[0].state.terminated.exitCode"), "7");
    node.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: later}, data: {A: b}}");
    node.wait_field(&["pod", "noconfig"], ".status.phase", "Running", TIMEOUT);
    drop(node);
    untouched.assert_unchanged();
}

const LASTING: &str = "
apiVersion: v1
kind: Pod
metadata: {name: lasting}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: localhost/busybox:1, command: [sh, -c, 'i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done']}
---
apiVersion: v1
kind: Pod
metadata: {name: ends}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'until [ -e /door/open ]; do sleep 0.1; done; touch /door/through; exit 9']
    volumeMounts: [{name: door, mountPath: /door}]
  volumes: [{name: door, hostPath: {path: DOOR}}]
---
apiVersion: v1
kind: Pod
metadata: {name: doomed}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: localhost/busybox:1, command: [sleep, '1000']}]
";

#[test]
fn containers_do_not_notice_that_their_agent_was_killed() {
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    let door = tempfile::tempdir().unwrap();
    node.apply(&LASTING.replace("DOOR", door.path().to_str().unwrap()));
    for pod in ["lasting", "ends", "doomed"] {
        node.wait_field(&["pod", pod], ".status.phase", "Running", TIMEOUT);
    }
    let id = node.field(&["pod", "lasting"], ".status.containerStatuses[0].containerID");
    let started = node.field(&["pod", "lasting"], ".status.containerStatuses[0].state.running.startedAt");
    node.kill();
    std::fs::write(door.path().join("open"), "").unwrap();
    eventually("a container ends while no agent runs", TIMEOUT, || {
        if door.path().join("through").exists() { Ok(()) } else { Err("it goes on".to_owned()) }
    });
    node.spawn();
    node.wait_ready();
    node.wait_field(&["pod", "ends"], ".status.phase", "Failed", TIMEOUT);
    assert_eq!(node.field(&["pod", "ends"], ".status.containerStatuses[0].state.terminated.exitCode"), "9");
    let status = ".status.containerStatuses[0]";
    assert_eq!(node.field(&["pod", "lasting"], &format!("{status}.containerID")), id);
    assert_eq!(node.field(&["pod", "lasting"], &format!("{status}.state.running.startedAt")), started);
    assert_eq!(node.field(&["pod", "lasting"], &format!("{status}.restartCount")), "0");
    // No line is missing or duplicated.
    let log = node.ok(&["logs", "lasting"]);
    let numbers: Vec<usize> = log.lines().filter_map(|l| l.parse().ok()).collect();
    assert_eq!(numbers, (0..numbers.len()).collect::<Vec<_>>());
    node.ok(&["delete", "pod", "doomed", "lasting", "ends"]);
    drop(node);
    untouched.assert_unchanged();
}

/// Number of processes on the machine with these arguments.
fn running(args: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let words = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    words
        .filter(|words| words.strip_suffix(b"\0").is_some_and(|words| words == args.replace(' ', "\0").as_bytes()))
        .count()
}

/// After its client is gone nothing ends an exec'd command: the shim does, even without an agent.
#[test]
fn what_is_executed_ends_with_the_agent_that_is_killed() {
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(LOST);
    node.wait("condition=Ready", &["pod/lost"], TIMEOUT);
    let sleep = format!("sleep {}", 1_000_000 + std::process::id());
    let deaf = format!("trap '' HUP; {sleep} & {sleep}");
    let execs = [&deaf, &sleep].map(|script| node.talk(&["exec", "lost", "--", "sh", "-c", script]));
    eventually("all are there", TIMEOUT, || (running(&sleep) == 3).then_some(()).ok_or(running(&sleep).to_string()));
    node.kill();
    eventually("nothing is left", TIMEOUT, || (running(&sleep) == 0).then_some(()).ok_or(running(&sleep).to_string()));
    drop(execs);
    node.spawn();
    node.wait_ready();
    let here = || node.run(&["exec", "lost", "--", "echo", "here"]);
    eventually("its node is there", TIMEOUT, || contains(&here().out, "here\n"));
    assert_eq!(node.field(&["pod", "lost"], ".status.containerStatuses[0].restartCount"), "0");
    node.ok(&["delete", "pod", "lost"]);
    drop(node);
    untouched.assert_unchanged();
}

const LOST: &str = "
apiVersion: v1
kind: Pod
metadata: {name: lost}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: localhost/busybox:1, command: [sleep, '1000']}]
";

/// The parent of a process.
fn parent(pid: u64) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("PPid:")).expect("each process has a parent");
    line.trim().parse().unwrap()
}

#[test]
fn a_pod_whose_pause_or_shim_is_killed_is_made_anew() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(LOST);
    node.wait("condition=Ready", &["pod/lost"], TIMEOUT);
    let (pod, status) = (["pod", "lost"], ".status.containerStatuses[0]");
    // The shim observes the exits of a lost pause's containers; if it is lost itself, they are unknown.
    for (restarts, (victim, reason)) in [("1", ("pause", "Error")), ("2", ("shim", "ContainerStatusUnknown"))] {
        let id = node.field(&pod, &format!("{status}.containerID"));
        let found = node.ok(&["inspect", "pod", "lost", "-o", "json"]);
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        let pause = found["sandbox"]["pause"]["pid"].as_u64().unwrap_or_else(|| panic!("no pid in {found:#}"));
        let pid = if victim == "pause" { pause } else { parent(pause) };
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), nix::sys::signal::SIGKILL).unwrap();
        node.wait_field(&pod, &format!("{status}.restartCount"), restarts, TIMEOUT);
        node.wait("condition=Ready", &["pod/lost"], TIMEOUT);
        let last = |field: &str| node.field(&pod, &format!("{status}.lastState.terminated.{field}"));
        assert_eq!((last("exitCode"), last("reason"), last("containerID")), ("137".into(), reason.into(), id));
        contains(&node.ok(&["get", "events"]), "SandboxChanged").unwrap();
        assert_eq!(node.ok(&["exec", "lost", "--", "echo", "here"]), "here\n");
    }
    node.ok(&["delete", "pod", "lost"]);
    drop(node);
    untouched.assert_unchanged();
}

const DONGLE: &str = "
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, '1000']
    resources: {requests: {example.com/dongle: '2'}, limits: {example.com/dongle: '2'}}
";

/// An extended resource is patched into a Node: its agent makes it allocatable.
#[test]
fn what_is_patched_into_a_nodes_capacity_pods_may_have() {
    let mut node = TestNode::start(&["--node-name", "n1"]);
    node.import_busybox();
    node.apply(&DONGLE.replace("NAME", "first"));
    node.wait("condition=PodScheduled=False", &["pod/first"], TIMEOUT);
    let change = |node: &TestNode, value: &str| {
        let change = format!("{{\"status\":{{\"capacity\":{{\"example.com/dongle\":{value}}}}}}}");
        node.ok(&["patch", "node", "n1", "--subresource=status", "--type=merge", "-p", &change]);
    };
    change(&node, "\"3\"");
    let allocatable = ".status.allocatable.example\\.com/dongle";
    node.wait_field(&["node", "n1"], allocatable, "3", TIMEOUT);
    node.wait("condition=Ready", &["pod/first"], TIMEOUT);
    node.apply(&DONGLE.replace("NAME", "second"));
    node.wait("condition=PodScheduled=False", &["pod/second"], TIMEOUT);
    contains(&node.field(&["pod", "second"], ".status.conditions[0].message"), "Insufficient example.com/dongle")
        .unwrap();
    // It belongs to the Node, not to this agent: the next one finds it there. Increasing and removing it take effect.
    node.kill();
    node.spawn();
    node.wait_ready();
    node.wait_field(&["node", "n1"], allocatable, "3", TIMEOUT);
    change(&node, "\"4\"");
    node.wait("condition=Ready", &["pod/second"], TIMEOUT);
    change(&node, "null");
    eventually("nobody has it any more", TIMEOUT, || match node.field(&["node", "n1"], allocatable) {
        none if none.is_empty() => Ok(()),
        some => Err(some),
    });
    node.ok(&["delete", "pod", "first", "second"]);
}

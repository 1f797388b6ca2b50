//! The lifecycles of a Pod's containers: order, hooks, termination messages, and exits.

use std::{fs, path::Path, time::Duration};

use crate::support::{TestNode, contains, eventually, leftovers::Machine};

const TIMEOUT: Duration = Duration::from_secs(30);

fn node() -> (TestNode, Machine) {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    (node, untouched)
}

/// Every container records its events in one host file, which outlives the Pod.
fn diary(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("diary")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn sidecars(folder: &Path) -> String {
    let talker = |name: &str, more: &str| {
        format!(
            "
  - name: {name}
    image: localhost/busybox:1
    command: [sh, -c, 'echo {name} starts >> /d/diary; trap \"echo {name} ends >> /d/diary; exit 0\" TERM; touch /tmp/up; while :; do sleep 0.05; done']
    volumeMounts: [{{name: d, mountPath: /d}}]{more}"
        )
    };
    let sidecar =
        "\n    restartPolicy: Always\n    startupProbe: {exec: {command: [test, -e, /tmp/up]}, periodSeconds: 1}";
    let init = "
  - name: middle
    image: localhost/busybox:1
    command: [sh, -c, 'echo middle runs >> /d/diary']
    volumeMounts: [{name: d, mountPath: /d}]";
    let hooks = "
    lifecycle:
      postStart: {exec: {command: [sh, -c, 'echo main postStart >> /d/diary']}}
      preStop: {exec: {command: [sh, -c, 'echo main preStop >> /d/diary']}}";
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: company}}
spec:
  terminationGracePeriodSeconds: 20
  volumes: [{{name: d, hostPath: {{path: '{}'}}}}]
  initContainers:{}{init}{}
  containers:{}
",
        folder.display(),
        talker("one", sidecar),
        talker("two", sidecar),
        talker("main", hooks)
    )
}

#[test]
fn sidecars_start_before_and_end_after_the_others() {
    let (node, untouched) = node();
    let folder = tempfile::tempdir().unwrap();
    node.apply(&sidecars(folder.path()));
    node.wait("condition=Ready", &["pod/company"], TIMEOUT);
    assert_eq!(node.ok(&["get", "pod", "company", "--no-headers"]).split_whitespace().nth(1), Some("3/3"));
    let mut begun = diary(folder.path());
    assert_eq!(begun[..3], ["one starts", "middle runs", "two starts"]);
    begun.sort();
    assert_eq!(begun, ["main postStart", "main starts", "middle runs", "one starts", "two starts"]);
    // A sidecar that exits is restarted, and nothing else.
    node.ok(&["exec", "company", "-c", "one", "--", "sh", "-c", "kill -TERM 1"]);
    node.wait_field(&["pod", "company"], ".status.initContainerStatuses[0].restartCount", "1", TIMEOUT);
    node.wait("condition=Ready", &["pod/company"], TIMEOUT);
    assert_eq!(node.field(&["pod", "company"], ".status.containerStatuses[0].restartCount"), "0");
    assert_eq!(node.field(&["pod", "company"], ".status.initContainerStatuses[1].restartCount"), "0");
    let before = diary(folder.path()).len();
    node.ok(&["delete", "pod", "company"]);
    assert_eq!(diary(folder.path())[before..], ["main preStop", "main ends", "two ends", "one ends"]);
    drop(node);
    untouched.assert_unchanged();
}

const ENDS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: failed-init}
spec:
  restartPolicy: Never
  initContainers:
  - {name: good, image: 'localhost/busybox:1', command: ['true']}
  - {name: bad, image: 'localhost/busybox:1', command: [sh, -c, 'echo no luck; exit 5'], terminationMessagePolicy: FallbackToLogsOnError}
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
---
apiVersion: v1
kind: Pod
metadata: {name: cut-short}
spec:
  restartPolicy: Never
  containers:
  - {name: c, image: 'localhost/busybox:1', command: [sh, -c, 'echo first; printf last; exit 6'], terminationMessagePolicy: FallbackToLogsOnError}
---
apiVersion: v1
kind: Pod
metadata: {name: retried-init}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: d, emptyDir: {}}]
  initContainers:
  - name: i
    image: localhost/busybox:1
    command: [sh, -c, 'test -e /d/x || { touch /d/x; exit 1; }']
    volumeMounts: [{name: d, mountPath: /d}]
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
---
apiVersion: v1
kind: Pod
metadata: {name: job}
spec:
  restartPolicy: OnFailure
  volumes: [{name: d, emptyDir: {}}]
  initContainers:
  - {name: side, image: 'localhost/busybox:1', restartPolicy: Always, command: [sh, -c, 'trap \"exit 0\" TERM; while :; do sleep 0.05; done']}
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'test -e /d/x && { echo well done > /dev/last; exit 0; }; touch /d/x; exit 1']
    terminationMessagePath: /dev/last
    volumeMounts: [{name: d, mountPath: /d}]
---
apiVersion: v1
kind: Pod
metadata: {name: bad-hook}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, '1000']
    lifecycle: {postStart: {exec: {command: [sh, -c, 'exit 9']}}}
---
apiVersion: v1
kind: Pod
metadata: {name: late}
spec:
  activeDeadlineSeconds: 1
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
";

#[test]
fn containers_end_as_their_pod_says() {
    let (node, untouched) = node();
    node.apply(ENDS);
    let pod = |name, path: &str, wanted| node.wait_field(&["pod", name], path, wanted, TIMEOUT);
    pod("failed-init", ".status.phase", "Failed");
    let init = ".status.initContainerStatuses[1].state.terminated";
    assert_eq!(node.field(&["pod", "failed-init"], &format!("{init}['exitCode','message']")), "5 no luck\n");
    assert!(node.ok(&["get", "pod", "failed-init", "--no-headers"]).contains("Init:Error"));
    // An unterminated last line stays so in the message taken from the log.
    pod("cut-short", ".status.phase", "Failed");
    let short = ".status.containerStatuses[0].state.terminated";
    assert_eq!(node.field(&["pod", "cut-short"], &format!("{short}['exitCode','message']")), "6 first\nlast");
    assert_eq!(
        node.field(&["pod", "failed-init"], ".status.containerStatuses[0].state.waiting.reason"),
        "PodInitializing"
    );
    pod("retried-init", ".status.phase", "Running");
    pod("retried-init", ".status.initContainerStatuses[0].restartCount", "1");
    // OnFailure retries until success; then the sidecar is ended as well.
    pod("job", ".status.phase", "Succeeded");
    let ended = ".status.containerStatuses[0]";
    pod("job", &format!("{ended}.restartCount"), "1");
    let last = node.field(&["pod", "job"], &format!("{ended}.state.terminated['exitCode','reason','message']"));
    assert_eq!(last, "0 Completed well done\n");
    pod("job", ".status.initContainerStatuses[0].state.terminated.exitCode", "0");
    let said = |name: &str, what: &str| {
        eventually(what, TIMEOUT, || contains(&node.ok(&["events", "--for", &format!("pod/{name}")]), what));
    };
    said("bad-hook", "FailedPostStartHook");
    said("bad-hook", "Container c failed postStart hook, will be restarted");
    pod("late", ".status.phase", "Failed");
    pod("late", ".status.reason", "DeadlineExceeded");
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

/// How three containers handle SIGTERM: one exits well, one ignores it, one has another stop signal.
fn farewells(folder: &Path) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: farewell, finalizers: [test/keep]}}
spec:
  terminationGracePeriodSeconds: 2
  volumes: [{{name: d, hostPath: {{path: '{}'}}}}]
  containers:
  - name: polite
    image: localhost/busybox:1
    command: [sh, -c, 'trap \"sleep 0.3; echo saved >> /d/diary; exit 3\" TERM; touch /tmp/up; while :; do sleep 0.05; done']
    readinessProbe: {{exec: {{command: [test, -e, /tmp/up]}}, periodSeconds: 1}}
    volumeMounts: [{{name: d, mountPath: /d}}]
  - name: deaf
    image: localhost/busybox:1
    command: [sh, -c, 'trap : TERM; touch /tmp/up; while :; do sleep 0.05; done']
    readinessProbe: {{exec: {{command: [test, -e, /tmp/up]}}, periodSeconds: 1}}
  - name: hung
    image: localhost/busybox:1
    command: [sh, -c, 'trap \"exit 4\" TERM; touch /tmp/up; while :; do sleep 0.05; done']
    readinessProbe: {{exec: {{command: [test, -e, /tmp/up]}}, periodSeconds: 1}}
    lifecycle: {{preStop: {{exec: {{command: [sleep, '1000']}}}}}}
",
        folder.display()
    )
}

#[test]
fn termination_asks_first_and_kills_when_the_grace_is_over() {
    let (node, untouched) = node();
    let folder = tempfile::tempdir().unwrap();
    node.apply(&farewells(folder.path()));
    node.wait("condition=Ready", &["pod/farewell"], TIMEOUT);
    // The finalizer keeps the object, so that the exits can be read.
    node.ok(&["delete", "pod", "farewell", "--wait=false"]);
    let code = |name: &str| format!(".status.containerStatuses[?(@.name==\"{name}\")].state.terminated.exitCode");
    for (name, wanted) in [("polite", "3"), ("deaf", "137")] {
        node.wait_field(&["pod", "farewell"], &code(name), wanted, TIMEOUT);
    }
    eventually("the hung one ended too", TIMEOUT, || {
        let found = node.field(&["pod", "farewell"], &code("hung"));
        // After its hook it gets two more seconds, and exits well within them.
        if found == "4" { Ok(()) } else { Err(found) }
    });
    assert_eq!(diary(folder.path()), ["saved"]);
    let events = node.ok(&["events", "--for", "pod/farewell"]);
    contains(&events, "FailedPreStopHook").and(contains(&events, "Stopping container deaf")).unwrap();
    node.ok(&["patch", "pod", "farewell", "--type=merge", "-p", "{\"metadata\":{\"finalizers\":null}}"]);
    node.wait("delete", &["pod/farewell"], TIMEOUT);
    drop(node);
    untouched.assert_unchanged();
}

const IGNORED: &str = "
apiVersion: v1
kind: Pod
metadata: {name: wishful}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, '1000']
    ports: [{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.1, protocol: SCTP}]
---
apiVersion: v1
kind: Pod
metadata: {name: content}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
";

#[test]
fn what_is_not_acted_upon_earns_a_warning() {
    let (node, untouched) = node();
    node.apply(IGNORED);
    node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let warnings =
        |pod: &str| node.run(&["events", "--for", &format!("pod/{pod}"), "--types", "Warning", "-o", "json"]);
    let word = "host port 127.0.0.1:8080/sctp is not served: on loopback this node serves TCP and UDP alone";
    eventually("it is told", TIMEOUT, || contains(&warnings("wishful").out, word));
    assert!(!warnings("content").out.contains("spec."), "{}", warnings("content").out);
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

//! Log readers without any output, of a Pod that writes endlessly: they delay no one, and end with their clients.

use std::{
    fs,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use crate::support::{TestNode, eventually};

const PODS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: calm}
---
apiVersion: v1
kind: Pod
metadata: {name: flood}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: 'localhost/busybox:1', command: ['yes']}
---
apiVersion: v1
kind: Pod
metadata: {name: quiet, namespace: calm}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: 'localhost/busybox:1', command: [sh, -c, 'echo hello; exec sleep 1000']}
";
const BORN: &str = "
apiVersion: v1
kind: Pod
metadata: {name: born, namespace: calm}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: 'localhost/busybox:1', command: [sleep, '1000']}
";
const NEVER: &str = "--since-time=2100-01-01T00:00:00Z";

/// How many of the flood's logs and their folders this process has open.
fn open(node: &TestNode) -> usize {
    let links = fs::read_dir(format!("/proc/{}/fd", node.pid())).unwrap().flatten();
    let files = links.filter_map(|link| fs::read_link(link.path()).ok());
    files.filter(|file| file.to_string_lossy().contains("/default_flood_")).count()
}

/// Other operations must not take longer than this; they normally take a few milliseconds.
fn in_time(what: &str, act: impl FnOnce()) {
    let begin = Instant::now();
    act();
    assert!(begin.elapsed() < Duration::from_secs(5) * crate::support::slowness(), "{what} took {:?}", begin.elapsed());
}

#[test]
fn followers_that_are_shown_nothing_of_a_flood_keep_nobody_waiting() {
    let node = TestNode::start(&[]);
    node.import_busybox();
    node.apply(PODS);
    for pod in [["-n", "default", "pod/flood"], ["-n", "calm", "pod/quiet"]] {
        node.wait("condition=Ready", &pod, Duration::from_secs(30));
    }
    let follow = |_| {
        let mut command = node.command(&["logs", "-f", "flood", NEVER]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut followers: Vec<Child> = (0..4).map(follow).collect();
    // Each has the folder open, and a file most of the time.
    eventually("all follow", Duration::from_secs(30), || match open(&node) {
        few @ ..4 => Err(format!("{few} are open")),
        _ => Ok(()),
    });
    for _ in 0..20 {
        in_time("a list", || drop(node.ok(&["-n", "calm", "get", "pods"])));
        in_time("another's log", || assert_eq!(node.ok(&["-n", "calm", "logs", "quiet"]).trim(), "hello"));
    }
    node.apply(BORN);
    node.wait("condition=Ready", &["-n", "calm", "pod/born"], Duration::from_secs(15));
    for follower in &mut followers {
        follower.kill().unwrap();
        follower.wait().unwrap();
    }
    // While it keeps writing.
    eventually("the sessions have ended", Duration::from_secs(15), || match open(&node) {
        0 => Ok(()),
        some => Err(format!("{some} are open")),
    });
    assert_eq!(node.field(&["pod", "flood"], ".status.phase"), "Running");
    in_time("a list, behind them", || drop(node.ok(&["get", "pods"])));
}

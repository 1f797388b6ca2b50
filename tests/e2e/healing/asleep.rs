//! What happens to a node while its agent is down, and hangs.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{TIMEOUT, stopped};
use crate::support::{TestNode, contains, eventually, leftovers::Machine, netns::within, told_slowness};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: 'localhost/busybox:1', command: [sh, -c, 'echo kept > /note; exec sleep 10000']}]
";

fn start(node: &TestNode, names: &[&str]) {
    for name in names {
        node.apply(&POD.replace("NAME", name));
    }
    for name in names {
        node.wait("condition=Ready", &[&format!("pod/{name}")], TIMEOUT);
    }
}

/// The shim of a Pod, by its uid.
fn shim(uid: &str) -> Pid {
    let is_its = |process: &Path| {
        let arguments = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
        arguments.starts_with(&format!("podwright-shim\0{uid}_"))
    };
    let mut processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let found = processes.find(|process| is_its(process)).expect("its shim runs");
    Pid::from_raw(found.file_name().unwrap().to_str().unwrap().parse().unwrap())
}

fn uid(node: &TestNode, pod: &str) -> String {
    node.field(&["pod", pod], ".metadata.uid")
}

/// The running state of a Pod: a container's id and restart count.
fn running(node: &TestNode, pod: &str) -> String {
    let fields = "jsonpath={.status.containerStatuses[0]['containerID','restartCount']} {.status.podIP}";
    node.ok(&["get", "pod", pod, "-o", fields])
}

/// A Pod's files below a folder with these names.
fn files(folder: &Path, uid: &str, names: &[&str]) -> Vec<PathBuf> {
    let (mut folders, mut found) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else if names.iter().any(|wanted| name == *wanted) && path.to_string_lossy().contains(uid) {
                found.push(path);
            }
        }
    }
    found
}

/// Records, secrets and sockets: damage to them while no agent runs kills no Pod. If nothing is left, the Pod runs on, and that is
/// reported.
#[test]
fn damage_while_the_agent_is_down_kills_no_pod() {
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    start(&node, &["record", "container", "secret", "socket", "both"]);
    let pods = ["record", "container", "secret", "socket"];
    let before = pods.map(|pod| running(&node, pod));
    let of =
        |node: &TestNode, pod: &str, names: &[&str]| files(&node.dir.path().join("runtime"), &uid(node, pod), names);
    let damaged: Vec<PathBuf> = [("record", "sandbox.json"), ("container", "container.json"), ("secret", "secret")]
        .into_iter()
        .flat_map(|(pod, name)| of(&node, pod, &[name]).into_iter().take(1))
        .collect();
    assert_eq!(damaged.len(), 3);
    let sockets = files(node.dir.path(), &uid(&node, "socket"), &["s"]);
    let lost = of(&node, "both", &["sandbox.json", "sandbox"]);
    assert_eq!((sockets.len(), lost.len()), (1, 2), "{sockets:?} {lost:?}");
    let lives = shim(&uid(&node, "both"));
    node.kill();
    damaged.iter().chain(&lost).for_each(|path| fs::write(path, "").unwrap());
    fs::remove_file(&sockets[0]).unwrap();
    node.spawn();
    node.wait_ready();
    for (pod, before) in pods.iter().zip(&before) {
        node.wait("condition=Ready", &[&format!("pod/{pod}")], TIMEOUT);
        assert_eq!(running(&node, pod), *before, "{pod} is the same");
        eventually("its writable layer is there", TIMEOUT, || {
            contains(&node.run(&["exec", pod, "--", "cat", "/note"]).all(), "kept")
        });
    }
    eventually("it is said", TIMEOUT, || contains(&node.ok(&["get", "events", "-A"]), "SandboxLost"));
    eventually("no other one is made in its place", TIMEOUT, || {
        contains(&node.ok(&["events", "--for", "pod/both"]), "still runs, and cannot be taken over")
    });
    assert_eq!(shim(&uid(&node, "both")), lives, "it runs on");
    node.ok(&["delete", "pod", "both", "--now"]);
    eventually("with its Pod it goes", TIMEOUT, || match kill(lives, None) {
        Err(nix::errno::Errno::ESRCH) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    drop(node);
    untouched.assert_unchanged();
}

/// Both the record of a sandbox and its Pod are gone when the agent returns: the sandbox is removed, and then its volumes, which it
/// uses until then.
#[test]
fn a_lost_sandbox_ends_before_its_volumes_do() {
    let mut node = TestNode::start(&["--node-name", "n1"]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    let diary = node.dir.path().join("diary");
    fs::create_dir(&diary).unwrap();
    let manifest = node.dir.path().join("manifests/witness.yaml");
    let text = format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: witness}}
spec:
  terminationGracePeriodSeconds: 0
  volumes:
  - {{name: used, emptyDir: {{}}}}
  - {{name: diary, hostPath: {{path: '{}'}}}}
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'echo x > /used/kept; echo begun > /diary/begun; while [ -e /used/kept ]; do :; done; echo gone > /diary/gone']
    volumeMounts: [{{name: used, mountPath: /used}}, {{name: diary, mountPath: /diary}}]
",
        diary.display()
    );
    fs::write(&manifest, text).unwrap();
    eventually("it watches", TIMEOUT, || fs::metadata(diary.join("begun")).map(drop).map_err(|e| e.to_string()));
    let records = files(&node.dir.path().join("runtime"), "", &["sandbox.json", "sandbox"]);
    assert_eq!(records.len(), 2, "{records:?}");
    let record = records.iter().find(|path| path.ends_with("sandbox.json")).unwrap();
    let sandbox = record.parent().unwrap().file_name().unwrap().to_str().unwrap();
    let shim = shim(sandbox.split('_').next().unwrap());
    node.kill();
    fs::remove_file(&manifest).unwrap();
    records.iter().for_each(|path| fs::write(path, "").unwrap());
    node.spawn();
    node.wait_ready();
    eventually("it is removed", TIMEOUT, || match kill(shim, None) {
        Err(nix::errno::Errno::ESRCH) => Ok(()),
        other => Err(format!("{other:?}\n{}", node.log())),
    });
    contains(&node.log(), "removing a sandbox that cannot be adopted and whose Pod is gone").unwrap();
    assert!(!diary.join("gone").exists(), "its volume was taken from under it");
    drop(node);
    untouched.assert_unchanged();
}

/// A Pod whose network cannot be repaired gets a new sandbox, and becomes ready again.
#[test]
fn a_pod_whose_network_cannot_be_mended_is_renewed() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    start(&node, &["web", "other"]);
    let (netns, before, other) = (node.netns_of("web"), running(&node, "web"), running(&node, "other"));
    let old = shim(&uid(&node, "web"));
    let begun = Instant::now();
    // Something else takes the place of its link before the next check: it cannot be created again.
    let script = "ip link add aside type veth peer name far && ip link del eth0 && ip link set aside name eth0";
    stopped(node.pid(), || {
        let output = within(&netns, || std::process::Command::new("sh").args(["-c", script]).output().unwrap());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
    eventually("it runs in another sandbox", TIMEOUT, || match running(&node, "web") {
        now if now.split(' ').next() != before.split(' ').next() => Ok(()),
        _ => Err(node.ok(&["get", "pod", "web", "-o", "yaml"]) + &node.log()),
    });
    node.wait("condition=Ready", &["pod/web"], TIMEOUT);
    println!("a Pod whose link cannot be made: ready again after {:?}", begun.elapsed());
    assert_ne!(shim(&uid(&node, "web")), old);
    within(&node.netns_of("web"), || {
        let shown = std::process::Command::new("ip").args(["-br", "addr", "show", "eth0"]).output().unwrap();
        contains(&String::from_utf8_lossy(&shown.stdout), "UP").unwrap();
    });
    assert_eq!(running(&node, "other"), other, "nobody else is renewed");
    drop(node);
    untouched.assert_unchanged();
}

/// A Pod's addresses are lost, and its link was replaced by its own: it gets a new sandbox with other addresses, and nothing of the
/// old one lives on. One that is not restarted has failed.
#[test]
fn a_pod_whose_addresses_nobody_knows_is_renewed() {
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    start(&node, &["web", "other"]);
    node.apply(&POD.replace("NAME", "once").replace("spec:", "spec:\n  restartPolicy: Never"));
    node.wait("condition=Ready", &["pod/once"], TIMEOUT);
    let lost = ["web", "once"];
    let (shims, netns) = (lost.map(|pod| shim(&uid(&node, pod))), lost.map(|pod| node.netns_of(pod)));
    let (before, other) = (running(&node, "web"), running(&node, "other"));
    node.kill();
    let script = "ip link del eth0 && ip link add eth0 type veth peer name far && ip addr add 10.244.0.200/32 dev eth0 && \
                  ip link set eth0 up";
    for netns in netns {
        let output = within(&netns, || std::process::Command::new("sh").args(["-c", script]).output().unwrap());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    fs::remove_file(node.dir.path().join("network/ipam.json")).unwrap();
    node.spawn();
    node.wait_ready();
    eventually("it runs in another sandbox", TIMEOUT, || match running(&node, "web") {
        now if now.split(' ').next() != before.split(' ').next() => Ok(()),
        _ => Err(node.ok(&["get", "pod", "web", "-o", "yaml"]) + &node.log()),
    });
    node.wait("condition=Ready", &["pod/web"], TIMEOUT);
    eventually("the other one has ended", TIMEOUT, || {
        contains(&node.field(&["pod", "once"], ".status.phase"), "Failed")
    });
    for shim in shims {
        eventually("nothing of it lives on", TIMEOUT, || match kill(shim, None) {
            Err(nix::errno::Errno::ESRCH) => Ok(()),
            other => Err(format!("{other:?}\n{}", node.log())),
        });
    }
    // Its status shows its real addresses, and no other Pod gets them.
    start(&node, &["next", "further"]);
    let address = |pod: &str| node.field(&["pod", pod], ".status.podIP");
    within(&node.netns_of("web"), || {
        let shown = std::process::Command::new("ip").args(["-br", "addr", "show", "eth0"]).output().unwrap();
        contains(&String::from_utf8_lossy(&shown.stdout), &format!(" {}/", address("web"))).unwrap();
    });
    let addresses: std::collections::BTreeSet<String> = ["web", "other", "next", "further"].map(address).into();
    assert_eq!(addresses.len(), 4, "{addresses:?}");
    assert_eq!(running(&node, "other"), other, "nobody else is renewed");
    drop(node);
    untouched.assert_unchanged();
}

/// A hanging shim blocks neither the deletion of its Pod nor its status, nor the end of the node.
#[test]
fn a_shim_that_hangs_holds_nobody_up() {
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    start(&node, &["deleted", "asked", "last"]);
    let stop = |pod: &str| {
        let shim = shim(&uid(&node, pod));
        kill(shim, Signal::SIGSTOP).unwrap();
        shim
    };
    let deleted = stop("deleted");
    let begun = Instant::now();
    node.ok(&["delete", "pod", "deleted", "--wait=false"]);
    eventually("it is gone from the API", TIMEOUT * 2, || match node.run(&["get", "pod", "deleted"]) {
        gone if gone.code != 0 => Ok(()),
        there => Err(there.all()),
    });
    println!("a Pod whose shim hangs: deleted after {:?}", begun.elapsed());
    eventually("and from the machine", TIMEOUT, || match kill(deleted, None) {
        Err(nix::errno::Errno::ESRCH) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    // A request to one reveals it; then the Pod reports it and starts anew.
    stop("asked");
    let answer = node.run(&["exec", "asked", "--", "true"]);
    assert_ne!(answer.code, 0, "{}", answer.all());
    eventually("the truth is in its status", TIMEOUT * 2, || {
        let last = node.field(&["pod", "asked"], ".status.containerStatuses[0].lastState.terminated");
        contains(&last, "ContainerStatusUnknown").and_then(|()| contains(&last, "137"))
    });
    node.wait("condition=Ready", &["pod/asked"], TIMEOUT);
    let last = stop("last");
    let begun = Instant::now();
    let status = node.terminate().unwrap();
    println!("a node with a shim that hangs: ended after {:?}", begun.elapsed());
    assert!(status.success(), "{status}\n{}", node.log());
    assert_eq!(kill(last, None), Err(nix::errno::Errno::ESRCH));
    drop(node);
    untouched.assert_unchanged();
}

/// The agent is stopped for longer than the node's grace period: when it continues, the node and its Pods recover at once.
#[test]
fn a_node_that_slept_is_ready_as_soon_as_it_wakes() {
    let server = TestNode::server(&["--node-monitor-grace-period", "12s"]);
    let agent = TestNode::agent(&server, "n1");
    let untouched = Machine::untouched(agent.dir.path());
    let tar = crate::support::node::busybox_tar();
    server.ok(&["image", "--node", "n1", "import", tar.to_str().unwrap(), "localhost/busybox:1"]);
    start(&server, &["web"]);
    let before = running(&server, "web");
    let ready = ".status.conditions[?(@.type==\"Ready\")].status";
    let pid = Pid::from_raw(agent.pid() as i32);
    kill(pid, Signal::SIGSTOP).unwrap();
    server.wait_field(&["node", "n1"], ready, "Unknown", TIMEOUT * 2);
    server.wait_field(&["pod", "web"], ready, "False", TIMEOUT);
    kill(pid, Signal::SIGCONT).unwrap();
    let begun = Instant::now();
    server.wait_field(&["node", "n1"], ready, "True", TIMEOUT);
    server.wait_field(&["pod", "web"], ready, "True", TIMEOUT);
    let woke = begun.elapsed();
    println!("a node that slept: ready {woke:?} after it woke");
    assert!(woke < Duration::from_secs(5) * told_slowness(), "{woke:?}");
    assert_eq!(running(&server, "web"), before, "nothing was started anew");
    // Nor does it flap: it stays so for longer than the grace period.
    let until = Instant::now() + Duration::from_secs(15);
    while Instant::now() < until {
        assert_eq!(server.field(&["node", "n1"], ready), "True");
        assert_eq!(server.field(&["pod", "web"], ready), "True");
        std::thread::sleep(Duration::from_millis(500));
    }
    server.ok(&["delete", "pod", "web", "--now"]);
    drop(agent);
    untouched.assert_unchanged();
}

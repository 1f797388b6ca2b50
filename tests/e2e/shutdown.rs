//! Graceful node shutdown: systemd-logind, played on a bus of the test's own, says that the machine shuts down, and waits.

use std::{
    fs::File,
    io::Read,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use nix::fcntl::OFlag;
use tokio::runtime::Runtime;
use zbus::{connection, object_server::SignalEmitter};

use crate::support::{TestNode, contains, eventually};

const TIMEOUT: Duration = Duration::from_secs(60);
const PATH: &str = "/org/freedesktop/login1";

/// What of logind the agent uses.
struct Logind {
    longest_delay: Duration,
    shutting_down: bool,
    locks: Locks,
}

/// The locks that were given: what was asked for, and an end that reads the end of file once the lock is gone.
type Locks = Arc<Mutex<Vec<(String, File)>>>;

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl Logind {
    fn inhibit(&self, what: &str, who: &str, _why: &str, mode: &str) -> zbus::OwnedFd {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
        self.locks.lock().unwrap().push((format!("{what} {who} {mode}"), read.into()));
        write.into()
    }

    #[zbus(property)]
    fn preparing_for_shutdown(&self) -> bool {
        self.shutting_down
    }

    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max_usec(&self) -> u64 {
        self.longest_delay.as_micros() as u64
    }

    #[zbus(signal)]
    async fn prepare_for_shutdown(emitter: &SignalEmitter<'_>, start: bool) -> zbus::Result<()>;
}

/// A bus with a logind. Dropping it ends both.
struct Bus {
    dir: tempfile::TempDir,
    daemon: Child,
    runtime: Runtime,
    logind: Option<zbus::Connection>,
    locks: Locks,
}

impl Bus {
    fn start(longest_delay: Duration) -> Bus {
        let dir = tempfile::Builder::new().prefix("pw").tempdir().unwrap();
        let config = format!(
            "<busconfig><listen>unix:path={}/bus</listen><auth>EXTERNAL</auth><policy context='default'>
             <allow send_destination='*'/><allow receive_sender='*'/><allow own='*'/></policy></busconfig>",
            dir.path().display()
        );
        let file = dir.path().join("bus.conf");
        std::fs::write(&file, config).unwrap();
        let daemon = Command::new("dbus-daemon")
            .args(["--nofork", "--nopidfile", "--config-file"])
            .arg(&file)
            .stdin(Stdio::null())
            .spawn()
            .expect("dbus-daemon");
        let locks = Locks::default();
        let mut bus = Bus { dir, daemon, runtime: Runtime::new().unwrap(), logind: None, locks };
        let connected = eventually("the bus answers", TIMEOUT, || {
            let logind = Logind { longest_delay, shutting_down: false, locks: bus.locks.clone() };
            let connecting = async {
                let builder = connection::Builder::address(bus.address().as_str());
                builder.name("org.freedesktop.login1").serve_at(PATH, logind).build().await
            };
            bus.runtime.block_on(connecting).map_err(|error| error.to_string())
        });
        bus.logind = Some(connected);
        bus
    }

    fn address(&self) -> String {
        format!("unix:path={}/bus", self.dir.path().display())
    }

    /// A node on this bus that is not running yet.
    fn node(&self, args: &[&str]) -> TestNode {
        let mut node = TestNode::stopped(args);
        node.set_env("DBUS_SYSTEM_BUS_ADDRESS", &self.address());
        node
    }

    /// The machine shuts down, or does not any more.
    fn shut_down(&self, start: bool) {
        let logind = self.logind.as_ref().unwrap().object_server();
        self.runtime.block_on(async {
            let logind = logind.interface::<_, Logind>(PATH).await.unwrap();
            logind.get_mut().await.shutting_down = start;
            Logind::prepare_for_shutdown(logind.signal_emitter(), start).await.unwrap();
        });
    }

    /// The locks, and whether each is still held.
    fn locks(&self) -> Vec<(String, bool)> {
        let mut locks = self.locks.lock().unwrap();
        let held = |read: &mut File| read.read(&mut [0]).is_err();
        locks.iter_mut().map(|(asked, read)| (asked.clone(), held(read))).collect()
    }

    fn wait_locks(&self, held: &[bool]) {
        let wanted: Vec<_> = held.iter().map(|held| ("shutdown podwright delay".to_owned(), *held)).collect();
        eventually("the locks are as wanted", TIMEOUT, || match self.locks() {
            locks if locks == wanted => Ok(()),
            locks => Err(format!("{locks:?}")),
        });
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.logind = None;
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
    }
}

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: polite}
spec:
  containers: [{name: c, image: 'localhost/busybox:1', command: [sh, -c, 'trap \"exit 0\" TERM; sleep 1000 & wait']}]
---
apiVersion: v1
kind: Pod
metadata: {name: stubborn}
spec:
  terminationGracePeriodSeconds: 600
  containers: [{name: c, image: 'localhost/busybox:1', command: [sh, -c, 'trap \"\" TERM; while :; do sleep 1; done']}]
---
apiVersion: v1
kind: Pod
metadata: {name: critical, namespace: kube-system}
spec:
  priorityClassName: system-node-critical
  containers: [{name: c, image: 'localhost/busybox:1', command: [sh, -c, 'trap \"exit 0\" TERM; sleep 1000 & wait']}]
";

const LATE: &str = "
apiVersion: v1
kind: Pod
metadata: {name: late}
spec:
  nodeName: NODE
  tolerations: [{operator: Exists}]
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
";

const READY: &str = ".status.conditions[?(@.type==\"Ready\")].message";
const FINISHED: &str = ".status.containerStatuses[0].state.terminated.finishedAt";

#[test]
fn pods_end_by_priority_before_the_machine_shuts_down() {
    let bus = Bus::start(TIMEOUT);
    let mut node =
        bus.node(&["--shutdown-grace-period", "7s", "--shutdown-grace-period-critical-pods", "3s", "--node-name", "m"]);
    node.spawn();
    node.wait_ready();
    node.import_busybox();
    bus.wait_locks(&[true]);
    node.apply(PODS);
    node.wait("condition=Ready", &["pod/polite", "pod/stubborn"], TIMEOUT);
    node.wait("condition=Ready", &["pod/critical", "-n", "kube-system"], TIMEOUT);

    bus.shut_down(true);
    node.wait_field(&["node", "m"], READY, "node is shutting down", TIMEOUT);
    node.apply(&LATE.replace("NODE", "m"));
    node.wait_field(&["pod", "late"], ".status.reason", "NodeShutdown", TIMEOUT);
    assert_eq!(node.field(&["pod", "late"], ".status.message"), "Pod was rejected as the node is shutting down.");
    bus.wait_locks(&[false]);
    // Its Pods' last status is on the server when the machine may go.
    let pods: [&[&str]; 3] = [&["pod", "polite"], &["pod", "stubborn"], &["pod", "critical", "-n", "kube-system"]];
    let disrupted = ".status.conditions[?(@.type==\"DisruptionTarget\")].reason";
    for pod in pods {
        assert_eq!(node.field(pod, ".status.phase"), "Failed", "{pod:?}");
        assert_eq!(node.field(pod, ".status.reason"), "Terminated", "{pod:?}");
        let message = "Pod was terminated in response to imminent node shutdown.";
        assert_eq!(node.field(pod, ".status.message"), message);
        assert_eq!(node.field(pod, disrupted), "TerminationByKubelet");
    }
    let [polite, stubborn, critical] = pods.map(|pod| node.field(pod, FINISHED));
    assert!(polite < stubborn && stubborn <= critical, "{polite} {stubborn} {critical}");
    contains(&node.ok(&["get", "events"]), "Shutdown manager detected shutdown event").unwrap();
    let metrics = node.ok(&["get", "--raw", "/api/v1/nodes/m/proxy/metrics"]);
    let ended = metrics.lines().find(|line| line.starts_with("kubelet_graceful_shutdown_end_time_seconds")).unwrap();
    assert!(!ended.ends_with(" 0"), "{ended}");

    // An agent that starts meanwhile takes no Pods either.
    node.kill();
    node.spawn();
    node.wait_answering();
    bus.wait_locks(&[false, false]);
    node.wait_field(&["node", "m"], READY, "node is shutting down", TIMEOUT);
    bus.shut_down(false);
    node.wait_ready();
    bus.wait_locks(&[false, false, true]);
    node.ok(&["delete", "pod", "late"]);
    node.apply(&LATE.replace("NODE", "m"));
    node.wait("condition=Ready", &["pod/late"], TIMEOUT);
}

#[test]
fn an_agent_that_cannot_delay_a_shutdown_says_so_and_does_not_start() {
    let bus = Bus::start(Duration::from_secs(5));
    let refuses = |mut node: TestNode, why: &str| {
        node.spawn();
        assert!(!node.wait_ended().success());
        contains(&node.log(), why).unwrap();
    };
    let why = "InhibitDelayMaxSec of logind (5s) is less than the requested grace periods (6s)";
    refuses(bus.node(&["--shutdown-grace-period-by-pod-priority", "0=5s,10=1s"]), why);
    let mut alone = TestNode::stopped(&["--shutdown-grace-period", "5s"]);
    alone.set_env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent/bus");
    refuses(alone, "cannot talk to systemd-logind by D-Bus");
    let both = ["--shutdown-grace-period", "5s", "--shutdown-grace-period-by-pod-priority", "0=5s"];
    refuses(bus.node(&both), "cannot specify both");
}

//! A node that heals itself: one thing after the other is damaged under load, and is as it was within seconds. No agent is restarted
//! for it, and no container that need not be. Each table is one node's; the time of every repair is printed.

mod asleep;
mod disk;
mod files;
mod machine;
mod member;
mod network;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::support::{
    TestNode,
    api::{Trouble, call},
    contains, eventually,
    leftovers::Machine,
    netns::{Server, ask, within},
    slowness,
};

const PATIENCE: Duration = Duration::from_secs(30);
/// What each repair may take at most.
const LIMIT: Duration = Duration::from_secs(5);

const MANIFEST: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {one: first, two: second}
---
apiVersion: v1
kind: Secret
metadata: {name: sealed}
stringData: {word: hidden}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'while :; do date; sleep 0.2; done']
    volumeMounts: [{name: conf, mountPath: /conf}, {name: sealed, mountPath: /sealed}]
  volumes:
  - {name: conf, configMap: {name: conf}}
  - {name: sealed, secret: {secretName: sealed}}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '10000']}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: passing}
spec: {selector: {app: passing}, ports: [{port: 80}]}
"#;

/// What is damaged, how, and how it is seen that it is as it was.
struct Row {
    what: String,
    damage: Box<dyn Fn(&World)>,
    repaired: Box<dyn Fn(&World) -> Result<(), String>>,
}

impl Row {
    fn new(
        what: impl Into<String>,
        damage: impl Fn(&World) + 'static,
        repaired: impl Fn(&World) -> Result<(), String> + 'static,
    ) -> Row {
        Row { what: what.into(), damage: Box::new(damage), repaired: Box::new(repaired) }
    }
}

/// A node under load: a Pod behind a Service that is asked all the while, and others that come and go behind another one.
struct World {
    load: Option<Load>,
    _server: Server,
    node: TestNode,
    service: SocketAddr,
    client: PathBuf,
    pod: PathBuf,
    /// Of the Pod `web`.
    uid: String,
    ip: String,
    link: String,
    containers: String,
}

impl World {
    fn new() -> World {
        let node = TestNode::start(&[]);
        node.import_busybox();
        node.apply(MANIFEST);
        node.wait("condition=Ready", &["pods", "--all"], PATIENCE);
        let service = format!("{}:80", node.field(&["service", "web"], ".spec.clusterIP")).parse().unwrap();
        let uid = node.field(&["pod", "web"], ".metadata.uid");
        let (client, pod, ip) =
            (node.netns_of("client"), node.netns_of("web"), node.field(&["pod", "web"], ".status.podIP"));
        let _server = Server::start(&pod, "web", 8080);
        let link = format!("pw{}", &uid.replace('-', "")[..12]);
        let load = Some(Load::start(&node, &client, service));
        let mut world = World { load, _server, service, client, pod, uid, ip, link, containers: String::new(), node };
        world.containers = world.running();
        eventually("the Service answers", PATIENCE, || world.answers());
        world
    }

    fn answers(&self) -> Result<(), String> {
        let said = ask(&self.client, self.service)?;
        if said.starts_with("web") { Ok(()) } else { Err(said) }
    }

    /// The containers of the Pods that stay, with how often they were restarted.
    fn running(&self) -> String {
        let fields =
            "jsonpath={.status.containerStatuses[0]['containerID','restartCount']} {.metadata.uid} {.status.podIP}";
        ["web", "client"].map(|pod| self.node.ok(&["get", "pod", pod, "-o", fields])).join(", ")
    }

    /// Runs a command inside a network namespace; what it prints, or why it failed.
    fn inside(&self, netns: &Path, command: &str) -> Result<String, String> {
        let (program, words) = command.split_once(' ').unwrap();
        // What nft is told is one word.
        let words: Vec<&str> = if program == "nft" { vec![words] } else { words.split(' ').collect() };
        let output = within(netns, || Command::new(program).args(words).output().unwrap());
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// A file of this node somewhere below its folder.
    #[track_caller]
    fn find(&self, wanted: impl Fn(&Path) -> bool) -> PathBuf {
        let mut folders = vec![self.node.dir.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if wanted(&entry.path()) {
                    return entry.path();
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push(entry.path());
                }
            }
        }
        panic!("no such file");
    }

    fn in_pod(&self, path: &str) -> String {
        self.node.run(&["exec", "web", "--", "cat", path]).all()
    }

    /// Damages one thing after the other, waits for each repair and for the Service, and sees that every container is the same.
    fn heals(&self, rows: Vec<Row>) {
        let (pid, mut slow) = (self.node.pid(), Vec::new());
        println!("{:<44} {:>8} {:>8}", "damaged", "repaired", "answers");
        for Row { what, damage, repaired } in rows {
            repaired(self).unwrap_or_else(|why| panic!("{what}: not sound at first: {why}"));
            let begun = Instant::now();
            damage(self);
            eventually(&what, PATIENCE, || repaired(self));
            let mended = begun.elapsed();
            eventually(&format!("{what}: the Service answers"), PATIENCE, || self.answers());
            let answers = begun.elapsed();
            println!("{what:<44} {:>5} ms {:>5} ms", mended.as_millis(), answers.as_millis());
            assert_eq!(self.running(), self.containers, "{what}: nothing was restarted for it");
            if answers > LIMIT * slowness() {
                slow.push(format!("{what}: {answers:?}"));
            }
        }
        assert!(slow.is_empty(), "too slow: {slow:#?}");
        assert_eq!(self.node.pid(), pid, "the agent is the same");
    }

    /// Ends the load, which must have gone on all the while, and the node.
    fn end(mut self, events: &[&str]) {
        let untouched = Machine::untouched(self.node.dir.path());
        let load = self.load.take().expect("it ends once");
        println!("{}", load.end());
        let told = self.node.ok(&["get", "events", "-A"]);
        events.iter().for_each(|reason| contains(&told, reason).unwrap());
        drop(self);
        untouched.assert_unchanged();
    }
}

/// Requests to a Service, and Pods that are created and deleted.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    pods: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(node: &TestNode, client: &Path, service: SocketAddr) -> Load {
        let counter = || Arc::new(AtomicU64::new(0));
        let (stop, answered, failed, pods) = (Arc::new(AtomicBool::new(false)), counter(), counter(), counter());
        let asks = {
            let (stop, answered, failed, client) = (stop.clone(), answered.clone(), failed.clone(), client.to_owned());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    let count = if ask(&client, service).is_ok() { &answered } else { &failed };
                    count.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        };
        let churns = {
            let (stop, pods, socket) = (stop.clone(), pods.clone(), node.socket());
            move || {
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    churn(&socket, n);
                    pods.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let threads = vec![std::thread::spawn(asks), std::thread::spawn(churns)];
        Load { stop, answered, failed, pods, threads }
    }

    fn end(mut self) -> String {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        let [answered, failed, pods] = [&self.answered, &self.failed, &self.pods].map(|n| n.load(Ordering::Relaxed));
        assert!(answered > 20 && pods > 5, "{answered} answers, {pods} Pods");
        format!("meanwhile: {answered} requests answered, {failed} failed, {pods} Pods created and deleted")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// One Pod that comes, runs a while and goes.
fn churn(socket: &Path, n: u64) {
    let name = format!("passing-{n}");
    let body = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "passing"}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [
            {"name": "c", "image": "localhost/busybox:1", "command": ["sleep", "1000"]}]}});
    let made = call(socket, "create", json!({"resource": "pods", "namespace": "default", "body": body}));
    std::thread::sleep(Duration::from_millis(600));
    let named = json!({"resource": "pods", "namespace": "default", "name": name});
    let gone = call(socket, "delete", named);
    // While the socket is damaged nobody is answered.
    for outcome in [made, gone] {
        if let Err(Trouble::Refused { code, message }) = outcome {
            assert!(message.contains("not found"), "Pod {name}: {code} {message}");
        }
    }
}

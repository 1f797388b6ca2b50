//! A self-healing node: things are damaged one by one under load, and restored within seconds. No agent is restarted for it, and no
//! container unnecessarily. Each table uses one node; the time of every repair is printed.
//!
//! Tables, maps, elements, rules, routes, neighbours, veths and other links, sysctls and sockets are in `network`; records,
//! volumes' files and links, mounts, logs, images' layers and the server's certificates in `files`; a member's certificates in
//! `member`; cgroups with their limits in `machine`; the store's files and a lost CA in `disk`; damage while the agent is stopped
//! in `asleep`.
//!
//! The repairing process is stopped while the damage is done, and the check must detect it then: a row without real damage fails.

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

use serde_json::{Value, json};

use crate::support::{
    TestNode,
    api::{CallError, call},
    contains, eventually,
    leftovers::Machine,
    netns::{Server, ask, within},
    slowness, told_slowness,
};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of each repair.
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
  securityContext:
    sysctls:
    - {name: net.ipv4.ip_unprivileged_port_start, value: '80'}
    - {name: kernel.shm_rmid_forced, value: '1'}
    - {name: net.ipv4.ping_group_range, value: '0 1000'}
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'while :; do date; sleep 0.2; done']
    volumeMounts:
    - {name: conf, mountPath: /conf}
    - {name: sealed, mountPath: /sealed}
    - {name: memory, mountPath: /memory}
    - {name: claimed, mountPath: /claimed}
  volumes:
  - {name: conf, configMap: {name: conf}}
  - {name: sealed, secret: {secretName: sealed}}
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: claimed, persistentVolumeClaim: {claimName: claimed}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claimed}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
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

/// What is damaged, how, and a check of its state: without asking the node, which is stopped at first.
struct Row {
    what: String,
    damage: Box<dyn Fn(&World)>,
    sound: Box<dyn Fn(&World) -> Result<(), String>>,
}

impl Row {
    fn new(
        what: impl Into<String>,
        damage: impl Fn(&World) + 'static,
        sound: impl Fn(&World) -> Result<(), String> + 'static,
    ) -> Row {
        Row { what: what.into(), damage: Box::new(damage), sound: Box::new(sound) }
    }
}

/// Stops a process meanwhile.
fn stopped(pid: u32, meanwhile: impl FnOnce()) {
    use nix::sys::signal::{Signal, kill};
    let process = nix::unistd::Pid::from_raw(pid as i32);
    kill(process, Signal::SIGSTOP).unwrap();
    // Each thread stops when it returns from the kernel.
    eventually("all its threads are stopped", TIMEOUT, || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let states = threads.map(|thread| fs::read_to_string(thread.path().join("stat")).unwrap_or_default());
        let moving: Vec<String> =
            states.filter(|stat| !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))).collect();
        if moving.is_empty() { Ok(()) } else { Err(moving.concat()) }
    });
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
    kill(process, Signal::SIGCONT).unwrap();
    done.unwrap_or_else(|why| std::panic::resume_unwind(why));
}

/// Damages something that a process should repair, and waits for that; returns the time since the damage.
fn mended(pid: u32, what: &str, damage: impl FnOnce(), sound: impl Fn() -> Result<(), String>) -> Duration {
    sound().unwrap_or_else(|why| panic!("{what}: not sound at first: {why}"));
    let mut begun = Instant::now();
    stopped(pid, || {
        begun = Instant::now();
        damage();
        assert!(sound().is_err(), "{what}: there is no damage to be seen");
    });
    eventually(what, TIMEOUT, sound);
    begun.elapsed()
}

/// Prints how long a repair took, and fails if too long.
fn timely(what: &str, took: Duration) {
    println!("{what:<52} {:>5} ms", took.as_millis());
    assert!(took < LIMIT * told_slowness(), "{what}: {took:?}");
}

/// A node under load: a Pod behind a Service with continuous requests, and short-lived ones behind another.
struct World {
    load: Option<Load>,
    _server: Server,
    node: TestNode,
    service: SocketAddr,
    client: PathBuf,
    pod: PathBuf,
    dns: String,
    /// Of the Pod `web`.
    uid: String,
    pid: u64,
    ip: String,
    link: String,
    containers: String,
}

impl World {
    fn new() -> World {
        let begun = Instant::now();
        let node = TestNode::start(&[]);
        node.import_busybox();
        println!("a node is ready after {:.1} s", begun.elapsed().as_secs_f64());
        node.apply(MANIFEST);
        node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
        println!("its Pods are after {:.1} s", begun.elapsed().as_secs_f64());
        // Without commands: in a guest each takes seconds.
        let field = |resource: &str, namespace: &str, name: &str, path: &str| {
            let named = json!({"resource": resource, "namespace": namespace, "name": name});
            let found = call(&node.socket(), "get", named).unwrap_or_else(|why| panic!("{resource} {name}: {why:?}"));
            found.pointer(path).and_then(Value::as_str).unwrap_or_else(|| panic!("{path} of {found:#}")).to_owned()
        };
        let service = format!("{}:80", field("services", "default", "web", "/spec/clusterIP")).parse().unwrap();
        let uid = field("pods", "default", "web", "/metadata/uid");
        let ip = field("pods", "default", "web", "/status/podIP");
        let dns = field("services", "kube-system", "kube-dns", "/spec/clusterIP");
        let (pid, asks) = (pid_of(&node, "web"), pid_of(&node, "client"));
        let [client, pod] = [asks, pid].map(|pid| PathBuf::from(format!("/proc/{pid}/ns/net")));
        let _server = Server::start(&pod, "web", 8080);
        let link = format!("pw{}", &uid.replace('-', "")[..12]);
        let load = Some(Load::start(&node, &client, service));
        let containers = String::new();
        let mut world = World { load, _server, service, client, pod, dns, uid, pid, ip, link, containers, node };
        world.containers = world.running();
        eventually("the Service answers", TIMEOUT, || world.answers());
        world
    }

    fn answers(&self) -> Result<(), String> {
        let said = ask(&self.client, self.service)?;
        if said.starts_with("web") { Ok(()) } else { Err(said) }
    }

    /// The containers of the permanent Pods, with restart counts.
    fn running(&self) -> String {
        // Without a command: in a guest each takes seconds.
        let of = |name: &str| {
            let named = json!({"resource": "pods", "namespace": "default", "name": name});
            let pod = call(&self.node.socket(), "get", named).unwrap_or_else(|why| panic!("Pod {name}: {why:?}"));
            let container = &pod["status"]["containerStatuses"][0];
            let facts = [
                &container["containerID"],
                &container["restartCount"],
                &pod["metadata"]["uid"],
                &pod["status"]["podIP"],
            ];
            facts.map(|fact| fact.to_string().trim_matches('"').to_owned()).join(" ")
        };
        ["web", "client"].map(of).join(", ")
    }

    /// Runs a command inside a network namespace; returns its output or error.
    fn inside(&self, netns: &Path, command: &str) -> Result<String, String> {
        let (program, words) = command.split_once(' ').unwrap();
        // nft's script is one argument.
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

    /// A file as seen by the container of the Pod `web`.
    fn in_pod(&self, path: &str) -> Result<String, String> {
        let path = format!("/proc/{}/root{path}", self.pid);
        fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))
    }

    /// The first process of a Pod's container.
    fn pid_of(&self, pod: &str) -> u64 {
        pid_of(&self.node, pod)
    }

    /// The Service responds, and so does the cluster's DNS.
    fn works(&self) -> Result<(), String> {
        self.answers()?;
        self.resolves()
    }

    /// Damages one thing after the other, waits for each repair and for the Service, and checks that every container is the same.
    fn heals(&self, rows: Vec<Row>) {
        let (pid, mut slow) = (self.node.pid(), Vec::new());
        println!("{:<52} {:>8} {:>8}", "damaged", "repaired", "works");
        for Row { what, damage, sound } in rows {
            let took = mended(pid, &what, || damage(self), || sound(self));
            let begun = Instant::now();
            eventually(&format!("{what}: the node works"), TIMEOUT, || self.works());
            let works = took + begun.elapsed();
            println!("{what:<52} {:>5} ms {:>5} ms", took.as_millis(), works.as_millis());
            assert_eq!(self.running(), self.containers, "{what}: nothing was restarted for it");
            if works > LIMIT * told_slowness() {
                slow.push(format!("{what}: {works:?}"));
            }
        }
        assert!(slow.is_empty(), "too slow: {slow:#?}");
        assert_eq!(self.node.pid(), pid, "the agent is the same");
    }

    /// Ends the load, which must have continued throughout, and the node.
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

fn pid_of(node: &TestNode, pod: &str) -> u64 {
    let found = node.ok(&["inspect", "pod", pod, "-o", "json"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    // It also lists exited containers.
    let mut pids = found["containers"].as_array().unwrap().iter().filter_map(|c| c["pid"].as_u64());
    pids.find(|pid| *pid > 0).unwrap()
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
        let mut load = Load::of_pods(node);
        let (stop, client) = (load.stop.clone(), client.to_owned());
        let (answered, failed) = (load.answered.clone(), load.failed.clone());
        load.threads.push(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let count = if ask(&client, service).is_ok() { &answered } else { &failed };
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(50));
            }
        }));
        load
    }

    /// Only Pods, on any node of this server.
    fn of_pods(server: &TestNode) -> Load {
        let counter = || Arc::new(AtomicU64::new(0));
        let (stop, answered, failed, pods) = (Arc::new(AtomicBool::new(false)), counter(), counter(), counter());
        let churns = {
            let (stop, pods, socket) = (stop.clone(), pods.clone(), server.socket());
            move || {
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    churn(&socket, n, &stop);
                    pods.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        Load { stop, answered, failed, pods, threads: vec![std::thread::spawn(churns)] }
    }

    /// Ends after a minimum amount of load, however slow the machine.
    fn end(mut self) -> String {
        let asks = self.threads.len() > 1;
        let so_far = |load: &Load| [&load.answered, &load.failed, &load.pods].map(|n| n.load(Ordering::Relaxed));
        eventually("the load has gone on", TIMEOUT, || match so_far(&self) {
            [answered, _, pods] if (answered > 20 || !asks) && pods > 5 => Ok(()),
            [answered, _, pods] => Err(format!("{answered} answers, {pods} Pods")),
        });
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        let [answered, failed, pods] = so_far(&self);
        format!("meanwhile: {answered} requests answered, {failed} failed, {pods} Pods created and deleted")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// One Pod that starts, runs a while and ends. The next one starts when it is gone: on a slow machine they would accumulate
/// otherwise.
fn churn(socket: &Path, n: u64, stop: &AtomicBool) {
    let name = format!("passing-{n}");
    let body = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "passing"}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [
            {"name": "c", "image": "localhost/busybox:1", "command": ["sleep", "1000"]}]}});
    let named = json!({"resource": "pods", "namespace": "default", "name": name});
    // `None`: while the socket is damaged there is no response.
    let asked = |method: &str, params: Value| match call(socket, method, params) {
        Ok(object) => Some(Ok(object)),
        Err(CallError::Lost(_)) => None,
        Err(CallError::Refused { code, message }) => {
            assert!(message.contains("not found"), "Pod {name}: {code} {message}");
            Some(Err(message))
        }
    };
    let until = |done: &dyn Fn() -> bool| {
        while !stop.load(Ordering::Relaxed) && !done() {
            std::thread::sleep(Duration::from_millis(50) * slowness());
        }
    };
    asked("create", json!({"resource": "pods", "namespace": "default", "body": body}));
    until(&|| match asked("get", named.clone()) {
        Some(Ok(pod)) => pod["status"]["phase"] == "Running",
        gone => gone.is_some(),
    });
    std::thread::sleep(Duration::from_millis(600));
    until(&|| asked("delete", named.clone()).is_some());
    until(&|| asked("get", named.clone()).is_some_and(|found| found.is_err()));
}

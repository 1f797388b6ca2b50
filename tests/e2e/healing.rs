//! A node that heals itself: one thing after the other is damaged under a light load, and is as it was within seconds, without a
//! restart of the agent. The time of each is printed.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::support::{
    TestNode, contains, eventually,
    leftovers::Machine,
    netns::{Server, ask, within},
};

const PATIENCE: Duration = Duration::from_secs(30);
/// What each repair may take at most.
const LIMIT: Duration = Duration::from_secs(8);

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
"#;

struct World {
    _server: Server,
    node: TestNode,
    service: SocketAddr,
    client: PathBuf,
    /// Of the Pod `web`.
    ip: String,
    link: String,
}

impl World {
    fn new() -> World {
        let node = TestNode::start(&[]);
        node.import_busybox();
        node.apply(MANIFEST);
        node.wait("condition=Ready", &["pods", "--all"], PATIENCE);
        let service = format!("{}:80", node.field(&["service", "web"], ".spec.clusterIP")).parse().unwrap();
        let uid = node.field(&["pod", "web"], ".metadata.uid").replace('-', "");
        let (client, ip) = (node.netns_of("client"), node.field(&["pod", "web"], ".status.podIP"));
        let _server = Server::start(&node.netns_of("web"), "web", 8080);
        let world = World { _server, service, client, ip, link: format!("pw{}", &uid[..12]), node };
        eventually("the Service answers", PATIENCE, || world.answers());
        world
    }

    fn answers(&self) -> Result<(), String> {
        let said = ask(&self.client, self.service)?;
        if said.starts_with("web") { Ok(()) } else { Err(said) }
    }

    /// Runs a command inside a network namespace; what it prints, or why it failed.
    fn inside(&self, netns: &Path, command: &str) -> Result<String, String> {
        let (program, words) = command.split_once(' ').unwrap();
        // What has a semicolon is nft's, and one word.
        let words: Vec<&str> = if program == "nft" { vec![words] } else { words.split(' ').collect() };
        let output = within(netns, || Command::new(program).args(words).output().unwrap());
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn on_node(&self, command: &str) -> Result<String, String> {
        self.inside(&self.node.netns(), command)
    }

    /// A file of the Pod `web` somewhere below the node's folder.
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

    /// Damages something, and waits until it is repaired and the Service answers.
    fn heals(&self, what: &str, damage: impl FnOnce(), repaired: impl Fn() -> Result<(), String>) {
        repaired().unwrap_or_else(|why| panic!("{what}: not sound at first: {why}"));
        let begun = Instant::now();
        damage();
        eventually(what, PATIENCE, &repaired);
        let took = begun.elapsed();
        eventually(&format!("{what}: the Service answers"), PATIENCE, || self.answers());
        println!(
            "{what:<28} repaired after {:>5} ms, answers after {:>5} ms",
            took.as_millis(),
            begun.elapsed().as_millis()
        );
        assert!(begun.elapsed() < LIMIT, "{what}: {:?}", begun.elapsed());
    }

    /// The same by commands: one that does the damage, and one whose output has some words again.
    fn heals_on_node(&self, what: &str, damage: &str, shown: &str, has: &str) {
        self.heals(what, || drop(self.on_node(damage).unwrap()), || contains(&self.on_node(shown)?, has));
    }
}

#[test]
fn whatever_is_damaged_is_repaired_without_a_restart() {
    let world = World::new();
    let untouched = Machine::untouched(world.node.dir.path());
    let (ip, link, pid) = (world.ip.as_str(), world.link.as_str(), world.node.pid());
    let pod = world.node.netns_of("web");
    // A light load, all the while.
    let (stop, client, service) = (Arc::new(AtomicBool::new(false)), world.client.clone(), world.service);
    let stopped = stop.clone();
    let load = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            let _ = ask(&client, service);
            std::thread::sleep(Duration::from_millis(100));
        }
    });

    let map = "nft list map ip podwright cluster-ips";
    let vip = world.service.ip().to_string();
    world.heals_on_node("table", "nft delete table ip podwright", map, &vip);
    world.heals_on_node("map", "nft flush map ip podwright services", "nft list map ip podwright services", "goto");
    let element = format!("nft delete element ip podwright cluster-ips {{ {vip} . tcp . 80 }}");
    world.heals_on_node("element", &element, map, &vip);
    world.heals_on_node(
        "rule",
        "nft flush chain ip podwright service",
        "nft list chain ip podwright service",
        "goto balance",
    );
    let route = format!("ip route show {ip}");
    world.heals_on_node("route", &format!("ip route del {ip}"), &route, link);
    let neighbour = format!("ip neigh show {ip} nud permanent");
    world.heals_on_node("neighbour", &format!("ip neigh del {ip} dev {link}"), &neighbour, "lladdr");
    world.heals_on_node("veth", &format!("ip link del {link}"), &route, link);
    world.heals_on_node("link down", &format!("ip link set {link} down"), &route, link);
    for (what, damage, shown, has) in [
        ("address in the Pod", format!("ip addr del {ip}/32 dev eth0"), "ip addr show eth0", ip),
        ("route in the Pod", "ip route del default".to_owned(), "ip route", "default"),
        ("link in the Pod", "ip link del eth0".to_owned(), "ip route", "default"),
    ] {
        let damage = || drop(world.inside(&pod, &damage).unwrap());
        world.heals(what, damage, || contains(&world.inside(&pod, shown)?, has));
    }
    let forward = "/proc/sys/net/ipv4/ip_forward";
    let netns = world.node.netns();
    world.heals(
        "sysctl",
        || within(&netns, || fs::write(forward, "0")).unwrap(),
        || contains(&within(&netns, || fs::read_to_string(forward)).unwrap(), "1"),
    );
    let held = fs::File::open(&netns).unwrap();
    world.heals(
        "mount",
        || nix::mount::umount2(&netns, nix::mount::MntFlags::MNT_DETACH).unwrap(),
        || contains(&fs::read_to_string("/proc/self/mountinfo").unwrap(), &netns.display().to_string()),
    );
    drop(held);
    let socket = world.node.socket();
    world.heals(
        "socket",
        || fs::remove_file(&socket).unwrap(),
        || std::os::unix::net::UnixStream::connect(&socket).map(drop).map_err(|e| e.to_string()),
    );
    let log = world.find(|path| path.ends_with("c/0.log") && path.to_string_lossy().contains("_web_"));
    world.heals("log", || fs::remove_file(&log).unwrap(), || contains(&world.node.run(&["logs", "web"]).all(), "UTC"));
    for name in ["sandbox.json", "container.json"] {
        let uid = world.node.field(&["pod", "web"], ".metadata.uid");
        let record = world.find(|path| path.ends_with(name) && path.to_string_lossy().contains(&uid));
        let whole = || serde_json::from_slice::<serde_json::Value>(&fs::read(&record).unwrap_or_default());
        let repaired = || whole().map(drop).map_err(|e| e.to_string());
        world.heals(name, || fs::write(&record, "").unwrap(), repaired);
        world.heals(&format!("{name} that is gone"), || fs::remove_file(&record).unwrap(), repaired);
    }
    let in_pod = |path: &'static str| world.node.run(&["exec", "web", "--", "cat", path]).all();
    let volume = world.find(|path| path.ends_with("volumes/conf"));
    world.heals(
        "volume file",
        || fs::write(volume.join("..data/one"), "other").unwrap(),
        || contains(&in_pod("/conf/one"), "first"),
    );
    world.heals(
        "volume link",
        || fs::remove_file(volume.join("two")).unwrap(),
        || contains(&in_pod("/conf/two"), "second"),
    );
    let sealed = world.find(|path| path.ends_with("sealed/word"));
    world.heals("Secret's link", || fs::remove_file(sealed).unwrap(), || contains(&in_pod("/sealed/word"), "hidden"));
    // What is mounted for Pods comes back as it was: containers that run, and those that start later, share it again.
    let tmpfs = world.node.dir.path().join("volumes");
    let shm = world.find(|path| path.ends_with("shm") && path.with_file_name("s").exists());
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    let unmount = |path: &Path| nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH).unwrap();
    for path in [&tmpfs, &shm] {
        let (sign, shown) = (path.join(".sign"), path.display().to_string());
        fs::write(&sign, "kept").unwrap();
        let repaired = || {
            contains(&mounts(), &format!(" {shown} "))?;
            fs::read_to_string(&sign).map(drop).map_err(|e| e.to_string())
        };
        world.heals(&format!("mount {}", path.file_name().unwrap().display()), || unmount(path), repaired);
        fs::remove_file(&sign).unwrap();
    }
    // A Secret that changes now reaches the container that has run all the while.
    world.node.apply("{apiVersion: v1, kind: Secret, metadata: {name: sealed}, stringData: {word: changed}}");
    eventually("the Secret changes", Duration::from_secs(120), || contains(&in_pod("/sealed/word"), "changed"));
    assert_eq!(
        world.node.field(&["pod", "web"], ".status.containerStatuses[0].restartCount"),
        "0",
        "no restart so far"
    );

    let started = || world.node.field(&["pod", "web"], ".status.containerStatuses[0].restartCount");
    let cgroup = world.node.ok(&["inspect", "pod", "web", "-o", "json"]);
    let cgroup: serde_json::Value = serde_json::from_str(&cgroup).unwrap();
    let first = cgroup["containers"][0]["pid"].as_u64().unwrap();
    world.heals(
        "cgroup",
        || fs::write(cgroup_of(first).join("cgroup.kill"), "1").unwrap(),
        || if cgroup_alive(first) || started() == "1" { Ok(()) } else { Err(started()) },
    );
    stop.store(true, Ordering::Relaxed);
    load.join().unwrap();
    assert_eq!(world.node.pid(), pid, "the agent is the same");
    let events = world.node.ok(&["get", "events", "-A"]);
    contains(&events, "NetworkRestored").unwrap();
    contains(&events, "NodeRestored").unwrap();
    drop(world);
    untouched.assert_unchanged();
}

/// The cgroup v2 of a process.
fn cgroup_of(pid: u64) -> PathBuf {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let path = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root =
        mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4)).unwrap();
    Path::new(root).join(path)
}

fn cgroup_alive(pid: u64) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

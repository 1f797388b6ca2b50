//! SIGKILL at random moments: acknowledged writes survive, running processes go on, every exit is reported correctly, nothing
//! leaks.
//!
//! `PODWRIGHT_CHAOS_SEED` repeats the choices of a run (not the kernel's timing), `PODWRIGHT_CHAOS_KILLS` says how many.

mod certificates;
mod facts;
mod images;
mod pods;

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use self::{facts::Facts, images::Images, pods::Pods};
use crate::support::{
    TestNode,
    api::{CallError, call},
    eventually,
    leftovers::Machine,
};

const KILLS: u64 = 40;
const TIMEOUT: Duration = Duration::from_secs(60);

/// A Deployment whose Pods are replaced by its controllers, with a Service.
const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 1
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '10000']}]
---
apiVersion: v1
kind: Service
metadata: {name: app}
spec:
  selector: {app: app}
  ports: [{port: 80}]
";

/// What Pods mount: both keys of a pair always have the same value, and each Pod writes its name into its claim.
const VOLUMES: &str = "
{apiVersion: v1, kind: ConfigMap, metadata: {name: pair}, data: {one: '0', two: '0'}}
---
{apiVersion: v1, kind: Secret, metadata: {name: pair}, stringData: {one: '0', two: '0'}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim-0}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim-1}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
";

/// Numbers from a seed (SplitMix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
    fn fork(&mut self) -> Dice {
        Dice(self.roll(u64::MAX))
    }
    fn pause(&mut self, below_ms: u64) {
        std::thread::sleep(Duration::from_millis(self.roll(below_ms)));
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// The seed of this run: the configured one, or a new one.
fn seed() -> u64 {
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as u64;
    let seed = setting("PODWRIGHT_CHAOS_SEED").unwrap_or_else(now);
    println!("PODWRIGHT_CHAOS_SEED={seed}");
    seed
}

#[test]
fn killed_again_and_again_it_loses_nothing() {
    let seed = seed();
    let kills = setting("PODWRIGHT_CHAOS_KILLS").unwrap_or(KILLS);
    println!("PODWRIGHT_CHAOS_SEED={seed} PODWRIGHT_CHAOS_KILLS={kills}");
    let mut dice = Dice(seed);
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    // The first Pod creates the folders that stay with the node.
    node.apply(DEPLOYMENT);
    node.wait("condition=Available", &["deployment/app"], TIMEOUT);
    scale_to(&node, 0);
    wait_for_no_pods(&node);
    eventually("no Pod is in the tables", TIMEOUT, || {
        let rules = ruleset(&node);
        if rules.iter().any(|line| line.contains("10.244.") && !line.contains("10.244.0.0/24")) {
            Err(rules.join("\n"))
        } else {
            Ok(())
        }
    });
    let fresh = (Machine::look(node.dir.path()), ruleset(&node));
    node.apply(VOLUMES);
    let images = Images::start(&node);
    let (mut facts, mut pods) = (Facts::new(&node), Pods::new(&node, images.names.clone()));
    let start = Instant::now();
    for round in 0..kills {
        one_kill(&mut node, &mut facts, &mut pods, &images, &mut dice);
        if (round + 1) % 10 == 0 {
            println!("{} kills in {:.0?}: {facts}, {pods}", round + 1, start.elapsed());
        }
    }
    node.spawn();
    node.wait_ready();
    facts.check();
    pods.check();
    pods.settle();
    pods.check_volumes();
    assert!(pods.looked() > 0 || kills < KILLS, "no volume was ever looked at");
    let replicas = facts.replicas();
    node.wait_field(&["deployment", "app"], ".spec.replicas", &replicas.to_string(), TIMEOUT);
    scale_to(&node, 2);
    node.wait_field(&["deployment", "app"], ".status.availableReplicas", "2", TIMEOUT);
    println!("{kills} kills in {:.0?}: {facts}, {pods}, {images}", start.elapsed());
    scale_to(&node, 0);
    node.ok(&["delete", "pods", "--all", "--timeout", "60s"]);
    wait_for_no_pods(&node);
    images.check(&node);
    node.ok(&["delete", "pvc", "--all", "--timeout", "60s"]);
    fresh.0.assert_unchanged();
    eventually("the ruleset is as before", TIMEOUT, || same(&fresh.1, &ruleset(&node)));
    for folder in ["runtime/sandboxes", "shims", "log", "pods", "journals", "volumes", "local-volumes", "images/tmp"] {
        let folder = node.dir.path().join(folder);
        eventually("nothing is kept of a Pod", TIMEOUT, || same(&Vec::new(), &names(&folder)));
    }
    assert!(node.terminate().is_some_and(|status| status.success()), "{}", node.log());
    drop(node);
    untouched.assert_unchanged();
}

/// Starts the node, checks its state, writes for a while, and kills it.
fn one_kill(node: &mut TestNode, facts: &mut Facts, pods: &mut Pods, images: &Images, dice: &mut Dice) {
    if !node.is_spawned() {
        node.spawn();
    }
    if dice.roll(4) == 0 {
        // During startup.
        dice.pause(700);
        return node.kill();
    }
    eventually("the server answers", TIMEOUT, || match list(&node.socket(), "configmaps") {
        Ok(_) => Ok(()),
        Err(why) => Err(format!("{why:?}\n{}", node.log())),
    });
    facts.check();
    pods.check();
    pods.check_volumes();
    let length = [300, 1500, 4000][dice.roll(12).saturating_sub(9) as usize];
    let stop = AtomicBool::new(false);
    let (for_facts, for_pods) = (dice.fork(), dice.fork());
    let commands = images.commands(node, dice);
    std::thread::scope(|scope| {
        scope.spawn(|| facts.write(for_facts, &stop));
        scope.spawn(|| pods.write(for_pods, &stop));
        scope.spawn(|| images.write(commands, &stop));
        dice.pause(length);
        node.kill();
        stop.store(true, Ordering::Relaxed);
    });
}

/// The result of a write.
#[derive(Debug)]
enum Outcome {
    Done(Value),
    /// The server died: it may have been applied or not.
    Unknown,
}

/// A write that only the server's death may fail.
#[track_caller]
fn write(socket: &Path, method: &str, params: Value) -> Outcome {
    match call(socket, method, params.clone()) {
        Ok(object) => Outcome::Done(object),
        Err(CallError::Lost(_)) => Outcome::Unknown,
        Err(CallError::Refused { code, message }) => panic!("{method} {params}: refused with {code}: {message}"),
    }
}

fn list(socket: &Path, resource: &str) -> Result<Vec<Value>, CallError> {
    let list = call(socket, "list", json!({"resource": resource, "namespace": "default"}))?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

fn scale_to(node: &TestNode, replicas: u64) {
    node.ok(&["scale", "deployment", "app", "--replicas", &replicas.to_string()]);
}

fn wait_for_no_pods(node: &TestNode) {
    eventually("all Pods are gone", TIMEOUT, || match list(&node.socket(), "pods") {
        Ok(pods) if pods.is_empty() => Ok(()),
        other => Err(format!("{other:#?}\n{}", node.log())),
    });
}

/// The node's nftables rules and elements.
fn ruleset(node: &TestNode) -> Vec<String> {
    let netns = node.dir.path().join("network/netns");
    let mut command = std::process::Command::new("nsenter");
    let output = command.arg(format!("--net={}", netns.display())).args(["nft", "list", "ruleset"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(str::to_owned).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}

fn same(wanted: &Vec<String>, now: &Vec<String>) -> Result<(), String> {
    if wanted == now { Ok(()) } else { Err(format!("wanted {wanted:#?}\nthere is {now:#?}")) }
}

fn folder_of(node: &TestNode) -> PathBuf {
    node.dir.path().canonicalize().unwrap()
}

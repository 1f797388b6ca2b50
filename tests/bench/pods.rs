//! Pods: how fast they start and end, the journal's cost, and the memory per Pod.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use podwright::{
    api::{Object, Options, Request, Status, Verb, request::EventKind, request::PatchType},
    client::{Client, rpc},
};
use serde_json::{Value, json};

use crate::{
    beside, quantile, report, sorted,
    support::{TestNode, leftovers::Machine},
};

const SINGLE_STARTS: usize = 100;
/// Enough to distinguish a hundredth of a start from noise.
const JOURNAL_PAIRS: usize = 2400;

/// The name prefix of Pods that are not recorded.
const UNRECORDED: &str = "unrecorded-";
/// The name prefix of Pods with user namespaces.
const OWN_USERS: &str = "own-users-";

pub fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "c", "image": "localhost/busybox:1", "command": ["sleep", "infinity"] }],
        },
    })
}

/// A node with the image, and a connected client.
struct Bench {
    node: TestNode,
    client: Client,
    runtime: tokio::runtime::Runtime,
}

impl Bench {
    fn start(args: &[&str]) -> Bench {
        let node = TestNode::start(args);
        node.import_busybox();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let address = rpc::Address(node.dir.path().join("api.sock"));
        Bench { node, client: rpc::client(address, "bench"), runtime }
    }

    /// Applies Pods and waits until all run; returns milliseconds.
    fn run_all(&self, names: &[String]) -> f64 {
        let elapsed = self.runtime.block_on(async {
            let mut events = self.client.watch(pods_from(&self.client).await).await.unwrap();
            let start = Instant::now();
            for name in names {
                apply(&self.client, name).await.unwrap();
            }
            let mut waiting: BTreeSet<&str> = names.iter().map(String::as_str).collect();
            while !waiting.is_empty() {
                let event = events.recv().await.expect("the watch goes on");
                let object = Object::from_slice(&event.object).unwrap();
                if object.at("status.phase").and_then(Value::as_str) == Some("Running") {
                    waiting.remove(object.name());
                }
            }
            start.elapsed()
        });
        elapsed.as_secs_f64() * 1000.0
    }

    /// Deletes Pods and waits until they are gone from the API; returns milliseconds.
    fn delete_all(&self, names: &[String]) -> f64 {
        let elapsed = self.runtime.block_on(async {
            let mut events = self.client.watch(pods_from(&self.client).await).await.unwrap();
            let start = Instant::now();
            for name in names {
                let request = Request { verb: Verb::Delete, ..named(name) };
                self.client.call(request).await.unwrap();
            }
            let mut waiting: BTreeSet<&str> = names.iter().map(String::as_str).collect();
            while !waiting.is_empty() {
                let event = events.recv().await.expect("the watch goes on");
                if event.kind == EventKind::Deleted {
                    waiting.remove(Object::from_slice(&event.object).unwrap().name());
                }
            }
            start.elapsed()
        });
        elapsed.as_secs_f64() * 1000.0
    }

    /// One Pod's start; it is gone again when this returns.
    fn one(&self, name: &str) -> f64 {
        let names = [name.to_owned()];
        let took = self.run_all(&names);
        self.delete_all(&names);
        took
    }
}

fn named(name: &str) -> Request {
    Request {
        resource: "pods".into(),
        namespace: Some("default".into()),
        name: Some(name.to_owned()),
        ..Request::default()
    }
}

async fn apply(client: &Client, name: &str) -> Result<(), Status> {
    let options = Options { patch_type: Some(PatchType::ThreeWay), ..Options::default() };
    let mut body = pod(name);
    let journal = if name.starts_with(UNRECORDED) { "off" } else { "on" };
    body["metadata"]["annotations"] = json!({ "podwright/journal": journal });
    if name.starts_with(OWN_USERS) {
        body["spec"]["hostUsers"] = json!(false);
    }
    client.call(Request { verb: Verb::Patch, body: Some(body), options, ..named(name) }).await.map(drop)
}

/// A watch of all Pods from now on.
async fn pods_from(client: &Client) -> Request {
    use k8s_openapi::api::core::v1::Pod;
    let list = client.list::<Pod>(Some("default"), Options::default()).await.unwrap();
    let mut request = Request { resource: "pods".into(), namespace: Some("default".into()), ..Request::default() };
    request.options.resource_version = Some(list.resource_version);
    request
}

pub fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("p{i}")).collect()
}

/// apply -> Running of one Pod, image present: one after the other beside running ones, and then each right after another's
/// removal, while the kernel is still tearing down that one's network namespace.
pub fn start() {
    let bench = Bench::start(&[]);
    bench.one("warm-up");
    let all = names(SINGLE_STARTS);
    let took = sorted(all.iter().map(|name| bench.run_all(std::slice::from_ref(name))).collect());
    let met = quantile(&took, 0.5) <= 20.0 && quantile(&took, 0.99) <= 60.0;
    report("apply -> Running, one Pod, image present", figure(&took), "p50 <= 20 ms, p99 <= 60 ms", met);
    bench.delete_all(&all);
    let took = sorted(all.iter().map(|name| bench.one(name)).collect());
    beside("each right after the removal of another", figure(&took));
}

/// The same with and without user namespaces, alternating on one node; as in `journal`, not beside the removal of another.
pub fn user_namespaces() {
    let bench = Bench::start(&[]);
    let node = bench.node.field(&["nodes"], ".items[0].status.runtimeHandlers[0].features.userNamespaces");
    if node != "true" {
        return beside("a Pod's start with users of its own", "this host cannot give them");
    }
    let (mut off, mut on) = (Vec::new(), Vec::new());
    bench.one("warm-up");
    bench.one(&format!("{OWN_USERS}warm-up"));
    for batch in (0..SINGLE_STARTS).collect::<Vec<_>>().chunks(25) {
        let host: Vec<String> = batch.iter().map(|n| format!("host-users-{n}")).collect();
        let own: Vec<String> = batch.iter().map(|n| format!("{OWN_USERS}{n}")).collect();
        for (host, own) in host.iter().zip(&own) {
            off.push(bench.run_all(std::slice::from_ref(host)));
            on.push(bench.run_all(std::slice::from_ref(own)));
        }
        bench.delete_all(&[host, own].concat());
    }
    let (off, on) = (sorted(off), sorted(on));
    let more = quantile(&on, 0.5) - quantile(&off, 0.5);
    let figure = format!("off {}; on {}; {more:+.1} ms", figure(&off), figure(&on));
    let met = quantile(&off, 0.5) <= 20.0 && more <= 5.0;
    report("apply -> Running, user namespaces off and on", figure, "p50 <= 20 ms off, <= 5 ms more on", met);
}

fn figure(sorted: &[f64]) -> String {
    format!("p50 {:.1} ms, p99 {:.1} ms", quantile(sorted, 0.5), quantile(sorted, 0.99))
}

/// The same with and without recording kernel operations, in adjacent pairs. On one node: two nodes differ by more than the cost of
/// recording.
pub fn journal() {
    let bench = Bench::start(&[]);
    let recorded = |n: usize| format!("recorded-{n}");
    let unrecorded = |n: usize| format!("{UNRECORDED}{n}");
    bench.one(&recorded(0));
    bench.one(&unrecorded(0));
    let mut pairs = Vec::new();
    for batch in (0..JOURNAL_PAIRS).collect::<Vec<_>>().chunks(25) {
        for n in batch {
            let (with, without) = ([recorded(*n)], [unrecorded(*n)]);
            // The order alternates, so that neither has warmer caches.
            if n % 2 == 0 {
                let with = bench.run_all(&with);
                pairs.push((with, bench.run_all(&without)));
            } else {
                let without = bench.run_all(&without);
                pairs.push((bench.run_all(&with), without));
            }
        }
        // All at once and not in between: a start beside the end of another Pod takes twice as long.
        bench.delete_all(&batch.iter().flat_map(|n| [recorded(*n), unrecorded(*n)]).collect::<Vec<_>>());
    }
    let base = quantile(&sorted(pairs.iter().map(|(_, without)| *without).collect()), 0.5);
    let shares: Vec<f64> = pairs.iter().map(|(with, without)| (with - without) / base * 100.0).collect();
    let [low, share, high] = centre(&shares);
    let figure = format!("{share:+.1} % of {base:.2} ms ({low:+.1} to {high:+.1})");
    report(&format!("the journal's share of a start ({JOURNAL_PAIRS} pairs)"), figure, "< 2 %", high < 2.0);
}

/// The centre of these differences, with its 95 % confidence interval: the Hodges-Lehmann estimate, the median of the means of all
/// pairs, with the bounds of Wilcoxon's signed-rank test. The differences are mostly symmetric noise with outliers; this uses them
/// better than the median, while a mean would follow the outliers.
fn centre(differences: &[f64]) -> [f64; 3] {
    let n = differences.len() as f64;
    let means = differences.iter().enumerate().flat_map(|(i, a)| differences[i..].iter().map(move |b| (a + b) / 2.0));
    let means = sorted(means.collect());
    // The normal approximation of how many of the means lie below the true centre.
    let spread = 1.96 * (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt() / means.len() as f64;
    [0.5 - spread, 0.5, 0.5 + spread].map(|q| quantile(&means, q))
}

/// 30 Pods at once.
pub fn thirty() {
    let bench = Bench::start(&[]);
    bench.one("warm-up");
    let names = names(30);
    let before = Machine::look(bench.node.dir.path());
    let (mut up, mut down, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        up.push(bench.run_all(&names));
        let start = Instant::now();
        down.push(bench.delete_all(&names));
        before.assert_unchanged();
        gone.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    let median = |values: Vec<f64>| quantile(&sorted(values), 0.5);
    let (up, gone) = (median(up), median(gone));
    report("30 Pods, one apply -> all Running", format!("{up:.0} ms"), "<= 500 ms", up <= 500.0);
    let figure = format!("{gone:.0} ms (in the API: {:.0} ms)", median(down));
    report("30 Pods deleted -> nothing left (no grace period)", figure, "<= 500 ms", gone <= 500.0);
}

/// PSS of each Pod's overhead beside its containers: shim and pause.
pub fn memory() {
    const PODS: usize = 20;
    let bench = Bench::start(&[]);
    let before: BTreeSet<u32> = helpers().into_iter().collect();
    bench.run_all(&names(PODS));
    std::thread::sleep(Duration::from_millis(500));
    let total: u64 = helpers().into_iter().filter(|pid| !before.contains(pid)).map(pss_kib).sum();
    let each = total as f64 / PODS as f64;
    report("memory per Pod (shim + pause, PSS)", format!("{each:.0} KiB"), "<= 614 KiB", each <= 614.4);
    drop(bench.node);
}

/// All shims and pauses of this machine.
fn helpers() -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name = name.trim();
        name.starts_with("shim:") || name == "pause"
    })
    .collect()
}

fn pss_kib(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|l| l.strip_prefix("Pss:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

//! What nodes measure: rates of counters, Pods that are left out, and a hollow node whose figures can be read.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use podwright::{
    api::{
        Options, Quantity,
        metrics::{NodeMetrics, PodMetrics, Report},
    },
    node::usage::meter::{Meter, Reading, Running, Sample},
};
use serde_json::json;
use tokio::time::Instant;

use super::hollow::{Cluster, cluster, spec, until};

const MIB: u64 = 1 << 20;

/// A sample that many seconds after `start`: the node's CPU seconds, and each container as `pod/container#id` with its own.
fn sample(start: Instant, after: f64, node: f64, containers: &[(&str, f64)]) -> Sample {
    let reading = |seconds: f64, memory: u64| Reading {
        at: start + Duration::from_secs_f64(after),
        cpu_us: (seconds * 1e6).round() as u64,
        memory,
    };
    let running = |(what, seconds): &(&str, f64)| {
        let (pod, rest) = what.split_once('/').unwrap();
        let (container, id) = rest.split_once('#').unwrap();
        Running {
            namespace: "default".into(),
            pod: pod.into(),
            uid: format!("uid of {pod}"),
            container: container.into(),
            id: format!("{pod}/{container}.{id}"),
            reading: reading(*seconds, MIB),
        }
    };
    Sample { node: Some(reading(node, 512 * MIB)), running: containers.iter().map(running).collect() }
}

/// `pod(window): container=millicores ...`, and whether it waits for second points.
fn told(meter: &mut Meter, sample: Sample) -> String {
    let (Report { node, pods, .. }, waiting) = meter.take(sample, Timestamp::UNIX_EPOCH);
    let cores = |nanocores: u64| nanocores as f64 / 1e6;
    let mut parts: Vec<String> =
        node.iter().map(|n| format!("node({}): {}", n.window_ms, cores(n.usage.nanocores))).collect();
    for pod in pods {
        assert_eq!((pod.namespace.as_str(), pod.uid), ("default", format!("uid of {}", pod.name)));
        let each = pod.containers.iter().map(|c| format!(" {}={}", c.name, cores(c.usage.nanocores)));
        parts.push(format!("{}({}):{}", pod.name, pod.window_ms, each.collect::<String>()));
    }
    parts.extend(waiting.then(|| "waiting".to_owned()));
    parts.join("; ")
}

#[tokio::test]
async fn rates_are_those_between_two_points_of_one_start() {
    let (start, mut meter) = (Instant::now(), Meter::default());
    let mut at =
        |after: f64, node: f64, containers: &[(&str, f64)]| told(&mut meter, sample(start, after, node, containers));
    // One point is none.
    assert_eq!(at(0.0, 100.0, &[("a/c#0", 7.0)]), "waiting");
    assert_eq!(at(15.0, 130.0, &[("a/c#0", 22.0)]), "node(15000): 2000; a(15000): c=1000");
    // A Pod with a container that has just been started is left out; another is not.
    let both = [("a/c#0", 22.5), ("a/late#0", 0.2), ("b/c#0", 0.0)];
    assert_eq!(at(20.0, 130.0, &both), "node(5000): 0; waiting");
    let both = [("b/c#0", 0.0), ("a/late#0", 0.7), ("a/c#0", 22.5)];
    assert_eq!(at(25.0, 131.0, &both), "node(5000): 200; a(5000): c=0 late=100; b(5000): c=0");
    // A restarted container counts from zero, as another one; what has ended is not in the sample.
    assert_eq!(at(40.0, 131.0, &[("a/c#1", 0.1)]), "node(15000): 0; waiting");
    assert_eq!(at(45.0, 131.0, &[("a/c#1", 0.1)]), "node(5000): 0; a(5000): c=0");
    // A counter that goes back all the same, and a clock that stands still, give nothing.
    assert_eq!(at(60.0, 130.0, &[("a/c#1", 0.0)]), "waiting");
    assert_eq!(at(60.0, 130.0, &[("a/c#1", 0.0)]), "waiting");
    // Gone and back under its old id: there is no point before.
    assert_eq!(at(75.0, 130.0, &[]), "node(15000): 0");
    assert_eq!(at(90.0, 130.0, &[("a/c#1", 0.0)]), "node(15000): 0; waiting");
    let (report, _) = meter.take(sample(start, 100.0, 130.0, &[("a/c#1", 0.0)]), Timestamp::UNIX_EPOCH);
    assert_eq!((report.node.unwrap().usage.memory, report.pods[0].containers[0].usage.memory), (512 * MIB, MIB));
}

#[tokio::test]
async fn what_cannot_be_measured_is_not_waited_for() {
    let mut meter = Meter::default();
    for _ in 0..2 {
        assert_eq!(told(&mut meter, Sample::default()), "");
    }
}

/// CPU in millicores and memory in MiB of a Pod's containers together, once they are known.
async fn usage(cluster: &Cluster, pod: &str) -> Option<(i64, i64)> {
    let found = cluster.client.get::<PodMetrics>(Some("default"), pod).await.ok()?;
    let total = |resource: &str| -> Quantity {
        found.containers.iter().map(|c| c.usage[resource].0.parse::<Quantity>().unwrap()).sum()
    };
    Some((total("cpu").millis(), total("memory").value() / (1 << 20)))
}

async fn becomes(cluster: &Cluster, pod: &str, expected: (i64, i64)) {
    until(&format!("{pod} uses {expected:?}"), || async { usage(cluster, pod).await == Some(expected) }).await;
}

#[tokio::test(start_paused = true)]
async fn a_hollow_node_tells_what_its_pods_request_or_say() {
    let cluster = cluster().await;
    let mut asking = spec();
    asking["containers"][0]["resources"] = json!({ "requests": { "cpu": "300m", "memory": "64Mi" } });
    let began = Instant::now();
    cluster.create("a", asking).await;
    becomes(&cluster, "a", (300, 64)).await;
    assert!(began.elapsed() < Duration::from_secs(12), "the first figures came after {:?}", began.elapsed());
    let node: NodeMetrics = cluster.client.get(None, "n1").await.unwrap();
    assert_eq!(node.usage["memory"].0, "64Mi");
    let said = json!({ "metadata": { "annotations": { "podwright/hollow-usage": "cpu=2" } } });
    cluster.client.merge::<Pod>(Some("default"), "a", None, said).await.unwrap();
    becomes(&cluster, "a", (2000, 64)).await;
    let node: NodeMetrics = cluster.client.get(None, "n1").await.unwrap();
    assert_eq!(node.usage["cpu"].0.parse::<Quantity>().unwrap().millis(), 2000);
    cluster.client.delete::<Pod>(Some("default"), "a", None, Options::default()).await.unwrap();
    until("its figures are gone with it", || async { usage(&cluster, "a").await.is_none() }).await;
}

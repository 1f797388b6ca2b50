//! How nodes are ranked by resources, images, taints and their labels.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use podwright::scheduler::{cluster::Cluster, pod::PodInfo};
use serde_json::{Value, json};

use super::{cluster, node, pod, points, requesting, scoring, verdicts};

fn of(pod: &PodInfo, cluster: &mut Cluster, plugin: &str, args: Value) -> Vec<i64> {
    points(pod, cluster, &scoring(plugin, args)).into_iter().map(|(_, points)| points).collect()
}

/// n1 is empty, n2 half full, n3 full, n4 has no CPU at all.
fn filled() -> Cluster {
    let none = json!({ "status": { "allocatable": { "cpu": "0" } } });
    let nodes: [Arc<Node>; 4] = [node("n1", json!({})), node("n2", json!({})), node("n3", json!({})), node("n4", none)];
    let mut cluster = cluster(nodes);
    cluster.set_pod(pod("half", requesting(json!({ "cpu": "2", "memory": "4Gi" }))), "n2");
    cluster.set_pod(pod("full", requesting(json!({ "cpu": "4", "memory": "8Gi" }))), "n3");
    cluster
}

#[test]
fn by_what_is_taken() {
    let asks = pod("p", requesting(json!({ "cpu": "1", "memory": "2Gi" })));
    let strategy = |strategy: Value| json!({ "scoringStrategy": strategy });
    let fit = |args: Value| of(&asks, &mut filled(), "NodeResourcesFit", args);
    assert_eq!(fit(json!({})), [75, 25, 0, 75], "a resource that a node has none of does not count");
    assert_eq!(fit(strategy(json!({ "type": "LeastAllocated" }))), [75, 25, 0, 75]);
    assert_eq!(fit(strategy(json!({ "type": "MostAllocated" }))), [25, 75, 100, 25]);
    let weighted = json!([{ "name": "cpu", "weight": 3 }, { "name": "memory", "weight": 1 }]);
    let cpu = pod("p", requesting(json!({ "cpu": "2", "memory": "1" })));
    let args = strategy(json!({ "type": "LeastAllocated", "resources": weighted }));
    assert_eq!(of(&cpu, &mut filled(), "NodeResourcesFit", args), [62, 12, 0, 99]);
    let shape = json!([{ "utilization": 0, "score": 0 }, { "utilization": 50, "score": 10 }, { "utilization": 100, "score": 0 }]);
    let curve = json!({ "type": "RequestedToCapacityRatio", "requestedToCapacityRatio": { "shape": shape } });
    assert_eq!(fit(strategy(curve)), [50, 50, 0, 50]);
}

#[test]
fn by_what_few_nodes_have() {
    let gpus = |count: &str| json!({ "status": { "allocatable": { "example.com/gpu": count } } });
    let nodes = || cluster([node("n1", gpus("4")), node("n2", gpus("8")), node("n3", json!({}))]);
    let args = json!({ "scoringStrategy": { "type": "MostAllocated", "resources": [{ "name": "example.com/gpu", "weight": 5 }] } });
    let asks = pod("p", requesting(json!({ "example.com/gpu": "2" })));
    assert_eq!(of(&asks, &mut nodes(), "NodeResourcesFit", args.clone()), [50, 25, 0]);
    assert_eq!(of(&pod("q", json!({})), &mut nodes(), "NodeResourcesFit", args), [0, 0, 0], "it wants none");
    let args = json!({ "ignoredResources": ["example.com/gpu"], "ignoredResourceGroups": ["other.example"] });
    let asks = pod("p", requesting(json!({ "example.com/gpu": "9", "other.example/x": "1", "third.example/y": "1" })));
    let told = verdicts(&asks, &mut nodes(), &scoring("NodeResourcesFit", args));
    assert_eq!(told[0], "n1: Insufficient third.example/y");
}

#[test]
fn by_balance() {
    let asks = pod("p", requesting(json!({ "cpu": "2", "memory": "2Gi" })));
    // Half of the CPU, a quarter of the memory: they differ by a quarter.
    assert_eq!(of(&asks, &mut cluster([node("n1", json!({}))]), "NodeResourcesBalancedAllocation", json!({})), [87]);
    let resource = |name: &str| json!({ "name": name, "weight": 1 });
    let all = json!({ "resources": [resource("cpu"), resource("memory"), resource("ephemeral-storage")] });
    let asks = pod("p", requesting(json!({ "cpu": "4", "memory": "8Gi", "ephemeral-storage": "100Gi" })));
    assert_eq!(of(&asks, &mut cluster([node("n1", json!({}))]), "NodeResourcesBalancedAllocation", all), [100]);
}

#[test]
fn by_images_that_are_there() {
    const MB: i64 = 1024 * 1024;
    let has = |images: Value| json!({ "status": { "images": images } });
    let image = |name: &str, size: i64| json!({ "names": [name], "sizeBytes": size });
    let mut nodes = cluster([
        node("n1", has(json!([image("docker.io/a:1", 600 * MB)]))),
        node("n2", has(json!([image("docker.io/a:1", 600 * MB), image("b:latest", 300 * MB)]))),
        node("n3", has(json!([image("tiny:1", 22 * MB)]))),
        node("n4", json!({})),
    ]);
    let with = |images: &[&str]| {
        let one = |(n, image): (usize, &&str)| json!({ "name": format!("c{n}"), "image": image });
        pod("p", json!({ "containers": images.iter().enumerate().map(one).collect::<Vec<_>>() }))
    };
    // On half of the nodes: 300 MB of 1000, less 23 of both.
    assert_eq!(of(&with(&["docker.io/a:1"]), &mut nodes, "ImageLocality", json!({})), [28, 28, 0, 0]);
    assert_eq!(of(&with(&["docker.io/a:2"]), &mut nodes, "ImageLocality", json!({})), [0; 4], "another tag");
    assert_eq!(of(&with(&["b"]), &mut nodes, "ImageLocality", json!({})), [0, 5, 0, 0], "75 MB of 1000");
    assert_eq!(of(&with(&["docker.io/a:1", "b"]), &mut nodes, "ImageLocality", json!({})), [14, 17, 0, 0]);
    assert_eq!(of(&with(&["tiny:1"]), &mut nodes, "ImageLocality", json!({})), [0; 4], "not worth it");
    nodes.remove_node("n2");
    nodes.set_node(node("n1", json!({})));
    assert_eq!(of(&with(&["docker.io/a:1"]), &mut nodes, "ImageLocality", json!({})), [0; 3], "it is gone");
}

#[test]
fn by_what_the_profile_adds() {
    let labels = |zone: &str| json!({ "metadata": { "labels": { "z": zone } } });
    let mut nodes = cluster([node("n1", labels("a")), node("n2", labels("b")), node("n3", labels("c"))]);
    let term = |zones: Value| json!({ "matchExpressions": [{ "key": "z", "operator": "In", "values": zones }] });
    let args = json!({ "addedAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term(json!(["a", "b"]))] },
        "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 7, "preference": term(json!(["b"])) }],
    } });
    let profile = scoring("NodeAffinity", args.clone());
    let plain = pod("p", json!({}));
    let enforced = "n3: node(s) didn't match scheduler-enforced node affinity";
    assert_eq!(verdicts(&plain, &mut nodes, &profile), ["n1", "n2", enforced]);
    assert_eq!(of(&plain, &mut nodes, "NodeAffinity", args), [0, 100, 0]);
    let picky = pod("p", json!({ "nodeSelector": { "z": "a" } }));
    let own = "n2: node(s) didn't match Pod's node affinity/selector";
    assert_eq!(verdicts(&picky, &mut nodes, &profile), ["n1", own, enforced]);
}

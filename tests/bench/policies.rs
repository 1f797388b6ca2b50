//! A change of one NetworkPolicy, from the request to the first packet that is judged by it, however many Pods the cluster has.
//!
//! One node and its three Pods are real; all other Pods are hollow nodes', and a policy of the judged Pod names them as its peers.

use std::{
    net::{SocketAddr, UdpSocket},
    path::Path,
    time::{Duration, Instant},
};

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod, networking::v1::NetworkPolicy};
use podwright::{
    api::{Env, Options},
    client::{Client, Informer, rpc},
    node::{Agent, Config},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    beside, quantile, report, sorted,
    support::{
        TestNode,
        netns::{Server, at, within},
    },
};

const NODES: usize = 50;
const PORT: u16 = 8080;
const CHANGES: usize = 10;
const TIMEOUT: Duration = Duration::from_secs(300);

pub fn changes() {
    let node = TestNode::start(&["--node-name", "real"]);
    node.import_busybox();
    for name in ["server", "friend"] {
        let mut pod = crate::pods::pod(name);
        pod["metadata"]["labels"] = json!({ "app": name });
        pod["spec"]["nodeName"] = "real".into();
        node.apply(&pod.to_string());
    }
    node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let _answering = Server::start(&node.netns_of("server"), "server", PORT);
    let (friend, to) = (node.netns_of("friend"), at(&node.field(&["pod", "server"], ".status.podIP"), PORT));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let client = rpc::client(rpc::Address(node.socket()), "bench");
    let stop = CancellationToken::new();
    runtime.block_on(start_nodes(&node, &stop));
    // The judged Pod lets in all of the many; whoever else may come in changes.
    runtime.block_on(create(&client, &policy("many", "many")));
    let mut first = None;
    for count in [10, 1_000, 5_000] {
        if !runtime.block_on(scale(&client, count)) {
            println!("{count} hollow Pods do not run within {TIMEOUT:?}");
            break;
        }
        let mut took = Vec::new();
        for _ in 0..CHANGES {
            let begun = Instant::now();
            runtime.block_on(create(&client, &policy("friend", "friend")));
            took.push(until(&friend, to, true, begun));
            let begun = Instant::now();
            let gone = client.delete::<NetworkPolicy>(Some("default"), "friend", None, Options::default());
            runtime.block_on(gone).unwrap();
            took.push(until(&friend, to, false, begun));
        }
        let took = sorted(took);
        let (middle, worst) = (quantile(&took, 0.5), quantile(&took, 1.0));
        let first = *first.get_or_insert(middle);
        report(
            &format!("one policy's change is in force, {count} Pods"),
            format!("p50 {middle:.0} ms, worst {worst:.0} ms ({:.1} x 10's)", middle / first),
            "worst <= 1 s; p50 <= 2 x 10's",
            worst <= 1_000.0 && middle <= 2.0 * first,
        );
    }
    beside("each has the API's write and the node's watch in it", "");
    stop.cancel();
    runtime.shutdown_background();
}

/// Who may reach the judged Pod.
fn policy(name: &str, from: &str) -> NetworkPolicy {
    read(json!({
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "podSelector": { "matchLabels": { "app": "server" } },
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": from } } }] }] },
    }))
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

async fn create(client: &Client, policy: &NetworkPolicy) {
    client.create(policy).await.unwrap();
}

async fn start_nodes(node: &TestNode, stop: &CancellationToken) {
    let folder = node.dir.path().join("hollow");
    for n in 0..NODES {
        let name = format!("hollow-{n:02}");
        let mut config = Config::new(&name, folder.join(&name), folder.join(&name));
        config.addresses = vec![std::net::IpAddr::from([198, 51, 100, n as u8])];
        config.labels = vec![("hollow".to_owned(), "true".to_owned())];
        let agent = rpc::client(rpc::Address(node.socket()), "kubelet");
        tokio::spawn(Agent::run_hollow(config, agent, Env::system(), stop.clone()));
    }
}

/// Until so many hollow Pods run.
async fn scale(client: &Client, count: i32) -> bool {
    let deployment: Deployment = read(json!({ "metadata": { "name": "many", "namespace": "default" }, "spec": {
        "replicas": count, "selector": { "matchLabels": { "app": "many" } },
        "template": { "metadata": { "labels": { "app": "many" } }, "spec": {
            "nodeSelector": { "hollow": "true" }, "containers": [{ "name": "c", "image": "example.org/app:1" }] } },
    } }));
    if client.create(&deployment).await.is_err() {
        let replicas = json!({ "spec": { "replicas": count } });
        client.merge::<Deployment>(Some("default"), "many", None, replicas).await.unwrap();
    }
    let pods = Informer::<Pod>::builder(client.clone()).labels("app=many").start();
    let run = async {
        pods.synced().await;
        let runs = |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
        while pods.list().iter().filter(|pod| runs(pod)).count() < count as usize {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        // What they have set off is over.
        tokio::time::sleep(Duration::from_secs(3)).await;
    };
    tokio::time::timeout(TIMEOUT, run).await.is_ok()
}

/// Milliseconds until a datagram from there is answered, or is not any more.
fn until(from: &Path, to: SocketAddr, wanted: bool, begun: Instant) -> f64 {
    loop {
        let answered = within(from, || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
            socket.send_to(b"who\n", to).unwrap();
            socket.recv_from(&mut [0; 64]).is_ok()
        });
        if answered == wanted || begun.elapsed() > TIMEOUT {
            return begun.elapsed().as_secs_f64() * 1_000.0;
        }
    }
}

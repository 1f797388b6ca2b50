//! Isolated nodes side by side: the same addresses, and nothing shared.

use std::{path::PathBuf, time::Duration};

use crate::support::{
    TestNode, eventually,
    leftovers::Machine,
    netns::{Server, ask, at},
};

const TIMEOUT: Duration = Duration::from_secs(30);

const WEB: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, clusterIP: 10.96.7.7, ports: [{port: 80, targetPort: 8080}]}
";

#[test]
fn nodes_side_by_side_share_addresses_and_nothing_else() {
    let mut nodes: Vec<TestNode> = (0..3).map(|_| TestNode::stopped(&["--node-name", "same"])).collect();
    nodes.iter_mut().for_each(TestNode::spawn);
    nodes.iter_mut().for_each(TestNode::wait_ready);
    let untouched: Vec<Machine> = nodes.iter().map(|node| Machine::untouched(node.dir.path())).collect();
    for node in &nodes {
        node.import_busybox();
        node.apply(WEB);
    }
    for node in &nodes {
        node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    }
    let addresses = |node: &TestNode| {
        node.field(&["pods"], ".items[*].status.podIP")
            .split(' ')
            .map(str::to_owned)
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(addresses(&nodes[0]), addresses(&nodes[1]), "both give the same addresses");
    let mut servers: Vec<Option<Server>> = nodes
        .iter()
        .enumerate()
        .map(|(i, node)| Some(Server::start(&node.netns_of("web"), &format!("node{i}"), 8080)))
        .collect();
    let service = at("10.96.7.7", 80);
    let clients: Vec<_> = nodes.iter().map(|node| [node.netns(), node.netns_of("client")]).collect();
    let answers = |clients: &[PathBuf], wanted: &str| {
        for from in clients {
            eventually(&format!("{wanted} answers"), TIMEOUT, || match ask(from, service) {
                Ok(answer) if answer.starts_with(&format!("{wanted} ")) => Ok(()),
                other => Err(format!("{other:?}")),
            });
        }
    };
    (0..3).for_each(|i| answers(&clients[i], &format!("node{i}")));
    // Objects of one are not visible to others.
    nodes[0].apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: mine}}");
    assert_eq!(nodes[1].run(&["get", "cm", "mine"]).code, 1);
    let ids = |node: &TestNode| node.field(&["pods"], ".items[*].status.containerStatuses[0].containerID");
    let before = [ids(&nodes[1]), ids(&nodes[2])];

    // One ends regularly, one is killed; the third is unaffected.
    servers[0] = None;
    let first = nodes.remove(0);
    drop(first);
    untouched[0].assert_unchanged();
    nodes[0].kill();
    answers(&clients[2], "node2");
    assert_eq!(ids(&nodes[1]), before[1]);
    assert_eq!(nodes[1].field(&["pods"], ".items[*].status.containerStatuses[0].restartCount"), "0 0");
    // The killed one's Pods keep serving, and are recovered beside the others.
    answers(&clients[1], "node1");
    nodes[0].spawn();
    nodes[0].wait_ready();
    nodes[0].wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    assert_eq!(ids(&nodes[0]), before[0]);
    answers(&clients[1], "node1");
    servers.clear();
    drop(nodes);
    untouched.iter().for_each(Machine::assert_unchanged);
}

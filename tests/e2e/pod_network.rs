//! Several nodes are one network: Pods, Services and names of one are there for the others, and no longer than the node is.

use std::{path::PathBuf, time::Duration};

use crate::support::{
    TestNode,
    cluster::{Cluster, Layout},
    contains, eventually,
    leftovers::Machine,
    netns::{Server, ask, at},
};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A Pod on each node, behind Services of all kinds.
const SERVICES: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, clusterIP: 10.96.7.7, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: third}
spec: {selector: {name: p3}, type: NodePort, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
---
apiVersion: v1
kind: Service
metadata: {name: local}
spec:
  selector: {name: p3}
  type: NodePort
  externalTrafficPolicy: Local
  ports: [{port: 80, targetPort: 8080, nodePort: 30081}]
---
apiVersion: v1
kind: Service
metadata: {name: heads}
spec: {selector: {app: web}, clusterIP: None}
";

fn pod(number: usize) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: p{number}, labels: {{app: web, name: p{number}}}}}
spec:
  nodeName: n{number}
  terminationGracePeriodSeconds: 0
  containers: [{{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}}]
"
    )
}

/// Asks until `wanted` is the beginning of the answer.
fn answers(from: &std::path::Path, ip: &str, port: u16, wanted: &str) -> String {
    eventually(&format!("{wanted} answers at {ip}:{port}"), TIMEOUT, || match ask(from, at(ip, port)) {
        Ok(answer) if answer.starts_with(wanted) => Ok(answer),
        other => Err(format!("{other:?}")),
    })
}

#[test]
fn three_nodes_on_one_link_are_one_network() {
    is_one_network(Layout::OneLink, "via 192.168.50.3 dev eth0");
}

#[test]
fn three_nodes_behind_a_router_are_one_network() {
    is_one_network(Layout::Routed, "dev podwright-vx4");
}

fn is_one_network(layout: Layout, way: &str) {
    let mut cluster = Cluster::start(3, layout, &[]);
    let server = &cluster.server;
    for number in 1..=3 {
        server.apply(&pod(number));
        let reported =
            server.field(&["node", &format!("n{number}")], ".status.addresses[?(@.type==\"InternalIP\")].address");
        assert_eq!(reported, cluster.address(number));
    }
    server.apply(SERVICES);
    server.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let pods: Vec<PathBuf> = (1..=3).map(|number| server.netns_of(&format!("p{number}"))).collect();
    let ips: Vec<String> =
        (1..=3).map(|number| server.field(&["pod", &format!("p{number}")], ".status.podIP")).collect();
    let mut servers: Vec<Server> =
        pods.iter().enumerate().map(|(n, netns)| Server::start(netns, &format!("p{}", n + 1), 8080)).collect();

    // 1. Pods and nodes reach all Pods; Pods are seen as who they are.
    for (n, from) in pods.iter().enumerate() {
        for (m, to) in ips.iter().enumerate() {
            let seen = answers(from, to, 8080, &format!("p{} ", m + 1));
            assert_eq!(seen, format!("p{} {}", m + 1, ips[n]));
            answers(&cluster.machines[n].netns, to, 8080, &format!("p{} ", m + 1));
        }
    }
    let routes = cluster.machines[0].ip("route");
    assert!(routes.contains(way), "{routes}");

    // 2. Services from all sides: of the cluster, on every node's port, and on one that keeps callers' addresses.
    for from in pods.iter().chain(cluster.machines.iter().map(|machine| &machine.netns)) {
        (0..6).for_each(|_| drop(answers(from, "10.96.7.7", 80, "p")));
        answers(from, &server.field(&["service", "third"], ".spec.clusterIP"), 80, "p3 ");
    }
    let outside = &cluster.between.netns;
    (1..=3).for_each(|number| drop(answers(outside, &cluster.address(number), 30080, "p3 ")));
    let own = if layout == Layout::OneLink { "p3 192.168.50.254" } else { "p3 198.18.3.1" };
    answers(outside, &cluster.address(3), 30081, own);
    assert!(ask(outside, at(&cluster.address(1), 30081)).is_err(), "no endpoint is on that node");

    // 3. Names, asked of each node's own DNS.
    for number in 1..=3 {
        let look = |name: &str| {
            server
                .run(&[
                    "exec",
                    &format!("p{number}"),
                    "--",
                    "nslookup",
                    "-type=a",
                    &format!("{name}.default.svc.cluster.local"),
                ])
                .out
        };
        eventually("the Service has its name", TIMEOUT, || contains(&look("web"), "10.96.7.7"));
        ips.iter().for_each(|ip| eventually("each Pod is in the name", TIMEOUT, || contains(&look("heads"), ip)));
    }

    // 4. An agent that is killed takes no way with it, and its next start changes none.
    let connected = cluster.machines[1].ip("route");
    cluster.agents[0].kill();
    answers(&pods[0], &ips[1], 8080, "p2 ");
    cluster.agents[0].spawn();
    cluster.agents[0].wait_registered(&cluster.server, "n2");
    assert_eq!(cluster.machines[1].ip("route"), connected);
    answers(&pods[1], &ips[2], 8080, "p3 ");

    // 5. A node that leaves takes its routes with it; its machine stays as it was.
    servers.pop();
    let gone = cluster.agents.pop().unwrap();
    let (range, folder) = (cluster.server.field(&["node", "n3"], ".spec.podCIDR"), gone.dir.path().to_owned());
    let untouched = Machine::untouched(&folder);
    assert!(cluster.machines[0].ip("route").contains(&range));
    drop(gone);
    untouched.assert_unchanged();
    let left = cluster.machines[2].ip("-o link");
    assert!(left.contains("eth0") && !left.contains("podwright"), "{left}");
    cluster.server.ok(&["delete", "node", "n3"]);
    for machine in &cluster.machines[..2] {
        eventually("the node's routes are gone", Duration::from_secs(10), || match machine.ip("route") {
            routes if routes.contains(&range) => Err(routes),
            _ => Ok(()),
        });
    }
    answers(&pods[0], &ips[1], 8080, "p2 ");
}

#[test]
fn a_namespace_that_is_no_nodes_is_refused_and_one_that_is_anothers_too() {
    let cluster = Cluster::start(1, Layout::OneLink, &[]);
    let taken = cluster.machines[0].netns.display().to_string();
    let refusal = |args: &[&str]| {
        let mut node = TestNode::stopped(args);
        node.spawn();
        assert!(!node.wait_ended().success());
        node.log()
    };
    for (args, why) in [
        (&["--netns", "/proc/self/ns/net"][..], "is this machine's own network namespace"),
        (&["--netns", "/dev/null"], "is no network namespace"),
        (&["--netns", &taken], "is in use by the node of"),
    ] {
        let log = refusal(args);
        assert!(log.contains(why), "{args:?}: {log}");
    }
    // The one that was there first noticed nothing.
    cluster.server.ok(&["get", "nodes"]);
    let log = refusal(&["--netns", &taken, "--node-ip", "127.0.0.1"]);
    assert!(log.contains("--node-ip 127.0.0.1: it is no machine's address"), "{log}");
}

#[test]
fn who_removes_a_killed_node_needs_not_know_its_name() {
    let mut cluster = Cluster::start(1, Layout::OneLink, &[]);
    let (node, machine) = (&mut cluster.server, &cluster.machines[0]);
    node.kill();
    // A link whose Pod has gone: nothing but its alias says whose it was.
    machine.ip("link add pw0badcafe type veth peer name left");
    machine.ip("link set pw0badcafe alias podwright/n1/gone");
    let dir = node.dir.path().to_str().unwrap().to_owned();
    let other = node.run(&["reset", "--state-dir", &dir, "--yes", "--node-name", "other"]);
    assert!(other.code == 1 && other.err.contains("--node-name other: the node of"), "{}", other.all());
    let done = node.run(&["reset", "--state-dir", &dir, "--yes"]);
    assert_eq!(done.code, 0, "{}", done.all());
    let left = machine.ip("-o link");
    assert!(left.contains("eth0") && !left.contains("pw0badcafe"), "{left}");
}

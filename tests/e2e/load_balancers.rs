//! Services of type LoadBalancer: addresses of a pool that one node announces, and another one when that dies; without a pool the
//! node's own.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    time::{Duration, Instant},
};

use crate::support::{
    TestNode,
    cluster::{Cluster, Layout},
    contains, eventually,
    netns::{Outside, Server, ask, at, within},
};

const TIMEOUT: Duration = Duration::from_secs(30);
const POOL: &str = "192.168.50.100-192.168.50.107";

fn pod(number: usize, more: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: p{number}, labels: {{app: web, name: p{number}}}}}
spec:
  {more}
  terminationGracePeriodSeconds: 0
  containers: [{{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}}]
---
"
    )
}

fn balancer(name: &str, selector: &str, more: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{type: LoadBalancer, selector: {{{selector}}}, \
         ports: [{{port: 80, targetPort: 8080}}]{more}}}}}\n---\n"
    )
}

fn ingress(server: &TestNode, name: &str) -> String {
    server.field(&["service", name], ".status.loadBalancer.ingress[*].ip")
}

/// Waits until a Service has these addresses.
#[track_caller]
fn has(server: &TestNode, name: &str, wanted: &str) {
    eventually(&format!("{name} has {wanted:?}"), TIMEOUT, || match ingress(server, name) {
        found if found == wanted => Ok(()),
        found => Err(found),
    });
}

/// Asks until `wanted` is the beginning of the answer.
#[track_caller]
fn answers(from: &Path, ip: &str, wanted: &str) {
    eventually(&format!("{wanted} answers at {ip}"), TIMEOUT, || match ask(from, at(ip, 80)) {
        Ok(answer) if answer.starts_with(wanted) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// Waits until the Service's events have a text.
#[track_caller]
fn tells(server: &TestNode, name: &str, text: &str) {
    let field = format!("involvedObject.name={name}");
    eventually(&format!("{name} hears {text:?}"), TIMEOUT, || {
        contains(&server.ok(&["get", "events", "--field-selector", &field]), text)
    });
}

/// What a node says to a load balancer in front of it.
fn checked(from: &Path, at: SocketAddr) -> String {
    within(from, || {
        let mut heard = String::new();
        let mut ask = || -> std::io::Result<()> {
            let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(2))?;
            stream.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n")?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.read_to_string(&mut heard).map(drop)
        };
        match ask() {
            Ok(()) => heard,
            Err(error) => error.to_string(),
        }
    })
}

impl Cluster {
    /// The number of the node to which the host outside sends what is for an address.
    fn announcer(&self, ip: &str) -> Option<usize> {
        let known = self.between.ip(&format!("neigh show {ip}"));
        let mac = known.split(" lladdr ").nth(1)?.split(' ').next()?.to_owned();
        let position = self.machines.iter().position(|machine| machine.ip("-o link show eth0").contains(&mac));
        position.map(|n| n + 1)
    }

    /// Waits until another node announces the address than that one; returns how long it took.
    #[track_caller]
    fn moves(&self, ip: &str, from: usize) -> Duration {
        let begin = Instant::now();
        eventually(&format!("{ip} moves from n{from}"), TIMEOUT, || match self.announcer(ip) {
            Some(number) if number != from => Ok(()),
            other => Err(format!("{other:?}")),
        });
        begin.elapsed()
    }
}

#[test]
fn addresses_of_a_pool_are_announced_by_one_node_and_by_another_one_when_that_dies() {
    let mut cluster = Cluster::start_with(3, Layout::OneLink, &[], &["--load-balancer-pool", POOL]);
    let outside = cluster.between.netns.clone();
    let server = &cluster.server;
    (1..=3).for_each(|number| server.apply(&pod(number, &format!("nodeName: n{number}"))));
    server.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let _servers: Vec<Server> = (1..=3)
        .map(|number| Server::start(&server.netns_of(&format!("p{number}")), &format!("p{number}"), 8080))
        .collect();

    // 1. Each Service has an address, which leads to it from outside; what it does not serve there is refused.
    for n in 0..4 {
        let wish = format!(", loadBalancerIP: 192.168.50.10{n}");
        server.apply(&balancer(&format!("b{n}"), "name: p3", &wish));
    }
    for n in 0..4 {
        let ip = format!("192.168.50.10{n}");
        has(server, &format!("b{n}"), &ip);
        answers(&outside, &ip, "p3 ");
    }
    tells(server, "b0", "Assigned 192.168.50.100");
    tells(server, "b0", "announcing 192.168.50.100 from node");
    let refused = ask(&outside, at("192.168.50.100", 81)).unwrap_err();
    assert!(refused.contains("refused"), "{refused}");

    // 2. Local: from the node that has the endpoint, so callers are seen as who they are; certain sources alone.
    server.apply(&balancer("local", "name: p2", ", externalTrafficPolicy: Local"));
    has(server, "local", "192.168.50.104");
    answers(&outside, "192.168.50.104", "p2 192.168.50.254");
    assert_eq!(cluster.announcer("192.168.50.104"), Some(2));
    let health = server.field(&["service", "local"], ".spec.healthCheckNodePort").parse().unwrap();
    for (number, status) in [(1, "HTTP/1.1 503 "), (2, "HTTP/1.1 200 "), (3, "HTTP/1.1 503 ")] {
        let at = at(&cluster.address(number), health);
        eventually(&format!("n{number} says {status}"), TIMEOUT, || contains(&checked(&outside, at), status));
    }
    server.apply(&balancer("some", "name: p2", ", loadBalancerSourceRanges: [203.0.113.0/24]"));
    has(server, "some", "192.168.50.105");
    assert!(ask(&outside, at("192.168.50.105", 80)).is_err(), "the host is none of those");
    server.ok(&["patch", "service", "some", "-p", "{\"spec\":{\"loadBalancerSourceRanges\":[\"192.168.50.0/24\"]}}"]);
    answers(&outside, "192.168.50.105", "p2 ");

    // 3. A node's link is cut: its addresses move, and lead to the Pod as before.
    let owned =
        |number: usize| (0..4).map(|n| format!("192.168.50.10{n}")).find(|ip| cluster.announcer(ip) == Some(number));
    let ip = owned(2).expect("one of four is announced by n2");
    cluster.between.ip("link set port2 down");
    println!("{ip} moved after {:?} (link)", cluster.moves(&ip, 2));
    answers(&outside, &ip, "p3 ");
    cluster.between.ip("link set port2 up");
    eventually("it comes back", TIMEOUT, || match cluster.announcer(&ip) {
        Some(2) => Ok(()),
        other => Err(format!("{other:?}")),
    });

    // 4. An agent is killed.
    cluster.agents[0].kill();
    println!("{ip} moved after {:?} (agent)", cluster.moves(&ip, 2));
    answers(&outside, &ip, "p3 ");
    cluster.agents[0].spawn();
    cluster.agents[0].wait_registered(&cluster.server, "n2");

    // 5. Who gives an address up, or is deleted, makes room.
    let server = &cluster.server;
    server.ok(&["delete", "service", "b0"]);
    server.apply(&balancer("next", "name: p1", ", loadBalancerIP: 192.168.50.101"));
    tells(server, "next", "192.168.50.101 is in use");
    server.ok(&["patch", "service", "b1", "-p", "{\"spec\":{\"type\":\"ClusterIP\"}}"]);
    has(server, "next", "192.168.50.101");
    has(server, "b1", "");
    answers(&outside, "192.168.50.101", "p1 ");
    eventually("nobody answers for what nobody has", TIMEOUT, || {
        cluster.between.ip("neigh flush all");
        match ask(&outside, at("192.168.50.100", 80)) {
            Err(_) if cluster.announcer("192.168.50.100").is_none() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });

    // 6. The server is killed with its node: the others need nobody to tell them.
    let ips = ["192.168.50.101", "192.168.50.102", "192.168.50.103"];
    ips.iter().for_each(|ip| drop(ask(&outside, at(ip, 80))));
    let ip = ips.into_iter().find(|ip| cluster.announcer(ip) == Some(1));
    cluster.server.kill();
    if let Some(ip) = ip {
        println!("{ip} moved after {:?} (server)", cluster.moves(ip, 1));
    }
    cluster.server.spawn();
    cluster.server.wait_ready();
    ips.iter().for_each(|ip| answers(&outside, ip, "p"));
}

#[test]
fn a_pool_that_is_used_up_says_so_and_survives_a_restart() {
    let mut node = TestNode::start(&["--load-balancer-pool", "198.51.100.1-198.51.100.2"]);
    for (n, seconds) in ["a", "b", "c"].iter().zip(1..) {
        node.apply(&balancer(n, "app: web", ""));
        if seconds < 3 {
            has(&node, n, &format!("198.51.100.{seconds}"));
        }
    }
    tells(&node, "c", "no IPv4 address of the pool is free");
    let condition = ".status.conditions[?(@.type==\"podwright/LoadBalancerAllocated\")].reason";
    assert_eq!(node.field(&["service", "c"], condition), "AllocationFailed");
    assert!(node.ok(&["get", "service", "c"]).contains("<pending>"));
    node.kill();
    node.spawn();
    node.wait_ready();
    node.ok(&["delete", "service", "a"]);
    has(&node, "c", "198.51.100.1");
    assert_eq!(ingress(&node, "b"), "198.51.100.2");
    // Another's class is another's; and an address of the pool is nobody's own.
    node.apply(&balancer("foreign", "app: web", ", loadBalancerClass: example.com/lb"));
    let named = "{apiVersion: v1, kind: Service, metadata: {name: own}, spec: {externalIPs: [198.51.100.1], ports: [{port: 80}]}}";
    let refused = node.run_with(&["apply", "-f", "-"], named.as_bytes());
    assert!(refused.code != 0 && refused.err.contains("pool of load balancer addresses"), "{}", refused.all());
    assert_eq!(node.field(&["service", "foreign"], ".status.conditions"), "");
}

#[test]
fn without_a_pool_the_nodes_own_addresses_serve() {
    let node = TestNode::start(&[]);
    node.import_busybox();
    node.apply(&(pod(1, "") + &pod(2, "")));
    node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let _servers: Vec<Server> =
        ["p1", "p2"].map(|name| Server::start(&node.netns_of(name), name, 8080)).into_iter().collect();
    let own = node.field(&["nodes"], ".items[0].status.addresses[?(@.type==\"InternalIP\")].address");
    let outside = Outside::beside(&node);
    node.apply(&balancer("one", "name: p1", ""));
    has(&node, "one", &own);
    answers(&outside.netns, &own, "p1 ");
    // The node's own programs reach it as well.
    answers(&node.netns(), &own, "p1 ");
    // A second one wants the same port, and one a port of the node's own.
    node.apply(&balancer("two", "name: p2", ""));
    tells(&node, "two", "TCP port 80 of the nodes' addresses leads to another Service");
    node.apply(&balancer("ssh", "name: p2", "").replace("port: 80", "port: 22"));
    tells(&node, "ssh", "port 22 is the nodes' own");
    assert_eq!(ingress(&node, "two"), "");
    node.ok(&["delete", "service", "one"]);
    has(&node, "two", &own);
    answers(&outside.netns, &own, "p2 ");
    // A namespace whose Pods may have no host ports has none by Services either.
    node.ok(&["label", "namespace", "default", "pod-security.kubernetes.io/enforce=baseline"]);
    has(&node, "two", "");
    tells(&node, "two", "forbids host ports");
    eventually("it is not served any more", TIMEOUT, || match ask(&outside.netns, at(&own, 80)) {
        Err(_) => Ok(()),
        Ok(answer) => Err(answer),
    });
}

//! Services as seen by Pods, the node and hosts beside it: addresses, ports, policies, names.

use std::{
    collections::BTreeSet,
    net::{SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::support::{
    TestNode, contains, eventually,
    leftovers::Machine,
    missing,
    netns::{Outside, Server, ask, ask_udp, at, within},
    slowness,
};

const TIMEOUT: Duration = Duration::from_secs(30);
const PORT: u16 = 8080;

fn pod(name: &str, more: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: web, pod: {name}}}}}
spec:
  terminationGracePeriodSeconds: 0
  {more}
  containers: [{{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}}]
---
"
    )
}

fn service(name: &str, spec: &str) -> String {
    let ports = "ports: [{name: t, port: 80, targetPort: 8080}, {name: u, port: 80, protocol: UDP, targetPort: 8080}]";
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{selector: {{app: web}}, {ports}, {spec}}}}}\n---\n"
    )
}

/// A node with Pods that respond with their names, and a client.
struct World {
    servers: Vec<Server>,
    client: PathBuf,
    node: TestNode,
    untouched: Machine,
}

impl World {
    fn new(names: &[&str]) -> World {
        let node = TestNode::start(&[]);
        let untouched = Machine::untouched(node.dir.path());
        node.import_busybox();
        let pods: String = names.iter().map(|name| pod(name, "")).collect();
        node.apply(&(pods + &pod("client", "").replace("app: web", "app: client")));
        node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
        let servers = names.iter().map(|name| Server::start(&node.netns_of(name), name, PORT)).collect();
        let client = node.netns_of("client");
        World { node, servers, client, untouched }
    }

    fn ip(&self, kind: &str, name: &str) -> String {
        let path = if kind == "pod" { ".status.podIP" } else { ".spec.clusterIP" };
        self.node.field(&[kind, name], path)
    }

    fn node_port(&self, name: &str) -> u16 {
        self.node.field(&["service", name], ".spec.ports[0].nodePort").parse().unwrap()
    }

    fn end(self) {
        let World { node, servers, untouched, .. } = self;
        drop(servers);
        node.ok(&["delete", "pods", "--all"]);
        drop(node);
        untouched.assert_unchanged();
    }
}

/// Waits until a dozen requests get exactly these responses: `name address` of the server and the client it sees.
#[track_caller]
fn answered(from: &Path, address: SocketAddr, wanted: &[&str]) {
    answered_by(|| ask(from, address), wanted);
}

#[track_caller]
fn answered_by(mut ask: impl FnMut() -> Result<String, String>, wanted: &[&str]) {
    let wanted: BTreeSet<String> = wanted.iter().map(|w| w.to_string()).collect();
    eventually(&format!("{wanted:?} answer"), TIMEOUT, || {
        let heard: BTreeSet<String> = (0..12).map(|_| ask()).collect::<Result<_, _>>()?;
        if heard == wanted { Ok(()) } else { Err(format!("heard {heard:?}")) }
    });
}

/// Waits until a connection is refused at once.
#[track_caller]
fn refused(from: &Path, address: SocketAddr) {
    eventually(&format!("{address} refuses"), TIMEOUT, || {
        let begun = Instant::now();
        match ask(from, address) {
            Err(why) if why.contains("refused") && begun.elapsed() < Duration::from_secs(1) * slowness() => Ok(()),
            other => Err(format!("{other:?} after {:?}", begun.elapsed())),
        }
    });
}

#[test]
fn node_ports_and_traffic_policies_for_a_host_beside_the_node() {
    let world = World::new(&["one", "two"]);
    let (node, client) = (&world.node, &world.client);
    let host = Outside::beside(node);
    let node_ip = node.field(&["nodes"], ".items[0].status.addresses[?(@.type==\"InternalIP\")].address");
    node.apply(&service("open", "type: NodePort"));
    node.apply(&service("local", "type: NodePort, externalTrafficPolicy: Local"));
    node.apply(&service("empty", "type: NodePort, selector: {app: nobody}").replace("selector: {app: web}, ", ""));
    let ports = ["open", "local", "empty"].map(|name| world.node_port(name));
    assert!(ports.iter().all(|p| (30000..32768).contains(p)), "{ports:?}");
    let [open, local, empty] = ports.map(|port| at(&node_ip, port));
    // The endpoints are on this node, so they see the source address.
    let seen = Outside::ADDRESS;
    let both = [&*format!("one {seen}"), &*format!("two {seen}")];
    answered(&host.netns, open, &both);
    answered(&host.netns, local, &both);
    // The node's address on the link between them is its own as well.
    answered(&host.netns, at("192.168.77.1", open.port()), &both);
    refused(&host.netns, empty);
    refused(client, empty);
    let udp = within(&host.netns, || UdpSocket::bind("0.0.0.0:0").unwrap());
    eventually("UDP is answered", TIMEOUT, || contains(&ask_udp(&udp, open)?, " "));
    // From a Pod and from the node itself.
    let pod_ip = world.ip("pod", "client");
    for (from, address) in [(client, open), (&node.netns(), open)] {
        eventually("inside it is answered", TIMEOUT, || ask(from, address));
    }
    let cluster_ip = at(&world.ip("service", "open"), 80);
    answered(client, cluster_ip, &[&format!("one {pod_ip}"), &format!("two {pod_ip}")]);
    answered(&node.netns(), cluster_ip, &[&format!("one {node_ip}"), &format!("two {node_ip}")]);
    // A remote endpoint: outside callers do not reach it with the Local policy, inside callers do.
    let far = Server::start(&host.netns, "far", PORT);
    node.apply(&service("mixed", "type: NodePort, externalTrafficPolicy: Local").replace("selector: {app: web}, ", ""));
    let (host_name, one_ip) = (node.field(&["nodes"], ".items[0].metadata.name"), world.ip("pod", "one"));
    let slice = |here: &str| {
        format!(
            "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
             metadata: {{name: mixed-1, labels: {{kubernetes.io/service-name: mixed}}}}, \
             ports: [{{name: t, port: 8080}}, {{name: u, port: 8080, protocol: UDP}}], \
             endpoints: [{here}{{addresses: [{seen}], nodeName: elsewhere}}]}}"
        )
    };
    node.apply(&slice(&format!("{{addresses: [{one_ip}], nodeName: {host_name}}}, ")));
    let mixed = at(&node_ip, world.node_port("mixed"));
    answered(client, at(&world.ip("service", "mixed"), 80), &[&format!("one {pod_ip}"), "far 192.168.77.1"]);
    answered(&host.netns, mixed, &both[..1]);
    // A Pod's outgoing traffic has the node's address.
    answered(client, at(seen, PORT), &["far 192.168.77.1"]);
    node.apply(&slice(""));
    eventually("without an endpoint here there is silence", TIMEOUT, || match ask(&host.netns, mixed) {
        Err(why) if !why.contains("refused") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    drop(far);
    // Without any endpoint all are refused.
    node.ok(&["label", "pods", "-l", "app=web", "--overwrite", "app=away"]);
    refused(&host.netns, local);
    refused(&host.netns, open);
    refused(client, cluster_ip);
    node.ok(&["label", "pods", "-l", "app=away", "--overwrite", "app=web"]);
    answered(&host.netns, open, &both);
    node.ok(&["delete", "service", "open"]);
    eventually("the port is closed", TIMEOUT, || match ask(&host.netns, open) {
        Err(_) => Ok(()),
        Ok(answer) => Err(answer),
    });
    drop(host);
    world.end();
}

/// A manual slice of a Service with these placements.
fn slice(service: &str, endpoints: &[(&str, &str)]) -> String {
    let endpoint = |(ip, node): &(&str, &str)| format!("{{addresses: [{ip}], nodeName: {node}}}");
    let endpoints: Vec<String> = endpoints.iter().map(endpoint).collect();
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
         metadata: {{name: {service}-1, labels: {{kubernetes.io/service-name: {service}}}}}, \
         ports: [{{name: t, port: 8080}}, {{name: u, port: 8080, protocol: UDP}}], endpoints: [{}]}}\n---\n",
        endpoints.join(", ")
    )
}

#[test]
fn internal_traffic_stays_on_the_node_where_the_policy_says_so() {
    let world = World::new(&["here", "there"]);
    let (node, client) = (&world.node, &world.client);
    let [here, there, asker] = ["here", "there", "client"].map(|pod| world.ip("pod", pod));
    let own = node.field(&["nodes"], ".items[0].metadata.name");
    let by_hand = |name: &str, spec: &str| service(name, spec).replace("selector: {app: web}, ", "");
    node.apply(&(by_hand("near", "internalTrafficPolicy: Local") + &by_hand("any", "internalTrafficPolicy: Cluster")));
    let place = |endpoints: &[(&str, &str)]| node.apply(&(slice("near", endpoints) + &slice("any", endpoints)));
    let [near, any] = ["near", "any"].map(|name| at(&world.ip("service", name), 80));
    let said = |name: &str| format!("{name} {asker}");
    place(&[(&here, &own), (&there, "elsewhere")]);
    answered(client, any, &[&said("here"), &said("there")]);
    answered(client, near, &[&said("here")]);
    eventually("the node itself is led to it, too", TIMEOUT, || contains(&ask(&node.netns(), near)?, "here "));
    // With only remote endpoints it drops instead of refusing.
    place(&[(&there, "elsewhere")]);
    answered(client, any, &[&said("there")]);
    eventually("without an endpoint here there is silence", TIMEOUT, || match ask(client, near) {
        Err(why) if !why.contains("refused") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    place(&[]);
    refused(client, near);
    world.end();
}

#[test]
fn a_pod_with_readiness_gates_serves_once_they_are_open() {
    let world = World::new(&["open"]);
    let node = &world.node;
    node.apply(&(service("web", "") + &pod("gated", "readinessGates: [{conditionType: example.com/warm}]")));
    node.wait("condition=ContainersReady", &["pod/gated"], TIMEOUT);
    let server = Server::start(&node.netns_of("gated"), "gated", PORT);
    let ready = |path: &str| node.field(&["pod", "gated"], &format!(".status.conditions[?(@.type==\"Ready\")].{path}"));
    assert_eq!((ready("status"), ready("reason")), ("False".to_owned(), "ReadinessGatesNotReady".to_owned()));
    let (web, asker) = (at(&world.ip("service", "web"), 80), world.ip("pod", "client"));
    let said = |name: &str| format!("{name} {asker}");
    answered(&world.client, web, &[&said("open")]);
    let gate = |status: &str| {
        let patch =
            format!("{{\"status\":{{\"conditions\":[{{\"type\":\"example.com/warm\",\"status\":\"{status}\"}}]}}}}");
        node.ok(&["patch", "pod", "gated", "--subresource", "status", "-p", &patch]);
    };
    gate("True");
    node.wait("condition=Ready", &["pod/gated"], TIMEOUT);
    answered(&world.client, web, &[&said("open"), &said("gated")]);
    gate("False");
    node.wait("condition=Ready=False", &["pod/gated"], TIMEOUT);
    answered(&world.client, web, &[&said("open")]);
    drop(server);
    world.end();
}

#[test]
fn affinity_hairpin_and_the_clients_of_a_vanished_endpoint() {
    let mut world = World::new(&["one", "two", "three"]);
    let node = &world.node;
    node.apply(&service("web", ""));
    node.apply(&service("sticky", "sessionAffinity: ClientIP"));
    let client = world.client.clone();
    let (web, sticky) = (at(&world.ip("service", "web"), 80), at(&world.ip("service", "sticky"), 80));
    let pod_ip = world.ip("pod", "client");
    let all = ["one", "two", "three"].map(|name| format!("{name} {pod_ip}"));
    answered(&client, web, &all.each_ref().map(String::as_str));
    // A Pod behind the Service reaches itself too; then it sees another source address.
    let own = node.netns_of("one");
    let own_ip = world.ip("pod", "one");
    eventually("a Pod is answered by all, itself too", TIMEOUT, || {
        let heard: BTreeSet<String> = (0..24).map(|_| ask(&own, web)).collect::<Result<_, _>>()?;
        let names: BTreeSet<&str> = heard.iter().filter_map(|h| h.split(' ').next()).collect();
        let itself = heard.iter().find(|h| h.starts_with("one ")).ok_or("not by itself")?;
        if names.len() == 3 && !itself.ends_with(&own_ip) { Ok(()) } else { Err(format!("{heard:?}")) }
    });
    let first = eventually("the sticky Service answers", TIMEOUT, || ask(&client, sticky));
    for _ in 0..20 {
        assert_eq!(ask(&client, sticky).as_ref(), Ok(&first));
    }
    // A UDP socket keeps its endpoint; when that is gone, another one answers the same socket.
    let socket = within(&client, || UdpSocket::bind("0.0.0.0:0").unwrap());
    let chosen = eventually("UDP is answered", TIMEOUT, || ask_udp(&socket, web));
    assert_eq!(ask_udp(&socket, web).as_ref(), Ok(&chosen));
    let gone = chosen.split(' ').next().unwrap().to_owned();
    let index = ["one", "two", "three"].iter().position(|name| *name == gone).unwrap();
    world.servers.remove(index);
    node.ok(&["delete", "pod", &gone]);
    eventually("another answers the same socket", TIMEOUT, || {
        let answer = ask_udp(&socket, web)?;
        if answer == chosen { Err(answer) } else { Ok(()) }
    });
    // The sticky client only moves if its own endpoint was removed.
    let then = eventually("the sticky Service answers on", TIMEOUT, || ask(&client, sticky));
    assert!(then == first || first == chosen, "{first} became {then}, though {gone} went");
    node.ok(&["delete", "pods", "-l", "app=web"]);
    refused(&client, web);
    world.servers.clear();
    world.end();
}

/// Two Pods of a headless Service, with host names.
const HEADLESS: &str = "
apiVersion: v1
kind: Service
metadata: {name: db}
spec:
  clusterIP: None
  selector: {app: web}
  ports: [{name: sql, port: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: front}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: by-hand}
spec: {ports: [{port: 80, targetPort: 8080}]}
";

#[test]
fn names_of_services_and_pods() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(HEADLESS);
    let named = |name: &str| pod(name, &format!("hostname: {name}\n  subdomain: db"));
    node.apply(&(named("a") + &named("b") + &pod("client", "").replace("app: web", "app: client")));
    node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let look =
        |kind: &str, name: &str| node.run(&["exec", "client", "--", "nslookup", &format!("-type={kind}"), name]).out;
    let ips: Vec<String> = ["a", "b"].iter().map(|pod| node.field(&["pod", pod], ".status.podIP")).collect();
    let front = node.field(&["service", "front"], ".spec.clusterIP");
    let addresses = |name: &str| -> BTreeSet<String> {
        let text = look("a", name);
        let answer = text.split_once("\n\n").map_or("", |(_, answer)| answer).to_owned();
        answer.lines().filter_map(|l| l.strip_prefix("Address: ")).map(|a| a.trim().to_owned()).collect()
    };
    let expect = |name: &str, wanted: &[&String]| {
        let wanted: BTreeSet<String> = wanted.iter().map(|w| w.to_string()).collect();
        eventually(&format!("{name} is {wanted:?}"), TIMEOUT, || {
            let found = addresses(name);
            if found == wanted { Ok(()) } else { Err(format!("{found:?}\n{}", look("a", name))) }
        });
    };
    expect("front.default.svc.cluster.local", &[&front]);
    expect("db.default.svc.cluster.local", &[&ips[0], &ips[1]]);
    expect("a.db.default.svc.cluster.local", &[&ips[0]]);
    expect(&format!("{}.default.pod.cluster.local", ips[1].replace('.', "-")), &[&ips[1]]);
    // Short names are resolved through the Pod's search path.
    for (name, ip) in [("front", &front), ("front.default", &front), ("b.db", &ips[1])] {
        let script = format!("nc -w 2 {name} 1 2>&1; ping -c 1 -w 1 {name} 2>&1 | head -n 1");
        eventually(&format!("{name} resolves"), TIMEOUT, || {
            contains(&node.run(&["exec", "client", "--", "sh", "-c", &script]).out, &format!("({ip})"))
        });
    }
    let service = look("srv", "_sql._tcp.db.default.svc.cluster.local");
    for pod in ["a", "b"] {
        contains(&service, &format!("8080 {pod}.db.default.svc.cluster.local")).unwrap();
    }
    contains(&look("srv", "_http._tcp.front.default.svc.cluster.local"), "80 front.default.svc.cluster.local").unwrap();
    let reversed = |ip: &str| ip.split('.').rev().collect::<Vec<_>>().join(".") + ".in-addr.arpa";
    contains(&look("ptr", &reversed(&front)), "name = front.default.svc.cluster.local").unwrap();
    contains(&look("ptr", &reversed(&ips[0])), "name = a.db.default.svc.cluster.local").unwrap();
    contains(&look("a", "nobody.default.svc.cluster.local"), "NXDOMAIN").unwrap();
    // The Pod's own name, and its siblings', according to its files.
    assert_eq!(node.ok(&["exec", "a", "--", "hostname", "-f"]).trim(), "a.db.default.svc.cluster.local");
    let resolv = node.ok(&["exec", "client", "--", "cat", "/etc/resolv.conf"]);
    contains(&resolv, "nameserver 10.96.0.10\n")
        .and(contains(&resolv, "search default.svc.cluster.local svc.cluster.local cluster.local"))
        .and(contains(&resolv, "options ndots:5"))
        .unwrap();
    // A deleted Pod's name is removed.
    node.ok(&["delete", "pod", "b"]);
    expect("db.default.svc.cluster.local", &[&ips[0]]);
    expect("b.db.default.svc.cluster.local", &[]);

    // A Service without a selector follows its manual slice.
    let ip = &ips[0];
    node.apply(&format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: by-hand-1, labels: {{kubernetes.io/service-name: by-hand}}}}, \
         addressType: IPv4, ports: [{{port: 8080}}], endpoints: [{{addresses: [{ip}], conditions: {{ready: true}}}}]}}"
    ));
    let server = Server::start(&node.netns_of("a"), "a", PORT);
    let by_hand = at(&node.field(&["service", "by-hand"], ".spec.clusterIP"), 80);
    let client = node.field(&["pod", "client"], ".status.podIP");
    answered(&node.netns_of("client"), by_hand, &[&format!("a {client}")]);
    drop(server);
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn dual_stack_gives_everything_an_address_of_each_family() {
    if !Path::new("/proc/sys/net/ipv6").exists() {
        missing::here("this kernel has no IPv6");
        return;
    }
    let ranges = ["--cluster-cidr", "10.244.0.0/16,fd00:244::/48", "--service-cidr", "10.96.0.0/16,fd00:96::/112"];
    let node = TestNode::start(&ranges);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(&(pod("one", "") + &pod("client", "").replace("app: web", "app: client")));
    node.apply(&service("both", "ipFamilyPolicy: RequireDualStack"));
    node.apply(&service("six", "ipFamilies: [IPv6]"));
    node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let server = Server::start(&node.netns_of("one"), "one", PORT);
    let client = node.netns_of("client");
    let list = |object: &[&str], path: &str| -> Vec<String> {
        node.field(object, path).split(' ').map(str::to_owned).collect()
    };
    let own = list(&["pod", "client"], ".status.podIPs[*].ip");
    let both = list(&["service", "both"], ".spec.clusterIPs[*]");
    let six = list(&["service", "six"], ".spec.clusterIPs[*]");
    assert!(own[0].starts_with("10.244.") && own[1].starts_with("fd00:244:"), "{own:?}");
    assert!(both[0].starts_with("10.96.") && both[1].starts_with("fd00:96:"), "{both:?}");
    assert!(six.len() == 1 && six[0].starts_with("fd00:96:"), "{six:?}");
    answered(&client, at(&both[0], 80), &[&format!("one {}", own[0])]);
    for ip in [&both[1], &six[0]] {
        answered(&client, at(ip, 80), &[&format!("one {}", own[1])]);
    }
    let families = node.field(&["endpointslices", "-l", "kubernetes.io/service-name=both"], ".items[*].addressType");
    let mut families: Vec<&str> = families.split(' ').collect();
    families.sort();
    assert_eq!(families, ["IPv4", "IPv6"]);
    let found = node.ok(&["exec", "client", "--", "nslookup", "-type=aaaa", "both.default.svc.cluster.local"]);
    contains(&found, &both[1]).unwrap();
    drop(server);
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

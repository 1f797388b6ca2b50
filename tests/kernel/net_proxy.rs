//! From the API to packets: objects are written to a real API server, and a Pod observes the effects.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright::api::request::{Body, PatchType};
use podwright::api::{Env, Options, Request, User, Verb};
use podwright::client::{Client, Recorder, local};
use podwright::node::pods_of;
use podwright::proxy::{Proxy, ProxyConfig, Sources};
use podwright::server::{Config, Server};
use podwright::store::Memory;
use podwright_net::netlink;
use podwright_runtime::sys::shared;
use serde_json::{Value, json};
use tokio::task::yield_now;

use super::net_dns::{A, NXDOMAIN, PTR, lookup};
use super::net_world::*;

/// A node whose proxy follows an API server.
struct Cluster {
    node: Node,
    server: Arc<Server>,
    client: Client,
}

impl Cluster {
    fn new() -> Cluster {
        let node = Node::single();
        let opened = Server::open(Arc::new(Memory::new()), Env::system(), Config::default());
        let server = node.wait(opened).unwrap();
        let client = local::client(server.clone(), "kube-proxy");
        Cluster { node, server, client }
    }

    fn start(&self) -> Proxy {
        let config = ProxyConfig {
            node: "node1".to_owned(),
            domain: "cluster.local".to_owned(),
            service_ranges: vec!["10.96.0.0/16".parse().unwrap()],
            dns: self.node.network.config().dns.clone(),
            api: Vec::new(),
            servers: vec!["203.0.113.9".parse().unwrap()],
        };
        let resolv_conf = self.node.folder.path().join("resolv.conf");
        self.node.wait(async {
            // A predecessor closes its sockets soon after being dropped, not at once.
            let deadline = Instant::now() + Duration::from_secs(10);
            let dns = loop {
                match Proxy::dns(&config, &self.node.network, &resolv_conf, shared::read_linked).await {
                    Err(e) if e.errno() == Some(libc::EADDRINUSE) && Instant::now() < deadline => yield_now().await,
                    dns => break Arc::new(dns.unwrap()),
                }
            };
            let sources = Sources::start(self.client.clone(), "node1", pods_of(&self.client, "node1"));
            let recorder = Recorder::new(self.client.clone(), Env::system(), "kube-proxy", Some("node1"));
            let proxy = Proxy::start(config, sources, self.node.network.clone(), Some(dns), recorder);
            proxy.synced().await;
            proxy
        })
    }

    fn ask(&self, verb: Verb, resource: &str, name: &str, body: Option<Value>) {
        let (resource, subresource) =
            resource.split_once('/').map_or((resource, None), |(r, s)| (r, Some(s.to_owned())));
        let request = Request {
            verb,
            resource: resource.to_owned(),
            subresource,
            namespace: (resource != "nodes").then(|| "default".to_owned()),
            name: Some(name.to_owned()),
            body,
            options: Options { patch_type: Some(PatchType::Merge), ..Options::default() },
            user: User::system("test"),
            ..Request::default()
        };
        self.node.wait(self.server.handle(request)).unwrap();
    }

    fn service(&self, spec: Value) {
        let body = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec});
        self.ask(Verb::Create, "services", "", Some(body));
    }

    fn slice(&self, verb: Verb, pods: &[&Pod]) {
        let endpoints: Vec<Value> = pods.iter().map(|p| json!({"addresses": [p.ip()], "nodeName": "node1"})).collect();
        let body = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": [{"name": "", "port": POD_PORT}], "endpoints": endpoints});
        let name = if verb == Verb::Create { "" } else { "web-1" };
        self.ask(verb, "endpointslices.discovery.k8s.io", name, Some(body));
    }

    /// The events with a reason: object, message, and count.
    fn told(&self, reason: &str) -> Vec<[Value; 3]> {
        let request = Request {
            verb: Verb::List,
            resource: "events".to_owned(),
            namespace: Some("default".to_owned()),
            user: User::system("test"),
            ..Request::default()
        };
        let Body::List(list) = self.node.wait(self.server.handle(request)).unwrap().body else { panic!("no list") };
        let events = list.items.iter().map(|item| serde_json::from_slice::<Value>(item).unwrap());
        let of_reason = events.filter(|event| event["reason"] == reason);
        let fields = |event: Value| ["/involvedObject/name", "/message", "/count"].map(|at| event.pointer(at).cloned());
        of_reason.map(fields).map(|fields| fields.map(Option::unwrap_or_default)).collect()
    }
}

#[test]
fn what_the_api_says_reaches_packets_and_names() {
    let cluster = Cluster::new();
    let node = &cluster.node;
    let (a, b, client) = (node.server("a"), node.server("b"), node.pod("client"));
    let vip: SocketAddr = at("10.96.5.5", 80);
    let web = "web.default.svc.cluster.local";
    cluster.service(json!({"clusterIP": "10.96.5.5", "ports": [{"port": 80}]}));
    let proxy = cluster.start();
    assert_eq!(ask(client.netns.as_fd(), vip).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(lookup(client.netns.as_fd(), web, A).bytes.ends_with(&[10, 96, 5, 5]));

    cluster.slice(Verb::Create, &[&a]);
    eventually(|| ask(client.netns.as_fd(), vip).map(|(name, _)| name).ok(), |name| name.as_deref() == Some("a"));
    cluster.slice(Verb::Update, &[&b]);
    eventually(|| ask(client.netns.as_fd(), vip).map(|(name, _)| name).ok(), |name| name.as_deref() == Some("b"));

    // Changes while no agent runs are applied by the next one.
    drop(proxy);
    cluster.slice(Verb::Update, &[&a]);
    let _proxy = cluster.start();
    assert_eq!(ask(client.netns.as_fd(), vip).unwrap().0, "a");

    cluster.ask(Verb::Delete, "services", "web", None);
    eventually(|| ask(client.netns.as_fd(), vip).is_err(), |refused| *refused);
    eventually(|| lookup(client.netns.as_fd(), web, A).code, |code| *code == NXDOMAIN);
}

#[test]
fn host_ports_lead_to_their_pod_while_it_runs() {
    let cluster = Cluster::new();
    let node = &cluster.node;
    let (web, client) = (node.server("web"), node.pod("client"));
    let outside = outsider(node, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    cluster.ask(
        Verb::Create,
        "nodes",
        "",
        Some(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]}})),
    );
    let ports = json!([{"containerPort": POD_PORT, "hostPort": 8088},
        {"containerPort": POD_PORT, "hostPort": 8053, "protocol": "UDP"},
        {"containerPort": POD_PORT, "hostPort": 8099, "hostIP": "203.0.113.1"},
        {"containerPort": POD_PORT, "hostPort": 8100, "hostIP": node.network.addresses()[0].to_string()},
        {"containerPort": POD_PORT, "hostPort": 8101, "hostIP": "127.0.0.1"},
        {"containerPort": POD_PORT, "hostPort": 8101, "hostIP": "127.0.0.1", "protocol": "UDP"}]);
    cluster.ask(
        Verb::Create,
        "pods",
        "",
        Some(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"nodeName": "node1", "containers": [{"name": "c", "image": "i:1", "ports": ports}]}})),
    );
    let _proxy = cluster.start();
    let status = |phase: &str| {
        let status = json!({"phase": phase, "podIP": web.ip(), "podIPs": [{"ip": web.ip()}]});
        cluster.ask(Verb::Patch, "pods/status", "web", Some(json!({"status": status})));
    };
    let node_ip = node.network.addresses()[0];
    let reaches = |netns: BorrowedFd<'_>, to: SocketAddr| ask(netns, to).map(|(name, _)| name).ok();
    status("Running");
    let there = SocketAddr::new(node_ip, 8088);
    eventually(|| reaches(client.netns.as_fd(), there), |name| name.as_deref() == Some("web"));
    // From outside with the caller's own address; from the Pod itself too.
    let caller = "203.0.113.9".parse().unwrap();
    assert_eq!(ask(outside.as_fd(), at("203.0.113.1", 8088)).unwrap(), ("web".to_owned(), caller));
    assert_eq!(ask_udp(outside.as_fd(), at("203.0.113.1", 8053)).unwrap(), ("web".to_owned(), caller));
    assert_eq!(reaches(web.netns.as_fd(), there).as_deref(), Some("web"));
    // An explicit address is the only one.
    assert_eq!(ask(outside.as_fd(), at("203.0.113.1", 8099)).unwrap(), ("web".to_owned(), caller));
    assert_eq!(reaches(client.netns.as_fd(), SocketAddr::new(node_ip, 8099)), None);
    // One of the node's own likewise; and its loopback, only from the node itself.
    assert_eq!(reaches(client.netns.as_fd(), SocketAddr::new(node_ip, 8100)).as_deref(), Some("web"));
    assert_eq!(reaches(outside.as_fd(), at("203.0.113.1", 8100)), None);
    let on_loopback = at("127.0.0.1", 8101);
    eventually(|| reaches(node.network.netns().fd(), on_loopback), |name| name.as_deref() == Some("web"));
    assert_eq!(reaches(client.netns.as_fd(), on_loopback), None);
    let sends = |netns: BorrowedFd<'_>| ask_udp(netns, on_loopback).map(|(name, _)| name).ok();
    eventually(|| sends(node.network.netns().fd()), |name| name.as_deref() == Some("web"));
    assert_eq!(sends(client.netns.as_fd()), None);
    assert_eq!(reaches(client.netns.as_fd(), SocketAddr::new(node_ip, 8101)), None);
    status("Succeeded");
    eventually(|| reaches(client.netns.as_fd(), there), Option::is_none);
    eventually(|| reaches(node.network.netns().fd(), on_loopback), Option::is_none);
    eventually(|| sends(node.network.netns().fd()), Option::is_none);
}

/// The node is not notified when a loopback port becomes free.
#[test]
fn a_port_of_loopback_that_another_has_is_the_pods_once_it_is_free() {
    let cluster = Cluster::new();
    let node = &cluster.node;
    let (web, on_loopback) = (node.server("web"), at("127.0.0.1", 8101));
    let in_node = || std::net::UdpSocket::bind(on_loopback);
    let other = netlink::in_netns(node.netns(), in_node).unwrap().unwrap();
    let ports = json!([{"containerPort": POD_PORT, "hostPort": 8101, "hostIP": "127.0.0.1", "protocol": "UDP"}]);
    let spec = json!({"nodeName": "node1", "containers": [{"name": "c", "image": "i:1", "ports": ports}]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec});
    cluster.ask(Verb::Create, "pods", "", Some(pod));
    let status = json!({"phase": "Running", "podIP": web.ip(), "podIPs": [{"ip": web.ip()}]});
    cluster.ask(Verb::Patch, "pods/status", "web", Some(json!({"status": status})));
    let _proxy = cluster.start();
    let told = eventually(|| cluster.told("HostPortNotServed"), |told| told.len() == 1);
    assert!(told[0][1].as_str().is_some_and(|message| message.contains("in use")), "{told:?}");
    drop(other);
    let sends = || ask_udp(node.network.netns().fd(), on_loopback).map(|(name, _)| name).ok();
    eventually(sends, |name| name.as_deref() == Some("web"));
}

#[test]
fn who_does_not_get_what_it_names_hears_of_it() {
    let cluster = Cluster::new();
    for name in ["one", "two"] {
        let ports = json!([{"name": "a", "port": 80}, {"name": "b", "port": 81}]);
        let spec = json!({"externalIPs": ["198.51.100.7"], "ports": ports});
        let body = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
        cluster.ask(Verb::Create, "services", "", Some(body));
    }
    let _proxy = cluster.start();
    let told = eventually(|| cluster.told("PortAlreadyAllocated"), |told| told.len() == 2);
    // Only one of the two, for both of its ports.
    assert_eq!(told[0][0], told[1][0], "{told:?}");
    let messages: Vec<&str> = told.iter().filter_map(|[_, message, _]| message.as_str()).collect();
    for port in [80, 81] {
        let message = format!("TCP port {port} of 198.51.100.7 leads to another Service or Pod, which is older");
        assert!(messages.contains(&message.as_str()), "{messages:?}");
    }
    // An unassigned address is served until a node has it; each reason is reported once, whatever happens to endpoints.
    let (told, dns) = (|| cluster.told("ExternalAddressNotServed"), cluster.node.network.config().dns[0]);
    cluster.service(json!({"externalIPs": [dns, "198.51.100.8"], "ports": [{"port": 80}]}));
    let once = |message: &str| [json!("web"), json!(message), json!(1)];
    let first = format!("external address {dns} is not served: it is the address of the cluster's DNS");
    assert_eq!(eventually(told, |told| !told.is_empty()), [once(&first)]);
    cluster.slice(Verb::Create, &[&cluster.node.pod("a")]);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"}});
    cluster.ask(Verb::Create, "nodes", "", Some(node));
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "198.51.100.8"}]}});
    cluster.ask(Verb::Patch, "nodes/status", "other", Some(status));
    let second = format!("{first}; external address 198.51.100.8 is not served: it is the address of a Pod or node");
    let both = [once(&first), once(&second)];
    eventually(told, |told| told.len() == 2 && both.iter().all(|one| told.contains(one)));
}

/// A Service may claim the servers' addresses: nodes would no longer reach them.
#[test]
fn servers_are_reached_whatever_services_say() {
    let cluster = Cluster::new();
    let node = &cluster.node;
    let outside = outsider(node, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    run_in(outside.as_fd(), "ip", &["address", "add", "203.0.113.10/24", "dev", "eth0"]);
    node.serve(outside.as_fd(), "server", 6443);
    let ips = ["203.0.113.9", "203.0.113.10", "203.0.113.11"];
    cluster.service(json!({"clusterIP": "10.96.5.5", "externalIPs": ips, "ports": [{"port": 6443}]}));
    let _proxy = cluster.start();
    let reached = |ip: &str| ask(node.netns(), at(ip, 6443)).map(|(name, _)| name).map_err(|e| e.kind());
    assert_eq!(reached(ips[0]).as_deref(), Ok("server"), "where the node was told that its server is");
    let refused = Err(std::io::ErrorKind::ConnectionRefused);
    assert_eq!([reached(ips[1]), reached(ips[2])], [refused.clone(), refused.clone()], "it is nobody's");
    // A second server joins.
    let body = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4", "ports": [{"name": "https", "port": 6443}], "endpoints": [{"addresses": [ips[1]]}]});
    cluster.ask(Verb::Create, "endpointslices.discovery.k8s.io", "", Some(body));
    eventually(|| reached(ips[1]).is_ok(), |reached| *reached);
    assert_eq!(reached(ips[2]), refused);
}

/// The range of its Pods was unknown before: a question for it went to the host's name servers.
#[test]
fn reverse_names_of_a_node_that_joins_are_the_clusters() {
    let cluster = Cluster::new();
    let client = cluster.node.pod("client");
    cluster.service(json!({"clusterIP": "10.96.5.5", "ports": [{"port": 80}]}));
    let _proxy = cluster.start();
    let code = |name: &str, kind: u16| lookup(client.netns.as_fd(), name, kind).code;
    let of_pod = || code("7.9.244.10.in-addr.arpa", PTR);
    assert_ne!(of_pod(), NXDOMAIN);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"},
        "spec": {"podCIDR": "10.244.9.0/24", "podCIDRs": ["10.244.9.0/24"]}});
    cluster.ask(Verb::Create, "nodes", "", Some(node));
    eventually(of_pod, |code| *code == NXDOMAIN);
    assert_eq!([code("web.default.svc.cluster.local", A), code("5.5.96.10.in-addr.arpa", PTR)], [0, 0]);
}

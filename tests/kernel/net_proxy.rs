//! From the API to packets: objects are written to a real API server, and a Pod sees what follows.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use podwright::api::{Env, Request, User, Verb};
use podwright::client::{Client, local};
use podwright::proxy::{Proxy, ProxyConfig, Sources};
use podwright::server::{Config, Server};
use podwright::store::Memory;
use serde_json::{Value, json};

use super::net_dns::{A, lookup};
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
        };
        let resolv_conf = self.node.folder.path().join("resolv.conf");
        self.node.wait(async {
            let dns = Arc::new(Proxy::dns(&config, &self.node.network, &resolv_conf).await.unwrap());
            let sources = Sources::start(self.client.clone());
            let proxy = Proxy::start(config, sources, self.node.network.clone(), Some(dns));
            proxy.synced().await;
            proxy
        })
    }

    fn ask(&self, verb: Verb, resource: &str, name: &str, body: Option<Value>) {
        let request = Request {
            verb,
            resource: resource.to_owned(),
            namespace: Some("default".to_owned()),
            name: Some(name.to_owned()),
            body,
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

    // What changes while no agent runs is caught up with by the next one.
    drop(proxy);
    cluster.slice(Verb::Update, &[&a]);
    let _proxy = cluster.start();
    assert_eq!(ask(client.netns.as_fd(), vip).unwrap().0, "a");

    cluster.ask(Verb::Delete, "services", "web", None);
    eventually(|| ask(client.netns.as_fd(), vip).is_err(), |refused| *refused);
    eventually(|| lookup(client.netns.as_fd(), web, A).code, |code| *code == 3);
}

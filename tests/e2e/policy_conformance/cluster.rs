//! Nodes with the Pods of [`super::world`] on them, a Service before each, and a host outside.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    model::{End, Flow, Place, World},
    nodes::{Nodes, addresses},
    policy::{Labels, Policy, Protocol, Spec},
    station::{Book, Question, Station},
    world::{self, HOST, OUTSIDE, PORTS},
};
use crate::support::{TestNode, api::call, cluster::Layout, leftovers::Machine};

const TIMEOUT: Duration = Duration::from_secs(60);
/// What a Service has for the port 80 of its Pod is port 1080.
const ABOVE: u16 = 1000;

pub struct Cluster {
    stations: BTreeMap<String, Station>,
    nodes: Nodes,
    untouched: Vec<Machine>,
    /// As it is now.
    pub world: World,
    services: BTreeMap<String, Service>,
    written: BTreeMap<(String, String), Spec>,
}

/// Where a Service is to be found.
struct Service {
    cluster_ips: Vec<IpAddr>,
    node_ports: BTreeMap<(Protocol, u16), u16>,
}

/// A connection, and how it is opened.
#[derive(Clone, Copy, Debug)]
pub struct Probe<'a> {
    pub flow: Flow<'a>,
    pub question: Question,
}

impl Cluster {
    /// On one node, in all families that this kernel has.
    pub fn start() -> Cluster {
        Cluster::on(Nodes::one())
    }

    /// On several nodes, of which all but the first have joined by TLS.
    pub fn start_on(count: usize, layout: Layout) -> Cluster {
        Cluster::on(Nodes::several(count, layout))
    }

    fn on(nodes: Nodes) -> Cluster {
        let node = nodes.server();
        let untouched = nodes.folders().map(Machine::untouched).collect();
        let names: Vec<String> =
            node.field(&["nodes"], ".items[*].metadata.name").split(' ').map(str::to_owned).collect();
        let pods = world::pods(&names);
        let mut manifest = world::namespaces().iter().map(|(name, labels)| namespace(name, labels)).collect::<String>();
        let service = |name: &str| service(name, nodes.is_dual());
        pods.iter().for_each(|(name, pod)| manifest += &(self::pod(name, pod) + &service(name)));
        manifest += &(service(OUTSIDE) + &slices(&nodes.outside_addresses()));
        node.apply(&manifest);
        for namespace in world::NAMESPACES {
            node.wait("condition=Ready", &["-n", namespace, "pods", "--all"], TIMEOUT);
        }
        let mut ends: Vec<End> = Vec::new();
        for (name, pod) in pods {
            let (namespace, short) = place(&name);
            let found = node.field(&["-n", namespace, "pod", short], ".status.podIPs[*].ip");
            ends.push(End { name, addresses: addresses(&found), place: Place::Pod(pod) });
        }
        ends.push(End { name: OUTSIDE.to_owned(), addresses: nodes.outside_addresses(), place: Place::Outside });
        let services = ends.iter().map(|end| (end.name.clone(), Service::of(node, &end.name))).collect();
        let book = Book::default();
        let stations = ends.iter().map(|end| (end.name.clone(), station(&nodes, end, &book))).collect();
        let world = World { namespaces: world::namespaces(), ends };
        Cluster { stations, nodes, untouched, world, services, written: BTreeMap::new() }
    }

    /// The node with the server.
    pub fn node(&self) -> &TestNode {
        self.nodes.server()
    }

    /// All that can be tried: from everybody to everybody, by their own addresses and by their Services. Who is outside comes to these
    /// by node ports; what he and the node do with each other is not a matter of policies.
    pub fn probes<'a>(&self, world: &'a World) -> Vec<Probe<'a>> {
        let of_pods =
            |flow: &Flow<'_>| [flow.from, flow.to].iter().any(|end| ![HOST, OUTSIDE].contains(&end.name.as_str()));
        let mut probes = Vec::new();
        for flow in super::flows(world).filter(of_pods) {
            let question = |address, by_service| Question { protocol: flow.protocol, address, by_service };
            probes.push(Probe { flow, question: question(SocketAddr::new(flow.destination, flow.port), false) });
            let address = self.services[&flow.to.name].address(&flow, &self.nodes);
            probes.extend(address.map(|address| Probe { flow, question: question(address, true) }));
        }
        probes
    }

    /// The Service of a probe as `podwright why` has it: who is outside comes by a node port.
    pub fn service(&self, probe: &Probe<'_>) -> String {
        let (name, address) = (&probe.flow.to.name, probe.question.address);
        match (&*probe.flow.from.name, &probe.flow.to.place) {
            (OUTSIDE, Place::Pod(pod)) => format!("node/{}:{}", pod.node, address.port()),
            _ => format!("svc/{}/{}:{}", place(name).0, service_name(name), address.port()),
        }
    }

    pub fn address(&self, name: &str) -> IpAddr {
        let end = self.world.ends.iter().find(|end| end.name == name);
        end.unwrap_or_else(|| panic!("there is no {name}")).addresses[0]
    }

    /// Opens all connections, everybody his own at the same time; what each was answered.
    pub fn ask(&self, probes: &[Probe<'_>]) -> Vec<Option<String>> {
        let mut of: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        probes.iter().enumerate().for_each(|(at, probe)| of.entry(&probe.flow.from.name).or_default().push(at));
        let mut answers = vec![None; probes.len()];
        std::thread::scope(|threads| {
            let ask = |(from, which): (&str, Vec<usize>)| {
                let station = &self.stations[from];
                let questions: Vec<Question> = which.iter().map(|at| probes[*at].question).collect();
                (which, threads.spawn(move || station.ask(&questions)))
            };
            let asked: Vec<_> = of.into_iter().map(ask).collect();
            for (which, thread) in asked {
                let given = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                which.into_iter().zip(given).for_each(|(at, answer)| answers[at] = answer);
            }
        });
        answers
    }

    /// Has these policies be there, and no others.
    pub fn write(&mut self, policies: &[Policy]) {
        let wanted: BTreeMap<_, _> = policies.iter().map(|it| ((it.namespace.clone(), it.name.clone()), it)).collect();
        let gone: Vec<_> = self.written.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect();
        for (namespace, name) in gone {
            self.call("delete", "networkpolicies", &namespace, &name, Value::Null);
            self.written.remove(&(namespace, name));
        }
        for (key, policy) in wanted {
            let verb = match self.written.get(&key) {
                Some(spec) if *spec == policy.spec => continue,
                Some(_) => "update",
                None => "create",
            };
            self.call(verb, "networkpolicies", &policy.namespace, &policy.name, policy.manifest());
            self.written.insert(key, policy.spec.clone());
        }
    }

    /// Has everybody's labels be as in `world`.
    pub fn label(&mut self, world: &World) {
        let patch = |old: &Labels, new: &Labels| {
            let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
            let new = new.iter().map(|(key, value)| (key.clone(), json!(value)));
            json!({"metadata": {"labels": serde_json::Map::from_iter(gone.chain(new))}})
        };
        for (end, then) in self.world.ends.iter().zip(&world.ends) {
            let (Place::Pod(old), Place::Pod(new)) = (&end.place, &then.place) else { continue };
            if old.labels != new.labels {
                let (namespace, name) = place(&end.name);
                self.call("patch", "pods", namespace, name, patch(&old.labels, &new.labels));
            }
        }
        for (name, new) in &world.namespaces {
            let old = &self.world.namespaces[name];
            if old != new {
                self.call("patch", "namespaces", "", name, patch(old, new));
            }
        }
        self.world = world.clone();
    }

    fn call(&self, verb: &str, resource: &str, namespace: &str, name: &str, body: Value) {
        let mut params = json!({"resource": resource, "name": name});
        if !namespace.is_empty() {
            params["namespace"] = json!(namespace);
        }
        if !body.is_null() {
            params["body"] = body;
        }
        if verb == "patch" {
            params["options"] = json!({"patchType": "application/merge-patch+json"});
        }
        call(&self.node().socket(), verb, params.clone()).unwrap_or_else(|e| panic!("{verb} {params:#}: {e:?}"));
    }

    /// Leaves nothing behind.
    pub fn end(self) {
        let Cluster { stations, nodes, untouched, .. } = self;
        drop(stations);
        for namespace in world::NAMESPACES {
            nodes.server().ok(&["-n", namespace, "delete", "pods", "--all"]);
        }
        drop(nodes);
        untouched.iter().for_each(Machine::assert_unchanged);
    }
}

impl Service {
    fn of(node: &TestNode, name: &str) -> Service {
        let found = node.ok(&["-n", place(name).0, "get", "service", &service_name(name), "-o", "json"]);
        let found: Value = serde_json::from_str(&found).unwrap();
        let ips = found["spec"]["clusterIPs"].as_array().into_iter().flatten();
        let cluster_ips = ips.map(|ip| ip.as_str().unwrap_or_default().parse().unwrap()).collect();
        let port = |port: &Value| {
            let protocol: Protocol = serde_json::from_value(port["protocol"].clone()).unwrap();
            Some(((protocol, port["targetPort"].as_u64()? as u16), port["nodePort"].as_u64()? as u16))
        };
        let node_ports = found["spec"]["ports"].as_array().into_iter().flatten().filter_map(port).collect();
        Service { cluster_ips, node_ports }
    }

    /// Where a flow's opener finds it. Who is outside finds a Pod at its own node, which passes him on as who he is.
    fn address(&self, flow: &Flow<'_>, nodes: &Nodes) -> Option<SocketAddr> {
        if flow.from.name == OUTSIDE {
            let Place::Pod(pod) = &flow.to.place else { return None };
            let ip = nodes.address(&pod.node, flow.destination.is_ipv4());
            return Some(SocketAddr::new(ip, *self.node_ports.get(&(flow.protocol, flow.port))?));
        }
        let ip = self.cluster_ips.iter().find(|ip| ip.is_ipv4() == flow.destination.is_ipv4())?;
        Some(SocketAddr::new(*ip, flow.port + ABOVE))
    }
}

/// Namespace and name of a Pod, and of a Service; who is no tenant's is in `x`.
fn place(name: &str) -> (&str, &str) {
    name.split_once('/').unwrap_or(("x", name))
}

fn station(nodes: &Nodes, end: &End, book: &Book) -> Station {
    let netns = match end.name.as_str() {
        HOST => nodes.host(),
        OUTSIDE => nodes.outside(),
        pod => nodes.server().netns_in(place(pod).0, place(pod).1),
    };
    Station::start(netns, &end.name, &end.addresses, book)
}

fn namespace(name: &str, labels: &Labels) -> String {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}).to_string()
        + "\n---\n"
}

fn pod(name: &str, pod: &super::model::Pod) -> String {
    let mut labels = pod.labels.clone();
    labels.insert("serves".to_owned(), service_name(name));
    let port =
        |it: &super::model::NamedPort| json!({"name": it.name, "protocol": it.protocol, "containerPort": it.number});
    let ports: Vec<Value> = pod.ports.iter().map(port).collect();
    let container =
        json!({"name": "c", "image": "localhost/busybox:1", "command": ["sleep", "100000"], "ports": ports});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": place(name).1, "namespace": pod.namespace, "labels": labels},
        "spec": {
            "nodeName": pod.node, "terminationGracePeriodSeconds": 0, "hostNetwork": pod.host_network, "containers": [container],
        },
    });
    pod.to_string() + "\n---\n"
}

fn service_name(name: &str) -> String {
    format!("s-{}", place(name).1)
}

/// By all protocols and ports; who is outside is behind one that selects nobody.
fn service(name: &str, is_dual: bool) -> String {
    let ports = Protocol::ALL.iter().flat_map(|protocol| PORTS.map(|port| (*protocol, port)));
    let port = |(protocol, port): (Protocol, u16)| json!({"name": port_name(protocol, port), "protocol": protocol, "port": port + ABOVE, "targetPort": port});
    let ports: Vec<Value> = ports.map(port).collect();
    let policy = if is_dual { "RequireDualStack" } else { "SingleStack" };
    let mut spec = json!({"ipFamilyPolicy": policy, "ports": ports});
    if name != OUTSIDE {
        spec["type"] = json!("NodePort");
        spec["selector"] = json!({"serves": service_name(name)});
    }
    let metadata = json!({"name": service_name(name), "namespace": place(name).0});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}).to_string() + "\n---\n"
}

fn port_name(protocol: Protocol, port: u16) -> String {
    format!("{}-{port}", protocol.name().to_lowercase())
}

/// Where the Service leads that selects nobody.
fn slices(outside: &[IpAddr]) -> String {
    let ports = Protocol::ALL.iter().flat_map(|protocol| PORTS.map(|port| (*protocol, port)));
    let port = |(protocol, port)| json!({"name": port_name(protocol, port), "protocol": protocol, "port": port});
    let ports: Vec<Value> = ports.map(port).collect();
    let slice = |address: &IpAddr| {
        let (service, family) = (service_name(OUTSIDE), if address.is_ipv4() { "IPv4" } else { "IPv6" });
        let labels = json!({"kubernetes.io/service-name": service});
        let name = format!("{service}-{}", family.to_lowercase());
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
            "metadata": {"name": name, "namespace": place(OUTSIDE).0, "labels": labels},
            "ports": ports, "endpoints": [{"addresses": [address]}],
        })
    };
    outside.iter().map(|address| slice(address).to_string() + "\n---\n").collect()
}

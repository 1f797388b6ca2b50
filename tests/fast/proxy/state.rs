//! Objects compiled to the state of a node's network: what a change of theirs changes there, driver by driver.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use expect_test::{Expect, expect};
use k8s_openapi::api::{
    core::v1::{Node, Pod, Service},
    discovery::v1::EndpointSlice,
};
use podwright::client::{Delta, Key};
use podwright::proxy::{Compiler, Dirty, Notice, Objects, ProxyConfig};
use podwright_net::dataplane::{self, NodeFacts};
use podwright_net::dns::Names;
use podwright_net::forwards::Forward;
use podwright_net::state::{Changes, Zone};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::Instant;

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

/// Objects, and what has happened to them that is not compiled yet.
#[derive(Default)]
struct World {
    services: BTreeMap<Key, Arc<Service>>,
    slices: BTreeMap<Key, Arc<EndpointSlice>>,
    pods: BTreeMap<Key, Arc<Pod>>,
    nodes: BTreeMap<Key, Arc<Node>>,
    dirty: Dirty,
    /// How often all objects of a kind were asked for, and one Service.
    lists: Cell<usize>,
    gets: Cell<usize>,
}

impl World {
    fn listed<T: Clone>(&self, all: &BTreeMap<Key, T>) -> Vec<T> {
        self.lists.set(self.lists.get() + 1);
        all.values().cloned().collect()
    }
}

impl Objects for World {
    fn services(&self) -> Vec<Arc<Service>> {
        self.listed(&self.services)
    }
    fn service(&self, key: &Key) -> Option<Arc<Service>> {
        self.gets.set(self.gets.get() + 1);
        self.services.get(key).cloned()
    }
    /// Each has one here.
    fn slices(&self, service: &Key) -> Vec<Arc<EndpointSlice>> {
        self.slices.get(service).cloned().into_iter().collect()
    }
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.listed(&self.pods)
    }
    fn pod(&self, key: &Key) -> Option<Arc<Pod>> {
        self.pods.get(key).cloned()
    }
    fn nodes(&self) -> Vec<Arc<Node>> {
        self.listed(&self.nodes)
    }
    fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(&Key::new("", name)).cloned()
    }
}

fn changed<T>(all: &mut BTreeMap<Key, Arc<T>>, key: &Key, new: Option<T>) -> Delta<T> {
    let (key, new) = (key.clone(), new.map(Arc::new));
    let old = match new.clone() {
        Some(new) => all.insert(key.clone(), new),
        None => all.remove(&key),
    };
    Delta { key, old, new, undecodable: None }
}

fn in_default(name: &str) -> Key {
    Key::new("default", name)
}

impl World {
    fn set_service(&mut self, name: &str, spec: Option<Value>) {
        let object =
            |spec| read(json!({"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec}));
        let delta = changed(&mut self.services, &in_default(name), spec.map(object));
        self.dirty.service(delta);
    }

    fn set_slice(&mut self, service: &str, addresses: &[&str]) {
        let endpoints: Vec<Value> = addresses.iter().map(|address| json!({"addresses": [address]})).collect();
        let slice = read(json!({"addressType": "IPv4", "ports": [{"name": "", "port": 8080}], "endpoints": endpoints,
            "metadata": {"name": service, "namespace": "default", "labels": {"kubernetes.io/service-name": service}}}));
        let delta = changed(&mut self.slices, &in_default(service), Some(slice));
        self.dirty.slice(&delta);
    }

    fn set_pod(&mut self, name: &str, ip: Option<&str>, ports: &Value) {
        let object = |ip| {
            read(json!({"metadata": {"name": name, "namespace": "default", "uid": name},
                "spec": {"containers": [{"name": "c", "ports": ports}]}, "status": {"podIPs": [{"ip": ip}]}}))
        };
        let delta = changed(&mut self.pods, &in_default(name), ip.map(object));
        self.dirty.pod(delta);
    }

    fn set_node(&mut self, name: &str, zone: &str, range: &str) {
        let node = read(json!({"metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
            "spec": {"podCIDR": range, "podCIDRs": [range]}}));
        changed(&mut self.nodes, &Key::new("", name), Some(node));
        self.dirty.nodes();
    }

    fn compile(&mut self, compiler: &mut Compiler) -> (Changes, Vec<Notice>) {
        let dirty = std::mem::take(&mut self.dirty);
        compiler.update(self, dirty, Instant::now())
    }
}

fn compiler() -> Compiler {
    let config = ProxyConfig {
        node: "a".to_owned(),
        domain: "cluster.local".to_owned(),
        service_ranges: vec!["10.96.0.0/16".parse().unwrap()],
        dns: vec!["10.96.0.10".parse().unwrap()],
        api: Vec::new(),
        servers: Vec::new(),
    };
    Compiler::new(config, vec!["192.0.2.1".parse().unwrap()])
}

fn text((changes, notices): (Changes, Vec<Notice>)) -> String {
    let mut text = String::new();
    if let Some(facts) = changes.facts {
        let _ = writeln!(text, "facts: own Pods {:?}, cluster {:?}", facts.pod_ranges, facts.cluster_ranges);
    }
    if let Some(zone) = changes.zone {
        let _ = writeln!(text, "zone: {} reverse {:?}", zone.domain, zone.reverse);
    }
    for (key, service) in changes.services {
        let ports = service.iter().flat_map(|service| &service.ports);
        let ports: Vec<_> = ports.map(|port| (port.port, &port.internal.endpoints)).collect();
        let _ = writeln!(text, "service {key}: {ports:?}");
    }
    for (key, names) in changes.names {
        let _ = writeln!(text, "names {key}: {:?}", names.keys().collect::<Vec<_>>());
    }
    for (key, forwards) in changes.forwards {
        let forwards: Vec<String> = forwards.iter().map(|f| format!("{} -> {}", f.at, f.to)).collect();
        let _ = writeln!(text, "forwards {key}: {forwards:?}");
    }
    for notice in notices {
        let _ = writeln!(text, "{} {}: {}", notice.about, notice.reason, notice.message);
    }
    text
}

fn check(world: &mut World, compiler: &mut Compiler, expected: Expect) {
    expected.assert_eq(&text(world.compile(compiler)));
}

fn web() -> Value {
    json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ports": [{"port": 80}]})
}

#[test]
fn a_change_reaches_the_drivers_that_it_concerns() {
    let (mut world, mut compiler) = (World::default(), compiler());
    world.set_node("a", "east", "10.244.1.0/24");
    world.set_service("web", Some(web()));
    check(
        &mut world,
        &mut compiler,
        expect![[r#"
        facts: own Pods [10.244.1.0/24], cluster [10.244.1.0/24, 192.0.2.1/32]
        zone: cluster.local reverse [10.244.1.0/24, 10.96.0.0/16]
        service default/web: [(80, [])]
        names default/web: ["7.0.96.10.in-addr.arpa", "web.default.svc.cluster.local"]
    "#]],
    );
    // Endpoints are no names of a Service that has an address.
    world.set_slice("web", &["10.244.1.2", "10.244.1.3"]);
    check(
        &mut world,
        &mut compiler,
        expect![[r#"
        service default/web: [(80, [10.244.1.2:8080, 10.244.1.3:8080])]
    "#]],
    );
    // What is written and is the same.
    world.set_service("web", Some(web()));
    world.set_slice("web", &["10.244.1.2", "10.244.1.3"]);
    check(&mut world, &mut compiler, expect![""]);
    // Of a headless one they are names alone.
    world.set_service("db", Some(json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]})));
    world.set_slice("db", &["10.244.1.4"]);
    check(
        &mut world,
        &mut compiler,
        expect![[r#"
        names default/db: ["10-244-1-4.db.default.svc.cluster.local", "4.1.244.10.in-addr.arpa", "db.default.svc.cluster.local"]
    "#]],
    );
    world.set_service("web", None);
    check(
        &mut world,
        &mut compiler,
        expect![[r#"
        service default/web: []
        names default/web: []
    "#]],
    );
}

#[test]
fn host_ports_are_of_the_tables_and_of_loopback() {
    let (mut world, mut compiler) = (World::default(), compiler());
    world.compile(&mut compiler);
    let ports = json!([{"containerPort": 80, "hostPort": 8080}, {"containerPort": 80, "hostPort": 8081, "hostIP": "127.0.0.1"},
        {"containerPort": 80, "hostPort": 8082, "hostIP": "10.96.0.10"}]);
    world.set_pod("web", Some("10.244.1.2"), &ports);
    check(
        &mut world,
        &mut compiler,
        expect![[r#"
        service pod:default/web: [(8080, [10.244.1.2:80])]
        forwards pod:default/web: ["127.0.0.1:8081 -> 10.244.1.2:80"]
        pod:default/web HostPortNotServed: host port 10.96.0.10:8082/tcp is not served: it is the address of the cluster's DNS
    "#]],
    );
    world.set_pod("web", Some("10.244.1.9"), &ports);
    world.set_pod("web", None, &ports);
    check(
        &mut world,
        &mut compiler,
        expect![[r#"
        service pod:default/web: []
        forwards pod:default/web: []
    "#]],
    );
}

/// Reverse names of its Pods are the cluster's from then on, and nobody else is asked for them.
#[test]
fn a_node_that_joins_brings_its_range_and_the_names_of_all_stay() {
    let (mut world, mut compiler) = (World::default(), compiler());
    world.set_node("a", "east", "10.244.1.0/24");
    world.set_service("web", Some(web()));
    check(
        &mut world,
        &mut compiler,
        expect![[r#"
            facts: own Pods [10.244.1.0/24], cluster [10.244.1.0/24, 192.0.2.1/32]
            zone: cluster.local reverse [10.244.1.0/24, 10.96.0.0/16]
            service default/web: [(80, [])]
            names default/web: ["7.0.96.10.in-addr.arpa", "web.default.svc.cluster.local"]
        "#]],
    );
    world.set_node("b", "west", "10.244.2.0/24");
    check(
        &mut world,
        &mut compiler,
        expect![[r#"
            facts: own Pods [10.244.1.0/24], cluster [10.244.1.0/24, 10.244.2.0/24, 192.0.2.1/32]
            zone: cluster.local reverse [10.244.1.0/24, 10.244.2.0/24, 10.96.0.0/16]
            names default/web: ["7.0.96.10.in-addr.arpa", "web.default.svc.cluster.local"]
        "#]],
    );
    world.set_node("b", "west", "10.244.2.0/24");
    check(&mut world, &mut compiler, expect![""]);
}

#[test]
fn one_services_change_asks_for_that_service_alone() {
    let (mut world, mut compiler) = (World::default(), compiler());
    for number in 0..1000 {
        world.set_service(&format!("s{number}"), Some(web()));
    }
    world.compile(&mut compiler);
    let before = (world.lists.get(), world.gets.get());
    world.set_slice("s7", &["10.244.1.2"]);
    let (changes, _) = world.compile(&mut compiler);
    assert_eq!(changes.services.len(), 1);
    assert_eq!(world.lists.get(), before.0, "nothing is listed");
    assert!(world.gets.get() - before.1 <= 3, "{} Services are looked at", world.gets.get() - before.1);
}

/// What drivers have who have applied all changes.
#[derive(Debug, Default, PartialEq)]
struct Has {
    facts: Option<NodeFacts>,
    zone: Option<Zone>,
    services: BTreeMap<String, Arc<dataplane::Service>>,
    names: BTreeMap<String, Arc<Names>>,
    forwards: BTreeMap<String, Vec<Forward>>,
}

impl Has {
    fn apply(&mut self, changes: Changes) {
        let Changes { facts, zone, services, names, forwards, policies } = changes;
        assert!(policies.is_empty(), "those are compiled by themselves");
        self.facts = facts.or(self.facts.take());
        if zone.is_some() {
            self.names.clear();
        }
        self.zone = zone.or(self.zone.take());
        for (key, service) in services {
            match service {
                Some(service) => drop(self.services.insert(key, service)),
                None => drop(self.services.remove(&key)),
            }
        }
        self.names.extend(names);
        self.names.retain(|_, names| !names.is_empty());
        self.forwards.extend(forwards);
        self.forwards.retain(|_, forwards| !forwards.is_empty());
    }
}

/// Something that happens to an object of a few.
#[derive(Clone, Debug)]
enum Happens {
    Service(u8, Option<u8>),
    Slice(u8, Vec<u8>),
    Pod(u8, Option<u8>),
    Node(u8, bool, u8),
}

fn happens() -> impl Strategy<Value = Happens> {
    let few = || 0..4u8;
    prop_oneof![
        (few(), proptest::option::of(few())).prop_map(|(which, how)| Happens::Service(which, how)),
        (few(), proptest::collection::vec(few(), 0..3)).prop_map(|(which, how)| Happens::Slice(which, how)),
        (few(), proptest::option::of(few())).prop_map(|(which, how)| Happens::Pod(which, how)),
        (0..2u8, any::<bool>(), few()).prop_map(|(which, zone, range)| Happens::Node(which, zone, range)),
    ]
}

impl World {
    fn happen(&mut self, what: &Happens) {
        match what {
            Happens::Service(which, how) => {
                let spec = |how: &u8| match how {
                    0 => json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]}),
                    1 => json!({"type": "ExternalName", "externalName": "example.org"}),
                    _ => json!({"clusterIPs": [format!("10.96.0.{which}")], "ports": [{"port": 80 + how}]}),
                };
                self.set_service(&format!("s{which}"), how.as_ref().map(spec));
            }
            Happens::Slice(which, how) => {
                let addresses: Vec<String> = how.iter().map(|number| format!("10.244.1.{number}")).collect();
                self.set_slice(&format!("s{which}"), &addresses.iter().map(String::as_str).collect::<Vec<_>>());
            }
            Happens::Pod(which, how) => {
                let ports = json!([{"containerPort": 80, "hostPort": 8080},
                    {"containerPort": 80, "hostPort": 8081, "hostIP": "127.0.0.1"}]);
                let ip = how.map(|how| format!("10.244.1.{how}"));
                self.set_pod(&format!("p{which}"), ip.as_deref(), &ports);
            }
            Happens::Node(which, zone, range) => {
                let zone = if *zone { "east" } else { "west" };
                self.set_node(["a", "b"][usize::from(*which)], zone, &format!("10.244.{range}.0/24"));
            }
        }
    }
}

proptest! {
    /// However the objects came to be what they are, in whatever portions that was applied: an agent that starts anew wants the same.
    #[test]
    fn what_is_compiled_step_by_step_is_what_is_compiled_as_a_whole(
        steps in proptest::collection::vec((happens(), any::<bool>(), any::<bool>()), 0..40),
    ) {
        let (mut world, mut by_steps, mut has) = (World::default(), compiler(), Has::default());
        has.apply(by_steps.update(&world, Dirty::everything(&world), Instant::now()).0);
        // Changes that a driver has refused wait for it, and are applied with those that come after them.
        let mut pending = Changes::default();
        for (what, compiles, applies) in steps {
            world.happen(&what);
            if compiles {
                pending.extend(world.compile(&mut by_steps).0);
            }
            if applies {
                has.apply(std::mem::take(&mut pending));
            }
        }
        pending.extend(world.compile(&mut by_steps).0);
        has.apply(pending);
        let mut whole = Has::default();
        whole.apply(compiler().update(&world, Dirty::everything(&world), Instant::now()).0);
        prop_assert_eq!(has, whole);
    }
}

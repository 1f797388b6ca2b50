//! Which nodes may announce which addresses of load balancers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{Node, Pod, Service},
    discovery::v1::EndpointSlice,
};
use podwright::client::Key;
use podwright::proxy::{Announcing, Objects};
use podwright_net::announce::Wanted;
use serde_json::{Value, json};

fn read<T: serde::de::DeserializeOwned>(object: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(object).unwrap())
}

#[derive(Default)]
struct World {
    services: BTreeMap<Key, Arc<Service>>,
    slices: BTreeMap<Key, Arc<EndpointSlice>>,
    nodes: Vec<Arc<Node>>,
}

impl Objects for World {
    fn services(&self) -> Vec<Arc<Service>> {
        self.services.values().cloned().collect()
    }
    fn service(&self, key: &Key) -> Option<Arc<Service>> {
        self.services.get(key).cloned()
    }
    fn slices(&self, service: &Key) -> Vec<Arc<EndpointSlice>> {
        self.slices.get(service).cloned().into_iter().collect()
    }
    fn pods(&self) -> Vec<Arc<Pod>> {
        Vec::new()
    }
    fn pod(&self, _: &Key) -> Option<Arc<Pod>> {
        None
    }
    fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes.clone()
    }
    fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name)).cloned()
    }
}

fn node(name: &str, ready: &str, more: Value) -> Arc<Node> {
    let address = format!("192.168.50.{}", &name[1..]);
    let mut node = json!({
        "metadata": {"name": name},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}], "conditions": [{"type": "Ready", "status": ready}],
        },
    });
    json_patch::merge(&mut node, &more);
    read(node)
}

impl World {
    fn with(&mut self, name: &str, ip: &str, reason: &str, more: Value) -> Key {
        let mut service = json!({
            "metadata": {"name": name, "namespace": "a", "uid": name},
            "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Cluster"},
            "status": {
                "loadBalancer": {"ingress": [{"ip": ip, "ipMode": "VIP"}]},
                "conditions": [{
                    "type": "podwright/LoadBalancerAllocated", "status": "True", "reason": reason, "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            },
        });
        json_patch::merge(&mut service, &more);
        let key = Key::new("a", name);
        self.services.insert(key.clone(), read(service));
        key
    }

    /// Endpoints by node: whether each is ready, or serves while it terminates.
    fn behind(&mut self, key: &Key, endpoints: &[(&str, bool)]) {
        let endpoint = |(node, ready): &(&str, bool)| {
            json!({"addresses": ["10.244.1.2"], "nodeName": node,
                "conditions": {"ready": ready, "serving": true, "terminating": !ready}})
        };
        let endpoints: Vec<Value> = endpoints.iter().map(endpoint).collect();
        let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": endpoints});
        self.slices.insert(key.clone(), read(slice));
    }

    fn all(&self) -> BTreeSet<Key> {
        self.services.keys().cloned().collect()
    }
}

fn told(wanted: Option<Wanted>) -> Vec<String> {
    let one = |(address, names): (IpAddr, Arc<BTreeSet<String>>)| {
        format!("{address}: {}", names.iter().cloned().collect::<Vec<_>>().join(" "))
    };
    wanted.into_iter().flat_map(|wanted| wanted.addresses.into_iter().map(one)).collect()
}

fn three() -> World {
    let nodes = ["n1", "n2", "n3"].map(|name| node(name, "True", json!({})));
    World { nodes: nodes.to_vec(), ..World::default() }
}

#[test]
fn nodes_that_are_ready_may_and_those_with_endpoints_where_that_counts() {
    let mut world = three();
    world.with("web", "192.0.2.9", "IPAllocated", json!({}));
    let local = json!({"spec": {"externalTrafficPolicy": "Local"}});
    let key = world.with("local", "192.0.2.10", "IPAllocated", local);
    world.behind(&key, &[("n2", true), ("n3", false), ("n9", true)]);
    let mut announcing = Announcing::default();
    let all = world.all();
    assert_eq!(told(announcing.update(&world, &all, true)), ["192.0.2.9: n1 n2 n3", "192.0.2.10: n2"]);
    assert_eq!(announcing.update(&world, &all, true), None, "nothing is new");
    // While none is ready, those serve that are about to end.
    world.behind(&key, &[("n2", false), ("n3", false)]);
    let changed = BTreeSet::from([key.clone()]);
    assert_eq!(told(announcing.update(&world, &changed, false)), ["192.0.2.9: n1 n2 n3", "192.0.2.10: n2 n3"]);
    world.behind(&key, &[]);
    assert_eq!(told(announcing.update(&world, &changed, false)), ["192.0.2.9: n1 n2 n3", "192.0.2.10: "]);
    // Nodes that are not ready, or excluded; where none is ready, all.
    let excluded = json!({"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": ""}}});
    world.nodes[0] = node("n1", "True", excluded);
    world.nodes[1] = node("n2", "Unknown", json!({}));
    assert_eq!(told(announcing.update(&world, &BTreeSet::new(), true)), ["192.0.2.9: n3", "192.0.2.10: "]);
    world.nodes[2] = node("n3", "Unknown", json!({}));
    assert_eq!(told(announcing.update(&world, &BTreeSet::new(), true)), ["192.0.2.9: n2 n3", "192.0.2.10: "]);
    world.services.remove(&key);
    assert_eq!(told(announcing.update(&world, &changed, false)), ["192.0.2.9: n2 n3"]);
}

#[test]
fn links_of_pods_are_known_by_the_nodes_ranges() {
    let mut world = three();
    world.with("web", "192.0.2.11", "IPAllocated", json!({}));
    world.nodes.push(node("n4", "True", json!({"spec": {"podCIDRs": ["10.244.4.0/24", "fd00:244:4::/64"]}})));
    let wanted = Announcing::default().update(&world, &world.all(), true).unwrap();
    assert_eq!(wanted.pods, ["10.244.4.0/24", "fd00:244:4::/64"].map(|range| range.parse().unwrap()));
}

#[test]
fn addresses_of_others_are_not_announced() {
    let mut world = three();
    world.with("nodes", "192.168.50.1", "NodeAddresses", json!({}));
    world.with("occupied", "192.168.50.2", "IPAllocated", json!({}));
    world.with("foreign", "192.0.2.11", "IPAllocated", json!({"status": {"conditions": null}}));
    world.with("no-more", "192.0.2.12", "IPAllocated", json!({"spec": {"type": "ClusterIP"}}));
    world.with("kept", "192.0.2.13", "AllocationFailed", json!({}));
    let wanted = Announcing::default().update(&world, &world.all(), true);
    assert_eq!(told(wanted), ["192.0.2.13: n1 n2 n3"]);
}

#[test]
fn services_that_share_an_address_are_announced_by_a_node_that_serves_all() {
    let mut world = three();
    let local = || json!({"spec": {"externalTrafficPolicy": "Local"}});
    let keys = ["one", "two"].map(|name| world.with(name, "192.0.2.9", "IPAllocated", local()));
    world.behind(&keys[0], &[("n1", true), ("n2", true)]);
    world.behind(&keys[1], &[("n2", true), ("n3", true)]);
    let mut announcing = Announcing::default();
    assert_eq!(told(announcing.update(&world, &world.all(), true)), ["192.0.2.9: n2"]);
    let sharers: Vec<&Key> = announcing.services_of(&"192.0.2.9".parse().unwrap()).collect();
    assert_eq!(sharers, keys.iter().collect::<Vec<_>>());
}

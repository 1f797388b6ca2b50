//! What a namespace has room for on a node: who goes without, and what a Service weighs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use podwright::proxy::{ELEMENTS, NodeContext, Shares, compile, weight};
use podwright_net::IpNet;
use podwright_net::dataplane::{self, Backends, Seniority};
use proptest::prelude::*;
use serde_json::{Value, json};

fn since(since: i64) -> Seniority {
    Seniority { since, id: String::new() }
}

fn moved(keys: &[&str]) -> BTreeSet<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

#[test]
fn the_youngest_of_a_namespace_go_without_what_is_too_much() {
    let mut shares = Shares::new(100);
    shares.note("a", "a/old", Some((since(1), 60)));
    shares.note("a", "a/middle", Some((since(2), 40)));
    shares.note("b", "b/old", Some((since(9), 100)));
    assert_eq!(shares.settle(), moved(&[]), "all have room");
    // One that comes later, whatever its name, and one of another namespace.
    shares.note("a", "a/aaa", Some((since(3), 1)));
    shares.note("b", "b/new", Some((since(10), 0)));
    assert_eq!(shares.settle(), moved(&["a/aaa"]));
    assert!(!shares.has_room("a", "a/aaa") && shares.has_room("a", "a/old") && shares.has_room("b", "b/old"));
    // Who is older grows, and the younger one gives way; what is small finds room behind it.
    shares.note("a", "a/old", Some((since(1), 99)));
    assert_eq!(shares.settle(), moved(&["a/aaa", "a/middle"]));
    assert!(shares.has_room("a", "a/aaa") && !shares.has_room("a", "a/middle"));
    // It goes, and the others are served again.
    shares.note("a", "a/old", None);
    assert_eq!(shares.settle(), moved(&["a/middle"]));
    assert!(shares.has_room("a", "a/middle") && shares.has_room("a", "a/aaa"));
    // Made anew under its name it is the youngest.
    shares.note("a", "a/old", Some((since(20), 60)));
    assert_eq!(shares.settle(), moved(&["a/old"]));
    // One that is too large for any share keeps nobody out.
    shares.note("b", "b/old", Some((since(9), 101)));
    assert_eq!(shares.settle(), moved(&["b/old"]));
    assert!(shares.has_room("b", "b/new"));
}

proptest! {
    #[test]
    fn a_namespace_has_no_more_than_its_share_and_gives_none_away(steps in prop::collection::vec((0u8..12, 0i64..5, 0usize..80), 1..60)) {
        let mut shares = Shares::new(100);
        let mut all: Vec<(String, i64, usize)> = Vec::new();
        let mut out = BTreeSet::new();
        for (n, since_when, weight) in steps {
            let key = format!("a/{n}");
            all.retain(|(other, ..)| *other != key);
            shares.note("a", &key, (weight > 0).then(|| (since(since_when), weight)));
            out.retain(|other| weight > 0 || *other != key);
            if weight > 0 {
                all.push((key, since_when, weight));
            }
            for moved in shares.settle() {
                if !out.remove(&moved) {
                    out.insert(moved);
                }
            }
            let has_room = |key: &str| shares.has_room("a", key);
            prop_assert!(all.iter().all(|(key, ..)| has_room(key) != out.contains(key)), "what is told is what is so");
            let served: usize = all.iter().filter(|(key, ..)| has_room(key)).map(|(.., weight)| weight).sum();
            prop_assert!(served <= 100);
            for (key, since, weight) in all.iter().filter(|(key, ..)| !has_room(key)) {
                let older = all.iter().filter(|(other, then, _)| has_room(other) && (then, other) < (since, key));
                prop_assert!(older.map(|(.., weight)| weight).sum::<usize>() + weight > 100, "{key} would have had room");
            }
        }
    }
}

/// A Service of so many ports, and slices of so many endpoints.
fn asked(spec: Value, ports: usize, endpoints: &[usize]) -> (Service, Vec<Arc<EndpointSlice>>) {
    let named = |n: usize| json!({"name": format!("p{n}"), "port": n + 1, "protocol": "TCP"});
    let mut spec = spec;
    spec["ports"] = (0..ports).map(named).collect();
    let service = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
    let slice = |(n, count): (usize, &usize)| {
        let endpoint = |e: usize| json!({"addresses": [format!("10.{n}.{}.{}", e / 250, e % 250)], "nodeName": "a"});
        let slice = json!({"addressType": "IPv4", "metadata": {"name": format!("web-{n}")},
            "ports": (0..ports).map(named).collect::<Value>(), "endpoints": (0..*count).map(endpoint).collect::<Value>()});
        Arc::new(serde_json::from_value(slice).unwrap())
    };
    (serde_json::from_value(service).unwrap(), endpoints.iter().enumerate().map(slice).collect())
}

/// What the node's tables would have of it, counted from what is compiled.
fn elements(service: &dataplane::Service) -> usize {
    let of_port = |port: &dataplane::ServicePort| {
        let each = if port.affinity.is_some() { 2 } else { 1 };
        let list = |list: &Backends| each + each * list.endpoints.len();
        let lists = [Some(&port.internal), port.external.as_ref(), port.outside.as_ref()];
        let ways = port.cluster_ips.len() + port.external_ips.len() + usize::from(port.node_port.is_some());
        let networks = |range: &IpNet| range.subnets(range.prefix_len().next_multiple_of(4)).unwrap().count();
        let ranges =
            port.source_ranges.iter().map(networks).sum::<usize>() + usize::from(!port.source_ranges.is_empty());
        lists.into_iter().flatten().map(list).sum::<usize>() + ways + ranges + usize::from(port.outside.is_some())
    };
    let own: BTreeSet<_> = service.ports.iter().flat_map(|port| &port.internal.endpoints).map(|e| e.ip()).collect();
    service.ports.iter().map(of_port).sum::<usize>() + own.len()
}

#[test]
fn a_service_weighs_what_it_is_in_the_tables() {
    let plain = json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"]});
    let mut sticky = plain.clone();
    sticky["sessionAffinity"] = json!("ClientIP");
    let mut balanced = sticky.clone();
    for (field, value) in [
        ("type", json!("LoadBalancer")),
        ("externalTrafficPolicy", json!("Local")),
        ("internalTrafficPolicy", json!("Local")),
        ("externalIPs", json!(["198.51.100.7"])),
        ("loadBalancerSourceRanges", json!(["192.0.2.0/28", "192.0.2.128/25"])),
    ] {
        balanced[field] = value;
    }
    for spec in [plain, sticky, balanced] {
        let (mut service, slices) = asked(spec, 7, &[40, 3]);
        for (n, port) in service.spec.as_mut().unwrap().ports.iter_mut().flatten().enumerate() {
            port.node_port = Some(30_000 + n as i32);
        }
        let compiled =
            compile(&service, &slices, &NodeContext { node: "a".to_owned(), ..NodeContext::default() }).unwrap();
        assert_eq!(weight(&service, &slices), elements(&compiled), "{service:?}");
    }
}

#[test]
fn what_leads_nowhere_weighs_nothing_and_headless_services_weigh_their_records() {
    let (service, mut slices) = asked(json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"]}), 2, &[10]);
    let all = weight(&service, &slices);
    let slice = Arc::make_mut(&mut slices[0]);
    for endpoint in slice.endpoints.iter_mut().take(4) {
        endpoint.conditions = serde_json::from_value(json!({"ready": false})).unwrap();
    }
    slice.ports.as_mut().unwrap()[1].name = Some("no-port-of-the-service".to_owned());
    assert_eq!(all - weight(&service, &slices), 4 * 3 + 6);
    let (headless, slices) = asked(json!({"clusterIP": "None", "clusterIPs": ["None"]}), 5, &[10, 10]);
    assert_eq!(weight(&headless, &slices), 20 * (3 + 5));
}

/// Forty million elements are weighed in an instant, and a Service of as many ports as there may be is compiled in one.
#[test]
fn a_service_is_weighed_without_being_made() {
    let (service, slices) = asked(json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"]}), 4096, &[1000; 10]);
    let begin = Instant::now();
    assert!(weight(&service, &slices) > 40_000_000 && ELEMENTS < 40_000_000);
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    let (slices, begin) = (asked(json!({}), 4096, &[1; 10]).1, Instant::now());
    let ports = compile(&service, &slices, &NodeContext::default()).unwrap().ports;
    assert!(ports.len() == 4096 && ports.iter().all(|port| port.internal.endpoints.len() == 10));
    // To look through all ports of all slices for each port takes 170 million comparisons.
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
}

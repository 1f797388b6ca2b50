//! Load balancer addresses: who gets which of the pool, or which ports of the nodes.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};
use podwright::api::load_balancer::{FROM_POOL, Pool, Range};
use podwright::controllers::load_balancer::{Outcome, Reserved, allocate, assign, places, plan};
use serde_json::{Value, json};

use super::{at, lines, object};

/// A Service of type LoadBalancer in namespace `a`, `age` seconds younger than the oldest; with these addresses in its status.
fn service(name: &str, age: i64, held: &[&str], more: Value) -> Arc<Service> {
    let ingress: Vec<Value> = held.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
    let mut all = json!({
        "metadata": {
            "name": name, "namespace": "a", "uid": format!("uid-{name}"), "creationTimestamp": at(age).to_string(),
        },
        "spec": {
            "type": "LoadBalancer", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "clusterIP": "10.96.0.7",
            "ports": [{"port": 80, "protocol": "TCP"}], "externalTrafficPolicy": "Cluster",
        },
        "status": {"loadBalancer": {"ingress": ingress}},
    });
    json_patch::merge(&mut all, &more);
    object(all)
}

fn annotated(key: &str, value: &str) -> Value {
    json!({"metadata": {"annotations": {format!("podwright/load-balancer-{key}"): value}}})
}

fn with(mut one: Value, other: Value) -> Value {
    json_patch::merge(&mut one, &other);
    one
}

/// What each gets: its addresses, or why it has none.
fn given(outcomes: &[Option<Outcome>]) -> Vec<String> {
    let words = |outcome: &Outcome| {
        let addresses: Vec<String> = outcome.addresses.iter().map(ToString::to_string).collect();
        [addresses, outcome.failure.iter().cloned().collect()].concat().join(" ")
    };
    outcomes.iter().map(|outcome| outcome.as_ref().map_or("-".to_owned(), words)).collect()
}

#[track_caller]
fn check(pool: &str, services: &[Arc<Service>], expected: &[&str]) {
    let pool: Pool = pool.parse().unwrap();
    assert_eq!(given(&allocate(&pool, &Reserved::default(), services)), expected);
}

const POOL: &str = "192.0.2.8/29,2001:db8::/126";
const DUAL: &str = "RequireDualStack";

fn families(families: &[&str], policy: &str) -> Value {
    json!({"spec": {"ipFamilies": families, "ipFamilyPolicy": policy}})
}

#[test]
fn each_gets_an_address_of_its_own_and_keeps_it() {
    let one = |name, age, held: &[&str]| service(name, age, held, json!({}));
    check(POOL, &[one("b", 1, &[]), one("a", 2, &[])], &["192.0.2.9", "192.0.2.10"]);
    check(POOL, &[one("a", 2, &["192.0.2.12"]), one("b", 1, &[])], &["192.0.2.12", "192.0.2.9"]);
    // Who has it keeps it against who is older; of two that have it, the older one does.
    let wish = json!({"spec": {"loadBalancerIP": "192.0.2.12"}});
    check(POOL, &[one("a", 2, &["192.0.2.12"]), service("b", 1, &[], wish)], &["192.0.2.12", "192.0.2.12 is in use"]);
    check(POOL, &[one("a", 2, &["192.0.2.12"]), one("b", 1, &["192.0.2.12"])], &["192.0.2.9", "192.0.2.12"]);
    // One that is not of the pool (any more) is replaced.
    check(POOL, &[one("a", 2, &["198.51.100.1"])], &["192.0.2.9"]);
    check("192.0.2.9", &[one("a", 2, &[]), one("b", 1, &[])], &["no IPv4 address of the pool is free", "192.0.2.9"]);
    check("2001:db8::1", &[one("a", 2, &[])], &["the pool has no IPv4 addresses"]);
}

#[test]
fn families_are_as_the_service_says() {
    let of = |all: &[&str], policy: &str, held: &[&str]| [service("a", 0, held, families(all, policy))];
    check(POOL, &of(&["IPv6"], "SingleStack", &[]), &["2001:db8::1"]);
    check(POOL, &of(&["IPv6", "IPv4"], DUAL, &[]), &["2001:db8::1 192.0.2.9"]);
    check(POOL, &of(&["IPv4", "IPv6"], DUAL, &["2001:db8::2"]), &["192.0.2.9 2001:db8::2"]);
    check(POOL, &of(&["IPv4"], "SingleStack", &["192.0.2.9", "2001:db8::2"]), &["192.0.2.9"]);
    // All, or nothing.
    check("192.0.2.9", &of(&["IPv4", "IPv6"], DUAL, &[]), &["the pool has no IPv6 addresses"]);
    check("192.0.2.9", &of(&["IPv4", "IPv6"], "PreferDualStack", &[]), &["192.0.2.9"]);
    check("2001:db8::1", &of(&["IPv4", "IPv6"], "PreferDualStack", &[]), &["2001:db8::1"]);
}

#[test]
fn certain_addresses_are_asked_for_by_the_field_or_the_annotation() {
    let wish = |ip: &str| json!({"spec": {"loadBalancerIP": ip}});
    let dual = || families(&["IPv4", "IPv6"], DUAL);
    let one = |held: &[&str], more: Value| [service("a", 0, held, more)];
    check(POOL, &one(&[], wish("192.0.2.14")), &["192.0.2.14"]);
    check(POOL, &one(&["192.0.2.9"], wish("192.0.2.14")), &["192.0.2.14"]);
    check(POOL, &one(&[], with(dual(), wish("192.0.2.14"))), &["192.0.2.14 2001:db8::1"]);
    check(POOL, &one(&[], with(dual(), annotated("ips", "2001:db8::3, 192.0.2.14"))), &["192.0.2.14 2001:db8::3"]);
    for (more, why) in [
        (wish("198.51.100.1"), "198.51.100.1 is not in the pool"),
        (wish("2001:db8::1"), "2001:db8::1 is not of the Service's families (IPv4)"),
        (annotated("ips", "here"), "podwright/load-balancer-ips: \"here\" is no address"),
        (
            annotated("ips", "192.0.2.9,192.0.2.10"),
            "podwright/load-balancer-ips: at most one address of each family, not 192.0.2.10 as well",
        ),
        (
            with(wish("192.0.2.9"), annotated("ips", "192.0.2.9")),
            "spec.loadBalancerIP and the annotation podwright/load-balancer-ips are both given",
        ),
    ] {
        check(POOL, &one(&["192.0.2.9"], more), &[why]);
    }
}

#[test]
fn an_address_is_shared_by_one_namespaces_services_with_one_key_and_different_ports() {
    let key = || annotated("sharing-key", "web");
    let port = |port: u16| json!({"spec": {"ports": [{"port": port, "protocol": "TCP"}]}});
    let local = |app: &str| json!({"spec": {"externalTrafficPolicy": "Local", "selector": {"app": app}}});
    let elsewhere = json!({"metadata": {"namespace": "b"}});
    let first = || service("a", 0, &["192.0.2.12"], key());
    let second = |more: Value| service("b", 1, &[], with(with(key(), port(443)), more));
    check(POOL, &[first(), second(json!({}))], &["192.0.2.12", "192.0.2.12"]);
    check(POOL, &[first(), second(port(80))], &["192.0.2.12", "192.0.2.9"]);
    check(POOL, &[first(), second(elsewhere.clone())], &["192.0.2.12", "192.0.2.9"]);
    check(POOL, &[first(), second(annotated("sharing-key", "other"))], &["192.0.2.12", "192.0.2.9"]);
    check(POOL, &[first(), second(local("x"))], &["192.0.2.12", "192.0.2.9"]);
    let wish = json!({"spec": {"loadBalancerIP": "192.0.2.12"}});
    check(POOL, &[first(), second(with(wish, elsewhere))], &["192.0.2.12", "192.0.2.12 is in use"]);
    // One node has the endpoints of both, or not.
    let both = |one: &str, other: &str| {
        let first = service("a", 0, &["192.0.2.12"], with(key(), local(one)));
        [first, second(local(other))]
    };
    check(POOL, &both("x", "x"), &["192.0.2.12", "192.0.2.12"]);
    check(POOL, &both("x", "y"), &["192.0.2.12", "192.0.2.9"]);
    // Ports that come to overlap: the older one keeps the address.
    let held = |name, age| service(name, age, &["192.0.2.12"], key());
    check(POOL, &[held("a", 2), held("b", 1)], &["192.0.2.9", "192.0.2.12"]);
}

#[test]
fn what_is_given_up_is_free_once_the_status_shows_it() {
    let plain = || service("a", 0, &["192.0.2.9"], json!({"spec": {"type": "ClusterIP"}}));
    let wish = || service("b", 1, &[], json!({"spec": {"loadBalancerIP": "192.0.2.9"}}));
    let pool: Pool = "192.0.2.9".parse().unwrap();
    let outcomes = allocate(&pool, &Reserved::default(), &[plain(), wish()]);
    assert_eq!(given(&outcomes), ["", "192.0.2.9 is not free yet"]);
    assert!(outcomes[1].as_ref().unwrap().waits);
    let plan = plan(&[plain(), wish()], outcomes, FROM_POOL, at(0));
    assert_eq!(
        lines(&plan),
        ["patch services/a/status: Released 192.0.2.9"],
        "nothing is said to who waits for a moment"
    );
    check("192.0.2.9", &[service("a", 0, &[], json!({"spec": {"type": "ClusterIP"}})), wish()], &["", "192.0.2.9"]);
    // One that is being deleted stays as it is.
    let ending = json!({"metadata": {"deletionTimestamp": at(9).to_string(), "finalizers": ["x/y"]}});
    let ending = service("a", 0, &["192.0.2.9"], ending);
    check("192.0.2.9", &[ending, wish()], &["192.0.2.9", "192.0.2.9 is in use"]);
}

#[test]
fn others_addresses_are_nobodys_to_have() {
    let foreign = service("a", 0, &["192.0.2.9"], json!({"spec": {"loadBalancerClass": "example.com/lb"}}));
    let ours =
        |name, held: &[&str]| service(name, 1, held, json!({"spec": {"loadBalancerClass": "podwright/load-balancer"}}));
    check(POOL, &[foreign, ours("b", &[])], &["-", "192.0.2.10"]);
    // One that has become another's gives back what it was given here, which is the next one's once its status shows that.
    let said = json!([{"type": "podwright/LoadBalancerAllocated", "status": "True", "reason": "IPAllocated",
        "message": "Assigned", "lastTransitionTime": at(0).to_string()}]);
    let left = json!({"spec": {"loadBalancerClass": "example.com/lb"}, "status": {"conditions": said}});
    let left = |held: &[&str]| service("a", 0, held, left.clone());
    let wishes = || service("b", 1, &[], json!({"spec": {"loadBalancerIP": "192.0.2.9"}}));
    check(POOL, &[left(&["192.0.2.9"]), wishes()], &["", "192.0.2.9 is not free yet"]);
    check(POOL, &[left(&[]), wishes()], &["", "192.0.2.9"]);
    let released = plan(&[left(&["192.0.2.9"])], vec![Some(Outcome::default())], FROM_POOL, at(9));
    let body = released.writes().next().unwrap().request.body.clone().unwrap();
    assert_eq!(body["status"], json!({"conditions": null, "loadBalancer": {"ingress": null}}));
    let names = service("a", 0, &[], json!({"spec": {"type": "ClusterIP", "externalIPs": ["192.0.2.9"]}}));
    check(POOL, &[names, ours("b", &[])], &["", "192.0.2.10"]);
    // Nodes, servers, Pods, Services: whoever has had it.
    let reserved = Reserved {
        addresses: ["192.0.2.13".parse().unwrap()].into(),
        ranges: vec![Range::of_net(&"192.0.2.8/30".parse().unwrap())],
    };
    let pool: Pool = POOL.parse().unwrap();
    let wish = service("c", 2, &[], json!({"spec": {"loadBalancerIP": "192.0.2.10"}}));
    let services = [ours("a", &["192.0.2.13"]), ours("b", &["192.0.2.9"]), wish];
    let expected = [
        "192.0.2.12",
        "192.0.2.14",
        "192.0.2.10 is the address of a node or server, or in a range of Pods or Services",
    ];
    assert_eq!(given(&allocate(&pool, &reserved, &services)), expected);
}

/// A thousand Services want what they do in any order: nobody has what another has, and a second look changes nothing.
#[test]
fn thousands_have_addresses_of_their_own_and_a_second_look_changes_none() {
    let pool: Pool = "10.9.0.0/21,2001:db8::/64".parse().unwrap();
    let more = |n: i64| {
        let namespace = json!({"metadata": {"namespace": format!("of-{}", n % 10)}});
        with(families(&["IPv4", "IPv6"], "PreferDualStack"), namespace)
    };
    let mut services: Vec<Arc<Service>> = (0..3000).map(|n| service(&format!("s{n}"), n % 7, &[], more(n))).collect();
    let outcomes = allocate(&pool, &Reserved::default(), &services);
    let all: Vec<_> = outcomes.iter().flatten().flat_map(|outcome| &outcome.addresses).collect();
    assert_eq!(all.len(), 2046 + 3000);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    for ((service, outcome), n) in services.iter_mut().zip(&outcomes).zip(0..) {
        let held: Vec<String> = outcome.iter().flat_map(|o| &o.addresses).map(ToString::to_string).collect();
        let held: Vec<&str> = held.iter().map(String::as_str).collect();
        let age = service.metadata.creation_timestamp.as_ref().unwrap().0.as_second() - at(0).as_second();
        let name = service.metadata.name.clone().unwrap();
        *service = self::service(&name, age, &held, more(n));
    }
    assert_eq!(allocate(&pool, &Reserved::default(), &services), outcomes);
    // One namespace has no more than so many, others are not concerned.
    let six = |n: i64| service(&format!("s{n}"), n, &[], families(&["IPv6"], "SingleStack"));
    let mut services: Vec<Arc<Service>> = (0..1025).map(six).collect();
    let elsewhere = with(families(&["IPv6"], "SingleStack"), json!({"metadata": {"namespace": "b"}}));
    services.push(service("other", 2000, &[], elsewhere));
    let outcomes = given(&allocate(&pool, &Reserved::default(), &services));
    assert_eq!(outcomes[1023], "2001:db8::400");
    assert_eq!(outcomes[1024], "namespace a has 1024 addresses of the pool, the most that one can have");
    assert_eq!(outcomes[1025], "2001:db8::401");
}

#[test]
fn the_status_has_the_addresses_and_says_why_there_are_none() {
    let pool: Pool = "192.0.2.9".parse().unwrap();
    let services = [service("a", 0, &[], json!({})), service("b", 1, &[], json!({}))];
    let plan_of =
        |services: &[Arc<Service>]| plan(services, allocate(&pool, &Reserved::default(), services), FROM_POOL, at(5));
    let done = plan_of(&services);
    assert_eq!(
        lines(&done),
        ["patch services/a/status: Assigned 192.0.2.9", "patch services/b/status: no IPv4 address of the pool is free"]
    );
    let bodies: Vec<&Value> = done.writes().map(|write| &write.request.body.as_ref().unwrap()["status"]).collect();
    assert_eq!(bodies[0]["loadBalancer"], json!({"ingress": [{"ip": "192.0.2.9", "ipMode": "VIP"}]}));
    let said = |body: &Value| {
        let condition = &body["conditions"][0];
        assert_eq!(condition["type"], "podwright/LoadBalancerAllocated");
        format!("{} {}", condition["status"], condition["reason"]).replace('"', "")
    };
    assert_eq!((said(bodies[0]), said(bodies[1])), ("True IPAllocated".into(), "False AllocationFailed".into()));
    let reasons: Vec<_> = done.writes().flat_map(|write| &write.done).map(|note| (note.warning, note.reason)).collect();
    assert_eq!(reasons, [(false, "IPAllocated"), (true, "AllocationFailed")]);
    // What has been said is not said again; what is no longer so is taken back.
    let with = |n: usize| service(["a", "b"][n], n as i64, &[], json!({"status": bodies[n]}));
    assert!(plan_of(&[with(0), with(1)]).is_empty());
    let alone = plan_of(&[with(1)]);
    assert_eq!(said(&alone.writes().next().unwrap().request.body.as_ref().unwrap()["status"]), "True IPAllocated");
    let mut plain = Service::clone(&with(0));
    plain.spec.as_mut().unwrap().type_ = Some("ClusterIP".into());
    let taken = plan_of(&[Arc::new(plain)]);
    let body = taken.writes().next().unwrap().request.body.clone().unwrap();
    assert_eq!(body["status"], json!({"conditions": null, "loadBalancer": {"ingress": null}}));
}

fn node(name: &str, address: &str, more: Value) -> Arc<Node> {
    let mut node = json!({
        "metadata": {"name": name},
        "status": {
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    json_patch::merge(&mut node, &more);
    object(node)
}

/// What nodes report is their word: no status is filled by one of them.
#[test]
fn a_node_serves_by_one_address_of_each_family() {
    let internal = |address: String| json!({"type": "InternalIP", "address": address});
    let all: Vec<Value> = (2..200).map(|n| internal(format!("192.168.50.{n}"))).collect();
    let six = (0..200).map(|n| internal(format!("2001:db8::{n:x}")));
    let all: Vec<Value> = all.into_iter().chain(six).collect();
    let places = places(&[node("n1", "192.168.50.1", json!({"status": {"addresses": all}}))]);
    let dual = service("a", 0, &[], families(&["IPv6", "IPv4"], DUAL));
    let outcomes = assign(&places, &[dual], |_| HashSet::new(), |_| false);
    assert_eq!(given(&outcomes), ["192.168.50.2 2001:db8::"]);
}

#[test]
fn without_a_pool_the_ready_nodes_addresses_serve() {
    let excluded = json!({"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": ""}}});
    let silent = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    let outside = json!({"status": {"addresses": [
        {"type": "ExternalIP", "address": "198.51.100.2"}, {"type": "InternalIP", "address": "192.168.50.2"}]}});
    let places = places(&[
        node("n2", "192.168.50.2", outside),
        node("n1", "192.168.50.1", json!({})),
        node("n3", "192.168.50.3", silent),
        node("n4", "192.168.50.4", excluded),
    ]);
    let check = |services: &[Arc<Service>], expected: &[&str]| {
        let behind = |_: &Service| HashSet::from(["n2".to_owned()]);
        assert_eq!(given(&assign(&places, services, behind, |namespace| namespace == "kept")), expected);
    };
    let port = |port: u16| json!({"spec": {"ports": [{"port": port, "protocol": "TCP"}]}});
    let all = "192.168.50.1 198.51.100.2";
    check(&[service("a", 0, &[], json!({}))], &[all]);
    check(&[service("a", 0, &[], json!({"spec": {"externalTrafficPolicy": "Local"}}))], &["198.51.100.2"]);
    check(&[service("a", 0, &["192.168.50.9"], json!({"spec": {"type": "ClusterIP"}}))], &[""]);
    check(&[service("a", 0, &[], json!({"spec": {"loadBalancerClass": "example.com/lb"}}))], &["-"]);
    let said = json!([{"type": "podwright/LoadBalancerAllocated", "status": "True", "reason": "NodeAddresses",
        "message": "Assigned", "lastTransitionTime": at(0).to_string()}]);
    let left = json!({"spec": {"loadBalancerClass": "example.com/lb"}, "status": {"conditions": said}});
    check(&[service("a", 0, &["192.168.50.1"], left)], &[""]);
    // Who has the ports keeps them.
    let conflict = "TCP port 80 of the nodes' addresses leads to another Service";
    check(&[service("b", 1, &[], json!({})), service("a", 0, &[], json!({}))], &[conflict, all]);
    check(&[service("b", 1, &["192.168.50.1"], json!({})), service("a", 0, &[], json!({}))], &[all, conflict]);
    check(&[service("b", 1, &[], json!({})), service("a", 0, &[], port(443))], &[all, all]);
    // SSH, the API, kubelet, node ports: those are no tenant's.
    for own in [22, 6443, 10250, 30001] {
        let why = format!(
            "port {own} is the nodes' own; without a pool of addresses (--load-balancer-pool) Services have 80, 443, and those \
             from 1024 that nodes do not use themselves"
        );
        check(&[service("a", 0, &["192.168.50.1"], port(own))], &[&why]);
    }
    let kept = service("a", 0, &[], json!({"metadata": {"namespace": "kept"}}));
    let refused = given(&assign(&places, &[kept], |_| HashSet::new(), |namespace| namespace == "kept"));
    assert!(refused[0].starts_with("the Pod Security level of namespace kept forbids host ports"), "{refused:?}");
}

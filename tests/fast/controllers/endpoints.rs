//! Endpoints, the slices that mirror manually managed ones, and the TTL of nodes.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{Endpoints, Node, Pod, Service},
    discovery::v1::EndpointSlice,
};
use podwright::controllers::{Plan, endpoint_mirror, endpoint_slice, endpoints, node_ttl};
use serde_json::{Value, json};

use super::{at, lines, object, pod};

fn service(spec: Value) -> Arc<Service> {
    let mut all = json!({
        "selector": { "app": "web" }, "ipFamilies": ["IPv4"], "clusterIP": "10.96.0.7",
        "ports": [{ "name": "web", "port": 80, "protocol": "TCP", "targetPort": 8080 }],
    });
    json_patch::merge(&mut all, &spec);
    object(
        json!({ "metadata": { "name": "s", "namespace": "a", "uid": "svc", "labels": { "team": "x" } }, "spec": all }),
    )
}

/// Like `pod`, with an address of its own.
fn at_ip(name: &str, ip: &str, ready: bool) -> Value {
    let mut pod = pod(name, "n", ready.then_some(0));
    pod["status"]["podIP"] = ip.into();
    pod["status"]["podIPs"] = json!([{ "ip": ip }]);
    pod
}

fn body(plan: &Plan) -> Value {
    plan.writes().next().expect("a write").request.body.clone().expect("a body")
}

/// `ready/not ready:ports`, one word per subset.
fn told(subsets: &Value) -> String {
    let list = |list: &Value, field: &str| -> String {
        let all: Vec<String> =
            list.as_array().into_iter().flatten().map(|item| item[field].to_string().replace('"', "")).collect();
        all.join(",")
    };
    let one = |subset: &Value| {
        let (ready, not) = (list(&subset["addresses"], "ip"), list(&subset["notReadyAddresses"], "ip"));
        format!("{ready}/{not}:{}", list(&subset["ports"], "port"))
    };
    subsets.as_array().into_iter().flatten().map(one).collect::<Vec<_>>().join(" ")
}

fn plan(service: &Service, pods: Vec<Value>, known: Option<&Endpoints>) -> Plan {
    let pods: Vec<Arc<Pod>> = pods.into_iter().map(object).collect();
    endpoints::plan(service, &pods, known)
}

#[test]
fn the_subsets_of_a_service() {
    let with = |mut pod: Value, path: &str, value: Value| {
        *pod.pointer_mut(path).expect("a path") = value;
        pod
    };
    let leaving = || {
        let mut pod = at_ip("l", "10.0.0.9", true);
        pod["metadata"]["deletionTimestamp"] = at(0).to_string().into();
        pod
    };
    let two_ports = json!({ "ports": [{ "name": "web", "port": 80, "targetPort": "http" }, { "name": "m", "port": 9, "targetPort": 9 }] });
    let other_port = || with(at_ip("c", "10.0.0.3", true), "/spec/containers/0/ports/0/containerPort", json!(9090));
    for (why, spec, pods, expected) in [
        ("nothing", json!({}), vec![], ""),
        (
            "ready and not",
            json!({}),
            vec![at_ip("b", "10.0.0.2", true), at_ip("a", "10.0.0.1", false), at_ip("c", "10.0.0.3", true)],
            "10.0.0.2,10.0.0.3/10.0.0.1:8080",
        ),
        (
            "not who has ended, or leaves",
            json!({}),
            vec![with(at_ip("a", "10.0.0.1", true), "/status/phase", json!("Failed")), leaving()],
            "",
        ),
        (
            "all are published",
            json!({ "publishNotReadyAddresses": true }),
            vec![at_ip("a", "10.0.0.1", false), leaving()],
            "10.0.0.1,10.0.0.9/:8080",
        ),
        (
            "ports of the same addresses are together",
            two_ports.clone(),
            vec![at_ip("a", "10.0.0.1", true)],
            "10.0.0.1/:8080,9",
        ),
        (
            "others are apart",
            two_ports,
            vec![at_ip("a", "10.0.0.1", true), other_port()],
            "10.0.0.1/:8080 10.0.0.1,10.0.0.3/:9 10.0.0.3/:9090",
        ),
        ("no ports", json!({ "clusterIP": "None", "ports": null }), vec![at_ip("a", "10.0.0.1", true)], "10.0.0.1/:"),
        (
            "the first family alone",
            json!({ "ipFamilies": ["IPv6", "IPv4"] }),
            vec![at_ip("a", "10.0.0.1", true), at_ip("b", "fd00::1", true)],
            "fd00::1/:8080",
        ),
    ] {
        let plan = plan(&service(spec), pods, None);
        assert_eq!(lines(&plan), ["create endpoints/s"], "{why}");
        assert_eq!(told(&body(&plan)["subsets"]), expected, "{why}");
    }
    let made = body(&plan(&service(json!({ "clusterIP": "None" })), vec![at_ip("p", "10.0.0.1", true)], None));
    let labels = json!({ "team": "x", "service.kubernetes.io/headless": "", "endpoints.kubernetes.io/managed-by": "endpoint-controller" });
    assert_eq!(made["metadata"]["labels"], labels);
    let target = json!({ "kind": "Pod", "namespace": "a", "name": "p", "uid": "uid-p" });
    assert_eq!(made["subsets"][0]["addresses"][0], json!({ "ip": "10.0.0.1", "nodeName": "n", "targetRef": target }));
    assert_eq!(made["subsets"][0]["ports"], json!([{ "name": "web", "port": 8080, "protocol": "TCP" }]));
    // Endpoints that are correct are left alone; an update refers to this state.
    let known: Arc<Endpoints> = object(made);
    let service = service(json!({ "clusterIP": "None" }));
    assert!(plan(&service, vec![at_ip("p", "10.0.0.1", true)], Some(&known)).is_empty());
    assert_eq!(body(&plan(&service, vec![], Some(&known)))["subsets"], Value::Null);
}

#[test]
fn a_thousand_addresses_are_the_most() {
    let crowd = |ready: usize, not: usize| -> Vec<Value> {
        (0..ready + not)
            .map(|n| at_ip(&format!("p{n:04}"), &format!("10.1.{}.{}", n / 200, n % 200), n < ready))
            .collect()
    };
    for (ready, not, expected) in [
        (600, 400, (600, 400, false)),
        (600, 500, (600, 400, true)),
        (1100, 50, (1000, 0, true)),
        (1000, 1, (1000, 0, true)),
    ] {
        let made = body(&plan(&service(json!({})), crowd(ready, not), None));
        let count = |field: &str| made["subsets"][0][field].as_array().map_or(0, Vec::len);
        let noted = made["metadata"]["annotations"]["endpoints.kubernetes.io/over-capacity"] == "truncated";
        assert_eq!((count("addresses"), count("notReadyAddresses"), noted), expected);
    }
    let full: Arc<Endpoints> = object(body(&plan(&service(json!({})), crowd(1001, 0), None)));
    let fewer = body(&plan(&service(json!({})), crowd(1, 0), Some(&full)));
    assert_eq!(fewer["metadata"]["annotations"], json!({ "endpoints.kubernetes.io/over-capacity": null }));
}

fn written(metadata: Value, subsets: Value) -> Arc<Endpoints> {
    let mut all = json!({ "name": "s", "namespace": "a", "uid": "e", "resourceVersion": "1" });
    json_patch::merge(&mut all, &metadata);
    object(json!({ "metadata": all, "subsets": subsets }))
}

#[test]
fn a_users_endpoints_are_mirrored() {
    let foreign = service(json!({ "selector": null }));
    let subsets = json!([
        { "addresses": [{ "ip": "192.0.2.1" }, { "ip": "2001:db8::1" }], "notReadyAddresses": [{ "ip": "192.0.2.2" }], "ports": [{ "name": "web", "port": 80 }] },
        { "addresses": [{ "ip": "192.0.2.3" }], "ports": [{ "name": "web", "port": 81 }] },
    ]);
    let endpoints = written(
        json!({ "labels": { "x": "y" }, "annotations": { "k": "v", "kubectl.kubernetes.io/last-applied-configuration": "{}" } }),
        subsets,
    );
    let plan = endpoint_mirror::plan(Some(&foreign), Some(&endpoints), &[]);
    let made: Vec<Value> = plan.writes().map(|write| write.request.body.clone().unwrap()).collect();
    let shown = |slice: &Value| {
        let each = slice["endpoints"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| format!("{}={}", e["addresses"][0].as_str().unwrap(), e["conditions"]["ready"]));
        format!(
            "{} {} {}",
            slice["addressType"].as_str().unwrap(),
            slice["ports"][0]["port"],
            each.collect::<Vec<_>>().join(",")
        )
    };
    assert_eq!(
        made.iter().map(shown).collect::<Vec<_>>(),
        ["IPv4 80 192.0.2.1=true,192.0.2.2=false", "IPv6 80 2001:db8::1=true", "IPv4 81 192.0.2.3=true"]
    );
    let meta = &made[0]["metadata"];
    let labels = json!({ "x": "y", "kubernetes.io/service-name": "s", "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io" });
    assert_eq!(
        (&meta["generateName"], &meta["labels"], &meta["annotations"]),
        (&json!("s-"), &labels, &json!({ "k": "v" }))
    );
    assert_eq!(
        (&meta["ownerReferences"][0]["kind"], &meta["ownerReferences"][0]["uid"]),
        (&json!("Endpoints"), &json!("e"))
    );

    // Existing slices are updated in place, left-over ones are deleted.
    let slices: Vec<Arc<EndpointSlice>> = made
        .into_iter()
        .enumerate()
        .map(|(n, mut slice)| {
            slice["metadata"]["name"] = format!("s-{n}").into();
            slice["metadata"]["uid"] = format!("s-{n}").into();
            object(slice)
        })
        .collect();
    assert!(endpoint_mirror::plan(Some(&foreign), Some(&endpoints), &slices).is_empty());
    let fewer = written(
        json!({ "labels": { "x": "y" }, "annotations": { "k": "v" } }),
        json!([{ "addresses": [{ "ip": "192.0.2.9" }], "ports": [{ "name": "web", "port": 81 }] }]),
    );
    let plan = endpoint_mirror::plan(Some(&foreign), Some(&fewer), &slices);
    let slice = |verb: &str, n: usize| format!("{verb} endpointslices.discovery.k8s.io/s-{n}");
    assert_eq!(lines(&plan), [slice("patch", 2), slice("delete", 0), slice("delete", 1)]);

    // Not those of a Service with a selector, those without a Service, or those that opt out.
    let skip = |metadata: Value| written(metadata, json!([{ "addresses": [{ "ip": "192.0.2.9" }] }]));
    for (why, service, endpoints) in [
        ("selects", Some(service(json!({}))), Some(endpoints.clone())),
        ("is gone", None, Some(endpoints)),
        ("has none", Some(foreign.clone()), None),
        (
            "are skipped",
            Some(foreign.clone()),
            Some(skip(json!({ "labels": { "endpointslice.kubernetes.io/skip-mirror": "true" } }))),
        ),
        (
            "elect a leader",
            Some(foreign),
            Some(skip(json!({ "annotations": { "control-plane.alpha.kubernetes.io/leader": "{}" } }))),
        ),
    ] {
        let plan = endpoint_mirror::plan(service.as_deref(), endpoints.as_deref(), &slices);
        assert_eq!(lines(&plan), [slice("delete", 0), slice("delete", 1), slice("delete", 2)], "{why}");
        assert!(endpoint_mirror::plan(service.as_deref(), endpoints.as_deref(), &[]).is_empty(), "{why}");
    }
}

#[test]
fn what_cannot_be_mirrored_is_told() {
    let foreign = service(json!({ "selector": null }));
    let many: Vec<Value> = (0..1003).map(|n| json!({ "ip": format!("10.1.{}.{}", n / 200, n % 200) })).collect();
    let endpoints = written(json!({}), json!([{ "addresses": many }]));
    let plan = endpoint_mirror::plan(Some(&foreign), Some(&endpoints), &[]);
    assert_eq!(body(&plan)["endpoints"].as_array().map(Vec::len), Some(1000));
    assert!(plan.notes[0].message.contains("3 addresses were not mirrored"), "{:?}", plan.notes);
    // Subsets with the same ports share a slice, up to the same maximum.
    let (first, second) = (json!({ "addresses": many[..600] }), json!({ "addresses": many[600..] }));
    let endpoints = written(json!({}), json!([first, second]));
    let plan = endpoint_mirror::plan(Some(&foreign), Some(&endpoints), &[]);
    let sizes: Vec<usize> = { plan.writes() }
        .map(|write| write.request.body.as_ref().unwrap()["endpoints"].as_array().map_or(0, Vec::len))
        .collect();
    assert_eq!(sizes, [1000]);
    assert!(plan.notes[0].message.contains("3 addresses were not mirrored"), "{:?}", plan.notes);
}

#[test]
fn all_nodes_are_told_when_their_number_comes_to_the_end_of_a_step() {
    for (before, now, expected) in [
        (0, 1, false),
        (50, 60, false),
        (100, 101, true),
        (101, 100, true),
        (95, 120, true),
        (120, 130, false),
        (90, 89, true),
        (89, 90, true),
        (120, 40, true),
        (440, 460, true),
        (5000, 6000, false),
    ] {
        assert_eq!(node_ttl::crosses(before, now), expected, "from {before} to {now}");
    }
}

#[test]
fn the_ttl_grows_with_the_cluster_and_does_not_waver() {
    // The node's annotation, the number of nodes, the annotation then.
    for (before, nodes, after) in [
        ("", 1, "0"),
        ("0", 100, ""),
        ("0", 101, "15"),
        ("15", 95, ""),
        ("15", 90, ""),
        ("15", 89, "0"),
        ("15", 501, "30"),
        ("", 1500, "60"),
        ("60", 1850, ""),
        ("60", 2001, "300"),
        ("300", 1800, ""),
        ("300", 1799, "60"),
        ("300", 5, "0"),
        ("7", 5, "0"),
    ] {
        let annotations = if before.is_empty() { Value::Null } else { json!({ node_ttl::TTL: before }) };
        let node: Arc<Node> = object(json!({ "metadata": { "name": "n", "annotations": annotations } }));
        let plan = node_ttl::plan(&node, nodes);
        let written = plan
            .writes()
            .next()
            .map(|write| write.request.body.as_ref().unwrap()["metadata"]["annotations"][node_ttl::TTL].clone());
        assert_eq!(written.unwrap_or_default().as_str().unwrap_or(""), after, "{before:?} of {nodes}");
    }
}

/// Authors of Pods and Services choose both lists: the work is linear in their lengths, not their product. (It took minutes.)
#[test]
fn many_ports_by_name_take_no_longer_than_they_are_long() {
    const PORTS: usize = 250;
    const PODS: usize = 300;
    let ports: Vec<Value> =
        (0..PORTS).map(|n| json!({ "name": format!("p{n}"), "port": n + 1, "targetPort": format!("p{n}") })).collect();
    let service = service(json!({ "ports": ports }));
    // Every Pod has different numbers.
    let one = |pod: usize| {
        let mut it = at_ip(&format!("p{pod}"), &format!("10.0.{}.{}", pod / 250, pod % 250 + 1), true);
        let number = |n: usize| 1 + (n * PODS + pod) % 65535;
        let ports = (0..PORTS).map(|n| json!({ "name": format!("p{n}"), "containerPort": number(n) }));
        it["spec"]["containers"][0]["ports"] = ports.collect();
        object::<Pod>(it)
    };
    let pods: Vec<Arc<Pod>> = (0..PODS).map(one).collect();
    let begun = std::time::Instant::now();
    let subsets = body(&endpoints::plan(&service, &pods, None))["subsets"].as_array().unwrap().clone();
    assert_eq!(subsets.len(), PODS);
    assert!(subsets.iter().all(|subset| subset["ports"].as_array().unwrap().len() == PORTS));
    let slices = endpoint_slice::plan(&service, &pods, &[], |_| Some(object(json!({ "metadata": { "name": "n" } }))));
    assert_eq!(slices.writes().count(), PODS);
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

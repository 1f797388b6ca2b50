//! EndpointSlices: what an endpoint contains, how endpoints are distributed, what changes.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{Node, Pod, Service},
    discovery::v1::EndpointSlice,
};
use podwright::controllers::{Plan, endpoint_slice, write::Write};
use serde_json::{Value, json};

use super::{at, lines, object, pod, starved};

fn service(spec: Value) -> Arc<Service> {
    let mut all = json!({
        "selector": { "app": "web" }, "ipFamilies": ["IPv4"], "clusterIP": "10.96.0.7",
        "ports": [{ "name": "web", "port": 80, "protocol": "TCP", "targetPort": 8080 }],
    });
    json_patch::merge(&mut all, &spec);
    object(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "s", "namespace": "a", "uid": "svc", "labels": { "team": "x" } }, "spec": all,
    }))
}

fn plan(service: &Service, pods: &[Arc<Pod>], slices: &[Arc<EndpointSlice>]) -> Plan {
    endpoint_slice::plan(service, pods, slices, |name| Some(node(name)))
}

/// A node in a zone of its own.
fn node(name: &str) -> Arc<Node> {
    let labels = json!({ "topology.kubernetes.io/zone": format!("zone-of-{name}") });
    object(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": labels } }))
}

/// The slices after a plan was executed.
fn done(plan: &Plan, slices: &[Arc<EndpointSlice>]) -> Vec<Arc<EndpointSlice>> {
    let mut all: Vec<Value> = slices.iter().map(|slice| serde_json::to_value(&**slice).unwrap()).collect();
    for write in plan.writes() {
        let (request, body) = (&write.request, write.request.body.clone().unwrap_or_default());
        let name = Value::from(request.name.clone());
        match format!("{:?}", request.verb).as_str() {
            "Create" => {
                let mut new = body;
                new["metadata"]["name"] = format!("s-{}", all.len()).into();
                new["metadata"]["uid"] = format!("uid-{}", all.len()).into();
                all.push(new);
            }
            "Patch" => {
                let old = all.iter_mut().find(|slice| slice["metadata"]["name"] == name);
                json_patch::merge(old.expect("the slice to patch"), &body);
            }
            _ => all.retain(|slice| slice["metadata"]["name"] != name),
        }
    }
    all.into_iter().map(object).collect()
}

fn crowd(range: std::ops::Range<usize>) -> Vec<Arc<Pod>> {
    range.map(|n| object(pod(&format!("p{n:04}"), "n", Some(0)))).collect()
}

fn sizes(slices: &[Arc<EndpointSlice>]) -> Vec<usize> {
    slices.iter().map(|slice| slice.endpoints.len()).collect()
}

#[test]
fn a_slice_says_all_about_its_endpoints() {
    let service = service(json!({}));
    let slices = done(&plan(&service, &[object(pod("p", "n", Some(0)))], &[]), &[]);
    let slice = serde_json::to_value(&*slices[0]).unwrap();
    assert_eq!(slice["metadata"]["generateName"], "s-");
    assert_eq!(
        slice["metadata"]["labels"],
        json!({
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            "kubernetes.io/service-name": "s", "team": "x",
        })
    );
    assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "svc");
    assert_eq!(slice["addressType"], "IPv4");
    assert_eq!(slice["ports"], json!([{ "name": "web", "port": 8080, "protocol": "TCP" }]));
    assert_eq!(
        slice["endpoints"],
        json!([{
            "addresses": ["10.0.0.1"],
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "nodeName": "n",
            "targetRef": { "kind": "Pod", "name": "p", "namespace": "a", "uid": "uid-p" },
            "zone": "zone-of-n",
        }])
    );
    assert!(plan(&service, &[object(pod("p", "n", Some(0)))], &slices).is_empty(), "nothing to do any more");
}

#[test]
fn conditions_follow_readiness_and_termination() {
    let ending = |mut pod: Value| {
        pod["metadata"]["deletionTimestamp"] = at(0).to_string().into();
        pod
    };
    let ready = || pod("p", "n", Some(0));
    let unready = || pod("p", "n", None);
    for (pod, publish, expected) in [
        (ready(), false, (true, true, false)),
        (unready(), false, (false, false, false)),
        (unready(), true, (true, false, false)),
        (ending(ready()), false, (false, true, true)),
        (ending(ready()), true, (true, true, true)),
        (ending(unready()), false, (false, false, true)),
    ] {
        let service = service(json!({ "publishNotReadyAddresses": publish }));
        let slices = done(&plan(&service, &[object(pod)], &[]), &[]);
        let c = slices[0].endpoints[0].conditions.clone().unwrap();
        assert_eq!((c.ready.unwrap(), c.serving.unwrap(), c.terminating.unwrap()), expected);
    }
}

#[test]
fn pods_without_address_or_life_are_left_out() {
    let mut finished = pod("f", "n", Some(0));
    finished["status"]["phase"] = "Succeeded".into();
    let mut homeless = pod("h", "n", None);
    homeless["status"]["podIP"] = Value::Null;
    homeless["status"]["podIPs"] = Value::Null;
    let slices = done(&plan(&service(json!({})), &[object(finished), object(homeless)], &[]), &[]);
    assert_eq!(sizes(&slices), [0], "one empty slice");
    assert!(plan(&service(json!({})), &[], &slices).is_empty());
}

#[test]
fn a_pod_whose_node_is_no_more_is_left_out() {
    let pods: Vec<Arc<Pod>> = vec![object(pod("p", "n", Some(0))), object(pod("q", "gone", Some(0)))];
    let node_of = |name: &str| (name == "n").then(|| node(name));
    for (publish, expected) in [(false, &["uid-p"][..]), (true, &["uid-p", "uid-q"])] {
        let service = service(json!({ "publishNotReadyAddresses": publish }));
        let slices = done(&endpoint_slice::plan(&service, &pods, &[], node_of), &[]);
        let found: Vec<&str> =
            slices[0].endpoints.iter().map(|e| e.target_ref.as_ref().unwrap().uid.as_deref().unwrap()).collect();
        assert_eq!(found, expected, "publishNotReadyAddresses: {publish}");
    }
}

#[test]
fn a_service_takes_over_no_slices_of_an_earlier_one() {
    let old = service(json!({}));
    let pods: Vec<Arc<Pod>> = vec![object(pod("p", "n", Some(0)))];
    let slices = done(&plan(&old, &pods, &[]), &[]);
    let mut new = Service::clone(&old);
    new.metadata.uid = Some("later".into());
    let plan = plan(&new, &pods, &slices);
    let slice = "endpointslices.discovery.k8s.io";
    assert_eq!(lines(&plan), [format!("create {slice}/s-"), format!("delete {slice}/s-0")]);
    assert_eq!(starved(&plan, &lines(&plan)[0]), lines(&plan)[1..], "its own come first");
    let after = done(&plan, &slices);
    assert_eq!(after[0].metadata.owner_references.as_ref().unwrap()[0].uid, "later");
    assert_eq!(sizes(&after), [1]);
}

#[test]
fn endpoints_are_meant_for_where_they_are_if_the_service_says_so() {
    let pods: Vec<Arc<Pod>> = vec![object(pod("p", "n", Some(0))), object(pod("q", "n", None))];
    let zone = json!({ "forZones": [{ "name": "zone-of-n" }] });
    let node = json!({ "forNodes": [{ "name": "n" }], "forZones": [{ "name": "zone-of-n" }] });
    let mut slices = Vec::new();
    for (distribution, expected) in [
        (json!("PreferClose"), &zone),
        (json!("PreferSameNode"), &node),
        (json!("PreferSameZone"), &zone),
        (Value::Null, &Value::Null),
    ] {
        let service = service(json!({ "trafficDistribution": distribution }));
        slices = done(&plan(&service, &pods, &slices), &slices);
        let endpoints = serde_json::to_value(&slices[0].endpoints).unwrap();
        assert_eq!(endpoints[0]["hints"], *expected, "{distribution}");
        assert!(endpoints[1]["hints"].is_null(), "{distribution}: one that is not ready is meant for nobody");
    }
}

#[test]
fn the_annotation_for_topology_is_told_of() {
    let mut service = Service::clone(&service(json!({})));
    service.metadata.annotations = Some([("service.kubernetes.io/topology-mode".to_owned(), "Auto".to_owned())].into());
    let pods: Vec<Arc<Pod>> = vec![object(pod("p", "n", Some(0)))];
    let first = plan(&service, &pods, &[]);
    let told: Vec<(&str, &str)> = first.notes.iter().map(|note| (note.reason, note.message.as_str())).collect();
    let message = "The annotation service.kubernetes.io/topology-mode is not served, use spec.trafficDistribution";
    assert_eq!(told, [("TopologyAwareHintsDisabled", message)]);
    assert!(plan(&service, &pods, &done(&first, &[])).is_empty(), "once");
}

#[test]
fn hostnames_are_those_of_pods_in_the_services_domain() {
    let mut inside = pod("i", "n", Some(0));
    inside["spec"]["hostname"] = "db-0".into();
    inside["spec"]["subdomain"] = "s".into();
    let mut outside = inside.clone();
    outside["metadata"]["uid"] = "o".into();
    outside["spec"]["subdomain"] = "other".into();
    let headless = service(json!({ "clusterIP": "None" }));
    let slices = done(&plan(&headless, &[object(inside), object(outside)], &[]), &[]);
    let hostnames: Vec<_> = slices[0].endpoints.iter().map(|endpoint| endpoint.hostname.as_deref()).collect();
    assert_eq!(hostnames, [Some("db-0"), None]);
    assert_eq!(slices[0].metadata.labels.as_ref().unwrap()["service.kubernetes.io/headless"], "");
}

#[test]
fn each_family_has_slices_of_its_own() {
    let mut dual = pod("p", "n", Some(0));
    dual["status"]["podIPs"] = json!([{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }]);
    let both = service(json!({ "ipFamilies": ["IPv4", "IPv6"] }));
    let slices = done(&plan(&both, &[object(dual.clone())], &[]), &[]);
    let found: Vec<(&str, &str)> =
        slices.iter().map(|s| (s.address_type.as_str(), s.endpoints[0].addresses[0].as_str())).collect();
    assert_eq!(found, [("IPv4", "10.0.0.1"), ("IPv6", "fd00::1")]);
    let one = service(json!({ "ipFamilies": ["IPv4"] }));
    assert_eq!(sizes(&done(&plan(&one, &[object(dual)], &slices), &slices)), [1], "the other family's go");
}

#[test]
fn a_named_port_is_what_each_pod_says() {
    let service = service(json!({ "ports": [{ "name": "web", "port": 80, "protocol": "TCP", "targetPort": "http" }] }));
    let mut other = pod("q", "n", Some(0));
    other["spec"]["containers"][0]["ports"][0]["containerPort"] = 9090.into();
    let slices = done(&plan(&service, &[object(pod("p", "n", Some(0))), object(other)], &[]), &[]);
    let mut ports: Vec<Option<i32>> = slices.iter().map(|slice| slice.ports.as_ref().unwrap()[0].port).collect();
    ports.sort();
    assert_eq!(ports, [Some(8080), Some(9090)]);
}

/// Each repeats the labels of its Service, whose author determines the number and size of the slices.
#[test]
fn slices_are_written_so_many_bytes_at_a_time() {
    let mut large = Service::clone(&service(json!({ "ports": [{ "port": 80, "targetPort": "http" }] })));
    large.metadata.labels.as_mut().unwrap().insert("l".into(), "x".repeat(600_000));
    let with_port = |n: u16| {
        let mut pod = pod(&format!("p{n}"), "n", Some(0));
        pod["spec"]["containers"][0]["ports"][0]["containerPort"] = (8000 + n).into();
        object(pod)
    };
    let pods: Vec<Arc<Pod>> = (0..40).map(with_port).collect();
    let mut slices = Vec::new();
    for _ in 0..10 {
        let plan = plan(&large, &pods, &slices);
        let bytes: usize = plan.writes().map(Write::size).sum();
        assert!(bytes < 10 << 20, "{bytes} bytes at a time");
        let before = slices.len();
        slices = done(&plan, &slices);
        assert_eq!(plan.requeue_after.is_some(), slices.len() < pods.len(), "{} of all", slices.len());
        if slices.len() == pods.len() {
            break;
        }
        assert!(slices.len() > before, "some at a time");
    }
    assert_eq!(sizes(&slices), [1; 40]);
    assert!(plan(&large, &pods, &slices).is_empty());
}

#[test]
fn at_most_a_hundred_endpoints_a_slice() {
    let slices = done(&plan(&service(json!({})), &crowd(0..250), &[]), &[]);
    assert_eq!(sizes(&slices), [100, 100, 50]);
}

#[test]
fn a_change_touches_as_few_slices_as_it_can() {
    let service = service(json!({}));
    let slices = done(&plan(&service, &crowd(0..250), &[]), &[]);

    let plan_more = plan(&service, &crowd(0..260), &slices);
    assert_eq!(lines(&plan_more), ["patch endpointslices.discovery.k8s.io/s-2"], "the one with room");

    let fewer: Vec<Arc<Pod>> = crowd(0..250).into_iter().skip(1).collect();
    assert_eq!(lines(&plan(&service, &fewer, &slices)), ["patch endpointslices.discovery.k8s.io/s-0"]);

    let replaced: Vec<Arc<Pod>> = crowd(1..251);
    let swap = plan(&service, &replaced, &slices);
    assert_eq!(lines(&swap), ["patch endpointslices.discovery.k8s.io/s-0"], "the new one takes the free place");

    let plan_few = plan(&service, &crowd(0..100), &slices);
    let few = done(&plan_few, &slices);
    assert_eq!(sizes(&few), [100], "empty slices go");
    assert_eq!(plan_few.writes().count(), 2);

    assert_eq!(sizes(&done(&plan(&service, &[], &slices), &slices)), [0], "one empty slice stays");
}

//! Which endpoints hints leave to a node.

use std::sync::Arc;

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use podwright::proxy::{NodeContext, compile};
use serde_json::{Value, json};

/// The addresses' last numbers that the node `a` uses, if it is in `zone`.
fn used(zone: Option<&str>, endpoints: &[Value]) -> Vec<String> {
    let service: Service = serde_saphyr::from_str(super::WEB).unwrap();
    let slice = json!({
        "addressType": "IPv4", "metadata": { "name": "web-1", "namespace": "default" },
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }], "endpoints": endpoints,
    });
    let slice: Arc<EndpointSlice> = Arc::new(serde_json::from_value(slice).unwrap());
    let place = NodeContext { node: "a".to_owned(), zone: zone.map(str::to_owned), ..NodeContext::default() };
    let compiled = compile(&service, &[slice], &place).expect("a Service with an address");
    let all = compiled.ports[0].internal.endpoints.iter();
    all.map(|address| address.ip().to_string().rsplit_once('.').unwrap().1.to_owned()).collect()
}

fn endpoint(number: u8, ready: bool, hints: Value) -> Value {
    json!({ "addresses": [format!("10.244.1.{number}")], "conditions": { "ready": ready }, "hints": hints })
}

fn zones(names: &[&str]) -> Value {
    json!({ "forZones": names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>() })
}

fn node(name: &str, zone: &str) -> Value {
    json!({ "forNodes": [{ "name": name }], "forZones": [{ "name": zone }] })
}

#[test]
fn hints_are_followed_only_where_all_ready_endpoints_have_them_and_some_are_for_here() {
    let (east, west) = (|n| endpoint(n, true, zones(&["east"])), |n| endpoint(n, true, zones(&["west"])));
    let unready = |n, hints| endpoint(n, false, hints);
    for (why, zone, endpoints, expected) in [
        ("those of the zone", Some("east"), vec![east(1), west(2), east(3)], "1 3"),
        ("meant for several zones", Some("east"), vec![endpoint(1, true, zones(&["west", "east"])), west(2)], "1"),
        ("none is meant for the zone", Some("north"), vec![east(1), west(2)], "1 2"),
        ("the node is in no zone", None, vec![east(1), west(2)], "1 2"),
        ("nothing is said of one", Some("east"), vec![east(1), west(2), endpoint(3, true, Value::Null)], "1 2 3"),
        ("nor of one that is not ready", Some("east"), vec![east(1), west(2), unready(3, Value::Null)], "1"),
        ("the only one here is not ready", Some("east"), vec![unready(1, zones(&["east"])), west(2)], "2"),
        (
            "on this node",
            Some("east"),
            vec![endpoint(1, true, node("a", "east")), endpoint(2, true, node("b", "east"))],
            "1",
        ),
        (
            "not on this node, but in the zone",
            Some("east"),
            vec![endpoint(1, true, node("c", "west")), endpoint(2, true, node("b", "east"))],
            "2",
        ),
        ("of a node of one alone", Some("east"), vec![endpoint(1, true, node("a", "east")), west(2), east(3)], "1 3"),
    ] {
        assert_eq!(used(zone, &endpoints).join(" "), expected, "{why}");
    }
}

#[test]
fn what_still_answers_is_used_wherever_it_is_when_nothing_is_ready() {
    let mut leaving = endpoint(1, false, zones(&["west"]));
    leaving["conditions"] = json!({ "ready": false, "serving": true, "terminating": true });
    assert_eq!(used(Some("east"), &[leaving, endpoint(2, false, zones(&["east"]))]), ["1"]);
}

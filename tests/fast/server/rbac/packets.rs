//! Who may ask for the way of a packet (`podwright why`): it leads through the policies of both ends.

use podwright::api::request::PatchType;
use podwright::api::{Options, Request, Response, Status, User, Verb};
use serde_json::{Value, json};

use super::super::pod;
use super::{Api, request, rules};

const TENANT: &str = "tenant";

/// Pods with addresses in two namespaces, and a Service in each.
async fn world() -> Api {
    let api = Api::new().await;
    for (namespace, address) in [("own", "10.244.0.2"), ("others", "10.244.0.3")] {
        let named = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        api.create("namespaces", named).await.unwrap();
        let mut pod = pod("p");
        pod["metadata"]["namespace"] = namespace.into();
        pod["spec"]["nodeName"] = "n1".into();
        api.create("pods", pod).await.unwrap();
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        let options = Options { patch_type: Some(PatchType::Merge), ..Options::default() };
        let patch = request(Verb::Patch, "pods", "p", Some(status), options);
        let patch = Request { namespace: Some(namespace.into()), subresource: Some("status".into()), ..patch };
        api.0.handle(patch).await.unwrap();
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": namespace},
            "spec": {"ports": [{"port": 80}]},
        });
        api.create("services", service).await.unwrap();
    }
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
                      "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    api.create("nodes", node).await.unwrap();
    api
}

async fn ask(
    api: &Api,
    resource: &str,
    namespace: Option<&str>,
    name: &str,
    packet: Value,
) -> Result<Response, Status> {
    let user = User::new(TENANT, ["system:authenticated"]);
    let body = Some(json!({ "packet": packet }));
    let asked = request(Verb::Connect, resource, name, body, Options::default());
    let namespace = namespace.map(str::to_owned);
    api.0.handle(Request { user, namespace, subresource: Some("inspect".into()), ..asked }).await
}

fn packet(peer: Value) -> Value {
    json!({"peer": peer, "port": 80, "protocol": "TCP"})
}

/// 503: all is well, but no agent is connected.
fn code(answer: &Result<Response, Status>) -> u16 {
    answer.as_ref().err().map_or(200, |status| status.code)
}

#[tokio::test]
async fn the_way_of_a_packet_takes_rights_to_both_ends() {
    let api = world().await;
    let peers = || {
        let of = |kind: &str, namespace: &str, name: &str| json!({ (kind): {"namespace": namespace, "name": name} });
        [
            of("pod", "own", "p"),
            of("service", "own", "s"),
            of("pod", "others", "p"),
            of("service", "others", "s"),
            json!({"node": {"name": "n1"}}),
            json!({"address": "10.244.0.3"}),
        ]
    };
    let codes = async || {
        let mut codes = Vec::new();
        for peer in peers() {
            codes.push(code(&ask(&api, "pods", Some("own"), "p", packet(peer)).await));
        }
        codes.push(code(&ask(&api, "nodes", None, "n1", packet(json!({"address": "10.244.0.3"}))).await));
        codes
    };
    let subjects = || json!([{"kind": "User", "name": TENANT, "apiGroup": "rbac.authorization.k8s.io"}]);
    assert_eq!(codes().await, [403; 7], "nobody's rights");
    api.cluster_role("inspects", rules(&["get core pods/inspect", "get core services"])).await;
    api.bind("inspects", Some("own"), subjects()).await;
    assert_eq!(codes().await, [403; 7], "the policies are not his to read");
    api.cluster_role("reads", rules(&["list networking.k8s.io networkpolicies"])).await;
    api.bind("reads", Some("own"), subjects()).await;
    assert_eq!(codes().await, [503, 503, 403, 403, 403, 403, 403], "his own namespace is");
    api.bind("reads", Some("others"), subjects()).await;
    assert_eq!(codes().await, [503, 503, 403, 403, 403, 403, 403], "the other Pods are not");
    api.bind("inspects", Some("others"), subjects()).await;
    assert_eq!(codes().await, [503, 503, 503, 503, 403, 403, 403], "neither are nodes and addresses");
    for role in ["inspects", "reads"] {
        api.bind(role, None, subjects()).await;
    }
    assert_eq!(codes().await, [503, 503, 503, 503, 403, 403, 403], "nodes are not");
    api.cluster_role("nodes", rules(&["get core nodes/inspect"])).await;
    api.bind("nodes", None, subjects()).await;
    assert_eq!(codes().await, [503; 7]);
}

#[tokio::test]
async fn a_packet_that_makes_no_sense_is_refused() {
    let api = world().await;
    let own = || json!({"pod": {"namespace": "own", "name": "p"}});
    let asked = async |packet: Value| {
        let body = Some(json!({ "packet": packet }));
        let asked = request(Verb::Connect, "pods", "p", body, Options::default());
        let asked = Request { namespace: Some("own".into()), subresource: Some("inspect".into()), ..asked };
        let status = api.0.handle(asked).await.unwrap_err();
        (status.code, status.message)
    };
    let cases = [
        (json!({"peer": own(), "port": 0, "protocol": "TCP"}), 400, "packet.port"),
        (json!({"peer": own(), "port": 80, "protocol": "ICMP"}), 400, "packet.protocol"),
        (json!({"peer": own(), "port": 80, "protocol": "TCP", "to": "192.0.2.1"}), 400, "packet.to"),
        (
            json!({"peer": {"pod": {"namespace": "own", "name": "q"}}, "port": 80, "protocol": "TCP"}),
            404,
            "\"q\" not found",
        ),
        (json!({"peer": {"address": "x"}, "port": 80, "protocol": "TCP"}), 400, "options"),
        (json!({"port": 80, "protocol": "TCP"}), 400, "peer"),
    ];
    for (packet, code, part) in cases {
        let (found, message) = asked(packet.clone()).await;
        assert!(found == code && message.contains(part), "{packet}: {found} {message}");
    }
    let of_node = request(Verb::Connect, "nodes", "n1", None, Options::default());
    let of_node = Request { namespace: None, subresource: Some("inspect".into()), ..of_node };
    assert_eq!(api.0.handle(of_node).await.unwrap_err().code, 400);
}

//! Traces of JSON-RPC requests, and the trace context passed to webhooks.

use futures::{SinkExt, StreamExt};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest};

use super::ask;
use super::collector::{Collector, at, attribute, hex};
use super::hook::Hook;
use super::traces::{configuration, whole};
use crate::support::TestNode;

const PARENT: &str = "00f067aa0ba902b7";

fn call(method: &str, name: &str) -> String {
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let params = json!({"resource": "configmaps", "namespace": "default", "body": body});
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
}

#[test]
fn a_request_by_json_rpc_is_traced_as_one_by_rest_and_a_webhook_is_a_part_of_it() {
    let (collector, hook) = (Collector::start(), Hook::start());
    let (_folder, file) = configuration(&collector.address.to_string());
    let node = TestNode::server(&["--tracing-config-file", &file.display().to_string()]);
    node.apply(&hook.configuration());
    const CREATE: &str = "create configmaps";

    // In the header of its HTTP request.
    let trace = "55555555555555555555555555555555";
    let parent = format!("00-{trace}-{PARENT}-01");
    let headers = [("traceparent", parent.as_str()), ("User-Agent", "tester/1")];
    let answer = ask(&node, "POST /rpc", &headers, &call("create", "one"));
    assert!(answer.code == 200 && answer.text().contains("\"created\":true"), "{}", answer.text());
    let spans = whole(&collector, trace, &[&[CREATE, "Authorize"], &[CREATE, "Create", "Transaction"]]);
    let root = at(&spans, &[CREATE]).unwrap();
    assert_eq!(hex(&root.parent_span_id), PARENT);
    assert_eq!(
        (attribute(root, "rpc.method").as_str(), attribute(root, "user_agent.original").as_str()),
        ("create", "tester/1")
    );
    assert_eq!(attribute(root, "http.response.status_code"), "200");
    // The webhook gets a span of this trace.
    let told = hook.heard().last().cloned().unwrap_or_default();
    let parts: Vec<&str> = told.split('-').collect();
    assert_eq!((parts[0], parts[1], parts[3]), ("00", trace, "01"), "{told}");
    assert!(spans.iter().any(|span| hex(&span.span_id) == parts[2]), "{told} is a span of it");

    // In the header of the WebSocket upgrade, for all requests on it.
    let trace = "66666666666666666666666666666666";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let said: Vec<Value> = runtime.block_on(async {
        let mut request = "ws://localhost/rpc".into_client_request().unwrap();
        request.headers_mut().insert("traceparent", format!("00-{trace}-{PARENT}-01").parse().unwrap());
        let stream = tokio::net::UnixStream::connect(node.socket()).await.unwrap();
        let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
        let mut said = Vec::new();
        for (method, name) in [("create", "two"), ("create", "two")] {
            socket.send(Message::text(call(method, name))).await.unwrap();
            said.push(serde_json::from_str(socket.next().await.unwrap().unwrap().to_text().unwrap()).unwrap());
        }
        said
    });
    assert!(said[0]["result"]["created"] == true && said[1]["error"]["code"] == 409, "{said:?}");
    let spans = crate::support::eventually("both requests", std::time::Duration::from_secs(60), || {
        let spans: Vec<Span> = collector.of(trace).into_iter().filter(|span| span.name == CREATE).collect();
        if spans.len() == 2 { Ok(spans) } else { Err(spans.len().to_string()) }
    });
    assert!(spans.iter().all(|span| hex(&span.parent_span_id) == PARENT));
    let codes: Vec<String> = spans.iter().map(|span| attribute(span, "http.response.status_code")).collect();
    assert!(codes.contains(&"200".to_owned()) && codes.contains(&"409".to_owned()), "{codes:?}");

    // Without a trace webhooks get none.
    let heard = hook.heard().len();
    assert_eq!(ask(&node, "POST /rpc", &[], &call("create", "three")).code, 200);
    assert_eq!(hook.heard()[heard..], ["".to_owned()]);
}

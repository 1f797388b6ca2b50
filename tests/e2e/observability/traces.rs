//! One trace spans from the request that created a Pod through the scheduler to the node, across processes; and a hanging collector
//! blocks nothing.

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Value, json};

use super::collector::{Collector, at, attribute, hex};
use super::{Answer, ask};
use crate::support::{TestNode, eventually};

const TIMEOUT: Duration = Duration::from_secs(60);
const PODS: &str = "POST /api/v1/namespaces/default/pods";

/// A configuration that samples by parent, in a folder.
pub(super) fn configuration(address: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tracing.yaml");
    let text = format!("apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: {address}\n");
    std::fs::write(&file, text).unwrap();
    (folder, file)
}

fn template() -> Value {
    json!({"terminationGracePeriodSeconds": 0, "containers": [
        {"name": "c", "image": "localhost/busybox:1", "imagePullPolicy": "Never", "command": ["sleep", "600"]}
    ]})
}

fn pod(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template()}).to_string()
}

fn traced(node: &TestNode, line: &str, trace: &str, body: &str, more: &[(&str, &str)]) -> Answer {
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let headers = [&[("traceparent", parent.as_str()), ("User-Agent", "tester/1")][..], more].concat();
    ask(node, line, &headers, body)
}

/// The spans of a trace, once they include all these paths.
pub(super) fn whole(collector: &Collector, trace: &str, wanted: &[&[&str]]) -> Vec<Span> {
    eventually("the whole trace", TIMEOUT, || {
        let spans = collector.of(trace);
        let missing: Vec<_> = wanted.iter().filter(|way| at(&spans, way).is_none()).collect();
        let named = |id: &[u8]| spans.iter().find(|span| span.span_id == id).map_or("", |span| span.name.as_str());
        let told = || spans.iter().map(|span| format!("{} < {}", span.name, named(&span.parent_span_id)));
        match missing.is_empty() {
            true => Ok(spans),
            false => Err(format!("{missing:?} are missing in {:?}", told().collect::<Vec<_>>())),
        }
    })
}

const REQUEST: &str = "POST /api/v1/namespaces/{:namespace}/pods";
/// The spans of a request for a Pod.
const POD: [&[&str]; 11] = [
    &[REQUEST, "Authenticate"],
    &[REQUEST, "Authorize"],
    &[REQUEST, "Create"],
    &[REQUEST, "Create", "Admit"],
    &[REQUEST, "Create", "Validate"],
    &[REQUEST, "Create", "Transaction"],
    &[REQUEST, "Create", "Schedule"],
    &[REQUEST, "Create", "Schedule", "create pods/binding"],
    &[REQUEST, "Create", "SyncPod"],
    &[REQUEST, "Create", "SyncPod", "Start sandbox"],
    &[REQUEST, "Create", "SyncPod", "Start container"],
];
/// The spans of any Pod's start.
const START: [&[&str]; 4] = [
    &["Create", "Schedule", "create pods/binding"],
    &["Create", "SyncPod"],
    &["SyncPod", "Start sandbox"],
    &["SyncPod", "Start container"],
];

/// Checks that a span begins after its parent, and ends after its start.
#[track_caller]
fn is_in_time(spans: &[Span], way: &[&str]) {
    let (span, above) = (at(spans, way).unwrap(), at(spans, &way[..way.len() - 1]).unwrap());
    assert!(span.start_time_unix_nano >= above.start_time_unix_nano, "{way:?}");
    assert!(span.end_time_unix_nano >= span.start_time_unix_nano, "{way:?}");
}

#[test]
fn one_trace_goes_from_a_request_to_the_containers() {
    let collector = Collector::start();
    let (folder, file) = configuration(&collector.address.to_string());
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "token-ann,ann,1,people\n").unwrap();
    let (file, tokens) = (file.display().to_string(), tokens.display().to_string());
    let node = TestNode::start(&["--tracing-config-file", &file, "--token-auth-file", &tokens]);
    node.import_busybox();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let made = traced(&node, PODS, trace, &pod("traced"), &[]);
    assert_eq!(made.code, 201, "{}", made.text());
    let spans = whole(&collector, trace, &POD);
    let root = at(&spans, &[REQUEST]).unwrap();
    assert_eq!(hex(&root.parent_span_id), "00f067aa0ba902b7", "the administrator's own span is above");
    assert_eq!(attribute(root, "audit-id"), made.header("audit-id"));
    assert_eq!(attribute(root, "user_agent.original"), "tester/1");
    assert_eq!(
        (attribute(root, "resource"), attribute(root, "http.response.status_code")),
        ("pods".into(), "201".into())
    );
    POD.iter().for_each(|way| is_in_time(&spans, way));
    let told = |way: &[&str], key: &str| attribute(at(&spans, way).unwrap(), key);
    assert_eq!(told(&["Schedule"], "result"), "scheduled");
    assert_eq!(told(&["Start container"], "k8s.container"), "c");
    // The object contains nothing of it.
    let shown = node.ok(&["get", "pod", "traced", "-o", "yaml", "--show-managed-fields"]);
    assert!(!shown.contains(trace) && !shown.contains("traceparent"), "{shown}");

    // Controllers' objects for a Deployment belong to the trace of its request.
    let trace = "11111111111111111111111111111111";
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": template()["containers"]}}}});
    let line = "POST /apis/apps/v1/namespaces/default/deployments";
    assert_eq!(traced(&node, line, trace, &deployment.to_string(), &[]).code, 201);
    whole(&collector, trace, &START);

    // An untrusted caller cannot add to others' traces, and is not recorded.
    let trace = "22222222222222222222222222222222";
    let before = collector.traces();
    let asked = traced(&node, "GET /version", trace, "", &[("Authorization", "Bearer token-ann")]);
    assert_eq!(asked.code, 200);
    for text in ["x", &"0".repeat(2000), "00-22222222222222222222222222222222-0000000000000000-01"] {
        assert_eq!(ask(&node, "GET /version", &[("traceparent", text)], "").code, 200);
    }
    // Later spans have arrived by now, so those would have, too.
    let later = "33333333333333333333333333333333";
    assert_eq!(traced(&node, "GET /version", later, "", &[]).code, 200);
    whole(&collector, later, &[&["GET"]]);
    let new: Vec<String> = collector.traces().difference(&before).cloned().collect();
    assert_eq!(new, [later]);
}

#[test]
fn an_agent_elsewhere_adds_to_the_same_trace() {
    let collector = Collector::start();
    let (_folder, file) = configuration(&collector.address.to_string());
    let file = file.display().to_string();
    let server = TestNode::server(&["--tracing-config-file", &file]);
    let _agent = TestNode::agent_with(&server, "far", &["--tracing-config-file", &file]);
    server.import_busybox();
    let trace = "44444444444444444444444444444444";
    assert_eq!(traced(&server, PODS, trace, &pod("far"), &[]).code, 201);
    let spans = whole(&collector, trace, &POD);
    assert_eq!(attribute(at(&spans, &["SyncPod"]).unwrap(), "k8s.node"), "far");
}

#[test]
fn a_collector_that_does_not_answer_holds_up_nobody() {
    // It accepts connections without responding.
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (_folder, file) = configuration(&silent.local_addr().unwrap().to_string());
    let mut server = TestNode::server(&["--tracing-config-file", &file.display().to_string()]);
    let line = "POST /api/v1/namespaces/default/configmaps";
    let map =
        |i: u32| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{i}")}}).to_string();
    let began = Instant::now();
    // Some thousand spans: more than the queue holds.
    for i in 0..800 {
        assert_eq!(traced(&server, line, &format!("{:032x}", i + 1), &map(i), &[]).code, 201);
    }
    assert!(began.elapsed() < TIMEOUT, "{:?}", began.elapsed());
    let began = Instant::now();
    assert!(server.terminate().is_some_and(|status| status.success()), "{}", server.log());
    assert!(began.elapsed() < Duration::from_secs(20) * crate::support::slowness(), "{:?}", began.elapsed());
}

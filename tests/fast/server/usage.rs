//! The resource metrics API: who may report and read, what is shown of a report, and for how long.

use std::sync::Arc;
use std::time::Duration;

use podwright::api::metrics::{ContainerUsage, NodeUsage, PodUsage, Report, Usage};
use podwright::api::{Env, Object, Options, Request, Response, Status, User, Verb};
use podwright::server::{Config, Server};
use podwright::store::Memory;
use serde_json::{Value, json};

use super::{Api, mirror, object_of, pod, request};

const START: &str = "2026-01-01T00:00:00Z";
const POD_METRICS: &str = "pods.metrics.k8s.io";
const NODE_METRICS: &str = "nodes.metrics.k8s.io";

async fn api() -> Api {
    let env = Env::simulated(START.parse().unwrap(), 1);
    let api = Api(Server::open(Arc::new(Memory::new()), env, Config::default()).await.unwrap());
    for name in ["n1", "n2"] {
        let metadata = json!({"name": name, "labels": {"zone": name}});
        api.create("nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})).await.unwrap();
    }
    api
}

/// Makes a Pod on a node: its uid.
async fn bound(api: &Api, name: &str, node: &str) -> String {
    let mut pod = pod(name);
    pod["spec"]["nodeName"] = node.into();
    api.create("pods", pod).await.unwrap().uid().to_owned()
}

fn used(nanocores: u64, memory: u64) -> Usage {
    Usage { nanocores, memory }
}

fn figures(name: &str, uid: &str, usage: Usage) -> PodUsage {
    let container = ContainerUsage { name: "c".into(), usage };
    let (namespace, name) = ("default".to_owned(), name.to_owned());
    PodUsage { namespace, name, uid: uid.to_owned(), window_ms: 15_020, containers: vec![container] }
}

fn report(pods: Vec<PodUsage>) -> Report {
    let node = Some(NodeUsage { window_ms: 15_000, usage: used(1_500_000_000, 2 << 30) });
    Report { time: "2026-01-01T00:00:01.9Z".parse().unwrap(), node, pods }
}

async fn put(api: &Api, user: User, node: &str, body: Value) -> Result<Response, Status> {
    let subresource = Some("usage".to_owned());
    let request = request(Verb::Update, "nodes", node, Some(body), Options::default());
    api.0.handle(Request { user, subresource, namespace: None, ..request }).await
}

/// A node reports itself.
async fn told(api: &Api, node: &str, pods: Vec<PodUsage>) {
    let user = User::new(format!("system:node:{node}"), ["system:nodes", "system:authenticated"]);
    put(api, user, node, serde_json::to_value(report(pods)).unwrap()).await.unwrap();
}

async fn listed(api: &Api, resource: &str, options: Options) -> Vec<String> {
    let list = api.list(resource, options).await.unwrap();
    assert_eq!((list.resource_version.as_str(), list.api_version.as_str()), ("", "metrics.k8s.io/v1beta1"));
    list.items.iter().map(|item| Object::from_slice(item).unwrap().name().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_reported_can_be_read() {
    let api = api().await;
    let uid = bound(&api, "a", "n1").await;
    told(&api, "n1", vec![figures("a", &uid, used(156_340, 11_304_960))]).await;
    let shown = api.get(POD_METRICS, "a").await.unwrap();
    let mut expected = json!({
        "apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics",
        "metadata": {"name": "a", "namespace": "default", "creationTimestamp": START, "labels": {"app": "a"}},
        "timestamp": "2026-01-01T00:00:01Z", "window": "15.02s",
        "containers": [{"name": "c", "usage": {"cpu": "156340n", "memory": "11040Ki"}}],
    });
    assert_eq!(shown.0, expected);
    let list = api.list(POD_METRICS, Options::default()).await.unwrap();
    assert_eq!((list.kind.as_str(), list.items.len()), ("PodMetricsList", 1));
    assert_eq!(Object::from_slice(&list.items[0]).unwrap(), shown);
    let node = api.get(NODE_METRICS, "n1").await.unwrap();
    expected["kind"] = "NodeMetrics".into();
    expected["metadata"] = json!({"name": "n1", "creationTimestamp": START, "labels": {"zone": "n1"}});
    expected["window"] = "15s".into();
    expected.as_object_mut().unwrap().remove("containers");
    expected["usage"] = json!({"cpu": "1500m", "memory": "2Gi"});
    assert_eq!(node.0, expected);
    // What it was before does not count any more.
    told(&api, "n1", Vec::new()).await;
    assert!(listed(&api, POD_METRICS, Options::default()).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn selectors_and_namespaces_choose_as_they_choose_pods() {
    let api = api().await;
    let mut all = Vec::new();
    for name in ["a", "b"] {
        all.push(figures(name, &bound(&api, name, "n1").await, used(1, 1)));
    }
    bound(&api, "silent", "n1").await;
    told(&api, "n1", all).await;
    let by = |labels: &str, fields: &str| {
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Options { label_selector: given(labels), field_selector: given(fields), ..Options::default() }
    };
    for (options, expected) in [
        (by("", ""), "a b"),
        (by("app=b", ""), "b"),
        (by("app in (a,c)", ""), "a"),
        (by("app=silent", ""), ""),
        (by("", "metadata.name=a"), "a"),
        (by("", "metadata.namespace!=default"), ""),
    ] {
        assert_eq!(listed(&api, POD_METRICS, options.clone()).await.join(" "), expected, "{options:?}");
    }
    assert_eq!(listed(&api, NODE_METRICS, by("zone in (n1,n2)", "")).await, ["n1"]);
    assert_eq!(api.list(POD_METRICS, by("", "spec.nodeName=n1")).await.unwrap_err().code, 400);
    let elsewhere = Request {
        namespace: Some("kube-system".into()),
        ..request(Verb::List, POD_METRICS, "", None, Options::default())
    };
    let answer = api.0.handle(elsewhere).await.unwrap();
    assert!(matches!(answer.body, podwright::api::request::Body::List(list) if list.items.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_known_is_not_found_in_upstream_words() {
    let api = api().await;
    bound(&api, "a", "n1").await;
    for (resource, name, message) in [
        (POD_METRICS, "a", "podmetrics.metrics.k8s.io \"default/a\" not found"),
        (POD_METRICS, "b", "pods \"b\" not found"),
        (NODE_METRICS, "n1", "nodemetrics.metrics.k8s.io \"n1\" not found"),
        (NODE_METRICS, "n9", "nodes \"n9\" not found"),
    ] {
        let status = api.get(resource, name).await.unwrap_err();
        assert_eq!((status.code, status.message.as_str()), (404, message));
    }
    for verb in [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete, Verb::DeleteCollection] {
        let status = api.0.handle(request(verb, POD_METRICS, "a", Some(json!({})), Options::default())).await;
        assert_eq!(status.unwrap_err().code, 405, "{verb:?}");
    }
    assert_eq!(api.watch(POD_METRICS, Options::default()).await.unwrap_err().code, 405);
}

#[tokio::test(start_paused = true)]
async fn a_node_reports_itself_and_its_own_pods_alone() {
    let api = api().await;
    let (mine, other) = (bound(&api, "mine", "n1").await, bound(&api, "other", "n2").await);
    let body = || serde_json::to_value(report(Vec::new())).unwrap();
    let node = || User::new("system:node:n1", ["system:nodes", "system:authenticated"]);
    let refused = put(&api, node(), "n2", body()).await.unwrap_err();
    assert_eq!((refused.code, refused.reason.as_str()), (403, "Forbidden"));
    assert_eq!(put(&api, User::new("jane", ["system:authenticated"]), "n1", body()).await.unwrap_err().code, 403);
    assert_eq!(put(&api, User::system("test"), "n9", body()).await.unwrap_err().code, 404);
    told(&api, "n1", vec![figures("mine", &mine, used(1, 1)), figures("other", &other, used(9, 9))]).await;
    assert_eq!(listed(&api, POD_METRICS, Options::default()).await, ["mine"]);
    // Figures of another Pod that had the name are not its own. A mirror's are told by its own uid: what it says of itself does
    // not make others' figures its own.
    told(&api, "n1", vec![figures("mine", "another uid", used(1, 1))]).await;
    assert!(listed(&api, POD_METRICS, Options::default()).await.is_empty());
    let shown = api.create("pods", mirror("mirror", &api.get("nodes", "n1").await.unwrap())).await.unwrap();
    told(&api, "n1", vec![figures("mirror", "hash", used(1, 1))]).await;
    assert!(listed(&api, POD_METRICS, Options::default()).await.is_empty());
    told(&api, "n1", vec![figures("mirror", shown.uid(), used(1, 1))]).await;
    assert_eq!(listed(&api, POD_METRICS, Options::default()).await, ["mirror"]);
}

#[tokio::test(start_paused = true)]
async fn a_report_that_makes_no_sense_is_refused() {
    let api = api().await;
    let uid = bound(&api, "a", "n1").await;
    let whole = || serde_json::to_value(report(vec![figures("a", &uid, used(1, 1))])).unwrap();
    let with = |path: &str, value: Value| {
        let mut body = whole();
        *body.pointer_mut(path).unwrap() = value;
        body
    };
    let containers = vec![json!({"name": "c", "nanocores": 1, "memory": 1}); 1025];
    for body in [
        json!({}),
        json!([]),
        with("/time", json!("yesterday")),
        with("/node/memory", json!(-1)),
        with("/pods/0/windowMs", json!("15s")),
        // Clients read it as a duration, of which more is none.
        with("/pods/0/windowMs", json!(3_600_001)),
        with("/node/windowMs", json!(u64::MAX)),
        with("/pods/0/containers", containers.into()),
        with("/pods/0/containers/0/name", "c".repeat(64).into()),
    ] {
        let status = put(&api, User::system("test"), "n1", body.clone()).await.unwrap_err();
        assert_eq!(status.code, 400, "{body}");
    }
    assert!(listed(&api, NODE_METRICS, Options::default()).await.is_empty(), "nothing of it was kept");
}

/// What a node says of time is told as far as it can be true: a clock that is far off says nothing.
#[tokio::test(start_paused = true)]
async fn the_times_of_a_node_are_told_within_bounds() {
    let api = api().await;
    for (time, shown) in [
        ("2026-01-01T00:59:59Z", "2026-01-01T00:59:59Z"),
        ("2025-12-31T23:00:01Z", "2025-12-31T23:00:01Z"),
        ("2026-01-01T01:00:00Z", START),
        ("1970-01-01T00:00:00Z", START),
        ("9999-12-30T00:00:00Z", START),
    ] {
        let mut body = serde_json::to_value(report(Vec::new())).unwrap();
        body["time"] = time.into();
        body["node"]["windowMs"] = 3_600_000.into();
        put(&api, User::system("test"), "n1", body).await.unwrap();
        let metrics = api.get(NODE_METRICS, "n1").await.unwrap();
        assert_eq!((&metrics.0["timestamp"], &metrics.0["window"]), (&json!(shown), &json!("1h0m0s")), "{time}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_report_on_trial_is_judged_and_not_kept() {
    let api = api().await;
    let trial = |body: Value| {
        let options = Options { dry_run: true, ..Options::default() };
        let request = request(Verb::Update, "nodes", "n1", Some(body), options);
        api.0.handle(Request { subresource: Some("usage".to_owned()), namespace: None, ..request })
    };
    trial(serde_json::to_value(report(Vec::new())).unwrap()).await.unwrap();
    assert_eq!(trial(json!({})).await.unwrap_err().code, 400);
    assert!(listed(&api, NODE_METRICS, Options::default()).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_report_is_good_for_a_minute_and_as_long_as_its_node() {
    let api = api().await;
    told(&api, "n1", Vec::new()).await;
    told(&api, "n2", Vec::new()).await;
    tokio::time::advance(Duration::from_secs(40)).await;
    told(&api, "n2", Vec::new()).await;
    assert_eq!(listed(&api, NODE_METRICS, Options::default()).await, ["n1", "n2"]);
    tokio::time::advance(Duration::from_secs(20)).await;
    assert_eq!(listed(&api, NODE_METRICS, Options::default()).await, ["n2"]);
    let uid = bound(&api, "a", "n2").await;
    told(&api, "n2", vec![figures("a", &uid, used(1, 1))]).await;
    api.delete("nodes", "n2", Options::default()).await.unwrap();
    assert!(listed(&api, NODE_METRICS, Options::default()).await.is_empty());
    assert!(listed(&api, POD_METRICS, Options::default()).await.is_empty(), "a Pod of a node that is gone");
}

/// Whoever may view a namespace may see what its Pods use; what nodes use is not in one.
#[tokio::test(start_paused = true)]
async fn viewers_see_metrics() {
    let api = api().await;
    let uid = bound(&api, "a", "n1").await;
    told(&api, "n1", vec![figures("a", &uid, used(1, 1))]).await;
    for role in ["view", "edit", "admin"] {
        let user = || User::new(format!("a {role}er"), ["system:authenticated"]);
        let read = |verb: Verb, resource: &str, name: &str| {
            api.0.handle(Request { user: user(), ..request(verb, resource, name, None, Options::default()) })
        };
        assert_eq!(read(Verb::Get, POD_METRICS, "a").await.unwrap_err().code, 403);
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": role}, "subjects": [{"kind": "User", "name": user().name}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}});
        api.create("rolebindings", binding).await.unwrap();
        assert_eq!(object_of(read(Verb::Get, POD_METRICS, "a").await.unwrap()).name(), "a", "{role}");
        assert!(read(Verb::List, POD_METRICS, "").await.is_ok(), "{role}");
        assert_eq!(read(Verb::List, NODE_METRICS, "").await.unwrap_err().code, 403, "{role}");
    }
}

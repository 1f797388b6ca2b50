//! What reads cost: selectors, other representations, documents, watches and columns of definitions are counted, and what is much
//! is done aside. (How long it takes is not asked: how many turns large requests had is.)

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use podwright::api::request::EventKind;
use podwright::api::{Options, Request as Asked, User, Verb};
use podwright::server::rest::authenticate::Peer;
use podwright::server::rest::{Face, boxed, reply::Reply};
use podwright::server::{Config, Limits};
use serde_json::{Value, json};

use super::super::{Api, config_map, request};
use super::{Rest, Told};
use crate::server::custom::{DEFINITIONS, causes, definition, spec, widget};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ROOT: Peer = Peer { root: true, certificate: None, until: None };
/// Somebody without any role.
const NOBODY: (&str, &str) = ("impersonate-user", "nob");

impl Rest {
    async fn limited(limits: Limits) -> Rest {
        let api = Api::with(Config { limits, ..Config::default() }).await;
        Rest { face: Face::new(api.0.clone()), api }
    }

    /// An answer, and whether a large request had a turn for it.
    async fn aside(&self, path: &str, headers: &[(&str, &str)]) -> (Told, bool) {
        let before = self.api.0.large_turns();
        let told = self.ask(&format!("GET {path}"), headers, "").await;
        (told, self.api.0.large_turns() > before)
    }

    /// An answer that nobody reads.
    async fn unread(&self, path: &str) -> Reply {
        let request = Request::get(path).header(NOBODY.0, NOBODY.1).body(Full::new(Bytes::new())).unwrap();
        self.face.answer(&ROOT, boxed(request)).await
    }
}

/// `!l0,!l1,...`
fn absent(count: usize) -> String {
    (0..count).map(|i| format!("!l{i}")).collect::<Vec<_>>().join(",")
}

#[tokio::test]
async fn many_requirements_times_many_objects_are_looked_up_aside() {
    let rest = Rest::new().await;
    for i in 0..20 {
        let mut map = config_map(&format!("c{i:02}"));
        map["metadata"]["labels"] = json!({"n": i.to_string()});
        rest.api.create("configmaps", map).await.unwrap();
    }
    let page = |selector: &str, more: &str| format!("{MAPS}?limit=19&labelSelector={selector}{more}");
    let (few, aside) = rest.aside(&page("n!=3", ""), &[]).await;
    assert_eq!((few.json()["items"].as_array().unwrap().len(), aside), (19, false));
    let many = format!("n!=3,{}", absent(900));
    let (found, aside) = rest.aside(&page(&many, ""), &[]).await;
    let names: Vec<Value> =
        found.json()["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].clone()).collect();
    assert!(aside && names.len() == 19 && !names.contains(&json!("c03")), "{names:?}");
    assert_eq!(found.json()["metadata"]["continue"], Value::Null, "nineteen match");
    // An older state, page by page.
    let revision = found.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let exact = format!("&resourceVersion={revision}&resourceVersionMatch=Exact");
    let (found, aside) = rest.aside(&page(&many, &exact), &[]).await;
    assert!(aside && found.json()["items"].as_array().unwrap().len() == 19);

    // A watch looks at what is there, and at what has changed since.
    for (resource_version, first) in [(None, EventKind::Added), (Some("1".to_owned()), EventKind::Added)] {
        let before = rest.api.0.large_turns();
        let options = Options { label_selector: Some(many.clone()), resource_version, ..Options::default() };
        let mut watch = rest.api.watch("configmaps", options).await.unwrap();
        assert!(rest.api.0.large_turns() > before);
        for _ in 0..19 {
            assert_eq!(watch.recv().await.unwrap().kind, first);
        }
        assert!(watch.try_recv().is_err());
    }
    let before = rest.api.0.large_turns();
    let options = Options { label_selector: Some(many), ..Options::default() };
    rest.api.ask(Verb::DeleteCollection, "configmaps", "", options).await.unwrap();
    assert!(rest.api.0.large_turns() > before);
}

const SCALERS: &str = "horizontalpodautoscalers.autoscaling";

/// A small one too: there may be many watches of it.
#[tokio::test]
async fn watches_of_another_version_share_small_objects_too() {
    let rest = Rest::new().await;
    let spec =
        json!({"maxReplicas": 1, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}});
    let small = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "spec": spec, "metadata":
        {"name": "small", "namespace": "default", "annotations": {"x": "x".repeat(1 << 10)}}});
    rest.api.create(SCALERS, small).await.unwrap();
    let mut shown = Vec::new();
    for _ in 0..3 {
        let options = Options { resource_version: Some("0".to_owned()), ..Options::default() };
        let mut watch = rest.api.watch("horizontalpodautoscalers.v1.autoscaling", options).await.unwrap();
        shown.push(watch.recv().await.unwrap().object);
    }
    assert!(shown.iter().all(|it| it.as_ptr() == shown[0].as_ptr()));
}

/// A large object is converted once for all who watch it in a version that is not the stored one, when they have room for it.
#[tokio::test]
async fn watches_of_another_version_share_what_is_converted() {
    let rest = Rest::new().await;
    let spec =
        json!({"maxReplicas": 1, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}});
    let large = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "spec": spec, "metadata":
        {"name": "large", "namespace": "default", "annotations": {"x": "x".repeat(200 << 10)}}});
    rest.api.create(SCALERS, large).await.unwrap();
    let mut shown = Vec::new();
    for resource in [SCALERS, "horizontalpodautoscalers.v1.autoscaling"] {
        for _ in 0..3 {
            let turns = rest.api.0.large_turns();
            let options = Options { resource_version: Some("0".to_owned()), ..Options::default() };
            let event = rest.api.watch(resource, options).await.unwrap().recv().await.unwrap();
            assert_eq!(rest.api.0.large_turns() > turns, resource != SCALERS, "{resource}");
            shown.push(event.object);
        }
    }
    let is_one = |of: &[bytes::Bytes]| of.iter().all(|it| it.as_ptr() == of[0].as_ptr());
    assert!(is_one(&shown[..3]) && is_one(&shown[3..]) && shown[0] != shown[3]);
}

/// Small requests that have the server look into an object of the user's own, which is large.
#[tokio::test]
async fn what_is_asked_about_a_large_object_is_done_aside() {
    let rest = Rest::new().await;
    for (name, size) in [("large", 200 << 10), ("small", 10)] {
        let annotated = |value: Value| {
            let mut value = value;
            value["metadata"] = json!({"name": name, "namespace": "default", "labels": {"a": "b"}});
            value["metadata"]["annotations"] = json!({"x": "x".repeat(size)});
            value
        };
        let spec = json!({"containers": [{"name": "c", "image": "i"}]});
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": spec});
        let scaled =
            json!({"maxReplicas": 1, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}});
        let deployment = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
        for (resource, object) in [
            ("serviceaccounts", json!({"apiVersion": "v1", "kind": "ServiceAccount"})),
            ("pods", json!({"apiVersion": "v1", "kind": "Pod", "spec": spec})),
            ("deployments.apps", json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": deployment})),
            (SCALERS, json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "spec": scaled})),
        ] {
            rest.api.create(resource, annotated(object)).await.unwrap();
        }
        let large = size > 1000;
        let turned = async |asked: &str, body: &str| {
            let before = rest.api.0.large_turns();
            let told = rest.ask(asked, &[("content-type", "application/json")], body.to_owned()).await;
            (told.code, rest.api.0.large_turns() > before)
        };
        let pods = "/api/v1/namespaces/default/pods";
        let scale = format!("GET /apis/apps/v1/namespaces/default/deployments/{name}/scale");
        assert_eq!(turned(&scale, "").await, (200, large));
        assert_eq!(turned(&format!("GET {pods}/{name}/log"), "").await, (400, large), "it waits to start");
        assert_eq!(turned(&format!("GET {pods}/{name}/proxy/"), "").await, (503, large), "it has no address");
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new"}, "spec": spec});
        pod["spec"]["serviceAccountName"] = name.into();
        assert_eq!(turned(&format!("POST {pods}?dryRun=All"), &pod.to_string()).await, (201, large));
        let all = "DELETE /apis/apps/v1/namespaces/default/deployments?dryRun=All";
        assert_eq!(turned(all, "").await, (200, true), "one of them is large");

        // A version that is not the stored one is made of it.
        for (version, of_old) in [("v1", large), ("v2", false)] {
            let scalers = format!("GET /apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers");
            assert_eq!(turned(&format!("{scalers}/{name}"), "").await, (200, of_old), "{version}");
            assert_eq!(turned(&scalers, "").await, (200, version == "v1"), "one of them is large");
        }

        // Whose token it is, and whether what it is bound to is there, is kept beside the objects.
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": name});
        let order = json!({"spec": {"boundObjectRef": bound}}).to_string();
        let of = format!("POST /api/v1/namespaces/default/serviceaccounts/{name}/token");
        let refused = rest.ask(&of, &[("content-type", "application/json")], order).await;
        assert_eq!(refused.code, 400, "the Pod is another account's");
        let order = json!({"spec": {}}).to_string();
        let told = rest.ask(&of, &[("content-type", "application/json")], order).await.json();
        let token = told["status"]["token"].as_str().unwrap();
        let before = rest.api.0.large_turns();
        let user = rest.api.0.authenticate_token(token, &[]).await.unwrap().user;
        assert_eq!(user.name, format!("system:serviceaccount:default:{name}"));
        assert_eq!(rest.api.0.large_turns(), before);
    }
}

#[tokio::test]
async fn a_selector_has_so_many_requirements_and_says_a_thing_once() {
    let api = Api::new().await;
    let told = async |label: Option<String>, field: Option<String>| {
        let options = Options { label_selector: label, field_selector: field, ..Options::default() };
        api.list("configmaps", options).await.map_err(|why| (why.code, why.message))
    };
    assert!(told(Some(absent(1000)), None).await.is_ok());
    assert!(told(Some(["!a"; 20_000].join(",")), None).await.is_ok(), "the same one again and again");
    assert!(told(Some(format!("a in ({})", ["b"; 20_000].join(","))), None).await.is_ok());
    let fields = (0..1001).map(|i| format!("metadata.name!=n{i}")).collect::<Vec<_>>().join(",");
    let refused = (400, "a selector has at most 1000 requirements".to_owned());
    for (label, field) in [(Some(absent(1001)), None), (None, Some(fields))] {
        assert_eq!(told(label, field).await.unwrap_err(), refused);
    }
    let values = (0..10_001).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
    let refused = (400, "a selector has at most 10000 values".to_owned());
    assert_eq!(told(Some(format!("a in ({values})")), None).await.unwrap_err(), refused);
}

#[tokio::test]
async fn what_is_rendered_is_rendered_aside_where_it_is_large() {
    let rest = Rest::new().await;
    for (name, size) in [("large", 200 << 10), ("small", 1 << 10)] {
        let mut map = config_map(name);
        map["data"]["a"] = "x".repeat(size).into();
        rest.api.create("configmaps", map).await.unwrap();
    }
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    for (query, headers, large) in [
        ("", ("accept", "application/json"), false),
        ("", ("accept", "application/yaml"), true),
        ("?pretty=1", ("accept", "application/json"), true),
        ("", ("accept-encoding", "gzip"), true),
        ("", ("accept", table), true),
        ("", ("accept", metadata), true),
    ] {
        for (path, large) in [("/large", large), ("/small", false), ("", large)] {
            if path.is_empty() && headers.1 == metadata {
                continue;
            }
            let (told, aside) = rest.aside(&format!("{MAPS}{path}{query}"), &[headers]).await;
            assert_eq!((told.code, aside), (200, large), "{path}{query} {headers:?}");
        }
    }
}

#[tokio::test]
async fn documents_are_made_once_and_count_as_reads() {
    let rest = Rest::new().await;
    let gzip = ("accept-encoding", "gzip");
    // Once for this test's own definitions, whatever others have asked for meanwhile.
    rest.api.define(definition(spec(json!({"once": {"type": "string"}})))).await;
    for path in ["/openapi/v2", "/openapi/v3/apis/example.com/v1", "/apis/example.com/v1"] {
        let first = rest.ask(&format!("GET {path}"), &[NOBODY], "").await;
        assert_eq!(first.code, 200, "{path}");
        // Another server of this process has its own of that name.
        let other = Rest::new().await;
        other.api.define(definition(spec(json!({"other": {"type": "string"}})))).await;
        assert_eq!(other.ask(&format!("GET {path}"), &[NOBODY], "").await.code, 200, "{path}");
        let (again, aside) = rest.aside(path, &[NOBODY]).await;
        assert!(again.bytes == first.bytes && !aside, "{path} is made again");
    }
    let (pretty, aside) = rest.aside("/openapi/v2?pretty=1", &[NOBODY]).await;
    assert!(aside && pretty.text().starts_with("{\n"), "printed aside");
    rest.ask("GET /openapi/v2", &[NOBODY, gzip], "").await;
    let zipped = [rest.aside("/openapi/v2", &[NOBODY, gzip]).await, rest.aside("/openapi/v2", &[NOBODY, gzip]).await];
    assert!(zipped.iter().all(|(told, _)| told.header("content-encoding") == "gzip"));
    assert!(zipped.iter().any(|(_, aside)| !aside), "it is compressed again and again");
}

#[tokio::test]
async fn documents_take_seats_and_room() {
    let short = Duration::from_millis(20);
    let full = Rest::limited(Limits { inflight: 0, wait: short, ..Limits::default() }).await;
    for path in ["/openapi/v2", "/openapi/v3", "/apis", "/api", "/version", "/api/v1", "/apis/apps"] {
        assert_eq!(full.ask(&format!("GET {path}"), &[NOBODY], "").await.code, 429, "{path}");
        assert_eq!(full.get(path).await.code, 200, "{path}: the administrator waits for nobody");
    }
    assert_eq!(full.ask("GET /livez", &[NOBODY], "").await.code, 200, "who looks whether it lives is answered");

    let rest = Rest::limited(Limits { answers_of_one: 1 << 20, wait: short, ..Limits::default() }).await;
    let path = "/openapi/v2?pretty=1";
    let unread = rest.unread(path).await;
    assert_eq!(unread.status(), 200, "one answer is let through, however large");
    assert_eq!(rest.unread(path).await.status(), 429);
    drop(unread);
    assert_eq!(rest.unread(path).await.status(), 200);
}

#[tokio::test]
async fn watches_are_counted_by_their_users() {
    let limits = Limits { watches_of_one: 2, watched_of_one: 100, ..Limits::default() };
    let rest = Rest::limited(limits).await;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "w"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "w"}]});
    rest.api.create("clusterrolebindings", binding).await.unwrap();
    let watch = async |selector: String| {
        let options = Options { label_selector: Some(selector), ..Options::default() };
        let user = User::new("w", ["system:authenticated"]);
        let asked = Asked { user, ..request(Verb::Watch, "configmaps", "", None, options) };
        rest.api.0.watch(asked).await.map_err(|why| (why.code, why.message))
    };
    let refused = (429, "Too many requests, please try again later.".to_owned());
    let first = watch(absent(90)).await.unwrap();
    assert_eq!(watch(absent(11)).await.unwrap_err(), refused, "too many requirements in all");
    let second = watch(absent(10)).await.unwrap();
    assert_eq!(watch(String::new()).await.unwrap_err(), refused, "too many watches");
    drop(second);
    let mut again = watch(String::new()).await;
    for _ in 0..500 {
        if again.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        again = watch(String::new()).await;
    }
    assert!(again.is_ok(), "who ends one may open another");
    drop(first);
}

#[tokio::test]
async fn columns_of_a_definition_multiply_no_object() {
    let rest = Rest::new().await;
    let mut it = definition(json!({"type": "object", "properties": {
        "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}));
    let columns = |count: usize| -> Value {
        (0..count).map(|i| json!({"name": format!("C{i}"), "type": "string", "jsonPath": ".spec"})).collect()
    };
    it["spec"]["versions"][0]["additionalPrinterColumns"] = columns(101);
    let refused = rest.api.create(DEFINITIONS, it.clone()).await.unwrap_err();
    let why = "spec.versions[0].additionalPrinterColumns: Too many: 101: must have at most 100 items";
    assert_eq!(causes(&refused), [why]);
    it["spec"]["versions"][0]["additionalPrinterColumns"] = columns(100);
    rest.api.define(it).await;
    // Characters of two bytes, which no cut may halve.
    rest.api.create("widgets", widget("large", json!({"a": "é".repeat(150_000)}))).await.unwrap();
    rest.api.create("widgets", widget("small", json!({"a": "é".repeat(1000)}))).await.unwrap();
    let table = ("accept", "application/json;as=Table;g=meta.k8s.io;v=v1");
    let path = "/apis/example.com/v1/namespaces/default/widgets";
    let (large, aside) = rest.aside(&format!("{path}/large?includeObject=None"), &[table]).await;
    let cells = large.json()["rows"][0]["cells"].clone();
    assert!(aside && cells.as_array().unwrap().len() == 101);
    for cell in &cells.as_array().unwrap()[1..] {
        let cell = cell.as_str().unwrap();
        assert!(cell.len() <= 1024 + 3 && cell.ends_with("é…") && cell.starts_with("{\"a\":\"é"), "{}", cell.len());
    }
    let small = rest.ask(&format!("GET {path}/small?includeObject=None"), &[table], "").await;
    let shown: usize =
        small.json()["rows"][0]["cells"].as_array().unwrap().iter().map(|c| c.as_str().unwrap().len()).sum();
    assert!(shown < 2 * 2500 + 400, "a row of an object of two thousand bytes has {shown}");
    // The text of a cell that is cut is what it is upstream where it is short.
    rest.api.create("widgets", widget("short", json!({"a": [1, "b"]}))).await.unwrap();
    let short = rest.ask(&format!("GET {path}/short"), &[table], "").await.json();
    assert_eq!(short["rows"][0]["cells"][1], "{\"a\":[1,\"b\"]}");
}

//! Objects over REST: each verb, representations, watches.

use futures::StreamExt;
use http_body_util::{BodyExt, BodyStream, Empty};
use hyper::Request;
use podwright::server::rest::authenticate::Peer;
use podwright::server::rest::boxed;
use serde_json::{Value, json};

use super::super::{config_map, pod};
use super::Rest;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

#[tokio::test]
async fn an_object_lives_through_all_verbs() {
    let rest = Rest::new().await;
    let made = rest.post(MAPS, config_map("a")).await;
    assert_eq!((made.code, made.header("content-type")), (201, "application/json"));
    assert_eq!(rest.post(MAPS, config_map("a")).await.code, 409);
    let path = format!("{MAPS}/a");
    assert_eq!(rest.get(&path).await.json(), made.json());
    for (of, accept) in [
        (path.as_str(), "*/*"),
        (MAPS, "application/yaml"),
        (MAPS, TABLE),
        ("/api/v1/namespaces/default/pods/no", "*/*"),
    ] {
        let got = rest.ask(&format!("GET {of}"), &[("accept", accept)], "").await;
        let head = rest.ask(&format!("HEAD {of}"), &[("accept", accept)], "").await;
        assert_eq!((head.code, head.bytes.len()), (got.code, 0), "a GET whose body stays here");
        assert_eq!(head.header("content-type"), got.header("content-type"));
        assert_eq!(head.header("content-length"), got.bytes.len().to_string(), "{of}");
    }

    let mut changed = made.json();
    changed["data"]["a"] = "2".into();
    let put = rest.ask(&format!("PUT {path}"), &[("content-type", "application/json")], changed.to_string()).await;
    assert_eq!((put.code, put.json()["data"]["a"].clone()), (200, json!("2")));
    for (media, patch, a) in [
        ("application/merge-patch+json", r#"{"data": {"a": "3"}}"#, "3"),
        ("application/strategic-merge-patch+json", r#"{"data": {"a": "4"}}"#, "4"),
        ("application/json-patch+json", r#"[{"op": "replace", "path": "/data/a", "value": "5"}]"#, "5"),
    ] {
        let told = rest.ask(&format!("PATCH {path}"), &[("content-type", media)], patch).await;
        assert_eq!((told.code, told.json()["data"]["a"].clone()), (200, a.into()), "{media}: {}", told.text());
    }
    let dry = rest.ask(&format!("DELETE {path}?dryRun=All"), &[], "").await;
    assert_eq!((dry.code, rest.get(&path).await.code), (200, 200));
    let wrong = r#"{"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "other"}}"#;
    assert_eq!(rest.ask(&format!("DELETE {path}"), &[], wrong).await.code, 409);
    let gone = rest.ask(&format!("DELETE {path}"), &[], "").await;
    assert_eq!((gone.code, gone.json()["status"].clone()), (200, json!("Success")));
    let missing = rest.get(&path).await;
    assert_eq!((missing.code, missing.json()["reason"].clone()), (404, json!("NotFound")));
}

/// Python's clients say `False`.
#[tokio::test]
async fn a_switch_is_off_however_that_is_spelt() {
    let rest = Rest::new().await;
    for off in ["false", "False", "FALSE", "0"] {
        let list = rest.get(&format!("{MAPS}?timeoutSeconds=1&watch={off}")).await;
        assert_eq!((list.code, list.json()["kind"].clone()), (200, json!("ConfigMapList")), "{off}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_posts_of_one_name_one_is_made_and_one_refused() {
    let rest = Rest::new().await;
    for round in 0..10 {
        let object = || config_map(&format!("twin{round}"));
        let (one, two) = tokio::join!(rest.post(MAPS, object()), rest.post(MAPS, object()));
        let mut codes = [one.code, two.code];
        codes.sort_unstable();
        assert_eq!(codes, [201, 409], "{} {}", one.text(), two.text());
        let refused = if one.code == 409 { one } else { two }.json();
        let message = format!("configmaps \"twin{round}\" already exists");
        assert_eq!((&refused["reason"], &refused["message"]), (&json!("AlreadyExists"), &json!(message)));
        assert_eq!((&refused["kind"], &refused["details"]["name"]), (&json!("Status"), &json!(format!("twin{round}"))));
    }
}

#[tokio::test]
async fn yaml_comes_in_and_goes_out() {
    let rest = Rest::new().await;
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  generateName: y-\ndata:\n  a: \"1\"\n";
    let headers = [("content-type", "application/yaml"), ("accept", "application/yaml")];
    let made = rest.ask(&format!("POST {MAPS}"), &headers, yaml).await;
    assert_eq!((made.code, made.header("content-type")), (201, "application/yaml"), "{}", made.text());
    assert!(made.text().contains("name: y-"), "{}", made.text());
}

#[tokio::test]
async fn unknown_fields_earn_a_warning_unless_the_client_says_otherwise() {
    let rest = Rest::new().await;
    let with = |name: &str| json!({"metadata": {"name": name}, "date": {"a": "1"}});
    let warned = rest.post(MAPS, with("a")).await;
    assert_eq!((warned.code, warned.header("warning")), (201, "299 - \"unknown field \\\"date\\\"\""));
    let strict = rest.post(&format!("{MAPS}?fieldValidation=Strict"), with("b")).await;
    assert_eq!(strict.code, 400, "{}", strict.text());
    let ignored = rest.post(&format!("{MAPS}?fieldValidation=Ignore"), with("c")).await;
    assert_eq!((ignored.code, ignored.header("warning")), (201, ""));
    assert_eq!(rest.post(&format!("{MAPS}?fieldValidation=Loud"), with("d")).await.code, 422);
}

#[tokio::test]
async fn lists_are_paged_selected_and_deleted() {
    let rest = Rest::new().await;
    for i in 0..5 {
        let mut object = config_map(&format!("m{i}"));
        object["metadata"]["labels"] = json!({"odd": (i % 2 == 1).to_string()});
        assert_eq!(rest.post(MAPS, object).await.code, 201);
    }
    let names = |list: &Value| {
        let items = list["items"].as_array().unwrap();
        items.iter().map(|o| o["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = rest.get(&format!("{MAPS}?limit=3")).await.json();
    assert_eq!(
        (first["kind"].clone(), first["metadata"]["remainingItemCount"].clone()),
        (json!("ConfigMapList"), json!(2))
    );
    let next = first["metadata"]["continue"].as_str().unwrap();
    let second = rest.get(&format!("{MAPS}?limit=3&continue={next}")).await.json();
    assert_eq!([names(&first), names(&second)].concat(), ["m0", "m1", "m2", "m3", "m4"]);
    let odd = rest.get("/api/v1/configmaps?labelSelector=odd%3Dtrue").await.json();
    assert_eq!(names(&odd), ["m1", "m3"]);
    let one = rest.get("/api/v1/configmaps?fieldSelector=metadata.name%3Dm2").await.json();
    assert_eq!(names(&one), ["m2"]);
    let deleted = rest.ask(&format!("DELETE {MAPS}?labelSelector=odd%3Dtrue"), &[], "").await;
    assert_eq!(names(&deleted.json()), ["m1", "m3"]);
    assert_eq!(names(&rest.get(MAPS).await.json()), ["m0", "m2", "m4"]);
}

#[tokio::test]
async fn tables_and_metadata_alone_are_had_by_asking() {
    let rest = Rest::new().await;
    assert_eq!(rest.post("/api/v1/namespaces/default/pods", pod("p")).await.code, 201);
    let told = rest.ask("GET /api/v1/pods", &[("accept", TABLE)], "").await.json();
    assert_eq!((told["kind"].clone(), told["apiVersion"].clone()), (json!("Table"), json!("meta.k8s.io/v1")));
    let names: Vec<&str> =
        told["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names[..5], ["Name", "Ready", "Status", "Restarts", "Age"]);
    assert_eq!(told["columnDefinitions"][0]["format"], "name");
    let cells = told["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(cells[..4], ["p", "0/1", "Pending", "0"]);
    assert_eq!(told["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let one = rest.ask("GET /api/v1/namespaces/default/pods/p?includeObject=Object", &[("accept", TABLE)], "").await;
    assert_eq!(one.json()["rows"][0]["object"]["spec"]["containers"][0]["name"], "c");
    let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let told = rest.ask("GET /api/v1/pods", &[("accept", partial)], "").await.json();
    assert_eq!(told["kind"], "PartialObjectMetadataList");
    assert_eq!(told["items"][0]["metadata"]["name"], "p");
    assert!(told["items"][0].get("spec").is_none());
}

#[tokio::test]
async fn a_watch_is_json_lines_and_ends_when_its_time_is_up() {
    let rest = Rest::new().await;
    let begin = rest.get(MAPS).await.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    rest.post(MAPS, config_map("a")).await;
    rest.ask(&format!("DELETE {MAPS}/a"), &[], "").await;
    let path = format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={begin}");
    let told = rest.get(&path).await;
    assert_eq!(told.header("content-type"), "application/json");
    let events: Vec<Value> = told.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["ADDED", "DELETED"]);
    let told = rest.ask(&format!("GET {path}"), &[("accept", TABLE)], "").await;
    let events: Vec<Value> = told.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events[0]["object"]["rows"][0]["cells"][0], "a");
    let heads: Vec<usize> = events.iter().map(|e| e["object"]["columnDefinitions"].as_array().unwrap().len()).collect();
    assert!(heads[0] > 0 && heads[1] == 0, "the columns are told once: {heads:?}");
}

#[tokio::test]
async fn a_watch_tells_what_happens_while_it_is_open() {
    let rest = Rest::new().await;
    let request = Request::builder().uri(format!("{MAPS}?watch=true&sendInitialEvents=true&allowWatchBookmarks=true"));
    let request = boxed(request.body(Empty::<bytes::Bytes>::new()).unwrap());
    let reply = rest.face.answer(&Peer { root: true, certificate: None, until: None }, request).await;
    let mut body = BodyStream::new(reply.into_body().boxed_unsync());
    let mut lines = async || {
        let frame = body.next().await.unwrap().unwrap().into_data().unwrap();
        serde_json::from_slice::<Value>(&frame).unwrap()
    };
    let bookmark = lines().await;
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    rest.post(MAPS, config_map("late")).await;
    assert_eq!(lines().await["object"]["metadata"]["name"], "late");
}

#[tokio::test]
async fn large_answers_are_compressed_for_those_who_ask() {
    let rest = Rest::new().await;
    for i in 0..4 {
        let mut object = config_map(&format!("m{i}"));
        object["data"]["a"] = "x".repeat(100_000).into();
        rest.post(MAPS, object).await;
    }
    let plain = rest.get(MAPS).await;
    let gzip = rest.ask(&format!("GET {MAPS}"), &[("accept-encoding", "gzip")], "").await;
    assert_eq!((plain.header("content-encoding"), gzip.header("content-encoding")), ("", "gzip"));
    let mut out = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&gzip.bytes[..]), &mut out).unwrap();
    assert!(out == plain.text() && gzip.bytes.len() < plain.bytes.len() / 10);
}

#[tokio::test]
async fn subresources_answer_with_their_kinds() {
    let rest = Rest::new().await;
    rest.post("/api/v1/namespaces/default/pods", pod("p")).await;
    let status = rest.get("/api/v1/namespaces/default/pods/p/status").await;
    assert_eq!(status.json()["kind"], "Pod");
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "replicas": 2, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    }});
    assert_eq!(rest.post("/apis/apps/v1/namespaces/default/deployments", deployment).await.code, 201);
    let path = "/apis/apps/v1/namespaces/default/deployments/d/scale";
    assert_eq!(rest.get(path).await.json()["spec"]["replicas"], 2);
    let patch = [("content-type", "application/merge-patch+json")];
    let scaled = rest.ask(&format!("PATCH {path}"), &patch, r#"{"spec": {"replicas": 5}}"#).await;
    assert_eq!((scaled.code, scaled.json()["spec"]["replicas"].clone()), (200, json!(5)), "{}", scaled.text());
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    rest.post("/api/v1/namespaces/default/serviceaccounts", account).await;
    let token = rest.post("/api/v1/namespaces/default/serviceaccounts/robot/token", json!({"spec": {}})).await;
    assert_eq!(token.code, 201, "{}", token.text());
    assert!(token.json()["status"]["token"].as_str().unwrap().len() > 100);
    // As `kubectl drain --dry-run=server` says it.
    let dry = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}, "deleteOptions": {"dryRun": ["All"]}});
    let tried = rest.post("/api/v1/namespaces/default/pods/p/eviction", dry).await;
    assert_eq!((tried.code, tried.json()["status"].clone()), (201, json!("Success")));
    assert!(rest.get("/api/v1/namespaces/default/pods/p").await.json()["metadata"]["deletionTimestamp"].is_null());
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let evicted = rest.post("/api/v1/namespaces/default/pods/p/eviction", eviction).await;
    assert_eq!((evicted.code, evicted.json()["status"].clone()), (201, json!("Success")));
    assert_eq!(rest.api.get("pods", "p").await.unwrap_err().code, 404);
}

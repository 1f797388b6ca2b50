//! What is refused: unknown paths, wrong methods and types, bad and oversized bodies, callers without the right.

use podwright::api::User;
use podwright::server::rest::authenticate::Peer;
use podwright::server::rest::{paths, query::Query};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::config_map;
use super::Rest;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

#[tokio::test]
async fn unknown_paths_are_not_found_and_wrong_methods_not_allowed() {
    let rest = Rest::new().await;
    for path in [
        "/nothing",
        "/api/v1/gizmos",
        "/api/v1/pods/p",
        "/apis/apps/v1/namespaces/a/deployments/b/c/d",
        "/api/v1/namespaces//pods",
    ] {
        let told = rest.get(path).await;
        assert_eq!((told.code, told.text().as_str()), (404, "404 page not found\n"), "{path}");
    }
    assert_eq!(rest.ask("POST /apis/nothing/v1/things", &JSON, "{}").await.code, 404);
    for line in ["POST /api/v1/configmaps", &format!("PUT {MAPS}"), &format!("POST {MAPS}/a"), "DELETE /version"] {
        let told = rest.ask(line, &JSON, "{}").await;
        assert_eq!((told.code, told.json()["reason"].clone()), (405, json!("MethodNotAllowed")), "{line}");
    }
    let told = rest.get(&format!("{MAPS}/a/nothing")).await;
    assert_eq!(told.code, 404, "{}", told.text());
}

#[tokio::test]
async fn bodies_that_are_none_get_the_right_code() {
    let rest = Rest::new().await;
    let deep = "[".repeat(100_000);
    let cases: [(&str, &[u8], u16); 9] = [
        ("application/json", b"{", 400),
        ("application/json", b"", 400),
        ("application/json", b"\"text\"", 400),
        ("application/json", b"{\"metadata\": {\"name\": \"\xff\xfe\"}}", 400),
        ("application/json", deep.as_bytes(), 400),
        ("application/yaml", b"a: [b", 400),
        ("application/yaml", b"a: 1\n---\nb: 2\n", 400),
        ("application/vnd.kubernetes.protobuf", b"k8s\0", 400),
        ("text/html", b"<p>", 415),
    ];
    for (media, body, code) in cases {
        let told = rest.ask(&format!("POST {MAPS}"), &[("content-type", media)], body.to_vec()).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(30)]).into_owned();
        assert_eq!((told.code, told.json()["kind"].clone()), (code, json!("Status")), "{media} {shown:?}");
    }
    let large = json!({"data": {"a": "x".repeat(10 << 20)}}).to_string();
    let told = rest.ask(&format!("POST {MAPS}"), &JSON, large).await;
    assert_eq!((told.code, told.json()["reason"].clone()), (413, json!("RequestEntityTooLarge")));
    let told = rest.ask(&format!("PATCH {MAPS}/a"), &JSON, "{}").await;
    assert_eq!(told.code, 415, "a patch names its type");
}

/// What small bodies could make large, deep, or fail halfway.
#[tokio::test]
async fn no_patch_makes_more_than_can_be_kept() {
    let rest = Rest::new().await;
    rest.post(MAPS, config_map("a")).await;
    let json = [("content-type", "application/json-patch+json")];
    let ask = async |operations: Value| {
        let told = rest.ask(&format!("PATCH {MAPS}/a"), &json, operations.to_string()).await;
        (told.code, told.json()["message"].as_str().unwrap_or("").to_owned())
    };
    // Each copy doubles the object.
    let doubled: Vec<Value> =
        (0..30).map(|n| json!({"op": "copy", "from": "", "path": format!("/data/{n}")})).collect();
    let (code, why) = ask(doubled.into()).await;
    assert!(code == 422 && why.contains("the accumulated size increase of copy is"), "{code} {why}");
    let deeper: Vec<Value> = (1..200).map(|n| json!({"op": "add", "path": "/a".repeat(n), "value": {}})).collect();
    let (code, why) = ask(deeper.into()).await;
    assert!(code == 422 && why.contains("levels deep"), "{code} {why}");
    // A move into itself fails, with nothing to be undone.
    let (code, why) = ask(json!([
        {"op": "move", "from": "/data", "path": "/d"}, {"op": "replace", "path": "", "value": {}}, {"op": "remove", "path": "/a"}]))
    .await;
    assert!(code == 422 && why.contains("operation '/2' failed at path '/a'"), "{code} {why}");
    assert_eq!(rest.get(&format!("{MAPS}/a")).await.json()["data"], json!({"a": "1"}));
    let nested = format!("{{\"data\": {}{}}}", "[".repeat(120), "]".repeat(120));
    let told = rest.ask(&format!("POST {MAPS}"), &JSON, nested).await;
    assert!(told.code == 400 && told.text().contains("levels deep"), "{}", told.text());
}

#[tokio::test]
async fn what_cannot_be_written_is_not_acceptable() {
    let rest = Rest::new().await;
    let protobuf = "application/vnd.kubernetes.protobuf";
    assert_eq!(rest.ask("GET /api/v1/pods", &[("accept", protobuf)], "").await.code, 406);
    let either = "application/vnd.kubernetes.protobuf,application/json";
    let told = rest.ask("GET /api/v1/pods", &[("accept", either)], "").await;
    assert_eq!((told.code, told.header("content-type")), (200, "application/json"));
}

#[tokio::test]
async fn bad_options_are_told() {
    let rest = Rest::new().await;
    for (query, code) in [
        ("limit=many", 400),
        ("labelSelector=%3D%3D", 400),
        ("fieldSelector=spec.nothing%3D1", 400),
        ("continue=rubbish", 400),
        ("resourceVersion=rubbish", 400),
        ("resourceVersion=1&resourceVersionMatch=Sometimes", 400),
        ("includeObject=Half", 400),
        ("dryRun=Some", 422),
    ] {
        assert_eq!(rest.get(&format!("{MAPS}?{query}")).await.code, code, "{query}");
    }
    for body in ["[]", "{\"kind\": \"Pod\"}", "{\"gracePeriodSeconds\": \"x\"}", "{\"propagationPolicy\": \"Never\"}"] {
        rest.post(MAPS, config_map("a")).await;
        assert_eq!(rest.ask(&format!("DELETE {MAPS}/a"), &JSON, body).await.code, 400, "{body}");
    }
}

#[tokio::test]
async fn callers_get_what_they_may() {
    let rest = Rest::new().await;
    let certificate = |name: &str, group: &str| Peer { certificate: Some(User::new(name, [group])), ..Peer::default() };
    let nobody = Peer::default();
    let (ann, admin) = (certificate("ann", "people"), certificate("boss", "system:masters"));
    for (peer, line, code) in [
        (&nobody, "GET /healthz", 200),
        (&nobody, "GET /version", 200),
        (&nobody, "GET /api", 403),
        (&nobody, "GET /metrics", 403),
        (&nobody, "GET /api/v1/pods", 403),
        (&nobody, "GET /nothing", 403),
        (&ann, "GET /apis", 200),
        (&ann, "GET /openapi/v3", 200),
        (&ann, "GET /metrics", 403),
        (&ann, "GET /api/v1/pods", 403),
        (&admin, "GET /api/v1/pods", 200),
        (&admin, "GET /nothing", 404),
    ] {
        assert_eq!(rest.ask_as(peer, line, &[], "").await.code, code, "{line}");
    }
    let told = rest.ask_as(&ann, "GET /api/v1/pods", &[], "").await.json();
    assert!(told["message"].as_str().unwrap().contains("User \"ann\" cannot list resource \"pods\""), "{told}");
    let forged = [("authorization", "Bearer eyJhbGciOiJub25lIn0.e30.")];
    assert_eq!(rest.ask_as(&nobody, "GET /version", &forged, "").await.code, 401);
    // A credential that cannot be read is a wrong one, not none: root on the socket stays out with it as well.
    for unreadable in ["Bearer \u{e9}", "bearer x\u{fffd}y"] {
        let told = rest.ask("GET /version", &[("authorization", unreadable)], "").await;
        assert_eq!(told.code, 401, "{unreadable}: {}", told.text());
    }
    // A real token tells who it is, though it may do nothing yet.
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    rest.post("/api/v1/namespaces/default/serviceaccounts", account).await;
    let token = rest.post("/api/v1/namespaces/default/serviceaccounts/robot/token", json!({})).await.json();
    let bearer = format!("Bearer {}", token["status"]["token"].as_str().unwrap());
    let told = rest.ask_as(&nobody, "GET /api/v1/pods", &[("authorization", &bearer)], "").await;
    assert_eq!(told.code, 403);
    assert!(told.text().contains("system:serviceaccount:default:robot"), "{}", told.text());
}

#[tokio::test]
async fn sessions_need_an_upgrade_that_we_speak() {
    let rest = Rest::new().await;
    rest.post("/api/v1/namespaces/default/pods", super::super::pod("p")).await;
    let exec = "GET /api/v1/namespaces/default/pods/p/exec?command=sh&stdout=true";
    assert_eq!(rest.ask(exec, &[], "").await.code, 400);
    let upgrade = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-protocol", "chat"),
    ];
    let told = rest.ask(exec, &upgrade, "").await;
    assert!(told.code == 400 && told.text().contains("subprotocol"), "{}", told.text());
    let told = rest.ask("GET /api/v1/namespaces/default/pods/nobody/log", &[], "").await;
    assert_eq!(told.code, 404);
    for (query, why) in [
        ("tailLines=-1", "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ("limitBytes=0", "limitBytes: Invalid value: 0: must be greater than 0"),
        ("sinceSeconds=0", "sinceSeconds: Invalid value: 0: must be greater than 0"),
        (
            "sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z",
            ": Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified",
        ),
        ("stream=stdout", "stream: Unsupported value: \"stdout\": supported values: \"All\", \"Stderr\", \"Stdout\""),
        ("stream=Stderr&tailLines=1", ": Forbidden: `tailLines` and specific `stream` are mutually exclusive for now"),
    ] {
        let told = rest.ask(&format!("GET /api/v1/namespaces/default/pods/p/log?{query}"), &[], "").await;
        assert_eq!(told.code, 422, "{query}: {}", told.text());
        let wanted = format!("PodLogOptions \\\"p\\\" is invalid: {}", why.replace('"', "\\\""));
        assert!(told.text().contains(&wanted), "{query}: {}", told.text());
    }
    for query in ["stream=All&tailLines=1", "stream=Stdout", "limitBytes=1"] {
        let told = rest.ask(&format!("GET /api/v1/namespaces/default/pods/p/log?{query}"), &[], "").await;
        assert_ne!(told.code, 422, "{query}: {}", told.text());
    }
}

proptest! {
    /// Whatever stands in a request line, parsing it ends without a panic.
    #[test]
    fn fuzz_paths_and_queries(path in "(/?[a-z%./:0-9]{0,8}){0,6}", query in "[a-zA-Z0-9=&%+;.,]{0,40}", text in ".{0,60}") {
        let _ = paths::parse(&Default::default(), &path);
        let _ = paths::parse(&Default::default(), &text);
        for query in [query, text] {
            let query = Query::parse(&query);
            let _ = podwright::server::rest::query::options(&query);
        }
    }

    /// What is encoded is understood as it was meant.
    #[test]
    fn queries_are_decoded(value in ".{0,20}") {
        let encoded: String = value.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let query = Query::parse(&format!("a=1&fieldManager={encoded}"));
        prop_assert_eq!(query.first("fieldManager").unwrap_or(""), value);
    }

    #[test]
    fn fuzz_delete_options(kind in "[A-Za-z]{0,4}", number in any::<i64>(), text in ".{0,8}") {
        let mut options = Default::default();
        let body: Value = json!({"kind": kind, "gracePeriodSeconds": number, "dryRun": [text], "orphanDependents": true});
        let _ = podwright::server::rest::query::delete_options(&mut options, &body);
    }
}

/// Who is not authenticated is told the same of what there is and of what there is not.
#[tokio::test]
async fn strangers_do_not_learn_which_kinds_there_are() {
    let rest = Rest::new().await;
    let stranger = Peer::default();
    for (method, rest_of_path) in [
        ("GET", ""),
        ("GET", "?limit=x"),
        ("GET", "?watch=1"),
        ("OPTIONS", ""),
        ("POST", "?dryRun=x"),
        ("DELETE", ""),
        ("GET", "/x"),
        ("GET", "/x/status"),
        ("GET", "/x/nothing"),
        ("PUT", "/x/scale?dryRun=x"),
        ("PATCH", ""),
    ] {
        let ask = async |plural: &str| {
            let line = format!("{method} /apis/apps/v1/namespaces/a/{plural}{rest_of_path}");
            let told = rest.ask_as(&stranger, &line, &[], "").await;
            (told.code, told.text().replace(plural, "KIND"))
        };
        let (there, not_there) = (ask("deployments").await, ask("gizmos").await);
        assert_eq!((there.0, &there), (403, &not_there), "{method} {rest_of_path}");
    }
    assert_eq!(rest.ask_as(&stranger, "GET /healthz", &[], "").await.code, 200);
}

//! What clients read between the lines of answers: their last byte, what a deletion gives back, how a refusal is worded.

use serde_json::{Value, json};

use super::super::{config_map, pod, service};
use super::{Rest, Told};

const CORE: &str = "/api/v1/namespaces/default";

impl Rest {
    async fn delete(&self, path: &str) -> Told {
        self.ask(&format!("DELETE {path}"), &[], "").await
    }
    async fn patch(&self, path: &str, of: &str, patch: Value) -> Told {
        let of = format!("application/{of}+json");
        self.ask(&format!("PATCH {path}"), &[("content-type", &of)], patch.to_string()).await
    }
}

#[tokio::test]
async fn json_ends_with_a_newline() {
    let rest = Rest::new().await;
    rest.post(&format!("{CORE}/configmaps"), config_map("a")).await;
    for path in [
        "/api/v1/namespaces/default/configmaps/a",
        "/api/v1/namespaces/default/configmaps",
        "/api/v1/namespaces/default/configmaps/none",
        "/api",
        "/apis",
        "/apis/apps",
        "/apis/apps/v1",
        "/version",
    ] {
        let told = rest.get(path).await;
        assert_eq!(told.bytes.iter().filter(|byte| **byte == b'\n').count(), 1, "{path}: {}", told.text());
        assert_eq!(told.bytes.last(), Some(&b'\n'), "{path}: {}", told.text());
        told.json();
    }
    // The length that is told is that of all.
    let head = rest.ask(&format!("HEAD {CORE}/configmaps/a"), &[], "").await;
    let whole = rest.get(&format!("{CORE}/configmaps/a")).await.bytes.len();
    assert_eq!(head.header("content-length"), whole.to_string());
}

#[tokio::test]
async fn a_deletion_gives_back_what_upstream_gives() {
    let rest = Rest::new().await;
    let storage = json!({"kind": "StorageClass", "apiVersion": "storage.k8s.io/v1", "metadata": {"name": "x"},
        "provisioner": "a.b/c"});
    let account = json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "x"}});
    for (collection, object) in [
        ("/api/v1/namespaces/default/services", service("x", json!({}))),
        ("/api/v1/namespaces/default/pods", pod("x")),
        ("/api/v1/namespaces/default/serviceaccounts", account),
        ("/apis/storage.k8s.io/v1/storageclasses", storage),
    ] {
        let made = rest.post(collection, object.clone()).await.json();
        let told = rest.delete(&format!("{collection}/x")).await;
        let gone = told.json();
        assert_eq!((told.code, &gone["kind"]), (200, &object["kind"]), "{gone}");
        assert_eq!(gone["metadata"]["uid"], made["metadata"]["uid"]);
        let number = |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
        assert!(number(&gone) > number(&made), "it is told with the revision of its going");
        assert_eq!(rest.get(&format!("{collection}/x")).await.code, 404);
    }
    let made = rest.post(&format!("{CORE}/configmaps"), config_map("x")).await.json();
    let gone = rest.delete(&format!("{CORE}/configmaps/x")).await;
    let details = json!({"name": "x", "kind": "configmaps", "uid": made["metadata"]["uid"]});
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    assert_eq!((gone.code, gone.json()), (200, status));
    // What waits is shown, whatever it is.
    let mut held = config_map("x");
    held["metadata"]["finalizers"] = json!(["a.b/c"]);
    rest.post(&format!("{CORE}/configmaps"), held).await;
    let waits = rest.delete(&format!("{CORE}/configmaps/x")).await.json();
    assert!(waits["kind"] == "ConfigMap" && waits["metadata"]["deletionTimestamp"].is_string(), "{waits}");
    // Whoever takes the last finalizer away is answered with what he has made of it.
    let let_go = json!({"metadata": {"finalizers": null}});
    let last = rest.patch(&format!("{CORE}/configmaps/x"), "merge-patch", let_go).await;
    assert_eq!((last.code, last.json()["metadata"].get("finalizers").cloned()), (200, None), "{}", last.text());
    assert_eq!(rest.get(&format!("{CORE}/configmaps/x")).await.code, 404);
    // So says the description of the API.
    let described = rest.get("/openapi/v3/api/v1").await.text();
    let described: Value = serde_json::from_str(&described).unwrap();
    let gives = |what: &str| {
        let answer =
            &described["paths"][format!("/api/v1/namespaces/{{namespace}}/{what}/{{name}}")]["delete"]["responses"];
        answer["200"]["content"]["application/json"]["schema"]["$ref"].as_str().unwrap_or("").to_owned()
    };
    assert!(gives("services").ends_with("v1.Service") && gives("configmaps").ends_with("v1.Status"));
}

#[tokio::test]
async fn a_patch_that_makes_no_object_of_its_kind_is_invalid() {
    let rest = Rest::new().await;
    let path = format!("{CORE}/pods/p");
    rest.post(&format!("{CORE}/pods"), pod("p")).await;
    let strict = format!("{path}?fieldValidation=Strict");
    let seconds = json!({"spec": {"activeDeadlineSeconds": "x"}});
    let go = "json: cannot unmarshal string into Go struct field PodSpec.spec.activeDeadlineSeconds of type int64";
    for (path, of, patch, end) in [
        (&path, "merge-patch", seconds.clone(), go),
        (&path, "json-patch", json!([{"op": "add", "path": "/spec/activeDeadlineSeconds", "value": "x"}]), go),
        (
            &path,
            "strategic-merge-patch",
            seconds,
            "\"map[spec:map[activeDeadlineSeconds:x]]\": unrecognized type: int64",
        ),
        (
            &path,
            "strategic-merge-patch",
            json!({"spec": {"securityContext": "x"}}),
            "\"map[spec:map[securityContext:x]]\": cannot restore struct from: string",
        ),
        (&strict, "merge-patch", json!({"spec": {"no": 1}}), "strict decoding error: unknown field \"spec.no\""),
    ] {
        let told = rest.patch(path, of, patch).await;
        let status = told.json();
        let message = status["message"].as_str().unwrap();
        assert_eq!((told.code, &status["reason"]), (422, &json!("Invalid")), "{of}: {message}");
        assert!(message.starts_with(" \"\" is invalid: patch: Invalid value: \""), "{message}");
        assert!(message.ends_with(end), "{message}");
        assert_eq!(status["details"]["causes"][0]["field"], "patch");
    }
    let broken = rest.ask(&format!("PATCH {path}"), &[("content-type", "application/merge-patch+json")], "{").await;
    assert_eq!(
        (broken.code, &broken.json()["message"]),
        (400, &json!("error decoding patch: unexpected end of JSON input"))
    );
}

#[tokio::test]
async fn what_is_no_object_is_unrecognized() {
    let rest = Rest::new().await;
    let pods = format!("{CORE}/pods");
    let long = format!("{{\"kind\": {}", "x".repeat(40));
    for (path, body, message) in [
        (
            &pods,
            "",
            "the object provided is unrecognized (must be of type Pod): couldn't get version/kind; json parse error: \
             unexpected end of JSON input (<empty>)",
        ),
        (
            &pods,
            "[]",
            "the object provided is unrecognized (must be of type Pod): couldn't get version/kind; json parse error: \
             json: cannot unmarshal array into Go value of type struct { APIVersion string \
             \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" } (5b5d)",
        ),
        (
            &pods,
            "{\"kind\": 1}",
            "the object provided is unrecognized (must be of type Pod): couldn't get version/kind; json parse error: \
             json: cannot unmarshal number into Go struct field .kind of type string ({\"kind\": 1})",
        ),
        (
            &pods,
            "{\"kind\": \"ConfigMap\", \"apiVersion\": \"v1\"}",
            "ConfigMap in version \"v1\" cannot be handled as a Pod: converting (v1.ConfigMap) to (core.Pod): unknown \
             conversion",
        ),
        (
            &pods,
            "{\"kind\": \"Thing\", \"apiVersion\": \"a/v1\"}",
            "Thing in version \"v1\" cannot be handled as a Pod: no kind \"Thing\" is registered for version \"a/v1\" in \
             scheme \"podwright\"",
        ),
        (
            &"/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers".to_owned(),
            "{\"kind\": \"HorizontalPodAutoscaler\", \"apiVersion\": \"autoscaling/v1\"}",
            "the API version in the data (autoscaling/v1) does not match the expected API version (autoscaling/v2)",
        ),
    ] {
        let told = rest.ask(&format!("POST {path}"), &[("content-type", "application/json")], body.to_owned()).await;
        assert_eq!((told.code, told.json()["message"].as_str().unwrap()), (400, message));
    }
    let told = rest.ask(&format!("POST {pods}/p/eviction"), &[], long).await.json()["message"].to_string();
    assert!(told.contains("(must be of type Eviction)") && told.contains("x ...)"), "{told}");
}

#[tokio::test]
async fn a_review_is_no_table() {
    let rest = Rest::new().await;
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}})
    .to_string();
    let ask = async |accept: &str| {
        let headers = [("content-type", "application/json"), ("accept", accept)];
        rest.ask(&format!("POST {path}"), &headers, review.clone()).await
    };
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let refused = ask(table).await;
    assert_eq!((refused.code, &refused.json()["reason"]), (406, &json!("NotAcceptable")));
    let answered = ask(&format!("{table},application/json")).await;
    assert_eq!((answered.code, &answered.json()["kind"]), (201, &json!("SelfSubjectAccessReview")));
    let bind = "POST /api/v1/namespaces/default/pods/p/binding";
    assert_eq!(rest.ask(bind, &[("accept", table)], "{}").await.code, 406);
    let shown = rest.ask("GET /api/v1/componentstatuses", &[("accept", table)], "").await.json();
    assert_eq!(
        (&shown["kind"], &shown["rows"][1]["cells"]),
        (&json!("Table"), &json!(["etcd-0", "Healthy", "ok", ""]))
    );
}

#[tokio::test]
async fn a_binding_is_made_in_its_namespace_too() {
    let rest = Rest::new().await;
    rest.post(&format!("{CORE}/pods"), pod("p")).await;
    let binding = |node: &str| json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}});
    let made = rest.post(&format!("{CORE}/bindings"), binding("n")).await;
    assert_eq!((made.code, &made.json()["status"]), (201, &json!("Success")), "{}", made.text());
    assert_eq!(rest.get(&format!("{CORE}/pods/p")).await.json()["spec"]["nodeName"], "n");
    let again = rest.post(&format!("{CORE}/bindings"), binding("m")).await;
    assert_eq!((again.code, &again.json()["reason"]), (409, &json!("Conflict")));
    let resources = rest.get("/api/v1").await.json()["resources"].as_array().unwrap().clone();
    let told = resources.iter().find(|resource| resource["name"] == "bindings").unwrap();
    assert_eq!(
        (&told["kind"], &told["namespaced"], &told["verbs"]),
        (&json!("Binding"), &json!(true), &json!(["create"]))
    );
    // Who may bind Pods by their own subresource alone may not here, nor the other way round.
    let headers = [("impersonate-user", "jane"), ("content-type", "application/json")];
    let refused = rest.ask(&format!("POST {CORE}/bindings"), &headers, binding("n").to_string()).await;
    let why = refused.json()["message"].to_string();
    assert!(refused.code == 403 && why.contains("cannot create resource \\\"bindings\\\""), "{why}");
}

#[tokio::test]
async fn the_parts_of_the_control_plane_are_told() {
    let rest = Rest::new().await;
    let of = async |name: &str| {
        let told = rest.get(&format!("/api/v1/componentstatuses/{name}")).await;
        let condition = told.json()["conditions"][0].clone();
        (condition["status"].as_str().unwrap_or("").to_owned(), told.header("warning").to_owned())
    };
    let list = rest.get("/api/v1/componentstatuses").await.json();
    let names: Vec<&str> =
        list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(
        (&list["kind"], names),
        (&json!("ComponentStatusList"), vec!["controller-manager", "etcd-0", "scheduler"])
    );
    assert_eq!(of("etcd-0").await.0, "True");
    assert_eq!(of("scheduler").await.0, "False", "none runs beside this server");
    let runs = rest.api.0.runs("scheduler");
    assert_eq!(of("scheduler").await, ("True".into(), "299 - \"v1 ComponentStatus is deprecated in v1.19+\"".into()));
    drop(runs);
    assert_eq!(of("scheduler").await.0, "False");
    assert_eq!(rest.get("/api/v1/componentstatuses/nothing").await.code, 404);
    let one = rest.get("/api/v1/componentstatuses?fieldSelector=metadata.name%3Detcd-0").await.json();
    assert_eq!(one["items"].as_array().unwrap().len(), 1);
}

/// Clients compare it, and some stumble over none.
#[tokio::test]
async fn the_version_names_a_commit_or_says_that_it_is_unknown() {
    let version = Rest::new().await.get("/version").await.json();
    let commit = version["gitCommit"].as_str().unwrap();
    assert!(commit == "unknown" || commit.len() == 40, "{version}");
    assert!(["clean", "dirty", "archive", "unknown"].contains(&version["gitTreeState"].as_str().unwrap()), "{version}");
}

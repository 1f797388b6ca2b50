//! What is served, as clients find it out: discovery, OpenAPI, version, health, metrics.

use serde_json::{Value, json};

use super::Rest;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

fn find<'a>(list: &'a Value, key: &str, name: &str) -> &'a Value {
    list.as_array().unwrap().iter().find(|entry| entry[key] == name).unwrap_or_else(|| panic!("no {name} in {list}"))
}

#[tokio::test]
async fn groups_and_resources_are_told_one_by_one() {
    let rest = Rest::new().await;
    assert_eq!(rest.get("/api").await.json()["versions"], json!(["v1"]));
    let groups = rest.get("/apis").await.json();
    let apps = find(&groups["groups"], "name", "apps");
    assert_eq!(apps["preferredVersion"], json!({"groupVersion": "apps/v1", "version": "v1"}));
    assert_eq!(rest.get("/apis/apps").await.json()["kind"], "APIGroup");
    let core = rest.get("/api/v1").await.json();
    let pods = find(&core["resources"], "name", "pods");
    assert_eq!((pods["shortNames"].clone(), pods["namespaced"].clone()), (json!(["po"]), json!(true)));
    assert_eq!(pods["singularName"], "pod");
    let eviction = find(&core["resources"], "name", "pods/eviction");
    assert_eq!((eviction["kind"].clone(), eviction["group"].clone()), (json!("Eviction"), json!("policy")));
    let apps = rest.get("/apis/apps/v1").await.json();
    let scale = find(&apps["resources"], "name", "deployments/scale");
    assert_eq!((scale["kind"].clone(), scale["group"].clone()), (json!("Scale"), json!("autoscaling")));
    for missing in ["/apis/nothing", "/apis/nothing/v1", "/apis/apps/v9", "/api/v2"] {
        assert_eq!(rest.get(missing).await.code, 404, "{missing}");
    }
}

#[tokio::test]
async fn aggregated_discovery_tells_all_at_once() {
    let rest = Rest::new().await;
    let told = rest.ask("GET /apis", &[("accept", AGGREGATED)], "").await;
    let media = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    assert_eq!((told.code, told.header("content-type")), (200, media));
    let list = told.json();
    let apps = list["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == "apps").unwrap();
    let deployments = find(&apps["versions"][0]["resources"], "resource", "deployments");
    assert_eq!(deployments["responseKind"], json!({"group": "apps", "version": "v1", "kind": "Deployment"}));
    assert_eq!(find(&deployments["subresources"], "subresource", "scale")["responseKind"]["kind"], "Scale");
    let core = rest.ask("GET /api", &[("accept", AGGREGATED)], "").await.json();
    assert_eq!(core["items"][0]["metadata"]["name"], "");
}

#[tokio::test]
async fn openapi_says_how_fields_merge_and_what_may_be_patched() {
    let rest = Rest::new().await;
    let index = rest.get("/openapi/v3").await.json();
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap();
    let apps = rest.get(url).await.json();
    let schemas = &apps["components"]["schemas"];
    let deployment = &schemas["io.k8s.api.apps.v1.Deployment"];
    assert_eq!(
        deployment["x-kubernetes-group-version-kind"],
        json!([{"group": "apps", "version": "v1", "kind": "Deployment"}])
    );
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    assert!(containers["description"].as_str().unwrap().contains("containers"));
    let patch = &apps["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Deployment");
    find(&patch["parameters"], "name", "fieldValidation");
    assert_eq!(rest.get("/openapi/v3/apis/nothing/v1").await.code, 404);
    let v2 = rest.get("/openapi/v2").await.json();
    assert!(v2["definitions"]["io.k8s.api.core.v1.Pod"].is_object() && v2["swagger"] == "2.0");
    // What may be of any type says nothing of its type; old kubectls check manifests by it.
    for any in ["JSON", "JSONSchemaPropsOrArray", "JSONSchemaPropsOrBool", "JSONSchemaPropsOrStringArray"] {
        let any = &v2["definitions"][format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.{any}")];
        assert_eq!(any.as_object().unwrap().keys().collect::<Vec<_>>(), ["description"]);
    }
}

/// Every reference of a document leads somewhere in it.
#[tokio::test]
async fn openapi_documents_are_closed_and_hold_no_nulls() {
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str));
                map.values().for_each(|value| references(value, found));
            }
            Value::Null => panic!("a member of an OpenAPI document is null"),
            _ => {}
        }
    }
    let rest = Rest::new().await;
    let index = rest.get("/openapi/v3").await.json();
    let paths = index["paths"].as_object().unwrap();
    let mut urls: Vec<&str> = paths.values().map(|v| v["serverRelativeURL"].as_str().unwrap()).collect();
    urls.push("/openapi/v2");
    for url in urls {
        let document = rest.get(url).await.json();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(!found.is_empty());
        for reference in found {
            let target = document.pointer(reference.trim_start_matches('#'));
            assert!(target.is_some(), "{url}: {reference} leads nowhere");
        }
    }
}

#[tokio::test]
async fn version_health_and_metrics_are_told() {
    let rest = Rest::new().await;
    assert_eq!(rest.get("/version").await.json()["minor"], "35");
    for path in ["/healthz", "/livez", "/readyz", "/readyz/etcd", "/livez/etcd", "/readyz/etcd-readiness"] {
        assert_eq!(rest.get(path).await.text(), "ok", "{path}");
    }
    let verbose = rest.get("/readyz?verbose").await.text();
    assert!(
        verbose.contains("[+]etcd ok\n[+]etcd-readiness ok\n") && verbose.ends_with("readyz check passed\n"),
        "{verbose}"
    );
    for path in ["/healthz/nothing", "/livez/etcd-readiness"] {
        assert_eq!(rest.get(path).await.code, 404, "{path}");
    }
}

/// What `kubectl top` looks for.
#[tokio::test]
async fn metrics_are_an_api_group_of_their_own() {
    let rest = Rest::new().await;
    let groups = rest.get("/apis").await.json();
    let metrics = find(&groups["groups"], "name", "metrics.k8s.io");
    assert_eq!(metrics["preferredVersion"]["groupVersion"], "metrics.k8s.io/v1beta1");
    let resources = rest.get("/apis/metrics.k8s.io/v1beta1").await.json();
    for (name, kind, namespaced) in [("pods", "PodMetrics", true), ("nodes", "NodeMetrics", false)] {
        let found = find(&resources["resources"], "name", name);
        assert_eq!((&found["kind"], &found["namespaced"]), (&json!(kind), &json!(namespaced)));
        assert_eq!(found["verbs"], json!(["get", "list"]));
    }
    // The names alone mean the core group's.
    let wide = rest.ask("GET /apis", &[("accept", AGGREGATED)], "").await.json();
    assert_eq!(wide["items"].as_array().unwrap().last().unwrap()["metadata"]["name"], "metrics.k8s.io");
    let openapi = rest.get("/openapi/v3/apis/metrics.k8s.io/v1beta1").await.json();
    let schema = &openapi["components"]["schemas"]["io.k8s.metrics.pkg.apis.metrics.v1beta1.PodMetrics"];
    assert_eq!(schema["x-kubernetes-group-version-kind"][0]["kind"], "PodMetrics");
    assert_eq!(schema["properties"]["containers"]["type"], "array");
    let list = rest.get("/apis/metrics.k8s.io/v1beta1/nodes").await.json();
    assert_eq!(
        list,
        json!({"kind": "NodeMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": []})
    );
    let table = rest
        .ask("GET /apis/metrics.k8s.io/v1beta1/pods", &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")], "")
        .await;
    let names: Vec<Value> =
        table.json()["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].clone()).collect();
    assert_eq!(names, ["Name", "Cpu", "Memory", "Window"]);
}

//! What is served, as clients find it out: discovery, OpenAPI, version, health, metrics.

use std::collections::{BTreeMap, BTreeSet};

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

/// Words that people and code generators read, in upstream's.
#[tokio::test]
async fn openapi_describes_operations_parameters_and_lists() {
    let rest = Rest::new().await;
    let v2 = rest.get("/openapi/v2").await.json();
    let pods = "/api/v1/namespaces/{namespace}/pods";
    let of = |path: &str, method: &str| &v2["paths"][path][method];
    for (path, method, words) in [
        (pods, "get", "list or watch objects of kind Pod"),
        (pods, "post", "create a Pod"),
        (pods, "delete", "delete collection of Pod"),
        ("/api/v1/namespaces/{namespace}/events", "post", "create an Event"),
        ("/api/v1/namespaces/{namespace}/endpoints", "post", "create Endpoints"),
        ("/apis/networking.k8s.io/v1/ingressclasses/{name}", "delete", "delete an IngressClass"),
        ("/apis/metrics.k8s.io/v1beta1/nodes", "get", "list objects of kind NodeMetrics"),
        (&format!("{pods}/{{name}}"), "get", "read the specified Pod"),
        (&format!("{pods}/{{name}}"), "put", "replace the specified Pod"),
        (&format!("{pods}/{{name}}"), "patch", "partially update the specified Pod"),
        (&format!("{pods}/{{name}}/status"), "patch", "partially update status of the specified Pod"),
        (&format!("{pods}/{{name}}/log"), "get", "read log of the specified Pod"),
        (&format!("{pods}/{{name}}/eviction"), "post", "create eviction of a Pod"),
        (&format!("{pods}/{{name}}/exec"), "post", "connect POST requests to exec of Pod"),
        ("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", "post", "create token of a ServiceAccount"),
        (
            "/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale",
            "get",
            "read scale of the specified Deployment",
        ),
    ] {
        assert_eq!(of(path, method)["description"], words, "{method} {path}");
    }
    let exec = of(&format!("{pods}/{{name}}/exec"), "get");
    assert_eq!(exec["operationId"], "connectCoreV1GetNamespacedPodExec");
    assert_eq!((&exec["x-kubernetes-action"], exec.get("consumes")), (&json!("connect"), None));
    let named = |path: &str| find(&v2["paths"][path]["parameters"], "name", "name")["description"].clone();
    assert_eq!(named(&format!("{pods}/{{name}}")), "name of the Pod");
    assert_eq!(named(&format!("{pods}/{{name}}/eviction")), "name of the Eviction");
    // What a parameter of a deletion means is what the field of its body means.
    let delete = of(&format!("{pods}/{{name}}"), "delete");
    let fields = &v2["definitions"]["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"]["properties"];
    for name in ["dryRun", "gracePeriodSeconds", "propagationPolicy", "orphanDependents"] {
        let told = &find(&delete["parameters"], "name", name)["description"];
        assert!(
            told.as_str().is_some_and(|told| told.len() > 50) && *told == fields[name]["description"],
            "{name}: {told}"
        );
    }
    // A list's own fields as each object's.
    let definition = |name: &str| v2["definitions"][format!("io.k8s.api.core.v1.{name}")]["properties"].clone();
    for field in ["apiVersion", "kind"] {
        assert!(definition("Pod")[field]["description"].as_str().unwrap().contains("More info: https://git.k8s.io/"));
        assert_eq!(definition("PodList")[field], definition("Pod")[field]);
    }
}

/// Both editions tell of the same, in the same words.
#[tokio::test]
async fn openapi_v2_and_v3_do_not_differ_in_what_they_tell() {
    /// Of a parameter what it is called, where it is and what it means; bodies are written differently.
    fn parameters(of: &Value) -> Vec<Value> {
        let all = of["parameters"].as_array().into_iter().flatten().filter(|p| p["in"] != "body");
        all.map(|p| json!([p["name"], p["in"], p["description"], p["required"]])).collect()
    }
    fn operations(document: &Value, into: &mut BTreeMap<String, Value>) {
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap().iter().filter(|(method, _)| *method != "parameters") {
                let told =
                    ["operationId", "description", "tags", "x-kubernetes-action", "x-kubernetes-group-version-kind"];
                let told: Vec<&Value> = told.iter().map(|key| &operation[*key]).collect();
                let codes: Vec<&String> = operation["responses"].as_object().unwrap().keys().collect();
                let all = json!([told, codes, parameters(operation), parameters(item)]);
                assert!(into.insert(format!("{method} {path}"), all).is_none(), "{method} {path} twice");
            }
        }
    }
    /// Descriptions of a definition and of its fields.
    fn described(definition: &Value) -> Value {
        let fields = definition["properties"].as_object().into_iter().flatten();
        let fields: BTreeMap<&String, &Value> = fields.map(|(name, field)| (name, &field["description"])).collect();
        json!([definition["description"], definition["required"], fields])
    }
    /// The kinds that a definition is of. A document of another group, which only refers to it, does not tell.
    fn kinds(definition: &Value) -> Option<&Value> {
        definition.get("x-kubernetes-group-version-kind")
    }
    let rest = Rest::new().await;
    let v2 = rest.get("/openapi/v2").await.json();
    let (mut second, mut third) = (BTreeMap::new(), BTreeMap::new());
    let (mut known, mut of) = (BTreeMap::new(), BTreeMap::new());
    operations(&v2, &mut second);
    let index = rest.get("/openapi/v3").await.json();
    for entry in index["paths"].as_object().unwrap().values() {
        let document = rest.get(entry["serverRelativeURL"].as_str().unwrap()).await.json();
        operations(&document, &mut third);
        for (name, definition) in document["components"]["schemas"].as_object().unwrap() {
            let told = described(definition);
            assert_eq!(known.entry(name.clone()).or_insert_with(|| told.clone()), &told, "{name} in two documents");
            of.extend(kinds(definition).map(|kinds| (name.clone(), kinds.clone())));
        }
    }
    assert!(second.len() > 500, "{}", second.len());
    assert_eq!(second.keys().collect::<Vec<_>>(), third.keys().collect::<Vec<_>>());
    second.iter().for_each(|(operation, told)| assert_eq!(told, &third[operation], "{operation}"));
    let definitions = v2["definitions"].as_object().unwrap();
    assert_eq!(definitions.keys().collect::<BTreeSet<_>>(), known.keys().collect());
    for (name, definition) in definitions {
        assert_eq!(described(definition), known[name], "{name}");
        assert_eq!(kinds(definition), of.get(name), "{name}");
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

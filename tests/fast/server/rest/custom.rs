//! Custom kinds as clients find them out: discovery, OpenAPI, tables.

use serde_json::{Value, json};

use super::Rest;
use crate::server::custom::{definition, spec, widget};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

async fn with_widgets() -> Rest {
    let rest = Rest::new().await;
    let mut it = definition(spec(json!({
        "color": {"type": "string", "description": "What it looks like."}, "n": {"type": "integer"}, "on": {"type": "boolean"},
        "any": {"x-kubernetes-int-or-string": true}, "ports": {"type": "array", "items": {"type": "string"}},
    })));
    it["spec"]["versions"][0]["subresources"] =
        json!({"status": {}, "scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}});
    it["spec"]["versions"][0]["additionalPrinterColumns"] = json!([
        {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
        {"name": "N", "type": "integer", "jsonPath": ".spec.n", "description": "how many"},
        {"name": "First", "type": "string", "jsonPath": ".spec.ports[0]", "priority": 1},
        {"name": "Made", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        {"name": "Tier", "type": "string", "jsonPath": ".metadata.labels['example\\.com/tier']"},
    ]);
    rest.api.define(it).await;
    rest
}

#[tokio::test]
async fn a_definition_is_discovered_at_once_and_forgotten() {
    let rest = with_widgets().await;
    let groups = rest.get("/apis").await.json();
    assert!(groups["groups"].as_array().unwrap().iter().any(|g| g["name"] == "example.com"));
    assert_eq!(rest.get("/apis/example.com").await.json()["preferredVersion"]["groupVersion"], "example.com/v1");
    let resources = rest.get("/apis/example.com/v1").await.json()["resources"].clone();
    let names: Vec<&str> = resources.as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["widgets", "widgets/scale", "widgets/status"]);
    assert_eq!((&resources[0]["shortNames"], &resources[0]["categories"]), (&json!(["wd"]), &json!(["all"])));
    let aggregated = rest.ask("GET /apis", &[("accept", AGGREGATED)], "").await.json();
    let group = aggregated["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|g| g["metadata"]["name"] == "example.com")
        .unwrap()
        .clone();
    assert_eq!(group["versions"][0]["resources"][0]["responseKind"]["kind"], "Widget");

    rest.ask("DELETE /apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com", &[], "").await;
    for _ in 0..300 {
        if rest.get("/apis/example.com/v1").await.code == 404 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(rest.get("/apis/example.com/v1").await.code, 404);
    assert_eq!(rest.get("/apis/example.com/v1/namespaces/default/widgets").await.code, 404);
}

#[tokio::test]
async fn openapi_tells_of_it() {
    let rest = with_widgets().await;
    let index = rest.get("/openapi/v3").await.json();
    let url = index["paths"]["apis/example.com/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let document = rest.get(&url).await.json();
    let schema = &document["components"]["schemas"]["com.example.v1.Widget"];
    assert_eq!(
        schema["x-kubernetes-group-version-kind"],
        json!([{"group": "example.com", "version": "v1", "kind": "Widget"}])
    );
    assert_eq!(schema["properties"]["spec"]["properties"]["color"]["description"], "What it looks like.");
    assert!(document["components"]["schemas"]["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"].is_object());
    let patch = &document["paths"]["/apis/example.com/v1/namespaces/{namespace}/widgets/{name}"]["patch"];
    let media = patch["requestBody"]["content"].as_object().unwrap();
    assert!(
        media.contains_key("application/merge-patch+json")
            && !media.contains_key("application/strategic-merge-patch+json")
    );
    let v2 = rest.get("/openapi/v2").await.json();
    assert!(v2["definitions"]["com.example.v1.Widget"]["properties"]["spec"]["properties"]["any"]["type"].is_null());
    // A schema that changes is told at once.
    let mut now = rest.api.get(crate::server::custom::DEFINITIONS, "widgets.example.com").await.unwrap();
    now.0["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["new"] =
        json!({"type": "string"});
    rest.api.update(crate::server::custom::DEFINITIONS, &now).await.unwrap();
    let index = rest.get("/openapi/v3").await.json();
    let changed = index["paths"]["apis/example.com/v1"]["serverRelativeURL"].as_str().unwrap();
    assert_ne!(changed, url);
    let document = rest.get(changed).await.json();
    assert!(
        document["components"]["schemas"]["com.example.v1.Widget"]["properties"]["spec"]["properties"]["new"]
            .is_object()
    );
}

#[tokio::test]
async fn tables_have_the_columns_of_the_definition() {
    let rest = with_widgets().await;
    let mut w = widget("w", json!({"color": "red", "n": 3, "ports": ["a", "b"]}));
    w["metadata"]["labels"] = json!({"example.com/tier": "front"});
    assert_eq!(rest.post("/apis/example.com/v1/namespaces/default/widgets", w).await.code, 201);
    assert_eq!(rest.post("/apis/example.com/v1/namespaces/default/widgets", widget("bare", json!({}))).await.code, 201);
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = rest.ask("GET /apis/example.com/v1/widgets", &accept, "").await.json();
    let columns: Vec<(&str, &str, i64)> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (c["name"].as_str().unwrap(), c["type"].as_str().unwrap(), c["priority"].as_i64().unwrap()))
        .collect();
    assert_eq!(
        columns,
        [
            ("Name", "string", 0),
            ("Color", "string", 0),
            ("N", "integer", 0),
            ("First", "string", 1),
            ("Made", "date", 0),
            ("Tier", "string", 0)
        ]
    );
    assert_eq!(table["columnDefinitions"][2]["description"], "how many");
    let cells = &table["rows"][1]["cells"];
    assert_eq!((&cells[1], &cells[2], &cells[3], &cells[5]), (&json!("red"), &json!(3), &json!("a"), &json!("front")));
    assert!(cells[4].as_str().unwrap().ends_with('s'));
    assert_eq!(table["rows"][0]["cells"][2], json!(null));
}

#[tokio::test]
async fn who_has_a_document_is_not_sent_it_again() {
    let rest = with_widgets().await;
    let index = rest.get("/openapi/v3").await.json();
    let url = index["paths"]["apis/example.com/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    for (path, accept) in [
        ("/openapi/v2", "application/json"),
        ("/openapi/v3", "application/json"),
        (url.as_str(), "application/json"),
        ("/apis", AGGREGATED),
        ("/api", AGGREGATED),
    ] {
        let line = format!("GET {path}");
        let first = rest.ask(&line, &[("accept", accept)], "").await;
        let tag = first.header("etag").to_owned();
        assert!(first.code == 200 && tag.starts_with('"') && tag.len() > 2, "{path}: {tag}");
        for has in [tag.clone(), format!("\"other\", W/{tag}"), "*".to_owned()] {
            let again = rest.ask(&line, &[("accept", accept), ("if-none-match", has.as_str())], "").await;
            assert_eq!((again.code, again.header("etag"), again.bytes.len()), (304, tag.as_str(), 0), "{path} {has}");
        }
        let other = rest.ask(&line, &[("accept", accept), ("if-none-match", "\"other\"")], "").await;
        assert_eq!((other.code, other.bytes), (200, first.bytes), "{path}");
    }
    // A definition that changes is told of at once.
    let before = rest.get("/openapi/v2").await.header("etag").to_owned();
    let gone =
        rest.ask("DELETE /apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com", &[], "").await;
    assert_eq!(gone.code, 200);
    for _ in 0..300 {
        let now = rest.ask("GET /openapi/v2", &[("if-none-match", before.as_str())], "").await;
        if now.code == 200 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the document is still said to be what it was");
}

#[tokio::test]
async fn discovery_names_the_stored_version() {
    let rest = with_widgets().await;
    let hash = |list: &serde_json::Value, name: &str| {
        let found = list["resources"].as_array().unwrap().iter().find(|r| r["name"] == name).unwrap();
        found["storageVersionHash"].clone()
    };
    let pods = rest.get("/api/v1").await.json();
    assert_eq!((hash(&pods, "pods"), hash(&pods, "pods/status")), (json!("xPOwRZ+Yhw8="), json!(null)));
    let widgets = rest.get("/apis/example.com/v1").await.json();
    assert_eq!(hash(&widgets, "widgets").as_str().unwrap().len(), 12);
}

/// What kubectl's `explain` and its client-side validation read.
#[tokio::test]
async fn openapi_says_what_upstream_says() {
    let rest = Rest::new().await;
    let mut it = definition(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
        "spec": {"type": "object", "nullable": true, "properties": {"a": {"type": "string"}}}}}));
    it["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.a"}]);
    it["spec"]["names"]["listKind"] = "WidgetCollection".into();
    rest.api.define(it).await;
    let v2 = rest.get("/openapi/v2").await.json();
    let v2 = &v2["definitions"]["com.example.v1.Widget"];
    assert_eq!(
        v2,
        &json!({
            "type": "object",
            "x-kubernetes-group-version-kind": [{"group": "example.com", "version": "v1", "kind": "Widget"}],
            "x-kubernetes-selectable-fields": [{"fieldPath": "spec.a"}],
        })
    );
    let document = rest.get("/openapi/v3/apis/example.com/v1").await.json();
    let schemas = &document["components"]["schemas"];
    let properties = &schemas["com.example.v1.Widget"]["properties"];
    assert_eq!(properties["spec"]["properties"]["a"]["type"], "string");
    let conventions = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";
    assert_eq!(
        properties["metadata"],
        json!({
            "description": format!("Standard object's metadata. More info: {conventions}#metadata"),
            "allOf": [{"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}],
        })
    );
    let list = &schemas["com.example.v1.WidgetList"];
    assert_eq!(list["description"], "WidgetCollection is a list of Widget");
    assert_eq!(list["properties"]["items"]["description"], format!("List of widgets. More info: {conventions}"));
    assert_eq!(list["x-kubernetes-group-version-kind"][0]["kind"], "WidgetCollection");
    assert_eq!(rest.get("/apis/example.com/v1/widgets").await.json()["kind"], "WidgetCollection");
}

/// As apiextensions-apiserver builds documents (pkg/controller/openapi/builder): an embedded object has what every object has, but
/// for version 2 where it may have any fields.
#[tokio::test]
async fn openapi_says_of_embedded_objects_what_upstream_says() {
    let rest = Rest::new().await;
    let own = json!({"a": {"type": "string"}});
    let embedded = |mut of: Value| {
        of["type"] = "object".into();
        of["x-kubernetes-embedded-resource"] = true.into();
        of
    };
    let any = embedded(json!({"x-kubernetes-preserve-unknown-fields": true, "properties": own, "required": ["a"]}));
    let known = embedded(json!({"description": "An object.", "properties": own, "required": ["kind", "a"]}));
    rest.api
        .define(definition(json!({"type": "object", "properties": {
            "any": any,
            "known": known,
            "many": {"type": "array", "items": known},
            "named": {"type": "object", "additionalProperties": known},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"within": known}},
        }})))
        .await;

    let conventions = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";
    let filled = |metadata: Value| {
        json!({
            "a": {"type": "string"},
            "apiVersion": {"type": "string", "description": format!(
                "apiVersion defines the versioned schema of this representation of an object. More info: {conventions}#resources"
            )},
            "kind": {"type": "string", "description": format!(
                "kind is a string value representing the type of this object. In CamelCase. More info: {conventions}#types-kinds"
            )},
            "metadata": metadata,
        })
    };
    let described = format!("Standard object's metadata. More info: {conventions}#metadata");
    let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

    let v2 = rest.get("/openapi/v2").await.json();
    let properties = &v2["definitions"]["com.example.v1.Widget"]["properties"];
    let in_v2 = filled(json!({"$ref": format!("#/definitions/{meta}"), "description": described}));
    assert_eq!(
        properties["any"],
        json!({"x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true, "required": ["a"]})
    );
    assert_eq!(properties["open"], json!({"x-kubernetes-preserve-unknown-fields": true}));
    for object in [&properties["known"], &properties["many"]["items"], &properties["named"]["additionalProperties"]] {
        assert_eq!(object["properties"], in_v2);
        assert_eq!(
            (&object["required"], &object["description"]),
            (&json!(["kind", "a", "apiVersion"]), &json!("An object."))
        );
    }

    let document = rest.get("/openapi/v3/apis/example.com/v1").await.json();
    let properties = &document["components"]["schemas"]["com.example.v1.Widget"]["properties"];
    let in_v3 = filled(json!({"description": described, "allOf": [{"$ref": format!("#/components/schemas/{meta}")}]}));
    assert_eq!(
        (&properties["any"]["properties"], &properties["any"]["required"]),
        (&in_v3, &json!(["a", "kind", "apiVersion"]))
    );
    for object in [
        &properties["known"],
        &properties["many"]["items"],
        &properties["named"]["additionalProperties"],
        &properties["open"]["properties"]["within"],
    ] {
        assert_eq!((&object["properties"], &object["required"]), (&in_v3, &json!(["kind", "a", "apiVersion"])));
    }
}

//! Definitions of the shapes that published operators have: each is taken, and its objects are defaulted, pruned, validated,
//! printed and explained as a cluster of upstream's would.
//!
//! A shape is a YAML document, made after what the schema of such an operator asks of an API server, in its own words:
//! `spec`, `status` (and `root` beside them) are schemas, `version` the rest of the version; `object` is sent and `stored` is
//! what comes of it, if that is something else; `cells` is what its row shows behind the name; each of `wrong` is put into the
//! object (a pointer and a value) and refused with these words; `explained` are paths in the published schema, and what is there.

mod data;
mod delivery;
mod networking;
mod platform;
mod scheduling;

use podwright::api::yaml;
use serde_json::{Value, json};

use super::Rest;
use crate::server::custom::DEFINITIONS;

const GROUP: &str = "shapes.example.com";
const TABLE: [(&str, &str); 1] = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

#[tokio::test]
async fn networking() {
    check(networking::SHAPES).await;
}

#[tokio::test]
async fn delivery() {
    check(delivery::SHAPES).await;
}

#[tokio::test]
async fn data() {
    check(data::SHAPES).await;
}

#[tokio::test]
async fn platform() {
    check(platform::SHAPES).await;
}

#[tokio::test]
async fn scheduling() {
    check(scheduling::SHAPES).await;
}

async fn check(shapes: &str) {
    let rest = Rest::new().await;
    let shapes = yaml::documents(shapes).unwrap();
    assert!(shapes.len() >= 6, "{}", shapes.len());
    for shape in &shapes {
        Checked { rest: &rest, shape }.all().await;
    }
}

struct Checked<'a> {
    rest: &'a Rest,
    shape: &'a Value,
}

fn set(value: &mut Value, pointer: &str, new: &Value) {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    let parent = value.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer}"));
    match (parent, field) {
        (Value::Array(items), at) => items[at.parse::<usize>().unwrap()] = new.clone(),
        (parent, "") => *parent = new.clone(),
        (parent, field) => parent[field] = new.clone(),
    }
}

impl Checked<'_> {
    fn kind(&self) -> &str {
        self.shape["kind"].as_str().unwrap()
    }

    fn plural(&self) -> String {
        self.kind().to_lowercase() + "s"
    }

    fn path(&self) -> String {
        let namespace = if self.shape["scope"] == "Cluster" { "" } else { "/namespaces/default" };
        format!("/apis/{GROUP}/v1{namespace}/{}", self.plural())
    }

    fn definition(&self) -> Value {
        let mut schema = json!({"type": "object", "properties": {}});
        for (field, value) in self.shape["root"].as_object().into_iter().flatten() {
            schema[field] = value.clone();
        }
        for field in ["spec", "status"] {
            if let Some(of) = self.shape.get(field) {
                schema["properties"][field] = of.clone();
            }
        }
        let mut version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
        for (field, value) in self.shape["version"].as_object().into_iter().flatten() {
            version[field] = value.clone();
        }
        let column = |c: &Value| json!({"name": c[0], "type": c[1], "jsonPath": c[2]});
        if let Some(columns) = self.shape["columns"].as_array() {
            version["additionalPrinterColumns"] = columns.iter().map(column).collect();
        }
        let mut names = json!({"plural": self.plural(), "kind": self.kind()});
        for (field, value) in self.shape["names"].as_object().into_iter().flatten() {
            names[field] = value.clone();
        }
        let mut versions = vec![version];
        versions.extend(self.shape["others"].as_array().into_iter().flatten().cloned());
        let mut spec = json!({
            "group": GROUP, "names": names, "scope": self.shape["scope"].as_str().unwrap_or("Namespaced"), "versions": versions,
        });
        if let Some(conversion) = self.shape.get("conversion") {
            spec["conversion"] = conversion.clone();
        }
        let name = format!("{}.{GROUP}", self.plural());
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name}, "spec": spec})
    }

    fn object(&self) -> Value {
        let mut object = self.shape["object"].clone();
        object["apiVersion"] = format!("{GROUP}/v1").into();
        object["kind"] = self.kind().into();
        object["metadata"]["name"] = "one".into();
        object
    }

    async fn all(&self) {
        let (rest, kind) = (self.rest, self.kind());
        let name = format!("{}.{GROUP}", self.plural());
        let taken = rest.api.create(DEFINITIONS, self.definition()).await;
        taken.unwrap_or_else(|refused| panic!("{kind}: {}", refused.message));
        rest.api.until(&name, "Established", "True").await;
        let path = self.path();
        let made = rest.post(&path, self.object()).await;
        assert_eq!(made.code, 201, "{kind}: {}", made.text());
        if let Some(status) = self.shape["object"].get("status")
            && self.shape["version"]["subresources"].get("status").is_some()
        {
            // A merge patch would take null for a removal.
            let mut object = made.json();
            for (field, value) in status.as_object().into_iter().flatten() {
                object["status"][field] = value.clone();
            }
            let put = rest.ask(&format!("PUT {path}/one/status"), &JSON, object.to_string()).await;
            assert_eq!(put.code, 200, "{kind}: {}", put.text());
        }
        self.stored().await;
        self.printed().await;
        self.refused().await;
        self.explained().await;
    }

    async fn stored(&self) {
        let got = self.rest.get(&format!("{}/one", self.path())).await.json();
        let wanted = self.shape.get("stored").unwrap_or(&self.shape["object"]);
        for (field, wanted) in wanted.as_object().unwrap().iter().filter(|(field, _)| *field != "metadata") {
            assert_eq!(&got[field], wanted, "{} {field}", self.kind());
        }
        // What is there is applied again without a change.
        let line = format!("PUT {}/one", self.path());
        let put = self.rest.ask(&line, &JSON, got.to_string()).await;
        assert_eq!(put.json(), got, "{}", self.kind());
    }

    async fn printed(&self) {
        let table = self.rest.ask(&format!("GET {}", self.path()), &TABLE, "").await.json();
        let wanted = self.shape["cells"].as_array().map(Vec::as_slice).unwrap_or_default();
        let cells = table["rows"][0]["cells"].as_array().unwrap();
        let names: Vec<&Value> = self.shape["columns"].as_array().into_iter().flatten().map(|c| &c[0]).collect();
        let shown = table["columnDefinitions"].as_array().unwrap();
        if !names.is_empty() {
            let shown: Vec<&Value> = shown.iter().skip(1).map(|column| &column["name"]).collect();
            assert_eq!(shown, names, "{}", self.kind());
        }
        for ((cell, wanted), column) in cells.iter().skip(1).zip(wanted).zip(&names) {
            // An age goes on.
            let is_age = wanted == "AGE" && cell.as_str().is_some_and(|age| age.ends_with('s'));
            assert!(is_age || cell == wanted, "{} {column}: {cell} and not {wanted}", self.kind());
        }
        assert!(wanted.len() < cells.len(), "{}", self.kind());
    }

    async fn refused(&self) {
        for row in self.shape["wrong"].as_array().into_iter().flatten() {
            let mut object = self.object();
            object["metadata"]["name"] = "other".into();
            let (pointer, why) = (row[0].as_str().unwrap(), row[2].as_str().unwrap());
            set(&mut object, pointer, &row[1]);
            // Objects have fields that are pruned, too: only where one is looked for they are refused.
            let strict = why.contains("unknown field");
            let validation = if strict { "Strict" } else { "Ignore" };
            let refused = self.rest.post(&format!("{}?fieldValidation={validation}", self.path()), object).await;
            let told = refused.json()["message"].as_str().unwrap_or("").to_owned();
            assert!(told.contains(why), "{} {pointer} {}: {} {told:?} ({why:?})", self.kind(), row[1], refused.code);
            assert_eq!(refused.code, if strict { 400 } else { 422 }, "{told}");
        }
        // An update is judged too.
        for row in self.shape["kept"].as_array().into_iter().flatten() {
            let mut object = self.rest.get(&format!("{}/one", self.path())).await.json();
            set(&mut object, row[0].as_str().unwrap(), &row[1]);
            let line = format!("PUT {}/one", self.path());
            let told = self.rest.ask(&line, &JSON, object.to_string()).await.json()["message"].to_string();
            assert!(told.contains(row[2].as_str().unwrap()), "{} {row}: {told}", self.kind());
        }
    }

    async fn explained(&self) {
        let index = self.rest.get("/openapi/v3").await.json();
        let url = index["paths"][format!("apis/{GROUP}/v1")]["serverRelativeURL"].as_str().unwrap().to_owned();
        let document = self.rest.get(&url).await.json();
        let mut schema = document["components"]["schemas"][format!("com.example.shapes.v1.{}", self.kind())].clone();
        let type_meta = &schema["properties"]["apiVersion"]["description"];
        assert!(type_meta.as_str().unwrap().ends_with("api-conventions.md#resources"), "{}", self.kind());
        let of_metadata = &schema["properties"]["metadata"]["allOf"][0]["$ref"];
        assert!(of_metadata.as_str().unwrap().ends_with(".v1.ObjectMeta"), "{}", self.kind());
        for (path, wanted) in self.shape["explained"].as_object().into_iter().flatten() {
            let mut at = &schema;
            for field in path.split('.') {
                while at["items"].is_object() || at["additionalProperties"].is_object() {
                    at = if at["items"].is_object() { &at["items"] } else { &at["additionalProperties"] };
                }
                at = &at["properties"][field];
            }
            for (word, wanted) in wanted.as_object().unwrap() {
                assert_eq!(&at[word], wanted, "{} {path} {word}: {at}", self.kind());
            }
        }
        // The older document has no words for logic, and says nothing of what may be anything.
        let v2 = self.rest.get("/openapi/v2").await.json();
        let old = &v2["definitions"][format!("com.example.shapes.v1.{}", self.kind())];
        assert_eq!(old["x-kubernetes-group-version-kind"][0]["kind"], self.kind());
        let text = old.to_string();
        for word in ["anyOf\"", "oneOf\"", "\"nullable\""] {
            assert!(!text.contains(word), "{}: {word}", self.kind());
        }
        schema.take();
    }
}

//! An OpenAPI v3 document made of the v2 one, for an extension API server that has no other; upstream's `openapiconv.ConvertV2ToV3`.

use serde_json::{Map, Value, json};

use super::openapi::{DEFINITIONS, renamed_prefix};

const SCHEMAS: &str = "#/components/schemas/";
/// What a v2 parameter says of its value in its own words, where v3 has a schema.
const OF_VALUE: &[&str] = &[
    "type",
    "format",
    "items",
    "default",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "enum",
    "multipleOf",
];
/// The methods of a path; what else stands there is about all of them.
const METHODS: &[&str] = &["get", "put", "post", "delete", "options", "head", "patch"];
const JSON: &str = "application/json";

/// The v3 document of the part of a v2 document that is about one version of a group ([`super::openapi::part_of`]).
pub fn of_v2(part: &Value, title: &str, version: &str) -> Value {
    let empty = Map::new();
    let of = |field: &str| part[field].as_object().unwrap_or(&empty).iter();
    let paths: Map<String, Value> = of("paths").map(|(path, item)| (path.clone(), path_item(item))).collect();
    let schemas: Map<String, Value> = of("definitions").map(|(name, of)| (name.clone(), schema(of))).collect();
    json!({
        "openapi": "3.0.0", "info": {"title": title, "version": version},
        "paths": paths, "components": {"schemas": schemas},
    })
}

fn schema(of: &Value) -> Value {
    let mut schema = of.clone();
    renamed_prefix(&mut schema, DEFINITIONS, SCHEMAS);
    schema
}

fn path_item(item: &Value) -> Value {
    let mut out = Map::new();
    for (key, value) in item.as_object().into_iter().flatten() {
        match key.as_str() {
            method if METHODS.contains(&method) => drop(out.insert(key.clone(), operation(value))),
            "parameters" => drop(out.insert(key.clone(), parameters(value))),
            // Extensions, and a reference to nowhere in v2.
            extension if extension.starts_with("x-") => drop(out.insert(key.clone(), value.clone())),
            _ => {}
        }
    }
    Value::Object(out)
}

fn operation(of: &Value) -> Value {
    let mut out = Map::new();
    let media_types = |field: &str| -> Vec<String> {
        let named = of[field].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        let named: Vec<String> = named.collect();
        if named.is_empty() { vec![JSON.to_owned()] } else { named }
    };
    for (key, value) in of.as_object().into_iter().flatten() {
        match key.as_str() {
            "parameters" => {
                let all = parameters(value);
                if all.as_array().is_some_and(|all| !all.is_empty()) {
                    out.insert(key.clone(), all);
                }
                out.extend(request_body(value, &media_types("consumes")).map(|body| ("requestBody".to_owned(), body)));
            }
            "responses" => {
                let responses = value.as_object().into_iter().flatten();
                let each = responses.map(|(code, it)| (code.clone(), response(it, &media_types("produces"))));
                out.insert(key.clone(), Value::Object(each.collect()));
            }
            "consumes" | "produces" | "schemes" | "security" => {}
            _ => drop(out.insert(key.clone(), value.clone())),
        }
    }
    Value::Object(out)
}

/// All but the body's.
fn parameters(of: &Value) -> Value {
    let all = of.as_array().into_iter().flatten();
    let others = all.filter(|parameter| parameter.is_object() && !["body", "formData"].contains(&place(parameter)));
    others.map(parameter).collect()
}

fn place(parameter: &Value) -> &str {
    parameter["in"].as_str().unwrap_or("")
}

fn parameter(of: &Value) -> Value {
    let (mut out, mut schema) = (Map::new(), Map::new());
    for (key, value) in of.as_object().into_iter().flatten() {
        match key.as_str() {
            of_value if OF_VALUE.contains(&of_value) => drop(schema.insert(key.clone(), value.clone())),
            "collectionFormat" => {}
            _ => drop(out.insert(key.clone(), value.clone())),
        }
    }
    out.insert("schema".into(), Value::Object(schema));
    Value::Object(out)
}

fn content(of: &Value, media_types: &[String]) -> Value {
    let of = schema(of);
    media_types.iter().map(|media_type| (media_type.clone(), json!({"schema": of}))).collect::<Map<_, _>>().into()
}

fn request_body(parameters: &Value, media_types: &[String]) -> Option<Value> {
    let body = parameters.as_array()?.iter().find(|parameter| place(parameter) == "body")?;
    let mut out = json!({"content": content(&body["schema"], media_types)});
    for field in ["description", "required"] {
        if !body[field].is_null() {
            out[field] = body[field].clone();
        }
    }
    Some(out)
}

fn response(of: &Value, media_types: &[String]) -> Value {
    let mut out = json!({"description": of["description"].as_str().unwrap_or("")});
    if of["schema"].is_object() {
        out["content"] = content(&of["schema"], media_types);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_v2_document_is_told_as_v3() {
        let kind = json!({"group": "ext.example.com", "version": "v1", "kind": "Thing"});
        let part = json!({
            "paths": {"/apis/ext.example.com/v1/things": {
                "parameters": [{"name": "pretty", "in": "query", "type": "string", "uniqueItems": true}],
                "post": {
                    "description": "create a Thing", "consumes": ["*/*"], "produces": ["application/json", "application/yaml"],
                    "parameters": [{"name": "body", "in": "body", "required": true, "schema": {"$ref": "#/definitions/Thing"}}],
                    "responses": {"201": {"description": "Created", "schema": {"$ref": "#/definitions/Thing"}}, "401": {}},
                    "x-kubernetes-group-version-kind": kind,
                },
            }},
            "definitions": {"Thing": {"type": "object", "properties": {"again": {"$ref": "#/definitions/Thing"}}}},
        });
        let thing = json!({"schema": {"$ref": "#/components/schemas/Thing"}});
        assert_eq!(
            of_v2(&part, "ext", "v1"),
            json!({
                "openapi": "3.0.0", "info": {"title": "ext", "version": "v1"},
                "paths": {"/apis/ext.example.com/v1/things": {
                    "parameters": [{"name": "pretty", "in": "query", "schema": {"type": "string", "uniqueItems": true}}],
                    "post": {
                        "description": "create a Thing",
                        "requestBody": {"required": true, "content": {"*/*": thing}},
                        "responses": {
                            "201": {"description": "Created", "content": {"application/json": thing, "application/yaml": thing}},
                            "401": {"description": ""},
                        },
                        "x-kubernetes-group-version-kind": kind,
                    },
                }},
                "components": {"schemas": {
                    "Thing": {"type": "object", "properties": {"again": {"$ref": "#/components/schemas/Thing"}}},
                }},
            })
        );
        let nothing = json!({"openapi": "3.0.0", "info": {"title": "", "version": ""}, "paths": {}, "components": {"schemas": {}}});
        assert_eq!(of_v2(&json!({"paths": 7}), "", ""), nothing);
    }
}

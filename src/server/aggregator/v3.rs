//! Converts OpenAPI v2 to v3, for extension API servers without v3; upstream's `openapiconv.ConvertV2ToV3`.

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::openapi::{DEFINITIONS, renamed_prefix};

const SCHEMAS: &str = "#/components/schemas/";
/// Fields of a v2 parameter that describe its value; in v3 they form a schema.
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
/// The methods of a path; its other fields apply to all of them.
const METHODS: &[&str] = &["get", "put", "post", "delete", "options", "head", "patch"];
const JSON: &str = "application/json";
/// The most bytes written for media types. A v2 operation lists its media types once and its schema once; v3 repeats the schema for
/// each, so a document could grow quadratically.
const MOST_CONTENT: usize = 16 << 20;
/// The minimum size of a value.
const VALUE: usize = 64;

/// The v3 document for the part of a v2 document with one group version ([`super::openapi::part_of`]).
///
/// # Errors
/// It would be far longer than the v2 document.
pub fn of_v2(part: &Value, title: &str, version: &str) -> anyhow::Result<Value> {
    let empty = Map::new();
    let of = |field: &str| part[field].as_object().unwrap_or(&empty).iter();
    let mut content = Content { room: MOST_CONTENT };
    let paths = of("paths").map(|(path, item)| Ok((path.clone(), content.path_item(item)?)));
    let paths: Map<String, Value> = paths.collect::<anyhow::Result<_>>()?;
    let schemas: Map<String, Value> = of("definitions").map(|(name, of)| (name.clone(), schema(of))).collect();
    Ok(json!({
        "openapi": "3.0.0", "info": {"title": title, "version": version},
        "paths": paths, "components": {"schemas": schemas},
    }))
}

fn schema(of: &Value) -> Value {
    let mut schema = of.clone();
    renamed_prefix(&mut schema, DEFINITIONS, SCHEMAS);
    schema
}

/// The content of bodies, as long as there is room for it.
struct Content {
    /// How many bytes may still be written.
    room: usize,
}

impl Content {
    fn path_item(&mut self, item: &Value) -> anyhow::Result<Value> {
        let mut out = Map::new();
        for (key, value) in item.as_object().into_iter().flatten() {
            match key.as_str() {
                method if METHODS.contains(&method) => drop(out.insert(key.clone(), self.operation(value)?)),
                "parameters" => drop(out.insert(key.clone(), parameters(value))),
                // Extensions, and references that v2 does not define.
                extension if extension.starts_with("x-") => drop(out.insert(key.clone(), value.clone())),
                _ => {}
            }
        }
        Ok(Value::Object(out))
    }

    fn operation(&mut self, of: &Value) -> anyhow::Result<Value> {
        let mut out = Map::new();
        for (key, value) in of.as_object().into_iter().flatten() {
            match key.as_str() {
                "parameters" => {
                    let all = parameters(value);
                    if all.as_array().is_some_and(|all| !all.is_empty()) {
                        out.insert(key.clone(), all);
                    }
                    let body = self.request_body(value, &media_types(of, "consumes"))?;
                    out.extend(body.map(|body| ("requestBody".to_owned(), body)));
                }
                "responses" => {
                    let media_types = media_types(of, "produces");
                    let responses = value.as_object().into_iter().flatten();
                    let each = responses.map(|(code, it)| Ok((code.clone(), self.response(it, &media_types)?)));
                    out.insert(key.clone(), Value::Object(each.collect::<anyhow::Result<_>>()?));
                }
                "consumes" | "produces" | "schemes" | "security" => {}
                _ => drop(out.insert(key.clone(), value.clone())),
            }
        }
        Ok(Value::Object(out))
    }

    fn request_body(&mut self, parameters: &Value, media_types: &[String]) -> anyhow::Result<Option<Value>> {
        let mut all = parameters.as_array().into_iter().flatten();
        let Some(body) = all.find(|parameter| place(parameter) == "body") else { return Ok(None) };
        let mut out = json!({"content": self.content(&body["schema"], media_types)?});
        for field in ["description", "required"] {
            if !body[field].is_null() {
                out[field] = body[field].clone();
            }
        }
        Ok(Some(out))
    }

    fn response(&mut self, of: &Value, media_types: &[String]) -> anyhow::Result<Value> {
        let mut out = json!({"description": of["description"].as_str().unwrap_or("")});
        if of["schema"].is_object() {
            out["content"] = self.content(&of["schema"], media_types)?;
        }
        Ok(out)
    }

    fn content(&mut self, of: &Value, media_types: &[String]) -> anyhow::Result<Value> {
        let of = schema(of);
        let (size, names) = (size(&of), media_types.iter().map(String::len).sum());
        let made = size.saturating_mul(media_types.len()).saturating_add(names);
        self.room = self.room.checked_sub(made).context("the schemas of its media types are too large together")?;
        let each = media_types.iter().map(|media_type| (media_type.clone(), json!({"schema": of})));
        Ok(each.collect::<Map<_, _>>().into())
    }
}

/// All but the body.
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

fn media_types(operation: &Value, field: &str) -> Vec<String> {
    let named = operation[field].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    let named: Vec<String> = named.collect();
    if named.is_empty() { vec![JSON.to_owned()] } else { named }
}

/// The approximate size of a value with its content.
fn size(of: &Value) -> usize {
    let within: usize = match of {
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + size(value)).sum(),
        Value::String(text) => text.len(),
        _ => 0,
    };
    VALUE + within
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
            of_v2(&part, "ext", "v1").unwrap(),
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
        assert_eq!(of_v2(&json!({"paths": 7}), "", "").unwrap(), nothing);
    }

    #[test]
    fn media_types_do_not_multiply_schemas_without_end() {
        let part = |media_types: usize, values: usize| {
            let media_types: Vec<String> = (0..media_types).map(|n| format!("application/x{n}")).collect();
            let schema = json!({"type": "object", "enum": (0..values).collect::<Vec<_>>()});
            json!({"paths": {"/apis/ext.example.com/v1/things": {"post": {
                "consumes": media_types, "produces": media_types,
                "parameters": [{"name": "body", "in": "body", "schema": schema}],
                "responses": {"200": {"schema": schema}},
            }}}})
        };
        assert!(of_v2(&part(5, 10_000), "", "").is_ok());
        let why = of_v2(&part(500, 1_000), "", "").unwrap_err().to_string();
        assert_eq!(why, "the schemas of its media types are too large together");
        let long = json!({"paths": {"/": {"get": {"produces": ["a", "b", "c"],
            "responses": {"200": {"schema": {"description": "x".repeat(6 << 20)}}}}}}});
        assert!(of_v2(&long, "", "").is_err());
    }
}

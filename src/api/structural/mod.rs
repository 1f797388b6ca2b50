//! Structural schemas of CustomResourceDefinitions, and everything derived from them.
//!
//! A schema is [parsed](Schema::parse) once. [`definition`] validates it, [`costs`] limits the cost of its rules. For objects,
//! [`prune`] drops unknown fields, [`fill`] sets defaults, [`check`] validates values, [`rules`] runs the CEL rules, and
//! [`compile`] builds the tree that patches and server-side apply use for every kind (`api::schema`).
//!
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Number, Value};

use crate::cel::{CompileError, Program};

pub mod check;
pub mod compile;
pub mod costs;
pub mod definition;
pub mod fill;
pub mod formats;
pub mod prune;
pub mod rules;
mod typed;

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Of {
    pub fn parse(text: &str) -> Option<Of> {
        Some(match text {
            "object" => Of::Object,
            "array" => Of::Array,
            "string" => Of::String,
            "integer" => Of::Integer,
            "number" => Of::Number,
            "boolean" => Of::Boolean,
            _ => return None,
        })
    }
    pub fn name(self) -> &'static str {
        match self {
            Of::Object => "object",
            Of::Array => "array",
            Of::String => "string",
            Of::Integer => "integer",
            Of::Number => "number",
            Of::Boolean => "boolean",
        }
    }
}

/// `x-kubernetes-list-type`
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ListType {
    #[default]
    Atomic,
    Set,
    Map(Vec<String>),
}

/// One node of a schema.
#[derive(Debug, Default)]
pub struct Schema {
    pub of: Option<Of>,
    pub format: String,
    pub nullable: bool,
    pub int_or_string: bool,
    pub preserves_unknown: bool,
    pub is_embedded: bool,
    pub properties: BTreeMap<String, Arc<Schema>>,
    pub additional: Option<Arc<Schema>>,
    /// `additionalProperties: true`
    pub any_additional: bool,
    pub items: Option<Arc<Schema>>,
    pub list_type: ListType,
    pub is_atomic_map: bool,
    pub default: Option<Value>,
    pub limits: Limits,
    pub all_of: Vec<Schema>,
    pub any_of: Vec<Schema>,
    pub one_of: Vec<Schema>,
    pub not: Option<Box<Schema>>,
    pub rules: Vec<Rule>,
}

/// Constraints on a value, in addition to its type.
#[derive(Debug, Default)]
pub struct Limits {
    pub minimum: Option<Number>,
    pub maximum: Option<Number>,
    pub exclusive_minimum: bool,
    pub exclusive_maximum: bool,
    pub multiple_of: Option<Number>,
    pub min_length: Option<u64>,
    pub max_length: Option<u64>,
    pub pattern: Option<String>,
    pub min_items: Option<u64>,
    pub max_items: Option<u64>,
    pub unique_items: bool,
    pub min_properties: Option<u64>,
    pub max_properties: Option<u64>,
    pub required: Vec<String>,
    pub one_of: Vec<Value>,
}

/// One of `x-kubernetes-validations`.
#[derive(Debug)]
pub struct Rule {
    pub rule: String,
    pub message: String,
    pub reason: String,
    pub field_path: String,
    /// It runs for new values too, with an empty optional as `oldSelf`.
    pub optional_old: bool,
    pub program: Result<Program, RuleError>,
    pub message_program: Option<Result<Program, RuleError>>,
}

/// Why a rule's expression cannot run, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("compilation failed: {0}")]
    Compile(#[from] CompileError),
    #[error("cel expression must evaluate to a bool")]
    NotBool,
    #[error("messageExpression must evaluate to a string")]
    NotString,
}

impl Schema {
    /// Parses the schema of a CustomResourceDefinition. Malformed parts are dropped: [`definition`] refuses them.
    pub fn parse(json: &Value) -> Schema {
        let mut schema = Schema::parse_plain(json);
        typed::compile_rules(&mut schema, json, true);
        schema
    }

    fn parse_plain(json: &Value) -> Schema {
        let text = |field: &str| json[field].as_str().unwrap_or("").to_owned();
        let flag = |field: &str| json[field].as_bool().unwrap_or(false);
        let strings = |field: &str| -> Vec<String> {
            json[field].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let inner = |json: &Value| Arc::new(Schema::parse_plain(json));
        let each = |field: &str| json[field].as_array().into_iter().flatten().map(Schema::parse_plain).collect();
        let properties = json["properties"].as_object().into_iter().flatten();
        Schema {
            of: Of::parse(&text("type")),
            format: text("format"),
            nullable: flag("nullable"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            preserves_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            is_embedded: flag("x-kubernetes-embedded-resource"),
            properties: properties.map(|(name, json)| (name.clone(), inner(json))).collect(),
            additional: json.get("additionalProperties").filter(|v| v.is_object()).map(inner),
            any_additional: json["additionalProperties"] == true,
            items: json.get("items").filter(|v| v.is_object()).map(inner),
            list_type: match json["x-kubernetes-list-type"].as_str() {
                Some("set") => ListType::Set,
                Some("map") => ListType::Map(strings("x-kubernetes-list-map-keys")),
                _ => ListType::Atomic,
            },
            is_atomic_map: json["x-kubernetes-map-type"] == "atomic",
            default: json.get("default").filter(|v| !v.is_null()).cloned(),
            limits: Limits::parse(json, strings("required")),
            all_of: each("allOf"),
            any_of: each("anyOf"),
            one_of: each("oneOf"),
            not: json.get("not").filter(|v| v.is_object()).map(|json| Box::new(Schema::parse_plain(json))),
            rules: Vec::new(),
        }
    }

    /// Whether any field name and value is allowed, without being known or dropped.
    pub fn is_open(&self) -> bool {
        self.preserves_unknown || self.any_additional
    }

    /// The schema of a field: its own, or that of additional properties.
    pub fn field(&self, name: &str) -> Option<&Arc<Schema>> {
        self.properties.get(name).or(self.additional.as_ref())
    }
}

impl Limits {
    fn parse(json: &Value, required: Vec<String>) -> Limits {
        let number = |field: &str| match &json[field] {
            Value::Number(n) => Some(n.clone()),
            _ => None,
        };
        let count = |field: &str| json[field].as_u64();
        Limits {
            minimum: number("minimum"),
            maximum: number("maximum"),
            exclusive_minimum: json["exclusiveMinimum"] == true,
            exclusive_maximum: json["exclusiveMaximum"] == true,
            multiple_of: number("multipleOf"),
            min_length: count("minLength"),
            max_length: count("maxLength"),
            pattern: json["pattern"].as_str().filter(|p| !p.is_empty()).map(str::to_owned),
            min_items: count("minItems"),
            max_items: count("maxItems"),
            unique_items: json["uniqueItems"] == true,
            min_properties: count("minProperties"),
            max_properties: count("maxProperties"),
            required,
            one_of: json["enum"].as_array().cloned().unwrap_or_default(),
        }
    }
}

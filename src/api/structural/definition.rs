//! Which schemas are valid in a CustomResourceDefinition: structural ones, with valid defaults and rules that compile.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{Of, Schema, check, prune, rules};
use crate::pattern;
use crate::validation::{At, Errors, same};

/// The position of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Field,
    Item,
}

/// OpenAPI keywords that upstream does not support: the field, and the message.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("$ref", "$ref is not supported"),
    ("definitions", "definitions is not supported"),
    ("dependencies", "dependencies is not supported"),
    ("id", "id is not supported"),
    ("patternProperties", "patternProperties is not supported"),
    ("additionalItems", "additionalItems is not supported"),
];

/// What a value validation within logic may not contain; and the message.
const STRUCTURE: &[(&str, &str)] = &[
    ("type", "must be empty to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("default", "must be undefined to be structural"),
    ("nullable", "must be false to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
    ("x-kubernetes-embedded-resource", "must be false to be structural"),
    ("x-kubernetes-int-or-string", "must be false to be structural"),
    ("x-kubernetes-list-type", "must be undefined to be structural"),
    ("x-kubernetes-list-map-keys", "must be empty to be structural"),
    ("x-kubernetes-map-type", "must be undefined to be structural"),
    ("x-kubernetes-validations", "must be empty to be structural"),
];

const LOGIC: &[&str] = &["allOf", "anyOf", "oneOf"];
const REASONS: &[&str] = &["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Validates the schema of a version.
pub fn validate(schema: &At<'_>, errs: &mut Errors) {
    let parsed = Schema::parse(schema.value);
    node(schema, &parsed, Level::Root, None, errs);
}

fn node(at: &At<'_>, schema: &Schema, level: Level, lost: Option<&str>, errs: &mut Errors) {
    types(at, schema, level, errs);
    unsupported(at, errs);
    lists(at, schema, errs);
    limits(at, errs);
    defaults(at, schema, level, errs);
    validations(at, schema, lost, errs);
    logic(at, at, schema, either(at, schema), errs);
    if level == Level::Root || schema.is_embedded {
        for field in ["apiVersion", "kind"] {
            let of = schema.properties.get(field).map(|of| of.of);
            if of.is_some_and(|of| of != Some(Of::String)) {
                let at = at.get("properties").key_path(field);
                errs.invalid(format!("{at}.type"), of.flatten().map_or("", Of::name), "must be string");
            }
        }
    }
    if level == Level::Root {
        metadata(at, errs);
    }
    // The outermost node whose parts cannot be correlated with an old object's.
    let lost = |here: bool| lost.or_else(|| here.then_some(at.path.as_str()));
    for (name, property) in at.get("properties").entries() {
        if let Some(of) = schema.properties.get(name) {
            node(&property, of, Level::Field, lost(schema.is_atomic_map), errs);
        }
    }
    if let Some(of) = &schema.additional {
        node(&at.get("additionalProperties"), of, Level::Field, lost(false), errs);
    }
    if let Some(of) = &schema.items {
        let is_map = matches!(schema.list_type, super::ListType::Map(_));
        node(&at.get("items"), of, Level::Item, lost(!is_map), errs);
    }
}

fn types(at: &At<'_>, schema: &Schema, level: Level, errs: &mut Errors) {
    let of = at.get("type");
    let names = ["array", "boolean", "integer", "number", "object", "string"];
    if !of.is_empty() && Of::parse(of.str()).is_none() {
        errs.not_supported(&of.path, of.str(), &names);
    }
    let others = [
        ("x-kubernetes-preserve-unknown-fields", schema.preserves_unknown),
        ("x-kubernetes-embedded-resource", schema.is_embedded),
    ];
    for (field, _) in others.iter().filter(|(_, is)| schema.int_or_string && *is) {
        errs.invalid(at.path(field), true, "must be false if x-kubernetes-int-or-string is true");
    }
    if level == Level::Root && schema.nullable {
        errs.forbidden(at.path("nullable"), "nullable cannot be true at the root");
    }
    if schema.is_embedded && of.str() != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        if of.is_empty() { errs.required(&of.path, why) } else { errs.invalid(&of.path, of.str(), why) }
    } else if level == Level::Root && !of.is_empty() && of.str() != "object" {
        errs.invalid(&of.path, of.str(), "must be object at the root");
    } else if of.is_empty() && !schema.int_or_string && !schema.preserves_unknown {
        errs.required(
            &of.path,
            match level {
                Level::Root => "must not be empty at the root",
                Level::Field => "must not be empty for specified object fields",
                Level::Item => "must not be empty for specified array items",
            },
        );
    }
    if schema.is_embedded && schema.properties.is_empty() && !schema.preserves_unknown && schema.additional.is_none() {
        let why =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errs.required(at.path("properties"), why);
    }
    if of.str() == "array" && schema.items.is_none() {
        errs.required(at.path("items"), "must be specified");
    }
    let additional = at.get("additionalProperties");
    if additional.is_set() {
        if level == Level::Root {
            errs.forbidden(&additional.path, "must not be used at the root");
        }
        if additional.value == &Value::Bool(false) {
            errs.forbidden(&additional.path, "additionalProperties cannot be set to false");
        } else if schema.is_embedded {
            errs.forbidden(&additional.path, "must not be used if x-kubernetes-embedded-resource is set");
        } else if schema.additional.is_some() && !schema.properties.is_empty() {
            errs.forbidden(&additional.path, "additionalProperties and properties are mutual exclusive");
        }
    }
    if at.get("x-kubernetes-preserve-unknown-fields").value == &Value::Bool(false) {
        errs.invalid(at.path("x-kubernetes-preserve-unknown-fields"), false, "must be true or undefined");
    }
}

fn unsupported(at: &At<'_>, errs: &mut Errors) {
    for (field, why) in UNSUPPORTED {
        if at.get(field).is_set() && !(*field == "id" && at.get(field).is_empty()) {
            errs.forbidden(at.path(field), why);
        }
    }
    if at.get("uniqueItems").bool() {
        let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errs.forbidden(at.path("uniqueItems"), why);
    }
}

fn lists(at: &At<'_>, schema: &Schema, errs: &mut Errors) {
    let (list, keys, map) =
        (at.get("x-kubernetes-list-type"), at.get("x-kubernetes-list-map-keys"), at.get("x-kubernetes-map-type"));
    if list.is_set() {
        if schema.of != Some(Of::Array) {
            let why = "must be array if x-kubernetes-list-type is specified";
            match schema.of {
                None => errs.required(at.path("type"), why),
                Some(of) => errs.invalid(at.path("type"), of.name(), why),
            }
        }
        if !["atomic", "set", "map"].contains(&list.str()) {
            errs.not_supported(&list.path, list.str(), &["atomic", "set", "map"]);
        }
    }
    if map.is_set() {
        let why = "must be object if x-kubernetes-map-type is specified";
        match schema.of {
            Some(Of::Object) => {}
            None => errs.required(at.path("type"), why),
            Some(of) => errs.invalid(at.path("type"), of.name(), why),
        }
        if !["atomic", "granular"].contains(&map.str()) {
            errs.not_supported(&map.path, map.str(), &["atomic", "granular"]);
        }
    }
    if !keys.is_empty() && list.str() != "map" {
        let why = "must be map if x-kubernetes-list-map-keys is non-empty";
        if list.is_empty() { errs.required(&list.path, why) } else { errs.invalid(&list.path, list.str(), why) }
    }
    if list.str() == "set"
        && let Some(items) = &schema.items
    {
        let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
        match items.of {
            Some(Of::Object) if !items.is_atomic_map => {
                errs.invalid(at.path("items.x-kubernetes-map-type"), Value::Null, why);
            }
            Some(Of::Array) if items.list_type != super::ListType::Atomic => {
                let of = at.get("items").get("x-kubernetes-list-type");
                errs.invalid(&of.path, of.str(), why);
            }
            _ => {}
        }
    }
    if ["set", "map"].contains(&list.str()) && schema.items.as_ref().is_some_and(|items| items.nullable) {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {}", list.str());
        errs.forbidden(at.path("items.nullable"), why);
    }
    if list.str() == "map" {
        map_keys(at, schema, &keys, errs);
    }
}

fn map_keys(at: &At<'_>, schema: &Schema, keys: &At<'_>, errs: &mut Errors) {
    if keys.is_empty() {
        errs.required(&keys.path, "must not be empty if x-kubernetes-list-type is map");
    }
    let Some(items) = &schema.items else { return };
    if items.of != Some(Of::Object) {
        let of = items.of.map_or("", Of::name);
        errs.invalid(at.path("items.type"), of, "must be object if parent array's x-kubernetes-list-type is map");
        return;
    }
    let mut seen = HashSet::new();
    let required: HashSet<&str> = items.limits.required.iter().map(String::as_str).collect();
    for key in keys.items() {
        if !seen.insert(key.str()) {
            errs.invalid_value(&keys.path, keys.value, "must not contain duplicate entries");
        }
        let Some(property) = items.properties.get(key.str()) else {
            errs.invalid_value(&keys.path, keys.value, "entries must all be names of item properties");
            continue;
        };
        let path = at.path(&format!("items.properties[{}]", key.str()));
        if matches!(property.of, Some(Of::Object | Of::Array)) {
            errs.invalid(
                format!("{path}.type"),
                property.of.map_or("", Of::name),
                "must be a scalar type if parent array's x-kubernetes-list-type is map",
            );
        }
        if property.default.is_none() && !required.contains(key.str()) {
            let why =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errs.required(format!("{path}.default"), why);
        }
        if property.nullable {
            let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errs.forbidden(format!("{path}.nullable"), why);
        }
    }
}

fn limits(at: &At<'_>, errs: &mut Errors) {
    let wanted = at.get("pattern");
    if let Err(why) = pattern::compiled(wanted.str()) {
        errs.invalid(&wanted.path, wanted.str(), format!("must be a valid regular expression, but isn't: {why}"));
    }
}

fn defaults(at: &At<'_>, schema: &Schema, level: Level, errs: &mut Errors) {
    let Some(default) = &schema.default else { return };
    let path = at.path("default");
    if level == Level::Root {
        return errs.forbidden(path, "must not be used at the root");
    }
    let mut kept = default.clone();
    if !prune::within(schema, &mut kept).is_empty() {
        errs.invalid(&path, default.clone(), "must not have unknown fields");
    }
    for cause in check::check(schema, &kept, None).into_iter().chain(rules::run(schema, &kept, None)) {
        let below = if cause.field == "<nil>" { String::new() } else { format!(".{}", cause.field) };
        errs.0.push(crate::Cause { field: format!("{path}{below}"), ..cause });
    }
}

fn validations(at: &At<'_>, schema: &Schema, lost: Option<&str>, errs: &mut Errors) {
    for (json, rule) in at.get("x-kubernetes-validations").items().zip(&schema.rules) {
        let (text, message) = (json.get("rule"), json.get("message"));
        if rule.rule.trim().is_empty() {
            errs.required(&text.path, "rule is not specified");
            continue;
        }
        if rule.rule.trim().contains('\n') && rule.message.trim().is_empty() {
            errs.required(&message.path, "message must be specified if rule contains line breaks");
        }
        if !rule.message.is_empty() && rule.message.trim().is_empty() {
            errs.invalid(&message.path, message.str(), "must be non-empty if specified");
        }
        if rule.message.trim().contains('\n') {
            errs.invalid(&message.path, message.str(), "must not contain line breaks");
        }
        if !rule.reason.is_empty() && !REASONS.contains(&rule.reason.as_str()) {
            errs.not_supported(json.path("reason"), &rule.reason, REASONS);
        }
        if !rule.field_path.is_empty() && !is_field(schema, &rule.field_path) {
            errs.invalid(json.path("fieldPath"), rule.field_path.as_str(), "must be a valid path");
        }
        match &rule.program {
            Err(why) => errs.invalid(&text.path, text.str(), why.to_string()),
            Ok(program) => match (program.uses("oldSelf"), lost) {
                (true, Some(lost)) => {
                    let why = "oldSelf cannot be used on the uncorrelatable portion of the schema within";
                    errs.invalid(&text.path, text.str(), format!("{why} {lost}"));
                }
                (false, _) if json.get("optionalOldSelf").is_set() => {
                    let why = "may not be set if oldSelf is not used in rule";
                    errs.invalid(json.path("optionalOldSelf"), rule.optional_old, why);
                }
                _ => {}
            },
        }
        if let Some(Err(why)) = &rule.message_program {
            errs.invalid(json.path("messageExpression"), json.get("messageExpression").str(), why.to_string());
        }
    }
}

/// Whether a path such as `.spec.replicas` or `.labels['app']` refers to a field.
fn is_field(schema: &Schema, path: &str) -> bool {
    let path = path.replace("['", ".").replace("']", "");
    let Some(rest) = path.strip_prefix('.') else { return false };
    let mut at = schema;
    for name in rest.split('.') {
        match at.field(name) {
            Some(of) => at = of,
            None => return false,
        }
    }
    true
}

/// Whether `x-kubernetes-int-or-string` is spelled out as well, which may specify types.
fn either(at: &At<'_>, schema: &Schema) -> Spelled {
    let both = |at: &At<'_>| at.get("anyOf").value == &json!([{"type": "integer"}, {"type": "string"}]);
    let first = at.get("allOf").items().next();
    match () {
        () if !schema.int_or_string => Spelled::Not,
        () if both(at) => Spelled::Here,
        () if first.is_some_and(|first| both(&first)) => Spelled::InFirst,
        () => Spelled::Not,
    }
}

/// Where both types of `x-kubernetes-int-or-string` are spelled out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spelled {
    Not,
    /// In `anyOf`.
    Here,
    /// In `anyOf` of the first of `allOf`.
    InFirst,
}

/// Validates a node's value validations at `at`.
fn logic(at: &At<'_>, structure: &At<'_>, schema: &Schema, spelled: Spelled, errs: &mut Errors) {
    for logic in LOGIC.iter().filter(|logic| !(spelled == Spelled::Here && **logic == "anyOf")) {
        for (i, part) in at.get(logic).items().enumerate() {
            let named = spelled == Spelled::InFirst && *logic == "allOf" && i == 0;
            nested(&part, structure, schema, if named { Spelled::Here } else { Spelled::Not }, errs);
        }
    }
    if at.get("not").is_set() {
        nested(&at.get("not"), structure, schema, Spelled::Not, errs);
    }
}

/// A value validation within logic: it may restrict values, but not define their structure.
fn nested(at: &At<'_>, structure: &At<'_>, schema: &Schema, spelled: Spelled, errs: &mut Errors) {
    for (field, why) in STRUCTURE {
        let value = at.get(field);
        let empty = !value.is_set()
            || same(value.value, &Value::Null)
            || value.value == &Value::Bool(false)
            || value.str().is_empty() && value.value.is_string();
        if !empty {
            errs.forbidden(&value.path, why);
        }
    }
    limits(at, errs);
    for (name, property) in at.get("properties").entries() {
        if name == "metadata" {
            errs.forbidden(&property.path, "must not be specified in a nested context");
        }
        match schema.properties.get(name) {
            Some(of) => nested(&property, &structure.get("properties").get(name), of, Spelled::Not, errs),
            None => {
                let path = structure.get("properties").key_path(name);
                errs.required(path, &format!("because it is defined in {}", property.path));
            }
        }
    }
    let items = at.get("items");
    if items.is_set() {
        match &schema.items {
            Some(of) => nested(&items, &structure.get("items"), of, Spelled::Not, errs),
            None => errs.required(structure.path("items"), &format!("because it is defined in {}", items.path)),
        }
    }
    logic(at, structure, schema, spelled, errs);
}

/// A schema may only restrict the metadata's name.
fn metadata(root: &At<'_>, errs: &mut Errors) {
    let at =
        At { value: root.get("properties").get("metadata").value, path: root.get("properties").key_path("metadata") };
    let fine = |field: &str| matches!(field, "type" | "description" | "properties" | "default");
    let mut others = at.entries().filter(|(field, _)| !fine(field)).count();
    others += at.get("properties").entries().filter(|(name, _)| !matches!(*name, "name" | "generateName")).count();
    if others > 0 {
        let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errs.forbidden(&at.path, why);
    }
    if at.value.is_object() && at.get("type").str() != "object" {
        errs.invalid(at.path("type"), at.get("type").str(), "must be object");
    }
    if at.get("default").is_set() {
        errs.forbidden(at.path("default"), "must not be set in top-level metadata");
    }
}

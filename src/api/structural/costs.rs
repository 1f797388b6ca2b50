//! Cost limits for a schema's CEL rules: each is estimated for the largest object that the schema allows, and a definition with too
//! expensive rules is refused. Upstream: `apiextensions/validation` with its `CELSchemaContext`.
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#resource-use-by-validation-functions>

use std::collections::BTreeMap;
use std::sync::Arc;

use super::typed::escaped;
use super::{Of, Rule, Schema};
use crate::cel::{Program, estimate};
use crate::validation::{At, Errors};
use estimate::Shape;

/// Upstream's limits for one expression, and for all of a version's.
const PER_RULE: u64 = 10_000_000;
const PER_SCHEMA: u64 = 100_000_000;
/// How many of the most expensive ones are listed if the total is too high.
const NAMED: usize = 4;
/// The limit of a request, and so of anything in it.
const MOST_BYTES: u64 = 3 * 1024 * 1024;

/// Validates the cost of a version's rules.
pub fn validate(at: &At<'_>, errs: &mut Errors) {
    let schema = Schema::parse(at.value);
    let mut walk = Walk { errs, contributions: Vec::new() };
    walk.node(at, &schema, true, Some(1));
    let Walk { errs, mut contributions } = walk;
    let total = contributions.iter().fold(0_u64, |sum, (cost, _)| sum.saturating_add(*cost));
    if total <= PER_SCHEMA {
        return;
    }
    contributions.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
    for (_, path) in contributions.iter().take(NAMED) {
        errs.forbidden(
            path,
            "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema",
        );
    }
    let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
    errs.forbidden(&at.path, told(what, total, PER_SCHEMA));
}

/// The maximum cost of a schema's rules for one object, in steps of an evaluation, including everything that takes CPU time.
pub fn most_work(schema: &Schema) -> u64 {
    work(schema, true, Some(1))
}

/// The same for a node that occurs in this many places.
fn work(schema: &Schema, is_whole: bool, places: Option<u64>) -> u64 {
    let mut sum = 0_u64;
    if !schema.rules.is_empty() {
        let (shape, smallest) = shape_of(schema, is_whole || schema.is_embedded);
        let variables = [("self", shape.clone()), ("oldSelf", shape)];
        let places = places.unwrap_or(MOST_BYTES / (smallest + 1));
        let programs = schema.rules.iter().flat_map(|rule| [Some(&rule.program), rule.message_program.as_ref()]);
        for program in programs.flatten().flatten() {
            sum = sum.saturating_add(estimate::most_work(program, &variables).saturating_mul(places));
        }
    }
    let within = |most: Option<u64>| Some(places?.saturating_mul(most?));
    let properties = schema.properties.values().map(|of| (of, places));
    let additional = schema.additional.iter().map(|of| (of, within(schema.limits.max_properties)));
    let items = schema.items.iter().map(|of| (of, within(schema.limits.max_items)));
    let below = properties.chain(additional).chain(items);
    below.fold(sum, |sum, (of, places)| sum.saturating_add(work(of, false, places)))
}

struct Walk<'a> {
    errs: &'a mut Errors,
    /// The total cost of each expression for all places of its evaluation, and its path.
    contributions: Vec<(u64, String)>,
}

impl Walk<'_> {
    /// `places`: the maximum number of places of this node in an object; `None` if unbounded.
    fn node(&mut self, at: &At<'_>, schema: &Schema, is_whole: bool, places: Option<u64>) {
        if !schema.rules.is_empty() {
            let (shape, smallest) = shape_of(schema, is_whole || schema.is_embedded);
            let places = places.unwrap_or(MOST_BYTES / (smallest + 1));
            for (json, rule) in at.get("x-kubernetes-validations").items().zip(&schema.rules) {
                self.rule(&json, rule, &shape, places);
            }
        }
        for (name, property) in at.get("properties").entries() {
            if let Some(of) = schema.properties.get(name) {
                self.node(&property, of, false, places);
            }
        }
        let within = |most: Option<u64>| Some(places?.saturating_mul(most?));
        if let Some(of) = &schema.additional {
            self.node(&at.get("additionalProperties"), of, false, within(schema.limits.max_properties));
        }
        if let Some(of) = &schema.items {
            self.node(&at.get("items"), of, false, within(schema.limits.max_items));
        }
    }

    fn rule(&mut self, json: &At<'_>, rule: &Rule, shape: &Shape, places: u64) {
        let message = rule.message_program.as_ref();
        let all = [
            ("rule", "estimated rule cost", Some(&rule.program)),
            ("messageExpression", "estimated messageExpression cost", message),
        ];
        for (field, what, program) in all {
            let Some(Ok(program)) = program else { continue };
            let cost = cost(program, shape).saturating_mul(places);
            let path = json.path(field);
            if cost > PER_RULE {
                self.errs.forbidden(&path, told(what, cost, PER_RULE));
            }
            self.contributions.push((cost, path));
        }
    }
}

fn cost(program: &Program, shape: &Shape) -> u64 {
    estimate::most(program, &[("self", shape.clone()), ("oldSelf", shape.clone())])
}

fn told(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = match factor {
        // A huge factor is not informative.
        _ if factor > 100.0 => "more than 100x".to_owned(),
        _ if factor < 1.5 => format!("{factor:.6}x"),
        _ => format!("{factor:.1}x"),
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

/// The shape of a node's values, and the minimum bytes of one in JSON.
fn shape_of(schema: &Schema, is_whole: bool) -> (Shape, u64) {
    const TEXT: u64 = MOST_BYTES - 2;
    // Upstream counts up to four bytes per character.
    let bytes = |most: Option<u64>| most.map(|characters| characters.saturating_mul(4));
    let limits = &schema.limits;
    if schema.int_or_string {
        return (Shape::Unknown(bytes(limits.max_length).unwrap_or(TEXT)), 1);
    }
    match schema.of {
        None => (Shape::Unknown(TEXT), 1),
        Some(Of::Boolean) => (Shape::Scalar(0), 4),
        Some(Of::Integer | Of::Number) => (Shape::Scalar(0), 1),
        Some(Of::String) => match schema.format.as_str() {
            "duration" => (Shape::Scalar(32), 4),
            "date" => (Shape::Scalar(12), 12),
            "date-time" => (Shape::Scalar(30), 21),
            "byte" => (Shape::Text(0, limits.max_length.unwrap_or(TEXT)), 2),
            _ => {
                let listed =
                    limits.one_of.iter().filter_map(|value| value.as_str()).map(|text| text.len() as u64).max();
                (Shape::Text(0, bytes(limits.max_length).or(listed).unwrap_or(TEXT)), 2)
            }
        },
        Some(Of::Array) => {
            let (item, smallest) =
                schema.items.as_ref().map_or((Shape::Unknown(TEXT), 1), |of| shape_of(of, of.is_embedded));
            (Shape::List(limits.max_items.unwrap_or(TEXT / (smallest + 1)), Arc::new(item)), 2)
        }
        Some(Of::Object) => match &schema.additional {
            Some(of) => {
                let (value, smallest) = shape_of(of, of.is_embedded);
                // A key, its quotes, a colon and a comma.
                (Shape::Map(limits.max_properties.unwrap_or(TEXT / (smallest + 6)), Arc::new(value)), 2)
            }
            None => object(schema, is_whole),
        },
    }
}

fn object(schema: &Schema, is_whole: bool) -> (Shape, u64) {
    let mut fields = BTreeMap::new();
    let mut smallest = 2;
    for (name, of) in &schema.properties {
        let (shape, own) = shape_of(of, of.is_embedded);
        if schema.limits.required.contains(name) && of.default.is_none() {
            smallest += name.len() as u64 + own + 4;
        }
        if let Some(name) = escaped(name) {
            fields.insert(name.into_owned(), shape);
        }
    }
    if is_whole {
        let text = || Shape::Text(0, MOST_BYTES - 2);
        let metadata = ["name", "generateName"].map(|name| (name.to_owned(), text()));
        fields.insert("metadata".into(), Shape::Object(Arc::new(metadata.into())));
        fields.extend(["apiVersion", "kind"].map(|name| (name.to_owned(), text())));
    }
    (Shape::Object(Arc::new(fields)), smallest)
}

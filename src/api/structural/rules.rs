//! The CEL rules of a schema, run over an object: `x-kubernetes-validations`.

use serde_json::Value as Json;

use super::check::Replaced;
use super::{Rule, Schema, typed};
use crate::cel::{Budget, Value};
use crate::field_path;
use crate::status::Cause;
use crate::validation::MAX_CAUSES;

/// Errors reported by rules; transition rules only run if `old` is known. All share a budget.
pub fn run(schema: &Schema, object: &Json, old: Option<&Json>) -> Vec<Cause> {
    let mut walk = Walk { causes: Vec::new(), budget: Budget::PER_OBJECT.clone(), out: false };
    walk.node(schema, object, old, "", true);
    walk.causes
}

/// Whether there are any.
pub fn any(schema: &Schema) -> bool {
    !schema.rules.is_empty()
        || schema.properties.values().chain(&schema.additional).chain(&schema.items).any(|of| any(of))
}

struct Walk {
    causes: Vec<Cause>,
    budget: Budget,
    /// The budget is exhausted: the rest is not run.
    out: bool,
}

impl Walk {
    fn node(&mut self, schema: &Schema, json: &Json, old: Option<&Json>, path: &str, is_whole: bool) {
        if self.out || json.is_null() {
            return;
        }
        let is_whole = is_whole || schema.is_embedded;
        if !schema.rules.is_empty() {
            self.rules(schema, json, old, path, is_whole);
        }
        match json {
            Json::Object(map) => {
                for (name, json) in map {
                    let Some(of) = schema.field(name) else { continue };
                    self.node(of, json, old.and_then(|old| old.get(name)), &field_path::field(path, name), false);
                }
            }
            Json::Array(items) => {
                let Some(of) = &schema.items else { return };
                let replaced = Replaced::of(&schema.list_type, old);
                for (i, item) in items.iter().enumerate() {
                    self.node(of, item, replaced.by(item), &field_path::index(path, i), false);
                }
            }
            _ => {}
        }
    }

    fn rules(&mut self, schema: &Schema, json: &Json, old: Option<&Json>, path: &str, is_whole: bool) {
        let unchanged = old == Some(json);
        let this = typed::value(schema, json, is_whole);
        let before = old.map(|old| typed::value(schema, old, is_whole));
        let of = schema.of.map_or("", |of| of.name());
        for rule in &schema.rules {
            let Ok(program) = &rule.program else { continue };
            let of_change = program.uses("oldSelf");
            // Unchanged values are only checked by transition rules.
            if unchanged && !of_change {
                continue;
            }
            let old_self = match (&before, rule.optional_old) {
                (Some(old), true) => Value::some(old.clone()),
                (None, true) => Value::Optional(None),
                (Some(old), false) => old.clone(),
                (None, false) if of_change => continue,
                (None, false) => Value::Null,
            };
            let variables = [("self", this.clone()), ("oldSelf", old_self)];
            let message = match self.budget.spend(|budget| program.holds(&variables, budget)) {
                Ok(true) => continue,
                Ok(false) => self.message(rule, &variables),
                Err(None) => {
                    self.out = true;
                    let why =
                        "validation failed due to running out of cost budget, no further validation rules will be run";
                    return self.add(path, "FieldValueInvalid", of, why);
                }
                Err(Some(error)) if error.exhausted => {
                    self.add(
                        path,
                        "FieldValueInvalid",
                        of,
                        &format!("call cost exceeds limit for rule: {}", plain(rule)),
                    );
                    continue;
                }
                Err(Some(error)) => {
                    self.add(path, "FieldValueInvalid", of, &format!("{error} evaluating rule: {}", plain(rule)));
                    continue;
                }
            };
            let place = format!("{path}{}", rule.field_path);
            self.add(place.trim_start_matches('.'), &rule.reason, of, &message);
        }
    }

    /// The message of a failed rule.
    fn message(&mut self, rule: &Rule, variables: &[(&str, Value)]) -> String {
        if let Some(Ok(program)) = &rule.message_program
            && let Ok(Value::String(text)) = self.budget.spend(|budget| program.evaluate(variables, budget))
            && !text.trim().is_empty()
            && !text.contains('\n')
        {
            return text.to_string();
        }
        plain(rule)
    }

    fn add(&mut self, path: &str, reason: &str, of: &str, why: &str) {
        if self.causes.len() >= MAX_CAUSES {
            return;
        }
        let (reason, message) = match reason {
            "FieldValueRequired" => (reason, format!("Required value: {why}")),
            "FieldValueForbidden" => (reason, format!("Forbidden: {why}")),
            "FieldValueDuplicate" => (reason, format!("Duplicate value: \"{of}\"")),
            _ => ("FieldValueInvalid", format!("Invalid value: \"{of}\": {why}")),
        };
        let field = if path.is_empty() { "<nil>" } else { path };
        self.causes.push(Cause { reason: reason.into(), message, field: field.into() });
    }
}

fn plain(rule: &Rule) -> String {
    match rule.message.trim() {
        "" => format!("failed rule: {}", rule.rule.trim()),
        message => message.to_owned(),
    }
}

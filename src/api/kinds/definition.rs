//! Rows for CustomResourceDefinitions, and the content of their versions.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::custom::{Conversion, Custom, Version};
use super::kind::{Kind, Source, Storage, Strategy, VERBS};
use super::scale::Scale;
use crate::columns::{self, Column};
use crate::schema::{self, interned};
use crate::structural::{Schema, check, compile, rules};
use crate::{Cause, Object};

/// Validation errors of a custom resource by its schema and rules; none for other kinds.
pub fn validate(kind: &Kind, new: &Object, old: Option<&Object>) -> Vec<Cause> {
    let Some(version) = kind.custom() else { return Vec::new() };
    let old = old.map(|old| &old.0);
    let mut causes = check::check(&version.schema, &new.0, old);
    match () {
        () if !version.has_rules => {}
        () if check::blocks_rules(&causes) => causes.push(Cause {
            reason: "FieldValueInvalid".into(),
            message:
                "Invalid value: null: some validation rules were not checked because the object was invalid; correct \
                      the existing errors to complete validation"
                    .into(),
            field: "<nil>".into(),
        }),
        () => causes.extend(rules::run(&version.schema, &new.0, old)),
    }
    causes
}

/// The content of a version; `json` is its entry in `spec.versions`.
pub fn version(definition: &Object, json: &Value) -> Version {
    let spec = &definition.0["spec"];
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let (group, name, kind) = (text(&spec["group"]), text(&json["name"]), text(&spec["names"]["kind"]));
    let written = json["schema"]["openAPIV3Schema"].clone();
    let mut schema = Schema::parse(&written);
    schema.preserves_unknown |= spec["preserveUnknownFields"] == true;
    let warning = (json["deprecated"] == true).then(|| match json["deprecationWarning"].as_str() {
        Some(warning) => warning.to_owned(),
        None => format!("{group}/{name} {kind} is deprecated"),
    });
    let conversion = match spec["conversion"]["strategy"].as_str() {
        Some("Webhook") => Conversion::Webhook(spec["conversion"]["webhook"].clone()),
        _ => Conversion::None,
    };
    let accepted = names(definition);
    let scale = &json["subresources"]["scale"];
    Version {
        tree: compile::object(&kind, &schema, schema::metadata()),
        list_kind: text(&accepted["listKind"]),
        short_names: strings(&accepted["shortNames"]),
        categories: strings(&accepted["categories"]),
        columns: columns(json),
        scale: scale.is_object().then(|| self::scale(scale)),
        has_rules: rules::any(&schema),
        rules_work: Default::default(),
        json: written,
        schema,
        warning,
        conversion,
        terminating: definition.is_terminating(),
    }
}

/// The fixed parts of a row, as text: rows with equal text are the same.
pub fn shape(definition: &Object, json: &Value, stored: Option<&'static Kind>, preferred: bool) -> String {
    let (spec, names) = (&definition.0["spec"], names(definition));
    let names = ["plural", "singular", "kind"].map(|field| &names[field]);
    let subresources = served(json);
    let fields = ["name", "selectableFields"].map(|field| &json[field]);
    let types: Vec<Value> =
        selectable(json).iter().map(|path| type_at(&json["schema"]["openAPIV3Schema"], path)).collect();
    let at = stored.map_or(0, |kind| std::ptr::from_ref(kind) as usize);
    let indexed = indexed(definition);
    format!(
        "{} {} {names:?} {subresources:?} {fields:?} {types:?} {indexed:?} {at} {preferred}",
        spec["group"], spec["scope"]
    )
}

/// The accepted names, or else the requested ones.
fn names(definition: &Object) -> &Value {
    let accepted = &definition.0["status"]["acceptedNames"];
    if accepted["plural"].as_str().unwrap_or("").is_empty() { &definition.0["spec"]["names"] } else { accepted }
}

/// The subresources of a version that have rows of their own in discovery.
fn served(json: &Value) -> Vec<String> {
    let subresources = &json["subresources"];
    let all = [("scale", subresources["scale"].is_object()), ("status", subresources["status"].is_object())];
    all.iter().filter(|(_, is)| *is).map(|(name, _)| (*name).to_owned()).collect()
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Creates the row of a version; `stored` is that of the stored version, if it is another. It is leaked.
pub fn row(
    definition: &Object,
    json: &Value,
    version: Arc<Version>,
    stored: Option<&'static Kind>,
    preferred: bool,
) -> &'static Kind {
    let (spec, names) = (&definition.0["spec"], names(definition));
    let string = |value: &Value| interned::string(value.as_str().unwrap_or(""));
    let (group, name, kind) = (string(&spec["group"]), string(&json["name"]), string(&names["kind"]));
    let reversed: Vec<&str> = group.split('.').rev().collect();
    let custom: &'static Custom = Box::leak(Box::new(Custom::new(
        format!("{}.{name}.{kind}", reversed.join(".")),
        version,
        preferred,
        interned::list(&indexed(definition)),
    )));
    Box::leak(Box::new(Kind {
        kind,
        group,
        version: name,
        plural: string(&names["plural"]),
        singular: string(&names["singular"]),
        short_names: &[],
        namespaced: spec["scope"] == "Namespaced",
        categories: &[],
        storage: stored.map_or(Storage::Own, Storage::Version),
        verbs: VERBS,
        subresources: interned::list(&served(json)),
        selectable: interned::list(&selectable(json)),
        schema: Source::Custom(custom),
        columns: &[],
        scale: None,
        strategy: Strategy { metadata_by_status: &[], has_generation: true, ..Strategy::PLAIN },
    }))
}

fn selectable(json: &Value) -> Vec<String> {
    let fields = json["selectableFields"].as_array().into_iter().flatten();
    fields.filter_map(|field| field["jsonPath"].as_str()).map(|path| path.trim_start_matches('.').to_owned()).collect()
}

/// The selectable fields of all versions: without conversion, they are at the same paths in the stored object.
fn indexed(definition: &Object) -> Vec<String> {
    let versions = definition.0["spec"]["versions"].as_array().into_iter().flatten();
    versions.flat_map(selectable).collect::<BTreeSet<_>>().into_iter().collect()
}

fn type_at(schema: &Value, path: &str) -> Value {
    path.split('.').fold(schema, |at, name| &at["properties"][name])["type"].clone()
}

fn scale(json: &Value) -> Scale<Cow<'static, str>> {
    let path = |field: &str| json[field].as_str().unwrap_or("").trim_start_matches('.').to_owned().into();
    Scale {
        spec_replicas: path("specReplicasPath"),
        status_replicas: path("statusReplicasPath"),
        selector: path("labelSelectorPath"),
    }
}

/// The name, and the definition's valid columns; without any, the age.
fn columns(json: &Value) -> Arc<[Column]> {
    let asked = json["additionalPrinterColumns"].as_array().filter(|columns| !columns.is_empty());
    let Some(asked) = asked else { return [columns::NAME, columns::AGE].into() };
    let own = asked.iter().take(columns::MOST_COLUMNS).map_while(columns::of_definition);
    std::iter::once(columns::NAME).chain(own).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Objects from before there was a limit are not refused.
    #[test]
    fn a_definition_that_is_there_has_as_many_columns_as_a_new_one() {
        let column = json!({"name": "C", "type": "string", "jsonPath": ".spec"});
        let of = |count: usize| columns(&json!({"additionalPrinterColumns": vec![column.clone(); count]})).len();
        assert_eq!((of(0), of(1), of(columns::MOST_COLUMNS + 50)), (2, 2, 1 + columns::MOST_COLUMNS));
    }
}

//! CustomResourceDefinition (apiextensions.k8s.io/v1): the row, and its validation; what it defines are rows, too (`custom`).

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{Kind, Strategy};
use crate::columns::{self, NAME, text};
use crate::defaults::{each, fill, made, object};
use crate::structural;
use crate::validation::webhook::client_config;
use crate::validation::{At, Errors, names, same};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["crd", "crds"],
    categories: &["api-extensions"],
    subresources: &["status"],
    columns: &[NAME, columns::column("CREATED AT", |o, _| text(o, "metadata.creationTimestamp"))],
    strategy: Strategy {
        default,
        prepare_create,
        validate,
        validate_create,
        validate_update,
        validate_status,
        has_generation: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition>(
        "customresourcedefinition",
    )
};

/// Required to add to Kubernetes' own groups.
const APPROVED: &str = "api-approved.kubernetes.io";

fn default(definition: &mut Object) {
    let Some(map) = definition.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    let names = made(spec, "names");
    let kind = names.get("kind").and_then(Value::as_str).unwrap_or("").to_owned();
    if !kind.is_empty() {
        fill(names, "singular", kind.to_lowercase());
        fill(names, "listKind", format!("{kind}List"));
    }
    let conversion = made(spec, "conversion");
    fill(conversion, "strategy", "None");
    let service =
        object(conversion, "webhook").and_then(|w| object(w, "clientConfig")).and_then(|c| object(c, "service"));
    if let Some(service) = service {
        fill(service, "port", 443);
    }
    each(spec, "versions").for_each(|version| {
        version.entry("served").or_insert(false.into());
        version.entry("storage").or_insert(false.into());
    });
}

fn prepare_create(definition: &mut Object) {
    let storage = stored_version(definition).map(|v| v.to_owned());
    definition.0["status"] = json!({
        "acceptedNames": {"kind": "", "plural": ""}, "conditions": [],
        "storedVersions": storage.into_iter().collect::<Vec<_>>(),
    });
}

fn stored_version(definition: &Object) -> Option<&str> {
    let versions = definition.at("spec.versions").and_then(Value::as_array);
    versions.into_iter().flatten().find(|v| v["storage"] == true)?["name"].as_str()
}

fn validate(definition: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&definition.0).get("spec");
    let (group, it) = (spec.get("group"), spec.get("names"));
    if group.is_empty() {
        errs.required(&group.path, "");
    } else {
        errs.invalid_each(&group.path, group.str(), names::dns1123_subdomain(group.str()));
        if !group.str().contains('.') {
            errs.invalid(&group.path, group.str(), "should be a domain with at least one dot");
        }
    }
    let plural = it.get("plural");
    let wanted = format!("{}.{}", plural.str(), group.str());
    if definition.name() != wanted {
        errs.invalid("metadata.name", definition.name(), "must be spec.names.plural+\".\"+spec.group");
    }
    let protected = ["k8s.io", "kubernetes.io"].iter().any(|domain| {
        group.str() == *domain || group.str().strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
    });
    if protected && definition.annotation(APPROVED).is_none() {
        let why = "protected groups must have approval annotation \"api-approved.kubernetes.io\", see \
                   https://github.com/kubernetes/enhancements/pull/1111";
        errs.required(format!("metadata.annotations[{APPROVED}]"), why);
    }
    if spec.get("preserveUnknownFields").bool() {
        let why =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errs.invalid(spec.path("preserveUnknownFields"), true, why);
    }
    errs.one_of(&spec.get("scope"), &["Cluster", "Namespaced"]);
    check_names(&it, &mut errs);
    versions(&spec.get("versions"), &mut errs);
    conversion(&spec.get("conversion"), &mut errs);
    errs.0
}

/// Limits the cost of its rules.
fn validate_create(definition: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let versions = At::root(&definition.0).get("spec").get("versions");
    versions.items().map(schema_of).for_each(|schema| structural::costs::validate(&schema, &mut errs));
    errs.0
}

/// A condition's type is its key. Existing ones stay valid.
fn validate_status(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let (now, before) = (At::root(&new.0).get("status"), At::root(&old.0).get("status"));
    let accepted = now.get("acceptedNames");
    check_syntax(&accepted, &mut errs);
    for field in ["kind", "plural"] {
        if accepted.is_set() && !accepted.get(field).is_set() && !before.get("acceptedNames").is_empty() {
            errs.required(accepted.path(field), "");
        }
    }
    let known: Vec<&Value> = before.get("conditions").items().map(|condition| condition.value).collect();
    let mut seen = HashSet::new();
    for condition in now.get("conditions").items() {
        let of = condition.get("type");
        let is_first = seen.insert(of.str().to_owned());
        if known.contains(&condition.value) {
            continue;
        }
        for field in ["type", "status"] {
            if condition.get(field).is_empty() {
                errs.required(condition.path(field), "");
            }
        }
        if !of.is_empty() && !is_first {
            errs.duplicate(&of.path, of.str());
        }
    }
    errs.0
}

fn schema_of(version: At<'_>) -> At<'_> {
    version.get("schema").get("openAPIV3Schema")
}

fn check_names(it: &At<'_>, errs: &mut Errors) {
    for field in ["plural", "singular", "kind", "listKind"] {
        if it.get(field).is_empty() {
            errs.required(it.path(field), "");
        }
    }
    check_syntax(it, errs);
}

fn check_syntax(it: &At<'_>, errs: &mut Errors) {
    for field in ["plural", "singular", "kind", "listKind"] {
        let at = it.get(field);
        if at.is_empty() {
            continue;
        }
        if !field.ends_with("ind") {
            errs.invalid_each(&at.path, at.str(), names::dns1035_label(at.str()));
            continue;
        }
        for why in names::dns1035_label(&at.str().to_lowercase()) {
            errs.invalid(&at.path, at.str(), format!("may have mixed case, but should otherwise match: {why}"));
        }
    }
    if !it.get("kind").is_empty() && it.get("kind").str() == it.get("listKind").str() {
        errs.invalid(it.path("listKind"), it.get("listKind").str(), "kind and listKind may not be the same");
    }
    for list in ["shortNames", "categories"] {
        for at in it.get(list).items() {
            errs.invalid_each(&at.path, at.str(), names::dns1035_label(at.str()));
        }
    }
}

fn versions(versions: &At<'_>, errs: &mut Errors) {
    let mut seen: HashSet<&str> = HashSet::new();
    for version in versions.items() {
        let name = version.get("name");
        match name.is_empty() {
            true => errs.required(&name.path, ""),
            false => errs.invalid_each(&name.path, name.str(), names::dns1035_label(name.str())),
        }
        if seen.contains(&name.str()) {
            errs.invalid(&versions.path, name.str(), "must contain unique version names");
        }
        seen.insert(name.str());
        deprecation(&version, errs);
        let schema = version.get("schema").get("openAPIV3Schema");
        match schema.is_set() {
            true => structural::definition::validate(&schema, errs),
            false => errs.required(&schema.path, ""),
        }
        if version.get("subresources").get("status").is_set() {
            beside_status(&schema, errs);
        }
        subresources(&version.get("subresources"), errs);
        let columns = version.get("additionalPrinterColumns");
        let count = columns.items().count();
        if count > columns::MOST_COLUMNS {
            errs.too_many(&columns.path, count, columns::MOST_COLUMNS);
        }
        columns.items().take(columns::MOST_COLUMNS).for_each(|at| column(&at, errs));
        selectable(&version.get("selectableFields"), &schema, errs);
    }
    let stored = versions.items().filter(|v| v.get("storage").bool()).count();
    if stored != 1 {
        errs.invalid_value(&versions.path, versions.value, "must have exactly one version marked as storage version");
    }
}

fn deprecation(version: &At<'_>, errs: &mut Errors) {
    /// The most bytes in a warning.
    const LONGEST: usize = 256;
    let warning = version.get("deprecationWarning");
    let Some(text) = warning.value.as_str() else { return };
    if !version.get("deprecated").bool() {
        errs.invalid(&warning.path, text, "can only be set for deprecated versions");
    }
    if text.len() > LONGEST {
        errs.invalid(&warning.path, text, "must be <= 256 characters long");
    }
    if text.is_empty() {
        errs.invalid(&warning.path, text, "must not be an empty string");
    }
    if let Some((at, _)) = text.char_indices().find(|(_, c)| c.is_control()) {
        let why = "must only contain printable UTF-8 characters; non-printable character found at index";
        errs.invalid(&warning.path, text, format!("{why} {at}"));
    }
}

/// What a schema's root may specify if `status` is validated separately: what is not lost then.
const AT_ROOT: &[(&str, &str)] = &[
    ("description", "Description"),
    ("type", "Type"),
    ("format", "Format"),
    ("title", "Title"),
    ("maximum", "Maximum"),
    ("exclusiveMaximum", "ExclusiveMaximum"),
    ("minimum", "Minimum"),
    ("exclusiveMinimum", "ExclusiveMinimum"),
    ("maxLength", "MaxLength"),
    ("minLength", "MinLength"),
    ("pattern", "Pattern"),
    ("maxItems", "MaxItems"),
    ("minItems", "MinItems"),
    ("uniqueItems", "UniqueItems"),
    ("multipleOf", "MultipleOf"),
    ("required", "Required"),
    ("items", "Items"),
    ("properties", "Properties"),
    ("externalDocs", "ExternalDocs"),
    ("example", "Example"),
    ("x-kubernetes-preserve-unknown-fields", "XPreserveUnknownFields"),
    ("x-kubernetes-validations", "XValidations"),
];

fn beside_status(schema: &At<'_>, errs: &mut Errors) {
    let is_set = |value: &Value| !same(value, &Value::Null) && value != &Value::Bool(false);
    let other = |(field, of): &(&str, At<'_>)| is_set(of.value) && !AT_ROOT.iter().any(|(known, _)| known == field);
    if schema.entries().any(|entry| other(&entry)) {
        let names: Vec<&str> = AT_ROOT.iter().map(|(_, name)| *name).collect();
        let names = names.join(" ");
        let why =
            format!("only [{names}] fields are allowed at the root of the schema if the status subresource is enabled");
        errs.invalid_value(&schema.path, schema.value, why);
    }
}

fn subresources(at: &At<'_>, errs: &mut Errors) {
    let scale = at.get("scale");
    if !scale.is_set() {
        return;
    }
    const PATHS: &[(&str, &[&str], bool, &str)] = &[
        ("specReplicasPath", &[".spec."], true, "should be a json path under .spec"),
        ("statusReplicasPath", &[".status."], true, "should be a json path under .status"),
        ("labelSelectorPath", &[".spec.", ".status."], false, "should be a json path under either .spec or .status"),
    ];
    for (field, below, required, why) in PATHS {
        let path = scale.get(field);
        match path.is_empty() {
            true if *required => errs.required(&path.path, ""),
            true => {}
            false if !path.str().starts_with('.') => errs.invalid(&path.path, path.str(), NO_PATH),
            false if !below.iter().any(|below| path.str().starts_with(below)) => {
                errs.invalid(&path.path, path.str(), *why);
            }
            false => {}
        }
    }
}

const NO_PATH: &str = "must be a simple json path starting with .";

/// A column. Upstream only checks the beginning of its path; an invalid path is not shown.
fn column(at: &At<'_>, errs: &mut Errors) {
    const TYPES: &[&str] = &["boolean", "date", "integer", "number", "string"];
    const FORMATS: &[&str] = &["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
    if at.get("name").is_empty() {
        errs.required(at.path("name"), "");
    }
    let one_of = |all: &[&str]| format!("must be one of {}", all.join(","));
    let of = at.get("type");
    match of.is_empty() {
        true => errs.required(&of.path, &one_of(TYPES)),
        false if !TYPES.contains(&of.str()) => errs.invalid(&of.path, of.str(), one_of(TYPES)),
        false => {}
    }
    let format = at.get("format");
    if !format.is_empty() && !FORMATS.contains(&format.str()) {
        errs.invalid(&format.path, format.str(), one_of(FORMATS));
    }
    let path = at.get("jsonPath");
    match path.is_empty() {
        true => errs.required(at.path("JSONPath"), ""),
        false if !path.str().starts_with('.') => errs.invalid(at.path("JSONPath"), path.str(), NO_PATH),
        false => {}
    }
}

/// The most selectable fields.
const MAX_SELECTABLE: usize = 8;

fn selectable(at: &At<'_>, schema: &At<'_>, errs: &mut Errors) {
    if at.len() > MAX_SELECTABLE {
        errs.too_many(&at.path, at.len(), MAX_SELECTABLE);
    }
    let mut seen = HashSet::new();
    for field in at.items() {
        let path = field.get("jsonPath");
        let field_type = path.str().strip_prefix('.').and_then(|names| {
            let properties = names.split('.').try_fold(schema.value, |at, name| at["properties"].get(name))?;
            properties["type"].as_str()
        });
        match field_type {
            _ if path.is_empty() => errs.required(&path.path, ""),
            _ if path.str().starts_with(".metadata.") => {
                errs.invalid(&path.path, path.str(), "must not point to fields in metadata");
            }
            Some("string" | "integer" | "boolean") => {}
            Some(_) => {
                let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with \
                           formats are allowed.";
                errs.invalid(&path.path, path.str(), why);
            }
            None => errs.invalid(&path.path, path.str(), "is an invalid path: does not refer to a valid field"),
        }
        if !seen.insert(path.str()) {
            errs.duplicate(&path.path, path.str());
        }
    }
}

fn conversion(conversion: &At<'_>, errs: &mut Errors) {
    errs.one_of(&conversion.get("strategy"), &["None", "Webhook"]);
    let webhook = conversion.get("webhook");
    match conversion.get("strategy").str() {
        "Webhook" if !webhook.get("clientConfig").is_set() => {
            errs.required(webhook.path("clientConfig"), "required when strategy is set to Webhook");
        }
        "Webhook" => {
            client_config(&webhook.get("clientConfig"), errs);
            let versions = webhook.get("conversionReviewVersions");
            if versions.is_empty() {
                errs.required(&versions.path, "");
            } else if !versions.items().any(|v| matches!(v.str(), "v1" | "v1beta1")) {
                errs.invalid_value(&versions.path, versions.value, "must include at least one of v1, v1beta1");
            }
        }
        _ if webhook.is_set() => errs.forbidden(&webhook.path, "should not be set when strategy is not set to Webhook"),
        _ => {}
    }
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let (now, before) = (At::root(&new.0).get("spec"), At::root(&old.0).get("spec"));
    for path in ["group", "scope"] {
        errs.immutable(&now.get(path), &before.get(path));
    }
    for field in ["kind", "plural"] {
        errs.immutable(&now.get("names").get(field), &before.get("names").get(field));
    }
    // An accepted schema stays valid, whatever the cost of its rules.
    let known: HashSet<&Value> = before.get("versions").items().map(|version| schema_of(version).value).collect();
    for schema in now.get("versions").items().map(schema_of) {
        if !known.contains(schema.value) {
            structural::costs::validate(&schema, &mut errs);
        }
    }
    // A stored version is needed to read its objects.
    let versions: Vec<&str> = now.get("versions").items().map(|v| v.get("name").str()).collect();
    for stored in At::root(&old.0).get("status").get("storedVersions").items() {
        if !versions.contains(&stored.str()) {
            let why = format!(
                "missing from spec.versions; {} was previously a storage version, and must remain in \
                               spec.versions until a storage migration ensures no data remains persisted in {} and removes \
                               {} from status.storedVersions",
                stored.str(),
                stored.str(),
                stored.str()
            );
            errs.invalid(&stored.path, stored.str(), why);
        }
    }
    errs.0
}

//! Query parameters, and the options that they set.

use std::str::FromStr;

use serde_json::Value;

use super::paths::percent_decode;
use podwright_api::request::Preconditions;
use podwright_api::{Cause, FieldValidation, Options, Status};

/// The parameters of a query in order; invalid encodings are dropped, as by Go's `URL.Query`.
#[derive(Debug, Default, PartialEq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(text: &str) -> Query {
        let text_of = |part: &str| Some(String::from_utf8_lossy(&percent_decode(part, true)?).into_owned());
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((text_of(key)?, text_of(value)?))
        };
        Query(text.split('&').filter(|part| !part.is_empty() && !part.contains(';')).filter_map(pair).collect())
    }

    pub fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, value)| value.as_str())
    }
    /// The first non-empty value of a parameter.
    pub fn first(&self, key: &str) -> Option<&str> {
        self.all(key).next().filter(|value| !value.is_empty())
    }
    /// Whether a flag is set: present, and neither `0` nor `false` in any case: Python's clients send `False`.
    pub fn flag(&self, key: &str) -> bool {
        self.all(key).next().is_some_and(|value| !value.eq_ignore_ascii_case("false") && value != "0")
    }
    pub fn number<T: FromStr>(&self, key: &str) -> Result<Option<T>, Status> {
        let Some(text) = self.first(key) else { return Ok(None) };
        let bad = |_| Status::bad_request(format!("{key}: strconv.ParseInt: parsing {text:?}: invalid syntax"));
        text.parse().map(Some).map_err(bad)
    }
    fn text(&self, key: &str) -> Option<String> {
        self.first(key).map(str::to_owned)
    }
}

/// The options of any verb. Where defaults differ, upstream's: unknown fields cause a warning.
pub fn options(query: &Query) -> Result<Options, Status> {
    let field_validation = match query.first("fieldValidation") {
        None | Some("Warn") => FieldValidation::Warn,
        Some("Strict") => FieldValidation::Strict,
        Some("Ignore") => FieldValidation::Ignore,
        Some(other) => return Err(unsupported("fieldValidation", other, &["Ignore", "Strict", "Warn"])),
    };
    Ok(Options {
        label_selector: query.text("labelSelector"),
        field_selector: query.text("fieldSelector"),
        limit: query.number::<i64>("limit")?.map(|n| u64::try_from(n).unwrap_or(0)),
        continue_token: query.text("continue"),
        resource_version: query.text("resourceVersion"),
        resource_version_match: query.text("resourceVersionMatch"),
        send_initial_events: query.flag("sendInitialEvents"),
        allow_watch_bookmarks: query.flag("allowWatchBookmarks"),
        timeout_seconds: query.number::<i64>("timeoutSeconds")?.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0),
        dry_run: dry_run(query.all("dryRun"))?,
        field_validation: Some(field_validation),
        field_manager: query.text("fieldManager"),
        force: query.flag("force"),
        grace_period_seconds: query.number("gracePeriodSeconds")?,
        propagation_policy: query.text("propagationPolicy").or_else(|| orphan(query)),
        ..Options::default()
    })
}

/// The meaning of the deprecated `orphanDependents`.
fn orphan(query: &Query) -> Option<String> {
    query.first("orphanDependents")?;
    Some(if query.flag("orphanDependents") { "Orphan" } else { "Background" }.to_owned())
}

fn dry_run<'a>(values: impl Iterator<Item = &'a str>) -> Result<bool, Status> {
    let mut dry = false;
    for value in values.filter(|value| !value.is_empty()) {
        if value != "All" {
            return Err(unsupported("dryRun", value, &["All"]));
        }
        dry = true;
    }
    Ok(dry)
}

fn unsupported(field: &str, value: &str, supported: &[&str]) -> Status {
    let supported: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
    let message = format!("Unsupported value: {value:?}: supported values: {}", supported.join(", "));
    let cause = Cause { reason: "FieldValueNotSupported".into(), message, field: field.into() };
    Status::invalid("Options", "meta.k8s.io", "", vec![cause])
}

/// A delete's options may come in its body, which then takes precedence.
pub fn delete_options(options: &mut Options, body: &Value) -> Result<(), Status> {
    let kind = body["kind"].as_str().unwrap_or("DeleteOptions");
    if !body.is_object() || kind != "DeleteOptions" {
        return Err(Status::bad_request(format!("the body of a delete is DeleteOptions, not {kind}")));
    }
    let typed = |field: &str, of: &str| Status::bad_request(format!("DeleteOptions.{field} is not {of}"));
    match &body["gracePeriodSeconds"] {
        Value::Null => {}
        value => options.grace_period_seconds = Some(value.as_i64().ok_or_else(|| typed("gracePeriodSeconds", "int"))?),
    }
    match &body["propagationPolicy"] {
        Value::Null => {}
        Value::String(policy) => options.propagation_policy = Some(policy.clone()),
        _ => return Err(typed("propagationPolicy", "string")),
    }
    match &body["orphanDependents"] {
        Value::Null => {}
        Value::Bool(orphan) => {
            let policy = if *orphan { "Orphan" } else { "Background" };
            options.propagation_policy.get_or_insert_with(|| policy.to_owned());
        }
        _ => return Err(typed("orphanDependents", "bool")),
    }
    match &body["preconditions"] {
        Value::Null => {}
        value => {
            let parsed: Preconditions = serde_json::from_value(value.clone())
                .map_err(|why| Status::bad_request(format!("DeleteOptions.preconditions: {why}")))?;
            options.preconditions = Some(parsed);
        }
    }
    let values = body["dryRun"].as_array().into_iter().flatten();
    options.dry_run |= dry_run(values.map(|value| value.as_str().unwrap_or("?")))?;
    Ok(())
}

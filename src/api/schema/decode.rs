//! Strict decoding: checks a JSON tree against a kind's schema, and normalizes it to upstream's form.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{Struct, Type, metadata};
use crate::request::FieldValidation;
use crate::structural::{
    self,
    prune::{self, MAX_UNKNOWN},
};
use crate::validation::{Errors, MAX_MESSAGE};
use crate::{Kind, Object, Status, field_path, kinds, quantity::Quantity};

/// Why something is not an object of its kind.
#[derive(Debug)]
pub enum Refusal {
    /// It has another kind or version.
    Other(Status),
    /// Its content: in the words of Go's JSON decoder, and of upstream's map converter.
    Unfit { json: String, restored: String },
}

impl Refusal {
    fn plain(why: String) -> Refusal {
        Refusal::Unfit { restored: why.clone(), json: why }
    }

    /// The error for a sent object.
    pub fn status(self, kind: &Kind) -> Status {
        match self {
            Refusal::Other(status) => status,
            Refusal::Unfit { json, .. } => cannot_be_handled(kind, kind.kind, kind.version, &json),
        }
    }

    /// The error for the result of a patch, of which `shown` is quoted.
    pub fn of_patch(self, is_strategic: bool, shown: &str) -> Status {
        let why = match self {
            Refusal::Other(status) => return status,
            Refusal::Unfit { restored, .. } if is_strategic => restored,
            Refusal::Unfit { json, .. } => json,
        };
        let mut errs = Errors::default();
        let shown = match shown.len() > MAX_SHOWN {
            true => format!("{}...", field_path::head(shown, MAX_SHOWN)),
            false => shown.to_owned(),
        };
        errs.invalid("patch", shown, why);
        Status::invalid("", "", "", errs.0)
    }
}

/// How much of a patch is quoted, in bytes.
const MAX_SHOWN: usize = MAX_MESSAGE / 2;

type Decoded = Result<(Object, Vec<String>), Refusal>;

impl Kind {
    /// Removes nulls, which mean absence, from an object of this kind. (In a custom resource its schema defines null's meaning.)
    pub fn drop_nulls(&self, object: &mut Object) {
        if let (None, Value::Object(map)) = (self.custom(), &mut object.0) {
            without_nulls(&self.schema(), map);
        }
    }

    /// Decodes JSON to an object of this kind: checks field types, drops nulls, and refuses unknown fields (Strict), or drops and
    /// reports them as warnings (Warn), or drops them (Ignore).
    pub fn decode(&self, value: Value, validation: FieldValidation) -> Result<(Object, Vec<String>), Status> {
        self.try_decode(value, validation).map_err(|why| why.status(self))
    }
    /// The same, for callers that word the error themselves.
    pub fn try_decode(&self, value: Value, validation: FieldValidation) -> Result<(Object, Vec<String>), Refusal> {
        object(self, value, validation)
    }
}

fn object(kind: &Kind, value: Value, validation: FieldValidation) -> Decoded {
    let Value::Object(mut map) = value else {
        let why = format!("json: cannot unmarshal {} into Go value of type v1.{}", go_value(&value), kind.kind);
        return Err(Refusal::plain(why));
    };
    type_meta(kind, &mut map).map_err(Refusal::Other)?;
    let mut walk = Walk { unknown: Vec::new() };
    let decoded = match kind.custom() {
        None => walk.fields(&kind.schema(), &mut map, &PathNode::ROOT),
        Some(version) => walk.custom(&version.schema, &mut map),
    };
    decoded?;
    let unknown = walk.unknown;
    match validation {
        FieldValidation::Strict if !unknown.is_empty() => {
            Err(Refusal::plain(format!("strict decoding error: {}", unknown.join(", "))))
        }
        FieldValidation::Ignore => Ok((Object(Value::Object(map)), Vec::new())),
        _ => Ok((Object(Value::Object(map)), unknown)),
    }
}

/// Removes null lists, maps and structs: for upstream they are absent, and it never writes them. Decoded objects have none; this is
/// for the results of the server's own steps.
fn without_nulls(of: &Struct, map: &mut Map<String, Value>) {
    let is_absent = |name: &str, value: &Value| {
        let held = |of: &Type| matches!(of, Type::List(_) | Type::Map(_) | Type::Struct(_));
        value.is_null() && of.field(name).is_some_and(|field| held(&field.of))
    };
    if map.iter().any(|(name, value)| is_absent(name, value)) {
        map.retain(|name, value| !is_absent(name, value));
    }
    for (name, value) in map.iter_mut() {
        if let Some(field) = of.field(name) {
            without_nulls_in(&field.of, value);
        }
    }
}

fn without_nulls_in(of: &Type, value: &mut Value) {
    match (of, value) {
        (Type::Struct(of), Value::Object(map)) => without_nulls(of, map),
        (Type::Map(of), Value::Object(map)) => map.values_mut().for_each(|value| without_nulls_in(of, value)),
        (Type::List(list), Value::Array(items)) => items.iter_mut().for_each(|item| without_nulls_in(&list.item, item)),
        _ => {}
    }
}

fn cannot_be_handled(kind: &Kind, given: &str, version: &str, why: &str) -> Status {
    Status::bad_request(format!("{given} in version \"{version}\" cannot be handled as a {}: {why}", kind.kind))
}

/// `apiVersion` and `kind` may be missing, but must not be another kind's.
fn type_meta(kind: &Kind, map: &mut Map<String, Value>) -> Result<(), Status> {
    let api_version = kind.api_version();
    for (field, what, expected) in [("kind", "kind", kind.kind), ("apiVersion", "API version", api_version.as_str())] {
        match map.get(field) {
            None | Some(Value::Null) => {}
            Some(Value::String(s)) if s.is_empty() => {}
            Some(Value::String(s)) if s == expected => continue,
            Some(Value::String(_)) if !kind.is_custom() => return Err(of_another(kind, map)),
            Some(Value::String(s)) => {
                return Err(Status::bad_request(format!(
                    "the {what} in the data ({s}) does not match the expected {what} ({expected})"
                )));
            }
            // The schema refuses any other type of value.
            Some(_) => continue,
        }
        map.shift_remove(field);
        map.shift_insert(0, field.to_owned(), Value::String(expected.to_owned()));
    }
    Ok(())
}

/// The error for an object of another kind or version.
fn of_another(kind: &Kind, map: &Map<String, Value>) -> Status {
    let given = |field: &str, own: String| match map.get(field).and_then(Value::as_str).unwrap_or("") {
        "" => own,
        text => text.to_owned(),
    };
    let (name, api_version) = (given("kind", kind.kind.to_owned()), given("apiVersion", kind.api_version()));
    let version = api_version.rsplit('/').next().unwrap_or("");
    match kinds::of(&api_version, &name) {
        Some(other) if other.built_in() == kind.built_in() => Status::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({})",
            kind.api_version()
        )),
        Some(other) => {
            let why = format!("converting ({version}.{name}) to ({}.{}): unknown conversion", package(kind), kind.kind);
            cannot_be_handled(kind, other.kind, version, &why)
        }
        None => {
            let why = format!("no kind \"{name}\" is registered for version \"{api_version}\" in scheme \"podwright\"");
            cannot_be_handled(kind, &name, version, &why)
        }
    }
}

/// Upstream's Go package of a group's types.
fn package(kind: &Kind) -> &'static str {
    match kind.group {
        "" | "events.k8s.io" => "core",
        group => group.split('.').next().unwrap_or(group),
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Step<'a> {
    Root,
    Field(&'a str),
    Index(usize),
    Key(&'a str),
}

/// The path of a traversal: a step, and its parent. Only formatted for errors.
pub(crate) struct PathNode<'a> {
    up: Option<&'a PathNode<'a>>,
    step: Step<'a>,
}

impl<'a> PathNode<'a> {
    pub(crate) const ROOT: PathNode<'static> = PathNode { up: None, step: Step::Root };

    pub(crate) fn then(&'a self, step: Step<'a>) -> PathNode<'a> {
        PathNode { up: Some(self), step }
    }

    /// The steps from the root.
    fn steps(&self) -> Vec<Step<'_>> {
        let mut steps: Vec<Step<'_>> = std::iter::successors(Some(self), |place| place.up).map(|p| p.step).collect();
        steps.reverse();
        steps
    }

    /// `spec.containers[0].image`
    pub(crate) fn shown(&self) -> String {
        self.steps().into_iter().fold(String::new(), |out, step| match step {
            Step::Root => out,
            Step::Index(i) => field_path::index(&out, i),
            Step::Field(name) | Step::Key(name) => field_path::field(&out, name),
        })
    }

    /// Upstream's (Go's) wording; its field paths have no indexes.
    fn mismatch(&self, parent: &str, of: &Type, got: &str) -> Refusal {
        let fields: Vec<&str> =
            self.steps().iter().filter_map(|s| if let Step::Field(f) = s { Some(*f) } else { None }).collect();
        let (fields, go) = (fields.join("."), of.go());
        Refusal::Unfit {
            json: format!("json: cannot unmarshal {got} into Go struct field {parent}.{fields} of type {go}"),
            restored: of.not_restored(got.split(' ').next().unwrap_or(got)),
        }
    }
}

/// A traversal; collects the unknown fields (and drops them).
struct Walk {
    unknown: Vec<String>,
}

impl Walk {
    /// A custom resource: its metadata, and that of embedded objects, has the common schema; otherwise only unknown fields are
    /// checked here, and types later by validation.
    fn custom(&mut self, schema: &structural::Schema, map: &mut Map<String, Value>) -> Result<(), Refusal> {
        let metadata = metadata();
        let mut object = Value::Object(std::mem::take(map));
        self.unknown.extend(prune::prune(schema, &mut object).iter().map(|path| format!("unknown field \"{path}\"")));
        let mut outcome = Ok(());
        let mut check = |walk: &mut Walk, value: &mut Value, path: &str| {
            let Some(value) = value.get_mut("metadata").filter(|value| !value.is_null()) else { return };
            let before = walk.unknown.len();
            let decoded = walk.value(&metadata, "ObjectMeta", value, &PathNode::ROOT.then(Step::Field("metadata")));
            if !path.is_empty() {
                let within = |name: &mut String| *name = name.replacen("field \"", &format!("field \"{path}."), 1);
                walk.unknown[before..].iter_mut().for_each(within);
            }
            if outcome.is_ok() {
                outcome = decoded;
            }
        };
        check(self, &mut object, "");
        prune::embedded(schema, &mut object, "", &mut |path, value| check(self, value, &path));
        if let Value::Object(decoded) = object {
            *map = decoded;
        }
        outcome
    }

    fn fields(&mut self, schema: &Struct, map: &mut Map<String, Value>, at: &PathNode<'_>) -> Result<(), Refusal> {
        let mut drop = HashSet::new();
        for (name, value) in map.iter_mut() {
            let here = at.then(Step::Field(name));
            let Some(field) = schema.field(name) else {
                if self.unknown.len() < MAX_UNKNOWN {
                    self.unknown.push(format!("unknown field \"{}\"", here.shown()));
                }
                drop.insert(name.clone());
                continue;
            };
            if value.is_null() {
                drop.insert(name.clone());
                continue;
            }
            self.value(&field.of, &schema.name, value, &here)?;
        }
        // All at once: removing each would shift the rest.
        if !drop.is_empty() {
            map.retain(|name, _| !drop.contains(name));
        }
        Ok(())
    }

    /// Checks and normalizes one value; `parent` is the name of the enclosing struct.
    fn value(&mut self, of: &Type, parent: &str, value: &mut Value, at: &PathNode<'_>) -> Result<(), Refusal> {
        match (of, &mut *value) {
            (Type::Any | Type::Unknown, _) => Ok(()),
            (_, Value::Null) => {
                // Within a list or a map null is the zero value.
                *value = zero(of);
                Ok(())
            }
            (Type::Struct(schema), Value::Object(map)) => self.fields(schema, map, at),
            (Type::Map(of), Value::Object(map)) => {
                for (key, value) in map.iter_mut() {
                    self.value(of, parent, value, &at.then(Step::Key(key)))?;
                }
                Ok(())
            }
            (Type::List(list), Value::Array(items)) => {
                for (i, item) in items.iter_mut().enumerate() {
                    self.value(&list.item, parent, item, &at.then(Step::Index(i)))?;
                }
                Ok(())
            }
            (Type::String, Value::String(_)) | (Type::Boolean, Value::Bool(_)) => Ok(()),
            (Type::Number, Value::Number(_)) => Ok(()),
            (Type::Integer { bits }, Value::Number(n)) => match integer(n, *bits) {
                Some(i) => {
                    *value = i.into();
                    Ok(())
                }
                None => Err(at.mismatch(parent, of, &format!("number {n}"))),
            },
            (Type::IntOrString, Value::String(_)) => Ok(()),
            (Type::IntOrString, Value::Number(n)) => match integer(n, 32) {
                Some(i) => {
                    *value = i.into();
                    Ok(())
                }
                None => Err(at.mismatch(parent, &Type::Integer { bits: 32 }, &format!("number {n}"))),
            },
            (Type::Quantity, Value::String(_) | Value::Number(_)) => {
                let text = match &*value {
                    Value::String(s) => Cow::Borrowed(s.as_str()),
                    other => Cow::Owned(other.to_string()),
                };
                let parsed = text.parse::<Quantity>();
                let parsed = parsed.map_err(|e| Refusal::plain(format!("{}: {e}", at.shown())))?;
                *value = Value::String(parsed.to_string());
                Ok(())
            }
            (Type::Bytes, Value::String(s)) => {
                let normal = base64_normal(s).map_err(|e| Refusal::plain(format!("{}: {e}", at.shown())))?;
                *s = normal;
                Ok(())
            }
            (Type::Time { micro }, Value::String(s)) => {
                /// The first second representable with a four-digit year, which the format requires.
                const YEAR_0: i64 = -62_167_219_200;
                let parsed = s.parse().ok().filter(|time: &jiff::Timestamp| time.as_second() >= YEAR_0);
                let time = parsed.ok_or_else(|| {
                    let why = "as \"2006-01-02T15:04:05Z07:00\": cannot parse it";
                    Refusal::plain(format!("{}: parsing time {s:?} {why}", at.shown()))
                })?;
                *s = format_time(time, *micro);
                Ok(())
            }
            (_, other) => {
                let got = go_value(other);
                Err(at.mismatch(parent, of, got))
            }
        }
    }
}

/// Upstream's time format: seconds (or exactly six decimals), UTC.
pub fn format_time(time: jiff::Timestamp, micro: bool) -> String {
    if micro {
        time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
    } else {
        time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}

/// An integer within `bits`; YAML may write it as a whole float.
fn integer(n: &serde_json::Number, bits: u8) -> Option<i64> {
    let whole = |f: f64| (f.fract() == 0.0 && f.abs() < 9e15).then_some(f as i64);
    let i = n.as_i64().or_else(|| n.as_f64().filter(|_| n.is_f64()).and_then(whole))?;
    (bits == 64 || i32::try_from(i).is_ok()).then_some(i)
}

/// The offset of Go's decoding error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("illegal base64 data at input byte {0}")]
struct IllegalBase64(usize);

fn base64_normal(text: &str) -> Result<String, IllegalBase64> {
    use base64::Engine;
    let engine = base64::engine::general_purpose::STANDARD;
    let bare: Cow<'_, str> =
        if text.contains(['\r', '\n']) { text.replace(['\r', '\n'], "").into() } else { text.into() };
    match engine.decode(bare.as_ref()) {
        Ok(_) => Ok(bare.into_owned()),
        Err(base64::DecodeError::InvalidByte(at, _)) => Err(IllegalBase64(at)),
        Err(_) => Err(IllegalBase64(bare.len() / 4 * 4)),
    }
}

fn zero(of: &Type) -> Value {
    match of {
        Type::Any | Type::Unknown => Value::Null,
        Type::String | Type::Bytes => "".into(),
        Type::Quantity => "0".into(),
        Type::IntOrString | Type::Integer { .. } | Type::Number => 0.into(),
        Type::Boolean => false.into(),
        Type::List(_) => Value::Array(Vec::new()),
        Type::Time { .. } => Value::Null,
        Type::Map(_) | Type::Struct(_) => Value::Object(Map::new()),
    }
}

/// The type of a value in Go's decoder.
pub fn go_value(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

//! `explain`: documents a kind's fields, from the server's OpenAPI documents.
//!
//! Upstream: `kubectl explain`, with the same output, including its line breaks and omissions. With `--linux`: what the field becomes in
//! the kernel.

use std::process::ExitCode;

use serde_json::Value;

use super::{Outcome, Session, error::Failure, inspect, known, pods, target};
use podwright_api::{Kind, rpc::InspectOptions};

mod linux;

#[derive(clap::Args)]
pub struct Args {
    /// The resource and the path to a field, as pods.spec.containers
    #[arg(value_name = "TYPE[.FIELD...]")]
    of: String,
    /// Print all fields recursively, without descriptions
    #[arg(long)]
    recursive: bool,
    /// Use this API version of the resource, as apps/v1
    #[arg(long, value_name = "GROUP/VERSION")]
    api_version: Option<String>,
    /// Explain which part of the Linux kernel a field of a Pod's spec becomes
    #[arg(long)]
    linux: bool,
    /// With --linux: show its value for this Pod
    #[arg(long, value_name = "NAME", requires = "linux")]
    pod: Option<String>,
    /// With --pod: the container; by default the first
    #[arg(long, short = 'c', value_name = "NAME", requires = "pod")]
    container: Option<String>,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let (kind, fields) = split(&args.of)?;
    let kind = match &args.api_version {
        None => kind,
        Some(version) => known::kinds().of(version, kind.kind).ok_or_else(|| {
            Failure::usage(format!("couldn't find resource for \"{version}, Resource={}\"", kind.plural))
        })?,
    };
    let version = kind.api_version();
    let path = if version.contains('/') { "apis" } else { "api" };
    let document = session.client.raw(&format!("/openapi/v3/{path}/{version}")).await?;
    let document: Value = serde_json::from_slice(&document).map_err(anyhow::Error::from)?;
    match args.linux {
        true => out!("{}", in_linux(&args, session, &document, kind, &fields).await?),
        false => out!("{}", page(&document, kind, &fields, args.recursive).map_err(Failure::usage)?),
    }
    Ok(ExitCode::SUCCESS)
}

/// What a field becomes in the kernel, and what it is for a Pod.
async fn in_linux(
    args: &Args,
    session: &Session,
    document: &Value,
    kind: &Kind,
    fields: &[&str],
) -> Result<String, Failure> {
    let Some(below) = below_spec(kind, fields) else {
        // One that does not exist says so.
        page(document, kind, fields, false).map_err(Failure::usage)?;
        let why = "only what a Pod's spec asks for becomes something of the kernel's: try pod.spec, or its template in other kinds";
        return Err(Failure::usage(why));
    };
    let found = linux::find(below);
    // Amounts have names of their own, which no document lists.
    let is_amount = below.len() > 1 && ["limits", "requests"].contains(&below[below.len() - 2]);
    if !is_amount && found.as_ref().is_none_or(|found| found.is_part(below)) {
        page(document, kind, fields, false).map_err(Failure::usage)?;
    }
    let found = found.ok_or_else(|| Failure::usage(format!("field \"{}\" has no row", below.join("."))))?;
    let field = [&["spec"], below].concat().join(".");
    let Some(name) = &args.pod else { return Ok(linux::page(&field, &found, None)) };
    let pod = pods::one(session, name).await?;
    let view = inspect::view(session, &pod, &InspectOptions::default()).await?;
    let mut containers = view["containers"].as_array().into_iter().flatten().filter_map(|of| of["name"].as_str());
    let container = match &args.container {
        None => containers.next().unwrap_or_default(),
        Some(name) => containers
            .find(|of| of == name)
            .ok_or_else(|| Failure::usage(format!("container {name} is not there in pod {}", pod.name())))?,
    };
    Ok(linux::page(&field, &found, Some((&view, pod.name(), container))))
}

/// The path below the spec of a Pod, or of a Pod's template.
fn below_spec<'a, 'b>(kind: &Kind, fields: &'a [&'b str]) -> Option<&'a [&'b str]> {
    if std::ptr::eq(kind, pods::kind_of("pods")) {
        return fields.strip_prefix(&["spec"]).or(fields.is_empty().then_some(fields));
    }
    let at = fields.windows(2).position(|words| words == ["template", "spec"])?;
    Some(&fields[at + 2..])
}

/// The kind, with the longest possible name (`deployments.apps`), and the following fields.
fn split(of: &str) -> Result<(&'static Kind, Vec<&str>), Failure> {
    let words: Vec<&str> = of.split('.').filter(|word| !word.is_empty()).collect();
    let named = (1..=words.len()).rev().find_map(|n| Some((known::kinds().lookup(&words[..n].join("."))?, n)));
    match named {
        Some((kind, n)) => Ok((kind, words[n..].to_vec())),
        None => Err(target::kind(words.first().copied().unwrap_or(of)).err().unwrap_or_else(|| Failure::usage(of))),
    }
}

/// The documentation of a kind, or of one of its fields.
fn page(document: &Value, kind: &Kind, fields: &[&str], recursive: bool) -> Result<String, String> {
    let version = kind.api_version();
    let version = version.rsplit('/').next().unwrap_or_default();
    let wanted = [kind.group, version, kind.kind];
    let is_it = |row: &Value| [&row["group"], &row["version"], &row["kind"]] == wanted;
    let named =
        |schema: &&Value| schema["x-kubernetes-group-version-kind"].as_array().is_some_and(|all| all.iter().any(is_it));
    let schemas = document["components"]["schemas"].as_object();
    let schema = schemas.into_iter().flat_map(|all| all.values()).find(named);
    let schema = schema.ok_or_else(|| format!("GVK {version}, Kind={} not found in OpenAPI schema", kind.kind))?;
    let mut text = String::new();
    if !kind.group.is_empty() {
        text += &format!("GROUP:      {}\n", kind.group);
    }
    text += &format!("KIND:       {}\nVERSION:    {version}\n\n", kind.kind);
    let page = Page { document, recursive };
    match page.describe(schema, fields, &[]) {
        Some(told) => Ok(text + &told + "\n"),
        None => Err(format!("field \"{}\" does not exist", fields.last().unwrap_or(&""))),
    }
}

/// The document with the schemas, and the level of detail.
struct Page<'a> {
    document: &'a Value,
    recursive: bool,
}

impl<'a> Page<'a> {
    /// The target of a reference, and its name.
    fn resolve(&self, schema: &'a Value) -> (&'a Value, Option<&'a str>) {
        let Some(reference) = schema["$ref"].as_str() else { return (schema, None) };
        let name = reference.rsplit('/').next().unwrap_or_default();
        let found = &self.document["components"]["schemas"][name];
        (if found.is_null() { schema } else { found }, Some(reference))
    }

    /// Follows the fields, then documents the result; `None` if there is no such field. `seen` are the references followed since
    /// the last field.
    fn describe(&self, schema: &'a Value, fields: &[&str], seen: &[&str]) -> Option<String> {
        let (resolved, reference) = self.resolve(schema);
        let Some((first, rest)) = fields.split_first() else { return Some(self.whole(schema, resolved)) };
        if reference.is_some_and(|reference| seen.contains(&reference)) {
            return None;
        }
        let seen: Vec<&str> = seen.iter().copied().chain(reference).collect();
        if let Some(field) = resolved["properties"].get(first) {
            let mut text = String::new();
            if rest.is_empty() {
                text += &format!("FIELD: {first} <{}>\n", self.type_of(field));
                text += &values(field)
                    .map(|all| format!("ENUM:{}", all.map(|v| format!("\n    {v}")).collect::<String>()))
                    .unwrap_or_default();
                text += "\n\n";
            }
            return Some(text + &self.describe(field, rest, &[])?);
        }
        let beneath =
            [&resolved["items"], &resolved["additionalProperties"]].into_iter().find(|inner| inner.is_object());
        match beneath {
            Some(inner) => self.describe(inner, fields, &seen),
            None => resolved["allOf"].as_array()?.iter().find_map(|inner| self.describe(inner, fields, &seen)),
        }
    }

    fn whole(&self, schema: &'a Value, resolved: &'a Value) -> String {
        let mut description = String::new();
        self.descriptions(schema, &mut description);
        let description = if description.is_empty() { "<empty>" } else { &description };
        let mut text = format!("DESCRIPTION:\n{}\n", indented(&wrapped(description, 76), 4));
        let mut fields = String::new();
        self.fields(resolved, 1, &[], &mut fields);
        if !fields.is_empty() {
            text += &format!("FIELDS:\n{fields}");
        }
        text
    }

    /// The descriptions of a schema and its parts.
    fn descriptions(&self, schema: &'a Value, into: &mut String) {
        let (schema, _) = self.resolve(schema);
        if let Some(text) = schema["description"].as_str().filter(|text| !text.is_empty()) {
            *into += &format!("{text}\n");
        }
        let parts = schema["allOf"].as_array().into_iter().flatten();
        let inner = [&schema["items"], &schema["additionalProperties"]].into_iter().filter(|inner| inner.is_object());
        parts.chain(inner).for_each(|part| self.descriptions(part, into));
    }

    /// One entry per field, sorted by name; recursive references end.
    fn fields(&self, schema: &'a Value, level: usize, seen: &[&str], into: &mut String) {
        let (resolved, reference) = self.resolve(schema);
        if reference.is_some_and(|reference| seen.contains(&reference)) {
            return;
        }
        let seen: Vec<&str> = seen.iter().copied().chain(reference).collect();
        let mut properties: Vec<(&String, &Value)> = resolved["properties"].as_object().into_iter().flatten().collect();
        properties.sort_by_key(|(name, _)| *name);
        for (name, field) in properties {
            *into += &self.field(resolved, name, field, level * 2);
            if self.recursive {
                self.fields(field, level + 1, &seen, into);
            }
        }
        let parts = resolved["allOf"].as_array().into_iter().flatten();
        let inner =
            [&resolved["items"], &resolved["additionalProperties"]].into_iter().filter(|inner| inner.is_object());
        parts.chain(inner).for_each(|part| self.fields(part, level, &seen, into));
    }

    fn field(&self, of: &Value, name: &str, field: &'a Value, indent: usize) -> String {
        let mut text = format!("{:indent$}{name}\t<{}>", "", self.type_of(field));
        if of["required"].as_array().is_some_and(|all| all.iter().any(|required| required == name)) {
            text += " -required-";
        }
        if let Some(values) = values(field) {
            let all: Vec<String> = values.collect();
            let more = if all.len() > SHOWN { ", ...." } else { "" };
            text += &format!("\n{:indent$}enum: {}{more}", "", all[..all.len().min(SHOWN)].join(", "));
        }
        text.push('\n');
        if !self.recursive {
            let description =
                field["description"].as_str().filter(|text| !text.is_empty()).unwrap_or("<no description>");
            text += &format!("{}\n\n", indented(&wrapped(description, 78 - indent), indent + 2));
        }
        text
    }

    /// `string`, `[]Container`, `map[string]string`.
    fn type_of(&self, schema: &'a Value) -> String {
        let all_of = schema["allOf"].as_array().map(Vec::as_slice).unwrap_or_default();
        if schema["items"].is_object() {
            return format!("[]{}", self.type_of(&schema["items"]));
        }
        if schema["additionalProperties"].is_object() {
            return format!("map[string]{}", self.type_of(&schema["additionalProperties"]));
        }
        if let ([one], None) = (all_of, schema.get("properties")) {
            return self.type_of(one);
        }
        let (resolved, reference) = self.resolve(schema);
        match (resolved["type"].as_str(), reference) {
            (None | Some("object"), Some(reference)) => {
                reference.rsplit(['/', '.']).next().filter(|name| !name.is_empty()).unwrap_or("Object").to_owned()
            }
            (None | Some("object"), None) => "Object".to_owned(),
            (Some(simple), _) => simple.to_owned(),
        }
    }
}

/// How many values of a field are listed.
const SHOWN: usize = 4;

/// The enumerated values of a field, if any.
fn values(schema: &Value) -> Option<impl Iterator<Item = String>> {
    let shown = |value: &Value| match value {
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Some(schema["enum"].as_array().filter(|all| !all.is_empty())?.iter().map(shown))
}

fn indented(text: &str, by: usize) -> String {
    let margin = " ".repeat(by);
    margin.clone() + &text.replace('\n', &format!("\n{margin}"))
}

/// Wraps lines between words, at `limit` if possible; existing line breaks stay.
fn wrapped(text: &str, limit: usize) -> String {
    let (mut out, mut column) = (String::with_capacity(text.len()), 0);
    let (mut word, mut space) = (String::new(), String::new());
    let length = |text: &str| text.chars().count();
    for c in text.chars() {
        if c == '\n' {
            if !word.is_empty() || column + length(&space) <= limit {
                out += &space;
            }
            out += &word;
            out.push('\n');
            (column, word, space) = (0, String::new(), String::new());
        } else if c.is_whitespace() && c != '\u{a0}' {
            if space.is_empty() || !word.is_empty() {
                column += length(&space) + length(&word);
                out += &space;
                out += &word;
                (word, space) = (String::new(), String::new());
            }
            space.push(c);
        } else {
            word.push(c);
            if column + length(&space) + length(&word) > limit && length(&word) < limit {
                out.push('\n');
                (column, space) = (0, String::new());
            }
        }
    }
    if !word.is_empty() || column + length(&space) <= limit {
        out += &space;
    }
    out + &word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_folded_between_words() {
        assert_eq!(wrapped("one two three", 8), "one two\nthree");
        assert_eq!(wrapped("one  two\n three", 8), "one  two\n three");
        assert_eq!(wrapped("seventeen is long", 4), "seventeen\nis\nlong");
        assert_eq!(indented("a\nb", 2), "  a\n  b");
    }

    #[test]
    fn types_are_named_as_people_name_them() {
        let document = serde_json::json!({"components": {"schemas": {"io.k8s.A": {"type": "object"}, "io.k8s.Time": {"type": "string"}}}});
        let page = Page { document: &document, recursive: false };
        let of = |schema: Value| page.type_of(Box::leak(Box::new(schema)));
        assert_eq!(of(serde_json::json!({"items": {"$ref": "#/components/schemas/io.k8s.A"}})), "[]A");
        assert_eq!(of(serde_json::json!({"allOf": [{"$ref": "#/components/schemas/io.k8s.Time"}]})), "string");
        assert_eq!(of(serde_json::json!({"additionalProperties": {"type": "string"}})), "map[string]string");
        assert_eq!(of(serde_json::json!({"x-kubernetes-preserve-unknown-fields": true})), "Object");
        assert_eq!(of(serde_json::json!({"type": "integer"})), "integer");
    }
}

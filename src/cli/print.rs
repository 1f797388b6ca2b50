//! Output formats: tables, YAML, JSON, names, JSONPath.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    error::Failure,
    jsonpath::{self, TemplateError},
    page::plain,
    target,
};
use podwright_api::{Kind, Object, yaml};

/// The value of `-o`.
#[derive(Clone, Debug, Default)]
pub enum Format {
    #[default]
    Table,
    Wide,
    Yaml,
    Json,
    Name,
    JsonPath(jsonpath::Template),
    /// Heading and path of each column.
    CustomColumns(Vec<(String, jsonpath::Template)>),
}

/// Why a format is invalid, in kubectl's words.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error(
        "unable to match a printer suitable for the output format \"{0}\", allowed formats are: \
         custom-columns,json,jsonpath,jsonpath-file,name,wide,yaml"
    )]
    Unknown(String),
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The template's file cannot be read.
    #[error("reading {file}: {why}")]
    File { file: String, why: std::io::Error },
    /// A column has no path.
    #[error("custom-columns wants HEADING:PATH,...")]
    Columns,
}

impl std::str::FromStr for Format {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Format, FormatError> {
        let (name, argument) = text.split_once('=').map_or((text, None), |(n, a)| (n, Some(a)));
        match (name, argument) {
            ("wide", None) => Ok(Format::Wide),
            ("yaml", None) => Ok(Format::Yaml),
            ("json", None) => Ok(Format::Json),
            ("name", None) => Ok(Format::Name),
            ("jsonpath", Some(template)) => Ok(Format::JsonPath(template.parse()?)),
            ("jsonpath-file", Some(file)) => {
                let template = std::fs::read_to_string(file);
                let template = template.map_err(|why| FormatError::File { file: file.to_owned(), why })?;
                Ok(Format::JsonPath(template.parse()?))
            }
            ("custom-columns", Some(columns)) => columns
                .split(',')
                .map(|column| {
                    let (heading, path) = column.split_once(':').ok_or(FormatError::Columns)?;
                    Ok((heading.to_owned(), format!("{{{}}}", path.trim_matches(['{', '}'])).parse()?))
                })
                .collect::<Result<_, FormatError>>()
                .map(Format::CustomColumns),
            _ => Err(FormatError::Unknown(text.to_owned())),
        }
    }
}

/// One object in a format other than a table, without managedFields where these would dominate.
pub fn object(format: &Format, object: &Object) -> Result<String, Failure> {
    if !matches!(format, Format::Yaml | Format::Json) {
        return whole(format, object);
    }
    let mut brief = object.0.clone();
    forget_managers(&mut brief);
    brief.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten().for_each(forget_managers);
    whole(format, &Object(brief))
}

fn forget_managers(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}

/// [`object`] with all fields.
pub fn whole(format: &Format, object: &Object) -> Result<String, Failure> {
    match format {
        Format::Yaml => yaml::to_string(&object.0).map_err(Failure::usage),
        Format::Json => json_text(&object.0).map_err(Failure::usage),
        Format::JsonPath(template) => template.render(&object.0).map_err(Failure::usage),
        _ => Ok(format!("{}\n", name(object))),
    }
}

/// JSON in kubectl's format: sorted keys, four spaces per level.
fn json_text(value: &Value) -> Result<String, String> {
    let mut text = Vec::new();
    let layout = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut writer = serde_json::Serializer::with_formatter(&mut text, layout);
    serde::Serialize::serialize(&yaml::sorted(value), &mut writer).map_err(|e| e.to_string())?;
    text.push(b'\n');
    String::from_utf8(text).map_err(|e| e.to_string())
}

/// Several objects as one `List`, for `get` in YAML, JSON and JSONPath.
pub fn list(objects: Vec<Object>) -> Object {
    let items: Vec<Value> = objects.into_iter().map(|o| o.0).collect();
    Object(json!({ "apiVersion": "v1", "items": items, "kind": "List", "metadata": { "resourceVersion": "" } }))
}

/// `pod/x`, `deployment.apps/y`.
pub fn name(object: &Object) -> String {
    match super::known::kinds().of(object.api_version(), object.kind()) {
        Some(kind) => target::display(kind, object.name()),
        None => format!("{}/{}", object.kind().to_lowercase(), object.name()),
    }
}

/// The layout of a table in addition to its kind's columns.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    pub wide: bool,
    pub namespaces: bool,
    pub no_headers: bool,
    pub show_labels: bool,
    /// `-L`: labels with columns of their own.
    pub label_columns: Vec<String>,
    /// Names are shown as `pod/x`, because there are several kinds.
    pub prefix: bool,
}

/// Formats rows of cells as aligned lines. Remembers column widths, so that watched rows stay aligned.
#[derive(Default)]
pub struct Table {
    widths: Vec<usize>,
}

impl Table {
    /// The rows as lines: columns separated by three spaces, the last one unpadded.
    pub fn render(&mut self, rows: &[Vec<String>]) -> String {
        let rows: Vec<Vec<_>> = rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
        for row in &rows {
            self.widths.resize(self.widths.len().max(row.len()), 0);
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        for row in &rows {
            let last = row.len().saturating_sub(1);
            for (at, (cell, width)) in row.iter().zip(&self.widths).enumerate() {
                // Writing to a String cannot fail.
                let _ = if at == last { writeln!(text, "{cell}") } else { write!(text, "{cell:width$}   ") };
            }
        }
        text
    }
}

/// The column headings of a kind's table.
pub fn headings(kind: &Kind, layout: &Layout) -> Vec<String> {
    let mut row = Vec::new();
    if layout.namespaces && kind.namespaced {
        row.push("NAMESPACE".to_owned());
    }
    row.extend(kind.columns().iter().filter(|c| layout.wide || !c.wide).map(|c| c.name.clone().into_owned()));
    row.extend(layout.label_columns.iter().map(|l| l.rsplit('/').next().unwrap_or(l).to_uppercase()));
    if layout.show_labels {
        row.push("LABELS".to_owned());
    }
    row
}

/// An object's row in its kind's table.
pub fn row(kind: &Kind, layout: &Layout, object: &Object, now: Timestamp) -> Vec<String> {
    let mut row = Vec::new();
    if layout.namespaces && kind.namespaced {
        row.push(object.namespace().unwrap_or("").to_owned());
    }
    for column in kind.columns().iter().filter(|c| layout.wide || !c.wide) {
        let cell = column.text(object, now);
        let prefixed = layout.prefix && column.name == "NAME";
        row.push(if prefixed { format!("{}/{cell}", target::singular(kind)) } else { cell });
    }
    row.extend(layout.label_columns.iter().map(|l| object.label(l).unwrap_or("").to_owned()));
    if layout.show_labels {
        let labels = object.labels().into_iter().flatten();
        let pairs: Vec<String> = labels.map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or(""))).collect();
        row.push(if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(",") });
    }
    row
}

/// Rows of `-o custom-columns`.
pub fn custom(columns: &[(String, jsonpath::Template)], objects: &[Object], no_headers: bool) -> String {
    let cell = |object: &Object, path: &jsonpath::Template| match path.values(&object.0) {
        values if values.is_empty() => "<none>".to_owned(),
        values => values.iter().map(|v| jsonpath::text(v)).collect::<Vec<_>>().join(","),
    };
    let mut rows = Vec::new();
    if !no_headers {
        rows.push(columns.iter().map(|(heading, _)| heading.clone()).collect());
    }
    rows.extend(objects.iter().map(|o| columns.iter().map(|(_, path)| cell(o, path)).collect()));
    Table::default().render(&rows)
}

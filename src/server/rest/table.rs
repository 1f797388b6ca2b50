//! Other representations of objects: Tables from the kinds' columns, and metadata alone.

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::lists::{self, Listed};
use podwright_api::columns::{AGE, Cell, Column, Columns, LONGEST_CELL, NAME, cut, number, text, wide};
use podwright_api::request::List;
use podwright_api::{Kind, Object, Status};

/// The part of an object in a row: the parameter `includeObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Include {
    Nothing,
    Metadata,
    Object,
}

impl Include {
    pub fn parse(text: Option<&str>) -> Result<Include, Status> {
        match text {
            None | Some("Metadata") => Ok(Include::Metadata),
            Some("None") => Ok(Include::Nothing),
            Some("Object") => Ok(Include::Object),
            Some(other) => {
                let why =
                    format!("includeObject: Unsupported value: {other:?}: supported values: None, Metadata, Object");
                Err(Status::bad_request(why))
            }
        }
    }
}

/// Converts a kind's objects to tables.
#[derive(Clone, Copy)]
pub struct Tabulator {
    pub kind: &'static Kind,
    pub include: Include,
    pub now: Timestamp,
}

/// The columns of a Scale of any object.
const SCALE: &[Column] = &[
    NAME,
    podwright_api::columns::column("DESIRED", |o, _| number(o, "spec.replicas").to_string()),
    podwright_api::columns::column("AVAILABLE", |o, _| number(o, "status.replicas").to_string()),
    AGE,
    wide("SELECTOR", |o, _| text(o, "status.selector")),
];
const PLAIN: &[Column] = &[NAME, AGE];

impl Tabulator {
    /// The Table of one object.
    pub fn one(&self, bytes: &[u8], with_head: bool) -> Result<Bytes, Status> {
        let object = Object::from_slice(bytes)?;
        let columns = self.columns(&object);
        let metadata = json!({"resourceVersion": object.resource_version()});
        let row = self.row(&columns, object, bytes.len()).to_string();
        let head = head(metadata, with_head.then_some(&*columns));
        Ok(Listed { head, field: "rows", items: vec![row.into()] }.json().into())
    }

    /// The Table of a page of a list.
    pub async fn list(&self, list: &List) -> Result<Listed, Status> {
        let mut metadata = json!({"resourceVersion": list.resource_version});
        if !list.continue_token.is_empty() {
            metadata["continue"] = list.continue_token.as_str().into();
        }
        if let Some(remaining) = list.remaining_item_count {
            metadata["remainingItemCount"] = remaining.into();
        }
        let columns = self.kind.columns();
        let row = |item: &Bytes| {
            let row = self.row(&columns, Object::from_slice(item)?, item.len());
            Ok(Bytes::from(row.to_string()))
        };
        let rows = lists::each(&list.items, row).await?;
        Ok(Listed { head: head(metadata, Some(&columns)), field: "rows", items: rows })
    }

    fn columns(&self, object: &Object) -> Columns {
        match object.kind() {
            kind if (object.api_version(), kind) == (&self.kind.api_version(), self.kind.kind) => self.kind.columns(),
            "Scale" => Columns::Fixed(SCALE),
            _ => Columns::Fixed(PLAIN),
        }
    }

    /// The row of an object of this size. A CRD's columns together show no more than that, or than a cell may have: each may show
    /// the same.
    fn row(&self, columns: &[Column], object: Object, size: usize) -> Value {
        let mut left = size.max(LONGEST_CELL);
        let cell = |column: &Column| match (&column.cell, column.value(&object, self.now)) {
            (Cell::Defined(_), Value::String(text)) => {
                let text = cut(&text, left);
                left = left.saturating_sub(text.len());
                text.into()
            }
            (_, value) => value,
        };
        let cells: Vec<Value> = columns.iter().map(cell).collect();
        match self.include {
            Include::Nothing => json!({"cells": cells}),
            Include::Metadata => json!({"cells": cells, "object": partial(object)}),
            Include::Object => json!({"cells": cells, "object": object.0}),
        }
    }
}

/// A Table without its rows.
fn head(metadata: Value, columns: Option<&[Column]>) -> Map<String, Value> {
    let head: Vec<Value> = columns.into_iter().flatten().map(definition).collect();
    let fields = [
        ("kind", "Table".into()),
        ("apiVersion", "meta.k8s.io/v1".into()),
        ("metadata", metadata),
        ("columnDefinitions", head.into()),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn definition(column: &Column) -> Value {
    if let Cell::Defined(defined) = &column.cell {
        return json!({
            "name": &*column.name, "type": &*defined.of, "format": &*defined.format, "priority": defined.priority,
            "description": &*defined.description,
        });
    }
    let name = &*column.name;
    let format = if name == "NAME" { "name" } else { "" };
    json!({
        "name": title(name), "type": "string", "format": format, "description": "",
        "priority": i32::from(column.wide),
    })
}

/// `NOMINATED NODE` in upstream's form: `Nominated Node`; short words are abbreviations.
fn title(name: &str) -> String {
    let word = |word: &str| match word.len() {
        0..=2 => word.to_owned(),
        _ => word[..1].to_owned() + &word[1..].to_lowercase(),
    };
    match name.is_ascii() {
        true => name.split(' ').map(word).collect::<Vec<_>>().join(" "),
        false => name.to_owned(),
    }
}

/// `PartialObjectMetadata` of an object.
fn partial(mut object: Object) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object.0["metadata"].take()})
}

/// The metadata of an object, as its original bytes.
#[derive(Deserialize)]
struct Described<'a> {
    #[serde(borrow)]
    metadata: &'a RawValue,
}

/// The metadata of one object.
pub fn metadata_of(bytes: &[u8]) -> Result<Bytes, Status> {
    let object: Described<'_> = serde_json::from_slice(bytes).map_err(Status::internal)?;
    let head = "{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":";
    Ok([head, object.metadata.get(), "}"].concat().into())
}

/// The metadata of a list's items.
pub async fn metadata_of_list(list: &List) -> Result<Listed, Status> {
    let items = lists::each(&list.items, |item| metadata_of(item)).await?;
    let mut listed = lists::listed(list, items);
    listed.head.insert("kind".into(), "PartialObjectMetadataList".into());
    listed.head.insert("apiVersion".into(), "meta.k8s.io/v1".into());
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::title;

    #[test]
    fn column_names_are_written_as_upstream_writes_them() {
        for (ours, upstream) in
            [("NAME", "Name"), ("UP-TO-DATE", "Up-to-date"), ("NOMINATED NODE", "Nominated Node"), ("IP", "IP")]
        {
            assert_eq!(title(ours), upstream);
        }
    }
}

//! Whether a manifest can be merged: the items of its lists must be told apart.

use std::collections::HashSet;

use serde_json::Value;

use super::element;
use super::walk::{Place, Shape};
use crate::api::Object;
use crate::api::schema::Struct;

/// The keys that an item of a manifest's list lacks, or shares with another item: such a list cannot be merged.
pub fn check(schema: &Struct, config: &Object) -> Result<(), String> {
    checked(Shape::Struct(schema), &config.0).map_err(|Unmergeable { path, why }| {
        let steps: Vec<String> = path.iter().rev().map(|element| element::shown(element)).collect();
        format!("{}: {why}", steps.concat())
    })
}

/// A list that cannot be merged.
struct Unmergeable {
    /// Where it is, the last step first: it is put together only once there is something to tell.
    path: Vec<Box<str>>,
    why: String,
}

impl Unmergeable {
    fn here(why: String) -> Unmergeable {
        Unmergeable { path: Vec::new(), why }
    }
    fn below(mut self, element: Box<str>) -> Unmergeable {
        self.path.push(element);
        self
    }
}

fn checked(shape: Shape<'_>, value: &Value) -> Result<(), Unmergeable> {
    match (&shape, value) {
        (Shape::Struct(_) | Shape::Map(_), Value::Object(map)) => {
            for (name, value) in map {
                checked(shape.field(name).shape(), value).map_err(|why| why.below(element::field(name)))?;
            }
        }
        (Shape::List(list), Value::Array(items)) => {
            let mut seen: HashSet<Box<str>> = HashSet::with_capacity(items.len());
            for (i, item) in items.iter().enumerate() {
                let Some(element) = element::item(list, item) else {
                    let missing = list.kind.keys().iter().find(|key| item[**key].is_null()).unwrap_or(&"");
                    return Err(Unmergeable::here(format!(
                        "element {i}: associative list with keys has an element that omits key field {missing:?} \
                         (and doesn't have default value)"
                    )));
                };
                if seen.contains(&element) {
                    let why = format!("duplicate entries for key {}", element::shown(&element));
                    return Err(Unmergeable::here(why));
                }
                checked(Place::of(&list.item).shape(), item).map_err(|why| why.below(element.clone()))?;
                seen.insert(element);
            }
        }
        _ => {}
    }
    Ok(())
}

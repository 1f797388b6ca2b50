//! Strategic merge patch: lists of named things merge by their keys, and directives say what a plain merge cannot.
//!
//! <https://github.com/kubernetes/community/blob/master/contributors/devel/sig-api-machinery/strategic-merge-patch.md>

use serde_json::{Map, Value};

use super::order::{Keys, arrange};
use crate::api::Status;
use crate::api::schema::{Struct, Type};

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// Applies a patch to an object of the schema.
pub fn merge(schema: &Struct, target: &Value, patch: &Value) -> Result<Value, Status> {
    let Value::Object(patch) = patch else { return Err(Status::bad_request("the patch is not a JSON object")) };
    let target = target.as_object().cloned().unwrap_or_default();
    merge_map(Some(schema), target, patch).map(Value::Object)
}

/// `schema` is `None` inside maps and untyped values, where lists are replaced.
fn merge_map(
    schema: Option<&Struct>,
    mut target: Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<Map<String, Value>, Status> {
    match patch.get(PATCH).map(|d| d.as_str().unwrap_or("")) {
        Some("replace") => return Ok(cleaned(patch)),
        Some("delete") => return Ok(Map::new()),
        Some("merge") | None => {}
        Some(other) => return Err(unknown_directive(other)),
    }
    retain(&mut target, patch)?;
    for (key, value) in patch {
        if let Some(field) = key.strip_prefix(DELETE_FROM) {
            delete_from(&mut target, field, value)?;
        }
    }
    for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        if value.is_null() {
            target.shift_remove(key);
            continue;
        }
        let field = schema.and_then(|s| s.field(key));
        let before = target.shift_remove_with_place(key);
        let (place, before) = before.map_or((None, None), |(i, v)| (Some(i), Some(v)));
        let order = patch.get(&format!("{SET_ORDER}{key}"));
        let merged = match field {
            Some(field) if field.replace => cleaned_value(value.clone()),
            _ => merge_value(field.map(|f| &f.of), before, value, order)?,
        };
        match place {
            Some(i) => target.shift_insert(i, key.clone(), merged),
            None => target.insert(key.clone(), merged),
        };
    }
    // An order may come alone, for a list whose items did not change.
    for (key, order) in patch {
        let Some(field) = key.strip_prefix(SET_ORDER).filter(|f| !patch.contains_key(*f)) else { continue };
        let of = schema.and_then(|s| s.field(field)).map(|f| &f.of);
        if let (Some(merge_key), Some(Value::Array(items))) = (of.and_then(merge_key), target.get_mut(field)) {
            let before = std::mem::take(items);
            *items = in_order(before.clone(), order, &before, merge_key);
        }
    }
    Ok(target)
}

/// Removal that remembers where the entry was, so that a changed field keeps its place.
trait RemoveWithPlace {
    fn shift_remove_with_place(&mut self, key: &str) -> Option<(usize, Value)>;
}
impl RemoveWithPlace for Map<String, Value> {
    fn shift_remove_with_place(&mut self, key: &str) -> Option<(usize, Value)> {
        let place = self.keys().position(|k| k == key)?;
        Some((place, self.shift_remove(key)?))
    }
}

fn merge_key(of: &Type) -> Option<&'static str> {
    match of {
        Type::List(list) => list.kind.merge_key,
        _ => None,
    }
}

fn merge_value(
    of: Option<&Type>,
    before: Option<Value>,
    patch: &Value,
    order: Option<&Value>,
) -> Result<Value, Status> {
    match (before, patch) {
        (before, Value::Object(patch)) => {
            let schema = match of {
                Some(Type::Struct(s)) => Some(s.as_ref()),
                _ => None,
            };
            let before = match before {
                Some(Value::Object(map)) => map,
                _ => Map::new(),
            };
            merge_map(schema, before, patch).map(Value::Object)
        }
        (before, Value::Array(patch)) => {
            let before = match before {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            };
            match (of, of.and_then(merge_key)) {
                (Some(Type::List(list)), Some(key)) => merge_list(&list.item, key, before, patch, order),
                _ => Ok(Value::Array(patch.iter().map(|v| cleaned_value(v.clone())).collect())),
            }
        }
        (_, plain) => Ok(plain.clone()),
    }
}

fn merge_list(
    item: &Type,
    key: &str,
    before: Vec<Value>,
    patch: &[Value],
    order: Option<&Value>,
) -> Result<Value, Status> {
    let mut merged = before.clone();
    if key.is_empty() {
        for value in patch.iter().filter(|v| !v.is_null()) {
            if !merged.contains(value) {
                merged.push(value.clone());
            }
        }
    } else if patch.iter().any(|p| p[PATCH] == "replace") {
        let kept = patch.iter().filter(|p| p.get(PATCH).is_none());
        return Ok(Value::Array(kept.map(|p| cleaned_value(p.clone())).collect()));
    } else {
        for change in patch {
            merge_item(item, key, &mut merged, change)?;
        }
    }
    let own = Value::Array(patch.to_vec());
    if let Some(order) = order {
        check_order(patch, order, key)?;
    }
    Ok(Value::Array(in_order(merged, order.unwrap_or(&own), &before, key)))
}

/// One item of a patch's list: deleted, merged into the item with its key, or added.
fn merge_item(item: &Type, key: &str, merged: &mut Vec<Value>, change: &Value) -> Result<(), Status> {
    let keys = [key];
    let keys = Keys(&keys, None);
    if change[key].is_null() {
        let why = format!("map: {change} does not contain declared merge key: {key}");
        return Err(Status::failure(422, "Invalid", why));
    }
    let is_it = |v: &Value| keys.same(v, change);
    match change.get(PATCH).map(|d| d.as_str().unwrap_or("")) {
        Some("delete") => merged.retain(|v| !is_it(v)),
        Some("merge") | None => match merged.iter_mut().find(|v| is_it(v)) {
            Some(found) => *found = merge_value(Some(item), Some(found.take()), change, None)?,
            None => merged.push(merge_value(Some(item), None, change, None)?),
        },
        Some(other) => return Err(unknown_directive(other)),
    }
    Ok(())
}

/// A patch that says an order has its own items in it.
fn check_order(patch: &[Value], order: &Value, key: &str) -> Result<(), Status> {
    let one = [key];
    let keys = Keys(if key.is_empty() { &[] } else { &one }, None);
    let list = order.as_array().map(Vec::as_slice).unwrap_or_default();
    let kept = patch.iter().filter(|p| p[PATCH] != "delete");
    let places: Vec<Option<usize>> = kept.map(|p| keys.find(list, p)).collect();
    if places.iter().all(Option::is_some) && places.is_sorted() {
        return Ok(());
    }
    let patch = Value::Array(patch.to_vec());
    Err(Status::bad_request(format!(
        "The order in patch list:\n{patch}\n doesn't match $setElementOrder list:\n{order}\n"
    )))
}

/// `order` names the items by key (`[{name: a}, {name: b}]`), or lists plain values.
fn in_order(merged: Vec<Value>, order: &Value, before: &[Value], key: &str) -> Vec<Value> {
    let wanted = order.as_array().map(Vec::as_slice).unwrap_or_default();
    let one = [key];
    arrange(merged, wanted, before, Keys(if key.is_empty() { &[] } else { &one }, None))
}

/// `$retainKeys`: what it does not name goes.
fn retain(target: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<(), Status> {
    let Some(keys) = patch.get(RETAIN) else { return Ok(()) };
    let Some(keys) = keys.as_array() else {
        return Err(Status::bad_request("invalid patch format of retainKeys: it is not a list"));
    };
    let named = |key: &String| keys.iter().any(|k| k.as_str() == Some(key.as_str()));
    if patch.iter().any(|(key, value)| !key.starts_with('$') && !value.is_null() && !named(key)) {
        return Err(Status::bad_request("the retainKeys list does not contain all keys of the patch"));
    }
    target.retain(|key, _| named(key));
    Ok(())
}

fn delete_from(target: &mut Map<String, Value>, field: &str, values: &Value) -> Result<(), Status> {
    let Some(values) = values.as_array() else {
        return Err(Status::bad_request("invalid patch format of primitive list: it is not a list"));
    };
    if let Some(Value::Array(items)) = target.get_mut(field) {
        items.retain(|item| !values.contains(item));
    }
    Ok(())
}

fn unknown_directive(name: &str) -> Status {
    Status::bad_request(format!("unknown patch type: {name}"))
}

/// A patch as a value: without directives and nulls.
fn cleaned(patch: &Map<String, Value>) -> Map<String, Value> {
    let kept = patch.iter().filter(|(key, value)| !key.starts_with('$') && !value.is_null());
    kept.map(|(key, value)| (key.clone(), cleaned_value(value.clone()))).collect()
}

fn cleaned_value(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(cleaned(&map)),
        other => other,
    }
}

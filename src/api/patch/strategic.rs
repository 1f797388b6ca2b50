//! Strategic merge patch: lists with merge keys are merged by item, and directives express what a plain merge cannot.
//!
//! <https://github.com/kubernetes/community/blob/master/contributors/devel/sig-api-machinery/strategic-merge-patch.md>

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::order::{Keys, arrange};
use super::refused;
use crate::Status;
use crate::object::length;
use crate::schema::{Struct, Type};

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// The most bytes of items that a patch may merge into repeatedly: it may name one key many times, each of which processes the
/// whole item. The same limit as for copies in JSON patches: a manifest kept as an annotation by `kubectl apply` has at most a
/// twelfth of it.
const MAX_MERGED_AGAIN: usize = 3 << 20;

/// Applies a patch to an object of the schema.
pub fn merge(schema: &Struct, target: &Value, patch: &Value) -> Result<Value, Status> {
    let Value::Object(patch) = patch else { return Err(Status::bad_request("the patch is not a JSON object")) };
    let target = target.as_object().cloned().unwrap_or_default();
    Merge { again: 0 }.map(Some(schema), target, patch).map(Value::Object)
}

/// One patch being applied.
struct Merge {
    /// The bytes of items that it merged into repeatedly.
    again: usize,
}

impl Merge {
    /// `schema` is `None` inside maps and untyped values, where lists are replaced.
    fn map(
        &mut self,
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
        target.retain(|key, _| key.starts_with('$') || !patch.get(key).is_some_and(Value::is_null));
        for (key, value) in patch.iter().filter(|(key, value)| !key.starts_with('$') && !value.is_null()) {
            let field = schema.and_then(|s| s.field(key));
            // Merged members keep their position.
            let before = target.get_mut(key).map(Value::take);
            let order = patch.get(&format!("{SET_ORDER}{key}"));
            let merged = match field {
                Some(field) if field.replace => cleaned_value(value.clone()),
                _ => self.value(field.map(|f| &f.of), before, value, order)?,
            };
            target.insert(key.clone(), merged);
        }
        // `$setElementOrder` may come alone, for a list whose items did not change.
        for (key, order) in patch {
            let Some(field) = key.strip_prefix(SET_ORDER).filter(|f| !patch.contains_key(*f)) else { continue };
            let of = schema.and_then(|s| s.field(field)).map(|f| &f.of);
            if let (Some(merge_key), Some(Value::Array(items))) = (of.and_then(merge_key), target.get_mut(field)) {
                let before = std::mem::take(items);
                *items = in_order(before.clone(), as_list(order), &before, merge_key);
            }
        }
        Ok(target)
    }

    fn value(
        &mut self,
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
                self.map(schema, before, patch).map(Value::Object)
            }
            (before, Value::Array(patch)) => {
                let before = match before {
                    Some(Value::Array(items)) => items,
                    _ => Vec::new(),
                };
                match (of, of.and_then(merge_key)) {
                    (Some(Type::List(list)), Some(key)) => self.list(&list.item, key, before, patch, order),
                    _ => Ok(Value::Array(patch.iter().map(|v| cleaned_value(v.clone())).collect())),
                }
            }
            (_, plain) => Ok(plain.clone()),
        }
    }

    fn list(
        &mut self,
        item: &Type,
        key: &str,
        before: Vec<Value>,
        patch: &[Value],
        order: Option<&Value>,
    ) -> Result<Value, Status> {
        let merged = if key.is_empty() {
            let mut seen: HashSet<&Value> = before.iter().collect();
            let new = patch.iter().filter(|v| !v.is_null() && seen.insert(v));
            before.iter().chain(new).cloned().collect()
        } else if patch.iter().any(|p| p[PATCH] == "replace") {
            let kept = patch.iter().filter(|p| p.get(PATCH).is_none());
            return Ok(Value::Array(kept.map(|p| cleaned_value(p.clone())).collect()));
        } else {
            self.items(item, key, &before, patch)?
        };
        if let Some(order) = order {
            check_order(patch, order, key)?;
        }
        Ok(Value::Array(in_order(merged, order.map_or(patch, as_list), &before, key)))
    }

    /// Applies a patch to the items of a list: each patch item is deleted, merged by key, or added.
    fn items(&mut self, item: &Type, key: &str, before: &[Value], patch: &[Value]) -> Result<Vec<Value>, Status> {
        let mut merged: Vec<Option<Value>> = before.iter().cloned().map(Some).collect();
        let mut places: HashMap<&Value, Vec<usize>> = HashMap::with_capacity(before.len());
        let mut touched = HashSet::new();
        for (place, item) in before.iter().enumerate() {
            places.entry(&item[key]).or_default().push(place);
        }
        for change in patch {
            if change[key].is_null() {
                let why = format!("map: {change} does not contain declared merge key: {key}");
                return Err(Status::failure(422, "Invalid", why));
            }
            let found = places.entry(&change[key]).or_default();
            match change.get(PATCH).map(|d| d.as_str().unwrap_or("")) {
                Some("delete") => found.drain(..).for_each(|place| merged[place] = None),
                Some("merge") | None => {
                    let place = found.first().copied();
                    let old = place.and_then(|place| merged[place].take());
                    if place.is_some_and(|place| place >= before.len() || !touched.insert(place)) {
                        self.pay(old.as_ref())?;
                    }
                    let new = Some(self.value(Some(item), old, change, None)?);
                    match place {
                        Some(place) => merged[place] = new,
                        None => {
                            found.push(merged.len());
                            merged.push(new);
                        }
                    }
                }
                Some(other) => return Err(unknown_directive(other)),
            }
        }
        Ok(merged.into_iter().flatten().collect())
    }

    /// Charges for merging repeatedly into an item.
    fn pay(&mut self, item: Option<&Value>) -> Result<(), Status> {
        self.again += item.map_or(0, length);
        match self.again > MAX_MERGED_AGAIN {
            true => Err(refused(format!("its items that share a key merge into more than {MAX_MERGED_AGAIN} bytes"))),
            false => Ok(()),
        }
    }
}

fn merge_key(of: &Type) -> Option<&'static str> {
    match of {
        Type::List(list) => list.kind.merge_key,
        _ => None,
    }
}

/// A list with `$setElementOrder` must only contain items of that order.
fn check_order(patch: &[Value], order: &Value, key: &str) -> Result<(), Status> {
    let one = [key];
    let keys = Keys(if key.is_empty() { &[] } else { &one }, None);
    let kept = patch.iter().filter(|p| p[PATCH] != "delete");
    let list = keys.index(as_list(order));
    let places: Vec<Option<usize>> = kept.map(|p| list.find(p)).collect();
    if places.iter().all(Option::is_some) && places.is_sorted() {
        return Ok(());
    }
    let patch = Value::Array(patch.to_vec());
    Err(Status::bad_request(format!(
        "The order in patch list:\n{patch}\n doesn't match $setElementOrder list:\n{order}\n"
    )))
}

fn as_list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// `order` lists the items' keys (`[{name: a}, {name: b}]`), or plain values.
fn in_order(merged: Vec<Value>, order: &[Value], before: &[Value], key: &str) -> Vec<Value> {
    let one = [key];
    arrange(merged, order, before, Keys(if key.is_empty() { &[] } else { &one }, None))
}

/// `$retainKeys`: removes all other keys.
fn retain(target: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<(), Status> {
    let Some(keys) = patch.get(RETAIN) else { return Ok(()) };
    let Some(keys) = keys.as_array() else {
        return Err(Status::bad_request("invalid patch format of retainKeys: it is not a list"));
    };
    let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let named = |key: &String| keys.contains(key.as_str());
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
        let values: HashSet<&Value> = values.iter().collect();
        items.retain(|item| !values.contains(item));
    }
    Ok(())
}

fn unknown_directive(name: &str) -> Status {
    Status::bad_request(format!("unknown patch type: {name}"))
}

/// A patch as a value, without directives and nulls.
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

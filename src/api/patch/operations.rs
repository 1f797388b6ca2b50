//! JSON patch (RFC 6902), with two extensions of upstream's library that clients rely on.
//! - `test` for null succeeds if the map has no such key: client libraries add a first finalizer this way without losing another.
//! - A negative index counts from a list's end: `/spec/containers/-1` is the last container, and `add` appends after it.

use json_patch::jsonptr::{Pointer, PointerBuf};
use json_patch::{Patch, PatchOperation};
use serde_json::Value;

use super::refused;
use crate::Status;
use crate::object::{MAX_NESTED, nests_within};

/// The most operations of one JSON patch, and bytes that all of its copies together may add, upstream's limits.
const MAX_OPERATIONS: usize = 10_000;
const MAX_COPIED: usize = 3 << 20;

/// The most items that all operations together may move: adding or removing at a list's beginning moves all others, and moving
/// something deeper traverses it.
const MAX_MOVED: usize = 20_000_000;

/// Applies the patch to `target`. An invalid patch is a BadRequest, one that does not apply is Invalid, as upstream.
pub fn json(target: &Value, patch: &Value) -> Result<Value, Status> {
    if let Some(got) = patch.as_array().map(Vec::len).filter(|n| *n > MAX_OPERATIONS) {
        let why = format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {got}");
        return Err(Status::failure(413, "RequestEntityTooLarge", why));
    }
    let operations: Patch = serde_json::from_value(patch.clone()).map_err(|e| Status::bad_request(e.to_string()))?;
    let (mut out, mut copied, mut moved) = (target.clone(), 0, 0);
    for (number, operation) in operations.0.into_iter().enumerate() {
        let operation = with_counted_indices(operation, &out);
        if tests_for_absence(&operation, &out) {
            continue;
        }
        if let PatchOperation::Copy(copy) = &operation {
            copied += out.pointer(copy.from.as_str()).map_or(0, |value| value.to_string().len());
            if copied > MAX_COPIED {
                let why = "Unable to complete the copy, the accumulated size increase of copy is";
                return Err(refused(format!("{why} {copied}, exceeding the limit {MAX_COPIED}")));
            }
        }
        moved += moves(&operation, &out) + deepens(&operation, &out)?;
        if moved > MAX_MOVED {
            return Err(refused(format!("its operations move more than {MAX_MOVED} items")));
        }
        // Nothing is rolled back on failure, which may panic: the result is discarded then.
        json_patch::patch_unsafe(&mut out, &[operation]).map_err(|mut why| {
            why.operation = number;
            refused(why.to_string())
        })?;
    }
    if nests_within(&out, MAX_NESTED) { Ok(out) } else { Err(too_deep()) }
}

fn too_deep() -> Status {
    refused(format!("the outcome is nested more than {MAX_NESTED} levels deep"))
}

/// Checks whether an operation nests its value too deeply: it may add as many levels as its path has, and recursion over a document
/// with a million levels, even to drop it, overflows the stack. Returns the number of items visited.
fn deepens(operation: &PatchOperation, document: &Value) -> Result<usize, Status> {
    let old = |path: &Pointer, from: &Pointer| match path.count() <= from.count() {
        // Its depth does not change.
        true => None,
        // A missing source fails by itself.
        false => document.pointer(from.as_str()),
    };
    let (path, value) = match operation {
        PatchOperation::Add(add) => (&add.path, Some(&add.value)),
        PatchOperation::Replace(replace) => (&replace.path, Some(&replace.value)),
        PatchOperation::Copy(copy) => (&copy.path, old(&copy.path, &copy.from)),
        PatchOperation::Move(moved) => (&moved.path, old(&moved.path, &moved.from)),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => return Ok(0),
    };
    let Some(value) = value else { return Ok(0) };
    let levels = MAX_NESTED.checked_sub(path.count()).ok_or_else(too_deep)?;
    items_within(value, levels).ok_or_else(too_deep)
}

/// The number of items in all nested lists and maps of a value; `None`: it has more levels than that.
fn items_within(value: &Value, levels: usize) -> Option<usize> {
    let below = |sum: usize, item| Some(sum + 1 + items_within(item, levels.checked_sub(1)?)?);
    match value {
        Value::Array(items) => items.iter().try_fold(0, below),
        Value::Object(map) => map.values().try_fold(0, below),
        _ => Some(0),
    }
}

/// The maximum number of list items that an operation moves.
fn moves(operation: &PatchOperation, document: &Value) -> usize {
    let of_list = |path: &Pointer| {
        let parent = path.parent().and_then(|parent| document.pointer(parent.as_str()));
        let end = path.last().is_some_and(|last| last.encoded() == "-");
        parent.and_then(Value::as_array).filter(|_| !end).map_or(0, Vec::len)
    };
    match operation {
        PatchOperation::Add(add) => of_list(&add.path),
        PatchOperation::Remove(remove) => of_list(&remove.path),
        PatchOperation::Copy(copy) => of_list(&copy.path),
        PatchOperation::Move(moved) => of_list(&moved.from) + of_list(&moved.path),
        PatchOperation::Replace(_) | PatchOperation::Test(_) => 0,
    }
}

/// Whether the operation tests for null at a key that its map lacks.
fn tests_for_absence(operation: &PatchOperation, document: &Value) -> bool {
    let PatchOperation::Test(test) = operation else { return false };
    let Some((parent, key)) = test.path.split_back().filter(|_| test.value.is_null()) else { return false };
    let map = document.pointer(parent.as_str()).and_then(Value::as_object);
    map.is_some_and(|map| !map.contains_key(key.decoded().as_ref()))
}

/// The operation with negative indices converted to positive ones.
fn with_counted_indices(mut operation: PatchOperation, document: &Value) -> PatchOperation {
    let counted = |path: &mut PointerBuf, room| *path = counted(path, document, room);
    match &mut operation {
        // An added item goes between others: there is one more position than items.
        PatchOperation::Add(add) => counted(&mut add.path, 1),
        PatchOperation::Remove(remove) => counted(&mut remove.path, 0),
        PatchOperation::Replace(replace) => counted(&mut replace.path, 0),
        PatchOperation::Test(test) => counted(&mut test.path, 0),
        PatchOperation::Copy(copy) => {
            counted(&mut copy.from, 0);
            counted(&mut copy.path, 1);
        }
        PatchOperation::Move(moved) => {
            counted(&mut moved.from, 0);
            // A list that the item is removed from has one position less.
            let same_list = self::counted(&moved.path, document, 0).parent() == moved.from.parent();
            counted(&mut moved.path, usize::from(!same_list));
        }
    }
    operation
}

/// `path` with negative indices converted; `room` is added to the length of the last list.
fn counted(path: &Pointer, document: &Value, room: usize) -> PointerBuf {
    let (mut out, mut here) = (PointerBuf::new(), Some(document));
    let last = path.count().saturating_sub(1);
    for (depth, token) in path.tokens().enumerate() {
        let list = here.and_then(Value::as_array);
        let places = list.map_or(0, |list| list.len() + if depth == last { room } else { 0 });
        let from_end = token.encoded().strip_prefix('-').and_then(|digits| digits.parse::<usize>().ok());
        match from_end.filter(|back| (1..=places).contains(back)) {
            Some(back) => out.push_back(places - back),
            None => out.push_back(token),
        }
        here = out.last().and_then(|token| match here? {
            Value::Object(map) => map.get(token.decoded().as_ref()),
            Value::Array(list) => list.get(token.decoded().parse::<usize>().ok()?),
            _ => None,
        });
    }
    out
}

//! JSON patch (RFC 6902), with the two liberties that upstream's library takes and clients rely on.
//!
//! - `test` for null holds where a map has no such key: client libraries add a first finalizer so that no other's is lost.
//! - A negative index counts from a list's end: `/spec/containers/-1` is the last container, and `add` puts behind it.

use json_patch::jsonptr::{Pointer, PointerBuf};
use json_patch::{Patch, PatchOperation};
use serde_json::Value;

use super::refused;
use crate::Status;
use crate::object::{MAX_NESTED, nests_within};

/// The most operations of one JSON patch, and bytes that all of its copies together may add, as upstream limits them.
const MAX_OPERATIONS: usize = 10_000;
const MAX_COPIED: usize = 3 << 20;

/// How many items all operations together may move: each that adds at or takes from a list's begin moves all of it, and each that
/// puts something deeper than it was goes through that.
const MAX_MOVED: usize = 20_000_000;

/// `target` with the patch applied. A patch that is no patch is a BadRequest, one that does not fit is Invalid, as upstream
/// has it.
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
        // Nothing is undone where it fails, which may panic: the outcome is thrown away then.
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

/// Looks whether an operation nests what it puts somewhere too deep: it can by as many levels as its path has, and whoever goes
/// through a document of a million levels, as to drop it, has no stack for that. Returns at how many items it has looked.
fn deepens(operation: &PatchOperation, document: &Value) -> Result<usize, Status> {
    let old = |path: &Pointer, from: &Pointer| match path.count() <= from.count() {
        // It is as deep as it was.
        true => None,
        // What is not there fails by itself.
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

/// How many items a value has in all its lists and maps; `None`: it has more levels of them than that.
fn items_within(value: &Value, levels: usize) -> Option<usize> {
    let below = |sum: usize, item| Some(sum + 1 + items_within(item, levels.checked_sub(1)?)?);
    match value {
        Value::Array(items) => items.iter().try_fold(0, below),
        Value::Object(map) => map.values().try_fold(0, below),
        _ => Some(0),
    }
}

/// How many items of lists an operation moves at most.
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

/// Whether the operation expects null of a key that its map does not have.
fn tests_for_absence(operation: &PatchOperation, document: &Value) -> bool {
    let PatchOperation::Test(test) = operation else { return false };
    let Some((parent, key)) = test.path.split_back().filter(|_| test.value.is_null()) else { return false };
    let map = document.pointer(parent.as_str()).and_then(Value::as_object);
    map.is_some_and(|map| !map.contains_key(key.decoded().as_ref()))
}

/// The operation with each negative index as that from the list's begin.
fn with_counted_indices(mut operation: PatchOperation, document: &Value) -> PatchOperation {
    let counted = |path: &mut PointerBuf, room| *path = counted(path, document, room);
    match &mut operation {
        // An item that is added comes to stand between others: there is one place more than items.
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
            // A list that the item is taken from has the place that it left.
            let same_list = self::counted(&moved.path, document, 0).parent() == moved.from.parent();
            counted(&mut moved.path, usize::from(!same_list));
        }
    }
    operation
}

/// `path` with its negative indices counted; `room` is added to the length of the last list.
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

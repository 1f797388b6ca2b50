//! Path elements in the notation of FieldsV1: `f:spec`, `k:{"name":"web"}`, `v:"a/finalizer"`.

use serde_json::{Map, Value};

use crate::schema::{List, Topology};

/// The field of a struct, or the key of a map.
pub fn field(name: &str) -> Box<str> {
    format!("f:{name}").into()
}

/// An item of a set or map list; `None` if all keys are missing without a default. An item without some of the keys differs from
/// those that have them.
pub fn item(list: &List, item: &Value) -> Option<Box<str>> {
    match list.kind.topology {
        Topology::Set => Some(format!("v:{item}").into()),
        Topology::Map(_) | Topology::Own => {
            let keys = list.keys();
            let part = |key: &str| match &item[key] {
                // The only key with a default in upstream's lists.
                Value::Null if key == "protocol" => Some(Value::from("TCP")),
                Value::Null => list.default(key).cloned(),
                value => Some(value.clone()),
            };
            // Fast path: most lists have one key, and it is present.
            if let [key] = keys.as_slice()
                && let Some(Value::String(name)) = item.get(*key)
            {
                return Some(format!("k:{{{}:{}}}", Value::from(*key), Value::from(name.as_str())).into());
            }
            let mut sorted = keys;
            sorted.sort_unstable();
            let found: Map<String, Value> =
                sorted.into_iter().filter_map(|key| Some((key.to_owned(), part(key)?))).collect();
            (!found.is_empty()).then(|| format!("k:{}", Value::Object(found)).into())
        }
        Topology::Atomic => None,
    }
}

/// The field name of an element.
pub fn name(element: &str) -> Option<&str> {
    element.strip_prefix("f:")
}

/// An element in error messages: `.spec`, `[name="web"]`, `[="a/finalizer"]`.
pub fn shown(element: &str) -> String {
    let (kind, rest) = element.split_once(':').unwrap_or(("", element));
    match kind {
        "f" => format!(".{rest}"),
        "k" => {
            let keys: Map<String, Value> = serde_json::from_str(rest).unwrap_or_default();
            let parts: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", parts.join(","))
        }
        "v" => format!("[={rest}]"),
        _ => format!("[{rest}]"),
    }
}

//! The elements of a path, as FieldsV1 writes them: `f:spec`, `k:{"name":"web"}`, `v:"a/finalizer"`.

use serde_json::{Map, Value};

use crate::schema::{List, Topology};

/// The field of a struct, or the key of a map.
pub fn field(name: &str) -> Box<str> {
    format!("f:{name}").into()
}

/// An item of a list that is a set or a map; `None` where all keys are missing and none has a default. One without some of
/// its keys is another item than those that have them.
pub fn item(list: &List, item: &Value) -> Option<Box<str>> {
    match list.kind.topology {
        Topology::Set => Some(format!("v:{item}").into()),
        Topology::Map(_) | Topology::Own => {
            let keys = list.keys();
            let part = |key: &str| match &item[key] {
                // The one default among the keys of upstream's lists.
                Value::Null if key == "protocol" => Some(Value::from("TCP")),
                Value::Null => list.default(key).cloned(),
                value => Some(value.clone()),
            };
            // Most lists have one key, which stands there.
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

/// The name of the field that an element is.
pub fn name(element: &str) -> Option<&str> {
    element.strip_prefix("f:")
}

/// An element as errors show it: `.spec`, `[name="web"]`, `[="a/finalizer"]`.
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

//! Rules and keys in nft's words, as short as they can be shown.

use serde_json::Value;

use super::evaluate::entry;
use super::facts::Part;

/// The longest shown text, in characters.
const LONGEST: usize = 160;

/// Text that others may have written, as part of a line.
pub fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(LONGEST).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push_str("...");
    }
    shown
}

/// `10.96.0.7 . tcp . 80`
pub fn key(parts: &[Part]) -> String {
    let part = |part: &Part| match part {
        Part::Address(address) => address.to_string(),
        Part::Number(number) => number.to_string(),
        Part::Text(text) => text.clone(),
    };
    parts.iter().map(part).collect::<Vec<_>>().join(" . ")
}

/// `ip saddr @local-pods tcp dport 80 accept`
pub fn rule(statements: &[Value]) -> String {
    statements.iter().map(statement).collect::<Vec<_>>().join(" ")
}

fn statement(statement: &Value) -> String {
    let Some((kind, of)) = entry(statement) else { return value(statement) };
    match kind {
        "match" => {
            let op = of["op"].as_str().filter(|op| !matches!(*op, "==" | "in"));
            let op = op.map(|op| format!("{op} ")).unwrap_or_default();
            format!("{} {op}{}", value(&of["left"]), value(&of["right"]))
        }
        "jump" | "goto" => format!("{kind} {}", of["target"].as_str().unwrap_or_default()),
        "vmap" => format!("{} vmap {}", value(&of["key"]), value(&of["data"])),
        _ => kind.to_owned(),
    }
}

fn value(of: &Value) -> String {
    let list = |items: &[Value], between: &str| items.iter().map(value).collect::<Vec<_>>().join(between);
    let word = |field: &str| of[field].as_str().unwrap_or_default();
    match of {
        Value::String(text) => match text.strip_suffix(" [invalid type]").map(|hex| hex.trim_start_matches("0x")) {
            // nft 1.0.6 does not know how to write ports of conntrack.
            Some(hex) => u64::from_str_radix(hex, 16).map_or_else(|_| text.clone(), |number| number.to_string()),
            None => text.clone(),
        },
        Value::Array(items) => list(items, ","),
        Value::Object(_) => match entry(of) {
            Some(("payload", of)) => match (of["protocol"].as_str(), of["field"].as_str()) {
                (Some(protocol), Some(field)) => format!("{protocol} {field}"),
                _ => format!("@{},{},{}", value(&of["base"]), of["offset"], of["len"]),
            },
            Some(("meta", of)) => value(&of["key"]),
            Some(("ct", of)) => match of["dir"].as_str() {
                Some(direction) => format!("ct {direction} {}", value(&of["key"])),
                None => format!("ct {}", value(&of["key"])),
            },
            Some(("fib", of)) => format!("fib {} {}", value(&of["flags"]), value(&of["result"])),
            Some(("rt", of)) => format!("rt {}", value(&of["key"])),
            Some(("concat", Value::Array(items))) => list(items, " . "),
            Some(("set", Value::Array(items))) => format!("{{ {} }}", list(items, ", ")),
            Some(("range", Value::Array(items))) => list(items, "-"),
            Some(("&", Value::Array(items))) => list(items, " & "),
            Some(("prefix", of)) => format!("{}/{}", value(&of["addr"]), of["len"]),
            Some((kind, _)) => format!("{kind} ..."),
            None => match word("name") {
                "" => "...".to_owned(),
                name => name.to_owned(),
            },
        },
        plain => plain.to_string(),
    }
}

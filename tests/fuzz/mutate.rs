//! JSON inputs mutated as trees, so that most of them still are objects of a kind.

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

/// Values that are often one too many for something.
fn odd(rng: &mut impl Rng) -> Value {
    const TEXTS: &[&str] = &[
        "",
        "..",
        "a",
        "-1",
        "5%",
        "None",
        "::1",
        "10.0.0.0/8",
        "é",
        "a['",
        "/",
        "\0",
        "1Gi",
        "Always",
        "*",
        "9e999",
        "b",
        "self",
        "object",
        "^(a+)+$",
        "2026-01-01T00:00:00Z",
        "0x10",
        "{}",
        "$patch",
        "replace",
        "delete",
    ];
    const NUMBERS: &[i64] = &[0, 1, -1, 2, 100, 65535, 65536, i32::MAX as i64, i64::MAX, i64::MIN, 1 << 53];
    match rng.random_range(0..8) {
        0 => Value::Null,
        1 => rng.random::<bool>().into(),
        2 | 3 => NUMBERS[rng.random_range(0..NUMBERS.len())].into(),
        4 => json!(rng.random::<f64>() * 10f64.powi(rng.random_range(-20..20))),
        5 => [json!([]), json!({}), json!([{}]), json!({"a": null})][rng.random_range(0..4)].clone(),
        _ => TEXTS[rng.random_range(0..TEXTS.len())].into(),
    }
}

fn children(value: &mut Value) -> Vec<&mut Value> {
    match value {
        Value::Object(map) => map.values_mut().collect(),
        Value::Array(items) => items.iter_mut().collect(),
        _ => Vec::new(),
    }
}

/// Some value below, at any depth.
fn somewhere<'a>(value: &'a mut Value, rng: &mut impl Rng) -> &'a mut Value {
    let count = children(value).len();
    if count == 0 || rng.random_range(0..6) == 0 {
        return value;
    }
    somewhere(children(value).swap_remove(rng.random_range(0..count)), rng)
}

/// A field's name from elsewhere in the tree.
fn name(value: &mut Value, rng: &mut impl Rng) -> String {
    match somewhere(value, rng) {
        Value::Object(map) if !map.is_empty() => {
            map.keys().nth(rng.random_range(0..map.len())).cloned().unwrap_or_default()
        }
        _ => ["name", "key", "spec", "$patch", "x"][rng.random_range(0..5)].to_owned(),
    }
}

/// A changed tree; `None` where there is none.
pub fn json(data: &[u8], seed: u32) -> Option<Vec<u8>> {
    let mut tree: Value = serde_json::from_slice(data).ok()?;
    let mut rng = StdRng::seed_from_u64(seed.into());
    for _ in 0..rng.random_range(1..4) {
        let (other, name) = (somewhere(&mut tree, &mut rng).clone(), name(&mut tree, &mut rng));
        let value = if rng.random_range(0..3) == 0 { other } else { odd(&mut rng) };
        let turn = rng.random_range(0..6);
        match somewhere(&mut tree, &mut rng) {
            Value::Object(map) if turn < 2 => drop(map.insert(name, value)),
            Value::Object(map) if turn < 4 && !map.is_empty() => {
                let key = map.keys().nth(rng.random_range(0..map.len())).cloned()?;
                let old = map.shift_remove(&key)?;
                if turn == 3 {
                    map.insert(name, old);
                }
            }
            Value::Array(items) if turn < 2 => items.push(value),
            Value::Array(items) if turn < 4 && !items.is_empty() => {
                let at = rng.random_range(0..items.len());
                let item = items.remove(at);
                if turn == 3 {
                    items.extend([item.clone(), item]);
                }
            }
            place => *place = value,
        }
    }
    serde_json::to_vec(&tree).ok()
}

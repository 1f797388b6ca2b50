//! Operators: arithmetic with overflow checks, and comparison.

use std::cmp::Ordering;
use std::sync::Arc;

use super::value::{List, ListKind, Value, compare_numbers};
use super::{Budget, Error};

/// A binary operator on values (not `&&`, `||` and the like, which take expressions).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
}

impl Operator {
    /// The operators by their names in the parser.
    pub const ALL: &[(&str, Operator)] = &[
        ("_+_", Operator::Add),
        ("_-_", Operator::Subtract),
        ("_*_", Operator::Multiply),
        ("_/_", Operator::Divide),
        ("_%_", Operator::Modulo),
        ("_==_", Operator::Equal),
        ("_!=_", Operator::NotEqual),
        ("_<_", Operator::Less),
        ("_<=_", Operator::LessEqual),
        ("_>_", Operator::Greater),
        ("_>=_", Operator::GreaterEqual),
        ("@in", Operator::In),
    ];

    /// The result for two values.
    pub fn apply(self, a: &Value, b: &Value, budget: &mut Budget) -> Result<Value, Error> {
        match self {
            Operator::Add => add(a, b, budget),
            Operator::Subtract | Operator::Multiply | Operator::Divide | Operator::Modulo => arithmetic(self, a, b),
            Operator::Equal | Operator::NotEqual => {
                budget.charge(comparison_cost(a, b))?;
                Ok(Value::Bool((a == b) == (self == Operator::Equal)))
            }
            Operator::In => {
                budget.charge(match b {
                    Value::List(list) => search_cost(&list.items, b, a),
                    _ => 1 + a.weight(),
                })?;
                contains(a, b).map(Value::Bool)
            }
            _ => {
                budget.charge(comparison_cost(a, b))?;
                let Some(order) = compare(a, b)? else { return Ok(Value::Bool(false)) };
                Ok(Value::Bool(match self {
                    Operator::Less => order.is_lt(),
                    Operator::LessEqual => order.is_le(),
                    Operator::Greater => order.is_gt(),
                    _ => order.is_ge(),
                }))
            }
        }
    }
}

/// The cost of comparing two values; 0 if they are trivially different.
fn comparison_cost(a: &Value, b: &Value) -> u64 {
    match (a, b) {
        (Value::String(a), Value::String(b)) => characters_of_shorter(a, b) / 10,
        (Value::Bytes(a), Value::Bytes(b)) => a.len().min(b.len()) as u64 / 10,
        (Value::List(x), Value::List(y)) if x.items.len() == y.items.len() => match (&x.kind, &y.kind) {
            (ListKind::Atomic, ListKind::Atomic) => steps(a, b),
            _ => steps(a, b).max(a.weight().saturating_mul(x.items.len() as u64)),
        },
        (Value::Map(x), Value::Map(y)) if x.len() == y.len() => steps(a, b),
        (Value::Optional(Some(a)), Value::Optional(Some(b))) => comparison_cost(a, b),
        (Value::Url(_), Value::Url(_)) | (Value::Semver(_), Value::Semver(_)) => a.weight().min(b.weight()),
        _ => 0,
    }
}

/// The number of characters of the shorter string. A long string beside a short one is not read: a character has at most four
/// bytes.
fn characters_of_shorter(a: &str, b: &str) -> u64 {
    let (short, long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    let few = short.chars().count();
    let least = if long.len() / 4 < few { few.min(long.chars().count()) } else { few };
    least as u64
}

/// The maximum steps of a comparison: ordered lists are compared in parallel.
fn steps(a: &Value, b: &Value) -> u64 {
    let (own, other) = (a.size(), b.size());
    match own.is_plain() && other.is_plain() {
        true => own.weight,
        false => own.steps.max(other.steps),
    }
}

/// The cost of comparing each item of a list with a value.
pub fn search_cost(items: &[Value], list: &Value, wanted: &Value) -> u64 {
    let count = items.len() as u64;
    let (all, one) = (list.size(), wanted.size());
    let compared = match all.is_plain() && one.is_plain() {
        true => all.weight.min(count.saturating_mul(read_of(wanted, all.weight / count.max(1)))),
        false => all.steps.saturating_add(count.saturating_mul(one.steps)),
    };
    count.saturating_add(compared)
}

/// The maximum steps of a comparison with a value: for a string its characters, as for a single string. They are only counted if
/// there may be fewer than `enough`, and so are charged for: a character has at most four bytes.
fn read_of(value: &Value, enough: u64) -> u64 {
    match value {
        Value::String(text) if text.len() as u64 / 40 <= enough => text.chars().count() as u64 / 10,
        other => other.weight(),
    }
}

fn contains(item: &Value, within: &Value) -> Result<bool, Error> {
    match within {
        Value::List(list) => Ok(list.items.contains(item)),
        Value::Map(map) => Ok(map.get(item).is_some()),
        _ => Err(Error::no_such_overload()),
    }
}

fn add(a: &Value, b: &Value, budget: &mut Budget) -> Result<Value, Error> {
    match (a, b) {
        (Value::String(a), Value::String(b)) => {
            budget.charge((a.chars().count() + b.chars().count()) as u64 / 10)?;
            Ok(Value::string([&**a, &**b].concat()))
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            budget.charge((a.len() + b.len()) as u64 / 10)?;
            Ok(Value::Bytes([&**a, &**b].concat().into()))
        }
        (Value::List(a), Value::List(b)) => {
            budget.charge((a.items.len() + b.items.len()) as u64)?;
            joined(a, b, budget)
        }
        (Value::Timestamp(time), Value::Duration(by)) | (Value::Duration(by), Value::Timestamp(time)) => {
            time.checked_add(*by).map(Value::Timestamp).map_err(|_| Error::new("timestamp overflow"))
        }
        (Value::Duration(a), Value::Duration(b)) => {
            a.checked_add(*b).map(Value::Duration).ok_or_else(|| Error::new("duration overflow"))
        }
        _ => arithmetic(Operator::Add, a, b),
    }
}

/// The cost of searching for each item of a list among those of another and its own.
fn joining_cost(a: &List, b: &List) -> u64 {
    let (all, new) = ((a.items.len() + b.items.len()) as u64, b.items.len() as u64);
    let (own, other) = (a.size(), b.size());
    let compared = match own.is_plain() && other.is_plain() {
        true => all.saturating_mul(other.weight.saturating_sub(new)),
        false => new.saturating_mul(own.steps.saturating_add(other.steps)),
    };
    all.saturating_mul(new).saturating_add(compared)
}

/// The concatenation of two lists, by the first one's type.
fn joined(a: &Arc<List>, b: &Arc<List>, budget: &mut Budget) -> Result<Value, Error> {
    let mut items = a.items.clone();
    match &a.kind {
        ListKind::Atomic => items.extend(b.items.iter().cloned()),
        ListKind::Set => {
            budget.charge(joining_cost(a, b))?;
            for item in &b.items {
                if !items.contains(item) {
                    items.push(item.clone());
                }
            }
        }
        ListKind::Map(keys) => {
            budget.charge(joining_cost(a, b))?;
            for item in &b.items {
                match items.iter_mut().find(|own| same_keys(own, item, keys)) {
                    Some(own) => *own = item.clone(),
                    None => items.push(item.clone()),
                }
            }
        }
    }
    Ok(Value::List(Arc::new(List::new(items, a.kind.clone()))))
}

fn same_keys(a: &Value, b: &Value, keys: &[String]) -> bool {
    let (Value::Map(a), Value::Map(b)) = (a, b) else { return false };
    keys.iter().all(|key| a.fields.get(key.as_str()) == b.fields.get(key.as_str()))
}

fn arithmetic(operator: Operator, a: &Value, b: &Value) -> Result<Value, Error> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => {
            let zero = matches!(operator, Operator::Divide | Operator::Modulo) && *b == 0;
            let out = match operator {
                _ if zero => return Err(by_zero(operator)),
                Operator::Add => a.checked_add(*b),
                Operator::Subtract => a.checked_sub(*b),
                Operator::Multiply => a.checked_mul(*b),
                Operator::Divide => a.checked_div(*b),
                _ => a.checked_rem(*b),
            };
            out.map(Value::Int).ok_or_else(|| Error::new("integer overflow"))
        }
        (Value::Uint(a), Value::Uint(b)) => {
            let zero = matches!(operator, Operator::Divide | Operator::Modulo) && *b == 0;
            let out = match operator {
                _ if zero => return Err(by_zero(operator)),
                Operator::Add => a.checked_add(*b),
                Operator::Subtract => a.checked_sub(*b),
                Operator::Multiply => a.checked_mul(*b),
                Operator::Divide => a.checked_div(*b),
                _ => a.checked_rem(*b),
            };
            out.map(Value::Uint).ok_or_else(|| Error::new("unsigned integer overflow"))
        }
        (Value::Double(a), Value::Double(b)) => match operator {
            Operator::Add => Ok(Value::Double(a + b)),
            Operator::Subtract => Ok(Value::Double(a - b)),
            Operator::Multiply => Ok(Value::Double(a * b)),
            Operator::Divide => Ok(Value::Double(a / b)),
            _ => Err(Error::no_such_overload()),
        },
        (Value::Timestamp(a), Value::Timestamp(b)) if operator == Operator::Subtract => {
            Ok(Value::Duration(a.duration_since(*b)))
        }
        (Value::Timestamp(time), Value::Duration(by)) if operator == Operator::Subtract => {
            time.checked_sub(*by).map(Value::Timestamp).map_err(|_| Error::new("timestamp overflow"))
        }
        (Value::Duration(a), Value::Duration(b)) if operator == Operator::Subtract => {
            a.checked_sub(*b).map(Value::Duration).ok_or_else(|| Error::new("duration overflow"))
        }
        _ => Err(Error::no_such_overload()),
    }
}

fn by_zero(operator: Operator) -> Error {
    Error::new(if operator == Operator::Modulo { "modulus by zero" } else { "division by zero" })
}

/// The order of two values; `None` if they are unordered, as a NaN. Values without an order are an error.
pub fn compare(a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => Ok(Some(a.cmp(b))),
        (Value::String(a), Value::String(b)) => Ok(Some(a.cmp(b))),
        (Value::Bytes(a), Value::Bytes(b)) => Ok(Some(a.cmp(b))),
        (Value::Timestamp(a), Value::Timestamp(b)) => Ok(Some(a.cmp(b))),
        (Value::Duration(a), Value::Duration(b)) => Ok(Some(a.cmp(b))),
        (Value::Int(_) | Value::Uint(_) | Value::Double(_), Value::Int(_) | Value::Uint(_) | Value::Double(_)) => {
            Ok(compare_numbers(a, b))
        }
        _ => Err(Error::no_such_overload()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Env, Type, compile};
    use super::*;

    fn set(items: Vec<Value>) -> Value {
        Value::List(Arc::new(List::new(items, ListKind::Set)))
    }

    /// If the order of a list does not count, each item is compared with each.
    #[test]
    fn comparing_what_has_no_order_is_paid_for_by_the_pairs() {
        let env = Env::new([("a", Type::Dyn), ("b", Type::Dyn)]);
        let of = |source: &str, items: i64| {
            let there = set((0..items).map(Value::Int).collect());
            let back = set((0..items).rev().map(Value::Int).collect());
            let program = compile(source, &env).unwrap();
            program.evaluate(&[("a", there), ("b", back)], &mut Budget::PER_CALL.clone())
        };
        for source in [
            "a == b",
            "[a] == [b]",
            "{'x': [a]} == {'x': [b]}",
            "a in [b]",
            "[a].indexOf(b) == 0",
            "[a].lastIndexOf(b) == 0",
            "sets.intersects([a], [b])",
            "sets.contains([a], [b])",
            "sets.equivalent([a], [b])",
        ] {
            assert!(of(source, 1500).is_err_and(|why| why.exhausted), "{source}");
            assert_eq!(of(source, 10), Ok(Value::Bool(true)), "{source}");
        }
    }

    #[test]
    fn joining_sets_is_paid_for_by_what_is_compared() {
        let tree = |depth: usize| {
            let leaf = Value::list(vec![Value::Int(1)]);
            (0..depth).fold(leaf, |tree, _| Value::list(vec![tree.clone(), tree]))
        };
        let joined = |depth: usize| {
            let (one, other) = (set(vec![tree(depth)]), set(vec![tree(depth)]));
            Operator::Add.apply(&one, &other, &mut Budget::PER_CALL.clone())
        };
        assert!(joined(22).is_err_and(|why| why.exhausted));
        assert_eq!(joined(5), Ok(set(vec![tree(5)])));
    }
}

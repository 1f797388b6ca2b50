//! Lists and sets: Kubernetes' list library, and the sets extension.

use std::cmp::Ordering;

use super::Param::{Any, List};
use super::{Function, Out, global, items, member};
use crate::cel::operators::{Operator, compare, search_cost};
use crate::cel::{Budget, Error, Value};

pub fn rows() -> Vec<Function> {
    vec![
        member("isSorted", &[List], Out::Bool, |v, b| {
            b.charge(v[0].weight())?;
            for pair in items(v, 0).windows(2) {
                if compare(&pair[0], &pair[1])? == Some(Ordering::Greater) {
                    return Ok(Value::Bool(false));
                }
            }
            Ok(Value::Bool(true))
        }),
        member("sum", &[List], Out::Item, |v, b| {
            let Some((first, rest)) = items(v, 0).split_first() else { return Ok(Value::Int(0)) };
            b.charge(rest.len() as u64)?;
            rest.iter().try_fold(first.clone(), |sum, item| Operator::Add.apply(&sum, item, b))
        }),
        member("min", &[List], Out::Item, |v, b| extreme(v, b, Ordering::Less, "min")),
        member("max", &[List], Out::Item, |v, b| extreme(v, b, Ordering::Greater, "max")),
        member("indexOf", &[List, Any], Out::Int, |v, b| {
            b.charge(searched(v))?;
            Ok(position(items(v, 0).iter().position(|item| *item == v[1])))
        }),
        member("lastIndexOf", &[List, Any], Out::Int, |v, b| {
            b.charge(searched(v))?;
            Ok(position(items(v, 0).iter().rposition(|item| *item == v[1])))
        }),
        global("sets.contains", &[List, List], Out::Bool, |v, b| Ok(Value::Bool(holds(v, b, 0, 1)?))),
        global("sets.equivalent", &[List, List], Out::Bool, |v, b| {
            Ok(Value::Bool(holds(v, b, 0, 1)? && holds(v, b, 1, 0)?))
        }),
        global("sets.intersects", &[List, List], Out::Bool, |v, b| {
            b.charge(pairs(v))?;
            Ok(Value::Bool(items(v, 0).iter().any(|item| items(v, 1).contains(item))))
        }),
    ]
}

/// The cost of searching a list for a value.
fn searched(values: &[Value]) -> u64 {
    values[0].weight().max(search_cost(items(values, 0), &values[0], &values[1]))
}

/// The cost of comparing each item of one list with each of another.
fn pairs(values: &[Value]) -> u64 {
    let (one, other) = (values[0].size(), values[1].size());
    let times = |steps: u64, list: usize| steps.saturating_mul(1 + items(values, list).len() as u64);
    match one.is_plain() && other.is_plain() {
        true => times(one.weight, 1),
        false => times(one.steps, 1).saturating_add(times(other.steps, 0)),
    }
}

fn holds(values: &[Value], budget: &mut Budget, all: usize, of: usize) -> Result<bool, Error> {
    budget.charge(pairs(values))?;
    Ok(items(values, of).iter().all(|item| items(values, all).contains(item)))
}

fn position(at: Option<usize>) -> Value {
    Value::Int(at.map_or(-1, |at| at as i64))
}

fn extreme(values: &[Value], budget: &mut Budget, wanted: Ordering, name: &str) -> Result<Value, Error> {
    budget.charge(values[0].weight())?;
    let Some((first, rest)) = items(values, 0).split_first() else {
        return Err(Error::new(format!("{name} called on empty list")));
    };
    let mut best = first;
    for item in rest {
        if compare(item, best)? == Some(wanted) {
            best = item;
        }
    }
    Ok(best.clone())
}

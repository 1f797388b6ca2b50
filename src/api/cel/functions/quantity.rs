//! Kubernetes' quantity library.

use std::cmp::Ordering;

use super::Param::{Int, Named, Text};
use super::{Function, Out, Param, global, int, member, text};
use crate::Quantity;
use crate::cel::{Error, Value};

const NAME: &str = "kubernetes.Quantity";
const Q: Param = Named(NAME);

pub fn rows() -> Vec<Function> {
    vec![
        global("quantity", &[Text], Out::Named(NAME), |v, _| {
            text(v, 0).parse().map(Value::Quantity).map_err(|why| Error::new(format!("{why}")))
        }),
        global("isQuantity", &[Text], Out::Bool, |v, _| Ok(Value::Bool(text(v, 0).parse::<Quantity>().is_ok()))),
        member("isInteger", &[Q], Out::Bool, |v, _| Ok(Value::Bool(of(v, 0).is_whole()))),
        member("asInteger", &[Q], Out::Int, |v, _| match of(v, 0) {
            q if q.is_whole() => Ok(Value::Int(q.value())),
            _ => Err(Error::new("cannot convert value to integer")),
        }),
        member("asApproximateFloat", &[Q], Out::Double, |v, _| Ok(Value::Double(of(v, 0).approximately()))),
        member("sign", &[Q], Out::Int, |v, _| {
            Ok(Value::Int(if of(v, 0).is_zero() {
                0
            } else if of(v, 0).is_negative() {
                -1
            } else {
                1
            }))
        }),
        member("add", &[Q, Q], Out::Named(NAME), |v, _| Ok(Value::Quantity(of(v, 0) + of(v, 1)))),
        member("add", &[Q, Int], Out::Named(NAME), |v, _| Ok(Value::Quantity(of(v, 0) + whole(v)))),
        member("sub", &[Q, Q], Out::Named(NAME), |v, _| Ok(Value::Quantity(of(v, 0) - of(v, 1)))),
        member("sub", &[Q, Int], Out::Named(NAME), |v, _| Ok(Value::Quantity(of(v, 0) - whole(v)))),
        member("compareTo", &[Q, Q], Out::Int, |v, _| Ok(Value::Int(of(v, 0).cmp(&of(v, 1)) as i64))),
        member("isGreaterThan", &[Q, Q], Out::Bool, |v, _| {
            Ok(Value::Bool(of(v, 0).cmp(&of(v, 1)) == Ordering::Greater))
        }),
        member("isLessThan", &[Q, Q], Out::Bool, |v, _| Ok(Value::Bool(of(v, 0).cmp(&of(v, 1)) == Ordering::Less))),
    ]
}

fn of(values: &[Value], at: usize) -> Quantity {
    match values.get(at) {
        Some(Value::Quantity(quantity)) => *quantity,
        _ => Quantity::ZERO,
    }
}

fn whole(values: &[Value]) -> Quantity {
    Quantity::from_units(int(values, 1), of(values, 0).format)
}

//! Sizes, conversions, types and optionals: what belongs to the language itself.

use std::sync::Arc;

use super::Param::{Any, Bool, Bytes, Double, Int, List, Map, Optional, Span, Text, Time, Uint};
use super::{Function, Out, Param, global, int, member, text};
use crate::cel::{Budget, Error, Value};

pub fn rows() -> Vec<Function> {
    let mut rows = vec![
        global("dyn", &[Any], Out::Dyn, |v, _| Ok(v[0].clone())),
        global("type", &[Any], Out::Type, |v, _| Ok(Value::Type(v[0].type_name().into()))),
        global("bool", &[Bool], Out::Bool, |v, _| Ok(v[0].clone())),
        global("bool", &[Text], Out::Bool, |v, _| match text(v, 0) {
            "true" | "True" | "TRUE" | "t" | "1" => Ok(Value::Bool(true)),
            "false" | "False" | "FALSE" | "f" | "0" => Ok(Value::Bool(false)),
            other => Err(Error::new(format!("type conversion error from 'string' to 'bool': {other:?}"))),
        }),
        global("bytes", &[Text], Out::Bytes, |v, _| Ok(Value::Bytes(text(v, 0).as_bytes().into()))),
        global("bytes", &[Bytes], Out::Bytes, |v, _| Ok(v[0].clone())),
        global("optional.of", &[Any], Out::Some, |v, _| Ok(Value::some(v[0].clone()))),
        global("optional.none", &[], Out::Maybe, |_, _| Ok(Value::Optional(None))),
        global("optional.ofNonZeroValue", &[Any], Out::Some, |v, _| {
            Ok(if is_zero(&v[0]) { Value::Optional(None) } else { Value::some(v[0].clone()) })
        }),
        member("hasValue", &[Optional], Out::Bool, |v, _| Ok(Value::Bool(matches!(v[0], Value::Optional(Some(_)))))),
        member("value", &[Optional], Out::Item, |v, _| match &v[0] {
            Value::Optional(Some(inner)) => Ok((**inner).clone()),
            _ => Err(Error::new("optional.none() dereference")),
        }),
        member("or", &[Optional, Optional], Out::Receiver, |v, _| {
            Ok(if matches!(v[0], Value::Optional(None)) { v[1].clone() } else { v[0].clone() })
        }),
        member("orValue", &[Optional, Any], Out::Item, |v, _| match &v[0] {
            Value::Optional(Some(inner)) => Ok((**inner).clone()),
            _ => Ok(v[1].clone()),
        }),
    ];
    const SIZES: &[&[Param]] = &[&[Text], &[Bytes], &[List], &[Map]];
    for takes in SIZES {
        rows.push(global("size", takes, Out::Int, size));
        rows.push(member("size", takes, Out::Int, size));
    }
    const NUMBERS: &[&[Param]] = &[&[Int], &[Uint], &[Double], &[Text]];
    for takes in NUMBERS {
        rows.push(global("int", takes, Out::Int, to_int));
        rows.push(global("uint", takes, Out::Uint, to_uint));
        rows.push(global("double", takes, Out::Double, to_double));
    }
    rows.push(global("int", &[Time], Out::Int, to_int));
    const TEXTS: &[&[Param]] = &[&[Bool], &[Int], &[Uint], &[Double], &[Text], &[Bytes], &[Time], &[Span]];
    for takes in TEXTS {
        rows.push(global("string", takes, Out::Text, to_text));
    }
    for name in ["kubernetes.Quantity", "net.IP", "net.CIDR"] {
        let takes: &'static [Param] = match name {
            "net.IP" => &[Param::Named("net.IP")],
            "net.CIDR" => &[Param::Named("net.CIDR")],
            _ => &[Param::Named("kubernetes.Quantity")],
        };
        rows.push(global("string", takes, Out::Text, to_text));
    }
    rows
}

fn size(values: &[Value], _: &mut Budget) -> Result<Value, Error> {
    let n = match &values[0] {
        Value::String(s) => s.chars().count(),
        Value::Bytes(bytes) => bytes.len(),
        Value::List(list) => list.items.len(),
        Value::Map(map) => map.len(),
        _ => return Err(Error::no_such_overload()),
    };
    Ok(Value::Int(n as i64))
}

fn to_int(values: &[Value], _: &mut Budget) -> Result<Value, Error> {
    let overflow = || Error::new("integer overflow");
    Ok(Value::Int(match &values[0] {
        Value::Int(_) => int(values, 0),
        Value::Uint(u) => i64::try_from(*u).map_err(|_| overflow())?,
        // All doubles below 2^63 are whole, or lose their fraction.
        Value::Double(d) if d.is_finite() && *d > -9.223_372_036_854_775e18 && *d < 9.223_372_036_854_775e18 => {
            *d as i64
        }
        Value::Double(_) => return Err(overflow()),
        Value::Timestamp(time) => time.as_second(),
        _ => text(values, 0).parse().map_err(|_| unparsed("int", text(values, 0)))?,
    }))
}

fn to_uint(values: &[Value], _: &mut Budget) -> Result<Value, Error> {
    let overflow = || Error::new("unsigned integer overflow");
    Ok(Value::Uint(match &values[0] {
        Value::Uint(u) => *u,
        Value::Int(i) => u64::try_from(*i).map_err(|_| overflow())?,
        Value::Double(d) if d.is_finite() && *d >= 0.0 && *d < 1.844_674_407_370_955e19 => *d as u64,
        Value::Double(_) => return Err(overflow()),
        _ => text(values, 0).parse().map_err(|_| unparsed("uint", text(values, 0)))?,
    }))
}

fn to_double(values: &[Value], _: &mut Budget) -> Result<Value, Error> {
    Ok(Value::Double(match &values[0] {
        Value::Double(d) => *d,
        Value::Int(i) => *i as f64,
        Value::Uint(u) => *u as f64,
        _ => text(values, 0).parse().map_err(|_| unparsed("double", text(values, 0)))?,
    }))
}

fn unparsed(of: &str, text: &str) -> Error {
    Error::new(format!("type conversion error from 'string' to '{of}': {text:?}"))
}

fn to_text(values: &[Value], _: &mut Budget) -> Result<Value, Error> {
    if let Value::String(_) = &values[0] {
        return Ok(values[0].clone());
    }
    let text = values[0].text().ok_or_else(|| Error::new("invalid UTF-8 in bytes, cannot convert to string"))?;
    Ok(Value::String(Arc::from(text)))
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Int(i) => *i == 0,
        Value::Uint(u) => *u == 0,
        Value::Double(d) => *d == 0.0,
        Value::String(s) => s.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::List(list) => list.items.is_empty(),
        Value::Map(map) => map.is_empty(),
        Value::Duration(d) => d.is_zero(),
        Value::Optional(inner) => inner.is_none(),
        _ => false,
    }
}

//! Strings and regular expressions: CEL's own functions, its strings extension, and Kubernetes' `find` and `findAll`.

use super::Param::{Int, List, Text};
use super::{Function, Out, global, int, items, making, member, text, texts};
use crate::cel::value::double_text;
use crate::cel::{Budget, Error, Value};
use crate::pattern;

pub fn rows() -> Vec<Function> {
    vec![
        member("contains", &[Text, Text], Out::Bool, |v, _| told(v, |a, x| a.contains(x))),
        member("startsWith", &[Text, Text], Out::Bool, |v, _| told(v, |a, x| a.starts_with(x))),
        member("endsWith", &[Text, Text], Out::Bool, |v, _| told(v, |a, x| a.ends_with(x))),
        member("matches", &[Text, Text], Out::Bool, matches),
        global("matches", &[Text, Text], Out::Bool, matches),
        member("find", &[Text, Text], Out::Text, |v, _| {
            let found = regex(v)?.find(text(v, 0)).map_or("", |m| m.as_str());
            Ok(Value::string(found))
        }),
        member("findAll", &[Text, Text], Out::Texts, |v, b| find_all(v, b, usize::MAX)),
        member("findAll", &[Text, Text, Int], Out::Texts, |v, b| {
            find_all(v, b, usize::try_from(int(v, 2)).unwrap_or(usize::MAX))
        }),
        member("charAt", &[Text, Int], Out::Text, |v, _| {
            let at = usize::try_from(int(v, 1)).ok();
            match at.and_then(|at| text(v, 0).chars().nth(at)) {
                Some(c) => Ok(Value::string(c.to_string())),
                None if at == Some(text(v, 0).chars().count()) => Ok(Value::string("")),
                None => Err(out_of_range(int(v, 1))),
            }
        }),
        member("indexOf", &[Text, Text], Out::Int, |v, _| index_of(v, 0)),
        member("indexOf", &[Text, Text, Int], Out::Int, |v, _| index_of(v, int(v, 2))),
        member("lastIndexOf", &[Text, Text], Out::Int, |v, _| last_index_of(v, i64::MAX)),
        member("lastIndexOf", &[Text, Text, Int], Out::Int, |v, _| last_index_of(v, int(v, 2))),
        member("lowerAscii", &[Text], Out::Text, |v, _| changed(v, |s| s.to_ascii_lowercase())),
        member("upperAscii", &[Text], Out::Text, |v, _| changed(v, |s| s.to_ascii_uppercase())),
        member("trim", &[Text], Out::Text, |v, _| changed(v, |s| s.trim().to_owned())),
        member("reverse", &[Text], Out::Text, |v, _| changed(v, |s| s.chars().rev().collect())),
        global("strings.quote", &[Text], Out::Text, |v, b| {
            let quoted = format!("{:?}", text(v, 0));
            b.charge(making(&quoted))?;
            Ok(Value::string(quoted))
        }),
        member("replace", &[Text, Text, Text], Out::Text, |v, b| replace(v, b, usize::MAX)),
        member("replace", &[Text, Text, Text, Int], Out::Text, |v, b| {
            replace(v, b, usize::try_from(int(v, 3)).unwrap_or(usize::MAX))
        }),
        member("split", &[Text, Text], Out::Texts, |v, b| split(v, b, i64::MAX)),
        member("split", &[Text, Text, Int], Out::Texts, |v, b| split(v, b, int(v, 2))),
        member("substring", &[Text, Int], Out::Text, |v, _| substring(v, None)),
        member("substring", &[Text, Int, Int], Out::Text, |v, _| substring(v, Some(int(v, 2)))),
        member("join", &[List], Out::Text, |v, b| join(v, b, "")),
        member("join", &[List, Text], Out::Text, |v, b| join(v, b, text(v, 1))),
        member("format", &[Text, List], Out::Text, format),
    ]
}

fn told(values: &[Value], is: impl Fn(&str, &str) -> bool) -> Result<Value, Error> {
    Ok(Value::Bool(is(text(values, 0), text(values, 1))))
}

fn changed(values: &[Value], change: impl Fn(&str) -> String) -> Result<Value, Error> {
    Ok(Value::string(change(text(values, 0))))
}

/// Whether functions of this name take a regular expression, as the second argument.
pub fn takes_pattern(name: &str) -> bool {
    matches!(name, "matches" | "find" | "findAll")
}

/// The second argument as a regular expression; the evaluation charges for compiling one that is not a literal.
fn regex(values: &[Value]) -> Result<std::sync::Arc<regex::Regex>, Error> {
    pattern::known(text(values, 1)).map_err(|why| Error::new(why.to_string()))
}

fn matches(values: &[Value], _: &mut Budget) -> Result<Value, Error> {
    Ok(Value::Bool(regex(values)?.is_match(text(values, 0))))
}

fn find_all(values: &[Value], budget: &mut Budget, most: usize) -> Result<Value, Error> {
    let regex = regex(values)?;
    let all = regex.find_iter(text(values, 0)).take(most).map(|found| {
        budget.charge(1)?;
        Ok(Value::string(found.as_str()))
    });
    all.collect::<Result<Vec<Value>, Error>>().map(Value::list)
}

fn out_of_range(index: i64) -> Error {
    Error::new(format!("index out of range: {index}"))
}

/// The byte offset of a character.
fn byte_of(text: &str, character: i64) -> Result<usize, Error> {
    let at = usize::try_from(character).map_err(|_| out_of_range(character))?;
    let starts = text.char_indices().map(|(byte, _)| byte).chain([text.len()]);
    { starts }.nth(at).ok_or_else(|| out_of_range(character))
}

fn index_of(values: &[Value], from: i64) -> Result<Value, Error> {
    let (whole, wanted) = (text(values, 0), text(values, 1));
    let from = byte_of(whole, from)?;
    Ok(Value::Int(match whole[from..].find(wanted) {
        Some(at) => whole[..from + at].chars().count() as i64,
        None => -1,
    }))
}

fn last_index_of(values: &[Value], upto: i64) -> Result<Value, Error> {
    let (whole, wanted) = (text(values, 0), text(values, 1));
    let upto = if upto == i64::MAX { whole.len() } else { byte_of(whole, upto)? };
    let end = (upto + wanted.len()).min(whole.len());
    let within = whole.get(..end).unwrap_or(whole);
    Ok(Value::Int(within.rfind(wanted).map_or(-1, |at| whole[..at].chars().count() as i64)))
}

fn replace(values: &[Value], budget: &mut Budget, most: usize) -> Result<Value, Error> {
    let (whole, old, new) = (text(values, 0), text(values, 1), text(values, 2));
    // The result may be far longer than the arguments.
    let times = whole.matches(old).take(most).count() as u64;
    budget.charge(times.saturating_mul(making(new) + 1))?;
    Ok(Value::string(whole.replacen(old, new, most)))
}

fn split(values: &[Value], budget: &mut Budget, most: i64) -> Result<Value, Error> {
    let (whole, by) = (text(values, 0), text(values, 1));
    let most = match most {
        0 => return Ok(Value::list(Vec::new())),
        n => usize::try_from(n).unwrap_or(usize::MAX),
    };
    if by.is_empty() {
        budget.charge(whole.chars().count() as u64)?;
        let characters: Vec<String> = whole.chars().map(String::from).collect();
        if characters.len() <= most {
            return Ok(texts(characters));
        }
        let (first, rest) = characters.split_at(most - 1);
        return Ok(texts(first.iter().cloned().chain([rest.concat()])));
    }
    budget.charge(whole.matches(by).take(most).count() as u64)?;
    Ok(texts(whole.splitn(most, by)))
}

fn substring(values: &[Value], to: Option<i64>) -> Result<Value, Error> {
    let (whole, from) = (text(values, 0), int(values, 1));
    let (start, end) = (byte_of(whole, from)?, to.map_or(Ok(whole.len()), |to| byte_of(whole, to))?);
    match whole.get(start..end) {
        Some(part) => Ok(Value::string(part)),
        None => Err(Error::new(format!("invalid substring range. start: {from}, end: {}", to.unwrap_or_default()))),
    }
}

fn join(values: &[Value], budget: &mut Budget, by: &str) -> Result<Value, Error> {
    let parts = items(values, 0).iter().map(|item| match item {
        Value::String(text) => Ok(&**text),
        _ => Err(Error::no_such_overload()),
    });
    let parts = parts.collect::<Result<Vec<&str>, Error>>()?;
    let between = making(by);
    // Each is charged before the next is created: they may be the same string many times.
    parts.iter().try_for_each(|part| budget.charge(1 + making(part) + between))?;
    Ok(Value::string(parts.join(by)))
}

/// `"%s is %d".format([a, b])`
fn format(values: &[Value], budget: &mut Budget) -> Result<Value, Error> {
    let (template, mut arguments) = (text(values, 0), items(values, 1).iter());
    budget.charge(values[1].weight())?;
    let mut out = String::with_capacity(template.len());
    let mut rest = template.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut verb = rest.next();
        if verb == Some('%') {
            out.push('%');
            continue;
        }
        let mut precision = None;
        if verb == Some('.') {
            let mut digits = String::new();
            verb = rest.next();
            while let Some(digit) = verb.filter(char::is_ascii_digit) {
                digits.push(digit);
                verb = rest.next();
            }
            precision = digits.parse::<usize>().ok().map(|n| n.min(100));
        }
        let argument = arguments.next().ok_or_else(|| Error::new("index out of range in format string"))?;
        let written = formatted(verb, precision, argument)?;
        budget.charge(making(&written))?;
        out.push_str(&written);
    }
    Ok(Value::string(out))
}

fn formatted(verb: Option<char>, precision: Option<usize>, value: &Value) -> Result<String, Error> {
    let wrong = |what: &str| {
        Error::new(format!(
            "error during formatting: {what} clause can only be used on numbers, was given {}",
            value.type_name()
        ))
    };
    match (verb, value) {
        (Some('s'), value) => Ok(shown(value)),
        (Some('d'), Value::Int(_) | Value::Uint(_)) => Ok(value.text().unwrap_or_default()),
        (Some('d'), Value::Double(d)) => Ok(double_text(*d)),
        (Some('d'), _) => Err(wrong("decimal")),
        (Some('f'), value) => {
            Ok(format!("{:.*}", precision.unwrap_or(6), number(value).ok_or_else(|| wrong("fixed-point"))?))
        }
        (Some('e'), value) => {
            Ok(format!("{:.*e}", precision.unwrap_or(6), number(value).ok_or_else(|| wrong("scientific notation"))?))
        }
        (Some('b'), Value::Int(i)) => Ok(if *i < 0 { format!("-{:b}", i.unsigned_abs()) } else { format!("{i:b}") }),
        (Some('b'), Value::Uint(u)) => Ok(format!("{u:b}")),
        (Some('b'), Value::Bool(b)) => Ok(i32::from(*b).to_string()),
        (Some('o'), Value::Int(i)) => Ok(if *i < 0 { format!("-{:o}", i.unsigned_abs()) } else { format!("{i:o}") }),
        (Some('o'), Value::Uint(u)) => Ok(format!("{u:o}")),
        (Some('x'), Value::Int(i)) => Ok(if *i < 0 { format!("-{:x}", i.unsigned_abs()) } else { format!("{i:x}") }),
        (Some('x'), Value::Uint(u)) => Ok(format!("{u:x}")),
        (Some('x'), Value::String(s)) => Ok(s.bytes().map(|byte| format!("{byte:02x}")).collect()),
        (Some('X'), value) => formatted(Some('x'), precision, value).map(|text| text.to_uppercase()),
        (Some(other), _) => {
            Err(Error::new(format!("could not parse formatting clause: unrecognized formatting clause {other:?}")))
        }
        (None, _) => Err(Error::new("unexpected end of format string")),
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Double(d) => Some(*d),
        Value::Int(i) => Some(*i as f64),
        Value::Uint(u) => Some(*u as f64),
        _ => None,
    }
}

/// A value in the format of `%s`.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::List(list) => format!("[{}]", list.items.iter().map(shown).collect::<Vec<_>>().join(", ")),
        Value::Map(map) => {
            let entries = map.entries().map(|(key, value)| format!("{}: {}", shown(&key), shown(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        Value::Type(name) => name.to_string(),
        other => other.text().unwrap_or_else(|| other.type_name().to_owned()),
    }
}

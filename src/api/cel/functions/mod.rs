//! The functions that expressions may call: CEL's own, and Kubernetes' libraries. One row per overload.
//!
//! <https://kubernetes.io/docs/reference/using-api/cel/#cel-options-language-features-and-libraries>

use std::sync::{Arc, LazyLock};

use super::types::Type;
use super::value::Value;
use super::{Budget, Error};

pub mod convert;
pub mod costs;
pub mod format;
pub mod lists;
pub mod net;
pub mod quantity;
pub mod semver;
pub mod strings;
pub mod times;

/// One overload of a function.
#[derive(Debug)]
pub struct Function {
    /// `contains`; with its namespace `sets.contains`.
    pub name: &'static str,
    /// Called as `a.name(b)`.
    pub member: bool,
    /// The types of its arguments, the receiver's first.
    pub takes: &'static [Param],
    pub result: Out,
    run: Run,
}

type Run = fn(&[Value], &mut Budget) -> Result<Value, Error>;

/// The type of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Param {
    Any,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    List,
    Map,
    Time,
    Span,
    Optional,
    Named(&'static str),
}

/// The type of a result.
#[derive(Clone, Copy, Debug)]
pub enum Out {
    Dyn,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Time,
    Span,
    Type,
    /// A list of strings.
    Texts,
    /// The type of the receiver, its items or its content.
    Receiver,
    Item,
    /// An optional of the first argument's type.
    Some,
    /// An optional of something.
    Maybe,
    Named(&'static str),
}

const fn global(name: &'static str, takes: &'static [Param], result: Out, run: Run) -> Function {
    Function { name, member: false, takes, result, run }
}
const fn member(name: &'static str, takes: &'static [Param], result: Out, run: Run) -> Function {
    Function { name, member: true, takes, result, run }
}

/// The table, by name.
static FUNCTIONS: LazyLock<Vec<Function>> = LazyLock::new(|| {
    let libraries = [
        convert::rows(),
        strings::rows(),
        lists::rows(),
        times::rows(),
        net::rows(),
        quantity::rows(),
        format::rows(),
        semver::rows(),
    ];
    let mut all: Vec<Function> = libraries.into_iter().flatten().collect();
    all.sort_by_key(|row| row.name);
    all
});

pub use strings::takes_pattern;

/// All overloads of a name.
pub fn named(name: &str) -> &'static [Function] {
    let from = FUNCTIONS.partition_point(|row| row.name < name);
    let to = FUNCTIONS.partition_point(|row| row.name <= name);
    &FUNCTIONS[from..to]
}

/// The argument that these functions compile as a regular expression, if any.
pub fn pattern<'v>(rows: &[Function], values: &'v [Value]) -> Option<&'v Arc<str>> {
    match values.get(1) {
        Some(Value::String(text)) if rows.first().is_some_and(|row| strings::takes_pattern(row.name)) => Some(text),
        _ => None,
    }
}

/// Calls the overload for these values, after charging for them; `None` if there is none.
pub fn call(rows: &[Function], member: bool, values: &[Value], budget: &mut Budget) -> Option<Result<Value, Error>> {
    let fits = |row: &&Function| {
        row.member == member
            && row.takes.len() == values.len()
            && row.takes.iter().zip(values).all(|(param, value)| param.is(value))
    };
    let row = rows.iter().find(fits)?;
    Some(budget.charge(costs::of(row.name, values)).and_then(|()| (row.run)(values, budget)))
}

impl Function {
    /// Whether it accepts arguments of these types.
    pub fn takes(&self, types: &[Type]) -> bool {
        self.takes.len() == types.len() && self.takes.iter().zip(types).all(|(param, of)| param.may_be(of))
    }
}

impl Param {
    fn is(self, value: &Value) -> bool {
        match (self, value) {
            (Param::Any, _)
            | (Param::Bool, Value::Bool(_))
            | (Param::Int, Value::Int(_))
            | (Param::Uint, Value::Uint(_))
            | (Param::Double, Value::Double(_))
            | (Param::Text, Value::String(_))
            | (Param::Bytes, Value::Bytes(_))
            | (Param::List, Value::List(_))
            | (Param::Map, Value::Map(_))
            | (Param::Time, Value::Timestamp(_))
            | (Param::Span, Value::Duration(_))
            | (Param::Optional, Value::Optional(_)) => true,
            (Param::Named(name), value) => value.type_name() == name,
            _ => false,
        }
    }

    fn may_be(self, of: &Type) -> bool {
        match (self, of) {
            (_, Type::Dyn) | (Param::Any, _) => true,
            (Param::Bool, Type::Bool)
            | (Param::Int, Type::Int)
            | (Param::Uint, Type::Uint)
            | (Param::Double, Type::Double)
            | (Param::Text, Type::String)
            | (Param::Bytes, Type::Bytes)
            | (Param::List, Type::List(_))
            | (Param::Map, Type::Map(..) | Type::Object(_))
            | (Param::Time, Type::Timestamp)
            | (Param::Span, Type::Duration)
            | (Param::Optional, Type::Optional(_)) => true,
            (Param::Named(name), Type::Named(other)) => name == *other,
            _ => false,
        }
    }
}

impl Out {
    /// The type of the result, for arguments of these types.
    pub fn of(self, types: &[Type]) -> Type {
        let first = || types.first().cloned().unwrap_or_default();
        match self {
            Out::Dyn => Type::Dyn,
            Out::Bool => Type::Bool,
            Out::Int => Type::Int,
            Out::Uint => Type::Uint,
            Out::Double => Type::Double,
            Out::Text => Type::String,
            Out::Bytes => Type::Bytes,
            Out::Time => Type::Timestamp,
            Out::Span => Type::Duration,
            Out::Type => Type::Type,
            Out::Texts => Type::list(Type::String),
            Out::Receiver => first(),
            Out::Item => match first() {
                Type::List(item) | Type::Optional(item) => (*item).clone(),
                _ => Type::Dyn,
            },
            Out::Some => Type::optional(first()),
            Out::Maybe => Type::optional(Type::Dyn),
            Out::Named(name) => Type::Named(name),
        }
    }
}

/// An argument that is known to be a string.
fn text(values: &[Value], at: usize) -> &str {
    match values.get(at) {
        Some(Value::String(text)) => text,
        _ => "",
    }
}
fn int(values: &[Value], at: usize) -> i64 {
    match values.get(at) {
        Some(Value::Int(i)) => *i,
        _ => 0,
    }
}
fn items(values: &[Value], at: usize) -> &[Value] {
    match values.get(at) {
        Some(Value::List(list)) => &list.items,
        _ => &[],
    }
}
/// The cost of creating a string, by its characters.
fn making(text: &str) -> u64 {
    text.chars().count() as u64 / 10
}
fn texts(all: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Value {
    Value::list(all.into_iter().map(Value::string).collect())
}

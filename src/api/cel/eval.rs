//! The evaluation of a compiled expression.

use std::sync::Arc;

use super::functions::{self, Function};
use super::lower::{Fold, Node, Step};
use super::value::{Map, Value};
use super::{Budget, Error};
use crate::pattern;

/// Upstream's costs of making a list and a map.
const LIST_COST: u64 = 10;
const MAP_COST: u64 = 30;

/// How many compiled regular expressions an evaluation remembers as paid for.
const PATTERNS: usize = 16;

type Lookup<'a> = &'a dyn Fn(&str) -> Option<Value>;

pub fn evaluate(root: &Node, variables: Lookup<'_>, budget: &mut Budget) -> Result<Value, Error> {
    Evaluation { variables, scope: Vec::new(), patterns: Vec::new(), budget }.node(root)
}

struct Evaluation<'a> {
    variables: Lookup<'a>,
    /// The variables of the enclosing macros.
    scope: Vec<(Arc<str>, Value)>,
    /// The most recent regular expressions that were compiled and charged during the evaluation, with their errors.
    patterns: Vec<(Arc<str>, Option<Error>)>,
    budget: &'a mut Budget,
}

impl Evaluation<'_> {
    fn node(&mut self, node: &Node) -> Result<Value, Error> {
        if let Node::Literal(value) = node {
            return Ok(value.clone());
        }
        self.budget.charge(1)?;
        match node {
            Node::Literal(value) => Ok(value.clone()),
            Node::Variable(name) => {
                self.budget.charge_name(name)?;
                self.variable(name)
            }
            Node::Select(operand, field) => {
                let value = self.node(operand)?;
                self.budget.charge_name(field)?;
                select(&value, field)
            }
            Node::Has(operand, field) => {
                let value = self.node(operand)?;
                self.budget.charge_name(field)?;
                has(&value, field)
            }
            Node::OptSelect(operand, field) => {
                let value = self.node(operand)?;
                self.budget.charge_name(field)?;
                optional(&value, |value| find(value, &Value::String(field.clone())))
            }
            Node::Index(operand, index) => {
                let (value, index) = (self.node(operand)?, self.node(index)?);
                self.pay_for_key(&index)?;
                at(&value, &index)
            }
            Node::OptIndex(operand, index) => {
                let (value, index) = (self.node(operand)?, self.node(index)?);
                self.pay_for_key(&index)?;
                optional(&value, |value| find(value, &index))
            }
            Node::And(parts) => self.logic(parts, false),
            Node::Or(parts) => self.logic(parts, true),
            Node::Not(part) => match self.node(part)? {
                Value::Bool(b) => Ok(Value::Bool(!b)),
                _ => Err(Error::no_such_overload()),
            },
            Node::Negate(part) => negated(self.node(part)?),
            Node::Condition(parts) => {
                let [test, yes, no] = &**parts;
                match self.node(test)? {
                    Value::Bool(true) => self.node(yes),
                    Value::Bool(false) => self.node(no),
                    _ => Err(Error::no_such_overload()),
                }
            }
            Node::Operate(operator, operands) => {
                let [left, right] = &**operands;
                let (left, right) = (self.node(left)?, self.node(right)?);
                operator.apply(&left, &right, self.budget)
            }
            Node::List(items) => self.list(items),
            Node::Map(entries) => self.map(entries),
            Node::Call(rows, member, arguments) => {
                let values = self.all(arguments)?;
                if !matches!(arguments.get(1), Some(Node::Literal(_))) {
                    self.pay_for_pattern(rows, &values)?;
                }
                match functions::call(rows, *member, &values, self.budget) {
                    Some(outcome) => outcome,
                    None => hosted(rows.first().map_or("", |row| row.name), *member, &values, self.budget),
                }
            }
            Node::Method(name, arguments) => {
                let values = self.all(arguments)?;
                hosted(name, true, &values, self.budget)
            }
            Node::Fold(fold) => self.fold(fold),
            Node::OptMap(parts, flat) => {
                let (target, variable, body) = &**parts;
                match self.node(target)? {
                    Value::Optional(None) => Ok(Value::Optional(None)),
                    Value::Optional(Some(inner)) => {
                        self.scope.push((variable.clone(), (*inner).clone()));
                        let outcome = self.node(body);
                        self.scope.pop();
                        Ok(if *flat { outcome? } else { Value::some(outcome?) })
                    }
                    _ => Err(Error::no_such_overload()),
                }
            }
        }
    }

    /// A literal regular expression is compiled once; one built from values may differ each time. (Upstream's costs ignore
    /// compilation, whose time it limits.)
    fn pay_for_pattern(&mut self, rows: &[Function], values: &[Value]) -> Result<(), Error> {
        let Some(text) = functions::pattern(rows, values) else { return Ok(()) };
        if let Some((_, wrong)) = self.patterns.iter().find(|(known, _)| known == text) {
            return wrong.clone().map_or(Ok(()), Err);
        }
        let made = pattern::of_values(text, |cost| self.budget.charge(cost))?;
        let wrong = made.err().map(|why| Error::new(why.to_string()));
        if self.patterns.len() == PATTERNS {
            self.patterns.remove(0);
        }
        self.patterns.push((text.clone(), wrong.clone()));
        wrong.map_or(Ok(()), Err)
    }

    /// A key longer than usual names is charged by its length.
    fn pay_for_key(&mut self, key: &Value) -> Result<(), Error> {
        if let Value::String(name) = key { self.budget.charge_name(name) } else { Ok(()) }
    }

    fn all(&mut self, nodes: &[Node]) -> Result<Vec<Value>, Error> {
        nodes.iter().map(|node| self.node(node)).collect()
    }

    fn variable(&self, name: &str) -> Result<Value, Error> {
        let own = self.scope.iter().rev().find(|(known, _)| **known == *name).map(|(_, value)| value.clone());
        let value = own.or_else(|| (self.variables)(name));
        value.ok_or_else(|| Error::new(format!("no such attribute(s): {name}")))
    }

    /// `&&` and `||`: one deciding operand is enough, whatever the results of the others, including errors.
    fn logic(&mut self, parts: &[Node], decides: bool) -> Result<Value, Error> {
        let mut failed = None;
        for part in parts {
            match self.node(part) {
                Ok(Value::Bool(b)) if b == decides => return Ok(Value::Bool(decides)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => failed = failed.or(Some(Error::no_such_overload())),
                Err(error) if error.exhausted => return Err(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(Value::Bool(!decides)), Err)
    }

    fn list(&mut self, nodes: &[(Node, bool)]) -> Result<Value, Error> {
        self.budget.charge(LIST_COST)?;
        let mut items = Vec::with_capacity(nodes.len());
        for (node, is_optional) in nodes {
            let value = self.node(node)?;
            items.extend(if *is_optional { inner(value)? } else { Some(value) });
        }
        Ok(Value::list(items))
    }

    fn map(&mut self, entries: &[(Node, Node, bool)]) -> Result<Value, Error> {
        self.budget.charge(MAP_COST)?;
        let mut map = Map::default();
        for (key, value, is_optional) in entries {
            let (key, value) = (self.node(key)?, self.node(value)?);
            let Some(value) = (if *is_optional { inner(value)? } else { Some(value) }) else { continue };
            self.pay_for_key(&key)?;
            insert(&mut map, key, value)?;
        }
        Ok(Value::Map(Arc::new(map)))
    }

    fn fold(&mut self, fold: &Fold) -> Result<Value, Error> {
        let range = self.node(&fold.range)?;
        let two = fold.variables.len() == 2;
        self.budget.charge(match &range {
            Value::List(list) => list.items.len() as u64,
            Value::Map(map) => map.len() as u64,
            _ => 0,
        })?;
        let items: Vec<(Value, Value)> = match &range {
            Value::List(list) => {
                list.items.iter().enumerate().map(|(i, item)| (Value::Int(i as i64), item.clone())).collect()
            }
            // With one variable, iteration over a map yields its keys.
            Value::Map(map) => {
                map.entries().map(|(key, value)| (key.clone(), if two { value.clone() } else { key })).collect()
            }
            _ => return Err(Error::no_such_overload()),
        };
        let mut outcome = Outcome::new(fold.step);
        let before = self.scope.len();
        for (key, value) in items {
            if let [first, second] = fold.variables.as_slice() {
                self.scope.push((first.clone(), key.clone()));
                self.scope.push((second.clone(), value));
            } else if let [only] = fold.variables.as_slice() {
                self.scope.push((only.clone(), value));
            }
            let done = self.step(fold, key, &mut outcome);
            self.scope.truncate(before);
            if done? {
                break;
            }
        }
        outcome.value()
    }

    /// Evaluates one item; returns true when the rest does not matter any more.
    fn step(&mut self, fold: &Fold, key: Value, outcome: &mut Outcome) -> Result<bool, Error> {
        if let Some(filter) = &fold.filter {
            match self.node(filter)? {
                Value::Bool(true) => {}
                Value::Bool(false) => return Ok(false),
                _ => return Err(Error::no_such_overload()),
            }
        }
        let value = self.node(&fold.body);
        match (outcome, value) {
            (_, Err(error)) if error.exhausted => Err(error),
            (Outcome::Decide { decides, decided, failed }, value) => {
                match value {
                    Ok(Value::Bool(b)) => *decided |= b == *decides,
                    Ok(_) => *failed = Some(Error::no_such_overload()),
                    Err(error) => *failed = Some(error),
                }
                Ok(*decided)
            }
            (_, Err(error)) => Err(error),
            (Outcome::Count(n), Ok(Value::Bool(b))) => {
                *n += u64::from(b);
                Ok(false)
            }
            (Outcome::Count(_), Ok(_)) => Err(Error::no_such_overload()),
            (Outcome::List(items), Ok(value)) => {
                items.push(value);
                Ok(false)
            }
            (Outcome::Map(map), Ok(value)) => {
                if fold.step == Step::Values {
                    self.pay_for_key(&key)?;
                    insert(map, key, value)?;
                } else if let Value::Map(entries) = &value {
                    for (key, value) in entries.entries() {
                        self.budget.charge(1)?;
                        self.pay_for_key(&key)?;
                        insert(map, key, value.clone())?;
                    }
                } else {
                    return Err(Error::no_such_overload());
                }
                Ok(false)
            }
        }
    }
}

/// The intermediate result of a macro.
enum Outcome {
    /// `all` and `exists`: whether an item decided it, and the first error, which counts only if none does.
    Decide {
        decides: bool,
        decided: bool,
        failed: Option<Error>,
    },
    Count(u64),
    List(Vec<Value>),
    Map(Map),
}

impl Outcome {
    fn new(step: Step) -> Outcome {
        match step {
            Step::All => Outcome::Decide { decides: false, decided: false, failed: None },
            Step::Exists => Outcome::Decide { decides: true, decided: false, failed: None },
            Step::ExistsOne => Outcome::Count(0),
            Step::Collect => Outcome::List(Vec::new()),
            Step::Values | Step::Entries => Outcome::Map(Map::default()),
        }
    }

    fn value(self) -> Result<Value, Error> {
        match self {
            Outcome::Decide { decides, decided: true, .. } => Ok(Value::Bool(decides)),
            Outcome::Decide { failed: Some(error), .. } => Err(error),
            Outcome::Decide { decides, .. } => Ok(Value::Bool(!decides)),
            Outcome::Count(n) => Ok(Value::Bool(n == 1)),
            Outcome::List(items) => Ok(Value::list(items)),
            Outcome::Map(map) => Ok(Value::Map(Arc::new(map))),
        }
    }
}

fn insert(map: &mut Map, key: Value, value: Value) -> Result<(), Error> {
    if !matches!(key, Value::String(_) | Value::Int(_) | Value::Uint(_) | Value::Bool(_)) {
        return Err(Error::new(format!("unsupported key type: {}", key.type_name())));
    }
    let shown = key.text().unwrap_or_default();
    if map.insert(key, value) { Ok(()) } else { Err(Error::new(format!("insert failed: key {shown} already exists"))) }
}

fn hosted(name: &str, member: bool, values: &[Value], budget: &mut Budget) -> Result<Value, Error> {
    match values {
        [Value::Host(host), arguments @ ..] if member => {
            let given = arguments.iter().fold(0_u64, |sum, argument| sum.saturating_add(argument.weight()));
            budget.charge(host.cost(name).saturating_add(given))?;
            host.call(name, arguments).unwrap_or_else(|| Err(Error::no_such_overload()))
        }
        _ => Err(Error::no_such_overload()),
    }
}

fn negated(value: Value) -> Result<Value, Error> {
    match value {
        Value::Int(i) => i.checked_neg().map(Value::Int).ok_or_else(|| Error::new("integer overflow")),
        Value::Double(d) => Ok(Value::Double(-d)),
        Value::Duration(d) => d.checked_neg().map(Value::Duration).ok_or_else(|| Error::new("duration overflow")),
        _ => Err(Error::no_such_overload()),
    }
}

/// `a.b`; for an optional, the field of its value as an optional.
fn select(value: &Value, field: &Arc<str>) -> Result<Value, Error> {
    match value {
        Value::Map(map) => map.fields.get(field).cloned().ok_or_else(|| Error::no_such_key(field)),
        Value::Host(host) => host.field(field).unwrap_or_else(|| Err(Error::no_such_key(field))),
        Value::Optional(_) => optional(value, |value| find(value, &Value::String(field.clone()))),
        _ => Err(Error::new(format!("no such key: {field}"))),
    }
}

fn has(value: &Value, field: &str) -> Result<Value, Error> {
    Ok(Value::Bool(match value {
        Value::Map(map) => map.fields.contains_key(field),
        Value::Host(host) => host.field(field).is_some(),
        Value::Optional(None) => false,
        Value::Optional(Some(inner)) => return has(inner, field),
        _ => return Err(Error::no_such_overload()),
    }))
}

fn at(value: &Value, index: &Value) -> Result<Value, Error> {
    match value {
        Value::Optional(_) => optional(value, |value| find(value, index)),
        _ => find(value, index)?.ok_or_else(|| match value {
            Value::List(_) => Error::new(format!("index out of bounds: {}", index.text().unwrap_or_default())),
            _ => Error::no_such_key(&index.text().unwrap_or_default()),
        }),
    }
}

/// The item or entry, if it exists.
fn find(value: &Value, index: &Value) -> Result<Option<Value>, Error> {
    match (value, index) {
        (Value::List(list), index) => {
            let position = match index {
                Value::Int(i) => usize::try_from(*i).ok(),
                Value::Uint(u) => usize::try_from(*u).ok(),
                Value::Double(d) if d.fract() == 0.0 && *d >= 0.0 && *d < 9e15 => Some(*d as usize),
                Value::Double(_) => None,
                _ => return Err(Error::new(format!("unsupported index type '{}' in list", index.type_name()))),
            };
            Ok(position.and_then(|i| list.items.get(i)).cloned())
        }
        (Value::Map(map), key) => Ok(map.get(key).cloned()),
        (Value::Host(host), Value::String(name)) => host.field(name).transpose(),
        _ => Err(Error::no_such_overload()),
    }
}

/// Looks into a value, or into an optional's content; a missing one results in an empty optional.
fn optional(value: &Value, look: impl Fn(&Value) -> Result<Option<Value>, Error>) -> Result<Value, Error> {
    let found = match value {
        Value::Optional(None) => None,
        Value::Optional(Some(inner)) => look(inner)?,
        value => look(value)?,
    };
    Ok(found.map_or(Value::Optional(None), Value::some))
}

/// The content of an optional.
fn inner(value: Value) -> Result<Option<Value>, Error> {
    match value {
        Value::Optional(inner) => Ok(inner.map(|value| (*value).clone())),
        _ => Err(Error::no_such_overload()),
    }
}

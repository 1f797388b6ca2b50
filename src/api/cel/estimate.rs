//! The maximum cost of an expression, computed before it is evaluated: by cel-go's cost model, from the possible sizes of values.
//! Upstream: `cel-go/checker/cost.go`, `k8s.io/apiserver/pkg/cel/library/cost.go`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Program;
use super::functions::{Function, Out, takes_pattern};
use super::lower::{Fold, Node, Step};
use super::operators::Operator;
use super::value::Value;
use crate::pattern;

/// The cost of creating a list or a map.
const NEW_LIST: u64 = 10;
const NEW_MAP: u64 = 30;
/// The cost of scanning a string, per character (or byte), and of a regular expression, per character; in hundredths.
const TEXT: u64 = 10;
const REGEX: u64 = 25;
/// The longest regular expression of Kubernetes' named formats.
const NAMED_REGEX: u64 = 128;

/// The possible values of an expression, and their sizes.
#[derive(Clone, Debug)]
pub enum Shape {
    /// A value without parts; some are strings of this many bytes outside of expressions.
    Scalar(u64),
    /// A string or bytes: minimum and maximum length.
    Text(u64, u64),
    /// At most this many items.
    List(u64, Arc<Shape>),
    Map(u64, Arc<Shape>),
    Object(Arc<BTreeMap<String, Shape>>),
    /// Anything, with at most this many parts.
    Unknown(u64),
}

impl Shape {
    const ONE: Shape = Shape::Scalar(1);
    const ANY: Shape = Shape::Unknown(u64::MAX);

    fn most(&self) -> u64 {
        match self {
            Shape::Scalar(most) | Shape::Text(_, most) | Shape::Unknown(most) => *most,
            Shape::List(most, _) | Shape::Map(most, _) => *most,
            // Upstream counts no parts of an object.
            Shape::Object(_) => 0,
        }
    }
    fn least(&self) -> u64 {
        if let Shape::Text(least, _) = self { *least } else { 0 }
    }
    fn item(&self) -> Shape {
        match self {
            Shape::List(_, item) | Shape::Map(_, item) => (**item).clone(),
            Shape::Unknown(most) => Shape::Unknown(*most),
            _ => Shape::ANY,
        }
    }
    fn field(&self, name: &str) -> Shape {
        match self {
            Shape::Object(fields) => fields.get(name).cloned().unwrap_or(Shape::ANY),
            other => other.item(),
        }
    }
    /// A shape that covers both.
    fn or(self, other: Shape) -> Shape {
        let most = self.most().max(other.most());
        match (self, other) {
            (Shape::Scalar(_), Shape::Scalar(_)) => Shape::Scalar(most),
            (Shape::Text(a, _), Shape::Text(b, _)) => Shape::Text(a.min(b), most),
            (Shape::List(_, a), Shape::List(_, b)) => Shape::List(most, Arc::new((*a).clone().or((*b).clone()))),
            (Shape::Map(_, a), Shape::Map(_, b)) => Shape::Map(most, Arc::new((*a).clone().or((*b).clone()))),
            (Shape::Object(a), Shape::Object(_)) => Shape::Object(a),
            _ => Shape::Unknown(most),
        }
    }
}

/// `size` times a cost in hundredths, rounded up.
fn scaled(size: u64, hundredths: u64) -> u64 {
    let exact = (u128::from(size) * u128::from(hundredths)).div_ceil(100);
    u64::try_from(exact).unwrap_or(u64::MAX)
}

fn times(a: u64, b: u64) -> u64 {
    a.saturating_mul(b)
}

/// The maximum cost of one evaluation, for variables of these shapes.
pub fn most(program: &Program, variables: &[(&str, Shape)]) -> u64 {
    Estimate { scope: scope(variables), of_pattern: 0 }.of(&program.root).0
}

/// The same including the compilation of regular expressions from values, which upstream's model ignores.
pub fn most_work(program: &Program, variables: &[(&str, Shape)]) -> u64 {
    Estimate { scope: scope(variables), of_pattern: pattern::DEAR }.of(&program.root).0
}

fn scope(variables: &[(&str, Shape)]) -> Vec<(Arc<str>, Shape)> {
    variables.iter().map(|(name, shape)| (Arc::from(*name), shape.clone())).collect()
}

struct Estimate {
    scope: Vec<(Arc<str>, Shape)>,
    /// The cost of compiling a regular expression that is not a literal.
    of_pattern: u64,
}

impl Estimate {
    /// The cost of an expression with its subexpressions, and the shape of its result.
    fn of(&mut self, node: &Node) -> (u64, Shape) {
        match node {
            Node::Literal(value) => (0, literal(value)),
            Node::Variable(name) => {
                let known = self.scope.iter().rev().find(|(known, _)| known == name);
                (1, known.map_or(Shape::ANY, |(_, shape)| shape.clone()))
            }
            Node::Select(operand, name) => {
                let (cost, shape) = self.of(operand);
                let own = u64::from(matches!(shape, Shape::Object(_) | Shape::Map(..)));
                (cost.saturating_add(own), shape.field(name))
            }
            Node::Has(operand, _) => (self.of(operand).0, Shape::ONE),
            // Optionals count like their content.
            Node::OptSelect(operand, name) => {
                let (cost, shape) = self.of(operand);
                (cost.saturating_add(1), shape.field(name))
            }
            Node::Index(operand, index) | Node::OptIndex(operand, index) => {
                let ((cost, shape), (of_index, _)) = (self.of(operand), self.of(index));
                (cost.saturating_add(of_index).saturating_add(1), shape.item())
            }
            Node::And(all) | Node::Or(all) => (self.sum(all).0, Shape::ONE),
            Node::Not(of) => (self.of(of).0.saturating_add(1), Shape::ONE),
            Node::Negate(of) => {
                let (cost, shape) = self.of(of);
                (cost.saturating_add(1), shape)
            }
            Node::Condition(parts) => {
                let [test, yes, no] = &**parts;
                let ((test, _), (yes, a), (no, b)) = (self.of(test), self.of(yes), self.of(no));
                (test.saturating_add(yes.max(no)), a.or(b))
            }
            Node::Operate(operator, operands) => {
                let ((left, a), (right, b)) = (self.of(&operands[0]), self.of(&operands[1]));
                let (cost, shape) = operated(*operator, a, b);
                (cost.saturating_add(left).saturating_add(right), shape)
            }
            Node::List(items) => {
                let each: Vec<_> = items.iter().map(|(item, _)| self.of(item)).collect();
                let cost = each.iter().fold(NEW_LIST, |sum, (cost, _)| sum.saturating_add(*cost));
                (cost, Shape::List(items.len() as u64, any_of(each.into_iter().map(|(_, shape)| shape))))
            }
            Node::Map(entries) => {
                let mut cost = NEW_MAP;
                let mut values = Vec::new();
                for (key, value, _) in entries {
                    let ((key, _), (value, shape)) = (self.of(key), self.of(value));
                    cost = cost.saturating_add(key).saturating_add(value);
                    values.push(shape);
                }
                (cost, Shape::Map(entries.len() as u64, any_of(values)))
            }
            Node::Call(rows, _, args) => {
                let (cost, shapes) = self.sum(args);
                let (own, shape) = called(rows, args, &shapes);
                let is_written = matches!(args.get(1), Some(Node::Literal(_)));
                let makes_pattern = !is_written && rows.first().is_some_and(|row| takes_pattern(row.name));
                let made = if makes_pattern { self.of_pattern } else { 0 };
                (cost.saturating_add(own).saturating_add(made), shape)
            }
            Node::Method(_, args) => (self.sum(args).0.saturating_add(1), Shape::ANY),
            Node::Fold(fold) => self.fold(fold),
            Node::OptMap(parts, _) => {
                let (target, name, body) = &**parts;
                let (cost, shape) = self.of(target);
                let (body, shape) = self.within(vec![(name.clone(), shape)], |own| own.of(body));
                // The optional is tested, unwrapped and bound, and the result is wrapped.
                (times(cost, 2).saturating_add(body).saturating_add(NEW_LIST + 3), shape)
            }
        }
    }

    fn sum(&mut self, nodes: &[Node]) -> (u64, Vec<Shape>) {
        let mut sum = 0_u64;
        let shapes = nodes.iter().map(|node| {
            let (cost, shape) = self.of(node);
            sum = sum.saturating_add(cost);
            shape
        });
        let shapes = shapes.collect();
        (sum, shapes)
    }

    fn within<T>(&mut self, variables: Vec<(Arc<str>, Shape)>, run: impl FnOnce(&mut Estimate) -> T) -> T {
        let before = self.scope.len();
        self.scope.extend(variables);
        let outcome = run(self);
        self.scope.truncate(before);
        outcome
    }

    /// A macro, in the form of cel-go's parser: a loop with a condition, and a step that includes the body.
    fn fold(&mut self, fold: &Fold) -> (u64, Shape) {
        let (range, of) = self.of(&fold.range);
        let is_list = matches!(of, Shape::List(..) | Shape::Unknown(_));
        let first = match (is_list, fold.variables.len()) {
            (true, 1) => of.item(),
            (true, _) => Shape::Scalar(0),
            // Upstream does not know the length of keys.
            (false, _) => Shape::Text(0, 0),
        };
        let count = if let Shape::Object(fields) = &of { fields.len() as u64 } else { of.most() };
        let variables = fold.variables.iter().cloned().zip([first, of.item()]).collect();
        let (filter, body, shape) = self.within(variables, |own| {
            let filter = fold.filter.as_ref().map_or(0, |filter| own.of(filter).0);
            let (body, shape) = own.of(&fold.body);
            (filter, body, shape)
        });
        let (once, each, shape) = match fold.step {
            Step::All => (1, 3, Shape::ONE),
            Step::Exists => (1, 4, Shape::ONE),
            Step::ExistsOne => (2, 2, Shape::ONE),
            Step::Collect => (NEW_LIST + 1, NEW_LIST + 2, Shape::List(count, Arc::new(shape))),
            Step::Values => (NEW_MAP + 1, 3, Shape::Map(count, Arc::new(shape))),
            Step::Entries => (NEW_MAP + 1, 2, Shape::Map(count, Arc::new(shape.item()))),
        };
        let each = filter.saturating_add(body).saturating_add(each);
        (range.saturating_add(once).saturating_add(times(count, each)), shape)
    }
}

fn any_of(shapes: impl IntoIterator<Item = Shape>) -> Arc<Shape> {
    Arc::new(shapes.into_iter().reduce(Shape::or).unwrap_or(Shape::Unknown(0)))
}

fn literal(value: &Value) -> Shape {
    match value {
        Value::String(text) => {
            let characters = text.chars().count() as u64;
            Shape::Text(characters, characters)
        }
        Value::Bytes(bytes) => Shape::Text(bytes.len() as u64, bytes.len() as u64),
        _ => Shape::ONE,
    }
}

fn operated(operator: Operator, a: Shape, b: Shape) -> (u64, Shape) {
    let smaller = || scaled(a.most().min(b.most()), TEXT);
    let is_text = |shape: &Shape| matches!(shape, Shape::Text(..) | Shape::Unknown(_));
    match operator {
        Operator::Equal | Operator::NotEqual => (smaller(), Shape::ONE),
        Operator::Less | Operator::LessEqual | Operator::Greater | Operator::GreaterEqual => {
            (if is_text(&a) && is_text(&b) { smaller() } else { 1 }, Shape::ONE)
        }
        Operator::In => (if matches!(b, Shape::Map(..)) { 1 } else { b.most() }, Shape::ONE),
        Operator::Add => {
            let most = a.most().saturating_add(b.most());
            match (&a, &b) {
                (Shape::List(_, x), Shape::List(_, y)) => {
                    (1, Shape::List(most, any_of([(**x).clone(), (**y).clone()])))
                }
                (Shape::Text(..), _) | (_, Shape::Text(..)) => {
                    (scaled(most, TEXT), Shape::Text(a.least().saturating_add(b.least()), most))
                }
                (Shape::Unknown(_), Shape::Unknown(_)) => (scaled(most, TEXT), Shape::Unknown(most)),
                _ => (1, Shape::ONE),
            }
        }
        _ => (1, Shape::ONE),
    }
}

/// The cost of a function without its arguments, and the shape of its result.
fn called(rows: &[Function], args: &[Node], shapes: &[Shape]) -> (u64, Shape) {
    let Some(row) = rows.first() else { return (1, Shape::ANY) };
    let size = |at: usize| shapes.get(at).map_or(0, Shape::most);
    let through = scaled(size(0), TEXT);
    let by_regex = || times(scaled(size(0).saturating_add(1), TEXT), scaled(size(1), REGEX));
    let text = |most: u64| Shape::Text(0, most);
    let texts = |most: u64| Shape::List(most, Arc::new(Shape::Text(0, size(0))));
    match row.name {
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => match &shapes[0] {
            Shape::List(most, item) => {
                let each = if let Shape::Text(_, length) = **item { scaled(length, TEXT) } else { 0 };
                let made = if matches!(row.name, "max" | "min") { (**item).clone() } else { Shape::ONE };
                (times(*most, each.saturating_add(1)), made)
            }
            _ => (through, Shape::ONE),
        },
        "lowerAscii" | "upperAscii" | "substring" | "trim" | "reverse" | "charAt" => (through, text(size(0))),
        "strings.quote" => (through, text(times(size(0), 2).saturating_add(2))),
        "replace" => (scaled(size(0), 2 * TEXT), text(replaced(shapes))),
        "split" => {
            let limit = match args.get(2) {
                Some(Node::Literal(Value::Int(limit))) => u64::try_from(*limit).unwrap_or(u64::MAX),
                _ => u64::MAX,
            };
            (scaled(size(0), 2 * TEXT), texts(size(0).min(limit)))
        }
        "join" => {
            let items = times(size(0), shapes[0].item().most());
            let most = items.saturating_add(times(size(1), size(0).saturating_sub(1)));
            (scaled(most, TEXT), text(most))
        }
        "find" => (by_regex(), text(size(0))),
        "findAll" => (by_regex(), texts(size(0))),
        "matches" => (by_regex(), Shape::ONE),
        "contains" if shapes.len() == 2 => (times(through, scaled(size(1), TEXT)), Shape::ONE),
        "startsWith" | "endsWith" => (scaled(size(1), TEXT), Shape::ONE),
        "validate" => (times(scaled(size(1), TEXT), scaled(NAMED_REGEX, REGEX)), texts(size(1))),
        "sets.contains" | "sets.intersects" => (times(size(0), size(1)).saturating_add(1), Shape::ONE),
        "sets.equivalent" => (times(times(size(0), size(1)), 2).saturating_add(1), Shape::ONE),
        "url" => (through, Shape::ONE),
        // Two addresses are compared, and a string is parsed first.
        "containsIP" => (4 + scaled(length(shapes.get(1)), TEXT), Shape::ONE),
        "containsCIDR" => (7 + scaled(length(shapes.get(1)), TEXT), Shape::ONE),
        "bytes" => (through, text(times(size(0), 4))),
        "string" => match &shapes[0] {
            Shape::Text(_, most) => (through, text(*most)),
            // The longest number or time.
            Shape::Scalar(_) => (1, text(40)),
            other => (1, text(other.most())),
        },
        "format" => (through, text(size(0).saturating_add(times(size(1), shapes[1].item().most().max(40))))),
        "dyn" | "optional.of" | "optional.ofNonZeroValue" | "value" => {
            (1, shapes.first().cloned().unwrap_or(Shape::ANY))
        }
        "or" | "orValue" => (1, shapes.iter().cloned().reduce(Shape::or).unwrap_or(Shape::ANY)),
        "optional.none" => (1, Shape::Unknown(0)),
        _ => (1, made(row.result, shapes)),
    }
}

/// The length of a string; 0 for other values.
fn length(shape: Option<&Shape>) -> u64 {
    match shape {
        Some(Shape::Text(_, most) | Shape::Unknown(most)) => *most,
        _ => 0,
    }
}

/// The length of a string after replacing all matches.
fn replaced(shapes: &[Shape]) -> u64 {
    let [text, from, to, ..] = shapes else { return u64::MAX };
    match from.least() {
        // An empty string matches around every character.
        0 => times(text.most().saturating_add(1), to.most()).saturating_add(text.most()),
        least if to.most() <= least => text.most(),
        least => times(text.most().div_ceil(least), to.most()),
    }
}

fn made(result: Out, shapes: &[Shape]) -> Shape {
    let first = || shapes.first().cloned().unwrap_or(Shape::ANY);
    match result {
        Out::Text | Out::Bytes => Shape::Text(0, first().most()),
        Out::Texts => Shape::List(first().most(), Arc::new(Shape::Text(0, first().most()))),
        Out::Receiver | Out::Some => first(),
        Out::Item => first().item(),
        Out::Dyn | Out::Maybe => Shape::ANY,
        _ => Shape::ONE,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Env, Type, compile};
    use super::*;

    #[test]
    fn a_text_that_stands_in_an_expression_is_as_long_as_its_characters_are_many() {
        let env = Env::new([("self", Type::String)]);
        for character in ["a", "\u{6f22}"] {
            let program = compile(&format!("self.contains('{}')", character.repeat(100)), &env).unwrap();
            assert_eq!(most(&program, &[("self", Shape::Text(0, 1000))]), 1 + 100 * 10);
            // Each pair may become three.
            let program =
                compile(&format!("self.replace('{}', 'bbb') + 'b' == ''", character.repeat(2)), &env).unwrap();
            assert_eq!(most(&program, &[("self", Shape::Text(0, 1000))]), 1 + 200 + 151);
        }
    }
}

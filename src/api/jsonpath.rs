//! JSON paths of `additionalPrinterColumns`: `.spec.ports[*].name`, `.status.addresses[-1:].value`, `..name`,
//! `.status.conditions[?(@.type=="Ready")].status`, `.metadata.labels['example\.com/tier']`.
//!
//! Syntax, results and errors are those of upstream's `client-go/util/jsonpath`, with missing keys allowed; the number of visited
//! values is limited. The command's templates are in `cli::jsonpath`. <https://kubernetes.io/docs/reference/kubectl/jsonpath/>

use std::cmp::Ordering;
use std::str::FromStr;

use serde_json::Value;

/// The most values that a path may visit: each `..` and each `[*]` multiplies them. Beyond that it selects nothing.
const MOST: u32 = 1 << 14;
/// How deeply filters may nest.
const DEEPEST: usize = 8;

/// Why a path is invalid, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonPathError {
    #[error("invalid multiple recursive descent")]
    Descents,
    /// It continues on another line.
    #[error("unclosed action")]
    UnclosedAction,
    #[error("unrecognized character in action: U+{:04X} '{}'", u32::from(*.0), .0)]
    Character(char),
    #[error("filters nest too deeply")]
    TooDeep,
    #[error("cannot parse number {0}")]
    Number(String),
    #[error("unquote string: invalid syntax")]
    Escape,
    #[error("unterminated quoted string")]
    UnterminatedString,
    #[error("unterminated array")]
    UnterminatedArray,
    #[error("unterminated filter")]
    UnterminatedFilter,
    #[error("unclosed array expect ]")]
    UnclosedArray,
    #[error("invalid array index {0}")]
    Index(String),
    /// The index is out of range.
    #[error("array index {0} is not a number")]
    IndexRange(String),
}

/// A parsed path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Path(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    /// `*`
    Each,
    /// `..`: the value and all its descendants.
    Descend,
    /// `[1]`, `[-1:]`, `[*]`
    Slice(Slice),
    /// `[0,2]`, `['a','b']`
    Union(Vec<Path>),
    /// `[?(@.a)]`, `[?(@.a==1)]`
    Filter(Path, String, Path),
    /// In a filter: the value to compare with.
    Literal(Value),
    /// A bare word: accepted, but selects nothing.
    Word(String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Slice {
    start: Option<i64>,
    end: Option<i64>,
    step: Option<i64>,
    /// It is an index: the end follows from the start.
    one: bool,
}

impl FromStr for Path {
    type Err = JsonPathError;
    /// Fails if upstream cannot parse the text, or if filters nest more than eight deep.
    fn from_str(text: &str) -> Result<Path, JsonPathError> {
        let mut reader = Reader { rest: text, depth: 0 };
        reader.path()
    }
}

impl Path {
    /// The first selected value; `None` if there is none, or on an error.
    pub fn first<'a>(&'a self, value: &'a Value) -> Option<&'a Value> {
        let mut left = MOST;
        self.select(vec![value], &mut left).ok()?.first().copied()
    }

    fn select<'a>(&'a self, from: Vec<&'a Value>, left: &mut u32) -> Selected<'a> {
        let mut found = from;
        for step in &self.0 {
            found = step.follow(found, left)?;
            let count = u32::try_from(found.len()).unwrap_or(u32::MAX);
            *left = left.checked_sub(count.max(1)).ok_or("it selects too much")?;
        }
        Ok(found)
    }
}

type Selected<'a> = Result<Vec<&'a Value>, &'static str>;

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    }
}

impl Step {
    fn follow<'a>(&'a self, from: Vec<&'a Value>, left: &mut u32) -> Selected<'a> {
        let mut found = Vec::new();
        match self {
            Step::Field(name) => found.extend(from.iter().filter_map(|value| value.get(name))),
            Step::Each => found.extend(from.into_iter().flat_map(children)),
            Step::Descend => {
                let mut waiting = from;
                waiting.reverse();
                while let Some(next) = waiting.pop() {
                    let children = children(next);
                    if children.is_empty() {
                        continue;
                    }
                    *left = left.checked_sub(1).ok_or("it selects too much")?;
                    found.push(next);
                    waiting.extend(children.into_iter().rev());
                }
            }
            Step::Slice(slice) => {
                for value in from.into_iter().filter(|value| !value.is_null()) {
                    let items = value.as_array().ok_or("it is not an array")?;
                    found.extend(slice.of(items)?);
                }
            }
            Step::Union(paths) => {
                for path in paths {
                    found.extend(path.select(from.clone(), left)?);
                }
            }
            Step::Filter(path, operator, other) => {
                for value in from {
                    for item in value.as_array().ok_or("it is not an array")? {
                        *left = left.checked_sub(1).ok_or("it selects too much")?;
                        if holds(path, operator, other, item, left)? {
                            found.push(item);
                        }
                    }
                }
            }
            Step::Literal(value) => found.extend((!from.is_empty()).then_some(value)),
            Step::Word(_) => return Err("unrecognized identifier"),
        }
        Ok(found)
    }
}

fn holds<'a>(
    path: &'a Path,
    operator: &str,
    other: &'a Path,
    item: &'a Value,
    left: &mut u32,
) -> Result<bool, &'static str> {
    let here = || vec![item];
    let found = path.select(here(), left);
    if operator.is_empty() {
        return Ok(found.is_ok_and(|found| !found.is_empty()));
    }
    let found = found?;
    let with = other.select(here(), left)?;
    let ([one], [with]) = (found.as_slice(), with.as_slice()) else {
        let none = found.is_empty() || (found.len() == 1 && with.is_empty());
        return if none { Ok(false) } else { Err("can only compare one element at a time") };
    };
    let order = compared(one, with)?;
    let ordered = |fits: fn(Ordering) -> bool| match one {
        Value::Bool(_) => Err("invalid type for comparison"),
        _ => Ok(fits(order)),
    };
    match operator {
        "==" => Ok(order.is_eq()),
        "!=" => Ok(order.is_ne()),
        "<" => ordered(Ordering::is_lt),
        "<=" => ordered(Ordering::is_le),
        ">" => ordered(Ordering::is_gt),
        ">=" => ordered(Ordering::is_ge),
        _ => Err("unrecognized filter operator"),
    }
}

/// Compares two values of one type.
fn compared(one: &Value, other: &Value) -> Result<Ordering, &'static str> {
    match (one, other) {
        (Value::String(one), Value::String(other)) => Ok(one.cmp(other)),
        (Value::Bool(one), Value::Bool(other)) => Ok(one.cmp(other)),
        (Value::Number(one), Value::Number(other)) if one.is_f64() == other.is_f64() => {
            let exact = one.as_i64().zip(other.as_i64()).map(|(one, other)| one.cmp(&other));
            let order = exact.or_else(|| one.as_f64()?.partial_cmp(&other.as_f64()?));
            order.ok_or("incompatible types for comparison")
        }
        _ => Err("incompatible types for comparison"),
    }
}

impl Slice {
    fn of<'a>(&self, items: &'a [Value]) -> Result<impl Iterator<Item = &'a Value> + use<'a>, &'static str> {
        let length = items.len() as i64;
        let from_end = |at: i64| if at < 0 { at + length } else { at };
        let start = from_end(self.start.unwrap_or(0));
        let end = match self.end {
            // The index after the last is 0 when counted from the end.
            Some(0) if self.one => length,
            Some(end) => from_end(end),
            None => length,
        };
        let step = match self.step {
            Some(step) => usize::try_from(step).ok().filter(|step| *step > 0).ok_or("step must be > 0")?,
            None => 1,
        };
        if start == end {
            return Ok(items[..0].iter().step_by(1));
        }
        let within = |at: i64| usize::try_from(at).ok().filter(|at| *at <= items.len());
        match (within(start), within(end)) {
            (Some(start), Some(end)) if start < end => Ok(items[start..end].iter().step_by(step)),
            _ => Err("array index out of bounds"),
        }
    }
}

/// The rest of a path being parsed.
struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn path(&mut self) -> Result<Path, JsonPathError> {
        let mut steps = Vec::new();
        loop {
            if self.rest.starts_with("[?(") {
                steps.push(self.filter()?);
                continue;
            }
            if self.rest.starts_with("..") {
                if steps.last() == Some(&Step::Descend) {
                    return Err(JsonPathError::Descents);
                }
                self.take(2);
                steps.push(Step::Descend);
                if self.peek().is_some_and(is_word) {
                    steps.push(self.field());
                }
                continue;
            }
            let Some(c) = self.peek() else { return Ok(Path(steps)) };
            match c {
                '}' => return Ok(Path(steps)),
                '\n' | '\r' => return Err(JsonPathError::UnclosedAction),
                ' ' | '@' | '$' => drop(self.take(1)),
                '[' => steps.extend(self.bracket()?),
                '"' | '\'' => steps.push(self.quoted(c)?),
                '.' => {
                    self.take(1);
                    steps.push(self.field());
                }
                c if c == '+' || c == '-' || c.is_numeric() => steps.push(self.number()?),
                c if is_word(c) => steps.push(self.word()),
                c => return Err(JsonPathError::Character(c)),
            }
        }
    }

    /// A path within another.
    fn within(&self, text: &'a str) -> Result<Path, JsonPathError> {
        if self.depth >= DEEPEST {
            return Err(JsonPathError::TooDeep);
        }
        Reader { rest: text, depth: self.depth + 1 }.path()
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    /// A name up to its delimiter; a backslash escapes the next character.
    fn field(&mut self) -> Step {
        let mut end = self.rest.len();
        let mut characters = self.rest.char_indices();
        while let Some((at, c)) = characters.next() {
            match c {
                '\\' => drop(characters.next()),
                c if ends_word(c) => {
                    end = at;
                    break;
                }
                _ => {}
            }
        }
        match self.take(end) {
            "*" => Step::Each,
            name => Step::Field(name.replace('\\', "")),
        }
    }

    fn word(&mut self) -> Step {
        let end = self.rest.find(ends_word).unwrap_or(self.rest.len());
        match self.take(end) {
            "true" => Step::Literal(true.into()),
            "false" => Step::Literal(false.into()),
            word => Step::Word(word.to_owned()),
        }
    }

    fn number(&mut self) -> Result<Step, JsonPathError> {
        let signed = usize::from(self.rest.starts_with(['+', '-']));
        let digits = self.rest[signed..].find(|c: char| c != '.' && !c.is_numeric());
        let text = self.take(digits.map_or(self.rest.len(), |digits| signed + digits));
        if let Ok(whole) = text.parse::<i64>() {
            return Ok(Step::Literal(whole.into()));
        }
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.map(|number| Step::Literal(number.into())).ok_or_else(|| JsonPathError::Number(text.to_owned()))
    }

    fn quoted(&mut self, quote: char) -> Result<Step, JsonPathError> {
        let mut text = String::new();
        let mut characters = self.rest.char_indices().skip(1);
        while let Some((at, c)) = characters.next() {
            match c {
                '\n' => break,
                '\\' => match characters.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 't')) => text.push('\t'),
                    Some((_, 'r')) => text.push('\r'),
                    Some((_, c @ ('\\' | '"' | '\''))) => text.push(c),
                    _ => return Err(JsonPathError::Escape),
                },
                c if c == quote => {
                    self.take(at + 1);
                    return Ok(Step::Literal(text.into()));
                }
                c => text.push(c),
            }
        }
        Err(JsonPathError::UnterminatedString)
    }

    /// `[0]`, `[1:2]`, `[*]`, `['a']`, and several separated by commas.
    fn bracket(&mut self) -> Result<Vec<Step>, JsonPathError> {
        let Some((inside, rest)) = self.rest[1..].split_once(']').filter(|(inside, _)| !inside.contains('\n')) else {
            return Err(JsonPathError::UnterminatedArray);
        };
        self.rest = rest;
        if inside.contains(',') {
            let parts = inside.split(',').map(|part| self.part(part.trim_matches(' ')).map(Path));
            return Ok(vec![Step::Union(parts.collect::<Result<_, _>>()?)]);
        }
        self.part(inside)
    }

    fn part(&self, inside: &'a str) -> Result<Vec<Step>, JsonPathError> {
        let quoted =
            inside.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).filter(|key| !key.contains('\''));
        if let Some(key) = quoted {
            let mut reader = Reader { rest: key, depth: self.depth + 1 };
            let mut steps = vec![reader.field()];
            steps.extend(self.within(reader.rest)?.0);
            return Ok(steps);
        }
        let wrong = || JsonPathError::Index(inside.to_owned());
        let parts: Vec<&str> = if inside == "*" { vec!["", ""] } else { inside.split(':').collect() };
        let number = |part: Option<&&str>| match part {
            None | Some(&"") => Ok(None),
            Some(text) if text.strip_prefix('-').unwrap_or(text).bytes().all(|b| b.is_ascii_digit()) => {
                text.parse::<i64>().map(Some).map_err(|_| JsonPathError::IndexRange((*text).to_owned()))
            }
            Some(_) => Err(wrong()),
        };
        if parts.len() > 3 {
            return Err(wrong());
        }
        let one = parts.len() == 1;
        let start = number(parts.first())?;
        let end = if one { Some(start.unwrap_or(0).saturating_add(1)) } else { number(parts.get(1))? };
        Ok(vec![Step::Slice(Slice { start, end, step: number(parts.get(2))?, one })])
    }

    fn filter(&mut self) -> Result<Step, JsonPathError> {
        self.take("[?(".len());
        // At most one pair of quotes, on one side.
        let (mut open, mut done, mut before) = (None, false, ' ');
        let end = self.rest.char_indices().find(|(_, c)| {
            match (c, open) {
                ('"' | '\'', None) => open = Some(*c),
                (c, Some(quote)) if *c == quote && before != '\\' => done = true,
                _ => {}
            }
            before = *c;
            matches!(c, '\n') || (*c == ')' && open.is_some() == done)
        });
        let Some((end, ')')) = end else { return Err(JsonPathError::UnterminatedFilter) };
        let text = self.take(end);
        self.take(1);
        if !self.rest.starts_with(']') {
            return Err(JsonPathError::UnclosedArray);
        }
        self.take(1);
        let is_sign = |c: char| matches!(c, '!' | '<' | '>' | '=');
        let at = text.find(is_sign).filter(|at| *at > 0);
        let compared = at.and_then(|at| {
            let (left, rest) = text.split_at(at);
            let signs = rest.find(|c| !is_sign(c))?;
            Some((left, &rest[..signs], &rest[signs..]))
        });
        match compared {
            Some((left, operator, right)) => {
                Ok(Step::Filter(self.within(left)?, operator.to_owned(), self.within(right)?))
            }
            None => Ok(Step::Filter(self.within(text)?, String::new(), Path::default())),
        }
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn ends_word(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

#[cfg(test)]
mod tests;

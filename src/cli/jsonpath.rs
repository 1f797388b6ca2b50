//! kubectl's JSONPath templates: `{.items[*].metadata.name}`, `{range .items[*]}{.a}{"\n"}{end}`, filters, slices, unions.
//! <https://kubernetes.io/docs/reference/kubectl/jsonpath/>

use std::cell::Cell;

use serde_json::Value;

mod error;

use error::Misread;
pub use error::TemplateError;

/// A parsed template.
#[derive(Clone, Debug)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    /// `{.a.b}`: the results, space-separated.
    Path(Vec<Step>),
    /// `{range .items[*]} ... {end}`
    Range(Vec<Step>, Vec<Part>),
}

#[derive(Clone, Debug)]
enum Step {
    /// `$`: the whole document, even inside a range.
    Root,
    Field(String),
    /// `..name`; an empty name is every value below.
    Recursive(String),
    Wildcard,
    /// `[1]`, `[-1]`, `[0,2]`
    Indexes(Vec<i64>),
    /// `['a','b']`
    Fields(Vec<String>),
    /// `[start:end:step]`
    Slice(Option<i64>, Option<i64>, i64),
    /// `[?(@.a==1)]`
    Filter(Vec<Step>, Option<(Comparison, Operand)>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Debug)]
enum Operand {
    Literal(Value),
    Path(Vec<Step>),
}

/// A value in JSONPath's output: strings unquoted, others as JSON.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

impl std::str::FromStr for Template {
    type Err = TemplateError;

    /// The outer braces are optional, as in kubectl: `.metadata.name`.
    fn from_str(text: &str) -> Result<Template, TemplateError> {
        let bare = !text.contains('{') && (text.starts_with('.') || text.starts_with('$') || text.starts_with('['));
        let braced;
        let text = if bare {
            braced = format!("{{{text}}}");
            &braced
        } else {
            text
        };
        let mut parser = Parser { rest: text };
        let (parts, ended) = parser.parts()?;
        if ended {
            return Err(TemplateError::NotInRange);
        }
        Ok(Template(parts))
    }
}

/// The most values that a template may visit: each `..` and each list of indexes multiplies them.
const MOST: u32 = 1 << 24;

/// How many are left; an exhausted template selects nothing more.
struct Budget(Cell<u32>);

impl Budget {
    fn new() -> Budget {
        Budget(Cell::new(MOST))
    }
    fn is_spent(&self) -> bool {
        self.0.get() == 0
    }
    /// As many of the found values as the budget allows.
    fn take<'a>(&self, found: Vec<&'a Value>) -> Vec<&'a Value> {
        let count = u32::try_from(found.len()).unwrap_or(u32::MAX);
        self.0.set(self.0.get().saturating_sub(count.max(1)));
        if self.is_spent() { Vec::new() } else { found }
    }
}

impl Template {
    /// The rendered text. Fails if it selects too much.
    pub fn render(&self, root: &Value) -> Result<String, TemplateError> {
        let (mut out, budget) = (String::new(), Budget::new());
        render(&self.0, root, root, &budget, &mut out);
        if budget.is_spent() {
            return Err(TemplateError::TooMany(MOST));
        }
        Ok(out)
    }

    /// The values selected by the template's paths, for conditions and columns.
    pub fn values<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        let budget = Budget::new();
        let steps = self.0.iter().filter_map(|p| match p {
            Part::Path(steps) => Some(steps),
            _ => None,
        });
        steps.flat_map(|s| select(s, root, root, &budget)).collect()
    }
}

fn render(parts: &[Part], root: &Value, here: &Value, budget: &Budget, out: &mut String) {
    for part in parts {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Path(steps) => {
                let found: Vec<String> = select(steps, root, here, budget).into_iter().map(text).collect();
                out.push_str(&found.join(" "));
            }
            Part::Range(steps, body) => {
                select(steps, root, here, budget).into_iter().for_each(|v| render(body, root, v, budget, out));
            }
        }
    }
}

fn select<'a>(steps: &[Step], root: &'a Value, here: &'a Value, budget: &Budget) -> Vec<&'a Value> {
    let mut found = vec![here];
    for step in steps {
        let next = |v| if budget.is_spent() { Vec::new() } else { budget.take(follow(step, root, v, budget)) };
        found = found.into_iter().flat_map(next).collect();
    }
    found
}

fn follow<'a>(step: &Step, root: &'a Value, value: &'a Value, budget: &Budget) -> Vec<&'a Value> {
    match step {
        Step::Root => vec![root],
        Step::Field(name) => value.get(name).into_iter().filter(|v| !v.is_null()).collect(),
        Step::Fields(names) => names.iter().filter_map(|n| value.get(n)).collect(),
        Step::Wildcard => children(value),
        Step::Recursive(name) => {
            let mut found = Vec::new();
            recurse(value, name, &mut found);
            found
        }
        Step::Indexes(indexes) => {
            let Some(list) = value.as_array() else { return Vec::new() };
            indexes.iter().filter_map(|i| list.get(position(*i, list.len())?)).collect()
        }
        Step::Slice(start, end, step) => {
            let Some(list) = value.as_array() else { return Vec::new() };
            let length = list.len() as i64;
            let clamp = |i: i64| (if i < 0 { i + length } else { i }).clamp(0, length) as usize;
            let (from, to) = (clamp(start.unwrap_or(0)), clamp(end.unwrap_or(length)));
            list.get(from..to.max(from)).into_iter().flatten().step_by((*step).max(1) as usize).collect()
        }
        Step::Filter(path, condition) => {
            let keep = |v: &&Value| {
                let left = select(path, root, v, budget);
                match condition {
                    None => !left.is_empty(),
                    Some((comparison, Operand::Literal(right))) => left.iter().any(|l| compare(l, *comparison, right)),
                    Some((comparison, Operand::Path(right))) => {
                        let right = select(right, root, v, budget);
                        left.iter().any(|l| right.iter().any(|r| compare(l, *comparison, r)))
                    }
                }
            };
            children(value).into_iter().filter(keep).collect()
        }
    }
}

fn position(index: i64, length: usize) -> Option<usize> {
    usize::try_from(if index < 0 { index + length as i64 } else { index }).ok()
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(list) => list.iter().collect(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    }
}

fn recurse<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a Value>) {
    if name.is_empty() {
        found.push(value);
    } else if let Some(hit) = value.get(name) {
        found.push(hit);
    }
    for child in children(value) {
        recurse(child, name, found);
    }
}

fn compare(left: &Value, comparison: Comparison, right: &Value) -> bool {
    use std::cmp::Ordering;
    let order = match (left, right) {
        (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (a, b) => (a == b).then_some(Ordering::Equal),
    };
    match comparison {
        Comparison::Equal => order == Some(Ordering::Equal),
        Comparison::NotEqual => order != Some(Ordering::Equal),
        Comparison::Less => order == Some(Ordering::Less),
        Comparison::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        Comparison::Greater => order == Some(Ordering::Greater),
        Comparison::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    /// Parts up to the end of the text or an `{end}`; also returns whether it was an `{end}`.
    fn parts(&mut self) -> Result<(Vec<Part>, bool), TemplateError> {
        let mut parts = Vec::new();
        while !self.rest.is_empty() {
            let Some(open) = self.rest.find('{') else {
                parts.push(Part::Text(std::mem::take(&mut self.rest).to_owned()));
                break;
            };
            if open > 0 {
                parts.push(Part::Text(self.take(open).to_owned()));
            }
            self.take(1);
            self.blanks();
            if self.keyword("end") {
                self.close()?;
                return Ok((parts, true));
            } else if self.keyword("range") {
                let steps = self.steps()?;
                self.close()?;
                let (body, ended) = self.parts()?;
                if !ended {
                    return Err(TemplateError::UnterminatedRange);
                }
                parts.push(Part::Range(steps, body));
            } else {
                self.expression(&mut parts)?;
            }
        }
        Ok((parts, false))
    }

    /// Paths and quoted strings up to the closing brace.
    fn expression(&mut self, parts: &mut Vec<Part>) -> Result<(), TemplateError> {
        loop {
            self.blanks();
            match self.peek() {
                Some('}') => return self.close(),
                Some('"' | '\'') => parts.push(Part::Text(self.quoted()?)),
                Some('.' | '$' | '@' | '[') => parts.push(Part::Path(self.steps()?)),
                Some(c) if c.is_alphanumeric() || c == '_' => parts.push(Part::Path(self.steps()?)),
                _ => return Err(self.error(Misread::Text)),
            }
        }
    }

    fn steps(&mut self) -> Result<Vec<Step>, TemplateError> {
        self.blanks();
        let mut steps = Vec::new();
        if self.peek().is_some_and(|c| c.is_alphanumeric() || c == '_') {
            steps.push(Step::Field(self.name()));
        }
        loop {
            match self.peek() {
                Some('$') => {
                    self.take(1);
                    steps.push(Step::Root);
                }
                Some('@') => drop(self.take(1)),
                Some('.') if self.rest.starts_with("..") => {
                    if let Some(Step::Recursive(name)) = steps.last()
                        && name.is_empty()
                    {
                        return Err(self.error(Misread::Descents));
                    }
                    self.take(2);
                    steps.push(Step::Recursive(self.name()));
                }
                Some('.') => {
                    self.take(1);
                    match self.peek() {
                        Some('*') => {
                            self.take(1);
                            steps.push(Step::Wildcard);
                        }
                        Some('[') | Some('}') | None => {}
                        _ => {
                            let name = self.name();
                            if name.is_empty() {
                                return Err(self.error(Misread::NoField));
                            }
                            steps.push(Step::Field(name));
                        }
                    }
                }
                Some('[') => {
                    self.take(1);
                    steps.push(self.bracket()?);
                }
                _ => return Ok(steps),
            }
        }
    }

    /// The content between `[` and `]`.
    fn bracket(&mut self) -> Result<Step, TemplateError> {
        self.blanks();
        let step = if self.rest.starts_with("?(") {
            self.take(2);
            let step = self.filter()?;
            self.expect(')')?;
            step
        } else if self.peek() == Some('*') {
            self.take(1);
            Step::Wildcard
        } else if matches!(self.peek(), Some('"' | '\'')) {
            let mut names = vec![self.quoted()?];
            while self.accept(',') {
                self.blanks();
                names.push(self.quoted()?);
            }
            Step::Fields(names)
        } else {
            self.numbers()?
        };
        self.expect(']')?;
        Ok(step)
    }

    fn numbers(&mut self) -> Result<Step, TemplateError> {
        let first = self.integer();
        if self.accept(':') {
            let end = self.integer();
            let step = if self.accept(':') { self.integer().unwrap_or(1) } else { 1 };
            return Ok(Step::Slice(first, end, step));
        }
        let mut indexes = vec![first.ok_or_else(|| self.error(Misread::NoIndex))?];
        while self.accept(',') {
            indexes.push(self.integer().ok_or_else(|| self.error(Misread::NoIndex))?);
        }
        Ok(Step::Indexes(indexes))
    }

    fn filter(&mut self) -> Result<Step, TemplateError> {
        const OPERATORS: [(&str, Comparison); 6] = [
            ("==", Comparison::Equal),
            ("!=", Comparison::NotEqual),
            ("<=", Comparison::LessOrEqual),
            (">=", Comparison::GreaterOrEqual),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
        ];
        let left = self.steps()?;
        self.blanks();
        let Some((sign, comparison)) = OPERATORS.iter().find(|(sign, _)| self.rest.starts_with(sign)) else {
            return Ok(Step::Filter(left, None));
        };
        self.take(sign.len());
        self.blanks();
        let right = match self.peek() {
            Some('"' | '\'') => Operand::Literal(Value::String(self.quoted()?)),
            Some('@' | '$' | '.') => Operand::Path(self.steps()?),
            _ => {
                let end = self.rest.find([')', ' ']).unwrap_or(self.rest.len());
                let word = self.take(end);
                let value = serde_json::from_str(word).map_err(|_| TemplateError::NoValue(word.to_owned()))?;
                Operand::Literal(value)
            }
        };
        self.blanks();
        Ok(Step::Filter(left, Some((*comparison, right))))
    }

    /// A field name; a backslash escapes the next character (`kubernetes\.io/name`).
    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(c) = self.peek() {
            match c {
                '\\' => {
                    self.take(1);
                    match self.peek() {
                        Some(escaped) => name.push(escaped),
                        None => return name,
                    }
                }
                c if c.is_alphanumeric() || matches!(c, '_' | '-' | '/') => name.push(c),
                _ => break,
            }
            self.take(self.peek().map_or(0, char::len_utf8));
        }
        name
    }

    fn integer(&mut self) -> Option<i64> {
        self.blanks();
        let end = self.rest.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(self.rest.len());
        let number = self.take(end).parse().ok();
        self.blanks();
        number
    }

    fn quoted(&mut self) -> Result<String, TemplateError> {
        let Some(quote @ ('"' | '\'')) = self.peek() else { return Err(self.error(Misread::NoQuote)) };
        self.take(1);
        let mut text = String::new();
        while let Some(c) = self.peek() {
            self.take(c.len_utf8());
            match c {
                c if c == quote => return Ok(text),
                '\\' => {
                    let Some(escaped) = self.peek() else { break };
                    self.take(escaped.len_utf8());
                    text.push(match escaped {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        other => other,
                    });
                }
                c => text.push(c),
            }
        }
        Err(TemplateError::UnterminatedString)
    }

    fn keyword(&mut self, word: &str) -> bool {
        let after = self.rest.strip_prefix(word);
        let found = after.is_some_and(|r| !r.starts_with(|c: char| c.is_alphanumeric() || c == '_'));
        if found {
            self.take(word.len());
        }
        found
    }

    fn close(&mut self) -> Result<(), TemplateError> {
        self.expect('}')
    }

    fn expect(&mut self, wanted: char) -> Result<(), TemplateError> {
        self.blanks();
        if self.accept(wanted) { Ok(()) } else { Err(self.error(Misread::Missing(wanted))) }
    }

    fn accept(&mut self, wanted: char) -> bool {
        let there = self.peek() == Some(wanted);
        if there {
            self.take(wanted.len_utf8());
        }
        there
    }

    fn blanks(&mut self) {
        self.rest = self.rest.trim_start_matches(' ');
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    fn error(&self, problem: Misread) -> TemplateError {
        TemplateError::At { problem, rest: self.rest.to_owned() }
    }
}

//! Label selectors: parsing, matching, and conversion from `LabelSelector`. Field selectors are in `field`.

mod field;

use std::collections::HashSet;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1;
use serde_json::{Map, Value};

use super::status::Status;
use super::validation::names;

pub use field::FieldSelector;

/// One requirement of a label selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
    /// The label is an integer greater than this.
    GreaterThan(String, i64),
    /// The label is an integer less than this.
    LessThan(String, i64),
}

/// A label selector: all its requirements must hold. The empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector(pub Vec<Requirement>);

/// The most different requirements in a selector from text. Upstream is only limited by the length of URLs.
pub const MOST_REQUIREMENTS: usize = 1000;
/// The most values in all of them.
const MOST_VALUES: usize = 10_000;

fn too_many(most: usize, what: &str) -> Status {
    Status::bad_request(format!("a selector has at most {most} {what}"))
}

impl LabelSelector {
    /// Parses `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1,m<2`, dropping duplicates.
    ///
    /// # Errors
    ///
    /// `BadRequest`: it is invalid, or has more than [`MOST_REQUIREMENTS`].
    pub fn parse(text: &str) -> Result<LabelSelector, Status> {
        let mut parser = Parser { tokens: tokens(text), at: 0 };
        let mut all = parser.requirements().map_err(|why| Status::bad_request(why.to_string()))?;
        for requirement in &mut all {
            if let Requirement::In(_, values) | Requirement::NotIn(_, values) = requirement {
                once_each(values);
            }
        }
        once_each(&mut all);
        let selector = LabelSelector(all);
        if selector.0.len() > MOST_REQUIREMENTS {
            return Err(too_many(MOST_REQUIREMENTS, "requirements"));
        }
        if selector.lookups() - selector.0.len() > MOST_VALUES {
            return Err(too_many(MOST_VALUES, "values"));
        }
        Ok(selector)
    }

    /// The most lookups and comparisons to match one object.
    pub fn lookups(&self) -> usize {
        self.0.iter().map(Requirement::lookups).sum()
    }

    /// From a `metav1.LabelSelector`; an empty one matches everything. `None` if it is invalid (validation refuses that).
    pub fn of(selector: &v1::LabelSelector) -> Option<LabelSelector> {
        let equal = |(key, value): (&String, &String)| Requirement::In(key.clone(), vec![value.clone()]);
        let mut all: Vec<Requirement> = selector.match_labels.iter().flatten().map(equal).collect();
        for v1::LabelSelectorRequirement { key, operator, values } in selector.match_expressions.iter().flatten() {
            let (key, values) = (key.clone(), values.clone().unwrap_or_default());
            all.push(match operator.as_str() {
                "In" => Requirement::In(key, values),
                "NotIn" => Requirement::NotIn(key, values),
                "Exists" => Requirement::Exists(key),
                "DoesNotExist" => Requirement::DoesNotExist(key),
                _ => return None,
            });
        }
        Some(LabelSelector(all))
    }

    /// From the JSON of a `metav1.LabelSelector` (`matchLabels`, `matchExpressions`). A missing selector (null) matches nothing;
    /// use `LabelSelector::from_optional_json` if it may be missing.
    pub fn from_json(value: &Value) -> Result<LabelSelector, Status> {
        let mut all = Vec::new();
        for (key, value) in value["matchLabels"].as_object().into_iter().flatten() {
            all.push(Requirement::In(key.clone(), vec![value.as_str().unwrap_or("").to_owned()]));
        }
        for expression in value["matchExpressions"].as_array().into_iter().flatten() {
            let key = expression["key"].as_str().unwrap_or("").to_owned();
            let values: Vec<String> = expression["values"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|v| v.as_str().map(str::to_owned))
                .collect();
            let operator = expression["operator"].as_str().unwrap_or("");
            let requirement = match operator {
                "In" => Requirement::In(key, values),
                "NotIn" => Requirement::NotIn(key, values),
                "Exists" => Requirement::Exists(key),
                "DoesNotExist" => Requirement::DoesNotExist(key),
                other => {
                    return Err(Status::bad_request(format!("\"{other}\" is not a valid label selector operator")));
                }
            };
            let needs_values = matches!(&requirement, Requirement::In(_, v) | Requirement::NotIn(_, v) if v.is_empty());
            if needs_values {
                let why = "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty";
                return Err(Status::bad_request(why));
            }
            all.push(requirement);
        }
        // Sorted by key like upstream, so every text form is, too.
        all.sort_by(|a, b| a.key().cmp(b.key()));
        Ok(LabelSelector(all))
    }

    /// Like `from_json`; `None` for a missing selector, which matches nothing.
    pub fn from_optional_json(value: Option<&Value>) -> Result<Option<LabelSelector>, Status> {
        value.filter(|v| !v.is_null()).map(LabelSelector::from_json).transpose()
    }

    /// Equality for every entry, as in `spec.selector` of a Service or ReplicationController.
    pub fn from_map(map: &Map<String, Value>) -> LabelSelector {
        let one = |(k, v): (&String, &Value)| Requirement::In(k.clone(), vec![v.as_str().unwrap_or("").to_owned()]);
        LabelSelector(map.iter().map(one).collect())
    }

    /// Whether it matches; `get` looks up a label.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| requirement.matches(get(requirement.key())))
    }

    /// Whether it may match, judged by so many lookups: what it asks beyond them is taken for granted.
    pub fn may_match<'a>(&self, most: usize, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        let mut left = most;
        self.0.iter().all(|requirement| {
            let judged = left.checked_sub(requirement.lookups());
            left = judged.unwrap_or(0);
            judged.is_none() || requirement.matches(get(requirement.key()))
        })
    }

    /// Whether it matches an object's labels (a JSON map of strings, if any).
    pub fn matches_labels(&self, labels: Option<&Map<String, Value>>) -> bool {
        self.matches(|key| labels?.get(key)?.as_str())
    }

    /// The only value that it permits for a label, if any.
    pub fn exact(&self, key: &str) -> Option<&str> {
        self.0.iter().find_map(|requirement| match requirement {
            Requirement::In(of, values) if of == key && values.len() == 1 => Some(values[0].as_str()),
            _ => None,
        })
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Removes duplicates.
fn once_each<T: Clone + Eq + std::hash::Hash>(all: &mut Vec<T>) {
    if all.len() > 1 {
        let mut seen = HashSet::with_capacity(all.len());
        all.retain(|one| seen.insert(one.clone()));
        all.shrink_to_fit();
    }
}

impl Requirement {
    /// Whether a label with this value, or none, is as it asks.
    fn matches(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Requirement::In(_, values) => value.is_some_and(|value| values.iter().any(|one| one == value)),
            Requirement::NotIn(_, values) => value.is_none_or(|value| values.iter().all(|one| one != value)),
            Requirement::Exists(_) => value.is_some(),
            Requirement::DoesNotExist(_) => value.is_none(),
            Requirement::GreaterThan(_, least) => number().is_some_and(|number| number > *least),
            Requirement::LessThan(_, most) => number().is_some_and(|number| number < *most),
        }
    }

    fn lookups(&self) -> usize {
        match self {
            Requirement::In(_, values) | Requirement::NotIn(_, values) => 1 + values.len(),
            _ => 1,
        }
    }

    pub fn key(&self) -> &str {
        match self {
            Requirement::In(k, _) | Requirement::NotIn(k, _) => k,
            Requirement::Exists(k) | Requirement::DoesNotExist(k) => k,
            Requirement::GreaterThan(k, _) | Requirement::LessThan(k, _) => k,
        }
    }
}

impl LabelSelector {
    /// The bytes that its keys and values take, whatever they are.
    pub fn weight(&self) -> usize {
        let of = |text: &String| size_of::<String>() + text.len();
        let values = |requirement: &Requirement| match requirement {
            Requirement::In(_, values) | Requirement::NotIn(_, values) => values.iter().map(of).sum(),
            _ => 0,
        };
        let weight = |requirement| size_of::<Requirement>() + Requirement::key(requirement).len() + values(requirement);
        self.0.iter().map(weight).sum()
    }
}

impl fmt::Display for LabelSelector {
    /// The text form for `parse`, as upstream formats it: `a=b,c in (d,e)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match requirement {
                Requirement::In(k, vs) if vs.len() == 1 => write!(f, "{comma}{k}={}", vs[0])?,
                Requirement::NotIn(k, vs) if vs.len() == 1 => write!(f, "{comma}{k}!={}", vs[0])?,
                Requirement::In(k, vs) => write!(f, "{comma}{k} in ({})", sorted(vs))?,
                Requirement::NotIn(k, vs) => write!(f, "{comma}{k} notin ({})", sorted(vs))?,
                Requirement::Exists(k) => write!(f, "{comma}{k}")?,
                Requirement::DoesNotExist(k) => write!(f, "{comma}!{k}")?,
                Requirement::GreaterThan(k, n) => write!(f, "{comma}{k}>{n}")?,
                Requirement::LessThan(k, n) => write!(f, "{comma}{k}<{n}")?,
            }
        }
        Ok(())
    }
}

fn sorted(values: &[String]) -> String {
    let mut values = values.to_vec();
    values.sort();
    values.join(",")
}

/// The tokens of a label selector: symbols, and the words between them.
fn tokens(text: &str) -> Vec<&str> {
    let is_symbol = |c: char| "=!(),><".contains(c);
    let mut out = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let two = if rest.starts_with("==") || rest.starts_with("!=") { 2 } else { 1 };
        let length = if is_symbol(first) {
            two
        } else {
            rest.find(|c: char| is_symbol(c) || c.is_whitespace()).unwrap_or(rest.len())
        };
        out.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    out
}

/// Why a label selector is invalid, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum SelectorError {
    /// An unexpected token.
    #[error("found '{found}', expected: {expected}")]
    Expected { found: String, expected: &'static str },
    #[error("found '{0}' expected: '('")]
    Open(String),
    /// In a requirement.
    #[error("unable to parse requirement: {0}")]
    Requirement(Box<SelectorError>),
    #[error("key: Invalid value: \"{key}\": {why}")]
    Key { key: String, why: String },
    #[error("values[0][{key}]: Invalid value: \"{value}\": {why}")]
    Value { key: String, value: String, why: String },
    #[error("values[0]: Invalid value: \"{0}\": for 'Gt', 'Lt' operators, the value must be an integer")]
    NotAnInteger(String),
}

impl SelectorError {
    fn expected<T>(found: &str, expected: &'static str) -> Result<T, SelectorError> {
        Err(SelectorError::Expected { found: found.to_owned(), expected })
    }
}

struct Parser<'a> {
    tokens: Vec<&'a str>,
    at: usize,
}

impl<'a> Parser<'a> {
    /// The next token; "" at the end.
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).copied().unwrap_or("")
    }
    fn next(&mut self) -> &'a str {
        let token = self.peek();
        self.at += 1;
        token
    }
    fn is_identifier(token: &str) -> bool {
        !token.is_empty() && !matches!(token, "=" | "==" | "!=" | "!" | "(" | ")" | "," | ">" | "<")
    }

    fn requirements(&mut self) -> Result<Vec<Requirement>, SelectorError> {
        let mut all = Vec::new();
        loop {
            match self.peek() {
                "" => return Ok(all),
                token if token == "!" || Self::is_identifier(token) => {
                    all.push(self.requirement().map_err(|why| SelectorError::Requirement(Box::new(why)))?);
                    match self.next() {
                        "" => return Ok(all),
                        "," => {
                            let after = self.peek();
                            if after != "!" && !Self::is_identifier(after) {
                                return SelectorError::expected(after, "identifier after ','");
                            }
                        }
                        other => return SelectorError::expected(other, "',' or 'end of string'"),
                    }
                }
                other => return SelectorError::expected(other, "!, identifier, or 'end of string'"),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let absent = self.peek() == "!";
        if absent {
            self.next();
        }
        let key = self.next();
        if !Self::is_identifier(key) {
            return SelectorError::expected(key, "identifier");
        }
        if let Some(why) = names::qualified_name(key).into_iter().next() {
            return Err(SelectorError::Key { key: key.to_owned(), why });
        }
        let key = key.to_owned();
        if absent {
            return Ok(Requirement::DoesNotExist(key));
        }
        match self.peek() {
            "" | "," => Ok(Requirement::Exists(key)),
            operator => {
                self.next();
                self.operand(key, operator)
            }
        }
    }

    fn operand(&mut self, key: String, operator: &str) -> Result<Requirement, SelectorError> {
        match operator {
            "in" => Ok(Requirement::In(key.clone(), self.values(&key)?)),
            "notin" => Ok(Requirement::NotIn(key.clone(), self.values(&key)?)),
            "=" | "==" => Ok(Requirement::In(key.clone(), vec![self.value(&key)?])),
            "!=" => Ok(Requirement::NotIn(key.clone(), vec![self.value(&key)?])),
            ">" | "<" => {
                let value = self.value(&key)?;
                let n: i64 = value.parse().map_err(|_| SelectorError::NotAnInteger(value))?;
                Ok(if operator == ">" { Requirement::GreaterThan(key, n) } else { Requirement::LessThan(key, n) })
            }
            other => SelectorError::expected(other, "in, notin, =, ==, !=, gt, lt"),
        }
    }

    /// One value, which may be empty.
    fn value(&mut self, key: &str) -> Result<String, SelectorError> {
        let value = match self.peek() {
            "" | "," => "",
            token if Self::is_identifier(token) => self.next(),
            other => return SelectorError::expected(other, "identifier"),
        };
        check_value(key, value)
    }

    /// `(a,b)`
    fn values(&mut self, key: &str) -> Result<Vec<String>, SelectorError> {
        let open = self.next();
        if open != "(" {
            return Err(SelectorError::Open(open.to_owned()));
        }
        let mut all = Vec::new();
        loop {
            let value = match self.peek() {
                "," | ")" => "",
                token if Self::is_identifier(token) => self.next(),
                other => return SelectorError::expected(other, "',', ')' or identifier"),
            };
            all.push(check_value(key, value)?);
            match self.next() {
                "," => {}
                ")" => return Ok(all),
                other => return SelectorError::expected(other, "',' or ')'"),
            }
        }
    }
}

fn check_value(key: &str, value: &str) -> Result<String, SelectorError> {
    match names::label_value(value).into_iter().next() {
        Some(why) => Err(SelectorError::Value { key: key.to_owned(), value: value.to_owned(), why }),
        None => Ok(value.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_to_judge_may_match() {
        let all = |many: usize| {
            let first = Requirement::In("app".to_owned(), vec!["web".to_owned()]);
            let others = (0..many).map(|n| Requirement::DoesNotExist(format!("k{n}")));
            LabelSelector([first].into_iter().chain(others).collect())
        };
        let may = |selector: &LabelSelector, app: &'static str, other: &'static str| {
            selector
                .may_match(16, |key| [("app", app), (other, "")].into_iter().find(|(of, _)| *of == key).map(|(_, v)| v))
        };
        for many in [0, 5, 100] {
            assert!(may(&all(many), "web", "x") && !may(&all(many), "db", "x"), "{many}");
        }
        assert!(!may(&all(100), "web", "k3") && may(&all(100), "web", "k50"), "only what is looked at decides");
        let wide = LabelSelector(vec![Requirement::In("app".to_owned(), vec!["web".to_owned(); 100])]);
        assert!(may(&wide, "db", "x") && !wide.matches(|_| Some("db")));
    }
}

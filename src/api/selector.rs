//! Label and field selectors: parsing, matching, and conversion from `LabelSelector`.

use serde_json::{Map, Value};

use super::status::Status;

/// One requirement of a label selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
}

/// A label selector: all its requirements must hold. The empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(pub Vec<Requirement>);

impl LabelSelector {
    /// Parses `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
    pub fn parse(_text: &str) -> Result<LabelSelector, Status> {
        Err(Status::internal("label selectors have not landed"))
    }
    /// From the JSON of a `metav1.LabelSelector` (`matchLabels`, `matchExpressions`).
    pub fn from_json(_value: &Value) -> Result<LabelSelector, Status> {
        Err(Status::internal("label selectors have not landed"))
    }
    /// Equality on every entry, as a Service's or a ReplicationController's `spec.selector`.
    pub fn from_map(map: &Map<String, Value>) -> LabelSelector {
        let one = |(k, v): (&String, &Value)| Requirement::In(k.clone(), vec![v.as_str().unwrap_or("").to_owned()]);
        LabelSelector(map.iter().map(one).collect())
    }
    /// Whether it matches; `get` looks a label up.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|r| match r {
            Requirement::In(k, vs) => get(k).is_some_and(|v| vs.iter().any(|w| w == v)),
            Requirement::NotIn(k, vs) => get(k).is_none_or(|v| vs.iter().all(|w| w != v)),
            Requirement::Exists(k) => get(k).is_some(),
            Requirement::DoesNotExist(k) => get(k).is_none(),
        })
    }
}

/// A field selector: `(path, equal?, value)`, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(pub Vec<(String, bool, String)>);

impl FieldSelector {
    /// Parses `spec.nodeName=a,status.phase!=Running`.
    pub fn parse(_text: &str) -> Result<FieldSelector, Status> {
        Err(Status::internal("field selectors have not landed"))
    }
    /// Whether it matches; `get` gives a field's value, "" where it is unset.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> &'a str) -> bool {
        self.0.iter().all(|(path, equal, value)| (get(path) == value) == *equal)
    }
}

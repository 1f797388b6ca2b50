//! The Common Expression Language: expressions over objects in CustomResourceDefinitions, admission policies and webhooks, with
//! Kubernetes' function libraries. Upstream: `k8s.io/apiserver/pkg/cel`, <https://cel.dev>.
//!
//! [`compile`] parses an expression (with the `cel` crate's parser), checks it against the declared names ([`Env`]), and resolves
//! it to a tree ([`Program`]) that [`Program::evaluate`] walks. The evaluator is ours, as each step is charged to a [`Budget`]: no
//! expression can hold up the server. Values are [`Value`]s, converted from JSON by [`Value::from_json`] or with a schema
//! (`api::structural`); lazily computed ones are [`value::Host`]s.
//!
//! ```
//! use podwright_api::cel::{Budget, Env, Type, Value, compile};
//! let program = compile("object.spec.replicas <= 5", &Env::new([("object", Type::Dyn)])).unwrap();
//! let object = Value::from_json(&serde_json::json!({"spec": {"replicas": 3}}));
//! assert_eq!(program.evaluate(&[("object", object)], &mut Budget::PER_CALL.clone()), Ok(Value::Bool(true)));
//! ```

use std::sync::{Arc, Mutex};

pub mod estimate;
mod eval;
pub mod format;
mod functions;
mod lower;
mod operators;
pub mod semver;
pub mod times;
pub mod types;
pub mod url;
pub mod value;

pub use types::Type;
pub use value::{Host, Value};

/// Upstream's limits for one evaluation (`PerCallLimit`), and for all evaluations on one object (`RuntimeCELCostBudget`).
const PER_CALL_LIMIT: u64 = 1_000_000;
const PER_OBJECT_LIMIT: u64 = 10_000_000;

/// The longest error message.
const LONGEST_MESSAGE: usize = 1024;

/// The remaining cost of an evaluation: about one per step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget(u64);

impl Budget {
    pub const PER_CALL: Budget = Budget(PER_CALL_LIMIT);
    pub const PER_OBJECT: Budget = Budget(PER_OBJECT_LIMIT);

    pub fn charge(&mut self, cost: u64) -> Result<(), Error> {
        match self.0.checked_sub(cost) {
            Some(left) => {
                self.0 = left;
                Ok(())
            }
            None => {
                self.0 = 0;
                Err(Error::exhausted())
            }
        }
    }
    pub fn is_spent(&self) -> bool {
        self.0 == 0
    }
    /// The same, or so much of it.
    pub fn at_most(self, steps: u64) -> Budget {
        Budget(self.0.min(steps))
    }

    /// Runs one evaluation within its own limit, charged to this budget. `Err(None)`: this budget is exhausted.
    pub fn spend<T>(&mut self, run: impl FnOnce(&mut Budget) -> Result<T, Error>) -> Result<T, Option<Error>> {
        let given = self.0.min(PER_CALL_LIMIT);
        let mut own = Budget(given);
        let outcome = run(&mut own);
        self.0 -= given - own.0;
        match outcome {
            Err(error) if error.exhausted && self.is_spent() => Err(None),
            outcome => outcome.map_err(Some),
        }
    }
}

/// A budget for nested evaluations, such as a policy's variables.
#[derive(Clone, Debug)]
pub struct SharedBudget(Arc<Mutex<Budget>>);

impl SharedBudget {
    pub fn new(budget: Budget) -> SharedBudget {
        SharedBudget(Arc::new(Mutex::new(budget)))
    }

    /// How much there is of it.
    pub fn left(&self) -> u64 {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).0
    }

    /// As [`Budget::spend`]. What runs within pays for itself meanwhile.
    pub fn spend<T>(&self, run: impl FnOnce(&mut Budget) -> Result<T, Error>) -> Result<T, Option<Error>> {
        let lock = || self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let given = lock().0.min(PER_CALL_LIMIT);
        let mut own = Budget(given);
        let outcome = run(&mut own);
        let paid = lock().charge(given - own.0);
        match paid.and(outcome) {
            Err(error) if error.exhausted && lock().is_spent() => Err(None),
            outcome => outcome.map_err(Some),
        }
    }
}

/// Why an evaluation failed, in cel-go's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    pub message: String,
    /// The budget is exhausted: no operator absorbs that.
    pub exhausted: bool,
}

impl Error {
    /// Truncates a long message: it may quote a megabyte of somebody's string.
    pub fn new(message: impl Into<String>) -> Error {
        let mut message = message.into();
        if message.len() > LONGEST_MESSAGE {
            message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
            message.push_str("...");
            message.shrink_to_fit();
        }
        Error { message, exhausted: false }
    }
    /// The budget is exhausted.
    pub fn exhausted() -> Error {
        Error { message: "operation cancelled: actual cost limit exceeded".into(), exhausted: true }
    }
    pub fn no_such_overload() -> Error {
        Error::new("no such overload")
    }
    pub fn no_such_key(key: &str) -> Error {
        Error::new(format!("no such key: {key}"))
    }
}

/// Why an expression does not compile, in cel-go's form: `ERROR: <input>:1:6: undefined field 'a'`, with the line and a mark below
/// it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CompileError(pub String);

impl CompileError {
    /// An error at a position in the source; lines and columns count from 1.
    fn at(source: &str, line: isize, column: isize, message: &str) -> CompileError {
        let text = source.lines().nth(usize::try_from(line - 1).unwrap_or(0)).unwrap_or("");
        if text.len() > LONGEST_MESSAGE {
            let message = Error::new(message).message;
            return CompileError(format!("ERROR: <input>:{line}:{column}: {message}"));
        }
        let message = Error::new(message).message;
        let dots = ".".repeat(usize::try_from(column - 1).unwrap_or(0));
        CompileError(format!("ERROR: <input>:{line}:{column}: {message}\n | {text}\n | {dots}^"))
    }
}

/// The variables of an expression, with their types if known.
#[derive(Clone, Debug, Default)]
pub struct Env {
    variables: Vec<(Arc<str>, Type)>,
}

impl Env {
    pub fn new<'a>(variables: impl IntoIterator<Item = (&'a str, Type)>) -> Env {
        Env { variables: variables.into_iter().map(|(name, of)| (name.into(), of)).collect() }
    }
    fn variable(&self, name: &str) -> Option<&Type> {
        self.variables.iter().rev().find(|(known, _)| **known == *name).map(|(_, of)| of)
    }
}

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    root: lower::Node,
    /// The type of its value, `Dyn` if known only at run time.
    pub result: Type,
    /// The variables that it uses.
    names: Vec<Arc<str>>,
}

/// The values of an expression's variables.
pub trait Variables {
    fn value(&self, name: &str) -> Option<Value>;
}

impl<const N: usize> Variables for [(&str, Value); N] {
    fn value(&self, name: &str) -> Option<Value> {
        self.as_slice().value(name)
    }
}
impl Variables for [(&str, Value)] {
    fn value(&self, name: &str) -> Option<Value> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
    }
}

/// Compiles an expression.
pub fn compile(source: &str, env: &Env) -> Result<Program, CompileError> {
    lower::compile(source, env)
}

impl Program {
    /// The value, or an error. Never panics, and ends when the budget is exhausted.
    pub fn evaluate(&self, variables: &(impl Variables + ?Sized), budget: &mut Budget) -> Result<Value, Error> {
        eval::evaluate(&self.root, &|name| variables.value(name), budget)
    }

    /// The same for a boolean expression.
    pub fn holds(&self, variables: &(impl Variables + ?Sized), budget: &mut Budget) -> Result<bool, Error> {
        match self.evaluate(variables, budget)? {
            Value::Bool(b) => Ok(b),
            other => Err(Error::new(format!("expression evaluated to {}, not bool", other.type_name()))),
        }
    }

    /// Whether it uses this variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.names.iter().any(|name| **name == *variable)
    }
}

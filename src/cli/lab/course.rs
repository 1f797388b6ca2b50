//! A lab as its author writes it: `lab.yaml`, parsed strictly.

use std::fmt;

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use podwright_api::yaml;

/// Bounds of a lab, far above what a person would sit through.
const MOST_STEPS: usize = 40;
const MOST_CHECKS: usize = 20;
const MOST_NODES: usize = 2;

/// Why a `lab.yaml` is no lab; names the field.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}{}{why}", if at.is_empty() { "" } else { ": " })]
pub struct LabError {
    at: String,
    why: String,
}

fn refuse<T>(at: impl Into<String>, why: impl fmt::Display) -> Result<T, LabError> {
    Err(LabError { at: at.into(), why: why.to_string() })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Beginner,
    Intermediate,
    Advanced,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Beginner => "beginner",
            Level::Intermediate => "intermediate",
            Level::Advanced => "advanced",
        })
    }
}

#[derive(Debug)]
pub struct Lab {
    pub title: String,
    pub goal: String,
    pub level: Level,
    pub minutes: u32,
    pub nodes: usize,
    /// Programs that the commands need, beside a shell and podwright.
    pub tools: Vec<String>,
    pub steps: Vec<Step>,
}

#[derive(Debug)]
pub struct Step {
    pub title: String,
    pub text: String,
    /// A command for a second terminal, which shows the step happen.
    pub watch: Option<String>,
    /// Commands that change something.
    pub run: Option<String>,
    /// Commands that only show something.
    pub look: Option<String>,
    /// What to look for in their output.
    pub observe: Option<String>,
    pub question: Option<Question>,
    pub checks: Vec<Check>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    pub ask: String,
    pub answer: String,
}

#[derive(Debug)]
pub struct Check {
    pub subject: Subject,
    pub wanted: Wanted,
    /// A command: unless it succeeds, the check does not concern this host.
    pub when: Option<String>,
    /// What a learner reads when the check fails.
    pub missing: Option<String>,
}

/// What a check looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A field of an object; without a path its name.
    Object { object: String, namespace: Option<String>, path: String },
    /// The output and exit code of a shell command.
    Command(String),
    /// What `podwright inspect pod` prints.
    Inspect(String),
    /// What `podwright trace pod` prints.
    Trace(String),
    /// What the step's `look` prints.
    Look,
}

/// How that should be.
#[derive(Debug)]
pub enum Wanted {
    Equals(String),
    Matches(Regex),
    Lacks(Regex),
    /// The object or the field does not exist.
    Absent,
    Exit(i32),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LabFields {
    title: String,
    goal: String,
    level: Level,
    minutes: u32,
    #[serde(default = "one")]
    nodes: usize,
    #[serde(default)]
    tools: Vec<String>,
    steps: Vec<Value>,
}

fn one() -> usize {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepFields {
    title: String,
    text: String,
    watch: Option<String>,
    run: Option<String>,
    look: Option<String>,
    observe: Option<String>,
    question: Option<Value>,
    #[serde(default)]
    checks: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckFields {
    object: Option<String>,
    namespace: Option<String>,
    path: Option<String>,
    command: Option<String>,
    inspect: Option<String>,
    trace: Option<String>,
    #[serde(default)]
    look: bool,
    equals: Option<Value>,
    matches: Option<String>,
    lacks: Option<String>,
    #[serde(default)]
    absent: bool,
    exit: Option<i32>,
    when: Option<String>,
    missing: Option<String>,
}

impl Lab {
    pub fn parse(text: &str) -> Result<Lab, LabError> {
        let mut documents = yaml::documents(text).or_else(|why| refuse("", why))?;
        if documents.len() != 1 {
            return refuse("", format!("expected one document, not {}", documents.len()));
        }
        let fields: LabFields = part(documents.remove(0), "")?;
        if !(1..=MOST_NODES).contains(&fields.nodes) {
            return refuse("nodes", format!("must be between 1 and {MOST_NODES}"));
        }
        if !(1..=MOST_STEPS).contains(&fields.steps.len()) {
            return refuse("steps", format!("must be between 1 and {MOST_STEPS}"));
        }
        let steps = fields.steps.into_iter().enumerate();
        let steps = steps.map(|(n, value)| step(value, &format!("steps[{n}]"))).collect::<Result<_, _>>()?;
        let LabFields { title, goal, level, minutes, nodes, tools, .. } = fields;
        Ok(Lab { title, goal, level, minutes, nodes, tools, steps })
    }
}

/// A part of the document as a type; its error names the field by its place.
fn part<T: DeserializeOwned>(value: Value, at: &str) -> Result<T, LabError> {
    serde_json::from_value(value).or_else(|why| refuse(at, why))
}

fn step(value: Value, at: &str) -> Result<Step, LabError> {
    let fields: StepFields = part(value, at)?;
    if fields.checks.len() > MOST_CHECKS {
        return refuse(format!("{at}.checks"), format!("must have at most {MOST_CHECKS} items"));
    }
    let question = fields.question.map(|value| part(value, &format!("{at}.question"))).transpose()?;
    let checks = fields.checks.into_iter().enumerate();
    let checks: Vec<Check> =
        checks.map(|(n, value)| check(value, &format!("{at}.checks[{n}]"))).collect::<Result<_, _>>()?;
    if fields.look.is_none() && checks.iter().any(|check| check.subject == Subject::Look) {
        return refuse(format!("{at}.look"), "required by a check of its output");
    }
    let StepFields { title, text, watch, run, look, observe, .. } = fields;
    Ok(Step { title, text, watch, run, look, observe, question, checks })
}

fn check(value: Value, at: &str) -> Result<Check, LabError> {
    let fields: CheckFields = part(value, at)?;
    let subject = subject(&fields, at)?;
    let wanted = wanted(&fields, at)?;
    match (&subject, &wanted) {
        (Subject::Object { .. }, Wanted::Exit(_)) => return refuse(format!("{at}.exit"), "only a command has one"),
        (Subject::Object { .. }, _) | (_, Wanted::Equals(_) | Wanted::Matches(_) | Wanted::Lacks(_)) => {}
        (Subject::Command(_), Wanted::Exit(_)) => {}
        (_, Wanted::Exit(_)) => return refuse(format!("{at}.exit"), "only a command has one"),
        (_, Wanted::Absent) => return refuse(format!("{at}.absent"), "only an object or its field can be absent"),
    }
    Ok(Check { subject, wanted, when: fields.when, missing: fields.missing })
}

/// Exactly one of the fields that name a subject.
fn subject(fields: &CheckFields, at: &str) -> Result<Subject, LabError> {
    let CheckFields { object, command, inspect, trace, look, .. } = fields;
    if object.is_none() && (fields.path.is_some() || fields.namespace.is_some()) {
        return refuse(at, "path and namespace belong to an object");
    }
    match (object, command, inspect, trace, look) {
        (Some(object), None, None, None, false) => {
            let path = fields.path.clone().unwrap_or_else(|| "{.metadata.name}".to_owned());
            Ok(Subject::Object { object: object.clone(), namespace: fields.namespace.clone(), path })
        }
        (None, Some(command), None, None, false) => Ok(Subject::Command(command.clone())),
        (None, None, Some(pod), None, false) => Ok(Subject::Inspect(pod.clone())),
        (None, None, None, Some(pod), false) => Ok(Subject::Trace(pod.clone())),
        (None, None, None, None, true) => Ok(Subject::Look),
        _ => refuse(at, "expected exactly one of object, command, inspect, trace, look"),
    }
}

/// Exactly one of the fields that say how it should be.
fn wanted(fields: &CheckFields, at: &str) -> Result<Wanted, LabError> {
    let CheckFields { equals, matches, lacks, absent, exit, .. } = fields;
    match (equals, matches, lacks, absent, exit) {
        (Some(value), None, None, false, None) => Ok(Wanted::Equals(match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })),
        (None, Some(text), None, false, None) => Ok(Wanted::Matches(pattern(text, &format!("{at}.matches"))?)),
        (None, None, Some(text), false, None) => Ok(Wanted::Lacks(pattern(text, &format!("{at}.lacks"))?)),
        (None, None, None, true, None) => Ok(Wanted::Absent),
        (None, None, None, false, Some(code)) => Ok(Wanted::Exit(*code)),
        _ => refuse(at, "expected exactly one of equals, matches, lacks, absent, exit"),
    }
}

/// `^` and `$` are those of a line.
fn pattern(text: &str, at: &str) -> Result<Regex, LabError> {
    RegexBuilder::new(text).multi_line(true).build().or_else(|why| refuse(at, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAB: &str = "
title: T
goal: G
level: beginner
minutes: 5
steps:
- title: One
  text: Do it.
  run: podwright apply -f pod.yaml
  look: podwright get pods
  question: {ask: Why?, answer: Because.}
  checks:
  - {object: pod/web, path: '{.status.phase}', equals: Running}
  - {look: true, matches: '^web'}
";

    fn refused(from: &str, to: &str) -> String {
        assert!(LAB.contains(from), "{from}");
        Lab::parse(&LAB.replace(from, to)).expect_err(to).to_string()
    }

    #[test]
    fn a_lab_is_read() {
        let lab = Lab::parse(LAB).unwrap();
        assert_eq!((lab.title.as_str(), lab.level, lab.minutes, lab.nodes), ("T", Level::Beginner, 5, 1));
        let step = &lab.steps[0];
        assert_eq!(step.question.as_ref().map(|q| q.answer.as_str()), Some("Because."));
        let of_pod = Subject::Object { object: "pod/web".into(), namespace: None, path: "{.status.phase}".into() };
        assert_eq!(step.checks[0].subject, of_pod);
        assert!(matches!(&step.checks[0].wanted, Wanted::Equals(value) if value == "Running"));
        assert_eq!(step.checks[1].subject, Subject::Look);
    }

    #[test]
    fn a_mistake_is_named_by_its_place() {
        for (from, to, why) in [
            ("goal: G", "gaol: G", "unknown field `gaol`"),
            ("level: beginner", "level: easy", "unknown variant `easy`"),
            ("minutes: 5", "minutes: soon", "expected u32"),
            ("minutes: 5", "minutes: 5\nnodes: 3", "nodes: must be between 1 and 2"),
            ("  text: Do it.\n", "", "steps[0]: missing field `text`"),
            ("  run: ", "  ran: ", "steps[0]: unknown field `ran`"),
            ("ask: Why?", "aks: Why?", "steps[0].question: unknown field `aks`"),
            ("path: ", "pth: ", "steps[0].checks[0]: unknown field `pth`"),
            ("object: pod/web, ", "", "steps[0].checks[0]: path and namespace belong to an object"),
            ("look: true, ", "", "steps[0].checks[1]: expected exactly one of object, command"),
            ("equals: Running", "equals: Running, absent: true", "steps[0].checks[0]: expected exactly one of equals"),
            ("equals: Running", "exit: 0", "steps[0].checks[0].exit: only a command has one"),
            ("matches: '^web'", "absent: true", "steps[0].checks[1].absent: only an object"),
            ("matches: '^web'", "matches: '('", "steps[0].checks[1].matches: regex parse error"),
            ("  look: podwright get pods\n", "", "steps[0].look: required by a check of its output"),
            ("title: T\n", "title: T\n---\ntitle: T\n", "expected one document, not 2"),
        ] {
            let said = refused(from, to);
            assert!(said.starts_with(why) || said.contains(why), "{to}: {said}");
        }
        let many = LAB.to_owned() + &"- {title: t, text: t}\n".repeat(MOST_STEPS);
        assert_eq!(Lab::parse(&many).unwrap_err().to_string(), "steps: must be between 1 and 40");
    }
}

//! `wait`: waits until objects have a condition or value, exist, or are gone.

use std::{process::ExitCode, time::Duration};

use tokio::time::Instant;

use super::{
    Outcome, Session,
    error::Failure,
    jsonpath::{self, TemplateError},
    target::{self, Selection, Target},
};
use podwright_api::{Kind, Object, Status, Verb, WatchEvent, request::EventKind};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Select all resources in the namespace of the specified types
    #[arg(long)]
    all: bool,
    /// The condition to wait on: condition=NAME[=VALUE], jsonpath={PATH}[=VALUE], create, delete
    #[arg(long = "for", value_name = "WHAT")]
    wanted: Wanted,
    /// The length of time to wait before giving up; 0s: check once; negative: wait for a week
    #[arg(long, default_value = "30s", value_parser = duration, allow_negative_numbers = true)]
    timeout: Duration,
}

/// What to wait for.
#[derive(Clone, Debug)]
pub enum Wanted {
    Create,
    Delete,
    /// The condition's type (in any case) and status.
    Condition(String, String),
    /// The value, or any.
    JsonPath(jsonpath::Template, Option<String>),
}

/// Why `--for` is invalid, in kubectl's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WantedError {
    #[error("unrecognized condition: \"{0}\"")]
    Unrecognized(String),
    #[error("{0}")]
    Template(TemplateError),
}

impl std::str::FromStr for Wanted {
    type Err = WantedError;

    fn from_str(text: &str) -> Result<Wanted, WantedError> {
        match text.to_ascii_lowercase().as_str() {
            "create" => return Ok(Wanted::Create),
            "delete" => return Ok(Wanted::Delete),
            _ => {}
        }
        if let Some(condition) = text.strip_prefix("condition=") {
            let (name, value) = condition.split_once('=').unwrap_or((condition, "True"));
            return Ok(Wanted::Condition(name.to_owned(), value.to_owned()));
        }
        if let Some(rest) = text.strip_prefix("jsonpath=") {
            let close = rest.rfind('}').map_or(rest.len(), |at| at + 1);
            let (path, value) = rest.split_at(close);
            let value = value.strip_prefix('=').map(|v| v.trim_matches(['"', '\'']).to_owned());
            let path = path.trim_matches(['\'', '"']).parse::<jsonpath::Template>();
            let path = path.map_err(WantedError::Template)?;
            return Ok(Wanted::JsonPath(path, value));
        }
        Err(WantedError::Unrecognized(text.to_owned()))
    }
}

/// Durations in Go's format: `30s`, `1m30s`, `500ms`; a negative one is a week.
pub fn duration(text: &str) -> Result<Duration, String> {
    if text.starts_with('-') {
        return Ok(Duration::from_secs(7 * 24 * 3600));
    }
    let bare = text.parse::<u64>().ok().map(Duration::from_secs);
    bare.or_else(|| podwright_api::duration::parse(text)).ok_or_else(|| format!("time: invalid duration \"{text}\""))
}

impl Wanted {
    /// Whether an object (`None`: it does not exist) fulfils it.
    fn met(&self, object: Option<&Object>) -> bool {
        match (self, object) {
            (Wanted::Delete, None) => true,
            (Wanted::Delete, Some(_)) | (_, None) => false,
            (Wanted::Create, Some(_)) => true,
            (Wanted::Condition(name, value), Some(object)) => {
                let conditions = object.at("status.conditions").and_then(|c| c.as_array()).into_iter().flatten();
                let observed = object.at("status.observedGeneration").and_then(|g| g.as_i64());
                let fresh = observed.is_none_or(|g| g >= object.generation());
                let is = |field: &serde_json::Value, text: &str| {
                    field.as_str().is_some_and(|f| f.eq_ignore_ascii_case(text))
                };
                fresh && conditions.clone().any(|c| is(&c["type"], name) && is(&c["status"], value))
            }
            (Wanted::JsonPath(path, value), Some(object)) => {
                let found = path.values(&object.0);
                match value {
                    None => !found.is_empty(),
                    Some(value) => found.iter().any(|v| jsonpath::text(v) == *value),
                }
            }
        }
    }
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let deadline = Some(Instant::now() + args.timeout);
    let targets = args.selection.targets(session).await?;
    let broad = args.all || args.selection.selector.is_some() || args.selection.field_selector.is_some();
    if !broad && targets.iter().any(|t| t.name.is_none()) {
        return Err(Failure::usage("resource name must be provided, or --all or a selector"));
    }
    let mut code = ExitCode::SUCCESS;
    let mut found = false;
    for target in &targets {
        for one in each(&args, target, session).await? {
            found = true;
            match until(session, &one, &args.wanted, deadline).await {
                Ok(()) => outln!("{} condition met", shown(&one)),
                Err(failure) => code = failure.report(),
            }
        }
    }
    if !found && !matches!(args.wanted, Wanted::Delete) {
        return Err(Failure::usage("no matching resources found"));
    }
    Ok(code)
}

fn shown(target: &Target) -> String {
    target::display(target.kind, target.name.as_deref().unwrap_or(""))
}

/// The objects of a target by name.
async fn each(args: &Args, target: &Target, session: &Session) -> Result<Vec<Target>, Status> {
    if target.name.is_some() {
        return match (&args.wanted, args.selection.fetch(target, session).await) {
            // Already deleted.
            (Wanted::Delete, Err(status)) if status.is_not_found() => Ok(Vec::new()),
            (Wanted::Create, _) | (_, Ok(_)) => Ok(vec![target.clone()]),
            (_, Err(status)) => Err(status),
        };
    }
    let (objects, _) = args.selection.list(target, session).await?;
    let named = |o: Object| Target {
        kind: target.kind,
        namespace: o.namespace().map(str::to_owned),
        name: Some(o.name().to_owned()),
    };
    Ok(objects.into_iter().map(named).collect())
}

/// Waits until the target fulfils it.
async fn until(session: &Session, target: &Target, wanted: &Wanted, deadline: Option<Instant>) -> Result<(), Failure> {
    if observe(session, target, deadline, |object| Ok(wanted.met(object))).await? {
        return Ok(());
    }
    let name = target.name.as_deref().unwrap_or("");
    Err(Failure::usage(format!("timed out waiting for the condition on {}/{name}", target.kind.plural)))
}

/// Calls `look` with a target's object (`None`: it does not exist), now and after every change, until it returns true; false at the
/// deadline.
pub async fn observe(
    session: &Session,
    target: &Target,
    deadline: Option<Instant>,
    mut look: impl FnMut(Option<&Object>) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    let name = target.name.as_deref().unwrap_or("");
    let selection = Selection { field_selector: Some(format!("metadata.name={name}")), ..Selection::default() };
    loop {
        // 1. Check; the list returns the revision to watch from.
        let (objects, revision) = selection.list(target, session).await?;
        if look(objects.first())? {
            return Ok(true);
        }
        // 2. Watch until it is fulfilled, or the watch ends.
        let mut request = session.request(Verb::Watch, target.kind, target.namespace.as_deref(), None);
        request.options = selection.options();
        request.options.resource_version = Some(revision);
        let mut events = session.client.watch(request).await?;
        loop {
            let event = match deadline {
                Some(deadline) => match tokio::time::timeout_at(deadline, events.recv()).await {
                    Ok(event) => event,
                    Err(_) => return Ok(false),
                },
                None => events.recv().await,
            };
            let Some(WatchEvent { kind, object }) = event else { break };
            let enough = match kind {
                EventKind::Bookmark => false,
                EventKind::Error => break,
                EventKind::Deleted => look(None)?,
                _ => look(Some(&Object::from_slice(&object)?))?,
            };
            if enough {
                return Ok(true);
            }
        }
    }
}

/// Waits until exactly this object is gone.
pub async fn gone(
    session: &Session,
    kind: &'static Kind,
    object: &Object,
    deadline: Option<Instant>,
) -> Result<(), Failure> {
    let target =
        Target { kind, namespace: object.namespace().map(str::to_owned), name: Some(object.name().to_owned()) };
    match session.get(kind, object.namespace(), object.name()).await {
        Err(status) if status.is_not_found() => return Ok(()),
        Ok(live) if live.uid() != object.uid() => return Ok(()),
        _ => {}
    }
    until(session, &target, &Wanted::Delete, deadline).await
}

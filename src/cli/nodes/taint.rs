//! `taint`: sets and removes the taints of nodes.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{super::Outcome, Failure, Session, Writing, kind_of, named};
use crate::target::{Selection, Target};
use podwright_api::{Object, request::PatchType};

/// How often a conflicting change is tried.
const ATTEMPTS: usize = 5;
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

#[derive(clap::Args)]
pub struct Args {
    /// node NAME..., then KEY=VALUE:EFFECT or KEY:EFFECT to set, KEY:EFFECT- or KEY- to remove
    #[arg(value_name = "WORD", required = true)]
    words: Vec<String>,
    /// Select all nodes in the cluster
    #[arg(long)]
    all: bool,
    /// Selector (label query) to filter on
    #[arg(long, short = 'l', value_name = "LABELS")]
    selector: Option<String>,
    /// Allow existing values to be overwritten
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    writing: Writing,
}

/// One change of a node's taints.
#[derive(Clone, Debug, PartialEq)]
enum Edit {
    Set {
        key: String,
        value: String,
        effect: String,
    },
    /// Without an effect: all with the key.
    Remove {
        key: String,
        effect: Option<String>,
    },
}

/// Why taints cannot be changed, in kubectl's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum TaintError {
    #[error("invalid taint effect: {0}, unsupported taint effect")]
    Effect(String),
    #[error("invalid taint spec: {0}")]
    Spec(String),
    /// The node has one already, without `--overwrite`.
    #[error("node {node} already has {key} taint(s) with same effect(s) and --overwrite is false")]
    Exists { node: String, key: String },
    #[error("taint \"{key}{}\" not found", .effect.as_ref().map_or(String::new(), |effect| format!(":{effect}")))]
    NotFound { key: String, effect: Option<String> },
}

/// An argument as an edit; otherwise it names a node.
fn edit(word: &str) -> Result<Option<Edit>, TaintError> {
    let known = |effect: &str| match EFFECTS.contains(&effect) {
        true => Ok(effect.to_owned()),
        false => Err(TaintError::Effect(effect.to_owned())),
    };
    if let Some(rest) = word.strip_suffix('-').filter(|rest| !rest.is_empty()) {
        let (key, effect) = rest.split_once(':').map_or((rest, None), |(key, effect)| (key, Some(effect)));
        let key = key.split('=').next().unwrap_or(key).to_owned();
        return Ok(Some(Edit::Remove { key, effect: effect.map(known).transpose()? }));
    }
    let Some((rest, effect)) = word.split_once(':') else {
        return if word.contains('=') { Err(TaintError::Spec(word.to_owned())) } else { Ok(None) };
    };
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    if key.is_empty() {
        return Err(TaintError::Spec(word.to_owned()));
    }
    Ok(Some(Edit::Set { key: key.to_owned(), value: value.to_owned(), effect: known(effect)? }))
}

/// A node's taints after the edits, and kubectl's word for the change.
fn edited(
    node: &str,
    taints: &[Value],
    edits: &[Edit],
    overwrite: bool,
) -> Result<(Vec<Value>, &'static str), TaintError> {
    let (mut list, mut replaced, mut set) = (taints.to_vec(), false, false);
    for edit in edits {
        match edit {
            Edit::Set { key, value, effect } => {
                set = true;
                let is_same = |t: &&mut Value| t["key"] == key.as_str() && t["effect"] == effect.as_str();
                match list.iter_mut().find(is_same) {
                    Some(_) if !overwrite => {
                        return Err(TaintError::Exists { node: node.to_owned(), key: key.clone() });
                    }
                    Some(taint) => {
                        taint["value"] = json!(value);
                        replaced = true;
                    }
                    None if value.is_empty() => list.push(json!({ "key": key, "effect": effect })),
                    None => list.push(json!({ "key": key, "value": value, "effect": effect })),
                }
            }
            Edit::Remove { key, effect } => {
                let before = list.len();
                list.retain(|t| t["key"] != key.as_str() || effect.as_ref().is_some_and(|e| t["effect"] != e.as_str()));
                if list.len() == before {
                    return Err(TaintError::NotFound { key: key.clone(), effect: effect.clone() });
                }
            }
        }
    }
    let done = match (set, replaced) {
        (_, true) => "modified",
        (true, _) => "tainted",
        _ => "untainted",
    };
    Ok((list, done))
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let (mut names, mut edits) = (Vec::new(), Vec::new());
    for word in &args.words {
        match edit(word).map_err(Failure::usage)? {
            Some(edit) => edits.push(edit),
            None if edits.is_empty() => names.push(word.clone()),
            None => return Err(Failure::usage(format!("unknown taint spec: {word}"))),
        }
    }
    if names.first().is_none_or(|first| !matches!(first.as_str(), "node" | "nodes" | "no")) {
        return Err(Failure::usage("the first word must be the type: nodes"));
    }
    names.remove(0);
    if edits.is_empty() {
        return Err(Failure::usage("at least one taint update is required"));
    }
    let kind = kind_of("nodes");
    let nodes = match args.all {
        true => Selection::default().list(&Target { kind, namespace: None, name: None }, session).await?.0,
        false => named(session, &names, args.selector.as_ref()).await?,
    };
    if nodes.is_empty() {
        return Err(Failure::usage("at least one resource name must be specified since 'all' parameter is not set"));
    }
    for node in nodes {
        change(&args, session, node, &edits).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Changes a node's taints and reports it. A list is replaced as a whole: on a conflict the node is read and changed again.
async fn change(args: &Args, session: &Session, mut node: Object, edits: &[Edit]) -> Result<(), Failure> {
    let kind = kind_of("nodes");
    for left in (0..ATTEMPTS).rev() {
        let (taints, done) = changed(args, &node, edits).map_err(Failure::usage)?;
        let patch = json!({ "spec": { "taints": taints }, "metadata": { "resourceVersion": node.resource_version() } });
        match args.writing.patch(session, kind, &node, PatchType::Merge, patch).await {
            Err(Failure::Server { status, .. }) if status.is_conflict() && left > 0 => {
                node = session.get(kind, None, node.name()).await?;
            }
            outcome => return args.writing.tell(kind, &outcome?, done),
        }
    }
    Ok(())
}

fn changed(args: &Args, node: &Object, edits: &[Edit]) -> Result<(Vec<Value>, &'static str), TaintError> {
    let taints = node.0["spec"]["taints"].as_array().cloned().unwrap_or_default();
    edited(node.name(), &taints, edits, args.overwrite)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(taints: Value, words: &str, overwrite: bool) -> Result<(Value, &'static str), TaintError> {
        let edits: Vec<Edit> =
            words.split(' ').map(|w| edit(w).map(|e| e.expect("an edit"))).collect::<Result<_, _>>()?;
        let (list, done) = edited("n", taints.as_array().expect("a list"), &edits, overwrite)?;
        Ok((json!(list), done))
    }

    #[test]
    fn words_are_nodes_or_edits() {
        assert_eq!(edit("node-1"), Ok(None));
        assert_eq!(edit("a=b"), Err(TaintError::Spec("a=b".into())));
        let why = edit("a=b:Never").expect_err("unknown");
        assert_eq!(why.to_string(), "invalid taint effect: Never, unsupported taint effect");
        let removed = |effect: Option<&str>| Some(Edit::Remove { key: "a".into(), effect: effect.map(str::to_owned) });
        assert_eq!(edit("a-"), Ok(removed(None)));
        assert_eq!(edit("a:NoExecute-"), Ok(removed(Some("NoExecute"))));
    }

    #[test]
    fn taints_are_told_apart_by_key_and_effect() {
        let one = json!([{ "key": "a", "value": "b", "effect": "NoSchedule" }]);
        assert_eq!(after(json!([]), "a=b:NoSchedule", false), Ok((one.clone(), "tainted")));
        let why = "node n already has a taint(s) with same effect(s) and --overwrite is false";
        assert_eq!(after(one.clone(), "a=c:NoSchedule", false).expect_err("it is there").to_string(), why);
        let other = json!([{ "key": "a", "value": "c", "effect": "NoSchedule" }]);
        assert_eq!(after(one.clone(), "a=c:NoSchedule", true), Ok((other, "modified")));
        let both = json!([one[0], { "key": "a", "effect": "NoExecute" }]);
        assert_eq!(after(one.clone(), "a:NoExecute", false), Ok((both.clone(), "tainted")));
        assert_eq!(after(both.clone(), "a:NoExecute-", false), Ok((one, "untainted")));
        assert_eq!(after(both, "a-", false), Ok((json!([]), "untainted")));
        let why = after(json!([]), "a:NoExecute-", false).expect_err("there is none");
        assert_eq!(why.to_string(), "taint \"a:NoExecute\" not found");
        assert_eq!(after(json!([]), "a-", false).expect_err("there is none").to_string(), "taint \"a\" not found");
    }
}

//! The Pods that an argument names: `x`, `pod/x`, or those behind `deployment/x`, `replicaset/x`, `service/x`.

use std::cmp::Reverse;

use serde_json::Value;

use super::{
    Session,
    error::Failure,
    known,
    target::{self, Selection, Target},
};
use podwright_api::{Kind, Object, kinds, selector::LabelSelector};

/// The row of a built-in kind.
pub fn kind_of(name: &str) -> &'static Kind {
    // The invariant: callers name built-in kinds.
    kinds::lookup(name).expect("a kind of the table")
}

/// The object that an argument names; without a type, a Pod.
pub async fn named(session: &Session, word: &str) -> Result<(&'static Kind, Object), Failure> {
    let (kind, name) = match word.split_once('/') {
        Some((kind, name)) => {
            known::learn_of(session, [kind]).await;
            (target::kind(kind)?, name)
        }
        None => (kind_of("pods"), word),
    };
    Ok((kind, session.get(kind, None, name).await?))
}

/// The Pods that an argument names, the preferred one first.
pub async fn find(session: &Session, word: &str) -> Result<Vec<Object>, Failure> {
    let (kind, object) = named(session, word).await?;
    behind(session, kind, object).await
}

/// A single Pod, for commands that use only one.
pub async fn one(session: &Session, word: &str) -> Result<Object, Failure> {
    let mut pods = find(session, word).await?;
    if pods.is_empty() {
        return Err(Failure::usage(format!("timed out waiting for the condition: {word} has no Pods")));
    }
    Ok(pods.swap_remove(0))
}

/// The Pods of an object, the preferred one first.
pub async fn behind(session: &Session, kind: &'static Kind, object: Object) -> Result<Vec<Object>, Failure> {
    let selector = match kind.built_in() {
        "Pod" => return Ok(vec![object]),
        "Service" => object.at("spec.selector").and_then(Value::as_object).map(LabelSelector::from_map),
        _ => LabelSelector::from_optional_json(object.at("spec.selector"))?,
    };
    let Some(selector) = selector.filter(|s| !s.is_empty()) else {
        let shown = target::display(kind, object.name());
        return Err(Failure::usage(format!("cannot find Pods of {shown}: it selects none")));
    };
    let mut pods = select(session, object.namespace(), &selector.to_string()).await?;
    pods.sort_by_key(rank);
    Ok(pods)
}

/// All Pods of a namespace that match a label selector.
pub async fn select(session: &Session, namespace: Option<&str>, selector: &str) -> Result<Vec<Object>, Failure> {
    let target = Target { kind: kind_of("pods"), namespace: namespace.map(str::to_owned), name: None };
    let selection = Selection { selector: Some(selector.to_owned()), ..Selection::default() };
    Ok(selection.list(&target, session).await?.0)
}

/// Running and ready ones first, then the newest.
fn rank(pod: &Object) -> (u8, bool, bool, Reverse<String>, String) {
    let phase = match pod.at("status.phase").and_then(Value::as_str) {
        Some("Running") => 0,
        Some("Pending") => 1,
        _ => 2,
    };
    let created = pod.at("metadata.creationTimestamp").and_then(Value::as_str).unwrap_or("").to_owned();
    (phase, pod.is_terminating(), !is_ready(pod), Reverse(created), pod.name().to_owned())
}

pub fn is_ready(pod: &Object) -> bool {
    let conditions = pod.at("status.conditions").and_then(Value::as_array).into_iter().flatten();
    conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

//! `set resources`: changes requests and limits of containers.

use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::{containers, send};
use crate::{Outcome, Session, error::Failure, target::Selection, write::Writing};
use podwright_api::Object;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Select all resources in the namespace of the specified types
    #[arg(long)]
    all: bool,
    /// The names of containers to change; wildcards are supported
    #[arg(long, short = 'c', default_value = "*", value_name = "NAME")]
    containers: String,
    /// The resource limits for this container, as cpu=200m,memory=512Mi
    #[arg(long, default_value = "", value_name = "LIST")]
    limits: String,
    /// The resource requests for this container, as cpu=100m,memory=256Mi
    #[arg(long, default_value = "", value_name = "LIST")]
    requests: String,
    #[command(flatten)]
    writing: Writing,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    if args.limits.is_empty() && args.requests.is_empty() {
        return Err(Failure::usage(
            "you must specify an update to requests or limits (in the form of --requests/--limits)",
        ));
    }
    let wanted = [("limits", listed(&args.limits)?), ("requests", listed(&args.requests)?)];
    let mut code = ExitCode::SUCCESS;
    for target in args.selection.several(args.all, session).await? {
        for object in args.selection.fetch(&target, session).await? {
            let patch = patch(&object, &args.containers, &wanted)?;
            let sent = send(&args.writing, session, &target, &object, patch, "resource requirements updated").await;
            if let Err(failure) = sent {
                code = failure.report();
            }
        }
    }
    Ok(code)
}

/// `cpu=100m,memory=1Gi` as an object's field.
fn listed(text: &str) -> Result<Map<String, Value>, Failure> {
    let each = |word: &str| match word.split_once('=') {
        Some((name, quantity)) if !name.is_empty() && !quantity.contains('=') => {
            Ok((name.trim().to_owned(), Value::from(quantity.trim())))
        }
        _ => Err(Failure::usage(format!("invalid argument syntax {word}, expected <resource>=<value>"))),
    };
    text.split(',').filter(|word| !word.is_empty()).map(each).collect()
}

/// Each given list replaces the container's, as in upstream's command.
fn patch(object: &Object, word: &str, wanted: &[(&str, Map<String, Value>)]) -> Result<Vec<Value>, Failure> {
    let mut patch = Vec::new();
    for (at, container) in containers(object, word, &["containers"])? {
        let before = &container["resources"];
        let mut after = before.as_object().cloned().unwrap_or_default();
        for (field, list) in wanted.iter().filter(|(_, list)| !list.is_empty()) {
            after.insert((*field).to_owned(), Value::Object(list.clone()));
        }
        if *before != Value::Object(after.clone()) {
            patch.push(json!({ "op": "add", "path": format!("{at}/resources"), "value": after }));
        }
    }
    Ok(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_take_the_place_of_lists() {
        let spec = json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}}, {"name": "b"}]});
        let object = Object(json!({"kind": "Deployment", "spec": {"template": {"spec": spec}}}));
        let wanted = [("limits", listed("memory=1Gi").unwrap()), ("requests", Map::new())];
        let patched = patch(&object, "a", &wanted).unwrap();
        let resources = json!({"limits": {"memory": "1Gi"}, "requests": {"cpu": "1"}});
        assert_eq!(
            patched,
            [json!({"op": "add", "path": "/spec/template/spec/containers/0/resources", "value": resources})]
        );
        assert_eq!(patch(&object, "*", &wanted).unwrap().len(), 2);
        assert!(patch(&object, "c", &wanted).is_err());
        assert!(listed("cpu").is_err() && listed("cpu=1,").is_ok());
    }
}

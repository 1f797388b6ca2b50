//! `rollout undo`: restores the template of an earlier revision.

use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::{history, is_paused, revision, send, template, workloads};
use crate::{
    Outcome, Session,
    error::Failure,
    target::{self, Selection},
};
use podwright_api::{Object, request::PatchType};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// The revision to roll back to; 0: the previous one
    #[arg(long, default_value_t = 0, value_name = "REVISION")]
    to_revision: i64,
}

/// Annotations that are not restored.
const OWN: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "deployment.kubernetes.io/revision",
    "deployment.kubernetes.io/revision-history",
    "deployment.kubernetes.io/desired-replicas",
    "deployment.kubernetes.io/max-replicas",
    "deprecated.deployment.rollback.to",
];

pub async fn run(args: Args, session: &Session) -> Outcome {
    for (target, workload) in workloads(&args.selection, session, "rollbacker").await? {
        let shown = target::display(target.kind, workload.name());
        if is_paused(&workload) {
            return Err(Failure::usage(
                "cannot rollback a paused deployment; resume it first with 'kubectl rollout resume' and try again",
            ));
        }
        let history = history(session, &target, &workload).await?;
        let is_deployment = target.kind.built_in() == "Deployment";
        let none = match is_deployment {
            true => format!("no rollout history found for deployment \"{}\"", workload.name()),
            false => "no last revision to roll back to".to_owned(),
        };
        let chosen = choose(&history, args.to_revision, none)?;
        if template(chosen) == workload.0["spec"]["template"] {
            outln!("{shown} skipped rollback (current template already matches revision {})", revision(chosen));
            continue;
        }
        match is_deployment {
            true => {
                let patch = json!([
                    { "op": "replace", "path": "/spec/template", "value": template(chosen) },
                    { "op": "add", "path": "/metadata/annotations", "value": annotations(&workload, chosen) },
                ]);
                send(session, target.kind, &workload, PatchType::Json, patch).await?
            }
            // A ControllerRevision contains the patch that restores it.
            false => send(session, target.kind, &workload, PatchType::Strategic, chosen.0["data"].clone()).await?,
        };
        outln!("{shown} rolled back");
    }
    Ok(ExitCode::SUCCESS)
}

/// The requested one of sorted revisions; `none` is the error if there is no earlier one.
fn choose(history: &[Object], wanted: i64, none: String) -> Result<&Object, Failure> {
    if wanted > 0 {
        let found = history.iter().find(|one| revision(one) == wanted);
        return found.ok_or_else(|| Failure::usage(format!("unable to find specified revision {wanted} in history")));
    }
    let before = history.len().checked_sub(2).and_then(|at| history.get(at));
    before.ok_or_else(|| Failure::usage(none))
}

/// The revision's annotations, combined with those that stay.
fn annotations(deployment: &Object, set: &Object) -> Map<String, Value> {
    let of =
        |object: &Object| object.at("metadata.annotations").and_then(Value::as_object).cloned().unwrap_or_default();
    let own = |key: &String| OWN.contains(&key.as_str());
    let kept = of(deployment).into_iter().filter(|(key, _)| own(key));
    kept.chain(of(set).into_iter().filter(|(key, _)| !own(key))).collect()
}

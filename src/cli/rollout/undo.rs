//! `rollout undo`: the template of a revision before becomes the current one again.

use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::{deployments, is_paused, revision, send, sets, template};
use crate::{
    api::{Object, request::PatchType},
    cli::{
        Outcome, Session,
        error::Failure,
        target::{self, Selection},
    },
};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// The revision to go back to; 0: the one before
    #[arg(long, default_value_t = 0, value_name = "REVISION")]
    to_revision: i64,
}

/// Annotations that stay the Deployment's own.
const OWN: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "deployment.kubernetes.io/revision",
    "deployment.kubernetes.io/revision-history",
    "deployment.kubernetes.io/desired-replicas",
    "deployment.kubernetes.io/max-replicas",
    "deprecated.deployment.rollback.to",
];

pub async fn run(args: Args, session: &Session) -> Outcome {
    for (target, deployment) in deployments(&args.selection, session, "rollbacker").await? {
        let shown = target::display(target.kind, deployment.name());
        if is_paused(&deployment) {
            return Err(Failure::usage(
                "cannot rollback a paused deployment; resume it first with 'kubectl rollout resume' and try again",
            ));
        }
        let sets = sets(session, &deployment).await?;
        let set = choose(&sets, &deployment, args.to_revision)?;
        if template(set) == deployment.0["spec"]["template"] {
            outln!("{shown} skipped rollback (current template already matches revision {})", revision(set));
            continue;
        }
        let patch = json!([
            { "op": "replace", "path": "/spec/template", "value": template(set) },
            { "op": "add", "path": "/metadata/annotations", "value": annotations(&deployment, set) },
        ]);
        send(session, target.kind, &deployment, PatchType::Json, patch).await?;
        outln!("{shown} rolled back");
    }
    Ok(ExitCode::SUCCESS)
}

/// The ReplicaSet of the wanted revision; `sets` are in order of theirs.
fn choose<'a>(sets: &'a [Object], deployment: &Object, wanted: i64) -> Result<&'a Object, Failure> {
    if wanted > 0 {
        let found = sets.iter().find(|set| revision(set) == wanted);
        return found.ok_or_else(|| Failure::usage(format!("unable to find specified revision {wanted} in history")));
    }
    let before = sets.len().checked_sub(2).and_then(|at| sets.get(at));
    let none = || Failure::usage(format!("no rollout history found for deployment \"{}\"", deployment.name()));
    before.ok_or_else(none)
}

/// The revision's annotations, and what is the Deployment's own.
fn annotations(deployment: &Object, set: &Object) -> Map<String, Value> {
    let of =
        |object: &Object| object.at("metadata.annotations").and_then(Value::as_object).cloned().unwrap_or_default();
    let own = |key: &String| OWN.contains(&key.as_str());
    let kept = of(deployment).into_iter().filter(|(key, _)| own(key));
    kept.chain(of(set).into_iter().filter(|(key, _)| !own(key))).collect()
}

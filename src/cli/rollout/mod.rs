//! `rollout`: how a change of a Deployment gets on, what was before, and the way back.

mod history;
mod status;
mod undo;

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Outcome, Session,
    error::Failure,
    pods::kind_of,
    target::{self, Selection, Target},
};
use crate::api::{Kind, Object, Status, Verb, request::PatchType};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show how the rollout gets on, until it is done
    Status(status::Args),
    /// Show the revisions, or one of them
    History(history::Args),
    /// Go back to a revision before
    Undo(undo::Args),
    /// Replace all Pods with new ones
    Restart(Which),
    /// Hold changes back
    Pause(Which),
    /// Let changes go on
    Resume(Which),
}

/// The objects of the small actions.
#[derive(clap::Args)]
struct Which {
    #[command(flatten)]
    selection: Selection,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    match args.action {
        Action::Status(args) => status::run(args, session).await,
        Action::History(args) => history::run(args, session).await,
        Action::Undo(args) => undo::run(args, session).await,
        Action::Restart(which) => change(which, session, "restarted", restart).await,
        Action::Pause(which) => change(which, session, "paused", |o| pause(o, true)).await,
        Action::Resume(which) => change(which, session, "resumed", |o| pause(o, false)).await,
    }
}

/// The objects of each target; only Deployments have rollouts.
async fn deployments(selection: &Selection, session: &Session, verb: &str) -> Result<Vec<(Target, Object)>, Failure> {
    let mut found = Vec::new();
    for target in selection.several(false)? {
        if target.kind.kind != "Deployment" {
            return Err(Failure::usage(format!("no {verb} has been implemented for {}", target.kind.plural)));
        }
        let objects = selection.fetch(&target, session).await?;
        found.extend(objects.into_iter().map(|object| (target.clone(), object)));
    }
    Ok(found)
}

/// Sends each Deployment the merge patch that `patch` makes of it.
async fn change(
    which: Which,
    session: &Session,
    done: &str,
    patch: impl Fn(&Object) -> Result<Value, Failure>,
) -> Outcome {
    let mut code = ExitCode::SUCCESS;
    for (target, object) in deployments(&which.selection, session, "rollout").await? {
        let outcome = match patch(&object) {
            Ok(patch) => send(session, target.kind, &object, PatchType::Merge, patch).await.map_err(Failure::from),
            Err(failure) => Err(failure),
        };
        match outcome {
            Ok(_) => outln!("{} {done}", target::display(target.kind, object.name())),
            Err(failure) => code = failure.report(),
        }
    }
    Ok(code)
}

async fn send(
    session: &Session,
    kind: &Kind,
    object: &Object,
    patch_type: PatchType,
    patch: Value,
) -> Result<Object, Status> {
    let mut request = session.request(Verb::Patch, kind, object.namespace(), Some(object.name()));
    request.body = Some(patch);
    request.options.patch_type = Some(patch_type);
    session.object(request).await
}

fn is_paused(deployment: &Object) -> bool {
    deployment.at("spec.paused").is_some_and(|p| *p == json!(true))
}

fn restart(deployment: &Object) -> Result<Value, Failure> {
    if is_paused(deployment) {
        let name = deployment.name();
        let why = format!("deployments.apps \"{name}\" can't restart paused deployment (run rollout resume first)");
        return Err(Failure::usage(why));
    }
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let annotations = json!({ "kubectl.kubernetes.io/restartedAt": now });
    Ok(json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } }))
}

fn pause(deployment: &Object, wanted: bool) -> Result<Value, Failure> {
    if is_paused(deployment) == wanted {
        let state = if wanted { "is already paused" } else { "is not paused" };
        return Err(Failure::usage(format!("deployments.apps \"{}\" {state}", deployment.name())));
    }
    Ok(json!({ "spec": { "paused": wanted } }))
}

const REVISION: &str = "deployment.kubernetes.io/revision";

/// The revision of a Deployment or ReplicaSet; 0 without one.
fn revision(object: &Object) -> i64 {
    object.annotation(REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The ReplicaSets of a Deployment, by revision.
async fn sets(session: &Session, deployment: &Object) -> Result<Vec<Object>, Failure> {
    let namespace = deployment.namespace().map(str::to_owned);
    let target = Target { kind: kind_of("replicasets"), namespace, name: None };
    let (mut sets, _) = Selection::default().list(&target, session).await?;
    sets.retain(|set| set.controller().is_some_and(|owner| owner.uid == deployment.uid()));
    sets.sort_by_key(revision);
    Ok(sets)
}

/// A ReplicaSet's template as its Deployment had it.
fn template(set: &Object) -> Value {
    let mut template = set.0["spec"]["template"].clone();
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.shift_remove("pod-template-hash");
    }
    template
}

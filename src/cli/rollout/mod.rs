//! `rollout`: status, history and rollback of a workload's changes.

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
use podwright_api::{Kind, Object, Status, Verb, request::PatchType, status::qualified};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show the status of the rollout
    Status(status::Args),
    /// View rollout history
    History(history::Args),
    /// Undo a previous rollout
    Undo(undo::Args),
    /// Restart a resource
    Restart(Which),
    /// Mark the resource as paused
    Pause(Which),
    /// Resume a paused resource
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
        Action::Restart(which) => change(which, session, ("restarting", "restarted"), ROLLED, restart).await,
        Action::Pause(which) => change(which, session, ("pausing", "paused"), PAUSED, |o| pause(o, true)).await,
        Action::Resume(which) => change(which, session, ("resuming", "resumed"), PAUSED, |o| pause(o, false)).await,
    }
}

/// The kinds with rollouts, and those with pausable ones.
const ROLLED: &[&str] = &["Deployment", "StatefulSet", "DaemonSet"];
const PAUSED: &[&str] = &["Deployment"];

/// The objects of each target, whose kinds must have rollouts.
async fn workloads(selection: &Selection, session: &Session, verb: &str) -> Result<Vec<(Target, Object)>, Failure> {
    let mut found = Vec::new();
    for target in selection.several(false, session).await? {
        if !ROLLED.contains(&target.kind.built_in()) {
            return Err(Failure::usage(format!("no {verb} has been implemented for {}", target.kind.plural)));
        }
        let objects = selection.fetch(&target, session).await?;
        found.extend(objects.into_iter().map(|object| (target.clone(), object)));
    }
    Ok(found)
}

/// Sends to each object of these `kinds` the merge patch that `patch` computes.
async fn change(
    which: Which,
    session: &Session,
    (doing, done): (&str, &str),
    kinds: &[&str],
    patch: impl Fn(&Object) -> Result<Value, Failure>,
) -> Outcome {
    let mut code = ExitCode::SUCCESS;
    let mut found = Vec::new();
    for target in which.selection.several(false, session).await? {
        let objects = which.selection.fetch(&target, session).await?;
        found.extend(objects.into_iter().map(|object| (target.clone(), object)));
    }
    for (target, object) in found {
        let patch = match kinds.contains(&target.kind.built_in()) {
            true => patch(&object),
            false => {
                let kind = qualified(target.kind.plural, target.kind.group);
                Err(Failure::usage(format!("{kind} \"{}\" {doing} is not supported", object.name())))
            }
        };
        let outcome = match patch {
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

/// The revision of a Deployment, ReplicaSet or ControllerRevision; 0 without one.
fn revision(object: &Object) -> i64 {
    let annotated = || object.annotation(REVISION).and_then(|text| text.parse().ok());
    object.at("revision").and_then(Value::as_i64).or_else(annotated).unwrap_or(0)
}

/// The history of a workload, by revision: a Deployment's ReplicaSets, others' ControllerRevisions.
async fn history(session: &Session, target: &Target, workload: &Object) -> Result<Vec<Object>, Failure> {
    let plural = if target.kind.built_in() == "Deployment" { "replicasets" } else { "controllerrevisions" };
    let namespace = workload.namespace().map(str::to_owned);
    let all = Target { kind: kind_of(plural), namespace, name: None };
    let (mut history, _) = Selection::default().list(&all, session).await?;
    history.retain(|one| one.controller().is_some_and(|owner| owner.uid == workload.uid()));
    history.sort_by_key(revision);
    Ok(history)
}

/// The template of a revision in its original form.
fn template(revision: &Object) -> Value {
    if let Some(kept) = revision.at("data.spec.template") {
        let mut template = kept.clone();
        template.as_object_mut().map(|map| map.shift_remove("$patch"));
        return template;
    }
    let mut template = revision.0["spec"]["template"].clone();
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.shift_remove("pod-template-hash");
    }
    template
}

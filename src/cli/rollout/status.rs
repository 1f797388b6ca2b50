//! `rollout status`: reports the progress of a rollout in upstream's words.

use std::{process::ExitCode, time::Duration};

use tokio::time::Instant;

use super::{revision, workloads};
use crate::{
    Outcome, Session,
    error::Failure,
    target::{Selection, Target},
    wait,
};
use podwright_api::Object;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Watch the status of the rollout until it is done
    #[arg(long, short = 'w', default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    watch: bool,
    /// The length of time to wait; 0s: wait forever
    #[arg(long, default_value = "0s", value_parser = wait::duration)]
    timeout: Duration,
    /// Pin to a specific revision for showing its status; 0: the latest
    #[arg(long, default_value_t = 0)]
    revision: i64,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let deadline = (!args.timeout.is_zero()).then(|| Instant::now() + args.timeout);
    for (target, object) in workloads(&args.selection, session, "status").await? {
        let one = Target { name: Some(object.name().to_owned()), ..target };
        follow(&args, &one, session, deadline).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The progress of a workload: upstream's line, and whether it is complete.
fn progress(kind: &str, workload: &Object, wanted: i64) -> Result<(String, bool), Failure> {
    let strategy = workload.at("spec.updateStrategy.type").and_then(|text| text.as_str());
    match kind {
        "Deployment" => deployment(workload, wanted),
        _ if strategy != Some("RollingUpdate") => {
            Err(Failure::usage("rollout status is only available for RollingUpdate strategy type"))
        }
        "StatefulSet" => Ok(stateful_set(workload)),
        _ => Ok(daemon_set(workload)),
    }
}

fn number(object: &Object, path: &str) -> i64 {
    object.at(path).and_then(|n| n.as_i64()).unwrap_or(0)
}

fn stateful_set(set: &Object) -> (String, bool) {
    let number = |path: &str| number(set, path);
    let (observed, wanted) = (number("status.observedGeneration"), number("spec.replicas"));
    let (ready, updated) = (number("status.readyReplicas"), number("status.updatedReplicas"));
    let beyond = wanted - number("spec.updateStrategy.rollingUpdate.partition");
    if observed == 0 || set.generation() > observed {
        ("Waiting for statefulset spec update to be observed...".to_owned(), false)
    } else if ready < wanted {
        (format!("Waiting for {} pods to be ready...", wanted - ready), false)
    } else if updated < beyond {
        let what = format!("{updated} out of {beyond} new pods have been updated...");
        (format!("Waiting for partitioned roll out to finish: {what}"), false)
    } else {
        (format!("partitioned roll out complete: {updated} new pods have been updated..."), true)
    }
}

fn daemon_set(set: &Object) -> (String, bool) {
    let (name, number) = (set.name(), |path: &str| number(set, path));
    let (wanted, updated) = (number("status.desiredNumberScheduled"), number("status.updatedNumberScheduled"));
    let available = number("status.numberAvailable");
    let waiting = |what: String| (format!("Waiting for daemon set \"{name}\" rollout to finish: {what}..."), false);
    if set.generation() > number("status.observedGeneration") {
        ("Waiting for daemon set spec update to be observed...".to_owned(), false)
    } else if updated < wanted {
        waiting(format!("{updated} out of {wanted} new pods have been updated"))
    } else if available < wanted {
        waiting(format!("{available} of {wanted} updated pods are available"))
    } else {
        (format!("daemon set \"{name}\" successfully rolled out"), true)
    }
}

fn deployment(deployment: &Object, wanted: i64) -> Result<(String, bool), Failure> {
    let name = deployment.name();
    if wanted > 0 && revision(deployment) != wanted {
        let found = revision(deployment);
        let why = format!("desired revision ({wanted}) is different from the running revision ({found})");
        return Err(Failure::usage(why));
    }
    let number = |path: &str| number(deployment, path);
    if deployment.generation() > number("status.observedGeneration") {
        return Ok(("Waiting for deployment spec update to be observed...".to_owned(), false));
    }
    let conditions = deployment.at("status.conditions").and_then(|c| c.as_array()).into_iter().flatten();
    let late = |c: &serde_json::Value| c["type"] == "Progressing" && c["reason"] == "ProgressDeadlineExceeded";
    if conditions.into_iter().any(late) {
        return Err(Failure::usage(format!("deployment \"{name}\" exceeded its progress deadline")));
    }
    let (all, updated) = (number("status.replicas"), number("status.updatedReplicas"));
    let (wanted, available) = (number("spec.replicas"), number("status.availableReplicas"));
    let waiting = |what: String| Ok((format!("Waiting for deployment \"{name}\" rollout to finish: {what}..."), false));
    if updated < wanted {
        return waiting(format!("{updated} out of {wanted} new replicas have been updated"));
    }
    if all > updated {
        return waiting(format!("{} old replicas are pending termination", all - updated));
    }
    if available < updated {
        return waiting(format!("{available} of {updated} updated replicas are available"));
    }
    Ok((format!("deployment \"{name}\" successfully rolled out"), true))
}

/// Prints every change until the rollout is complete.
async fn follow(args: &Args, target: &Target, session: &Session, deadline: Option<Instant>) -> Result<(), Failure> {
    let mut said = String::new();
    let look = |object: Option<&Object>| {
        let object = object.ok_or_else(|| Failure::usage("object has been deleted"))?;
        let (line, done) = progress(target.kind.built_in(), object, args.revision)?;
        if line != said {
            outln!("{line}");
            said = line;
        }
        Ok(done || !args.watch)
    };
    match wait::observe(session, target, deadline, look).await? {
        true => Ok(()),
        false => Err(Failure::usage("timed out waiting for the condition")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(replicas: [i64; 4], observed: i64) -> Object {
        let [wanted, all, updated, available] = replicas;
        Object(json!({
            "metadata": {"name": "web", "generation": 2},
            "spec": {"replicas": wanted},
            "status": {
                "observedGeneration": observed, "replicas": all,
                "updatedReplicas": updated, "availableReplicas": available,
            },
        }))
    }

    #[test]
    fn every_stage_has_upstreams_words() {
        const ROLLOUT: &str = "Waiting for deployment \"web\" rollout to finish:";
        let stages = [
            (deployment([3, 3, 3, 3], 1), "Waiting for deployment spec update to be observed...".to_owned(), false),
            (deployment([3, 3, 1, 3], 2), format!("{ROLLOUT} 1 out of 3 new replicas have been updated..."), false),
            (deployment([3, 4, 3, 3], 2), format!("{ROLLOUT} 1 old replicas are pending termination..."), false),
            (deployment([3, 3, 3, 2], 2), format!("{ROLLOUT} 2 of 3 updated replicas are available..."), false),
            (deployment([3, 3, 3, 3], 2), "deployment \"web\" successfully rolled out".to_owned(), true),
        ];
        for (object, line, done) in stages {
            assert_eq!(progress("Deployment", &object, 0).expect("no deadline passed"), (line, done));
        }
    }

    #[test]
    fn a_passed_deadline_is_an_error() {
        let mut object = deployment([3, 3, 1, 3], 2);
        object.0["status"]["conditions"] = json!([{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]);
        let Err(Failure::Client(why)) = progress("Deployment", &object, 0) else { panic!("no error") };
        assert_eq!(why, "deployment \"web\" exceeded its progress deadline");
    }

    #[test]
    fn a_stateful_set_is_told_in_pods() {
        let set = |ready: i64, updated: i64, partition: i64, observed: i64| {
            Object(json!({
                "metadata": {"name": "web", "generation": 2},
                "spec": {"replicas": 3, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}},
                "status": {"observedGeneration": observed, "readyReplicas": ready, "updatedReplicas": updated},
            }))
        };
        for (object, line, done) in [
            (set(3, 3, 0, 1), "Waiting for statefulset spec update to be observed...", false),
            (set(1, 1, 0, 2), "Waiting for 2 pods to be ready...", false),
            (
                set(3, 1, 1, 2),
                "Waiting for partitioned roll out to finish: 1 out of 2 new pods have been updated...",
                false,
            ),
            (set(3, 2, 1, 2), "partitioned roll out complete: 2 new pods have been updated...", true),
        ] {
            assert_eq!(progress("StatefulSet", &object, 0).expect("a stage"), (line.to_owned(), done));
        }
        let mut set = set(3, 3, 0, 2);
        set.0["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
        let Err(Failure::Client(why)) = progress("StatefulSet", &set, 0) else { panic!("no error") };
        assert_eq!(why, "rollout status is only available for RollingUpdate strategy type");
    }

    #[test]
    fn a_daemon_set_is_told_in_nodes() {
        let set = |updated: i64, available: i64, observed: i64| {
            Object(json!({
                "metadata": {"name": "logs", "generation": 2},
                "spec": {"updateStrategy": {"type": "RollingUpdate"}},
                "status": {
                    "observedGeneration": observed, "desiredNumberScheduled": 3,
                    "updatedNumberScheduled": updated, "numberAvailable": available,
                },
            }))
        };
        const ROLLOUT: &str = "Waiting for daemon set \"logs\" rollout to finish:";
        for (object, line, done) in [
            (set(3, 3, 1), "Waiting for daemon set spec update to be observed...".to_owned(), false),
            (set(1, 3, 2), format!("{ROLLOUT} 1 out of 3 new pods have been updated..."), false),
            (set(3, 2, 2), format!("{ROLLOUT} 2 of 3 updated pods are available..."), false),
            (set(3, 3, 2), "daemon set \"logs\" successfully rolled out".to_owned(), true),
        ] {
            assert_eq!(progress("DaemonSet", &object, 0).expect("a stage"), (line, done));
        }
    }
}

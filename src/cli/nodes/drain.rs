//! `drain`: cordons nodes and evicts their Pods.

use std::{process::ExitCode, time::Duration};

use serde_json::json;
use tokio::time::Instant;

use super::{super::Outcome, Failure, Session, Writing, close, kind_of, named};
use crate::{
    target::{Selection, Target},
    wait,
};
use podwright_api::{Object, Verb, pod_references::MIRROR};

/// The delay before an eviction refused by a disruption budget is retried.
const AGAIN: Duration = Duration::from_secs(5);

#[derive(clap::Args)]
pub struct Args {
    /// The names of the nodes
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// Selector (label query) to filter on
    #[arg(long, short = 'l', value_name = "LABELS")]
    selector: Option<String>,
    /// Continue even if there are Pods that do not declare a controller
    #[arg(long)]
    force: bool,
    /// Ignore DaemonSet-managed Pods
    #[arg(long)]
    ignore_daemonsets: bool,
    /// Continue even if there are Pods using emptyDir (local data that is deleted when the node is drained)
    #[arg(long)]
    delete_emptydir_data: bool,
    /// Label selector to filter Pods on the node
    #[arg(long, value_name = "LABELS")]
    pod_selector: Option<String>,
    /// Period of time in seconds given to each Pod to terminate gracefully; negative: the Pod's own
    #[arg(long, default_value_t = -1, allow_negative_numbers = true)]
    grace_period: i64,
    /// The length of time to wait; 0s: wait forever
    #[arg(long, default_value = "0s", value_parser = wait::duration)]
    timeout: Duration,
    #[command(flatten)]
    writing: Writing,
}

impl Args {
    /// Of a node that leaves: what its Pods have on it goes with it, and a DaemonSet's Pods are nowhere else.
    pub(super) fn of_leaving(force: bool, grace_period: i64) -> Args {
        Args {
            nodes: Vec::new(),
            selector: None,
            force,
            ignore_daemonsets: true,
            delete_emptydir_data: true,
            pod_selector: None,
            grace_period,
            timeout: Duration::ZERO,
            writing: Writing::default(),
        }
    }
}

/// What is to become of a node's Pods.
#[derive(Debug, Default, PartialEq)]
struct DrainPlan {
    evict: Vec<String>,
    warnings: Vec<String>,
    refusals: Vec<String>,
}

/// Why a Pod is not simply evicted, and the flag that decides.
struct Doubt {
    holds: fn(&Object) -> bool,
    /// Kept even then.
    stays: bool,
    flag: fn(&Args) -> bool,
    refusal: &'static str,
    warning: &'static str,
}

const DOUBTS: [Doubt; 3] = [
    Doubt {
        holds: |pod| owner(pod) == Some("DaemonSet"),
        stays: true,
        flag: |args| args.ignore_daemonsets,
        refusal: "cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore)",
        warning: "ignoring DaemonSet-managed Pods",
    },
    Doubt {
        holds: |pod| {
            pod.0["spec"]["volumes"].as_array().is_some_and(|all| all.iter().any(|v| v["emptyDir"].is_object()))
        },
        stays: false,
        flag: |args| args.delete_emptydir_data,
        refusal: "cannot delete Pods with local storage (use --delete-emptydir-data to override)",
        warning: "deleting Pods with local storage",
    },
    Doubt {
        holds: |pod| owner(pod).is_none(),
        stays: false,
        flag: |args| args.force,
        refusal: "cannot delete Pods that declare no controller (use --force to override)",
        warning: "deleting Pods that declare no controller",
    },
];

/// The kind of a Pod's controller.
fn owner(pod: &Object) -> Option<&str> {
    let owners = pod.0["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|o| o["controller"] == true)?["kind"].as_str()
}

fn ended(pod: &Object) -> bool {
    matches!(pod.0["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// Sorts a node's Pods; those that have ended are never in doubt, mirrors of static Pods stay.
fn plan(pods: &[Object], args: &Args) -> DrainPlan {
    let full = |pod: &Object| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name());
    let is_mirror = |pod: &Object| pod.annotation(MIRROR).is_some();
    let mut plan = DrainPlan::default();
    let mut found: [Vec<String>; DOUBTS.len()] = Default::default();
    for pod in pods.iter().filter(|pod| !is_mirror(pod)) {
        let doubts = DOUBTS.iter().enumerate().filter(|(_, doubt)| (doubt.holds)(pod) && (doubt.stays || !ended(pod)));
        let mut stays = false;
        for (at, doubt) in doubts {
            found[at].push(full(pod));
            stays |= doubt.stays || !(doubt.flag)(args);
            if doubt.stays {
                break;
            }
        }
        if !stays {
            plan.evict.push(full(pod));
        }
    }
    for (doubt, pods) in DOUBTS.iter().zip(found).filter(|(_, pods)| !pods.is_empty()) {
        let pods = pods.join(", ");
        match (doubt.flag)(args) {
            true => plan.warnings.push(format!("{}: {pods}", doubt.warning)),
            false => plan.refusals.push(format!("{}: {pods}", doubt.refusal)),
        }
    }
    plan
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    if args.nodes.is_empty() == args.selector.is_none() {
        return Err(Failure::usage("USAGE: drain NODE [flags]: name nodes, or select them by -l"));
    }
    let deadline = Some(args.timeout).filter(|t| !t.is_zero()).and_then(|t| Instant::now().checked_add(t));
    let nodes = named(session, &args.nodes, args.selector.as_ref()).await?;
    for node in &nodes {
        close(session, &args.writing, node, true).await?;
    }
    let mut code = ExitCode::SUCCESS;
    for node in &nodes {
        match empty(&args, session, node, deadline).await {
            Ok(()) => args.writing.tell(kind_of("nodes"), node, "drained")?,
            Err(failure) => {
                let why = match failure {
                    Failure::Server { status, .. } => status.message,
                    Failure::Client(why) => why,
                    said => return Err(said),
                };
                code = Failure::usage(format!("unable to drain node \"{}\" due to error: {why}", node.name())).report();
            }
        }
    }
    Ok(code)
}

/// All Pods of a node.
async fn pods_of(args: &Args, session: &Session, node: &Object) -> Result<Vec<Object>, Failure> {
    let selection = Selection {
        selector: args.pod_selector.clone(),
        field_selector: Some(format!("spec.nodeName={}", node.name())),
        all_namespaces: true,
        ..Selection::default()
    };
    let target = Target { kind: kind_of("pods"), namespace: None, name: None };
    Ok(selection.list(&target, session).await?.0)
}

/// The Pods of a node that have not ended and would be evicted.
pub(super) async fn would_evict(args: &Args, session: &Session, node: &Object) -> Result<Vec<String>, Failure> {
    let mut pods = pods_of(args, session, node).await?;
    pods.retain(|pod| !ended(pod));
    // Also those that are in doubt.
    Ok(plan(&pods, &Args::of_leaving(true, args.grace_period)).evict)
}

/// Evicts all Pods of a node at once and waits until they are gone.
pub(super) async fn empty(
    args: &Args,
    session: &Session,
    node: &Object,
    deadline: Option<Instant>,
) -> Result<(), Failure> {
    let pods = pods_of(args, session, node).await?;
    let plan = plan(&pods, args);
    if !plan.refusals.is_empty() {
        return Err(Failure::usage(plan.refusals.join(", ")));
    }
    plan.warnings.iter().for_each(|warning| errln!("Warning: {warning}"));
    let chosen =
        |pod: &&Object| plan.evict.contains(&format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name()));
    let evictions = pods.iter().filter(chosen).map(|pod| evict(args, session, pod, deadline));
    for done in futures::future::join_all(evictions).await {
        done?;
    }
    Ok(())
}

async fn evict(args: &Args, session: &Session, pod: &Object, deadline: Option<Instant>) -> Result<(), Failure> {
    let (kind, namespace) = (kind_of("pods"), pod.namespace().unwrap_or_default());
    if args.writing.is_dry() {
        return args.writing.tell(kind, pod, "evicted");
    }
    outln!("evicting pod {namespace}/{}", pod.name());
    let mut options = json!({ "preconditions": { "uid": pod.uid() } });
    if args.grace_period >= 0 {
        options["gracePeriodSeconds"] = args.grace_period.into();
    }
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": options,
        "metadata": { "name": pod.name(), "namespace": namespace },
    });
    loop {
        let mut request = session.request(Verb::Create, kind, pod.namespace(), Some(pod.name()));
        (request.subresource, request.body) = (Some("eviction".to_owned()), Some(eviction.clone()));
        match session.call(request).await {
            Ok(_) => break,
            Err(status) if status.is_not_found() => return args.writing.tell(kind, pod, "evicted"),
            Err(status) if status.code == 429 && deadline.is_none_or(|at| Instant::now() + AGAIN < at) => {
                let name = pod.name();
                errln!("error when evicting pods/{name:?} -n {namespace:?} (will retry after 5s): {}", status.message);
                tokio::time::sleep(AGAIN).await;
            }
            Err(status) => return Err(Failure::doing(status, format!("error when evicting pods/\"{}\"", pod.name()))),
        }
    }
    let target = Target { kind, namespace: pod.namespace().map(str::to_owned), name: Some(pod.name().to_owned()) };
    let is_gone = |now: Option<&Object>| Ok(now.is_none_or(|now| now.uid() != pod.uid()));
    if !wait::observe(session, &target, deadline, is_gone).await? {
        let name = pod.name();
        let why = format!("error when waiting for pod {name:?} in namespace {namespace:?} to terminate: timed out");
        return Err(Failure::usage(why));
    }
    args.writing.tell(kind, pod, "evicted")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn planned(flags: &str) -> DrainPlan {
        let owned = |kind: &str| json!([{ "kind": kind, "controller": true }]);
        let pod = |name: &str, owners: Value, more: Value| {
            let mut pod =
                json!({ "metadata": { "namespace": "d", "name": name, "ownerReferences": owners }, "spec": {} });
            pod = podwright_api::patch::merge(&pod, &more);
            Object(pod)
        };
        let disk = json!({ "spec": { "volumes": [{ "name": "v", "emptyDir": {} }] } });
        let pods = [
            pod("plain", owned("ReplicaSet"), json!({})),
            pod("daemon", owned("DaemonSet"), disk.clone()),
            pod("disk", owned("ReplicaSet"), disk),
            pod("bare", json!([]), json!({})),
            pod("done", json!([]), json!({ "status": { "phase": "Succeeded" } })),
            pod("static", json!([]), json!({ "metadata": { "annotations": { (MIRROR): "x" } } })),
        ];
        let words = ["n"].into_iter().chain(flags.split_whitespace());
        plan(&pods, &crate::flags(words))
    }

    #[test]
    fn what_is_in_doubt_needs_its_flag() {
        let strict = planned("");
        assert_eq!(strict.evict, ["d/plain", "d/done"]);
        let words: Vec<&str> = strict.refusals.iter().map(String::as_str).collect();
        assert_eq!(
            words,
            [
                "cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore): d/daemon",
                "cannot delete Pods with local storage (use --delete-emptydir-data to override): d/disk",
                "cannot delete Pods that declare no controller (use --force to override): d/bare",
            ]
        );
        let all = planned("--force --ignore-daemonsets --delete-emptydir-data");
        assert_eq!(all.evict, ["d/plain", "d/disk", "d/bare", "d/done"]);
        assert_eq!((all.refusals.len(), all.warnings.len()), (0, 3));
        assert_eq!(all.warnings[0], "ignoring DaemonSet-managed Pods: d/daemon");
    }
}

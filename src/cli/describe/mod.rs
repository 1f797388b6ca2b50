//! `describe`: details of objects, with their events, in kubectl's layout.
//!
//! Related objects are fetched first ([`related`]); the descriptions are pure functions of them, one per kind.

mod autoscaler;
mod batch;
mod containers;
mod events;
mod generic;
mod node;
mod pod;
mod related;
mod service;
mod small;
mod storage;
mod text;
mod volumes;
mod workload;

use std::process::ExitCode;

use jiff::Timestamp;

use self::related::Related;
use super::{
    Outcome, Session,
    error::Failure,
    page::Page,
    target::{Selection, Target},
};
use podwright_api::{Kind, Object, Status};

pub use self::{
    events::{seen, when},
    workload::pod_template,
};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Display events related to the described object
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    show_events: bool,
}

/// The description of a kind.
type Describer = fn(&mut Page, &Object, &Related, Timestamp);

/// Kinds with specific descriptions; others show all fields.
const DESCRIBERS: &[(&str, Describer)] = &[
    ("Pod", pod::describe),
    ("Node", node::describe),
    ("Service", service::describe),
    ("Deployment", workload::deployment),
    ("ReplicaSet", workload::replica_set),
    ("StatefulSet", workload::stateful_set),
    ("DaemonSet", workload::daemon_set),
    ("Job", batch::job),
    ("CronJob", batch::cron_job),
    ("EndpointSlice", service::endpoint_slice),
    ("PodDisruptionBudget", small::disruption_budget),
    ("PersistentVolume", storage::volume),
    ("PersistentVolumeClaim", storage::claim),
    ("ConfigMap", small::config_map),
    ("Secret", small::secret),
    ("ServiceAccount", small::service_account),
    ("Namespace", small::namespace),
    ("HorizontalPodAutoscaler", autoscaler::describe),
];

pub async fn run(args: Args, session: &Session) -> Outcome {
    let (mut code, mut first, mut found) = (ExitCode::SUCCESS, true, 0);
    let targets = args.selection.targets(session).await?;
    for target in &targets {
        let objects = match fetch(&args.selection, target, session).await {
            Ok(objects) => objects,
            Err(status) => {
                code = Failure::from(status).report();
                found += 1;
                continue;
            }
        };
        found += objects.len();
        for object in objects {
            let related = related::fetch(session, target.kind, &object, args.show_events).await?;
            let separator = if std::mem::take(&mut first) { "" } else { "\n\n" };
            out!("{separator}{}", page(own_page(target.kind), &object, &related, Timestamp::now()));
        }
    }
    if found == 0 {
        let everywhere = args.selection.all_namespaces || !targets.iter().any(|t| t.kind.namespaced);
        let place = if everywhere { String::new() } else { format!(" in {} namespace.", session.namespace) };
        errln!("No resources found{place}");
    }
    Ok(code)
}

/// The objects of a target; a name without an object may be a prefix of several.
async fn fetch(selection: &Selection, target: &Target, session: &Session) -> Result<Vec<Object>, Status> {
    let missing = match (selection.fetch(target, session).await, &target.name) {
        (Err(status), Some(name)) if status.is_not_found() => (status, name),
        (outcome, _) => return outcome,
    };
    let (mut objects, _) = selection.list(target, session).await?;
    objects.retain(|object| object.name().starts_with(missing.1.as_str()));
    if objects.is_empty() { Err(missing.0) } else { Ok(objects) }
}

/// The kind that selects the description; empty for a custom resource with the name of a built-in kind.
fn own_page(kind: &Kind) -> &str {
    kind.built_in()
}

fn page(kind: &str, object: &Object, related: &Related, now: Timestamp) -> Page {
    let mut page = Page::default();
    let own = DESCRIBERS.iter().find(|(of, _)| *of == kind);
    own.map_or(generic::describe as Describer, |(_, describe)| *describe)(&mut page, object, related, now);
    if let Some(events) = &related.events {
        events::section(&mut page, events, now);
    }
    page
}

#[cfg(test)]
mod tests;

//! Jobs that a CronJob's status lists but no informer shows: the server is asked before one counts as lost.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    batch::v1::{CronJob, Job},
    core::v1::ObjectReference,
};

use crate::{LiveReads, Plan, meta};
use podwright_api::{Request, Verb, request::Body};
use podwright_client::{Key, Typed};

/// When to ask the server again after a failure.
const AGAIN: Duration = Duration::from_secs(1);

/// The Jobs beyond `seen` that the server has; an error with the necessary reads while this is unknown.
pub(super) fn jobs(cron: &CronJob, seen: &[Arc<Job>], answers: &LiveReads) -> Result<Vec<Arc<Job>>, Plan> {
    let active = cron.status.iter().flat_map(|status| status.active.iter().flatten());
    let unseen = active.filter(|known| !seen.iter().any(|job| job.metadata.uid == known.uid));
    let (mut found, mut live_reads) = (Vec::new(), Vec::new());
    for known in unseen {
        match answers.to(request(cron, known)) {
            Err(question) => live_reads.push(question),
            Ok(Ok(body)) => found.extend(job(body).filter(|job| is_it(cron, known, job)).map(Arc::new)),
            Ok(Err(status)) if status.is_not_found() => {}
            Ok(Err(_)) => return Err(Plan { requeue_after: Some(AGAIN), ..Plan::default() }),
        }
    }
    if live_reads.is_empty() { Ok(found) } else { Err(Plan { live_reads, ..Plan::default() }) }
}

fn request(cron: &CronJob, known: &ObjectReference) -> Request {
    Request {
        verb: Verb::Get,
        resource: Job::resource(),
        namespace: Key::of(cron).namespace().map(str::to_owned),
        name: known.name.clone(),
        ..Request::default()
    }
}

fn job(body: &Body) -> Option<Job> {
    match body {
        Body::Object { bytes, .. } => serde_json::from_slice(bytes).ok(),
        _ => None,
    }
}

/// A Job of the same name may be another one, or may no longer belong to the CronJob.
fn is_it(cron: &CronJob, known: &ObjectReference, job: &Job) -> bool {
    job.metadata.uid == known.uid && meta::is_controlled_by(&job.metadata, &cron.metadata.uid)
}

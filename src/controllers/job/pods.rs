//! A Job's Pods: their indexes, which of them are superfluous, and the writes that create and delete them.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde_json::{Value, json};

use super::{
    super::{
        meta, replica_set,
        write::{Note, Write},
    },
    indexes::Indexes,
    policy::{self, Verdict},
};
use podwright_api::request::PatchType;
use podwright_client::{Key, reference};

/// Holds a Pod until its result has been counted.
pub const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// An annotation and label.
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";
/// The longest prefix of a generated name.
const LONGEST_PREFIX: usize = 58;

pub fn is_indexed(job: &Job) -> bool {
    job.spec.as_ref().is_some_and(|spec| spec.completion_mode.as_deref() == Some("Indexed"))
}

pub fn has_limit_per_index(job: &Job) -> bool {
    job.spec.as_ref().is_some_and(|spec| spec.backoff_limit_per_index.is_some())
}

pub fn completions(job: &Job) -> Option<i32> {
    job.spec.as_ref()?.completions
}

/// Whether a Pod is replaced only after it has finished, not already when its deletion starts.
pub fn replaces_failed_only(job: &Job) -> bool {
    let only = |spec: &k8s_openapi::api::batch::v1::JobSpec| {
        spec.pod_failure_policy.is_some() || spec.pod_replacement_policy.as_deref() == Some("Failed")
    };
    job.spec.as_ref().is_some_and(only)
}

pub fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Terminating, and not finished yet.
pub fn is_ending(pod: &Pod) -> bool {
    meta::is_terminating(&pod.metadata) && !meta::is_finished(pod)
}

/// Whether the Pod counts as failed. A terminating one may never report that itself.
pub fn is_failed(job: &Job, pod: &Pod) -> bool {
    meta::phase(pod) == "Failed" || !replaces_failed_only(job) && is_ending(pod)
}

/// What the failure of `pod` means for its Job.
pub fn verdict(job: &Job, pod: &Pod) -> Verdict {
    policy::judge(job.spec.as_ref().and_then(|spec| spec.pod_failure_policy.as_ref()), pod)
}

/// The Pod's completion index, if any.
pub fn index(pod: &Pod) -> Option<i32> {
    meta::annotation(&pod.metadata, INDEX)?.parse().ok().filter(|index| *index >= 0)
}

/// The same, if it is within the Job's completions.
pub fn valid_index(job: &Job, pod: &Pod) -> Option<i32> {
    index(pod).filter(|index| *index < completions(job).unwrap_or(0))
}

/// Whether the Pod belongs to an index of an indexed Job; for other Jobs every Pod does.
pub fn takes_part(job: &Job, pod: &Pod) -> bool {
    !is_indexed(job) || valid_index(job, pod).is_some()
}

fn number(pod: &Pod, annotation: &str) -> i32 {
    meta::annotation(&pod.metadata, annotation).and_then(|text| text.parse().ok()).filter(|n| *n >= 0).unwrap_or(0)
}

/// How often its index had failed before this Pod, without ignored failures.
pub fn failures_before(pod: &Pod) -> i32 {
    number(pod, FAILURES)
}

/// The same with ignored ones.
pub fn all_failures_before(pod: &Pod) -> i32 {
    number(pod, FAILURES).saturating_add(number(pod, IGNORED_FAILURES))
}

/// Whether the failure of this Pod exhausts its index's limit.
pub fn fails_index(job: &Job, pod: &Pod) -> bool {
    let limit = job.spec.as_ref().and_then(|spec| spec.backoff_limit_per_index).unwrap_or(i32::MAX);
    is_failed(job, pod)
        && match verdict(job, pod) {
            Verdict::FailIndex => true,
            Verdict::Ignore => false,
            Verdict::Count | Verdict::FailJob(_) => failures_before(pod) >= limit,
        }
}

pub fn indexes<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> Indexes {
    pods.filter_map(|pod| index(pod)).collect()
}

/// The active Pods to delete: of an indexed Job those with invalid or duplicate indexes; and enough others to make up `surplus`.
pub fn superfluous<'a>(job: &Job, active: &[&'a Arc<Pod>], surplus: usize, now: Timestamp) -> Vec<&'a Arc<Pod>> {
    let crowd = HashMap::new();
    let mut ranked: Vec<&'a Arc<Pod>> = active.to_vec();
    ranked.sort_by(|a, b| replica_set::less_missed(a, b, &crowd, now));
    let (mut gone, mut left) = (Vec::new(), ranked.clone());
    if is_indexed(job) {
        // Of several with one index, the one that would be deleted last stays.
        let mut keepers: HashMap<i32, &Arc<Pod>> = HashMap::new();
        keepers.extend(ranked.iter().filter_map(|pod| Some((valid_index(job, pod)?, *pod))));
        let keeps = |pod: &&Arc<Pod>| {
            valid_index(job, pod)
                .is_some_and(|index| keepers.get(&index).is_some_and(|keeper| Arc::ptr_eq(keeper, pod)))
        };
        (left, gone) = ranked.into_iter().partition(keeps);
    }
    let more = surplus.saturating_sub(gone.len());
    gone.extend(left.into_iter().take(more));
    gone
}

/// Creates a Pod; in an indexed Job for an index, perhaps replacing a failed Pod.
pub fn create(job: &Job, index: Option<i32>, replaced: Option<&Pod>) -> Write {
    let mut template = job.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let job_name = meta::name(&job.metadata);
    let mut prefix = replica_set::prefix(job_name);
    if let Some(index) = index {
        give_index(job, &mut template, index, replaced);
        let tail = format!("-{index}-");
        let room = LONGEST_PREFIX - tail.len();
        prefix = format!("{}{tail}", job_name.get(..room).unwrap_or(job_name));
    }
    let from = template.metadata.unwrap_or_default();
    let mut finalizers = from.finalizers.unwrap_or_default();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    let pod = Pod {
        metadata: ObjectMeta {
            generate_name: Some(prefix),
            namespace: job.metadata.namespace.clone(),
            labels: from.labels,
            annotations: from.annotations,
            finalizers: Some(finalizers),
            owner_references: Some(vec![meta::owner_reference(job)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    };
    let about = reference(job);
    Write::create(&pod).done(Note::normal(about.clone(), "SuccessfulCreate", "Created pod: {}")).failed(Note::warning(
        about,
        "FailedCreate",
        "Error creating: {}",
    ))
}

fn give_index(job: &Job, template: &mut PodTemplateSpec, index: i32, replaced: Option<&Pod>) {
    let meta = template.metadata.get_or_insert_default();
    meta.labels.get_or_insert_default().insert(INDEX.to_owned(), index.to_string());
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(INDEX.to_owned(), index.to_string());
    if has_limit_per_index(job) {
        let ignored = replaced.is_some_and(|pod| verdict(job, pod) == Verdict::Ignore);
        let counted = i32::from(replaced.is_some() && !ignored);
        let before = |annotation| replaced.map_or(0, |pod| number(pod, annotation));
        annotations.insert(FAILURES.to_owned(), before(FAILURES).saturating_add(counted).to_string());
        let ignored = before(IGNORED_FAILURES).saturating_add(i32::from(ignored));
        if ignored > 0 {
            annotations.insert(IGNORED_FAILURES.to_owned(), ignored.to_string());
        }
    }
    let Some(spec) = &mut template.spec else { return };
    spec.hostname = Some(format!("{}-{index}", job.metadata.name.as_deref().unwrap_or_default()));
    spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()).for_each(tell_index);
}

/// Adds the variable with the index to a container.
fn tell_index(container: &mut Container) {
    let variables = container.env.get_or_insert_default();
    if variables.iter().any(|variable| variable.name == INDEX_VARIABLE) {
        return;
    }
    let field = ObjectFieldSelector { field_path: format!("metadata.labels['{INDEX}']"), ..Default::default() };
    variables.push(EnvVar {
        name: INDEX_VARIABLE.to_owned(),
        value_from: Some(EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() }),
        ..EnvVar::default()
    });
}

/// Deletes a Pod, with an event.
pub fn delete(job: &Job, pod: &Arc<Pod>) -> Write {
    let name = meta::name(&pod.metadata);
    Write::delete(&**pod)
        .done(Note::normal(reference(job), "SuccessfulDelete", format!("Deleted pod: {name}")))
        .failed(Note::warning(reference(job), "FailedDelete", "Error deleting: {}"))
}

/// Removes the finalizer from a Pod whose result is recorded, whatever its current state.
pub fn release(pod: &Pod) -> Write {
    let finalizers = json!({ "uid": pod.metadata.uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER] });
    let mut write = Write::merge::<Pod>(&Key::of(pod), json!({ "metadata": finalizers }));
    write.request.options.patch_type = Some(PatchType::Strategic);
    write
}

/// Removes it if the Pod has not changed: one that has, and may have finished, is examined again first.
pub fn dismiss(pod: &Pod) -> Write {
    let mut write = release(pod);
    if let Some(patch) = &mut write.request.body {
        patch["metadata"]["resourceVersion"] = pod.metadata.resource_version.clone().into();
    }
    write
}

/// The Pod's other finalizers; null if there are none.
pub fn others(pod: &Pod) -> Value {
    let all: Vec<&String> = pod.metadata.finalizers.iter().flatten().filter(|f| *f != FINALIZER).collect();
    if all.is_empty() { Value::Null } else { json!(all) }
}

//! Revisions: which ReplicaSet has the current template, the name of a new one, and which old ones to delete.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{Rollout, Set, meta, rolling};
use crate::{replica_set, write::Write};

pub const REVISION: &str = "deployment.kubernetes.io/revision";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// Upstream's limit, in characters: some 400 numbers. All annotations of an object together are limited to 256 KiB.
const LONGEST_HISTORY: usize = 2000;
pub const HASH: &str = "pod-template-hash";
/// Annotations that are not copied from the Deployment.
const OWN: &[&str] = &[
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    HISTORY,
    rolling::DESIRED,
    rolling::MOST,
    "deprecated.deployment.rollback.to",
];

/// Sorts the ReplicaSets by age and finds the one with the current template, the oldest if there are several.
pub fn sort<'a>(deployment: &'a Deployment, sets: &[Arc<ReplicaSet>]) -> Rollout<'a> {
    let mut old: Vec<Set> = sets.iter().map(Set::of).collect();
    old.sort_by_key(|set| (meta::created(&set.old.metadata), set.old.metadata.name.clone()));
    let wanted = deployment.spec.as_ref().map(|spec| without_hash(&spec.template));
    let is_new = |set: &Set| {
        let template = set.old.spec.as_ref().and_then(|spec| spec.template.as_ref());
        template.map(without_hash) == wanted
    };
    let new = old.iter().position(is_new).map(|at| old.remove(at));
    Rollout { deployment, new, old }
}

/// A template without what controllers add, for comparison.
pub fn without_hash(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    if let Some(labels) = template.metadata.as_mut().and_then(|meta| meta.labels.as_mut()) {
        labels.remove(HASH);
    }
    // An absent map equals an empty one.
    let metadata = template.metadata.get_or_insert_default();
    metadata.labels = metadata.labels.take().filter(|labels| !labels.is_empty());
    metadata.annotations = metadata.annotations.take().filter(|annotations| !annotations.is_empty());
    metadata.creation_timestamp = None;
    template
}

/// The revision of a ReplicaSet; 0 if it has none.
pub fn number(set: &ReplicaSet) -> i64 {
    meta::annotation(&set.metadata, REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The minimum revision of the current template: one more than any other.
pub fn next(rollout: &Rollout<'_>) -> i64 {
    rollout.old.iter().map(|set| number(&set.old)).max().unwrap_or(0) + 1
}

/// Copies annotations and settings that do not create a revision to the current ReplicaSet.
pub fn annotate(deployment: &Deployment, set: &mut ReplicaSet, next: i64) {
    let has = number(set);
    let annotations = set.metadata.annotations.get_or_insert_default();
    inherit(deployment, annotations);
    if has < next
        && let Some(before) = annotations.insert(REVISION.into(), next.to_string())
    {
        let history = annotations.entry(HISTORY.into()).or_default();
        *history = lengthened(history, &before);
    }
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.min_ready_seconds);
    let spec = set.spec.get_or_insert_default();
    if spec.min_ready_seconds.unwrap_or(0) != wanted.unwrap_or(0) {
        spec.min_ready_seconds = wanted;
    }
}

/// Adds a number to a history, dropping the oldest ones if it gets too long.
fn lengthened(history: &str, number: &str) -> String {
    let mut long = if history.is_empty() { number.to_owned() } else { format!("{history},{number}") };
    while long.len() > LONGEST_HISTORY {
        let Some((_, rest)) = long.split_once(',') else { break };
        long = rest.to_owned();
    }
    long
}

fn inherit(deployment: &Deployment, annotations: &mut BTreeMap<String, String>) {
    let all = deployment.metadata.annotations.iter().flatten();
    annotations.extend(all.filter(|(key, _)| !OWN.contains(&key.as_str())).map(|(k, v)| (k.clone(), v.clone())));
}

/// The new ReplicaSet for the current template.
pub fn create(deployment: &Deployment, rollout: &Rollout<'_>, next: i64) -> ReplicaSet {
    let spec = deployment.spec.clone().unwrap_or_default();
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
    let hash = hash(&spec.template, collisions);
    let mut template = spec.template;
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(HASH.into(), hash.clone());
    let labels = labels.clone();
    let mut selector = spec.selector;
    selector.match_labels.get_or_insert_default().insert(HASH.into(), hash.clone());
    let mut set = ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", meta::name(&deployment.metadata))),
            namespace: deployment.metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![meta::owner_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(rolling::first_size(rollout)),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    };
    annotate(deployment, &mut set, next);
    rolling::annotate(&mut set, deployment);
    set
}

/// The hash of a template: FNV-1a of its JSON and, after a collision, the number of collisions, in upstream's alphabet.
pub fn hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    // The invariant: API types have string keys and no failing serializers.
    let text = serde_json::to_value(without_hash(template)).expect("API types are representable in JSON").to_string();
    let mut bytes = text.into_bytes();
    if let Some(collisions) = collisions {
        bytes.extend(i64::from(collisions).to_le_bytes());
    }
    let fnv = bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    fnv.to_string().bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect()
}

/// Deletes the oldest revisions without Pods beyond the history limit.
pub fn expired(rollout: &Rollout<'_>) -> Vec<Write> {
    let limit = rollout.deployment.spec.as_ref().and_then(|spec| spec.revision_history_limit).unwrap_or(10);
    let mut old: Vec<&Set> = rollout.old.iter().filter(|set| !meta::is_terminating(&set.old.metadata)).collect();
    let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    old.sort_by_key(|set| (number(&set.old), meta::created(&set.old.metadata)));
    let idle = |set: &&Set| {
        let status = set.old.status.clone().unwrap_or_default();
        let observed = set.old.metadata.generation <= status.observed_generation;
        status.replicas == 0 && set.size() == 0 && replica_set::replicas(&set.old) == 0 && observed
    };
    old.into_iter().take(surplus).filter(idle).map(|set| Write::delete(&*set.old)).collect()
}

//! What makes a StatefulSet's Pod this one and no other: name, labels, host name, volumes.

use std::collections::HashSet;

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaimVolumeSource, Pod, Volume},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{Revision, claims, meta};
use crate::{history, replica_set};

pub const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
pub const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

pub fn name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", meta::name(&set.metadata))
}

/// The ordinal in a Pod's name, if it is a name that the StatefulSet gives.
pub fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let digits = meta::name(&pod.metadata).strip_prefix(meta::name(&set.metadata))?.strip_prefix('-')?;
    let ordinal: i32 = digits.parse().ok()?;
    (ordinal >= 0 && ordinal.to_string() == digits).then_some(ordinal)
}

/// The name of the revision that a Pod is of.
pub fn revision(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(history::REVISION).map(String::as_str)
}

/// Whether a Pod has the labels of its ordinal.
pub fn is_named(set: &StatefulSet, ordinal: i32, pod: &Pod) -> bool {
    let has = |label: &str, value: String| pod.metadata.labels.as_ref().and_then(|all| all.get(label)) == Some(&value);
    has(POD_NAME, name(set, ordinal)) && has(POD_INDEX, ordinal.to_string())
}

/// A Pod with the labels of its ordinal.
pub fn named(set: &StatefulSet, ordinal: i32, pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.into(), name(set, ordinal));
    labels.insert(POD_INDEX.into(), ordinal.to_string());
    pod
}

/// The Pod of an ordinal, as it shall be made.
pub fn create(set: &StatefulSet, ordinal: i32, revision: &Revision) -> Pod {
    let from = revision.template.metadata.clone().unwrap_or_default();
    let mut labels = from.labels.unwrap_or_default();
    labels.insert(history::REVISION.into(), revision.name.clone());
    let mut spec = revision.template.spec.clone().unwrap_or_default();
    spec.hostname = Some(name(set, ordinal));
    spec.subdomain = set.spec.as_ref().and_then(|spec| spec.service_name.clone()).filter(|name| !name.is_empty());
    // A claim takes the place of a volume of its name.
    let claimed: Vec<Volume> = claims::templates(set)
        .map(|template| Volume {
            name: meta::name(&template.metadata).to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claims::name(set, template, ordinal),
                read_only: None,
            }),
            ..Volume::default()
        })
        .collect();
    let others = spec.volumes.take().unwrap_or_default();
    let names: HashSet<String> = claimed.iter().map(|volume| volume.name.clone()).collect();
    let others = others.into_iter().filter(|other| !names.contains(&other.name));
    let volumes: Vec<Volume> = claimed.into_iter().chain(others).collect();
    spec.volumes = (!volumes.is_empty()).then_some(volumes);
    let pod = Pod {
        metadata: ObjectMeta {
            name: Some(name(set, ordinal)),
            // It names nothing here, but upstream's Pods bear it, and some tell siblings by it.
            generate_name: Some(replica_set::prefix(meta::name(&set.metadata))),
            namespace: set.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: from.annotations,
            finalizers: from.finalizers,
            owner_references: Some(vec![meta::owner_reference(set)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    };
    named(set, ordinal, &pod)
}

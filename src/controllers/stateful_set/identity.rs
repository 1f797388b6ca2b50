//! The identity of a StatefulSet's Pods: the name, and the labels derived from it.

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};

use super::meta;
use crate::history;

pub const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
pub const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

pub fn name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", meta::name(&set.metadata))
}

/// The ordinal in a Pod's name, if the StatefulSet uses such a name.
pub fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let digits = meta::name(&pod.metadata).strip_prefix(meta::name(&set.metadata))?.strip_prefix('-')?;
    let ordinal: i32 = digits.parse().ok()?;
    (ordinal >= 0 && ordinal.to_string() == digits).then_some(ordinal)
}

/// The name of a Pod's revision.
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

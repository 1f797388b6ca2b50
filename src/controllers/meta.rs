//! Common helpers on objects, as upstream defines them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Pod, PodCondition},
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta, OwnerReference, Time},
        util::intstr::IntOrString,
    },
};
use serde_json::json;

use super::write::{Guard, Write};
use podwright_api::{pod_references::MIRROR, selector};
use podwright_client::{Delta, Key, Typed};

/// The owner with `controller: true`.
pub fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Whether the object with `uid` is its controller.
pub fn is_controlled_by(meta: &ObjectMeta, uid: &Option<String>) -> bool {
    controller(meta).is_some_and(|owner| Some(&owner.uid) == uid.as_ref())
}

/// The controller reference to `owner`.
pub fn owner_reference<K: Typed>(owner: &K) -> OwnerReference {
    let meta = owner.metadata();
    OwnerReference {
        api_version: K::API_VERSION.to_owned(),
        kind: K::KIND.to_owned(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

pub fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

pub fn namespace(meta: &ObjectMeta) -> &str {
    meta.namespace.as_deref().unwrap_or_default()
}

pub fn is_terminating(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_some()
}

/// Its creation time; without one, the beginning of time.
pub fn created(meta: &ObjectMeta) -> Timestamp {
    meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

pub fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// An API timestamp: whole seconds, as upstream's `metav1.Time`.
pub fn time(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// How long from `now` to `at`; `None` if that is past.
pub fn until(now: Timestamp, at: Timestamp) -> Option<Duration> {
    let wait = at.duration_since(now);
    (wait > SignedDuration::ZERO).then(|| wait.unsigned_abs())
}

pub fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// A number, or a percentage of `of`; `None` if the text is neither.
pub fn resolve(value: &IntOrString, of: i32, up: bool) -> Option<i32> {
    match value {
        IntOrString::Int(number) => Some((*number).max(0)),
        IntOrString::String(text) => text.strip_suffix('%')?.parse().ok().map(|percent| share(percent, of, up)),
    }
}

/// A percentage of `of`, rounded up or down.
pub fn share(percent: i64, of: i32, up: bool) -> i32 {
    let hundredfold = percent.max(0).saturating_mul(of.into());
    let rounded = if up { hundredfold.saturating_add(99) / 100 } else { hundredfold / 100 };
    i32::try_from(rounded).unwrap_or(i32::MAX)
}

/// Parses an object's label selector. A missing or empty one matches nothing: a controller that selected everything would adopt
/// everything.
pub fn selector(selector: &LabelSelector) -> Option<selector::LabelSelector> {
    selector::LabelSelector::of(selector).filter(|selector| !selector.0.is_empty())
}

/// Whether the labels of `meta` match.
pub fn matches(selector: &selector::LabelSelector, meta: &ObjectMeta) -> bool {
    let none = BTreeMap::new();
    let labels = meta.labels.as_ref().unwrap_or(&none);
    selector.matches(|key| labels.get(key).map(String::as_str))
}

/// Whether an object has all these labels.
pub fn has_labels(meta: &ObjectMeta, wanted: &BTreeMap<String, String>) -> bool {
    let Some(labels) = &meta.labels else { return wanted.is_empty() };
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Like `matches` with a `selector`, but without allocation: it is evaluated for each change of a Pod and each controller in its
/// namespace.
pub fn selects(selector: &LabelSelector, meta: &ObjectMeta) -> bool {
    let none = BTreeMap::new();
    let labels = meta.labels.as_ref().unwrap_or(&none);
    let holds = |it: &LabelSelectorRequirement| {
        let (label, values) = (labels.get(&it.key), it.values.as_deref().unwrap_or_default());
        match it.operator.as_str() {
            "In" => label.is_some_and(|label| values.contains(label)),
            "NotIn" => label.is_none_or(|label| !values.contains(label)),
            "Exists" => label.is_some(),
            "DoesNotExist" => label.is_none(),
            // Invalid operators match nothing.
            _ => false,
        }
    };
    let expressions = selector.match_expressions.as_deref().unwrap_or_default();
    let equal = selector.match_labels.as_ref().unwrap_or(&none);
    !(equal.is_empty() && expressions.is_empty()) && has_labels(meta, equal) && expressions.iter().all(holds)
}

/// What a controller does about an object that may be its own.
#[derive(Debug)]
pub enum Claim {
    /// It is ours.
    Own,
    /// It is not ours.
    Other,
    /// It matches and has no controller: adopt it.
    Adopt(Write),
    /// It is ours and no longer matches: release it.
    Release(Write),
}

/// The object, if the change leaves it without a controller, so that it may be adopted; terminating objects are never adopted.
pub fn orphan<K: Typed>(change: &Delta<K>) -> Option<&Arc<K>> {
    change.new.as_ref().filter(|object| {
        let meta = object.metadata();
        controller(meta).is_none() && !is_terminating(meta)
    })
}

/// Decides whether `object` belongs to `owner` (upstream's `ControllerRefManager`).
pub fn claim<O: Typed, K: Typed>(owner: &O, selector: &selector::LabelSelector, object: &K) -> Claim {
    claim_fitting(owner, matches(selector, object.metadata()), object)
}

/// The same if more than labels decides whether `object` fits.
fn claim_fitting<O: Typed, K: Typed>(owner: &O, fits: bool, object: &K) -> Claim {
    let (mine, its) = (owner.metadata(), object.metadata());
    match controller(its) {
        Some(other) if Some(&other.uid) != mine.uid.as_ref() => Claim::Other,
        Some(_) if fits => Claim::Own,
        Some(_) if is_terminating(mine) => Claim::Other,
        Some(_) => Claim::Release(owners(object, |all| all.retain(|o| Some(&o.uid) != mine.uid.as_ref()))),
        None if !fits || is_terminating(mine) || is_terminating(its) => Claim::Other,
        None => {
            let guard = Guard::Alive {
                resource: O::resource(),
                key: Key::of(owner),
                uid: mine.uid.clone().unwrap_or_default(),
            };
            Claim::Adopt(owners(object, |all| all.push(owner_reference(owner))).guarded(guard))
        }
    }
}

/// Which of `objects` are `owner`'s; or the adoptions and releases that must come first.
pub fn claim_all<O: Typed, K: Typed>(
    owner: &O,
    objects: impl IntoIterator<Item = Arc<K>>,
    fits: impl Fn(&K) -> bool,
) -> Result<Vec<Arc<K>>, Vec<Write>> {
    let (mut own, mut writes) = (Vec::new(), Vec::new());
    for object in objects {
        match claim_fitting(owner, fits(&object), &*object) {
            Claim::Own => own.push(object),
            Claim::Other => {}
            Claim::Adopt(write) | Claim::Release(write) => writes.push(write),
        }
    }
    if writes.is_empty() { Ok(own) } else { Err(writes) }
}

/// Changes the owner references of `object`, if it has not changed.
pub fn owners<K: Typed>(object: &K, change: impl FnOnce(&mut Vec<OwnerReference>)) -> Write {
    let meta = object.metadata();
    let mut all = meta.owner_references.clone().unwrap_or_default();
    change(&mut all);
    let patch = json!({ "metadata": {
        "uid": meta.uid, "resourceVersion": meta.resource_version, "ownerReferences": all,
    }});
    Write::merge::<K>(&Key::of(object), patch)
}

pub fn pod_condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|c| c.type_ == kind)
}

pub fn is_ready(pod: &Pod) -> bool {
    pod_condition(pod, "Ready").is_some_and(|c| c.status == "True")
}

/// Since when the Pod is ready.
pub fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = pod_condition(pod, "Ready").filter(|c| c.status == "True")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

/// When a Pod becomes available: ready for `min_ready_seconds`. `None` if it is not ready.
pub fn available_at(pod: &Pod, min_ready_seconds: i32) -> Option<Timestamp> {
    if !is_ready(pod) {
        return None;
    }
    match min_ready_seconds {
        ..=0 => Some(Timestamp::MIN),
        seconds => ready_since(pod).map(|since| later(since, Duration::from_secs(seconds.unsigned_abs().into()))),
    }
}

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Neither finished nor terminating.
pub fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !is_terminating(&pod.metadata)
}

/// Whether it is the mirror of a static Pod: all of its content, labels and readiness included, comes from its node.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(&pod.metadata, MIRROR).is_some()
}

pub fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orphan_is_somebody_elses_to_adopt_until_it_is_being_deleted() {
        let pod = |meta: serde_json::Value| serde_json::from_value::<Pod>(json!({"metadata": meta})).map(Arc::new).ok();
        let owner = json!([{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "u", "controller": true}]);
        let is_orphan = |new: Option<Arc<Pod>>| {
            orphan(&Delta { key: Key::new("ns", "a"), old: pod(json!({})), new, undecodable: None }).is_some()
        };
        assert!(is_orphan(pod(json!({"labels": {"a": "b"}}))));
        assert!(!is_orphan(None));
        assert!(!is_orphan(pod(json!({"ownerReferences": owner}))));
        assert!(!is_orphan(pod(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}))));
    }
}
